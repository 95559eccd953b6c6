//! A child process with its own /dev/shm, so that filling it affects nobody else.

use std::io;
use std::os::raw::{c_int, c_ulong};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Gives the process that `command` starts its own /dev/shm of 4 MiB. Where that is not permitted,
/// the start fails.
pub(crate) fn give_small_shm(command: &mut Command) {
    give_shm(command, b"size=4m,mode=1777\0");
}

/// The same with these options of tmpfs, which must end with a NUL.
pub(crate) fn give_shm(command: &mut Command, options: &'static [u8]) {
    // SAFETY: `geteuid` and `getegid` have no preconditions.
    let (is_root, uid, gid) = (is_root(), unsafe { libc::geteuid() }, unsafe { libc::getegid() });
    // Without these maps, files that the process makes would have no owner.
    let maps = [("/proc/self/setgroups", "deny".to_owned()), ("/proc/self/uid_map", format!("{uid} {uid} 1"))];
    let maps = maps.into_iter().chain([("/proc/self/gid_map", format!("{gid} {gid} 1"))]).collect::<Vec<_>>();
    let prepare = move || {
        if is_root {
            // SAFETY: `unshare` touches no memory; a forked child has one thread.
            check(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
        } else {
            // SAFETY: `unshare` touches no memory; a forked child has one thread.
            check(unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) })?;
            maps.iter().try_for_each(|(path, text)| std::fs::write(path, text))?;
        }
        mount(b"none\0", b"/\0", libc::MS_REC | libc::MS_PRIVATE, b"\0")?;
        mount(b"tmpfs\0", b"/dev/shm\0", libc::MS_NOSUID | libc::MS_NODEV, options)
    };
    // SAFETY: between fork and exec, `prepare` makes system calls only: `fs::write` with a short
    // path needs no heap.
    unsafe { command.pre_exec(prepare) };
}

/// Mounts a file system. Every slice must end with a NUL.
pub(crate) fn mount(kind: &[u8], target: &[u8], flags: c_ulong, options: &[u8]) -> io::Result<()> {
    let text = |bytes: &[u8]| bytes.as_ptr().cast::<libc::c_char>();
    // SAFETY: every slice ends with a NUL, as callers of `mount` ensure.
    check(unsafe { libc::mount(text(kind), text(target), text(kind), flags, text(options).cast()) })
}

pub(crate) fn check(result: c_int) -> io::Result<()> {
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Does this process run as root?
pub(crate) fn is_root() -> bool {
    // SAFETY: `geteuid` has no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// Says why a test cannot run here. In CI, where everything is set up for the tests, that is a
/// failure.
pub(crate) fn skip(reason: &str) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "cannot be skipped in CI: {reason}");
    println!("SKIPPED: {reason}");
}
