//! One publisher, many receivers: the cost of a send, the age of a slow receiver's frames, and
//! whether the rules hold.
//!
//! | file | what it shows |
//! |---|---|
//! | `cost.rs` | a send to 1, 2, 4, 16 and 64 receivers, beside one of a `Sender` |
//! | `latest.rs` | the age of a camera's frames at a receiver that takes longer than a frame |
//! | `rules.rs` | wait, drop new, keep latest: the messages received and missed, and their sum |
//! | `wake.rs` | how late a receiver wakes at 1 kHz, and at which cost |
//! | `tally.rs` | counts the messages that a receiver gets, in order, and the missing ones |
//!
//! The exit code is 0 only if every message arrived intact and in order, and each receiver was
//! notified of every gap. A missed goal is a result.

#![forbid(unsafe_code)]

mod cost;
mod latest;
mod rules;
mod tally;
mod wake;

use clap::Parser;
use serde::{Deserialize, Serialize};
use shm_pool::channel::{Receiver, ReceiverBuilder};
use shm_pool::{Client, Provider};
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
    /// Messages to receivers of each rule
    #[arg(long, default_value_t = 200_000)]
    messages: u64,
    /// Messages at 1 kHz of each way to receive, over all rounds
    #[arg(long, default_value_t = 10_000)]
    wakes: u64,
}

/// A receiving process's task.
#[derive(Serialize, Deserialize)]
enum Part {
    Cost(cost::Task),
    Latest(latest::Task),
    Rules(rules::Task),
    Wake(wake::Task),
}

fn main() -> Fallible {
    match process::task() {
        Some(Part::Cost(task)) => return task.run(),
        Some(Part::Latest(task)) => return task.run(),
        Some(Part::Rules(task)) => return task.run(),
        Some(Part::Wake(task)) => return task.run(),
        None => {}
    }
    let Options { common, frames, messages, wakes } = Options::parse();
    let cores = common.cores()?;
    let machine = Machine::now();
    let all_cores = shm_pool_support::machine::usable()?;
    pin(cores.first())?;
    if common.quick.quick {
        cost::check(&all_cores)?;
        rules::check(2_000, cores)?;
        latest::check(cores)?;
        return wake::check(cores);
    }
    machine.print("CLOCK_MONOTONIC", "the publisher pinned to one, receiving processes to the others");
    cost::measure(common.rounds, &all_cores)?;
    latest::measure(frames, cores)?;
    rules::measure(messages, cores)?;
    wake::measure(common.rounds, wakes, cores)
}

/// A provider whose objects' names start with [`PREFIX`].
fn provider(max_bytes: usize) -> Fallible<Provider> {
    Ok(Provider::builder().name_prefix(PREFIX).max_bytes(max_bytes).build()?)
}

fn open(receiver: ReceiverBuilder, channel: &str) -> Fallible<Receiver> {
    let client = Client::builder().name_prefix(PREFIX).build()?;
    Ok(receiver.open_timeout(&client, channel, FOR_EVER)?)
}

/// Returns a channel name that is unique across all runs of this program.
fn channel_name(part: &str) -> String {
    format!("{part}-{}", std::process::id())
}
