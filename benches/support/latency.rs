//! Latencies of a row: all of them in one histogram, and the rounds' medians.

use super::Fallible;
use hdrhistogram::Histogram;
use std::fmt;
use std::time::Duration;

/// From 1 ns to 10 s, to three digits.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 10_000_000_000, 3).expect("bounds that are possible")
}

/// The quantiles of the tables: as a column's head, and as a number.
pub(crate) const QUANTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999)];

/// See the module's text.
pub(crate) struct Latencies {
    pub(crate) all: Histogram<u64>,
    medians: Vec<f64>,
    means: Vec<f64>,
    rates: Vec<f64>,
}

impl Latencies {
    pub(crate) fn new() -> Self {
        Self { all: histogram(), medians: Vec::new(), means: Vec::new(), rates: Vec::new() }
    }

    /// Adds a round, which took so long.
    pub(crate) fn add(&mut self, round: &Histogram<u64>, took: Duration) -> Fallible {
        self.all.add(round)?;
        self.medians.push(round.value_at_quantile(0.5) as f64);
        self.means.push(round.mean());
        self.rates.push(round.len() as f64 / took.as_secs_f64());
        Ok(())
    }

    /// The rounds' median latencies, in nanoseconds.
    pub(crate) fn p50(&self) -> Spread {
        Spread::of(&self.medians)
    }

    /// The rounds' mean latencies, in nanoseconds.
    pub(crate) fn mean(&self) -> Spread {
        Spread::of(&self.means)
    }

    /// Each round's mean latency, in nanoseconds.
    pub(crate) fn means(&self) -> &[f64] {
        &self.means
    }

    /// Messages, or round trips, per second.
    pub(crate) fn rate(&self) -> Spread {
        Spread::of(&self.rates)
    }
}

/// The median and the range of some rounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Spread {
    pub(crate) fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        let (count, middle) = (sorted.len(), sorted.len() / 2);
        let median = if count % 2 == 1 { at(middle) } else { (at(middle.wrapping_sub(1)) + at(middle)) / 2.0 };
        Self { median, least: at(0), most: at(count.wrapping_sub(1)) }
    }
}

/// A time in nanoseconds, as tables print it.
#[derive(Clone, Copy)]
pub(crate) struct Nanoseconds(pub(crate) f64);

impl fmt::Display for Nanoseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ns if ns < 9_999.5 => write!(f, "{ns:.0} ns"),
            ns if ns < 999_500.0 => write!(f, "{:.1} µs", ns / 1e3),
            ns if ns < 9_999_500_000.0 => write!(f, "{:.1} ms", ns / 1e6),
            ns => write!(f, "{:.1} s", ns / 1e9),
        }
    }
}

/// As a range in nanoseconds.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} to {})", Nanoseconds(self.median), Nanoseconds(self.least), Nanoseconds(self.most))
    }
}
