//! PID and mount namespaces, ways for a process to end, and limits on what it may map.

use crate::sys::{check, is_root, mount, set_limit, Forked};
use std::io;
use std::process::Command;
use std::ptr;

/// Gives the new process a mount namespace of its own, in which /dev/shm is mounted again with the
/// same files, and the right to leave its PID namespace. The process fails to start where that is
/// not permitted.
pub(crate) fn leave_mount_namespace(command: &mut Command) {
    // SAFETY: no preconditions.
    let (is_root, uid, gid) = (is_root(), unsafe { libc::geteuid() }, unsafe { libc::getegid() });
    // In its user namespace the process is root, also after exec. Outside it stays the same user.
    let maps = [("/proc/self/setgroups", "deny".to_owned()), ("/proc/self/uid_map", format!("0 {uid} 1"))];
    let maps = maps.into_iter().chain([("/proc/self/gid_map", format!("0 {gid} 1"))]).collect::<Vec<_>>();
    let prepare = move || {
        let user = if is_root { 0 } else { libc::CLONE_NEWUSER };
        // SAFETY: between fork and exec the process has one thread.
        check(unsafe { libc::unshare(user | libc::CLONE_NEWNS) })?;
        if !is_root {
            maps.iter().try_for_each(|(path, text)| std::fs::write(path, text))?;
        }
        mount(b"none\0", b"/\0", libc::MS_REC | libc::MS_PRIVATE, b"\0")?;
        mount(b"/dev/shm\0", b"/dev/shm\0", libc::MS_BIND, b"\0")
    };
    // SAFETY: this only makes system calls; `fs::write` of a short path needs no heap.
    unsafe { std::os::unix::process::CommandExt::pre_exec(command, prepare) };
}

/// Makes the next process that this thread forks process 1 of a new PID namespace. After that, this
/// process can start no more threads.
pub(crate) fn leave_pid_namespace() -> io::Result<()> {
    // SAFETY: takes only numbers, and changes the namespace of no living process.
    check(unsafe { libc::unshare(libc::CLONE_NEWPID) })
}

/// Makes this process end when its parent ends.
pub(crate) fn end_with_parent() {
    // SAFETY: this option takes only a number.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) }).expect("a signal that exists");
}

impl Forked {
    /// The child's id, as this process and its parent know it.
    pub(crate) fn id(&self) -> u64 {
        u64::from(self.0.unsigned_abs())
    }

    /// Waits until the child has ended, in whatever way.
    pub(crate) fn wait(self) {
        let mut status = 0;
        // SAFETY: the status is a valid place to write to.
        let waited = unsafe { libc::waitpid(self.0, &mut status, 0) };
        assert_eq!(waited, self.0, "a child that was not reaped yet");
        std::mem::forget(self);
    }
}

/// Sends SIGKILL to a process that somebody else reaps, but has not reaped yet.
pub(crate) fn kill(id: u64) {
    let id = i32::try_from(id).expect("the id of a process");
    // SAFETY: the caller passes a process that is not reaped yet, so the id still names it.
    check(unsafe { libc::kill(id, libc::SIGKILL) }).expect("a process of this user");
}

/// A way to end a process without running destructors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// SIGKILL, as a test also sends it from outside.
    Kill,
    Abort,
    /// `exit`, which runs what was registered with `atexit`.
    Exit,
    /// A write to memory that may not be touched.
    Fault,
}

impl Ending {
    pub(crate) const ALL: [Self; 4] = [Self::Kill, Self::Abort, Self::Exit, Self::Fault];

    /// Ends this process.
    pub(crate) fn end(self) -> ! {
        match self {
            Self::Kill => kill(u64::from(std::process::id())),
            Self::Abort => std::process::abort(),
            Self::Exit => std::process::exit(0),
            Self::Fault => fault(),
        }
        unreachable!("a process outlived its end");
    }
}

fn fault() {
    let (len, flags) = (4096, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: maps new memory, to which nothing else refers.
    let page = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
    assert_ne!(page, libc::MAP_FAILED, "{}", io::Error::last_os_error());
    // SAFETY: the page is this function's own and inaccessible: the kernel ends the process.
    unsafe { page.cast::<u8>().write_volatile(0) };
}

/// Calls `body` while this process can map at most `bytes` more. `body` must need little heap.
pub(crate) fn with_address_space<T>(bytes: u64, body: impl FnOnce() -> T) -> T {
    with_limit(libc::RLIMIT_AS, 0, bytes, body)
}

/// Like [`with_address_space`], but limits writable private memory. A limit on address space would
/// not do, because malloc has already set aside more than `body` needs.
pub(crate) fn with_private_memory<T>(bytes: u64, body: impl FnOnce() -> T) -> T {
    with_limit(libc::RLIMIT_DATA, 5, bytes, body)
}

/// Field `at` of /proc/self/statm counts what `what` limits, in pages.
fn with_limit<T>(what: libc::__rlimit_resource_t, at: usize, bytes: u64, body: impl FnOnce() -> T) -> T {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("/proc");
    let pages: u64 = pages.split(' ').nth(at).and_then(|size| size.parse().ok()).expect("the size in pages");
    set_limit(what, pages * 4096 + bytes);
    let result = body();
    set_limit(what, libc::RLIM_INFINITY);
    result
}

/// How many bytes of /dev/shm are free.
pub(crate) fn free_shm() -> u64 {
    let mut stat = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: a NUL-terminated path, and a place that is valid for a write of the structure.
    check(unsafe { libc::statvfs(b"/dev/shm\0".as_ptr().cast(), stat.as_mut_ptr()) }).expect("a directory /dev/shm");
    // SAFETY: the call succeeded, so it filled the structure.
    let stat = unsafe { stat.assume_init() };
    stat.f_bfree * stat.f_frsize
}
