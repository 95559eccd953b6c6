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
    ShmProviderBuilder, ZShm,
};
use zenoh::{Result, Wait};

const POOL: usize = 4 << 20;
const LEN: usize = 4096;
const MESSAGES: u32 = 200_000;
const ROUNDS: u32 = 11;

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

    // A buffer that its publisher keeps, and uses again when zenoh counts no other holder. The clone
    // is the message. As a `ZShm` it is confirmed by itself, as each holder of a message is.
    let mut kept = ZShm::from(provider.alloc(LEN).wait()?);
    let confirmed = measure(|| {
        match <&mut zshmmut>::try_from(&mut kept) {
            Ok(buffer) => buffer[0] = 1,
            // This process had no CPU to confirm it for 100 ms.
            Err(()) => kept = provider.alloc(LEN).wait().unwrap().into(),
        }
        drop(kept.clone());
    });

    // The clone shares the confirmation of the buffer that is kept.
    let mut kept = ZBytes::from(kept);
    let shared = measure(|| {
        match kept.as_shm_mut().unwrap().try_into() {
            Ok::<&mut zshmmut, ()>(buffer) => buffer[0] = 1,
            Err(()) => kept = provider.alloc(LEN).wait().unwrap().into(),
        }
        drop(kept.clone());
    });

    // The same for any number of buffers and any lengths.
    let pool = BufferPool::new(&PoolBackend::builder().max_bytes(POOL).build()?);
    let pooled = measure(|| {
        let mut buffer = pool.alloc(LEN).unwrap();
        buffer[0] = 1;
        drop(ZBytes::from(buffer));
    });

    println!("{LEN} bytes, fastest of {ROUNDS} rounds of {MESSAGES} messages, ns per message:");
    println!("  {memory:>5}  zenoh's backend alone, alloc + free");
    println!("  {message:>5}  zenoh's provider, alloc + drop");
    println!(
        "  {confirmed:>5}  a buffer that keeps its metadata, with a confirmation for each message"
    );
    println!("  {shared:>5}  a buffer that keeps its metadata and its confirmation");
    println!("  {pooled:>5}  BufferPool, alloc + convert + drop");
    Ok(())
}

/// Returns the time of the fastest round, in nanoseconds for each message.
fn measure(mut message: impl FnMut()) -> u128 {
    let mut fastest = Duration::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..MESSAGES {
            message();
        }
        fastest = fastest.min(start.elapsed());
    }
    fastest.as_nanos() / u128::from(MESSAGES)
}
