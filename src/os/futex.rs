//! How threads of all processes sleep and wake each other, and the barrier for paths that may have
//! to wake a thread.

#[cfg(all(test, loom))]
pub(crate) use model::{can_sleep_on_many, Futex, Words};
#[cfg(not(all(test, loom)))]
pub(crate) use real::{can_sleep_on_many, Futex, Words};

use std::time::Duration;

/// Since Linux 5.16: the kernel's `FUTEX_WAITV_MAX`.
pub(crate) const MOST_WORDS: usize = 128;

#[derive(Clone, Copy)]
pub(crate) struct Deadline(libc::timespec);

fn now() -> libc::timespec {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is valid for writes. Every Linux has this clock, so the call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now
}

/// The time of `CLOCK_MONOTONIC`, which all processes share unless they have time namespaces.
pub(crate) fn monotonic_nanos() -> u64 {
    let now = now();
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Deadline {
    pub(crate) fn has_passed(self) -> bool {
        let now = now();
        (now.tv_sec, now.tv_nsec) >= (self.0.tv_sec, self.0.tv_nsec)
    }

    /// Returns `true` if there is a deadline and it has passed.
    pub(crate) fn is_past(deadline: Option<Self>) -> bool {
        match deadline {
            Some(deadline) => deadline.has_passed(),
            None => false,
        }
    }

    /// Returns zero once it has passed.
    pub(crate) fn time_left(self) -> Duration {
        let now = now();
        let end = Duration::new(self.0.tv_sec as u64, self.0.tv_nsec as u32);
        end.saturating_sub(Duration::new(now.tv_sec as u64, now.tv_nsec as u32))
    }

    /// `None` never passes.
    pub(crate) fn first(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        let (Some(a), Some(b)) = (one, other) else {
            return one.or(other);
        };
        Some(if (a.0.tv_sec, a.0.tv_nsec) <= (b.0.tv_sec, b.0.tv_nsec) {
            a
        } else {
            b
        })
    }

    /// `None` if the clock cannot represent it.
    pub(crate) fn after(timeout: Duration) -> Option<Self> {
        let now = now();
        let nanos = now.tv_nsec + libc::c_long::from(timeout.subsec_nanos() as i32);
        let carry = nanos / 1_000_000_000;
        let tv_nsec = nanos % 1_000_000_000;
        let tv_sec = now
            .tv_sec
            .checked_add(timeout.as_secs().try_into().ok()?)?
            .checked_add(carry)?;
        Some(Self(libc::timespec { tv_sec, tv_nsec }))
    }
}

pub(crate) mod barrier {
    //! An asymmetric barrier (`man 2 membarrier`), for a path where a fence would cost too much.
    //!
    //! Each side stores, calls [`light`] or [`heavy`], and then loads. At least one of the two
    //! loads sees the other side's store.
    //!
    //! Where the kernel or a sandbox refuses `membarrier`, the light side's store may be delayed
    //! past its load. A thread that waits must therefore recheck its condition periodically.

    use crate::sync::fence;
    use std::sync::atomic::{compiler_fence, AtomicU64, Ordering};

    /// No process is enlisted initially; epochs begin at 0.
    const NOBODY: u64 = u64::MAX;

    /// Registers this process, so that [`heavy`] reaches its threads from any process. Takes the kernel no
    /// time while the process has one thread, and then about 10 ms: called when a client or a receiving
    /// end is made, and again where a doorbell is mapped that [`light`] serves.
    pub(crate) fn enlist() {
        // The epoch of the process that enlisted: a forked child must enlist itself.
        static ENLISTED: AtomicU64 = AtomicU64::new(NOBODY);
        let epoch = crate::os::fork::epoch();
        if ENLISTED.load(Ordering::Relaxed) != epoch {
            membarrier(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED);
            ENLISTED.store(epoch, Ordering::Relaxed);
        }
    }

    /// Keeps the compiler from moving the store behind the load. In the models, a full fence.
    #[inline]
    pub(crate) fn light() {
        if cfg!(loom) {
            fence(Ordering::SeqCst);
        } else {
            compiler_fence(Ordering::SeqCst);
        }
    }

    /// Runs a full barrier on every thread of every [enlisted](enlist) process.
    pub(crate) fn heavy() {
        enlist();
        fence(Ordering::SeqCst);
        membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED);
    }

    fn membarrier(command: libc::c_int) {
        // SAFETY: the call takes numbers only. It fails only where it is unavailable: see above.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    }
}

#[cfg(not(all(test, loom)))]
mod real {
    use super::{Deadline, MOST_WORDS};
    use std::io;
    use std::marker::PhantomData;
    use std::mem::MaybeUninit;
    use std::ptr;
    use std::sync::atomic::{AtomicU32, AtomicU8, Ordering};
    use std::time::Duration;

    /// A 32-bit word in shared memory. A thread sleeps while it has an expected value.
    #[repr(transparent)]
    pub(crate) struct Futex(AtomicU32);

    impl Futex {
        pub(crate) fn new(value: u32) -> Self {
            Self(AtomicU32::new(value))
        }

        pub(crate) fn store(&self, value: u32, order: Ordering) {
            self.0.store(value, order);
        }

        #[inline]
        pub(crate) fn load(&self, order: Ordering) -> u32 {
            self.0.load(order)
        }

        pub(crate) fn fetch_or(&self, value: u32, order: Ordering) -> u32 {
            self.0.fetch_or(value, order)
        }

        pub(crate) fn fetch_and(&self, value: u32, order: Ordering) -> u32 {
            self.0.fetch_and(value, order)
        }

        pub(crate) fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
            self.0.fetch_add(value, order)
        }

        pub(crate) fn compare_exchange(
            &self,
            old: u32,
            new: u32,
            yes: Ordering,
            no: Ordering,
        ) -> Result<u32, u32> {
            self.0.compare_exchange(old, new, yes, no)
        }

        /// Sleeps if the word equals `value`, until a wake-up, spurious or not, or `deadline`.
        pub(crate) fn sleep_while(&self, value: u32, deadline: Option<Deadline>) {
            let deadline = deadline
                .as_ref()
                .map_or(ptr::null(), |deadline| ptr::addr_of!(deadline.0));
            // Unlike `FUTEX_WAIT`, this operation takes an absolute deadline.
            let call = libc::FUTEX_WAIT_BITSET;
            let everybody = libc::FUTEX_BITSET_MATCH_ANY;
            let word = self.0.as_ptr();
            let unused = ptr::null::<u32>();
            // SAFETY: the word lives as long as `self`; the deadline is null or valid.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    word,
                    call,
                    value,
                    deadline,
                    unused,
                    everybody,
                )
            };
        }

        pub(crate) fn wake(&self) {
            let word = self.0.as_ptr();
            // SAFETY: the word lives as long as `self`.
            unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, i32::MAX) };
        }

        /// Wakes one waiter, as the kernel does for a thread that dies.
        #[cfg(test)]
        pub(crate) fn wake_one(&self) {
            let word = self.0.as_ptr();
            // SAFETY: the word lives as long as `self`.
            unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, 1) };
        }

        /// [`wake`](Self::wake) that keeps `errno`: the code that a signal handler interrupts may
        /// be about to read it.
        pub(crate) fn wake_in_handler(&self) {
            // SAFETY: the call has no preconditions.
            let errno = unsafe { libc::__errno_location() };
            // SAFETY: it returns the address of this thread's `errno`, which lives as long as the
            // thread.
            let before = unsafe { *errno };
            self.wake();
            // SAFETY: likewise.
            unsafe { *errno = before };
        }
    }

    /// `futex_waitv`, which old versions of libc do not define. The number is the same everywhere.
    const WAITV: libc::c_long = 449;

    const SIZE_U32: u32 = 2;

    const REFUSED: Duration = Duration::from_millis(1);

    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Waiter {
        value: u64,
        address: u64,
        flags: u32,
        reserved: u32,
    }

    pub(crate) struct Words<'a> {
        /// The first `len` are initialised.
        waiters: [MaybeUninit<Waiter>; MOST_WORDS],
        len: usize,
        last: Option<(&'a Futex, u32)>,
        words: PhantomData<&'a Futex>,
    }

    impl<'a> Words<'a> {
        pub(crate) fn new() -> Self {
            Self {
                waiters: [MaybeUninit::uninit(); MOST_WORDS],
                len: 0,
                last: None,
                words: PhantomData,
            }
        }

        /// Adds a word. Ignores any beyond [`MOST_WORDS`].
        pub(crate) fn push(&mut self, word: &'a Futex, value: u32) {
            if let Some(waiter) = self.waiters.get_mut(self.len) {
                let address = word.0.as_ptr() as u64;
                waiter.write(Waiter {
                    value: value.into(),
                    address,
                    flags: SIZE_U32,
                    reserved: 0,
                });
                self.len += 1;
                self.last = Some((word, value));
            }
        }

        pub(crate) fn last(&self) -> Option<(&'a Futex, u32)> {
            self.last
        }

        /// Sleeps as [`Futex::sleep_while`] does, on all words. The kernel checks them in order; a
        /// wake-up of a word after its check wakes this thread.
        pub(crate) fn sleep(&self, deadline: Option<Deadline>) {
            let until = deadline
                .as_ref()
                .map_or(ptr::null(), |deadline| ptr::addr_of!(deadline.0));
            let waiters = self.waiters.as_ptr();
            let none = 0;
            // SAFETY: the first `len` waiters are initialised (`push`), and their words live as
            // long as `'a`; the deadline is null or valid.
            let result = unsafe {
                libc::syscall(WAITV, waiters, self.len, none, until, libc::CLOCK_MONOTONIC)
            };
            if result == -1 && !is_awake(&io::Error::last_os_error()) {
                // Without this, the caller would spin.
                let until = Deadline::first(deadline, Deadline::after(REFUSED));
                if let Some((word, value)) = self.last {
                    word.sleep_while(value, until);
                }
            }
        }
    }

    fn is_awake(error: &io::Error) -> bool {
        matches!(
            error.raw_os_error(),
            Some(libc::EAGAIN | libc::EINTR | libc::ETIMEDOUT)
        )
    }

    fn is_missing(error: &io::Error) -> bool {
        matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM))
    }

    /// Queries the kernel once per process.
    pub(crate) fn can_sleep_on_many() -> bool {
        const YES: u8 = 1;
        const NO: u8 = 2;
        static ANSWER: AtomicU8 = AtomicU8::new(0);
        // Relaxed: every thread computes the same answer.
        match ANSWER.load(Ordering::Relaxed) {
            YES => true,
            NO => false,
            _ => {
                let words = ptr::null::<Waiter>();
                let unused = ptr::null::<libc::timespec>();
                // SAFETY: without words, the kernel reads nothing and refuses the call.
                unsafe { libc::syscall(WAITV, words, 0, 0, unused, libc::CLOCK_MONOTONIC) };
                let can = !is_missing(&io::Error::last_os_error());
                ANSWER.store(if can { YES } else { NO }, Ordering::Relaxed);
                can
            }
        }
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::Deadline;
    use loom::sync::{atomic, Condvar, Mutex};
    use loom::thread::yield_now;
    use std::sync::atomic::Ordering;

    /// Never wakes spuriously, so that loom reports a lost wake-up as a deadlock. Compares and
    /// sleeps under the lock under which it wakes, like the kernel.
    pub(crate) struct Futex {
        word: atomic::AtomicU32,
        companion: atomic::AtomicU8,
        lock: Mutex<usize>,
        woken: Condvar,
    }

    impl Futex {
        pub(crate) fn new(value: u32) -> Self {
            Self {
                word: atomic::AtomicU32::new(value),
                companion: atomic::AtomicU8::new(0),
                lock: Mutex::new(0),
                woken: Condvar::new(),
            }
        }

        fn word(&self) -> &atomic::AtomicU32 {
            self.companion.fetch_add(0, Ordering::Relaxed);
            &self.word
        }

        pub(crate) fn load(&self, order: Ordering) -> u32 {
            self.word().load(order)
        }

        pub(crate) fn store(&self, value: u32, order: Ordering) {
            self.word().store(value, order);
        }

        pub(crate) fn fetch_or(&self, value: u32, order: Ordering) -> u32 {
            self.word().fetch_or(value, order)
        }

        pub(crate) fn fetch_and(&self, value: u32, order: Ordering) -> u32 {
            self.word().fetch_and(value, order)
        }

        pub(crate) fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
            self.word().fetch_add(value, order)
        }

        pub(crate) fn compare_exchange(
            &self,
            old: u32,
            new: u32,
            yes: Ordering,
            no: Ordering,
        ) -> Result<u32, u32> {
            self.word().compare_exchange(old, new, yes, no)
        }

        pub(crate) fn sleep_while(&self, value: u32, _deadline: Option<Deadline>) {
            let guard = self.lock.lock().unwrap();
            if self.word().load(Ordering::Relaxed) == value {
                drop(self.woken.wait(guard).unwrap());
            }
        }

        pub(crate) fn wake(&self) {
            let mut wakes = self.lock.lock().unwrap();
            *wakes += 1;
            self.woken.notify_all();
        }

        pub(crate) fn wake_in_handler(&self) {
            self.wake();
        }
    }

    /// Never wakes spuriously: loom reports a lost wake-up as an endless loop.
    pub(crate) struct Words<'a>(Vec<(&'a Futex, u32)>);

    impl<'a> Words<'a> {
        pub(crate) fn new() -> Self {
            Self(Vec::new())
        }

        pub(crate) fn push(&mut self, word: &'a Futex, value: u32) {
            self.0.push((word, value));
        }

        pub(crate) fn last(&self) -> Option<(&'a Futex, u32)> {
            self.0.last().copied()
        }

        pub(crate) fn sleep(&self, _deadline: Option<Deadline>) {
            let mut queued = Vec::new();
            for &(word, value) in &self.0 {
                let wakes = word.lock.lock().unwrap();
                if word.word().load(Ordering::Relaxed) != value {
                    return;
                }
                queued.push((word, *wakes));
            }
            while queued
                .iter()
                .all(|&(word, wakes)| *word.lock.lock().unwrap() == wakes)
            {
                yield_now();
            }
        }
    }

    pub(crate) fn can_sleep_on_many() -> bool {
        true
    }
}
