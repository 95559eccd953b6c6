//! Trading: an allocation for which nothing is free takes the place of idle chunks of other classes, inside the arenas. No system
//! call is made, unless arenas have to give way to a longer one.
//!
//! Idle chunks are taken from their shelves one after the other, from the class that was used longest ago on, and *condemned*. Each
//! time the arenas tell whether the gap around it would do by now; then those that lie in the way are destroyed, and all others go
//! back to their shelves. What cannot succeed destroys nothing: if all are condemned and there is no such gap, all go back.
//!
//! One thread trades at a time. Others go on taking and giving back meanwhile; they do not find the chunks that are condemned, and who
//! therefore wants to trade, too, waits for the lock and then looks again.

use super::Pool;
use crate::arena::Window;
use crate::chunk::{Chunk, Place};
use crate::posix::round_to_pages;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

/// A chunk that was taken from its shelf to be condemned.
struct Condemned {
    chunk: NonNull<Chunk>,
    /// From the hot slot, or else from the idle queue, where it may be open to peers.
    was_hot: bool,
}

impl Condemned {
    fn chunk(&self) -> &Chunk {
        // SAFETY: taken from its shelf (I3), and kept until the value is given up.
        unsafe { self.chunk.as_ref() }
    }
}

impl Pool {
    /// Makes room for a chunk of a class, of which none is idle. `false` if that cannot be.
    pub(super) fn trade(&self, class: usize) -> bool {
        let _one_at_a_time = self.trading.lock();
        // Another trader may have put it back, or a holder given it back.
        if !self.shelves[class].is_empty() {
            return true;
        }
        if self.most_to_gain() < self.kinds[class].size() {
            return false;
        }
        let mut condemned = Vec::new();
        let has_room = self.condemn_until_it_fits(class, &mut condemned) || self.surrender(class, &mut condemned);
        condemned.into_iter().for_each(|spared| self.spare(spared));
        has_room
    }

    /// No more than this can be had in one piece, in bytes.
    fn most_to_gain(&self) -> usize {
        let (pages, lines) = self.arenas.free_bytes();
        let (_, spanned) = self.arenas.count_and_len();
        pages + lines + self.idle_bytes() + (self.limits.max_bytes - spanned)
    }

    /// Bytes of all idle chunks.
    pub(super) fn idle_bytes(&self) -> usize {
        self.used_classes().map(|class| self.shelves[class].idle_count() * self.kinds[class].size()).sum()
    }

    /// The classes that have chunks.
    pub(super) fn used_classes(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.tallies.len()).filter(|&class| self.tallies[class].chunks.load(Ordering::Relaxed) > 0)
    }

    /// The classes that have idle chunks, the one that was used longest ago first.
    pub(super) fn oldest_first(&self) -> Vec<usize> {
        let mut idle: Vec<usize> = self.used_classes().filter(|&class| !self.shelves[class].is_empty()).collect();
        idle.sort_by_key(|&class| self.shelves[class].taken());
        idle
    }

    fn condemn_until_it_fits(&self, class: usize, condemned: &mut Vec<Condemned>) -> bool {
        let need = self.kinds[class].need;
        for other in self.oldest_first() {
            // Bounded: other threads may go on giving back.
            for _ in 0..self.shelves[other].idle_count() {
                let Some(next) = self.take_to_condemn(other) else { break };
                let window = self.arenas.condemn(next.chunk().memory(), need);
                condemned.push(next);
                if window.is_some_and(|window| self.clear(&[window], condemned)) {
                    return true;
                }
            }
        }
        false
    }

    /// Takes the chunk of a class that has been idle longest, as it is.
    fn take_to_condemn(&self, class: usize) -> Option<Condemned> {
        let shelf = &self.shelves[class];
        while let Some(chunk) = shelf.take_idle() {
            let next = Condemned { chunk, was_hot: false };
            if !next.chunk().is_leased() {
                return Some(next);
            }
            Self::lend(&self.lent, chunk);
        }
        shelf.take_hot().map(|chunk| Condemned { chunk, was_hot: true })
    }

    /// Destroys the condemned chunks that lie in the windows. `false` if a peer has leased one meanwhile: then it destroys none.
    fn clear(&self, windows: &[Window], condemned: &mut Vec<Condemned>) -> bool {
        let is_in_the_way = |condemned: &Condemned| {
            let memory = condemned.chunk().memory();
            windows.iter().any(|window| window.takes(memory))
        };
        let (doomed, rest): (Vec<_>, Vec<_>) = std::mem::take(condemned).into_iter().partition(is_in_the_way);
        *condemned = rest;
        // From here on no peer can attach to it.
        let (closed, leased): (Vec<_>, Vec<_>) = doomed.into_iter().partition(|doomed| doomed.chunk().recycle());
        for leased in &leased {
            self.arenas.spare(leased.chunk().memory());
            Self::lend(&self.lent, leased.chunk);
        }
        if !leased.is_empty() {
            condemned.extend(closed);
            return false;
        }
        closed.into_iter().for_each(|doomed| Self::dispose(doomed.chunk, true));
        true
    }

    /// Puts a condemned chunk back to where it was.
    fn spare(&self, spared: Condemned) {
        self.arenas.spare(spared.chunk().memory());
        let Condemned { chunk, was_hot } = spared;
        // SAFETY: the caller holds the chunk (I3).
        let this = unsafe { chunk.as_ref() };
        if this.is_shared() {
            Self::give_shared(chunk);
        } else if !was_hot {
            this.set_place(Place::Elsewhere);
            Self::put_back(chunk);
        } else if let Err(chunk) = this.shelf().give(chunk) {
            Self::destroy(chunk);
        }
    }

    /// For a chunk that no arena is long enough for, or that fits none because of what is in use in each: arenas in which nothing is
    /// in use give way to a longer one. Everything idle is condemned.
    fn surrender(&self, class: usize, condemned: &mut Vec<Condemned>) -> bool {
        let Some(len) = round_to_pages(self.kinds[class].size()) else { return false };
        let Some(windows) = self.arenas.surrender(len) else { return false };
        if !self.clear(&windows, condemned) {
            return false;
        }
        self.give_up_empty_arenas();
        true
    }
}
