//! The system calls that the standard library does not offer. With `spaces` and `own_shm` the only unsafe code of these tests.

pub(crate) use crate::own_shm::{check, give_small_shm, is_root, mount};
use std::io;
use std::os::fd::RawFd;
use std::os::raw::{c_int, c_long, c_ulong};
use std::panic::{self, AssertUnwindSafe};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// After this many seconds the kernel ends a child that its test has lost sight of.
const LIFETIME: u32 = 300;

/// The calls that strict seccomp allows.
pub(crate) const STRICT: [c_long; 4] = [libc::SYS_read, libc::SYS_write, libc::SYS_exit, libc::SYS_rt_sigreturn];

/// From now on any system call of this thread but those in `allowed` kills the process with SIGSYS.
///
/// A filter, not SECCOMP_MODE_STRICT: that cannot be entered where a filter is in force already, as in most
/// containers, and it kills only the thread, so that the others would have to find out.
pub(crate) fn forbid_all_calls_but(allowed: &[c_long]) -> io::Result<()> {
    let load_number = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0);
    let compare = allowed.iter().enumerate().map(|(at, &number)| {
        // To the last instruction if it is equal, otherwise on to the next one.
        (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, allowed.len() - at, 0, number as u32)
    });
    let answers = [libc::SECCOMP_RET_KILL_PROCESS, libc::SECCOMP_RET_ALLOW];
    let answers = answers.map(|answer| (libc::BPF_RET | libc::BPF_K, 0, 0, answer));
    let instruction = |(code, jt, jf, k)| libc::sock_filter { code: code as u16, jt: jt as u8, jf, k };
    let mut filter: Vec<_> = [load_number].into_iter().chain(compare).chain(answers).map(instruction).collect();
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: this option takes numbers only.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // SAFETY: the program is well-formed memory of the length that it says; the kernel copies it.
    check(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER as c_ulong, &program) })
}

/// Writes by the bare system call.
pub(crate) fn write(descriptor: RawFd, bytes: &[u8]) {
    // SAFETY: the slice is valid for reads of its length. A short write shows as a missing answer.
    unsafe { libc::write(descriptor, bytes.as_ptr().cast(), bytes.len()) };
}

/// Ends this thread by the bare system call, with nothing that would run at its end.
pub(crate) fn exit_thread() -> ! {
    // SAFETY: the thread's stack is never returned to; what others borrow from it, if anything, stays in place.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    unreachable!("a thread returned from its exit")
}

/// The calling thread, for [`stop`].
pub(crate) fn this_thread() -> libc::pthread_t {
    // SAFETY: no preconditions.
    unsafe { libc::pthread_self() }
}

/// Is the thread that was to be stopped in [`stand_still`]?
static STANDS_STILL: AtomicBool = AtomicBool::new(false);

/// A thread that stands still until this is dropped.
pub(crate) struct Stopped(());

/// Stops a thread that lives wherever it is, for as long as the answer is kept. One at a time in a process; and what
/// the thread may have locked then, the caller must not need.
pub(crate) fn stop(thread: libc::pthread_t) -> Stopped {
    let handler = stand_still as extern "C" fn(c_int);
    // SAFETY: the handler does only what a handler may do.
    unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
    // SAFETY: the thread lives, by the contract above.
    assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGUSR1) }, 0, "a signal to a thread that lives");
    while !STANDS_STILL.load(Ordering::Acquire) {
        thread::yield_now();
    }
    Stopped(())
}

extern "C" fn stand_still(_signal: c_int) {
    STANDS_STILL.store(true, Ordering::Release);
    while STANDS_STILL.load(Ordering::Acquire) {
        // SAFETY: no preconditions. It never fails, and so leaves the thread's errno alone.
        unsafe { libc::sched_yield() };
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        STANDS_STILL.store(false, Ordering::Release);
    }
}

/// A forked child. Killed and reaped when this is dropped.
pub(crate) struct Forked(pub(crate) libc::pid_t);

/// Forks. `None` in the child, which must end with [`end_with`].
///
/// The child goes on with this thread alone. What it calls, the allocator included, is fit for that: it shares no lock
/// with another thread of this process, but for those that libc makes good after a fork.
pub(crate) fn fork() -> Option<Forked> {
    // SAFETY: as said above.
    match unsafe { libc::fork() } {
        0 => {
            end_after(LIFETIME);
            None
        }
        -1 => panic!("fork: {}", io::Error::last_os_error()),
        pid => Some(Forked(pid)),
    }
}

/// Runs the program of a forked child and ends it, without returning into the test harness. A panic fails it, and was
/// reported by the panic hook.
pub(crate) fn end_with(body: impl FnOnce()) -> ! {
    let code = i32::from(panic::catch_unwind(AssertUnwindSafe(body)).is_err());
    // SAFETY: no preconditions.
    unsafe { libc::_exit(code) }
}

impl Forked {
    /// Waits for its end, and fails if it did.
    pub(crate) fn finish(self) {
        let mut status = 0;
        // SAFETY: the status is a valid place to write to.
        let waited = unsafe { libc::waitpid(self.0, &mut status, 0) };
        assert_eq!((waited, status), (self.0, 0), "the forked child's wait status");
        std::mem::forget(self);
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        // SAFETY: a child of this process that was not reaped yet, so the id is still its own.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        // SAFETY: without a place for the status, none is written.
        unsafe { libc::waitpid(self.0, ptr::null_mut(), 0) };
    }
}

/// Makes a child harmless: it ends some time in any case, and leaves no file if it is killed by a signal.
pub(crate) fn be_a_child() {
    end_after(LIFETIME);
    set_limit(libc::RLIMIT_CORE, 0);
}

fn end_after(seconds: u32) {
    // SAFETY: no preconditions.
    unsafe { libc::alarm(seconds) };
}

/// Limits the number of open descriptors of this process.
pub(crate) fn limit_descriptors(count: u64) {
    set_limit(libc::RLIMIT_NOFILE, count);
}

pub(crate) fn set_limit(resource: libc::__rlimit_resource_t, value: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid place to write to.
    check(unsafe { libc::getrlimit(resource, &mut limit) }).expect("a resource that exists");
    limit.rlim_cur = value;
    // SAFETY: a valid structure.
    check(unsafe { libc::setrlimit(resource, &limit) }).expect("a soft limit below the hard one");
}

/// Makes this process another user's, for good. Only root can.
pub(crate) fn become_user(id: u32) -> io::Result<()> {
    // SAFETY: numbers only; libc changes all threads.
    check(unsafe { libc::setgroups(0, ptr::null()) })?;
    // SAFETY: numbers only.
    check(unsafe { libc::setresgid(id, id, id) })?;
    // SAFETY: numbers only.
    check(unsafe { libc::setresuid(id, id, id) })
}

/// Makes a named pipe.
pub(crate) fn make_pipe(path: &std::path::Path) {
    let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("a path without a NUL");
    // SAFETY: a NUL-terminated string.
    check(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }).expect("a named pipe");
}

/// Sends a signal to a process that was not reaped yet.
pub(crate) fn signal(process: u32, signal: i32) {
    // SAFETY: no preconditions.
    check(unsafe { libc::kill(process as libc::pid_t, signal) }).expect("a process that is there");
}
