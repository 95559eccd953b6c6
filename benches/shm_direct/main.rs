//! One-way latency between two processes, each on a separate core, beside the transport of
//! rusty-comms' SHM-direct: one slot in shared memory, a process-shared pthread mutex and condition
//! variables.
//!
//! Messages of several lengths are sent back to back, and at a fixed pace; and 116 bytes every 10
//! ms, SHM-direct's own reference. All rows are measured in turn, in several rounds.
//!
//! The timestamps are of CLOCK_MONOTONIC, which the processes share. There are two at the receiver,
//! because either one alone is biased: at the wake the slot has not made its second copy; and a
//! slice in place that was not read yet is still in the other core's cache, while a copy is not. So
//! "usable" is after the same sum over all bytes in both. `NOTES` in `report.rs`, printed with the
//! tables, say what each timestamp includes, and why the ring is short.

mod messages;
mod report;
mod rows;
mod slot;

use clap::Parser;
use report::Cell;
use rows::{Job, Setting, ROWS, SETTINGS};
use shm_pool_support::machine::{pin, Cores, Machine};
use shm_pool_support::options::Common;
use shm_pool_support::process::{exit_code, task};
use shm_pool_support::{chart, clock, Fallible};
use std::process::ExitCode;
use std::time::Duration;

/// Messages of a row, over all rounds.
const MOST: u64 = 1_000_000_000;

/// One-way latency between two processes, beside a slot with a pthread mutex and condition
/// variables.
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    common: Common,
    /// Messages of each row and length back to back, over all rounds
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..=MOST))]
    back_to_back: u64,
    /// Messages of each row and length every millisecond, over all rounds
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..=MOST))]
    paced: u64,
    /// Messages of each row every 10 ms, over all rounds
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=MOST))]
    reference: u64,
}

fn main() -> ExitCode {
    let outcome = match task::<Job>() {
        Some(job) => job.send(),
        None => run(&Options::parse()),
    };
    exit_code("shm_direct", outcome)
}

fn run(options: &Options) -> Fallible {
    let cores = options.common.cores()?;
    match options.common.quick.quick {
        true => check(cores),
        false => measure(options, cores),
    }
}

/// Empty cells for each row in each setting, with the number of messages of a round for each pace.
fn cells(counts: [u64; 3]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for ((pace, lens), count) in SETTINGS.into_iter().zip(counts) {
        for &len in lens {
            let setting = Setting { pace, len, warm_up: count.div_ceil(10), count };
            cells.extend(ROWS.into_iter().filter(|(_, way)| way.is_for(pace)).map(|row| Cell::new(row, setting)));
        }
    }
    cells
}

/// A few messages by each way.
fn check(cores: Cores) -> Fallible {
    pin(cores.first())?;
    for Cell { name, way, setting, .. } in cells([500, 20, 20]) {
        way.receive(&setting, cores.second())?;
        println!("{name}, {} B: {} messages, all as sent", setting.len, setting.messages());
    }
    Ok(())
}

fn measure(options: &Options, cores: Cores) -> Fallible {
    let machine = Machine::now();
    println!("One way between two processes: a message and when it is there\n");
    let cost = clock::cost(clock::now);
    machine.print(
        &format!("CLOCK_MONOTONIC, {cost:.1} ns a reading, of which each figure contains one, and each usable two"),
        "the receiver pinned to one, the sender to another",
    );
    let rounds = options.common.rounds;
    let counts = [options.back_to_back, options.paced, options.reference];
    let mut cells = cells(counts.map(|count| count.div_ceil(rounds.into())));
    let by_the_clock: Duration = cells.iter().map(|cell| cell.setting.duration()).sum::<Duration>() * rounds;
    println!(
        "rows     in turn, {rounds} rounds, a tenth more messages before each as warm-up; {:.0} s of the run are the pace\n",
        by_the_clock.as_secs_f64()
    );
    pin(cores.first())?;
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}");
        for cell in &mut cells {
            let seen = cell.way.receive(&cell.setting, cores.second())?;
            cell.add(&seen)?;
        }
    }
    report::print(&cells, rounds);
    if let Some(file) = &options.common.svg {
        let title = "116 bytes every 10 ms, one way between two processes";
        chart::curves(file, title, &machine.caption(), &report::curves(&cells))?;
    }
    Ok(())
}
