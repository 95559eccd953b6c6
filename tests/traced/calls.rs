//! System calls that can fail, and the errors that each is made to return.

#![forbid(unsafe_code)]

use crate::trace::{Registers, Tracee};
use libc::c_long;

/// Since Linux 5.16, on every architecture. The libc crate does not name it everywhere.
pub(crate) const FUTEX_WAITV: c_long = 449;

/// A system call that an operation makes.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) number: c_long,
    pub(crate) name: &'static str,
    /// The object of the call, as far as it is the same in every run.
    pub(crate) about: &'static str,
    /// The errors that the call can return.
    pub(crate) errors: &'static [i32],
}

/// System calls that are not made to fail:
///
/// * those that cannot fail in any state of the machine;
/// * those that fail only when the heap is exhausted (`brk`, `mprotect`, mappings without a file),
///   because Rust's allocator, not this crate, then ends the program;
/// * `futex` between threads of one process, which only libraries use;
/// * `tgkill`, which marks an operation for the tracer.
const NEVER_FAIL: &[c_long] = &[
    libc::SYS_brk,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_geteuid,
    libc::SYS_prlimit64,
    libc::SYS_tgkill,
    libc::SYS_sched_yield,
    libc::SYS_rt_sigprocmask,
];

/// Returns `true` for `close`, which releases the descriptor even if it returns an error. So the
/// call is made, and only its result is replaced.
pub(crate) fn is_done_anyway(number: c_long) -> bool {
    number == libc::SYS_close
}

/// Returns `true` for calls that release a resource. Their errors cannot be handled: the resource
/// may stay until the process exits, or until the next sweep.
pub(crate) fn takes_back(number: c_long) -> bool {
    [libc::SYS_unlinkat, libc::SYS_munmap, libc::SYS_close].contains(&number)
}

/// Returns `true` for calls that the standard library and `getrandom` repeat while they are
/// interrupted. This crate makes them on a tmpfs file and for a few bytes, where no kernel
/// interrupts them. And for a futex: a thread whose sleep is interrupted checks its word, and
/// sleeps until its deadline.
pub(crate) fn is_retried_for_ever(number: c_long, errno: i32) -> bool {
    errno == libc::EINTR
        && [
            libc::SYS_fchmod,
            libc::SYS_getrandom,
            libc::SYS_futex,
            FUTEX_WAITV,
        ]
        .contains(&number)
}

/// Returns `true` for errors that a call may return each time: a repeated signal, or a sandbox or a
/// shortage of memory while a thread sleeps on several words, which it then does in another way.
pub(crate) fn may_last(number: c_long, errno: i32) -> bool {
    errno == libc::EINTR || number == FUTEX_WAITV && errno != libc::EAGAIN
}

/// Returns an old call and its arguments as the call that replaces it on newer architectures. musl
/// uses more of the old ones than glibc.
#[cfg(target_arch = "x86_64")]
fn modern(number: c_long, arguments: [u64; 5]) -> (c_long, [u64; 5]) {
    let [first, second, third, ..] = arguments;
    let at = |number| (number, [libc::AT_FDCWD as u64, first, second, third, 0]);
    match number {
        libc::SYS_open => at(libc::SYS_openat),
        libc::SYS_stat | libc::SYS_lstat => at(libc::SYS_newfstatat),
        libc::SYS_unlink => at(libc::SYS_unlinkat),
        libc::SYS_poll => (libc::SYS_ppoll, arguments),
        _ => (number, arguments),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn modern(number: c_long, arguments: [u64; 5]) -> (c_long, [u64; 5]) {
    (number, arguments)
}

impl Call {
    /// Returns the system call that the child is entering, or `None` if it cannot fail.
    pub(crate) fn at(tracee: &Tracee, registers: &Registers) -> Option<Self> {
        let (number, arguments) = modern(registers.call(), registers.arguments());
        let is_of_no_file = number == libc::SYS_mmap && arguments[4] as i32 == -1;
        let is_private =
            number == libc::SYS_futex && arguments[1] as i32 & libc::FUTEX_PRIVATE_FLAG != 0;
        if NEVER_FAIL.contains(&number) || is_of_no_file || is_private {
            return None;
        }
        let call = |name, about, errors| {
            Some(Self {
                number,
                name,
                about,
                errors,
            })
        };
        match number {
            libc::SYS_openat => {
                let path = tracee.text(arguments[1]);
                let flags = arguments[2] as i32;
                let (about, errors) = opening(&path, flags);
                call("openat", about, errors)
            }
            libc::SYS_fcntl => {
                let (about, errors) = controlling(arguments[1] as i32);
                call("fcntl", about, errors)
            }
            libc::SYS_fallocate => call(
                "fallocate",
                "",
                &[
                    libc::ENOSPC,
                    libc::EINTR,
                    libc::ENOMEM,
                    libc::EFBIG,
                    libc::EDQUOT,
                ],
            ),
            libc::SYS_ftruncate => call("ftruncate", "", &[libc::EINTR, libc::EFBIG, libc::EPERM]),
            libc::SYS_mmap => call("mmap", "", &[libc::ENOMEM, libc::EAGAIN, libc::EPERM]),
            libc::SYS_munmap => call("munmap", "", &[libc::ENOMEM]),
            libc::SYS_madvise => call(
                "madvise",
                "",
                &[
                    libc::EINVAL,
                    libc::ENOMEM,
                    libc::EAGAIN,
                    libc::EPERM,
                    libc::EBUSY,
                    libc::EFAULT,
                ],
            ),
            libc::SYS_lseek => call("lseek", "", &[libc::ENXIO, libc::EINVAL]),
            // Other errors report late writes to a disk. The standard library panics on them.
            libc::SYS_close => call("close", "", &[libc::EINTR]),
            libc::SYS_fstat => call("fstat", "", &[libc::ENOMEM]),
            // Without a path, the call is fstat.
            libc::SYS_newfstatat | libc::SYS_statx if tracee.text(arguments[1]).is_empty() => {
                call("stat", "descriptor", &[libc::ENOMEM])
            }
            libc::SYS_newfstatat | libc::SYS_statx => {
                call("stat", "path", &[libc::ENOMEM, libc::EACCES, libc::ENOENT])
            }
            // A sandbox may forbid it.
            libc::SYS_futex if arguments[1] as i32 == libc::FUTEX_WAKE => {
                call("futex", "wake", &[libc::ENOSYS, libc::EPERM])
            }
            libc::SYS_futex => call(
                "futex",
                "sleep",
                &[libc::EINTR, libc::EAGAIN, libc::ENOSYS, libc::EPERM],
            ),
            // A sandbox may return any error.
            FUTEX_WAITV => call(
                "futex_waitv",
                "",
                &[
                    libc::EINTR,
                    libc::EAGAIN,
                    libc::ENOMEM,
                    libc::ENOSYS,
                    libc::EPERM,
                    libc::EACCES,
                ],
            ),
            libc::SYS_clone | libc::SYS_clone3 => call("clone", "thread", &[libc::EAGAIN]),
            libc::SYS_membarrier => {
                call("membarrier", "", &[libc::ENOSYS, libc::EPERM, libc::EINVAL])
            }
            // Nothing depends on it.
            libc::SYS_flock => call("flock", "", &[libc::EINTR, libc::ENOLCK, libc::EWOULDBLOCK]),
            // To word an error that has already occurred.
            libc::SYS_faccessat | libc::SYS_faccessat2 => call("faccessat", "", &[]),
            libc::SYS_fchmod => call("fchmod", "", &[libc::EPERM, libc::EINTR, libc::EROFS]),
            libc::SYS_pread64 => call("pread", "", &[libc::EINTR, libc::ENOMEM, libc::EIO]),
            libc::SYS_pwrite64 => call(
                "pwrite",
                "",
                &[libc::ENOSPC, libc::EINTR, libc::ENOMEM, libc::EIO],
            ),
            libc::SYS_getrandom => {
                call("getrandom", "", &[libc::EINTR, libc::ENOSYS, libc::EAGAIN])
            }
            libc::SYS_getdents64 => {
                call("getdents64", "", &[libc::EINTR, libc::ENOMEM, libc::ENOENT])
            }
            // On the files that replace `getrandom`, and one in /sys.
            libc::SYS_read => call("read", "", &[]),
            libc::SYS_ppoll => call("poll", "random", &[]),
            // To find a directory's file system, or to word an error that has already occurred.
            libc::SYS_statfs => call("statfs", "", &[libc::EINTR, libc::ENOMEM, libc::EACCES]),
            libc::SYS_mlock2 => call(
                "mlock2",
                "",
                &[libc::ENOMEM, libc::EPERM, libc::EAGAIN, libc::EINVAL],
            ),
            libc::SYS_mbind => call(
                "mbind",
                "",
                &[libc::EINVAL, libc::ENOMEM, libc::EPERM, libc::ENOSYS],
            ),
            libc::SYS_unlinkat => call("unlink", "", &[libc::ENOENT, libc::EACCES, libc::EROFS]),
            number => panic!("system call {number} is new here: which errors can it give?"),
        }
    }
}

fn opening(path: &str, flags: i32) -> (&'static str, &'static [i32]) {
    use libc::{EACCES, EEXIST, EINTR, EMFILE, ENFILE, ENOENT, ENOMEM, ENOSPC};
    let (created, opened) = match path.rsplit('.').next() {
        Some("ctl") => ("create control", "control"),
        Some("channel") => ("create channel", "channel"),
        Some("connection") => ("create connection", "connection"),
        _ => ("create segment", "segment"),
    };
    if flags & libc::O_CREAT != 0 {
        return (
            created,
            &[EACCES, EMFILE, ENFILE, ENOSPC, ENOMEM, EINTR, EEXIST],
        );
    }
    if flags & libc::O_DIRECTORY != 0 {
        return ("directory", &[EACCES, EMFILE, ENFILE, ENOMEM, EINTR]);
    }
    // The fallback of the crate `getrandom` on a kernel without the system call.
    if path.starts_with("/dev/") && path.ends_with("random") {
        return ("random", &[]);
    }
    if path.starts_with("/sys/") {
        return ("huge pages", &[EACCES, EMFILE, ENFILE, ENOENT, ENOMEM]);
    }
    // If it cannot be read, it has the usual value.
    if path == "/proc/sys/kernel/overflowuid" {
        return ("overflow uid", &[EACCES, ENOENT, EMFILE]);
    }
    assert!(path.starts_with("/dev/shm/"), "{path} is opened");
    (opened, &[EACCES, EMFILE, ENFILE, ENOMEM, EINTR, ENOENT])
}

fn controlling(command: i32) -> (&'static str, &'static [i32]) {
    match command {
        libc::F_OFD_SETLK => ("set lock", &[libc::ENOLCK, libc::EINTR, libc::EAGAIN]),
        libc::F_OFD_GETLK => ("get lock", &[libc::ENOLCK, libc::EINTR]),
        // From a debug assertion of the standard library, and from the C library when it opens a
        // file or a directory. They need no memory.
        libc::F_GETFD | libc::F_SETFD | libc::F_GETFL => ("flags", &[]),
        other => panic!("fcntl command {other} is new here: which errors can it give?"),
    }
}

/// Returns `true` if a child that makes this call is reporting a panic.
pub(crate) fn is_complaint(number: c_long) -> bool {
    [libc::SYS_sendto, libc::SYS_write].contains(&number)
}

/// The name of an error number.
pub(crate) fn error_name(errno: i32) -> String {
    let names: &[(i32, &str)] = &[
        (libc::EACCES, "EACCES"),
        (libc::EAGAIN, "EAGAIN"),
        (libc::EBUSY, "EBUSY"),
        (libc::EDQUOT, "EDQUOT"),
        (libc::EEXIST, "EEXIST"),
        (libc::EFAULT, "EFAULT"),
        (libc::EFBIG, "EFBIG"),
        (libc::EINTR, "EINTR"),
        (libc::EINVAL, "EINVAL"),
        (libc::EIO, "EIO"),
        (libc::EMFILE, "EMFILE"),
        (libc::ENFILE, "ENFILE"),
        (libc::ENOENT, "ENOENT"),
        (libc::ENOLCK, "ENOLCK"),
        (libc::ENOMEM, "ENOMEM"),
        (libc::ENOSPC, "ENOSPC"),
        (libc::ENOSYS, "ENOSYS"),
        (libc::ENXIO, "ENXIO"),
        (libc::EPERM, "EPERM"),
        (libc::EROFS, "EROFS"),
    ];
    match names.iter().find(|(number, _)| *number == errno) {
        Some((_, name)) => (*name).to_owned(),
        None => errno.to_string(),
    }
}
