//! Taking a chunk and giving it back. A take tries, in this order,
//!
//! 1. the hot slot of the class (the warm path, in `provider`);
//! 2. the class's idle queue;
//! 3. the leased queue: a few of the chunks that were shared longest ago, if their leases have
//!    ended;
//! 4. chunks that channels have got back, once the class has a few chunks;
//! 5. idle chunks of the next larger classes, if they waste little;
//! 6. a new chunk (`make`), at the cap in the room of idle chunks of other classes or of chunks of
//!    dead peers.
//!
//! A chunk returns to its shelf, or to the leased queue if a peer leases it. If its place refuses
//! it, it is destroyed. Giving back needs no memory.

#![forbid(unsafe_code)]

use super::{Pool, GROUP};
use crate::owner::arena::{Mark, Room};
use crate::owner::chunk::{Chunk, ClosedChunk, OwnedChunk, Registry, Whereabouts};
use crate::owner::error::{AllocError, AllocErrorKind};
use crate::owner::limits::{class_of, COUNTED};
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// The least number of leased chunks to check before a new one is carved.
const LEASED_TRIES: usize = 8;

/// One more is checked for this many bytes of the chunk. A check takes some 50 ns, as long as the
/// system needs to reserve that much memory. So all are checked before a large chunk is carved.
const BYTES_PER_TRY: usize = 128;

/// The number to check if the arenas can no longer grow: a new chunk takes no memory from the
/// system then. Two, so that the search overtakes the queue. All are checked before a request is
/// refused or evicts anything.
const LEASED_TRIES_AT_THE_CAP: usize = 2;

/// One in this many searches of the leased queue covers all of it, which destroys idle chunks above
/// the cap.
const SEARCHES_PER_TRIM: u64 = 64;

/// An idle chunk may serve a smaller size if it is larger by at most 1 / `MOST_WASTE` of that size.
const MOST_WASTE: usize = 4;

/// The same if the arenas can no longer grow.
const MOST_WASTE_AT_THE_CAP: usize = 32;

impl Pool {
    /// Makes a chunk that was just taken this thread's, and counts the use. Fails in a forked
    /// child, whose copy of the pool loses the chunk.
    #[inline]
    pub(crate) fn adopt(&self, chunk: &Chunk) -> Result<(), AllocError> {
        if !chunk.was_taken_here() {
            self.set_taker(chunk)?;
        }
        if chunk.count_use() % COUNTED == 0 {
            self.count_uses(chunk.class());
        }
        Ok(())
    }

    #[inline(never)]
    fn set_taker(&self, chunk: &Chunk) -> Result<(), AllocError> {
        if !self.is_ours() {
            return Err(AllocErrorKind::Forked.into());
        }
        chunk.set_taker();
        Ok(())
    }

    /// Takes a chunk for a message of `len` bytes, of a class whose hot slot was empty.
    #[inline(never)]
    pub(crate) fn take_slow(self: &Arc<Self>, class: usize, len: usize) -> Result<ClosedChunk, AllocError> {
        let taken = self.take_now(class, len);
        if taken.as_ref().is_err_and(AllocError::is_at_the_cap) {
            self.note_refused(class, len);
        }
        taken
    }

    /// Takes as [`take_slow`](Self::take_slow) does, for a caller that can act on a refusal.
    pub(crate) fn take_now(self: &Arc<Self>, class: usize, len: usize) -> Result<ClosedChunk, AllocError> {
        let ready = self.take_own(class).or_else(|| self.take_leased(class, self.leased_tries(class)));
        let ready = ready.or_else(|| self.take_returned(class)).or_else(|| self.take_larger(class));
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

    /// Returns `true` if a chunk of a class is idle or reserved, so that a search is worthwhile.
    pub(crate) fn has_ready(&self, class: usize) -> bool {
        self.reserved(class) > 0 || !self.shelves[class].is_empty()
    }

    pub(crate) fn take_own(&self, class: usize) -> Option<ClosedChunk> {
        // If each message has its own size, this keeps the shelves out of the cache.
        if self.listed(class) == 0 {
            return None;
        }
        self.take_idle(class).or_else(|| self.shelves[class].take_hot())
    }

    pub(super) fn take_larger(&self, class: usize) -> Option<ClosedChunk> {
        let is_free =
            |&other: &usize| self.listed(other) > 0 && !self.shelves[other].is_empty() && self.reserved(other) == 0;
        let others = self.serving(class).skip(1).filter(is_free);
        others.filter_map(|other| self.take_own(other)).next()
    }

    /// Returns the classes whose idle chunks serve this one: itself, and those that waste little.
    fn serving(&self, class: usize) -> RangeInclusive<usize> {
        let classes = self.limits.classes();
        let size = self.classes[class].shape.size();
        let most_waste = match self.arenas.room() {
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
            (classes + pages).saturating_sub(1).min(self.classes.len() - 1)
        };
        class..=last.max(class)
    }

    fn take_idle(&self, class: usize) -> Option<ClosedChunk> {
        let chunk = std::iter::from_fn(|| self.shelves[class].take_idle()).find_map(Self::reopen)?;
        self.note_low_water(class);
        Some(chunk)
    }

    /// Checks up to `tries` leased chunks, from the head. Takes the first that serves the class and
    /// whose leases have ended. Others whose leases have ended return to their shelves.
    pub(super) fn take_leased(&self, class: usize, tries: usize) -> Option<ClosedChunk> {
        let leased = self.leased.count();
        if leased == 0 {
            return None;
        }
        let serving = self.serving(class);
        let may_serve = |other| other == class || serving.contains(&other) && self.reserved(other) == 0;
        let wanted = |chunk: &ClosedChunk| may_serve(chunk.class()) && !chunk.is_retired();
        for _ in 0..tries.min(leased) {
            match self.probe_leased() {
                Some(chunk) if wanted(&chunk) => return Some(chunk),
                Some(chunk) => Self::put_back(chunk.into()),
                None => {}
            }
        }
        self.searched();
        // A count lost to another thread only delays the full search, so this is no
        // read-modify-write.
        let count = self.searches.load(Ordering::Relaxed) + 1;
        self.searches.store(count, Ordering::Relaxed);
        if count % SEARCHES_PER_TRIM == 0 {
            self.return_leased();
        }
        None
    }

    /// Takes the head of the leased queue, or moves it to the tail if it is still leased.
    fn probe_leased(&self) -> Option<ClosedChunk> {
        self.leased.take().and_then(Self::reopen)
    }

    /// Returns all leased chunks whose leases have ended to their shelves.
    pub(super) fn return_leased(&self) {
        (0..self.leased.count()).filter_map(|_| self.probe_leased()).for_each(|chunk| Self::put_back(chunk.into()));
    }
}

// ---- giving back --------------------------------------------------------------------------------

impl Pool {
    /// Gives back a chunk that was not shared since it was taken. Does nothing in a forked child.
    #[inline]
    pub(crate) fn give(chunk: ClosedChunk) {
        if !chunk.was_taken_here() {
            return Self::give_queued(chunk.into());
        }
        let notice = chunk.notice();
        match chunk.give() {
            Ok(()) => notice.came_back(),
            Err(chunk) => Self::destroy(chunk),
        }
    }

    /// Gives back a chunk that was shared, or that another thread took or used at the same time.
    /// Does nothing in a forked child.
    ///
    /// A shared chunk stays open to peers, so a descriptor in flight is valid until the chunk is
    /// used again or evicted.
    ///
    /// A chunk that another thread took also goes to the queue: otherwise the hot slot's cache line
    /// would move between the two threads with every message, and the bytes are not in that
    /// thread's cache anyway.
    #[inline(never)]
    pub(crate) fn give_queued(chunk: OwnedChunk) {
        if chunk.is_ours() {
            let notice = chunk.notice();
            Self::put_back(chunk);
            // Even if it is leased: its last lease may have ended while it was in no place.
            notice.came_back();
        }
    }

    /// Puts a chunk where it belongs, open or closed as it is, without notice to waiting requests.
    pub(super) fn put_back(chunk: OwnedChunk) {
        if !chunk.is_shared() {
            chunk.set_whereabouts(Whereabouts::Elsewhere);
            return Self::shelve(chunk);
        }
        // A retired chunk stays open in the leased queue, unless nothing is to be kept.
        if chunk.is_leased() || chunk.is_retired() && !chunk.pool().limits.keeps_nothing() {
            return Self::queue_leased(chunk);
        }
        chunk.set_whereabouts(Whereabouts::Idle);
        if let Err(chunk) = chunk.give_idle() {
            if let Some(chunk) = Self::reopen(chunk) {
                Self::shelve(chunk.into());
            }
        }
    }

    fn shelve(chunk: OwnedChunk) {
        let refused = if chunk.is_retired() { Err(chunk) } else { chunk.give_idle() };
        if let Err(chunk) = refused.or_else(|chunk| chunk.close()?.give()) {
            Self::destroy(chunk);
        }
    }

    /// Closes a chunk that was taken from a queue, or moves it to the leased queue if a peer leases
    /// it.
    pub(super) fn reopen(chunk: OwnedChunk) -> Option<ClosedChunk> {
        let closed = chunk.close().map_err(Self::queue_leased).ok()?;
        closed.set_whereabouts(Whereabouts::Elsewhere);
        Some(closed)
    }

    fn queue_leased(chunk: OwnedChunk) {
        chunk.set_whereabouts(Whereabouts::Leased);
        if let Err(chunk) = chunk.give_leased() {
            // Only a closed pool refuses.
            Self::destroy(chunk);
        }
    }

    /// Destroys a chunk (I6: exactly once). If a peer leases it, its bytes stay as they are.
    #[cold]
    pub(crate) fn destroy(chunk: OwnedChunk) {
        let closed = chunk.close().map(OwnedChunk::from).map_err(|leased| {
            leased.keep_bytes();
            leased
        });
        let (Ok(chunk) | Err(chunk)) = closed;
        chunk.pool().unlist(&mut chunk.pool().registry.lock(), &chunk);
        Self::free_unlisted(chunk);
    }

    pub(super) fn unlist(&self, registry: &mut Registry, chunk: &Chunk) {
        registry.remove(chunk);
        if !chunk.is_one_off() {
            self.listed[chunk.class()].fetch_sub(1, Ordering::Relaxed);
            self.groups[chunk.class() / GROUP].fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(super) fn free_unlisted(chunk: OwnedChunk) {
        let (class, uses, record, is_kept) = (chunk.class(), chunk.uses(), chunk.claimed(), chunk.is_given_up());
        let (pool, memory, home) = chunk.dismantle();
        pool.registry.lock().keep(home);
        pool.classes[class].past_uses.fetch_add(uses, Ordering::Relaxed);
        pool.collection.note_destroyed(memory.len());
        if is_kept {
            // A peer still reads, for an unknown time: neither the record nor the bytes are used
            // again. Dropped before `pool`, so that the last chunk's arena is removed before the
            // control object (see `sweep`).
            pool.arenas.mark(&memory, Mark::GivenUp);
            return drop(memory);
        }
        if let (Some((record, generation)), Some(control)) = (record, pool.control()) {
            control.release_record(record, generation);
        }
        pool.arenas.free(memory);
        if pool.limits.keeps_nothing() {
            pool.give_memory_back();
        }
        pool.memory_bell().ring();
    }
}
