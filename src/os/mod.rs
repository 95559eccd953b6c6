//! Operating-system facilities: object names, mappings, locks, fork detection, futexes, barriers
//! between processes, and queries about which process holds which object.
//!
//! This is the lowest layer. It does not know about chunks, leases or channels.

pub(crate) mod fork;
pub(crate) mod futex;
pub(crate) mod locks;
pub(crate) mod mapping;
pub(crate) mod name;
pub(crate) mod posix;
pub(crate) mod processes;
pub(crate) mod robust_list;
pub(crate) mod segment;
