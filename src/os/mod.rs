//! What the operating system gives: names under /dev/shm, mappings, locks, forks, and words to sleep on.
//!
//! The lowest room: it knows nothing of chunks, leases or channels.

pub(crate) mod fork;
pub(crate) mod futex;
pub(crate) mod locks;
pub(crate) mod name;
pub(crate) mod posix;
pub(crate) mod prefetch;
pub(crate) mod robust_list;
pub(crate) mod segment;
