//! A count that costs nothing to raise: its owner alone raises it, in private memory, and others lower it.
//!
//! [`Owned::lend`] only adds to the owner's own number. Each [`Counted`] that is dropped takes one from a word that began far above
//! what can be lent. When the owner is dropped, it takes off what the word began with, less what was lent: so the word is
//! zero exactly once, after the last of all, and who makes it zero frees the value. (Like a weighted reference count whose weight the owner
//! keeps; an `Arc` would make each receiver of a message wait for a line that the droppers of others have.)
//!
//! | writer | reader | what becomes visible |
//! |---|---|---|
//! | whoever drops: `left`, Release | who makes it zero: fence, Acquire | that nobody uses the value any more |

use crate::sync::{fence, AtomicU64, Ordering};
use std::ops::Deref;
use std::ptr::NonNull;

/// What the word begins with: more than can ever be lent.
const BIAS: u64 = 1 << 63;

struct Inner<T> {
    left: AtomicU64,
    value: T,
}

/// The one who lends.
pub(super) struct Owned<T> {
    inner: NonNull<Inner<T>>,
    /// How often it was lent.
    lent: u64,
}

/// Keeps the value.
pub(super) struct Counted<T>(NonNull<Inner<T>>);

// SAFETY: it is an `Arc` in all but how it counts.
unsafe impl<T: Send + Sync> Send for Owned<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Owned<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Send for Counted<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Counted<T> {}

impl<T> Owned<T> {
    pub(super) fn new(value: T) -> Self {
        let inner = Box::new(Inner { left: AtomicU64::new(BIAS), value });
        Self { inner: NonNull::from(Box::leak(inner)), lent: 0 }
    }

    /// One more that keeps it.
    #[inline]
    pub(super) fn lend(&mut self) -> Counted<T> {
        self.lent += 1;
        Counted(self.inner)
    }
}

/// Takes `count` off what is left, and frees the value if that was all.
///
/// # Safety
///
/// The caller has as much of it, and gives it up.
#[inline]
unsafe fn give_up<T>(inner: NonNull<Inner<T>>, count: u64) {
    // SAFETY: it is there until all was given up.
    let left = unsafe { &inner.as_ref().left };
    if left.fetch_sub(count, Ordering::Release) == count {
        fence(Ordering::Acquire); // partner: everybody else's `give_up`
                                  // SAFETY: that was all, so that nobody else has it; made by a box.
        drop(unsafe { Box::from_raw(inner.as_ptr()) });
    }
}

impl<T> Deref for Owned<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this keeps it.
        unsafe { &self.inner.as_ref().value }
    }
}

impl<T> Deref for Counted<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this keeps it.
        unsafe { &self.0.as_ref().value }
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: all but one for each that was lent is this one's.
        unsafe { give_up(self.inner, BIAS - self.lent) };
    }
}

impl<T> Drop for Counted<T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: one is this one's.
        unsafe { give_up(self.0, 1) };
    }
}
