//! Arenas: the segments that all messages are carved out of. Few, large and long-lived.
//!
//! | level | carves | into | for |
//! |---|---|---|---|
//! | arena | one segment, by pages | *runs* | chunks of whole pages, and heaps |
//! | heap | one run, by cache lines | pieces | smaller chunks, so that these stay together |
//!
//! All of it is off the warm path, behind one mutex: a chunk is carved once and then lives in its pool. What a run has holes in is
//! reserved outside of that mutex by the one who has carved it (see `pool`), before anybody else knows of it.
//!
//! # Memory
//!
//! An arena has its length from the start (I4), and no memory: each page is reserved when it, or what is next to it, is first carved.
//! Where pages are not
//! carved, [`Arenas::punch`] gives them back, and they are reserved again when they are carved again.
//!
//! # Growing
//!
//! The arenas' lengths together stay below the cap. Each but the first is at least a 64th of the cap, and at least as long as all
//! before it together, as far as the cap allows; so there are eight at most. Its length is a multiple of the run that it is made for, so
//! that messages of one size leave nothing over, and at least 32 times that, so that few of the gaps between messages of different
//! sizes are at the end of an arena. When a message fits no arena and the cap allows no other one, arenas that hold
//! nothing but idle memory give way to a single one (see [`Arenas::surrender`]). Each time there are fewer pieces that the cap is
//! divided into, so that this ends, too, after seven times at most.

mod carver;
mod holes;

use crate::class::MIN_SIZE;
use crate::control::MAX_SEGMENTS;
use crate::limits::Account;
use crate::payload::Payload;
use crate::posix::{page_size, round_to_pages};
use carver::Carver;
use holes::Holes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// The shortest heap that is made while there is room, in bytes, and the longest: one small message that is kept keeps all of it from
/// being used for large ones.
const HEAP: (usize, usize) = (64 << 10, 256 << 10);

/// How long a heap is that is made when the arenas cannot grow any more, in bytes.
const LAST_HEAP: usize = 32 << 10;

/// A new heap has this part of what all heaps have.
const HEAP_GROWTH: usize = 16;

/// What would be left of a hole is filled with it if it is no longer than this in bytes, or a 64th of the cap: a later message
/// need not call into the kernel for so little.
const REST: usize = 1 << 20;

/// Each arena but the first is at least this part of the cap.
const LEAST_SHARE: usize = 64;

/// Each arena is at least so many times as long as the run that it is made for, if the cap allows it: between long messages of
/// different lengths gaps are left, and fewer of them in one arena than in several.
const LEAST_RUNS: usize = 32;

/// What a chunk is carved by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grain {
    /// Cache lines, out of a heap.
    Line,
    /// Pages, out of an arena.
    Page,
}

/// How much is to be carved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    /// Bytes; a multiple of the grain.
    pub(crate) size: usize,
    pub(crate) grain: Grain,
}

/// Part of an arena. Freed by [`Arenas::free`] and by nothing else.
pub(crate) struct Carved {
    payload: Arc<Payload>,
    /// Bytes from the segment's start.
    offset: usize,
    len: usize,
    grain: Grain,
}

/// Pages that were just carved, some of which may have no memory yet.
pub(crate) struct Run {
    pub(crate) carved: Carved,
    /// Bytes from the segment's start.
    pub(crate) holes: Vec<Range<usize>>,
}

/// A range that would be free if the condemned pieces in it were.
pub(crate) struct Window {
    serial: u64,
    range: Range<usize>,
}

/// A segment that is to go, and how many bytes of it have memory.
pub(crate) struct Leaving {
    pub(crate) payload: Arc<Payload>,
    pub(crate) filled: usize,
}

/// See the module's text.
pub(crate) struct Arenas {
    state: Mutex<State>,
    page: usize,
    /// The cap, in bytes.
    max: usize,
    /// Length of the first arena in bytes.
    first: usize,
    /// The longest segment that may be made, in bytes.
    longest: usize,
}

struct State {
    arenas: Vec<Arena>,
    /// Arenas have given way to a longer one: from now on a new one takes all that the cap allows.
    is_merged: bool,
    /// By the serial number of their segment and where they begin in it.
    heaps: BTreeMap<(u64, usize), Heap>,
}

struct Arena {
    payload: Arc<Payload>,
    pages: Carver,
    holes: Holes,
    /// Was anything carved from it whose memory could be reserved?
    was_used: bool,
}

struct Heap {
    run: Carved,
    lines: Carver,
    /// No gap is longer than so many lines.
    longest_gap: usize,
}

impl Carved {
    pub(crate) fn payload(&self) -> &Arc<Payload> {
        &self.payload
    }

    /// Bytes from the segment's start.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// Usable bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        let base = self.payload.segment().mapping().base();
        // SAFETY: a carver hands out parts of its range only (checked in `Carver::carve`), and an arena's is its segment.
        let start = unsafe { base.as_ptr().add(self.offset) };
        // SAFETY: inside a mapping, which does not begin at null.
        unsafe { NonNull::new_unchecked(start) }
    }

    /// The first `len` bytes of it stand for all.
    pub(crate) fn shortened(self, len: usize) -> Self {
        Self { len: len.min(self.len), ..self }
    }

    fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.len
    }
}

impl Window {
    /// Does a piece lie in it, or reach into it?
    pub(crate) fn takes(&self, piece: &Carved) -> bool {
        let range = piece.range();
        piece.payload.serial() == self.serial && range.start < self.range.end && self.range.start < range.end
    }
}

impl Arenas {
    /// `max`, `first` and `longest` are whole pages.
    pub(crate) fn new(max: usize, first: usize, longest: usize) -> Self {
        let state = State { arenas: Vec::new(), is_merged: false, heaps: BTreeMap::new() };
        // No more can be spanned; a cap beyond it is none.
        let max = max.min(longest.saturating_mul(MAX_SEGMENTS));
        Self { state: Mutex::new(state), page: page_size(), max, first, longest }
    }

    // ---- carving ---------------------------------------------------------------------------------------------

    /// Carves a piece out of a heap, of the last one first. `None`: no heap has room.
    pub(crate) fn carve_lines(&self, len: usize) -> Option<Carved> {
        let mut state = self.state.lock();
        let carved = state.heaps.values_mut().rev().find_map(|heap| heap.carve(len))?;
        // From now on there is something in the heap that is not condemned.
        let start = state.heap(&carved).map(|(key, _)| key.1);
        if let (Some(start), Some(arena)) = (start, state.arena(&carved)) {
            arena.pages.spare(start / self.page);
        }
        Some(carved)
    }

    /// Makes a heap of a run whose memory is reserved, and carves the first piece from it, so that no other thread can take its room.
    /// `None`: the system has no private memory to keep account of it.
    pub(crate) fn add_heap(&self, run: Carved, len: usize) -> Option<Carved> {
        let Some(lines) = Carver::new(run.len / MIN_SIZE) else {
            self.free(run);
            return None;
        };
        let mut heap = Heap { run, longest_gap: lines.units(), lines };
        let carved = heap.carve(len);
        self.state.lock().heaps.insert((heap.run.payload.serial(), heap.run.offset), heap);
        carved
    }

    /// How long a heap for pieces of `len` bytes should be, and how long it must be at least: long enough for one.
    pub(crate) fn heap_len(&self, len: usize) -> (usize, usize) {
        let pages = |len: usize| round_to_pages(len).unwrap_or(len);
        let state = self.state.lock();
        if state.spanned() == self.max {
            // No more room will come: what is not needed soon is left to large messages.
            return (pages(LAST_HEAP.min(self.first).div_ceil(len).max(1) * len), pages(len));
        }
        let all: usize = state.heaps.values().map(|heap| heap.run.len).sum();
        let wanted = (all / HEAP_GROWTH).clamp(HEAP.0.min(self.first / 2), HEAP.1);
        // A multiple, so that pieces of this length leave nothing over.
        (pages(wanted.div_ceil(len).max(1) * len), pages(len))
    }

    /// Carves a run of `len` bytes, a multiple of the page size, out of the arena that has the gap that fits it best. `None`: no gap does.
    pub(crate) fn carve_run(&self, len: usize) -> Option<Run> {
        let (mut state, pages) = (self.state.lock(), len / self.page);
        let tightest = |arena: &Arena| arena.pages.gaps().map(|gap| gap.len()).filter(|&gap| gap >= pages).min();
        let fits = state.arenas.iter_mut().filter_map(|arena| tightest(arena).map(|gap| (gap, arena)));
        let (_, arena) = fits.min_by_key(|(gap, _)| *gap)?;
        let at = arena.pages.carve(pages)?;
        let holes = arena.holes.take(&(at..at + pages)).into_iter();
        let holes = holes.map(|hole| hole.start * self.page..hole.end * self.page).collect();
        let carved = Carved { payload: arena.payload.clone(), offset: at * self.page, len, grain: Grain::Page };
        Some(Run { carved, holes })
    }

    /// The memory of a run is reserved. Reserves what was left of the holes that it was carved from, where that is little.
    ///
    /// Under the lock, unlike other memory: nothing is carved there yet, so that nobody else may find it filled before it is.
    pub(crate) fn fill_rests(&self, run: &Carved, account: &Account) {
        let mut state = self.state.lock();
        let Some(arena) = state.arena(run) else { return };
        arena.was_used = true;
        let most = REST.min(self.max / LEAST_SHARE) / self.page;
        let range = run.offset / self.page..run.range().end.div_ceil(self.page);
        for rest in arena.holes.rests_of(&range, most) {
            if arena.payload.segment().reserve(rest.start * self.page..rest.end * self.page).is_ok() {
                account.take(arena.holes.take(&rest).iter().map(ExactSizeIterator::len).sum::<usize>() * self.page);
            }
        }
    }

    /// Takes a run back of which these holes were not filled.
    pub(crate) fn give_up(&self, run: Run) {
        let mut state = self.state.lock();
        if let Some(arena) = state.arena(&run.carved) {
            for hole in &run.holes {
                arena.holes.add(hole.start / self.page..hole.end / self.page);
            }
        }
        state.free_run(&run.carved, self.page);
    }

    /// Gives a chunk's memory back.
    pub(crate) fn free(&self, piece: Carved) {
        let mut state = self.state.lock();
        match piece.grain {
            Grain::Page => state.free_run(&piece, self.page),
            Grain::Line => {
                let Some((key, heap)) = state.heap(&piece) else { return };
                heap.lines.free((piece.offset - key.1) / MIN_SIZE);
                heap.longest_gap = heap.lines.units();
                if heap.lines.is_empty() {
                    if let Some(heap) = state.heaps.remove(&key) {
                        state.free_run(&heap.run, self.page);
                    }
                }
            }
        }
    }

    // ---- growing ---------------------------------------------------------------------------------------------

    /// Do the arenas take all that the cap allows? Then no other one can be made.
    pub(crate) fn is_all_spanned(&self) -> bool {
        self.state.lock().spanned() == self.max
    }

    /// How long the next arena is, if it is made for a run of `len` bytes; `None` if the cap or the number of arenas allows none.
    pub(crate) fn next_len(&self, len: usize) -> Option<usize> {
        let state = self.state.lock();
        let rest = self.max - state.spanned();
        if rest < len || len > self.longest || state.arenas.len() == MAX_SEGMENTS {
            return None;
        }
        let least = if state.arenas.is_empty() { self.first } else { self.max / LEAST_SHARE };
        // So that what segments there may still be are enough for all of the cap.
        let least = least.max(rest.div_ceil(MAX_SEGMENTS - state.arenas.len()).next_multiple_of(self.page));
        let wanted = state.spanned().max(least).max(LEAST_RUNS * len).div_ceil(len) * len;
        let next = wanted.min(rest).min(self.longest / len * len);
        // What would be left is too little to be of much use as an arena of its own.
        let is_last = state.is_merged || rest - next < (next / 2).max(len);
        Some(if is_last { rest.min(self.longest) } else { next })
    }

    /// Is there a gap for a run of `len` bytes?
    pub(crate) fn has_gap(&self, len: usize) -> bool {
        let pages = len / self.page;
        self.state.lock().arenas.iter().any(|arena| arena.pages.gaps().any(|gap| gap.len() >= pages))
    }

    /// Adds an arena; `false` if the system has no private memory to keep account of it.
    pub(crate) fn add(&self, payload: Arc<Payload>) -> bool {
        let count = payload.len() / self.page;
        let Some(pages) = Carver::new(count) else { return false };
        self.state.lock().arenas.push(Arena { payload, pages, holes: Holes::all(count), was_used: false });
        true
    }

    // ---- making room -----------------------------------------------------------------------------------------

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

    /// Where `need` would fit if some of the pieces that are condemned were free: as tight as can be.
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

    /// Takes back that a piece was condemned.
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

    /// Which arenas could make way for one that holds a run of `len` bytes: nothing in them but what is condemned, and together
    /// with what the cap leaves long enough; the shortest ones, or if so asked all or none. `None` if that is not enough.
    pub(crate) fn surrender(&self, len: usize, all_or_none: bool) -> Option<Vec<Window>> {
        let mut state = self.state.lock();
        let mut idle: Vec<&Arena> = state.arenas.iter().filter(|arena| arena.pages.is_all_condemned()).collect();
        idle.sort_unstable_by_key(|arena| arena.payload.len());
        if all_or_none && idle.len() < state.arenas.len() {
            return None;
        }
        // One has to go in any case where there are as many as there can be.
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

    /// Bytes that are not carved, by pages, and those in heaps, by lines.
    pub(crate) fn free_bytes(&self) -> (usize, usize) {
        let state = self.state.lock();
        let pages: usize = state.arenas.iter().map(|arena| arena.pages.free_units()).sum();
        let lines: usize = state.heaps.values().map(|heap| heap.lines.free_units()).sum();
        (pages * self.page, lines * MIN_SIZE)
    }

    // ---- giving memory back ----------------------------------------------------------------------------------

    /// Gives the memory of all gaps back to the system. Returns how many bytes that was.
    pub(crate) fn punch(&self, account: &Account) -> usize {
        let mut state = self.state.lock();
        let mut given = 0;
        for Arena { payload, pages, holes, .. } in &mut state.arenas {
            for filled in pages.gaps().flat_map(|gap| holes.filled(&gap)).collect::<Vec<_>>() {
                if payload.segment().discard(filled.start * self.page..filled.end * self.page) {
                    given += holes.add(filled) * self.page;
                }
            }
        }
        // Under the lock: who takes it again must not be counted first.
        account.give_back(given);
        given
    }

    /// Takes the arenas out that nothing is carved from; what is done with them is the caller's.
    pub(crate) fn take_empty(&self) -> Vec<Leaving> {
        self.take(|arena| arena.pages.is_empty())
    }

    /// Takes the arenas out that were made for what failed then.
    pub(crate) fn take_unused(&self) -> Vec<Leaving> {
        self.take(|arena| arena.pages.is_empty() && !arena.was_used)
    }

    fn take(&self, is_wanted: impl Fn(&Arena) -> bool) -> Vec<Leaving> {
        let mut state = self.state.lock();
        let (wanted, others): (Vec<_>, Vec<_>) = std::mem::take(&mut state.arenas).into_iter().partition(is_wanted);
        state.arenas = others;
        let leaving = |arena: Arena| Leaving { filled: arena.filled() * self.page, payload: arena.payload };
        wanted.into_iter().map(leaving).collect()
    }

    /// What segments there are.
    pub(crate) fn payloads(&self) -> Vec<Arc<Payload>> {
        self.state.lock().arenas.iter().map(|arena| arena.payload.clone()).collect()
    }

    /// How many arenas there are, and how long they are together, in bytes.
    pub(crate) fn count_and_len(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.arenas.len(), state.spanned())
    }

    /// The longest run that surely fits now, in bytes: a gap, or an arena that the cap allows.
    #[cfg(feature = "zenoh")]
    pub(crate) fn longest_run(&self) -> usize {
        let state = self.state.lock();
        let gaps = state.arenas.iter().flat_map(|arena| arena.pages.gaps()).map(|gap| gap.len() * self.page);
        // All arenas that are empty may give way to one.
        let empty = state.arenas.iter().filter(|arena| arena.pages.is_empty()).map(|arena| arena.payload.len());
        let next = (self.max - state.spanned() + empty.sum::<usize>()).min(self.longest);
        gaps.chain([next]).max().unwrap_or(0)
    }
}

impl State {
    /// The arenas' lengths together, in bytes.
    fn spanned(&self) -> usize {
        self.arenas.iter().map(|arena| arena.payload.len()).sum()
    }

    fn arena(&mut self, piece: &Carved) -> Option<&mut Arena> {
        self.arenas.iter_mut().find(|arena| Arc::ptr_eq(&arena.payload, &piece.payload))
    }

    /// The heap that a piece lies in, and its key.
    fn heap(&mut self, piece: &Carved) -> Option<((u64, usize), &mut Heap)> {
        let serial = piece.payload.serial();
        self.heaps.range_mut((serial, 0)..=(serial, piece.offset)).next_back().map(|(key, heap)| (*key, heap))
    }

    fn free_run(&mut self, run: &Carved, page: usize) {
        if let Some(arena) = self.arena(run) {
            arena.pages.free(run.offset / page);
        }
    }
}

impl Arena {
    /// Pages that have memory.
    fn filled(&self) -> usize {
        self.holes.filled(&(0..self.pages.units())).iter().map(ExactSizeIterator::len).sum()
    }
}

impl Heap {
    fn carve(&mut self, len: usize) -> Option<Carved> {
        let lines = len / MIN_SIZE;
        if lines > self.longest_gap {
            return None;
        }
        let Some(at) = self.lines.carve(lines) else {
            self.longest_gap = lines - 1;
            return None;
        };
        let offset = self.run.offset + at * MIN_SIZE;
        Some(Carved { payload: self.run.payload.clone(), offset, len, grain: Grain::Line })
    }
}
