//! Chunks that are lent: to channels, which know when they have come back.

#![forbid(unsafe_code)]

use super::Pool;
use crate::owner::arena::Room;
use crate::owner::chunk::{Chunk, OwnedChunk};
use std::ptr::NonNull;
use std::sync::Arc;

/// Who has lent chunks of the pool to others.
pub(crate) trait Lends: Send + Sync {
    /// Drops what has come back. Returns how many chunks that were.
    fn collect(&self) -> usize;

    /// Drops all that a borrower had who is dead. Returns how many chunks that were.
    fn reclaim(&self) -> usize;

    /// Bytes of the chunks that are lent.
    fn bytes_lent(&self) -> usize;

    /// The chunks that are lent.
    fn each_lent(&self, tell: &mut dyn FnMut(NonNull<Chunk>));

    /// Is nothing lent now, and never will be again?
    fn is_over(&self) -> bool;
}

/// How many chunks a class has before one that was lent is waited for: one is filled, one is read, and one is on its way back. With
/// fewer, the next message would need the last one just when that is given back.
const DEPTH: usize = 3;

impl Pool {
    /// From now on the lender is asked when memory is wanted. When the pool is closed, it is let go of; and so are, here, those that are
    /// over.
    pub(crate) fn add_lender(&self, lender: Arc<dyn Lends>) {
        self.reclaim_loans();
        self.lenders.lock().push(lender);
    }

    /// Takes a chunk of a class that has come back from those whom it was lent to, unless another one had better be made.
    pub(super) fn take_returned(&self, class: usize) -> Option<OwnedChunk> {
        // One lock after the other.
        let has_lenders = !self.lenders.lock().is_empty();
        let is_deep = || self.arenas.room() != Room::ToGrow || self.registry.lock().count(class) >= DEPTH;
        let has_come_back = has_lenders && is_deep() && self.collect_loans() > 0;
        has_come_back.then(|| self.take_own(class)).flatten()
    }

    /// Takes what has come back from those whom it was lent to.
    pub(super) fn collect_loans(&self) -> usize {
        self.ask_lenders(|lender| lender.collect())
    }

    /// Takes what was lent to those who are dead by now.
    pub(super) fn reclaim_loans(&self) -> usize {
        self.ask_lenders(|lender| lender.collect() + lender.reclaim())
    }

    /// Bytes of all chunks that are lent.
    pub(super) fn bytes_lent(&self) -> usize {
        self.ask_lenders(|lender| lender.bytes_lent())
    }

    /// All chunks that are lent, in the order of their addresses.
    pub(super) fn lent_chunks(&self) -> Vec<NonNull<Chunk>> {
        let mut lent = Vec::new();
        self.lenders.lock().iter().for_each(|lender| lender.each_lent(&mut |chunk| lent.push(chunk)));
        lent.sort_unstable();
        lent
    }

    /// Is this chunk lent, and has it not come back?
    pub(crate) fn has_lent(&self, chunk: NonNull<Chunk>) -> bool {
        self.collect_loans();
        self.lent_chunks().binary_search(&chunk).is_ok()
    }

    fn ask_lenders(&self, ask: impl Fn(&dyn Lends) -> usize) -> usize {
        let mut lenders = self.lenders.lock();
        let found = lenders.iter().map(|lender| ask(&**lender)).sum();
        lenders.retain(|lender| !lender.is_over());
        found
    }
}
