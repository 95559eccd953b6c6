//! Measures several subjects in turn, so that other activity on the machine affects all of them
//! alike.

use crate::latency::Spread;
use std::time::{Duration, Instant};

/// The approximate duration of a batch: many times the clock's resolution, and mostly less than a
/// scheduler's time slice.
pub const BATCH: Duration = Duration::from_micros(500);

/// How long each subject runs before it is measured.
const WARM_UP: Duration = Duration::from_millis(50);

/// Runs a number of operations and returns their duration, or `None` if they were disturbed. The
/// error says why they cannot run.
pub type Batch = Box<dyn FnMut(u64) -> Result<Option<Duration>, String>>;

/// Runs all subjects in turn, `rounds` times, each round beginning with another one. A batch has
/// `count` operations, or if that is `None` as many as take half a millisecond. Returns nanoseconds
/// per operation over all batches of each, or why there are none, for example because less than
/// half of the batches were undisturbed.
pub fn interleave(
    subjects: impl IntoIterator<Item = Result<Batch, String>>,
    rounds: usize,
    count: Option<u64>,
) -> Vec<Result<Spread, String>> {
    let spread = |times: Vec<f64>| {
        let times: Vec<_> = times.into_iter().filter(|time| !time.is_nan()).collect();
        match times.len() {
            0 => Err("not measured".to_owned()),
            count if count < rounds / 2 => Err("too disturbed to tell".to_owned()),
            _ => Ok(Spread::of(&times)),
        }
    };
    each_round(subjects, rounds, count)
        .into_iter()
        .map(|times| times.and_then(spread))
        .collect()
}

/// Does what [`interleave`] does, and returns the nanoseconds of each round: NaN if it was disturbed.
pub fn each_round(
    subjects: impl IntoIterator<Item = Result<Batch, String>>,
    rounds: usize,
    count: Option<u64>,
) -> Vec<Result<Vec<f64>, String>> {
    let warm = |batch: Result<Batch, String>| batch.and_then(|batch| warm_up(batch, count));
    let mut lanes: Vec<_> = subjects
        .into_iter()
        .map(|batch| (warm(batch), Vec::new()))
        .collect();
    let number = lanes.len();
    for turn in (0..rounds).flat_map(|round| (round..round + number).map(|turn| turn % number)) {
        let (state, times) = &mut lanes[turn];
        let Ok((batch, count)) = state else { continue };
        match batch(*count) {
            Ok(elapsed) => {
                times.push(elapsed.map_or(f64::NAN, |time| time.as_nanos() as f64 / *count as f64))
            }
            Err(reason) => *state = Err(reason),
        }
    }
    lanes
        .into_iter()
        .map(|(state, times)| state.map(|_| times))
        .collect()
}

/// Warms a subject up. Returns it with the number of operations of a batch.
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
