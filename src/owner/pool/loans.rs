//! Chunks that are lent to channels, which know when they come back.

#![forbid(unsafe_code)]

use super::Pool;
use crate::owner::arena::Room;
use crate::owner::chunk::{Chunk, ClosedChunk};
use std::ptr::NonNull;
use std::sync::Arc;

/// Something that has lent chunks of the pool, such as a channel's sender.
pub(crate) trait Lends: Send + Sync {
    /// Drops the chunks that have come back. Returns how many there were.
    fn collect(&self) -> usize;

    /// Drops the chunks of a dead borrower. Returns how many there were.
    fn reclaim(&self) -> usize;

    /// Calls `tell` with each chunk that is lent.
    fn each_lent(&self, tell: &mut dyn FnMut(&Chunk));

    /// Is nothing lent now, and will nothing ever be again?
    fn is_over(&self) -> bool;
}

/// How many chunks a class has before a lent one is waited for: one is being filled, one read, and
/// one is on its way back. With fewer, the next message would need the last one just as it is given
/// back.
const DEPTH: usize = 3;

impl Pool {
    /// Registers a lender, to be asked when memory is wanted, until it is over or the pool is
    /// closed; not at all if it is closed already. Drops the lenders that are over.
    pub(crate) fn add_lender(&self, lender: Arc<dyn Lends>) {
        self.reclaim_loans();
        if let Some(lenders) = &mut *self.lenders.lock() {
            lenders.push(lender);
        }
    }

    /// Takes a chunk of a class that has come back from a borrower, unless making another one is
    /// better.
    pub(super) fn take_returned(&self, class: usize) -> Option<ClosedChunk> {
        // One lock after the other, never both.
        let has_lenders = self.lenders.lock().as_ref().is_some_and(|lenders| !lenders.is_empty());
        let is_deep = || self.arenas.room() != Room::ToGrow || self.registry.lock().count(class) >= DEPTH;
        let may_wait = || self.reserved(class) > 0 || is_deep();
        let has_come_back = has_lenders && may_wait() && self.collect_loans() > 0;
        has_come_back.then(|| self.take_own(class)).flatten()
    }

    /// Takes in the chunks that borrowers have returned.
    pub(super) fn collect_loans(&self) -> usize {
        self.ask_lenders(|lender| lender.collect())
    }

    /// Takes in the chunks that borrowers have returned, and those of borrowers that are dead; drops
    /// the lenders that are over.
    pub(crate) fn reclaim_loans(&self) -> usize {
        self.ask_lenders(|lender| lender.collect() + lender.reclaim())
    }

    /// All chunks that are lent, ordered by address, and how many bytes each has.
    pub(super) fn lent_chunks(&self) -> Vec<(NonNull<Chunk>, usize)> {
        let mut lent = Vec::new();
        let mut tell = |chunk: &Chunk| {
            if lent.try_reserve(1).is_ok() {
                lent.push((NonNull::from(chunk), chunk.capacity()));
            }
        };
        self.lenders.lock().iter().flatten().for_each(|lender| lender.each_lent(&mut tell));
        // Several channels may have the same one.
        lent.sort_unstable();
        lent.dedup();
        lent
    }

    /// Returns `true` if this chunk is lent and not yet back.
    pub(crate) fn has_lent(&self, chunk: NonNull<Chunk>) -> bool {
        self.collect_loans();
        self.lent_chunks().iter().any(|(lent, _)| *lent == chunk)
    }

    fn ask_lenders(&self, ask: impl Fn(&dyn Lends) -> usize) -> usize {
        let mut lenders = self.lenders.lock();
        let Some(lenders) = &mut *lenders else { return 0 };
        let found = lenders.iter().map(|lender| ask(&**lender)).sum();
        lenders.retain(|lender| !lender.is_over());
        found
    }
}
