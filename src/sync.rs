//! The switch between the real atomics and loom's.
//!
//! Under `--cfg loom`, the unit tests use loom's atomics and fences. `ArrayQueue`, which loom
//! cannot instrument, becomes a queue of single slots with no stronger ordering than the real one:
//! a push releases, a pop acquires, and nothing else is ordered.
//!
//! Loom decides which operations to interleave by the *last* access to each atomic. A thread's own
//! load hides an earlier access of another thread, so loom omits the orders in which a
//! compare-exchange after that load comes first. The model's `AtomicU64` therefore announces each
//! access with a relaxed read-modify-write of a companion, which orders no memory but makes any two
//! accesses of different threads a choice.

#[cfg(not(all(test, loom)))]
pub(crate) use {
    crossbeam_queue::ArrayQueue,
    parking_lot::{Mutex, MutexGuard},
    std::sync::atomic::{fence, AtomicPtr, AtomicU32, AtomicU64, Ordering},
    std::thread::yield_now,
};

#[cfg(all(test, loom))]
pub(crate) use {
    loom::sync::atomic::{fence, AtomicPtr, AtomicU32, Ordering},
    loom::sync::MutexGuard,
    loom::thread::yield_now,
    model::{interleave_system_calls, ArrayQueue, AtomicU64, Mutex},
};

/// Comes before a system call whose order with those of other threads and processes matters. In a
/// model, other threads may run here: their calls are real, on real files and locks.
#[inline(always)]
pub(crate) fn before_system_call() {
    #[cfg(all(test, loom))]
    model::before_system_call();
}

/// A full fence directly after a successful read-modify-write. On x86-64 the read-modify-write is a
/// full fence already: "loads and stores are not reordered with locked instructions" (Intel's and
/// AMD's manuals, on memory ordering), so a compiler fence suffices.
#[inline]
pub(crate) fn fence_after_rmw() {
    if cfg!(all(target_arch = "x86_64", not(any(loom, miri)))) {
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

#[cfg(all(test, loom))]
pub(crate) fn explore(
    preemptions: impl Into<Option<usize>>,
    run: impl Fn() + Sync + Send + 'static,
) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions.into();
    model.check(run);
}

#[cfg(all(test, loom))]
mod model {
    use super::{AtomicPtr, MutexGuard, Ordering};
    use loom::sync::atomic;
    use std::cell::Cell;
    use std::ptr;

    loom::lazy_static! {
        /// All calls change it, so loom tries every order of them.
        static ref SYSTEM_CALLS: atomic::AtomicU32 = atomic::AtomicU32::new(0);
    }

    std::thread_local! {
        static ARE_INTERLEAVED: Cell<bool> = const { Cell::new(false) };
    }

    /// Whether system calls are interleaved from now on. A model's threads are one thread of the
    /// system.
    pub(crate) fn interleave_system_calls(are_interleaved: bool) {
        ARE_INTERLEAVED.set(are_interleaved);
    }

    pub(super) fn before_system_call() {
        if ARE_INTERLEAVED.get() {
            SYSTEM_CALLS.fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(crate) struct AtomicU64 {
        value: atomic::AtomicU64,
        companion: atomic::AtomicU8,
    }

    impl AtomicU64 {
        pub(crate) fn new(value: u64) -> Self {
            Self {
                value: atomic::AtomicU64::new(value),
                companion: atomic::AtomicU8::new(0),
            }
        }

        /// Returns the value for one access, after the companion has announced it.
        fn value(&self) -> &atomic::AtomicU64 {
            self.companion.fetch_add(0, Ordering::Relaxed);
            &self.value
        }

        pub(crate) fn load(&self, order: Ordering) -> u64 {
            self.value().load(order)
        }

        pub(crate) fn store(&self, value: u64, order: Ordering) {
            self.value().store(value, order);
        }

        pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
            self.value().fetch_add(value, order)
        }

        pub(crate) fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
            self.value().fetch_sub(value, order)
        }

        pub(crate) fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
            self.value().fetch_and(value, order)
        }

        pub(crate) fn compare_exchange(
            &self,
            current: u64,
            new: u64,
            success: Ordering,
            failure: Ordering,
        ) -> Result<u64, u64> {
            self.value()
                .compare_exchange(current, new, success, failure)
        }

        pub(crate) fn compare_exchange_weak(
            &self,
            current: u64,
            new: u64,
            success: Ordering,
            failure: Ordering,
        ) -> Result<u64, u64> {
            self.value()
                .compare_exchange_weak(current, new, success, failure)
        }
    }

    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }

    /// A bounded bag. Deliberately weaker than a FIFO queue: properties that hold for it hold for
    /// any order.
    pub(crate) struct ArrayQueue<T> {
        slots: Vec<AtomicPtr<T>>,
    }

    impl<T> ArrayQueue<T> {
        pub(crate) fn new(capacity: usize) -> Self {
            Self {
                slots: (0..capacity)
                    .map(|_| AtomicPtr::new(ptr::null_mut()))
                    .collect(),
            }
        }

        pub(crate) fn capacity(&self) -> usize {
            self.slots.len()
        }

        pub(crate) fn len(&self) -> usize {
            self.slots
                .iter()
                .filter(|slot| !slot.load(Ordering::Relaxed).is_null())
                .count()
        }

        pub(crate) fn push(&self, value: T) -> Result<(), T> {
            let value = Box::into_raw(Box::new(value));
            for slot in &self.slots {
                if slot
                    .compare_exchange(ptr::null_mut(), value, Ordering::Release, Ordering::Relaxed)
                    .is_ok()
                {
                    return Ok(());
                }
            }
            // SAFETY: no slot took the pointer, so it is still the box made above, with no other
            // owner.
            Err(*unsafe { Box::from_raw(value) })
        }

        pub(crate) fn pop(&self) -> Option<T> {
            for slot in &self.slots {
                let value = slot.swap(ptr::null_mut(), Ordering::Acquire);
                if !value.is_null() {
                    // SAFETY: a non-null slot holds a box that `push` put there, and the swap took
                    // it out once.
                    return Some(*unsafe { Box::from_raw(value) });
                }
            }
            None
        }
    }

    impl<T> Drop for ArrayQueue<T> {
        fn drop(&mut self) {
            while self.pop().is_some() {}
        }
    }
}
