//! Measures contenders in turn, so that whatever else the machine does meets all of them alike.

use crate::workload::Batch;
use std::time::Duration;

/// About how long a batch takes: many times the clock's resolution, and mostly less than a scheduler's time slice.
const BATCH: Duration = Duration::from_micros(500);

/// How long each contender runs before it is measured.
const WARM_UP: Duration = Duration::from_millis(50);

/// How much to measure.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    pub(crate) mixed_rounds: usize,
    /// Orders in which each mixture fills the cap.
    pub(crate) orders: u64,
    /// Those of them that go on when it is full, and for how many messages.
    pub(crate) churned: u64,
    pub(crate) churn: usize,
    /// Only whether everything works, with every byte of the mixture compared.
    pub(crate) is_quick: bool,
}

impl Effort {
    pub(crate) const FULL: Self =
        Self { rounds: 200, mixed_rounds: 40, orders: 20, churned: 5, churn: 2000, is_quick: false };
    pub(crate) const QUICK: Self =
        Self { rounds: 2, mixed_rounds: 1, orders: 2, churned: 2, churn: 200, is_quick: true };
}

/// One that takes part. `batch` is why not, if it cannot.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    pub(crate) batch: Result<Batch, String>,
}

/// Nanoseconds per message over all batches of a contender.
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

/// A contender's result, or why there is none.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) spread: Result<Spread, String>,
}

/// Runs all contenders in turn, `rounds` times, each round beginning with another one. A batch has `count` messages, or
/// if that is `None` as many as take half a millisecond.
pub(crate) fn interleave(contenders: Vec<Contender>, rounds: usize, count: Option<u64>) -> Vec<Row> {
    let mut lanes: Vec<Lane> = contenders.into_iter().map(|contender| Lane::new(contender, count)).collect();
    let number = lanes.len();
    for round in 0..rounds {
        for turn in 0..number {
            lanes[(round + turn) % number].run();
        }
    }
    lanes.into_iter().map(Lane::into_row).collect()
}

struct Lane {
    name: &'static str,
    state: Result<(Batch, u64), String>,
    times: Vec<f64>,
}

impl Lane {
    fn new(contender: Contender, count: Option<u64>) -> Self {
        let state = contender.batch.and_then(|batch| warm_up(batch, count));
        Self { name: contender.name, state, times: Vec::new() }
    }

    fn run(&mut self) {
        let Ok((batch, count)) = &mut self.state else { return };
        match batch(*count) {
            Ok(elapsed) => self.times.push(elapsed.as_nanos() as f64 / *count as f64),
            Err(reason) => self.state = Err(reason),
        }
    }

    fn into_row(mut self) -> Row {
        self.times.sort_by(f64::total_cmp);
        let times = self.times;
        let spread = self.state.and_then(|_| match times[..] {
            [] => Err("not measured".to_owned()),
            [min, .., max] => Ok(Spread { median: times[times.len() / 2], min, max }),
            [only] => Ok(Spread { median: only, min: only, max: only }),
        });
        Row { name: self.name, spread }
    }
}

/// Runs a contender until it is warm. Returns it with the number of messages of a batch.
fn warm_up(mut batch: Batch, count: Option<u64>) -> Result<(Batch, u64), String> {
    if let Some(count) = count {
        batch(count)?;
        return Ok((batch, count));
    }
    let mut count = 1;
    let mut total = Duration::ZERO;
    loop {
        let elapsed = batch(count)?;
        total += elapsed;
        if elapsed < BATCH {
            count *= 2;
        } else if total >= WARM_UP {
            let per_message = elapsed.as_nanos() as f64 / count as f64;
            return Ok((batch, (BATCH.as_nanos() as f64 / per_message).max(1.0) as u64));
        }
    }
}
