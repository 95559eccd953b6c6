//! A driver for a small device, written twice: as such drivers are first written, and with the
//! pool.
//!
//! A satellite receiver with an inertial unit delivers a sample 5 times, or 1,000 times, a second.
//! The driver turns each into a message of about 2 KB, with nested lists and texts, for a
//! subscriber in another process, which compares every byte with what the device must have
//! measured. Both drivers get the same samples, and must send the same bytes.
//!
//! | | `baseline.rs` | `pooled.rs` |
//! |---|---|---|
//! | the device | polled every millisecond | waited for |
//! | the message | built, copied, encoded into a new vector | encoded where it will be read |
//! | shared memory | a new segment for each message | the pool |
//! | counters | behind a lock | atomic |
//!
//! A third driver, the baseline that blocks, is the first one without the polling, to separate the
//! cost of polling from the rest. The parent process is the device (`round.rs`), so that its work
//! is not counted.
//!
//! The exit code is 0 only if every sample was sent and received unchanged, and the pool's driver
//! neither created a segment nor used the heap after the warm-up.

#![allow(clippy::incompatible_msrv)] // The library's; benches need a current compiler.

mod baseline;
mod device;
mod heap;
mod message;
mod pooled;
mod publisher;
mod report;
mod round;
mod sample;
mod segment;
mod subscriber;

use clap::Parser;
use report::Column;
use round::{Form, Round, Task, WARM_UP};
use shm_pool_support::machine::{pin, Cores, Machine};
use shm_pool_support::options::Common;
use shm_pool_support::process::{self, exit_code};
use shm_pool_support::{chart, clock, Fallible};
use std::process::ExitCode;

/// A device's driver, as it is first written and with the pool
#[derive(Parser)]
#[command(name = "embedded_publisher")]
struct Options {
    #[command(flatten)]
    common: Common,
    /// How long each driver is measured at 5 Hz, in each round
    #[arg(long, value_name = "SECONDS", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds_at_5_hz: u64,
    /// How long each driver is measured at 1 kHz, in each round
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds_at_1_khz: u64,
    /// Seed of the samples that the device measures
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> ExitCode {
    if let Some(task) = process::task::<Task>() {
        return exit_code(task.role.name(), task.run());
    }
    let options = Options::parse();
    exit_code("embedded_publisher", if options.common.quick.quick { check(&options) } else { measure(&options) })
}

/// A few messages of each driver, back to back.
fn check(options: &Options) -> Fallible {
    let (count, rate) = (400, 10_000);
    let cores = Cores::choose()?;
    pin(cores.second())?;
    for form in Form::ALL {
        run(options, form, count, rate, cores)?;
        println!("{}: {count} samples, all sent and received as they were measured", form.name());
    }
    Ok(())
}

fn measure(options: &Options) -> Fallible {
    let cores = Cores::choose()?;
    cores.require_two()?;
    let machine = Machine::now();
    let rounds = options.common.rounds;
    let rates = [("5 Hz", 5, options.seconds_at_5_hz), ("1 kHz", 1_000, options.seconds_at_1_khz)];
    println!("A device's driver, as it is written first and with the pool: two processes, and the device\n");
    let cost = clock::cost(clock::now);
    machine.print(
        &format!("CLOCK_MONOTONIC, {cost:.1} ns a reading, one reading per message, in the subscriber"),
        "the publisher pinned to one, the subscriber and the device to another",
    );
    for (name, rate, seconds) in rates {
        let count = rate * seconds;
        println!("rows     {name}: in turn, {rounds} rounds of {WARM_UP} warm-up and {count} measured samples");
    }
    println!("{NOTES}\n");
    pin(cores.second())?;
    let mut results = rates.map(|_| Form::ALL.map(|_| Column::default()));
    for _ in 0..rounds {
        for (columns, (_, rate, seconds)) in results.iter_mut().zip(rates) {
            for form in Form::ALL {
                columns[form as usize].0.push(run(options, form, rate * seconds, rate, cores)?);
            }
        }
    }
    let named = || rates.iter().map(|(name, ..)| *name).zip(&results);
    named().for_each(|(rate, columns)| report::print(rate, columns));
    report::print_ratios(named());
    let Some(file) = &options.common.svg else { return Ok(()) };
    let curve = |rate, form: Form, column: &Column| (format!("{}, {rate}", form.name()), column.latencies());
    let curves = named().flat_map(|(rate, all)| Form::ALL.map(|form| curve(rate, form, &all[form as usize])));
    let curves: Vec<_> = curves.collect();
    chart::curves(file, "From the device to a decoded message", &machine.caption(), &curves)
}

fn run(options: &Options, form: Form, count: u64, rate: u64, cores: Cores) -> Fallible<Round> {
    Round::run(&Task::new(form, options.seed, count, rate, cores))
        .map_err(|error| format!("{}, {rate} samples per second: {error}", form.name()).into())
}

const NOTES: &str = "\
CPU      user and system: the publisher's of all threads, with the wait for the device; the subscriber's without
         comparing the messages; the device's nowhere
heap     allocations, reallocations and frees of the publishing thread; its process's others sleep
RSS      of the publisher, looked at from outside; its slope by least squares after the warm-up
latency  from the time the sample was due until its message was decoded; all rounds together
values   of the rounds: median (range)";
