//! When chunks in use are collected before another one of their class is made; for middleware that gives chunks back only when it
//! is asked (see `zenoh`).

#![forbid(unsafe_code)]

use super::Pool;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A collection is worth its time if it makes this part of a class idle.
const YIELD_SHARE: usize = 8;

/// Of one class. Relaxed all over: only a hint when to collect.
#[derive(Default)]
pub(super) struct Collection {
    /// Chunks that exist.
    chunks: AtomicUsize,
    /// The number of chunks from which on a miss collects first.
    collect_at: AtomicUsize,
}

impl Collection {
    /// A chunk was made.
    pub(super) fn note_made(&self) {
        self.chunks.fetch_add(1, Ordering::Relaxed);
    }

    /// A chunk was destroyed. A class that has become smaller is collected the sooner.
    pub(super) fn note_destroyed(&self) {
        let left = self.chunks.fetch_sub(1, Ordering::Relaxed) - 1;
        self.collect_at.fetch_min(left + left / YIELD_SHARE, Ordering::Relaxed);
    }
}

impl Pool {
    /// Is it time to collect, rather than to make another chunk of a class? See [`note_collection`](Self::note_collection).
    pub(crate) fn is_collection_due(&self, class: usize) -> bool {
        let collection = &self.tallies[class].collection;
        collection.chunks.load(Ordering::Relaxed) >= collection.collect_at.load(Ordering::Relaxed)
    }

    /// Chunks in use were just collected. The next time is when the idle ones are used up, if they are a [`YIELD_SHARE`]th of
    /// the class by now; otherwise first what is missing to that is made.
    pub(crate) fn note_collection(&self, class: usize) {
        let collection = &self.tallies[class].collection;
        let chunks = collection.chunks.load(Ordering::Relaxed);
        let missing = (chunks / YIELD_SHARE).saturating_sub(self.shelves[class].idle_count());
        collection.collect_at.store(chunks + missing, Ordering::Relaxed);
    }
}
