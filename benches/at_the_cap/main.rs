//! Allocation at the cap: messages of random sizes, each filled, shared and held by a reader until
//! some more have come. Nothing new can be taken from the system, so memory changes hands between
//! sizes.
//!
//! Beside it, in the same run: the same messages out of talc behind a mutex, which is what zenoh's
//! own backend is. talc has no readers, classes or descriptors to care for; it shows what carving
//! alone costs on this machine, with the caches as cold as filling the messages leaves them.

mod stores;

use clap::Parser;
use fastrand::Rng;
use hdrhistogram::Histogram;
use quanta::Clock;
use shm_pool_support::latency::{at, histogram};
use shm_pool_support::machine::{pin, Cores, Machine};
use shm_pool_support::options::Quick;
use shm_pool_support::table::{table, Goal};
use shm_pool_support::{clock, Fallible};
use std::collections::VecDeque;
use stores::{Pool, Store, Talc};

/// Bytes under the cap.
const CAP: usize = 64 << 20;

/// Bytes of the largest message.
const LARGEST: usize = 4 << 20;

/// How many messages the reader holds; with 20 two thirds of the cap are in use on average, and at
/// times nearly all.
const HELD: [usize; 3] = [4, 12, 20];

/// So long an allocation takes in 99 of 100 cases, in nanoseconds.
const GOAL: Goal = Goal::AtMost(5_000.0);

/// Allocation at the cap, with random sizes and a reader that holds messages.
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    quick: Quick,
    /// Messages of each row
    #[arg(long, default_value_t = 20_000)]
    messages: usize,
    /// Messages before each measurement
    #[arg(long, default_value_t = 1_000)]
    warm_up: usize,
    /// Where the sizes begin
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What became of a row's messages.
struct Outcome {
    /// How long an allocation took, in nanoseconds.
    waits: Histogram<u64>,
    /// Allocations that found no room; the reader then let go of what it had held longest.
    refused: usize,
    /// Segments made, the warm-up left out.
    made: u64,
}

fn main() -> Fallible {
    let mut options = Options::parse();
    if options.quick.quick {
        (options.messages, options.warm_up) = (300, 100);
    } else {
        pin(Cores::choose()?.first())?;
        let counter = Clock::new();
        let cost = clock::cost(|| counter.raw());
        println!("Allocation at a cap of 64 MiB, messages of 1 B to 4 MiB\n");
        Machine::now().print(&format!("the processor's counter, {cost:.1} ns a reading"), "pinned to one");
        println!("rows     {} warm-up and {} measured messages\n", options.warm_up, options.messages);
    }
    let ours = ["held", "refused", "segments made", "p50", "p99", "p99.9", "max"];
    let talcs = ["talc p50", "p99", "p99.9", "talc refused", "p99, goal 5 µs"];
    let mut rows = table(&[&ours[..], &talcs].concat());
    for held in HELD {
        let pool = run(&mut Pool::new(CAP)?, held, &options)?;
        let talc = run(&mut Talc::new(CAP), held, &options)?;
        let met = if pool.made == 0 { GOAL.verdict(pool.waits.value_at_quantile(0.99) as f64) } else { "MISSED" };
        let mut row = [held.to_string(), pool.refused.to_string(), pool.made.to_string()].to_vec();
        row.extend([0.5, 0.99, 0.999, 1.0].map(|quantile| at(&pool.waits, quantile)));
        row.extend([0.5, 0.99, 0.999].map(|quantile| at(&talc.waits, quantile)));
        row.extend([talc.refused.to_string(), met.to_owned()]);
        rows.add_row(row);
    }
    if options.quick.quick {
        println!("{} messages with {HELD:?} held: all as written", options.messages);
    } else {
        println!("{rows}");
    }
    Ok(())
}

/// Sends the messages to one reader, who looks at each when it lets go.
fn run<S: Store>(store: &mut S, held: usize, options: &Options) -> Fallible<Outcome> {
    let mut random = Rng::with_seed(options.seed);
    let mut queue: VecDeque<(S::Held, u8)> = VecDeque::with_capacity(held + 1);
    let mut outcome = Outcome { waits: histogram(), refused: 0, made: 0 };
    let clock = Clock::new();
    let let_go_of_oldest = |store: &mut S, queue: &mut VecDeque<_>| {
        let (oldest, mark) = queue.pop_front().ok_or("a message alone does not fit")?;
        store.let_go(oldest, mark)
    };
    for number in 0..options.warm_up + options.messages {
        if number == options.warm_up {
            outcome = Outcome { waits: histogram(), refused: 0, made: store.segments() };
        }
        let (len, mark) = (random.usize(1..=LARGEST), random.u8(..));
        let message = loop {
            let asked = clock.raw();
            let found = store.alloc(len);
            outcome.waits.saturating_record(clock.delta_as_nanos(asked, clock.raw()));
            if let Some(message) = found {
                break message;
            }
            outcome.refused += 1;
            let_go_of_oldest(store, &mut queue)?;
        };
        queue.push_back((store.send(message, mark)?, mark));
        if queue.len() > held {
            let_go_of_oldest(store, &mut queue)?;
        }
    }
    outcome.made = store.segments() - outcome.made;
    queue.into_iter().try_for_each(|(message, mark)| store.let_go(message, mark))?;
    Ok(outcome)
}
