//! What the tests share: backends, layouts, and a look at the objects under /dev/shm.

pub(crate) use shm_pool_zenoh::PoolProvider as Provider;
use shm_pool_zenoh::{BufferStats, PoolBackend, PoolBackendBuilder};
use std::fs::File;
use std::path::PathBuf;
use zenoh::shm::{
    AllocAlignment, BlockOn, ConstPolicy, GarbageCollect, MemoryLayout, SafePolicy, SegmentID,
    ShmProviderBackend, ZAllocError, ZLayoutAllocError, ZShmMut,
};
use zenoh::Wait;

/// Collects when an allocation fails, as most publishers do.
pub(crate) type Collecting = GarbageCollect;
pub(crate) type Blocking = BlockOn<GarbageCollect>;

pub(crate) const CAP: usize = 8 << 20;
pub(crate) const ARENA: usize = 256 << 10;

/// A message that is carved in cache lines.
pub(crate) const SMALL: usize = 4 << 10;
/// A message of whole pages.
pub(crate) const LARGE: usize = 512 << 10;

pub(crate) fn builder() -> PoolBackendBuilder {
    PoolBackend::builder().max_bytes(CAP).arena_size(ARENA)
}

pub(crate) fn backend() -> PoolBackend {
    builder().build().unwrap()
}

/// How many buffers were made, except those that replaced one that zenoh has invalidated, because the
/// process had no CPU for a tenth of a second. Buffers that are read too long count as those.
pub(crate) fn made_but_for_invalidated(stats: &BufferStats) -> u64 {
    stats.created - stats.released_in_use
}

pub(crate) fn layout(size: usize, align: usize) -> MemoryLayout {
    let alignment = AllocAlignment::new(align.trailing_zeros() as u8).unwrap();
    MemoryLayout::new(size, alignment).unwrap()
}

/// Allocates with `Policy` and fills the message with `byte`.
pub(crate) fn alloc<Policy>(
    provider: &Provider,
    len: usize,
    byte: u8,
) -> Result<ZShmMut, ZLayoutAllocError>
where
    Policy: SafePolicy + ConstPolicy + zenoh::shm::AllocPolicy<PoolBackend>,
{
    let mut message = provider.alloc(len).with_policy::<Policy>().wait()?;
    message.fill(byte);
    Ok(message)
}

pub(crate) fn is_out_of_memory(error: &ZLayoutAllocError) -> bool {
    matches!(error, ZLayoutAllocError::Alloc(ZAllocError::OutOfMemory))
}

/// Fails unless everything is back in the pool.
pub(crate) fn assert_all_back(backend: &PoolBackend) {
    assert_eq!(
        (backend.stats().bytes_in_use, backend.available()),
        (0, CAP)
    );
}

/// The path of a segment's object.
pub(crate) fn path(segment: SegmentID) -> PathBuf {
    PathBuf::from(format!("/dev/shm/{segment}.zenoh"))
}

pub(crate) fn open(segment: SegmentID) -> File {
    File::open(path(segment)).unwrap()
}
