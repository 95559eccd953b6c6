//! What fits: how many messages can live at a time under the cap that everybody has, until nothing
//! more fits.

mod stores;

use crate::contenders::Effort;
use crate::workload::mixture_len;
use crate::zenoh_peers::SEGMENT;
use fastrand::Rng;
use shm_pool_support::table::{table, Goal};
use shm_pool_support::units::mib;
use std::collections::BTreeSet;
use std::iter;
use stores::{Build, Store, OURS, PEERS};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Powers of two, what lies just above them, and what sensors send.
const SIZES: [(usize, &str); 22] = [
    (64, "64 B"),
    (100, "100 B"),
    (1000, "1000 B"),
    (2100, "2100 B"),
    (4 * KIB, "4 KiB"),
    (10_000, "10,000 B"),
    (20_000, "20,000 B"),
    (64 * KIB, "64 KiB"),
    (64 * KIB + 1, "64 KiB + 1 B"),
    (100_000, "100,000 B"),
    (300_000, "300,000 B"),
    (640 * 480 * 3, "640 x 480 x 3 B"),
    (1_000_000, "1,000,000 B"),
    (MIB, "1 MiB"),
    (MIB + 100, "1 MiB + 100 B"),
    (2_500_000, "2,500,000 B"),
    (4 * MIB, "4 MiB"),
    (6_200_000, "6,200,000 B"),
    (8 * MIB, "8 MiB"),
    (16 * MIB, "16 MiB"),
    (22_000_000, "22,000,000 B"),
    (33_000_000, "33,000,000 B"),
];

/// A mixture of lengths.
#[derive(Clone, Copy)]
struct Mixture {
    name: &'static str,
    /// The next length.
    len: fn(&mut Rng) -> usize,
}

const MIXTURES: [Mixture; 4] = [
    Mixture { name: "uniform, 1 B to 4 MiB", len: |random| random.usize(1..=4 * MIB) },
    Mixture { name: "log-uniform, 64 B to 8 MiB", len: log_uniform },
    Mixture { name: "6.2 MB, 1 MB or 2 KB", len: |random| [6_200_000, 1_000_000, 2_000][random.usize(..3)] },
    Mixture { name: "frames, clouds, telemetry", len: mixture_len },
];

/// Each doubling is as likely as any other.
fn log_uniform(random: &mut Rng) -> usize {
    const LEAST: f64 = 64.0;
    const MOST: f64 = (8 * MIB) as f64;
    (LEAST * (MOST / LEAST).powf(random.f64())) as usize
}

/// Shorter messages are left out of a quick run: about a million of them fit.
const SHORTEST_QUICK: usize = 1000;

/// Apart from the seeds of the lengths.
const DROPS: u64 = 1 << 32;

/// What one peer reached.
struct Fill {
    messages: f64,
    /// Those asked for, without what the peer adds.
    bytes: f64,
}

impl Fill {
    fn of(store: &dyn Store) -> Self {
        Self { messages: store.messages() as f64, bytes: store.bytes() as f64 }
    }
}

/// A peer's figure, or why there is none.
type Cell<T> = Result<T, String>;

/// A line of the table, with a cell for each of [`PEERS`].
struct Row<T> {
    name: &'static str,
    cells: Vec<Cell<T>>,
}

/// Measures and prints the table.
pub(crate) fn print(effort: Effort) {
    let sizes = SIZES.into_iter().filter(|(len, _)| !effort.is_quick || *len >= SHORTEST_QUICK);
    let sizes: Vec<Row<Fill>> = sizes.map(|(len, name)| row(name, |build| one_size(build, len))).collect();
    let first = MIXTURES.map(|mixture| row(mixture.name, |build| first_refusals(build, mixture, effort)));
    let churned = MIXTURES.map(|mixture| row(mixture.name, |build| later_refusals(build, mixture, effort)));
    print_table(&sizes, &first, &churned, effort);
}

fn row<T>(name: &'static str, measure: impl Fn(Build) -> Cell<T>) -> Row<T> {
    Row { name, cells: PEERS.iter().map(|peer| measure(peer.build)).collect() }
}

fn one_size(build: Build, len: usize) -> Cell<Fill> {
    let mut store = build()?;
    fill(&mut *store, || len)?;
    Ok(Fill::of(&*store))
}

/// The mean over all orders.
fn first_refusals(build: Build, mixture: Mixture, effort: Effort) -> Cell<Fill> {
    let one = |seed| {
        let (mut store, mut random) = (build()?, Rng::with_seed(seed));
        fill(&mut *store, || (mixture.len)(&mut random))?;
        Ok(Fill::of(&*store))
    };
    let fills = (0..effort.orders).map(one).collect::<Cell<Vec<Fill>>>()?;
    let messages = mean(fills.iter().map(|fill| fill.messages));
    Ok(Fill { messages, bytes: mean(fills.iter().map(|fill| fill.bytes)) })
}

/// Live bytes: the mean of the means of the orders that go on.
fn later_refusals(build: Build, mixture: Mixture, effort: Effort) -> Cell<f64> {
    let one = |seed| {
        let (mut store, mut random) = (build()?, Rng::with_seed(seed));
        let mut next = || (mixture.len)(&mut random);
        let refused = fill(&mut *store, &mut next)?;
        let lens = iter::once(refused).chain(iter::repeat_with(next)).take(effort.churn);
        churn(&mut *store, lens, effort.churn / 2, Rng::with_seed(DROPS + seed))
    };
    let means = (0..effort.churned).map(one).collect::<Cell<Vec<f64>>>()?;
    Ok(mean(means.into_iter()))
}

/// Keeps messages until one is refused. Returns its length.
fn fill(store: &mut dyn Store, mut next: impl FnMut() -> usize) -> Cell<usize> {
    loop {
        let len = next();
        if !store.keep(len)? {
            return Ok(len);
        }
    }
}

/// Goes on with a full store: a message that is refused waits until enough others, picked at
/// random, have been dropped. Returns the mean of the live bytes at the refusals, the first
/// `uncounted` messages' left out.
fn churn(store: &mut dyn Store, lens: impl Iterator<Item = usize>, uncounted: usize, mut random: Rng) -> Cell<f64> {
    let mut refusals = Vec::new();
    for (index, len) in lens.enumerate() {
        while !store.keep(len)? {
            if store.messages() == 0 {
                return Err(format!("refuses {len} bytes when nothing is live"));
            }
            if index >= uncounted {
                refusals.push(store.bytes() as f64);
            }
            store.drop_one(random.usize(..store.messages()));
        }
    }
    if refusals.is_empty() {
        return Err("was never full".to_owned());
    }
    Ok(mean(refusals.into_iter()))
}

fn mean(figures: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = figures.len() as f64;
    figures.sum::<f64>() / count
}

/// Nowhere more than 5 % fewer.
const GOAL: Goal = Goal::AtLeast(0.95);

const NOTES: &str = "\
It shows what each allocator loses by rounding lengths up, by its own data under the cap, and by fragmentation. It does
not show time, memory outside the cap, messages that wait for readers or for a collection, or several threads.
  mixtures   They fill the cap until a length is refused, although a shorter one might still fit. Churn goes on from
             there: what is refused waits until enough others, picked at random, have been dropped. The means are of
             the bytes asked for and live at a refusal, after churn at those of the second half.
  alignment  zenoh's backends are asked for their default, 1 byte. Ours aligns to 64, so that no two messages share a
             cache line: of 100 B it can hold at most 78 % of what fits without gaps.
  buddy      Depends on the address at which its segment is mapped, and so differs a little from run to run.
  heap       Asked only when it has enough free bytes, because it loses memory for good if it has not; defragmented
             when it asks for it.";

fn print_table(sizes: &[Row<Fill>], first: &[Row<Fill>], churned: &[Row<f64>], effort: Effort) {
    let goal = if effort.is_quick { Goal::None } else { GOAL };
    let Effort { orders, churned: few, churn, .. } = effort;
    let heads = |what: &str| -> Vec<String> {
        let names = PEERS.iter().map(|peer| peer.name);
        [what].into_iter().chain(names).chain(["ours / zenoh's", ""]).map(str::to_owned).collect()
    };
    let mut lengths = table(&heads(&format!("what fits under {} MiB: one length, messages", SEGMENT >> 20)));
    for row in sizes {
        lengths.add_row(line(row, goal, |fill| fill.messages, |fill| fill.messages.to_string()));
    }
    let what = format!("mixture, MiB at the first refusal (messages), mean of {orders} orders");
    let mut refusals = table(&heads(&what));
    for row in first {
        let text = |fill: &Fill| format!("{:.2} ({:.1})", mib(fill.bytes as u64), fill.messages);
        refusals.add_row(line(row, goal, |fill| fill.bytes, text));
    }
    let what = format!("mixture, MiB at refusals after churn, mean of {few} orders of {churn} messages");
    let mut later = table(&heads(&what));
    for row in churned {
        later.add_row(line(row, goal, |&bytes| bytes, |&bytes| format!("{:.2}", mib(bytes as u64))));
    }
    println!("{lengths}\n\n{refusals}\n\n{later}\n");
    print_reasons(sizes, first, churned);
    println!("The last column is the worse of our two divided by the best of zenoh's three; its goal is {GOAL}.");
    println!("{NOTES}\n");
}

fn line<T>(row: &Row<T>, goal: Goal, figure: impl Fn(&T) -> f64, show: impl Fn(&T) -> String) -> Vec<String> {
    let cells = row.cells.iter().map(|cell| cell.as_ref().map_or_else(|_| "cannot".to_owned(), &show));
    [row.name.to_owned()].into_iter().chain(cells).chain(ratio(&row.cells, goal, figure)).collect()
}

fn ratio<T>(cells: &[Cell<T>], goal: Goal, figure: impl Fn(&T) -> f64) -> [String; 2] {
    let (ours, zenohs) = cells.split_at(OURS);
    // One of ours that cannot is not made up for by the other; of zenoh's, the others still have a
    // best.
    let ours: Result<Vec<f64>, _> = ours.iter().map(|cell| cell.as_ref().map(&figure)).collect();
    let worst = ours.ok().and_then(|ours| ours.into_iter().reduce(f64::min));
    let best = zenohs.iter().filter_map(|cell| cell.as_ref().ok()).map(&figure).reduce(f64::max);
    match (worst, best) {
        (Some(worst), Some(best)) if best > 0.0 => {
            let ratio = worst / best;
            [format!("{ratio:.3}"), goal.verdict(ratio).to_owned()]
        }
        (Some(_), Some(_)) => ["fits in none of zenoh's", ""].map(str::to_owned),
        _ => ["missing: one side was not measured", ""].map(str::to_owned),
    }
}

/// Each reason once, however many cells it is for.
fn print_reasons(sizes: &[Row<Fill>], first: &[Row<Fill>], churned: &[Row<f64>]) {
    let fills = sizes.iter().chain(first).flat_map(failures);
    let reasons: BTreeSet<_> = fills.chain(churned.iter().flat_map(failures)).collect();
    for (name, reason) in reasons {
        println!("{name} cannot: {reason}");
    }
}

fn failures<T>(row: &Row<T>) -> impl Iterator<Item = (&'static str, &str)> {
    PEERS.iter().zip(&row.cells).filter_map(|(peer, cell)| Some((peer.name, cell.as_ref().err()?.as_str())))
}
