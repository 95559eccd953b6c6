//! Arenas: the segments that all messages are carved out of. They are few, large and long-lived.
//!
//! | level | carves | into | for |
//! |---|---|---|---|
//! | arena | one segment, by pages | *runs* | chunks of whole pages, and heaps |
//! | heap | one run, by cache lines | pieces | smaller chunks, so that these stay together |
//!
//! All of this is off the warm path, behind one mutex: a chunk is carved once and then lives in its
//! pool. The thread that carves a run reserves memory for its holes outside that mutex (see
//! `pool`), before any other thread knows of the run.
//!
//! # Memory
//!
//! An arena has its length from the start (I4), but no memory. A page is reserved when it, or a
//! page next to it, is first carved. [`Arenas::punch`] gives back the memory of pages that are not
//! carved; they are reserved again when they are carved again.

mod carver;
mod give_back;
mod grow;
mod holes;
mod make_way;

use crate::os::posix::page_size;
use crate::owner::class::MIN_SIZE;
use crate::owner::limits::{Account, First};
use crate::owner::payload::Payload;
use crate::protocol::control::MAX_SEGMENTS;
use carver::{Carver, Shadow};
pub(crate) use give_back::Leaving;
use holes::Holes;
pub(crate) use make_way::Window;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::Arc;

/// The rest of a hole is filled along with what is carved from it, if it is at most this many bytes
/// and at most one [`REST_SHARE`]th of the cap. A later message then need not call into the kernel
/// for so little.
const REST: usize = 1 << 20;
const REST_SHARE: usize = 64;

/// How many shadows of heaps are kept. None under AddressSanitizer, so that it can catch stray
/// accesses to them.
const SPARE_SHADOWS: usize = if cfg!(shm_pool_asan) { 0 } else { 4 };

/// The unit that a chunk is carved in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grain {
    /// Cache lines, out of a heap.
    Line,
    /// Pages, out of an arena.
    Page,
}

/// How much to carve.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    /// Bytes; a multiple of the grain.
    pub(crate) size: usize,
    pub(crate) grain: Grain,
}

/// How much room the arenas have left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// The cap allows another arena.
    ToGrow,
    /// They span all that the cap allows, and at least half of that is not carved.
    Ample,
    /// They span all that the cap allows, and less than half of that is not carved: where a chunk
    /// lies decides what else fits.
    Crowded,
}

/// Part of an arena. Only [`Arenas::free`] frees it.
pub(crate) struct Carved {
    payload: Arc<Payload>,
    /// Bytes from the segment's start.
    offset: usize,
    len: usize,
    grain: Grain,
}

/// Pages that were just carved. Some may have no memory yet.
pub(crate) struct Run {
    pub(crate) carved: Carved,
    /// Ranges without memory, in bytes from the segment's start.
    pub(crate) holes: Vec<Range<usize>>,
}

/// All arenas of a pool, with the heaps in them.
pub(crate) struct Arenas {
    state: Mutex<ArenaState>,
    /// The [`Room`] as of the last change, to be known without the lock.
    room: AtomicU8,
    page: usize,
    /// The cap in bytes.
    max: usize,
    first: First,
    /// The longest segment that may be made, in bytes.
    longest: usize,
}

struct ArenaState {
    arenas: Vec<Arena>,
    /// Arenas have given way to a longer one. From now on a new arena takes all that the cap
    /// allows, except for a [`First::OneMessage`].
    is_merged: bool,
    /// Keyed by the serial number of their segment and the offset at which they begin in it.
    heaps: BTreeMap<(u64, usize), Heap>,
    /// Shadows of heaps that are gone. With messages of many sizes a heap may be made for a single
    /// small message, and its private memory would cost more than everything else.
    shadows: Vec<Shadow>,
}

struct Arena {
    payload: Arc<Payload>,
    pages: Carver,
    holes: Holes,
    /// Was anything ever carved from it whose memory could be reserved?
    was_used: bool,
}

struct Heap {
    run: Carved,
    lines: Carver,
    /// No gap is longer than this many lines.
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
        // SAFETY: a carver hands out parts of its own range only (checked in `Carver::carve`), and
        // an arena's range is its segment.
        let start = unsafe { base.as_ptr().add(self.offset) };
        // SAFETY: inside a mapping, which does not begin at null.
        unsafe { NonNull::new_unchecked(start) }
    }

    /// The same piece, but only its first `len` bytes are usable.
    pub(crate) fn shortened(self, len: usize) -> Self {
        Self { len: len.min(self.len), ..self }
    }

    fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.len
    }
}

impl Arenas {
    /// `max`, `first` and `longest` are whole pages.
    pub(crate) fn new(max: usize, first: First, longest: usize) -> Self {
        let state = ArenaState { arenas: Vec::new(), is_merged: false, heaps: BTreeMap::new(), shadows: Vec::new() };
        // The segments cannot span more than this, so a higher cap means nothing.
        let max = max.min(longest.saturating_mul(MAX_SEGMENTS));
        let room = AtomicU8::new(Room::ToGrow as u8);
        Self { state: Mutex::new(state), room, page: page_size(), max, first, longest }
    }

    // ---- carving --------------------------------------------------------------------------------

    /// Carves a piece out of a heap, trying the last heap first. `None`: no heap has room.
    pub(crate) fn carve_lines(&self, len: usize) -> Option<Carved> {
        let mut state = self.state.lock();
        let carved = state.heaps.values_mut().rev().find_map(|heap| heap.carve(len))?;
        // The heap now has something in it that is not condemned.
        let start = state.heap(&carved).map(|(key, _)| key.1);
        if let (Some(start), Some(arena)) = (start, state.arena(&carved)) {
            arena.pages.spare(start / self.page);
        }
        Some(carved)
    }

    /// Makes a heap of a run whose memory is reserved, and carves the first piece from it before
    /// another thread can take its room. `None`: the system has no private memory for the heap's
    /// books.
    pub(crate) fn add_heap(&self, run: Carved, len: usize) -> Option<Carved> {
        let Some(lines) = self.lines(run.len / MIN_SIZE) else {
            self.free(run);
            return None;
        };
        let mut heap = Heap { run, longest_gap: lines.units(), lines };
        let carved = heap.carve(len);
        self.state.lock().heaps.insert((heap.run.payload.serial(), heap.run.offset), heap);
        carved
    }

    /// Books for the lines of a heap.
    fn lines(&self, count: usize) -> Option<Carver> {
        let shadow = {
            let mut state = self.state.lock();
            let at = state.shadows.iter().position(|shadow| shadow.holds(count));
            at.map(|at| state.shadows.swap_remove(at))
        };
        shadow.map(|shadow| Carver::with(shadow, count)).or_else(|| Carver::new(count))
    }

    /// Carves a run of `len` bytes, a multiple of the page size, out of the oldest arena that has
    /// room. `None`: none has.
    pub(crate) fn carve_run(&self, len: usize) -> Option<Run> {
        let (mut state, pages) = (self.state.lock(), len / self.page);
        let mut arenas = state.arenas.iter_mut();
        let (at, arena) = arenas.find_map(|arena| arena.pages.carve(pages).map(|at| (at, arena)))?;
        let holes = arena.holes.take(&(at..at + pages)).into_iter();
        let holes = holes.map(|hole| hole.start * self.page..hole.end * self.page).collect();
        let carved = Carved { payload: arena.payload.clone(), offset: at * self.page, len, grain: Grain::Page };
        self.note_room(&state);
        Some(Run { carved, holes })
    }

    /// Notes that a run has its memory, and reserves what is left of the holes it was carved from,
    /// if that is little.
    ///
    /// Unlike other memory, this is reserved under the lock: nothing is carved there yet, so
    /// without the lock another thread could carve these pages and find them marked as filled
    /// before they are.
    pub(crate) fn fill_rests(&self, run: &Carved, account: &Account) {
        let mut state = self.state.lock();
        let Some(arena) = state.arena(run) else { return };
        arena.was_used = true;
        let most = REST.min(self.max / REST_SHARE) / self.page;
        let range = run.offset / self.page..run.range().end.div_ceil(self.page);
        for rest in arena.holes.rests_of(&range, most) {
            if arena.payload.segment().reserve(rest.start * self.page..rest.end * self.page).is_ok() {
                account.take(arena.holes.take(&rest).iter().map(ExactSizeIterator::len).sum::<usize>() * self.page);
            }
        }
        arena.collapse_ends(&range, self.page);
    }

    /// Takes back a run. Its `holes` are those that were not filled.
    pub(crate) fn give_up(&self, run: Run) {
        let mut state = self.state.lock();
        if let Some(arena) = state.arena(&run.carved) {
            for hole in &run.holes {
                arena.holes.add(hole.start / self.page..hole.end / self.page);
            }
        }
        state.free_run(&run.carved, self.page);
        self.note_room(&state);
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
                        if state.shadows.len() < SPARE_SHADOWS {
                            state.shadows.push(heap.lines.into_shadow());
                        }
                    }
                }
            }
        }
        self.note_room(&state);
    }

    // ---- what there is --------------------------------------------------------------------------

    /// How much room there is for more. Takes no lock: searches of chunks that exist ask for it.
    pub(crate) fn room(&self) -> Room {
        // Relaxed: it may change at any time anyway.
        match self.room.load(Ordering::Relaxed) {
            room if room == Room::ToGrow as u8 => Room::ToGrow,
            room if room == Room::Crowded as u8 => Room::Crowded,
            _ => Room::Ample,
        }
    }

    /// Arenas came or went, or pages were carved or freed.
    fn note_room(&self, state: &ArenaState) {
        let free = || state.arenas.iter().map(|arena| arena.pages.free_units()).sum::<usize>() * self.page;
        let room = match state.spanned() {
            spanned if spanned < self.max => Room::ToGrow,
            _ if free() < self.max / 2 => Room::Crowded,
            _ => Room::Ample,
        };
        self.room.store(room as u8, Ordering::Relaxed);
    }

    /// Bytes of the arenas' pages that are not carved.
    pub(crate) fn free_bytes(&self) -> usize {
        let state = self.state.lock();
        state.arenas.iter().map(|arena| arena.pages.free_units()).sum::<usize>() * self.page
    }

    /// Bytes of the lines that are not carved in heaps, and of all heaps.
    pub(crate) fn heap_bytes(&self) -> (usize, usize) {
        let state = self.state.lock();
        let lines: usize = state.heaps.values().map(|heap| heap.lines.free_units()).sum();
        (lines * MIN_SIZE, state.heaps.values().map(|heap| heap.run.len).sum())
    }

    /// The segments that there are.
    pub(crate) fn payloads(&self) -> Vec<Arc<Payload>> {
        self.state.lock().arenas.iter().map(|arena| arena.payload.clone()).collect()
    }

    /// How many arenas there are, and their total length in bytes.
    pub(crate) fn count_and_len(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.arenas.len(), state.spanned())
    }

    /// The longest run that surely fits now, in bytes: a gap, or a new arena that the cap allows.
    /// `all_or_none`: as for [`surrender`](Self::surrender).
    #[cfg(feature = "zenoh")]
    pub(crate) fn longest_run(&self, all_or_none: bool) -> usize {
        let state = self.state.lock();
        let gaps = state.arenas.iter().flat_map(|arena| arena.pages.gaps()).map(|gap| gap.len() * self.page);
        // Empty arenas may give way to a single one.
        let empty: Vec<_> = state.arenas.iter().filter(|arena| arena.pages.is_empty()).collect();
        let may_go = !empty.is_empty() && (!all_or_none || empty.len() == state.arenas.len());
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
    /// The arenas' total length in bytes.
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
    /// Has the huge pages made that a run begins and ends in, if all of their pages have memory by
    /// now. Those that lie wholly within the run were made when its memory was reserved. Under the
    /// lock, so that no gap beside the run is punched meanwhile: a huge page takes memory for it.
    fn collapse_ends(&self, run: &Range<usize>, page: usize) {
        let segment = self.payload.segment();
        let Some(huge) = segment.huge_page().map(|bytes| bytes / page) else { return };
        for at in [run.start, run.end - 1] {
            let whole = at / huge * huge..at / huge * huge + huge;
            let is_within_run = run.start <= whole.start && whole.end <= run.end;
            if !is_within_run && self.holes.filled(&whole) == [whole.clone()] {
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
        let Some(at) = self.lines.carve(lines) else {
            self.longest_gap = lines - 1;
            return None;
        };
        let offset = self.run.offset + at * MIN_SIZE;
        Some(Carved { payload: self.run.payload.clone(), offset, len, grain: Grain::Line })
    }
}
