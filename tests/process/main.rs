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
#[cfg(feature = "tracing")]
#[path = "../support/log.rs"]
mod log;
#[path = "../support/own_shm.rs"]
mod own_shm;
mod peer;
mod shm;
mod spaces;
mod sys;
mod wire;

mod address_space;
mod at_the_cap;
mod awaiting;
mod channel;
mod channel_names;
mod descriptors;
mod file_size;
mod forked_owner;
mod forked_peer;
mod full_shm;
mod given_back;
mod hostile;
mod hostile_bytes;
mod hostile_segments;
mod hostile_writer;
mod in_flight;
mod inspect;
mod keeper;
mod killed_owner;
mod killed_peer;
mod last_reader;
mod leaving_peer;
mod loans;
mod lock_memory;
mod mounts;
mod namespaces;
mod pairs;
mod publisher;
mod reclaim_race;
mod rejects;
mod rejects_segment;
mod reserved;
mod slots;
mod slow_peer;
mod small_shm;
mod storms;
mod successor_race;
mod sweep;
mod swept_at_connect;
mod users;
mod waiting;
mod warm_path;
mod warm_threads;
