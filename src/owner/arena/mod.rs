//! Arenas: the segments that all messages are carved from. They are few, large and long-lived.
//!
//! | level | carves | into | for |
//! |---|---|---|---|
//! | arena | one segment, by pages | *runs* | chunks of whole pages, and heaps |
//! | heap | one run, by cache lines | pieces | smaller chunks, to keep them together |
//!
//! All of this is off the warm path, behind one mutex, under which no system call is made and no
//! memory is touched. An arena has its full length from the start (I4), but no memory: the thread
//! that carves a run reserves memory for its holes (see [`memory`]).
//!
//! Nothing is stored for a run or a piece but bits, so a step under the mutex takes as long with a
//! million chunks as with ten. The longest steps visit the bits of one arena, at 64 pages a
//! nanosecond or two, and the gaps and heaps of a region that ends.

#![forbid(unsafe_code)]

mod heaps;
mod memory;
mod region;
mod survey;

pub(crate) use region::Site;
pub(crate) use survey::Position;

use crate::os::posix::page_size;
use crate::owner::bits::Bits;
use crate::owner::carver::Carver;
use crate::owner::control::Payload;
use crate::owner::limits::Grain;
use crate::owner::limits::{Account, First, Need, LAST_HEAP, SHORTEST_HEAP};
use crate::protocol::control::MAX_SEGMENTS;
use heaps::{Heap, Heaps};
use memory::{InFlight, MOST_IN_FLIGHT};
use parking_lot::{Condvar, Mutex};
use region::Region;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::Arc;
use std::time::Instant;

/// The longest heap in bytes, while the arenas can grow: its bits are a few cache lines, which are
/// searched in less time than it takes to reserve a page.
const LONGEST_HEAP: usize = 256 << 10;

/// While the arenas can grow, a new heap is this part of all heaps: a pool with few short messages
/// takes little memory for them, and one with many has few heaps.
const HEAP_GROWTH: usize = 16;

/// An arena is at least this part of the cap, so that the arenas are few.
const LEAST_SHARE: usize = 64;

/// An arena has room for this many runs of the length that it is made for.
const LEAST_RUNS: usize = 8;

/// The same for runs above this share of the cap, of which more than a few have to fit.
const LEAST_LARGE_RUNS: usize = 32;
const LARGE_SHARE: usize = 32;

/// A run fits tightly into a gap that is longer by at most this part of it. With 4, short runs use up
/// what messages of a quarter of the cap need (`cargo bench --bench at_the_cap -- --fits`).
const TIGHT_SHARE: usize = 16;

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
    place: Place,
}

/// What a piece was carved from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// An arena: it is a run of whole pages.
    Arena,
    /// The heap of this number.
    Heap(u32),
}

pub(crate) struct Arenas {
    state: Mutex<ArenaState>,
    /// Notified when a system call on pages has ended (see [`memory`]).
    settled: Condvar,
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

/// See [`Arenas::keep_new`].
pub(crate) struct KeepNew<'a>(&'a Arenas);

impl Drop for KeepNew<'_> {
    fn drop(&mut self) {
        self.0.state.lock().growing -= 1;
    }
}

struct ArenaState {
    arenas: Vec<Arena>,
    /// Threads that add an arena, and have not searched it yet.
    growing: usize,
    /// Arenas have made way for a longer one. A new arena then takes all that the cap allows,
    /// except for a [`First::OneMessage`].
    is_merged: bool,
    heaps: Heaps,
    /// Pages on which a thread makes a system call. Has space for [`MOST_IN_FLIGHT`].
    in_flight: Vec<InFlight>,
    region: Option<Region>,
    has_region: Arc<AtomicBool>,
    /// Without a region: the class that was refused first, and when it may get one.
    refused: Option<(usize, Instant)>,
}

struct Arena {
    payload: Arc<Payload>,
    pages: Carver,
    /// Pages that have memory.
    filled: Bits,
    was_used: bool,
    /// Has to be reserved whole before anything is carved from it. It has no piece.
    is_bare: bool,
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
            growing: 0,
            is_merged: false,
            heaps: Heaps::default(),
            in_flight: Vec::with_capacity(MOST_IN_FLIGHT),
            region: None,
            has_region: has_region.clone(),
            refused: None,
        };
        let max = max.min(longest.saturating_mul(MAX_SEGMENTS));
        let room = AtomicU8::new(Room::ToGrow as u8);
        Self {
            state: Mutex::new(state),
            settled: Condvar::new(),
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
        let mut carved = state.carve_lines(len);
        if carved.is_none() && (anywhere || state.may_use_heaps_apart(class)) {
            carved = state.heaps.carve_apart(len);
        }
        if carved.is_some() {
            state.served(class);
        }
        carved
    }

    /// Turns a filled run into a heap, and carves its first piece. `None`: no private memory.
    pub(crate) fn add_heap(&self, run: Carved, len: usize) -> Option<Carved> {
        let heap = match Heap::new(run) {
            Ok(heap) => heap,
            Err(run) => {
                self.free(run);
                return None;
            }
        };
        let mut state = self.state.lock();
        match state.heaps.add(heap, len) {
            Ok(carved) => Some(carved),
            Err(heap) => {
                drop(state);
                self.free(heap.into_run());
                None
            }
        }
    }

    /// Carves whole pages from the oldest arena where they fit tightly, or else from the oldest with
    /// space. Returns the parts without memory, too, in bytes from the segment's start. Uses another
    /// class's region only if `anywhere`, its own or a lapsed one if the run fits nowhere else.
    pub(crate) fn carve_run(
        &self,
        len: usize,
        class: usize,
        anywhere: bool,
    ) -> Option<(Carved, Vec<Range<usize>>)> {
        let mut state = self.state.lock();
        let pages = len / self.page;
        let mut found = state.carve_pages(pages, false);
        if found.is_none() && (anywhere || state.may_use_region(class)) {
            found = state.carve_pages(pages, true);
        }
        let (arena, at) = found?;
        state.served(class);
        let run = Carved {
            payload: state.arenas[arena].payload.clone(),
            offset: at * self.page,
            len,
            place: Place::Arena,
        };
        self.note_room(&state);
        let holes = self.take_holes(&mut state, &run);
        Some((run, holes))
    }

    pub(crate) fn cancel(&self, run: Carved, holes: &[Range<usize>]) {
        let mut state = self.state.lock();
        let pages = self.pages_of(&run.range());
        if let Some(arena) = state.arena(run.payload.serial()) {
            for hole in holes {
                arena.filled.clear(self.pages_of(hole));
            }
            arena.pages.free(pages.start, pages.len());
            arena.is_bare = self.whole;
        }
        self.note_room(&state);
    }

    pub(crate) fn free(&self, piece: Carved) {
        let mut state = self.state.lock();
        let serial = piece.payload.serial();
        match piece.place {
            Place::Arena => state.free_run(serial, self.pages_of(&piece.range())),
            Place::Heap(number) => {
                // Nothing but a gap that got longer.
                let Some(empty) = state.heaps.free(number, &piece) else {
                    return;
                };
                state.free_run(serial, self.pages_of(&empty.run().range()));
            }
        }
        self.note_room(&state);
    }

    /// Leaves a piece to a reader of unknown lifetime: its bytes are never used again.
    pub(crate) fn leak(&self, piece: &Carved) {
        let mut state = self.state.lock();
        let serial = piece.payload.serial();
        let run = match piece.place {
            Place::Arena => piece.range(),
            Place::Heap(number) => match state.heaps.get(number) {
                Some(heap) => heap.run().range(),
                None => return,
            },
        };
        let pages = self.pages_of(&run);
        if let Some(arena) = state.arena(serial) {
            arena.pages.leak(pages);
        }
    }

    fn pages_of(&self, bytes: &Range<usize>) -> Range<usize> {
        bytes.start / self.page..bytes.end.div_ceil(self.page)
    }

    fn bytes_of(&self, pages: &Range<usize>) -> Range<usize> {
        pages.start * self.page..pages.end * self.page
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
        let has_entry = state.arenas.len() < MAX_SEGMENTS;
        let room = if state.spanned() < self.max && has_entry || has_bare {
            Room::ToGrow
        } else if state.free_pages() * self.page < self.max / 2 {
            Room::Crowded
        } else {
            Room::Ample
        };
        self.room.store(room as u8, Ordering::Relaxed);
    }

    pub(crate) fn free_bytes(&self) -> usize {
        self.state.lock().free_pages() * self.page
    }

    pub(crate) fn has_empty_arena(&self) -> bool {
        let state = self.state.lock();
        state.arenas.iter().any(|arena| arena.pages.is_empty())
    }

    /// Returns `true` if all free memory together is as long as `need`.
    pub(crate) fn could_merge(&self, need: Need) -> bool {
        let state = self.state.lock();
        let in_heaps = if need.grain == Grain::Line {
            state.heaps.free_bytes()
        } else {
            0
        };
        let unspanned = self.max.saturating_sub(state.spanned());
        let in_arenas = state.free_pages() * self.page;
        unspanned + in_arenas + in_heaps >= need.size
    }

    pub(crate) fn heap_bytes(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.heaps.free_bytes(), state.heaps.bytes())
    }

    pub(crate) fn payloads(&self, mut each: impl FnMut(&Payload)) {
        for arena in &self.state.lock().arenas {
            each(&arena.payload);
        }
    }

    pub(crate) fn left_in_the_system(&self) -> Option<u64> {
        let state = self.state.lock();
        let first = state.arenas.first()?;
        first.payload.segment().free_bytes()
    }

    pub(crate) fn count_and_len(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.arenas.len(), state.spanned())
    }

    /// Returns the longest run that is sure to fit now: in a gap, or in a new arena.
    #[cfg(feature = "unstable-backend")]
    pub(crate) fn longest_run(&self) -> usize {
        let state = self.state.lock();
        let mut longest_gap = 0;
        let mut empty = 0;
        let mut empty_bytes = 0;
        for arena in &state.arenas {
            longest_gap = longest_gap.max(arena.pages.carved().longest_clear());
            if arena.pages.is_empty() {
                empty += 1;
                empty_bytes += arena.payload.len();
            }
        }
        let may_go = empty > 0 && (!self.all_or_none || empty == state.arenas.len());
        let mut next = self.max - state.spanned();
        if may_go {
            next += empty_bytes;
        } else if state.arenas.len() == MAX_SEGMENTS {
            next = 0;
        }
        next.min(self.longest).max(longest_gap * self.page)
    }
}

impl ArenaState {
    fn spanned(&self) -> usize {
        self.arenas.iter().map(|arena| arena.payload.len()).sum()
    }

    fn free_pages(&self) -> usize {
        self.arenas
            .iter()
            .map(|arena| arena.pages.free_pages())
            .sum()
    }

    fn arena(&mut self, serial: u64) -> Option<&mut Arena> {
        self.arenas
            .iter_mut()
            .find(|arena| arena.payload.serial() == serial)
    }

    /// Carves from a heap outside the region.
    fn carve_lines(&mut self, len: usize) -> Option<Carved> {
        let region = &self.region;
        self.heaps.carve(len, |run| match region {
            Some(region) => region.site.takes(run),
            None => false,
        })
    }

    /// Carves from the oldest arena where the run fits tightly, or else from the oldest with space.
    /// Returns the number of the arena, and the first page.
    ///
    /// Talc looks for a tight gap in one arena. If the oldest arena with space were always used, a
    /// long gap there would be cut while another arena has a gap of the run's length, as if there
    /// were as many caps as arenas. If the tightest gap of all were used, short runs would be
    /// scattered over all arenas, and none would keep its long gaps. A run of less than 16 pages goes
    /// to the oldest arena with space: a search of all would cost an allocation at the cap a fifth of
    /// its time, and gain no room that can be measured.
    fn carve_pages(&mut self, pages: usize, anywhere: bool) -> Option<(usize, usize)> {
        let most_rest = pages / TIGHT_SHARE;
        let is_short = most_rest == 0;
        let mut loose: Option<(usize, usize)> = None;
        for number in 0..self.arenas.len() {
            let arena = &mut self.arenas[number];
            if arena.is_bare {
                continue;
            }
            let Some(at) = arena.pages.carve(pages, anywhere) else {
                continue;
            };
            let is_tight =
                is_short || arena.pages.clear_after(at + pages, most_rest + 1) <= most_rest;
            if is_tight {
                if let Some((oldest, at)) = loose {
                    self.arenas[oldest].pages.free(at, pages);
                }
                return Some((number, at));
            }
            if loose.is_some() {
                arena.pages.free(at, pages);
            } else {
                loose = Some((number, at));
            }
        }
        loose
    }

    fn free_run(&mut self, serial: u64, pages: Range<usize>) {
        if let Some(arena) = self.arena(serial) {
            arena.pages.free(pages.start, pages.len());
        }
    }
}

pub(crate) struct Blank(Carver, Bits);

impl Arenas {
    /// Returns the length of a new heap for pieces of `len` bytes, and the least one that serves: a
    /// single piece. A length is a multiple of the piece, so that pieces of one size leave no
    /// remainder.
    pub(crate) fn heap_len(&self, len: usize, will_recur: bool) -> (usize, usize) {
        let least = len.next_multiple_of(self.page);
        let first = match self.first {
            First::Given(bytes) | First::Usual(bytes) => bytes,
            First::OneMessage => 0,
        };
        let state = self.state.lock();
        let bytes = if state.spanned() < self.max {
            let shortest = SHORTEST_HEAP.min(first / 2);
            (state.heaps.bytes() / HEAP_GROWTH).clamp(shortest, LONGEST_HEAP)
        } else {
            // All that is not needed soon is left to long messages.
            LAST_HEAP.min(first)
        };
        let mut count = bytes.div_ceil(len).max(1);
        if state.spanned() == self.max && will_recur && len % self.page > 0 {
            // One piece would leave a part of its last page unused.
            count = count.max(2);
        }
        ((count * len).next_multiple_of(self.page), least)
    }

    /// Returns `true` if an arena for a run of `len` bytes can be added, or provided with memory.
    pub(crate) fn may_grow(&self, len: usize) -> bool {
        let has_bare = self.state.lock().arenas.iter().any(|arena| arena.is_bare);
        has_bare || self.next_len(len).is_some()
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
        let least = if state.arenas.is_empty() {
            match self.first {
                First::OneMessage => return Some(len),
                First::Given(bytes) => bytes.max(len),
                First::Usual(bytes) => bytes.max(runs * len),
            }
        } else {
            state.spanned().max(self.max / LEAST_SHARE).max(runs * len)
        };
        // Long enough that the segments allowed after this one can reach the cap.
        let others = (MAX_SEGMENTS - state.arenas.len() - 1).saturating_mul(self.longest);
        let wanted = least.max(rest.saturating_sub(others)).div_ceil(len) * len;
        let next = wanted.min(rest).min(self.longest / len * len);
        let is_last = state.is_merged || rest - next < (next / 2).max(len);
        if is_last {
            return Some(rest.min(self.longest));
        }
        Some(next)
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
        Some(Blank(Carver::new(pages)?, Bits::new(pages)?))
    }

    pub(crate) fn add(&self, payload: Arc<Payload>, blank: Blank, account: &Account) {
        let mut state = self.state.lock();
        // Under the lock, which orders the relaxed counter: a thread that searched before this, and
        // searches again after the arena is removed, reads the new count (`Pool::attempt`).
        account.count_segment();
        state.arenas.push(Arena {
            payload,
            pages: blank.0,
            filled: blank.1,
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
        let bare = state.arenas.iter_mut().filter(|arena| {
            let arena_len = arena.payload.len();
            arena.is_bare && arena_len >= len && arena_len > above
        });
        let arena = bare.min_by_key(|arena| arena.payload.len())?;
        let pages = arena.pages.pages();
        arena.pages.carve(pages, true)?;
        arena.is_bare = false;
        let all = Carved {
            payload: arena.payload.clone(),
            offset: 0,
            len: pages * self.page,
            place: Place::Arena,
        };
        self.note_room(&state);
        let holes = self.take_holes(&mut state, &all);
        Some((all, holes))
    }

    /// Keeps the arenas that nobody has used yet until the returned value is dropped: one may be
    /// added for the calling thread.
    pub(crate) fn keep_new(&self) -> KeepNew<'_> {
        self.state.lock().growing += 1;
        KeepNew(self)
    }

    /// If `unused`, only an arena made for an allocation that failed.
    ///
    /// The caller has `own` of the values that [`keep_new`](Self::keep_new) returns.
    pub(crate) fn take_empty(&self, unused: bool, own: usize) -> Option<(Arc<Payload>, usize)> {
        let mut state = self.state.lock();
        let keeps_new = state.growing > own;
        let is_leaving = |arena: &Arena| {
            let may_leave = if arena.was_used { !unused } else { !keeps_new };
            arena.pages.is_empty() && may_leave
        };
        let at = state.arenas.iter().position(is_leaving)?;
        let arena = state.arenas.remove(at);
        self.note_room(&state);
        let filled = arena.filled.count(0..arena.pages.pages()) * self.page;
        Some((arena.payload, filled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Namespace, Provider, Tuning};

    /// The class of requests that no region belongs to.
    pub(super) const OTHER: usize = 0;
    pub(super) const OWN: usize = 1;

    /// A provider with one arena, in which there is nothing.
    pub(super) fn provider(test: &str, bytes: usize) -> Provider {
        let name = format!("shm_pool-unit-{}-{test}", std::process::id());
        let provider = Provider::builder()
            .namespace(&Namespace::new(&name).unwrap())
            .max_bytes(bytes)
            .tuning(Tuning::new().arena_size(bytes))
            .build()
            .unwrap();
        let arenas = &provider.pool().arenas;
        let payload = provider.pool().new_segment(bytes);
        let blank = arenas.prepare(bytes).unwrap();
        arenas.add(Arc::new(payload), blank, &Account::default());
        provider
    }

    /// Carves what a chunk of this length is carved from, without memory.
    pub(super) fn carve(arenas: &Arenas, len: usize, grain: Grain) -> Option<Carved> {
        if grain == Grain::Page {
            return Some(arenas.carve_run(len, OTHER, false)?.0);
        }
        if let Some(carved) = arenas.carve_lines(len, OTHER, false) {
            return Some(carved);
        }
        let (wanted, least) = arenas.heap_len(len, true);
        for heap in [wanted, least] {
            if let Some((run, _)) = arenas.carve_run(heap, OTHER, false) {
                return arenas.add_heap(run, len);
            }
        }
        None
    }

    fn check_heaps(arenas: &Arenas) {
        arenas.state.lock().heaps.check();
    }

    /// Nothing is carved in the region for another class, as long as there is room elsewhere.
    #[test]
    fn region_belongs_to_its_class() {
        let provider = provider("region", 64 << 10);
        let arenas = &provider.pool().arenas;
        let page = arenas.page;
        let mut runs = Vec::new();
        while let Some(run) = carve(arenas, page, Grain::Page) {
            runs.push(Some(run));
        }
        let at = |run: &Option<Carved>| run.as_ref().map(Carved::offset);
        runs.sort_by_key(at);
        let serial = runs[0].as_ref().unwrap().payload.serial();
        let count = runs.len();
        let region = page * (count / 2)..page * (count - 2);
        arenas.keep_region(OWN, Site::part(serial, region.clone()));
        for run in runs.iter_mut().skip(1).step_by(2) {
            arenas.free(run.take().unwrap());
        }
        let mut others = Vec::new();
        while let Some(run) = carve(arenas, page, Grain::Page) {
            assert!(!region.contains(&run.offset));
            others.push(run);
        }
        // The last resort.
        let (last, _) = arenas.carve_run(page, OTHER, true).unwrap();
        assert!(region.contains(&last.offset));
        assert!(arenas.region_of(OWN).is_some());
        arenas.free(last);
        // The heap is in the region, and so for its class only.
        for run in &mut runs[count / 2..count / 2 + 2] {
            if let Some(run) = run.take() {
                arenas.free(run);
            }
        }
        let (run, _) = arenas.carve_run(2 * page, OTHER, true).unwrap();
        assert!(region.contains(&run.offset));
        let first = arenas.add_heap(run, 64).unwrap();
        assert!(arenas.carve_lines(64, OTHER, false).is_none());
        check_heaps(arenas);
        let second = arenas.carve_lines(64, OTHER, true).unwrap();
        let third = arenas.carve_lines(64, OWN, false).unwrap();
        assert!(arenas.region_of(OWN).is_none(), "its class was served");
        let fourth = arenas.carve_lines(64, OTHER, false).unwrap();
        check_heaps(arenas);
        for piece in [first, second, third, fourth] {
            arenas.free(piece);
            check_heaps(arenas);
        }
        for run in runs.into_iter().flatten().chain(others) {
            arenas.free(run);
        }
        let all = arenas.carve_run(count * page, OTHER, false);
        assert!(all.is_some(), "all pages are one gap again");
        arenas.free(all.unwrap().0);
    }

    /// A long gap is not cut while a newer arena has a gap of the run's length.
    #[test]
    fn tight_gap_of_a_newer_arena() {
        let provider = provider("tight", 256 << 10);
        let arenas = &provider.pool().arenas;
        let page = arenas.page;
        let payload = Arc::new(provider.pool().new_segment(33 * page));
        let newer = payload.serial();
        let blank = arenas.prepare(33 * page).unwrap();
        arenas.add(payload, blank, &Account::default());
        let carve = |pages: usize| arenas.carve_run(pages * page, OTHER, false).unwrap().0;
        let is_in_newer = |run: &Carved| run.payload.serial() == newer;

        let first = carve(32);
        assert!(is_in_newer(&first), "one page is left of the gap there");
        let second = carve(32);
        assert!(!is_in_newer(&second), "there is no other space");
        arenas.free(first);
        let third = carve(20);
        assert!(!is_in_newer(&third), "tight in neither: in the oldest");
        for run in [second, third] {
            arenas.free(run);
        }
        assert!(arenas.has_empty_arena());
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
}
