//! Carves a range of memory into pieces of whole units. The only file that names talc.
//!
//! talc keeps its lists and tags in the memory that it manages. Here that is not the shared memory.
//! Each carver has a *shadow*: private memory with one talc unit of 32 bytes for each unit of the
//! range. What talc carves out of the shadow stands for the same part of the range. So
//!
//! * a process that can write to the range cannot damage the allocator,
//! * the range's own bytes are never touched: its pages may be holes, and its last reader may still
//!   be reading,
//! * a range of `n` units holds `n` of them: nothing is lost to tags or alignment.
//!
//! That pieces never overlap follows from talc's contract alone: a piece of `n` units is an
//! allocation of `32 n - 8` bytes, aligned to 32.
//!
//! # Condemned pieces
//!
//! When nothing fits, idle pieces make room. Which ones must go depends on which are neighbours. So
//! the owner of the pieces *condemns* them, and [`Carver::window`] finds a gap as if condemned
//! pieces were free. Condemning changes nothing else, and [`Carver::spare`] undoes it.

use std::alloc::{alloc_zeroed, dealloc, Layout};
use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr::NonNull;
use talc::base::{Talc, CHUNK_UNIT};
use talc::source::Manual;
use talc::DefaultBinning;

/// What talc writes before the first unit, in bytes: the tag at a heap's base.
const TAG: usize = std::mem::size_of::<usize>();

/// Bytes of the shadow for talc's lists, a multiple of talc's unit.
const LISTS: usize = talc::min_first_heap_size::<DefaultBinning>().div_ceil(CHUNK_UNIT) * CHUNK_UNIT;

/// A range of memory and the pieces carved from it, in units from its start.
pub(super) struct Carver {
    talc: Talc<Manual, DefaultBinning>,
    shadow: Shadow,
    units: usize,
    /// What is carved, by first unit.
    pieces: BTreeMap<usize, Piece>,
    /// How many units are carved.
    carved: usize,
    /// How many pieces are condemned.
    condemned: usize,
}

struct Piece {
    units: usize,
    is_condemned: bool,
}

/// talc's memory: its lists, a unit for the tag, and the shadow of each unit. Nobody else reads or
/// writes it. It outlives its carver to serve another one, if it is large enough.
pub(super) struct Shadow {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its memory, as a box does.
unsafe impl Send for Shadow {}

impl Shadow {
    /// `None`: the system has no memory for it.
    fn new(units: usize) -> Option<Self> {
        let layout = Self::layout(units)?;
        // Zeroed memory comes from the system untouched, so a large shadow takes memory only where
        // pieces begin and end.
        // SAFETY: the layout's size is not zero: `layout` adds the lists.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { start, layout })
    }

    /// The memory that a shadow of `units` units takes.
    fn layout(units: usize) -> Option<Layout> {
        let bytes = units.checked_mul(CHUNK_UNIT)?.checked_add(LISTS + CHUNK_UNIT)?;
        Layout::from_size_align(bytes, CHUNK_UNIT).ok()
    }

    /// Is it large enough for `units` units?
    pub(super) fn holds(&self, units: usize) -> bool {
        Self::layout(units).is_some_and(|layout| layout.size() <= self.layout.size())
    }

    /// The shadow of the unit at `at`, which is at most the number of units.
    fn unit(&self, at: usize) -> *mut u8 {
        // SAFETY: `layout` reserves this much, so the address is inside the allocation or one past
        // its end.
        unsafe { self.start.as_ptr().add(LISTS + CHUNK_UNIT + at * CHUNK_UNIT) }
    }
}

impl Drop for Shadow {
    fn drop(&mut self) {
        // SAFETY: `new` allocated it with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// The allocation in the shadow that stands for a piece of `units` units.
fn shadow_of(units: usize) -> Option<Layout> {
    let bytes = units.checked_mul(CHUNK_UNIT)?.checked_sub(TAG)?;
    Layout::from_size_align(bytes, CHUNK_UNIT).ok()
}

impl Carver {
    /// A carver of which nothing is carved. `None`: the system has no private memory for the
    /// shadow.
    pub(super) fn new(units: usize) -> Option<Self> {
        Shadow::new(units).map(|shadow| Self::with(shadow, units))
    }

    /// As [`new`](Self::new), with the shadow of another carver, which must [hold](Shadow::holds)
    /// `units` units.
    pub(super) fn with(shadow: Shadow, units: usize) -> Self {
        let mut talc = Talc::new(Manual);
        // SAFETY: this first part of the shadow is talc's for as long as the carver lives.
        unsafe { talc.claim(shadow.start.as_ptr(), LISTS) };
        // The rest of the part for the lists stands for nothing, so it is taken out of use for
        // good.
        let unit = Layout::new::<[usize; 3]>();
        // SAFETY: the layout's size is not zero.
        while unsafe { talc.try_allocate(unit) }.is_some() {}
        // SAFETY: `layout` reserves a unit for the tag before the first one.
        let tag = unsafe { shadow.unit(0).sub(TAG) };
        // SAFETY: this second part of the shadow is talc's for as long as the carver lives, and
        // does not overlap the first.
        unsafe { talc.claim(tag, TAG + units * CHUNK_UNIT) };
        Self { talc, shadow, units, pieces: BTreeMap::new(), carved: 0, condemned: 0 }
    }

    /// The shadow, for another carver.
    pub(super) fn into_shadow(self) -> Shadow {
        self.shadow
    }

    /// Carves a piece of `units` units, and returns its first unit. `None`: no gap is that large.
    pub(super) fn carve(&mut self, units: usize) -> Option<usize> {
        let layout = shadow_of(units)?;
        // SAFETY: the layout's size is not zero: `shadow_of` gives at least 24 bytes.
        let piece = unsafe { self.talc.try_allocate(layout) }?;
        let at = (piece.as_ptr() as usize).wrapping_sub(self.shadow.unit(0) as usize) / CHUNK_UNIT;
        if at.checked_add(units).map_or(true, |end| end > self.units) {
            // Only if talc used memory outside its claim. Better lost than handed out.
            debug_assert!(false, "talc carved outside the range");
            return None;
        }
        self.pieces.insert(at, Piece { units, is_condemned: false });
        self.carved += units;
        Some(at)
    }

    /// Is there a gap for a piece of `units` units? talc finds out faster than a look at all pieces
    /// would.
    pub(super) fn has_gap(&mut self, units: usize) -> bool {
        self.carve(units).map(|at| self.free(at)).is_some()
    }

    /// Gives back the piece that begins at `at`.
    pub(super) fn free(&mut self, at: usize) {
        let Some(piece) = self.pieces.remove(&at) else { return };
        self.carved -= piece.units;
        self.condemned -= usize::from(piece.is_condemned);
        if let Some(layout) = shadow_of(piece.units) {
            // SAFETY: `carve` allocated it with this layout. It is off the list of pieces now, so
            // it is freed once.
            unsafe { self.talc.deallocate(self.shadow.unit(at), layout) };
        }
    }

    pub(super) fn units(&self) -> usize {
        self.units
    }

    /// Units that are not carved.
    pub(super) fn free_units(&self) -> usize {
        self.units - self.carved
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Are all pieces condemned?
    pub(super) fn is_all_condemned(&self) -> bool {
        self.condemned == self.pieces.len()
    }

    pub(super) fn condemn(&mut self, at: usize) {
        self.mark(at, true);
    }

    pub(super) fn spare(&mut self, at: usize) {
        self.mark(at, false);
    }

    fn mark(&mut self, at: usize, condemned: bool) {
        if let Some(piece) = self.pieces.get_mut(&at).filter(|piece| piece.is_condemned != condemned) {
            piece.is_condemned = condemned;
            self.condemned = if condemned { self.condemned + 1 } else { self.condemned - 1 };
        }
    }

    /// Where `need` units would fit if condemned pieces were free: at the start or the end of the
    /// tightest such gap, whichever has fewer condemned units. The range is widened to whole
    /// pieces, so it may be longer than `need`. Returned with the gap's length.
    pub(super) fn window(&self, need: usize) -> Option<(usize, Range<usize>)> {
        let kept = self.pieces.iter().filter(|(_, piece)| !piece.is_condemned);
        let starts = kept.clone().map(|(start, _)| *start).chain([self.units]);
        let ends = std::iter::once(0).chain(kept.map(|(start, piece)| start + piece.units));
        let gaps = ends.zip(starts).map(|(start, end)| start..end).filter(|gap| gap.len() >= need);
        let gap = gaps.min_by_key(ExactSizeIterator::len)?;
        let windows = [gap.start..gap.start + need, gap.end - need..gap.end].into_iter();
        let window = windows.min_by_key(|window| self.pieces_in(window).map(|piece| piece.len()).sum::<usize>())?;
        let whole = |whole: Range<usize>, piece: Range<usize>| whole.start.min(piece.start)..whole.end.max(piece.end);
        Some((gap.len(), self.pieces_in(&window).fold(window.clone(), whole)))
    }

    /// The pieces that lie in a range or reach into it.
    fn pieces_in<'a>(&'a self, range: &'a Range<usize>) -> impl Iterator<Item = Range<usize>> + 'a {
        let pieces = self.pieces.range(..range.end).rev().map(|(start, piece)| *start..start + piece.units);
        pieces.take_while(|piece| piece.end > range.start)
    }

    /// The gaps between pieces, in order.
    pub(super) fn gaps(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let starts = self.pieces.keys().copied().chain([self.units]);
        let ends = std::iter::once(0).chain(self.pieces.iter().map(|(start, piece)| start + piece.units));
        ends.zip(starts).map(|(start, end)| start..end).filter(|gap| !gap.is_empty())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_range_holds_as_many_units_as_it_has() {
        for units in [1, 2, 3, 15, 64, 1000, 16_384] {
            let mut carver = Carver::new(units).unwrap();
            assert_eq!(carver.carve(units), Some(0), "all of {units} in one piece");
            assert_eq!(carver.carve(1), None);
            carver.free(0);
            assert!(carver.is_empty());
            let mut singles: Vec<usize> = std::iter::from_fn(|| carver.carve(1)).collect();
            singles.sort_unstable();
            assert_eq!(singles, (0..units).collect::<Vec<_>>(), "{units} pieces of one unit");
        }
    }

    /// What may happen next. A number picks one of the existing pieces.
    #[derive(Clone, Debug)]
    enum Step {
        Carve(usize),
        Free(usize),
        Condemn(usize),
        Spare(usize),
        Window(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let pick = || 0..64usize;
        prop_oneof![
            4 => (1..40usize).prop_map(Step::Carve),
            2 => pick().prop_map(Step::Free),
            3 => pick().prop_map(Step::Condemn),
            1 => pick().prop_map(Step::Spare),
            2 => (1..120usize).prop_map(Step::Window),
        ]
    }

    /// Each unit is free, or holds the first unit of the piece it belongs to. A piece may be
    /// condemned.
    struct Model {
        units: Vec<Option<usize>>,
        pieces: Vec<(usize, usize, bool)>,
    }

    impl Model {
        /// The lengths of the gaps.
        fn gaps(&self, is_free: impl Fn(Option<usize>) -> bool) -> Vec<usize> {
            self.units.split(|unit| !is_free(*unit)).map(<[_]>::len).collect()
        }

        fn check_gaps(&self, carver: &Carver) {
            let mut free = vec![false; self.units.len()];
            carver.gaps().flatten().for_each(|unit| free[unit] = true);
            let expected: Vec<bool> = self.units.iter().map(Option::is_none).collect();
            assert_eq!(free, expected);
        }
    }

    /// A new carver, or one with a used shadow that is larger than it needs.
    fn carver(units: usize, is_used: bool) -> Carver {
        if !is_used {
            return Carver::new(units).unwrap();
        }
        let mut other = Carver::new(units + 7).unwrap();
        let pieces: Vec<usize> = std::iter::from_fn(|| other.carve(2)).collect();
        pieces.iter().step_by(3).for_each(|&at| other.free(at));
        let shadow = other.into_shadow();
        assert!(shadow.holds(units) && !shadow.holds(units + 8));
        Carver::with(shadow, units)
    }

    proptest! {
        #[test]
        fn every_history_agrees_with_the_model(
            units in 1..300usize,
            is_used: bool,
            steps in proptest::collection::vec(step(), 1..200),
        ) {
            let mut carver = carver(units, is_used);
            let mut model = Model { units: vec![None; units], pieces: Vec::new() };
            for (number, step) in steps.into_iter().enumerate() {
                let picked = |pick: usize| (!model.pieces.is_empty()).then(|| pick % model.pieces.len());
                match step {
                    Step::Carve(need) => match carver.carve(need) {
                        Some(at) => {
                            let range = &mut model.units[at..at + need];
                            prop_assert!(range.iter().all(Option::is_none), "two pieces overlap");
                            range.fill(Some(at));
                            model.pieces.push((at, need, false));
                        }
                        None => {
                            let gaps = model.gaps(|unit| unit.is_none());
                            prop_assert!(gaps.into_iter().all(|gap| gap < need), "step {number}");
                        }
                    },
                    Step::Free(pick) => if let Some(pick) = picked(pick) {
                        let (at, len, _) = model.pieces.swap_remove(pick);
                        model.units[at..at + len].fill(None);
                        carver.free(at);
                    },
                    Step::Condemn(pick) => if let Some(pick) = picked(pick) {
                        model.pieces[pick].2 = true;
                        carver.condemn(model.pieces[pick].0);
                    },
                    Step::Spare(pick) => if let Some(pick) = picked(pick) {
                        model.pieces[pick].2 = false;
                        carver.spare(model.pieces[pick].0);
                    },
                    Step::Window(need) => {
                        let condemned =
                            |at: usize| model.pieces.iter().any(|piece| piece.0 == at && piece.2);
                        let is_free = |unit: Option<usize>| unit.map_or(true, condemned);
                        let gaps = model.gaps(is_free);
                        let tightest = gaps.iter().copied().filter(|&gap| gap >= need).min();
                        let window = carver.window(need);
                        prop_assert_eq!(window.as_ref().map(|window| window.0), tightest);
                        let Some((_, window)) = window else { continue };
                        prop_assert!(window.len() >= need);
                        prop_assert!(model.units[window.clone()].iter().all(|&unit| is_free(unit)));
                        let end = |unit: usize| model.units.get(unit).copied().flatten();
                        let is_cut = |at: usize| at > 0 && end(at).is_some() && end(at) == end(at - 1);
                        prop_assert!(!is_cut(window.start) && !is_cut(window.end), "a piece is cut");
                        // What lies in the window has to go; then the need fits.
                        let gone: Vec<_> = model.pieces.iter().copied()
                            .filter(|piece| piece.0 < window.end && window.start < piece.0 + piece.1).collect();
                        for (at, len, _) in &gone {
                            carver.free(*at);
                            model.units[*at..at + len].fill(None);
                        }
                        model.pieces.retain(|piece| !gone.contains(piece));
                        let fits = carver.carve(need);
                        prop_assert!(fits.is_some(), "the window was not enough");
                        carver.free(fits.unwrap());
                    }
                }
                model.check_gaps(&carver);
                prop_assert_eq!(carver.is_empty(), model.pieces.is_empty());
                prop_assert_eq!(carver.is_all_condemned(), model.pieces.iter().all(|piece| piece.2));
            }
        }
    }
}
