//! Giving a chunk back: to its shelf, to the lent queue if peers lease it, or, if there is no place
//! for it, to its arena.

#![forbid(unsafe_code)]

use super::Pool;
use crate::owner::chunk::{Chunk, OwnedChunk, Whereabouts};
use crate::owner::listening;
use crate::owner::registry::Registry;
use std::sync::atomic::Ordering;

impl Pool {
    /// Puts a chunk that peers lease into the lent queue.
    pub(super) fn lend(chunk: OwnedChunk) {
        chunk.set_whereabouts(Whereabouts::Lent);
        if let Err(chunk) = chunk.give_lent() {
            // Only a closed pool refuses.
            Self::destroy(chunk);
        }
    }

    /// Puts back a chunk that the caller has taken and not used.
    pub(super) fn put_back(chunk: OwnedChunk) {
        if let Err(chunk) = chunk.give_idle().or_else(OwnedChunk::give) {
            Self::destroy(chunk);
        }
    }

    /// Gives back a chunk that was not shared since it was taken. Does nothing in a forked child.
    #[inline]
    pub(crate) fn give(chunk: OwnedChunk) {
        if !chunk.was_taken_here() {
            return Self::give_elsewhere(chunk);
        }
        match chunk.give() {
            Ok(()) => listening::came_back(),
            Err(chunk) => Self::destroy(chunk),
        }
    }

    /// Gives back a chunk that another thread took. It goes to the queue: the hot slot's cache line
    /// would travel between the two threads with every message, and the bytes are not in the other
    /// thread's cache anyway.
    #[inline(never)]
    fn give_elsewhere(chunk: OwnedChunk) {
        if chunk.is_ours() {
            Self::put_back(chunk);
            listening::came_back();
        }
    }

    /// Gives back a chunk that was shared: peers may lease it, or be about to.
    ///
    /// It stays open to peers. A descriptor still in flight is good until the chunk is used again,
    /// or is given up for another one at the cap.
    pub(crate) fn give_shared(chunk: OwnedChunk) {
        Self::shelve_shared(chunk);
        // Also if it is lent: its last lease may have ended while it was in no place.
        listening::came_back();
    }

    /// As [`give_shared`](Self::give_shared), for a chunk that was only looked at: nothing has come
    /// back.
    pub(super) fn shelve_shared(chunk: OwnedChunk) {
        // A one-off stays open in the lent queue, unless nothing is to be kept.
        if chunk.is_leased() || chunk.is_one_off() && !chunk.pool().limits.keeps_nothing() {
            return Self::lend(chunk);
        }
        chunk.set_whereabouts(Whereabouts::Idle);
        if let Err(chunk) = chunk.give_idle() {
            Self::give_closed(chunk);
        }
    }

    /// Gives back a shared chunk that found no room in the idle queue.
    #[cold]
    fn give_closed(chunk: OwnedChunk) {
        if let Some(chunk) = Self::reopen(chunk) {
            Self::put_back(chunk);
        }
    }

    /// Destroys a chunk (I6: exactly once).
    #[cold]
    pub(crate) fn destroy(chunk: OwnedChunk) {
        let is_free = chunk.recycle() && !chunk.is_given_up();
        Self::dispose(chunk, is_free);
    }

    /// Destroys a chunk. If its bytes are not free, because somebody may read them, they are left
    /// as they are.
    pub(crate) fn dispose(chunk: OwnedChunk, is_free: bool) {
        chunk.pool().unlist(&mut chunk.pool().registry.lock(), &chunk);
        Self::free_unlisted(chunk, is_free);
    }

    /// Destroys an idle chunk that is closed to peers, so that others get its room. `Err` returns
    /// it, if no more chunks of its class are left than are reserved.
    ///
    /// Several threads may evict at a time. The registry's lock decides, under which promises are
    /// made, too; [`evictable`](Self::evictable) is only what they expect.
    pub(super) fn evict(chunk: OwnedChunk) -> Result<(), OwnedChunk> {
        {
            let (pool, class) = (chunk.pool(), chunk.class());
            let mut registry = pool.registry.lock();
            if registry.count(class) > pool.reserved(class) {
                pool.unlist(&mut registry, &chunk);
            } else {
                drop(registry);
                return Err(chunk);
            }
        }
        let is_free = !chunk.is_given_up();
        Self::free_unlisted(chunk, is_free);
        Ok(())
    }

    /// Evicts a closed chunk, or puts it back. Returns whether it is gone.
    pub(super) fn evict_or_put_back(chunk: OwnedChunk) -> bool {
        Self::evict(chunk).map_err(Self::put_back).is_ok()
    }

    fn unlist(&self, registry: &mut Registry, chunk: &Chunk) {
        if registry.remove(chunk) == 0 {
            self.used.remove(chunk.class());
        }
    }

    /// The rest of [`dispose`](Self::dispose), for a chunk that is off the list.
    fn free_unlisted(chunk: OwnedChunk, is_free: bool) {
        let remains = chunk.dismantle();
        let pool = remains.pool;
        pool.registry.lock().keep(remains.home);
        let tally = &pool.tallies[remains.class];
        tally.past_uses.fetch_add(remains.uses, Ordering::Relaxed);
        #[cfg(feature = "zenoh")]
        pool.collection.note_destroyed(remains.memory.len());
        if !is_free {
            // The pool is closed, and a peer still reads: neither the record nor the bytes are used
            // again. The arena goes with the pool; the peer keeps its mapping. Dropped here and not
            // after `pool`, so that if this is the last chunk its arena is removed before the
            // control object (see `sweep`).
            return drop(remains.memory);
        }
        if let (Some((record, generation)), Some(control)) = (remains.record, pool.control()) {
            control.release_record(record, generation);
        }
        pool.arenas.free(remains.memory);
        if pool.limits.keeps_nothing() {
            pool.give_memory_back();
        }
        pool.memory_bell().ring();
    }
}
