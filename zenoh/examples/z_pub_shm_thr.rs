//! zenoh's example `z_pub_shm_thr` on the pool: it publishes as fast as it can.
//!
//! Start `z_sub_thr`, stock or not, before. zenoh's own program sends one buffer again and again. This
//! one allocates and fills a buffer for each message, as publishers do.

#![forbid(unsafe_code)]

mod common;

use clap::Parser;
use common::{CommonArgs, Memory};
use shm_pool_zenoh::{BufferPool, PoolBackend};
use std::ops::DerefMut;
use std::time::Duration;
use zenoh::bytes::ZBytes;
use zenoh::qos::CongestionControl;
use zenoh::shm::{BlockOn, GarbageCollect, ShmProviderBuilder};
use zenoh::{Result, Wait};

const TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Parser)]
struct Args {
    /// The memory for messages, in MiB.
    #[arg(short, long, default_value = "32")]
    shared_memory: usize,
    /// The length of a message in bytes.
    payload_size: usize,
    /// Where the messages are allocated.
    #[arg(long, default_value = "provider")]
    memory: Memory,
    #[command(flatten)]
    common: CommonArgs,
}

fn main() -> Result<()> {
    zenoh::init_log_from_env_or("error");
    let args = Args::parse();
    let bytes = args.shared_memory << 20;
    match args.memory {
        Memory::Stock => {
            let provider = ShmProviderBuilder::default_backend(bytes).wait()?;
            publish(args, |len| {
                Ok(provider
                    .alloc(len)
                    .with_policy::<BlockOn<GarbageCollect>>()
                    .wait()?)
            })
        }
        Memory::Provider => {
            let provider = PoolBackend::builder().max_bytes(bytes).build()?.provider();
            publish(args, |len| {
                Ok(provider
                    .alloc(len)
                    .with_policy::<BlockOn<GarbageCollect>>()
                    .wait()?)
            })
        }
        Memory::Buffers => {
            let pool = BufferPool::new(&PoolBackend::builder().max_bytes(bytes).build()?);
            publish(args, |len| Ok(pool.alloc_timeout(len, TIMEOUT)?))
        }
    }
}

fn publish<Buffer>(args: Args, alloc: impl Fn(usize) -> Result<Buffer>) -> Result<()>
where
    Buffer: DerefMut<Target = [u8]> + Into<ZBytes>,
{
    let session = zenoh::open(args.common.config()?).wait()?;
    let publisher = session
        .declare_publisher("test/thr")
        .congestion_control(CongestionControl::Block)
        .wait()?;
    println!("Press CTRL-C to quit...");
    loop {
        let mut buffer = alloc(args.payload_size)?;
        buffer.fill(7);
        publisher.put(buffer).wait()?;
    }
}
