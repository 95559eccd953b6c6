//! A reference count that costs nothing to increment: only its owner increments it, in private
//! memory, and others decrement it.
//!
//! [`Owned::lend`] only increments the owner's own number. The shared word starts far above the
//! possible number of loans, and each [`Counted`] subtracts one on drop. When the owner is dropped,
//! it subtracts the start value less the number of its loans. So the word becomes zero exactly
//! once, with the last drop, and that drop frees the value. (It is a weighted reference count whose
//! weight the owner keeps. With an `Arc`, each receive would contend for a cache line with the
//! threads that drop other messages.)
//!
//! | writer | reader | what becomes visible |
//! |---|---|---|
//! | any drop: `left`, Release | the drop that makes it zero: fence, Acquire | that no thread uses the value any more |

use crate::sync::{fence, AtomicU64, Ordering};
use std::ops::Deref;
use std::ptr::NonNull;

/// The word's start value: more than the possible number of loans.
const BIAS: u64 = 1 << 63;

struct Inner<T> {
    left: AtomicU64,
    value: T,
}

/// The owner, which alone can lend the value.
pub(super) struct Owned<T> {
    inner: NonNull<Inner<T>>,
    /// The number of loans made.
    lent: u64,
}

/// One loan, which keeps the value alive.
pub(super) struct Counted<T>(NonNull<Inner<T>>);

// SAFETY: the value is shared and may be dropped in another thread, as with `Arc<T>`, hence the
// same bounds; `left` is atomic, and `lent` changes only through `&mut`.
unsafe impl<T: Send + Sync> Send for Owned<T> {}
// SAFETY: a shared `Owned` only gives out `&T`, which `T: Sync` allows.
unsafe impl<T: Send + Sync> Sync for Owned<T> {}
// SAFETY: the value is shared and may be dropped in another thread, as with `Arc<T>`, hence the
// same bounds; `left` is atomic.
unsafe impl<T: Send + Sync> Send for Counted<T> {}
// SAFETY: a shared `Counted` only gives out `&T`, which `T: Sync` allows.
unsafe impl<T: Send + Sync> Sync for Counted<T> {}

impl<T> Owned<T> {
    pub(super) fn new(value: T) -> Self {
        let inner = Box::new(Inner { left: AtomicU64::new(BIAS), value });
        Self { inner: NonNull::from(Box::leak(inner)), lent: 0 }
    }

    /// Makes a loan.
    #[inline]
    pub(super) fn lend(&mut self) -> Counted<T> {
        self.lent += 1;
        Counted(self.inner)
    }
}

/// Subtracts `count` from `left`, and frees the value if that leaves zero.
///
/// # Safety
///
/// The caller owns `count` of `left`, and gives it up: it does not touch `inner` again.
#[inline]
unsafe fn give_up<T>(inner: NonNull<Inner<T>>, count: u64) {
    // SAFETY: the caller still owns `count` of `left`, so the value has not been freed.
    let left = unsafe { &inner.as_ref().left };
    if left.fetch_sub(count, Ordering::Release) == count {
        // Partner: the Release of every other `give_up`.
        fence(Ordering::Acquire);
        // SAFETY: `left` is zero, so no other thread uses the value; `Owned::new` made it as a box.
        drop(unsafe { Box::from_raw(inner.as_ptr()) });
    }
}

impl<T> Deref for Owned<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the value lives until `drop` gives up this owner's share.
        unsafe { &self.inner.as_ref().value }
    }
}

impl<T> Deref for Counted<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the value lives until `drop` gives up this loan.
        unsafe { &self.0.as_ref().value }
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: the owner owns all but one for each loan, and is not used again.
        unsafe { give_up(self.inner, BIAS - self.lent) };
    }
}

impl<T> Drop for Counted<T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: each loan owns one, and this one is not used again.
        unsafe { give_up(self.0, 1) };
    }
}
