//! Making a chunk when none is idle, from the arenas, which grow up to the cap; making room for it
//! at the cap; and reservations.
//!
//! A chunk of its class's size stays in the pool until its room is needed. A *one-off* is as long
//! as its message, and no shelf keeps it.

#![forbid(unsafe_code)]

use super::{Pool, GROUP, RECURS_WITHIN};
use crate::error::OsError;
use crate::os::posix::round_to_pages;
use crate::owner::arena::{Carved, Mark, Room, Site};
use crate::owner::chunk::{Chunk, ClosedChunk};
use crate::owner::error::{AllocError, AllocErrorKind};
use crate::owner::limits::{Grain, Need, MIN_SIZE};
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// A segment that is never removed has at least 1 / `KEPT_SHARE` of its intended length.
const KEPT_SHARE: usize = 32;

/// How often room is made for one request. Other threads may take the room.
const TRIES: usize = 8;

/// [`RECURS_WITHIN`] for large chunks if memory is crowded.
const RECURS_WITHIN_WHERE_CROWDED: u64 = 1;

#[derive(Clone, Copy)]
struct Wanted {
    class: usize,
    need: Need,
    /// As long as its message, and destroyed on release.
    is_one_off: bool,
    /// A free chunk of a slightly larger class serves, too.
    may_be_larger: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    /// In existing arenas, outside the region of another class.
    Arenas,
    /// There, or in a new arena.
    Grow,
    /// In existing arenas, including any region.
    Anywhere,
}

enum NoMemory {
    Cap,
    /// Boxed, so that success is returned in few words.
    Os(Box<OsError>),
}

fn no_private_memory(object: &str, bytes: usize) -> NoMemory {
    let source = io::Error::from_raw_os_error(libc::ENOMEM);
    let advice = "; private memory to keep account of it".to_owned();
    NoMemory::Os(Box::new(OsError::new("malloc", object, bytes, source, advice)))
}

impl Pool {
    /// Makes a chunk for a message of `len` bytes, of a class that has none idle.
    ///
    /// If the arenas can no longer grow, it is a one-off unless its class recurs. With messages of
    /// many sizes, a chunk on a shelf is in the way of others and is rarely used again.
    #[cold]
    pub(super) fn make_for(self: &Arc<Self>, class: usize, len: usize) -> Result<ClosedChunk, AllocError> {
        let need = self.demand(class, len);
        let recurs_within = match (self.arenas.room(), need.grain) {
            (Room::ToGrow, _) => None,
            (Room::Crowded, Grain::Page) => Some(RECURS_WITHIN_WHERE_CROWDED),
            _ => Some(RECURS_WITHIN),
        };
        // Relaxed: only a hint.
        let (made, last) = (self.made.load(Ordering::Relaxed), self.classes[class].last_made.load(Ordering::Relaxed));
        let is_kept = recurs_within.map_or(true, |within| made.saturating_sub(last) < within);
        let usual = self.usual(class);
        let one_off = Wanted { need, is_one_off: true, ..usual };
        let mut made = self.make(if is_kept { usual } else { one_off });
        if is_kept && need.size < usual.need.size && made.as_ref().is_err_and(AllocError::is_at_the_cap) {
            // It may fit without the class's rounding.
            made = self.make(one_off).or(made);
        }
        made
    }

    /// Returns the least that a message of `len` bytes of a class takes.
    pub(crate) fn demand(&self, class: usize, len: usize) -> Need {
        let Need { size, grain } = self.classes[class].shape.need;
        let unit = if grain == Grain::Line { MIN_SIZE } else { self.limits.page };
        Need { size: len.max(1).next_multiple_of(unit).min(size), grain }
    }

    fn usual(&self, class: usize) -> Wanted {
        Wanted { class, need: self.classes[class].shape.need, is_one_off: false, may_be_larger: true }
    }

    /// Makes a chunk, and room for it if necessary; or takes one that became free.
    #[cold]
    fn make(self: &Arc<Self>, mut wanted: Wanted) -> Result<ClosedChunk, AllocError> {
        // Bounded: a process that writes garbage can make it look as if there were always more to
        // reclaim, and other threads may take the room.
        let (mut may_reclaim, mut was_punched, mut may_sweep, mut tries) = (true, false, true, TRIES);
        let mut from = if self.arenas.room() == Room::ToGrow { Where::Arenas } else { Where::Grow };
        loop {
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
                NoMemory::Cap => self.make_room(wanted, from == Where::Anywhere),
                NoMemory::Os(error) if !error.is_out_of_memory() => false,
                NoMemory::Os(error) => {
                    self.relieve_system(wanted.need, std::mem::replace(&mut was_punched, true), error)
                        || std::mem::take(&mut may_sweep) && self.source.sweep() > 0
                }
            };
            if has_made_room || std::mem::take(&mut may_reclaim) && self.reclaim() > 0 {
                continue;
            }
            match failure {
                NoMemory::Cap if from == Where::Grow && self.arenas.is_kept_from(wanted.class) => {
                    (from, tries) = (Where::Anywhere, TRIES);
                    // A chunk in the region leaves it when it is dropped, unless there is no other
                    // site.
                    wanted.is_one_off |= wanted.may_be_larger && self.arenas.has_other_sites();
                }
                // Another thread may have released a chunk.
                failure => return self.take_any(wanted).ok_or_else(|| self.failed(wanted, failure)),
            }
        }
    }

    #[cold]
    fn failed(&self, wanted: Wanted, failure: NoMemory) -> AllocError {
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

    /// Takes any free chunk that serves a class, however long the search.
    fn take_any(&self, wanted: Wanted) -> Option<ClosedChunk> {
        let class = wanted.class;
        if !wanted.may_be_larger {
            // Reserved chunks are beside the existing ones.
            self.return_leased();
            return None;
        }
        let idle = self.take_own(class).or_else(|| self.take_leased(class, usize::MAX));
        idle.or_else(|| self.take_larger(class))
    }

    fn register(self: &Arc<Self>, wanted: Wanted, memory: Carved) -> ClosedChunk {
        let Wanted { class, is_one_off, .. } = wanted;
        let counts = &self.classes[class];
        counts.misses.fetch_add(1, Ordering::Relaxed);
        counts.last_made.store(self.made.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.collection.note_made(memory.len());
        let mut registry = self.registry.lock();
        if !is_one_off {
            self.groups[class / GROUP].fetch_add(1, Ordering::Relaxed);
            let others = self.listed[class].fetch_add(1, Ordering::Relaxed);
            self.shelves[class].open_idle(others, self.classes[class].shape.max_idle.saturating_sub(1));
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
        if let Some(carved) = self.arenas.carve_lines(need.size, class, from == Where::Anywhere) {
            return Ok(carved);
        }
        let (len, least) = self.arenas.heap_len(need.size, !wanted.is_one_off);
        if need.size >= self.limits.page && len == least {
            // Nothing else would fit in that heap.
            return self.find_run(least, least, class, from).map(|run| run.shortened(need.size));
        }
        let run = self.find_run(len, least, class, from)?;
        self.arenas.add_heap(run, need.size).ok_or_else(|| no_private_memory("a heap", len))
    }

    /// Finds a run of `wanted` bytes or fewer, but at least `least`, and reserves its memory.
    fn find_run(&self, wanted: usize, least: usize, class: usize, from: Where) -> Result<Carved, NoMemory> {
        let mut len = wanted;
        loop {
            match self.arenas.carve_run(len, class, from == Where::Anywhere).map(|run| self.fill(run)) {
                Some(Ok(carved)) => return Ok(carved),
                Some(Err(error)) if len == least => return Err(error),
                None if len == least && from != Where::Grow => return Err(NoMemory::Cap),
                None if len == least => {
                    // The next try may fail too, if other threads are faster.
                    self.grow(wanted).or_else(|_| self.grow(least))?;
                    len = wanted;
                }
                _ => len = round_to_pages(len / 2).unwrap_or(least).max(least),
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
        // One thread at a time creates an arena. The others then find room in it, not the cap.
        let _one_at_a_time = self.growing.lock();
        if self.arenas.has_gap(len) {
            return Ok(());
        }
        let mut arena = self.arenas.next_len(len).ok_or(NoMemory::Cap)?;
        // A segment that stays has to be worth its entry.
        let least = if self.source.keeps_segments() { len.max(arena / KEPT_SHARE) } else { len };
        loop {
            let blank = self.arenas.prepare(arena).ok_or_else(|| no_private_memory("an arena", arena));
            let refused = |error| NoMemory::Os(Box::new(error));
            match blank.and_then(|blank| Ok((self.source.create(arena).map_err(refused)?, blank))) {
                Ok((payload, _)) if self.arenas.has_segment(payload.serial()) => {
                    let (serial, twice) = (payload.serial(), io::Error::from_raw_os_error(libc::EEXIST));
                    let advice = "; its source has given two segments one id".to_owned();
                    return Err(refused(OsError::new("create", &format!("segment {serial}"), arena, twice, advice)));
                }
                Ok((mut payload, blank)) => {
                    if let Some(control) = self.control() {
                        control.list(&mut payload);
                    }
                    self.account.count_segment();
                    event!(info, provider = %self.id(), segment = payload.serial(), len = arena, "segment made");
                    self.arenas.add(Arc::new(payload), blank);
                    return Ok(());
                }
                // There may be too little address space, or memory if the factory reserves all of
                // it.
                Err(NoMemory::Os(error)) if error.is_out_of_memory() && arena > least => {
                    arena = round_to_pages(arena / 2).unwrap_or(least).max(len);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

// ---- room at the cap ----------------------------------------------------------------------------

impl Pool {
    /// Makes room for a chunk of a class that has none idle, if no gap is long enough; in the
    /// region of another class only if `anywhere`. Returns `false` if that is impossible now.
    ///
    /// A site that contains only idle chunks becomes a region, so that no other request gets its
    /// room. All chunks there are retired, and those that are still idle evicted. If there is no
    /// such site, nothing is evicted. A class that is refused again gets a region with few bytes in
    /// use ([`note_refused`](Self::note_refused)), which becomes free as its chunks are dropped.
    ///
    /// One thread makes room at a time. Others miss at most one chunk meanwhile.
    fn make_room(&self, wanted: Wanted, anywhere: bool) -> bool {
        let Wanted { class, need, .. } = wanted;
        let _one_at_a_time = self.making_room.lock();
        if wanted.may_be_larger && !self.shelves[class].is_empty() {
            return true;
        }
        if self.give_up_region(class) {
            return true;
        }
        let is_kept = self.arenas.is_kept_from(class);
        let site = self.find_idle_site(need, anywhere || !is_kept, !is_kept);
        self.searched();
        let Some(site) = site else { return false };
        let classes = self.retire(&site);
        if !is_kept {
            self.arenas.keep_region(class, site.clone());
        }
        for idle in classes {
            self.evict_of(idle, usize::MAX, |chunk| site.takes(chunk.memory()));
        }
        self.give_up_region(class);
        true
    }

    /// If the region of a class is whole arenas that are empty by now, removes them and returns
    /// `true`.
    fn give_up_region(&self, class: usize) -> bool {
        self.arenas.is_surrendered(class).then(|| self.give_up_arenas(false)).is_some()
    }

    /// Returns `true` if part of a segment is in the region of a class that was refused lately, and
    /// is too short for that class.
    #[inline]
    pub(crate) fn wants_back(&self, serial: u64, range: &Range<usize>) -> bool {
        let class = self.arenas.region_at(serial, range);
        class.is_some_and(|class| self.classes[class].shape.size() > range.len())
    }

    /// Finds a site that contains only idle chunks. Marks them class by class, the largest first,
    /// until there is one. It may be whole arenas only if `may_surrender`.
    fn find_idle_site(&self, need: Need, anywhere: bool, may_surrender: bool) -> Option<Site> {
        let (_, spanned) = self.arenas.count_and_len();
        let most = self.arenas.free_bytes() + self.most_to_evict() + (self.limits.max_bytes - spanned);
        if most < need.size {
            return None;
        }
        self.arenas.clear_marks();
        let free = || self.arenas.cheapest_site(need, false, anywhere);
        // First without any idle chunk: one may have been dropped meanwhile.
        let found = free().or_else(|| {
            self.evictable_classes().find_map(|(class, mut left)| {
                self.evict_of(class, usize::MAX, |chunk| {
                    if left > 0 && !chunk.is_leased() {
                        self.arenas.mark(chunk.memory(), Mark::Idle);
                        left -= 1;
                    }
                    false
                });
                free()
            })
        });
        found.or_else(|| self.arenas.surrender(need, false).filter(|_| may_surrender))
    }

    /// Notes that a class was refused. If that goes on, it gets a region with few bytes in use, or
    /// another one if its region takes too long.
    pub(crate) fn note_refused(&self, class: usize, len: usize) {
        let _one_at_a_time = self.making_room.lock();
        if !self.arenas.is_region_due(class) {
            return;
        }
        let need = self.demand(class, len);
        let before = self.arenas.region_of(class);
        let takes_too_long = |chunk: &Chunk| before.as_ref().is_some_and(|site| site.takes(chunk.memory()));
        for chunk in self.registry.lock().chunks() {
            let stays = self.reserved(chunk.class()) > 0 || chunk.is_given_up();
            if stays || takes_too_long(chunk) {
                self.arenas.mark(chunk.memory(), Mark::Pinned);
            }
        }
        let site = self.arenas.cheapest_site(need, true, true).or_else(|| self.arenas.surrender(need, true));
        if let Some(site) = site {
            self.retire(&site);
            self.arenas.keep_region(class, site);
        }
    }

    /// Retires the chunks in a site, except reserved ones. Returns their classes.
    fn retire(&self, site: &Site) -> Vec<usize> {
        let mut classes = Vec::new();
        self.registry.lock().retire(|chunk| {
            let is_in_it = site.takes(chunk.memory());
            if is_in_it && !classes.contains(&chunk.class()) {
                classes.push(chunk.class());
            }
            is_in_it.then(|| self.reserved(chunk.class()))
        });
        classes
    }
}

// ---- reservations -------------------------------------------------------------------------------

impl Pool {
    /// Reserves `count` more chunks of a class. On an error nothing is reserved.
    ///
    /// A reservation is a number for a class, not a mark on chunks: that many exist, in use or
    /// idle, and all of the class have a record, and space in the leased queue. Eviction leaves
    /// that many ([`evict_or_put_back`](Self::evict_or_put_back)), and no other class takes one. A
    /// search of the leased queue for the class covers all of it.
    pub(crate) fn reserve(self: &Arc<Self>, class: usize, count: usize) -> Result<(), AllocError> {
        let _one_at_a_time = self.reserving.lock();
        let max = self.classes[class].shape.max_idle;
        let reserved = self.reserved(class);
        let wanted = reserved.saturating_add(count);
        if wanted > max {
            return Err(AllocErrorKind::ReserveTooMany { count: wanted, max }.into());
        }
        let mut result = self.make_reserved(class, reserved, wanted);
        if result.as_ref().is_err_and(AllocError::is_at_the_cap) {
            // It may fit without idle chunks, in joined arenas.
            self.trim();
            result = self.make_reserved(class, reserved, wanted);
        }
        // A request that looked meanwhile has missed the chunks in this thread's hand.
        self.memory_bell().ring();
        result
    }

    fn make_reserved(self: &Arc<Self>, class: usize, reserved: usize, wanted: usize) -> Result<(), AllocError> {
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
    ) -> Result<(), AllocError> {
        while self.registry.lock().count(class) < wanted {
            taken.push(self.make(Wanted { may_be_larger: false, ..self.usual(class) })?);
        }
        if self.control().is_some() {
            self.prepare_class(class).map_err(AllocErrorKind::ReserveShare)?;
        }
        Ok(())
    }

    /// Calls `each` with every chunk of a class, including those in use.
    pub(crate) fn each_of_class(&self, class: usize, each: impl FnMut(&Chunk)) {
        self.registry.lock().of_class(class).for_each(each);
    }

    /// Ends a reservation of `count` chunks. They stay until their room is needed.
    pub(crate) fn end_reservation(&self, class: usize, count: usize) {
        let _one_at_a_time = self.reserving.lock();
        let left = self.reserved(class).saturating_sub(count);
        self.promise(class, left);
        // A waiting request may need what could not be evicted until now.
        self.memory_bell().ring();
    }

    fn promise(&self, class: usize, count: usize) {
        // Eviction decides under this lock: when this returns, chunks evicted by the previous
        // number are no longer listed.
        let _decides = self.registry.lock();
        self.classes[class].reserved.store(count, Ordering::Relaxed);
    }

    pub(crate) fn reserved(&self, class: usize) -> usize {
        // Relaxed: the registry's lock orders it where that matters.
        self.classes[class].reserved.load(Ordering::Relaxed)
    }
}
