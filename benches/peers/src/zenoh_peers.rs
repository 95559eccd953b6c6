//! zenoh's providers and their backends, whichever backend it is.

use crate::source::{most_held, text, Made, Source};
use shm_pool_support::turns::Batch;
use shm_pool_zenoh::{BufferPool, PoolBackend, PoolProvider};
use std::fmt::Display;
use std::hint::black_box;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;
use zenoh::shm::{
    Defragment, GarbageCollect, MemoryLayout, PosixShmProviderBackendBinaryHeap,
    PosixShmProviderBackendBuddy, PosixShmProviderBackendTalc, ShmProvider, ShmProviderBackend,
    ShmProviderBuilder, ZLayoutAllocError, ZShmMut,
};
use zenoh::Wait;

/// The one segment that each stock backend gets, and the cap that ours gets.
pub(crate) const SEGMENT: usize = 64 << 20;

/// A provider collects garbage at most once per attempt, and gives up if the largest chunk that
/// this freed is too small, although several together may have made room. zenoh's `BlockOn` then
/// sleeps for a millisecond and tries again; so do we, without the sleep.
const ATTEMPTS: usize = 3;

/// A provider. It defragments when its backend asks for that, which only the binary heap does.
pub(crate) struct Zenoh<P> {
    provider: P,
    account: Box<dyn Fn() -> String>,
}

impl<P: Deref<Target = ShmProvider<B>> + 'static, B: ShmProviderBackend + 'static> Source
    for Zenoh<P>
{
    type Message = ZShmMut;
    type Filled = ZShmMut;
    type Error = ZLayoutAllocError;

    #[inline]
    fn take(&self, len: usize) -> Result<ZShmMut, ZLayoutAllocError> {
        let take = || {
            self.provider
                .alloc(len)
                .with_policy::<Defragment<GarbageCollect>>()
                .wait()
        };
        (1..ATTEMPTS).fold(take(), |taken, _| taken.or_else(|_| take()))
    }

    fn fill(mut message: ZShmMut, byte: u8) -> ZShmMut {
        message.fill(byte);
        message
    }

    fn settle(&self) {
        self.provider.garbage_collect();
    }

    fn account(&self) -> String {
        (self.account)()
    }
}

/// A provider on one of zenoh's own backends.
pub(crate) fn stock<B: ShmProviderBackend>(backend: Made<B>) -> Made<Zenoh<Arc<ShmProvider<B>>>> {
    let provider = Arc::new(ShmProviderBuilder::backend(backend?).wait());
    Ok(Zenoh {
        provider,
        account: Box::new(|| format!("one segment of {} MiB", SEGMENT >> 20)),
    })
}

/// A provider on our backend, which makes it collect before it takes more memory, or only at its cap.
pub(crate) fn ours(collect_early: bool) -> Made<Zenoh<PoolProvider>> {
    pool_backend(collect_early).map(on)
}

fn on(backend: PoolBackend) -> Zenoh<PoolProvider> {
    Zenoh {
        provider: backend.provider(),
        account: Box::new(move || most_held(&backend.stats())),
    }
}

/// Whole buffers on our backend.
pub(crate) fn buffers() -> Made<BufferPool> {
    pool_backend(true).map(|backend| BufferPool::new(&backend))
}

pub(crate) fn pool_backend(collect_early: bool) -> Made<PoolBackend> {
    PoolBackend::builder()
        .max_bytes(SEGMENT)
        .collect_early(collect_early)
        .build()
        .map_err(text)
}

pub(crate) fn talc() -> Made<PosixShmProviderBackendTalc> {
    PosixShmProviderBackendTalc::builder(SEGMENT)
        .wait()
        .map_err(refused)
}

pub(crate) fn buddy() -> Made<PosixShmProviderBackendBuddy> {
    PosixShmProviderBackendBuddy::builder(SEGMENT)
        .wait()
        .map_err(refused)
}

pub(crate) fn binary_heap() -> Made<PosixShmProviderBackendBinaryHeap> {
    PosixShmProviderBackendBinaryHeap::builder(SEGMENT)
        .wait()
        .map_err(refused)
}

/// zenoh locks the whole segment, which the limit on locked memory may not allow.
fn refused(error: impl Display) -> String {
    let error = error.to_string();
    // Its errors end with the line of zenoh's source that they come from.
    let error = error.split(" at /").next().unwrap_or_default();
    format!(
        "{error}; zenoh locks all {} MiB into memory, see limits above",
        SEGMENT >> 20
    )
}

/// What a provider asks of its backend for one message: a chunk allocated, its pointer dropped, the
/// chunk freed.
pub(crate) fn bare<B: ShmProviderBackend + 'static>(backend: Made<B>, len: usize) -> Made<Batch> {
    let backend = backend?;
    let layout = layout(&backend, len)?;
    Ok(Box::new(move |count| {
        let start = Instant::now();
        for _ in 0..count {
            let chunk = black_box(backend.alloc(black_box(&layout)).map_err(text)?);
            drop(chunk.data);
            backend.free(&chunk.descriptor);
        }
        Ok(Some(start.elapsed()))
    }))
}

/// What a backend is asked for, for a message of `len` bytes.
fn layout(backend: &impl ShmProviderBackend, len: usize) -> Made<MemoryLayout> {
    MemoryLayout::try_from(len)
        .and_then(|layout| backend.layout_for(layout))
        .map_err(text)
}

/// Has zenoh start its threads and create the metadata that all providers share, so that no peer
/// pays for it alone.
pub(crate) fn start() -> Made<()> {
    let source = ours(true)?;
    drop(source.take(1).map_err(text)?);
    source.settle();
    Ok(())
}
