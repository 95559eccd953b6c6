//! Making room under the cap, giving idle memory back, and what is said when there is no room to be made.

use super::Pool;
use crate::control::OwnerControl;
use crate::error::{AllocError, AllocErrorKind};
#[cfg(feature = "zenoh")]
use crate::limits::Kind;

impl Pool {
    /// Frees a little memory for the sake of `class`, whose own chunks were found to be in use; `false` if there is none to
    /// free. At last, and if it may, takes back what dead peers leased, and may not do so again.
    pub(super) fn make_room(&self, class: usize, may_reclaim: &mut bool) -> bool {
        let others = || (0..self.shelves.len()).rev().filter(|&other| other != class);
        self.drop_empty_arenas() > 0
            || others().any(|other| self.destroy_idle(other))
            || others().any(|other| self.trim_lent(other, 0) > 0)
            || std::mem::take(may_reclaim) && self.reclaim() > 0
    }

    /// Takes back what dead peers leased. Returns how many chunks they still held.
    pub(crate) fn reclaim(&self) -> usize {
        self.control().map_or(0, OwnerControl::reclaim)
    }

    pub(super) fn drop_empty_arenas(&self) -> usize {
        let empty = self.arenas.take_empty();
        let count = empty.len();
        empty.into_iter().for_each(|payload| self.drop_segment(payload));
        count
    }

    /// Destroys one idle chunk of a class.
    fn destroy_idle(&self, class: usize) -> bool {
        let found = self.take_idle(class).or_else(|| self.shelves[class].take_hot());
        found.map(Self::destroy).is_some()
    }

    /// Gives all idle memory back to the system. Returns how many bytes that was.
    pub(crate) fn trim(&self) -> usize {
        let before = self.budget.held();
        self.reclaim();
        for class in 0..self.shelves.len() {
            // Bounded: other threads may go on giving back.
            (0..self.shelves[class].idle_count()).take_while(|_| self.destroy_idle(class)).count();
            self.trim_lent(class, 0);
        }
        self.drop_empty_arenas();
        before.saturating_sub(self.budget.held())
    }

    /// The largest allocation that surely fits under the cap as it is.
    #[cfg(feature = "zenoh")]
    pub(crate) fn largest_that_fits(&self) -> usize {
        let free = self.budget.max().saturating_sub(self.budget.held());
        // A small one may fit into an arena that there is, but nobody knows without trying.
        let fits =
            |kind: &&Kind| if kind.is_carved { self.limits.arena_size <= free } else { kind.layout.size() <= free };
        self.kinds[..self.classes].iter().filter(fits).map(|kind| kind.layout.size()).max().unwrap_or(0)
    }

    #[cold]
    pub(super) fn exhausted(&self, class: usize) -> AllocError {
        let stats = self.stats();
        let (in_use, leased) = (stats.bytes_in_use, stats.bytes_leased);
        let idle = stats.bytes_held.saturating_sub(in_use + leased);
        let len = self.kinds[class].layout.size();
        AllocErrorKind::Exhausted { len, max_bytes: stats.max_bytes, in_use, idle, leased }.into()
    }
}
