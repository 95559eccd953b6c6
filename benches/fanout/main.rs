//! One publisher, many receivers: the cost of a send, and the age of a slow receiver's frames.
//!
//! | file | what it shows |
//! |---|---|
//! | `cost.rs` | a send to 1, 2, 4, 16 and 64 receivers, beside one of a `Sender` |
//! | `latest.rs` | the age of a camera's frames at a receiver that takes longer than a frame |
//!
//! The exit code is 0 only if every message arrived intact and in order, and each receiver was
//! notified of every gap. A missed goal is a result.

#![forbid(unsafe_code)]

mod cost;
mod latest;

use clap::Parser;
use serde::{Deserialize, Serialize};
use shm_pool::channel::{OnEnd, Subscriber, SubscriberBuilder};
use shm_pool::{Namespace, Provider};
use shm_pool_support::machine::{pin, Machine};
use shm_pool_support::options::Common;
use shm_pool_support::{process, Fallible};
use std::time::Duration;

/// The same in each run, so that the next run removes what a killed one leaves.
const PREFIX: &str = "shm-pool-fanout";

/// Longer than any successful step takes.
const FOR_EVER: Duration = Duration::from_secs(60);

/// One publisher, many receivers.
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    common: Common,
    /// Camera frames that a slow receiver is measured with
    #[arg(long, default_value_t = 1_200)]
    frames: u64,
}

/// A receiving process's task.
#[derive(Serialize, Deserialize)]
enum Part {
    Cost(cost::Task),
    Latest(latest::Task),
}

fn main() -> Fallible {
    match process::task() {
        Some(Part::Cost(task)) => return task.run(),
        Some(Part::Latest(task)) => return task.run(),
        None => {}
    }
    let Options { common, frames } = Options::parse();
    let cores = common.cores()?;
    let machine = Machine::now();
    let all_cores = shm_pool_support::machine::usable()?;
    pin(cores.first())?;
    if common.quick.quick {
        cost::check(&all_cores)?;
        return latest::check(cores);
    }
    machine.print(
        "CLOCK_MONOTONIC",
        "the publisher pinned to one, receiving processes to the others",
    );
    cost::measure(common.rounds, &all_cores)?;
    latest::measure(frames, cores)
}

/// A provider whose objects' names start with [`PREFIX`].
fn provider(max_bytes: usize) -> Fallible<Provider> {
    Ok(Provider::builder()
        .namespace(&Namespace::new(PREFIX).unwrap())
        .max_bytes(max_bytes)
        .build()?)
}

fn subscribe(options: SubscriberBuilder, channel: &str) -> Fallible<Subscriber> {
    Ok(options
        .on_end(OnEnd::Return)
        .namespace(&Namespace::new(PREFIX)?)
        .open_timeout(channel, FOR_EVER)?)
}

/// Returns a channel name that is unique across all runs of this program.
fn channel_name(part: &str) -> String {
    format!("{part}-{}", std::process::id())
}
