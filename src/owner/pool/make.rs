//! Making a chunk when none is idle, out of the arenas, which grow up to the cap.
//!
//! There are two kinds. A chunk of its class's size stays in the pool until its room is needed. A
//! *one-off* is as long as its message, and no shelf keeps it.

#![forbid(unsafe_code)]

use super::Pool;
use crate::error::OsError;
use crate::os::posix::round_to_pages;
use crate::owner::arena::{Carved, Grain, Need, Room, Run};
use crate::owner::chunk::OwnedChunk;
use crate::owner::class::MIN_SIZE;
use crate::owner::error::AllocError;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// A segment that is never given up is made no shorter than this share of its intended length.
const KEPT_SHARE: usize = 32;

/// A class *recurs* if fewer than this many chunks were made since its last one. So a publisher
/// that cycles through this many sizes reaches the warm path.
const RECURS_WITHIN: u64 = 16;

/// The same for large chunks where memory is crowded. If all messages are of one size, it does not
/// matter where a chunk lies.
const RECURS_WITHIN_WHERE_CROWDED: u64 = 1;

/// The chunk to make.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) class: usize,
    pub(super) need: Need,
    /// As long as its message, and destroyed when it is given back.
    is_one_off: bool,
}

/// Why there is no memory for a new chunk.
enum NoMemory {
    /// It does not fit under the cap.
    Cap,
    /// The system refused.
    Os(OsError),
}

fn is_for_want_of_memory(error: &OsError) -> bool {
    matches!(error.errno(), Some(libc::ENOSPC | libc::ENOMEM))
}

/// The process has no private memory for an arena's books.
fn no_private_memory(object: &str, bytes: usize) -> NoMemory {
    let source = io::Error::from_raw_os_error(libc::ENOMEM);
    NoMemory::Os(OsError::new("malloc", object, bytes, source, "; private memory to keep account of it".to_owned()))
}

impl Pool {
    /// Makes a chunk for a message of `len` bytes, of a class that has none idle.
    ///
    /// Where the arenas can no longer grow, it is a one-off unless its class recurs. With messages
    /// of many sizes, a chunk on a shelf is in the way of all others and is rarely used again; when
    /// it is, its message lies where it fits badly.
    #[cold]
    pub(super) fn make_for(self: &Arc<Self>, class: usize, len: usize) -> Result<OwnedChunk, AllocError> {
        let made_since = self.made_since(class);
        let need = self.shapes[class].need;
        let recurs_within = match (self.arenas.room(), need.grain) {
            (Room::ToGrow, _) => return self.make(class),
            (Room::Crowded, Grain::Page) => RECURS_WITHIN_WHERE_CROWDED,
            _ => RECURS_WITHIN,
        };
        let (_, size) = self.demand(class, len);
        let one_off = Wanted { class, need: Need { size: size.min(need.size), ..need }, is_one_off: true };
        if made_since >= recurs_within {
            return self.make_wanted(one_off);
        }
        match self.make(class) {
            // It may fit without what is lost to rounding.
            Err(error) if error.is_at_the_cap() && one_off.need.size < need.size => {
                self.make_wanted(one_off).map_err(|_| error)
            }
            made => made,
        }
    }

    /// Bytes of a chunk of a class, for errors.
    pub(crate) fn need(&self, class: usize) -> usize {
        self.shapes[class].need.size
    }

    /// The least that a message of `len` bytes of a class takes: the grain, as a number, and bytes.
    pub(crate) fn demand(&self, class: usize, len: usize) -> (usize, usize) {
        match self.shapes[class].need.grain {
            Grain::Line => (0, len.max(1).next_multiple_of(MIN_SIZE)),
            Grain::Page => (1, len.max(1).next_multiple_of(self.limits.page)),
        }
    }

    /// How many chunks were made since the last one of a class.
    fn made_since(&self, class: usize) -> u64 {
        // Relaxed: only a hint.
        match self.tallies[class].last_made.load(Ordering::Relaxed) {
            0 => u64::MAX,
            last => self.made.load(Ordering::Relaxed).saturating_sub(last),
        }
    }

    /// Makes a chunk of the class's size, which stays in the pool.
    #[cold]
    pub(crate) fn make(self: &Arc<Self>, class: usize) -> Result<OwnedChunk, AllocError> {
        self.make_wanted(Wanted { class, need: self.shapes[class].need, is_one_off: false })
    }

    /// Makes a chunk, and room for it if need be.
    fn make_wanted(self: &Arc<Self>, wanted: Wanted) -> Result<OwnedChunk, AllocError> {
        let class = wanted.class;
        // Only once: a process that writes garbage can make it look as if there were always more to
        // reclaim.
        let mut may_reclaim = true;
        let mut was_punched = false;
        if self.arenas.room() == Room::ToGrow {
            // No segment is made while a chunk is free anywhere.
            if let Ok(memory) = self.find_memory(wanted, false) {
                return Ok(self.register(wanted, memory));
            }
            if let Some(chunk) = self.take_any(class) {
                return Ok(chunk);
            }
        }
        loop {
            let failure = match self.find_memory(wanted, true) {
                Ok(memory) => return Ok(self.register(wanted, memory)),
                Err(failure) => failure,
            };
            if let Some(chunk) = self.take_any(class) {
                return Ok(chunk);
            }
            let has_made_room = match &failure {
                NoMemory::Os(error) if !is_for_want_of_memory(error) => false,
                NoMemory::Os(error) => {
                    self.relieve_system(wanted.need, std::mem::replace(&mut was_punched, true), error)
                }
                NoMemory::Cap => self.trade(wanted),
            };
            let may_try_again = has_made_room || std::mem::take(&mut may_reclaim) && self.reclaim() > 0;
            if !may_try_again {
                // Another thread may have given one back meanwhile.
                return self.take_any(class).ok_or_else(|| match failure {
                    NoMemory::Cap => self.exhausted(wanted.need),
                    NoMemory::Os(error) => {
                        self.give_up_unused_arenas();
                        error.into()
                    }
                });
            }
        }
    }

    /// Takes any free chunk that will do for a class, however long the search.
    fn take_any(&self, class: usize) -> Option<OwnedChunk> {
        let idle = self.take_own(class).or_else(|| self.take_lent(class, usize::MAX));
        idle.or_else(|| self.take_larger(class))
    }

    fn register(self: &Arc<Self>, wanted: Wanted, memory: Carved) -> OwnedChunk {
        let Wanted { class, is_one_off, .. } = wanted;
        if !is_one_off {
            self.shelves[class].open_idle(self.shapes[class].max_idle.saturating_sub(1));
        }
        let tally = &self.tallies[class];
        tally.misses.fetch_add(1, Ordering::Relaxed);
        tally.last_made.store(self.made.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        #[cfg(feature = "zenoh")]
        self.collection.note_made(memory.len());
        let mut registry = self.registry.lock();
        if !is_one_off && registry.count(class) == 0 {
            self.used.insert(class);
        }
        registry.enter(self.clone(), class, memory, is_one_off)
    }

    /// Carves memory for a chunk; out of a new arena, if it may.
    fn find_memory(&self, wanted: Wanted, may_grow: bool) -> Result<Carved, NoMemory> {
        let need = wanted.need;
        if need.grain == Grain::Page {
            let run = self.find_run(need.size, need.size, may_grow)?;
            // Not before there is a gap: what cannot be served destroys nothing.
            self.relieve_crowding();
            return Ok(run);
        }
        if let Some(carved) = self.arenas.carve_lines(need.size) {
            return Ok(carved);
        }
        let (len, least) = self.arenas.heap_len(need.size, !wanted.is_one_off);
        if need.size >= self.limits.page && len == least {
            // Nothing else would fit in that heap.
            return self.find_run(least, least, may_grow).map(|run| run.shortened(need.size));
        }
        let run = self.find_run(len, least, may_grow)?;
        self.arenas.add_heap(run, need.size).ok_or_else(|| no_private_memory("a heap", len))
    }

    /// A run of `wanted` bytes with its memory reserved, or a shorter one, but of at least `least`
    /// bytes.
    fn find_run(&self, wanted: usize, least: usize, may_grow: bool) -> Result<Carved, NoMemory> {
        let mut len = wanted;
        loop {
            match self.arenas.carve_run(len).map(|run| self.fill(run)) {
                Some(Ok(carved)) => return Ok(carved),
                Some(Err(error)) if len == least => return Err(error),
                None if len == least && !may_grow => return Err(NoMemory::Cap),
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
    fn fill(&self, mut run: Run) -> Result<Carved, NoMemory> {
        while let Some(hole) = run.holes.pop() {
            if let Err(error) = run.carved.payload().segment().reserve(hole.clone()) {
                // Undoes what was reserved of the hole before the failure.
                run.carved.payload().segment().discard(hole.clone());
                run.holes.push(hole);
                self.arenas.give_up(run);
                return Err(NoMemory::Os(error));
            }
            self.account.take(hole.len());
        }
        self.arenas.fill_rests(&run.carved, &self.account);
        Ok(run.carved)
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
            let made = match self.arenas.prepare(arena) {
                Some(blank) => self.source.create(arena).map(|payload| (payload, blank)).map_err(NoMemory::Os),
                None => Err(no_private_memory("an arena", arena)),
            };
            match made {
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
                Err(NoMemory::Os(error)) if is_for_want_of_memory(&error) && arena > least => {
                    arena = round_to_pages(arena / 2).unwrap_or(least).max(len);
                }
                Err(error) => return Err(error),
            }
        }
    }
}
