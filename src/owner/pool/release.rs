//! Releasing. A chunk returns to its free list, or to the leased queue if a peer leases it; if its
//! place refuses it, it is destroyed. Idle chunks are evicted to the arenas, and free memory
//! returns to the system.
//!
//! # Eviction
//!
//! | for | evicted |
//! |---|---|
//! | a length that fits nowhere at the cap (`make_room`) | the idle chunks in one site |
//! | a new chunk where less than half of the cap is free (`relieve_crowding`) | long ones until half is free, but none of a length that recurs |
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

use super::obtain::{Making, RECURS_WITHIN_WHERE_CROWDED};
use super::take::{HIDDEN_AT_ONCE, LEASED_TRIES_AT_THE_CAP};
use super::{LastWindow, Pool, CHUNKS_AT_ONCE, GROUP, NO_MARK};
use crate::error::OsError;
#[cfg(feature = "unstable-backend")]
use crate::owner::arena::Room;
use crate::owner::arena::{Position, Site};
use crate::owner::chunk::{Chunk, ClosedChunk, OwnedChunk, Registry, Whereabouts};
use crate::owner::control::Payload;
use crate::owner::limits::{Need, COUNTED};
use std::sync::atomic::Ordering;

impl Pool {
    /// Does nothing in a forked child.
    #[inline]
    pub(crate) fn release(chunk: ClosedChunk) {
        if !chunk.was_taken_here() {
            return Self::release_queued(chunk.into());
        }
        let notice = chunk.notice();
        let bytes = chunk.capacity();
        match chunk.push_hot() {
            Ok(()) => notice.notify_released(bytes),
            Err(chunk) => Self::release_slow(chunk),
        }
    }

    /// Ends [`Pool::release`] if the hot slot is full. Apart, so that the warm path saves no register:
    /// a locked instruction waits for such stores.
    #[inline(never)]
    fn release_slow(chunk: ClosedChunk) {
        let notice = chunk.notice();
        let bytes = chunk.capacity();
        match chunk.push() {
            Ok(()) => notice.notify_released(bytes),
            Err(chunk) => Self::destroy(chunk),
        }
    }

    /// For a chunk that was shared, or that another thread took. A shared one stays open to peers,
    /// so a descriptor in flight is valid until the chunk is used again or evicted. Another
    /// thread's goes to the queue, so that the hot slot's cache line does not move with every
    /// message.
    #[inline(never)]
    pub(crate) fn release_queued(chunk: OwnedChunk) {
        if chunk.is_ours() {
            let notice = chunk.notice();
            let bytes = chunk.capacity();
            Self::put_back(chunk);
            // Even if it is leased: its last lease may have ended while it was in no place.
            notice.notify_released(bytes);
        }
    }

    /// Without notice to waiting requests.
    pub(super) fn put_back(chunk: OwnedChunk) {
        if !chunk.is_shared() {
            Self::release_unleased(chunk);
            return;
        }
        // A retired chunk stays open in the leased queue, unless nothing is to be kept.
        if chunk.is_leased() || chunk.is_retired() && !chunk.pool().limits.keeps_nothing() {
            Self::queue_leased(chunk);
            return;
        }
        chunk.set_whereabouts(Whereabouts::Idle);
        if let Err(chunk) = chunk.push_idle() {
            if let Some(chunk) = Self::reopen(chunk) {
                Self::release_unleased(chunk.into());
            }
        }
    }

    fn release_unleased(chunk: OwnedChunk) {
        let refused = if chunk.is_retired() {
            chunk
        } else {
            match chunk.push_idle() {
                Ok(()) => return,
                Err(chunk) => chunk,
            }
        };
        let pushed = match refused.close() {
            Ok(closed) => closed.push(),
            Err(leased) => Err(leased),
        };
        if let Err(chunk) = pushed {
            Self::destroy(chunk);
        }
    }

    pub(super) fn reopen(chunk: OwnedChunk) -> Option<ClosedChunk> {
        match chunk.close() {
            Ok(closed) => Some(closed),
            Err(leased) => {
                Self::queue_leased(leased);
                None
            }
        }
    }

    fn queue_leased(chunk: OwnedChunk) {
        chunk.set_whereabouts(Whereabouts::Leased);
        let pool = chunk.pool();
        let is_retired = chunk.is_retired();
        if is_retired {
            // Relaxed: for a statistic.
            pool.retired_bytes
                .fetch_add(chunk.capacity(), Ordering::Relaxed);
        } else {
            let may_be_leased = &pool.may_be_leased[chunk.class()];
            if !may_be_leased.load(Ordering::Relaxed) {
                may_be_leased.store(true, Ordering::Relaxed);
            }
        }
        let refused = chunk.push_leased(is_retired);
        if let Err(chunk) = refused {
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
        let pool = chunk.pool();
        pool.unlist(&mut pool.registry.lock(), &chunk);
        Self::free_unlisted(chunk);
    }

    pub(super) fn unlist(&self, registry: &mut Registry, chunk: &Chunk) {
        registry.remove(chunk);
        if !chunk.is_uncached() {
            self.listed[chunk.class()].fetch_sub(1, Ordering::Relaxed);
            self.groups[chunk.class() / GROUP].fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(super) fn free_unlisted(chunk: OwnedChunk) {
        let class = chunk.class();
        let uses = chunk.uses();
        let record = chunk.claimed();
        let is_kept = chunk.is_leaked();
        let (pool, memory) = chunk.dismantle();
        let bytes = memory.len();

        let counts = &pool.classes[class];
        counts.past_uses.fetch_add(uses, Ordering::Relaxed);
        pool.collection.note_destroyed(bytes);
        if record.is_some() {
            // Relaxed: the chunk is in no place any more.
            counts.shared.fetch_sub(1, Ordering::Relaxed);
            pool.shared.fetch_sub(1, Ordering::Relaxed);
        }

        if is_kept {
            // A peer still reads, for an unknown time: neither the record nor the bytes are used
            // again. Dropped before `pool`, so that the last chunk's arena is removed before the
            // control object (see `sweep`).
            drop(memory);
            return;
        }
        if let (Some((record, generation)), Some(control)) = (record, pool.control()) {
            control.release_record(record, generation);
        }
        pool.arenas.free(memory);
        if pool.limits.keeps_nothing() || pool.is_closed.load(Ordering::Relaxed) {
            pool.return_memory();
        }
        pool.notice.notify_released(bytes);
    }
}

impl Pool {
    /// Returns `true` if the range is in the region of a longer class.
    #[cfg(feature = "unstable-backend")]
    #[inline]
    pub(crate) fn wants_back(&self, serial: u64, range: &std::ops::Range<usize>) -> bool {
        let class = self.arenas.region_at(serial, range);
        class.is_some_and(|class| self.classes[class].shape.size() > range.len())
    }

    /// Returns `true` if the arenas span the cap, and less than half of it is free.
    #[cfg(feature = "unstable-backend")]
    #[inline]
    pub(crate) fn is_crowded(&self) -> bool {
        self.arenas.room() == Room::Crowded
    }

    /// Finds the tightest range for which only idle chunks have to go; in the range that is kept for
    /// another class only if `anywhere`. May select whole arenas.
    pub(super) fn find_idle_site(
        &self,
        making: &mut Making<'_>,
        need: Need,
        anywhere: bool,
    ) -> Option<Site> {
        let (_, spanned) = self.arenas.count_and_len();
        let unspanned = self.limits.max_bytes - spanned;
        if self.arenas.free_bytes() + self.most_to_evict() + unspanned < need.size {
            return None;
        }
        let has_idle = self.evictable_classes().next().is_some();
        if !has_idle && !self.arenas.has_empty_arena() {
            return None;
        }
        let mut survey = self.arenas.survey(need, anywhere)?;
        // Class by class, the largest first, until there is a range.
        for (class, count) in self.evictable_classes() {
            self.each_idle(making, class, count, |position| survey.free(&position));
            if let Some(site) = survey.tightest() {
                return Some(site);
            }
        }

        if !anywhere || self.arenas.next_len(need.size).is_some() {
            return None;
        }
        let site = survey.surrender(false)?;
        if self.has_system_room(need) {
            Some(site)
        } else {
            None
        }
    }

    /// Calls `visit` with where at most `count` idle chunks of a class lie.
    fn each_idle(
        &self,
        making: &mut Making<'_>,
        class: usize,
        count: usize,
        mut visit: impl FnMut(Position),
    ) {
        let mut left = count;
        self.evict_of(making, class, usize::MAX, |chunk| {
            if left > 0 && !chunk.is_leased() {
                visit(chunk.memory().position());
                left -= 1;
            }
            false
        });
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
        let need = self.demand(class, len);
        // Whichever is dropped next serves it.
        let is_all_of_it = self.registry.lock().is_all_of(class);
        let is_full_of_it = is_all_of_it && !self.arenas.could_merge(need);
        if is_full_of_it || !self.arenas.note_refused(class) {
            return;
        }
        // Before the lock, since it may visit all chunks. A survey is a hint.
        let reserved = self.reserved_positions();
        let mut making = self.lock_making();
        let Some(mut survey) = self.arenas.survey(need, true) else {
            return;
        };
        for (idle, count) in self.evictable_classes() {
            self.each_idle(&mut making, idle, count, |position| survey.free(&position));
        }
        for position in &reserved {
            survey.pin(position);
        }
        // It takes too long there.
        if let Some(before) = self.arenas.region_of(class) {
            survey.pin_site(&before);
        }
        let mut site = survey.emptiest();
        if site.is_none() {
            site = survey.surrender(true);
            if site.is_some() && !self.has_system_room(need) {
                site = None;
            }
        }
        if let Some(site) = site {
            // First, so that nothing else is carved there.
            self.arenas.keep_region(class, site.clone());
            self.retire(&mut making, &site);
        }
        drop(making);
        self.notify_unless_trying();
    }

    /// Returns where the chunks of reserved classes lie. Without a reservation, no chunk is visited.
    fn reserved_positions(&self) -> Vec<Position> {
        let mut positions = Vec::new();
        if (0..self.classes.len()).all(|class| self.reserved(class) == 0) {
            return positions;
        }
        self.each_chunk(|chunk| {
            let is_reserved = self.reserved(chunk.class()) > 0;
            if is_reserved && positions.try_reserve(1).is_ok() {
                positions.push(chunk.memory().position());
            }
        });
        positions
    }

    /// Retires the chunks in a range: once they are dropped, they return to the arenas. A chunk that
    /// is made meanwhile lies elsewhere.
    fn retire(&self, making: &mut Making<'_>, site: &Site) {
        // In parts, from the end, as `each_chunk`.
        let mut left = usize::MAX;
        while left > 0 {
            let mut registry = self.registry.lock();
            let end = left.min(registry.len());
            left = end.saturating_sub(CHUNKS_AT_ONCE);
            registry.retire(left..end, |chunk| {
                if site.takes(chunk.memory()) {
                    Some(self.reserved(chunk.class()))
                } else {
                    None
                }
            });
            drop(registry);
            making.yield_now();
        }
    }
}

/// The most bytes that one allocation returns to the system.
const AT_ONCE: usize = 1 << 20;

/// A window has at least this many counts for each chunk, so that chunks used in turn are all used
/// in it.
const LEAST_PER_CHUNK: u64 = 2;

/// How many leased chunks the end of a window checks: some 50 ns each.
const LEASED_AT_ONCE: usize = 64;

/// How many long leased chunks a miss checks where memory is short. With two, about one chunk more
/// waits to be found at any time, and up to twice as many messages of random sizes are refused
/// (`cargo bench --bench at_the_cap`).
const LONG_LEASED_TRIES: usize = 8;

/// Less than this share of the cap is not worth a system call.
const LEAST_SHARE: usize = 1024;

impl Pool {
    /// Evicts idle chunks that `choose` picks, the largest first, until they have `most` bytes.
    /// Returns their bytes.
    pub(super) fn evict(
        &self,
        making: &mut Making<'_>,
        most: usize,
        mut choose: impl FnMut(&Chunk) -> bool,
    ) -> usize {
        let mut evicted = 0;
        for (class, _) in self.evictable_classes() {
            let most = most.saturating_sub(evicted);
            evicted += self.evict_of(making, class, most, &mut choose);
        }
        evicted
    }

    /// Evicts idle chunks of a page or more until half of the cap is free: otherwise about five times
    /// as many messages of random sizes are refused, and the p99 doubles (`cargo bench --bench
    /// at_the_cap`). If only those of whole pages went, messages log-uniform up to 1/256 of the cap
    /// would be refused from 49 % of it on, instead of 76 % (`--fits`).
    ///
    /// Among them are a few whose leases have ended since they were dropped. Those of a length that
    /// was made just before stay: it recurs.
    ///
    /// Returns `true` if leased chunks were out of sight meanwhile.
    pub(super) fn relieve_crowding(&self, making: &mut Making<'_>) -> bool {
        let mut most = self.arenas.crowding();
        let mut tries = LONG_LEASED_TRIES;
        for class in self.used_classes() {
            if most == 0 {
                break;
            }
            // Size first, to keep the free lists of small classes out of the cache.
            let is_long = self.classes[class].shape.need.size >= self.limits.page;
            if !is_long {
                continue;
            }
            if tries > 0 && self.may_be_leased[class].load(Ordering::Relaxed) {
                let most_leased = tries.min(LEASED_TRIES_AT_THE_CAP);
                tries -= self.return_leased_of(making, class, most_leased);
                if self.free_lists[class].leased_count() == 0 {
                    self.may_be_leased[class].store(false, Ordering::Relaxed);
                }
            }
            let recurs = self.made_since(class) < RECURS_WITHIN_WHERE_CROWDED;
            if !recurs && self.evictable(class) > 0 {
                most = most.saturating_sub(self.evict_of(making, class, most, |_| true));
            }
        }
        tries < LONG_LEASED_TRIES
    }

    /// Evicts all idle chunks of lengths without planned room, if a chunk of `need` may fit then.
    pub(super) fn evict_unplanned(&self, need: Need) {
        let mut making = self.lock_making();
        let (_, spanned) = self.arenas.count_and_len();
        let unspanned = self.limits.max_bytes - spanned;
        if self.arenas.free_bytes() + self.most_to_evict() + unspanned < need.size {
            return;
        }
        self.return_leased(&mut making);
        for class in self.used_classes() {
            if !self.limits.is_planned(class) && self.evictable(class) > 0 {
                self.evict_of(&mut making, class, usize::MAX, |_| true);
            }
        }
        drop(making);
        self.notify_unless_trying();
    }

    /// Evicts idle chunks of a class that `choose` picks, until they have `most` bytes: those of the
    /// queue, the oldest first, then that of the hot slot. Puts each of the others back.
    pub(super) fn evict_of(
        &self,
        making: &mut Making<'_>,
        class: usize,
        most: usize,
        mut choose: impl FnMut(&Chunk) -> bool,
    ) -> usize {
        let free_list = &self.free_lists[class];
        let mut evicted = 0;
        free_list.search_all();
        // Bounded: other threads may go on giving.
        for checked in 1..=free_list.queued_count() {
            if evicted >= most || self.evictable(class) == 0 {
                return evicted;
            }
            let Some((chunk, _)) = free_list.take_idle() else {
                break;
            };
            if choose(&chunk) {
                evicted += self.evict_or_put_back(making, chunk);
            } else if chunk.is_leased() {
                Self::put_back(chunk);
            } else if let Err(refused) = free_list.push_idle(chunk) {
                Self::put_back(refused);
            }
            if checked % HIDDEN_AT_ONCE == 0 {
                making.yield_now();
            }
        }
        if evicted < most && self.evictable(class) > 0 {
            match free_list.take_hot() {
                Some(chunk) if choose(&chunk) => {
                    evicted += self.evict_or_put_back(making, chunk.into());
                }
                Some(chunk) => {
                    // A retired one that is not picked stays, too.
                    if let Err(refused) = free_list.push(chunk) {
                        Self::put_back(refused);
                    }
                }
                None => {}
            }
        }
        evicted
    }

    /// The only code that evicts. The registry's lock, under which promises are made, decides
    /// between several threads; [`evictable`](Self::evictable) is only an expectation.
    pub(super) fn evict_or_put_back(&self, _making: &mut Making<'_>, chunk: OwnedChunk) -> usize {
        let is_reserved = |registry: &Registry, chunk: &Chunk| {
            !chunk.is_retired() && registry.count(chunk.class()) <= self.reserved(chunk.class())
        };
        // Before it is closed, so that peers may still attach to a chunk that stays.
        if is_reserved(&self.registry.lock(), &chunk) {
            Self::put_back(chunk);
            return 0;
        }
        let Some(closed) = Self::reopen(chunk) else {
            return 0;
        };
        let chunk = OwnedChunk::from(closed);
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

    /// Small page-aligned classes, then the others, the largest first.
    pub(super) fn evictable_classes(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.used_classes()
            .map(|class| (class, self.evictable(class)))
            .filter(|&(_, count)| count > 0)
    }

    pub(super) fn idle_bytes(&self) -> usize {
        let mut bytes = 0;
        for class in self.used_classes() {
            bytes += self.free_lists[class].idle_count() * self.classes[class].shape.size();
        }
        bytes
    }

    /// Returns an upper bound on the bytes that all idle chunks free, in whole pages.
    pub(super) fn most_to_evict(&self) -> usize {
        let page = self.limits.page;
        let mut large = 0;
        let mut small = 0;
        for (class, count) in self.evictable_classes() {
            let size = self.classes[class].shape.size();
            let bytes = count * size.next_multiple_of(page);
            if size < page {
                small += bytes;
            } else {
                large += bytes;
            }
        }
        // A small chunk alone on its page frees it, but all of them at most the heaps.
        let (free, all) = self.arenas.heap_bytes();
        large + (small + free).min(all)
    }

    pub(super) fn evictable(&self, class: usize) -> usize {
        self.listed(class)
            .saturating_sub(self.reserved(class))
            .min(self.free_lists[class].idle_count())
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
        // Only the file system can be asked what it has left, not a quota.
        let is_full = error.errno() == Some(libc::ENOSPC);
        let left = if is_full {
            self.arenas.left_in_the_system()
        } else {
            None
        };
        let left = match left {
            Some(bytes) => usize::try_from(bytes).unwrap_or(usize::MAX),
            None => 0,
        };
        let mut missing = need.size.saturating_sub(left).max(1);
        self.return_leased(&mut self.lock_making());
        self.notify_unless_trying();
        if self.most_to_evict() < missing {
            return false;
        }
        if self.arenas.are_whole() {
            // Only arenas without any chunk return memory.
            missing = usize::MAX;
        }
        let evicted = self.evict(&mut self.lock_making(), missing, |_| true);
        self.punch(usize::MAX) > 0 || evicted > 0
    }

    pub(crate) fn reclaim(&self) -> usize {
        self.reclaim_borrowed() + self.reclaim_from_dead_peers()
    }

    pub(crate) fn trim(&self) -> usize {
        let before = self.account.held();
        self.reclaim();
        self.evict_all();
        self.return_memory();
        let bytes = before.saturating_sub(self.account.held());
        event!(debug, provider = %self.id(), bytes, "idle memory returned");
        bytes
    }

    pub(crate) fn trim_to(&self, most: usize) -> usize {
        let before = self.account.held();
        self.reclaim();
        self.return_leased(&mut self.lock_making());
        let surplus = || {
            self.account
                .held()
                .saturating_sub(most)
                .next_multiple_of(self.limits.page)
        };
        // Bounded: other threads may go on releasing.
        let mut left = self.idle_bytes();
        loop {
            self.punch(surplus());
            let wanted = surplus().min(left);
            if wanted == 0 {
                break;
            }
            let evicted = self.evict(&mut self.lock_making(), wanted, |_| true);
            if evicted == 0 {
                break;
            }
            left = left.saturating_sub(evicted);
        }
        self.notify_unless_trying();
        before.saturating_sub(self.account.held())
    }

    pub(crate) fn evict_all(&self) {
        let mut making = self.lock_making();
        self.return_leased(&mut making);
        self.evict(&mut making, usize::MAX, |_| true);
        drop(making);
        self.notify_unless_trying();
    }

    pub(super) fn punch(&self, most: usize) -> usize {
        let punched = self.arenas.punch(&self.account, most);
        if punched > 0 {
            self.collection.note_returned();
        }
        punched
    }

    pub(super) fn return_memory(&self) {
        if !self.source.keeps_segments() {
            self.release_arenas(false);
        }
        self.punch(usize::MAX);
    }

    /// With `unused`, segments created for an allocation that failed. Their memory is discarded
    /// first, because peers may still have them mapped.
    pub(super) fn release_arenas(&self, unused: bool) {
        self.release_arenas_except(unused, 0);
    }

    /// Does the same for a thread that holds so many [`KeepNew`](crate::owner::arena::KeepNew).
    pub(super) fn release_arenas_except(&self, unused: bool, own: usize) {
        while let Some((payload, filled)) = self.arenas.take_empty(unused, own) {
            event!(
                info,
                provider = %self.id(),
                segment = payload.serial(),
                len = payload.len(),
                "segment released"
            );
            payload.segment().discard(0..payload.len());
            self.unlist_segment(&payload);
            self.account.release(filled);
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
        if last.is_done() {
            // Before the window is judged: what has come back is idle.
            self.collect_returned();
        }
        // Never waits: this is a part of an allocation that has its chunk.
        let Some(mut making) = Making::try_lock(&self.making) else {
            return;
        };
        let window = (self.limits.idle_window / COUNTED)
            .max(self.registry.lock().len() as u64 * LEAST_PER_CHUNK);
        if self.windows.next.load(Ordering::Relaxed) == 0 {
            self.windows.next.store(counted + window, Ordering::Relaxed);
            return;
        }
        if last.is_done() {
            self.judge(&mut making, &mut last);
        }
        if last.has_chunks {
            self.evict_unneeded(&mut making, &mut last);
        }
        // The system call is made without the lock.
        drop(making);
        self.notify_unless_trying();
        if !last.has_chunks || last.bytes >= AT_ONCE {
            self.punch(last.bytes.min(AT_ONCE));
            last.bytes = last.bytes.saturating_sub(AT_ONCE);
        }
        let next = if last.is_done() {
            counted + window
        } else {
            counted + 1
        };
        self.windows.next.store(next, Ordering::Relaxed);
    }

    fn judge(&self, making: &mut Making<'_>, last: &mut LastWindow) {
        let gaps = self.arenas.filled_gaps();
        last.bytes = gaps.min(last.gaps);
        let mut unneeded = last.bytes;
        for class in self.used_classes() {
            let free_list = &self.free_lists[class];
            let hot = if self.evictable(class) > 0 {
                free_list.take_hot()
            } else {
                None
            };
            if let Some(hot) = hot {
                if !hot.clear_taker() {
                    last.bytes += self.evict_or_put_back(making, hot.into());
                } else if let Err(refused) = hot.push() {
                    Self::put_back(refused);
                }
            }
            let tally = &self.classes[class];
            let queued = free_list.queued_count().min(self.evictable(class));
            let low = tally.low.swap(NO_MARK, Ordering::Relaxed).min(queued);
            tally.unneeded.store(low, Ordering::Relaxed);
            unneeded += low * self.classes[class].shape.size();
        }
        // Only now: a chunk that was leased until it was needed again never was in a queue.
        self.return_some_leased(making, &mut last.next_class);
        last.has_chunks = unneeded >= self.limits.max_bytes / LEAST_SHARE;
        if last.has_chunks {
            last.gaps = gaps.saturating_sub(last.bytes);
        } else {
            last.gaps = gaps;
            last.bytes = 0;
        }
    }

    /// Moves leased chunks whose leases have ended to the idle queues. Checks a few, of other classes
    /// at the end of the next window.
    fn return_some_leased(&self, making: &mut Making<'_>, next_class: &mut usize) {
        self.free_retired(making, LEASED_AT_ONCE);
        let mut left = LEASED_AT_ONCE;
        for _ in 0..self.classes.len() {
            let class = *next_class;
            *next_class = (class + 1) % self.classes.len();
            left -= self.return_leased_of(making, class, left);
            if left == 0 {
                return;
            }
        }
    }

    /// Evicts unneeded chunks: at most [`HIDDEN_AT_ONCE`] of them, and about [`AT_ONCE`] bytes.
    fn evict_unneeded(&self, making: &mut Making<'_>, last: &mut LastWindow) {
        let mut chunks = 0;
        let mut bytes = 0;
        for class in self.used_classes() {
            let unneeded = &self.classes[class].unneeded;
            while unneeded.load(Ordering::Relaxed) > 0 && self.evictable(class) > 0 {
                if bytes >= AT_ONCE || chunks == HIDDEN_AT_ONCE {
                    // A later use goes on.
                    last.bytes += bytes;
                    return;
                }
                // The oldest first. Other threads may have taken some.
                let Some((chunk, _)) = self.free_lists[class].take_idle() else {
                    break;
                };
                unneeded.fetch_sub(1, Ordering::Relaxed);
                bytes += self.evict_or_put_back(making, chunk);
                chunks += 1;
            }
        }
        last.bytes += bytes;
        last.has_chunks = false;
    }
}

impl LastWindow {
    fn is_done(&self) -> bool {
        !self.has_chunks && self.bytes == 0
    }
}
