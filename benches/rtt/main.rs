//! Round trips between two processes, each on a core of its own: "RTT, unloaded". One message is under way at a time.
//!
//! Each row is a way for a message to go to another process and for a reply to come back. All rows are measured in turn, in several
//! rounds, next to the machine's floor: one cache line that the two processes write in turn. Both processes check every message.

mod line;
mod rows;
mod ways;

#[path = "../support/mod.rs"]
mod support;

use clap::{Args, Parser, Subcommand};
use hdrhistogram::Histogram;
use quanta::Clock;
use rows::{Row, FLOOR, INLINE, LARGEST, POOLED, ROWS, SMALLEST};
use std::time::{Duration, Instant};
use support::cores::{pin, Cores};
use support::latency::{Latencies, Nanoseconds, QUANTILES};
use support::machine::Machine;
use support::options::Common;
use support::table::table;
use support::{chart, clock, latency, Fallible};

/// Round trips between two processes, beside the machine's floor.
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    common: Common,
    /// Round trips of each row, over all rounds
    #[arg(long, default_value_t = 1_000_000)]
    round_trips: u64,
    /// Round trips before each measurement
    #[arg(long, default_value_t = 10_000)]
    warm_up: u64,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Subcommand)]
enum Role {
    /// The other process
    #[command(hide = true)]
    Answer(Answer),
}

/// What the other process is told.
#[derive(Args)]
struct Answer {
    row: usize,
    count: u64,
    names: String,
    core: Option<usize>,
}

fn main() -> Fallible {
    let options = Options::parse();
    if let Some(Role::Answer(answer)) = options.role {
        pin(answer.core)?;
        return ROWS[answer.row].answer(answer.count, &answer.names);
    }
    let cores = Cores::choose()?;
    if options.common.quick {
        return check(cores);
    }
    cores.require_two()?;
    measure(&options, cores)
}

/// A few round trips by each way.
fn check(cores: Cores) -> Fallible {
    const COUNT: u64 = 500;
    pin(cores.first())?;
    for row in ROWS {
        row.ask(COUNT, cores.second(), |way| {
            (0..COUNT).try_for_each(|number| way.round_trip(number).map(|()| way.settle()))
        })?;
        println!("{}: {COUNT} round trips, all as sent", row.name);
    }
    Ok(())
}

fn measure(options: &Options, cores: Cores) -> Fallible {
    let machine = Machine::now();
    let clock = Clock::new();
    println!("RTT, unloaded: two processes, one message under way\n");
    let cost = clock::cost(|| clock.raw());
    machine.print(
        &format!("the processor's counter, {cost:.1} ns a reading, two readings a round trip, of which each figure contains one"),
        "one pinned to each process",
    );
    let rounds = options.common.rounds;
    let count = options.round_trips.div_ceil(rounds.into());
    println!("rows     in turn, {rounds} rounds of {} warm-up and {count} measured round trips\n", options.warm_up);
    pin(cores.first())?;
    let mut results: Vec<_> = ROWS.iter().map(|_| Latencies::new()).collect();
    for _ in 0..rounds {
        for (row, result) in ROWS.iter().zip(&mut results) {
            let (round, took) = measure_round(row, options.warm_up, count, cores, &clock)?;
            result.add(&round, took)?;
        }
    }
    print(&results);
    if let Some(file) = &options.common.svg {
        let curves: Vec<_> = ROWS.iter().zip(&results).map(|(row, result)| (row.name, &result.all)).collect();
        chart::write(file, "Round trips between two processes", &machine.caption(), &curves)?;
    }
    Ok(())
}

fn measure_round(
    row: &Row,
    warm_up: u64,
    count: u64,
    cores: Cores,
    clock: &Clock,
) -> Fallible<(Histogram<u64>, Duration)> {
    let mut round = latency::histogram();
    let mut took = Duration::ZERO;
    row.ask(warm_up + count, cores.second(), |way| {
        (0..warm_up).try_for_each(|number| way.round_trip(number).map(|()| way.settle()))?;
        let start = Instant::now();
        for number in warm_up..warm_up + count {
            let sent = clock.raw();
            way.round_trip(number)?;
            round.saturating_record(clock.delta_as_nanos(sent, clock.raw()));
            way.settle();
        }
        took = start.elapsed();
        Ok(())
    })?;
    Ok((round, took))
}

fn print(results: &[Latencies]) {
    let mut heads = vec!["RTT", "/ floor", "min"];
    heads.extend(QUANTILES.map(|(head, _)| head));
    heads.extend(["max", "K RTT/s", "p50 of the rounds"]);
    let mut table = table(&heads);
    let floor = p50(results, FLOOR);
    for (row, result) in ROWS.iter().zip(results) {
        let ns = |ns: u64| Nanoseconds(ns as f64).to_string();
        let mut cells = vec![row.name.to_owned(), format!("{:.2}", result.p50().median / floor), ns(result.all.min())];
        cells.extend(QUANTILES.map(|(_, quantile)| ns(result.all.value_at_quantile(quantile))));
        cells.extend([ns(result.all.max()), format!("{:.0}", result.rate().median / 1e3), result.p50().to_string()]);
        table.add_row(cells);
    }
    println!("{table}\n");
    print_goals(results);
}

/// The median of the rounds' medians, in nanoseconds.
fn p50(results: &[Latencies], name: &str) -> f64 {
    ROWS.iter().position(|row| row.name == name).map_or(f64::NAN, |at| results[at].p50().median)
}

/// Ratios of two rows' p50 that are to be at most so much.
const GOALS: [(&str, &str, f64); 3] = [(POOLED, INLINE, 1.8), (POOLED, FLOOR, 3.0), (LARGEST, SMALLEST, 1.15)];

fn print_goals(results: &[Latencies]) {
    let mut table = table(&["p50 of", "/ that of", "at most", "this run", ""]);
    for (name, other, most) in GOALS {
        let ratio = p50(results, name) / p50(results, other);
        let verdict = if ratio <= most { "pass" } else { "MISSED" };
        table.add_row([name, other, &most.to_string(), &format!("{ratio:.2}"), verdict]);
    }
    println!("{table}");
}
