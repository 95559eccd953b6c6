//! zenoh's example `z_sub_thr`: it counts the messages that it receives in a second. No line of it
//! changes.

#![forbid(unsafe_code)]

mod common;

use clap::Parser;
use common::CommonArgs;
use std::time::Instant;
use zenoh::{Result, Wait};

#[derive(Parser)]
struct Args {
    /// The number of measurements.
    #[arg(short, long, default_value = "10")]
    samples: usize,
    /// The number of messages in each.
    #[arg(short, long, default_value = "100000")]
    number: usize,
    #[command(flatten)]
    common: CommonArgs,
}

fn main() -> Result<()> {
    zenoh::init_log_from_env_or("error");
    let args = Args::parse();
    let session = zenoh::open(args.common.config()?).wait()?;
    let subscriber = session.declare_subscriber("test/thr").wait()?;
    println!("Press CTRL-C to quit...");
    for _ in 0..args.samples {
        subscriber.recv()?;
        let start = Instant::now();
        for _ in 0..args.number {
            subscriber.recv()?;
        }
        println!(
            "{} msg/s",
            args.number as f64 / start.elapsed().as_secs_f64()
        );
    }
    Ok(())
}
