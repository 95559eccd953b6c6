//! How long an allocation takes for messages of random sizes, each filled, shared, and held by a
//! reader until several later ones have arrived.
//!
//! talc supports no readers, classes or descriptors; beside the pool it shows the cost of splitting
//! alone on this machine, with caches that filling the messages has left cold.

#![forbid(unsafe_code)]

use crate::stores::{check_ends, Pool, Store, Talc};
use fastrand::Rng;
use hdrhistogram::Histogram;
use quanta::Clock;
use shm_pool_support::latency::{at, histogram};
use shm_pool_support::table::{show, table, Goal};
use shm_pool_support::Fallible;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;

/// Bytes under the cap.
const CAP: usize = 64 << 20;

/// Bytes of the largest message.
const LARGEST: usize = 4 << 20;

/// How many messages the reader holds; with 20, two thirds of the cap are in use on average, and at
/// times nearly all.
const HELD: [Held; 4] = [
    Held::of(4, 0),
    Held::of(12, 0),
    Held::of(20, 0),
    Held::of(20, 1000),
];

/// The messages that the reader holds.
#[derive(Clone, Copy)]
struct Held {
    /// Messages of random sizes, each until so many later ones have arrived.
    in_turn: usize,
    /// Short messages of the beginning, to the end.
    for_good: usize,
}

impl Held {
    const fn of(in_turn: usize, for_good: usize) -> Self {
        Self { in_turn, for_good }
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.in_turn)?;
        if self.for_good > 0 {
            write!(f, " and {} for good", self.for_good)?;
        }
        Ok(())
    }
}

/// The duration of an allocation in half of all cases, in nanoseconds.
const GOAL_P50: Goal = Goal::AtMost(1_000.0);

/// And in 99 of 100.
const GOAL_P99: Goal = Goal::AtMost(5_000.0);

/// The size of a run.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) messages: usize,
    pub(crate) warm_up: usize,
}

/// The results of a row's messages.
struct Outcome {
    /// How long an allocation took, in nanoseconds.
    waits: Histogram<u64>,
    /// Allocations that were refused; the reader then released the message it had held longest.
    refused: usize,
    /// Segments created, without the warm-up.
    made: u64,
}

/// Checks the messages of all rows without timing them.
pub(crate) fn check(effort: Effort) -> Fallible {
    for held in HELD {
        run::<Pool>(held, effort)?;
        run::<Talc>(held, effort)?;
    }
    println!(
        "{} messages with {:?} held: all as written",
        effort.messages,
        HELD.map(|held| held.in_turn)
    );
    Ok(())
}

pub(crate) fn measure(effort: Effort) -> Fallible {
    println!(
        "Allocation at a cap of 64 MiB, messages of 1 B to 4 MiB, the thread pinned to a core"
    );
    println!(
        "{} warm-up and {} measured messages for each row\n",
        effort.warm_up, effort.messages
    );
    let mut rows = table(&[
        "held",
        "refused",
        "segments made",
        "p50",
        "p99",
        "p99.9",
        "max",
        "talc p50",
        "talc p99",
        "talc p99.9",
        "talc refused",
        "p50, goal 1 µs",
        "p99, goal 5 µs",
    ]);
    for held in HELD {
        let pool = run::<Pool>(held, effort)?;
        let talc = run::<Talc>(held, effort)?;
        rows.add_row([
            held.to_string(),
            pool.refused.to_string(),
            pool.made.to_string(),
            at(&pool.waits, 0.5),
            at(&pool.waits, 0.99),
            at(&pool.waits, 0.999),
            at(&pool.waits, 1.0),
            at(&talc.waits, 0.5),
            at(&talc.waits, 0.99),
            at(&talc.waits, 0.999),
            talc.refused.to_string(),
            pool.verdict(0.5, GOAL_P50).to_owned(),
            pool.verdict(0.99, GOAL_P99).to_owned(),
        ]);
    }
    show("at_the_cap", &rows);
    Ok(())
}

impl Outcome {
    /// A row that made segments misses every goal.
    fn verdict(&self, quantile: f64, goal: Goal) -> &'static str {
        let wait = self.waits.value_at_quantile(quantile) as f64;
        goal.verdict(if self.made == 0 { wait } else { f64::NAN })
    }
}

/// Sends the messages to one reader, which checks each when it releases it.
fn run<S: Store>(held: Held, effort: Effort) -> Fallible<Outcome> {
    let store = S::new(CAP)?;
    let mut random = Rng::with_seed(1);
    let mut for_good = Vec::with_capacity(held.for_good);
    for number in 0..held.for_good {
        let Some(message) = store.alloc(64 + 64 * (number % 32))? else {
            return Err("the pool is empty, and refuses".into());
        };
        for_good.push(store.share(message)?);
    }
    let mut queue = VecDeque::with_capacity(held.in_turn + 1);
    let mut outcome = Outcome {
        waits: histogram(),
        refused: 0,
        made: 0,
    };
    let clock = Clock::new();
    for number in 0..effort.warm_up + effort.messages {
        if number == effort.warm_up {
            outcome = Outcome {
                waits: histogram(),
                refused: 0,
                made: store.segments(),
            };
        }
        let len = random.usize(1..=LARGEST);
        let mark = random.u8(..);
        let mut message = loop {
            let start = clock.raw();
            let found = store.alloc(len);
            let nanoseconds = clock.delta_as_nanos(start, clock.raw());
            outcome.waits.saturating_record(nanoseconds);
            if let Some(message) = found? {
                break message;
            }
            outcome.refused += 1;
            release_oldest(&mut queue)?;
        };
        message.fill(mark);
        queue.push_back((store.share(message)?, mark));
        if queue.len() > held.in_turn {
            release_oldest(&mut queue)?;
        }
    }
    outcome.made = store.segments() - outcome.made;
    while !queue.is_empty() {
        release_oldest(&mut queue)?;
    }
    Ok(outcome)
}

fn release_oldest<M: Deref<Target = [u8]>>(queue: &mut VecDeque<(M, u8)>) -> Fallible {
    let (oldest, mark) = queue.pop_front().ok_or("a message alone does not fit")?;
    check_ends(&oldest, mark)
}
