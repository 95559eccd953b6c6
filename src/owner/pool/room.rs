//! Making room: idle chunks and memory that nothing is carved from go back to the arenas, or to the
//! system.
//!
//! [`Pool::evict_or_put_back`] is the one way for idle chunks to go. What needs room says which, and how many
//! bytes:
//!
//! | for | evicted |
//! |---|---|
//! | a length that fits nowhere at the cap ([`Pool::make_room`]) | the idle chunks in one place |
//! | a system that has no memory ([`Pool::relieve_system`]) | as many as it lacks |
//! | a chunk to be shared, without a free record | one that has a record |
//! | the end of a window of allocations (see `window`) | those that it has not needed |
//! | `trim`, `trim_to` | all, or as many as it takes |
//!
//! # At the cap
//!
//! Memory changes hands inside the arenas. It takes no system call, except for pages that have no
//! memory yet, and where arenas give way to a longer one.
//!
//! 1. *Marking.* Class by class, the largest first, each idle chunk is taken from its shelf, marked
//!    in the arenas and put back. This ends as soon as there is a window without any other chunk.
//! 2. *A window of idle chunks* becomes a region (see `arena::region`), so that no other request
//!    gets its room. The chunks in it are retired: whether they are still idle or taken meanwhile, no
//!    shelf keeps them any more. Those that are idle are evicted, and the request has its room.
//! 3. *If there is no such window,* nothing is evicted. A request that is refused again gets a
//!    region with few bytes in use. The chunks in it are retired; as they are dropped they return to
//!    the arena, until one of the next requests finds a window there.
//!
//! One thread makes room at a time. Other threads take and give back meanwhile, and miss at most one
//! chunk at a time.

#![forbid(unsafe_code)]

use super::make::Wanted;
use super::Pool;
use crate::error::OsError;
use crate::owner::arena::{Mark, Place};
use crate::owner::chunk::{Chunk, OwnedChunk, Registry};
use crate::owner::control::{OwnerControl, Payload};
use crate::owner::error::{AllocError, AllocErrorKind};
use crate::owner::limits::{Grain, Need};
use std::ops::Range;

impl Pool {
    // ---- idle chunks ----------------------------------------------------------------------------

    /// Evicts the idle chunks that `choose` picks, the largest first, until they have `most` bytes.
    /// Returns their bytes.
    pub(super) fn evict(&self, most: usize, mut choose: impl FnMut(&Chunk) -> bool) -> usize {
        let mut evicted = 0;
        for (class, _) in self.evictable_classes() {
            evicted += self.evict_of(class, most.saturating_sub(evicted), &mut choose);
        }
        self.searched();
        evicted
    }

    /// Evicts large idle chunks until half of the cap is free. Without this, some five times as many
    /// messages of random sizes are refused, and the p99 doubles (`cargo bench --bench at_the_cap`).
    pub(super) fn relieve_crowding(&self) {
        // In this order: the shelves of small classes are left out of the cache.
        let is_large = |class: usize| self.classes[class].shape.need.grain == Grain::Page;
        let mut most = self.arenas.crowding();
        for class in self.used_classes().filter(|&class| is_large(class) && self.evictable(class) > 0) {
            most = most.saturating_sub(self.evict_of(class, most, |_| true));
        }
        self.searched();
    }

    /// The same for one class. Each chunk is taken in turn, and put back if it is not picked: other
    /// threads find all but that one meanwhile. None is taken where all that are left are reserved.
    pub(super) fn evict_of(&self, class: usize, most: usize, mut choose: impl FnMut(&Chunk) -> bool) -> usize {
        let shelf = &self.shelves[class];
        let mut evicted = 0;
        // The hot slot's chunk first, while the queue still has others for other threads. Also one
        // that is retired stays as long as nothing needs its place.
        match if most > 0 && self.evictable(class) > 0 { shelf.take_hot() } else { None } {
            Some(chunk) if choose(&chunk) => evicted += self.evict_or_put_back(chunk.into()),
            Some(chunk) => shelf.give(chunk).unwrap_or_else(Self::put_back),
            None => {}
        }
        // Bounded: other threads may go on giving back.
        for _ in 0..shelf.queued_count() {
            let is_done = evicted >= most || self.evictable(class) == 0;
            let Some(chunk) = (if is_done { None } else { shelf.take_idle() }) else { break };
            if choose(&chunk) {
                evicted += self.evict_or_put_back(chunk);
            } else {
                let kept = if chunk.is_leased() { Err(chunk) } else { shelf.give_idle(chunk) };
                kept.unwrap_or_else(Self::put_back);
            }
        }
        evicted
    }

    /// Evicts an idle chunk, unless a peer leases it, or no more of its class are left than are
    /// reserved. Returns its bytes if it is gone.
    ///
    /// Several threads may evict at a time. The registry's lock decides, under which promises are
    /// made, too; [`evictable`](Self::evictable) is only what they expect.
    pub(super) fn evict_or_put_back(&self, chunk: OwnedChunk) -> usize {
        let is_reserved = |registry: &Registry, chunk: &Chunk| {
            !chunk.is_retired() && registry.count(chunk.class()) <= self.reserved(chunk.class())
        };
        // Before it is closed, so that peers may still attach to a chunk that stays.
        if is_reserved(&self.registry.lock(), &chunk) {
            Self::put_back(chunk);
            return 0;
        }
        let Some(chunk) = Self::reopen(chunk).map(OwnedChunk::from) else { return 0 };
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

    /// Tells requests that wait: one that looked meanwhile has missed what was in this thread's hand.
    /// Not while this thread looks for them itself, which would wake it over and over.
    pub(super) fn searched(&self) {
        if !self.waiting.is_looking_here() {
            self.memory_bell().ring();
        }
    }

    /// The classes that have idle chunks which may go, and how many: small page-aligned ones, then the
    /// others, the largest first.
    fn evictable_classes(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.used_classes().map(|class| (class, self.evictable(class))).filter(|&(_, count)| count > 0)
    }

    /// Bytes of all idle chunks.
    pub(super) fn idle_bytes(&self) -> usize {
        self.used_classes().map(|class| self.shelves[class].idle_count() * self.classes[class].shape.size()).sum()
    }

    /// An upper bound on what all idle chunks give, in bytes of whole pages.
    fn most_to_evict(&self) -> usize {
        let page = self.limits.page;
        let (mut large, mut small) = (0, 0);
        for (class, count) in self.evictable_classes() {
            let size = self.classes[class].shape.size();
            *if size < page { &mut small } else { &mut large } += count * size.next_multiple_of(page);
        }
        // A small chunk that is alone on its page frees it, but all of them no more than the heaps.
        let (free, all) = self.arenas.heap_bytes();
        large + (small + free).min(all)
    }

    // ---- at the cap -----------------------------------------------------------------------------

    /// Makes room for a chunk of a class that has none idle, when no gap is long enough; in the
    /// region of another class only if `anywhere`. Returns `false` if that is impossible now.
    pub(super) fn make_room(&self, wanted: Wanted, anywhere: bool) -> bool {
        let Wanted { class, need, .. } = wanted;
        let _one_at_a_time = self.making_room.lock();
        // Another thread may have put one back, or given one back.
        if wanted.may_be_larger && !self.shelves[class].is_empty() {
            return true;
        }
        if self.give_up_region(class) {
            return true;
        }
        let is_kept = self.arenas.is_kept_from(class);
        let place = self.find_idle_place(need, anywhere || !is_kept, !is_kept);
        self.searched();
        let Some(place) = place else { return false };
        let classes = self.retire(&place);
        if !is_kept {
            self.arenas.keep_region(class, place.clone());
        }
        for idle in classes {
            self.evict_of(idle, usize::MAX, |chunk| place.takes(chunk.memory()));
        }
        self.give_up_region(class);
        true
    }

    /// If the region of a class is whole arenas that are empty by now, gives them up, and returns
    /// `true`.
    fn give_up_region(&self, class: usize) -> bool {
        self.arenas.is_surrendered(class).then(|| self.give_up_arenas(false)).is_some()
    }

    /// Returns `true` if part of a segment is in the region of a class that was refused lately, and is
    /// too short to serve that class itself.
    #[inline]
    pub(crate) fn wants_back(&self, serial: u64, range: &Range<usize>) -> bool {
        let class = self.arenas.region_at(serial, range);
        class.is_some_and(|class| self.classes[class].shape.size() > range.len())
    }

    /// A place that would be free if idle chunks were. Marks these. It may be whole arenas only if
    /// `may_surrender`.
    fn find_idle_place(&self, need: Need, anywhere: bool, may_surrender: bool) -> Option<Place> {
        let (_, spanned) = self.arenas.count_and_len();
        let most = self.arenas.free_bytes() + self.most_to_evict() + (self.limits.max_bytes - spanned);
        if most < need.size {
            return None;
        }
        self.arenas.clear_marks();
        let window = || self.arenas.window(need, false, anywhere);
        // Something may have been dropped meanwhile, so the first look is at what is free.
        let found = window().or_else(|| {
            self.evictable_classes().find_map(|(class, mut left)| {
                self.evict_of(class, usize::MAX, |chunk| {
                    if left > 0 && !chunk.is_leased() {
                        self.arenas.mark(chunk.memory(), Mark::Idle);
                        left -= 1;
                    }
                    false
                });
                window()
            })
        });
        found.or_else(|| self.arenas.surrender(need, false).filter(|_| may_surrender))
    }

    /// Notes that a request was refused for good. If its class keeps being refused, it gets a region
    /// that costs few bytes in use: another one than until now, if it has one that takes too long.
    pub(crate) fn note_refused(&self, class: usize, len: usize) {
        let _one_at_a_time = self.making_room.lock();
        if !self.arenas.is_region_due(class) {
            return;
        }
        let need = self.demand(class, len);
        let before = self.arenas.region_of(class);
        let takes_too_long = |chunk: &Chunk| before.as_ref().is_some_and(|place| place.takes(chunk.memory()));
        for chunk in self.registry.lock().chunks() {
            let stays = self.reserved(chunk.class()) > 0 || chunk.is_given_up();
            if stays || takes_too_long(chunk) {
                self.arenas.mark(chunk.memory(), Mark::Pinned);
            }
        }
        let place = self.arenas.window(need, true, true).or_else(|| self.arenas.surrender(need, true));
        if let Some(place) = place {
            self.retire(&place);
            self.arenas.keep_region(class, place);
        }
    }

    /// From now on no shelf keeps the chunks in a place, but for those that are reserved. Returns the
    /// classes that have chunks there.
    fn retire(&self, place: &Place) -> Vec<usize> {
        let mut classes = Vec::new();
        self.registry.lock().retire(|chunk| {
            let is_in_it = place.takes(chunk.memory());
            if is_in_it && !classes.contains(&chunk.class()) {
                classes.push(chunk.class());
            }
            is_in_it.then(|| self.reserved(chunk.class()))
        });
        classes
    }

    // ---- a system without memory ----------------------------------------------------------------

    /// Helps a system that is short of memory. Gives it what is free in the arenas or, if that was
    /// done before, idle chunks that make up for what it lacks. Returns `false` if all that is idle
    /// would not do; then nothing was evicted.
    pub(super) fn relieve_system(&self, need: Need, was_punched: bool, error: &OsError) -> bool {
        if !was_punched && self.punch(usize::MAX) > 0 {
            return true;
        }
        // Nothing that is known of is left, unless it was the file system that is full.
        let is_full = error.errno() == Some(libc::ENOSPC);
        let left = is_full.then(|| self.arenas.left_in_the_system()).flatten();
        let left = left.map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let missing = need.size.saturating_sub(left).max(1);
        if self.most_to_evict() < missing {
            return false;
        }
        let evicted = self.evict(missing, |_| true);
        self.punch(usize::MAX) > 0 || evicted > 0
    }

    // ---- back to the system ---------------------------------------------------------------------

    /// Takes back what dead peers leased. Returns how many chunks they still held.
    pub(crate) fn reclaim(&self) -> usize {
        self.reclaim_loans() + self.control().map_or(0, OwnerControl::reclaim)
    }

    /// Gives all idle memory back to the system. Returns how many bytes that was.
    pub(crate) fn trim(&self) -> usize {
        let before = self.account.held();
        self.reclaim();
        self.evict_all();
        self.give_memory_back();
        let bytes = before.saturating_sub(self.account.held());
        event!(debug, provider = %self.id(), bytes, "idle memory given back");
        bytes
    }

    /// Gives idle memory back to the system until no more than `most` bytes are held, as far as
    /// that goes: first the memory of gaps, then idle chunks, the largest first. Returns how many
    /// bytes that was.
    pub(crate) fn trim_to(&self, most: usize) -> usize {
        let before = self.account.held();
        self.reclaim();
        self.return_lent();
        loop {
            // Memory goes in whole pages.
            let surplus = || self.account.held().saturating_sub(most).next_multiple_of(self.limits.page);
            self.punch(surplus());
            if surplus() == 0 || self.evict(surplus(), |_| true) == 0 {
                return before.saturating_sub(self.account.held());
            }
        }
    }

    /// Gives all idle chunks back to the arenas.
    pub(crate) fn evict_all(&self) {
        self.return_lent();
        self.evict(usize::MAX, |_| true);
    }

    /// Gives the memory of gaps in the arenas back to the system, `most` bytes of it.
    pub(super) fn punch(&self, most: usize) -> usize {
        self.arenas.punch(&self.account, most)
    }

    /// Gives memory that is not carved back to the system: whole segments, if they may go, and
    /// gaps.
    pub(super) fn give_memory_back(&self) {
        if !self.source.keeps_segments() {
            self.give_up_arenas(false);
        }
        self.punch(usize::MAX);
    }

    /// Gives up the segments that nothing is carved from: all, or with `unused` those that were made
    /// for an allocation which then failed. Peers may still have them mapped and would keep their
    /// memory, so that is given back first.
    pub(super) fn give_up_arenas(&self, unused: bool) {
        while let Some((payload, filled)) = self.arenas.take_empty(unused) {
            event!(info, provider = %self.id(), segment = payload.serial(), len = payload.len(), "segment given up");
            payload.segment().discard(0..payload.len());
            self.retire_segment(&payload);
            self.account.give_back(filled);
            if unused {
                self.account.uncount_segment();
            }
        }
    }

    /// Tells peers that a segment goes.
    pub(super) fn retire_segment(&self, payload: &Payload) {
        if let Some(control) = self.control() {
            control.unlist(payload);
        }
    }

    // ---- what there is --------------------------------------------------------------------------

    /// The largest allocation that surely fits as things are.
    pub(crate) fn largest_that_fits(&self) -> usize {
        let longest = self.arenas.longest_run();
        let sizes = self.classes[..self.limits.classes()].iter().map(|class| class.shape.size());
        sizes.take_while(|&size| size <= longest).last().unwrap_or(0)
    }

    /// Is less in use than when this error was made, so that another try is worth its time?
    pub(crate) fn has_less_in_use(&self, error: &AllocError) -> bool {
        match *error.kind() {
            AllocErrorKind::Exhausted { in_use, .. } => self.in_use_and_leased().0 < in_use,
            _ => true,
        }
    }

    #[cold]
    pub(super) fn exhausted(&self, need: Need) -> AllocError {
        // Not from the full statistics: a caller that waits for memory gets this error again and
        // again.
        let (max_bytes, (in_use, leased)) = (self.limits.max_bytes, self.in_use_and_leased());
        let idle = max_bytes.saturating_sub(in_use + leased);
        event!(debug, provider = %self.id(), len = need.size, max_bytes, in_use, leased, "exhausted");
        AllocErrorKind::Exhausted { len: need.size, max_bytes, in_use, idle, leased }.into()
    }
}
