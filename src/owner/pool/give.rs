//! Giving a chunk back: to its shelf, to the lent queue if peers lease it, or, if there is no place
//! for it, to its arena. None of this needs memory.
//!
//! | verb | for a chunk that | what becomes of it |
//! |---|---|---|
//! | [`Pool::give`] | is closed, and was used | the hot slot; as below if another thread took it |
//! | [`Pool::give_queued`] | was used | the idle queue, open if it was shared; the lent queue if it is leased |
//! | [`Pool::put_back`] | was only looked at | the same, and no request is told |
//! | [`Pool::evict`](super::room) | is idle | destroyed, unless it is reserved |
//! | [`Pool::destroy`] | has no place | destroyed |

#![forbid(unsafe_code)]

use super::{Pool, GROUP};
use crate::owner::arena::Mark;
use crate::owner::chunk::{Chunk, ClosedChunk, OwnedChunk, Registry, Whereabouts};
use std::sync::atomic::Ordering;

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
        // What no shelf keeps stays open in the lent queue, unless nothing is to be kept.
        if chunk.is_leased() || chunk.is_retired() && !chunk.pool().limits.keeps_nothing() {
            return Self::lend(chunk);
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

    /// Closes a chunk that was taken from a queue, or moves it to the lent queue if a peer leases
    /// it.
    pub(super) fn reopen(chunk: OwnedChunk) -> Option<ClosedChunk> {
        let closed = chunk.close().map_err(Self::lend).ok()?;
        closed.set_whereabouts(Whereabouts::Elsewhere);
        Some(closed)
    }

    /// Puts a chunk that peers lease into the lent queue.
    fn lend(chunk: OwnedChunk) {
        chunk.set_whereabouts(Whereabouts::Lent);
        if let Err(chunk) = chunk.give_lent() {
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
