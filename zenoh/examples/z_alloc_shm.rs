//! zenoh's example `z_alloc_shm` on the pool: all ways to allocate a message.

#![forbid(unsafe_code)]

use shm_pool_zenoh::{BufferPool, PoolBackend};
use std::alloc::Layout;
use std::time::Duration;
use zenoh::bytes::ZBytes;
use zenoh::shm::{
    AllocAlignment, BlockOn, Defragment, GarbageCollect, ShmProvider, ShmProviderBackend,
    ShmProviderBuilder,
};
use zenoh::{Result, Wait};

const POOL: usize = 64 << 10;

fn main() -> Result<()> {
    let stock =
        ShmProviderBuilder::default_backend((POOL, AllocAlignment::ALIGN_8_BYTES)).wait()?;
    from_provider(&stock)?;
    println!("zenoh's own provider: all allocated");

    // The line that changes. What is allocated from the provider stays as it is.
    let backend = PoolBackend::builder().max_bytes(POOL).build()?;
    from_provider(&backend.provider())?;
    println!("the provider on the pool: all allocated");

    from_pool(&BufferPool::new(&backend))?;
    println!("the pool of buffers: all allocated");
    Ok(())
}

fn from_provider<Backend: ShmProviderBackend>(provider: &ShmProvider<Backend>) -> Result<()> {
    // Any length, and an alignment.
    let buffer = provider.alloc(512).wait()?;
    assert_eq!(buffer.len(), 512);
    let aligned = provider
        .alloc((512, AllocAlignment::ALIGN_8_BYTES))
        .wait()?;
    assert!(aligned.as_ptr().cast::<u64>().is_aligned());

    // The same layout again and again, computed once.
    let layout = provider.alloc_layout(512)?;
    for _ in 0..3 {
        layout.alloc().wait()?;
    }

    // What to do when there is no memory: collect what has been read, and wait for readers.
    provider.alloc(512).with_policy::<GarbageCollect>().wait()?;
    provider
        .alloc(512)
        .with_policy::<Defragment<GarbageCollect>>()
        .wait()?;
    let mut buffer = provider
        .alloc(512)
        .with_policy::<BlockOn<GarbageCollect>>()
        .wait()?;

    buffer.fill(1);
    let message = ZBytes::from(buffer);
    assert!(message.as_shm().is_some());
    Ok(())
}

/// The same without policies: the pool collects by itself.
fn from_pool(pool: &BufferPool) -> Result<()> {
    let buffer = pool.alloc(512)?;
    assert_eq!(buffer.len(), 512);
    let aligned = pool
        .request(512)
        .layout(Layout::from_size_align(512, 64)?)
        .alloc()?;
    assert_eq!(aligned.as_ptr().addr() % 64, 0);
    let zeroed = pool.request(512).zeroed().alloc()?;
    assert_eq!(zeroed[..], [0; 512]);

    let mut buffer = pool.alloc_timeout(512, Duration::from_secs(1))?;
    buffer.fill(1);
    let message = ZBytes::from(buffer);
    assert!(message.as_shm().is_some());
    Ok(())
}
