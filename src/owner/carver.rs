//! Carves the pages of an arena into runs. The only file that uses talc.
//!
//! talc keeps its lists and tags in the memory that it manages. Here that is a *shadow*: private
//! memory with a talc unit of 32 bytes for each page. So a process that can write to the segment
//! cannot damage the allocator, and the segment's bytes are never touched: they may be holes, or
//! still be read.
//!
//! By talc's contract alone, runs never overlap: one of `n` pages is an allocation of `32 n - 8`
//! bytes, aligned to 32, which with talc's tag takes `n` units of the shadow.
//!
//! talc keeps a list of gaps for each length up to 8 pages, and four lists for each doubling above. A
//! search takes the first gap of the first list in which all are long enough. Only if there is none
//! does it visit the gaps of the list below, which differ in length by less than a quarter: at most as
//! many as such gaps fit in the arena.
//!
//! Nothing else is stored for a run: who frees it knows its length. Four bitmaps with a bit for each
//! page answer the questions that talc cannot answer.
//!
//! # The closed range
//!
//! At most one range of pages is *closed*: nothing is carved there, except with `anywhere`. A free
//! page of it is in one of two states:
//!
//! | state | how it gets there |
//! |---|---|
//! | in a gap of talc | at first |
//! | *absorbed*: allocated from talc, in no run | talc has offered it, or its run was freed |
//!
//! Talc cannot be told where to search. So if it offers a page of the closed range, the range absorbs
//! that gap, up to the ends of the range, and the search goes on. Each gap is offered once. Absorbed
//! pieces that are neighbours become one piece, so each run of absorbed pages is one allocation of
//! talc. A freed run that only overlaps the range is absorbed as a whole.
//!
//! Absorbed pages are free: they return to talc when the range is opened again, at most
//! [`RETURNED`] pieces at a time, and those that a search needs at once.

use crate::os::mapping::Mapping;
use crate::owner::bits::{overlap, Bits};
use std::alloc::Layout;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::NonNull;
use talc::base::{Talc, CHUNK_UNIT};
use talc::source::Manual;
use talc::DefaultBinning;

/// The tag that talc writes before the first unit, in bytes.
const TAG: usize = std::mem::size_of::<usize>();

const LISTS: usize =
    talc::min_first_heap_size::<DefaultBinning>().div_ceil(CHUNK_UNIT) * CHUNK_UNIT;

/// A shadow of at least this many bytes is mapped, so that untouched pages take no memory.
const MAPPED: usize = 256 << 10;

/// The most absorbed pieces that one call returns to talc: some 30 µs.
const RETURNED: usize = 1024;

pub(crate) struct Carver {
    talc: Talc<Manual, DefaultBinning>,
    shadow: Shadow,
    pages: usize,
    /// Pages that are in no run.
    free: usize,
    /// Pages that are in a run.
    carved: Bits,
    /// Pages that are in the same run as the page before.
    joined: Bits,
    /// Pages of runs that are never freed.
    leaked: Bits,
    closed: Range<usize>,
    absorbed: Bits,
    absorbed_pages: usize,
}

/// talc's lists, a unit for the tag, and the shadow of each unit. No other code accesses it.
struct Shadow {
    start: NonNull<u8>,
    /// The memory is in one of these two.
    _heap: Vec<MaybeUninit<Unit>>,
    _mapping: Option<Mapping>,
}

#[repr(align(32))]
struct Unit {
    _bytes: [u8; CHUNK_UNIT],
}

// SAFETY: a shadow owns its memory, as a box does.
unsafe impl Send for Shadow {}

impl Shadow {
    fn new(units: usize) -> Option<Self> {
        let count = units.checked_add(LISTS / CHUNK_UNIT + 1)?;
        let mut heap = Vec::new();
        if count.checked_mul(CHUNK_UNIT)? >= MAPPED {
            let mapping = Mapping::private(count * CHUNK_UNIT).ok()?;
            return Some(Self {
                start: mapping.base(),
                _heap: heap,
                _mapping: Some(mapping),
            });
        }
        heap.try_reserve_exact(count).ok()?;
        Some(Self {
            start: NonNull::new(heap.as_mut_ptr())?.cast(),
            _heap: heap,
            _mapping: None,
        })
    }

    fn unit(&self, at: usize) -> *mut u8 {
        // SAFETY: `new` reserves this much, so the address is inside the allocation or one past its
        // end.
        unsafe {
            self.start
                .as_ptr()
                .add(LISTS + CHUNK_UNIT + at * CHUNK_UNIT)
        }
    }
}

fn shadow_of(units: usize) -> Option<Layout> {
    let bytes = units.checked_mul(CHUNK_UNIT)?.checked_sub(TAG)?;
    Layout::from_size_align(bytes, CHUNK_UNIT).ok()
}

impl Carver {
    /// `None`: no private memory.
    pub(crate) fn new(pages: usize) -> Option<Self> {
        let shadow = Shadow::new(pages)?;
        let carved = Bits::new(pages)?;
        let joined = Bits::new(pages)?;
        let leaked = Bits::new(pages)?;
        let absorbed = Bits::new(pages)?;
        let mut talc = Talc::new(Manual);
        // SAFETY: this first part of the shadow is talc's for the carver's lifetime.
        unsafe { talc.claim(shadow.start.as_ptr(), LISTS) };
        // The rest of the list part stands for no pages, so it is allocated for good.
        let unit = Layout::new::<[usize; 3]>();
        // SAFETY: the layout's size is not zero.
        while unsafe { talc.try_allocate(unit) }.is_some() {}
        // SAFETY: `new` reserves a unit for the tag before the first one.
        let tag = unsafe { shadow.unit(0).sub(TAG) };
        // SAFETY: this second part of the shadow is talc's for the carver's lifetime, and does not
        // overlap the first.
        unsafe { talc.claim(tag, TAG + pages * CHUNK_UNIT) };
        Some(Self {
            talc,
            shadow,
            pages,
            free: pages,
            carved,
            joined,
            leaked,
            closed: 0..0,
            absorbed,
            absorbed_pages: 0,
        })
    }

    /// Returns the first page. Uses the closed range only if `anywhere`.
    pub(crate) fn carve(&mut self, pages: usize, anywhere: bool) -> Option<usize> {
        // talc would search its lists.
        if pages > self.free {
            return None;
        }
        if self.closed.is_empty() && self.absorbed_pages > 0 {
            self.return_absorbed(0..self.pages, RETURNED);
        }
        let closed = if anywhere { 0..0 } else { self.closed.clone() };
        let at = self.find(pages, &closed)?;
        self.carved.set(at..at + pages);
        self.joined.set(at + 1..at + pages);
        self.free -= pages;
        Some(at)
    }

    fn find(&mut self, pages: usize, closed: &Range<usize>) -> Option<usize> {
        if closed.len() == self.pages {
            return None;
        }
        if let Some(at) = self.allocate_outside(pages, closed) {
            return Some(at);
        }
        if self.absorbed_pages == 0 {
            return None;
        }
        // A gap may consist of absorbed pages, in whole or in part.
        let before = self.carved.next_long_clear(pages, 0..closed.start);
        let gap = match before {
            Some(gap) => gap,
            None => self.carved.next_long_clear(pages, closed.end..self.pages)?,
        };
        self.return_absorbed(gap, usize::MAX);
        self.allocate_outside(pages, closed)
    }

    /// Allocates from talc, outside the closed range.
    fn allocate_outside(&mut self, pages: usize, closed: &Range<usize>) -> Option<usize> {
        let mut before_closed = None;
        let found = loop {
            let Some(at) = self.allocate(pages) else {
                break None;
            };
            if !overlap(closed, &(at..at + pages)) {
                break Some(at);
            }
            if at < closed.start {
                // The one gap that reaches into the range from below. What is before the range is
                // too short. It is in the way of the same offer until the search ends.
                let rest = at..closed.start;
                self.resize(at, pages, rest.len());
                before_closed = Some(rest);
                continue;
            }
            let gap_end = self.carved.next_set(at + pages..self.pages);
            let gap_end = self.absorbed.next_set(at + pages..gap_end);
            let wanted = closed.end.min(gap_end) - at;
            if self.resize(at, pages, wanted) {
                self.absorb(at, wanted);
            } else {
                self.absorb(at, pages);
            }
        };
        if let Some(rest) = before_closed {
            self.deallocate(rest.start, rest.len());
        }
        found
    }

    fn allocate(&mut self, pages: usize) -> Option<usize> {
        let layout = shadow_of(pages)?;
        // SAFETY: the layout's size is not zero: `shadow_of` gives at least 24 bytes.
        let piece = unsafe { self.talc.try_allocate(layout) }?;
        let at = (piece.as_ptr() as usize).wrapping_sub(self.shadow.unit(0) as usize) / CHUNK_UNIT;
        let is_inside = match at.checked_add(pages) {
            Some(end) => end <= self.pages,
            None => false,
        };
        // If talc used memory outside its claim, leak it.
        debug_assert!(is_inside, "talc carved outside the range");
        if is_inside {
            Some(at)
        } else {
            None
        }
    }

    fn resize(&mut self, at: usize, pages: usize, new: usize) -> bool {
        let (Some(old), Some(new)) = (shadow_of(pages), shadow_of(new)) else {
            return false;
        };
        // SAFETY: `allocate` returned it for the layout of `pages`; a layout's size is not zero.
        unsafe {
            self.talc
                .try_realloc_in_place(self.shadow.unit(at), old, new.size())
        }
    }

    fn deallocate(&mut self, at: usize, pages: usize) {
        if let Some(layout) = shadow_of(pages) {
            // SAFETY: `allocate` returned it for this layout, and no caller uses it afterwards.
            unsafe { self.talc.deallocate(self.shadow.unit(at), layout) };
        }
    }

    /// Keeps an allocation of talc, as one with the absorbed pieces beside it.
    fn absorb(&mut self, mut at: usize, mut pages: usize) {
        let end = at + pages;
        let next = end..self.absorbed.next_clear(end..self.pages);
        if !next.is_empty() {
            self.forget_absorbed(next.clone());
            self.deallocate(next.start, next.len());
            if self.resize(at, pages, pages + next.len()) {
                pages += next.len();
            }
        }
        let previous = self.absorbed.start_of_set(at)..at;
        if !previous.is_empty() {
            self.forget_absorbed(previous.clone());
            self.deallocate(at, pages);
            let both = previous.len() + pages;
            at = previous.start;
            pages = previous.len();
            if self.resize(at, pages, both) {
                pages = both;
            }
        }
        self.absorbed.set(at..at + pages);
        self.absorbed_pages += pages;
    }

    fn forget_absorbed(&mut self, piece: Range<usize>) {
        self.absorbed_pages -= piece.len();
        self.absorbed.clear(piece);
    }

    /// Returns at most `most` absorbed pieces to talc: those with a page in `range`.
    fn return_absorbed(&mut self, range: Range<usize>, most: usize) {
        let mut from = range.start;
        for _ in 0..most {
            let first = self.absorbed.next_set(from..range.end);
            if first == range.end {
                break;
            }
            let start = self.absorbed.start_of_set(first);
            let end = self.absorbed.next_clear(first..self.pages);
            self.forget_absorbed(start..end);
            self.deallocate(start, end - start);
            from = end.min(range.end);
        }
    }

    pub(crate) fn has_gap(&mut self, pages: usize) -> bool {
        let Some(at) = self.carve(pages, false) else {
            return false;
        };
        self.free(at, pages);
        true
    }

    /// Frees a run.
    pub(crate) fn free(&mut self, at: usize, pages: usize) {
        let run = at..at + pages;
        debug_assert_eq!(self.carved.count(run.clone()), pages, "freed twice");
        self.carved.clear(run.clone());
        self.joined.clear(run.clone());
        self.free += pages;
        // In a range that is everything, nothing is carved anyway.
        if overlap(&self.closed, &run) && self.closed.len() < self.pages {
            self.absorb(at, pages);
        } else {
            self.deallocate(at, pages);
        }
    }

    pub(crate) fn pages(&self) -> usize {
        self.pages
    }

    /// Returns the pages that are in the same run as the page before.
    pub(crate) fn joined(&self) -> &Bits {
        &self.joined
    }

    pub(crate) fn free_pages(&self) -> usize {
        self.free
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.free == self.pages
    }

    pub(crate) fn carved(&self) -> &Bits {
        &self.carved
    }

    /// Returns how many pages from `at` on are in no run, but at most `most`.
    pub(crate) fn clear_after(&self, at: usize, most: usize) -> usize {
        let end = self.pages.min(at + most);
        self.carved.next_set(at..end) - at
    }

    pub(crate) fn leaked(&self) -> &Bits {
        &self.leaked
    }

    /// Notes that a run is never freed.
    pub(crate) fn leak(&mut self, run: Range<usize>) {
        self.leaked.set(run);
    }

    pub(crate) fn closed(&self) -> &Range<usize> {
        &self.closed
    }

    /// Closes a range to carving, instead of the previous one.
    pub(crate) fn close(&mut self, range: Range<usize>) {
        self.closed = range;
        if self.closed.is_empty() {
            self.return_absorbed(0..self.pages, RETURNED);
        }
    }

    pub(crate) fn is_closed_free(&self) -> bool {
        self.carved.next_set(self.closed.clone()) == self.closed.end
    }

    /// Returns the range with the whole of each run that it overlaps.
    pub(crate) fn widened(&self, range: Range<usize>) -> Range<usize> {
        let end = self.joined.next_clear(range.end..self.pages);
        // A joined page is never the first one of the arena.
        let start = if range.start < end && self.joined.is_set(range.start) {
            self.joined.start_of_set(range.start) - 1
        } else {
            range.start
        };
        start..end
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn range_capacity() {
        for pages in [1, 2, 3, 15, 64, 1000, 16_384] {
            let mut carver = Carver::new(pages).unwrap();
            assert_eq!(
                carver.carve(pages, false),
                Some(0),
                "all of {pages} in one run"
            );
            assert_eq!(carver.carve(1, false), None);
            carver.free(0, pages);
            assert!(carver.is_empty());
            let mut singles: Vec<usize> = std::iter::from_fn(|| carver.carve(1, false)).collect();
            singles.sort_unstable();
            assert_eq!(
                singles,
                (0..pages).collect::<Vec<_>>(),
                "{pages} runs of one page"
            );
        }
    }

    /// A number selects one of the existing runs.
    #[derive(Clone, Debug)]
    enum Step {
        Carve(usize, bool),
        Free(usize),
        Close(usize, usize),
        Widen(usize, usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (1..40usize, prop::bool::weighted(0.1)).prop_map(|(pages, anywhere)| Step::Carve(pages, anywhere)),
            3 => (0..64usize).prop_map(Step::Free),
            1 => (0..250usize, 0..80usize).prop_map(|(start, len)| Step::Close(start, len)),
            1 => (0..250usize, 1..80usize).prop_map(|(start, len)| Step::Widen(start, len)),
        ]
    }

    /// The first page and the number of pages of each run.
    type Runs = Vec<(usize, usize)>;

    fn check(carver: &Carver, runs: &Runs) {
        let mut carved = vec![false; carver.pages];
        for &(at, len) in runs {
            carved[at..at + len].fill(true);
        }
        for (page, &is_carved) in carved.iter().enumerate() {
            assert_eq!(carver.carved.is_set(page), is_carved, "page {page}");
            assert!(!(is_carved && carver.absorbed.is_set(page)));
        }
        let used = carved.iter().filter(|&&is_carved| is_carved).count();
        assert_eq!(carver.free_pages(), carver.pages - used);
        assert_eq!(
            carver.absorbed_pages,
            carver.absorbed.count(0..carver.pages)
        );
        assert_eq!(carver.is_empty(), runs.is_empty());
        let in_closed = runs
            .iter()
            .any(|&(at, len)| overlap(&carver.closed, &(at..at + len)));
        assert_eq!(carver.is_closed_free(), !in_closed);
    }

    proptest! {
        #[test]
        fn agrees_with_model(
            pages in 1..300usize,
            steps in proptest::collection::vec(step(), 1..200),
        ) {
            let mut carver = Carver::new(pages).unwrap();
            let mut runs = Runs::new();
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Carve(need, anywhere) => {
                        let closed = if anywhere { 0..0 } else { carver.closed.clone() };
                        match carver.carve(need, anywhere) {
                            Some(at) => {
                                let run = at..at + need;
                                prop_assert!(run.end <= pages);
                                let is_free = runs.iter().all(|&(at, len)| !overlap(&run, &(at..at + len)));
                                prop_assert!(is_free, "two runs overlap");
                                prop_assert!(!overlap(&run, &closed), "a closed range");
                                runs.push((at, need));
                            }
                            None => {
                                let mut open = vec![true; pages];
                                open[closed].fill(false);
                                runs.iter().for_each(|&(at, len)| open[at..at + len].fill(false));
                                let fits = open.split(|open| !open).any(|gap| gap.len() >= need);
                                prop_assert!(!fits, "step {number}");
                            }
                        }
                    }
                    Step::Free(pick) => if !runs.is_empty() {
                        let (at, len) = runs.swap_remove(pick % runs.len());
                        carver.free(at, len);
                    },
                    Step::Close(start, len) => carver.close(start.min(pages)..(start + len).min(pages)),
                    Step::Widen(start, len) => {
                        let range = start.min(pages - 1)..(start + len).min(pages).max(start.min(pages - 1) + 1);
                        let touched = runs.iter().filter(|&&(at, len)| overlap(&range, &(at..at + len)));
                        let mut expected = range.clone();
                        for &(at, len) in touched {
                            expected = expected.start.min(at)..expected.end.max(at + len);
                        }
                        prop_assert_eq!(carver.widened(range), expected);
                    }
                }
                check(&carver, &runs);
            }
            // Nothing is lost: all pages are one gap again.
            for (at, len) in runs.drain(..) {
                carver.free(at, len);
            }
            carver.close(0..0);
            prop_assert_eq!(carver.carve(pages, false), Some(0));
        }
    }

    /// Fragmented memory in a closed range is looked at once.
    #[test]
    fn gaps_are_absorbed_once() {
        const PAGES: usize = 1000;
        let mut carver = Carver::new(PAGES).unwrap();
        while carver.carve(1, false).is_some() {}
        carver.close(100..900);
        for page in (1..PAGES).step_by(2) {
            carver.free(page, 1);
        }
        assert_eq!(carver.absorbed_pages, 400);
        let outside: Vec<usize> = std::iter::from_fn(|| carver.carve(1, false)).collect();
        assert_eq!(outside.len(), 100);
        assert!(outside.iter().all(|page| !(100..900).contains(page)));
        assert!(carver
            .carve(1, true)
            .is_some_and(|page| (100..900).contains(&page)));
        carver.close(0..0);
        assert_eq!(carver.absorbed_pages, 0);
        assert_eq!(std::iter::from_fn(|| carver.carve(1, false)).count(), 399);
    }
}
