//! Reservations: chunks of a class that are promised to stay.
//!
//! A reservation is a number for a class, not a mark on chunks: so many of its chunks exist, in use
//! or idle, until the reservation ends. They are made when it is made, with all that a message
//! needs: memory that is present, a record, and the queue for those that peers lease. Chunks of the
//! class that exist already, in use or not, get what they lack. From then on no chunk of the class is
//! evicted below that number ([`Pool::evict_or_put_back`]), and no message of another class takes one.
//! A search of the lent queue for the class covers all of it, so that none is made while one is
//! free.

#![forbid(unsafe_code)]

use super::make::Wanted;
use super::Pool;
use crate::owner::chunk::{Chunk, ClosedChunk};
use crate::owner::error::{AllocError, AllocErrorKind};
use std::sync::atomic::Ordering;
use std::sync::Arc;

impl Pool {
    /// Reserves `count` more chunks of a class. On an error nothing is reserved, and what was made
    /// for it is gone.
    pub(crate) fn reserve(self: &Arc<Self>, class: usize, count: usize) -> Result<(), AllocError> {
        let _one_at_a_time = self.reserving.lock();
        let max = self.classes[class].shape.max_idle;
        let reserved = self.reserved(class);
        let wanted = reserved.saturating_add(count);
        if wanted > max {
            return Err(AllocErrorKind::ReserveTooMany { count: wanted, max }.into());
        }
        let mut result = self.make_reserved(class, reserved, wanted);
        if result.as_ref().is_err_and(AllocError::is_at_the_cap) {
            // It may fit once nothing idle is in the way, and arenas have joined.
            self.trim();
            result = self.make_reserved(class, reserved, wanted);
        }
        // A request that looked meanwhile has missed what was in this thread's hand.
        self.memory_bell().ring();
        result
    }

    fn make_reserved(self: &Arc<Self>, class: usize, reserved: usize, wanted: usize) -> Result<(), AllocError> {
        // What is retired goes when it is dropped, and has a place in the queue until then.
        self.evict_of(class, usize::MAX, Chunk::is_retired);
        // First the promise, so that what is made is not evicted while it is made.
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
                self.evict_or_put_back(chunk.into());
            }
        }
        result
    }

    fn make_ready(
        self: &Arc<Self>,
        class: usize,
        wanted: usize,
        taken: &mut Vec<ClosedChunk>,
    ) -> Result<(), AllocError> {
        while self.registry.lock().count(class) < wanted {
            // A chunk of another class does not serve a reservation.
            taken.push(self.make(Wanted { may_be_larger: false, ..self.usual(class) })?);
        }
        if self.control().is_some() {
            self.prepare_class(class).map_err(AllocErrorKind::ReserveShare)?;
        }
        Ok(())
    }

    /// Tells `each` of every chunk of a class, those in use included.
    pub(crate) fn each_of_class(&self, class: usize, each: impl FnMut(&Chunk)) {
        self.registry.lock().of_class(class).for_each(each);
    }

    /// Ends a reservation of so many chunks. They stay until their room is needed.
    pub(crate) fn end_reservation(&self, class: usize, count: usize) {
        let _one_at_a_time = self.reserving.lock();
        let left = self.reserved(class).saturating_sub(count);
        self.promise(class, left);
        // Somebody may wait for more than what others could give up until now.
        self.memory_bell().ring();
    }

    /// From now on so many chunks of a class are reserved.
    fn promise(&self, class: usize, count: usize) {
        // The lock under which `evict` looks at it: what is evicted by the number from before is
        // off the list, and not counted, when this returns.
        let _decides = self.registry.lock();
        self.classes[class].reserved.store(count, Ordering::Relaxed);
    }

    /// How many chunks of a class are reserved.
    pub(crate) fn reserved(&self, class: usize) -> usize {
        // Relaxed: where it decides, the registry's lock orders it.
        self.classes[class].reserved.load(Ordering::Relaxed)
    }

    /// How many chunks of a class may be evicted, as things are now. Others may be faster; `evict`
    /// decides.
    pub(super) fn evictable(&self, class: usize) -> usize {
        self.listed(class).saturating_sub(self.reserved(class)).min(self.shelves[class].idle_count())
    }
}
