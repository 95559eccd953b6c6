//! Idle memory that nobody has needed goes back to the system, with no call of the user's.
//!
//! # Windows
//!
//! A *window* is a number of allocations ([`idle_window`](crate::ProviderBuilder::idle_window)).
//! There is no thread and no clock, and the warm path counts nothing more: each chunk counts its
//! uses anyway, and every [`COUNTED`](crate::owner::limits::COUNTED)th one counts for all of them.
//! The allocation that ends a window does what is to be done. What goes then:
//!
//! | what | has not been needed if |
//! |---|---|
//! | an idle chunk | no message has used it since the last window |
//! | idle chunks in the queue of a class in use | there were as many whenever one was taken out: the *low-water mark* |
//! | memory of gaps between chunks | there was as much at the end of the last window |
//!
//! A chunk that peers still lease when it is dropped waits in the lent queue and not in its
//! class's; where such chunks are used in turn, all of them count as needed.
//!
//! The mark is noted at every [`NOTED`]th use of a chunk from the queue. What is
//! [reserved](super::reserve) stays. Segments stay, too: without memory they are only address
//! space.
//!
//! Giving pages back takes the system some 40 ns each. So that the allocation that ends a window is
//! not late by many milliseconds, no more than [`MOST_AT_ONCE`] goes at a time.

#![forbid(unsafe_code)]

use super::trade::Condemned;
use super::Pool;
use crate::owner::chunk::Chunk;
use crate::owner::limits::COUNTED;
use std::sync::atomic::Ordering;

/// The most memory that one window gives back, in bytes.
const MOST_AT_ONCE: usize = 128 << 20;

/// A window has this many counts for each chunk, at least: chunks that are used in turn are counted
/// all at once, and each of them must be used between the ends of two windows.
const LEAST_PER_CHUNK: u64 = 2;

/// Less than this share of the cap is not worth a system call.
const LEAST_SHARE: usize = 1024;

/// The low-water mark is noted at every so many uses of a chunk from the queue.
const NOTED: u64 = 8;

/// No low-water mark was noted.
pub(super) const NO_MARK: usize = usize::MAX;

/// What is remembered from the end of the last window.
#[derive(Default)]
pub(super) struct LastWindow {
    /// What was counted by then.
    ended_at: u64,
    /// Bytes of memory in gaps.
    gaps: usize,
}

impl Pool {
    /// Counts [`COUNTED`] uses, and ends the window if these do.
    #[cold]
    #[inline(never)]
    pub(super) fn count_uses(&self) {
        let counted = self.uses_counted.fetch_add(1, Ordering::Relaxed) + 1;
        let window = self.limits.idle_window / COUNTED;
        if window != 0 && counted % window == 0 {
            self.end_window(counted);
        }
    }

    /// Notes how many chunks are left in a class's queue, of which one was just taken.
    #[inline]
    pub(super) fn note_low_water(&self, class: usize, taken: &Chunk) {
        if taken.uses() % NOTED == 0 {
            self.tallies[class].low.fetch_min(self.shelves[class].queued_count(), Ordering::Relaxed);
        }
    }

    fn end_window(&self, counted: u64) {
        // One thread is enough.
        let Some(mut last) = self.last_window.try_lock() else { return };
        if counted.saturating_sub(last.ended_at) < self.registry.lock().len() as u64 * LEAST_PER_CHUNK {
            return;
        }
        last.ended_at = counted;
        self.collect_loans();
        self.return_lent();
        let gaps = self.arenas.filled_gaps();
        let destroyed = self.used.iter().fold(0, |sum, class| sum + self.destroy_unneeded(class, MOST_AT_ONCE - sum));
        let unneeded = gaps.min(last.gaps) + destroyed;
        let is_little = unneeded < self.limits.max_bytes / LEAST_SHARE;
        let given = if is_little { 0 } else { self.punch(unneeded.min(MOST_AT_ONCE)) };
        last.gaps = (gaps + destroyed).saturating_sub(given);
        // Who looked meanwhile has missed what was in this thread's hand.
        self.memory_bell().ring();
    }

    /// Destroys the idle chunks of a class that the window has not needed, up to `most` bytes.
    /// Returns their bytes, at most `most`.
    fn destroy_unneeded(&self, class: usize, most: usize) -> usize {
        let low = match self.tallies[class].low.swap(NO_MARK, Ordering::Relaxed) {
            NO_MARK => 0,
            low => low,
        };
        let (size, evictable) = (self.shapes[class].size(), self.evictable(class));
        let (mut destroyed, most_chunks) = (0, evictable.min(most / size));
        // The hot slot's chunk first, while the queue still has others for other threads.
        let hot = self.shelves[class].take_hot().map(Condemned::hot);
        let queued = (0..self.shelves[class].queued_count()).map_while(|_| self.take_queued(class));
        for idle in hot.into_iter().chain(queued) {
            let is_unused = !idle.chunk().was_used_since_asked();
            if destroyed < most_chunks && (is_unused || !idle.was_hot() && destroyed < low) {
                destroyed += usize::from(idle.evict());
            } else {
                idle.put_back();
            }
        }
        destroyed * size
    }
}
