//! Who takes part in which workload, and how much is measured.

use crate::footprint::{footprint, Footprint};
use crate::iceoryx::Iceoryx;
use crate::report::Row;
use crate::source::{Malloc, Pool, Source};
use crate::workload::{one_by_one, Mixed, FRAME, LIVE};
use crate::zenoh_peers::{bare, binary_heap, buddy, pool_backend, talc, Collect, CollectAndDefragment, Zenoh};
use shm_pool_support::turns::{interleave, Batch};

/// The names by which tables, ratios and the chart know them.
pub(crate) mod names {
    pub(crate) const ZENOH_OURS: &str = "zenoh provider, our backend";
    pub(crate) const ZENOH_OURS_FULL: &str = "the same, collecting only when full";
    pub(crate) const ZENOH_TALC: &str = "zenoh provider, talc";
    pub(crate) const ZENOH_BUDDY: &str = "zenoh provider, buddy";
    pub(crate) const ZENOH_HEAP: &str = "zenoh provider, binary heap";
    pub(crate) const BARE_OURS: &str = "bare backend, ours";
    pub(crate) const BARE_TALC: &str = "bare backend, talc";
    pub(crate) const BARE_BUDDY: &str = "bare backend, buddy";
    pub(crate) const BARE_HEAP: &str = "bare backend, binary heap";
    pub(crate) const ICEORYX: &str = "iceoryx2 publisher";
    pub(crate) const POOL: &str = "shm-pool provider";
    pub(crate) const MALLOC: &str = "glibc malloc";

    /// zenoh's provider with zenoh's own backends.
    pub(crate) const ZENOH_STOCK: [&str; 3] = [ZENOH_TALC, ZENOH_BUDDY, ZENOH_HEAP];
}

use names::*;

/// How much to measure.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    pub(crate) mixed_rounds: usize,
    /// Orders in which each mixture fills the cap.
    pub(crate) orders: u64,
    /// Those of them that go on when it is full, and for how many messages.
    pub(crate) churned: u64,
    pub(crate) churn: usize,
    /// Only whether everything works, with every byte of the mixture compared.
    pub(crate) is_quick: bool,
}

impl Effort {
    pub(crate) const FULL: Self =
        Self { rounds: 200, mixed_rounds: 40, orders: 20, churned: 5, churn: 2000, is_quick: false };
    pub(crate) const QUICK: Self =
        Self { rounds: 2, mixed_rounds: 1, orders: 2, churned: 2, churn: 200, is_quick: true };
}

/// One that takes part. `batch` is why not, if it cannot.
pub(crate) struct Contender {
    name: &'static str,
    batch: Result<Batch, String>,
}

/// Measures contenders in turn.
pub(crate) fn measure(contenders: Vec<Contender>, rounds: usize, count: Option<u64>) -> Vec<Row> {
    let (names, batches): (Vec<_>, Vec<_>) = contenders.into_iter().map(|one| (one.name, one.batch)).unzip();
    let spreads = interleave(batches, rounds, count);
    names.into_iter().zip(spreads).map(|(name, spread)| Row { name, spread }).collect()
}

/// Those that allocate and drop messages of `len` bytes.
pub(crate) fn one_by_one_of(len: usize) -> Vec<Contender> {
    vec![
        single(ZENOH_OURS, Zenoh::<_, Collect>::ours(true), len),
        single(ZENOH_TALC, talc().map(Zenoh::<_, Collect>::stock), len),
        single(ZENOH_BUDDY, buddy().map(Zenoh::<_, Collect>::stock), len),
        single(ZENOH_HEAP, binary_heap().map(Zenoh::<_, Collect>::stock), len),
        Contender { name: BARE_OURS, batch: pool_backend(true).and_then(|backend| bare(backend, len)) },
        Contender { name: BARE_TALC, batch: talc().and_then(|backend| bare(backend, len)) },
        Contender { name: BARE_BUDDY, batch: buddy().and_then(|backend| bare(backend, len)) },
        Contender { name: BARE_HEAP, batch: binary_heap().and_then(|backend| bare(backend, len)) },
        single(ICEORYX, Iceoryx::new(len, 1), len),
        single(POOL, Pool::new(), len),
        single(MALLOC, Ok(Malloc), len),
    ]
}

fn single<S: Source + 'static>(name: &'static str, source: Result<S, String>, len: usize) -> Contender {
    Contender { name, batch: source.map(|source| one_by_one(source, len)) }
}

/// Those that send the mixture, to be timed.
pub(crate) fn mixed(is_thorough: bool) -> Vec<Contender> {
    let mut timed = Timed { is_thorough, contenders: Vec::new() };
    each_mixed(&mut timed);
    timed.contenders
}

/// Those that send the mixture, one after the other, and what memory each took.
pub(crate) fn footprints(is_thorough: bool) -> Vec<Footprint> {
    let mut weighed = Weighed { is_thorough, footprints: Vec::new() };
    each_mixed(&mut weighed);
    weighed.footprints
}

/// What is done with each peer, whose types all differ.
trait Visit {
    fn visit<S: Source + 'static>(&mut self, name: &'static str, build: impl FnOnce() -> Result<S, String>);
}

fn each_mixed(visitor: &mut impl Visit) {
    visitor.visit(ZENOH_OURS, || Zenoh::<_, CollectAndDefragment>::ours(true));
    visitor.visit(ZENOH_OURS_FULL, || Zenoh::<_, CollectAndDefragment>::ours(false));
    visitor.visit(ZENOH_TALC, || talc().map(Zenoh::<_, CollectAndDefragment>::stock));
    visitor.visit(ZENOH_BUDDY, || buddy().map(Zenoh::<_, CollectAndDefragment>::stock));
    visitor.visit(ZENOH_HEAP, || binary_heap().map(Zenoh::<_, CollectAndDefragment>::stock));
    visitor.visit(ICEORYX, || Iceoryx::new(FRAME, LIVE + 1));
    visitor.visit(POOL, Pool::new);
    visitor.visit(MALLOC, || Ok(Malloc));
}

struct Timed {
    is_thorough: bool,
    contenders: Vec<Contender>,
}

impl Visit for Timed {
    fn visit<S: Source + 'static>(&mut self, name: &'static str, build: impl FnOnce() -> Result<S, String>) {
        let mixed = build().map(|source| Mixed::new(source, self.is_thorough));
        self.contenders.push(Contender { name, batch: mixed.map(Mixed::into_batch) });
    }
}

struct Weighed {
    is_thorough: bool,
    footprints: Vec<Footprint>,
}

impl Visit for Weighed {
    fn visit<S: Source + 'static>(&mut self, name: &'static str, build: impl FnOnce() -> Result<S, String>) {
        self.footprints.push(footprint(name, build, self.is_thorough));
    }
}
