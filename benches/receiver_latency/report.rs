//! The tables and charts of a rate's rows.

#![forbid(unsafe_code)]

use crate::ways::ROWS;
use shm_pool_support::latency::Latencies;
use shm_pool_support::table::table;
use shm_pool_support::{chart, Fallible};
use std::path::Path;

/// The repetitions of a row.
#[derive(Default)]
pub(crate) struct Measured {
    pub(crate) intended: Latencies,
    pub(crate) naive: Latencies,
}

/// Prints the table of a rate.
pub(crate) fn print(rate: u64, results: &[Measured]) {
    let heads = ["p50", "p90", "p99", "p99.9", "max", "naive p50", "p99", "p99.9", "max", "p50 of the rounds"];
    let first = format!("{rate} msg/s");
    let mut table = table(&[&[first.as_str(), "achieved msg/s"], &heads[..]].concat());
    for ((name, _), Measured { intended, naive }) in ROWS.iter().zip(results) {
        let mut cells = vec![name.to_string(), format!("{:.0}", intended.rate().median)];
        cells.extend([0.5, 0.9, 0.99, 0.999, 1.0].map(|quantile| intended.at(quantile)));
        cells.extend([0.5, 0.99, 0.999, 1.0].map(|quantile| naive.at(quantile)));
        cells.push(intended.p50().to_string());
        table.add_row(cells);
    }
    println!("{table}");
    // For rows that do not keep up, the length of the run determines the latencies.
    for ((name, _), result) in ROWS.iter().zip(results) {
        if result.intended.rate().median < 0.99 * rate as f64 {
            println!("{name} does not keep up with {rate} msg/s: its latency grows as long as a repetition lasts");
        }
    }
    println!();
}

/// Draws the rows' latencies by intended time.
pub(crate) fn draw(file: &Path, rate: u64, caption: &str, results: &[Measured]) -> Fallible {
    let curves: Vec<_> = ROWS.iter().zip(results).map(|((name, _), result)| (*name, &result.intended.all)).collect();
    let title = format!("From when a message was due until it was received, at {rate} msg/s");
    chart::curves(file, &title, caption, &curves)
}
