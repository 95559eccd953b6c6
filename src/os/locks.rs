//! Locks that show which processes are alive: open file description (OFD) locks on single bytes of
//! an object.
//!
//! The kernel releases a lock with the last descriptor and mapping of the open file description
//! that took it, both of which a forked child inherits. But it must be released when the process
//! that took it dies. Therefore:
//!
//! * a [`LockFile`] is never mapped;
//! * a forked child closes its copy before `fork` returns there: each lock file (and what else a
//!   child must not keep, see `inotify`) is listed in `LOCK_FILES` from before its lock is taken
//!   until it is closed, and no thread opens or closes one while another thread forks
//!   (`FORK_GATE`). Several threads may do so at a time: the kernel takes many milliseconds to close
//!   an `inotify` descriptor.
//!
//! A live process holds an exclusive lock. A shared lock, held only briefly by a sweep or an owner
//! on the byte of a dead process, keeps other processes from taking the exclusive lock, and is no
//! sign of life.

use crate::error::OsError;
use crate::os::fork::{self, ForkGuard};
use crate::os::posix::{check, retry};
use crate::sync::before_system_call;
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The call that takes locks, as errors name it.
pub(crate) const LOCK: &str = "fcntl(F_OFD_SETLK)";

/// Held shared while a thread opens or closes a lock file, and exclusively while a thread forks. Not
/// a `parking_lot` lock: a forked child unlocks it, and that one would look for waiters.
static FORK_GATE: RwLock<()> = RwLock::new(());

/// Locked only within the gate, so a forked child finds it unlocked.
static LOCK_FILES: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

/// Never dropped with the thread.
type HeldGate = ManuallyDrop<RwLockWriteGuard<'static, ()>>;

thread_local! {
    /// While this thread forks. Has no destructor: usable at any time.
    static FORKING: Cell<Option<HeldGate>> = const { Cell::new(None) };
}

/// Keeps other threads from forking.
fn without_forks() -> RwLockReadGuard<'static, ()> {
    FORK_GATE.read().unwrap_or_else(PoisonError::into_inner)
}

/// The caller is within the gate.
fn lock_files() -> MutexGuard<'static, Vec<RawFd>> {
    // A list of numbers is consistent even after a panic.
    LOCK_FILES.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
pub(crate) struct LockFile {
    file: ManuallyDrop<File>,
    fork: ForkGuard,
}

impl LockFile {
    /// `open` must create a new open file description.
    pub(crate) fn open(open: impl FnOnce() -> io::Result<File>) -> io::Result<Self> {
        watch_forks()?;
        let _no_fork = without_forks();
        let file = open()?;
        let mut list = lock_files();
        list.try_reserve(1)
            .map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
        list.push(file.as_raw_fd());
        drop(list);
        Ok(Self {
            file: ManuallyDrop::new(file),
            fork: ForkGuard::new(),
        })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Returns `false` if the byte is locked elsewhere.
    pub(crate) fn try_lock(&self, byte: usize) -> io::Result<bool> {
        self.try_set_lock(byte, libc::F_WRLCK)
    }

    /// Returns `false` if the exclusive lock is held elsewhere.
    pub(crate) fn try_lock_shared(&self, byte: usize) -> io::Result<bool> {
        self.try_set_lock(byte, libc::F_RDLCK)
    }

    fn try_set_lock(&self, byte: usize, kind: i32) -> io::Result<bool> {
        match self.set_lock(byte, kind) {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Does nothing in a forked child, whose copy was closed.
    pub(crate) fn unlock(&self, byte: usize) -> io::Result<()> {
        if self.is_ours() {
            self.set_lock(byte, libc::F_UNLCK)
        } else {
            Ok(())
        }
    }

    fn is_ours(&self) -> bool {
        self.fork.is_ours()
    }

    /// Also `true` if the kernel cannot tell.
    pub(crate) fn is_locked(&self, byte: usize) -> bool {
        let mut lock = byte_lock(byte, libc::F_RDLCK);
        before_system_call();
        // SAFETY: the descriptor is open, and `lock` is a valid `flock` of `byte_lock`.
        let result =
            check(unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) });
        result.is_err() || lock.l_type != libc::F_UNLCK as libc::c_short
    }

    fn set_lock(&self, byte: usize, kind: i32) -> io::Result<()> {
        let lock = byte_lock(byte, kind);
        before_system_call();
        retry(|| {
            // SAFETY: the descriptor is open, and `lock` is a valid `flock` of `byte_lock`.
            check(unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_SETLK, &lock) })
        })
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // A forked child has closed the descriptor, whose number may since be another file's.
        if self.is_ours() {
            before_system_call();
            let _no_fork = without_forks();
            // Before the number may be another file's.
            lock_files().retain(|&fd| fd != self.file.as_raw_fd());
            // SAFETY: dropped only here. No fork has closed the descriptor (`is_ours`).
            unsafe { ManuallyDrop::drop(&mut self.file) };
        }
    }
}

fn byte_lock(byte: usize, kind: i32) -> libc::flock {
    // SAFETY: all-zero bytes are a valid `flock`. `l_pid` stays 0, as OFD locks require.
    let mut lock: libc::flock = unsafe { MaybeUninit::zeroed().assume_init() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = byte as libc::off_t;
    lock.l_len = 1;
    lock
}

/// [`watch_forks`], with an error that says what failed.
pub(crate) fn require_fork_handlers() -> Result<(), OsError> {
    watch_forks().map_err(|error| OsError::new("pthread_atfork", "this process", error))
}

/// Must be called before anything records an epoch.
pub(crate) fn watch_forks() -> io::Result<()> {
    static IS_WATCHED: AtomicBool = AtomicBool::new(false);
    // Not a `Once`: a forked child would wait forever for a thread of its parent that was
    // registering. Two threads may both register, so the handlers may run twice.
    if IS_WATCHED.load(Ordering::Acquire) {
        return Ok(());
    }
    // SAFETY: the handlers lock, unlock, close descriptors, add to an atomic, and access
    // thread-locals (for which a library loaded at run time may need glibc's malloc). All of this
    // works in a forked child.
    match unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) } {
        0 => {
            IS_WATCHED.store(true, Ordering::Release);
            Ok(())
        }
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

extern "C" fn before() {
    FORKING.with(|forking| {
        let held = forking.take().unwrap_or_else(|| {
            let gate = FORK_GATE.write().unwrap_or_else(PoisonError::into_inner);
            ManuallyDrop::new(gate)
        });
        forking.set(Some(held));
    });
}

extern "C" fn in_parent() {
    drop(take_forking());
}

/// Makes only calls that are allowed in a forked child.
extern "C" fn in_child() {
    fork::enter_child();
    let Some(_gate) = take_forking() else {
        return;
    };
    let mut list = lock_files();
    for &fd in list.iter() {
        // SAFETY: a copy of the parent's descriptor, whose `LockFile` sees another epoch and does
        // not use it.
        unsafe { libc::close(fd) };
    }
    list.clear();
}

fn take_forking() -> Option<RwLockWriteGuard<'static, ()>> {
    FORKING.with(Cell::take).map(ManuallyDrop::into_inner)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::thread;

    /// The kernel may take long to open or close one: other threads do not wait for that, but a fork
    /// does.
    #[test]
    fn one_file_delays_a_fork_only() {
        let is_slow = || {
            assert!(FORK_GATE.try_write().is_err(), "a fork waits");
            // In another test a fork may be waiting just now, for this thread. Then others wait too.
            let _other = FORK_GATE
                .try_read()
                .map_err(|_| io::Error::from(io::ErrorKind::WouldBlock))?;
            File::open("/proc/self/exe")
        };
        let file = loop {
            match LockFile::open(is_slow) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::yield_now(),
                opened => break opened.expect("a file"),
            }
        };
        let _no_fork = without_forks();
        assert!(lock_files().contains(&file.file().as_raw_fd()));
    }
}
