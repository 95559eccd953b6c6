//! The cost of an allocation that is refused, which a publisher that polls pays for each attempt.

#![forbid(unsafe_code)]

use crate::PREFIX;
use shm_pool::{Client, Namespace, Provider, ShmBytes, ShmBytesMut, ShmView};
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

/// What fills the pool.
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
        let (mut held, mut leased) = (Vec::new(), Vec::new());
        match filled {
            Filled::Held(len) => held.extend((0..).map_while(|_| provider.alloc(len).ok())),
            Filled::Leased(len) => {
                while let Ok(buffer) = provider.alloc(len).map(ShmBytesMut::freeze) {
                    leased.push(read(&client, &buffer)?);
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

fn read(client: &Client, message: &ShmBytes) -> Fallible<ShmView> {
    Ok(client.attach(&message.descriptor()?)?)
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
    let pools = ROWS
        .iter()
        .map(|&filled| Full::new(filled))
        .collect::<Fallible<Vec<_>>>()?;
    let mut times = ROWS.map(|_| Vec::new());
    for _ in 0..rounds {
        for (pool, times) in pools.iter().zip(&mut times) {
            times.push(pool.attempts(count)?);
        }
    }
    let mut rows = table(&[
        "the pool is full of",
        "an attempt",
        "of the rounds",
        "goal",
        "",
    ]);
    for (filled, times) in ROWS.iter().zip(&times) {
        let spread = Spread::of(times);
        let goal = if matches!(filled, Filled::Held(FRAME)) {
            GOAL
        } else {
            Goal::None
        };
        rows.add_row([
            filled.name(),
            Nanoseconds(spread.median).to_string(),
            spread.to_string(),
            goal.to_string(),
            goal.verdict(spread.median).to_owned(),
        ]);
    }
    show("backpressure refusal", &rows);
    Ok(())
}
