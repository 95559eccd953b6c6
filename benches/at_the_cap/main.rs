//! Allocation at the cap, where the system provides no more memory, so that memory moves between
//! sizes.
//!
//! | file | what it shows |
//! |---|---|
//! | `mixed.rs` | how long an allocation takes, with random sizes and a reader holding messages |
//! | `long.rs` | how soon a long message gets its memory while others send short ones |
//! | `fits.rs` | with `--fits`: how full the cap can be before a request is refused |
//! | `scale.rs` | with `--scale`: the cost of allocations while up to a million buffers live |
//! | `waiter.rs` | what a request that waits costs a thread that allocates |
//! | `stores.rs` | where the messages are allocated |
//!
//! Beside each but the last, in the same run: the same messages from talc behind a mutex, which is
//! zenoh's own backend.
//!
//! The exit code is 0 only if every message arrived intact. A missed goal is a result.

mod fits;
mod long;
mod mixed;
mod scale;
mod stores;
mod waiter;

use clap::Parser;
use quanta::Clock;
use shm_pool_support::machine::{pin, usable, Cores, Machine};
use shm_pool_support::options::Quick;
use shm_pool_support::{clock, Fallible};

/// Allocation at the cap.
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    quick: Quick,
    /// Only how full the cap can be before a request is refused: many minutes
    #[arg(long)]
    fits: bool,
    /// Only what allocations cost while many buffers live
    #[arg(long, conflicts_with = "fits")]
    scale: bool,
    /// Only a long message among short ones
    #[arg(long, conflicts_with_all = ["fits", "scale"])]
    long: bool,
    /// Only what a request that waits costs a thread that allocates
    #[arg(long, conflicts_with_all = ["fits", "scale", "long"])]
    waiter: bool,
    /// Messages of each row
    #[arg(long, default_value_t = 20_000)]
    messages: usize,
    /// Long messages of each row
    #[arg(long, default_value_t = 40)]
    longs: usize,
    /// Messages of each run of --fits
    #[arg(long, default_value_t = 200_000)]
    fitted: usize,
    /// Runs of each row of --fits, each with different sizes
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
}

fn main() -> Fallible {
    let options = Options::parse();
    if options.quick.quick {
        return check();
    }
    let counter = Clock::new();
    let cost = clock::cost(|| counter.raw());
    Machine::now().print(
        &format!("the processor's counter, {cost:.1} ns a reading"),
        "pinned as each table says",
    );
    println!();
    if options.fits {
        return fits::measure(fits::Effort::of(options.fitted, options.seeds));
    }
    if options.scale {
        return scale::measure(&scale::Effort::usual());
    }
    if options.waiter {
        pin(Cores::choose()?.first())?;
        return waiter::measure(waiter::Effort::usual());
    }
    if !options.long {
        let all = usable()?;
        pin(Cores::choose()?.first())?;
        mixed::measure(mixed::Effort {
            messages: options.messages,
            warm_up: 1_000,
        })?;
        pin(all)?;
    }
    long::measure(long::Effort::of(options.longs))
}

/// A few messages of every kind, without figures.
fn check() -> Fallible {
    mixed::check(mixed::Effort {
        messages: 300,
        warm_up: 100,
    })?;
    long::check(long::Effort::quick())?;
    scale::measure(&scale::Effort::quick())?;
    waiter::measure(waiter::Effort::quick())?;
    fits::check(fits::Effort::quick())
}
