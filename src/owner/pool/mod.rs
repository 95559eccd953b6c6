//! The pool. Dropping the provider closes every shelf. Outstanding handles keep the pool alive
//! through their chunks: each destroys its chunk when the shelf refuses it, and the last one frees
//! the pool (I6).

#![forbid(unsafe_code)]

mod release;
mod take;

pub use take::Reservation;

use crate::os::fork::ForkGuard;
use crate::owner::arena::{Arenas, Room};
use crate::owner::chunk::{Chunk, ChunkShelf, ClosedChunk, OwnedChunk, Registry, Whereabouts};
use crate::owner::control::{OwnerControl, SegmentFactory};
use crate::owner::limits::{Account, ClassShape, First, Grain, Limits, Need};
use crate::owner::limits::{AllocError, Refusal, ShareError};
use crate::owner::shelf::Queue;
use crate::owner::waiting::{Notice, WaitingRoom};
use crate::protocol::ids::ProviderId;
use crate::protocol::memory_doorbell::MemoryDoorbell;
use parking_lot::Mutex;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;

/// Classes are counted together by doublings.
const GROUP: usize = 32;

/// A class *recurs* if fewer chunks were made since its last one.
const RECURS_WITHIN: u64 = 16;

pub(crate) struct Pool {
    shelves: Box<[ChunkShelf]>,
    /// The shelf of one-offs and retired chunks, which keeps nothing.
    pub(crate) no_shelf: ChunkShelf,
    fork: ForkGuard,
    pub(crate) leased: Queue<OwnedChunk>,
    classes: Box<[Class]>,
    reserving: Mutex<()>,
    /// Chunks of each class, except one-offs; changed under the registry's lock. Side by side and
    /// summed by groups, for searches.
    listed: Box<[AtomicUsize]>,
    groups: Box<[AtomicUsize]>,
    pub(crate) limits: Limits,
    account: Account,
    pub(super) arenas: Arenas,
    pub(super) registry: Mutex<Registry>,
    /// Held during a first share. `true` once the pool is closed.
    first_share: Mutex<bool>,
    growing: Mutex<()>,
    making_room: Mutex<()>,
    /// `None` once the pool is closed.
    ledgers: Mutex<Option<Vec<Arc<dyn Lends>>>>,
    /// Of the leased queue.
    searches: AtomicU64,
    /// Chunks made, plus [`RECURS_WITHIN`], so that no class recurs at first.
    made: AtomicU64,
    collection: Collection,
    /// One more than the class that was refused last, unless a chunk was made since. A hint, all
    /// Relaxed.
    refused: AtomicUsize,
    pub(crate) waiting: Arc<WaitingRoom>,
    pub(crate) notice: Notice,
    windows: Windows,
    source: Box<dyn SegmentFactory>,
    /// `None` if a chunk's readers are counted elsewhere.
    control: Option<OwnerControl>,
    /// A reader may still have to map a chunk that this owner has destroyed.
    has_unread: AtomicBool,
}

#[repr(C, align(64))]
struct Class {
    shape: ClassShape,
    /// Changed under `reserving`.
    reserved: AtomicUsize,
    misses: AtomicU64,
    /// The pool's `made` at the last one of this class, or 0.
    last_made: AtomicU64,
    past_uses: AtomicU64,
    /// The low-water mark of this window (see `release`).
    low: AtomicUsize,
    /// Idle chunks that the last window has not needed and that are still there.
    unneeded: AtomicUsize,
}

impl Class {
    fn new(shape: ClassShape) -> Self {
        let [misses, last_made, past_uses] = [0; 3].map(AtomicU64::new);
        let [reserved, low, unneeded] = [0, NO_MARK, 0].map(AtomicUsize::new);
        Self {
            shape,
            reserved,
            misses,
            last_made,
            past_uses,
            low,
            unneeded,
        }
    }
}

const NO_MARK: usize = usize::MAX;

#[derive(Default)]
struct Windows {
    /// Uses of chunks, in units of [`COUNTED`](crate::owner::limits::COUNTED).
    counted: AtomicU64,
    /// The count at which there is something to do.
    next: AtomicU64,
    last: Mutex<LastWindow>,
}

#[derive(Default)]
struct LastWindow {
    /// Bytes of memory in gaps at its end.
    gaps: usize,
    /// Some classes may have unneeded chunks.
    has_chunks: bool,
    /// Unneeded bytes of gaps, including those of evicted chunks.
    bytes: usize,
}

/// A collection is worthwhile if it makes this share of all memory idle.
const YIELD_SHARE: usize = 8;

/// Or, for short chunks, if it leaves this many bytes idle for each one in use, all of which it
/// visits.
const SPARE: usize = 3 << 10;

/// Returns how much of a chunk counts towards that.
fn worthwhile(bytes: usize) -> usize {
    // bytes * SPARE / (bytes + SPARE), without overflow.
    (SPARE - SPARE * SPARE / (bytes + SPARE)).max(bytes / YIELD_SHARE)
}

/// When a `backend` collects. All accesses are Relaxed: hints.
#[derive(Default)]
struct Collection {
    made: AtomicUsize,
    /// The sum of the [`worthwhile`] bytes of each chunk.
    enough: AtomicUsize,
    /// From this many bytes on, a miss collects first.
    collect_at: AtomicUsize,
    /// The highest value of `made` since memory was last returned to the system.
    most_made: AtomicUsize,
}

impl Collection {
    fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }

    fn note_made(&self, bytes: usize) {
        let made = self.made.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.most_made.fetch_max(made, Ordering::Relaxed);
        self.enough.fetch_add(worthwhile(bytes), Ordering::Relaxed);
    }

    fn note_returned(&self) {
        self.most_made.store(self.made(), Ordering::Relaxed);
    }

    fn note_destroyed(&self, bytes: usize) {
        let made = self.made.fetch_sub(bytes, Ordering::Relaxed) - bytes;
        let enough =
            self.enough.fetch_sub(worthwhile(bytes), Ordering::Relaxed) - worthwhile(bytes);
        self.collect_at.fetch_min(made + enough, Ordering::Relaxed);
    }
}

impl Pool {
    pub(crate) fn new(
        limits: Limits,
        source: Box<dyn SegmentFactory>,
        control: Option<OwnerControl>,
    ) -> Arc<Self> {
        let classes: Box<[Class]> = limits.shapes().into_iter().map(Class::new).collect();
        let first_arena = match limits.first_arena {
            First::Usual(_) if limits.keeps_nothing() && !source.keeps_segments() => {
                First::OneMessage
            }
            first => first,
        };
        let shelves = classes
            .iter()
            .map(|_| ChunkShelf::new(limits.keeps_nothing()))
            .collect();
        let count = || AtomicUsize::new(0);
        Arc::new(Self {
            shelves,
            no_shelf: ChunkShelf::new(true),
            fork: ForkGuard::new(),
            leased: Queue::new(),
            reserving: Mutex::new(()),
            listed: classes.iter().map(|_| count()).collect(),
            groups: classes.chunks(GROUP).map(|_| count()).collect(),
            arenas: Arenas::new(
                limits.max_bytes,
                first_arena,
                limits.longest_arena,
                source.keeps_segments(),
                source.reserves_whole(),
            ),
            limits,
            account: Account::default(),
            registry: Mutex::new(Registry::new(classes.len())),
            classes,
            first_share: Mutex::new(false),
            growing: Mutex::new(()),
            making_room: Mutex::new(()),
            ledgers: Mutex::new(Some(Vec::new())),
            searches: AtomicU64::new(0),
            made: AtomicU64::new(RECURS_WITHIN),
            collection: Collection::default(),
            refused: AtomicUsize::new(0),
            waiting: Arc::new(WaitingRoom::new()),
            notice: Notice::new(),
            windows: Windows::default(),
            source,
            control,
            has_unread: AtomicBool::new(false),
        })
    }

    #[inline]
    pub(crate) fn shelves(&self) -> &[ChunkShelf] {
        &self.shelves
    }

    fn listed(&self, class: usize) -> usize {
        // Relaxed: the registry's lock orders it where that matters.
        self.listed[class].load(Ordering::Relaxed)
    }

    /// In descending order.
    fn used_classes(&self) -> impl Iterator<Item = usize> + '_ {
        let is_used = |counts: &[AtomicUsize], at: usize| counts[at].load(Ordering::Relaxed) > 0;
        let groups = (0..self.groups.len())
            .rev()
            .filter(move |&group| is_used(&self.groups, group));
        let classes = groups
            .flat_map(|group| (group * GROUP..self.listed.len().min((group + 1) * GROUP)).rev());
        classes.filter(move |&class| is_used(&self.listed, class))
    }

    pub(crate) fn memory_doorbell(&self) -> &MemoryDoorbell {
        self.control().map_or_else(
            || self.waiting.own_doorbell(),
            OwnerControl::memory_doorbell,
        )
    }

    pub(crate) fn control(&self) -> Option<&OwnerControl> {
        self.control.as_ref()
    }

    pub(crate) fn id(&self) -> ProviderId {
        self.control().map_or(ProviderId(0), OwnerControl::id)
    }

    #[inline]
    pub(crate) fn is_ours(&self) -> bool {
        self.fork.is_ours()
    }

    #[cold]
    pub(crate) fn prepare_to_share(&self, chunk: &Chunk) -> Result<u64, ShareError> {
        self.claim_records(|is_closed| self.claim_record(chunk, is_closed))
    }

    fn prepare_class(&self, class: usize) -> Result<(), ShareError> {
        self.claim_records(|is_closed| {
            let registry = self.registry.lock();
            let result = registry
                .of_class(class)
                .try_for_each(|chunk| self.claim_record(chunk, is_closed).map(drop));
            result
        })
    }

    /// Evicts idle chunks that have a record, but not once the pool is closed: its queues hold
    /// seals.
    fn claim_records<T>(
        &self,
        claim: impl Fn(bool) -> Result<T, ShareError>,
    ) -> Result<T, ShareError> {
        let is_closed = self.first_share.lock();
        let mut may_collect = true;
        loop {
            let claimed = claim(*is_closed);
            if *is_closed || !matches!(claimed, Err(ShareError::TooManyShared { .. })) {
                return claimed;
            }
            if std::mem::take(&mut may_collect) {
                self.reclaim();
                self.return_leased();
            } else if self.evict(1, Chunk::has_record) == 0 {
                return claimed;
            }
        }
    }

    /// The caller holds `first_share`.
    fn claim_record(&self, chunk: &Chunk, is_closed: bool) -> Result<u64, ShareError> {
        let generation = chunk.generation();
        if generation != 0 {
            return Ok(generation);
        }
        let control = self.control().ok_or(ShareError::TooManyShared { max: 0 })?;
        // Space for every record, so that the queue is never full.
        if !is_closed && !self.leased.open(control.records()) {
            return Err(ShareError::OutOfMemory {
                bytes: Queue::<OwnedChunk>::bytes(control.records()),
            });
        }
        let (record, generation) = control.claim_record()?;
        chunk.set_record(record, generation);
        Ok(generation)
    }

    /// Notes that a message is left to a reader that may not have mapped it: then the pool's end
    /// leaves its segments and its control object too.
    pub(crate) fn note_unread(&self) {
        // Relaxed: read in the pool's drop, which the count of its references orders.
        self.has_unread.store(true, Ordering::Relaxed);
    }

    pub(crate) fn close(&self) {
        self.waiting.close(self);
        *self.first_share.lock() = true;
        self.shelves
            .iter()
            .for_each(|shelf| shelf.close(Self::destroy));
        // Only now that the shelves refuse: chunks still borrowed are given up.
        let ledgers = std::mem::take(&mut *self.ledgers.lock());
        drop(ledgers);
        self.leased.close(Self::destroy);
        self.give_memory_back();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.give_memory_back();
        match &self.control {
            // One way to end (see `sweep`): messages may still have to be read.
            Some(control) if self.has_unread.load(Ordering::Relaxed) => {
                self.arenas.payloads(|payload| payload.segment().keep());
                control.leave();
            }
            _ => self.arenas.payloads(|payload| self.unlist_segment(payload)),
        }
    }
}

/// The right to use a pool, held by its provider and by each sender and publisher. The pool ends
/// with the last one, once the buffers that the program still holds have been dropped.
pub(crate) struct PoolGuard(Arc<Pool>);

impl PoolGuard {
    pub(crate) fn new(pool: Arc<Pool>) -> Arc<Self> {
        Arc::new(Self(pool))
    }
}

impl Drop for PoolGuard {
    fn drop(&mut self) {
        if self.0.is_ours() {
            self.0.close();
            event!(info, provider = %self.0.id(), "provider closed");
        } else {
            // A forked child owns nothing (D11), so its copy of the pool is never dropped.
            std::mem::forget(self.0.clone());
        }
    }
}

pub(crate) trait Lends: Send + Sync {
    /// Drops the chunks that were returned. Returns how many there were.
    fn collect(&self) -> usize;

    /// Drops the chunks of a dead return queue. Returns how many there were.
    fn reclaim(&self) -> usize;

    /// Calls `tell` with each chunk borrowed.
    fn each_borrowed(&self, tell: &mut dyn FnMut(&Chunk));

    /// Returns `true` if nothing is borrowed, and never will be.
    fn is_over(&self) -> bool;
}

/// Chunks of a class before returned ones are preferred to new ones.
const DEPTH: usize = 3;

impl Pool {
    pub(crate) fn add_ledger(&self, account_holder: Arc<dyn Lends>) {
        self.reclaim_borrowed();
        if let Some(ledgers) = &mut *self.ledgers.lock() {
            ledgers.push(account_holder);
        }
    }

    fn drop_finished_ledgers(&self) {
        loop {
            let mut ledgers = self.ledgers.lock();
            let Some(open) = &mut *ledgers else { return };
            let Some(at) = open
                .iter()
                .position(|account_holder| account_holder.is_over())
            else {
                return;
            };
            let over = open.swap_remove(at);
            // Dropping it may unmap objects and close files, without the lock.
            drop(ledgers);
            drop(over);
        }
    }

    pub(super) fn take_returned(&self, class: usize) -> Option<ClosedChunk> {
        // One lock after the other, never both.
        let has_ledgers = self
            .ledgers
            .lock()
            .as_ref()
            .is_some_and(|ledgers| !ledgers.is_empty());
        let is_deep =
            || self.arenas.room() != Room::ToGrow || self.registry.lock().count(class) >= DEPTH;
        let may_wait = || self.reserved(class) > 0 || is_deep();
        let has_come_back = has_ledgers && may_wait() && self.collect_returned() > 0;
        has_come_back.then(|| self.take_own(class)).flatten()
    }

    pub(super) fn collect_returned(&self) -> usize {
        self.ask_ledgers(|account_holder| account_holder.collect())
    }

    pub(crate) fn reclaim_borrowed(&self) -> usize {
        self.ask_ledgers(|account_holder| account_holder.collect() + account_holder.reclaim())
    }

    fn chunks_borrowed(&self) -> Vec<(NonNull<Chunk>, usize)> {
        let mut on_borrowed = Vec::new();
        let mut tell = |chunk: &Chunk| {
            if on_borrowed.try_reserve(1).is_ok() {
                on_borrowed.push((NonNull::from(chunk), chunk.capacity()));
            }
        };
        self.ledgers
            .lock()
            .iter()
            .flatten()
            .for_each(|account_holder| account_holder.each_borrowed(&mut tell));
        // Several channels may have the same one.
        on_borrowed.sort_unstable();
        on_borrowed.dedup();
        on_borrowed
    }

    pub(crate) fn has_borrowed(&self, chunk: NonNull<Chunk>) -> bool {
        self.collect_returned();
        self.chunks_borrowed()
            .iter()
            .any(|(on_borrowed, _)| *on_borrowed == chunk)
    }

    fn ask_ledgers(&self, ask: impl Fn(&dyn Lends) -> usize) -> usize {
        let ledgers = self.ledgers.lock();
        let found = ledgers
            .iter()
            .flatten()
            .map(|account_holder| ask(&**account_holder))
            .sum();
        drop(ledgers);
        self.drop_finished_ledgers();
        found
    }
}

impl Pool {
    /// Not if nearly all of the cap was used.
    pub(crate) fn is_collection_due(&self) -> bool {
        let Collection {
            made, collect_at, ..
        } = &self.collection;
        let nearly_all = self.limits.max_bytes - self.limits.max_bytes / YIELD_SHARE;
        // A whole segment has all its memory long before that is used.
        let used = if self.arenas.are_whole() {
            self.collection.most_made.load(Ordering::Relaxed)
        } else {
            self.account.held()
        };
        made.load(Ordering::Relaxed) >= collect_at.load(Ordering::Relaxed) && used < nearly_all
    }

    /// Returns `true` if idle chunks should be evicted for a message before a collection: runs of
    /// pages merge, whereas a collection leaves more idle chunks between them. Heaps would be
    /// searched for gaps.
    pub(crate) fn should_evict_for(&self, class: usize, len: usize) -> bool {
        self.classes[class].shape.need.grain == Grain::Page
            && self.idle_bytes() >= self.demand(class, len).size
    }

    /// Returns `true` if there is probably still no room for a class.
    pub(crate) fn was_refused(&self, class: usize) -> bool {
        self.refused.load(Ordering::Relaxed) == class + 1
    }

    /// Returns `true` if a longer message waits for chunks to be released.
    pub(crate) fn is_another_waiting(&self, class: usize) -> bool {
        self.arenas.is_another_waiting(class)
    }

    /// If enough is idle now (see [`worthwhile`]), the next collection is due at the next miss;
    /// otherwise once the pool has made the missing bytes.
    pub(crate) fn note_collection(&self) {
        let Collection {
            enough, collect_at, ..
        } = &self.collection;
        let missing = enough
            .load(Ordering::Relaxed)
            .saturating_sub(self.idle_bytes());
        collect_at.store(self.collection.made() + missing, Ordering::Relaxed);
    }
}

/// A snapshot of a provider's memory. Exact while no other thread uses the provider.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Stats {
    /// The cap in bytes.
    pub max_bytes: usize,
    /// Bytes of /dev/shm that the payload segments hold, with or without messages in them.
    pub bytes_held: usize,
    /// The highest value of `bytes_held` so far.
    pub peak_bytes_held: usize,
    /// Bytes of chunks that this process has handles to, except those borrowed through channels.
    pub bytes_in_use: usize,
    /// Bytes of chunks that this process has dropped and peers still lease; and of chunks borrowed,
    /// once per channel.
    pub bytes_leased: usize,
    /// Total length of the payload segments in bytes, at most `max_bytes`.
    pub bytes_mapped: usize,
    /// Current number of payload segments.
    pub segments: usize,
    /// Number of payload segments ever created.
    pub segments_created: u64,
    /// The size classes that have ever had a chunk, smallest first. Empty without private memory.
    pub classes: Vec<ClassStats>,
}

/// A snapshot of one size class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ClassStats {
    /// Size of the class's chunks in bytes. At the cap, some may be shorter.
    pub size: usize,
    /// Their alignment in bytes.
    pub align: usize,
    /// Chunks that exist.
    pub chunks: usize,
    /// Chunks that this process has handles to, except those borrowed through channels.
    pub in_use: usize,
    /// Chunks that are free to be reused.
    pub idle: usize,
    /// Chunks that this process has dropped and peers still lease, and chunks borrowed.
    pub leased: usize,
    /// Allocations served by an existing chunk.
    pub hits: u64,
    /// Allocations and reservations that created a chunk.
    pub misses: u64,
}

/// The figures of a provider that a real-time thread may read: without a lock, the heap or a system
/// call. Each is exact while no other thread uses the provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Counters {
    /// The cap in bytes.
    pub max_bytes: usize,
    /// Bytes of /dev/shm that the payload segments hold.
    pub bytes_held: usize,
    /// The highest value of `bytes_held` so far.
    pub peak_bytes_held: usize,
    /// Bytes of chunks that are not idle: in use, leased, borrowed, or returned and not found
    /// since.
    pub bytes_out: usize,
    /// Allocations and reservations that created a chunk.
    pub misses: u64,
    /// Number of payload segments ever created.
    pub segments_created: u64,
}

impl Stats {
    /// Returns the allocations served by an existing chunk, over all classes.
    pub fn hits(&self) -> u64 {
        self.classes.iter().map(|class| class.hits).sum()
    }

    /// Returns the allocations and reservations that created a chunk, over all classes.
    pub fn misses(&self) -> u64 {
        self.classes.iter().map(|class| class.misses).sum()
    }
}

impl Pool {
    pub(crate) fn stats(&self) -> Stats {
        // In a forked child, a thread of the parent may hold the registry's lock.
        if !self.is_ours() {
            return Stats::default();
        }
        self.collect_returned();
        let on_borrowed = self.chunks_borrowed();
        let is_borrowed = |chunk: &Chunk| {
            on_borrowed
                .binary_search_by_key(&NonNull::from(chunk), |(on_borrowed, _)| *on_borrowed)
                .is_ok()
        };
        let mut classes = Vec::new();
        if classes.try_reserve_exact(self.classes.len()).is_ok() {
            classes.extend(
                self.classes
                    .iter()
                    .zip(self.shelves.iter())
                    .map(|(class, shelf)| ClassStats {
                        size: class.shape.size(),
                        align: class.shape.align,
                        idle: shelf.idle_count(),
                        hits: class.past_uses.load(Ordering::Relaxed),
                        misses: class.misses.load(Ordering::Relaxed),
                        ..ClassStats::default()
                    }),
            );
        }
        // `hits` counts all uses at first.
        for chunk in self.registry.lock().chunks() {
            let Some(class) = classes.get_mut(chunk.class()) else {
                break;
            };
            class.chunks += 1;
            class.hits += chunk.uses();
            // The shelf has already counted every chunk in its queue as idle.
            match (chunk.whereabouts(), chunk.is_leased()) {
                (Whereabouts::Leased, false) => class.idle += 1,
                (Whereabouts::Leased, true) => class.leased += 1,
                (Whereabouts::Idle, true) => {
                    class.leased += 1;
                    class.idle = class.idle.saturating_sub(1);
                }
                (Whereabouts::Elsewhere, _) if is_borrowed(chunk) => class.leased += 1,
                (Whereabouts::Idle | Whereabouts::Elsewhere, _) => {}
            }
        }
        for class in &mut classes {
            class.hits = class.hits.saturating_sub(class.misses);
            class.in_use = class.chunks.saturating_sub(class.idle + class.leased);
        }
        classes.retain(|class| class.misses > 0);
        classes.sort_by_key(|class| (class.size, class.align));
        let (bytes_in_use, bytes_leased) = self.in_use_and_leased();
        let (segments, bytes_mapped) = self.arenas.count_and_len();
        Stats {
            max_bytes: self.limits.max_bytes,
            bytes_held: self.account.held(),
            peak_bytes_held: self.account.peak(),
            bytes_in_use,
            bytes_leased,
            bytes_mapped,
            segments,
            segments_created: self.account.created(),
            classes,
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        if !self.is_ours() {
            return Counters::default();
        }
        let misses = |class: usize| self.classes[class].misses.load(Ordering::Relaxed);
        Counters {
            max_bytes: self.limits.max_bytes,
            bytes_held: self.account.held(),
            peak_bytes_held: self.account.peak(),
            bytes_out: self.collection.made().saturating_sub(self.idle_bytes()),
            misses: (0..self.classes.len()).map(misses).sum(),
            segments_created: self.account.created(),
        }
    }

    fn in_use_and_leased(&self) -> (usize, usize) {
        if self.control().is_none() {
            // Without peers the counters suffice. A caller that polls at the cap is refused often.
            return (self.collection.made().saturating_sub(self.idle_bytes()), 0);
        }
        let (mut in_use, mut leased) = (0, 0);
        for chunk in self.registry.lock().chunks() {
            let place = chunk.whereabouts();
            // `idle_bytes` below includes chunks on a shelf.
            if place != Whereabouts::Leased {
                in_use += chunk.capacity();
            }
            // The lanes are in shared memory, so load them only if necessary.
            if place != Whereabouts::Elsewhere && chunk.is_leased() {
                leased += chunk.capacity();
            }
        }
        let on_borrowed: usize = self
            .chunks_borrowed()
            .iter()
            .map(|(_, capacity)| capacity)
            .sum();
        (
            in_use.saturating_sub(self.idle_bytes() + on_borrowed),
            leased + on_borrowed,
        )
    }

    pub(crate) fn largest_that_fits(&self) -> usize {
        let longest = self.arenas.longest_run();
        let sizes = self.classes[..self.limits.classes()]
            .iter()
            .map(|class| class.shape.size());
        sizes
            .take_while(|&size| size <= longest)
            .last()
            .unwrap_or(0)
    }

    pub(crate) fn has_less_in_use(&self, error: &AllocError) -> bool {
        match *error {
            AllocError::Exhausted { in_use, .. } => self.in_use_and_leased().0 < in_use,
            _ => true,
        }
    }

    #[cold]
    pub(super) fn exhausted(&self, need: Need) -> Refusal {
        // Not from `stats`: a caller that waits gets this error again and again.
        let (max_bytes, (in_use, leased)) = (self.limits.max_bytes, self.in_use_and_leased());
        let idle = max_bytes.saturating_sub(in_use + leased);
        event!(debug, provider = %self.id(), len = need.size, max_bytes, in_use, leased, "exhausted");
        AllocError::Exhausted {
            len: need.size,
            max_bytes,
            in_use,
            idle,
            leased,
        }
        .into()
    }
}
