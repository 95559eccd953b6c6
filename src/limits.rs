//! What a pool may hold: the options after they were checked, the table of classes that follows from them, and the
//! account of bytes held under the cap.

#![forbid(unsafe_code)]

use crate::arena::Arenas;
use crate::class::{class_of, size_of_class, MIN_SIZE};
use crate::descriptor::MAX_LEN;
use crate::error::BuildError;
use crate::posix::{page_size, round_to_pages, PAGE};
use std::alloc::Layout;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A chunk of at most this part of an arena is carved; a larger one is a segment of its own.
const ARENA_SHARE: usize = 16;

/// Chunks up to this size are carved in any case: above it, classes are whole pages.
const LEAST_CARVED: usize = 16 << 10;

/// The smallest arena in bytes.
const MIN_ARENA: usize = 64 << 10;

/// The arena's size in bytes unless told otherwise, or if it is less, a quarter of the cap.
const DEFAULT_ARENA: usize = 4 << 20;

/// Most idle chunks of a class that can be asked for.
const MAX_IDLE: usize = 1 << 20;

/// The checked options. All sizes are in bytes and, but for the counts, multiples of the page size.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) max_bytes: usize,
    pub(crate) max_alloc: usize,
    pub(crate) max_idle: usize,
    pub(crate) arena_size: usize,
}

/// Is an option's value in its range?
pub(crate) fn range(
    option: &'static str,
    value: usize,
    min: usize,
    max: usize,
    unit: &'static str,
) -> Result<(), BuildError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(BuildError::OutOfRange { option, value, min, max, unit })
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
    /// Checks the options, all in bytes but for `max_idle`, and fills in the defaults.
    pub(crate) fn new(
        max_bytes: usize,
        max_alloc: Option<usize>,
        max_idle: usize,
        arena_size: Option<usize>,
    ) -> Result<Self, BuildError> {
        let page = page_size();
        range("max_bytes", max_bytes, MIN_ARENA.max(page), MAX_LEN, " bytes")?;
        let max_bytes = max_bytes / page * page;
        let max_alloc = max_alloc.unwrap_or(max_bytes);
        range("max_alloc", max_alloc, 1, max_bytes, " bytes (max_bytes)")?;
        let default_arena = DEFAULT_ARENA.min(max_bytes / 4).max(MIN_ARENA).min(max_bytes);
        let arena_size = arena_size.unwrap_or(default_arena);
        range("arena_size", arena_size, MIN_ARENA, max_bytes, " bytes (max_bytes)")?;
        range("max_idle_per_class", max_idle, 0, MAX_IDLE, " chunks")?;
        // Both are at most `max_bytes`, which is whole pages, so rounding up keeps them so.
        let pages = |bytes| round_to_pages(bytes).unwrap_or(max_bytes);
        Ok(Self { max_bytes, max_alloc: pages(max_alloc), max_idle, arena_size: pages(arena_size) })
    }

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
            let limits = Limits { max_bytes: 1 << 30, max_alloc, max_idle: 8, arena_size };
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
