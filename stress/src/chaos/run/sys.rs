//! System calls that the standard library does not offer. The only unsafe code of the run.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Lets the processes that this one starts inherit a descriptor, under the same number.
pub(crate) fn make_inheritable(descriptor: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: numbers only; a wrong descriptor is an error.
    check(unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_SETFD, 0) })
}

/// A copy of an inherited descriptor. The inherited one stays open for as long as this process
/// lives.
pub(crate) fn copy_inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: numbers only; a wrong descriptor is an error.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) };
    check(copy)?;
    // SAFETY: just opened, so nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// A process that is aborted leaves no file.
pub(crate) fn dump_no_core() {
    let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid structure. Lowering a limit cannot fail, and a core file would be a nuisance
    // and no more.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &limit) };
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
