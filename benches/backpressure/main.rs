//! A pool at its cap: the cost of waiting for memory to a publisher, and how the pool reduces it.
//!
//! | file | what it shows |
//! |---|---|
//! | `wake.rs`, `line.rs` | how soon a wait ends after another process's release, beside a futex |
//! | `sensors.rs` | a camera and an IMU to subscribers that hoard: dropped frames, and costs |
//! | `ways.rs` | the ways to wait that are compared there |
//! | `schedule.rs` | what is due when, and when which hoard ends |
//! | `publisher.rs`, `subscriber.rs`, `hoard.rs` | the publishing process, and a subscribing one |
//! | `report.rs` | their tables |
//! | `held.rs` | the slowest allocation while a reader holds many chunks |
//! | `burst.rs` | what the system gets back of a burst that has stopped |
//!
//! The exit code is 0 only if every byte arrived intact, and no segment was created while a chunk
//! was free. A missed goal is a result.

mod burst;
mod held;
mod hoard;
mod line;
mod publisher;
mod report;
mod schedule;
mod sensors;
mod subscriber;
mod wake;
mod ways;

use clap::Parser;
use serde::{Deserialize, Serialize};
use shm_pool_support::machine::{pin, Cores, Machine};
use shm_pool_support::options::Common;
use shm_pool_support::{process, Fallible};

/// The same in each run, so that the next run removes what a killed one leaves.
const PREFIX: &str = "shm-pool-backpressure";

/// A pool at its cap.
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    common: Common,
    /// Waits of each way to wake, over all rounds
    #[arg(long, default_value_t = 10_000)]
    waits: u64,
    /// Camera frames of each way to wait, over all rounds
    #[arg(long, default_value_t = 1_500)]
    frames: u64,
    /// Allocations beside held chunks, of each row in each of its short rounds
    #[arg(long, default_value_t = 1_000)]
    allocations: usize,
}

/// The part of another process.
#[derive(Serialize, Deserialize)]
enum Part {
    Waker(wake::Task),
    Subscriber(subscriber::Task),
}

fn main() -> Fallible {
    match process::task() {
        Some(Part::Waker(task)) => return task.run(),
        Some(Part::Subscriber(task)) => return task.run(),
        None => {}
    }
    let Options { common, waits, frames, allocations } = Options::parse();
    let cores = Cores::choose()?;
    let machine = Machine::now();
    pin(cores.first())?;
    if common.quick.quick {
        wake::check(cores)?;
        sensors::check(cores)?;
        held::check()?;
        return burst::check();
    }
    cores.require_two()?;
    machine.print("CLOCK_MONOTONIC", "the publisher pinned to one, all others to another");
    wake::measure(common.rounds, waits, cores)?;
    sensors::measure(common.rounds, frames, cores)?;
    held::measure(common.rounds, allocations)?;
    burst::measure()
}
