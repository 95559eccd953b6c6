//! What a process of a run may have: open files, and memory that is locked. For the latter it gives
//! up CAP_IPC_LOCK, which root has: no limit of locked memory holds for whoever has it.

use crate::options::Options;
use caps::{CapSet, Capability};
use nix::errno::Errno;
use nix::sys::resource::{setrlimit, Resource};
use shm_pool_support::units::Bytes;
use shm_pool_support::Fallible;

/// Limits this process. Before it starts any thread: capabilities belong to a thread, and a new one
/// inherits them.
///
/// The hard limits, too: zenoh raises the soft limit of open files to the hard one.
pub(crate) fn apply(options: &Options) -> Fallible {
    let files = options.nofile;
    let named = |error: Errno| format!("cannot limit open files to {files}: {error}");
    setrlimit(Resource::RLIMIT_NOFILE, files, files).map_err(named)?;
    if let Some(bytes) = options.memlock {
        let bytes = bytes as u64;
        let named = |error: Errno| format!("cannot limit locked memory to {}: {error}", Bytes(bytes));
        setrlimit(Resource::RLIMIT_MEMLOCK, bytes, bytes).map_err(named)?;
        // For this thread and those that it will start. There is no way back.
        for set in [CapSet::Effective, CapSet::Permitted] {
            caps::drop(None, set, Capability::CAP_IPC_LOCK)
                .map_err(|error| format!("cannot drop CAP_IPC_LOCK: {error}"))?;
        }
    }
    Ok(())
}
