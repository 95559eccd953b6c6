//! zenoh's example `z_queryable_shm` on the pool: it replies with a text in shared memory.

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
    /// The key expression of the queries to reply to.
    #[arg(short, long, default_value = "demo/example/zenoh-rs-queryable")]
    key: String,
    /// The text to reply.
    #[arg(short, long, default_value = "Queryable from Rust SHM!")]
    payload: String,
    /// Declares that it replies to every query of the key expression.
    #[arg(long)]
    complete: bool,
    /// Where the replies are allocated.
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
            reply(args, |len| {
                Ok(provider
                    .alloc(len)
                    .with_policy::<BlockOn<GarbageCollect>>()
                    .wait()?)
            })
        }
        Memory::Provider => {
            let provider = PoolBackend::builder().max_bytes(POOL).build()?.provider();
            reply(args, |len| {
                Ok(provider
                    .alloc(len)
                    .with_policy::<BlockOn<GarbageCollect>>()
                    .wait()?)
            })
        }
        Memory::Buffers => {
            let pool = BufferPool::new(&PoolBackend::builder().max_bytes(POOL).build()?);
            reply(args, |len| Ok(pool.alloc_timeout(len, TIMEOUT)?))
        }
    }
}

fn reply<Buffer>(args: Args, alloc: impl Fn(usize) -> Result<Buffer>) -> Result<()>
where
    Buffer: DerefMut<Target = [u8]> + Into<ZBytes>,
{
    let session = zenoh::open(args.common.config()?).wait()?;
    let queryable = session
        .declare_queryable(&args.key)
        .complete(args.complete)
        .wait()?;
    println!("Press CTRL-C to quit...");
    loop {
        let query = queryable.recv()?;
        let selector = query.selector();
        match query.payload() {
            Some(payload) => {
                let memory = memory(payload);
                let text = payload.try_to_string()?;
                println!(">> [Queryable] Received Query ('{selector}': '{text}') [{memory}]");
            }
            None => println!(">> [Queryable] Received Query ('{selector}')"),
        }

        let mut buffer = alloc(args.payload.len())?;
        buffer.copy_from_slice(args.payload.as_bytes());
        println!(
            ">> [Queryable] Responding ('{}': '{}')",
            args.key, args.payload
        );
        query.reply(&args.key, buffer).wait()?;
    }
}

fn memory(message: &ZBytes) -> &'static str {
    match message.as_shm() {
        Some(_) => "SHM",
        None => "RAW",
    }
}
