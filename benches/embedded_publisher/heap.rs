//! A global allocator that counts, separately for each thread, so that counting takes a nanosecond
//! and no atomics.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static OPERATIONS: Cell<u64> = const { Cell::new(0) };
}

/// How often this thread has allocated, reallocated or freed.
pub(crate) fn operations() -> u64 {
    OPERATIONS.get()
}

fn count() {
    OPERATIONS.set(OPERATIONS.get() + 1);
}

/// The system's allocator, counted.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: every call goes on to the system's allocator unchanged. The counter is a
// constant-initialised cell without a destructor, so counting neither allocates nor panics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's contract is the callee's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's contract is the callee's.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's contract is the callee's.
        unsafe { System.dealloc(block, layout) }
    }
}
