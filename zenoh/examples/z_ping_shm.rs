//! zenoh's example `z_ping_shm` on the pool: the time until a message has been received and sent back.
//!
//! Start `z_pong`, stock or not, before. zenoh's own program sends one buffer again and again. This one
//! allocates and fills a buffer for each message, as publishers do, and the time includes that.

#![forbid(unsafe_code)]

mod common;

use clap::Parser;
use common::{CommonArgs, Memory};
use shm_pool_zenoh::{BufferPool, PoolBackend};
use std::ops::DerefMut;
use std::time::{Duration, Instant};
use zenoh::bytes::ZBytes;
use zenoh::qos::CongestionControl;
use zenoh::shm::{BlockOn, GarbageCollect, ShmProviderBuilder};
use zenoh::{Result, Wait};

const TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Parser)]
struct Args {
    /// Seconds to warm up.
    #[arg(short, long, default_value = "1")]
    warmup: f64,
    /// The number of round trips to measure.
    #[arg(short = 'n', long, default_value = "100")]
    samples: usize,
    /// The length of a message in bytes.
    payload_size: usize,
    /// The memory for messages, in MiB.
    #[arg(short, long, default_value = "32")]
    shared_memory: usize,
    /// Prints the median and the 99th percentile instead of each round trip.
    #[arg(long)]
    summary: bool,
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
            ping(args, |len| {
                Ok(provider
                    .alloc(len)
                    .with_policy::<BlockOn<GarbageCollect>>()
                    .wait()?)
            })
        }
        Memory::Provider => {
            let provider = PoolBackend::builder().max_bytes(bytes).build()?.provider();
            ping(args, |len| {
                Ok(provider
                    .alloc(len)
                    .with_policy::<BlockOn<GarbageCollect>>()
                    .wait()?)
            })
        }
        Memory::Buffers => {
            let pool = BufferPool::new(&PoolBackend::builder().max_bytes(bytes).build()?);
            ping(args, |len| Ok(pool.alloc_timeout(len, TIMEOUT)?))
        }
    }
}

fn ping<Buffer>(args: Args, alloc: impl Fn(usize) -> Result<Buffer>) -> Result<()>
where
    Buffer: DerefMut<Target = [u8]> + Into<ZBytes>,
{
    let session = zenoh::open(args.common.config()?).wait()?;
    let subscriber = session.declare_subscriber("test/pong").wait()?;
    let publisher = session
        .declare_publisher("test/ping")
        .congestion_control(CongestionControl::Block)
        .wait()?;
    let round_trip = |number: usize| -> Result<Duration> {
        let start = Instant::now();
        let mut buffer = alloc(args.payload_size)?;
        buffer.fill(number as u8);
        publisher.put(buffer).wait()?;
        subscriber.recv()?;
        Ok(start.elapsed())
    };

    println!("Warming up for {}s...", args.warmup);
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < args.warmup {
        round_trip(0)?;
    }
    let mut samples = Vec::with_capacity(args.samples);
    for number in 0..args.samples {
        samples.push(round_trip(number)?);
    }

    let size = args.payload_size;
    if args.summary {
        samples.sort();
        let median = samples[samples.len() / 2];
        let late = samples[samples.len() * 99 / 100];
        println!("{size} bytes: rtt median={median:.1?} p99={late:.1?}");
        return Ok(());
    }
    for (number, sample) in samples.iter().enumerate() {
        let rtt = sample.as_micros();
        println!("{size} bytes: seq={number} rtt={rtt}µs lat={}µs", rtt / 2);
    }
    Ok(())
}
