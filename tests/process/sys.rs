//! System calls that the standard library does not offer. The only unsafe code of these tests is
//! here, in `own_shm`, and in one function of `channel`.

pub(crate) use crate::own_shm::{check, give_small_shm, mount};
use crate::own_shm::{give_mounts, Inside};
use nix::sys::resource::{getrlimit, setrlimit, Resource};
use shm_pool_support::machine::page_size;
use std::hint::black_box;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::raw::{c_int, c_long, c_ulong};
use std::panic::{self, AssertUnwindSafe};
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// The kernel kills a child that its test has lost track of after this many seconds.
const LIFETIME: u32 = 300;

/// The calls that seccomp's strict mode allows.
pub(crate) const STRICT: [c_long; 4] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_exit,
    libc::SYS_rt_sigreturn,
];

/// From now on, the kernel answers this system call of this thread, and of those that it starts,
/// with an error.
pub(crate) fn forbid_call(number: c_long, errno: c_int) -> io::Result<()> {
    Filter::refusing(number, errno).enter()
}

/// What the kernel does with the system calls of a thread that has entered the filter, and of the
/// threads that it starts from then on.
pub(crate) struct Filter(Vec<libc::sock_filter>);

impl Filter {
    /// Any system call other than those in `allowed` kills the process with SIGSYS.
    ///
    /// This is a filter, not SECCOMP_MODE_STRICT. Strict mode cannot be entered where a filter is
    /// already in force, as in most containers, and it kills only the thread, which the other threads
    /// would have to detect.
    pub(crate) fn allowing(allowed: &[c_long]) -> Self {
        let load_number = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0);
        let mut instructions = vec![load_number];
        for (at, number) in allowed.iter().enumerate() {
            // If equal, jump to the last instruction, which allows the call.
            let compare = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
            instructions.push((compare, allowed.len() - at, 0, *number as u32));
        }
        for answer in [libc::SECCOMP_RET_KILL_PROCESS, libc::SECCOMP_RET_ALLOW] {
            instructions.push((libc::BPF_RET | libc::BPF_K, 0, 0, answer));
        }
        Self::new(instructions)
    }

    /// This call is answered with an error.
    fn refusing(number: c_long, errno: c_int) -> Self {
        Self::new([
            (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            // Unless equal, skip the next instruction.
            (
                libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                0,
                1,
                number as u32,
            ),
            (
                libc::BPF_RET | libc::BPF_K,
                0,
                0,
                libc::SECCOMP_RET_ERRNO | errno as u32,
            ),
            (libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        ])
    }

    /// An instruction is a code, the distances of its two jumps, and a number.
    fn new(instructions: impl IntoIterator<Item = (u32, usize, u8, u32)>) -> Self {
        let instruction = |(code, jt, jf, k)| libc::sock_filter {
            code: code as u16,
            jt: jt as u8,
            jf,
            k,
        };
        Self(instructions.into_iter().map(instruction).collect())
    }

    /// Freeing the filter is a call to the allocator, which may wait for another thread: a thread
    /// that may not call the system keeps it.
    pub(crate) fn enter(&self) -> io::Result<()> {
        let program = libc::sock_fprog {
            len: self.0.len() as u16,
            filter: self.0.as_ptr().cast_mut(),
        };
        // SAFETY: this option takes only numbers.
        check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
        // SAFETY: the program points to `len` well-formed instructions; the kernel copies them.
        check(unsafe {
            libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER as c_ulong,
                &program,
            )
        })
    }
}

pub(crate) fn write(descriptor: RawFd, bytes: &[u8]) {
    // SAFETY: the slice is valid for reads of its length. A short write becomes a missing answer.
    unsafe { libc::write(descriptor, bytes.as_ptr().cast(), bytes.len()) };
}

/// Exits this thread with a raw system call, so that no exit handlers run.
pub(crate) fn exit_thread() -> ! {
    // SAFETY: the thread never returns to its stack, and anything that others borrow from it stays
    // valid.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    unreachable!("a thread returned from its exit")
}

/// Returns the calling thread, as [`stop`] takes it.
pub(crate) fn this_thread() -> libc::pid_t {
    // SAFETY: no preconditions.
    unsafe { libc::gettid() }
}

/// Returns how this process is registered for `membarrier`, where the kernel tells (Linux 6.3).
pub(crate) fn membarrier_registrations() -> Option<c_long> {
    const GET_REGISTRATIONS: c_int = 1 << 9;
    // SAFETY: this command takes only numbers.
    let registrations = unsafe { libc::syscall(libc::SYS_membarrier, GET_REGISTRATIONS, 0, 0) };
    (registrations >= 0).then_some(registrations)
}

/// From now on, a signal that [`send_signal`] sends calls `handler`, which is async-signal-safe.
pub(crate) fn handle_signals(handler: extern "C" fn(c_int)) {
    // SAFETY: the handler may run at any time, by this function's contract.
    unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
}

/// Calls a handler at an interval, in one thread, until it is ended.
pub(crate) struct Alarms(libc::timer_t);

impl Alarms {
    /// `handler`, which is async-signal-safe, is called by SIGALRM in this thread. The lifetime of a
    /// child is not limited meanwhile.
    pub(crate) fn start(handler: extern "C" fn(c_int), interval: Duration) -> Self {
        // SAFETY: the handler may run at any time, by this function's contract.
        unsafe { libc::signal(libc::SIGALRM, handler as libc::sighandler_t) };
        // SAFETY: plain numbers, for which zero is a valid value.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGALRM;
        event.sigev_notify_thread_id = this_thread();
        let mut timer = ptr::null_mut();
        // SAFETY: two live locals, the second of which the call fills.
        let created = unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) };
        assert_eq!(created, 0, "a timer");
        let interval = libc::timespec {
            tv_sec: interval.as_secs() as _,
            tv_nsec: interval.subsec_nanos() as _,
        };
        let times = libc::itimerspec {
            it_interval: interval,
            it_value: interval,
        };
        // SAFETY: a living timer, valid times, and no place for the previous ones.
        let set = unsafe { libc::timer_settime(timer, 0, &times, ptr::null_mut()) };
        assert_eq!(set, 0, "a timer that can be set");
        Self(timer)
    }

    pub(crate) fn end(self) {
        // SAFETY: a living timer, which is not used again.
        unsafe { libc::timer_delete(self.0) };
        // Discards a signal that is pending.
        // SAFETY: no handler.
        unsafe { libc::signal(libc::SIGALRM, libc::SIG_IGN) };
        // SAFETY: no handler.
        unsafe { libc::signal(libc::SIGALRM, libc::SIG_DFL) };
        end_after(LIFETIME);
    }
}

/// Returns a duplicate of a descriptor of another process, which refers to the same open file
/// description; `None` if this process may not have it.
pub(crate) fn descriptor_of(process: u32, descriptor: RawFd) -> Option<OwnedFd> {
    // SAFETY: numbers only.
    let of_process = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) };
    if of_process < 0 {
        return None;
    }
    // SAFETY: the call returned a new descriptor, which has no other owner.
    let of_process = unsafe { OwnedFd::from_raw_fd(of_process as RawFd) };
    let process = of_process.as_raw_fd();
    // SAFETY: numbers only.
    let copy = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process, descriptor, 0) };
    if copy < 0 {
        return None;
    }
    // SAFETY: as above.
    Some(unsafe { OwnedFd::from_raw_fd(copy as RawFd) })
}

/// Sends a signal to a thread of this process that is alive.
pub(crate) fn send_signal(thread: libc::pid_t) {
    // SAFETY: numbers only.
    let sent =
        unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), thread, libc::SIGUSR1) };
    assert_eq!(sent, 0, "a signal to a thread that lives");
}

/// Whether the thread that is being stopped has reached [`stand_still`].
static STANDS_STILL: AtomicBool = AtomicBool::new(false);

/// A thread that stands still until this is dropped.
pub(crate) struct Stopped(());

/// Stops a living thread wherever it is, until the returned value is dropped. Only one thread per
/// process can be stopped at a time, and the caller must not need a lock that the thread may hold.
pub(crate) fn stop(thread: libc::pid_t) -> Stopped {
    let handler = stand_still as extern "C" fn(c_int);
    // SAFETY: the handler stores and loads an atomic and yields, all of which a handler may do.
    unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
    send_signal(thread);
    while !STANDS_STILL.load(Ordering::Acquire) {
        thread::yield_now();
    }
    Stopped(())
}

extern "C" fn stand_still(_signal: c_int) {
    STANDS_STILL.store(true, Ordering::Release);
    while STANDS_STILL.load(Ordering::Acquire) {
        // SAFETY: no preconditions. The call never fails, so it leaves the thread's errno alone.
        unsafe { libc::sched_yield() };
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        STANDS_STILL.store(false, Ordering::Release);
    }
}

/// A forked child, killed and reaped on drop.
pub(crate) struct Forked(pub(crate) libc::pid_t);

/// Forks. Returns `None` in the child, which must end with [`end_with`].
///
/// The child continues with this thread alone. Everything it calls, the allocator included, copes
/// with that: it shares no lock with another thread of this process except those that libc resets
/// after a fork.
pub(crate) fn fork() -> Option<Forked> {
    // SAFETY: the child's calls share no lock with a thread that it no longer has.
    match unsafe { libc::fork() } {
        0 => {
            end_after(LIFETIME);
            None
        }
        -1 => panic!("fork: {}", io::Error::last_os_error()),
        pid => Some(Forked(pid)),
    }
}

/// Continues in a forked child, whose parent exits at once.
pub(crate) fn become_daemon() -> io::Result<()> {
    // SAFETY: as for `fork`. The working directory and the descriptors stay.
    check(unsafe { libc::daemon(1, 1) })?;
    end_after(LIFETIME);
    Ok(())
}

/// Runs a forked child's program and ends the process without returning to the test harness. A
/// panic is reported by the panic hook and makes the exit code 1.
pub(crate) fn end_with(body: impl FnOnce()) -> ! {
    let code = i32::from(panic::catch_unwind(AssertUnwindSafe(body)).is_err());
    // SAFETY: no preconditions.
    unsafe { libc::_exit(code) }
}

impl Forked {
    /// Waits for the child to end. Panics if it failed.
    pub(crate) fn finish(self) {
        let mut status = 0;
        // SAFETY: the status is a valid place to write to.
        let waited = unsafe { libc::waitpid(self.0, &mut status, 0) };
        assert_eq!(
            (waited, status),
            (self.0, 0),
            "the forked child's wait status"
        );
        std::mem::forget(self);
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        // SAFETY: this child has not been reaped yet, so its id still names it.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        // SAFETY: a null status pointer is allowed; the kernel then writes no status.
        unsafe { libc::waitpid(self.0, ptr::null_mut(), 0) };
    }
}

/// Makes a child harmless: it exits eventually in any case, and leaves no core file.
pub(crate) fn be_a_child() {
    end_after(LIFETIME);
    set_limit(Resource::RLIMIT_CORE, 0);
}

fn end_after(seconds: u32) {
    // SAFETY: no preconditions.
    unsafe { libc::alarm(seconds) };
}

pub(crate) fn limit_descriptors(count: u64) {
    set_limit(Resource::RLIMIT_NOFILE, count);
}

pub(crate) fn set_limit(resource: Resource, value: u64) {
    let (_, hard) = getrlimit(resource).expect("a resource that exists");
    setrlimit(resource, value, hard).expect("a soft limit below the hard one");
}

/// Drops this thread's right to lock memory beyond the limit. Another user's process has no such right.
pub(crate) fn give_up_locking_without_limit() -> io::Result<()> {
    /// The kernel's numbers of the capability and of this call's version.
    const CAP_IPC_LOCK: u32 = 14;
    const VERSION: u32 = 0x2008_0522;
    // The version, and this thread; then the effective, permitted and inheritable capabilities,
    // twice.
    let mut head = [VERSION, 0];
    let mut sets = [0_u32; 6];
    // SAFETY: both point to as many numbers as the kernel writes for this version.
    let got = unsafe { libc::syscall(libc::SYS_capget, head.as_mut_ptr(), sets.as_mut_ptr()) };
    check(got as c_int)?;
    sets[0] &= !(1 << CAP_IPC_LOCK);
    // SAFETY: both point to as many numbers as the kernel reads for this version.
    check(unsafe { libc::syscall(libc::SYS_capset, head.as_ptr(), sets.as_ptr()) } as c_int)
}

/// Makes this process another user's for good, in a group of the same number and `more`. Only root
/// can do this.
pub(crate) fn become_user(id: u32, more: &[u32]) -> io::Result<()> {
    // SAFETY: the slice has that many numbers; libc changes all threads.
    check(unsafe { libc::setgroups(more.len(), more.as_ptr()) })?;
    // SAFETY: takes only numbers.
    check(unsafe { libc::setresgid(id, id, id) })?;
    // SAFETY: takes only numbers.
    check(unsafe { libc::setresuid(id, id, id) })
}

/// Moves this process into a user namespace of its own, in which no user has an id.
pub(crate) fn leave_user_namespace() -> io::Result<()> {
    // SAFETY: takes only a number. The process has one thread.
    check(unsafe { libc::unshare(libc::CLONE_NEWUSER) })
}

/// Forbids this thread, and those that it starts, to open any file from now on. With Landlock, which
/// not every kernel has.
pub(crate) fn forbid_files() -> io::Result<()> {
    // The numbers are the same on every architecture. The libc crate does not name them everywhere.
    const CREATE_RULESET: c_long = 444;
    const RESTRICT_SELF: c_long = 446;
    /// All rights on files that the first version of Landlock knows.
    const FILE_RIGHTS: u64 = (1 << 13) - 1;
    let none = 0;
    // SAFETY: the kernel reads one number, of the given size, and returns a new descriptor.
    let rules = unsafe { libc::syscall(CREATE_RULESET, &FILE_RIGHTS, size_of::<u64>(), none) };
    check(rules as c_int)?;
    // SAFETY: the call above returned it, and it has no other owner.
    let rules = unsafe { OwnedFd::from_raw_fd(rules as RawFd) };
    // SAFETY: this option takes only numbers.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // SAFETY: takes only numbers, and `rules` keeps the descriptor open.
    check(unsafe { libc::syscall(RESTRICT_SELF, rules.as_raw_fd(), none) } as c_int)
}

/// Takes an exclusive `flock` on a file. Returns `false` if another process has one.
pub(crate) fn lock_whole(file: &std::fs::File) -> bool {
    // SAFETY: takes only numbers, and `file` keeps the descriptor open.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

/// Takes a write lease on a file, which delays or refuses every other open.
pub(crate) fn lease(file: &std::fs::File) -> io::Result<()> {
    // SAFETY: takes only numbers, and `file` keeps the descriptor open.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) })
}

/// Returns the address of the head of a thread's robust list. The thread is one of this process's.
pub(crate) fn robust_list(thread: libc::pid_t) -> u64 {
    let mut head = 0_u64;
    let mut len = 0_usize;
    // SAFETY: two valid places to write to, of the sizes that the kernel writes.
    check(
        unsafe { libc::syscall(libc::SYS_get_robust_list, thread, &mut head, &mut len) } as c_int,
    )
    .expect("a thread of this process");
    head
}

pub(crate) fn make_pipe(path: &std::path::Path) {
    let path =
        std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("a path without a NUL");
    // SAFETY: the pointer is to a NUL-terminated string.
    check(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }).expect("a named pipe");
}

/// Sends a signal to a process that has not been reaped yet.
pub(crate) fn signal(process: u32, signal: i32) {
    // SAFETY: no preconditions.
    check(unsafe { libc::kill(process as libc::pid_t, signal) }).expect("a process that is there");
}

/// Gives the new process its own mount namespace, in which /dev/shm is mounted again with the same
/// files, and the right to leave its PID namespace. The process fails to start where that is not
/// permitted.
pub(crate) fn leave_mount_namespace(command: &mut Command) {
    give_mounts(command, Inside::Root, || {
        mount(b"/dev/shm\0", b"/dev/shm\0", libc::MS_BIND, b"\0")
    });
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
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })
        .expect("a signal that exists");
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
    let len = page_size();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: maps new memory, to which nothing else refers.
    let page = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
    assert_ne!(page, libc::MAP_FAILED, "{}", io::Error::last_os_error());
    // SAFETY: the page is this function's own and inaccessible: the kernel ends the process.
    unsafe { page.cast::<u8>().write_volatile(0) };
}

/// Calls `body` while this process can map at most `bytes` more. `body` may use a little heap: malloc
/// has mapped it before.
pub(crate) fn with_address_space<T>(bytes: u64, body: impl FnOnce() -> T) -> T {
    // While one block is in use, malloc keeps the memory of freed ones for others of their length.
    let block = |len: usize| black_box(Vec::<u8>::with_capacity(len));
    let mut kept = Vec::new();
    for of_16 in 1..=256 {
        let [in_use, ..]: [_; 8] = std::array::from_fn(|_| block(of_16 * 16));
        kept.push(in_use);
    }
    let result = with_limit(Resource::RLIMIT_AS, 0, bytes, body);
    drop(kept);
    result
}

/// Like [`with_address_space`], but limits writable private memory. A limit on address space would
/// not do, because malloc has already set aside more than `body` needs.
pub(crate) fn with_private_memory<T>(bytes: u64, body: impl FnOnce() -> T) -> T {
    with_limit(Resource::RLIMIT_DATA, 5, bytes, body)
}

/// Calls `body` with a heap that has nothing left but one block of `left` bytes.
pub(crate) fn with_heap_left<T>(left: usize, body: impl FnOnce() -> T) -> T {
    let block = |len: usize| {
        let mut block = Vec::<u8>::new();
        match block.try_reserve_exact(len) {
            Ok(()) => Some(black_box(block)),
            Err(_) => None,
        }
    };
    let mut eaten = Vec::with_capacity(1 << 16);
    let spare = block(left);
    with_private_memory(0, || {
        // malloc keeps what was freed by its length.
        let small = (1..=128).rev().map(|of_16| of_16 * 16);
        let lengths = [1 << 20, 64 << 10, 4096].into_iter().chain(small);
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

/// Waits until the main thread, which runs the tests, sleeps until this one is over. When it first
/// does so, it takes heap, and aborts if there is none. With one test thread, this is the main thread.
fn wait_for_harness() {
    if nix::unistd::gettid() == nix::unistd::getpid() {
        return;
    }
    let stat = format!("/proc/self/task/{}/stat", std::process::id());
    while !std::fs::read_to_string(&stat)
        .expect("/proc")
        .contains(") S ")
    {
        std::thread::yield_now();
    }
}

/// Limits the resource `what`, whose usage is field `at` of /proc/self/statm, in pages.
fn with_limit<T>(what: Resource, at: usize, bytes: u64, body: impl FnOnce() -> T) -> T {
    wait_for_harness();
    let pages = std::fs::read_to_string("/proc/self/statm").expect("/proc");
    let pages = pages.split(' ').nth(at).expect("the size in pages");
    let pages: u64 = pages.parse().expect("a number of pages");
    set_limit(what, pages * page_size() as u64 + bytes);
    let result = body();
    set_limit(what, libc::RLIM_INFINITY);
    result
}

/// Returns how many bytes of /dev/shm are free.
pub(crate) fn free_shm() -> u64 {
    let mut stat = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: a NUL-terminated path, and a place that is valid for a write of the structure.
    check(unsafe { libc::statvfs(b"/dev/shm\0".as_ptr().cast(), stat.as_mut_ptr()) })
        .expect("a directory /dev/shm");
    // SAFETY: the call succeeded, so it filled the structure.
    let stat = unsafe { stat.assume_init() };
    stat.f_bfree * stat.f_frsize
}
