//! Arenas: the segments that all messages are carved from. They are few, large and long-lived.
//!
//! | level | carves | into | for |
//! |---|---|---|---|
//! | arena | one segment, by pages | *runs* | chunks of whole pages, and heaps |
//! | heap | one run, by cache lines | pieces | smaller chunks, to keep them together |
//!
//! All of this is off the warm path, behind one mutex. An arena has its full length from the start
//! (I4), but no memory: the thread that carves a run reserves memory for its holes outside the
//! mutex (see `pool::take`).

#![forbid(unsafe_code)]

mod region;

pub(crate) use crate::owner::carver::Mark;
pub(crate) use region::Site;

use crate::os::posix::page_size;
use crate::owner::carver::Carver;
use crate::owner::control::Payload;
use crate::owner::limits::{Account, First, Grain, Need, LAST_HEAP, MIN_SIZE, SHORTEST_HEAP};
use crate::protocol::control::MAX_SEGMENTS;
use parking_lot::Mutex;
use region::Region;
use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::Arc;
use std::time::Instant;

/// The rest of a hole is filled along with the carved part if it is at most this many bytes and
/// this share of the cap.
const REST: usize = 1 << 20;
const REST_SHARE: usize = 64;

/// The shortest and the longest heap in bytes, while the arenas can grow.
const HEAP: (usize, usize) = (SHORTEST_HEAP, 256 << 10);

const HEAP_GROWTH: usize = 16;

const LEAST_SHARE: usize = 64;

const LEAST_RUNS: usize = 8;

/// For runs above this share of the cap.
const LEAST_LARGE_RUNS: usize = 32;
const LARGE_SHARE: usize = 32;

const BITS: usize = u64::BITS as usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    ToGrow,
    Ample,
    /// Less than half of the cap is not carved: a chunk's position determines what else fits.
    Crowded,
}

pub(crate) struct Carved {
    payload: Arc<Payload>,
    /// In bytes from the segment's start.
    offset: usize,
    len: usize,
    grain: Grain,
}

pub(crate) struct Arenas {
    state: Mutex<ArenaState>,
    room: AtomicU8,
    page: usize,
    max: usize,
    first: First,
    longest: usize,
    /// Arenas make way for a longer one only all together.
    all_or_none: bool,
    /// An arena has all its memory while it has a piece.
    whole: bool,
    has_region: Arc<AtomicBool>,
}

struct ArenaState {
    arenas: Vec<Arena>,
    /// Arenas have made way for a longer one. A new arena then takes all that the cap allows,
    /// except for a [`First::OneMessage`].
    is_merged: bool,
    /// Keyed by the segment's serial number and the heap's offset.
    heaps: BTreeMap<(u64, usize), Heap>,
    /// An upper bound on what any heap can carve, in lines.
    longest_gap: usize,
    /// The bytes of all heaps, and the free ones.
    heap_bytes: usize,
    free_heap_bytes: usize,
    region: Option<Region>,
    has_region: Arc<AtomicBool>,
    /// Without a region: the class that was refused first, and when it may get one.
    refused: Option<(usize, Instant)>,
}

struct Arena {
    payload: Arc<Payload>,
    pages: Carver,
    holes: Holes,
    was_used: bool,
    /// Has to be reserved whole before anything is carved from it. It has no piece.
    is_bare: bool,
}

struct Heap {
    run: Carved,
    lines: Carver,
    /// An upper bound, in lines.
    longest_gap: usize,
}

impl Carved {
    pub(crate) fn payload(&self) -> &Arc<Payload> {
        &self.payload
    }

    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.payload.segment().mapping().at(self.offset)
    }

    pub(crate) fn shortened(self, len: usize) -> Self {
        Self {
            len: len.min(self.len),
            ..self
        }
    }

    fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.len
    }
}

impl Arenas {
    pub(crate) fn new(
        max: usize,
        first: First,
        longest: usize,
        all_or_none: bool,
        whole: bool,
    ) -> Self {
        let has_region = Arc::new(AtomicBool::new(false));
        let state = ArenaState {
            arenas: Vec::new(),
            is_merged: false,
            heaps: BTreeMap::new(),
            longest_gap: 0,
            heap_bytes: 0,
            free_heap_bytes: 0,
            region: None,
            has_region: has_region.clone(),
            refused: None,
        };
        let max = max.min(longest.saturating_mul(MAX_SEGMENTS));
        let room = AtomicU8::new(Room::ToGrow as u8);
        Self {
            state: Mutex::new(state),
            room,
            page: page_size(),
            max,
            first,
            longest,
            all_or_none,
            whole,
            has_region,
        }
    }

    /// Carves from a heap; from the region of another class only if `anywhere`.
    pub(crate) fn carve_lines(&self, len: usize, class: usize, anywhere: bool) -> Option<Carved> {
        let mut state = self.state.lock();
        let ArenaState {
            heaps,
            longest_gap,
            region,
            ..
        } = &mut *state;
        if len / MIN_SIZE > *longest_gap {
            return None;
        }
        let kept = region
            .as_ref()
            .filter(|region| !anywhere && region.class != class);
        let is_open = |heap: &&mut Heap| !kept.is_some_and(|region| region.site.takes(&heap.run));
        let carved = heaps
            .values_mut()
            .rev()
            .filter(is_open)
            .find_map(|heap| heap.carve(len));
        match carved {
            Some(_) => {
                state.free_heap_bytes -= len;
                state.served(class);
            }
            None if kept.is_none() => *longest_gap = len / MIN_SIZE - 1,
            None => {}
        }
        carved
    }

    /// Turns a filled run into a heap, and carves its first piece. `None`: no private memory.
    pub(crate) fn add_heap(&self, run: Carved, len: usize) -> Option<Carved> {
        let Some(lines) = Carver::new(run.len / MIN_SIZE) else {
            self.free(run);
            return None;
        };
        let mut heap = Heap {
            run,
            longest_gap: lines.units(),
            lines,
        };
        let carved = heap.carve(len);
        let mut state = self.state.lock();
        state.longest_gap = state.longest_gap.max(heap.longest_gap);
        state.heap_bytes += heap.run.len;
        state.free_heap_bytes += heap.lines.free_units() * MIN_SIZE;
        state
            .heaps
            .insert((heap.run.payload.serial(), heap.run.offset), heap);
        carved
    }

    /// Carves whole pages from the oldest arena with space, and returns the parts without memory,
    /// in bytes from the segment's start. Uses another class's region only if `anywhere`, its own
    /// or a lapsed one if the run fits nowhere else.
    pub(crate) fn carve_run(
        &self,
        len: usize,
        class: usize,
        anywhere: bool,
    ) -> Option<(Carved, Vec<Range<usize>>)> {
        let (mut state, pages) = (self.state.lock(), len / self.page);
        let carve = |state: &mut ArenaState, anywhere| {
            let mut arenas = state.arenas.iter_mut().enumerate();
            arenas.find_map(|(number, arena)| {
                if arena.is_bare {
                    return None;
                }
                arena.pages.carve(pages, anywhere).map(|at| (number, at))
            })
        };
        let mut found = carve(&mut state, false);
        if found.is_none() && (anywhere || state.may_use_region(class)) {
            found = carve(&mut state, true);
        }
        let (arena, at) = found?;
        state.served(class);
        let arena = &mut state.arenas[arena];
        let holes = arena.holes.take(&(at..at + pages)).into_iter();
        let holes = holes
            .map(|hole| hole.start * self.page..hole.end * self.page)
            .collect();
        let carved = Carved {
            payload: arena.payload.clone(),
            offset: at * self.page,
            len,
            grain: Grain::Page,
        };
        self.note_room(&state);
        Some((carved, holes))
    }

    /// Reserves the small rests of a filled run's holes; under the lock, because another thread
    /// could otherwise carve these pages, marked as filled before they are.
    pub(crate) fn fill_rests(&self, run: &Carved, account: &Account) {
        let mut state = self.state.lock();
        let Some(arena) = state.arena(run) else {
            return;
        };
        arena.was_used = true;
        let most = REST.min(self.max / REST_SHARE) / self.page;
        let range = run.offset / self.page..run.range().end.div_ceil(self.page);
        for rest in arena.holes.rests_of(&range, most, arena.pages.units()) {
            if !rest.is_empty()
                && arena
                    .payload
                    .segment()
                    .reserve(rest.start * self.page..rest.end * self.page)
                    .is_ok()
            {
                account.take(
                    arena
                        .holes
                        .take(&rest)
                        .iter()
                        .map(ExactSizeIterator::len)
                        .sum::<usize>()
                        * self.page,
                );
            }
        }
        arena.collapse_ends(&range, self.page);
    }

    pub(crate) fn give_up(&self, run: Carved, holes: &[Range<usize>]) {
        let mut state = self.state.lock();
        if let Some(arena) = state.arena(&run) {
            for hole in holes {
                arena
                    .holes
                    .add(&(hole.start / self.page..hole.end / self.page));
            }
            arena.pages.free(run.offset / self.page);
            arena.is_bare = self.whole;
        }
        self.note_room(&state);
    }

    pub(crate) fn free(&self, piece: Carved) {
        let mut state = self.state.lock();
        match piece.grain {
            Grain::Page => state.free_run(&piece, self.page),
            Grain::Line => {
                let Some((key, heap)) = state.heap(&piece) else {
                    return;
                };
                let before = heap.lines.free_units();
                heap.lines.free((piece.offset - key.1) / MIN_SIZE);
                heap.longest_gap = heap.lines.units();
                let (free, units, is_empty) = (
                    heap.lines.free_units(),
                    heap.longest_gap,
                    heap.lines.is_empty(),
                );
                state.free_heap_bytes += (free - before) * MIN_SIZE;
                state.longest_gap = state.longest_gap.max(units);
                if let Some(heap) = is_empty.then(|| state.heaps.remove(&key)).flatten() {
                    state.heap_bytes -= heap.run.len;
                    state.free_heap_bytes -= units * MIN_SIZE;
                    state.free_run(&heap.run, self.page);
                }
            }
        }
        self.note_room(&state);
    }

    /// Returns the space left. Takes no lock: searches for existing chunks call this.
    pub(crate) fn room(&self) -> Room {
        // Relaxed: only a hint.
        [Room::ToGrow, Room::Ample, Room::Crowded][usize::from(self.room.load(Ordering::Relaxed))]
    }

    pub(crate) fn crowding(&self) -> usize {
        (self.max / 2).saturating_sub(self.free_bytes())
    }

    fn note_room(&self, state: &ArenaState) {
        let has_bare = state.arenas.iter().any(|arena| arena.is_bare);
        let room = match state.spanned() {
            spanned if spanned < self.max || has_bare => Room::ToGrow,
            _ if state.free_pages() * self.page < self.max / 2 => Room::Crowded,
            _ => Room::Ample,
        };
        self.room.store(room as u8, Ordering::Relaxed);
    }

    pub(crate) fn free_bytes(&self) -> usize {
        self.state.lock().free_pages() * self.page
    }

    /// Returns `true` if all free memory together is as long as `need`.
    pub(crate) fn could_merge(&self, need: Need) -> bool {
        let state = self.state.lock();
        let in_heaps = if need.grain == Grain::Line {
            state.free_heap_bytes
        } else {
            0
        };
        let free =
            self.max.saturating_sub(state.spanned()) + state.free_pages() * self.page + in_heaps;
        free >= need.size
    }

    pub(crate) fn heap_bytes(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.free_heap_bytes, state.heap_bytes)
    }

    pub(crate) fn payloads(&self, each: impl FnMut(&Payload)) {
        self.state
            .lock()
            .arenas
            .iter()
            .map(|arena| &*arena.payload)
            .for_each(each);
    }

    pub(crate) fn left_in_the_system(&self) -> Option<u64> {
        self.state
            .lock()
            .arenas
            .first()?
            .payload
            .segment()
            .free_bytes()
    }

    pub(crate) fn count_and_len(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.arenas.len(), state.spanned())
    }

    /// Returns the longest run that is sure to fit now: in a gap, or in a new arena.
    pub(crate) fn longest_run(&self) -> usize {
        let state = self.state.lock();
        let gaps = state
            .arenas
            .iter()
            .flat_map(|arena| arena.pages.gaps(0))
            .map(|gap| gap.len() * self.page);
        let empty: Vec<_> = state
            .arenas
            .iter()
            .filter(|arena| arena.pages.is_empty())
            .collect();
        let may_go = !empty.is_empty() && (!self.all_or_none || empty.len() == state.arenas.len());
        let going: usize = empty.iter().map(|arena| arena.payload.len()).sum();
        let mut next = self.max - state.spanned();
        if may_go {
            next += going;
        } else if state.arenas.len() == MAX_SEGMENTS {
            next = 0;
        }
        gaps.chain([next.min(self.longest)]).max().unwrap_or(0)
    }
}

impl ArenaState {
    fn spanned(&self) -> usize {
        self.arenas.iter().map(|arena| arena.payload.len()).sum()
    }

    fn free_pages(&self) -> usize {
        self.arenas
            .iter()
            .map(|arena| arena.pages.free_units())
            .sum()
    }

    fn arena(&mut self, piece: &Carved) -> Option<&mut Arena> {
        self.arenas
            .iter_mut()
            .find(|arena| Arc::ptr_eq(&arena.payload, &piece.payload))
    }

    fn heap(&mut self, piece: &Carved) -> Option<((u64, usize), &mut Heap)> {
        let serial = piece.payload.serial();
        self.heaps
            .range_mut((serial, 0)..=(serial, piece.offset))
            .next_back()
            .map(|(key, heap)| (*key, heap))
    }

    fn free_run(&mut self, run: &Carved, page: usize) {
        if let Some(arena) = self.arena(run) {
            arena.pages.free(run.offset / page);
        }
    }
}

impl Arena {
    /// Collapses the huge pages at the ends of a run, if all their pages have memory. Under the
    /// lock, so that no gap beside the run is punched at the same time.
    fn collapse_ends(&self, run: &Range<usize>, page: usize) {
        let segment = self.payload.segment();
        let Some(huge) = segment.huge_page().map(|bytes| bytes / page) else {
            return;
        };
        for at in [run.start, run.end - 1] {
            let whole = at / huge * huge..at / huge * huge + huge;
            let is_within_run = run.start <= whole.start && whole.end <= run.end;
            if whole.end <= self.pages.units()
                && !is_within_run
                && self.holes.filled_len(&whole) == whole.len()
            {
                segment.collapse(whole.start * page..whole.end * page);
            }
        }
    }
}

impl Heap {
    fn carve(&mut self, len: usize) -> Option<Carved> {
        let lines = len / MIN_SIZE;
        if lines > self.longest_gap {
            return None;
        }
        let Some(at) = self.lines.carve(lines, true) else {
            self.longest_gap = lines - 1;
            return None;
        };
        let offset = self.run.offset + at * MIN_SIZE;
        Some(Carved {
            payload: self.run.payload.clone(),
            offset,
            len,
            grain: Grain::Line,
        })
    }
}

pub(crate) struct Blank(Carver, Holes);

impl Arenas {
    pub(crate) fn heap_len(&self, len: usize, will_recur: bool) -> (usize, usize) {
        let pages = |len: usize| len.next_multiple_of(self.page);
        let first = match self.first {
            First::Given(bytes) | First::Usual(bytes) => bytes,
            First::OneMessage => 0,
        };
        let state = self.state.lock();
        if state.spanned() == self.max {
            // All that is not needed soon is left to large messages.
            let least = if will_recur && len % self.page > 0 {
                2
            } else {
                1
            };
            let count = LAST_HEAP.min(first).div_ceil(len).max(least);
            return (pages(count * len), pages(len));
        }
        let wanted = (state.heap_bytes / HEAP_GROWTH).clamp(HEAP.0.min(first / 2), HEAP.1);
        (pages(wanted.div_ceil(len).max(1) * len), pages(len))
    }

    /// Returns the length of the next arena, made for a run of `len` bytes. Each arena but the
    /// first is at least as long as all earlier ones together, so there are at most eight, unless
    /// the longest segment is the limit; arenas that make way (see `region`) are at most seven
    /// more. A length is a multiple of the run, so that messages of one size leave no remainder.
    pub(crate) fn next_len(&self, len: usize) -> Option<usize> {
        let state = self.state.lock();
        let rest = self.max - state.spanned();
        if rest < len || len > self.longest || state.arenas.len() == MAX_SEGMENTS {
            return None;
        }
        let runs = if len > self.max / LARGE_SHARE {
            LEAST_LARGE_RUNS
        } else {
            LEAST_RUNS
        };
        let least = match self.first {
            _ if !state.arenas.is_empty() => {
                state.spanned().max(self.max / LEAST_SHARE).max(runs * len)
            }
            First::OneMessage => return Some(len),
            First::Given(bytes) => bytes.max(len),
            First::Usual(bytes) => bytes.max(runs * len),
        };
        // Long enough that the segments allowed after this one can reach the cap.
        let others = (MAX_SEGMENTS - state.arenas.len() - 1).saturating_mul(self.longest);
        let wanted = least.max(rest.saturating_sub(others)).div_ceil(len) * len;
        let next = wanted.min(rest).min(self.longest / len * len);
        let is_last = state.is_merged || rest - next < (next / 2).max(len);
        Some(if is_last {
            rest.min(self.longest)
        } else {
            next
        })
    }

    pub(crate) fn has_gap(&self, len: usize) -> bool {
        let pages = len / self.page;
        self.state
            .lock()
            .arenas
            .iter_mut()
            .any(|arena| !arena.is_bare && arena.pages.has_gap(pages))
    }

    pub(crate) fn has_segment(&self, serial: u64) -> bool {
        self.state
            .lock()
            .arenas
            .iter()
            .any(|arena| arena.payload.serial() == serial)
    }

    pub(crate) fn prepare(&self, len: usize) -> Option<Blank> {
        let pages = len / self.page;
        Some(Blank(Carver::new(pages)?, Holes::all(pages)?))
    }

    pub(crate) fn add(&self, payload: Arc<Payload>, blank: Blank, account: &Account) {
        let mut state = self.state.lock();
        // Under the lock, which orders the relaxed counter: a thread that searched before this, and searches again
        // after the arena is removed, reads the new count (`Pool::make`).
        account.count_segment();
        state.arenas.push(Arena {
            payload,
            pages: blank.0,
            holes: blank.1,
            was_used: false,
            is_bare: self.whole,
        });
        self.note_room(&state);
    }

    pub(crate) fn are_whole(&self) -> bool {
        self.whole
    }

    /// Carves all of the shortest bare arena of at least `len` bytes, longer than `above`, so that
    /// no other thread carves or punches there before it has its memory. Returns the parts without
    /// memory, too.
    pub(crate) fn carve_bare(
        &self,
        len: usize,
        above: usize,
    ) -> Option<(Carved, Vec<Range<usize>>)> {
        let mut state = self.state.lock();
        let bare = state
            .arenas
            .iter_mut()
            .filter(|arena| arena.is_bare && arena.payload.len() >= len)
            .filter(|arena| arena.payload.len() > above);
        let arena = bare.min_by_key(|arena| arena.payload.len())?;
        let pages = arena.pages.units();
        let at = arena.pages.carve(pages, true)?;
        arena.is_bare = false;
        let mut holes = Vec::new();
        for hole in arena.holes.take(&(at..at + pages)) {
            holes.push(hole.start * self.page..hole.end * self.page);
        }
        let all = Carved {
            payload: arena.payload.clone(),
            offset: 0,
            len: pages * self.page,
            grain: Grain::Page,
        };
        self.note_room(&state);
        Some((all, holes))
    }
}

impl Arenas {
    pub(crate) fn filled_gaps(&self) -> usize {
        let state = self.state.lock();
        let filled = |arena: &Arena| {
            if !self.may_punch(arena) {
                return 0;
            }
            arena
                .pages
                .gaps(0)
                .map(|gap| arena.holes.filled_len(&gap))
                .sum::<usize>()
        };
        state.arenas.iter().map(filled).sum::<usize>() * self.page
    }

    /// Returns `true` if the arena's gaps may be returned to the system.
    fn may_punch(&self, arena: &Arena) -> bool {
        !self.whole || arena.pages.is_empty()
    }

    pub(crate) fn punch(&self, account: &Account, most: usize) -> usize {
        let mut state = self.state.lock();
        let mut given = 0;
        for arena in &mut state.arenas {
            if most - given < self.page {
                break;
            }
            if !self.may_punch(arena) {
                continue;
            }
            arena.is_bare = self.whole;
            let Arena {
                payload,
                pages,
                holes,
                ..
            } = arena;
            let mut from = 0;
            while let Some(mut part) = pages
                .gaps(from)
                .find_map(|gap| holes.parts(gap, true).next())
            {
                part.end = part
                    .end
                    .min(part.start.saturating_add((most - given) / self.page));
                if part.is_empty() {
                    break;
                }
                from = part.end;
                if payload
                    .segment()
                    .discard(part.start * self.page..part.end * self.page)
                {
                    given += holes.add(&part) * self.page;
                }
            }
        }
        // Under the lock, so that pages that are reserved again are counted after this.
        account.give_back(given);
        self.note_room(&state);
        given
    }

    /// If `unused`, only an arena made for an allocation that failed.
    pub(crate) fn take_empty(&self, unused: bool) -> Option<(Arc<Payload>, usize)> {
        let mut state = self.state.lock();
        let is_leaving = |arena: &Arena| arena.pages.is_empty() && !(unused && arena.was_used);
        let at = state.arenas.iter().position(is_leaving)?;
        let arena = state.arenas.remove(at);
        self.note_room(&state);
        let filled = arena.holes.filled_len(&(0..arena.pages.units())) * self.page;
        Some((arena.payload, filled))
    }
}

/// One bit for each page: set if it has memory.
struct Holes(Vec<u64>);

impl Holes {
    fn all(pages: usize) -> Option<Self> {
        let (mut words, count) = (Vec::new(), pages.div_ceil(BITS));
        words.try_reserve_exact(count).ok()?;
        words.resize(count, 0);
        Some(Self(words))
    }

    fn take(&mut self, range: &Range<usize>) -> Vec<Range<usize>> {
        let taken: Vec<_> = self.parts(range.clone(), false).collect();
        taken.iter().for_each(|part| self.set(part, true));
        taken
    }

    /// Returns the holes of at most `most` pages next to `range`.
    fn rests_of(&self, range: &Range<usize>, most: usize, pages: usize) -> [Range<usize>; 2] {
        let start = (0..range.start)
            .rev()
            .take(most + 1)
            .find(|&page| self.is_filled(page))
            .map_or(0, |page| page + 1);
        let end = pages.min(range.end + most + 1);
        let (before, after) = (
            start..range.start,
            range.end..self.next(range.end..end, true),
        );
        [before, after].map(|rest| if rest.len() <= most { rest } else { 0..0 })
    }

    fn add(&mut self, range: &Range<usize>) -> usize {
        let filled = self.filled_len(range);
        self.set(range, false);
        filled
    }

    fn filled_len(&self, range: &Range<usize>) -> usize {
        self.parts(range.clone(), true).map(|part| part.len()).sum()
    }

    fn parts(
        &self,
        mut rest: Range<usize>,
        filled: bool,
    ) -> impl Iterator<Item = Range<usize>> + '_ {
        std::iter::from_fn(move || {
            rest.start = self.next(rest.clone(), filled);
            let part = rest.start..self.next(rest.clone(), !filled);
            rest.start = part.end;
            (!part.is_empty()).then_some(part)
        })
    }

    fn is_filled(&self, page: usize) -> bool {
        self.0[page / BITS] >> (page % BITS) & 1 != 0
    }

    fn next(&self, range: Range<usize>, filled: bool) -> usize {
        let mut at = range.start;
        while at < range.end {
            let word = if filled {
                self.0[at / BITS]
            } else {
                !self.0[at / BITS]
            } >> (at % BITS);
            if word != 0 {
                return range.end.min(at + word.trailing_zeros() as usize);
            }
            at = (at / BITS + 1) * BITS;
        }
        range.end
    }

    fn set(&mut self, range: &Range<usize>, filled: bool) {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min((at / BITS + 1) * BITS);
            let mask = u64::MAX >> (BITS - (end - at)) << (at % BITS);
            if filled {
                self.0[at / BITS] |= mask;
            } else {
                self.0[at / BITS] &= !mask;
            }
            at = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Namespace, Provider};
    use proptest::prelude::*;

    const PAGES: usize = 150;

    /// Counts again what is kept of all heaps.
    fn check_heaps(arenas: &Arenas) {
        let state = arenas.state.lock();
        let heaps = || state.heaps.values();
        assert_eq!(
            state.heap_bytes,
            heaps().map(|heap| heap.run.len).sum::<usize>()
        );
        assert_eq!(
            state.free_heap_bytes,
            heaps().map(|heap| heap.lines.free_units() * MIN_SIZE).sum()
        );
        let can_carve = |heap: &Heap| heap.lines.gaps(0).map(|gap| gap.len()).max().unwrap_or(0);
        assert!(heaps().all(
            |heap| can_carve(heap) <= state.longest_gap && can_carve(heap) <= heap.longest_gap
        ));
    }

    #[test]
    fn heaps_are_counted() {
        let name = format!("shm_pool-unit-{}-heaps", std::process::id());
        let builder = Provider::builder()
            .namespace(&Namespace::new(&name).unwrap())
            .max_bytes(1 << 20)
            .max_idle_per_class(4);
        let provider = builder.build().unwrap();
        let (mut held, mut random) = (Vec::new(), fastrand::Rng::with_seed(1));
        for _ in 0..3000 {
            let len = [64, 100, 1000, 1500, 3000, 5000][random.usize(..6)];
            match provider.alloc(len) {
                Ok(buffer) if random.usize(..3) > 0 => held.push(buffer),
                Ok(_) => {}
                Err(_) => held.truncate(held.len() / 2),
            }
            if random.usize(..3) == 0 && !held.is_empty() {
                held.swap_remove(random.usize(..held.len()));
            }
            check_heaps(&provider.pool().arenas);
        }
        assert!(held.len() > 100);
        drop(held);
        provider.trim();
        check_heaps(&provider.pool().arenas);
    }

    proptest! {
        #[test]
        fn agrees_with_list_of_pages(
            steps in proptest::collection::vec((any::<bool>(), 0..PAGES, 1..90usize), 1..60),
        ) {
            let (mut holes, mut model) = (Holes::all(PAGES).unwrap(), [true; PAGES]);
            for (is_take, start, len) in steps {
                let range = start..(start + len).min(PAGES);
                let filled: Vec<usize> = holes.parts(range.clone(), true).flatten().collect();
                let expected: Vec<usize> = range.clone().filter(|&page| !model[page]).collect();
                prop_assert_eq!(&filled, &expected);
                prop_assert_eq!(holes.filled_len(&range), filled.len());
                for rest in holes.rests_of(&range, 3, PAGES).into_iter().filter(|rest| !rest.is_empty()) {
                    prop_assert!(rest.len() <= 3 && (rest.end == range.start || rest.start == range.end));
                    prop_assert!(model[rest.clone()].iter().all(|&hole| hole));
                    prop_assert!(rest.start == 0 || !model[rest.start - 1] || rest.start == range.end);
                }
                if is_take {
                    let mut taken: Vec<usize> = holes.take(&range).into_iter().flatten().collect();
                    taken.sort_unstable();
                    let expected: Vec<usize> = range.clone().filter(|&page| model[page]).collect();
                    prop_assert_eq!(taken, expected);
                } else {
                    prop_assert_eq!(holes.add(&range), expected.len());
                }
                model[range].fill(!is_take);
                let listed: Vec<bool> = (0..PAGES).map(|page| !holes.is_filled(page)).collect();
                prop_assert_eq!(listed, model.to_vec());
            }
        }
    }
}
