//! The cost of an allocation that is refused, which a publisher that polls pays for each attempt.

#![forbid(unsafe_code)]

use crate::PREFIX;
use shm_pool::{Client, Namespace, Provider, ShmBytesMut, ShmView};
use shm_pool_support::latency::Spread;
use shm_pool_support::table::{show, table, Goal};
use shm_pool_support::units::{Bytes, Nanoseconds};
use shm_pool_support::Fallible;
use std::time::Instant;

const CAP: usize = 64 << 20;

/// Bytes of the refused message, a camera frame.
const FRAME: usize = 6 << 20;

/// Where there is little to search, in nanoseconds.
const GOAL: Goal = Goal::AtMost(1_000.0);

/// The contents of a full pool.
#[derive(Clone, Copy)]
enum Filled {
    /// Buffers of this many bytes, held by the publisher.
    Held(usize),
    /// Messages of this many bytes, leased by a reader.
    Leased(usize),
}

const ROWS: [Filled; 4] = [
    Filled::Held(FRAME),
    Filled::Held(64 << 10),
    Filled::Leased(FRAME),
    Filled::Leased(64 << 10),
];

impl Filled {
    fn name(self) -> String {
        match self {
            Self::Held(len) => format!("buffers of {}, held", Bytes(len as u64)),
            Self::Leased(len) => format!("messages of {}, leased", Bytes(len as u64)),
        }
    }
}

/// A full pool. The buffers and views keep it full.
struct Full {
    provider: Provider,
    _held: Vec<ShmBytesMut>,
    _leased: Vec<ShmView>,
}

impl Full {
    fn new(filled: Filled) -> Fallible<Self> {
        let provider = Provider::builder()
            .namespace(&Namespace::new(PREFIX).unwrap())
            .max_bytes(CAP)
            .max_shared(4096)
            .build()?;
        let client = Client::in_namespace(&Namespace::new(PREFIX).unwrap());
        let mut held = Vec::new();
        let mut leased = Vec::new();
        match filled {
            Filled::Held(len) => {
                while let Ok(buffer) = provider.alloc(len) {
                    held.push(buffer);
                }
            }
            Filled::Leased(len) => {
                while let Ok(buffer) = provider.alloc(len) {
                    let message = buffer.freeze();
                    leased.push(client.attach(&message.descriptor()?)?);
                }
            }
        }
        Ok(Self {
            provider,
            _held: held,
            _leased: leased,
        })
    }

    /// Returns the nanoseconds of each of `count` attempts, on average.
    fn attempts(&self, count: u64) -> Fallible<f64> {
        let start = Instant::now();
        for _ in 0..count {
            match self.provider.alloc(FRAME) {
                Err(error) if error.is_exhausted() => {}
                outcome => return Err(format!("a full pool answered {outcome:?}").into()),
            }
        }
        Ok(start.elapsed().as_nanos() as f64 / count as f64)
    }
}

/// A row.
struct Measured {
    filled: Filled,
    pool: Full,
    /// The nanoseconds of an attempt, by round.
    times: Vec<f64>,
}

/// A few attempts of each row.
pub(crate) fn check() -> Fallible {
    for filled in ROWS {
        Full::new(filled)?.attempts(20)?;
        println!("{}: 20 attempts, all refused", filled.name());
    }
    Ok(())
}

pub(crate) fn measure(rounds: u32, count: u64) -> Fallible {
    println!(
        "\nAn attempt of {} that is refused: in turn, {rounds} rounds of {count}\n",
        Bytes(FRAME as u64)
    );
    let mut measured = Vec::new();
    for filled in ROWS {
        measured.push(Measured {
            filled,
            pool: Full::new(filled)?,
            times: Vec::new(),
        });
    }
    for _ in 0..rounds {
        for row in &mut measured {
            row.times.push(row.pool.attempts(count)?);
        }
    }

    let mut rows = table(&[
        "the pool is full of",
        "an attempt",
        "of the rounds",
        "goal",
        "",
    ]);
    for row in &measured {
        let spread = Spread::of(&row.times);
        let goal = match row.filled {
            Filled::Held(FRAME) => GOAL,
            _ => Goal::None,
        };
        rows.add_row([
            row.filled.name(),
            Nanoseconds(spread.median).to_string(),
            spread.to_string(),
            goal.to_string(),
            goal.verdict(spread.median).to_owned(),
        ]);
    }
    show("backpressure refusal", &rows);
    Ok(())
}
