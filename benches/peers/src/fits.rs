//! What fits: how many messages can be live at a time under the common cap, until no more fit.

mod stores;

use crate::contenders::Effort;
use crate::source::Made;
use crate::workload::mixture_len;
use crate::zenoh_peers::SEGMENT;
use fastrand::Rng;
use shm_pool_support::table::{show, table, Goal};
use shm_pool_support::units::mib;
use std::collections::BTreeSet;
use std::iter;
use stores::{Build, Store, OURS, PEERS};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Powers of two, lengths just above them, and those of sensors.
const SIZES: [(usize, &str); 12] = [
    (64, "64 B"),
    (1000, "1000 B"),
    (2100, "2100 B"),
    (4 * KIB, "4 KiB"),
    (64 * KIB + 1, "64 KiB + 1 B"),
    (100_000, "100,000 B"),
    (640 * 480 * 3, "640 x 480 x 3 B"),
    (1_000_000, "1,000,000 B"),
    (MIB + 100, "1 MiB + 100 B"),
    (4 * MIB, "4 MiB"),
    (6_200_000, "6,200,000 B"),
    (22_000_000, "22,000,000 B"),
];

/// A mixture of lengths: its name, and the next length.
type Mixture = (&'static str, fn(&mut Rng) -> usize);

const MIXTURES: [Mixture; 4] = [
    ("uniform, 1 B to 4 MiB", |random| random.usize(1..=4 * MIB)),
    ("log-uniform, 64 B to 8 MiB", log_uniform),
    ("6.2 MB, 1 MB or 2 KB", |random| [6_200_000, 1_000_000, 2_000][random.usize(..3)]),
    ("frames, clouds, telemetry", mixture_len),
];

/// Each doubling is as likely as any other.
fn log_uniform(random: &mut Rng) -> usize {
    const LEAST: f64 = 64.0;
    const MOST: f64 = (8 * MIB) as f64;
    (LEAST * (MOST / LEAST).powf(random.f64())) as usize
}

/// Shorter messages are left out of a quick run: about a million of them fit.
const SHORTEST_QUICK: usize = 1000;

/// Separates these from the seeds of the lengths.
const DROPS: u64 = 1 << 32;

/// The result of one peer: a number to compare, and its text.
type Figure = (f64, String);

/// A line of a table, with a cell for each of [`PEERS`].
type Row = (&'static str, Vec<Made<Figure>>);

fn row(name: &'static str, measure: impl Fn(Build) -> Made<Figure>) -> Row {
    (name, PEERS.iter().map(|&(_, build)| measure(build)).collect())
}

/// Measures, and prints the tables.
pub(crate) fn print(effort: Effort) {
    let Effort { churned, churn, is_quick, .. } = effort;
    let goal = if is_quick { Goal::None } else { GOAL };
    let sizes = SIZES.into_iter().filter(|(len, _)| !is_quick || *len >= SHORTEST_QUICK);
    let all: [(String, Vec<Row>); 2] = [
        (
            format!("what fits under {} MiB: one length, messages", SEGMENT >> 20),
            sizes.map(|(len, name)| row(name, |build| one_size(build, len))).collect(),
        ),
        (
            format!("mixture, MiB at refusals after churn, mean of {churned} orders of {churn} messages"),
            MIXTURES.map(|(name, next)| row(name, |build| later_refusals(build, next, effort))).into(),
        ),
    ];
    // Each reason once, however many cells it is for.
    let mut reasons = BTreeSet::new();
    for ((title, rows), name) in all.iter().zip(["peers one length", "peers churn"]) {
        let names = PEERS.map(|(name, _)| name);
        let mut table = table(&[&[title.as_str()], &names[..], &["ours / zenoh's", ""]].concat());
        for (name, cells) in rows {
            let texts = cells.iter().map(|cell| cell.as_ref().map_or("cannot", |(_, text)| text).to_owned());
            table.add_row([(*name).to_owned()].into_iter().chain(texts).chain(ratio(cells, goal)));
            reasons.extend(names.into_iter().zip(cells).filter_map(|(peer, cell)| Some((peer, cell.as_ref().err()?))));
        }
        show(name, &table);
    }
    for (name, reason) in reasons {
        println!("{name} cannot: {reason}");
    }
    println!("The last column is the worse of our two divided by the best of zenoh's three; its goal is {GOAL}.");
    println!("{NOTES}\n");
}

fn one_size(build: Build, len: usize) -> Made<Figure> {
    let mut store = build()?;
    fill(&mut store, || len)?;
    let messages = store.messages();
    Ok((messages as f64, messages.to_string()))
}

/// Live bytes: the mean of the means of the orders that continue.
fn later_refusals(build: Build, next: fn(&mut Rng) -> usize, effort: Effort) -> Made<Figure> {
    let one = |seed| {
        let (mut store, mut random) = (build()?, Rng::with_seed(seed));
        let mut next = || next(&mut random);
        let refused = fill(&mut store, &mut next)?;
        let lens = iter::once(refused).chain(iter::repeat_with(next)).take(effort.churn);
        churn(&mut store, lens, effort.churn / 2, Rng::with_seed(DROPS + seed))
    };
    let bytes = mean(&(0..effort.churned).map(one).collect::<Made<Vec<f64>>>()?);
    Ok((bytes, format!("{:.2}", mib(bytes as u64))))
}

/// Keeps messages until one is refused. Returns its length.
fn fill(store: &mut Store, mut next: impl FnMut() -> usize) -> Made<usize> {
    loop {
        let len = next();
        if !store.keep(len)? {
            return Ok(len);
        }
    }
}

/// Continues with a full store: a refused message waits until enough others, picked at random, have
/// been dropped. Returns the mean of the live bytes at the refusals, without those of the first
/// `uncounted` messages.
fn churn(store: &mut Store, lens: impl Iterator<Item = usize>, uncounted: usize, mut random: Rng) -> Made<f64> {
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
    Ok(mean(&refusals))
}

fn mean(figures: &[f64]) -> f64 {
    figures.iter().sum::<f64>() / figures.len() as f64
}

/// Never more than 5 % fewer.
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

/// The ratio of a row, and its verdict.
fn ratio(cells: &[Made<Figure>], goal: Goal) -> [String; 2] {
    let (ours, zenohs) = cells.split_at(OURS);
    // If one of ours cannot, the other does not make up for it; of zenoh's, the others still have a
    // best.
    let number = |cell: &Made<Figure>| cell.as_ref().ok().map(|&(number, _)| number);
    let ours = ours.iter().map(number).collect::<Option<Vec<_>>>();
    let worst = ours.and_then(|ours| ours.into_iter().reduce(f64::min));
    let best = zenohs.iter().filter_map(number).reduce(f64::max);
    match worst.zip(best) {
        Some((worst, best)) if best > 0.0 => [format!("{:.3}", worst / best), goal.verdict(worst / best).to_owned()],
        Some(_) => ["fits in none of zenoh's", ""].map(str::to_owned),
        None => ["missing: one side was not measured", ""].map(str::to_owned),
    }
}
