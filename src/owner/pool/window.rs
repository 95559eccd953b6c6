//! Idle memory that nobody has needed goes back to the system, with no call of the user's.
//!
//! # Windows
//!
//! A *window* is a number of allocations ([`idle_window`](crate::ProviderBuilder::idle_window)).
//! There is no thread and no clock, and the warm path counts nothing more: each chunk counts its
//! uses anyway, and every [`COUNTED`](crate::owner::limits::COUNTED)th one counts for all of them.
//! When a window has ended, an allocation of a size that is not reserved judges what was not needed:
//!
//! | what | has not been needed if |
//! |---|---|
//! | idle chunks in a class's queue | there were as many whenever one was taken out, or none was: the *low-water mark* |
//! | the idle chunk in a class's hot slot | no message has used it since the last window |
//! | memory of gaps between chunks | there was as much at the end of the last window |
//!
//! This allocation and later ones return it to the system, [`AT_ONCE`] at a time: giving pages back
//! takes the system some 40 ns each. A chunk that peers still lease when it is dropped waits in the
//! lent queue and not in its class's; where such chunks are used in turn, all of them count as
//! needed. What is [reserved](super::reserve) stays. Segments stay, too: without memory they are
//! only address space.

#![forbid(unsafe_code)]

use super::Pool;
use crate::owner::limits::COUNTED;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most memory that one allocation gives back, in bytes.
const AT_ONCE: usize = 1 << 20;

/// A window has this many counts for each chunk, at least: chunks that are used in turn are counted
/// all at once, and each of them must be used between the ends of two windows.
const LEAST_PER_CHUNK: u64 = 2;

/// Less than this share of the cap is not worth a system call.
const LEAST_SHARE: usize = 1024;

/// No low-water mark was noted.
pub(super) const NO_MARK: usize = usize::MAX;

/// The windows of a pool.
#[derive(Default)]
pub(super) struct Windows {
    /// Uses of chunks, in units of [`COUNTED`].
    counted: AtomicU64,
    /// At this count there is something to do.
    next: AtomicU64,
    last: Mutex<LastWindow>,
}

/// What the last window has left to do, and what it is compared with.
#[derive(Default)]
struct LastWindow {
    /// Bytes of memory in gaps at its end.
    gaps: usize,
    /// Are there classes with chunks that it has not needed?
    has_chunks: bool,
    /// How many bytes of gaps it has not needed, those of such chunks included.
    bytes: usize,
}

impl Pool {
    /// Counts [`COUNTED`] uses, of which one was of this class.
    #[cold]
    #[inline(never)]
    pub(super) fn count_uses(&self, class: usize) {
        let counted = self.windows.counted.fetch_add(1, Ordering::Relaxed) + 1;
        let is_due = counted >= self.windows.next.load(Ordering::Relaxed);
        if is_due && self.limits.idle_window != 0 && self.reserved(class) == 0 {
            self.return_unneeded(counted);
        }
    }

    /// Notes how many chunks are left in a class's queue, of which one was just taken.
    #[inline]
    pub(super) fn note_low_water(&self, class: usize) {
        let (low, left) = (&self.classes[class].low, self.shelves[class].queued_count());
        // A mark that another thread overwrites only delays what goes.
        if left < low.load(Ordering::Relaxed) {
            low.store(left, Ordering::Relaxed);
        }
    }

    fn return_unneeded(&self, counted: u64) {
        // One thread is enough.
        let Some(mut last) = self.windows.last.try_lock() else { return };
        let window =
            (self.limits.idle_window / COUNTED).max(self.registry.lock().chunks().count() as u64 * LEAST_PER_CHUNK);
        if self.windows.next.load(Ordering::Relaxed) == 0 {
            // The first window begins with the first message.
            return self.windows.next.store(counted + window, Ordering::Relaxed);
        }
        if last.is_done() {
            self.judge(&mut last);
        }
        let evicted = if last.has_chunks { self.evict_unneeded() } else { 0 };
        last.has_chunks = evicted >= AT_ONCE;
        last.bytes += evicted;
        self.punch(last.bytes.min(AT_ONCE));
        last.bytes = last.bytes.saturating_sub(AT_ONCE);
        let next = if last.is_done() { counted + window } else { counted + 1 };
        self.windows.next.store(next, Ordering::Relaxed);
        // A request that looked meanwhile has missed what was in this thread's hand.
        self.memory_bell().ring();
    }

    /// Finds out what the window that ends has not needed.
    fn judge(&self, last: &mut LastWindow) {
        let gaps = self.arenas.filled_gaps();
        last.bytes = gaps.min(last.gaps);
        let mut unneeded = last.bytes;
        for class in self.used_classes() {
            let shelf = &self.shelves[class];
            if let Some(hot) = if self.evictable(class) > 0 { shelf.take_hot() } else { None } {
                if hot.was_used_since_asked() {
                    hot.give().unwrap_or_else(Self::put_back);
                } else {
                    last.bytes += self.evict_or_put_back(hot.into());
                }
            }
            let tally = &self.classes[class];
            let queued = shelf.queued_count().min(self.evictable(class));
            let low = tally.low.swap(NO_MARK, Ordering::Relaxed).min(queued);
            tally.unneeded.store(low, Ordering::Relaxed);
            unneeded += low * self.classes[class].shape.size();
        }
        // Only now: a chunk that peers leased until it was needed again was never in a queue.
        self.collect_loans();
        self.return_lent();
        last.has_chunks = unneeded >= self.limits.max_bytes / LEAST_SHARE;
        if last.has_chunks {
            last.gaps = gaps.saturating_sub(last.bytes);
        } else {
            (last.gaps, last.bytes) = (gaps, 0);
        }
    }

    /// Evicts idle chunks that the last window has not needed. Returns their bytes; when these are
    /// fewer than [`AT_ONCE`], there are no more.
    fn evict_unneeded(&self) -> usize {
        let mut evicted = 0;
        for class in self.used_classes() {
            let unneeded = &self.classes[class].unneeded;
            while evicted < AT_ONCE && unneeded.load(Ordering::Relaxed) > 0 && self.evictable(class) > 0 {
                // The oldest first. Other threads may have taken some meanwhile.
                let Some(chunk) = self.shelves[class].take_idle() else { break };
                unneeded.fetch_sub(1, Ordering::Relaxed);
                evicted += self.evict_or_put_back(chunk);
            }
        }
        evicted
    }
}

impl LastWindow {
    fn is_done(&self) -> bool {
        !self.has_chunks && self.bytes == 0
    }
}
