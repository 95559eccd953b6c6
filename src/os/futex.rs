//! A futex that processes share: a 32-bit word. A thread sleeps while the word has a certain value;
//! another thread changes the word and wakes it.

#[cfg(all(test, loom))]
pub(crate) use model::Futex;
#[cfg(not(all(test, loom)))]
pub(crate) use real::Futex;

#[cfg(not(all(test, loom)))]
mod real {
    use crate::os::deadline::Deadline;
    use std::ptr;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A 32-bit word in shared memory, to sleep on.
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

        pub(crate) fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
            self.0.fetch_add(value, order)
        }

        pub(crate) fn compare_exchange(&self, old: u32, new: u32, yes: Ordering, no: Ordering) -> Result<u32, u32> {
            self.0.compare_exchange(old, new, yes, no)
        }

        /// Sleeps if the word equals `value`: until it is woken, until `deadline` (on the monotonic
        /// clock) has passed, or spuriously.
        pub(crate) fn sleep_while(&self, value: u32, deadline: Option<Deadline>) {
            let deadline = deadline.as_ref().map_or(ptr::null(), Deadline::as_ptr);
            // This wait, unlike `FUTEX_WAIT`, takes an absolute deadline. Its bits say who may
            // wake: everybody.
            let (call, everybody) = (libc::FUTEX_WAIT_BITSET, libc::FUTEX_BITSET_MATCH_ANY);
            let word = self.0.as_ptr();
            let unused = ptr::null::<u32>();
            // SAFETY: the word lives as long as `self`; the deadline is null or valid during the
            // call.
            unsafe { libc::syscall(libc::SYS_futex, word, call, value, deadline, unused, everybody) };
        }

        /// Wakes all sleepers: the one that there should be, and any others.
        pub(crate) fn wake(&self) {
            let word = self.0.as_ptr();
            // SAFETY: the word lives as long as `self`.
            unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, i32::MAX) };
        }
    }
}

#[cfg(all(test, loom))]
mod model {
    use crate::os::deadline::Deadline;
    use loom::sync::{atomic, Condvar, Mutex};
    use std::sync::atomic::Ordering;

    /// A futex whose sleepers wake only when they are woken, never spuriously. So a lost wake-up is
    /// a deadlock, which loom reports. Like the kernel, it compares and sleeps under the lock under
    /// which it wakes.
    pub(crate) struct Futex {
        word: atomic::AtomicU32,
        companion: atomic::AtomicU8,
        lock: Mutex<()>,
        woken: Condvar,
    }

    impl Futex {
        pub(crate) fn new(value: u32) -> Self {
            Self {
                word: atomic::AtomicU32::new(value),
                companion: atomic::AtomicU8::new(0),
                lock: Mutex::new(()),
                woken: Condvar::new(),
            }
        }

        /// The word, for one access, which the companion announces to loom first (see `sync`).
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

        pub(crate) fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
            self.word().fetch_add(value, order)
        }

        pub(crate) fn compare_exchange(&self, old: u32, new: u32, yes: Ordering, no: Ordering) -> Result<u32, u32> {
            self.word().compare_exchange(old, new, yes, no)
        }

        pub(crate) fn sleep_while(&self, value: u32, _deadline: Option<Deadline>) {
            let guard = self.lock.lock().unwrap();
            if self.word().load(Ordering::Relaxed) == value {
                drop(self.woken.wait(guard).unwrap());
            }
        }

        pub(crate) fn wake(&self) {
            let _guard = self.lock.lock().unwrap();
            self.woken.notify_all();
        }
    }
}
