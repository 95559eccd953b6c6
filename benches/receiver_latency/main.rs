//! How old messages are when they are received, at a fixed rate: a publisher on one core, a
//! receiver on another.
//!
//! After Aeron's receiver-latency benchmark. The loop is open: each message carries the time at
//! which it was due by the rate, and the receiver measures its latency from there. A publisher that
//! is late, for whatever reason, sends the due messages without waiting and skips none; the delay
//! is in the latency, where a publisher that stamped its own send time would hide it. That "naive"
//! latency is printed beside it.
//!
//! The receiver is the process that prints. The publisher is another process, or, for
//! `std::sync::mpsc`, a thread.

#![forbid(unsafe_code)]

mod awaiting;
mod link;
mod publisher;
mod stall;
mod ways;

use clap::Parser;
use link::{Columns, Link};
use publisher::Order;
use shm_pool::Namespace;
use shm_pool_support::latency::Latencies;
use shm_pool_support::machine::{pin, Cores, Machine};
use shm_pool_support::options::Common;
use shm_pool_support::table::{show, table};
use shm_pool_support::{clock, process, Fallible};
use ways::{Task, PREFIX, ROWS, SLOTS};

/// Latency from when a message was due until it was received, at fixed rates.
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    common: Common,
    /// Messages per second; may be given several times, for one table each
    #[arg(long, value_name = "MSG/S", default_values_t = [1_000_000, 100_000],
          value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    rate: Vec<u64>,
    /// Seconds of a repetition, as long as the rate is kept up
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    seconds: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if seconds > 0.0 && seconds <= 3600.0 => Ok(seconds),
        _ => Err("more than 0, and at most 3600".to_owned()),
    }
}

fn main() -> Fallible {
    if let Some(task) = process::task::<Task>() {
        return task.run();
    }
    let options = Options::parse();
    let cores = options.common.cores()?;
    let outcome = if options.common.quick.quick {
        check(cores)
    } else {
        measure(&options, cores)
    };
    // Removes the objects of a killed publisher. All have exited.
    Namespace::new(PREFIX).unwrap().sweep()?;
    outcome
}

/// A few messages of each row, in two repetitions.
fn check(cores: Cores) -> Fallible {
    const ORDER: Order = Order {
        rate: 100_000,
        count: 1_000,
    };
    pin(cores.first())?;
    let rows = [ROWS, awaiting::ROWS].concat();
    for row in rows {
        let mut link = Link::start(row, SLOTS, cores.second())?;
        for _ in 0..2 {
            link.repeat(ORDER, |_, _| {})?;
        }
        link.finish()?;
        println!("{}: {} messages, all as sent", row.0, 2 * ORDER.count);
    }
    stall::test(cores.second())
}

fn measure(options: &Options, cores: Cores) -> Fallible {
    let machine = Machine::now();
    print_head(options, &machine);
    pin(cores.first())?;
    stall::test(cores.second())?;
    let mut links = Vec::new();
    for row in ROWS {
        links.push(Link::start(row, SLOTS, cores.second())?);
    }
    for &rate in &options.rate {
        let count = (rate as f64 * options.seconds).ceil() as u64;
        let results = measure_rate(&mut links, Order { rate, count }, options.common.rounds)?;
        print(rate, &results);
    }
    for link in links {
        link.finish()?;
    }
    awaiting::measure(cores, options.common.rounds, options.seconds)
}

/// The repetitions of a row.
#[derive(Default)]
struct Measured {
    intended: Latencies,
    naive: Latencies,
}

/// A repetition of each row to warm up, followed by `rounds` rounds, all rows in turn.
fn measure_rate(links: &mut [Link], order: Order, rounds: u32) -> Fallible<Vec<Measured>> {
    let mut results = Vec::new();
    results.resize_with(links.len(), Measured::default);
    // Shared by all, so that the first writes to its memory happen during the warm-up.
    let mut columns = Columns::new();
    for round in 0..=rounds {
        for (link, result) in links.iter_mut().zip(&mut results) {
            columns.intended.reset();
            columns.naive.reset();
            let took = link.repeat(order, |now, message| columns.record(now, message))?;
            if round > 0 {
                result.intended.add(&columns.intended, took)?;
                result.naive.add(&columns.naive, took)?;
            }
        }
    }
    Ok(results)
}

/// Prints the table of a rate.
fn print(rate: u64, results: &[Measured]) {
    let first = format!("{rate} msg/s");
    let mut table = table(&[
        &first,
        "achieved msg/s",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "max",
        "naive p50",
        "p99",
        "p99.9",
        "max",
        "p50 of the rounds",
    ]);
    for ((name, _), result) in ROWS.iter().zip(results) {
        let intended = &result.intended;
        let naive = &result.naive;
        table.add_row([
            name.to_string(),
            format!("{:.0}", intended.rate().median),
            intended.at(0.5),
            intended.at(0.9),
            intended.at(0.99),
            intended.at(0.999),
            intended.at(1.0),
            naive.at(0.5),
            naive.at(0.99),
            naive.at(0.999),
            naive.at(1.0),
            intended.p50().to_string(),
        ]);
    }
    show(&format!("receiver_latency {rate}"), &table);
    // For rows that do not keep up, the length of the run determines the latencies.
    for ((name, _), result) in ROWS.iter().zip(results) {
        if result.intended.rate().median < 0.99 * rate as f64 {
            println!(
                "{name} does not keep up with {rate} msg/s: \
                 its latency grows as long as a repetition lasts"
            );
        }
    }
}

fn print_head(options: &Options, machine: &Machine) {
    println!(
        "Receiver latency, open loop: \
         from when a message of 32 bytes was due until it was received\n"
    );
    let cost = clock::cost(clock::now);
    machine.print(
        &format!("CLOCK_MONOTONIC, {cost:.1} ns a reading, one for each message on each side"),
        "receiver and publisher pinned to one each",
    );
    println!(
        "rows     in turn, a repetition of {} s to warm up and {} measured ones, \
         drained after each",
        options.seconds, options.common.rounds
    );
    println!("ways     channel and mpsc: {SLOTS} slots");
    println!(
        "         socketpair: SOCK_STREAM, a write for each message, read in bulk, \
         the kernel's default buffers"
    );
    println!(
        "columns  latencies since the intended send time; naive ones since the actual send time\n"
    );
}
