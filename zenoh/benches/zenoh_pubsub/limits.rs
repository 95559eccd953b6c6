//! What a process of a run may have: open files, and locked memory. To be limited in locked memory,
//! a process drops CAP_IPC_LOCK, which root has: a process with that capability may lock any
//! amount.

use caps::{CapSet, Capability};
use nix::sys::resource::{setrlimit, Resource};
use shm_pool_support::Fallible;

/// How many files a process may have open.
pub(crate) const FILES: u64 = 1024;

/// Limits this process. Call it before the process starts any thread: capabilities belong to a
/// thread, and a new one inherits them.
///
/// Sets the hard limits, too: zenoh raises the soft limit of open files to the hard one.
pub(crate) fn apply(memlock: Option<usize>) -> Fallible {
    setrlimit(Resource::RLIMIT_NOFILE, FILES, FILES)
        .map_err(|error| format!("cannot limit open files to {FILES}: {error}"))?;
    let Some(bytes) = memlock else {
        return Ok(());
    };
    setrlimit(Resource::RLIMIT_MEMLOCK, bytes as u64, bytes as u64)
        .map_err(|error| format!("cannot limit locked memory to {bytes} bytes: {error}"))?;
    // For this thread and those that it starts. A dropped capability cannot be regained.
    for set in [CapSet::Effective, CapSet::Permitted] {
        caps::drop(None, set, Capability::CAP_IPC_LOCK)
            .map_err(|error| format!("cannot drop CAP_IPC_LOCK: {error}"))?;
    }
    Ok(())
}
