//! Shared chunks that no shelf keeps: one-offs, and retired ones. They stay open to peers until
//! their memory is wanted, so a descriptor in flight remains valid.

#![forbid(unsafe_code)]

use crate::owner::chunk::OwnedChunk;
use crate::owner::shelf::NoMemory;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::mem;

/// They wait here from their release until a search finds that no peer leases them.
#[derive(Default)]
pub(super) struct Retired(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    /// The one that was released first is at the front: its lease probably ends first.
    chunks: VecDeque<OwnedChunk>,
    /// The sum of their lengths.
    bytes: usize,
    /// Where the next search goes on.
    next: usize,
    is_closed: bool,
}

impl Retired {
    /// Makes space for so many chunks. Called before a chunk is shared for the first time, with the
    /// number of all shared chunks: so a release needs no memory.
    pub(super) fn reserve(&self, chunks: usize) -> Result<(), NoMemory> {
        let mut queue = self.0.lock();
        let missing = chunks.saturating_sub(queue.chunks.len());
        queue.chunks.try_reserve(missing).map_err(|_| NoMemory {
            bytes: chunks * mem::size_of::<OwnedChunk>(),
        })
    }

    /// `Err` returns the chunk if the pool is closed.
    pub(super) fn push(&self, chunk: OwnedChunk) -> Result<(), OwnedChunk> {
        let mut queue = self.0.lock();
        if queue.is_closed {
            return Err(chunk);
        }
        queue.bytes += chunk.capacity();
        queue.chunks.push_back(chunk);
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.0.lock().chunks.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.lock().bytes
    }

    /// Takes a chunk that no peer leases now: the first one, or one of `tries` others. Those are
    /// checked in turn, as a peer may lease the first one for long.
    pub(super) fn take_ended(&self, tries: usize) -> Option<OwnedChunk> {
        let mut queue = self.0.lock();
        if !queue.chunks.front()?.is_leased() {
            return queue.take(0);
        }
        for _ in 0..tries {
            if queue.next >= queue.chunks.len() {
                queue.next = 0;
            }
            let at = queue.next;
            if !queue.chunks[at].is_leased() {
                return queue.take(at);
            }
            queue.next += 1;
        }
        None
    }

    /// Refuses chunks from now on, and passes each one that is here to `destroy`.
    pub(super) fn close(&self, mut destroy: impl FnMut(OwnedChunk)) {
        let mut queue = self.0.lock();
        queue.is_closed = true;
        queue.bytes = 0;
        let chunks = mem::take(&mut queue.chunks);
        drop(queue);
        for chunk in chunks {
            destroy(chunk);
        }
    }
}

impl Queue {
    /// Fills the gap with the first chunk, which a peer still leases if `at` is not 0.
    fn take(&mut self, at: usize) -> Option<OwnedChunk> {
        let chunk = self.chunks.swap_remove_front(at)?;
        self.bytes -= chunk.capacity();
        Some(chunk)
    }
}
