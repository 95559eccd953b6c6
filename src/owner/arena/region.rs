//! Making room for a length that fits nowhere: at most one region, which belongs to the size class
//! that was refused, until its pieces are freed.
//!
//! | request or event | in the region |
//! |---|---|
//! | a run or a piece for its class | is carved wherever it fits, in part there or not, and the region ends |
//! | a run or a piece for another class | is carved only if it fits nowhere else |
//! | a chunk is dropped | it returns to the arena, not to a free list (see `pool::release`) |
//!
//! If no arena is long enough for the length, the region is whole arenas. Nothing is carved there
//! for its class: once they are empty, they make way for a longer one.
//!
//! # States
//!
//! | state | free pages of the region | its heaps | left |
//! |---|---|---|---|
//! | no region | all are in talc's gaps | are open | by [`keep_region`](Arenas::keep_region) |
//! | a part of an arena | are absorbed by the carver's closed range when talc offers them, and when they are freed | are set apart when a search comes across them | when the class is served, when the region has lapsed and anything is carved, or when another one is chosen |
//! | whole arenas | stay in talc, which is not asked | as above | in the same ways, and when the arenas are empty |
//!
//! A request of another class that fits nowhere else is served from absorbed pages and from heaps
//! that are set apart, and the region stays as it is. When a region ends, absorbed pages return to
//! talc, and heaps that are set apart are open again.
//!
//! A region ends [`LAPSE`] after its class was last refused. Another class may replace it [`LAPSE`]
//! after it was chosen.

#![forbid(unsafe_code)]

use super::{ArenaState, Arenas, Carved};
use crate::owner::bits::overlap;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a region stays after its class was last refused, and how soon it may be replaced.
const LAPSE: Duration = Duration::from_millis(250);

/// A region is replaced after 2 seconds at the latest.
const MAX_TIMEOUT: u32 = 8;

/// Where a length fits once the pieces there are freed: a part of one arena, or whole arenas.
#[derive(Clone)]
pub(crate) struct Site {
    /// Segments by serial number, with the part of each in bytes.
    pub(super) parts: Vec<(u64, Range<usize>)>,
    pub(super) is_surrender: bool,
}

impl Site {
    pub(super) fn part(serial: u64, bytes: Range<usize>) -> Self {
        Self {
            parts: vec![(serial, bytes)],
            is_surrender: false,
        }
    }

    /// Whole arenas, which have to make way for a longer one.
    pub(crate) fn is_surrender(&self) -> bool {
        self.is_surrender
    }

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
    /// Notes that a class was refused. Returns `true` if the caller is to choose a region for it
    /// now.
    pub(crate) fn note_refused(&self, class: usize) -> bool {
        let mut state = self.state.lock();
        let now = Instant::now();
        if let Some(region) = &mut state.region {
            let mut timeout = LAPSE;
            if region.class == class {
                region.asked = now;
                timeout = LAPSE * region.timeout;
            }
            let is_due = now.duration_since(region.chosen) > timeout;
            if is_due {
                // When to choose again, if this search fails.
                region.chosen = now;
            }
            return is_due;
        }
        // Not after a single refusal: usually a chunk is dropped soon. The class that was refused
        // first has priority.
        match state.refused {
            Some((refused, at)) if now.saturating_duration_since(at) <= LAPSE => {
                let is_due = refused == class && now >= at;
                if is_due {
                    state.refused = Some((class, now + LAPSE));
                }
                is_due
            }
            _ => {
                state.refused = Some((class, now));
                false
            }
        }
    }

    pub(crate) fn is_kept_from(&self, class: usize) -> bool {
        let state = self.state.lock();
        match &state.region {
            Some(region) => region.class != class && !region.has_lapsed(),
            None => false,
        }
    }

    /// Returns `true` even if the region has lapsed: a request that has kept away from it until then
    /// has to search again.
    pub(crate) fn has_region_of_another(&self, class: usize) -> bool {
        let state = self.state.lock();
        match &state.region {
            Some(region) => region.class != class,
            None => false,
        }
    }

    /// Without a region, this is one relaxed load.
    #[cfg(feature = "unstable-backend")]
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
        match &state.region {
            Some(region) if !region.has_lapsed() && is_meant(region) => Some(region.class),
            _ => None,
        }
    }

    pub(crate) fn has_other_sites(&self) -> bool {
        match &self.state.lock().region {
            Some(region) => !region.site.is_surrender,
            None => false,
        }
    }

    pub(crate) fn region_of(&self, class: usize) -> Option<Site> {
        match &self.state.lock().region {
            Some(region) if region.class == class => Some(region.site.clone()),
            _ => None,
        }
    }

    pub(crate) fn keep_region(&self, class: usize, site: Site) {
        let mut state = self.state.lock();
        let now = Instant::now();
        let before = match &state.region {
            Some(region) if region.class == class => region.timeout,
            _ => 0,
        };
        state.end_region();
        state.refused = None;
        for (serial, part) in &site.parts {
            let pages = self.pages_of(part);
            if let Some(arena) = state.arena(*serial) {
                arena.pages.close(pages);
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

    /// Notes that arenas make way for a longer one.
    pub(crate) fn note_merged(&self) {
        self.state.lock().is_merged = true;
    }

    /// Ends the class's region if it is whole arenas that are empty by now: they may be removed.
    /// Returns `true` if it was.
    pub(crate) fn end_surrender(&self, class: usize) -> bool {
        let mut state = self.state.lock();
        let is_its_region = match &state.region {
            Some(region) => region.class == class && region.site.is_surrender,
            None => false,
        };
        if !is_its_region {
            return false;
        }
        let mut arenas = state.arenas.iter();
        if !arenas.all(|arena| arena.pages.is_closed_free()) {
            return false;
        }
        state.end_region();
        state.is_merged = true;
        true
    }
}

impl ArenaState {
    /// Its own region, if it is a part of one arena; or one that has lapsed.
    pub(super) fn may_use_region(&self, class: usize) -> bool {
        let Some(region) = &self.region else {
            return false;
        };
        region.class == class && !region.site.is_surrender || region.has_lapsed()
    }

    /// Its own region, or one that has lapsed.
    pub(super) fn may_use_heaps_apart(&self, class: usize) -> bool {
        match &self.region {
            Some(region) => region.class == class || region.has_lapsed(),
            None => false,
        }
    }

    pub(super) fn served(&mut self, class: usize) {
        if self.may_use_heaps_apart(class) {
            self.end_region();
        }
    }

    pub(super) fn end_region(&mut self) {
        if self.region.take().is_none() {
            return;
        }
        self.has_region.store(false, Ordering::Relaxed);
        for arena in &mut self.arenas {
            arena.pages.close(0..0);
        }
        self.heaps.open_all();
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
