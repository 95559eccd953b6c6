//! Carves a range of memory into pieces of whole units. The only file that uses talc.
//!
//! talc keeps its lists and tags in the memory that it manages. Here that is a *shadow*: private
//! memory with a talc unit of 32 bytes for each unit of the range. So a process that can write to
//! the range cannot damage the allocator, and the range's bytes are never touched: they may be
//! holes, or still be read.
//!
//! By talc's contract alone, pieces never overlap: one of `n` units is an allocation of `32 n - 8`
//! bytes, aligned to 32, which with talc's tag takes `n` units of the shadow.

use crate::os::mapping::Mapping;
use std::alloc::Layout;
use std::collections::{BTreeMap, VecDeque};
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

pub(crate) struct Carver {
    talc: Talc<Manual, DefaultBinning>,
    shadow: Shadow,
    units: usize,
    /// By first unit.
    pieces: BTreeMap<usize, Piece>,
    carved: usize,
    marked: [usize; 4],
    closed: Range<usize>,
}

struct Piece {
    units: usize,
    mark: Mark,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// At once.
    Idle,
    /// Once its user releases it.
    InUse,
    Pinned,
    /// Pinned for good: its reader cannot be tracked.
    GivenUp,
}

/// The units in use; if none, the gap left once idle pieces are freed; then the idle units.
pub(crate) type Cost = (usize, usize, usize);

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

pub(crate) fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start.max(other.start) < one.end.min(other.end)
}

impl Carver {
    pub(crate) fn new(units: usize) -> Option<Self> {
        let shadow = Shadow::new(units)?;
        let mut talc = Talc::new(Manual);
        // SAFETY: this first part of the shadow is talc's for the carver's lifetime.
        unsafe { talc.claim(shadow.start.as_ptr(), LISTS) };
        // The rest of the list part stands for no units, so it is allocated for good.
        let unit = Layout::new::<[usize; 3]>();
        // SAFETY: the layout's size is not zero.
        while unsafe { talc.try_allocate(unit) }.is_some() {}
        // SAFETY: `new` reserves a unit for the tag before the first one.
        let tag = unsafe { shadow.unit(0).sub(TAG) };
        // SAFETY: this second part of the shadow is talc's for the carver's lifetime, and does not
        // overlap the first.
        unsafe { talc.claim(tag, TAG + units * CHUNK_UNIT) };
        Some(Self {
            talc,
            shadow,
            units,
            pieces: BTreeMap::new(),
            carved: 0,
            marked: [0; 4],
            closed: 0..0,
        })
    }

    /// Returns the first unit. Uses the closed range only if `anywhere`.
    pub(crate) fn carve(&mut self, units: usize, anywhere: bool) -> Option<usize> {
        // talc would search its lists.
        if units > self.free_units() {
            return None;
        }
        // talc chooses where to search, so each gap that it finds in the closed range is set aside
        // for the duration, up to the end of that range.
        let closed = if anywhere { 0..0 } else { self.closed.clone() };
        let mut aside = Vec::new();
        let found = loop {
            match self.allocate(units) {
                Some(at) if overlap(&closed, &(at..at + units)) => {
                    let rest = closed.end - at;
                    aside.push((
                        at,
                        if self.resize(at, units, rest) {
                            rest
                        } else {
                            units
                        },
                    ));
                }
                found => break found,
            }
        };
        aside
            .into_iter()
            .for_each(|(at, units)| self.deallocate(at, units));
        let at = found?;
        self.pieces.insert(
            at,
            Piece {
                units,
                mark: Mark::InUse,
            },
        );
        self.marked[Mark::InUse as usize] += 1;
        self.carved += units;
        Some(at)
    }

    fn allocate(&mut self, units: usize) -> Option<usize> {
        let layout = shadow_of(units)?;
        // SAFETY: the layout's size is not zero: `shadow_of` gives at least 24 bytes.
        let piece = unsafe { self.talc.try_allocate(layout) }?;
        let at = (piece.as_ptr() as usize).wrapping_sub(self.shadow.unit(0) as usize) / CHUNK_UNIT;
        let is_inside = at.checked_add(units).is_some_and(|end| end <= self.units);
        // If talc used memory outside its claim, leak it.
        debug_assert!(is_inside, "talc carved outside the range");
        is_inside.then_some(at)
    }

    fn resize(&mut self, at: usize, units: usize, new: usize) -> bool {
        let (Some(old), Some(new)) = (shadow_of(units), shadow_of(new)) else {
            return false;
        };
        // SAFETY: `allocate` returned it for the layout of `units`; a layout's size is not zero.
        unsafe {
            self.talc
                .try_realloc_in_place(self.shadow.unit(at), old, new.size())
        }
    }

    fn deallocate(&mut self, at: usize, units: usize) {
        if let Some(layout) = shadow_of(units) {
            // SAFETY: `allocate` returned it for this layout, and no caller uses it afterwards.
            unsafe { self.talc.deallocate(self.shadow.unit(at), layout) };
        }
    }

    pub(crate) fn has_gap(&mut self, units: usize) -> bool {
        self.carve(units, false).map(|at| self.free(at)).is_some()
    }

    pub(crate) fn free(&mut self, at: usize) {
        let Some(piece) = self.pieces.remove(&at) else {
            return;
        };
        self.carved -= piece.units;
        self.marked[piece.mark as usize] -= 1;
        self.deallocate(at, piece.units);
    }

    pub(crate) fn units(&self) -> usize {
        self.units
    }

    pub(crate) fn free_units(&self) -> usize {
        self.units - self.carved
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Closes a range to carving, instead of the previous one.
    pub(crate) fn close(&mut self, range: Range<usize>) {
        self.closed = range;
    }

    pub(crate) fn is_closed_free(&self) -> bool {
        self.pieces_in(&self.closed).next().is_none()
    }

    pub(crate) fn clear_marks(&mut self) {
        let pieces = self
            .pieces
            .values_mut()
            .filter(|piece| piece.mark != Mark::GivenUp);
        pieces.for_each(|piece| piece.mark = Mark::InUse);
        let given_up = self.marked[Mark::GivenUp as usize];
        self.marked = [0, self.pieces.len() - given_up, 0, given_up];
    }

    pub(crate) fn mark(&mut self, at: usize, mark: Mark) {
        if let Some(piece) = self.pieces.get_mut(&at) {
            self.marked[piece.mark as usize] -= 1;
            self.marked[mark as usize] += 1;
            piece.mark = mark;
        }
    }

    pub(crate) fn mark_of_all(&self) -> Mark {
        match self.marked {
            [_, 0, 0, 0] => Mark::Idle,
            [_, _, 0, 0] => Mark::InUse,
            _ => Mark::Pinned,
        }
    }

    pub(crate) fn units_in_use(&self) -> Option<usize> {
        let price = self.pieces.values().map(|piece| self.price(piece)).sum();
        (price <= self.units).then_some(price)
    }

    fn price(&self, piece: &Piece) -> usize {
        match piece.mark {
            Mark::InUse => piece.units,
            Mark::Idle => 0,
            Mark::Pinned | Mark::GivenUp => self.units + 1,
        }
    }

    /// Finds the cheapest range where `need` units fit if its pieces are freed, at the start or end
    /// of a gap between pieces that are not idle, widened to whole pieces. Never includes pinned
    /// ones.
    pub(crate) fn cheapest(
        &self,
        need: usize,
        in_use: bool,
        anywhere: bool,
    ) -> Option<(Cost, Range<usize>)> {
        let closed = if anywhere {
            0..0
        } else {
            self.widened(self.closed.clone())
        };
        let pieces = |part: Range<usize>| {
            self.pieces
                .range(part)
                .map(|(&at, piece)| (at..at + piece.units, self.price(piece)))
        };
        // The pieces that are not idle, in order. The closed range counts as one pinned piece.
        let (before, behind) = (pieces(0..closed.start), pieces(closed.end..self.units));
        let kept = before
            .chain([(closed, self.units + 1)])
            .chain(behind)
            .filter(|(_, price)| *price > 0);
        let mut best = None;
        let mut offer = |cost: Cost, start: usize| {
            if best.map_or(true, |(least, _)| cost < least) {
                best = Some((cost, start));
            }
        };
        // Visit each gap in turn, with the preceding pieces that lie in the range at its end.
        let (mut from, mut reached, mut price) = (0, VecDeque::new(), 0);
        for (piece, price_of_piece) in kept.chain([(self.units..self.units, 0)]) {
            let gap = from..piece.start;
            if gap.len() >= need {
                for start in [gap.start, gap.end - need] {
                    let span = start..start + need;
                    let idle = self.pieces_in(&span).map(|piece| piece.len()).sum();
                    offer((0, gap.len(), idle), start);
                }
            } else if let Some(start) = gap.end.checked_sub(need).filter(|_| in_use) {
                while reached.front().is_some_and(|(end, _)| *end <= start) {
                    price -= reached.pop_front().map_or(0, |(_, gone)| gone);
                }
                if price <= self.units {
                    offer((price, 0, 0), start);
                }
            }
            from = piece.end;
            if in_use {
                price += price_of_piece;
                reached.push_back((piece.end, price_of_piece));
            }
        }
        best.map(|(cost, start)| (cost, self.widened(start..start + need)))
    }

    fn widened(&self, span: Range<usize>) -> Range<usize> {
        let whole = |whole: Range<usize>, piece: Range<usize>| {
            whole.start.min(piece.start)..whole.end.max(piece.end)
        };
        self.pieces_in(&span).fold(span.clone(), whole)
    }

    fn pieces_in<'a>(&'a self, range: &'a Range<usize>) -> impl Iterator<Item = Range<usize>> + 'a {
        let pieces = self
            .pieces
            .range(..range.end)
            .rev()
            .map(|(start, piece)| *start..start + piece.units);
        pieces.take_while(|piece| piece.end > range.start)
    }

    pub(crate) fn gaps(&self, from: usize) -> impl Iterator<Item = Range<usize>> + '_ {
        let starts = self
            .pieces
            .range(from..)
            .map(|(start, _)| *start)
            .chain([self.units]);
        let ends = std::iter::once(from).chain(
            self.pieces
                .range(from..)
                .map(|(start, piece)| start + piece.units),
        );
        ends.zip(starts)
            .map(|(start, end)| start..end)
            .filter(|gap| !gap.is_empty())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn range_capacity() {
        for units in [1, 2, 3, 15, 64, 1000, 16_384] {
            let mut carver = Carver::new(units).unwrap();
            assert_eq!(
                carver.carve(units, false),
                Some(0),
                "all of {units} in one piece"
            );
            assert_eq!(carver.carve(1, false), None);
            carver.free(0);
            assert!(carver.is_empty());
            let mut singles: Vec<usize> = std::iter::from_fn(|| carver.carve(1, false)).collect();
            singles.sort_unstable();
            assert_eq!(
                singles,
                (0..units).collect::<Vec<_>>(),
                "{units} pieces of one unit"
            );
        }
    }

    /// A number selects one of the existing pieces.
    #[derive(Clone, Debug)]
    enum Step {
        Carve(usize),
        Free(usize),
        MarkIdle(usize),
        MarkUsed(usize),
        Tightest(usize),
        Cheapest(usize),
        Close(usize, usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let pick = || 0..64usize;
        prop_oneof![
            4 => (1..40usize).prop_map(Step::Carve),
            2 => pick().prop_map(Step::Free),
            3 => pick().prop_map(Step::MarkIdle),
            1 => pick().prop_map(Step::MarkUsed),
            2 => (1..120usize).prop_map(Step::Tightest),
            1 => (1..120usize).prop_map(Step::Cheapest),
            1 => (0..250usize, 0..80usize).prop_map(|(start, len)| Step::Close(start, len)),
        ]
    }

    /// A unit is free, or holds the first unit of its piece. A piece may be idle.
    struct Model {
        units: Vec<Option<usize>>,
        pieces: Vec<(usize, usize, bool)>,
    }

    impl Model {
        fn gaps(&self, is_free: impl Fn(Option<usize>) -> bool) -> Vec<usize> {
            self.units
                .split(|unit| !is_free(*unit))
                .map(<[_]>::len)
                .collect()
        }

        fn check_gaps(&self, carver: &Carver) {
            let mut free = vec![false; self.units.len()];
            carver.gaps(0).flatten().for_each(|unit| free[unit] = true);
            let expected: Vec<bool> = self.units.iter().map(Option::is_none).collect();
            assert_eq!(free, expected);
        }
    }

    proptest! {
        #[test]
        fn agrees_with_model(
            units in 1..300usize,
            steps in proptest::collection::vec(step(), 1..200),
        ) {
            let mut carver = Carver::new(units).unwrap();
            let mut model = Model { units: vec![None; units], pieces: Vec::new() };
            for (number, step) in steps.into_iter().enumerate() {
                let picked = |pick: usize| (!model.pieces.is_empty()).then(|| pick % model.pieces.len());
                match step {
                    Step::Carve(need) => match carver.carve(need, false) {
                        Some(at) => {
                            let range = &mut model.units[at..at + need];
                            prop_assert!(range.iter().all(Option::is_none), "two pieces overlap");
                            prop_assert!(!overlap(&(at..at + need), &carver.closed), "a closed range");
                            range.fill(Some(at));
                            model.pieces.push((at, need, false));
                        }
                        None => {
                            let closed = carver.closed.clone();
                            let open = model.units.iter().enumerate().map(|(at, unit)| unit.is_none() && !closed.contains(&at));
                            let gaps: Vec<bool> = open.collect();
                            prop_assert!(gaps.split(|open| !open).all(|gap| gap.len() < need), "step {number}");
                        }
                    },
                    Step::Free(pick) => if let Some(pick) = picked(pick) {
                        let (at, len, _) = model.pieces.swap_remove(pick);
                        model.units[at..at + len].fill(None);
                        carver.free(at);
                    },
                    Step::MarkIdle(pick) => if let Some(pick) = picked(pick) {
                        model.pieces[pick].2 = true;
                        carver.mark(model.pieces[pick].0, Mark::Idle);
                    },
                    Step::MarkUsed(pick) => if let Some(pick) = picked(pick) {
                        model.pieces[pick].2 = false;
                        carver.mark(model.pieces[pick].0, Mark::InUse);
                    },
                    Step::Close(start, len) => carver.close(start.min(units)..(start + len).min(units)),
                    Step::Cheapest(need) => {
                        let idle = |at: usize| model.pieces.iter().any(|piece| piece.0 == at && piece.2);
                        let price = |start: usize| {
                            let mut found: Vec<usize> = model.units[start..start + need].iter().flatten().copied().collect();
                            found.dedup();
                            let used = model.pieces.iter().filter(|piece| found.contains(&piece.0) && !idle(piece.0));
                            used.map(|piece| piece.1).sum::<usize>()
                        };
                        let least = (0..=units.saturating_sub(need)).filter(|_| need <= units).map(price).min();
                        let cheapest = carver.cheapest(need, true, true);
                        prop_assert_eq!(cheapest.map(|(cost, _)| cost.0), least);
                    }
                    Step::Tightest(need) => {
                        let idle =
                            |at: usize| model.pieces.iter().any(|piece| piece.0 == at && piece.2);
                        let is_free = |unit: Option<usize>| unit.map_or(true, idle);
                        let gaps = model.gaps(is_free);
                        let tightest = gaps.iter().copied().filter(|&gap| gap >= need).min();
                        carver.close(0..0);
                        let span = carver.cheapest(need, false, false);
                        prop_assert_eq!(span.as_ref().map(|(cost, _)| (cost.0, cost.1)), tightest.map(|gap| (0, gap)));
                        let Some((_, span)) = span else { continue };
                        prop_assert!(span.len() >= need);
                        prop_assert!(model.units[span.clone()].iter().all(|&unit| is_free(unit)));
                        let end = |unit: usize| model.units.get(unit).copied().flatten();
                        let is_cut = |at: usize| at > 0 && end(at).is_some() && end(at) == end(at - 1);
                        prop_assert!(!is_cut(span.start) && !is_cut(span.end), "a piece is cut");
                        let gone: Vec<_> = model.pieces.iter().copied()
                            .filter(|piece| piece.0 < span.end && span.start < piece.0 + piece.1).collect();
                        for (at, len, _) in &gone {
                            carver.free(*at);
                            model.units[*at..at + len].fill(None);
                        }
                        model.pieces.retain(|piece| !gone.contains(piece));
                        let fits = carver.carve(need, false);
                        prop_assert!(fits.is_some(), "the range was not enough");
                        carver.free(fits.unwrap());
                    }
                }
                model.check_gaps(&carver);
                prop_assert_eq!(carver.is_empty(), model.pieces.is_empty());
                prop_assert_eq!(carver.mark_of_all() == Mark::Idle, model.pieces.iter().all(|piece| piece.2));
            }
        }
    }
}
