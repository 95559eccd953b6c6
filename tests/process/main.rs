//! The library between real processes: peers and owners that are slow, killed, forked, of another
//! user, or out of memory or descriptors. Also what only the kernel can tell: that the warm path
//! makes no system call.
//!
//! A child is this test binary again. It runs either the body of the same test
//! ([`child::in_child`]), or the single test [`child::entry`] in a role that an environment
//! variable names. Test and child talk over a socket, which is the child's standard input. Nothing
//! here waits for time to pass: every step is an answer, and a late answer fails the test.
//!
//! Each test has its own name prefix, leaves /dev/shm as it found it, and checks that itself
//! ([`shm::Names`]).

#[macro_use]
mod child;
#[path = "../common/ends.rs"]
mod ends;
#[cfg(feature = "tracing")]
#[path = "../common/log.rs"]
mod log;
#[path = "../common/own_shm.rs"]
mod own_shm;
mod peer;
#[path = "../common/served.rs"]
mod served;
mod shm;
mod sys;
#[path = "../common/threads.rs"]
mod threads;
mod wire;

mod address_space;
mod advice;
mod awaiting;
mod borrowed;
mod channel;
mod channel_pairs;
mod cleaners;
mod forks;
mod full_shm;
mod garbage;
mod hooks;
mod host;
mod hostile;
mod inspect;
mod interrupts;
mod killed_owner;
mod killed_peer;
mod namespaces;
mod one_end;
mod pairs;
mod publisher;
mod restarts;
mod restricted;
mod rlimits;
mod scenario;
mod spinning;
mod storms;

mod users;
mod versions;
mod waiting;
mod warm_path;
