//! The handles of one received buffer.
//!
//! A message that is never cloned has one handle, which costs no more than the [`Counted`] in it:
//! it is one word, and a drop tests the lowest bit of that word. The first clone allocates a count,
//! and turns the word of the original into a pointer to it, marked by that bit:
//!
//! | word | points to |
//! |---|---|
//! | even | the value: this is the only handle |
//! | odd | a [`Shared`], one byte further: its `handles` counts this one |
//!
//! Two threads may clone one handle at the same time. The second one to exchange the word finds
//! the first one's count, and uses it.

use super::return_queue::counted::Counted;
use crate::sync::{AtomicPtr, AtomicU64, Ordering};
use std::marker::PhantomData;
use std::process::abort;
use std::ptr::NonNull;

/// Clones stop long before the count overflows, as those of an `Arc`.
const MAX_HANDLES: u64 = i64::MAX as u64;

pub(super) struct Handle<T> {
    word: AtomicPtr<u8>,
    of: PhantomData<Counted<T>>,
}

struct Shared<T> {
    handles: AtomicU64,
    /// Of the last handle.
    value: NonNull<u8>,
    of: PhantomData<Counted<T>>,
}

fn is_shared(word: *mut u8) -> bool {
    word as usize & 1 == 1
}

impl<T> Handle<T> {
    #[inline]
    pub(super) fn new(value: Counted<T>) -> Self {
        Self::of(value.into_raw().as_ptr())
    }

    #[inline]
    fn of(word: *mut u8) -> Self {
        Self {
            word: AtomicPtr::new(word),
            of: PhantomData,
        }
    }

    fn shared(word: *mut u8) -> *mut Shared<T> {
        word.wrapping_sub(1).cast()
    }

    #[cold]
    pub(super) fn another(&self) -> Self {
        // Acquire. Partner: the Release of the exchange in `share`, after which the count is
        // initialised.
        let mut word = self.word.load(Ordering::Acquire);
        if !is_shared(word) {
            word = self.share(word);
        }
        // SAFETY: the word is odd, so it points to a `Shared`, which lives as long as a handle that
        // it counts, such as this one.
        let handles = unsafe { &(*Self::shared(word)).handles };
        // Relaxed, as in `Arc`: whoever receives the new handle knows of this one.
        if handles.fetch_add(1, Ordering::Relaxed) > MAX_HANDLES {
            abort();
        }
        Self::of(word)
    }

    /// Makes a count of this handle, unless another thread does so meanwhile. Returns the new word.
    fn share(&self, value: *mut u8) -> *mut u8 {
        let Some(value) = NonNull::new(value) else {
            unreachable!("a word points to a value or a count");
        };
        let new = Box::into_raw(Box::new(Shared::<T> {
            handles: AtomicU64::new(1),
            value,
            of: PhantomData,
        }));
        let word = new.cast::<u8>().wrapping_add(1);
        // Release: publishes the count. Acquire: uses that of the other thread.
        let exchanged =
            self.word
                .compare_exchange(value.as_ptr(), word, Ordering::AcqRel, Ordering::Acquire);
        match exchanged {
            Ok(_) => word,
            Err(other) => {
                // SAFETY: `new` is a box from above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(new) });
                other
            }
        }
    }

    /// Gives up this handle. Returns the value if it was the last one.
    ///
    /// # Safety
    ///
    /// The handle is not used again.
    #[inline]
    pub(super) unsafe fn release(&mut self) -> Option<Counted<T>> {
        // Relaxed: by `&mut`, what other threads did with this handle happened before.
        let word = self.word.load(Ordering::Relaxed);
        if is_shared(word) {
            // SAFETY: the word is odd, so it points to a `Shared` that counts this handle; the
            // caller gives it up.
            return unsafe { Self::release_shared(Self::shared(word)) };
        }
        // SAFETY: the word is even, so it is that of `new`, which this is the only handle of.
        let value = unsafe { NonNull::new_unchecked(word) };
        // SAFETY: as above; the caller gives up this handle.
        Some(unsafe { Counted::from_raw(value) })
    }

    /// # Safety
    ///
    /// `shared` counts a handle that the caller gives up.
    #[cold]
    unsafe fn release_shared(shared: *mut Shared<T>) -> Option<Counted<T>> {
        // SAFETY: it counts the caller's handle, so it has not been freed.
        let handles = unsafe { &(*shared).handles };
        if handles.fetch_sub(1, Ordering::Release) != 1 {
            return None;
        }
        // Acquire: partner of the Release of every other handle; no thread reads the bytes any more.
        // (A load, because ThreadSanitizer does not know fences.)
        let _ = handles.load(Ordering::Acquire);
        // SAFETY: the count is zero, so no other thread uses it; `share` made it as a box.
        let shared = unsafe { Box::from_raw(shared) };
        // SAFETY: the value of `new`, which the last handle gives up.
        Some(unsafe { Counted::from_raw(shared.value) })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::return_queue::counted::Owned;
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::sync::Arc;
    use std::thread;

    struct Dropped(Arc<AtomicUsize>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Drops a handle. Returns `true` if it was the last.
    fn is_last(mut handle: Handle<Dropped>) -> bool {
        // SAFETY: the handle is dropped here.
        unsafe { handle.release() }.is_some()
    }

    #[test]
    fn last_handle_has_the_value() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let mut owner = Owned::new(Dropped(dropped.clone()));
        assert!(is_last(Handle::new(owner.lend())), "never cloned");
        let first = Handle::new(owner.lend());
        let second = first.another();
        let third = second.another();
        let fourth = first.another();
        drop(owner);
        assert!(!is_last(first));
        assert!(!is_last(third));
        assert!(!is_last(fourth));
        assert_eq!(dropped.load(Ordering::Relaxed), 0);
        assert!(is_last(second));
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
    }

    /// Two threads that clone one handle at the same time make one count.
    #[test]
    fn clones_at_the_same_time() {
        let mut owner = Owned::new(Dropped(Arc::default()));
        for _ in 0..1000 {
            let first = Handle::new(owner.lend());
            let clone_twice = || usize::from(is_last(first.another()));
            let early = thread::scope(|scope| {
                let other = scope.spawn(clone_twice);
                clone_twice() + other.join().unwrap()
            });
            assert_eq!(early, 0, "the first handle lives");
            assert!(is_last(first));
        }
    }
}

/// Two threads clone one handle, and one drops it meanwhile: in every order, exactly one is the
/// last, and it sees what the other did before.
#[cfg(all(test, loom))]
mod models {
    use super::super::return_queue::counted::Owned;
    use super::*;
    use crate::sync::explore;
    use loom::cell::UnsafeCell;
    use std::sync::Arc;

    struct Bytes(UnsafeCell<u8>);

    // SAFETY: loom checks the accesses.
    unsafe impl Sync for Bytes {}

    /// Reads as a holder of a handle does, and drops the handle. The last one writes, as the next
    /// owner of the buffer does.
    fn read_and_release(bytes: &Bytes, mut handle: Handle<()>) -> usize {
        // SAFETY: loom checks that nobody writes meanwhile.
        bytes.0.with(|byte| unsafe { *byte });
        // SAFETY: the handle is dropped here.
        if unsafe { handle.release() }.is_none() {
            return 0;
        }
        // SAFETY: loom checks that nobody reads or writes meanwhile.
        bytes.0.with_mut(|byte| unsafe { *byte = 1 });
        1
    }

    #[test]
    fn clone_and_release() {
        explore(None, || {
            let mut owner = Owned::new(());
            let bytes = Arc::new(Bytes(UnsafeCell::new(0)));
            let first = Arc::new(Handle::new(owner.lend()));
            let thread = {
                let bytes = bytes.clone();
                let first = first.clone();
                loom::thread::spawn(move || {
                    let clone = first.another();
                    drop(first);
                    read_and_release(&bytes, clone)
                })
            };
            let clone = first.another();
            let mut last = read_and_release(&bytes, clone);
            last += thread.join().unwrap();
            assert_eq!(last, 0, "the first handle lives");
            let first = Arc::into_inner(first).expect("the thread has dropped it");
            let second = first.another();
            let thread = {
                let bytes = bytes.clone();
                loom::thread::spawn(move || read_and_release(&bytes, second))
            };
            last = read_and_release(&bytes, first);
            last += thread.join().unwrap();
            assert_eq!(last, 1);
        });
    }
}
