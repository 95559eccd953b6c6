//! Giving memory back to the system, and reporting that no room can be made.

#![forbid(unsafe_code)]

use super::Pool;
use crate::error::OsError;
use crate::owner::arena::{Leaving, Need};
use crate::owner::control::OwnerControl;
use crate::owner::error::{AllocError, AllocErrorKind};
use crate::owner::payload::Payload;

impl Pool {
    /// Takes back what dead peers leased. Returns how many chunks they still held.
    pub(crate) fn reclaim(&self) -> usize {
        self.reclaim_loans() + self.control().map_or(0, OwnerControl::reclaim)
    }

    /// Gives all idle memory back to the system. Returns how many bytes that was.
    pub(crate) fn trim(&self) -> usize {
        let before = self.account.held();
        self.reclaim();
        self.destroy_idle();
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
            self.punch(self.account.held().saturating_sub(most));
            let surplus = self.account.held().saturating_sub(most);
            if surplus == 0 || self.destroy_largest(surplus) == 0 {
                return before.saturating_sub(self.account.held());
            }
        }
    }

    /// Destroys idle chunks of the class whose chunks are the largest, until they are as long as
    /// `wanted` together. Returns their bytes.
    fn destroy_largest(&self, wanted: usize) -> usize {
        let has_evictable = |&class: &usize| self.evictable(class) > 0;
        let Some(class) = self.idle_classes().filter(has_evictable).max_by_key(|&class| self.shapes[class].size())
        else {
            return 0;
        };
        let size = self.shapes[class].size();
        // Bounded: other threads may go on giving back.
        let idle = (0..self.evictable(class).min(wanted.div_ceil(size))).map_while(|_| self.take_own(class));
        idle.filter_map(|chunk| Self::evict_or_put_back(chunk).then_some(size)).sum()
    }

    /// Destroys an idle chunk that has a record, for another one to have it. `false`: there is
    /// none, also after the leases of the dead were taken back.
    #[cold]
    pub(super) fn free_a_record(&self) -> bool {
        self.reclaim();
        self.return_lent();
        let mut others = Vec::new();
        let found = self.used.iter().find_map(|class| {
            // Bounded: other threads may go on giving back.
            (0..self.evictable(class)).map_while(|_| self.take_own(class)).find_map(|chunk| {
                if chunk.has_record() {
                    return Some(chunk);
                }
                others.push(chunk);
                None
            })
        });
        others.into_iter().for_each(Self::put_back);
        // Who looked meanwhile has missed what was in this thread's hand.
        self.memory_bell().ring();
        found.is_some_and(Self::evict_or_put_back)
    }

    /// Gives all idle chunks back to the arenas.
    pub(crate) fn destroy_idle(&self) {
        self.return_lent();
        for class in self.used.iter() {
            // Bounded: other threads may go on giving back.
            let idle = (0..self.evictable(class)).map_while(|_| self.take_own(class));
            idle.for_each(|chunk| {
                Self::evict_or_put_back(chunk);
            });
        }
    }

    /// Helps a system that is short of memory. Gives it what is free in the arenas or, if that was
    /// done before, idle chunks that make up for what it lacks. `false`: all that is idle would not
    /// do, so nothing was destroyed.
    pub(super) fn relieve_system(&self, need: Need, was_punched: bool, error: &OsError) -> bool {
        if !was_punched && self.punch(usize::MAX) > 0 {
            return true;
        }
        let missing = need.size.saturating_sub(self.left_in_the_system(error));
        if self.most_to_evict() < missing.max(1) {
            return false;
        }
        let mut destroyed = 0;
        while destroyed < missing.max(1) {
            match self.destroy_largest(missing.max(1) - destroyed) {
                0 => break,
                more => destroyed += more,
            }
        }
        self.punch(usize::MAX) > 0 || destroyed > 0
    }

    /// How much memory the system has, after it refused some: nothing that is known of, unless it
    /// was the file system that is full.
    fn left_in_the_system(&self, error: &OsError) -> usize {
        let left = || self.arenas.payloads().first()?.segment().free_bytes();
        let is_full = error.errno() == Some(libc::ENOSPC);
        is_full.then(left).flatten().map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// Bytes of all idle chunks.
    pub(super) fn idle_bytes(&self) -> usize {
        self.used.iter().map(|class| self.shelves[class].idle_count() * self.shapes[class].size()).sum()
    }

    /// Gives the memory of gaps in the arenas back to the system, `most` bytes of it.
    pub(super) fn punch(&self, most: usize) -> usize {
        self.arenas.punch(&self.account, most)
    }

    /// Gives memory that is not carved back to the system: whole segments, if they may go, and
    /// gaps.
    pub(super) fn give_memory_back(&self) {
        if !self.source.keeps_segments() {
            self.give_up_empty_arenas();
        }
        self.punch(usize::MAX);
    }

    /// Gives up the segments that nothing is carved from. Peers may still have them mapped and
    /// would keep their memory, so that is given back first.
    pub(super) fn give_up_empty_arenas(&self) {
        self.arenas.take_empty().into_iter().for_each(|leaving| self.give_up(leaving));
    }

    /// Undoes what was made for an allocation that failed.
    pub(super) fn give_up_unused_arenas(&self) {
        if self.source.keeps_segments() {
            return;
        }
        for leaving in self.arenas.take_unused() {
            self.give_up(leaving);
            self.account.uncount_segment();
        }
    }

    fn give_up(&self, Leaving { payload, filled }: Leaving) {
        event!(info, provider = %self.id(), segment = payload.serial(), len = payload.len(), "segment given up");
        payload.segment().discard(0..payload.len());
        self.retire(&payload);
        self.account.give_back(filled);
    }

    /// Tells peers that a segment goes.
    pub(super) fn retire(&self, payload: &Payload) {
        if let Some(control) = self.control() {
            control.unlist(payload);
        }
    }

    /// The largest allocation that surely fits as things are.
    #[cfg(feature = "zenoh")]
    pub(crate) fn largest_that_fits(&self) -> usize {
        let longest = self.arenas.longest_run(self.source.keeps_segments());
        let sizes = self.shapes[..self.limits.classes()].iter().map(crate::owner::limits::ClassShape::size);
        sizes.take_while(|&size| size <= longest).last().unwrap_or(0)
    }

    /// Is less in use than when this error was made, so that another try is worth its time?
    #[cfg(feature = "zenoh")]
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
