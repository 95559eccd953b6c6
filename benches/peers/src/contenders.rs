//! The contenders of each workload, and the size of each measurement.

use crate::footprint::{footprint, Memory};
use crate::iceoryx::iceoryx;
use crate::sent::{burst, in_flight, one_at_a_time, End, Order, Written};
use crate::source::{pool, Made, Malloc};
use crate::workload::{mixture, one_by_one, Mixture, FRAME, LIVE, MIXTURE};
use crate::zenoh_peers::{
    bare, binary_heap, buddy, buffers, ours, pool_backend, stock, talc, SEGMENT,
};
use shm_pool_support::latency::Spread;
use shm_pool_support::turns::{each_round, interleave, Batch};

/// The names used in tables and ratios.
pub(crate) mod names {
    pub(crate) const ZENOH_OURS: &str = "zenoh provider, our backend";
    pub(crate) const ZENOH_OURS_FULL: &str = "the same, collecting only when full";
    pub(crate) const BUFFERS: &str = "zenoh buffers, our buffer pool";
    pub(crate) const ZENOH_TALC: &str = "zenoh provider, talc";
    pub(crate) const ZENOH_BUDDY: &str = "zenoh provider, buddy";
    pub(crate) const ZENOH_HEAP: &str = "zenoh provider, binary heap";
    pub(crate) const BARE_OURS: &str = "bare backend, ours";
    pub(crate) const BARE_TALC: &str = "bare backend, talc";
    pub(crate) const ICEORYX: &str = "iceoryx2 publisher";
    pub(crate) const POOL: &str = "shm-pool provider";
    pub(crate) const MALLOC: &str = "glibc malloc";

    /// zenoh's provider with zenoh's own backends.
    pub(crate) const ZENOH_STOCK: [&str; 3] = [ZENOH_TALC, ZENOH_BUDDY, ZENOH_HEAP];
}

use names::*;

/// One that allocates and drops messages of a length.
type OneByOne = (&'static str, fn(usize) -> Made<Batch>);

const ONE_BY_ONE: [OneByOne; 12] = [
    (BUFFERS, |len| one_by_one(buffers(), len)),
    (ZENOH_OURS, |len| one_by_one(ours(true), len)),
    (ZENOH_TALC, |len| one_by_one(stock(talc()), len)),
    (ZENOH_BUDDY, |len| one_by_one(stock(buddy()), len)),
    (ZENOH_HEAP, |len| one_by_one(stock(binary_heap()), len)),
    (BARE_OURS, |len| bare(pool_backend(true), len)),
    (BARE_TALC, |len| bare(talc(), len)),
    ("bare backend, buddy", |len| bare(buddy(), len)),
    ("bare backend, binary heap", |len| bare(binary_heap(), len)),
    (ICEORYX, |len| one_by_one(iceoryx(len, 1), len)),
    (POOL, |len| one_by_one(pool(), len)),
    (MALLOC, |len| one_by_one(Ok(Malloc), len)),
];

/// One that sends messages of a length while a number of others are in flight.
type SendsAmong = fn(usize, usize) -> Made<Batch>;

/// Those whose messages one at a time and in flight are compared. zenoh's default provider has talc.
pub(crate) const AMONG: [&str; 3] = [ZENOH_TALC, BUFFERS, ZENOH_OURS];

/// How messages are sent and read while many are in flight.
const FLIGHTS: [(&str, [SendsAmong; 3]); 3] = [
    (
        "the oldest is read",
        [
            |len, held| in_flight(stock(talc()), len, held, Order::Oldest),
            |len, held| in_flight(buffers(), len, held, Order::Oldest),
            |len, held| in_flight(ours(true), len, held, Order::Oldest),
        ],
    ),
    (
        "any is read",
        [
            |len, held| in_flight(stock(talc()), len, held, Order::Any),
            |len, held| in_flight(buffers(), len, held, Order::Any),
            |len, held| in_flight(ours(true), len, held, Order::Any),
        ],
    ),
    (
        BURST,
        [
            |len, _| burst(stock(talc()), len),
            |len, _| burst(buffers(), len),
            |len, _| burst(ours(true), len),
        ],
    ),
];

/// The flight whose batch is as long as the flight itself.
const BURST: &str = "none is read before all are sent";

/// One that sends the mixture, and checks every byte or not.
type Mixes = (&'static str, fn(bool) -> Made<Box<dyn Mixture>>);

const MIXES: [Mixes; 8] = [
    (ZENOH_OURS, |is_thorough| mixture(ours(true), is_thorough)),
    (ZENOH_OURS_FULL, |is_thorough| {
        mixture(ours(false), is_thorough)
    }),
    (ZENOH_TALC, |is_thorough| {
        mixture(stock(talc()), is_thorough)
    }),
    (ZENOH_BUDDY, |is_thorough| {
        mixture(stock(buddy()), is_thorough)
    }),
    (ZENOH_HEAP, |is_thorough| {
        mixture(stock(binary_heap()), is_thorough)
    }),
    (ICEORYX, |is_thorough| {
        mixture(iceoryx(FRAME, LIVE + 1), is_thorough)
    }),
    (POOL, |is_thorough| mixture(pool(), is_thorough)),
    (MALLOC, |is_thorough| mixture(Ok(Malloc), is_thorough)),
];

/// How much to measure.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    pub(crate) mixed_rounds: usize,
    /// Only checks that everything works, comparing every byte of the mixture.
    pub(crate) is_quick: bool,
}

impl Effort {
    pub(crate) const FULL: Self = Self {
        rounds: 200,
        mixed_rounds: 40,
        is_quick: false,
    };
    pub(crate) const QUICK: Self = Self {
        rounds: 2,
        mixed_rounds: 1,
        is_quick: true,
    };

    /// The operations of a batch. `None` takes as many as a batch's time allows.
    pub(crate) fn batch(self) -> Option<u64> {
        if self.is_quick {
            Some(100)
        } else {
            None
        }
    }
}

/// A contender's nanoseconds per message, or why there are none.
pub(crate) type Row = (&'static str, Made<Spread>);

/// Times those that allocate and drop messages of `len` bytes.
pub(crate) fn time_one_by_one(len: usize, effort: Effort) -> Vec<Row> {
    let batches = ONE_BY_ONE.map(|(_, build)| build(len));
    let spreads = interleave(batches, effort.rounds, effort.batch());
    named(ONE_BY_ONE.map(|(name, _)| name), spreads)
}

/// Times each of [`AMONG`] with one message of `len` bytes at a time. Returns the nanoseconds of
/// each round of each.
pub(crate) fn time_one_at_a_time(
    len: usize,
    written: Written,
    end: End,
    effort: Effort,
) -> Vec<Made<Vec<f64>>> {
    let contenders = [
        one_at_a_time(stock(talc()), len, written, end),
        one_at_a_time(buffers(), len, written, end),
        one_at_a_time(ours(true), len, written, end),
    ];
    let batch = if effort.is_quick {
        100
    } else {
        full_segments(len)
    };
    each_round(
        contenders,
        effort.mixed_rounds.div_ceil(4),
        Some(batch as u64),
    )
}

/// Returns how many messages are more than the segment has room for, so that each provider collects
/// in a batch of so many.
fn full_segments(len: usize) -> usize {
    2 * SEGMENT / len
}

/// How they are sent and read, and the nanoseconds of each round of each of [`AMONG`].
pub(crate) type Flight = (&'static str, Vec<Made<Vec<f64>>>);

/// Times those that send messages of `len` bytes while `held` are in flight.
pub(crate) fn time_in_flight(len: usize, held: usize, effort: Effort) -> Vec<Flight> {
    let rounds = effort.mixed_rounds.div_ceil(4);
    let batch = full_segments(len);
    let mut flights = Vec::new();
    for (how, build) in FLIGHTS {
        // As many messages for each.
        let (count, rounds) = match how {
            BURST => (held, rounds * (batch / held).max(1)),
            _ => (batch, rounds),
        };
        let batches = build.map(|build| build(len, held));
        flights.push((how, each_round(batches, rounds, Some(count as u64))));
    }
    flights
}

/// Times those that send the mixture.
pub(crate) fn time_mixture(effort: Effort) -> Vec<Row> {
    let mut batches = Vec::new();
    for (_, build) in MIXES {
        batches.push(match build(effort.is_quick) {
            Ok(mut mixture) => {
                let batch: Batch = Box::new(move |count| mixture.run(count));
                Ok(batch)
            }
            Err(reason) => Err(reason),
        });
    }
    let spreads = interleave(batches, effort.mixed_rounds, Some(MIXTURE as u64));
    named(MIXES.map(|(name, _)| name), spreads)
}

/// Measures the memory of each that sends the mixture, one after the other.
pub(crate) fn weigh_mixture(effort: Effort) -> Vec<(&'static str, Made<(Memory, String)>)> {
    let mut footprints = Vec::new();
    for (name, build) in MIXES {
        footprints.push((name, footprint(|| build(effort.is_quick))));
    }
    footprints
}

/// Returns the rows: the contenders' names, and their spreads in the same order.
fn named<const N: usize>(names: [&'static str; N], spreads: Vec<Made<Spread>>) -> Vec<Row> {
    names.into_iter().zip(spreads).collect()
}
