//! When chunks in use are collected before another one is made; for middleware that gives chunks back only when it is asked
//! (see `zenoh`).

#![forbid(unsafe_code)]

use super::Pool;
use crate::os::posix::round_to_pages;
use crate::owner::arena::{Grain, Room};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A collection is worth its time if it makes this part of all memory idle.
const YIELD_SHARE: usize = 8;

/// Relaxed all over: only a hint when to collect.
#[derive(Default)]
pub(super) struct Collection {
    /// Bytes of the chunks that exist.
    made: AtomicUsize,
    /// The number of bytes from which on a miss collects first.
    collect_at: AtomicUsize,
}

impl Collection {
    /// A chunk was made.
    pub(super) fn note_made(&self, bytes: usize) {
        self.made.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A chunk was destroyed. A pool that has become smaller collects the sooner.
    pub(super) fn note_destroyed(&self, bytes: usize) {
        let left = self.made.fetch_sub(bytes, Ordering::Relaxed) - bytes;
        self.collect_at.fetch_min(left + left / YIELD_SHARE, Ordering::Relaxed);
    }
}

impl Pool {
    /// Is it time to collect, rather than to make another chunk? See [`note_collection`](Self::note_collection). Not when
    /// nearly all of the cap was taken from the system: then another chunk takes no more memory, and zenoh is asked when there is no
    /// room for it.
    pub(crate) fn is_collection_due(&self) -> bool {
        let Collection { made, collect_at } = &self.collection;
        made.load(Ordering::Relaxed) >= collect_at.load(Ordering::Relaxed) && self.may_take_more()
    }

    /// Is there probably no room for a message of `len` bytes unless something is collected?
    pub(crate) fn is_full_for(&self, class: usize, len: usize) -> bool {
        let Some(pages) = round_to_pages(len.max(1)) else { return true };
        self.shapes[class].need.grain == Grain::Page
            && self.arenas.room() != Room::ToGrow
            && !self.arenas.has_gap(pages)
            && self.idle_bytes() < pages
    }

    /// Is there more memory to be had from the system than a [`YIELD_SHARE`]th of the cap?
    fn may_take_more(&self) -> bool {
        self.account.held() < self.limits.max_bytes - self.limits.max_bytes / YIELD_SHARE
    }

    /// Chunks in use were just collected. The next time is when another chunk is to be made, if those that are idle now are a
    /// [`YIELD_SHARE`]th of all; otherwise what is missing to that is made first.
    pub(crate) fn note_collection(&self) {
        let made = self.collection.made.load(Ordering::Relaxed);
        let missing = (made / YIELD_SHARE).saturating_sub(self.idle_bytes());
        self.collection.collect_at.store(made + missing, Ordering::Relaxed);
    }
}
