//! A global value of which a forked child has one of its own, because the parent's locks may be
//! held by threads that the child does not have.

use crate::os::fork;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

struct Made<T> {
    fork_epoch: u64,
    value: T,
}

/// The value, made when it is first asked for and never freed: one per process that asks.
pub(crate) struct PerProcess<T: 'static>(AtomicPtr<Made<T>>);

impl<T: Default + Sync + 'static> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// This process's value, if it has asked before.
    pub(crate) fn existing(&self) -> Option<&'static T> {
        // Acquire: partner of the Release in `get`.
        Self::of_this_process(self.0.load(Ordering::Acquire))
    }

    fn of_this_process(made: *mut Made<T>) -> Option<&'static T> {
        // SAFETY: null, or leaked by `get`.
        let made = unsafe { made.as_ref() }?;
        (made.fork_epoch == fork::epoch()).then_some(&made.value)
    }

    /// This process's value.
    pub(crate) fn get(&self) -> &'static T {
        loop {
            // One load for both: what is replaced below is what was found to be the parent's.
            let old = self.0.load(Ordering::Acquire); // partner: the Release below
            if let Some(value) = Self::of_this_process(old) {
                return value;
            }
            let made = Box::into_raw(Box::new(Made { fork_epoch: fork::epoch(), value: T::default() }));
            if self.0.compare_exchange(old, made, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                // SAFETY: made just now, and nobody else has it. Another thread was faster.
                drop(unsafe { Box::from_raw(made) });
            }
        }
    }
}
