//! What a message costs with zenoh's provider, and what it costs if a buffer keeps its metadata.
//!
//! Each row allocates a buffer, writes its first byte, and drops it, again and again. Run it with
//! `cargo run --release -p shm-pool-zenoh --example upstream_recycling`.

#![forbid(unsafe_code)]

use shm_pool_zenoh::{BufferPool, PoolBackend};
use std::time::{Duration, Instant};
use zenoh::bytes::ZBytes;
use zenoh::shm::{
    zshmmut, GarbageCollect, MemoryLayout, PosixShmProviderBackend, ShmProviderBackend,
    ShmProviderBuilder,
};
use zenoh::{Result, Wait};

const POOL: usize = 4 << 20;
const LEN: usize = 4096;
const MESSAGES: u32 = 200_000;
const ROUNDS: usize = 7;

fn main() -> Result<()> {
    // The memory alone: what zenoh's allocator, talc, costs without a message around it.
    let backend = PosixShmProviderBackend::builder(POOL).wait()?;
    let layout = MemoryLayout::try_from(LEN)?;
    let memory = measure(|| {
        let chunk = backend.alloc(&layout).unwrap();
        backend.free(&chunk.descriptor);
    });

    // A message of zenoh's provider. It frees what was dropped when an allocation does not fit.
    let provider = ShmProviderBuilder::default_backend(POOL).wait()?;
    let message = measure(|| {
        let mut buffer = provider
            .alloc(LEN)
            .with_policy::<GarbageCollect>()
            .wait()
            .unwrap();
        buffer[0] = 1;
    });

    // A buffer that its publisher keeps, and uses again when zenoh counts no other holder. The
    // clone is the message.
    let mut kept = ZBytes::from(provider.alloc(LEN).wait()?);
    let recycled = measure(|| {
        let buffer: &mut zshmmut = kept.as_shm_mut().unwrap().try_into().unwrap();
        buffer[0] = 1;
        drop(kept.clone());
    });

    // The same for any number of buffers and any lengths.
    let pool = BufferPool::new(&PoolBackend::builder().max_bytes(POOL).build()?);
    let pooled = measure(|| {
        let mut buffer = pool.alloc(LEN).unwrap();
        buffer[0] = 1;
        drop(ZBytes::from(buffer));
    });

    println!("{LEN} bytes, median of {ROUNDS} rounds of {MESSAGES} messages, ns per message:");
    println!("  {memory:>5}  zenoh's backend alone, alloc + free");
    println!("  {message:>5}  zenoh's provider, alloc + drop");
    println!("  {recycled:>5}  one buffer that keeps its metadata, check + clone + drop");
    println!("  {pooled:>5}  BufferPool, alloc + convert + drop");
    Ok(())
}

/// Returns the median of all rounds, in nanoseconds for each message.
fn measure(mut message: impl FnMut()) -> u128 {
    let mut rounds = Vec::new();
    for _ in 0..=ROUNDS {
        let start = Instant::now();
        for _ in 0..MESSAGES {
            message();
        }
        rounds.push(start.elapsed());
    }
    rounds.remove(0); // it warms up
    rounds.sort();
    let median: Duration = rounds[ROUNDS / 2];
    median.as_nanos() / u128::from(MESSAGES)
}
