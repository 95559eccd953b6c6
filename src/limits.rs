//! What a pool may hold: the options after they were checked, the table of classes that follows from them, and the
//! account of bytes held under the cap.

#![forbid(unsafe_code)]

use crate::arena::Arenas;
use crate::class::{class_of, size_of_class, MIN_SIZE};
use crate::posix::{round_to_pages, PAGE};
use std::alloc::Layout;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A chunk of at most this part of an arena is carved; a larger one is a segment of its own.
const ARENA_SHARE: usize = 16;

/// Chunks up to this size are carved in any case: above it, classes are whole pages.
const LEAST_CARVED: usize = 16 << 10;

/// The smallest arena in bytes.
pub(crate) const MIN_ARENA: usize = 64 << 10;

/// The checked options. All sizes are in bytes and, but for the counts, multiples of the page size.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) max_bytes: usize,
    pub(crate) max_alloc: usize,
    pub(crate) max_idle: usize,
    pub(crate) arena_size: usize,
    pub(crate) segment_mode: u32,
}

/// What the chunks of one class look like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    /// Size and alignment of the memory.
    pub(crate) layout: Layout,
    /// Carved from an arena, or a segment of its own?
    pub(crate) is_carved: bool,
}

impl Limits {
    /// Number of classes of ordinary alignment: enough for `max_alloc`.
    pub(crate) fn classes(&self) -> usize {
        class_of(self.max_alloc) + 1
    }

    /// The table of all classes: first those of ordinary alignment (one cache line), then the carved ones again with
    /// page alignment. Segments are page-aligned anyway.
    pub(crate) fn kinds(&self) -> Vec<Kind> {
        let largest_carved =
            (self.arena_size / ARENA_SHARE).max(LEAST_CARVED).min(Arenas::capacity(self.arena_size, PAGE));
        let kind = |size: usize, align| {
            let is_carved = size <= largest_carved;
            let size = if is_carved { size } else { round_to_pages(size)? };
            Some(Kind { layout: Layout::from_size_align(size, align).ok()?, is_carved })
        };
        let sizes = (0..self.classes()).map(size_of_class).map(|size| size.min(self.max_alloc));
        let lines: Vec<Kind> = sizes.filter_map(|size| kind(size, MIN_SIZE)).collect();
        let carved = lines.iter().filter(|line| line.is_carved);
        let pages: Vec<Kind> = carved.filter_map(|line| kind(line.layout.size(), PAGE)).collect();
        [lines, pages].concat()
    }
}

/// The account of bytes held under the cap, and of segments ever made.
pub(crate) struct Budget {
    max: usize,
    held: AtomicUsize,
    peak: AtomicUsize,
    segments: AtomicUsize,
    created: AtomicU64,
}

impl Budget {
    pub(crate) fn new(max: usize) -> Self {
        let zero = || AtomicUsize::new(0);
        Self { max, held: zero(), peak: zero(), segments: zero(), created: AtomicU64::new(0) }
    }

    /// Sets `bytes` aside for a segment that is about to be made; `false` if they do not fit under the cap.
    pub(crate) fn set_aside(&self, bytes: usize) -> bool {
        let fits = |held: usize| held.checked_add(bytes).filter(|&sum| sum <= self.max);
        self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    /// The segment was made.
    pub(crate) fn count_segment(&self) {
        self.peak.fetch_max(self.held(), Ordering::Relaxed);
        self.segments.fetch_add(1, Ordering::Relaxed);
        self.created.fetch_add(1, Ordering::Relaxed);
    }

    /// The segment could not be made.
    pub(crate) fn give_up(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// A segment is gone.
    pub(crate) fn give_back(&self, bytes: usize) {
        self.segments.fetch_sub(1, Ordering::Relaxed);
        self.give_up(bytes);
    }

    pub(crate) fn max(&self) -> usize {
        self.max
    }

    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    pub(crate) fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    pub(crate) fn segments(&self) -> usize {
        self.segments.load(Ordering::Relaxed)
    }

    pub(crate) fn created(&self) -> u64 {
        self.created.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_holds_every_length_up_to_the_largest_at_every_alignment() {
        for (max_alloc, arena_size) in [(4096, 1 << 16), (1 << 20, 1 << 22), (5 * 4096, 1 << 20)] {
            let limits = Limits { max_bytes: 1 << 30, max_alloc, max_idle: 8, arena_size, segment_mode: 0o600 };
            let kinds = limits.kinds();
            let lines = &kinds[..limits.classes()];
            assert_eq!(lines.last().map(|kind| kind.layout.size()), Some(max_alloc));
            assert!(lines.windows(2).all(|pair| pair[0].layout.size() < pair[1].layout.size()));
            assert!(lines.iter().all(|kind| kind.is_carved || kind.layout.size() % 4096 == 0));
            let carved = lines.iter().filter(|kind| kind.is_carved).count();
            assert_eq!(kinds.len(), lines.len() + carved);
            for (line, page) in lines.iter().zip(&kinds[lines.len()..]) {
                assert_eq!((line.layout.size(), 4096), (page.layout.size(), page.layout.align()));
            }
        }
    }

    #[test]
    fn the_account_never_exceeds_the_cap() {
        let budget = Budget::new(100);
        assert!(budget.set_aside(60) && !budget.set_aside(50) && !budget.set_aside(usize::MAX));
        budget.count_segment();
        assert!(budget.set_aside(40));
        budget.give_up(40);
        assert_eq!((budget.held(), budget.peak(), budget.segments(), budget.created()), (60, 60, 1, 1));
        budget.give_back(60);
        assert_eq!((budget.held(), budget.peak(), budget.segments(), budget.created()), (0, 60, 0, 1));
    }
}
