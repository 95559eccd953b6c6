//! The peer: one slot in memory that two processes share, guarded by a pthread mutex and two
//! condition variables.
//!
//! A message is copied in by one side and copied out by the other, each by one bulk copy under the
//! lock; the slot accepts the next one when the last was taken. The memory has no name: the other
//! process inherits it as a file descriptor.
//!
//! As quick as is fair. The mutex shares its line with the word that it guards, each condition
//! variable and the message begin a separate line, and only a side that must wait reads the clock
//! for a deadline. The signal is sent with the lock still held, as in SHM-direct: a thread that has
//! waited releases the lock by a system call, because glibc then takes it as if others waited for
//! it too, and a signal after that would be later by as much. The lock is free long before the
//! other side is awake.
//!
//! The mutex is robust: if a process dies with the lock, the other one gets `EOWNERDEAD`, and an
//! error, instead of a lock that is never released. Every wait ends after [`TIMEOUT`]. (Condition
//! variables are not robust: a process killed in the few instructions that change one leaves it
//! locked, and the other one may wait for that.)

use memmap2::{MmapOptions, MmapRaw};
use nix::sys::memfd::{memfd_create, MFdFlags};
use nix::sys::time::TimeSpec;
use nix::time::{clock_gettime, ClockId};
use shm_pool_support::Fallible;
use std::cell::UnsafeCell;
use std::fs::File;
use std::io;
use std::mem::{size_of, MaybeUninit};
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Most bytes of a message.
const MAX_LEN: usize = 1 << 20;

/// Longest wait for the other side.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Begins a cache line.
#[repr(C, align(64))]
struct Line<T>(T);

type Condvar = UnsafeCell<libc::pthread_cond_t>;

#[repr(C)]
struct Guard {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    /// Of the message; 0 is none. Read and written under the lock.
    len: AtomicUsize,
}

const _: () = assert!(size_of::<Guard>() <= 64);

/// The memory shared by the processes.
#[repr(C)]
struct Shared {
    guard: Line<Guard>,
    not_empty: Line<Condvar>,
    not_full: Line<Condvar>,
    bytes: Line<UnsafeCell<[u8; MAX_LEN]>>,
}

/// One side's mapping.
pub(crate) struct Slot(MmapRaw);

impl Slot {
    /// Creates an empty slot, with the descriptor that another process [maps](Self::map).
    pub(crate) fn create() -> Fallible<(Self, OwnedFd)> {
        let file = File::from(memfd_create(c"rtt-slot", MFdFlags::MFD_CLOEXEC)?);
        file.set_len(size_of::<Shared>() as u64)?;
        let slot = Self::map(&file)?;
        let shared = slot.shared();
        make_mutex(&shared.guard.0.mutex)?;
        make_condvar(&shared.not_empty.0)?;
        make_condvar(&shared.not_full.0)?;
        Ok((slot, file.into()))
    }

    /// Maps a slot that was [created](Self::create) before.
    pub(crate) fn map(file: &File) -> Fallible<Self> {
        Ok(Self(
            MmapOptions::new().len(size_of::<Shared>()).map_raw(file)?,
        ))
    }

    fn shared(&self) -> &Shared {
        // SAFETY: a mapping is aligned to pages, as long as this, and lives as long as `self`. All
        // that the other process may change is in cells and atomics, for which any bytes are valid.
        unsafe { &*self.0.as_ptr().cast::<Shared>() }
    }

    /// Waits until the slot is empty, and copies a message into it.
    pub(crate) fn put(&self, message: &[u8]) -> Fallible {
        if message.is_empty() || message.len() > MAX_LEN {
            return Err(format!("{} bytes do not fit the slot", message.len()).into());
        }
        let shared = self.shared();
        let locked = self.lock()?;
        while locked.len() != 0 {
            locked.wait(&shared.not_full.0)?;
        }
        let to = shared.bytes.0.get().cast::<u8>();
        // SAFETY: not longer than the slot, as checked above, and no other thread accesses that
        // without the lock.
        unsafe { ptr::copy_nonoverlapping(message.as_ptr(), to, message.len()) };
        locked.set_len(message.len());
        locked.signal(&shared.not_empty.0)
    }

    /// Waits until the slot is full, and copies the message out. Returns its length.
    pub(crate) fn take(&self, buffer: &mut [u8]) -> Fallible<usize> {
        let shared = self.shared();
        let locked = self.lock()?;
        while locked.len() == 0 {
            locked.wait(&shared.not_empty.0)?;
        }
        let len = locked.len();
        if len > MAX_LEN.min(buffer.len()) {
            return Err(format!("a message of {len} bytes is longer than expected").into());
        }
        let from = shared.bytes.0.get().cast::<u8>();
        // SAFETY: longer than neither, as checked above, and no other thread accesses the slot
        // without the lock.
        unsafe { ptr::copy_nonoverlapping(from, buffer.as_mut_ptr(), len) };
        locked.set_len(0);
        locked.signal(&shared.not_full.0)?;
        Ok(len)
    }

    fn lock(&self) -> Fallible<Locked<'_>> {
        let mutex = self.shared().guard.0.mutex.get();
        // SAFETY: a mutex that `create` has initialised, before the other process started.
        let mut result = unsafe { libc::pthread_mutex_trylock(mutex) };
        if result == libc::EBUSY {
            // This call's deadlines are always of this clock.
            let deadline = deadline(ClockId::CLOCK_REALTIME)?;
            // SAFETY: an initialised mutex, and a valid time.
            result = unsafe { libc::pthread_mutex_timedlock(mutex, deadline.as_ref()) };
        }
        check("locking the slot", result)?;
        Ok(Locked(self))
    }
}

/// The right to access the slot, until this is dropped.
struct Locked<'a>(&'a Slot);

impl Locked<'_> {
    fn guard(&self) -> &Guard {
        &self.0.shared().guard.0
    }

    fn len(&self) -> usize {
        self.guard().len.load(Ordering::Relaxed)
    }

    fn set_len(&self, len: usize) {
        self.guard().len.store(len, Ordering::Relaxed);
    }

    /// Waits for a signal, or wakes spuriously.
    fn wait(&self, condvar: &Condvar) -> Fallible {
        let deadline = deadline(ClockId::CLOCK_MONOTONIC)?;
        let mutex = self.guard().mutex.get();
        // SAFETY: they are initialised, this thread holds the lock, and the time is valid.
        let result =
            unsafe { libc::pthread_cond_timedwait(condvar.get(), mutex, deadline.as_ref()) };
        check("waiting for the other side", result)
    }

    fn signal(&self, condvar: &Condvar) -> Fallible {
        // SAFETY: initialised by `create`.
        let result = unsafe { libc::pthread_cond_signal(condvar.get()) };
        check("pthread_cond_signal", result)
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread holds the lock, so it cannot fail.
        unsafe { libc::pthread_mutex_unlock(self.guard().mutex.get()) };
    }
}

fn make_mutex(mutex: &UnsafeCell<libc::pthread_mutex_t>) -> Fallible {
    let sets: [Set<_>; 2] = [
        (
            libc::pthread_mutexattr_setpshared,
            libc::PTHREAD_PROCESS_SHARED,
        ),
        (
            libc::pthread_mutexattr_setrobust,
            libc::PTHREAD_MUTEX_ROBUST,
        ),
    ];
    // SAFETY: the attributes are initialised, and no thread uses the mutex yet.
    with_attributes(libc::pthread_mutexattr_init, sets, |all| unsafe {
        libc::pthread_mutex_init(mutex.get(), all)
    })
}

/// Its deadlines are of the monotonic clock.
fn make_condvar(condvar: &Condvar) -> Fallible {
    let sets: [Set<_>; 2] = [
        (
            libc::pthread_condattr_setpshared,
            libc::PTHREAD_PROCESS_SHARED,
        ),
        (libc::pthread_condattr_setclock, libc::CLOCK_MONOTONIC),
    ];
    // SAFETY: the attributes are initialised, and no thread uses the condition variable yet.
    with_attributes(libc::pthread_condattr_init, sets, |all| unsafe {
        libc::pthread_cond_init(condvar.get(), all)
    })
}

/// An attribute: the call that sets it, and its value.
type Set<A> = (
    unsafe extern "C" fn(*mut A, libc::c_int) -> libc::c_int,
    libc::c_int,
);

/// Initialises attributes, sets some, and creates an object with them. On Linux they hold nothing
/// that would have to be destroyed.
fn with_attributes<A>(
    init: unsafe extern "C" fn(*mut A) -> libc::c_int,
    sets: [Set<A>; 2],
    make: impl FnOnce(*const A) -> libc::c_int,
) -> Fallible {
    let mut attributes = MaybeUninit::uninit();
    // SAFETY: a valid place to write to.
    let result = unsafe { init(attributes.as_mut_ptr()) };
    check("initialising attributes", result)?;
    for (set, value) in sets {
        // SAFETY: initialised above.
        let result = unsafe { set(attributes.as_mut_ptr(), value) };
        check("setting an attribute", result)?;
    }
    check("creating what the sides share", make(attributes.as_ptr()))
}

fn deadline(clock: ClockId) -> Fallible<TimeSpec> {
    Ok(clock_gettime(clock)? + TimeSpec::from_duration(TIMEOUT))
}

/// These calls return their error instead of setting `errno`.
fn check(what: &'static str, result: libc::c_int) -> Fallible {
    match result {
        0 => Ok(()),
        // The mutex is never made consistent again: this process is about to exit, too.
        libc::EOWNERDEAD => Err("the other side died while it had the lock".into()),
        libc::ETIMEDOUT => Err(format!("{what}: nothing for {} s", TIMEOUT.as_secs()).into()),
        other => Err(format!("{what}: {}", io::Error::from_raw_os_error(other)).into()),
    }
}
