//! What has to make way when nothing fits: idle pieces and arenas, which their owner *condemns*.

#![forbid(unsafe_code)]

use super::{Arena, Arenas, Carved, Grain, Heap, Need};
use crate::owner::class::MIN_SIZE;
use crate::protocol::control::MAX_SEGMENTS;
use std::ops::Range;

/// A range that would be free if the condemned pieces in it were.
pub(crate) struct Window {
    serial: u64,
    range: Range<usize>,
}

impl Window {
    /// Does a piece lie in it, or reach into it?
    pub(crate) fn takes(&self, piece: &Carved) -> bool {
        let range = piece.range();
        piece.payload.serial() == self.serial && range.start < self.range.end && self.range.start < range.end
    }
}

impl Arenas {
    /// Condemns an idle piece.
    pub(crate) fn condemn(&self, piece: &Carved) {
        let mut state = self.state.lock();
        let mut at = piece.offset / self.page;
        if piece.grain == Grain::Line {
            let Some((key, heap)) = state.heap(piece) else { return };
            heap.lines.condemn((piece.offset - key.1) / MIN_SIZE);
            if !heap.lines.is_all_condemned() {
                return;
            }
            at = key.1 / self.page;
        }
        if let Some(arena) = state.arena(piece) {
            arena.pages.condemn(at);
        }
    }

    /// Where `need` would fit if condemned pieces were free, as tightly as possible.
    pub(crate) fn window(&self, need: Need) -> Option<Window> {
        let state = self.state.lock();
        if need.grain == Grain::Line {
            let lines = |heap: &Heap| heap.lines.window(need.size / MIN_SIZE);
            let heaps = state.heaps.iter().filter_map(|(key, heap)| lines(heap).map(|(gap, range)| (gap, key, range)));
            if let Some((_, &(serial, start), lines)) = heaps.min_by_key(|(gap, ..)| *gap) {
                let range = start + lines.start * MIN_SIZE..start + lines.end * MIN_SIZE;
                return Some(Window { serial, range });
            }
        }
        let pages = need.size.div_ceil(self.page);
        let windows = state.arenas.iter().filter_map(|arena| arena.pages.window(pages).map(|window| (window, arena)));
        let ((_, window), arena) = windows.min_by_key(|((gap, _), _)| *gap)?;
        let range = window.start * self.page..window.end * self.page;
        Some(Window { serial: arena.payload.serial(), range })
    }

    /// Undoes [`condemn`](Self::condemn) for a piece.
    pub(crate) fn spare(&self, piece: &Carved) {
        let mut state = self.state.lock();
        let mut at = piece.offset / self.page;
        if piece.grain == Grain::Line {
            let Some((key, heap)) = state.heap(piece) else { return };
            heap.lines.spare((piece.offset - key.1) / MIN_SIZE);
            at = key.1 / self.page;
        }
        if let Some(arena) = state.arena(piece) {
            arena.pages.spare(at);
        }
    }

    /// Which arenas can make way for one that holds a run of `len` bytes: the shortest of those
    /// that hold nothing but condemned pieces, until they and what the cap leaves are long enough.
    /// With `all_or_none`, all arenas or none. `None` if that is not enough.
    pub(crate) fn surrender(&self, len: usize, all_or_none: bool) -> Option<Vec<Window>> {
        let mut state = self.state.lock();
        let mut idle: Vec<&Arena> = state.arenas.iter().filter(|arena| arena.pages.is_all_condemned()).collect();
        idle.sort_unstable_by_key(|arena| arena.payload.len());
        if all_or_none && idle.len() < state.arenas.len() {
            return None;
        }
        // At the limit of segments, at least one has to go.
        let is_full = state.arenas.len() == MAX_SEGMENTS;
        let mut room = self.max - state.spanned();
        let mut windows = Vec::new();
        for arena in idle {
            if room >= len && !all_or_none && !(is_full && windows.is_empty()) {
                break;
            }
            room += arena.payload.len();
            windows.push(Window { serial: arena.payload.serial(), range: 0..arena.payload.len() });
        }
        if room < len || len > self.longest || windows.is_empty() {
            return None;
        }
        state.is_merged = true;
        Some(windows)
    }
}
