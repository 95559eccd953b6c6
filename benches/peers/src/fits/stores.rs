//! The stores whose messages are counted: the messages that a peer hands out, and a place to keep
//! them.

use crate::source::{pool, text, Made};
use crate::zenoh_peers::{binary_heap, buddy, layout, pool_backend, talc};
use std::any::Any;
use std::rc::Rc;
use zenoh::shm::{ChunkDescriptor, ShmProviderBackend, ZAllocError};

pub(super) type Build = fn() -> Made<Store>;

/// The number of our entries, which are the first of [`PEERS`].
pub(super) const OURS: usize = 2;

/// zenoh's backends are called directly, because its provider would retain messages until it
/// collects them.
pub(super) const PEERS: [(&str, Build); 5] = [
    ("our provider", provider),
    ("our backend", || bare(pool_backend(true), |_, _| true)),
    ("talc", || bare(talc(), |_, _| true)),
    ("buddy", || bare(buddy(), |_, _| true)),
    // It loses its largest free piece for good when more than all its free bytes are requested.
    ("binary heap", || bare(binary_heap(), |heap, len| len <= heap.available())),
];

/// A message of a peer, released on drop; `None` if there is no room.
type Taken = Made<Option<Box<dyn Any>>>;

/// A peer and its live messages, with their lengths.
pub(super) struct Store {
    take: Box<dyn Fn(usize) -> Taken>,
    live: Vec<(Box<dyn Any>, usize)>,
}

impl Store {
    fn new(take: impl Fn(usize) -> Taken + 'static) -> Self {
        Self { take: Box::new(take), live: Vec::new() }
    }

    /// Returns `false` if there is no room for it now. The error is why the peer cannot take part.
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

    /// The requested bytes, without the peer's overhead.
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

/// A backend without zenoh's provider. `has_room` decides whether to call it at all.
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

/// Memory from a bare backend.
struct Chunk<B: ShmProviderBackend> {
    backend: Rc<B>,
    descriptor: ChunkDescriptor,
}

impl<B: ShmProviderBackend> Drop for Chunk<B> {
    fn drop(&mut self) {
        self.backend.free(&self.descriptor);
    }
}
