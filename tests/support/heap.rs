//! The global allocator of a test program: the system's, with counters.
//!
//! Counts are per thread, so that tests that run in parallel do not count each other's.

use nix::sys::resource::{getrusage, UsageWho};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATED: Cell<u64> = const { Cell::new(0) };
    static FREED: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, with counters.
struct Counting;

// SAFETY: every call goes to the system's allocator unchanged. The counters are const-initialised
// cells without a destructor, so counting neither allocates nor panics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.set(ALLOCATED.get() + 1);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`, which `System` shares.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        FREED.set(FREED.get() + 1);
        // SAFETY: the caller passes a block that `alloc` got from `System`, and its layout.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// How often this thread has called the heap or faulted a page meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cost {
    pub(crate) allocations: u64,
    pub(crate) frees: u64,
    pub(crate) faults: i64,
}

impl Cost {
    pub(crate) const NOTHING: Self = Self { allocations: 0, frees: 0, faults: 0 };

    /// What `work` costs.
    pub(crate) fn of(work: impl FnOnce()) -> Self {
        let before = Self::so_far();
        work();
        let after = Self::so_far();
        Self {
            allocations: after.allocations - before.allocations,
            frees: after.frees - before.frees,
            faults: after.faults - before.faults,
        }
    }

    fn so_far() -> Self {
        let faults = getrusage(UsageWho::RUSAGE_THREAD).expect("what this thread has used").minor_page_faults();
        Self { allocations: ALLOCATED.get(), frees: FREED.get(), faults }
    }
}
