//! Functions that several tests use: backends, layouts, messages, forked children, and the objects
//! under /dev/shm.

pub(crate) use shm_pool_zenoh::PoolProvider as Provider;
use shm_pool_zenoh::{Buffer, BufferPool, BufferStats, PoolBackend, PoolBackendBuilder};
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;
use zenoh::shm::{
    AllocAlignment, AllocPolicy, BlockOn, ConstPolicy, GarbageCollect, MemoryLayout, SafePolicy,
    SegmentID, ShmProviderBackend, ZAllocError, ZLayoutAllocError, ZShmMut,
};
use zenoh::Wait;

/// Collects when an allocation fails, as most publishers do.
pub(crate) type Collecting = GarbageCollect;
pub(crate) type Blocking = BlockOn<GarbageCollect>;

/// The longest time that a step may take on a machine under load.
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

pub(crate) const CAP: usize = 8 << 20;
pub(crate) const ARENA: usize = 256 << 10;

/// A message that takes some cache lines of a page.
pub(crate) const SMALL: usize = 4 << 10;
/// A message that takes whole pages.
pub(crate) const LARGE: usize = 512 << 10;

pub(crate) fn builder() -> PoolBackendBuilder {
    PoolBackend::builder().max_bytes(CAP).arena_size(ARENA)
}

pub(crate) fn backend() -> PoolBackend {
    builder().build().unwrap()
}

/// Returns how many buffers were created, except those that replaced an invalidated one. zenoh
/// invalidates a buffer if the process gets no CPU for a tenth of a second. Buffers that were
/// released because they were read for too long are not counted either.
pub(crate) fn created_except_invalidated(stats: &BufferStats) -> u64 {
    stats.created - stats.released_in_use
}

/// Returns how many buffers the pool has kept. One snapshot counts them: between two, a buffer may move
/// from one count to the other.
pub(crate) fn kept(pool: &BufferPool) -> usize {
    let stats = pool.stats();
    stats.idle + stats.sent
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
    Policy: SafePolicy + ConstPolicy + AllocPolicy<PoolBackend>,
{
    let mut message = provider.alloc(len).with_policy::<Policy>().wait()?;
    message.fill(byte);
    Ok(message)
}

/// Allocates messages until there is no memory left, and fills each one with its number.
pub(crate) fn exhaust_provider<Policy>(provider: &Provider, len: usize) -> Vec<ZShmMut>
where
    Policy: SafePolicy + ConstPolicy + AllocPolicy<PoolBackend>,
{
    let mut messages = Vec::new();
    loop {
        match alloc::<Policy>(provider, len, messages.len() as u8) {
            Ok(message) => messages.push(message),
            Err(error) => {
                assert!(is_out_of_memory(&error), "{error:?}");
                return messages;
            }
        }
    }
}

/// Allocates buffers until one is refused.
pub(crate) fn exhaust(pool: &BufferPool, len: usize) -> Vec<Buffer> {
    let mut buffers = Vec::new();
    while let Ok(buffer) = pool.alloc(len) {
        buffers.push(buffer);
    }
    buffers
}

pub(crate) fn is_out_of_memory(error: &ZLayoutAllocError) -> bool {
    matches!(error, ZLayoutAllocError::Alloc(ZAllocError::OutOfMemory))
}

/// Returns `true` if each of the bytes is `byte`.
pub(crate) fn is_filled(bytes: &[u8], byte: u8) -> bool {
    bytes.iter().all(|&found| found == byte)
}

/// Fails unless all memory has returned to the pool.
pub(crate) fn assert_all_back(backend: &PoolBackend) {
    assert_eq!(backend.stats().bytes_in_use, 0);
    assert_eq!(backend.available(), CAP);
}

/// Returns the path of a segment's object.
pub(crate) fn path(segment: SegmentID) -> PathBuf {
    PathBuf::from(format!("/dev/shm/{segment}.zenoh"))
}

pub(crate) fn open(segment: SegmentID) -> File {
    File::open(path(segment)).unwrap()
}

/// Ends a forked child without running the exit handlers of its parent.
pub(crate) fn exit_child(is_as_expected: bool) -> ! {
    let code = if is_as_expected { 0 } else { 1 };
    // SAFETY: `_exit` has no preconditions.
    unsafe { libc::_exit(code) }
}

/// Waits until a forked child has exited, and fails unless everything was as expected.
pub(crate) fn expect_success(child: libc::pid_t) {
    let mut status = 0;
    // SAFETY: `status` is valid for the write.
    let waited_for = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(waited_for, child);
    assert_eq!(status, 0);
}
