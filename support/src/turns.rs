//! Measures several subjects in turn, so that whatever else the machine does meets all of them
//! alike.

use crate::latency::Spread;
use std::time::{Duration, Instant};

/// About how long a batch takes: many times the clock's resolution, and mostly less than a
/// scheduler's time slice.
pub const BATCH: Duration = Duration::from_micros(500);

/// How long each subject runs before it is measured.
const WARM_UP: Duration = Duration::from_millis(50);

/// How long so many operations took; `None` if something else kept them from running. The error is
/// why they cannot.
pub type Batch = Box<dyn FnMut(u64) -> Result<Option<Duration>, String>>;

/// Runs all subjects in turn, `rounds` times, each round beginning with another one. A batch has
/// `count` operations, or if that is `None` as many as take half a millisecond. Gives nanoseconds
/// per operation over all batches of each; or why there are none, be it that less than half of the
/// batches were undisturbed.
pub fn interleave(
    subjects: impl IntoIterator<Item = Result<Batch, String>>,
    rounds: usize,
    count: Option<u64>,
) -> Vec<Result<Spread, String>> {
    let mut lanes: Vec<Lane> = subjects.into_iter().map(|batch| Lane::new(batch, count)).collect();
    let number = lanes.len();
    for round in 0..rounds {
        for turn in 0..number {
            lanes[(round + turn) % number].run();
        }
    }
    lanes.into_iter().map(|lane| lane.spread(rounds)).collect()
}

struct Lane {
    state: Result<(Batch, u64), String>,
    times: Vec<f64>,
}

impl Lane {
    fn new(batch: Result<Batch, String>, count: Option<u64>) -> Self {
        Self { state: batch.and_then(|batch| warm_up(batch, count)), times: Vec::new() }
    }

    fn run(&mut self) {
        let Ok((batch, count)) = &mut self.state else { return };
        match batch(*count) {
            Ok(Some(elapsed)) => self.times.push(elapsed.as_nanos() as f64 / *count as f64),
            Ok(None) => {}
            Err(reason) => self.state = Err(reason),
        }
    }

    fn spread(self, rounds: usize) -> Result<Spread, String> {
        let _ = self.state?;
        match self.times.len() {
            0 => Err("not measured".to_owned()),
            count if count < rounds / 2 => Err("too disturbed to tell".to_owned()),
            _ => Ok(Spread::of(&self.times)),
        }
    }
}

/// Runs a subject until it is warm. Returns it with the number of operations of a batch.
fn warm_up(mut batch: Batch, count: Option<u64>) -> Result<(Batch, u64), String> {
    if let Some(count) = count {
        batch(count)?;
        return Ok((batch, count));
    }
    let mut count = 1;
    let mut total = Duration::ZERO;
    loop {
        let start = Instant::now();
        batch(count)?;
        let elapsed = start.elapsed();
        total += elapsed;
        if elapsed < BATCH {
            count *= 2;
        } else if total >= WARM_UP {
            let each = elapsed.as_nanos() as f64 / count as f64;
            return Ok((batch, (BATCH.as_nanos() as f64 / each).max(1.0) as u64));
        }
    }
}
