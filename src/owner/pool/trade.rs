//! Trading: once the arenas can no longer grow, memory changes hands inside them. It takes no
//! system call, except for pages that have no memory yet, and where arenas give way to a longer
//! one.
//!
//! A new chunk then finds its place in up to two steps.
//!
//! 1. **If no gap is large enough, everything idle is weighed** ([`Pool::trade`]). Idle chunks are
//!    taken from their shelves and *condemned*: the arenas count them as room. The arenas name the
//!    tightest gap this would give. The chunks in its way are destroyed, and all others go back to
//!    their shelves. If there is no such gap, all go back. So a message for which there is no room
//!    takes nothing from others.
//! 2. **Where memory is crowded, large idle chunks go back to the arenas**
//!    ([`Pool::relieve_crowding`]) after a large chunk was carved: from each class in turn the one
//!    that has been idle longest, until memory is no longer crowded. Memory is *crowded* when the
//!    arenas cannot grow and less than half of the cap is free in them. Making a chunk again costs
//!    a microsecond. Keeping every chunk until it is in the way scatters the free memory, so that
//!    with messages of random sizes some are refused that would otherwise fit.
//!
//! One thread trades at a time. Others go on taking and giving back meanwhile, but do not find the
//! condemned chunks. A thread that wants to trade because of that waits for the lock and then looks
//! again.

#![forbid(unsafe_code)]

use super::make::Wanted;
use super::Pool;
use crate::os::posix::round_to_pages;
use crate::owner::arena::{Grain, Need, Room, Window};
use crate::owner::chunk::{OwnedChunk, Whereabouts};

/// A chunk that was taken from its shelf to be looked at, as it is. It is destroyed or put back.
pub(super) struct Condemned {
    chunk: OwnedChunk,
    /// From the hot slot. Otherwise from the idle queue, where it may be open to peers.
    was_hot: bool,
}

impl Condemned {
    pub(super) fn hot(chunk: OwnedChunk) -> Self {
        Self { chunk, was_hot: true }
    }

    pub(super) fn chunk(&self) -> &OwnedChunk {
        &self.chunk
    }

    pub(super) fn was_hot(&self) -> bool {
        self.was_hot
    }

    /// Evicts it. `false` if a peer has leased it just now, so that it is lent, or if what is left
    /// of its class is reserved.
    pub(super) fn evict(self) -> bool {
        if !self.chunk.recycle() {
            Pool::lend(self.chunk);
            return false;
        }
        let Self { chunk, was_hot } = self;
        Pool::evict(chunk).map_err(|chunk| Self { chunk, was_hot }.put_back()).is_ok()
    }

    /// Puts it back where it was.
    pub(super) fn put_back(self) {
        let Condemned { chunk, was_hot } = self;
        if chunk.is_shared() {
            return Pool::shelve_shared(chunk);
        }
        chunk.set_whereabouts(Whereabouts::Elsewhere);
        if !was_hot {
            Pool::put_back(chunk);
        } else if let Err(chunk) = chunk.give() {
            Pool::destroy(chunk);
        }
    }
}

impl Pool {
    /// Where memory is crowded, gives large idle chunks back to the arenas until it is not.
    pub(super) fn relieve_crowding(&self) {
        if self.arenas.room() != Room::Crowded {
            return;
        }
        let mut hand = self.trading.lock();
        let is_large = |class: &usize| self.shapes[*class].need.grain == Grain::Page;
        // Bounded: other threads may go on giving back.
        let idle = self.idle_classes().filter(is_large).map(|class| self.evictable(class)).sum();
        for _ in 0..idle {
            let in_turn = self
                .idle_classes()
                .filter(is_large)
                .filter(|&class| self.evictable(class) > 0)
                .min_by_key(|&class| (class <= *hand, class));
            let Some(class) = in_turn else { return };
            *hand = class;
            let Some(oldest) = self.take_to_condemn(class) else { continue };
            oldest.evict();
            if self.arenas.room() != Room::Crowded {
                return;
            }
        }
    }

    /// Makes room for a chunk of a class that has none idle, when no gap is large enough. `false`
    /// if that is impossible.
    pub(super) fn trade(&self, wanted: Wanted) -> bool {
        let _one_at_a_time = self.trading.lock();
        // Another trader may have put one back, or a holder given one back.
        if !self.shelves[wanted.class].is_empty() {
            return true;
        }
        if self.most_to_gain() < wanted.need.size {
            return false;
        }
        let mut condemned = Vec::new();
        for other in self.idle_classes() {
            // Bounded: other threads may go on giving back.
            let idle = (0..self.evictable(other)).map_while(|_| self.take_to_condemn(other));
            condemned.extend(idle);
        }
        condemned.iter().for_each(|next| self.arenas.condemn(next.chunk.memory()));
        let has_room = self.clear_a_window(wanted.need, &mut condemned) || self.surrender(wanted.need, &mut condemned);
        condemned.into_iter().for_each(|spared| self.spare(spared));
        has_room
    }

    /// Destroys the chunks in the way of a new one, in the tightest place there is. `false` if
    /// there is none.
    fn clear_a_window(&self, need: Need, condemned: &mut Vec<Condemned>) -> bool {
        // If a peer has leased one of them meanwhile, one chunk fewer may have to go.
        while let Some(window) = self.arenas.window(need) {
            if self.clear(&[window], condemned) {
                return true;
            }
        }
        false
    }

    /// An upper bound on what can be had in one piece, in bytes.
    fn most_to_gain(&self) -> usize {
        let (_, spanned) = self.arenas.count_and_len();
        self.arenas.free_bytes() + self.most_to_evict() + (self.limits.max_bytes - spanned)
    }

    /// An upper bound on what all idle chunks give, in bytes of whole pages.
    pub(super) fn most_to_evict(&self) -> usize {
        let page = self.limits.page;
        let (mut large, mut small) = (0, 0);
        for class in self.idle_classes() {
            let (size, count) = (self.shapes[class].size(), self.evictable(class));
            *if size < page { &mut small } else { &mut large } += count * size.next_multiple_of(page);
        }
        // A small chunk that is alone on its page frees it, but all of them no more than the heaps.
        let (free, all) = self.arenas.heap_bytes();
        large + (small + free).min(all)
    }

    /// The classes that have idle chunks.
    pub(super) fn idle_classes(&self) -> impl Iterator<Item = usize> + '_ {
        self.used.iter().filter(|&class| !self.shelves[class].is_empty())
    }

    /// Takes the chunk of a class that has been idle longest, as it is.
    fn take_to_condemn(&self, class: usize) -> Option<Condemned> {
        self.take_queued(class).or_else(|| self.shelves[class].take_hot().map(Condemned::hot))
    }

    /// Takes the chunk that has been in the class's idle queue longest, as it is.
    pub(super) fn take_queued(&self, class: usize) -> Option<Condemned> {
        while let Some(chunk) = self.shelves[class].take_idle() {
            if !chunk.is_leased() {
                return Some(Condemned { chunk, was_hot: false });
            }
            Self::lend(chunk);
        }
        None
    }

    /// Destroys the condemned chunks in the windows. `false` if one of them stays: a peer has leased
    /// it meanwhile, and then none is destroyed; or what is left of its class is reserved.
    fn clear(&self, windows: &[Window], condemned: &mut Vec<Condemned>) -> bool {
        let is_in_the_way = |condemned: &Condemned| {
            let memory = condemned.chunk.memory();
            windows.iter().any(|window| window.takes(memory))
        };
        let (doomed, rest): (Vec<_>, Vec<_>) = std::mem::take(condemned).into_iter().partition(is_in_the_way);
        *condemned = rest;
        // From here on no peer can attach to these.
        let (closed, leased): (Vec<_>, Vec<_>) = doomed.into_iter().partition(|doomed| doomed.chunk.recycle());
        let is_leased = !leased.is_empty();
        for leased in leased {
            self.arenas.spare(leased.chunk.memory());
            Self::lend(leased.chunk);
        }
        if is_leased {
            condemned.extend(closed);
            return false;
        }
        // Another thread may have evicted of the same class meanwhile, down to what is reserved. That
        // is no room any more, so that the next window is another one.
        let mut is_clear = true;
        for Condemned { chunk, was_hot } in closed {
            if let Err(chunk) = Self::evict(chunk) {
                self.spare(Condemned { chunk, was_hot });
                is_clear = false;
            }
        }
        is_clear
    }

    /// Puts a condemned chunk back where it was.
    fn spare(&self, spared: Condemned) {
        self.arenas.spare(spared.chunk.memory());
        spared.put_back();
    }

    /// Lets arenas in which nothing is in use give way to a longer one, for a chunk that fits no
    /// arena, because each is too short or has too much in use. Everything idle is condemned.
    fn surrender(&self, need: Need, condemned: &mut Vec<Condemned>) -> bool {
        let Some(len) = round_to_pages(need.size) else { return false };
        // Where receivers keep what is given up, this may happen only once, and leaves one segment
        // as long as the cap.
        let Some(windows) = self.arenas.surrender(len, self.source.keeps_segments()) else { return false };
        if !self.clear(&windows, condemned) {
            return false;
        }
        self.give_up_empty_arenas();
        true
    }
}
