//! The pool: what it consists of, how a chunk is shared the first time, and how the pool closes.
//! Chunks are taken in `take`, made in `make`, and given back in `give`.
//!
//! # Closing
//!
//! Dropping the provider closes every shelf (see `shelf`). Outstanding handles keep the pool alive
//! through their chunks. Each destroys its chunk when the shelf refuses it, and the last one frees
//! the pool (I6).
//!
//! A chunk that was taken from a shelf, or whose last handle is being dropped, is in one hand (I3):
//! an [`OwnedChunk`].

#![forbid(unsafe_code)]

mod class_set;
#[cfg(feature = "zenoh")]
mod collect;
mod count;
mod evict;
mod give;
mod loans;
mod make;
mod reserve;
mod take;
mod trade;
mod window;

use crate::os::fork;
use crate::owner::arena::Arenas;
use crate::owner::chunk::{Chunk, OwnedChunk};
use crate::owner::control::OwnerControl;
use crate::owner::error::ShareError;
use crate::owner::limits::{Account, ClassShape, First, Limits};
use crate::owner::listening::{self, REFUSED};
use crate::owner::refusals::Refusals;
use crate::owner::registry::Registry;
use crate::owner::segment_factory::SegmentFactory;
use crate::owner::shelf::{LentQueue, Shelf};
use crate::owner::waiting::WaitingRoom;
use crate::protocol::ids::ProviderId;
use crate::protocol::memory_bell::MemoryBell;
use class_set::ClassSet;
pub(crate) use loans::Lends;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::Arc;
use window::{LastWindow, NO_MARK};

/// All chunks of one owner, and the memory they are carved out of.
pub(crate) struct Pool {
    shelves: Box<[Shelf<OwnedChunk>]>,
    /// Keeps nothing: the shelf of one-offs.
    no_shelf: Shelf<OwnedChunk>,
    fork_epoch: u64,
    lent: LentQueue<OwnedChunk>,
    shapes: Box<[ClassShape]>,
    tallies: Box<[Tally]>,
    /// How many chunks of each class are promised to stay. Changed under `reserving`.
    reserved: Box<[AtomicUsize]>,
    reserving: Mutex<()>,
    /// The classes that have chunks other than one-offs. Changed under the registry's lock.
    used: ClassSet,
    limits: Limits,
    account: Account,
    arenas: Arenas,
    registry: Mutex<Registry>,
    first_share: Mutex<()>,
    growing: Mutex<()>,
    /// One thread trades at a time. Holds the class that last gave up a chunk.
    trading: Mutex<usize>,
    /// Those that have lent chunks. `None` once the pool is closed.
    lenders: Mutex<Option<Vec<Arc<dyn Lends>>>>,
    /// Searches of the lent queue.
    searches: AtomicU64,
    /// Chunks made.
    made: AtomicU64,
    #[cfg(feature = "zenoh")]
    collection: collect::Collection,
    waiting: Arc<WaitingRoom>,
    refusals: Refusals,
    /// Uses of chunks, in units of `COUNTED` (see `window`).
    uses_counted: AtomicU64,
    last_window: Mutex<LastWindow>,
    source: Box<dyn SegmentFactory>,
    /// Where peers count their leases. `None` if somebody else counts a chunk's readers.
    control: Option<OwnerControl>,
}

/// Counts for one class that change only on cold paths.
struct Tally {
    /// Chunks made.
    misses: AtomicU64,
    /// The pool's count of chunks made, as of the last one of this class; 0 if there was none.
    last_made: AtomicU64,
    /// Uses of chunks that have been destroyed.
    past_uses: AtomicU64,
    /// The low-water mark of this window (see `window`).
    low: AtomicUsize,
}

impl Tally {
    fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self { misses: zero(), last_made: zero(), past_uses: zero(), low: AtomicUsize::new(NO_MARK) }
    }
}

impl Pool {
    pub(crate) fn new(limits: Limits, source: Box<dyn SegmentFactory>, control: Option<OwnerControl>) -> Arc<Self> {
        let shapes: Box<[ClassShape]> = limits.shapes().into();
        let first_arena = match limits.first_arena {
            First::Usual(_) if limits.keeps_nothing() && !source.keeps_segments() => First::OneMessage,
            first => first,
        };
        let shelves = shapes.iter().map(|_| Shelf::new(limits.keeps_nothing())).collect();
        let classes = shapes.len();
        Arc::new(Self {
            shelves,
            no_shelf: Shelf::new(true),
            fork_epoch: fork::epoch(),
            lent: LentQueue::new(),
            tallies: shapes.iter().map(|_| Tally::new()).collect(),
            reserved: shapes.iter().map(|_| AtomicUsize::new(0)).collect(),
            reserving: Mutex::new(()),
            used: ClassSet::new(shapes.len()),
            shapes,
            arenas: Arenas::new(limits.max_bytes, first_arena, limits.longest_arena),
            limits,
            account: Account::default(),
            registry: Mutex::new(Registry::new(classes)),
            first_share: Mutex::new(()),
            growing: Mutex::new(()),
            trading: Mutex::new(0),
            lenders: Mutex::new(Some(Vec::new())),
            searches: AtomicU64::new(0),
            made: AtomicU64::new(0),
            #[cfg(feature = "zenoh")]
            collection: collect::Collection::default(),
            waiting: Arc::new(WaitingRoom::new()),
            refusals: Refusals::new(),
            uses_counted: AtomicU64::new(0),
            last_window: Mutex::default(),
            source,
            control,
        })
    }

    /// The shelves, indexed by class.
    #[inline]
    pub(crate) fn shelves(&self) -> &[Shelf<OwnedChunk>] {
        &self.shelves
    }

    pub(crate) fn shelf(&self, class: usize) -> &Shelf<OwnedChunk> {
        &self.shelves[class]
    }

    /// The chunks that peers lease.
    pub(crate) fn lent(&self) -> &LentQueue<OwnedChunk> {
        &self.lent
    }

    pub(crate) fn no_shelf(&self) -> &Shelf<OwnedChunk> {
        &self.no_shelf
    }

    /// Those who wait for memory.
    pub(crate) fn waiting(&self) -> &Arc<WaitingRoom> {
        &self.waiting
    }

    /// What was refused at the cap.
    pub(crate) fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// What rings when memory comes back.
    pub(crate) fn memory_bell(&self) -> &MemoryBell {
        self.control().map_or_else(|| self.waiting.own_bell(), OwnerControl::memory_bell)
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn control(&self) -> Option<&OwnerControl> {
        self.control.as_ref()
    }

    /// The id that peers know the pool by; 0 if there are none.
    pub(crate) fn id(&self) -> ProviderId {
        self.control().map_or(ProviderId(0), OwnerControl::id)
    }

    /// Did this process build the pool, as opposed to a parent that forked it?
    #[inline]
    pub(crate) fn is_ours(&self) -> bool {
        self.fork_epoch == fork::epoch()
    }

    /// Gives a chunk its record, and makes room for it in the lent queue. Returns the generation.
    #[cold]
    pub(crate) fn prepare_to_share(&self, chunk: &Chunk) -> Result<u64, ShareError> {
        let _one_at_a_time = self.first_share.lock();
        match self.claim_record(chunk) {
            Err(ShareError::TooManyShared { .. }) if self.free_a_record() => self.claim_record(chunk),
            claimed => claimed,
        }
    }

    /// Gives each chunk of a class its record, those in use included.
    fn prepare_class(&self, class: usize) -> Result<(), ShareError> {
        let _one_at_a_time = self.first_share.lock();
        loop {
            let claimed = self.registry.lock().of_class(class).try_for_each(|chunk| self.claim_record(chunk).map(drop));
            match claimed {
                Err(ShareError::TooManyShared { .. }) if self.free_a_record() => {}
                claimed => return claimed,
            }
        }
    }

    /// Gives a chunk a record that is free, if it has none. The caller holds the lock of first
    /// shares.
    fn claim_record(&self, chunk: &Chunk) -> Result<u64, ShareError> {
        let generation = chunk.generation();
        if generation != 0 {
            return Ok(generation);
        }
        let control = self.control().ok_or(ShareError::TooManyShared { max: 0 })?;
        // Room for every record there is, so the queue is never full unless it is sealed.
        if !self.lent.open(control.records()) {
            return Err(ShareError::OutOfMemory { bytes: LentQueue::<OwnedChunk>::bytes(control.records()) });
        }
        let (record, generation) = control.claim_record()?;
        chunk.set_record(record, generation);
        Ok(generation)
    }

    /// Closes the pool: it keeps nothing from now on. Called once, by the only taker of chunks.
    pub(crate) fn close(&self) {
        self.waiting.close(self);
        listening::stop(self, REFUSED);
        self.shelves.iter().for_each(|shelf| shelf.close(Self::destroy));
        // Only now that the shelves refuse: what lenders still have out is given up.
        let lenders = std::mem::take(&mut *self.lenders.lock());
        drop(lenders);
        self.lent.close(Self::destroy);
        self.give_memory_back();
    }
}

impl Drop for Pool {
    /// All chunks have been destroyed. Peers keep what they still have mapped; all other memory
    /// goes back to the system.
    fn drop(&mut self) {
        self.give_memory_back();
        for payload in self.arenas.payloads() {
            self.retire(&payload);
        }
    }
}
