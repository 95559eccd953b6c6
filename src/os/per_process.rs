//! A global value that a forked child does not share with its parent, because the parent's locks
//! may be held by threads that do not exist in the child.

use crate::os::fork;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

struct Made<T> {
    fork_epoch: u64,
    value: T,
}

/// A value created on first use and never freed, one per process that uses it.
pub(crate) struct PerProcess<T: 'static>(AtomicPtr<Made<T>>);

impl<T: Default + Sync + 'static> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Returns this process's value, if it has been created.
    pub(crate) fn existing(&self) -> Option<&'static T> {
        // Acquire: partner of the Release in `get`.
        Self::of_this_process(self.0.load(Ordering::Acquire))
    }

    fn of_this_process(made: *mut Made<T>) -> Option<&'static T> {
        // SAFETY: null, or leaked by `get`.
        let made = unsafe { made.as_ref() }?;
        (made.fork_epoch == fork::epoch()).then_some(&made.value)
    }

    /// Returns this process's value, creating it on first use.
    pub(crate) fn get(&self) -> &'static T {
        loop {
            // A single load for both uses: only a value that was found to be the parent's is
            // replaced below.
            let old = self.0.load(Ordering::Acquire); // partner: the Release below
            if let Some(value) = Self::of_this_process(old) {
                return value;
            }
            let made = Box::into_raw(Box::new(Made { fork_epoch: fork::epoch(), value: T::default() }));
            if self.0.compare_exchange(old, made, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                // SAFETY: created just above and never shared. Another thread stored its value
                // first.
                drop(unsafe { Box::from_raw(made) });
            }
        }
    }
}
