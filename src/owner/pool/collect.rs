//! When to collect chunks in use before making another one, for middleware that gives chunks back
//! only when asked (see `backend`).

#![forbid(unsafe_code)]

use super::Pool;
use crate::os::posix::round_to_pages;
use crate::owner::arena::Room;
use crate::owner::limits::Grain;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A collection is worth its time if it makes this share of all memory idle.
const YIELD_SHARE: usize = 8;

/// When the next collection is due. All accesses are Relaxed: it is only a hint.
#[derive(Default)]
pub(super) struct Collection {
    /// Bytes of the chunks that exist.
    made: AtomicUsize,
    /// From this many bytes on, a miss collects first.
    collect_at: AtomicUsize,
}

impl Collection {
    /// Returns the bytes of the chunks that exist.
    pub(super) fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }

    /// A chunk was made.
    pub(super) fn note_made(&self, bytes: usize) {
        self.made.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A chunk was destroyed. A pool that has shrunk collects sooner.
    pub(super) fn note_destroyed(&self, bytes: usize) {
        let left = self.made.fetch_sub(bytes, Ordering::Relaxed) - bytes;
        self.collect_at.fetch_min(left + left / YIELD_SHARE, Ordering::Relaxed);
    }
}

impl Pool {
    /// Is it time to collect, rather than make another chunk? See
    /// [`note_collection`](Self::note_collection). Not once nearly all of the cap was taken from
    /// the system: then another chunk takes no more memory, and the middleware is asked when there is
    /// no room for it.
    pub(crate) fn is_collection_due(&self) -> bool {
        let Collection { made, collect_at } = &self.collection;
        let nearly_all = self.limits.max_bytes - self.limits.max_bytes / YIELD_SHARE;
        made.load(Ordering::Relaxed) >= collect_at.load(Ordering::Relaxed) && self.account.held() < nearly_all
    }

    /// Does a message of `len` bytes probably not fit unless something is collected? Or only where a
    /// longer message waits for room?
    pub(crate) fn is_full_for(&self, class: usize, len: usize) -> bool {
        if self.arenas.is_another_waiting(class) {
            return true;
        }
        let Some(pages) = round_to_pages(len.max(1)) else { return true };
        self.classes[class].shape.need.grain == Grain::Page
            && self.arenas.room() != Room::ToGrow
            && !self.arenas.has_gap(pages)
            && self.idle_bytes() < pages
    }

    /// Notes that chunks in use were just collected. The next collection is due at the next miss if
    /// the idle chunks are now at least a [`YIELD_SHARE`]th of all; otherwise once the pool has
    /// made what is missing to that.
    pub(crate) fn note_collection(&self) {
        let made = self.collection.made.load(Ordering::Relaxed);
        let missing = (made / YIELD_SHARE).saturating_sub(self.idle_bytes());
        self.collection.collect_at.store(made + missing, Ordering::Relaxed);
    }
}
