//! A pool at its cap: the cost of waiting for memory to a publisher, and how the pool reduces it.
//!
//! | file | what it shows |
//! |---|---|
//! | `wake.rs`, `line.rs` | how soon a wait ends after another process's release, beside a futex |
//! | `refusal.rs` | the cost of an allocation that is refused |
//! | `burst.rs` | how much memory of a past burst is returned to the system |
//!
//! A missed goal is a result, and not an error: the exit code stays 0.

mod burst;
mod line;
mod refusal;
mod wake;

use clap::Parser;
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
    /// Refused allocations of each row, in each round
    #[arg(long, default_value_t = 10_000)]
    refusals: u64,
}

fn main() -> Fallible {
    if let Some(task) = process::task::<wake::Task>() {
        return task.run();
    }
    let Options {
        common,
        waits,
        refusals,
    } = Options::parse();
    let cores = Cores::choose()?;
    let machine = Machine::now();
    pin(cores.first())?;
    if common.quick.quick {
        wake::check(cores)?;
        refusal::check()?;
        return burst::check();
    }
    cores.require_two()?;
    machine.print(
        "CLOCK_MONOTONIC",
        "this process pinned to one, the other to another",
    );
    wake::measure(common.rounds, waits, cores)?;
    refusal::measure(common.rounds, refusals)?;
    burst::measure()
}
