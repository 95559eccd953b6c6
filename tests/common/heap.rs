//! The global allocator of a test program: the system's, with counters.
//!
//! Counters are per thread, so that parallel tests do not count each other's calls.

use nix::sys::resource::{getrusage, UsageWho};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATED: Cell<u64> = const { Cell::new(0) };
    static FREED: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, with counters.
struct Counting;

// SAFETY: every call goes to the system's allocator unchanged. The counters are const-initialised
// cells without a destructor, so counting neither allocates nor panics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`, which `System` shares.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout);
        // SAFETY: as above. The default would write, and so touch, unused memory.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        FREED.set(FREED.get() + 1);
        // SAFETY: the caller passes a block that `alloc` got from `System`, and its layout.
        unsafe { System.dealloc(block, layout) }
    }
}

fn count(layout: Layout) {
    ALLOCATED.set(ALLOCATED.get() + 1);
    BYTES.set(BYTES.get() + layout.size());
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The heap calls and page faults of this thread during an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cost {
    pub(crate) allocations: u64,
    pub(crate) frees: u64,
    pub(crate) faults: i64,
}

impl Cost {
    pub(crate) const NOTHING: Self = Self {
        allocations: 0,
        frees: 0,
        faults: 0,
    };

    /// Returns the cost of `work`.
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
        let faults = getrusage(UsageWho::RUSAGE_THREAD)
            .expect("what this thread has used")
            .minor_page_faults();
        Self {
            allocations: ALLOCATED.get(),
            frees: FREED.get(),
            faults,
        }
    }
}

/// Returns the bytes of heap that this thread has allocated during `work`, including those it
/// freed.
#[allow(dead_code)] // not by every test program
pub(crate) fn bytes_of(work: impl FnOnce()) -> usize {
    let before = BYTES.get();
    work();
    BYTES.get() - before
}
