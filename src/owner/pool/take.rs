//! Taking a chunk that is at hand.
//!
//! A take tries, in this order,
//!
//! 1. the hot slot of the class (the warm path, in `provider`);
//! 2. the class's idle queue;
//! 3. the class's leased queue: a few of the chunks that were released longest ago, if their leases
//!    have ended;
//! 4. chunks that channels have got back, once the class has a few chunks;
//! 5. idle chunks of the next larger classes, if they waste little;
//! 6. a new chunk (`obtain`).
//!
//! An *uncached* chunk is as long as its message, and no free list keeps it.

#![forbid(unsafe_code)]

use super::obtain::Making;
use super::Pool;
use crate::owner::arena::Room;
use crate::owner::chunk::{Chunk, ClosedChunk, OwnedChunk};
use crate::owner::limits::{class_of, AllocError, Refusal, COUNTED};
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// The least number of leased chunks to check before a new one is carved.
const LEASED_TRIES: usize = 8;

/// One more for this many bytes of the chunk: a check takes some 50 ns, as long as the system needs
/// to reserve them.
const BYTES_PER_TRY: usize = 128;

/// For arenas that can no longer grow. Two, so that the search overtakes the queue.
pub(super) const LEASED_TRIES_AT_THE_CAP: usize = 2;

/// How many retired chunks a miss frees at most.
pub(super) const RETIRED_AT_ONCE: usize = 8;

/// After so many chunks, a thread with the making lock lets others have it.
pub(super) const HIDDEN_AT_ONCE: usize = 64;

/// An idle chunk may serve a smaller size if it is larger by at most this part of it.
const MOST_WASTE: usize = 4;

/// The same if the arenas can no longer grow.
const MOST_WASTE_AT_THE_CAP: usize = 32;

impl Pool {
    /// Does what [`adopt`](Self::adopt) does, or returns `false` if that takes more than a few
    /// instructions.
    #[inline]
    pub(crate) fn adopt_warm(chunk: &Chunk) -> bool {
        let is_warm = chunk.was_taken_here() && (chunk.uses() + 1) % COUNTED != 0;
        if is_warm {
            chunk.count_use();
        }
        is_warm
    }

    /// Makes a chunk that was just taken this thread's. A forked child loses it.
    #[inline]
    pub(crate) fn adopt(&self, chunk: &Chunk) -> Result<(), Refusal> {
        if Self::adopt_warm(chunk) {
            return Ok(());
        }
        self.adopt_cold(chunk)
    }

    #[inline(never)]
    fn adopt_cold(&self, chunk: &Chunk) -> Result<(), Refusal> {
        if !chunk.was_taken_here() {
            if !self.is_ours() {
                return Err(AllocError::Forked.into());
            }
            chunk.set_taker();
        }
        if chunk.count_use() % COUNTED == 0 {
            self.count_uses(chunk.class());
        }
        Ok(())
    }

    #[inline(never)]
    pub(crate) fn take_slow(
        self: &Arc<Self>,
        class: usize,
        len: usize,
    ) -> Result<ClosedChunk, Refusal> {
        let taken = self.take_now(class, len);
        if let Err(error) = &taken {
            if self.is_out_of_room(error) {
                self.note_refused(class, len);
            }
        }
        taken
    }

    /// Returns `true` if only chunks that are released make room: at the cap, or where whole
    /// segments do not fit in the file system.
    pub(crate) fn is_out_of_room(&self, error: &Refusal) -> bool {
        error.is_at_the_cap() || self.arenas.are_whole() && error.is_exhausted()
    }

    pub(crate) fn take_now(
        self: &Arc<Self>,
        class: usize,
        len: usize,
    ) -> Result<ClosedChunk, Refusal> {
        if let Some(chunk) = self.take_own(class) {
            return Ok(chunk);
        }
        if let Some(chunk) = self.take_leased(class) {
            return Ok(chunk);
        }
        if let Some(chunk) = self.take_returned(class) {
            return Ok(chunk);
        }
        if let Some(chunk) = self.take_larger(class) {
            return Ok(chunk);
        }
        self.obtain_for(class, len)
    }

    /// Returns how many leased chunks of a class are checked before a new chunk is carved.
    pub(super) fn leased_tries(&self, class: usize) -> usize {
        if self.reserved(class) > 0 {
            // A free reserved chunk is always found: making another one may need the system.
            return usize::MAX;
        }
        match self.arenas.room() {
            Room::ToGrow => LEASED_TRIES + self.classes[class].shape.size() / BYTES_PER_TRY,
            Room::Ample | Room::Crowded => LEASED_TRIES_AT_THE_CAP,
        }
    }

    pub(crate) fn take_ready(&self, class: usize) -> Option<ClosedChunk> {
        if let Some(chunk) = self.take_own(class) {
            return Some(chunk);
        }
        self.take_larger(class)
    }

    pub(crate) fn has_ready(&self, class: usize) -> bool {
        self.reserved(class) > 0 || !self.free_lists[class].is_empty()
    }

    pub(crate) fn take_own(&self, class: usize) -> Option<ClosedChunk> {
        // If each message has its own size, this keeps the free lists out of the cache.
        if self.listed(class) == 0 {
            return None;
        }
        if let Some(chunk) = self.take_idle(class) {
            return Some(chunk);
        }
        self.free_lists[class].take_hot()
    }

    /// Takes an idle chunk of one of the next larger classes, if one wastes little.
    pub(crate) fn take_larger(&self, class: usize) -> Option<ClosedChunk> {
        for other in self.serving(class).skip(1) {
            if self.may_lend(other) && !self.free_lists[other].is_empty() {
                if let Some(chunk) = self.take_own(other) {
                    return Some(chunk);
                }
            }
        }
        None
    }

    /// Does the same for a leased chunk whose leases have ended. The caller holds the making lock.
    pub(super) fn take_larger_leased(&self, class: usize) -> Option<ClosedChunk> {
        for other in self.serving(class).skip(1) {
            if self.may_lend(other) {
                if let Some(chunk) = self.take_leased_of(other, usize::MAX) {
                    return Some(chunk);
                }
            }
        }
        None
    }

    /// Returns `true` if chunks of the class may serve smaller messages.
    fn may_lend(&self, class: usize) -> bool {
        self.listed(class) > 0 && self.reserved(class) == 0
    }

    fn serving(&self, class: usize) -> RangeInclusive<usize> {
        let classes = self.limits.classes();
        let size = self.classes[class].shape.size();
        let most_waste = if self.limits.is_planned(class) {
            // A longer chunk would not leave enough for the others that there is room for.
            0
        } else {
            match self.arenas.room() {
                Room::ToGrow => size / MOST_WASTE,
                Room::Ample => size / MOST_WASTE_AT_THE_CAP,
                Room::Crowded => 0,
            }
        };
        let largest = size + most_waste;
        // The classes of small page-aligned messages are after all others, a page apart.
        let last = if class < classes {
            class_of(largest + 1).saturating_sub(1).min(classes - 1)
        } else {
            let pages = largest / self.limits.page;
            (classes + pages)
                .saturating_sub(1)
                .min(self.classes.len() - 1)
        };
        class..=last.max(class)
    }

    fn take_idle(&self, class: usize) -> Option<ClosedChunk> {
        let free_list = &self.free_lists[class];
        loop {
            let (chunk, left) = free_list.take_idle()?;
            // A peer may have leased it since it was released.
            if let Some(chunk) = Self::reopen(chunk) {
                self.note_low_water(class, left);
                return Some(chunk);
            }
        }
    }

    /// Takes a leased chunk of the class whose leases have ended.
    pub(super) fn take_leased(&self, class: usize) -> Option<ClosedChunk> {
        if self.listed(class) == 0 || self.free_lists[class].leased_count() == 0 {
            return None;
        }
        let found = self.take_leased_of(class, self.leased_tries(class));
        // A request that was tried meanwhile has missed the chunk in this thread's hand. The lease
        // of that chunk may have ended.
        self.notify_unless_trying();
        found
    }

    /// Rings for waiting requests, after a search that has put chunks back: a release meanwhile, which
    /// may serve a request only together with one of them, has not rung. Does nothing if this thread
    /// tries a request, which would wake it over and over.
    pub(super) fn notify_unless_trying(&self) {
        if !self.waiting.is_trying_here() {
            self.notice.notify_changed();
        }
    }

    /// Takes the first of at most `tries` leased chunks of the class whose leases have ended.
    pub(super) fn take_leased_of(&self, class: usize, tries: usize) -> Option<ClosedChunk> {
        // First, to keep the free lists of unused classes out of the cache.
        if self.listed(class) == 0 {
            return None;
        }
        let free_list = &self.free_lists[class];
        if tries == usize::MAX {
            free_list.search_all();
        }
        // Bounded: other threads may go on giving.
        for _ in 0..tries.min(free_list.leased_count()) {
            let leased = free_list.take_leased()?;
            match Self::reopen(leased) {
                Some(chunk) if chunk.is_retired() => Self::destroy(chunk.into()),
                Some(chunk) => return Some(chunk),
                None => {}
            }
        }
        None
    }

    /// Frees at most `most` retired chunks whose leases have ended.
    pub(super) fn free_retired(&self, making: &mut Making<'_>, most: usize) {
        for _ in 0..most {
            let Some(chunk) = making.retired().take_ended(&self.uncached) else {
                return;
            };
            self.free_ended(chunk);
        }
    }

    /// Frees all retired chunks whose leases have ended.
    fn free_all_retired(&self, making: &mut Making<'_>) {
        let (recent, late) = making.retired().check_all(&self.uncached);
        for checked in 1..=recent + late {
            let ended = if checked <= recent {
                making.retired().check_recent()
            } else {
                making.retired().check_late()
            };
            if let Some(chunk) = ended {
                self.free_ended(chunk);
            }
            if checked % HIDDEN_AT_ONCE == 0 {
                making.yield_now();
            }
        }
    }

    fn free_ended(&self, retired: OwnedChunk) {
        // Relaxed: for a statistic.
        self.retired_bytes
            .fetch_sub(retired.capacity(), Ordering::Relaxed);
        // A peer may have leased it again.
        if let Some(chunk) = Self::reopen(retired) {
            Self::destroy(chunk.into());
        }
    }

    /// Moves leased chunks whose leases have ended to the idle queues.
    pub(super) fn return_leased(&self, making: &mut Making<'_>) {
        if self.shared.load(Ordering::Relaxed) == 0 {
            return;
        }
        self.free_all_retired(making);
        for class in self.used_classes() {
            self.return_leased_of(making, class, usize::MAX);
        }
    }

    /// Does the same for at most `most` chunks of a class. Returns how many were checked.
    pub(super) fn return_leased_of(
        &self,
        making: &mut Making<'_>,
        class: usize,
        most: usize,
    ) -> usize {
        // First, to keep the free lists of unused classes out of the cache.
        if self.listed(class) == 0 {
            return 0;
        }
        let free_list = &self.free_lists[class];
        free_list.search_all();
        let count = free_list.leased_count().min(most);
        for checked in 1..=count {
            let Some(leased) = free_list.take_leased() else {
                return checked;
            };
            if let Some(chunk) = Self::reopen(leased) {
                Self::put_back(chunk.into());
            }
            if checked % HIDDEN_AT_ONCE == 0 {
                making.yield_now();
            }
        }
        count
    }
}
