//! A child process with a /dev/shm of its own, so that a full one is nobody else's.

use std::io;
use std::os::raw::{c_int, c_ulong};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Gives the process to be started a /dev/shm of its own, of 4 MiB. Starting it fails where that is not permitted.
pub(crate) fn give_small_shm(command: &mut Command) {
    // SAFETY: these calls give numbers only and need no locks.
    let (is_root, uid, gid) = (is_root(), unsafe { libc::geteuid() }, unsafe { libc::getegid() });
    // Without these lines the files that the process makes would have no owner.
    let maps = [("/proc/self/setgroups", "deny".to_owned()), ("/proc/self/uid_map", format!("{uid} {uid} 1"))];
    let maps = maps.into_iter().chain([("/proc/self/gid_map", format!("{gid} {gid} 1"))]).collect::<Vec<_>>();
    let prepare = move || {
        if is_root {
            // SAFETY: the process has one thread.
            check(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
        } else {
            // SAFETY: the process has one thread.
            check(unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) })?;
            maps.iter().try_for_each(|(path, text)| std::fs::write(path, text))?;
        }
        mount(b"none\0", b"/\0", libc::MS_REC | libc::MS_PRIVATE, b"\0")?;
        mount(b"tmpfs\0", b"/dev/shm\0", libc::MS_NOSUID | libc::MS_NODEV, b"size=4m,mode=1777\0")
    };
    // SAFETY: between fork and exec this makes system calls only; `fs::write` of a short path needs no heap.
    unsafe { command.pre_exec(prepare) };
}

/// All arguments end with a NUL.
pub(crate) fn mount(kind: &[u8], target: &[u8], flags: c_ulong, options: &[u8]) -> io::Result<()> {
    let text = |bytes: &[u8]| bytes.as_ptr().cast::<libc::c_char>();
    // SAFETY: NUL-terminated strings, by the contract above.
    check(unsafe { libc::mount(text(kind), text(target), text(kind), flags, text(options).cast()) })
}

pub(crate) fn check(result: c_int) -> io::Result<()> {
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Is this process root's?
pub(crate) fn is_root() -> bool {
    // SAFETY: no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// Tells why a test cannot be done here. Where everything is set up for tests, that is a failure.
pub(crate) fn skip(reason: &str) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "cannot be skipped in CI: {reason}");
    println!("SKIPPED: {reason}");
}
