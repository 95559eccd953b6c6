//! What fits: how many messages can live at a time under the cap that everybody has, until nothing more fits.

mod lengths;
mod report;
mod stores;

use crate::measure::Effort;
use crate::random::Random;
use lengths::{Mixture, MIXTURES, SIZES};
use std::iter;
use stores::{Build, Store, PEERS};

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
    report::print(&sizes, &first, &churned, effort);
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
        let (mut store, mut random) = (build()?, Random::new(seed));
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
        let (mut store, mut random) = (build()?, Random::new(seed));
        let mut next = || (mixture.len)(&mut random);
        let refused = fill(&mut *store, &mut next)?;
        let lens = iter::once(refused).chain(iter::repeat_with(next)).take(effort.churn);
        churn(&mut *store, lens, effort.churn / 2, Random::new(DROPS + seed))
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

/// Goes on with a full store: a message that is refused waits until enough others, picked at random, have been dropped.
/// Returns the mean of the live bytes at the refusals, the first `uncounted` messages' left out.
fn churn(store: &mut dyn Store, lens: impl Iterator<Item = usize>, uncounted: usize, mut random: Random) -> Cell<f64> {
    let mut refusals = Vec::new();
    for (index, len) in lens.enumerate() {
        while !store.keep(len)? {
            if store.messages() == 0 {
                return Err(format!("refuses {len} bytes when nothing is live"));
            }
            if index >= uncounted {
                refusals.push(store.bytes() as f64);
            }
            store.drop_one(random.below(store.messages()));
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
