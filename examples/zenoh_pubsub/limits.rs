//! What a process of a run may have: open files, and memory that is locked.

use crate::options::Options;
use crate::units::Bytes;
use crate::{capability, Result};
use nix::errno::Errno;
use nix::sys::resource::{setrlimit, Resource};

/// Limits this process. Before it starts any thread: capabilities belong to a thread, and a new one inherits them.
///
/// The hard limits, too: zenoh raises the soft limit of open files to the hard one.
pub(crate) fn apply(options: &Options) -> Result<()> {
    let files = options.nofile;
    let named = |error: Errno| format!("cannot limit open files to {files}: {error}");
    setrlimit(Resource::RLIMIT_NOFILE, files, files).map_err(named)?;
    if let Some(bytes) = options.memlock {
        let bytes = bytes as u64;
        let named = |error: Errno| format!("cannot limit locked memory to {}: {error}", Bytes(bytes));
        setrlimit(Resource::RLIMIT_MEMLOCK, bytes, bytes).map_err(named)?;
        capability::drop_ipc_lock().map_err(|error| format!("cannot drop CAP_IPC_LOCK: {error}"))?;
    }
    Ok(())
}
