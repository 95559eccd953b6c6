//! zenoh's providers and their backends, whichever backend it is.

use crate::source::{most_held, text, Source};
use shm_pool::zenoh::PoolBackend;
use shm_pool_support::turns::Batch;
use std::fmt::Display;
use std::hint::black_box;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Instant;
use zenoh::shm::{
    AllocPolicy, ConstPolicy, Defragment, GarbageCollect, MemoryLayout, PosixShmProviderBackendBinaryHeap,
    PosixShmProviderBackendBuddy, PosixShmProviderBackendTalc, SafePolicy, ShmProvider, ShmProviderBackend,
    ShmProviderBuilder, ZLayoutAllocError, ZShmMut,
};
use zenoh::Wait;

/// The one segment that each stock backend gets, and the cap that ours gets.
pub(crate) const SEGMENT: usize = 64 << 20;

/// A provider collects garbage at most once per attempt, and gives up if the largest chunk that
/// this freed is too small, although several together may have made room. zenoh's `BlockOn` then
/// sleeps for a millisecond and tries again; so do we, without the sleep.
const ATTEMPTS: usize = 3;

/// For messages of one length.
pub(crate) type Collect = GarbageCollect;

/// For messages of many lengths; the binary heap needs it, and for the others it does nothing.
pub(crate) type CollectAndDefragment = Defragment<GarbageCollect>;

/// A provider with the policy that it allocates by.
pub(crate) struct Zenoh<B, P> {
    provider: Arc<ShmProvider<B>>,
    account: Box<dyn Fn() -> String>,
    policy: PhantomData<P>,
}

impl<B: ShmProviderBackend, P> Zenoh<B, P> {
    pub(crate) fn new(provider: Arc<ShmProvider<B>>, account: impl Fn() -> String + 'static) -> Self {
        Self { provider, account: Box::new(account), policy: PhantomData }
    }

    /// One of zenoh's own backends.
    pub(crate) fn stock(backend: B) -> Self {
        let provider = Arc::new(ShmProviderBuilder::backend(backend).wait());
        Self::new(provider, || format!("one segment of {} MiB", SEGMENT >> 20))
    }
}

impl<B: ShmProviderBackend, P: AllocPolicy<B> + ConstPolicy + SafePolicy> Source for Zenoh<B, P> {
    type Message = ZShmMut;
    type Filled = ZShmMut;
    type Error = ZLayoutAllocError;

    #[inline]
    fn take(&self, len: usize) -> Result<ZShmMut, ZLayoutAllocError> {
        let mut result = self.provider.alloc(len).with_policy::<P>().wait();
        for _ in 1..ATTEMPTS {
            if result.is_ok() {
                break;
            }
            result = self.provider.alloc(len).with_policy::<P>().wait();
        }
        result
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

impl<P> Zenoh<PoolBackend, P> {
    /// Our backend, which has its provider collect before it takes more memory, or only when it has
    /// reached its cap.
    pub(crate) fn ours(collect_early: bool) -> Result<Self, String> {
        let backend = pool_backend(collect_early)?;
        Ok(Self::new(backend.provider(), move || most_held(&backend.stats())))
    }
}

pub(crate) fn pool_backend(collect_early: bool) -> Result<PoolBackend, String> {
    PoolBackend::builder().max_bytes(SEGMENT).collect_early(collect_early).build().map_err(text)
}

/// What a provider asks of its backend for one message: a chunk allocated, its pointer dropped, the
/// chunk freed.
pub(crate) fn bare<B: ShmProviderBackend + 'static>(backend: B, len: usize) -> Result<Batch, String> {
    let layout = MemoryLayout::try_from(len).and_then(|layout| backend.layout_for(layout)).map_err(text)?;
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

pub(crate) fn talc() -> Result<PosixShmProviderBackendTalc, String> {
    PosixShmProviderBackendTalc::builder(SEGMENT).wait().map_err(refused)
}

pub(crate) fn buddy() -> Result<PosixShmProviderBackendBuddy, String> {
    PosixShmProviderBackendBuddy::builder(SEGMENT).wait().map_err(refused)
}

pub(crate) fn binary_heap() -> Result<PosixShmProviderBackendBinaryHeap, String> {
    PosixShmProviderBackendBinaryHeap::builder(SEGMENT).wait().map_err(refused)
}

/// zenoh locks the whole segment, which the limit on locked memory may not allow.
fn refused(error: impl Display) -> String {
    let error = error.to_string();
    // Its errors end with the line of zenoh's source that they come from.
    let error = error.split(" at /").next().unwrap_or_default();
    format!("{error}; zenoh locks all {} MiB into memory, see limits above", SEGMENT >> 20)
}

/// Has zenoh start its threads and create the metadata that all providers share, so that no peer
/// pays for it alone.
pub(crate) fn start() -> Result<(), String> {
    let source = Zenoh::<_, Collect>::ours(true)?;
    let message = source.take(1).map_err(text)?;
    drop(message);
    source.settle();
    Ok(())
}
