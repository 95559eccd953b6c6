//! Returning memory to the system: the memory of gaps, and empty arenas.

#![forbid(unsafe_code)]

use super::{Arena, Arenas};
use crate::owner::control::Payload;
use crate::owner::limits::Account;
use std::sync::Arc;

impl Arenas {
    /// Returns the bytes of gaps that have memory.
    pub(crate) fn filled_gaps(&self) -> usize {
        let state = self.state.lock();
        let filled = |arena: &Arena| arena.pages.gaps(0).map(|gap| arena.holes.filled_len(&gap)).sum::<usize>();
        state.arenas.iter().map(filled).sum::<usize>() * self.page
    }

    /// Returns up to `most` bytes of the gaps' memory to the system, and returns how many.
    pub(crate) fn punch(&self, account: &Account, most: usize) -> usize {
        let mut state = self.state.lock();
        let mut given = 0;
        for Arena { payload, pages, holes, .. } in &mut state.arenas {
            let mut from = 0;
            while let Some(mut part) = pages.gaps(from).find_map(|gap| holes.parts(gap, true).next()) {
                part.end = part.end.min(part.start.saturating_add((most - given) / self.page));
                if part.is_empty() {
                    break;
                }
                from = part.end;
                if payload.segment().discard(part.start * self.page..part.end * self.page) {
                    given += holes.add(&part) * self.page;
                }
            }
        }
        // Under the lock, so that a thread that reserves these pages again is counted after this.
        account.give_back(given);
        given
    }

    /// Removes the next empty arena, and returns it with the bytes of it that have memory. If
    /// `unused`, considers only an arena made for an allocation that then failed.
    pub(crate) fn take_empty(&self, unused: bool) -> Option<(Arc<Payload>, usize)> {
        let mut state = self.state.lock();
        let is_leaving = |arena: &Arena| arena.pages.is_empty() && !(unused && arena.was_used);
        let at = state.arenas.iter().position(is_leaving)?;
        let arena = state.arenas.remove(at);
        self.note_room(&state);
        let filled = arena.holes.filled_len(&(0..arena.pages.units())) * self.page;
        Some((arena.payload, filled))
    }
}
