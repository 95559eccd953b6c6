//! System calls that the standard library lacks.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::ptr;

fn check(result: i32) -> io::Result<()> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Takes the `flock` of a file, shared or exclusive, without blocking. The kernel releases it with the
/// last descriptor of this open file description.
pub(crate) fn flock(file: &File, kind: i32) -> io::Result<()> {
    // SAFETY: `file` keeps the descriptor open.
    check(unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) })
}

/// The size of a file system in bytes.
pub(crate) struct Space {
    /// What this process may still take.
    pub(crate) free: u64,
    pub(crate) all: u64,
}

/// Returns the size of a directory's file system, if it can be determined and is limited.
pub(crate) fn space(directory: &str) -> Option<Space> {
    let path = CString::new(directory).ok()?;
    let mut stat = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path is NUL-terminated, and the buffer has the size of a `statvfs`.
    check(unsafe { libc::statvfs(path.as_ptr(), stat.as_mut_ptr()) }).ok()?;
    // SAFETY: `statvfs` succeeded, so it filled the buffer.
    let stat = unsafe { stat.assume_init() };
    if stat.f_blocks == 0 {
        return None;
    }
    Some(Space {
        free: stat.f_bavail * stat.f_frsize,
        all: stat.f_blocks * stat.f_frsize,
    })
}

/// Returns how many bytes this process may lock into memory, privileges aside.
pub(crate) fn lock_limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a valid place to write to.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    limit.rlim_cur
}

/// Returns `true` if this process may lock that many more bytes into memory. Asks the kernel, with
/// address space that has no memory.
pub(crate) fn may_lock(bytes: usize) -> io::Result<bool> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the kernel chooses the address, so the new mapping touches no existing memory.
    let start = unsafe { libc::mmap(ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the range is the mapping just made. Locking changes no byte.
    let locked = check(unsafe { libc::mlock2(start, bytes, libc::MLOCK_ONFAULT as _) });
    // SAFETY: the mapping just made, which nothing else uses.
    unsafe { libc::munmap(start, bytes) };
    // A kernel before 4.4 has no `mlock2` and cannot be asked this way.
    let errno = locked.err().and_then(|error| error.raw_os_error());
    Ok(!matches!(
        errno,
        Some(libc::ENOMEM | libc::EPERM | libc::EAGAIN)
    ))
}
