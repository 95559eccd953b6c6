//! Operating-system facilities: object names, mappings, locks, fork detection, futexes, barriers
//! between processes, and notices of names.
//!
//! This is the lowest layer. It does not know about chunks, leases or channels.

pub(crate) mod advice;
pub(crate) mod cpu;
pub(crate) mod fork;
pub(crate) mod futex;
pub(crate) mod helper_thread;
pub(crate) mod inotify;
pub(crate) mod locks;
pub(crate) mod mapping;
pub(crate) mod name;
pub(crate) mod posix;
pub(crate) mod process;
pub(crate) mod robust_list;
pub(crate) mod segment;
pub(crate) mod wake_fd;
