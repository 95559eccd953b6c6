//! An asymmetric barrier: orders a store before a later load on a path where a fence would cost too
//! much.
//!
//! The light side stores and then loads, without a barrier. The heavy side stores, calls [`heavy`],
//! and then loads. [`heavy`] runs a full barrier on every processor that runs a thread of an
//! [enlisted](enlist) process (see `man 2 membarrier`). Therefore at least one of the two loads
//! sees the other side's store.
//!
//! On a kernel without `membarrier`, or in a sandbox that forbids it, the light side has no barrier
//! and a processor may delay its store past its load. A thread that waits must therefore recheck
//! its condition periodically.

use std::sync::atomic::{AtomicU64, Ordering};

/// No process is enlisted initially; epochs begin at 0.
const NOBODY: u64 = u64::MAX;

/// Registers this process, so that [`heavy`] reaches its threads from any process. Makes a system
/// call the first time.
pub(crate) fn enlist() {
    // The epoch of the process that enlisted: a forked child must enlist itself.
    static ENLISTED: AtomicU64 = AtomicU64::new(NOBODY);
    let epoch = super::fork::epoch();
    if ENLISTED.load(Ordering::Relaxed) != epoch {
        membarrier(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED);
        ENLISTED.store(epoch, Ordering::Relaxed);
    }
}

/// Runs a full barrier on every thread of every [enlisted](enlist) process, including this one.
pub(crate) fn heavy() {
    enlist();
    crate::sync::fence(crate::sync::Ordering::SeqCst);
    membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED);
}

fn membarrier(command: libc::c_int) {
    // SAFETY: the call takes numbers only. It fails only where it is unavailable, a case that the
    // module documentation covers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
}
