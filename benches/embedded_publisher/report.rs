//! The figures of all rounds, as tables and curves.

#![forbid(unsafe_code)]

use crate::round::{Form, Round};
use hdrhistogram::Histogram;
use shm_pool_support::latency::{self, Spread};
use shm_pool_support::line::slope;
use shm_pool_support::table::{table, Goal};

/// CPU per message, pooled to baseline.
const GOAL: Goal = Goal::AtMost(0.5);

/// All rounds of one form at one rate.
#[derive(Default)]
pub(crate) struct Column(pub(crate) Vec<Round>);

/// Its head, and its cell in each column.
type Row = (&'static str, fn(&Column) -> String);

const ROWS: &[Row] = &[
    // All counts are equal, or there would be no table.
    ("samples = sent = received", |column| column.latencies().len().to_string()),
    ("bytes per message", |column| column.per_message(0, |round| round.published.counts.bytes)),
    ("**publisher**: CPU per message", |column| column.spread(cpu_per_message).to_string()),
    ("context switches per second", |column| column.spread(switches_per_second).range(0)),
    ("heap operations per message", |column| column.per_message(2, |round| round.published.usage.heap)),
    ("fresh segments per message", |column| column.per_message(2, |round| round.published.counts.segments)),
    ("minor faults per message", |column| column.per_message(3, |round| round.published.usage.faults)),
    ("peak RSS, KiB", |column| column.spread(|round| (round.peak >> 10) as f64).range(0)),
    ("RSS slope, bytes per message", |column| column.spread(|round| slope(&round.resident)).range(2)),
    ("**subscriber**: CPU per message", |column| column.spread(subscriber_cpu).to_string()),
    ("**end to end**: p50", |column| latency::at(&column.latencies(), 0.5)),
    ("p99", |column| latency::at(&column.latencies(), 0.99)),
    ("of it the device was late: p50", |column| latency::at(&column.delays(), 0.5)),
    ("p99", |column| latency::at(&column.delays(), 0.99)),
];

impl Column {
    fn spread(&self, value: impl Fn(&Round) -> f64) -> Spread {
        Spread::of(&self.0.iter().map(value).collect::<Vec<_>>())
    }

    /// The value per message, over all rounds.
    fn per_message(&self, decimals: usize, value: impl Fn(&Round) -> u64) -> String {
        let messages: u64 = self.0.iter().map(|round| round.published.counts.messages).sum();
        format!("{:.decimals$}", self.0.iter().map(value).sum::<u64>() as f64 / messages as f64)
    }

    /// From a sample's time to its decoded message, in all rounds.
    pub(crate) fn latencies(&self) -> Histogram<u64> {
        self.histogram(|round| &round.received.latencies)
    }

    fn delays(&self) -> Histogram<u64> {
        self.histogram(|round| &round.late)
    }

    fn histogram(&self, of: impl Fn(&Round) -> &Vec<u64>) -> Histogram<u64> {
        let mut all = latency::histogram();
        self.0.iter().flat_map(of).for_each(|&ns| all.saturating_record(ns));
        all
    }

    /// The rounds' CPU per message, relative to another column's in the same round.
    fn ratio(&self, other: &Self) -> Spread {
        let pairs = self.0.iter().zip(&other.0);
        Spread::of(&pairs.map(|(one, other)| cpu_per_message(one) / cpu_per_message(other)).collect::<Vec<_>>())
    }
}

fn cpu_per_message(round: &Round) -> f64 {
    round.published.usage.cpu as f64 / round.published.counts.messages as f64
}

fn switches_per_second(round: &Round) -> f64 {
    round.published.usage.switches as f64 * 1e9 / round.published.usage.time as f64
}

fn subscriber_cpu(round: &Round) -> f64 {
    round.received.cpu as f64 / round.received.latencies.len() as f64
}

/// Prints the columns of one rate, by form.
pub(crate) fn print(rate: &str, columns: &[Column]) {
    let mut table = table(&[&[rate], &Form::ALL.map(Form::name)[..]].concat());
    for &(head, cell) in ROWS {
        table.add_row([head.to_owned()].into_iter().chain(columns.iter().map(cell)));
    }
    println!("{table}\n");
}

/// Prints whether the goal was met, at each rate.
pub(crate) fn print_ratios<'a>(rates: impl IntoIterator<Item = (&'a str, &'a [Column; Form::ALL.len()])>) {
    let mut table = table(&["CPU per message, publisher", "goal", "this run, median (range)", ""]);
    for (rate, [baseline, blocking, pooled]) in rates {
        let ratio = pooled.ratio(baseline);
        let name = format!("pooled / {}, {rate}", Form::Baseline.name());
        table.add_row([&name, &GOAL.to_string(), &ratio.range(3), GOAL.verdict(ratio.median)]);
        let name = format!("pooled / {}, {rate}", Form::Blocking.name());
        table.add_row([&name, "", &pooled.ratio(blocking).range(3), ""]);
    }
    println!("{table}");
}
