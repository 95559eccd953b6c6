//! zenoh's example `z_pub_shm` on the pool: it publishes a text each second.
//!
//! `cargo run -p shm-pool-zenoh --example z_pub_shm`, and `z_sub_shm`, or any zenoh subscriber of
//! `demo/example/**`, in another terminal.

#![forbid(unsafe_code)]

mod common;

use clap::Parser;
use common::{CommonArgs, Memory};
use shm_pool_zenoh::{BufferPool, PoolBackend};
use std::ops::DerefMut;
use std::thread;
use std::time::Duration;
use zenoh::bytes::ZBytes;
use zenoh::shm::{BlockOn, GarbageCollect, ShmProviderBuilder};
use zenoh::{Result, Wait};

const POOL: usize = 1 << 20;
const TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Parser)]
struct Args {
    /// The key expression to publish on.
    #[arg(short, long, default_value = "demo/example/zenoh-rs-pub")]
    key: String,
    /// The text to publish.
    #[arg(short, long, default_value = "Pub from Rust SHM!")]
    payload: String,
    /// Where the messages are allocated.
    #[arg(long, default_value = "provider")]
    memory: Memory,
    #[command(flatten)]
    common: CommonArgs,
}

fn main() -> Result<()> {
    zenoh::init_log_from_env_or("error");
    let args = Args::parse();
    match args.memory {
        Memory::Stock => {
            let provider = ShmProviderBuilder::default_backend(POOL).wait()?;
            publish(args, |len| {
                Ok(provider
                    .alloc(len)
                    .with_policy::<BlockOn<GarbageCollect>>()
                    .wait()?)
            })
        }
        Memory::Provider => {
            let provider = PoolBackend::builder().max_bytes(POOL).build()?.provider();
            publish(args, |len| {
                Ok(provider
                    .alloc(len)
                    .with_policy::<BlockOn<GarbageCollect>>()
                    .wait()?)
            })
        }
        Memory::Buffers => {
            let pool = BufferPool::new(&PoolBackend::builder().max_bytes(POOL).build()?);
            publish(args, |len| Ok(pool.alloc_timeout(len, TIMEOUT)?))
        }
    }
}

fn publish<Buffer>(args: Args, alloc: impl Fn(usize) -> Result<Buffer>) -> Result<()>
where
    Buffer: DerefMut<Target = [u8]> + Into<ZBytes>,
{
    let session = zenoh::open(args.common.config()?).wait()?;
    let publisher = session.declare_publisher(&args.key).wait()?;
    println!("Press CTRL-C to quit...");
    for number in 0.. {
        thread::sleep(Duration::from_secs(1));
        let text = format!("[{number:4}] {}", args.payload);
        let mut buffer = alloc(text.len())?;
        buffer.copy_from_slice(text.as_bytes());
        println!("Put SHM Data ('{}': '{text}')", args.key);
        publisher.put(buffer).wait()?;
    }
    Ok(())
}
