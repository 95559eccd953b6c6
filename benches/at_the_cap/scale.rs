//! The cost of an allocation while a great many buffers live.

#![forbid(unsafe_code)]

use fastrand::Rng;
use shm_pool::{AllocError, Provider, ProviderBuilder, ShmBytesMut};
use shm_pool_support::procfs::memory;
use shm_pool_support::table::{show, table, Goal};
use shm_pool_support::units::grouped;
use shm_pool_support::Fallible;
use std::hint::black_box;
use std::mem::size_of;
use std::process;
use std::time::{Duration, Instant};

/// Bytes of each buffer that lives.
const LEN: usize = 1 << 10;

/// The longest buffer that takes the place of another one.
const LONGEST: usize = 4 << 10;

/// Of the buffers in a full pool, one in this many is dropped, so that gaps are left.
const GAPS: usize = 8;

/// The lengths for which the gaps are too short.
const LONG: [usize; 2] = [1 << 20, 4 << 10];

/// At most 200 bytes, and 0.8 % of the length.
const PRIVATE: Goal = Goal::AtMost(200.0 + 0.008 * LEN as f64);
const REPLACED: Goal = Goal::AtMost(2_000.0);
const REFUSED: Goal = Goal::AtMost(20_000.0);
const NO_GAP: Goal = Goal::AtMost(1_000_000.0);

/// The size of a run.
#[derive(Clone)]
pub(crate) struct Effort {
    live: Vec<usize>,
    calls: usize,
}

impl Effort {
    pub(crate) fn usual() -> Self {
        Self {
            live: vec![10_000, 100_000, 1_000_000],
            calls: 20_000,
        }
    }

    pub(crate) fn quick() -> Self {
        Self {
            live: vec![1_000],
            calls: 100,
        }
    }
}

/// The duration of a call on average, and of the longest one.
struct Calls {
    mean: f64,
    longest: Duration,
}

impl Calls {
    fn measure(count: usize, mut call: impl FnMut()) -> Self {
        let start = Instant::now();
        let mut longest = Duration::ZERO;
        let mut last = start;
        for _ in 0..count {
            call();
            let now = Instant::now();
            longest = longest.max(now - last);
            last = now;
        }
        let mean = start.elapsed().as_nanos() as f64 / count as f64;
        Self { mean, longest }
    }

    fn cell(&self, goal: Goal) -> String {
        format!(
            "{:.2} µs (at most {:.0} µs): {}",
            self.mean / 1e3,
            self.longest.as_nanos() as f64 / 1e3,
            goal.verdict(self.mean)
        )
    }
}

pub(crate) fn measure(effort: &Effort) -> Fallible {
    println!("Many live buffers of 1 KiB, one thread");
    println!(
        "Mean, and the longest call; {} calls each, of refusals a tenth\n",
        grouped(effort.calls as u64)
    );
    let mut rows = table(&[
        "live",
        "private bytes each, goal 208",
        "drop one, allocate 64 B to 4 KiB, goal 2 µs",
        "refused, all in use, goal 20 µs",
        "1 MiB refused, an eighth in gaps, goal 1 ms",
        "4 KiB, an eighth in gaps, goal 1 ms",
    ]);
    for &live in &effort.live {
        let (private, replaced) = below_the_cap(live, effort.calls)?;
        let refused = all_in_use(live, effort.calls / 10)?;
        let [long, short] = in_gaps(live, effort.calls / 10)?;
        rows.add_row([
            grouped(live as u64),
            format!("{private:.0}: {}", PRIVATE.verdict(private)),
            replaced.cell(REPLACED),
            refused.cell(REFUSED),
            long.cell(NO_GAP),
            short.cell(NO_GAP),
        ]);
    }
    show("at_the_cap scale", &rows);
    Ok(())
}

fn builder(max_bytes: usize) -> ProviderBuilder {
    Provider::builder().max_bytes(max_bytes)
}

/// Returns the private memory of a buffer, and how long it takes to replace one.
fn below_the_cap(live: usize, calls: usize) -> Fallible<(f64, Calls)> {
    let provider = builder((live * LONGEST).max(16 << 20)).build()?;
    let mut buffers: Vec<ShmBytesMut> = Vec::with_capacity(live);
    let before = memory(process::id(), "RssAnon")?;
    for _ in 0..live {
        buffers.push(provider.alloc(LEN)?);
    }
    let after = memory(process::id(), "RssAnon")?;
    let each = after.saturating_sub(before) as f64 / live as f64;
    let private = each - size_of::<ShmBytesMut>() as f64;
    let mut random = Rng::with_seed(1);
    let mut failed = None;
    let replaced = Calls::measure(calls, || {
        let at = random.usize(..live);
        match provider.alloc(random.usize(64..=LONGEST)) {
            Ok(buffer) => buffers[at] = buffer,
            Err(error) => failed = Some(error),
        }
    });
    match failed {
        Some(error) => Err(error.into()),
        None => Ok((private, replaced)),
    }
}

/// Allocates until the cap refuses.
fn fill(provider: &Provider, live: usize) -> Fallible<Vec<ShmBytesMut>> {
    let mut buffers = Vec::with_capacity(live);
    loop {
        match provider.alloc(LEN) {
            Ok(buffer) => buffers.push(buffer),
            Err(AllocError::Exhausted { .. }) => return Ok(buffers),
            Err(error) => return Err(error.into()),
        }
    }
}

fn all_in_use(live: usize, calls: usize) -> Fallible<Calls> {
    let provider = builder(live * LEN).build()?;
    let _buffers = fill(&provider, live)?;
    let refused = Calls::measure(calls, || {
        black_box(provider.alloc(LEN).is_err());
    });
    Ok(refused)
}

fn in_gaps(live: usize, calls: usize) -> Fallible<[Calls; 2]> {
    let provider = builder(live * LEN).max_idle_per_class(0).build()?;
    let buffers = fill(&provider, live)?;
    let mut kept = Vec::with_capacity(live);
    for (number, buffer) in buffers.into_iter().enumerate() {
        if number % GAPS != 0 {
            kept.push(buffer);
        }
    }
    let measure = |len| {
        Calls::measure(calls, || {
            black_box(provider.alloc(len).is_err());
        })
    };
    Ok([measure(LONG[0]), measure(LONG[1])])
}
