//! System calls that the standard library does not offer. The only unsafe code of the run.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Lets the processes that this one starts inherit a descriptor, under the same number.
pub(crate) fn make_inheritable(descriptor: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: numbers only; a wrong descriptor is an error.
    check(unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_SETFD, 0) })
}

/// Takes an inherited descriptor.
///
/// # Safety
///
/// The descriptor was inherited from the process that started this one, and nothing else here uses it.
pub(crate) unsafe fn take_inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: numbers only; a wrong descriptor is an error.
    check(unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) })?;
    // SAFETY: open, as was just seen, and the caller's to take.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// A process that is aborted leaves no file.
pub(crate) fn dump_no_core() {
    let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid structure. Lowering a limit cannot fail, and a core file would be a nuisance and no more.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &limit) };
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
