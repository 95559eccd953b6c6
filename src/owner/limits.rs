//! Size classes, the checked options of a pool, and the account of the memory that it holds.
//!
//! # Size classes
//!
//! Up to 2 KiB there is a class for each multiple of a cache line. Above, there are 32 evenly
//! spaced classes per doubling, so a class is at most 3.2 % larger than the smallest length that
//! needs it. jemalloc has the same spacing with fewer steps. Here a class costs only a shelf: idle
//! chunks of a slightly larger class serve too, and all chunks are carved from the same arenas.

#![forbid(unsafe_code)]

use crate::error::BuildError;
use crate::os::posix::{has_heap, page_size, round_to_pages, PAGE};
use crate::owner::error::{AllocError, AllocErrorKind};
use crate::protocol::descriptor::MAX_LEN;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Size of the smallest class in bytes, and the alignment of every chunk: one cache line, so that
/// two messages in use by two processes never share a line.
pub(crate) const MIN_SIZE: usize = 64;

const MIN_SHIFT: u32 = MIN_SIZE.trailing_zeros();

/// log2 of the number of classes per doubling.
const STEP_SHIFT: u32 = 5;

/// log2 of the length up to which the classes are a cache line apart.
const LINEAR_SHIFT: u32 = MIN_SHIFT + STEP_SHIFT;

/// Returns the class of a length: the smallest `c` with `size_of_class(c) >= len`. For large
/// lengths it exceeds the pool's number of classes.
#[inline]
pub(crate) const fn class_of(len: usize) -> usize {
    let last = len.saturating_sub(1);
    let log2 = (last | 1 << LINEAR_SHIFT).ilog2();
    (((log2 - LINEAR_SHIFT) as usize) << STEP_SHIFT) + (last >> (log2 - STEP_SHIFT))
}

pub(crate) const fn size_of_class(class: usize) -> usize {
    const PER_DOUBLING: usize = 1 << STEP_SHIFT;
    if class < PER_DOUBLING {
        return (class + 1) << MIN_SHIFT;
    }
    let steps = PER_DOUBLING + 1 + class % PER_DOUBLING;
    let shift = MIN_SHIFT + (class / PER_DOUBLING - 1) as u32;
    // `steps` needs at most `STEP_SHIFT + 2` bits.
    if shift > usize::BITS - STEP_SHIFT - 2 {
        return usize::MAX;
    }
    steps << shift
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grain {
    /// Cache lines, out of a heap.
    Line,
    /// Pages, out of an arena.
    Page,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    pub(crate) size: usize,
    pub(crate) grain: Grain,
}

/// Classes of at least this many pages are whole pages. Smaller ones are carved by cache lines.
const PAGES: usize = 32;

/// The first arena's default share of the cap.
const FIRST_SHARE: usize = 32;

const MIN_ARENA: usize = 64 << 10;

/// The longest segment of a [`Provider`](crate::Provider), and so its largest message, in bytes.
pub(crate) const LONGEST: usize = 64 << 30;

const MAX_IDLE: usize = 1 << 20;

/// By default, a class keeps idle chunks up to this share of the cap, within these bounds.
const IDLE_SHARE: usize = 8;
const USUAL_IDLE: std::ops::RangeInclusive<usize> = 256..=8192;

/// Upper bounds of a new pool's private memory in bytes: of each class, and of the rest.
const BOOKS_OF_CLASS: usize = 512;
const BOOKS: usize = 96 << 10;

/// The default number of allocations in a window (see `pool::evict`).
pub(crate) const DEFAULT_IDLE_WINDOW: u64 = 1 << 15;

const MAX_IDLE_WINDOW: u64 = 1 << 31;

/// Uses of a chunk are counted in batches of this size. A power of two: the warm path tests the
/// lowest bits of its count.
pub(crate) const COUNTED: u64 = 64;

/// The checked options. All sizes are in bytes and multiples of the page size.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) max_bytes: usize,
    pub(crate) max_alloc: usize,
    /// Idle chunks of a class. `None`: an [`IDLE_SHARE`]th of the cap.
    max_idle: Option<usize>,
    pub(crate) first_arena: First,
    pub(crate) longest_arena: usize,
    /// Allocations in a window: a multiple of [`COUNTED`], or 0 if windows never end.
    pub(crate) idle_window: u64,
    pub(crate) page: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum First {
    Given(usize),
    /// This many bytes, or longer for long messages.
    Usual(usize),
    /// As long as the message it is made for, and removed with that message.
    OneMessage,
}

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

#[derive(Clone, Copy, Debug)]
pub(crate) struct ClassShape {
    pub(crate) need: Need,
    pub(crate) align: usize,
    pub(crate) max_idle: usize,
}

impl ClassShape {
    pub(crate) fn size(&self) -> usize {
        self.need.size
    }
}

impl Limits {
    /// Checks the options, all in bytes except `max_idle`, and fills in the defaults.
    pub(crate) fn new(
        max_bytes: usize,
        max_alloc: Option<usize>,
        max_idle: Option<usize>,
        arena_size: Option<usize>,
        longest: usize,
    ) -> Result<Self, BuildError> {
        range("max_bytes", max_bytes, 1, MAX_LEN, " bytes")?;
        let (page, pages) = (page_size(), |bytes| round_to_pages(bytes).unwrap_or(bytes));
        let (max_bytes, longest) = (pages(max_bytes), longest / page * page);
        let largest = max_bytes.min(longest);
        let max_alloc = max_alloc.unwrap_or(largest);
        range("max_alloc", max_alloc, 1, largest, " bytes (max_bytes, or the longest segment)")?;
        let default_arena = (max_bytes / FIRST_SHARE).max(MIN_ARENA).min(largest);
        range("arena_size", arena_size.unwrap_or(1), 1, largest, " bytes (max_bytes, or the longest segment)")?;
        range("max_idle_per_class", max_idle.unwrap_or(0), 0, MAX_IDLE, " chunks")?;
        let max_alloc = pages(max_alloc);
        let first_arena = arena_size.map_or(First::Usual(pages(default_arena)), |bytes| First::Given(pages(bytes)));
        let bytes = (class_of(max_alloc) + PAGES) * BOOKS_OF_CLASS + BOOKS;
        if !has_heap(bytes) {
            return Err(BuildError::OutOfMemory { bytes });
        }
        let idle_window = DEFAULT_IDLE_WINDOW;
        Ok(Self { max_bytes, max_alloc, max_idle, first_arena, longest_arena: longest, idle_window, page })
    }

    pub(crate) fn with_idle_window(self, allocations: u64) -> Result<Self, BuildError> {
        let most = usize::try_from(MAX_IDLE_WINDOW).unwrap_or(usize::MAX);
        range("idle_window", usize::try_from(allocations).unwrap_or(usize::MAX), 0, most, " allocations")?;
        Ok(Self { idle_window: allocations.next_multiple_of(COUNTED), ..self })
    }

    /// Returns `true` if the memory of each chunk returns to the system at once.
    pub(crate) fn keeps_nothing(&self) -> bool {
        self.max_idle == Some(0)
    }

    pub(crate) fn classes(&self) -> usize {
        class_of(self.max_alloc) + 1
    }

    /// Returns the table of all classes: those of ordinary alignment (a cache line), the large ones
    /// being whole pages; then those of small page-aligned messages, one for each number of pages.
    pub(crate) fn shapes(&self) -> Vec<ClassShape> {
        let page = self.page;
        let (least, most) = USUAL_IDLE.into_inner();
        let shape = |size: usize, grain, align| {
            let usual_idle = (self.max_bytes / IDLE_SHARE / size).clamp(least, most);
            ClassShape { need: Need { size, grain }, align, max_idle: self.max_idle.unwrap_or(usual_idle) }
        };
        let whole_pages = |size: usize| shape(size.next_multiple_of(page), Grain::Page, PAGE);
        let ordinary = |size| if size < PAGES * page { shape(size, Grain::Line, MIN_SIZE) } else { whole_pages(size) };
        let sizes = (0..self.classes()).map(size_of_class).map(|size| size.min(self.max_alloc));
        let aligned = (1..PAGES).map(|pages| pages * page).take_while(|&size| size <= self.max_alloc);
        sizes.map(ordinary).chain(aligned.map(whole_pages)).collect()
    }

    #[inline]
    pub(crate) fn class(&self, len: usize, align: usize) -> Result<usize, AllocError> {
        if align > PAGE {
            return Err(AllocErrorKind::UnsupportedAlignment { align, max: PAGE }.into());
        }
        if len > self.max_alloc {
            return Err(AllocErrorKind::TooLarge { len, max: self.max_alloc }.into());
        }
        Ok(if align <= MIN_SIZE { class_of(len) } else { self.page_aligned(len) })
    }

    fn page_aligned(&self, len: usize) -> usize {
        let pages = len.max(1).div_ceil(self.page);
        if pages < PAGES {
            self.classes() + pages - 1
        } else {
            class_of(pages * self.page)
        }
    }
}

/// The account of memory taken from the system, and of segments created.
#[derive(Default)]
pub(crate) struct Account {
    held: AtomicUsize,
    peak: AtomicUsize,
    created: AtomicU64,
}

impl Account {
    pub(crate) fn take(&self, bytes: usize) {
        let held = self.held.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(held, Ordering::Relaxed);
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_segment(&self) {
        self.created.fetch_add(1, Ordering::Relaxed);
    }

    /// Undoes [`count_segment`](Self::count_segment) for a segment of a failed allocation.
    pub(crate) fn uncount_segment(&self) {
        self.created.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    pub(crate) fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    pub(crate) fn created(&self) -> u64 {
        self.created.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn first_classes() {
        let sizes = |classes: std::ops::Range<usize>| classes.map(size_of_class).collect::<Vec<_>>();
        assert_eq!(sizes(0..3), [64, 128, 192]);
        assert_eq!(sizes(30..34), [1984, 2048, 2112, 2176]);
        assert_eq!(sizes(62..66), [4032, 4096, 4224, 4352]);
        assert_eq!(class_of(0), 0);
        assert_eq!(class_of(64), 0);
        assert_eq!(class_of(65), 1);
    }

    #[test]
    fn boundaries_round_trip() {
        for class in 0..1600 {
            let size = size_of_class(class);
            assert_eq!(class_of(size), class, "a length of exactly {size} belongs to its own class");
            assert_eq!(class_of(size + 1), class + 1, "one byte more belongs to the next");
            assert!(size_of_class(class + 1) > size);
        }
    }

    proptest! {
        #[test]
        fn class_waste(len in 0usize..1 << 48) {
            let size = size_of_class(class_of(len));
            prop_assert!(size >= len);
            prop_assert!(size - len < MIN_SIZE || (size - len) * 32 < len, "{len} rounds to {size}");
        }

        #[test]
        fn monotone(a in 0usize..1 << 48, b in 0usize..1 << 48) {
            let (small, large) = (a.min(b), a.max(b));
            prop_assert!(class_of(small) <= class_of(large));
        }

        #[test]
        fn any_length(len: usize) {
            let class = class_of(len);
            prop_assert!(size_of_class(class) >= len);
        }
    }

    #[test]
    fn table_covers_lengths_and_alignments() {
        for max_alloc in [1, 64, 4096, 5 * 4096, 126 << 10, 128 << 10, (128 << 10) + 1, 1 << 20, 33_000_000] {
            let limits = Limits::new(1 << 30, Some(max_alloc), Some(8), None, LONGEST).unwrap();
            let shapes = limits.shapes();
            let lines = &shapes[..limits.classes()];
            assert_eq!(lines.last().map(ClassShape::size), Some(limits.max_alloc));
            assert!(lines.windows(2).all(|pair| pair[0].size() <= pair[1].size()));
            for len in (0..=limits.max_alloc).step_by(limits.max_alloc / 1000 + 1).chain([limits.max_alloc]) {
                let (line, page) = (lines[class_of(len)], shapes[limits.page_aligned(len)]);
                assert!(line.size() >= len && page.size() >= len, "{len}: {line:?} {page:?}");
                assert_eq!((page.align, page.size() % limits.page), (PAGE, 0), "{len}: {page:?}");
                let wasted = line.size() - len;
                assert!(
                    wasted <= MIN_SIZE || line.size() == limits.max_alloc || wasted * 32 <= len,
                    "{len} in {line:?}"
                );
            }
        }
    }

    #[test]
    fn rounds_up_to_pages() {
        for (bytes, rounded) in [(1, 4096), (42, 4096), (4096, 4096), (10_240, 12_288), (1_000_000, 1_003_520)] {
            let limits = Limits::new(bytes, None, Some(8), None, LONGEST).unwrap();
            assert_eq!((limits.max_bytes, limits.max_alloc), (rounded, rounded));
        }
    }

    #[test]
    fn default_idle_cap() {
        let limits = Limits::new(64 << 20, None, None, None, LONGEST).unwrap();
        let idle = |size| limits.shapes().iter().find(|shape| shape.size() == size).map(|shape| shape.max_idle);
        assert_eq!([64, 1 << 10, 4 << 10, 64 << 10].map(idle), [8192, 8192, 2048, 256].map(Some));
        assert!(!limits.keeps_nothing());
    }

    #[test]
    fn account() {
        let account = Account::default();
        account.take(60);
        account.take(40);
        account.give_back(70);
        account.count_segment();
        assert_eq!((account.held(), account.peak(), account.created()), (30, 100, 1));
    }
}
