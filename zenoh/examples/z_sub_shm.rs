//! zenoh's example `z_sub_shm`: it prints what it receives, and whether that is in shared memory.
//!
//! A subscriber is zenoh and nothing else: no line of it changes.

#![forbid(unsafe_code)]

mod common;

use clap::Parser;
use common::CommonArgs;
use zenoh::bytes::ZBytes;
use zenoh::shm::zshmmut;
use zenoh::{Result, Wait};

#[derive(Parser)]
struct Args {
    /// The key expression to subscribe to.
    #[arg(short, long, default_value = "demo/example/**")]
    key: String,
    #[command(flatten)]
    common: CommonArgs,
}

fn main() -> Result<()> {
    zenoh::init_log_from_env_or("error");
    let args = Args::parse();
    let session = zenoh::open(args.common.config()?).wait()?;
    let subscriber = session.declare_subscriber(&args.key).wait()?;
    println!("Press CTRL-C to quit...");
    loop {
        let mut sample = subscriber.recv()?;
        let key = sample.key_expr().to_string();
        let memory = memory(sample.payload_mut());
        let text = match sample.payload().try_to_string() {
            Ok(text) => text.into_owned(),
            Err(error) => error.to_string(),
        };
        println!(">> [Subscriber] Received PUT ('{key}': '{text}') [{memory}]");
    }
}

/// Returns where a message is: in shared memory that may be written, because this is its only
/// holder; in shared memory that others hold, too; or in a copy of this process.
fn memory(message: &mut ZBytes) -> &'static str {
    let Some(buffer) = message.as_shm_mut() else {
        return "RAW";
    };
    match <&mut zshmmut>::try_from(buffer) {
        Ok(_) => "SHM (MUT)",
        Err(_) => "SHM (IMMUT)",
    }
}
