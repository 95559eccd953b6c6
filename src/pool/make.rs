//! Making a chunk when none is idle: memory for it under the cap, out of an arena or as a segment of its own; and giving segments
//! back.

use super::{Pool, Registered};
use crate::chunk::{Chunk, Memory};
use crate::error::{AllocError, OsError};
use crate::limits::Kind;
use crate::payload::Payload;
use crate::posix::round_to_pages;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// Why there is no memory for a new chunk.
enum NoMemory {
    /// It does not fit under the cap.
    Cap,
    /// The system refused.
    Os(OsError),
}

impl NoMemory {
    /// Can giving memory back help?
    fn is_for_want_of_memory(&self) -> bool {
        match self {
            Self::Cap => true,
            Self::Os(error) => matches!(error.errno(), Some(libc::ENOSPC | libc::ENOMEM)),
        }
    }
}

impl Pool {
    /// Makes a chunk, and room for it if need be.
    #[cold]
    pub(crate) fn make(self: &Arc<Self>, class: usize) -> Result<NonNull<Chunk>, AllocError> {
        // Once: a process that writes garbage can make it look as if there were more to take back, again and again.
        let mut may_reclaim = true;
        loop {
            let failure = match self.find_memory(self.kinds[class]) {
                Ok(memory) => return Ok(self.register(class, memory)),
                Err(failure) => failure,
            };
            if let Some(chunk) = self.take_any(class) {
                return Ok(chunk);
            }
            if !failure.is_for_want_of_memory() || !self.make_room(class, &mut may_reclaim) {
                // Another thread may have given one back meanwhile.
                return self.take_any(class).ok_or_else(|| match failure {
                    NoMemory::Cap => self.exhausted(class),
                    NoMemory::Os(error) => error.into(),
                });
            }
        }
    }

    /// Takes any chunk of a class that is free, however long it takes to find.
    fn take_any(&self, class: usize) -> Option<NonNull<Chunk>> {
        let idle = self.shelves[class].take_hot().or_else(|| self.take_idle(class));
        idle.or_else(|| self.take_lent(class, usize::MAX))
    }

    fn register(self: &Arc<Self>, class: usize, memory: Memory) -> NonNull<Chunk> {
        self.shelves[class].open_idle(self.limits.max_idle.saturating_sub(1));
        self.tallies[class].misses.fetch_add(1, Ordering::Relaxed);
        #[cfg(feature = "zenoh")]
        self.tallies[class].collection.note_made();
        let chunk = Chunk::new(self.clone(), class, memory);
        let mut registry = self.registry.lock();
        // SAFETY: just made.
        unsafe { chunk.as_ref() }.set_registered(registry.len());
        registry.push(Registered(chunk));
        chunk
    }

    fn find_memory(&self, kind: Kind) -> Result<Memory, NoMemory> {
        if !kind.is_carved {
            let len = round_to_pages(kind.layout.size()).ok_or(NoMemory::Cap)?;
            return self.new_segment(len).map(Memory::Whole);
        }
        if let Some(carved) = self.arenas.carve(kind.layout) {
            return Ok(Memory::Carved(carved));
        }
        // One thread at a time makes an arena; the others find room in it instead of finding the cap reached.
        let _one_at_a_time = self.growing.lock();
        if let Some(carved) = self.arenas.carve(kind.layout) {
            return Ok(Memory::Carved(carved));
        }
        let arena = self.new_segment(self.limits.arena_size)?;
        self.arenas.add_and_carve(arena, kind.layout).map(Memory::Carved).ok_or(NoMemory::Cap)
    }

    fn new_segment(&self, len: usize) -> Result<Arc<Payload>, NoMemory> {
        if !self.budget.set_aside(len) {
            return Err(NoMemory::Cap);
        }
        match self.source.create(len) {
            Ok(payload) => {
                self.budget.count_segment();
                Ok(Arc::new(payload))
            }
            Err(error) => {
                self.budget.give_up(len);
                Err(NoMemory::Os(error))
            }
        }
    }

    /// Gives a segment back that no peer leases a chunk of. Peers may still have it mapped, and would keep its memory.
    pub(super) fn drop_segment(&self, payload: Arc<Payload>) {
        payload.segment().mapping().discard();
        self.unmap_segment(payload);
    }

    pub(super) fn unmap_segment(&self, payload: Arc<Payload>) {
        let (len, serial) = (payload.len(), payload.serial());
        drop(payload);
        self.source.retired(serial);
        self.budget.give_back(len);
    }
}
