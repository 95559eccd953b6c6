//! Releasing. A chunk returns to its shelf, or to the leased queue if a peer leases it; if its
//! place refuses it, it is destroyed. Idle chunks are evicted to the arenas, and free memory
//! returns to the system.
//!
//! # Eviction
//!
//! | for | evicted |
//! |---|---|
//! | a length that fits nowhere at the cap (`make_room`) | the idle chunks in one site |
//! | a system out of memory ([`Pool::relieve_system`]) | as many bytes as it lacks |
//! | a chunk to share, if there is no free record | one that has a record |
//! | the end of a window of allocations | those not needed in it |
//! | `trim`, `trim_to` | all, or as many bytes as necessary |
//!
//! # Windows
//!
//! [`idle_window`](crate::Tuning::idle_window) defines a window, and the memory not needed in it.
//! There is no thread and no clock: every [`COUNTED`]th use of a chunk counts for all chunks. After
//! a window, allocations of classes without reservations return what was not needed. The lowest
//! number that a take has left in a class's queue is its *low-water mark*.

#![forbid(unsafe_code)]

use super::take::Wanted;
use super::{LastWindow, Pool, GROUP, NO_MARK};
use crate::error::OsError;
use crate::owner::arena::{Mark, Site};
use crate::owner::chunk::{Chunk, ClosedChunk, OwnedChunk, Registry, Whereabouts};
use crate::owner::control::{OwnerControl, Payload};
use crate::owner::limits::{Grain, Need, COUNTED};
use std::ops::Range;
use std::sync::atomic::Ordering;

impl Pool {
    /// Does nothing in a forked child.
    #[inline]
    pub(crate) fn give(chunk: ClosedChunk) {
        if !chunk.was_taken_here() {
            return Self::give_queued(chunk.into());
        }
        let notice = chunk.notice();
        match chunk.give_if_empty() {
            Ok(()) => notice.came_back(),
            Err(chunk) => Self::give_beside(chunk),
        }
    }

    /// Ends [`Pool::give`] if the hot slot is full. Apart, so that the warm path saves no register:
    /// a locked instruction waits for such stores.
    #[inline(never)]
    fn give_beside(chunk: ClosedChunk) {
        let notice = chunk.notice();
        match chunk.give() {
            Ok(()) => notice.came_back(),
            Err(chunk) => Self::destroy(chunk),
        }
    }

    /// For a chunk that was shared, or that another thread took. A shared one stays open to peers,
    /// so a descriptor in flight is valid until the chunk is used again or evicted. Another
    /// thread's goes to the queue, so that the hot slot's cache line does not move with every
    /// message.
    #[inline(never)]
    pub(crate) fn give_queued(chunk: OwnedChunk) {
        if chunk.is_ours() {
            let notice = chunk.notice();
            Self::put_back(chunk);
            // Even if it is leased: its last lease may have ended while it was in no place.
            notice.came_back();
        }
    }

    /// Without notice to waiting requests.
    pub(super) fn put_back(chunk: OwnedChunk) {
        if !chunk.is_shared() {
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
        let refused = if chunk.is_retired() {
            Err(chunk)
        } else {
            chunk.give_idle()
        };
        if let Err(chunk) = refused.or_else(|chunk| chunk.close()?.give()) {
            Self::destroy(chunk);
        }
    }

    pub(super) fn reopen(chunk: OwnedChunk) -> Option<ClosedChunk> {
        chunk.close().map_err(Self::queue_leased).ok()
    }

    fn queue_leased(chunk: OwnedChunk) {
        chunk.set_whereabouts(Whereabouts::Leased);
        if let Err(chunk) = chunk.give_leased() {
            // Only a closed pool refuses.
            Self::destroy(chunk);
        }
    }

    /// Destroys a chunk, once (I6). If a peer leases it, its bytes stay as they are.
    #[cold]
    pub(crate) fn destroy(chunk: OwnedChunk) {
        let chunk = match chunk.close() {
            Ok(closed) => OwnedChunk::from(closed),
            Err(leased) => {
                leased.keep_bytes();
                if leased.is_granted() {
                    leased.pool().note_unread();
                }
                leased
            }
        };
        chunk
            .pool()
            .unlist(&mut chunk.pool().registry.lock(), &chunk);
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
        let (class, uses, record, is_kept) = (
            chunk.class(),
            chunk.uses(),
            chunk.claimed(),
            chunk.is_given_up(),
        );
        let (pool, memory) = chunk.dismantle();
        pool.classes[class]
            .past_uses
            .fetch_add(uses, Ordering::Relaxed);
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
        pool.memory_doorbell().notify();
    }
}

impl Pool {
    /// Makes room for a chunk; in the region of another class only if `anywhere`. Returns `false`
    /// if that is impossible now.
    ///
    /// A site that contains only idle chunks becomes a region, so that no other request gets its
    /// room, and its idle chunks are evicted.
    pub(super) fn make_room(&self, wanted: Wanted, anywhere: bool) -> bool {
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

    fn give_up_region(&self, class: usize) -> bool {
        self.arenas
            .is_surrendered(class)
            .then(|| self.give_up_arenas(false))
            .is_some()
    }

    /// Returns `true` if the range is in the region of a longer class.
    #[inline]
    pub(crate) fn wants_back(&self, serial: u64, range: &Range<usize>) -> bool {
        let class = self.arenas.region_at(serial, range);
        class.is_some_and(|class| self.classes[class].shape.size() > range.len())
    }

    /// Marks idle chunks class by class, the largest first, until there is a site.
    fn find_idle_site(&self, need: Need, anywhere: bool, may_surrender: bool) -> Option<Site> {
        let (_, spanned) = self.arenas.count_and_len();
        let most =
            self.arenas.free_bytes() + self.most_to_evict() + (self.limits.max_bytes - spanned);
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
        if found.is_some() || !may_surrender || self.arenas.next_len(need.size).is_some() {
            return found;
        }
        self.arenas
            .surrender(need, false)
            .filter(|_| self.has_system_room(need))
    }

    /// Returns `false` if the system could not provide a segment for `need` even if all arenas were
    /// empty: then none of them makes way for it.
    fn has_system_room(&self, need: Need) -> bool {
        let missing = need.size.saturating_sub(self.account.held());
        self.source.check_room(missing).is_ok()
    }

    /// A class that is refused again gets a region, or another one if that takes too long.
    pub(crate) fn note_refused(&self, class: usize, len: usize) {
        self.refused.store(class + 1, Ordering::Relaxed);
        let _one_at_a_time = self.making_room.lock();
        let need = self.demand(class, len);
        // Whichever is dropped next serves it.
        let is_full_of_it = self.registry.lock().is_all_of(class) && !self.arenas.could_merge(need);
        if is_full_of_it || !self.arenas.is_region_due(class) {
            return;
        }
        let before = self.arenas.region_of(class);
        let takes_too_long = |chunk: &Chunk| {
            before
                .as_ref()
                .is_some_and(|site| site.takes(chunk.memory()))
        };
        for chunk in self.registry.lock().chunks() {
            let stays = self.reserved(chunk.class()) > 0 || chunk.is_given_up();
            if stays || takes_too_long(chunk) {
                self.arenas.mark(chunk.memory(), Mark::Pinned);
            }
        }
        let site = self.arenas.cheapest_site(need, true, true).or_else(|| {
            self.arenas
                .surrender(need, true)
                .filter(|_| self.has_system_room(need))
        });
        if let Some(site) = site {
            self.retire(&site);
            self.arenas.keep_region(class, site);
        }
    }

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

/// The most bytes that one allocation returns to the system.
const AT_ONCE: usize = 1 << 20;

/// A window has at least this many counts for each chunk, so that chunks used in turn are all used
/// in it.
const LEAST_PER_CHUNK: u64 = 2;

/// Less than this share of the cap is not worth a system call.
const LEAST_SHARE: usize = 1024;

impl Pool {
    /// Evicts idle chunks that `choose` picks, the largest first, until they have `most` bytes.
    /// Returns their bytes.
    pub(super) fn evict(&self, most: usize, mut choose: impl FnMut(&Chunk) -> bool) -> usize {
        let mut evicted = 0;
        for (class, _) in self.evictable_classes() {
            evicted += self.evict_of(class, most.saturating_sub(evicted), &mut choose);
        }
        self.searched();
        evicted
    }

    /// Evicts large idle chunks until half of the cap is free: otherwise about five times as many
    /// messages of random sizes are refused, and the p99 doubles (`cargo bench --bench
    /// at_the_cap`).
    pub(super) fn relieve_crowding(&self) {
        // Size first, to keep the shelves of small classes out of the cache.
        let is_large = |class: usize| self.classes[class].shape.need.grain == Grain::Page;
        let mut most = self.arenas.crowding();
        for class in self
            .used_classes()
            .filter(|&class| is_large(class) && self.evictable(class) > 0)
        {
            most = most.saturating_sub(self.evict_of(class, most, |_| true));
        }
        self.searched();
    }

    /// Evicts all idle chunks of lengths without planned room, if a chunk of `need` may fit then.
    pub(super) fn evict_unplanned(&self, need: Need) {
        let _one_at_a_time = self.making_room.lock();
        let (_, spanned) = self.arenas.count_and_len();
        let unspanned = self.limits.max_bytes - spanned;
        if self.arenas.free_bytes() + self.most_to_evict() + unspanned < need.size {
            return;
        }
        self.return_leased();
        for class in self.used_classes() {
            if !self.limits.is_planned(class) && self.evictable(class) > 0 {
                self.evict_of(class, usize::MAX, |_| true);
            }
        }
        self.searched();
    }

    /// Takes each chunk in turn and puts it back if it is not picked.
    pub(super) fn evict_of(
        &self,
        class: usize,
        most: usize,
        mut choose: impl FnMut(&Chunk) -> bool,
    ) -> usize {
        let shelf = &self.shelves[class];
        let mut evicted = 0;
        // The hot slot's chunk first. A retired one that is not picked stays, too.
        match if most > 0 && self.evictable(class) > 0 {
            shelf.take_hot()
        } else {
            None
        } {
            Some(chunk) if choose(&chunk) => evicted += self.evict_or_put_back(chunk.into()),
            Some(chunk) => shelf.give(chunk).unwrap_or_else(Self::put_back),
            None => {}
        }
        shelf.look_everywhere();
        // Bounded: other threads may go on giving.
        for _ in 0..shelf.queued_count() {
            let is_done = evicted >= most || self.evictable(class) == 0;
            let Some((chunk, _)) = (if is_done { None } else { shelf.take_idle() }) else {
                break;
            };
            if choose(&chunk) {
                evicted += self.evict_or_put_back(chunk);
            } else {
                let kept = if chunk.is_leased() {
                    Err(chunk)
                } else {
                    shelf.give_idle(chunk)
                };
                kept.unwrap_or_else(Self::put_back);
            }
        }
        evicted
    }

    /// The only code that evicts. The registry's lock, under which promises are made, decides
    /// between several threads; [`evictable`](Self::evictable) is only an expectation.
    pub(super) fn evict_or_put_back(&self, chunk: OwnedChunk) -> usize {
        let is_reserved = |registry: &Registry, chunk: &Chunk| {
            !chunk.is_retired() && registry.count(chunk.class()) <= self.reserved(chunk.class())
        };
        // Before it is closed, so that peers may still attach to a chunk that stays.
        if is_reserved(&self.registry.lock(), &chunk) {
            Self::put_back(chunk);
            return 0;
        }
        let Some(chunk) = Self::reopen(chunk).map(OwnedChunk::from) else {
            return 0;
        };
        let size = chunk.capacity();
        let mut registry = self.registry.lock();
        if is_reserved(&registry, &chunk) {
            drop(registry);
            Self::put_back(chunk);
            return 0;
        }
        self.unlist(&mut registry, &chunk);
        drop(registry);
        Self::free_unlisted(chunk);
        size
    }

    /// Rings for waiting requests: one that looked meanwhile has missed the chunk in this thread's
    /// hand. Not if this thread looks on their behalf, which would wake it over and over.
    pub(super) fn searched(&self) {
        if !self.waiting.is_looking_here() {
            self.memory_doorbell().notify();
        }
    }

    /// Small page-aligned classes, then the others, the largest first.
    pub(super) fn evictable_classes(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.used_classes()
            .map(|class| (class, self.evictable(class)))
            .filter(|&(_, count)| count > 0)
    }

    pub(super) fn idle_bytes(&self) -> usize {
        self.used_classes()
            .map(|class| self.shelves[class].idle_count() * self.classes[class].shape.size())
            .sum()
    }

    /// Returns an upper bound on the bytes that all idle chunks free, in whole pages.
    pub(super) fn most_to_evict(&self) -> usize {
        let page = self.limits.page;
        let (mut large, mut small) = (0, 0);
        for (class, count) in self.evictable_classes() {
            let size = self.classes[class].shape.size();
            *if size < page { &mut small } else { &mut large } +=
                count * size.next_multiple_of(page);
        }
        // A small chunk alone on its page frees it, but all of them at most the heaps.
        let (free, all) = self.arenas.heap_bytes();
        large + (small + free).min(all)
    }

    pub(super) fn evictable(&self, class: usize) -> usize {
        self.listed(class)
            .saturating_sub(self.reserved(class))
            .min(self.shelves[class].idle_count())
    }

    /// Returns free memory of the arenas to the system or, if that was done before, of enough idle
    /// chunks. If all idle memory is too little, evicts nothing.
    pub(super) fn relieve_system(&self, need: Need, was_punched: bool, error: &OsError) -> bool {
        if self.arenas.are_whole() && !self.has_system_room(need) {
            return false;
        }
        if !was_punched && self.punch(usize::MAX) > 0 {
            return true;
        }
        // Only the file system can be asked what it has left.
        let is_full = error.errno() == Some(libc::ENOSPC);
        let left = is_full.then(|| self.arenas.left_in_the_system()).flatten();
        let left = left.map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let mut missing = need.size.saturating_sub(left).max(1);
        if self.most_to_evict() < missing {
            return false;
        }
        if self.arenas.are_whole() {
            // Only arenas without any chunk return memory.
            missing = usize::MAX;
        }
        let evicted = self.evict(missing, |_| true);
        self.punch(usize::MAX) > 0 || evicted > 0
    }

    pub(crate) fn reclaim(&self) -> usize {
        self.reclaim_borrowed() + self.control().map_or(0, OwnerControl::reclaim)
    }

    pub(crate) fn trim(&self) -> usize {
        let before = self.account.held();
        self.reclaim();
        self.evict_all();
        self.give_memory_back();
        let bytes = before.saturating_sub(self.account.held());
        event!(debug, provider = %self.id(), bytes, "idle memory given back");
        bytes
    }

    pub(crate) fn trim_to(&self, most: usize) -> usize {
        let before = self.account.held();
        self.reclaim();
        self.return_leased();
        loop {
            let surplus = || {
                self.account
                    .held()
                    .saturating_sub(most)
                    .next_multiple_of(self.limits.page)
            };
            self.punch(surplus());
            if surplus() == 0 || self.evict(surplus(), |_| true) == 0 {
                return before.saturating_sub(self.account.held());
            }
        }
    }

    pub(crate) fn evict_all(&self) {
        self.return_leased();
        self.evict(usize::MAX, |_| true);
    }

    pub(super) fn punch(&self, most: usize) -> usize {
        let punched = self.arenas.punch(&self.account, most);
        if punched > 0 {
            self.collection.note_returned();
        }
        punched
    }

    pub(super) fn give_memory_back(&self) {
        if !self.source.keeps_segments() {
            self.give_up_arenas(false);
        }
        self.punch(usize::MAX);
    }

    /// With `unused`, segments created for an allocation that failed. Their memory is discarded
    /// first, because peers may still have them mapped.
    pub(super) fn give_up_arenas(&self, unused: bool) {
        while let Some((payload, filled)) = self.arenas.take_empty(unused) {
            event!(info, provider = %self.id(), segment = payload.serial(), len = payload.len(), "segment given up");
            payload.segment().discard(0..payload.len());
            self.unlist_segment(&payload);
            self.account.give_back(filled);
            if unused {
                self.account.uncount_segment();
            }
        }
    }

    pub(super) fn unlist_segment(&self, payload: &Payload) {
        if let Some(control) = self.control() {
            control.unlist(payload);
        }
    }
}

impl Pool {
    #[cold]
    #[inline(never)]
    pub(super) fn count_uses(&self, class: usize) {
        let counted = self.windows.counted.fetch_add(1, Ordering::Relaxed) + 1;
        let is_due = counted >= self.windows.next.load(Ordering::Relaxed);
        if is_due && self.limits.idle_window != 0 && self.reserved(class) == 0 {
            self.return_unneeded(counted);
        }
    }

    #[inline]
    pub(super) fn note_low_water(&self, class: usize, left: usize) {
        let low = &self.classes[class].low;
        // A mark lost to another thread only delays an eviction.
        if left < low.load(Ordering::Relaxed) {
            low.store(left, Ordering::Relaxed);
        }
    }

    fn return_unneeded(&self, counted: u64) {
        let Some(mut last) = self.windows.last.try_lock() else {
            return;
        };
        let window = (self.limits.idle_window / COUNTED)
            .max(self.registry.lock().chunks().count() as u64 * LEAST_PER_CHUNK);
        if self.windows.next.load(Ordering::Relaxed) == 0 {
            return self.windows.next.store(counted + window, Ordering::Relaxed);
        }
        if last.is_done() {
            self.judge(&mut last);
        }
        let evicted = if last.has_chunks {
            self.evict_unneeded()
        } else {
            0
        };
        last.has_chunks = evicted >= AT_ONCE;
        last.bytes += evicted;
        self.punch(last.bytes.min(AT_ONCE));
        last.bytes = last.bytes.saturating_sub(AT_ONCE);
        let next = if last.is_done() {
            counted + window
        } else {
            counted + 1
        };
        self.windows.next.store(next, Ordering::Relaxed);
        // A request that looked meanwhile has missed the chunk in this thread's hand.
        self.memory_doorbell().notify();
    }

    fn judge(&self, last: &mut LastWindow) {
        let gaps = self.arenas.filled_gaps();
        last.bytes = gaps.min(last.gaps);
        let mut unneeded = last.bytes;
        for class in self.used_classes() {
            let shelf = &self.shelves[class];
            if let Some(hot) = if self.evictable(class) > 0 {
                shelf.take_hot()
            } else {
                None
            } {
                if hot.was_used_since_asked() {
                    hot.give().unwrap_or_else(Self::put_back);
                } else {
                    last.bytes += self.evict_or_put_back(hot.into());
                }
            }
            let tally = &self.classes[class];
            let queued = shelf.queued_count().min(self.evictable(class));
            let low = tally.low.swap(NO_MARK, Ordering::Relaxed).min(queued);
            tally.unneeded.store(low, Ordering::Relaxed);
            unneeded += low * self.classes[class].shape.size();
        }
        // Only now: a chunk that was leased until it was needed again never was in a queue.
        self.collect_returned();
        self.return_leased();
        last.has_chunks = unneeded >= self.limits.max_bytes / LEAST_SHARE;
        if last.has_chunks {
            last.gaps = gaps.saturating_sub(last.bytes);
        } else {
            (last.gaps, last.bytes) = (gaps, 0);
        }
    }

    fn evict_unneeded(&self) -> usize {
        let mut evicted = 0;
        for class in self.used_classes() {
            let unneeded = &self.classes[class].unneeded;
            while evicted < AT_ONCE
                && unneeded.load(Ordering::Relaxed) > 0
                && self.evictable(class) > 0
            {
                // The oldest first. Other threads may have taken some.
                let Some((chunk, _)) = self.shelves[class].take_idle() else {
                    break;
                };
                unneeded.fetch_sub(1, Ordering::Relaxed);
                evicted += self.evict_or_put_back(chunk);
            }
        }
        evicted
    }
}

impl LastWindow {
    fn is_done(&self) -> bool {
        !self.has_chunks && self.bytes == 0
    }
}
