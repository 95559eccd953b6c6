//! Whose messages are counted: what a peer hands out, and a place to keep it.

use crate::source::{pool, text, Made};
use crate::zenoh_peers::{binary_heap, buddy, layout, pool_backend, talc};
use std::any::Any;
use std::rc::Rc;
use zenoh::shm::{ChunkDescriptor, ShmProviderBackend, ZAllocError};

pub(super) type Build = fn() -> Made<Store>;

/// How many of [`PEERS`], from the first, are ours.
pub(super) const OURS: usize = 2;

/// zenoh's backends are asked directly, because its provider would hold messages back until it
/// collects them.
pub(super) const PEERS: [(&str, Build); 5] = [
    ("our provider", provider),
    ("our backend", || bare(pool_backend(true), |_, _| true)),
    ("talc", || bare(talc(), |_, _| true)),
    ("buddy", || bare(buddy(), |_, _| true)),
    // It loses its largest free piece for good when it is asked for more than all its free bytes.
    ("binary heap", || bare(binary_heap(), |heap, len| len <= heap.available())),
];

/// A message of a peer, given back when it is dropped; `None` for want of room.
type Taken = Made<Option<Box<dyn Any>>>;

/// A peer and the messages of it that are live, with their lengths.
pub(super) struct Store {
    take: Box<dyn Fn(usize) -> Taken>,
    live: Vec<(Box<dyn Any>, usize)>,
}

impl Store {
    fn new(take: impl Fn(usize) -> Taken + 'static) -> Self {
        Self { take: Box::new(take), live: Vec::new() }
    }

    /// `false` if there is no room for it now. The error is why the peer cannot take part.
    pub(super) fn keep(&mut self, len: usize) -> Made<bool> {
        let taken = (self.take)(len)?;
        let is_taken = taken.is_some();
        self.live.extend(taken.map(|message| (message, len)));
        Ok(is_taken)
    }

    /// Drops one of the messages; another one takes its index.
    pub(super) fn drop_one(&mut self, index: usize) {
        drop(self.live.swap_remove(index));
    }

    pub(super) fn messages(&self) -> usize {
        self.live.len()
    }

    /// Those asked for, without what the peer adds.
    pub(super) fn bytes(&self) -> usize {
        self.live.iter().map(|&(_, len)| len).sum()
    }
}

fn provider() -> Made<Store> {
    let pool = pool()?;
    Ok(Store::new(move |len| match pool.alloc(len) {
        Ok(message) => Ok(Some(Box::new(message))),
        Err(error) if error.is_exhausted() => Ok(None),
        Err(error) => Err(text(error)),
    }))
}

/// A backend without zenoh's provider. `has_room` is whether to ask it at all.
fn bare<B: ShmProviderBackend + 'static>(backend: Made<B>, has_room: fn(&B, usize) -> bool) -> Made<Store> {
    let backend = Rc::new(backend?);
    Ok(Store::new(move |len| {
        if !has_room(&backend, len) {
            return Ok(None);
        }
        let layout = layout(&*backend, len)?;
        let mut result = backend.alloc(&layout);
        if matches!(result, Err(ZAllocError::NeedDefragment)) {
            backend.defragment();
            result = backend.alloc(&layout);
        }
        match result {
            Ok(chunk) => Ok(Some(Box::new(Chunk { backend: backend.clone(), descriptor: chunk.descriptor }))),
            Err(ZAllocError::OutOfMemory | ZAllocError::NeedDefragment) => Ok(None),
            Err(error) => Err(text(error)),
        }
    }))
}

/// What a bare backend has handed out.
struct Chunk<B: ShmProviderBackend> {
    backend: Rc<B>,
    descriptor: ChunkDescriptor,
}

impl<B: ShmProviderBackend> Drop for Chunk<B> {
    fn drop(&mut self) {
        self.backend.free(&self.descriptor);
    }
}
