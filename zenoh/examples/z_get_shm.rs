//! zenoh's example `z_get_shm` on the pool: it sends a query with a text in shared memory.

#![forbid(unsafe_code)]

mod common;

use clap::Parser;
use common::{CommonArgs, Memory};
use shm_pool_zenoh::{BufferPool, PoolBackend};
use std::ops::DerefMut;
use std::time::Duration;
use zenoh::bytes::ZBytes;
use zenoh::shm::{BlockOn, GarbageCollect, ShmProviderBuilder};
use zenoh::{Result, Wait};

const POOL: usize = 1 << 20;
const TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Parser)]
struct Args {
    /// What to query.
    #[arg(short, long, default_value = "demo/example/**")]
    selector: String,
    /// The text to send with the query.
    #[arg(short, long, default_value = "Get from Rust SHM!")]
    payload: String,
    /// Milliseconds to wait for replies.
    #[arg(short = 'o', long, default_value = "10000")]
    timeout: u64,
    /// Where the query is allocated.
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
            get(args, |len| {
                Ok(provider
                    .alloc(len)
                    .with_policy::<BlockOn<GarbageCollect>>()
                    .wait()?)
            })
        }
        Memory::Provider => {
            let provider = PoolBackend::builder().max_bytes(POOL).build()?.provider();
            get(args, |len| {
                Ok(provider
                    .alloc(len)
                    .with_policy::<BlockOn<GarbageCollect>>()
                    .wait()?)
            })
        }
        Memory::Buffers => {
            let pool = BufferPool::new(&PoolBackend::builder().max_bytes(POOL).build()?);
            get(args, |len| Ok(pool.alloc_timeout(len, TIMEOUT)?))
        }
    }
}

fn get<Buffer>(args: Args, alloc: impl Fn(usize) -> Result<Buffer>) -> Result<()>
where
    Buffer: DerefMut<Target = [u8]> + Into<ZBytes>,
{
    let session = zenoh::open(args.common.config()?).wait()?;
    let mut buffer = alloc(args.payload.len())?;
    buffer.copy_from_slice(args.payload.as_bytes());
    println!("Sending Query '{}'...", args.selector);
    let replies = session
        .get(&args.selector)
        .payload(buffer)
        .timeout(Duration::from_millis(args.timeout))
        .wait()?;
    while let Ok(reply) = replies.recv() {
        match reply.result() {
            Ok(sample) => {
                let text = sample.payload().try_to_string()?;
                let memory = memory(sample.payload());
                println!(">> Received ('{}': '{text}') [{memory}]", sample.key_expr());
            }
            Err(error) => {
                let text = error.payload().try_to_string()?;
                println!(">> Received (ERROR: '{text}')");
            }
        }
    }
    Ok(())
}

fn memory(message: &ZBytes) -> &'static str {
    match message.as_shm() {
        Some(_) => "SHM",
        None => "RAW",
    }
}
