//! A long message among short ones: how soon it gets its memory while other threads reuse every gap
//! at once.
//!
//! The short messages always leave enough memory for the long one, but in pieces. A store that keeps
//! reusing the same pieces never has a gap that is long enough.

#![forbid(unsafe_code)]

use crate::stores::{check_ends, mark_ends, Pool, Store, Talc};
use hdrhistogram::Histogram;
use shm_pool_support::latency::{at, histogram};
use shm_pool_support::table::{show, table};
use shm_pool_support::units::grouped;
use shm_pool_support::Fallible;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes under the cap.
const CAP: usize = 4 << 20;

/// Bytes of the long message.
const LONG: usize = 1 << 20;

/// Bytes of a short one.
const SHORT: usize = 100_000;

/// Threads that send short messages, and how many each of them holds: together 57 % of the cap.
const THREADS: usize = 4;
const HELD: usize = 6;

/// How many each of them holds for a while before the next long message: beside all of these the
/// last one's memory does not fit under the cap, so that it is split.
const BURST: usize = 9;

/// How long to wait for the memory of the long message.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Every long message gets its memory within this time.
const GOAL: Duration = Duration::from_millis(300);

/// The pause between two attempts where the long message polls.
const POLL: Duration = Duration::from_millis(1);

/// How long the long message is held.
const HOLD: Duration = Duration::from_millis(1);

/// Short messages that are allocated in a burst, and as many again between it and the long message.
const BETWEEN: u64 = 10_000;

/// The size of a run.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    longs: usize,
    timeout: Duration,
    between: u64,
}

impl Effort {
    pub(crate) fn quick() -> Self {
        Self {
            longs: 3,
            timeout: Duration::from_millis(200),
            between: 1_000,
        }
    }

    pub(crate) fn of(longs: usize) -> Self {
        Self {
            longs,
            timeout: TIMEOUT,
            between: BETWEEN,
        }
    }
}

/// How a long message gets its memory; `None` if its timeout elapses first.
type Get<S> = for<'a> fn(&'a S, Duration) -> Fallible<Option<<S as Store>::Memory<'a>>>;

/// The results of a row's long messages.
struct Outcome {
    longs: usize,
    served: usize,
    in_time: usize,
    /// Until the memory was allocated, or the timeout elapsed, in nanoseconds.
    waits: Histogram<u64>,
    /// Short messages while a long one had no memory yet.
    meanwhile: Counts,
}

/// Runs every row without printing figures; whether a long message is served is a figure.
pub(crate) fn check(effort: Effort) -> Fallible {
    for (name, run) in ROWS {
        run(effort)?;
        println!(
            "{} long messages among short ones, {name}: all as written",
            effort.longs
        );
    }
    Ok(())
}

pub(crate) fn measure(effort: Effort) -> Fallible {
    println!("A long message among short ones: 1 MiB under a cap of 4 MiB, nothing pinned");
    println!(
        "{THREADS} threads hold {HELD} messages of 100 kB each \
         and replace the oldest as fast as they can\n"
    );
    let heads = [
        "",
        "served",
        "within 300 ms",
        "p50",
        "p90",
        "max",
        "short ones refused meanwhile",
        "of",
        "goal: all in time",
    ];
    let mut rows = table(&heads);
    for (name, run) in ROWS {
        let mut cells = vec![name.to_owned()];
        cells.extend(run(effort)?.cells());
        rows.add_row(cells);
    }
    show("at_the_cap long", &rows);
    println!(
        "Times are until a long message has its memory. One that never gets it counts with\n\
         {TIMEOUT:?}, the longest it is waited for. It is then held for {HOLD:?}. Before the\n\
         next one, each thread holds {BURST} short ones for {BETWEEN} messages, so that no long\n\
         piece is left, and {HELD} again for as many.\n"
    );
    Ok(())
}

/// A row: its name, and the function that measures it.
type Row = (&'static str, fn(Effort) -> Fallible<Outcome>);

const ROWS: [Row; 3] = [
    ("the pool, waiting (alloc_timeout)", |effort| {
        run::<Pool>(effort, wait)
    }),
    ("the pool, polling every 1 ms", |effort| {
        run::<Pool>(effort, poll::<Pool>)
    }),
    (
        "talc behind a mutex, polling every 1 ms: it cannot wait",
        |effort| run::<Talc>(effort, poll::<Talc>),
    ),
];

fn wait(pool: &Pool, timeout: Duration) -> Fallible<Option<<Pool as Store>::Memory<'_>>> {
    pool.alloc_timeout(LONG, timeout)
}

fn poll<S: Store>(store: &S, timeout: Duration) -> Fallible<Option<S::Memory<'_>>> {
    let begin = Instant::now();
    loop {
        let found = store.alloc(LONG)?;
        if found.is_some() || begin.elapsed() >= timeout {
            return Ok(found);
        }
        thread::sleep(POLL);
    }
}

impl Outcome {
    fn cells(&self) -> Vec<String> {
        let verdict = if self.in_time == self.longs {
            "pass"
        } else {
            "MISSED"
        };
        vec![
            format!("{} of {}", self.served, self.longs),
            self.in_time.to_string(),
            at(&self.waits, 0.5),
            at(&self.waits, 0.9),
            at(&self.waits, 1.0),
            grouped(self.meanwhile.refused),
            grouped(self.meanwhile.requested),
            verdict.to_owned(),
        ]
    }
}

fn run<S: Store>(effort: Effort, get: Get<S>) -> Fallible<Outcome> {
    let store = S::new(CAP)?;
    let shorts = Shorts::default();
    thread::scope(|scope| {
        let store = &store;
        let shorts = &shorts;
        let mut senders = Vec::new();
        for tally in &shorts.tallies {
            senders.push(scope.spawn(move || shorts.send(store, tally)));
        }
        let outcome = send_longs(store, shorts, effort, get);
        shorts.is_over.store(true, Ordering::Relaxed);
        for sender in senders {
            sender.join().expect("a thread that does not panic")?;
        }
        outcome
    })
}

/// Ends early if a short message is corrupt.
fn send_longs<S: Store>(
    store: &S,
    shorts: &Shorts,
    effort: Effort,
    get: Get<S>,
) -> Fallible<Outcome> {
    let mut outcome = Outcome {
        longs: effort.longs,
        served: 0,
        in_time: 0,
        waits: histogram(),
        meanwhile: Counts::default(),
    };
    for mark in (0..=u8::MAX).cycle().take(effort.longs) {
        shorts.scatter(effort.between);
        let before = shorts.counts();
        let start = Instant::now();
        let message = get(store, effort.timeout)?;
        let took = start.elapsed();
        outcome.meanwhile.add(shorts.counts().since(before));
        outcome.waits.saturating_record(took.as_nanos() as u64);
        if let Some(mut message) = message {
            outcome.served += 1;
            outcome.in_time += usize::from(took <= GOAL);
            mark_ends(&mut message, mark);
            thread::sleep(HOLD);
            check_ends(&message, mark)?;
        }
    }
    Ok(outcome)
}

/// The threads that send short messages.
#[derive(Default)]
struct Shorts {
    tallies: [Tally; THREADS],
    is_burst: AtomicBool,
    is_over: AtomicBool,
}

/// The counters of one thread, on a separate cache line.
#[derive(Default)]
#[repr(align(128))]
struct Tally {
    requested: AtomicU64,
    refused: AtomicU64,
}

/// The sums over all threads.
#[derive(Clone, Copy, Default)]
struct Counts {
    requested: u64,
    refused: u64,
}

impl Shorts {
    /// Replaces the oldest message until the run is over, or a message is corrupt.
    fn send<S: Store>(&self, store: &S, tally: &Tally) -> Fallible {
        let mut queue = VecDeque::with_capacity(BURST);
        let mut result = Ok(());
        while result.is_ok() && !self.is_over.load(Ordering::Relaxed) {
            let held = if self.is_burst.load(Ordering::Relaxed) {
                BURST
            } else {
                HELD
            };
            result = replace_oldest(store, &mut queue, held, tally);
            thread::yield_now();
        }
        self.is_over.store(true, Ordering::Relaxed);
        result
    }

    /// Makes the threads hold more for a while, so that no long piece is left.
    fn scatter(&self, messages: u64) {
        self.is_burst.store(true, Ordering::Relaxed);
        self.wait_for(messages);
        self.is_burst.store(false, Ordering::Relaxed);
        self.wait_for(messages);
    }

    /// Waits until that many more have been requested.
    fn wait_for(&self, more: u64) {
        let enough = self.counts().requested + more;
        while self.counts().requested < enough && !self.is_over.load(Ordering::Relaxed) {
            thread::sleep(POLL);
        }
    }

    fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for tally in &self.tallies {
            counts.requested += tally.requested.load(Ordering::Relaxed);
            counts.refused += tally.refused.load(Ordering::Relaxed);
        }
        counts
    }
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.requested += other.requested;
        self.refused += other.refused;
    }

    fn since(self, before: Self) -> Self {
        Self {
            requested: self.requested - before.requested,
            refused: self.refused - before.refused,
        }
    }
}

/// A refused message is requested again in the next round; none is dropped for it.
fn replace_oldest<'a, S: Store>(
    store: &'a S,
    queue: &mut VecDeque<(S::Memory<'a>, u8)>,
    held: usize,
    tally: &Tally,
) -> Fallible {
    while queue.len() >= held {
        let (oldest, mark) = queue.pop_front().expect("a message that is held");
        check_ends(&oldest, mark)?;
    }
    let mark = tally.requested.fetch_add(1, Ordering::Relaxed) as u8;
    match store.alloc(SHORT)? {
        Some(mut message) => {
            mark_ends(&mut message, mark);
            queue.push_back((message, mark));
        }
        None => {
            tally.refused.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}
