//! A child process with its own /dev/shm, so that filling it affects no other process.

use std::io;
use std::os::raw::{c_int, c_ulong};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Gives the process that `command` starts its own /dev/shm of 4 MiB. Starting it fails where that
/// is not permitted.
pub(crate) fn give_small_shm(command: &mut Command) {
    give_shm(command, b"size=4m,mode=1777\0");
}

/// The same with these options of tmpfs, which must end with a NUL.
pub(crate) fn give_shm(command: &mut Command, options: &'static [u8]) {
    give_mounts(command, Inside::Itself, move || mount_shm(options));
}

pub(crate) fn mount_shm(options: &[u8]) -> io::Result<()> {
    mount(
        b"tmpfs\0",
        b"/dev/shm\0",
        libc::MS_NOSUID | libc::MS_NODEV,
        options,
    )
}

/// Keeps the mounts that follow from other mount namespaces.
pub(crate) fn keep_mounts() -> io::Result<()> {
    mount(b"none\0", b"/\0", libc::MS_REC | libc::MS_PRIVATE, b"\0")
}

/// The user of an unprivileged process in its new user namespace. Outside, it stays the same user.
#[derive(Clone, Copy)]
pub(crate) enum Inside {
    /// Itself: it owns its files.
    Itself,
    /// Root, even after exec: it may create more namespaces.
    Root,
}

/// Gives the process that `command` starts its own mount namespace, in which `mount_shm` mounts
/// /dev/shm. That function runs between fork and exec, so it must only make system calls. Starting
/// the process fails where this is not permitted.
pub(crate) fn give_mounts(
    command: &mut Command,
    inside: Inside,
    mount_shm: impl Fn() -> io::Result<()> + Send + Sync + 'static,
) {
    let is_root = is_root();
    // SAFETY: it has no preconditions.
    let uid = unsafe { libc::geteuid() };
    // SAFETY: it has no preconditions.
    let gid = unsafe { libc::getegid() };
    let (uid_inside, gid_inside) = match inside {
        Inside::Itself => (uid, gid),
        Inside::Root => (0, 0),
    };
    // Without these maps, files that the process creates would have no owner.
    let maps = [
        ("/proc/self/setgroups", "deny".to_owned()),
        ("/proc/self/uid_map", format!("{uid_inside} {uid} 1")),
        ("/proc/self/gid_map", format!("{gid_inside} {gid} 1")),
    ];
    let prepare = move || {
        let user = if is_root { 0 } else { libc::CLONE_NEWUSER };
        // SAFETY: `unshare` touches no memory; a forked child has one thread.
        check(unsafe { libc::unshare(user | libc::CLONE_NEWNS) })?;
        if !is_root {
            for (path, text) in &maps {
                std::fs::write(path, text)?;
            }
        }
        keep_mounts()?;
        mount_shm()
    };
    // SAFETY: between fork and exec, `prepare` makes system calls only: `fs::write` with a short
    // path needs no heap, and neither does `mount_shm`, as callers ensure.
    unsafe { command.pre_exec(prepare) };
}

/// Mounts a file system, or changes how it is mounted. Every slice must end with a NUL.
pub(crate) fn mount(kind: &[u8], target: &[u8], flags: c_ulong, options: &[u8]) -> io::Result<()> {
    let text = |bytes: &[u8]| bytes.as_ptr().cast::<libc::c_char>();
    // SAFETY: every slice ends with a NUL, as callers of `mount` ensure.
    check(unsafe {
        libc::mount(
            text(kind),
            text(target),
            text(kind),
            flags,
            text(options).cast(),
        )
    })
}

pub(crate) fn check(result: c_int) -> io::Result<()> {
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Returns `true` if this process runs as root.
pub(crate) fn is_root() -> bool {
    // SAFETY: `geteuid` has no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// Reports why a test cannot run here. In CI, where everything is set up for the tests, fails
/// instead.
pub(crate) fn skip(reason: &str) {
    assert!(
        std::env::var("CI").as_deref() != Ok("true"),
        "cannot be skipped in CI: {reason}"
    );
    println!("SKIPPED: {reason}");
}
