//! The peer: one slot in memory that two processes share, guarded by a pthread mutex and two
//! condition variables.
//!
//! A message is copied in by one side and copied out by the other, each by one bulk copy under the
//! lock; the slot takes the next one when the last was taken. The memory has no name: the other
//! process inherits it as a file descriptor.
//!
//! As quick as it can fairly be made. The mutex shares its line with the word that it guards, each
//! condition variable and the message begin a line of their own, and the clock is asked for
//! deadlines only by who must wait. The signal is given with the lock still held, as SHM-direct
//! does: who has waited releases the lock by a system call, because glibc takes it then as if
//! others waited for it too, and a signal after that would be later by as much. Long before anybody
//! is awake the lock is free.
//!
//! The mutex is robust: if a process dies with the lock, the other one gets `EOWNERDEAD`, and an
//! error, and not a lock that nobody releases. Every wait ends after [`PATIENCE`]. (Condition
//! variables have no such thing: killed in the few instructions that change one, a process leaves
//! it locked, and the other one may wait for that. `limit` ends it then.)

use memmap2::{MmapOptions, MmapRaw};
use nix::sys::memfd::{memfd_create, MFdFlags};
use nix::sys::time::TimeSpec;
use nix::time::{clock_gettime, ClockId};
use shm_pool_support::{clock, Fallible};
use std::cell::UnsafeCell;
use std::fs::File;
use std::io;
use std::mem::{size_of, MaybeUninit};
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Most bytes of a message.
pub(crate) const MAX_LEN: usize = 8192;

/// Longest wait for the other side.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Says that the mutex and the condition variables have been made.
const MADE: u64 = u64::from_be_bytes(*b"one slot");

/// Begins a cache line.
#[repr(C, align(64))]
struct Line<T>(T);

type Condvar = UnsafeCell<libc::pthread_cond_t>;

#[repr(C)]
struct Guard {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    made: AtomicU64,
    /// Of the message; 0 is none. Read and written under the lock.
    len: AtomicUsize,
}

const _: () = assert!(size_of::<Guard>() <= 64);

/// What the processes share.
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
    /// An empty slot, and what another process opens it by.
    pub(crate) fn create() -> Fallible<(Self, OwnedFd)> {
        let file = File::from(memfd_create(c"shm-direct-slot", MFdFlags::MFD_CLOEXEC)?);
        file.set_len(size_of::<Shared>() as u64)?;
        let slot = Self::map(&file)?;
        let shared = slot.shared();
        make_mutex(&shared.guard.0.mutex)?;
        make_condvar(&shared.not_empty.0)?;
        make_condvar(&shared.not_full.0)?;
        shared.guard.0.made.store(MADE, Ordering::Release); // partner: `open`
        Ok((slot, file.into()))
    }

    /// The slot that another process has [created](Self::create).
    pub(crate) fn open(file: &File) -> Fallible<Self> {
        let refused = "the descriptor that this process inherited is no slot";
        if file.metadata()?.len() != size_of::<Shared>() as u64 {
            return Err(refused.into());
        }
        let slot = Self::map(file)?;
        match slot.shared().guard.0.made.load(Ordering::Acquire) {
            MADE => Ok(slot),
            _ => Err(refused.into()),
        }
    }

    fn map(file: &File) -> Fallible<Self> {
        Ok(Self(MmapOptions::new().len(size_of::<Shared>()).map_raw(file)?))
    }

    fn shared(&self) -> &Shared {
        // SAFETY: a mapping is aligned to pages, as long as this, and lives as long as `self`. All
        // that the other process may change is in cells and atomics, which any bytes are valid for.
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
        // SAFETY: not longer than the slot, as checked above, and nobody else accesses that without
        // the lock.
        unsafe { ptr::copy_nonoverlapping(message.as_ptr(), to, message.len()) };
        locked.set_len(message.len());
        locked.signal(&shared.not_empty.0)
    }

    /// Waits until the slot is full, and copies the message out. Returns how long it is, and when
    /// this side was awake, had the lock and found the message.
    pub(crate) fn take(&self, buffer: &mut [u8]) -> Fallible<(usize, u64)> {
        let shared = self.shared();
        let locked = self.lock()?;
        while locked.len() == 0 {
            locked.wait(&shared.not_empty.0)?;
        }
        let wake = clock::now();
        let len = locked.len();
        if len > MAX_LEN.min(buffer.len()) {
            return Err(format!("a message of {len} bytes is longer than expected").into());
        }
        let from = shared.bytes.0.get().cast::<u8>();
        // SAFETY: longer than neither, as checked above, and nobody else accesses the slot without
        // the lock.
        unsafe { ptr::copy_nonoverlapping(from, buffer.as_mut_ptr(), len) };
        locked.set_len(0);
        locked.signal(&shared.not_full.0)?;
        Ok((len, wake))
    }

    /// Is no message in it?
    pub(crate) fn is_empty(&self) -> Fallible<bool> {
        Ok(self.lock()?.len() == 0)
    }

    fn lock(&self) -> Fallible<Locked<'_>> {
        let mutex = self.shared().guard.0.mutex.get();
        // SAFETY: a mutex that was made, as `create` and `open` see to.
        let mut result = unsafe { libc::pthread_mutex_trylock(mutex) };
        if result == libc::EBUSY {
            // This call's deadlines are of no other clock.
            let deadline = deadline(ClockId::CLOCK_REALTIME)?;
            // SAFETY: a mutex that was made, and a valid time.
            result = unsafe { libc::pthread_mutex_timedlock(mutex, deadline.as_ref()) };
        }
        match result {
            0 => Ok(Locked(self)),
            libc::EOWNERDEAD => Err(Locked(self).recover()),
            libc::ETIMEDOUT => Err("the other side has kept the lock too long".into()),
            other => Err(failed("pthread_mutex_timedlock", other)),
        }
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

    /// Waits for a signal, or for no reason.
    fn wait(&self, condvar: &Condvar) -> Fallible {
        let deadline = deadline(ClockId::CLOCK_MONOTONIC)?;
        let mutex = self.guard().mutex.get();
        // SAFETY: they were made, this thread has the lock, and the time is valid.
        match unsafe { libc::pthread_cond_timedwait(condvar.get(), mutex, deadline.as_ref()) } {
            0 => Ok(()),
            libc::EOWNERDEAD => Err(self.recover()),
            libc::ETIMEDOUT => Err(format!("nothing from the other side for {} s", PATIENCE.as_secs()).into()),
            other => Err(failed("pthread_cond_timedwait", other)),
        }
    }

    fn signal(&self, condvar: &Condvar) -> Fallible {
        // SAFETY: it was made, as `create` and `open` see to.
        check("pthread_cond_signal", unsafe { libc::pthread_cond_signal(condvar.get()) })
    }

    /// The other side died with the lock, which this one has now.
    fn recover(&self) -> Box<dyn std::error::Error + Send + Sync> {
        // SAFETY: this thread has the lock, and was told that its last owner is dead.
        match unsafe { libc::pthread_mutex_consistent(self.guard().mutex.get()) } {
            0 => "the other side died while it had the lock".into(),
            other => failed("pthread_mutex_consistent", other),
        }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread has the lock; so it cannot fail.
        unsafe { libc::pthread_mutex_unlock(self.guard().mutex.get()) };
    }
}

fn make_mutex(mutex: &UnsafeCell<libc::pthread_mutex_t>) -> Fallible {
    let mut attributes = MaybeUninit::uninit();
    let all = attributes.as_mut_ptr();
    // SAFETY: a place to write to.
    check("pthread_mutexattr_init", unsafe { libc::pthread_mutexattr_init(all) })?;
    // SAFETY: initialised above.
    let shared = unsafe { libc::pthread_mutexattr_setpshared(all, libc::PTHREAD_PROCESS_SHARED) };
    check("pthread_mutexattr_setpshared", shared)?;
    // SAFETY: the attributes are initialised.
    let robust = unsafe { libc::pthread_mutexattr_setrobust(all, libc::PTHREAD_MUTEX_ROBUST) };
    check("pthread_mutexattr_setrobust", robust)?;
    // SAFETY: the attributes are initialised, and nobody uses the mutex yet.
    check("pthread_mutex_init", unsafe { libc::pthread_mutex_init(mutex.get(), all) })?;
    // SAFETY: the attributes are initialised, and not used again.
    check("pthread_mutexattr_destroy", unsafe { libc::pthread_mutexattr_destroy(all) })
}

/// Its deadlines are of the monotonic clock.
fn make_condvar(condvar: &Condvar) -> Fallible {
    let mut attributes = MaybeUninit::uninit();
    let all = attributes.as_mut_ptr();
    // SAFETY: a place to write to.
    check("pthread_condattr_init", unsafe { libc::pthread_condattr_init(all) })?;
    // SAFETY: initialised above.
    let shared = unsafe { libc::pthread_condattr_setpshared(all, libc::PTHREAD_PROCESS_SHARED) };
    check("pthread_condattr_setpshared", shared)?;
    // SAFETY: the attributes are initialised.
    let monotonic = unsafe { libc::pthread_condattr_setclock(all, libc::CLOCK_MONOTONIC) };
    check("pthread_condattr_setclock", monotonic)?;
    // SAFETY: the attributes are initialised, and nobody uses the condition variable yet.
    check("pthread_cond_init", unsafe { libc::pthread_cond_init(condvar.get(), all) })?;
    // SAFETY: the attributes are initialised, and not used again.
    check("pthread_condattr_destroy", unsafe { libc::pthread_condattr_destroy(all) })
}

fn deadline(clock: ClockId) -> Fallible<TimeSpec> {
    Ok(clock_gettime(clock)? + TimeSpec::from_duration(PATIENCE))
}

fn check(call: &'static str, result: libc::c_int) -> Fallible {
    match result {
        0 => Ok(()),
        other => Err(failed(call, other)),
    }
}

fn failed(call: &'static str, error: libc::c_int) -> Box<dyn std::error::Error + Send + Sync> {
    format!("{call}: {}", io::Error::from_raw_os_error(error)).into()
}
