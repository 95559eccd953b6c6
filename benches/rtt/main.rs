//! Round trips between two processes, each on a separate core: "RTT, unloaded". One message is in
//! transit at a time. Some rows again with both processes on one core, beside a pipe.
//!
//! Each row is a way for a message to reach another process and for a reply to return. All rows are
//! measured in turn, in several rounds, next to the machine's floor: one cache line that the two
//! processes write in turn. Both processes check every message.

mod floor;
mod segment;
mod slot;
mod ways;

use clap::Parser;
use hdrhistogram::Histogram;
use quanta::Clock;
use shm_pool_support::latency::{self, Latencies, QUANTILES};
use shm_pool_support::machine::{pin, Cores, Machine};
use shm_pool_support::options::Common;
use shm_pool_support::table::{show, table, Goal};
use shm_pool_support::{clock, process, Fallible};
use std::time::{Duration, Instant};
use ways::{
    Answer, Row, Way, DEFAULT, FLOOR, FUTEX, INLINE, LARGEST, PIPE, POOLED, ROWS, ROWS_ON_ONE_CORE,
    SLOT, SMALLEST,
};

/// Ratios of two rows' p50.
const GOALS: [(&str, &str, Goal); 6] = [
    (POOLED, INLINE, Goal::AtMost(1.8)),
    (POOLED, FLOOR, Goal::AtMost(3.0)),
    (LARGEST, SMALLEST, Goal::AtMost(1.15)),
    (DEFAULT, INLINE, Goal::AtMost(1.1)),
    (FUTEX[0], SLOT[0], Goal::AtMost(1.0)),
    (FUTEX[1], SLOT[1], Goal::AtMost(1.0)),
];

const GOALS_ON_ONE_CORE: [(&str, &str, Goal); 1] = [(DEFAULT, PIPE, Goal::AtMost(1.2))];

/// Round trips between two processes, beside the machine's floor.
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    common: Common,
    /// Round trips of each row, over all rounds
    #[arg(long, default_value_t = 50_000)]
    round_trips: u64,
}

fn main() -> Fallible {
    if let Some(answer) = process::task::<Answer>() {
        return answer.run();
    }
    let options = Options::parse();
    let cores = options.common.cores()?;
    // Before pinning, so that it counts all cores.
    let machine = Machine::now();
    pin(cores.first())?;
    if options.common.quick.quick {
        check(cores)
    } else {
        measure(&options, &machine, cores)
    }
}

/// A few round trips by each way.
fn check(cores: Cores) -> Fallible {
    const COUNT: u64 = 500;
    for (name, way) in ROWS {
        measure_round(way, 0, COUNT, cores.second(), &Clock::new())?;
        println!("{name}: {COUNT} round trips, all as sent");
    }
    for (name, way) in ROWS_ON_ONE_CORE {
        measure_round(way, 0, COUNT, cores.first(), &Clock::new())?;
        println!("{name}: {COUNT} round trips on one core, all as sent");
    }
    Ok(())
}

fn measure(options: &Options, machine: &Machine, cores: Cores) -> Fallible {
    let clock = Clock::new();
    println!("RTT, unloaded: two processes, one message under way\n");
    let cost = clock::cost(|| clock.raw());
    machine.print(
        &format!(
            "the processor's counter, {cost:.1} ns a reading, \
             two readings a round trip, of which each figure contains one"
        ),
        "one pinned to each process",
    );
    let rounds = options.common.rounds;
    let (warm_up, count) = counts(options);
    println!(
        "rows     in turn, {rounds} rounds of {warm_up} warm-up and {count} measured round trips\n"
    );
    let results = measure_rows(options, &ROWS, cores.second(), &clock)?;
    print("rtt", &ROWS, &results, FLOOR, "/ floor");
    print_goals("rtt goals", &ROWS, &results, &GOALS);

    println!("Both processes on one core\n");
    let rows = &ROWS_ON_ONE_CORE;
    let results = measure_rows(options, rows, cores.first(), &clock)?;
    print("rtt on one core", rows, &results, PIPE, "/ pipe");
    print_goals("rtt on one core goals", rows, &results, &GOALS_ON_ONE_CORE);
    Ok(())
}

/// Returns how many round trips of a round are a warm-up, and how many are measured.
fn counts(options: &Options) -> (u64, u64) {
    let count = options.round_trips.div_ceil(options.common.rounds.into());
    (count.div_ceil(10), count)
}

/// All rows in turn, in several rounds; `core` is the other process's.
fn measure_rows(
    options: &Options,
    rows: &[Row],
    core: Option<usize>,
    clock: &Clock,
) -> Fallible<Vec<Latencies>> {
    let (warm_up, count) = counts(options);
    let mut results = Vec::new();
    results.resize_with(rows.len(), Latencies::default);
    for _ in 0..options.common.rounds {
        for ((_, way), result) in rows.iter().zip(&mut results) {
            let (round, took) = measure_round(*way, warm_up, count, core, clock)?;
            result.add(&round, took)?;
        }
    }
    Ok(results)
}

fn measure_round(
    way: Way,
    warm_up: u64,
    count: u64,
    core: Option<usize>,
    clock: &Clock,
) -> Fallible<(Histogram<u64>, Duration)> {
    let mut round = latency::histogram();
    let mut took = Duration::ZERO;
    way.run(warm_up + count, core, |way| {
        for number in 0..warm_up {
            way.round_trip(number)?;
            way.settle();
        }
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

/// `base` is the row with which `heading` compares the others.
fn print(title: &str, ways: &[Row], results: &[Latencies], base: &str, heading: &str) {
    let mut heads = vec!["RTT", heading, "min"];
    for (head, _) in QUANTILES {
        heads.push(head);
    }
    heads.extend(["max", "K RTT/s", "p50 of the rounds"]);
    let mut rows = table(&heads);
    let base = p50(ways, results, base);
    for ((name, _), result) in ways.iter().zip(results) {
        let mut cells = vec![
            name.to_string(),
            format!("{:.2}", result.p50().median / base),
            result.at(0.0),
        ];
        for (_, quantile) in QUANTILES {
            cells.push(result.at(quantile));
        }
        cells.extend([
            result.at(1.0),
            format!("{:.0}", result.rate().median / 1e3),
            result.p50().to_string(),
        ]);
        rows.add_row(cells);
    }
    show(title, &rows);
}

fn print_goals(title: &str, ways: &[Row], results: &[Latencies], of: &[(&str, &str, Goal)]) {
    let mut goals = table(&["p50 of", "/ that of", "goal", "this run", ""]);
    for &(name, other, goal) in of {
        let ratio = p50(ways, results, name) / p50(ways, results, other);
        goals.add_row([
            name,
            other,
            &goal.to_string(),
            &format!("{ratio:.2}"),
            goal.verdict(ratio),
        ]);
    }
    show(title, &goals);
}

/// The median of the rounds' medians, in nanoseconds.
fn p50(ways: &[Row], results: &[Latencies], name: &str) -> f64 {
    match ways.iter().position(|row| row.0 == name) {
        Some(at) => results[at].p50().median,
        None => f64::NAN,
    }
}
