//! Whose messages are counted: what a peer hands out, and a place to keep it.

use super::Cell;
use crate::source::{text, Pool, Source};
use crate::zenoh_peers::{binary_heap, buddy, pool_backend, talc};
use std::rc::Rc;
use zenoh::shm::{ChunkDescriptor, MemoryLayout, ShmProviderBackend, ZAllocError};

pub(super) type Build = fn() -> Cell<Box<dyn Store>>;

/// One that takes part.
pub(super) struct Peer {
    pub(super) name: &'static str,
    pub(super) build: Build,
}

/// How many of [`PEERS`], from the first, are ours.
pub(super) const OURS: usize = 2;

/// zenoh's backends are asked directly, because its provider would hold messages back until it
/// collects them.
pub(super) const PEERS: [Peer; 5] = [
    Peer { name: "our provider", build: provider },
    Peer { name: "our backend", build: || bare(pool_backend(true), |_, _| true) },
    Peer { name: "talc", build: || bare(talc(), |_, _| true) },
    Peer { name: "buddy", build: || bare(buddy(), |_, _| true) },
    // It loses its largest free piece for good when it is asked for more than all its free bytes.
    Peer { name: "binary heap", build: || bare(binary_heap(), |heap, len| len <= heap.available()) },
];

/// A peer and the messages of it that are live.
pub(super) trait Store {
    /// `false` if there is no room for it now. The error is why the peer cannot take part.
    fn keep(&mut self, len: usize) -> Cell<bool>;

    /// Drops one of the messages; another one takes its index.
    fn drop_one(&mut self, index: usize);

    fn messages(&self) -> usize;

    /// Those asked for.
    fn bytes(&self) -> usize;
}

struct Kept<M, T> {
    messages: Vec<(M, usize)>,
    bytes: usize,
    take: T,
}

impl<M, T: FnMut(usize) -> Cell<Option<M>>> Store for Kept<M, T> {
    fn keep(&mut self, len: usize) -> Cell<bool> {
        let Some(message) = (self.take)(len)? else { return Ok(false) };
        self.messages.push((message, len));
        self.bytes += len;
        Ok(true)
    }

    fn drop_one(&mut self, index: usize) {
        let (_, len) = self.messages.swap_remove(index);
        self.bytes -= len;
    }

    fn messages(&self) -> usize {
        self.messages.len()
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

/// A store of what `take` gives, which is `None` for want of room.
fn keeping<M: 'static>(take: impl FnMut(usize) -> Cell<Option<M>> + 'static) -> Box<dyn Store> {
    Box::new(Kept { messages: Vec::new(), bytes: 0, take })
}

fn provider() -> Cell<Box<dyn Store>> {
    let pool = Pool::new()?;
    Ok(keeping(move |len| match pool.take(len) {
        Ok(message) => Ok(Some(message)),
        Err(error) if error.is_exhausted() => Ok(None),
        Err(error) => Err(text(error)),
    }))
}

/// A backend without zenoh's provider. `has_room` is whether to ask it at all.
fn bare<B: ShmProviderBackend + 'static>(
    backend: Cell<B>,
    has_room: impl Fn(&B, usize) -> bool + 'static,
) -> Cell<Box<dyn Store>> {
    let backend = Rc::new(backend?);
    Ok(keeping(move |len| {
        if !has_room(&backend, len) {
            return Ok(None);
        }
        let layout = MemoryLayout::try_from(len).and_then(|layout| backend.layout_for(layout)).map_err(text)?;
        let mut result = backend.alloc(&layout);
        if matches!(result, Err(ZAllocError::NeedDefragment)) {
            backend.defragment();
            result = backend.alloc(&layout);
        }
        match result {
            Ok(chunk) => Ok(Some(Chunk { backend: backend.clone(), descriptor: chunk.descriptor })),
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
