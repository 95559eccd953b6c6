//! Making room for a length that fits nowhere: at most one region, which belongs to the size class
//! that was refused, until its pieces are freed.
//!
//! | request or event | in the region |
//! |---|---|
//! | a run or a piece for its class | is carved wherever it fits, in part there or not, and the region ends |
//! | a run or a piece for another class | is carved only if it fits nowhere else |
//! | a chunk is dropped | it returns to the arena, not to a shelf (see `pool::release`) |
//!
//! If no arena is long enough for the length, the region is whole arenas. Nothing is carved there
//! for its class: once they are empty, they make way for a longer one.
//!
//! A region ends [`LAPSE`] after its class was last refused. Another class may replace it [`LAPSE`]
//! after it was chosen.

#![forbid(unsafe_code)]

use super::{Arena, ArenaState, Arenas, Carved};
use crate::owner::carver::{overlap, Mark};
use crate::owner::limits::{Grain, Need, MIN_SIZE};
use crate::protocol::control::MAX_SEGMENTS;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a region stays after its class was last refused, and how soon it may be replaced.
const LAPSE: Duration = Duration::from_millis(250);

const MAX_TIMEOUT: u32 = 256;

/// Where a length fits once the pieces there are freed: a part of one arena, or whole arenas.
#[derive(Clone)]
pub(crate) struct Site {
    /// Segments by serial number, with the part of each in bytes.
    parts: Vec<(u64, Range<usize>)>,
    is_surrender: bool,
}

impl Site {
    pub(crate) fn takes(&self, piece: &Carved) -> bool {
        self.overlaps(piece.payload.serial(), &piece.range())
    }

    fn overlaps(&self, serial: u64, range: &Range<usize>) -> bool {
        self.parts
            .iter()
            .any(|(other, part)| *other == serial && overlap(part, range))
    }
}

pub(super) struct Region {
    pub(super) class: usize,
    pub(super) site: Site,
    chosen: Instant,
    asked: Instant,
    /// In multiples of [`LAPSE`]: twice as long as for the previous site.
    timeout: u32,
}

impl Region {
    fn has_lapsed(&self) -> bool {
        self.asked.elapsed() > LAPSE
    }
}

impl Arenas {
    pub(crate) fn clear_marks(&self) {
        let mut state = self.state.lock();
        state
            .arenas
            .iter_mut()
            .for_each(|arena| arena.pages.clear_marks());
        state
            .heaps
            .values_mut()
            .for_each(|heap| heap.lines.clear_marks());
    }

    pub(crate) fn mark(&self, piece: &Carved, mark: Mark) {
        let mut state = self.state.lock();
        match piece.grain {
            Grain::Page => {
                if let Some(arena) = state.arena(piece) {
                    arena.pages.mark(piece.offset / self.page, mark);
                }
            }
            Grain::Line => {
                if let Some((key, heap)) = state.heap(piece) {
                    heap.lines.mark((piece.offset - key.1) / MIN_SIZE, mark);
                }
            }
        }
    }

    /// The tightest site with only idle pieces or, with `in_use`, the one with the fewest bytes in
    /// use.
    pub(crate) fn cheapest_site(&self, need: Need, in_use: bool, anywhere: bool) -> Option<Site> {
        let mut state = self.state.lock();
        state.mark_heaps(self.page);
        let site = |serial, range: Range<usize>, unit: usize, start: usize| {
            let range = start + range.start * unit..start + range.end * unit;
            Site {
                parts: vec![(serial, range)],
                is_surrender: false,
            }
        };
        if need.grain == Grain::Line && !in_use {
            let kept = state.region.as_ref().filter(|_| !anywhere);
            let heaps = state
                .heaps
                .iter()
                .filter(|(_, heap)| !kept.is_some_and(|region| region.site.takes(&heap.run)));
            let found = heaps.filter_map(|(key, heap)| {
                Some((heap.lines.cheapest(need.size / MIN_SIZE, false, true)?, key))
            });
            if let Some(((_, lines), &(serial, start))) = found.min_by_key(|((cost, _), _)| *cost) {
                return Some(site(serial, lines, MIN_SIZE, start));
            }
        }
        let pages = need.size.div_ceil(self.page);
        let found = state
            .arenas
            .iter()
            .filter(|arena| !arena.is_bare)
            .filter_map(|arena| Some((arena.pages.cheapest(pages, in_use, anywhere)?, arena)));
        let ((_, pages), arena) = found.min_by_key(|((cost, _), _)| *cost)?;
        Some(site(arena.payload.serial(), pages, self.page, 0))
    }

    /// Selects arenas to make way for one that holds `need`: those with the fewest bytes in use,
    /// until they and the rest of the cap are long enough.
    pub(crate) fn surrender(&self, need: Need, in_use: bool) -> Option<Site> {
        let mut state = self.state.lock();
        state.mark_heaps(self.page);
        let len = need.size.next_multiple_of(self.page);
        let price = |arena: &Arena| {
            arena
                .pages
                .units_in_use()
                .filter(|&units| in_use || units == 0)
        };
        let mut priced: Vec<_> = state
            .arenas
            .iter()
            .filter_map(|arena| Some((price(arena)?, arena)))
            .collect();
        priced.sort_unstable_by_key(|(price, arena)| (*price, arena.payload.len()));
        if self.all_or_none && priced.len() < state.arenas.len() {
            return None;
        }
        let is_full = state.arenas.len() == MAX_SEGMENTS;
        let mut room = self.max - state.spanned();
        let mut parts = Vec::new();
        for (_, arena) in priced {
            if room >= len && !self.all_or_none && !(is_full && parts.is_empty()) {
                break;
            }
            room += arena.payload.len();
            parts.push((arena.payload.serial(), 0..arena.payload.len()));
        }
        (room >= len && len <= self.longest && !parts.is_empty()).then_some(Site {
            parts,
            is_surrender: true,
        })
    }

    pub(crate) fn is_region_due(&self, class: usize) -> bool {
        let (mut state, now) = (self.state.lock(), Instant::now());
        match &mut state.region {
            Some(region) => {
                let is_its = region.class == class;
                if is_its {
                    region.asked = now;
                }
                let is_due = now.duration_since(region.chosen)
                    > if is_its {
                        LAPSE * region.timeout
                    } else {
                        LAPSE
                    };
                if is_due {
                    region.chosen = now; // when to choose again, if this search fails
                }
                is_due
            }
            // Not after a single refusal: usually a chunk is dropped soon. The class that was
            // refused first has priority.
            None => match state
                .refused
                .filter(|&(_, at)| now.saturating_duration_since(at) <= LAPSE)
            {
                Some((refused, at)) => {
                    let is_due = refused == class && now >= at;
                    if is_due {
                        state.refused = Some((class, now + LAPSE));
                    }
                    is_due
                }
                None => {
                    state.refused = Some((class, now));
                    false
                }
            },
        }
    }

    pub(crate) fn is_kept_from(&self, class: usize) -> bool {
        let state = self.state.lock();
        state
            .region
            .as_ref()
            .is_some_and(|region| region.class != class && !region.has_lapsed())
    }

    /// Without a region, this is one relaxed load.
    #[inline]
    pub(crate) fn region_at(&self, serial: u64, range: &Range<usize>) -> Option<usize> {
        self.waiting(|region| region.site.overlaps(serial, range))
    }

    #[inline]
    pub(crate) fn is_another_waiting(&self, class: usize) -> bool {
        self.waiting(|region| region.class != class).is_some()
    }

    #[inline]
    fn waiting(&self, is_meant: impl Fn(&Region) -> bool) -> Option<usize> {
        // Relaxed: only a hint. The caller sees a new region with its next chunk.
        if !self.has_region.load(Ordering::Relaxed) {
            return None;
        }
        let state = self.state.lock();
        let region = state
            .region
            .as_ref()
            .filter(|region| !region.has_lapsed() && is_meant(region));
        region.map(|region| region.class)
    }

    pub(crate) fn has_other_sites(&self) -> bool {
        self.state
            .lock()
            .region
            .as_ref()
            .is_some_and(|region| !region.site.is_surrender)
    }

    pub(crate) fn region_of(&self, class: usize) -> Option<Site> {
        let state = self.state.lock();
        state
            .region
            .as_ref()
            .filter(|region| region.class == class)
            .map(|region| region.site.clone())
    }

    pub(crate) fn keep_region(&self, class: usize, site: Site) {
        let (mut state, now) = (self.state.lock(), Instant::now());
        let before = state
            .region
            .as_ref()
            .filter(|region| region.class == class)
            .map_or(0, |region| region.timeout);
        state.end_region();
        state.refused = None;
        for (serial, part) in &site.parts {
            if let Some(arena) = state
                .arenas
                .iter_mut()
                .find(|arena| arena.payload.serial() == *serial)
            {
                arena
                    .pages
                    .close(part.start / self.page..part.end.div_ceil(self.page));
            }
        }
        let timeout = before.saturating_mul(2).clamp(1, MAX_TIMEOUT);
        state.region = Some(Region {
            class,
            site,
            chosen: now,
            asked: now,
            timeout,
        });
        state.has_region.store(true, Ordering::Relaxed);
    }

    /// Ends a region of whole arenas that are empty by now: they may be removed.
    pub(crate) fn is_surrendered(&self, class: usize) -> bool {
        let mut state = self.state.lock();
        let is_surrendered = matches!(&state.region, Some(region) if region.class == class && region.site.is_surrender)
            && state
                .arenas
                .iter()
                .all(|arena| arena.pages.is_closed_free());
        if is_surrendered {
            state.end_region();
            state.is_merged = true;
        }
        is_surrendered
    }
}

impl ArenaState {
    fn mark_heaps(&mut self, page: usize) {
        let ArenaState { arenas, heaps, .. } = self;
        for (&(serial, start), heap) in heaps {
            if let Some(arena) = arenas
                .iter_mut()
                .find(|arena| arena.payload.serial() == serial)
            {
                arena.pages.mark(start / page, heap.lines.mark_of_all());
            }
        }
    }

    /// Its own region, if it is a part of one arena; or one that has lapsed.
    pub(super) fn may_use_region(&self, class: usize) -> bool {
        let Some(region) = &self.region else {
            return false;
        };
        region.class == class && !region.site.is_surrender || region.has_lapsed()
    }

    pub(super) fn served(&mut self, class: usize) {
        if self
            .region
            .as_ref()
            .is_some_and(|region| region.class == class || region.has_lapsed())
        {
            self.end_region();
        }
    }

    pub(super) fn end_region(&mut self) {
        if self.region.take().is_some() {
            self.has_region.store(false, Ordering::Relaxed);
            self.arenas
                .iter_mut()
                .for_each(|arena| arena.pages.close(0..0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Namespace, Provider, Tuning};

    const MIB: usize = 1 << 20;

    /// Empty segments make way for a longer one, although a class that has given up waiting had a
    /// region.
    #[test]
    fn lapsed_region_is_in_no_way() {
        let name = format!("shm_pool-unit-{}-lapsed", std::process::id());
        let builder = Provider::builder()
            .namespace(&Namespace::new(&name).unwrap())
            .max_bytes(4 * MIB);
        let provider = builder
            .tuning(Tuning::new().arena_size(MIB))
            .build()
            .unwrap();
        let held: Vec<_> = std::iter::from_fn(|| provider.alloc(60_000).ok()).collect();
        let arenas = &provider.pool().arenas;
        // The fill's.
        arenas.state.lock().refused = None;
        let _ = [(); 2].map(|()| provider.alloc(500_000).unwrap_err());
        let is_set_aside = || arenas.has_region.load(Ordering::Relaxed);
        assert!(arenas.count_and_len().0 > 1 && is_set_aside());
        arenas.state.lock().region.as_mut().unwrap().asked -= 2 * LAPSE;
        drop(held);
        assert!(is_set_aside());
        assert_eq!(
            provider.alloc(3 * MIB).map(|buffer| buffer.len()).ok(),
            Some(3 * MIB)
        );
    }
}
