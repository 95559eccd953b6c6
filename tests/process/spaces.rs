//! PID and mount namespaces, ways for a process to end, and limits on what it may map.

use crate::own_shm::{give_mounts, Inside};
use crate::sys::{check, mount, set_limit, Forked};
use std::hint::black_box;
use std::io;
use std::process::Command;
use std::ptr;

/// Gives the new process its own mount namespace, in which /dev/shm is mounted again with the same
/// files, and the right to leave its PID namespace. The process fails to start where that is not
/// permitted.
pub(crate) fn leave_mount_namespace(command: &mut Command) {
    give_mounts(command, Inside::Root, || mount(b"/dev/shm\0", b"/dev/shm\0", libc::MS_BIND, b"\0"));
}

/// Makes the next process that this thread forks process 1 of a new PID namespace. After that, this
/// process can start no more threads.
pub(crate) fn leave_pid_namespace() -> io::Result<()> {
    // SAFETY: takes only numbers, and changes the namespace of no living process.
    check(unsafe { libc::unshare(libc::CLONE_NEWPID) })
}

/// Makes this process exit when its parent exits.
pub(crate) fn end_with_parent() {
    // SAFETY: this option takes only a number.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) }).expect("a signal that exists");
}

impl Forked {
    /// Returns the child's id, as this process and its parent know it.
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

/// Sends SIGKILL to a process that another process reaps, but has not reaped yet.
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

/// Waits until the main thread, which runs the tests, sleeps until this one is over. When it first
/// does so, it takes heap, and aborts if there is none.
fn wait_for_harness() {
    let stat = format!("/proc/self/task/{}/stat", std::process::id());
    while !std::fs::read_to_string(&stat).expect("/proc").contains(") S ") {
        std::thread::yield_now();
    }
}

/// Calls `body` with a heap that has nothing left but one block of `left` bytes.
pub(crate) fn with_heap_left<T>(left: usize, body: impl FnOnce() -> T) -> T {
    wait_for_harness();
    let block = |len: usize| {
        let mut block = Vec::<u8>::new();
        block.try_reserve_exact(len).is_ok().then(|| black_box(block))
    };
    let mut eaten = Vec::with_capacity(1 << 16);
    let spare = block(left);
    with_private_memory(0, || {
        // malloc keeps what was freed by its length.
        let lengths = [1 << 20, 64 << 10, 4096].into_iter().chain((1..=128).rev().map(|of_16| of_16 * 16));
        for len in lengths {
            while eaten.len() < eaten.capacity() {
                let Some(more) = block(len) else { break };
                eaten.push(more);
            }
        }
        drop(spare);
        body()
    })
}

/// Limits the resource `what`, whose usage is field `at` of /proc/self/statm, in pages.
fn with_limit<T>(what: libc::__rlimit_resource_t, at: usize, bytes: u64, body: impl FnOnce() -> T) -> T {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("/proc");
    let pages: u64 = pages.split(' ').nth(at).and_then(|size| size.parse().ok()).expect("the size in pages");
    set_limit(what, pages * 4096 + bytes);
    let result = body();
    set_limit(what, libc::RLIM_INFINITY);
    result
}

/// Returns how many bytes of /dev/shm are free.
pub(crate) fn free_shm() -> u64 {
    let mut stat = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: a NUL-terminated path, and a place that is valid for a write of the structure.
    check(unsafe { libc::statvfs(b"/dev/shm\0".as_ptr().cast(), stat.as_mut_ptr()) }).expect("a directory /dev/shm");
    // SAFETY: the call succeeded, so it filled the structure.
    let stat = unsafe { stat.assume_init() };
    stat.f_bfree * stat.f_frsize
}
