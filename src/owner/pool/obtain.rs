//! Obtaining a chunk that is not at hand: making one, and room for it.
//!
//! A request that has found nothing takes these steps, and ends with the first that gives it a
//! chunk, or memory for one.
//!
//! | step | lock held |
//! |---|---|
//! | *look again* in the class: idle chunks, then leased ones whose leases have ended | making |
//! | *free* a few retired chunks whose leases have ended, where the arenas cannot grow | making |
//! | *carve* free memory of the arenas | making |
//! | look at all leased chunks of the class, and in the next larger classes | making |
//! | *grow*: add an arena, below the cap | growing |
//! | *steal*: evict the smallest idle chunk that is long enough | making |
//! | *merge*: evict the idle chunks in the range that wastes least | making |
//! | look after dead peers, and collect what channels have got back | none |
//! | carve in the range that is kept for another class | making |
//!
//! Carved memory may consist of holes. The thread that asked for it makes it present, with no lock
//! held: that takes the system a fraction of a microsecond for each KiB.
//!
//! If the system has no memory, the request returns free memory of the arenas to it, then that of
//! idle chunks, and removes what dead processes have left, before it fails.
//!
//! # The making lock
//!
//! A queue can only be searched by popping. So a thread that evicts has chunks in its hand for which
//! other threads may be looking. It holds the *making lock* meanwhile: the functions that hide chunks
//! take a [`Making`] as a proof. A request that has found nothing acquires the lock and looks again
//! before a chunk is made for it, and before it is refused. So a chunk is made, or a request
//! refused, only if at one moment no chunk of its class was free.
//!
//! A thread that searches the leased queue of its own class does not hold the lock. It has one
//! chunk in its hand, and takes it if its lease has ended. If the lease ends just after the thread
//! has looked, the chunk is out of sight for other threads until it is back in the queue; then the
//! thread notifies the requests that wait.
//!
//! Its place among the other locks is in `docs/design.md`, *The order of the locks*.

#![forbid(unsafe_code)]

use super::retired::Retired;
use super::take::RETIRED_AT_ONCE;
use super::{Pool, GROUP, RECURS_WITHIN};
use crate::error::OsError;
use crate::owner::arena::{Carved, KeepNew, Room};
use crate::owner::chunk::ClosedChunk;
use crate::owner::limits::{Grain, Need, Refusal, MIN_SIZE};
use parking_lot::{Mutex, MutexGuard};
use std::io;

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// How often a request is tried again: other threads may take the room that it has made, and
/// garbage in shared memory can make it look as if there were always more to reclaim.
const TRIES: usize = 8;

/// The same as [`RECURS_WITHIN`] for messages of a page or more, once less than half of the cap is free.
/// With 3, three lengths in turn are warm; with 4, more messages of random sizes are refused (`cargo
/// bench --bench at_the_cap`).
pub(super) const RECURS_WITHIN_WHERE_CROWDED: u64 = 3;

/// The right to have chunks out of sight that are not in use.
///
/// With it comes what only searches use: the lists of retired chunks.
pub(super) struct Making<'a>(MutexGuard<'a, Retired>);

impl<'a> Making<'a> {
    pub(super) fn lock(mutex: &'a Mutex<Retired>) -> Self {
        Self(mutex.lock())
    }

    pub(super) fn try_lock(mutex: &'a Mutex<Retired>) -> Option<Self> {
        Some(Self(mutex.try_lock()?))
    }

    pub(super) fn retired(&mut self) -> &mut Retired {
        &mut self.0
    }

    /// Lets other threads have the lock first, if any wait for it. The caller has no chunk in its
    /// hand.
    pub(super) fn yield_now(&mut self) {
        MutexGuard::bump(&mut self.0);
    }
}

/// What a request needs.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) class: usize,
    pub(super) need: Need,
    /// No free list will keep the chunk.
    is_uncached: bool,
    /// The chunk is reserved beside the existing ones, so none of those serves.
    pub(super) is_reserve: bool,
}

/// What serves a request.
enum Found {
    Chunk(ClosedChunk),
    Memory(Unfilled),
}

/// Memory of the arenas that may have holes.
struct Unfilled {
    run: Carved,
    /// In bytes from the segment's start.
    holes: Vec<Range<usize>>,
    purpose: Purpose,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// The message's bytes.
    Chunk,
    /// A heap of which the message is the first piece.
    Heap,
}

/// The result of an attempt to make room.
enum RoomMade {
    Found(Found),
    /// There is more room than before: in whole arenas, or where another thread may be faster.
    TryAgain,
    /// Arenas without chunks have to make way for a longer one.
    Surrender,
    None,
}

/// Why there is no memory.
enum Shortage {
    /// The cap.
    Cap,
    /// The system. Boxed, so that success is returned in few words.
    Os(Box<OsError>),
}

impl From<OsError> for Shortage {
    fn from(error: OsError) -> Self {
        Self::Os(Box::new(error))
    }
}

/// What was tried for a request.
struct Tried {
    rounds: usize,
    has_reclaimed: bool,
    has_punched: bool,
    has_swept: bool,
    has_awaited_futures: bool,
    /// The range that is kept for another class may be used.
    anywhere: bool,
    /// The system has no memory for a heap that is longer than necessary.
    is_tight: bool,
    /// Segments that had been created before the last search.
    segments: u64,
}

fn no_private_memory(object: &str, bytes: usize) -> Shortage {
    let source = io::Error::from_raw_os_error(libc::ENOMEM);
    let error = OsError::new("malloc", object, source)
        .with_bytes(bytes)
        .with_advice("it is private memory for the account of the buffers");
    error.into()
}

impl Pool {
    pub(super) fn lock_making(&self) -> Making<'_> {
        Making::lock(&self.making)
    }

    /// Obtains a chunk for a message of `len` bytes.
    #[cold]
    pub(crate) fn obtain_for(
        self: &Arc<Self>,
        class: usize,
        len: usize,
    ) -> Result<ClosedChunk, Refusal> {
        // Before there is a chunk of this class between them, for ever.
        if self.limits.is_planned(class) {
            self.evict_unplanned(self.demand(class, len));
        }
        let need = self.demand(class, len);
        let wanted = self.wanted(class, len);
        let refusal = match self.obtain(wanted) {
            Ok(chunk) => return Ok(chunk),
            Err(refusal) => refusal,
        };
        let is_rounded = !wanted.is_uncached && need.size < wanted.need.size;
        if !is_rounded || !self.is_out_of_room(&refusal) {
            return Err(refusal);
        }
        // It may fit without the class's rounding.
        let exact = Wanted {
            need,
            is_uncached: true,
            ..wanted
        };
        self.obtain(exact).or(Err(refusal))
    }

    /// Makes a chunk if there is room for it.
    #[cold]
    pub(crate) fn make_if_room(self: &Arc<Self>, class: usize, len: usize) -> Option<ClosedChunk> {
        let wanted = self.wanted(class, len);
        let mut tried = Tried::new();
        let mut keeps_new = None;
        for _ in 0..TRIES {
            let carved = {
                let _making = self.lock_making();
                self.carve(wanted, &tried)
            };
            drop(keeps_new.take());
            let Some(unfilled) = carved else {
                match self.grow_keeping(wanted, &mut keeps_new) {
                    Ok(()) => continue,
                    Err(_) => break,
                }
            };
            match self.make_present(unfilled, wanted) {
                Ok(memory) => return Some(self.register(wanted, memory)),
                Err(_) if !tried.is_tight => tried.is_tight = true,
                Err(_) => break,
            }
        }
        drop(keeps_new);
        if !self.source.keeps_segments() {
            // There may be a new segment, without memory.
            self.release_arenas(true);
        }
        None
    }

    /// If the arenas can no longer grow, this chunk is uncached unless the class recurs: a chunk on a
    /// free list would be in the way of others.
    fn wanted(&self, class: usize, len: usize) -> Wanted {
        let usual = self.usual(class);
        let room = self.arenas.room();
        if room == Room::ToGrow {
            return usual;
        }
        // There is room for it.
        if self.limits.is_planned(class) {
            return usual;
        }
        let recurs_within = if room == Room::Crowded && usual.need.size >= self.limits.page {
            RECURS_WITHIN_WHERE_CROWDED
        } else {
            RECURS_WITHIN
        };
        if self.made_since(class) < recurs_within {
            return usual;
        }
        Wanted {
            need: self.demand(class, len),
            is_uncached: true,
            ..usual
        }
    }

    /// Returns how many chunks were made since the last one of the class.
    pub(super) fn made_since(&self, class: usize) -> u64 {
        // Relaxed: only a hint.
        let made = self.made.load(Ordering::Relaxed);
        let last = self.classes[class].last_made.load(Ordering::Relaxed);
        made.saturating_sub(last)
    }

    pub(crate) fn demand(&self, class: usize, len: usize) -> Need {
        let Need { size, grain } = self.classes[class].shape.need;
        let unit = match grain {
            Grain::Line => MIN_SIZE,
            Grain::Page => self.limits.page,
        };
        let exact = len.max(1).next_multiple_of(unit);
        Need {
            size: exact.min(size),
            grain,
        }
    }

    fn usual(&self, class: usize) -> Wanted {
        Wanted {
            class,
            need: self.classes[class].shape.need,
            is_uncached: false,
            is_reserve: false,
        }
    }

    /// Makes a chunk beside the existing ones of its class.
    pub(super) fn obtain_reserved(self: &Arc<Self>, class: usize) -> Result<ClosedChunk, Refusal> {
        self.obtain(Wanted {
            is_reserve: true,
            ..self.usual(class)
        })
    }

    #[cold]
    fn obtain(self: &Arc<Self>, mut wanted: Wanted) -> Result<ClosedChunk, Refusal> {
        let mut tried = Tried::new();
        // Before the first search.
        let abandoned_tries = self.waiting.abandoned_tries();
        loop {
            let shortage = match self.attempt(wanted, &mut tried) {
                Ok(chunk) => return Ok(chunk),
                Err(shortage) => shortage,
            };
            let is_relieved = match &shortage {
                Shortage::Cap => self.relieve_cap(&mut wanted, &mut tried),
                Shortage::Os(error) => self.relieve(&mut wanted, &mut tried, error),
            };
            if is_relieved {
                continue;
            }
            // Another thread may have released a chunk.
            if let Some(chunk) = self.search_all(wanted) {
                return Ok(chunk);
            }
            if tried.has_awaited_futures || !self.waiting.await_abandoned_try(abandoned_tries) {
                return Err(self.failed(wanted, shortage));
            }
            tried.has_awaited_futures = true;
            tried.rounds = 0;
        }
    }

    /// Obtains a chunk unless there is a shortage.
    fn attempt(
        self: &Arc<Self>,
        wanted: Wanted,
        tried: &mut Tried,
    ) -> Result<ClosedChunk, Shortage> {
        // A thread that trims leaves the arena that this one adds until it has searched again.
        let mut keeps_new = None;
        loop {
            tried.segments = self.account.created();
            let found = self.find(&mut self.lock_making(), wanted, tried);
            drop(keeps_new.take());
            let found = match found {
                Some(found) => found,
                None => {
                    let shortage = match self.grow_keeping(wanted, &mut keeps_new) {
                        Ok(()) if tried.may_try_again() => continue,
                        Ok(()) => return Err(Shortage::Cap),
                        Err(shortage) => shortage,
                    };
                    if !self.is_for_lack_of_room(&shortage) {
                        return Err(shortage);
                    }
                    let made = self.make_room(&mut self.lock_making(), wanted, tried);
                    self.notify_unless_trying();
                    match made {
                        RoomMade::Found(found) => found,
                        RoomMade::TryAgain if tried.may_try_again() => continue,
                        RoomMade::Surrender if tried.may_try_again() => {
                            self.arenas.note_merged();
                            self.release_arenas(false);
                            continue;
                        }
                        _ => return Err(shortage),
                    }
                }
            };
            let unfilled = match found {
                Found::Chunk(chunk) => return Ok(chunk),
                Found::Memory(unfilled) => unfilled,
            };
            let memory = self.make_present(unfilled, wanted)?;
            // Only now: a request that cannot be served evicts nothing.
            let is_long = wanted.need.size >= self.limits.page;
            if is_long && self.arenas.room() == Room::Crowded {
                let has_searched = self.relieve_crowding(&mut self.lock_making());
                if has_searched {
                    self.notify_unless_trying();
                }
            }
            return Ok(self.register(wanted, memory));
        }
    }

    /// Finds a chunk, or carves memory, without harm to any other chunk.
    fn find(&self, making: &mut Making<'_>, wanted: Wanted, tried: &Tried) -> Option<Found> {
        let class = wanted.class;
        if !wanted.is_reserve {
            if let Some(chunk) = self.take_own(class) {
                return Some(Found::Chunk(chunk));
            }
            if let Some(chunk) = self.take_leased_of(class, self.leased_tries(class)) {
                return Some(Found::Chunk(chunk));
            }
        }
        if self.arenas.room() != Room::ToGrow {
            self.free_retired(making, RETIRED_AT_ONCE);
        }
        if let Some(unfilled) = self.carve(wanted, tried) {
            return Some(Found::Memory(unfilled));
        }
        // No segment is created while a chunk is free anywhere.
        let chunk = self.take_any(making, wanted)?;
        Some(Found::Chunk(chunk))
    }

    fn take_any(&self, _making: &mut Making<'_>, wanted: Wanted) -> Option<ClosedChunk> {
        if wanted.is_reserve {
            return None;
        }
        let class = wanted.class;
        if let Some(chunk) = self.take_own(class) {
            return Some(chunk);
        }
        if let Some(chunk) = self.take_leased_of(class, usize::MAX) {
            return Some(chunk);
        }
        if let Some(chunk) = self.take_larger(class) {
            return Some(chunk);
        }
        self.take_larger_leased(class)
    }

    fn search_all(&self, wanted: Wanted) -> Option<ClosedChunk> {
        self.take_any(&mut self.lock_making(), wanted)
    }

    /// Makes room for a chunk: evicts idle chunks, and carves the memory that they leave.
    fn make_room(&self, making: &mut Making<'_>, wanted: Wanted, tried: &Tried) -> RoomMade {
        let Wanted { class, need, .. } = wanted;
        self.return_leased(making);
        if let Some(chunk) = self.take_any(making, wanted) {
            return RoomMade::Found(Found::Chunk(chunk));
        }
        // Retired chunks have left their memory.
        if let Some(unfilled) = self.carve(wanted, tried) {
            return RoomMade::Found(Found::Memory(unfilled));
        }
        if self.arenas.end_surrender(class) {
            return RoomMade::Surrender;
        }
        if self.steal(making, need) {
            if let Some(unfilled) = self.carve(wanted, tried) {
                return RoomMade::Found(Found::Memory(unfilled));
            }
        }
        let anywhere = tried.anywhere || !self.arenas.is_kept_from(class);
        let Some(site) = self.find_idle_site(making, need, anywhere) else {
            return RoomMade::None;
        };
        self.evict(making, usize::MAX, |chunk| site.takes(chunk.memory()));
        if site.is_surrender() {
            return RoomMade::Surrender;
        }
        match self.carve(wanted, tried) {
            Some(unfilled) => RoomMade::Found(Found::Memory(unfilled)),
            None => RoomMade::TryAgain,
        }
    }

    /// Evicts the smallest idle chunk that is at least as long as `need`.
    fn steal(&self, making: &mut Making<'_>, need: Need) -> bool {
        let mut victim = None;
        for (class, _) in self.evictable_classes() {
            let other = self.classes[class].shape.need;
            // A message of whole pages does not fit into a heap.
            let fits = other.size >= need.size
                && (need.grain == Grain::Line || other.grain == Grain::Page);
            let is_smaller = match victim {
                Some((size, _)) => other.size < size,
                None => true,
            };
            if fits && is_smaller {
                victim = Some((other.size, class));
            }
        }
        let Some((_, class)) = victim else {
            return false;
        };
        // One chunk: the eviction ends once it has a byte.
        self.evict_of(making, class, 1, |_| true) > 0
    }

    /// Relieves the shortage of a request that the cap refuses. Returns `false` if that is
    /// impossible.
    fn relieve_cap(&self, wanted: &mut Wanted, tried: &mut Tried) -> bool {
        if !tried.may_try_again() {
            return false;
        }
        if !tried.has_reclaimed {
            tried.has_reclaimed = true;
            if self.reclaim_any() {
                return true;
            }
        }
        // Other threads may have added or removed an arena since the search.
        let (_, least) = self.run_len(*wanted);
        if self.arenas.may_grow(least) || self.account.created() != tried.segments {
            return true;
        }
        self.may_use_kept_range(wanted, tried)
    }

    /// Returns `true` the first time, if there is a range that is kept for another class.
    fn may_use_kept_range(&self, wanted: &mut Wanted, tried: &mut Tried) -> bool {
        if tried.anywhere || !self.arenas.has_region_of_another(wanted.class) {
            return false;
        }
        tried.anywhere = true;
        tried.rounds = 0;
        // A chunk in the range leaves it when it is dropped, unless there is no other range.
        wanted.is_uncached |= !wanted.is_reserve && self.arenas.has_other_sites();
        true
    }

    /// Does the same for a request that the system refuses.
    fn relieve(&self, wanted: &mut Wanted, tried: &mut Tried, error: &OsError) -> bool {
        if !tried.may_try_again() {
            return false;
        }
        if error.is_out_of_memory() {
            let may_be_shorter = wanted.need.grain == Grain::Line;
            if may_be_shorter && !tried.is_tight {
                tried.is_tight = true;
                return true;
            }
            let was_punched = tried.has_punched;
            tried.has_punched = true;
            if self.relieve_system(wanted.need, was_punched, error) {
                return true;
            }
            if !tried.has_swept {
                tried.has_swept = true;
                if self.source.sweep() > 0 {
                    return true;
                }
            }
        }
        // Also if it is out of descriptors: a channel that is over has some.
        if !tried.has_reclaimed {
            tried.has_reclaimed = true;
            if self.reclaim_any() {
                return true;
            }
        }
        self.arenas.are_whole()
            && error.is_out_of_memory()
            && self.may_use_kept_range(wanted, tried)
    }

    /// Where segments are whole, the file system limits them as the cap does.
    fn is_for_lack_of_room(&self, shortage: &Shortage) -> bool {
        match shortage {
            Shortage::Cap => true,
            Shortage::Os(error) => self.arenas.are_whole() && error.is_out_of_memory(),
        }
    }

    #[cold]
    fn failed(&self, wanted: Wanted, shortage: Shortage) -> Refusal {
        match shortage {
            Shortage::Cap => self.exhausted(wanted.need),
            Shortage::Os(error) => {
                if !self.source.keeps_segments() {
                    self.release_arenas(true);
                }
                (*error).into()
            }
        }
    }

    fn register(self: &Arc<Self>, wanted: Wanted, memory: Carved) -> ClosedChunk {
        let class = wanted.class;
        let counts = &self.classes[class];
        counts.misses.fetch_add(1, Ordering::Relaxed);
        let made = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        counts.last_made.store(made, Ordering::Relaxed);
        self.collection.note_made(memory.len());
        self.refused.store(0, Ordering::Relaxed);
        let mut registry = self.registry.lock();
        if !wanted.is_uncached {
            self.groups[class / GROUP].fetch_add(1, Ordering::Relaxed);
            let others = self.listed[class].fetch_add(1, Ordering::Relaxed);
            let max_queued = counts.shape.max_idle.saturating_sub(1);
            self.free_lists[class].open_idle(others, max_queued);
        }
        registry.enter(self.clone(), class, memory, wanted.is_uncached)
    }
}

impl Tried {
    fn new() -> Self {
        Self {
            rounds: 0,
            has_reclaimed: false,
            has_punched: false,
            has_swept: false,
            has_awaited_futures: false,
            anywhere: false,
            is_tight: false,
            segments: 0,
        }
    }

    fn may_try_again(&mut self) -> bool {
        self.rounds += 1;
        self.rounds <= TRIES
    }
}

impl Pool {
    /// Returns the length of the run to carve for a message that no heap has room for, and the
    /// least length that serves.
    fn run_len(&self, wanted: Wanted) -> (usize, usize) {
        let Need { size, grain } = wanted.need;
        match grain {
            Grain::Page => (size, size),
            Grain::Line => self.arenas.heap_len(size, !wanted.is_uncached),
        }
    }

    fn carve(&self, wanted: Wanted, tried: &Tried) -> Option<Unfilled> {
        let Wanted { need, class, .. } = wanted;
        if need.grain == Grain::Line {
            let piece = self.arenas.carve_lines(need.size, class, tried.anywhere);
            if let Some(run) = piece {
                return Some(Unfilled {
                    run,
                    holes: Vec::new(),
                    purpose: Purpose::Chunk,
                });
            }
        }
        let (usual, least) = self.run_len(wanted);
        // Nothing else would fit in such a heap.
        let is_alone = need.size >= self.limits.page && usual == least;
        let purpose = match need.grain {
            Grain::Line if !is_alone => Purpose::Heap,
            _ => Purpose::Chunk,
        };
        let mut len = if tried.is_tight { least } else { usual };
        loop {
            if let Some((run, holes)) = self.arenas.carve_run(len, class, tried.anywhere) {
                return Some(Unfilled {
                    run,
                    holes,
                    purpose,
                });
            }
            if len == least {
                return None;
            }
            len = (len / 2).next_multiple_of(self.limits.page).max(least);
        }
    }

    /// Adds an arena for a request, which other threads keep until `keeps_new` is dropped.
    fn grow_keeping<'a>(
        &'a self,
        wanted: Wanted,
        keeps_new: &mut Option<KeepNew<'a>>,
    ) -> Result<(), Shortage> {
        if self.arenas.room() != Room::ToGrow {
            return Err(Shortage::Cap);
        }
        *keeps_new = Some(self.arenas.keep_new());
        let grown = self.grow_for(wanted);
        if grown.is_err() {
            *keeps_new = None;
        }
        grown
    }

    /// Adds an arena for a request.
    fn grow_for(&self, wanted: Wanted) -> Result<(), Shortage> {
        let (usual, least) = self.run_len(wanted);
        if self.grow(usual).is_ok() {
            return Ok(());
        }
        self.grow(least)
    }

    fn make_present(&self, unfilled: Unfilled, wanted: Wanted) -> Result<Carved, Shortage> {
        let len = wanted.need.size;
        let run = self.fill(unfilled.run, unfilled.holes)?;
        match unfilled.purpose {
            Purpose::Chunk => Ok(run.shortened(len)),
            Purpose::Heap => {
                let bytes = run.len();
                match self.arenas.add_heap(run, len) {
                    Some(memory) => Ok(memory),
                    None => Err(no_private_memory("a heap", bytes)),
                }
            }
        }
    }

    fn fill(&self, run: Carved, holes: Vec<Range<usize>>) -> Result<Carved, Shortage> {
        if holes.is_empty() {
            return Ok(run);
        }
        self.waiting.pass_turn_early(self);
        let segment = run.payload().segment();
        for (at, hole) in holes.iter().enumerate() {
            if let Err(error) = segment.reserve(hole.clone()) {
                // Undoes a partial reservation.
                segment.discard(hole.clone());
                self.arenas.cancel(run, &holes[at..]);
                self.notify_unless_trying();
                return Err(error.into());
            }
            self.account.take(hole.len());
        }
        self.arenas.fill_rests(&run, &self.account);
        Ok(run)
    }
}

/// A segment that is never removed has at least 1 / `KEPT_SHARE` of its intended length.
const KEPT_SHARE: usize = 32;

/// How much shorter the next segment to be tried is if the file system has no room for one: by this
/// part of it.
const SHORTER_BY: usize = 8;

impl Pool {
    /// Adds an arena for a run of `len` bytes, unless another thread has just done so.
    fn grow(&self, len: usize) -> Result<(), Shortage> {
        // If another thread has added an arena since the search, `attempt` searches again.
        if !self.arenas.may_grow(len) {
            return Err(Shortage::Cap);
        }
        self.waiting.pass_turn_early(self);
        let _one_at_a_time = self.growing.lock();
        if self.arenas.has_gap(len) {
            return Ok(());
        }
        let refused = match self.fill_bare(len) {
            Ok(true) => return Ok(()),
            Ok(false) => Shortage::Cap,
            Err(error) => error,
        };
        let Some(mut arena) = self.arenas.next_len(len) else {
            return Err(refused);
        };
        // A segment that stays has to be worth its entry.
        let least = if self.source.keeps_segments() {
            len.max(arena / KEPT_SHARE)
                .next_multiple_of(self.limits.page)
        } else {
            len
        };
        arena = self.longest_with_room(arena, least)?;
        let (mut payload, blank) = loop {
            let made = match self.arenas.prepare(arena) {
                Some(blank) => match self.source.create(arena) {
                    Ok(payload) => Ok((payload, blank)),
                    Err(error) => Err(error.into()),
                },
                None => Err(no_private_memory("an arena", arena)),
            };
            match made {
                Ok(made) => break made,
                // There may be too little address space, or memory if the factory reserves all of
                // it.
                Err(Shortage::Os(error)) if error.is_out_of_memory() && arena > least => {
                    arena = (arena / 2).next_multiple_of(self.limits.page).max(len);
                }
                Err(shortage) => return Err(shortage),
            }
        };

        let serial = payload.serial();
        if self.arenas.has_segment(serial) {
            let twice = io::Error::from_raw_os_error(libc::EEXIST);
            let error = OsError::new("create", format!("segment {serial}"), twice)
                .with_bytes(arena)
                .with_advice("its source has given two segments one id");
            return Err(error.into());
        }
        if let Some(control) = self.control() {
            control.list(&mut payload);
        }
        event!(
            info,
            provider = %self.id(),
            segment = serial,
            len = arena,
            "segment made"
        );
        self.arenas.add(Arc::new(payload), blank, &self.account);
        if !self.arenas.are_whole() {
            return Ok(());
        }
        if let Err(shortage) = self.fill_bare(len) {
            // `grow_keeping` has one.
            self.release_arenas_except(true, 1);
            return Err(shortage);
        }
        Ok(())
    }

    /// Reserves all of an arena that has returned its memory, or is new, for a run of `len` bytes.
    /// Returns `false` if there is none. The caller holds `growing`.
    fn fill_bare(&self, len: usize) -> Result<bool, Shortage> {
        let mut result = Ok(false);
        let mut above = 0;
        while let Some((all, holes)) = self.arenas.carve_bare(len, above) {
            above = all.len();
            let mut missing = 0;
            for hole in &holes {
                missing += hole.len();
            }
            if let Err(error) = self.source.check_room(missing) {
                self.arenas.cancel(all, &holes);
                result = Err(error.into());
                continue;
            }
            match self.fill(all, holes) {
                Ok(all) => {
                    self.arenas.free(all);
                    // Requests that were tried meanwhile have missed it.
                    self.notify_unless_trying();
                    return Ok(true);
                }
                Err(error) => result = Err(error),
            }
        }
        result
    }

    /// Returns the length of the longest arena for which the source has room, from `least` to
    /// `wanted` bytes.
    fn longest_with_room(&self, wanted: usize, least: usize) -> Result<usize, Shortage> {
        self.source.check_room(least)?;
        let mut len = wanted;
        while len > least && self.source.check_room(len).is_err() {
            len -= (len / SHORTER_BY).max(self.limits.page);
            len = len.next_multiple_of(self.limits.page).max(least);
        }
        Ok(len)
    }
}
