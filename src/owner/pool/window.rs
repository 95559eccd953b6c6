//! Idle memory that nobody has needed goes back to the system, with no call of the user's.
//!
//! # Windows
//!
//! A *window* ends when a chunk has been used so many times more
//! ([`idle_window`](crate::ProviderBuilder::idle_window)). There is no thread and no clock: each
//! chunk counts its uses anyway, and the allocation that ends a window does what is to be done.
//! What goes then:
//!
//! | what | has not been needed if |
//! |---|---|
//! | an idle chunk | no message has used it since the last window |
//! | idle chunks of a class in use | so many were idle in every sample of the window: the *low-water mark* |
//! | memory of gaps between chunks | there was as much at the end of the last window |
//!
//! A sample is taken at every [`SAMPLE`](crate::owner::limits::SAMPLE)th use of a chunk. What is [reserved](super::reserve)
//! stays. Segments stay, too: without memory they are only address space.
//!
//! Giving pages back takes the system some 40 ns each. So that the allocation that ends a window is
//! not late by many milliseconds, no more than [`MOST_AT_ONCE`] goes at a time.

#![forbid(unsafe_code)]

use super::trade::Condemned;
use super::Pool;
use crate::owner::chunk::Chunk;
use std::sync::atomic::Ordering;

/// The most memory that one window gives back, in bytes.
const MOST_AT_ONCE: usize = 64 << 20;

/// Less than this share of the cap is not worth a system call.
const LEAST_SHARE: usize = 1024;

/// No sample was taken.
pub(super) const NO_SAMPLE: usize = usize::MAX;

/// What is remembered from the end of the last window.
#[derive(Default)]
pub(super) struct LastWindow {
    /// Bytes of memory in gaps.
    gaps: usize,
}

impl Pool {
    /// Notes how many chunks of a class are idle, and ends the window if this use does.
    #[cold]
    #[inline(never)]
    pub(super) fn sample(&self, chunk: &Chunk) {
        let (class, window) = (chunk.class(), self.limits.idle_window);
        if window == 0 {
            return;
        }
        self.tallies[class].low.fetch_min(self.shelves[class].idle_count(), Ordering::Relaxed);
        if chunk.uses() % window == 0 {
            self.end_window();
        }
    }

    fn end_window(&self) {
        // One thread is enough.
        let Some(mut last) = self.last_window.try_lock() else { return };
        self.collect_loans();
        self.return_lent();
        let gaps = self.arenas.filled_gaps();
        let destroyed = self.used.iter().fold(0, |sum, class| sum + self.destroy_unneeded(class, MOST_AT_ONCE - sum));
        let unneeded = gaps.min(last.gaps) + destroyed;
        let is_little = unneeded < self.limits.max_bytes / LEAST_SHARE;
        let given = if is_little { 0 } else { self.punch(unneeded.min(MOST_AT_ONCE)) };
        last.gaps = (gaps + destroyed).saturating_sub(given);
    }

    /// Destroys the idle chunks of a class that the window has not needed, up to `most` bytes.
    /// Returns their bytes, at most `most`.
    fn destroy_unneeded(&self, class: usize, most: usize) -> usize {
        let low = match self.tallies[class].low.swap(NO_SAMPLE, Ordering::Relaxed) {
            NO_SAMPLE => 0,
            low => low,
        };
        let (size, evictable) = (self.shapes[class].size(), self.evictable(class));
        let (mut destroyed, most_chunks) = (0, evictable.min(most / size));
        // The hot slot's chunk first, while the queue still has others for other threads.
        let hot = self.shelves[class].take_hot().map(Condemned::hot);
        let queued = (0..self.shelves[class].idle_count()).map_while(|_| self.take_queued(class));
        for idle in hot.into_iter().chain(queued) {
            let is_unused = !idle.chunk().was_used_since_asked();
            if destroyed < most_chunks && (is_unused || !idle.was_hot() && destroyed < low) {
                destroyed += usize::from(idle.destroy());
            } else {
                idle.put_back();
            }
        }
        destroyed * size
    }
}
