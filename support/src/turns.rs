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
    let mut spreads = Vec::new();
    for times in each_round(subjects, rounds, count) {
        spreads.push(match times {
            Ok(times) => spread_of_undisturbed(times),
            Err(reason) => Err(reason),
        });
    }
    spreads
}

fn spread_of_undisturbed(mut times: Vec<f64>) -> Result<Spread, String> {
    let rounds = times.len();
    times.retain(|time| !time.is_nan());
    if times.is_empty() {
        return Err("not measured".to_owned());
    }
    if times.len() < rounds / 2 {
        return Err("too disturbed to tell".to_owned());
    }
    Ok(Spread::of(&times))
}

/// A subject that is measured.
struct Subject {
    batch: Batch,
    /// The operations of a batch.
    count: u64,
    /// The nanoseconds of an operation in each round.
    times: Vec<f64>,
}

/// Does what [`interleave`] does, and returns the nanoseconds of each round: NaN if it was disturbed.
pub fn each_round(
    subjects: impl IntoIterator<Item = Result<Batch, String>>,
    rounds: usize,
    count: Option<u64>,
) -> Vec<Result<Vec<f64>, String>> {
    // One that cannot run is left out of the rounds, and its reason is the result.
    let mut lanes = Vec::new();
    for batch in subjects {
        lanes.push(match batch {
            Ok(batch) => Subject::warm_up(batch, count),
            Err(reason) => Err(reason),
        });
    }
    let number = lanes.len();
    for round in 0..rounds {
        for turn in 0..number {
            let lane = &mut lanes[(round + turn) % number];
            let Ok(subject) = lane else { continue };
            if let Err(reason) = subject.measure() {
                *lane = Err(reason);
            }
        }
    }
    let mut times = Vec::new();
    for lane in lanes {
        times.push(match lane {
            Ok(subject) => Ok(subject.times),
            Err(reason) => Err(reason),
        });
    }
    times
}

impl Subject {
    /// Runs one batch.
    fn measure(&mut self) -> Result<(), String> {
        let time = match (self.batch)(self.count)? {
            Some(elapsed) => elapsed.as_nanos() as f64 / self.count as f64,
            None => f64::NAN,
        };
        self.times.push(time);
        Ok(())
    }

    fn warm_up(mut batch: Batch, count: Option<u64>) -> Result<Self, String> {
        let count = match count {
            Some(count) => {
                batch(count)?;
                count
            }
            None => warm_up(&mut batch)?,
        };
        Ok(Self {
            batch,
            count,
            times: Vec::new(),
        })
    }
}

/// Warms a subject up. Returns the number of operations that take about as long as [`BATCH`].
fn warm_up(batch: &mut Batch) -> Result<u64, String> {
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
            return Ok((BATCH.as_nanos() as f64 / each).max(1.0) as u64);
        }
    }
}
