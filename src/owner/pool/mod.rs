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

mod collect;
mod count;
mod evict;
mod loans;
mod make;
mod take;

use crate::os::fork;
use crate::owner::arena::Arenas;
use crate::owner::chunk::{Chunk, ChunkShelf, OwnedChunk, Registry};
use crate::owner::control::{OwnerControl, SegmentFactory};
use crate::owner::error::{AllocError, AllocErrorKind, ShareError};
use crate::owner::limits::{Account, ClassShape, First, Limits, Need};
use crate::owner::shelf::Queue;
use crate::owner::waiting::{Notice, WaitingRoom};
use crate::protocol::ids::ProviderId;
use crate::protocol::memory_bell::MemoryBell;
pub(crate) use loans::Lends;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;

/// How many classes are counted together: those of one doubling.
const GROUP: usize = 32;

/// A class *recurs* if fewer than this many chunks were made since its last one. So a publisher
/// that cycles through this many sizes reaches the warm path.
const RECURS_WITHIN: u64 = 16;

/// All chunks of one owner, and the memory they are carved out of. It is only ever shared, so its
/// public fields stay as they are made.
pub(crate) struct Pool {
    shelves: Box<[ChunkShelf]>,
    /// Keeps nothing: the shelf of one-offs.
    pub(crate) no_shelf: ChunkShelf,
    fork_epoch: u64,
    /// The chunks that peers lease.
    pub(crate) lent: Queue<OwnedChunk>,
    classes: Box<[Class]>,
    reserving: Mutex<()>,
    /// How many chunks of each class there are, except one-offs. Changed under the registry's lock.
    /// Side by side, and summed up by groups: a search for idle chunks reads a few cache lines of
    /// these, not the shelves.
    listed: Box<[AtomicUsize]>,
    groups: Box<[AtomicUsize]>,
    pub(crate) limits: Limits,
    account: Account,
    arenas: Arenas,
    registry: Mutex<Registry>,
    /// One chunk is shared for the first time at a time. Holds whether the pool is closed.
    first_share: Mutex<bool>,
    growing: Mutex<()>,
    /// One thread makes room at a time.
    making_room: Mutex<()>,
    /// Those that have lent chunks. `None` once the pool is closed.
    lenders: Mutex<Option<Vec<Arc<dyn Lends>>>>,
    /// Searches of the lent queue.
    searches: AtomicU64,
    /// Chunks made, and [`RECURS_WITHIN`], so that no class recurs at first.
    made: AtomicU64,
    collection: collect::Collection,
    /// Requests that wait for memory.
    pub(crate) waiting: Arc<WaitingRoom>,
    /// Where it notes that a request waits.
    pub(crate) notice: Notice,
    windows: Windows,
    source: Box<dyn SegmentFactory>,
    /// Where peers count their leases. `None` if somebody else counts a chunk's readers.
    control: Option<OwnerControl>,
}

/// A class's shape, and what changes only on cold paths. The fields that making a chunk needs share a
/// cache line.
#[repr(C, align(64))]
struct Class {
    shape: ClassShape,
    /// How many chunks are promised to stay. Changed under `reserving`.
    reserved: AtomicUsize,
    /// Chunks made.
    misses: AtomicU64,
    /// The pool's `made`, as of the last one of this class; 0 if there was none.
    last_made: AtomicU64,
    /// Uses of chunks that have been destroyed.
    past_uses: AtomicU64,
    /// The low-water mark of this window (see `window`).
    low: AtomicUsize,
    /// How many idle chunks the last window has not needed and are still there.
    unneeded: AtomicUsize,
}

impl Class {
    fn new(shape: ClassShape) -> Self {
        let [misses, last_made, past_uses] = [0; 3].map(AtomicU64::new);
        let [reserved, low, unneeded] = [0, NO_MARK, 0].map(AtomicUsize::new);
        Self { shape, reserved, misses, last_made, past_uses, low, unneeded }
    }
}

/// No low-water mark was noted.
const NO_MARK: usize = usize::MAX;

/// The windows of a pool.
#[derive(Default)]
struct Windows {
    /// Uses of chunks, in units of [`COUNTED`].
    counted: AtomicU64,
    /// At this count there is something to do.
    next: AtomicU64,
    last: Mutex<LastWindow>,
}

/// What the last window has left to do, and what it is compared with.
#[derive(Default)]
struct LastWindow {
    /// Bytes of memory in gaps at its end.
    gaps: usize,
    /// Are there classes with chunks that it has not needed?
    has_chunks: bool,
    /// How many bytes of gaps it has not needed, those of such chunks included.
    bytes: usize,
}

impl Pool {
    pub(crate) fn new(limits: Limits, source: Box<dyn SegmentFactory>, control: Option<OwnerControl>) -> Arc<Self> {
        let classes: Box<[Class]> = limits.shapes().into_iter().map(Class::new).collect();
        let first_arena = match limits.first_arena {
            First::Usual(_) if limits.keeps_nothing() && !source.keeps_segments() => First::OneMessage,
            first => first,
        };
        let shelves = classes.iter().map(|_| ChunkShelf::new(limits.keeps_nothing())).collect();
        let count = || AtomicUsize::new(0);
        Arc::new(Self {
            shelves,
            no_shelf: ChunkShelf::new(true),
            fork_epoch: fork::epoch(),
            lent: Queue::new(),
            reserving: Mutex::new(()),
            listed: classes.iter().map(|_| count()).collect(),
            groups: classes.chunks(GROUP).map(|_| count()).collect(),
            arenas: Arenas::new(limits.max_bytes, first_arena, limits.longest_arena, source.keeps_segments()),
            limits,
            account: Account::default(),
            registry: Mutex::new(Registry::new(classes.len())),
            classes,
            first_share: Mutex::new(false),
            growing: Mutex::new(()),
            making_room: Mutex::new(()),
            lenders: Mutex::new(Some(Vec::new())),
            searches: AtomicU64::new(0),
            made: AtomicU64::new(RECURS_WITHIN),
            collection: collect::Collection::default(),
            waiting: Arc::new(WaitingRoom::new()),
            notice: Notice::new(),
            windows: Windows::default(),
            source,
            control,
        })
    }

    /// The shelves, indexed by class.
    #[inline]
    pub(crate) fn shelves(&self) -> &[ChunkShelf] {
        &self.shelves
    }

    /// How many chunks of a class there are, except one-offs.
    fn listed(&self, class: usize) -> usize {
        // Relaxed: where it decides, the registry's lock orders it.
        self.listed[class].load(Ordering::Relaxed)
    }

    /// The classes that have chunks other than one-offs, in descending order.
    fn used_classes(&self) -> impl Iterator<Item = usize> + '_ {
        let is_used = |counts: &[AtomicUsize], at: usize| counts[at].load(Ordering::Relaxed) > 0;
        let groups = (0..self.groups.len()).rev().filter(move |&group| is_used(&self.groups, group));
        let classes = groups.flat_map(|group| (group * GROUP..self.listed.len().min((group + 1) * GROUP)).rev());
        classes.filter(move |&class| is_used(&self.listed, class))
    }

    /// What rings when memory comes back.
    pub(crate) fn memory_bell(&self) -> &MemoryBell {
        self.control().map_or_else(|| self.waiting.own_bell(), OwnerControl::memory_bell)
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
        self.claim_records(|is_closed| self.claim_record(chunk, is_closed))
    }

    /// Gives each chunk of a class its record, those in use included.
    fn prepare_class(&self, class: usize) -> Result<(), ShareError> {
        self.claim_records(|is_closed| {
            let registry = self.registry.lock();
            let result = registry.of_class(class).try_for_each(|chunk| self.claim_record(chunk, is_closed).map(drop));
            result
        })
    }

    /// Claims what can be claimed. Where records are short, idle chunks give theirs up one by one,
    /// but not once the pool is closed: what its queues hold then are seals.
    fn claim_records<T>(&self, claim: impl Fn(bool) -> Result<T, ShareError>) -> Result<T, ShareError> {
        let is_closed = self.first_share.lock();
        let mut may_collect = true;
        loop {
            let claimed = claim(*is_closed);
            if *is_closed || !matches!(claimed, Err(ShareError::TooManyShared { .. })) {
                return claimed;
            }
            if std::mem::take(&mut may_collect) {
                self.reclaim();
                self.return_lent();
            } else if self.evict(1, Chunk::has_record) == 0 {
                return claimed;
            }
        }
    }

    /// Gives a chunk a record that is free, if it has none. The caller holds the lock of first
    /// shares.
    fn claim_record(&self, chunk: &Chunk, is_closed: bool) -> Result<u64, ShareError> {
        let generation = chunk.generation();
        if generation != 0 {
            return Ok(generation);
        }
        let control = self.control().ok_or(ShareError::TooManyShared { max: 0 })?;
        // Room for every record there is, so the queue is never full unless it is sealed.
        if !is_closed && !self.lent.open(control.records()) {
            return Err(ShareError::OutOfMemory { bytes: Queue::<OwnedChunk>::bytes(control.records()) });
        }
        let (record, generation) = control.claim_record()?;
        chunk.set_record(record, generation);
        Ok(generation)
    }

    /// Closes the pool: it keeps nothing from now on. Called once, by the only taker of chunks.
    pub(crate) fn close(&self) {
        self.waiting.close(self);
        *self.first_share.lock() = true;
        self.shelves.iter().for_each(|shelf| shelf.close(Self::destroy));
        // Only now that the shelves refuse: what lenders still have out is given up.
        let lenders = std::mem::take(&mut *self.lenders.lock());
        drop(lenders);
        self.lent.close(Self::destroy);
        self.give_memory_back();
    }
}

// ---- what there is --------------------------------------------------------------------------------

impl Pool {
    /// The largest allocation that surely fits as things are.
    pub(crate) fn largest_that_fits(&self) -> usize {
        let longest = self.arenas.longest_run();
        let sizes = self.classes[..self.limits.classes()].iter().map(|class| class.shape.size());
        sizes.take_while(|&size| size <= longest).last().unwrap_or(0)
    }

    /// Is less in use than when this error was made, so that another try is worth its time?
    pub(crate) fn has_less_in_use(&self, error: &AllocError) -> bool {
        match *error.kind() {
            AllocErrorKind::Exhausted { in_use, .. } => self.in_use_and_leased().0 < in_use,
            _ => true,
        }
    }

    #[cold]
    pub(super) fn exhausted(&self, need: Need) -> AllocError {
        // Not from the full statistics: a caller that waits for memory gets this error again and
        // again.
        let (max_bytes, (in_use, leased)) = (self.limits.max_bytes, self.in_use_and_leased());
        let idle = max_bytes.saturating_sub(in_use + leased);
        event!(debug, provider = %self.id(), len = need.size, max_bytes, in_use, leased, "exhausted");
        AllocErrorKind::Exhausted { len: need.size, max_bytes, in_use, idle, leased }.into()
    }
}

impl Drop for Pool {
    /// All chunks have been destroyed. Peers keep what they still have mapped; all other memory
    /// goes back to the system.
    fn drop(&mut self) {
        self.give_memory_back();
        self.arenas.payloads(|payload| self.retire_segment(payload));
    }
}
