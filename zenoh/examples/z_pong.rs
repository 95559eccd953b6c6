//! zenoh's example `z_pong`: it sends back what it receives. No line of it changes: what it sends back
//! is the buffer of `z_ping_shm` itself.

#![forbid(unsafe_code)]

mod common;

use clap::Parser;
use common::CommonArgs;
use std::thread;
use zenoh::qos::CongestionControl;
use zenoh::{Result, Wait};

#[derive(Parser)]
struct Args {
    /// Lets zenoh collect messages into batches.
    #[arg(long)]
    no_express: bool,
    #[command(flatten)]
    common: CommonArgs,
}

fn main() -> Result<()> {
    zenoh::init_log_from_env_or("error");
    let args = Args::parse();
    let session = zenoh::open(args.common.config()?).wait()?;
    let publisher = session
        .declare_publisher("test/pong")
        .congestion_control(CongestionControl::Block)
        .express(!args.no_express)
        .wait()?;
    session
        .declare_subscriber("test/ping")
        .callback(move |sample| {
            let message = sample.payload().clone();
            if let Err(error) = publisher.put(message).wait() {
                eprintln!("{error}");
            }
        })
        .background()
        .wait()?;
    println!("Press CTRL-C to quit...");
    loop {
        thread::park();
    }
}
