//! Taking a chunk; and reservations, which make chunks in advance.
//!
//! A take tries, in this order,
//!
//! 1. the hot slot of the class (the warm path, in `provider`);
//! 2. the class's idle queue;
//! 3. the leased queue: a few of the chunks that were shared longest ago, if their leases have
//!    ended;
//! 4. chunks that channels have got back, once the class has a few chunks;
//! 5. idle chunks of the next larger classes, if they waste little;
//! 6. a new chunk, from the arenas, which grow up to the cap; at the cap in the room of idle chunks
//!    of other classes or of chunks of dead peers (`release`).
//!
//! A *one-off* is as long as its message, and no shelf keeps it.

#![forbid(unsafe_code)]

use super::{Pool, GROUP, RECURS_WITHIN};
use crate::error::OsError;
use crate::owner::arena::{Carved, Room};
use crate::owner::chunk::{Chunk, ClosedChunk};
use crate::owner::limits::{class_of, AllocError, Grain, Need, Refusal, COUNTED, MIN_SIZE};
use std::fmt;
use std::io;
use std::mem;
use std::ops::{Range, RangeInclusive};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// The least number of leased chunks to check before a new one is carved.
const LEASED_TRIES: usize = 8;

/// One more for this many bytes of the chunk: a check takes some 50 ns, as long as the system needs
/// to reserve them.
const BYTES_PER_TRY: usize = 128;

/// For arenas that can no longer grow. Two, so that the search overtakes the queue.
const LEASED_TRIES_AT_THE_CAP: usize = 2;

/// One in this many searches covers the whole leased queue.
const SEARCHES_PER_TRIM: u64 = 64;

/// An idle chunk may serve a smaller size if it is larger by at most this part of it.
const MOST_WASTE: usize = 4;

/// The same if the arenas can no longer grow.
const MOST_WASTE_AT_THE_CAP: usize = 32;

impl Pool {
    /// Does what [`adopt`](Self::adopt) does, or returns `false` if that takes more than a few
    /// instructions.
    #[inline]
    pub(crate) fn adopt_warm(chunk: &Chunk) -> bool {
        let is_warm = chunk.was_taken_here() && (chunk.uses() + 1) % COUNTED != 0;
        if is_warm {
            chunk.count_use();
        }
        is_warm
    }

    /// Makes a chunk that was just taken this thread's. A forked child loses it.
    #[inline]
    pub(crate) fn adopt(&self, chunk: &Chunk) -> Result<(), Refusal> {
        if Self::adopt_warm(chunk) {
            return Ok(());
        }
        self.adopt_cold(chunk)
    }

    #[inline(never)]
    fn adopt_cold(&self, chunk: &Chunk) -> Result<(), Refusal> {
        if !chunk.was_taken_here() {
            if !self.is_ours() {
                return Err(AllocError::Forked.into());
            }
            chunk.set_taker();
        }
        if chunk.count_use() % COUNTED == 0 {
            self.count_uses(chunk.class());
        }
        Ok(())
    }

    #[inline(never)]
    pub(crate) fn take_slow(
        self: &Arc<Self>,
        class: usize,
        len: usize,
    ) -> Result<ClosedChunk, Refusal> {
        let taken = self.take_now(class, len);
        if taken
            .as_ref()
            .is_err_and(|error| self.is_out_of_room(error))
        {
            self.note_refused(class, len);
        }
        taken
    }

    /// Returns `true` if only chunks that are released make room: at the cap, or where whole
    /// segments do not fit in the file system.
    pub(crate) fn is_out_of_room(&self, error: &Refusal) -> bool {
        error.is_at_the_cap() || self.arenas.are_whole() && error.is_exhausted()
    }

    pub(crate) fn take_now(
        self: &Arc<Self>,
        class: usize,
        len: usize,
    ) -> Result<ClosedChunk, Refusal> {
        let ready = self
            .take_own(class)
            .or_else(|| self.take_leased(class, self.leased_tries(class)));
        let ready = ready
            .or_else(|| self.take_returned(class))
            .or_else(|| self.take_larger(class));
        ready.map_or_else(|| self.make_for(class, len), Ok)
    }

    fn leased_tries(&self, class: usize) -> usize {
        match self.reserved(class) {
            0 if self.arenas.room() != Room::ToGrow => LEASED_TRIES_AT_THE_CAP,
            0 => LEASED_TRIES + self.classes[class].shape.size() / BYTES_PER_TRY,
            // A free reserved chunk is always found: making another one may need the system.
            _ => usize::MAX,
        }
    }

    pub(crate) fn take_ready(&self, class: usize) -> Option<ClosedChunk> {
        self.take_own(class).or_else(|| self.take_larger(class))
    }

    pub(crate) fn has_ready(&self, class: usize) -> bool {
        self.reserved(class) > 0 || !self.shelves[class].is_empty()
    }

    pub(crate) fn take_own(&self, class: usize) -> Option<ClosedChunk> {
        // If each message has its own size, this keeps the shelves out of the cache.
        if self.listed(class) == 0 {
            return None;
        }
        self.take_idle(class)
            .or_else(|| self.shelves[class].take_hot())
    }

    pub(crate) fn take_larger(&self, class: usize) -> Option<ClosedChunk> {
        let is_free = |&other: &usize| {
            self.listed(other) > 0 && !self.shelves[other].is_empty() && self.reserved(other) == 0
        };
        let others = self.serving(class).skip(1).filter(is_free);
        others.filter_map(|other| self.take_own(other)).next()
    }

    fn serving(&self, class: usize) -> RangeInclusive<usize> {
        let classes = self.limits.classes();
        let size = self.classes[class].shape.size();
        let most_waste = match self.arenas.room() {
            // A longer chunk would not leave enough for the others that there is room for.
            _ if self.limits.is_planned(class) => 0,
            Room::ToGrow => size / MOST_WASTE,
            Room::Ample => size / MOST_WASTE_AT_THE_CAP,
            Room::Crowded => 0,
        };
        let largest = size + most_waste;
        // The classes of small page-aligned messages are after all others, a page apart.
        let last = if class < classes {
            class_of(largest + 1).saturating_sub(1).min(classes - 1)
        } else {
            let pages = largest / self.limits.page;
            (classes + pages)
                .saturating_sub(1)
                .min(self.classes.len() - 1)
        };
        class..=last.max(class)
    }

    fn take_idle(&self, class: usize) -> Option<ClosedChunk> {
        let open = |(chunk, left)| Some((Self::reopen(chunk)?, left));
        let (chunk, left) =
            std::iter::from_fn(|| self.shelves[class].take_idle()).find_map(open)?;
        self.note_low_water(class, left);
        Some(chunk)
    }

    /// Takes the first of `tries` leased chunks that serves the class and whose leases have ended.
    pub(super) fn take_leased(&self, class: usize, tries: usize) -> Option<ClosedChunk> {
        let leased = self.leased.count();
        if leased == 0 {
            return None;
        }
        let serving = self.serving(class);
        let may_serve =
            |other| other == class || serving.contains(&other) && self.reserved(other) == 0;
        let wanted = |chunk: &ClosedChunk| may_serve(chunk.class()) && !chunk.is_retired();
        for _ in 0..tries.min(leased) {
            match self.probe_leased() {
                Some(chunk) if wanted(&chunk) => return Some(chunk),
                Some(chunk) => Self::put_back(chunk.into()),
                None => {}
            }
        }
        self.searched();
        // A count lost to another thread only delays the full search.
        let count = self.searches.load(Ordering::Relaxed) + 1;
        self.searches.store(count, Ordering::Relaxed);
        if count % SEARCHES_PER_TRIM == 0 {
            self.return_leased();
        }
        None
    }

    fn probe_leased(&self) -> Option<ClosedChunk> {
        self.leased
            .take()
            .and_then(|(chunk, _)| Self::reopen(chunk))
    }

    pub(super) fn return_leased(&self) {
        (0..self.leased.count())
            .filter_map(|_| self.probe_leased())
            .for_each(|chunk| Self::put_back(chunk.into()));
    }
}

/// A segment that is never removed has at least 1 / `KEPT_SHARE` of its intended length.
const KEPT_SHARE: usize = 32;

/// How much shorter the next segment to be tried is if the file system has no room for one: by this
/// part of it.
const SHORTER_BY: usize = 8;

const TRIES: usize = 8;

const RECURS_WITHIN_WHERE_CROWDED: u64 = 1;

#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) class: usize,
    pub(super) need: Need,
    is_one_off: bool,
    pub(super) may_be_larger: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    /// In existing arenas, outside the region of another class.
    Arenas,
    /// There, or in a new arena.
    Grow,
    /// Like `Grow`, and in any region.
    Anywhere,
}

enum NoMemory {
    Cap,
    /// Boxed, so that success is returned in few words.
    Os(Box<OsError>),
}

fn no_private_memory(object: &str, bytes: usize) -> NoMemory {
    let source = io::Error::from_raw_os_error(libc::ENOMEM);
    let error = OsError::new("malloc", object, source).with_bytes(bytes);
    NoMemory::Os(Box::new(
        error.with_advice("it is private memory, to keep account of the buffers"),
    ))
}

impl Pool {
    /// Makes a chunk, and room for it.
    #[cold]
    fn make_for(self: &Arc<Self>, class: usize, len: usize) -> Result<ClosedChunk, Refusal> {
        // Before there is a chunk of this class between them, for ever.
        if self.limits.is_planned(class) {
            self.evict_unplanned(self.demand(class, len));
        }
        let (need, wanted) = (self.demand(class, len), self.wanted(class, len));
        let mut made = self.make(wanted);
        if !wanted.is_one_off
            && need.size < wanted.need.size
            && made.as_ref().is_err_and(|error| self.is_out_of_room(error))
        {
            // It may fit without the class's rounding.
            made = self
                .make(Wanted {
                    need,
                    is_one_off: true,
                    ..wanted
                })
                .or(made);
        }
        made
    }

    /// Makes a chunk if there is room for it.
    #[cold]
    pub(crate) fn make_if_room(self: &Arc<Self>, class: usize, len: usize) -> Option<ClosedChunk> {
        let wanted = self.wanted(class, len);
        let memory = self.find_memory(wanted, Where::Grow);
        if matches!(memory, Err(NoMemory::Os(_))) && !self.source.keeps_segments() {
            // There may be a new segment, without memory.
            self.give_up_arenas(true);
        }
        Some(self.register(wanted, memory.ok()?))
    }

    /// If the arenas can no longer grow, this is a one-off unless the class recurs: a chunk on a
    /// shelf would be in the way of others.
    fn wanted(&self, class: usize, len: usize) -> Wanted {
        let need = self.demand(class, len);
        let recurs_within = match (self.arenas.room(), need.grain) {
            (Room::ToGrow, _) => None,
            // There is room for it.
            _ if self.limits.is_planned(class) => None,
            (Room::Crowded, Grain::Page) => Some(RECURS_WITHIN_WHERE_CROWDED),
            _ => Some(RECURS_WITHIN),
        };
        // Relaxed: only a hint.
        let (made, last) = (
            self.made.load(Ordering::Relaxed),
            self.classes[class].last_made.load(Ordering::Relaxed),
        );
        match recurs_within.map_or(true, |within| made.saturating_sub(last) < within) {
            true => self.usual(class),
            false => Wanted {
                need,
                is_one_off: true,
                ..self.usual(class)
            },
        }
    }

    pub(crate) fn demand(&self, class: usize, len: usize) -> Need {
        let Need { size, grain } = self.classes[class].shape.need;
        let unit = if grain == Grain::Line {
            MIN_SIZE
        } else {
            self.limits.page
        };
        Need {
            size: len.max(1).next_multiple_of(unit).min(size),
            grain,
        }
    }

    fn usual(&self, class: usize) -> Wanted {
        Wanted {
            class,
            need: self.classes[class].shape.need,
            is_one_off: false,
            may_be_larger: true,
        }
    }

    #[cold]
    fn make(self: &Arc<Self>, mut wanted: Wanted) -> Result<ClosedChunk, Refusal> {
        // Bounded: garbage can make it look as if there were always more to reclaim, and other
        // threads may take the room.
        let (mut may_reclaim, mut was_punched, mut may_sweep, mut tries) =
            (true, false, true, TRIES);
        let mut from = if self.arenas.room() == Room::ToGrow {
            Where::Arenas
        } else {
            Where::Grow
        };
        loop {
            let created = self.account.created();
            let failure = match self.find_memory(wanted, from) {
                Ok(memory) => return Ok(self.register(wanted, memory)),
                Err(failure) => failure,
            };
            if let Some(chunk) = self.take_any(wanted) {
                return Ok(chunk);
            }
            // No segment is created while a chunk is free anywhere.
            if from == Where::Arenas {
                from = Where::Grow;
                continue;
            }
            tries = tries.saturating_sub(1);
            let has_made_room = match &failure {
                _ if tries == 0 => false,
                // If an arena was added after the first search and removed before the second,
                // neither has seen it.
                NoMemory::Cap => {
                    self.make_room(wanted, from == Where::Anywhere)
                        || self.account.created() != created
                }
                NoMemory::Os(error) if !error.is_out_of_memory() => false,
                // Where segments are whole, the file system limits them as the cap does.
                NoMemory::Os(_)
                    if self.arenas.are_whole()
                        && self.make_room(wanted, from == Where::Anywhere) =>
                {
                    true
                }
                NoMemory::Os(error) => {
                    self.relieve_system(wanted.need, mem::replace(&mut was_punched, true), error)
                        || mem::take(&mut may_sweep) && self.source.sweep() > 0
                }
            };
            let is_out_of_room = match &failure {
                NoMemory::Cap => true,
                NoMemory::Os(error) => self.arenas.are_whole() && error.is_out_of_memory(),
            };
            if has_made_room || mem::take(&mut may_reclaim) && self.reclaim() > 0 {
                continue;
            }
            match failure {
                _ if is_out_of_room
                    && from == Where::Grow
                    && self.arenas.is_kept_from(wanted.class) =>
                {
                    (from, tries) = (Where::Anywhere, TRIES);
                    // A chunk in the region leaves it when it is dropped, unless there is no other
                    // site.
                    wanted.is_one_off |= wanted.may_be_larger && self.arenas.has_other_sites();
                }
                // Another thread may have released a chunk.
                failure => {
                    return self
                        .take_any(wanted)
                        .ok_or_else(|| self.failed(wanted, failure))
                }
            }
        }
    }

    #[cold]
    fn failed(&self, wanted: Wanted, failure: NoMemory) -> Refusal {
        match failure {
            NoMemory::Cap => self.exhausted(wanted.need),
            NoMemory::Os(error) => {
                if !self.source.keeps_segments() {
                    self.give_up_arenas(true);
                }
                (*error).into()
            }
        }
    }

    fn take_any(&self, wanted: Wanted) -> Option<ClosedChunk> {
        let class = wanted.class;
        if !wanted.may_be_larger {
            // Reserved chunks are beside the existing ones.
            self.return_leased();
            return None;
        }
        let idle = self
            .take_own(class)
            .or_else(|| self.take_leased(class, usize::MAX));
        idle.or_else(|| self.take_larger(class))
    }

    fn register(self: &Arc<Self>, wanted: Wanted, memory: Carved) -> ClosedChunk {
        let Wanted {
            class, is_one_off, ..
        } = wanted;
        let counts = &self.classes[class];
        counts.misses.fetch_add(1, Ordering::Relaxed);
        counts.last_made.store(
            self.made.fetch_add(1, Ordering::Relaxed) + 1,
            Ordering::Relaxed,
        );
        self.collection.note_made(memory.len());
        self.refused.store(0, Ordering::Relaxed);
        let mut registry = self.registry.lock();
        if !is_one_off {
            self.groups[class / GROUP].fetch_add(1, Ordering::Relaxed);
            let others = self.listed[class].fetch_add(1, Ordering::Relaxed);
            self.shelves[class]
                .open_idle(others, self.classes[class].shape.max_idle.saturating_sub(1));
        }
        registry.enter(self.clone(), class, memory, is_one_off)
    }

    fn find_memory(&self, wanted: Wanted, from: Where) -> Result<Carved, NoMemory> {
        let Wanted { need, class, .. } = wanted;
        if need.grain == Grain::Page {
            let run = self.find_run(need.size, need.size, class, from)?;
            // Only now: a request that cannot be served evicts nothing.
            if self.arenas.room() == Room::Crowded {
                self.relieve_crowding();
            }
            return Ok(run);
        }
        if let Some(carved) = self
            .arenas
            .carve_lines(need.size, class, from == Where::Anywhere)
        {
            return Ok(carved);
        }
        let (len, least) = self.arenas.heap_len(need.size, !wanted.is_one_off);
        if need.size >= self.limits.page && len == least {
            // Nothing else would fit in that heap.
            return self
                .find_run(least, least, class, from)
                .map(|run| run.shortened(need.size));
        }
        let run = self.find_run(len, least, class, from)?;
        self.arenas
            .add_heap(run, need.size)
            .ok_or_else(|| no_private_memory("a heap", len))
    }

    fn find_run(
        &self,
        wanted: usize,
        least: usize,
        class: usize,
        from: Where,
    ) -> Result<Carved, NoMemory> {
        let mut len = wanted;
        loop {
            match self
                .arenas
                .carve_run(len, class, from == Where::Anywhere)
                .map(|run| self.fill(run))
            {
                Some(Ok(carved)) => return Ok(carved),
                Some(Err(error)) if len == least => return Err(error),
                None if len == least && from == Where::Arenas => return Err(NoMemory::Cap),
                None if len == least => {
                    // The next try may fail too, if other threads are faster.
                    self.grow(wanted).or_else(|_| self.grow(least))?;
                    len = wanted;
                }
                _ => len = (len / 2).next_multiple_of(self.limits.page).max(least),
            }
        }
    }

    fn fill(&self, (run, holes): (Carved, Vec<Range<usize>>)) -> Result<Carved, NoMemory> {
        if holes.is_empty() {
            return Ok(run);
        }
        let segment = run.payload().segment();
        for (at, hole) in holes.iter().enumerate() {
            if let Err(error) = segment.reserve(hole.clone()) {
                // Undoes a partial reservation.
                segment.discard(hole.clone());
                self.arenas.give_up(run, &holes[at..]);
                return Err(NoMemory::Os(Box::new(error)));
            }
            self.account.take(hole.len());
        }
        self.arenas.fill_rests(&run, &self.account);
        Ok(run)
    }

    fn grow(&self, len: usize) -> Result<(), NoMemory> {
        // If another thread has added an arena since the search, `make` searches again.
        if self.arenas.room() != Room::ToGrow {
            return Err(NoMemory::Cap);
        }
        let _one_at_a_time = self.growing.lock();
        if self.arenas.has_gap(len) {
            return Ok(());
        }
        let refused = match self.fill_bare(len) {
            Ok(true) => return Ok(()),
            Ok(false) => NoMemory::Cap,
            Err(error) => error,
        };
        let mut arena = self.arenas.next_len(len).ok_or(refused)?;
        // A segment that stays has to be worth its entry.
        let least = if self.source.keeps_segments() {
            len.max(arena / KEPT_SHARE)
                .next_multiple_of(self.limits.page)
        } else {
            len
        };
        arena = self.longest_with_room(arena, least)?;
        loop {
            let blank = self
                .arenas
                .prepare(arena)
                .ok_or_else(|| no_private_memory("an arena", arena));
            let refused = |error| NoMemory::Os(Box::new(error));
            match blank.and_then(|blank| Ok((self.source.create(arena).map_err(refused)?, blank))) {
                Ok((payload, _)) if self.arenas.has_segment(payload.serial()) => {
                    let (serial, twice) =
                        (payload.serial(), io::Error::from_raw_os_error(libc::EEXIST));
                    let error = OsError::new("create", format!("segment {serial}"), twice);
                    return Err(refused(
                        error
                            .with_bytes(arena)
                            .with_advice("its source has given two segments one id"),
                    ));
                }
                Ok((mut payload, blank)) => {
                    if let Some(control) = self.control() {
                        control.list(&mut payload);
                    }
                    event!(info, provider = %self.id(), segment = payload.serial(), len = arena, "segment made");
                    self.arenas.add(Arc::new(payload), blank, &self.account);
                    if !self.arenas.are_whole() {
                        return Ok(());
                    }
                    let filled = self.fill_bare(len);
                    if filled.is_err() {
                        self.give_up_arenas(true);
                    }
                    return filled.map(drop);
                }
                // There may be too little address space, or memory if the factory reserves all of
                // it.
                Err(NoMemory::Os(error)) if error.is_out_of_memory() && arena > least => {
                    arena = (arena / 2).next_multiple_of(self.limits.page).max(len);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Reserves all of an arena that has returned its memory, or is new, for a run of `len` bytes.
    /// Returns `false` if there is none. The caller holds `growing`.
    fn fill_bare(&self, len: usize) -> Result<bool, NoMemory> {
        let mut result = Ok(false);
        let mut above = 0;
        while let Some((all, holes)) = self.arenas.carve_bare(len, above) {
            above = all.len();
            let mut missing = 0;
            for hole in &holes {
                missing += hole.len();
            }
            if let Err(error) = self.source.check_room(missing) {
                self.arenas.give_up(all, &holes);
                result = Err(NoMemory::Os(Box::new(error)));
                continue;
            }
            match self.fill((all, holes)) {
                Ok(all) => {
                    self.arenas.free(all);
                    return Ok(true);
                }
                Err(error) => result = Err(error),
            }
        }
        result
    }

    /// Returns the length of the longest arena for which the source has room, from `least` to
    /// `wanted` bytes.
    fn longest_with_room(&self, wanted: usize, least: usize) -> Result<usize, NoMemory> {
        let refused = |error| NoMemory::Os(Box::new(error));
        self.source.check_room(least).map_err(refused)?;
        let mut len = wanted;
        while len > least && self.source.check_room(len).is_err() {
            len -= (len / SHORTER_BY).max(self.limits.page);
            len = len.next_multiple_of(self.limits.page).max(least);
        }
        Ok(len)
    }
}

impl Pool {
    /// A reservation is a number for a class, not a mark on chunks: that many exist, in use or
    /// idle, and all of the class have a record, and space in the leased queue.
    pub(crate) fn reserve(self: &Arc<Self>, class: usize, count: usize) -> Result<(), Refusal> {
        let _one_at_a_time = self.reserving.lock();
        let max = self.classes[class].shape.max_idle;
        let reserved = self.reserved(class);
        let wanted = reserved.saturating_add(count);
        if wanted > max {
            return Err(AllocError::ReserveTooMany { count: wanted, max }.into());
        }
        let mut result = self.make_reserved(class, reserved, wanted);
        if result
            .as_ref()
            .is_err_and(|error| self.is_out_of_room(error))
        {
            // It may fit without idle chunks, in joined arenas.
            self.trim();
            result = self.make_reserved(class, reserved, wanted);
        }
        // A request that looked meanwhile has missed the chunks in this thread's hand.
        self.memory_doorbell().notify();
        result
    }

    fn make_reserved(
        self: &Arc<Self>,
        class: usize,
        reserved: usize,
        wanted: usize,
    ) -> Result<(), Refusal> {
        // A retired chunk is destroyed when it is dropped, and occupies the queue until then.
        self.evict_of(class, usize::MAX, Chunk::is_retired);
        // First, so that new chunks are not evicted at once.
        self.promise(class, wanted);
        let mut taken = Vec::new();
        let result = self.make_ready(class, wanted, &mut taken);
        if result.is_err() {
            self.promise(class, reserved);
        }
        for chunk in taken {
            chunk.count_use(); // misses count it, too
            if result.is_ok() {
                Self::put_back(chunk.into());
            } else {
                self.evict_or_put_back(chunk.into());
            }
        }
        result
    }

    fn make_ready(
        self: &Arc<Self>,
        class: usize,
        wanted: usize,
        taken: &mut Vec<ClosedChunk>,
    ) -> Result<(), Refusal> {
        while self.registry.lock().count(class) < wanted {
            taken.push(self.make(Wanted {
                may_be_larger: false,
                ..self.usual(class)
            })?);
        }
        if self.control().is_some() {
            self.prepare_class(class)
                .map_err(AllocError::ReserveShare)?;
        }
        Ok(())
    }

    pub(crate) fn each_of_class(&self, class: usize, each: impl FnMut(&Chunk)) {
        self.registry.lock().of_class(class).for_each(each);
    }

    /// Ends a reservation of `count` chunks. They stay until their room is needed.
    pub(crate) fn end_reservation(&self, class: usize, count: usize) {
        let _one_at_a_time = self.reserving.lock();
        let left = self.reserved(class).saturating_sub(count);
        self.promise(class, left);
        // A waiting request may need what could not be evicted until now.
        self.memory_doorbell().notify();
    }

    fn promise(&self, class: usize, count: usize) {
        // Eviction decides under this lock: from now on, chunks evicted by the previous number are
        // not listed.
        let _decides = self.registry.lock();
        self.classes[class].reserved.store(count, Ordering::Relaxed);
    }

    pub(crate) fn reserved(&self, class: usize) -> usize {
        // Relaxed: the registry's lock orders it where that matters.
        self.classes[class].reserved.load(Ordering::Relaxed)
    }
}

/// Chunks kept for one size class while this value lives; see
/// [`Provider::reserve`](crate::Provider::reserve).
#[must_use = "a reservation ends when it is dropped; `keep` it for the provider's life"]
pub struct Reservation {
    pool: Weak<Pool>,
    class: usize,
    count: usize,
}

impl Reservation {
    pub(crate) fn new(pool: &Arc<Pool>, class: usize, count: usize) -> Self {
        Self {
            pool: Arc::downgrade(pool),
            class,
            count,
        }
    }

    /// Returns the number of reserved chunks.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Keeps the reservation for the provider's lifetime.
    pub fn keep(mut self) {
        self.pool = Weak::new();
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // In a forked child the pool is the parent's, and its locks may be held.
        if let Some(pool) = self.pool.upgrade().filter(|pool| pool.is_ours()) {
            pool.end_reservation(self.class, self.count);
        }
    }
}
