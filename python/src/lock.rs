//! Locks whose values stay whole when a thread panics.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a value. No code under one of these locks panics between two changes that belong together,
/// so a poisoned lock is used as any other.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
