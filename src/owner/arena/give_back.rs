//! Giving memory back to the system: the memory of gaps, and arenas that nothing is carved from.

#![forbid(unsafe_code)]

use super::{Arena, Arenas};
use crate::owner::limits::Account;
use crate::owner::payload::Payload;
use std::ops::Range;
use std::sync::Arc;

/// A segment that is to go, and how many bytes of it have memory.
pub(crate) struct Leaving {
    pub(crate) payload: Arc<Payload>,
    pub(crate) filled: usize,
}

impl Arenas {
    /// Bytes of gaps that have memory.
    pub(crate) fn filled_gaps(&self) -> usize {
        let state = self.state.lock();
        let filled = |arena: &Arena| arena.pages.gaps().map(|gap| arena.holes.filled_len(&gap)).sum::<usize>();
        state.arenas.iter().map(filled).sum::<usize>() * self.page
    }

    /// Gives the memory of gaps back to the system, `most` bytes of it. Returns how many bytes that
    /// was.
    pub(crate) fn punch(&self, account: &Account, most: usize) -> usize {
        let mut state = self.state.lock();
        let mut given = 0;
        for arena in &mut state.arenas {
            for mut filled in arena.filled_gaps() {
                let left = (most - given) / self.page;
                filled.end = filled.end.min(filled.start.saturating_add(left));
                if filled.is_empty() {
                    break;
                }
                let Arena { payload, holes, .. } = arena;
                if payload.segment().discard(filled.start * self.page..filled.end * self.page) {
                    given += holes.add(filled) * self.page;
                }
            }
        }
        // Under the lock: a thread that reserves these pages again must not be counted before this
        // is.
        account.give_back(given);
        given
    }

    /// Takes out the arenas that nothing is carved from. The caller disposes of them.
    pub(crate) fn take_empty(&self) -> Vec<Leaving> {
        self.take(|arena| arena.pages.is_empty())
    }

    /// Takes out the arenas that were made for an allocation that then failed.
    pub(crate) fn take_unused(&self) -> Vec<Leaving> {
        self.take(|arena| arena.pages.is_empty() && !arena.was_used)
    }

    fn take(&self, is_wanted: impl Fn(&Arena) -> bool) -> Vec<Leaving> {
        let mut state = self.state.lock();
        let (wanted, others): (Vec<_>, Vec<_>) = std::mem::take(&mut state.arenas).into_iter().partition(is_wanted);
        state.arenas = others;
        self.note_room(&state);
        let leaving = |arena: Arena| Leaving { filled: arena.filled() * self.page, payload: arena.payload };
        wanted.into_iter().map(leaving).collect()
    }
}

impl Arena {
    /// The pages in gaps that have memory.
    fn filled_gaps(&self) -> Vec<Range<usize>> {
        self.pages.gaps().flat_map(|gap| self.holes.filled(&gap)).collect()
    }

    /// How many pages have memory.
    fn filled(&self) -> usize {
        self.holes.filled_len(&(0..self.pages.units()))
    }
}
