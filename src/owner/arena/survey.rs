//! A survey: where a length would fit if some chunks were gone.
//!
//! A survey copies the bits of each arena, and those of each heap that it comes across, one at a time
//! and under the arenas' mutex. Then it plays through, on the copies and without the mutex, that
//! chunks are freed. So other threads are not in its way, nor the survey in theirs. What it finds is
//! a hint: who acts on it evicts chunks in the usual way, and carves anew.
//!
//! The time that it takes depends on the number of pages and on that of the chunks that are freed in
//! it, and for short lengths on the number of gaps.

#![forbid(unsafe_code)]

use super::{Arenas, Carved, Place, Site};
use crate::os::posix::has_heap;
use crate::owner::bits::{overlap, Bits};
use crate::owner::limits::{Grain, Need, MIN_SIZE};
use crate::protocol::control::MAX_SEGMENTS;
use std::collections::BTreeMap;
use std::ops::Range;

/// Where a piece of memory lies.
#[derive(Clone)]
pub(crate) struct Position {
    serial: u64,
    /// In bytes from the segment's start.
    range: Range<usize>,
    place: Place,
}

impl Carved {
    pub(crate) fn position(&self) -> Position {
        Position {
            serial: self.payload.serial(),
            range: self.range(),
            place: self.place,
        }
    }
}

/// More than a map of heaps takes for one of them, in bytes.
const NODE: usize = 4096;

pub(crate) struct Survey<'a> {
    arenas: &'a Arenas,
    need: Need,
    /// The need in pages.
    pages: usize,
    /// Includes the region.
    anywhere: bool,
    maps: Vec<ArenaMap>,
    /// By number.
    heaps: BTreeMap<u32, HeapMap>,
    /// The need fits in a gap that the survey has made.
    fits: bool,
}

/// A copy of an arena's bits.
struct ArenaMap {
    serial: u64,
    is_bare: bool,
    carved: Bits,
    /// In the same run as the page before.
    joined: Bits,
    /// Carved, and not freed in this survey.
    left: Bits,
    /// Never to be freed, or not within a useful time.
    pinned: Bits,
    /// The part of the region that is out of bounds.
    closed: Range<usize>,
}

/// A copy of a heap's bits.
struct HeapMap {
    serial: u64,
    /// In bytes.
    run: Range<usize>,
    carved: Bits,
    left: Bits,
}

/// An arena that may make way for a longer one.
struct Candidate {
    serial: u64,
    pages: usize,
    used: usize,
}

/// Where the need fits once the pieces there are freed.
struct Fit {
    /// The gap that is left then.
    gap: usize,
    /// The units of pieces there.
    freed: usize,
    range: Range<usize>,
}

impl Fit {
    /// Prefers the shorter gap, and then what frees less.
    fn is_better_than(&self, other: &Option<Self>) -> bool {
        match other {
            Some(other) => (self.gap, self.freed) < (other.gap, other.freed),
            None => true,
        }
    }
}

/// Finds the shortest gap that is long enough, and in it the end where less is freed.
fn find_tightest(carved: &Bits, left: &Bits, need: usize) -> Option<Fit> {
    let mut best = None;
    let mut from = 0;
    while let Some(gap) = left.next_long_clear(need, from..left.len()) {
        from = gap.end;
        for start in [gap.start, gap.end - need] {
            let range = start..start + need;
            let fit = Fit {
                gap: gap.len(),
                freed: carved.count(range.clone()),
                range,
            };
            if fit.is_better_than(&best) {
                best = Some(fit);
            }
        }
    }
    best
}

/// Clears the bits of a piece. Returns the length of the gap that it is in now.
fn free_in(left: &mut Bits, piece: Range<usize>) -> usize {
    left.clear(piece.clone());
    left.next_set(piece.end..left.len()) - left.start_of_clear(piece.start)
}

impl ArenaMap {
    /// `None`: no private memory.
    fn new(serial: u64, pages: usize) -> Option<Self> {
        Some(Self {
            serial,
            is_bare: false,
            carved: Bits::new(pages)?,
            joined: Bits::new(pages)?,
            left: Bits::new(pages)?,
            pinned: Bits::new(pages)?,
            closed: 0..0,
        })
    }

    /// Returns the start of the window of `len` pages within `range` where the fewest pages have to
    /// go, and their number: all pages of each run that the window overlaps. Of equal ones, the
    /// first.
    ///
    /// Of the windows with the same runs, only the last one is examined: it ends where the next run
    /// begins.
    fn emptiest(&self, len: usize, range: Range<usize>) -> Option<(usize, usize)> {
        let mut best: Option<(usize, usize)> = None;
        // The runs from `first` on overlap the window, up to and without `next`.
        let mut first = self.next_run(range.clone());
        let mut next = first.clone();
        let mut price = 0;
        loop {
            if next.start >= range.start + len {
                let start = next.start - len;
                while first.end <= start {
                    price -= first.len();
                    first = self.next_run(first.end..range.end);
                }
                let is_better = match best {
                    Some((_, least)) => price < least,
                    None => true,
                };
                if is_better {
                    best = Some((start, price));
                }
            }
            if next.start == range.end {
                return best;
            }
            price += next.len();
            next = self.next_run(next.end..range.end);
        }
    }

    /// Returns the first run within `range` that is left, or an empty one at its end.
    fn next_run(&self, range: Range<usize>) -> Range<usize> {
        let start = self.left.next_set(range.clone());
        if start == range.end {
            return start..start;
        }
        let joined_end = self.joined.next_clear(start + 1..range.end);
        start..self.left.next_clear(start + 1..joined_end)
    }
}

impl Arenas {
    /// Begins a survey, with the region as a part of it if `anywhere`. `None`: no private memory.
    pub(crate) fn survey(&self, need: Need, anywhere: bool) -> Option<Survey<'_>> {
        let mut maps = Vec::with_capacity(MAX_SEGMENTS);
        for number in 0..MAX_SEGMENTS {
            // Memory is allocated, and touched, without the mutex.
            let state = self.state.lock();
            let Some(arena) = state.arenas.get(number) else {
                break;
            };
            let serial = arena.payload.serial();
            let pages = arena.pages.pages();
            drop(state);
            let mut map = ArenaMap::new(serial, pages)?;
            let mut state = self.state.lock();
            // It may have been removed.
            let Some(arena) = state.arena(serial) else {
                continue;
            };
            if arena.pages.pages() != pages {
                continue;
            }
            map.is_bare = arena.is_bare;
            map.carved.copy_from(arena.pages.carved());
            map.joined.copy_from(arena.pages.joined());
            map.pinned.copy_from(arena.pages.leaked());
            if !anywhere {
                map.closed = arena.pages.closed().clone();
            }
            drop(state);
            map.left.copy_from(&map.carved);
            map.left.set(map.closed.clone());
            maps.push(map);
        }
        Some(Survey {
            arenas: self,
            need,
            pages: need.size.div_ceil(self.page),
            anywhere,
            maps,
            heaps: BTreeMap::new(),
            fits: false,
        })
    }

    /// Returns the pages, with the whole of each run that they overlap.
    fn widened(&self, serial: u64, pages: Range<usize>) -> Range<usize> {
        let mut state = self.state.lock();
        match state.arena(serial) {
            Some(arena) if pages.end <= arena.pages.pages() => arena.pages.widened(pages),
            _ => pages,
        }
    }
}

impl Survey<'_> {
    /// Plays through that a piece is freed. It must exist.
    pub(crate) fn free(&mut self, piece: &Position) {
        match piece.place {
            Place::Arena => self.free_run(piece.serial, &piece.range),
            Place::Heap(number) => self.free_lines(number, piece),
        }
    }

    fn free_run(&mut self, serial: u64, bytes: &Range<usize>) {
        let pages = self.arenas.pages_of(bytes);
        let Some(map) = self.map(serial) else {
            return;
        };
        if pages.end > map.left.len() || overlap(&map.closed, &pages) {
            return;
        }
        let gap = free_in(&mut map.left, pages);
        self.fits |= gap >= self.pages;
    }

    fn free_lines(&mut self, number: u32, piece: &Position) {
        if !self.heaps.contains_key(&number) {
            let Some(map) = self.map_heap(number, piece) else {
                return;
            };
            // A map that finds no memory for a node would abort the process.
            if !has_heap(NODE) {
                return;
            }
            self.heaps.insert(number, map);
        }
        let Some(heap) = self.heaps.get_mut(&number) else {
            return;
        };
        if piece.range.start < heap.run.start || piece.range.end > heap.run.end {
            return;
        }
        let start = (piece.range.start - heap.run.start) / MIN_SIZE;
        let lines = start..start + piece.range.len() / MIN_SIZE;
        let gap = free_in(&mut heap.left, lines);
        if self.need.grain == Grain::Line {
            self.fits |= gap >= self.need.size / MIN_SIZE;
        }
        if gap == heap.left.len() {
            let run = heap.run.clone();
            self.free_run(piece.serial, &run);
        }
    }

    /// Copies the bits of a piece's heap, unless that is out of bounds.
    fn map_heap(&self, number: u32, piece: &Position) -> Option<HeapMap> {
        let state = self.arenas.state.lock();
        let lines = state.heaps.get(number)?.lines().len();
        drop(state);
        let mut carved = Bits::new(lines)?;
        let mut left = Bits::new(lines)?;
        let state = self.arenas.state.lock();
        let heap = state.heaps.get(number)?;
        let is_apart = match &state.region {
            Some(region) => !self.anywhere && region.site.takes(heap.run()),
            None => false,
        };
        if is_apart || heap.lines().len() != lines {
            return None;
        }
        carved.copy_from(heap.lines());
        let run = heap.run().range();
        drop(state);
        left.copy_from(&carved);
        Some(HeapMap {
            serial: piece.serial,
            run,
            carved,
            left,
        })
    }

    fn map(&mut self, serial: u64) -> Option<&mut ArenaMap> {
        self.maps.iter_mut().find(|map| map.serial == serial)
    }

    /// Returns the tightest site where only pieces that were freed in this survey have to go.
    pub(crate) fn tightest(&self) -> Option<Site> {
        if !self.fits {
            return None;
        }
        if let Some(site) = self.tightest_lines() {
            return Some(site);
        }
        self.tightest_pages()
    }

    fn tightest_lines(&self) -> Option<Site> {
        if self.need.grain == Grain::Page {
            return None;
        }
        let mut best = None;
        let mut best_heap = None;
        for heap in self.heaps.values() {
            let lines = self.need.size / MIN_SIZE;
            let Some(fit) = find_tightest(&heap.carved, &heap.left, lines) else {
                continue;
            };
            if fit.is_better_than(&best) {
                best = Some(fit);
                best_heap = Some(heap);
            }
        }
        let lines = best?.range;
        let heap = best_heap?;
        let start = heap.run.start + lines.start * MIN_SIZE;
        let end = heap.run.start + lines.end * MIN_SIZE;
        Some(Site::part(heap.serial, start..end))
    }

    fn tightest_pages(&self) -> Option<Site> {
        let mut best = None;
        let mut serial = 0;
        for map in &self.maps {
            if map.is_bare {
                continue;
            }
            let Some(fit) = find_tightest(&map.carved, &map.left, self.pages) else {
                continue;
            };
            if fit.is_better_than(&best) {
                best = Some(fit);
                serial = map.serial;
            }
        }
        Some(self.site_of_pages(serial, best?.range))
    }

    /// With the whole of each run there: all pieces of a heap have to go.
    fn site_of_pages(&self, serial: u64, pages: Range<usize>) -> Site {
        let pages = self.arenas.widened(serial, pages);
        Site::part(serial, self.arenas.bytes_of(&pages))
    }

    /// Keeps a piece out of [`emptiest`](Self::emptiest).
    pub(crate) fn pin(&mut self, piece: &Position) {
        let run = match piece.place {
            Place::Arena => piece.range.clone(),
            Place::Heap(number) => {
                let state = self.arenas.state.lock();
                match state.heaps.get(number) {
                    Some(heap) => heap.run().range(),
                    None => return,
                }
            }
        };
        let pages = self.arenas.pages_of(&run);
        if let Some(map) = self.map(piece.serial) {
            if pages.end <= map.pinned.len() {
                map.pinned.set(pages);
            }
        }
    }

    /// Keeps all runs that overlap a site out of [`emptiest`](Self::emptiest).
    pub(crate) fn pin_site(&mut self, site: &Site) {
        for (serial, part) in &site.parts {
            let pages = self.arenas.widened(*serial, self.arenas.pages_of(part));
            let Some(map) = self.map(*serial) else {
                continue;
            };
            let end = pages.end.min(map.carved.len());
            let runs = map.carved.set_runs(pages.start.min(end)..end);
            for run in runs {
                map.pinned.set(run);
            }
        }
    }

    /// Returns the site without pinned pieces where the fewest pages are in use.
    pub(crate) fn emptiest(&self) -> Option<Site> {
        let mut least = usize::MAX;
        let mut best = None;
        for map in &self.maps {
            if map.is_bare {
                continue;
            }
            for range in map.pinned.clear_runs(0..map.pinned.len()) {
                let Some((start, used)) = map.emptiest(self.pages, range) else {
                    continue;
                };
                if used < least {
                    least = used;
                    best = Some((map.serial, start));
                }
            }
        }
        let (serial, start) = best?;
        Some(self.site_of_pages(serial, start..start + self.pages))
    }

    /// Selects arenas to make way for one that is long enough: those with the fewest pages in use,
    /// or without any unless `in_use`, until they and the rest of the cap are long enough.
    pub(crate) fn surrender(&self, in_use: bool) -> Option<Site> {
        let arenas = self.arenas;
        let len = self.need.size.next_multiple_of(arenas.page);
        let mut spanned = 0;
        let mut candidates = Vec::new();
        for map in &self.maps {
            let pages = map.left.len();
            spanned += pages * arenas.page;
            let used = map.left.count(0..pages);
            let is_pinned = map.pinned.next_set(0..pages) < pages;
            if !is_pinned && (in_use || used == 0) {
                candidates.push(Candidate {
                    serial: map.serial,
                    pages,
                    used,
                });
            }
        }
        candidates.sort_unstable_by_key(|candidate| (candidate.used, candidate.pages));
        if arenas.all_or_none && candidates.len() < self.maps.len() {
            return None;
        }
        // A new segment needs the place of another one.
        let is_full = self.maps.len() == MAX_SEGMENTS;
        let mut room = arenas.max.saturating_sub(spanned);
        let mut parts = Vec::new();
        for candidate in candidates {
            let must_go = arenas.all_or_none || is_full && parts.is_empty();
            if room >= len && !must_go {
                break;
            }
            let bytes = candidate.pages * arenas.page;
            room += bytes;
            parts.push((candidate.serial, 0..bytes));
        }
        if room < len || len > arenas.longest || parts.is_empty() {
            return None;
        }
        Some(Site {
            parts,
            is_surrender: true,
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::owner::arena::tests::{carve, provider, OTHER};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn emptiest_of_model(
            runs in proptest::collection::vec((any::<bool>(), 1..12usize), 1..40),
            need in 1..30usize,
        ) {
            let pages = runs.iter().map(|(_, len)| len).sum();
            let mut map = ArenaMap::new(1, pages).unwrap();
            let mut used = Vec::new();
            let mut at = 0;
            for (is_used, len) in runs {
                if is_used {
                    used.push(at..at + len);
                    map.left.set(at..at + len);
                    map.joined.set(at + 1..at + len);
                }
                at += len;
            }
            let price = |start: usize| -> usize {
                let there = used.iter().filter(|run| overlap(run, &(start..start + need)));
                there.map(|run| run.len()).sum()
            };
            let least = (0..=pages).filter(|start| start + need <= pages).map(price).min();
            let found = map.emptiest(need, 0..pages);
            prop_assert_eq!(found.map(|(_, price)| price), least);
            if let Some((start, found)) = found {
                prop_assert_eq!(price(start), found);
            }
        }

        #[test]
        fn tightest_of_model(
            states in proptest::collection::vec(0..3u8, 1..200),
            need in 1..20usize,
        ) {
            // 0: free, 1: freed in the survey, 2: in use.
            let mut carved = Bits::new(states.len()).unwrap();
            let mut left = Bits::new(states.len()).unwrap();
            for (at, &state) in states.iter().enumerate() {
                if state > 0 {
                    carved.set(at..at + 1);
                }
                if state > 1 {
                    left.set(at..at + 1);
                }
            }
            let gaps = states.split(|&state| state > 1).map(<[u8]>::len);
            let shortest = gaps.filter(|&gap| gap >= need).min();
            let fit = find_tightest(&carved, &left, need);
            prop_assert_eq!(fit.as_ref().map(|fit| fit.gap), shortest);
            if let Some(fit) = fit {
                prop_assert_eq!(fit.range.len(), need);
                let there = &states[fit.range];
                prop_assert!(there.iter().all(|&state| state < 2));
                prop_assert_eq!(fit.freed, there.iter().filter(|&&state| state == 1).count());
            }
        }
    }

    /// What a survey finds is enough room, once the pieces there are gone.
    #[test]
    fn sites_are_enough() {
        let provider = provider("survey", 1 << 20);
        let arenas = &provider.pool().arenas;
        let page = arenas.page;
        let mut random = fastrand::Rng::with_seed(1);
        let mut pieces: Vec<Carved> = Vec::new();
        let mut sites = 0;
        for round in 0..300 {
            loop {
                let (len, grain) = if random.bool() {
                    (page * random.usize(1..6), Grain::Page)
                } else {
                    (MIN_SIZE * random.usize(1..100), Grain::Line)
                };
                match carve(arenas, len, grain) {
                    Some(piece) => pieces.push(piece),
                    None => break,
                }
            }
            random.shuffle(&mut pieces);
            let need = if random.bool() {
                Need {
                    size: page * random.usize(2..20),
                    grain: Grain::Page,
                }
            } else {
                Need {
                    size: MIN_SIZE * random.usize(100..200),
                    grain: Grain::Line,
                }
            };
            let idle = pieces.len() / 2;
            let pinned = idle + random.usize(..3);
            let mut survey = arenas.survey(need, true).unwrap();
            assert!(survey.tightest().is_none(), "nothing was freed");
            for piece in &pieces[..idle] {
                survey.free(&piece.position());
            }
            for piece in &pieces[idle..pinned] {
                survey.pin(&piece.position());
            }
            let tightest = survey.tightest();
            let emptiest = survey.emptiest();
            drop(survey);
            let (site, may_free) = match tightest {
                Some(site) => (site, idle),
                None => match emptiest {
                    Some(site) => (site, pieces.len()),
                    None => continue,
                },
            };
            let mut kept = Vec::new();
            for (number, piece) in std::mem::take(&mut pieces).into_iter().enumerate() {
                if !site.takes(&piece) {
                    kept.push(piece);
                    continue;
                }
                assert!(number < may_free, "round {round}: a piece in use");
                let is_pinned = may_free > idle && (idle..pinned).contains(&number);
                assert!(!is_pinned, "round {round}: a pinned piece");
                arenas.free(piece);
            }
            pieces = kept;
            sites += 1;
            let found = if need.grain == Grain::Line {
                carve(arenas, need.size, need.grain)
            } else {
                arenas
                    .carve_run(need.size, OTHER, false)
                    .map(|found| found.0)
            };
            pieces.push(found.unwrap_or_else(|| panic!("round {round}: no room for {need:?}")));
            for _ in 0..pieces.len() / 4 {
                arenas.free(pieces.pop().unwrap());
            }
        }
        assert!(sites > 200, "{sites}");
        for piece in pieces {
            arenas.free(piece);
        }
    }

    /// What is left to a reader is in no site.
    #[test]
    fn leaked_pieces_stay() {
        let provider = provider("leaked", 64 << 10);
        let arenas = &provider.pool().arenas;
        let page = arenas.page;
        let mut runs = Vec::new();
        while let Some(run) = carve(arenas, page, Grain::Page) {
            runs.push(run);
        }
        runs.sort_by_key(Carved::offset);
        let half = runs.len() / 2;
        arenas.leak(&runs[half]);
        let need = |pages: usize| Need {
            size: page * pages,
            grain: Grain::Page,
        };
        let survey = arenas.survey(need(half), true).unwrap();
        let site = survey.emptiest().expect("room before the piece");
        assert!(site.takes(&runs[0]) && !site.takes(&runs[half]));
        let survey = arenas.survey(need(half + 1), true).unwrap();
        assert!(survey.emptiest().is_none() && survey.surrender(true).is_none());
    }
}
