//! The locks that tell who is alive: open file description (OFD) locks on single bytes of an
//! object.
//!
//! The kernel drops a lock with the last reference to the open file description that took it. A
//! reference may be a descriptor or a mapping, and a forked child inherits both. Yet a lock must
//! end with the process that took it, whatever that process has forked. Therefore:
//!
//! * a [`LockFile`] is never mapped;
//! * a forked child closes its copy before `fork` returns there. To make that possible, each lock
//!   file is listed in `LOCK_FILES` from before its lock is taken until it is closed, and no thread
//!   opens or closes one while another thread forks.
//!
//! A live process holds an exclusive lock. A shared lock is held only for a moment, by a sweep on a
//! dead owner's byte and by an owner on a dead peer's, while they clean up. It keeps everybody from
//! taking the exclusive lock, and nobody takes it for a sign of life.
//!
//! Other descriptors that another thread has open during the fork, to map an object, stay open in
//! the child. They hold no OFD locks.
//!
//! Not detected, as in [`fork`]: a child made by a raw `clone` system call, `_Fork` or `vfork`.
//! Until it ends or calls `exec`, which closes its copies, its parent's locks stay held.

use crate::os::fork;
use crate::os::posix::{check, retry};
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The call that takes locks, as errors name it.
pub(crate) const LOCK: &str = "fcntl(F_OFD_SETLK)";

/// The descriptors of all lock files that are open in this process. The standard library's lock,
/// not parking_lot's: a forked child must be able to unlock it, and the waiters that parking_lot
/// would look for do not exist in the child.
static LOCK_FILES: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

thread_local! {
    /// The guard of `LOCK_FILES`, from just before this thread forks until just after. Without a
    /// destructor, so that it can be used at any time.
    static FORKING: Cell<Option<ManuallyDrop<MutexGuard<'static, Vec<RawFd>>>>> = const { Cell::new(None) };
}

fn lock_files() -> MutexGuard<'static, Vec<RawFd>> {
    // A list of numbers is whole even if its holder panicked.
    LOCK_FILES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An object opened to hold locks on it: for this process, and for no child that it forks.
#[derive(Debug)]
pub(crate) struct LockFile {
    file: ManuallyDrop<File>,
    fork_epoch: u64,
}

impl LockFile {
    /// Opens a lock file. `open` makes a new open file description.
    pub(crate) fn open(open: impl FnOnce() -> io::Result<File>) -> io::Result<Self> {
        watch_forks()?;
        let mut list = lock_files();
        list.try_reserve(1).map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let file = open()?;
        list.push(file.as_raw_fd());
        Ok(Self { file: ManuallyDrop::new(file), fork_epoch: fork::epoch() })
    }

    /// The object, for questions about it.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Tries to take the exclusive lock on one byte. Returns `false` if somebody else has a lock on
    /// it.
    pub(crate) fn try_lock(&self, byte: usize) -> io::Result<bool> {
        self.try_set_lock(byte, libc::F_WRLCK)
    }

    /// Tries to take a shared lock on one byte. Returns `false` if somebody else has the exclusive
    /// lock; nobody gets that as long as we have the shared one.
    pub(crate) fn try_lock_shared(&self, byte: usize) -> io::Result<bool> {
        self.try_set_lock(byte, libc::F_RDLCK)
    }

    fn try_set_lock(&self, byte: usize, kind: i32) -> io::Result<bool> {
        match self.set_lock(byte, kind) {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Releases the lock on one byte. A forked child has nothing to release: its copy was closed.
    pub(crate) fn unlock(&self, byte: usize) -> io::Result<()> {
        if self.is_ours() {
            self.set_lock(byte, libc::F_UNLCK)
        } else {
            Ok(())
        }
    }

    fn is_ours(&self) -> bool {
        self.fork_epoch == fork::epoch()
    }

    /// Does somebody else hold the exclusive lock on one byte? Also `true` if the kernel does not
    /// say.
    pub(crate) fn is_locked(&self, byte: usize) -> bool {
        // Asks whether a shared lock could be had.
        let mut lock = byte_lock(byte, libc::F_RDLCK);
        // SAFETY: the descriptor is open, and `lock` is a valid `flock` with l_pid 0, as OFD locks
        // require.
        let result = check(unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) });
        result.is_err() || lock.l_type != libc::F_UNLCK as libc::c_short
    }

    fn set_lock(&self, byte: usize, kind: i32) -> io::Result<()> {
        let lock = byte_lock(byte, kind);
        retry(|| {
            // SAFETY: the descriptor is open, and `lock` is a valid `flock` with l_pid 0, as OFD
            // locks require.
            check(unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_SETLK, &lock) })
        })
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // A forked child has closed it already, and the number may be another file's by now.
        if self.is_ours() {
            let mut list = lock_files();
            list.retain(|&fd| fd != self.file.as_raw_fd());
            // SAFETY: dropped here and never used again. No fork has closed the descriptor
            // (`is_ours`), so the number is still this file's.
            unsafe { ManuallyDrop::drop(&mut self.file) };
        }
    }
}

fn byte_lock(byte: usize, kind: i32) -> libc::flock {
    // SAFETY: all-zero bytes are a valid `flock`.
    let mut lock: libc::flock = unsafe { MaybeUninit::zeroed().assume_init() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = byte as libc::off_t;
    lock.l_len = 1;
    lock
}

/// Makes sure that a fork moves the epoch on and closes the child's copies of lock files. To be
/// called before anything is made that remembers an epoch.
pub(crate) fn watch_forks() -> io::Result<()> {
    static IS_WATCHED: AtomicBool = AtomicBool::new(false);
    // Not a `Once`: a forked child would wait for ever for a thread of its parent that was just
    // registering. Two threads that arrive together may both register, so the handlers may run
    // twice.
    if IS_WATCHED.load(Ordering::Acquire) {
        return Ok(());
    }
    // SAFETY: the handlers lock, unlock, close descriptors, do one relaxed atomic addition, and use
    // thread-locals, for which a library loaded at run time may need glibc's malloc. All of that
    // works in a forked child.
    match unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) } {
        0 => {
            IS_WATCHED.store(true, Ordering::Release);
            Ok(())
        }
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Runs before this thread forks, and keeps other threads from opening or closing a lock file. May
/// run twice, as may the other two handlers.
extern "C" fn before() {
    FORKING.with(|forking| {
        let held = forking.take().unwrap_or_else(|| ManuallyDrop::new(lock_files()));
        forking.set(Some(held));
    });
}

extern "C" fn in_parent() {
    drop(take_forking());
}

/// Makes only calls that a forked child may make.
extern "C" fn in_child() {
    fork::enter_child();
    let Some(mut list) = take_forking() else { return };
    for &fd in list.iter() {
        // SAFETY: a copy of the parent's descriptor. The `LockFile` that it belongs to finds
        // another epoch, and leaves it alone.
        unsafe { libc::close(fd) };
    }
    list.clear();
}

fn take_forking() -> Option<MutexGuard<'static, Vec<RawFd>>> {
    FORKING.with(Cell::take).map(ManuallyDrop::into_inner)
}
