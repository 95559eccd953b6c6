//! What is recorded of the messages, and what is printed of a rate's rows, and drawn.

#![forbid(unsafe_code)]

use crate::link::{Row, ROWS};
use crate::publisher::Message;
use hdrhistogram::Histogram;
use shm_pool_support::latency::{self, Latencies};
use shm_pool_support::table::table;
use shm_pool_support::units::Nanoseconds;
use shm_pool_support::{chart, Fallible};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The two latencies of each message, each in a histogram.
pub(crate) struct Columns {
    /// Since the message was due. What held the publisher up is in it.
    pub(crate) intended: Histogram<u64>,
    /// Since the publisher came to send the message. What held it up before is not in it.
    pub(crate) naive: Histogram<u64>,
}

impl Columns {
    pub(crate) fn new() -> Self {
        Self { intended: latency::histogram(), naive: latency::histogram() }
    }

    pub(crate) fn reset(&mut self) {
        self.intended.reset();
        self.naive.reset();
    }

    #[inline]
    pub(crate) fn record(&mut self, now: u64, message: &Message) {
        self.intended.saturating_record(now - message.intended);
        self.naive.saturating_record(now - message.actual);
    }
}

/// The repetitions of a row.
pub(crate) struct Measured {
    intended: Latencies,
    naive: Latencies,
}

impl Measured {
    pub(crate) fn new() -> Self {
        Self { intended: Latencies::default(), naive: Latencies::default() }
    }

    pub(crate) fn add(&mut self, columns: &Columns, took: Duration) -> Fallible {
        self.intended.add(&columns.intended, took)?;
        self.naive.add(&columns.naive, took)
    }
}

/// Where the histograms end.
const END: u64 = 10_000_000_000;

fn time(ns: u64) -> String {
    if ns < END {
        Nanoseconds(ns as f64).to_string()
    } else {
        "10 s or more".to_owned()
    }
}

fn at(histogram: &Histogram<u64>, quantile: f64) -> String {
    time(histogram.value_at_quantile(quantile))
}

/// Prints the table of a rate.
pub(crate) fn print(rate: u64, results: &[Measured]) {
    let heads = ["p50", "p90", "p99", "p99.9", "max", "naive p50", "p99", "p99.9", "max", "p50 of the rounds"];
    let first = format!("{rate} msg/s");
    let mut table = table(&[&[first.as_str(), "achieved msg/s"], &heads[..]].concat());
    for (row, result) in ROWS.iter().zip(results) {
        let (intended, naive) = (&result.intended.all, &result.naive.all);
        let mut cells = vec![row.name.to_owned(), format!("{:.0}", result.intended.rate().median)];
        cells.extend([0.5, 0.9, 0.99, 0.999].map(|quantile| at(intended, quantile)));
        cells.push(time(intended.max()));
        cells.extend([0.5, 0.99, 0.999].map(|quantile| at(naive, quantile)));
        cells.push(time(naive.max()));
        let medians = result.intended.p50();
        cells.push(if medians.most < END as f64 { medians.to_string() } else { time(END) });
        table.add_row(cells);
    }
    println!("{table}");
    print_behind(rate, results);
}

/// Rows that do not keep up have latencies of which the length of the run decides.
fn print_behind(rate: u64, results: &[Measured]) {
    let is_behind = |(_, result): &(&Row, &Measured)| result.intended.rate().median < 0.99 * rate as f64;
    for (row, _) in ROWS.iter().zip(results).filter(is_behind) {
        println!("{} does not keep up with {rate} msg/s: its latency grows as long as a repetition lasts", row.name);
    }
    println!();
}

/// Draws the rows' latencies by intended time.
pub(crate) fn draw(file: &Path, rate: u64, caption: &str, results: &[Measured]) -> Fallible {
    let curves: Vec<_> = ROWS.iter().zip(results).map(|(row, result)| (row.name, &result.intended.all)).collect();
    let title = format!("From when a message was due until it was received, at {rate} msg/s");
    chart::curves(file, &title, caption, &curves)
}

/// The chart of one rate of several: `name-rate.svg`.
pub(crate) fn file_of(file: &Path, rate: u64) -> PathBuf {
    let name = file.file_stem().unwrap_or_default().to_string_lossy();
    file.with_file_name(format!("{name}-{rate}.svg"))
}
