//! What a process of a run may have: open files, and memory that is locked. For the latter it gives
//! up CAP_IPC_LOCK, which root has: with it, there is no limit of locked memory.

use caps::{CapSet, Capability};
use nix::errno::Errno;
use nix::sys::resource::{setrlimit, Resource};
use shm_pool_support::Fallible;

/// How many files a process may have open.
pub(crate) const FILES: u64 = 1024;

/// Limits this process. Before it starts any thread: capabilities belong to a thread, and a new one
/// inherits them.
///
/// The hard limits, too: zenoh raises the soft limit of open files to the hard one.
pub(crate) fn apply(memlock: Option<usize>) -> Fallible {
    let named = |error: Errno| format!("cannot limit open files to {FILES}: {error}");
    setrlimit(Resource::RLIMIT_NOFILE, FILES, FILES).map_err(named)?;
    let Some(bytes) = memlock else { return Ok(()) };
    let named = |error: Errno| format!("cannot limit locked memory to {bytes} bytes: {error}");
    setrlimit(Resource::RLIMIT_MEMLOCK, bytes as u64, bytes as u64).map_err(named)?;
    // For this thread and those that it will start. There is no way back.
    for set in [CapSet::Effective, CapSet::Permitted] {
        caps::drop(None, set, Capability::CAP_IPC_LOCK)
            .map_err(|error| format!("cannot drop CAP_IPC_LOCK: {error}"))?;
    }
    Ok(())
}
