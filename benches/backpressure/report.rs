//! The tables of the camera and the IMU.

#![forbid(unsafe_code)]

use crate::sensors::Outcome;
use crate::ways::{Way, POLLING, WAYS};
use shm_pool_support::latency::{self, Spread};
use shm_pool_support::table::{table, Goal, Table};
use shm_pool_support::units::Nanoseconds;
use shm_pool_support::Fallible;

/// Where memory is released in time, no frame need be dropped.
const DROPPED: Goal = Goal::AtMost(0.0);

/// CPU time beside that of polling every 200 µs.
const CPU: Goal = Goal::AtMost(0.5);

/// How soon it gets memory, beside polling every 200 µs: a lost wake-up shows here.
const LATE: Goal = Goal::AtMost(1.0);

/// What a failed attempt may take, in nanoseconds: every poll pays it.
const IN_VAIN: Goal = Goal::AtMost(1_000.0);

/// By way.
type Rounds = [Vec<Outcome>; WAYS.len()];

/// Prints the results of all rounds of each way.
pub(crate) fn print(results: &Rounds) -> Fallible {
    print_messages(results)?;
    print_costs(results);
    Ok(())
}

fn print_messages(results: &Rounds) -> Fallible {
    let heads = ["waiting by", "frames", "dropped", "though memory was back", "goal", "", "IMU dropped", "goal", ""];
    let times = ["alloc p50", "p99", "after the hoard's end, p50", "p99"];
    let mut rows = table(&[&heads[..], &times].concat());
    for ((way, name), rounds) in WAYS.iter().zip(results) {
        let sum = |of: fn(&Outcome) -> u64| rounds.iter().map(of).sum::<u64>();
        let (mut allocations, mut late) = (latency::histogram(), latency::histogram());
        for Outcome { frames, .. } in rounds {
            allocations.add(&frames.allocations)?;
            late.add(&frames.late)?;
        }
        let dropped = sum(|round| round.frames.dropped.len() as u64);
        let mut row = vec![(*name).to_owned(), sum(|round| round.frames.published).to_string(), dropped.to_string()];
        let goal = goal_of(*way, DROPPED);
        for count in [sum(|round| round.missed), sum(|round| round.samples.dropped)] {
            row.extend([count.to_string(), goal.to_string(), goal.verdict(count as f64).to_owned()]);
        }
        row.extend([&allocations, &late].iter().flat_map(|all| [latency::at(all, 0.5), latency::at(all, 0.99)]));
        rows.add_row(row);
    }
    println!("{rows}\n");
    Ok(())
}

fn print_costs(results: &Rounds) {
    let mut costs = table(&["of the rounds", "", "/ polling's", "goal", ""]);
    add_costs(&mut costs, results, "CPU to get memory, per frame", CPU, allocating);
    add_costs(&mut costs, results, "CPU for all but filling, per message", CPU, sending);
    add_costs(&mut costs, results, "memory after the hoard's end, p50", LATE, late);
    let in_vain = Spread::of(&results.iter().flatten().map(|round| round.in_vain).collect::<Vec<_>>());
    let verdict = IN_VAIN.verdict(in_vain.median);
    println!("{costs}\n\nAn attempt that finds nothing takes {in_vain}. Goal: at most 1 µs, {verdict}.");
}

/// One row for each way: the median of its rounds, and of their ratios.
fn add_costs(costs: &mut Table, results: &Rounds, what: &str, goal: Goal, cost: fn(&Outcome) -> f64) {
    for ((way, name), rounds) in WAYS.iter().zip(results) {
        let of_rounds: Vec<f64> = rounds.iter().map(cost).collect();
        let ratios = rounds.iter().zip(&results[POLLING]).map(|(one, other)| cost(one) / cost(other));
        let ratio = Spread::of(&ratios.collect::<Vec<_>>());
        let goal = goal_of(*way, goal);
        costs.add_row([
            format!("{what}: {name}"),
            Nanoseconds(Spread::of(&of_rounds).median).to_string(),
            ratio.range(2),
            goal.to_string(),
            goal.verdict(ratio.median).to_owned(),
        ]);
    }
}

/// Only the library's ways have goals.
fn goal_of(way: Way, goal: Goal) -> Goal {
    if way == Way::Timeout {
        goal
    } else {
        Goal::None
    }
}

/// The camera thread's time for memory.
fn allocating(Outcome { frames, .. }: &Outcome) -> f64 {
    frames.cpu_allocating as f64 / frames.allocations.len() as f64
}

/// The process's time for everything but the bytes.
fn sending(Outcome { frames, samples, cpu, .. }: &Outcome) -> f64 {
    (cpu - frames.cpu_filling) as f64 / (frames.published + samples.published) as f64
}

/// How long after a hoard's end the camera got memory; NaN if it never waited for one.
fn late(Outcome { frames, .. }: &Outcome) -> f64 {
    if frames.late.is_empty() {
        return f64::NAN;
    }
    frames.late.value_at_quantile(0.5) as f64
}
