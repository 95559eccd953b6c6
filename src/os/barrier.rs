//! A barrier with one heavy side and one light side, for a store and a load that must not pass each
//! other on a path where a fence would cost too much.
//!
//! A thread that stores and then loads calls nothing in between. Whoever is to be seen by that load
//! stores, calls [`heavy`], and then looks. The kernel runs a full barrier on every processor that
//! runs a thread of a process that has [enlisted](enlist) (see `man 2 membarrier`). So either the
//! look sees the other thread's store, or that thread's load sees this one's.
//!
//! On a kernel without the call, or where a sandbox forbids it, the light side has no barrier, and
//! a processor may delay its store past its load. So whoever waits for something must look again
//! from time to time.

use std::sync::atomic::{AtomicU64, Ordering};

/// No process is enlisted at the start; epochs begin at 0.
const NOBODY: u64 = u64::MAX;

/// Makes this process one whose threads [`heavy`] reaches, in any process. Costs a system call the
/// first time.
pub(crate) fn enlist() {
    // The epoch of the process that has enlisted: a forked child enlists for itself.
    static ENLISTED: AtomicU64 = AtomicU64::new(NOBODY);
    let epoch = super::fork::epoch();
    if ENLISTED.load(Ordering::Relaxed) != epoch {
        membarrier(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED);
        ENLISTED.store(epoch, Ordering::Relaxed);
    }
}

/// A full barrier on every thread of every process that has [enlisted](enlist), this one included.
pub(crate) fn heavy() {
    enlist();
    crate::sync::fence(crate::sync::Ordering::SeqCst);
    membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED);
}

fn membarrier(command: libc::c_int) {
    // SAFETY: takes numbers only. An error means that there is no such call, which the module
    // allows for.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
}
