//! What the operating system provides: names of objects, mappings, locks, fork detection, futexes,
//! barriers between processes, and which processes hold what.
//!
//! The lowest layer: it knows nothing of chunks, leases or channels.

pub(crate) mod barrier;
pub(crate) mod deadline;
pub(crate) mod foreign;
pub(crate) mod fork;
pub(crate) mod futex;
pub(crate) mod locks;
pub(crate) mod mapping;
pub(crate) mod name;
pub(crate) mod per_process;
pub(crate) mod posix;
pub(crate) mod prefetch;
pub(crate) mod processes;
pub(crate) mod robust_list;
pub(crate) mod segment;
