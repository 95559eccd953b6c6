//! The library between real processes: peers and owners that are slow, killed, forked, of another
//! user, or out of memory or descriptors. Also what only the kernel can tell: that the warm path
//! makes no system call.
//!
//! A child is this test binary again, run with the single test [`child::entry`] and with an
//! environment variable that names its role. The test and its child talk over a socket, which is
//! the child's standard input. Nothing here waits for time to pass: every step is an answer, and a
//! late answer fails the test.
//!
//! Each test has its own name prefix, leaves /dev/shm as it found it, and checks that itself
//! ([`shm::Names`]).

#[macro_use]
mod child;
#[path = "../support/ends.rs"]
mod ends;
#[cfg(feature = "tracing")]
#[path = "../support/log.rs"]
mod log;
#[path = "../support/own_shm.rs"]
mod own_shm;
mod peer;
mod shm;
mod sys;
#[path = "../support/threads.rs"]
mod threads;
mod wire;

mod address_space;
mod awaiting;
mod channel;
mod forks;
mod full_shm;
mod garbage;
mod hostile;
mod inspect;
mod killed_owner;
mod killed_peer;
mod loans;
mod namespaces;
mod pairs;
mod publisher;
mod rlimits;
mod storms;
mod users;
mod waiting;
mod warm_path;
