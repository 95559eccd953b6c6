//! Making a chunk when none is idle, out of the arenas, which grow up to the cap.
//!
//! There are two kinds. A chunk of its class's size stays in the pool until its room is needed. A
//! *one-off* is as long as its message, and no shelf keeps it.

#![forbid(unsafe_code)]

use super::{Pool, GROUP};
use crate::error::OsError;
use crate::os::posix::round_to_pages;
use crate::owner::arena::{Carved, Room};
use crate::owner::chunk::ClosedChunk;
use crate::owner::error::AllocError;
use crate::owner::limits::{Grain, Need, MIN_SIZE};
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// A segment that is never given up is made no shorter than this share of its intended length.
const KEPT_SHARE: usize = 32;

/// How often room is made for one request. Other threads may take what was made.
const TRIES: usize = 8;

/// A class *recurs* if fewer than this many chunks were made since its last one. So a publisher
/// that cycles through this many sizes reaches the warm path.
pub(super) const RECURS_WITHIN: u64 = 16;

/// The same for large chunks where memory is crowded. If all messages are of one size, it does not
/// matter where a chunk lies.
const RECURS_WITHIN_WHERE_CROWDED: u64 = 1;

/// The chunk to make.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) class: usize,
    pub(super) need: Need,
    /// As long as its message, and destroyed when it is given back.
    pub(super) is_one_off: bool,
    /// A free chunk of a slightly larger class will do, too.
    pub(super) may_be_larger: bool,
}

/// Where a chunk may be carved.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    /// In the arenas there are, outside the region of another class (see `arena::region`).
    Arenas,
    /// There, or in a new arena.
    Grow,
    /// In the arenas there are, in any region.
    Anywhere,
}

/// Why there is no memory for a new chunk.
enum NoMemory {
    /// It does not fit under the cap.
    Cap,
    /// The system refused. Boxed, so that success is returned in few words.
    Os(Box<OsError>),
}

/// The process has no private memory for an arena's books.
fn no_private_memory(object: &str, bytes: usize) -> NoMemory {
    let source = io::Error::from_raw_os_error(libc::ENOMEM);
    let advice = "; private memory to keep account of it".to_owned();
    NoMemory::Os(Box::new(OsError::new("malloc", object, bytes, source, advice)))
}

impl Pool {
    /// Makes a chunk for a message of `len` bytes, of a class that has none idle.
    ///
    /// Where the arenas can no longer grow, it is a one-off unless its class recurs. With messages
    /// of many sizes, a chunk on a shelf is in the way of all others and is rarely used again; when
    /// it is, its message lies where it fits badly.
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
            // It may fit without what is lost to rounding.
            made = self.make(one_off).or(made);
        }
        made
    }

    /// The least that a message of `len` bytes of a class takes.
    pub(crate) fn demand(&self, class: usize, len: usize) -> Need {
        let Need { size, grain } = self.classes[class].shape.need;
        let unit = if grain == Grain::Line { MIN_SIZE } else { self.limits.page };
        Need { size: len.max(1).next_multiple_of(unit).min(size), grain }
    }

    /// A chunk of the class's size, which stays in the pool.
    pub(super) fn usual(&self, class: usize) -> Wanted {
        Wanted { class, need: self.classes[class].shape.need, is_one_off: false, may_be_larger: true }
    }

    /// Makes a chunk, and room for it if need be; or takes one that is free meanwhile.
    #[cold]
    pub(super) fn make(self: &Arc<Self>, mut wanted: Wanted) -> Result<ClosedChunk, AllocError> {
        // Once each: a process that writes garbage can make it look as if there were always more to
        // reclaim, and other threads may take the room that was made.
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
            // No segment is made while a chunk is free anywhere.
            if from == Where::Arenas {
                from = Where::Grow;
                continue;
            }
            tries = tries.saturating_sub(1);
            let has_made_room = match &failure {
                _ if tries == 0 => false,
                NoMemory::Cap => self.make_room(wanted, from == Where::Anywhere),
                NoMemory::Os(error) if !error.is_for_want_of_memory() => false,
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
                    // One that is in the way goes when it is dropped, unless there is no other place.
                    wanted.is_one_off |= wanted.may_be_larger && self.arenas.has_other_places();
                }
                // Another thread may have given one back meanwhile.
                failure => return self.take_any(wanted).ok_or_else(|| self.failed(wanted, failure)),
            }
        }
    }

    /// The error of a request that has failed. What was made for it is undone.
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

    /// Takes any free chunk that will do for a class, however long the search.
    fn take_any(&self, wanted: Wanted) -> Option<ClosedChunk> {
        let class = wanted.class;
        if !wanted.may_be_larger {
            // A reservation is of chunks beside those there are.
            self.return_lent();
            return None;
        }
        let idle = self.take_own(class).or_else(|| self.take_lent(class, usize::MAX));
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

    /// Carves memory for a chunk.
    fn find_memory(&self, wanted: Wanted, from: Where) -> Result<Carved, NoMemory> {
        let Wanted { need, class, .. } = wanted;
        if need.grain == Grain::Page {
            let run = self.find_run(need.size, need.size, class, from)?;
            // Not before there is a gap: what cannot be served evicts nothing.
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

    /// A run of `wanted` bytes with its memory reserved, or a shorter one, but of at least `least`
    /// bytes.
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

    /// Reserves memory for the parts of a run that have none.
    fn fill(&self, (run, holes): (Carved, Vec<Range<usize>>)) -> Result<Carved, NoMemory> {
        if holes.is_empty() {
            return Ok(run);
        }
        let segment = run.payload().segment();
        for (at, hole) in holes.iter().enumerate() {
            if let Err(error) = segment.reserve(hole.clone()) {
                // Undoes what was reserved of the hole before the failure.
                segment.discard(hole.clone());
                self.arenas.give_up(run, &holes[at..]);
                return Err(NoMemory::Os(Box::new(error)));
            }
            self.account.take(hole.len());
        }
        self.arenas.fill_rests(&run, &self.account);
        Ok(run)
    }

    /// Adds an arena with room for a run of `len` bytes, unless another thread has done so.
    fn grow(&self, len: usize) -> Result<(), NoMemory> {
        // One thread at a time makes an arena. The others then find room in it instead of finding
        // the cap reached.
        let _one_at_a_time = self.growing.lock();
        if self.arenas.has_gap(len) {
            return Ok(());
        }
        let mut arena = self.arenas.next_len(len).ok_or(NoMemory::Cap)?;
        // A segment that stays must be worth its place.
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
                // Address space may be short for so long an arena; or /dev/shm, if the factory
                // wants room for all of it.
                Err(NoMemory::Os(error)) if error.is_for_want_of_memory() && arena > least => {
                    arena = round_to_pages(arena / 2).unwrap_or(least).max(len);
                }
                Err(error) => return Err(error),
            }
        }
    }
}
