//! The latencies of a row: one histogram of all of them, and the rounds' medians.

use crate::units::Nanoseconds;
use crate::Fallible;
use hdrhistogram::Histogram;
use std::fmt;
use std::time::Duration;

/// The longest latency that is distinguished from longer ones, in nanoseconds.
const LONGEST: u64 = 10_000_000_000;

/// From 1 ns to 10 s, to three digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST, 3).expect("bounds that are possible")
}

/// Formats the latency at a quantile for tables; 0 is the shortest, and 1 the longest.
pub fn at(all: &Histogram<u64>, quantile: f64) -> String {
    let value = all.value_at_quantile(quantile);
    let shown = match quantile {
        0.0 => all.min(),
        _ if value >= LONGEST => return "10 s or more".to_owned(),
        1.0 => all.max(),
        _ => value,
    };
    Nanoseconds(shown as f64).to_string()
}

/// The quantiles of the tables: as a column's head, and as a number.
pub const QUANTILES: [(&str, f64); 5] = [
    ("p50", 0.5),
    ("p90", 0.9),
    ("p99", 0.99),
    ("p99.9", 0.999),
    ("p99.99", 0.9999),
];

/// All rounds of a row.
pub struct Latencies {
    /// Of all rounds together.
    pub all: Histogram<u64>,
    medians: Vec<f64>,
    rates: Vec<f64>,
}

impl Default for Latencies {
    fn default() -> Self {
        Self {
            all: histogram(),
            medians: Vec::new(),
            rates: Vec::new(),
        }
    }
}

impl Latencies {
    /// Adds a round of the given duration.
    pub fn add(&mut self, round: &Histogram<u64>, took: Duration) -> Fallible {
        self.all.add(round)?;
        self.medians.push(round.value_at_quantile(0.5) as f64);
        self.rates.push(round.len() as f64 / took.as_secs_f64());
        Ok(())
    }

    /// Formats the latency at a quantile of all for tables.
    pub fn at(&self, quantile: f64) -> String {
        at(&self.all, quantile)
    }

    /// Returns the rounds' median latencies, in nanoseconds.
    pub fn p50(&self) -> Spread {
        Spread::of(&self.medians)
    }

    /// Returns the messages, or round trips, per second.
    pub fn rate(&self) -> Spread {
        Spread::of(&self.rates)
    }
}

/// The median and the range of some rounds.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// Of an even number of values, the mean of the middle two.
    pub median: f64,
    /// The lowest.
    pub least: f64,
    /// The highest.
    pub most: f64,
}

impl Spread {
    /// Returns the spread of any values; of none, NaN.
    pub fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let Some(least) = sorted.first() else {
            return Self {
                median: f64::NAN,
                least: f64::NAN,
                most: f64::NAN,
            };
        };
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            (sorted[middle - 1] + sorted[middle]) / 2.0
        };
        Self {
            median,
            least: *least,
            most: sorted[sorted.len() - 1],
        }
    }
}

/// As a range in nanoseconds.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({} to {})",
            Nanoseconds(self.median),
            Nanoseconds(self.least),
            Nanoseconds(self.most)
        )
    }
}
