//! Reservations, which make chunks in advance.

#![forbid(unsafe_code)]

use super::Pool;
use crate::owner::chunk::{Chunk, ClosedChunk};
use crate::owner::limits::{AllocError, Refusal};
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

impl Pool {
    /// A reservation is a number for a class, not a mark on chunks: that many exist, in use or
    /// idle, and all of the class have a record, and space in the leased queue.
    pub(crate) fn reserve(self: &Arc<Self>, class: usize, count: usize) -> Result<(), Refusal> {
        let _one_at_a_time = self.reserving.lock();
        let max = self.classes[class].shape.max_idle;
        let reserved = self.reserved(class);
        let wanted = reserved.saturating_add(count);
        if wanted > max {
            return Err(AllocError::ReserveTooMany { count: wanted, max }.into());
        }
        let mut result = self.make_reserved(class, reserved, wanted);
        if let Err(error) = &result {
            if self.is_out_of_room(error) {
                // It may fit without idle chunks, in joined arenas.
                self.trim();
                result = self.make_reserved(class, reserved, wanted);
            }
        }
        // A request that looked meanwhile has missed the chunks in this thread's hand.
        self.memory_doorbell().notify();
        result
    }

    fn make_reserved(
        self: &Arc<Self>,
        class: usize,
        reserved: usize,
        wanted: usize,
    ) -> Result<(), Refusal> {
        // A retired chunk is destroyed when it is dropped, and occupies the queue until then.
        self.evict_of(
            &mut self.lock_making(),
            class,
            usize::MAX,
            Chunk::is_retired,
        );
        // First, so that new chunks are not evicted at once.
        self.promise(class, wanted);
        let mut taken = Vec::new();
        let result = self.make_ready(class, wanted, &mut taken);
        if result.is_err() {
            self.promise(class, reserved);
        }
        for chunk in taken {
            chunk.count_use(); // misses count it, too
            if result.is_ok() {
                Self::put_back(chunk.into());
            } else {
                self.evict_or_put_back(&mut self.lock_making(), chunk.into());
            }
        }
        result
    }

    fn make_ready(
        self: &Arc<Self>,
        class: usize,
        wanted: usize,
        taken: &mut Vec<ClosedChunk>,
    ) -> Result<(), Refusal> {
        while self.registry.lock().count(class) < wanted {
            taken.push(self.obtain_reserved(class)?);
        }
        if self.control().is_some() {
            self.prepare_class(class)
                .map_err(AllocError::ReserveShare)?;
        }
        Ok(())
    }

    #[cfg(feature = "unstable-backend")]
    pub(crate) fn each_of_class(&self, class: usize, mut each: impl FnMut(&Chunk)) {
        self.each_chunk(|chunk| {
            if chunk.class() == class && !chunk.is_retired() {
                each(chunk);
            }
        });
    }

    /// Ends a reservation of `count` chunks. They stay until their room is needed.
    pub(crate) fn end_reservation(&self, class: usize, count: usize) {
        let _one_at_a_time = self.reserving.lock();
        let left = self.reserved(class).saturating_sub(count);
        self.promise(class, left);
        // A waiting request may need what could not be evicted until now.
        self.memory_doorbell().notify();
    }

    fn promise(&self, class: usize, count: usize) {
        // Eviction decides under this lock: from now on, chunks evicted by the previous number are
        // not listed.
        let _decides = self.registry.lock();
        self.classes[class].reserved.store(count, Ordering::Relaxed);
    }

    pub(crate) fn reserved(&self, class: usize) -> usize {
        // Relaxed: the registry's lock orders it where that matters.
        self.classes[class].reserved.load(Ordering::Relaxed)
    }
}

/// Chunks kept for one size class while this value lives; see
/// [`Provider::reserve`](crate::Provider::reserve).
#[must_use = "a reservation ends when it is dropped; `keep` it for the provider's life"]
pub struct Reservation {
    pool: Weak<Pool>,
    class: usize,
    count: usize,
}

impl Reservation {
    pub(crate) fn new(pool: &Arc<Pool>, class: usize, count: usize) -> Self {
        Self {
            pool: Arc::downgrade(pool),
            class,
            count,
        }
    }

    /// Keeps the reservation for the provider's lifetime.
    pub fn keep(mut self) {
        self.pool = Weak::new();
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // In a forked child the pool is the parent's, and its locks may be held.
        if let Some(pool) = self.pool.upgrade() {
            if pool.is_ours() {
                pool.end_reservation(self.class, self.count);
            }
        }
    }
}
