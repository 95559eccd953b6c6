//! A chunk's way out and back.
//!
//! # Taking
//!
//! It is tried in this order:
//!
//! 1. the hot slot of the class (the warm path, in `provider`);
//! 2. the class's idle queue: chunks that no peer leased when they were given back;
//! 3. the leased queue: a few of the chunks that were shared longest ago, if their leases have ended;
//! 4. the chunks that channels have got back by now (`loans`), once the class has a few chunks;
//! 5. idle chunks of the next larger classes, as long as they waste little;
//! 6. a new chunk, carved out of the arenas, which grow up to the cap (`make`). Where they can no
//!    longer grow, it takes the place of idle chunks of other classes (`room`), or of what dead
//!    peers held. There a chunk of a class that does not recur is a *one-off*: it is as long as its
//!    message, and destroyed when it is given back, or, if it was shared, by a later search of the
//!    leased queue.
//!
//! # Giving back
//!
//! A chunk goes to its shelf, to the leased queue if peers lease it, or, if there is no place
//! for it, to its arena. None of this needs memory.
//!
//! | verb | for a chunk that | what becomes of it |
//! |---|---|---|
//! | [`Pool::give`] | is closed, and was used | the hot slot; as below if another thread took it |
//! | [`Pool::give_queued`] | was used | the idle queue, open if it was shared; the leased queue if it is leased |
//! | [`Pool::put_back`] | was only looked at | the same, and no request is told |
//! | [`Pool::evict`](super::room) | is idle | destroyed, unless it is reserved |
//! | [`Pool::destroy`] | has no place | destroyed |

#![forbid(unsafe_code)]

use super::{Pool, GROUP};
use crate::owner::arena::{Mark, Room};
use crate::owner::chunk::{Chunk, ClosedChunk, OwnedChunk, Registry, Whereabouts};
use crate::owner::error::{AllocError, AllocErrorKind};
use crate::owner::limits::{class_of, COUNTED};
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// How many lent chunks are looked at, at least, before a new one is carved.
const LEASED_TRIES: usize = 8;

/// One more is looked at for each so many bytes of the chunk: a look takes some 50 ns, which is
/// what the system takes to reserve that much memory. So all are, before a large chunk is carved.
const BYTES_PER_TRY: usize = 128;

/// How many lent chunks are looked at where the arenas can no longer grow: a new chunk takes no
/// memory from the system there. Two for each chunk, so that the search overtakes the queue. All are
/// looked at before a request is refused or evicts anything.
const LEASED_TRIES_AT_THE_CAP: usize = 2;

/// One search of the leased queue in this many covers all of it, and destroys idle chunks above the
/// idle cap.
const SEARCHES_PER_TRIM: u64 = 64;

/// An idle chunk may serve for a smaller one if it is larger by at most this share.
const MOST_WASTE: usize = 4;

/// The same where the arenas can no longer grow.
const MOST_WASTE_AT_THE_CAP: usize = 32;

impl Pool {
    /// Makes a chunk that was just taken this thread's, and counts the use.
    ///
    /// In a forked child it fails. The child's copy of the pool loses the chunk, but is of no use
    /// anyway.
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

    /// For a chunk last taken by another thread, or on the other side of a fork.
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

    /// The same, for a caller that can still do something about a refusal.
    pub(crate) fn take_now(self: &Arc<Self>, class: usize, len: usize) -> Result<ClosedChunk, AllocError> {
        let ready = self.take_own(class).or_else(|| self.take_leased(class, self.leased_tries(class)));
        let ready = ready.or_else(|| self.take_returned(class)).or_else(|| self.take_larger(class));
        ready.map_or_else(|| self.make_for(class, len), Ok)
    }

    fn leased_tries(&self, class: usize) -> usize {
        match self.reserved(class) {
            0 if self.arenas.room() != Room::ToGrow => LEASED_TRIES_AT_THE_CAP,
            0 => LEASED_TRIES + self.classes[class].shape.size() / BYTES_PER_TRY,
            // What was reserved is found, however many are leased: making another one may need the
            // system.
            _ => usize::MAX,
        }
    }

    /// Takes an idle chunk that will do for a class, if there is one. Makes none.
    pub(crate) fn take_ready(&self, class: usize) -> Option<ClosedChunk> {
        self.take_own(class).or_else(|| self.take_larger(class))
    }

    /// Is a chunk of a class idle, or reserved, so that a look for it is worth its time?
    pub(crate) fn has_ready(&self, class: usize) -> bool {
        self.reserved(class) > 0 || !self.shelves[class].is_empty()
    }

    /// Takes an idle chunk of this very class.
    pub(crate) fn take_own(&self, class: usize) -> Option<ClosedChunk> {
        // Where each message has a size of its own, this leaves the shelves out of the cache.
        if self.listed(class) == 0 {
            return None;
        }
        self.take_idle(class).or_else(|| self.shelves[class].take_hot())
    }

    /// Takes an idle chunk of a slightly larger class.
    pub(super) fn take_larger(&self, class: usize) -> Option<ClosedChunk> {
        let is_free =
            |&other: &usize| self.listed(other) > 0 && !self.shelves[other].is_empty() && self.reserved(other) == 0;
        let others = self.serving(class).skip(1).filter(is_free);
        others.filter_map(|other| self.take_own(other)).next()
    }

    /// The classes whose idle chunks will do for this one: itself, and those that waste little.
    fn serving(&self, class: usize) -> RangeInclusive<usize> {
        let classes = self.limits.classes();
        let size = self.classes[class].shape.size();
        let most_waste = match self.arenas.room() {
            Room::ToGrow => size / MOST_WASTE,
            Room::Ample => size / MOST_WASTE_AT_THE_CAP,
            Room::Crowded => 0,
        };
        let largest = size + most_waste;
        // The classes of small page-aligned messages come after all others, a page apart.
        let last = if class < classes {
            class_of(largest + 1).saturating_sub(1).min(classes - 1)
        } else {
            let pages = largest / self.limits.page;
            (classes + pages).saturating_sub(1).min(self.classes.len() - 1)
        };
        class..=last.max(class)
    }

    /// Takes the chunk that has been in the class's idle queue longest.
    fn take_idle(&self, class: usize) -> Option<ClosedChunk> {
        let chunk = std::iter::from_fn(|| self.shelves[class].take_idle()).find_map(Self::reopen)?;
        self.note_low_water(class);
        Some(chunk)
    }

    /// Looks at up to `tries` lent chunks, from the head. Takes the first one whose leases have
    /// ended and that will do for the class. Others whose leases have ended go back to their
    /// shelves.
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
        // A count lost to another thread only delays the trim, so it is not worth a
        // read-modify-write.
        let count = self.searches.load(Ordering::Relaxed) + 1;
        self.searches.store(count, Ordering::Relaxed);
        if count % SEARCHES_PER_TRIM == 0 {
            self.return_leased();
        }
        None
    }

    /// Takes the chunk at the head of the leased queue, or moves it to the tail if it is still
    /// leased.
    fn probe_leased(&self) -> Option<ClosedChunk> {
        self.leased.take().and_then(Self::reopen)
    }

    /// Gives all lent chunks whose leases have ended back to their shelves, or destroys those that
    /// have no place there.
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
    /// One that was shared stays open to peers, which may lease it or be about to. A descriptor still
    /// in flight is good until the chunk is used again, or is given up for another one at the cap.
    ///
    /// One that another thread took goes to the queue, too: the hot slot's cache line would travel
    /// between the two threads with every message, and the bytes are not in the other thread's cache
    /// anyway.
    #[inline(never)]
    pub(crate) fn give_queued(chunk: OwnedChunk) {
        if chunk.is_ours() {
            let notice = chunk.notice();
            Self::put_back(chunk);
            // Also if it is lent: its last lease may have ended while it was in no place.
            notice.came_back();
        }
    }

    /// Puts a chunk where it belongs, as it is.
    pub(super) fn put_back(chunk: OwnedChunk) {
        if !chunk.is_shared() {
            chunk.set_whereabouts(Whereabouts::Elsewhere);
            return Self::shelve(chunk);
        }
        // What no shelf keeps stays open in the leased queue, unless nothing is to be kept.
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

    /// Puts a chunk that peers lease into the leased queue.
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

    /// The rest of [`destroy`](Self::destroy), for a chunk that is off the list.
    pub(super) fn free_unlisted(chunk: OwnedChunk) {
        let (class, uses, record, is_kept) = (chunk.class(), chunk.uses(), chunk.claimed(), chunk.is_given_up());
        let (pool, memory, home) = chunk.dismantle();
        pool.registry.lock().keep(home);
        pool.classes[class].past_uses.fetch_add(uses, Ordering::Relaxed);
        pool.collection.note_destroyed(memory.len());
        if is_kept {
            // A peer still reads, and the pool is closed or cannot tell for how long: neither the
            // record nor the bytes are used again. The arena goes with the pool; the peer keeps its
            // mapping. Dropped here and not after `pool`, so that if this is the last chunk its
            // arena is removed before the control object (see `sweep`).
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
