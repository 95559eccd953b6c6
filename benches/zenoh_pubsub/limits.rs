//! What a process of a run may have: open files, and memory that is locked. For the latter it gives up CAP_IPC_LOCK,
//! which root has: no limit of locked memory holds for whoever has it.

#![allow(unsafe_code)] // two system calls that neither the standard library nor nix offers

use crate::options::Options;
use nix::errno::Errno;
use nix::sys::resource::{setrlimit, Resource};
use shm_pool_support::units::Bytes;
use shm_pool_support::Fallible;
use std::io;

/// Limits this process. Before it starts any thread: capabilities belong to a thread, and a new one inherits them.
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
        drop_ipc_lock().map_err(|error| format!("cannot drop CAP_IPC_LOCK: {error}"))?;
    }
    Ok(())
}

/// `_LINUX_CAPABILITY_VERSION_3`: sets are two words each.
const VERSION: u32 = 0x2008_0522;

/// CAP_IPC_LOCK, in the first word.
const IPC_LOCK: u32 = 1 << 14;

/// `struct __user_cap_header_struct`
#[repr(C)]
struct Header {
    version: u32,
    pid: libc::c_int,
}

/// `struct __user_cap_data_struct`
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Word {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Drops it for this thread and those that it will start. There is no way back.
fn drop_ipc_lock() -> io::Result<()> {
    // 0 is the calling thread.
    let mut header = Header { version: VERSION, pid: 0 };
    let mut words = [Word::default(); 2];
    // SAFETY: both pointers are to values of this frame, laid out as the call has it: a header and two words.
    let failed = unsafe { libc::syscall(libc::SYS_capget, &mut header, words.as_mut_ptr()) };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    words[0].effective &= !IPC_LOCK;
    words[0].permitted &= !IPC_LOCK;
    // SAFETY: as above; the call only reads them.
    let failed = unsafe { libc::syscall(libc::SYS_capset, &mut header, words.as_ptr()) };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
