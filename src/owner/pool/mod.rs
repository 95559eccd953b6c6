//! The pool. Dropping the provider closes every free list. Outstanding handles keep the pool alive
//! through their chunks: each destroys its chunk when the free list refuses it, and the last one frees
//! the pool (I6).

#![forbid(unsafe_code)]

mod obtain;
mod release;
mod reserve;
mod retired;
mod take;

pub use reserve::Reservation;

use crate::os::fork::ForkGuard;
use crate::owner::arena::{Arenas, Room};
use crate::owner::chunk::{Chunk, ChunkFreeList, ClosedChunk, Registry, Whereabouts};
use crate::owner::control::{OwnerControl, SegmentFactory};
use crate::owner::limits::{Account, ClassShape, First, Grain, Limits, Need};
use crate::owner::limits::{AllocError, Refusal, ShareError};

use crate::owner::waiting::{Notice, WaitingRoom};
use crate::protocol::ids::ProviderId;
use crate::protocol::memory_doorbell::MemoryDoorbell;
use parking_lot::Mutex;
use retired::Retired;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;

/// Chunks that are visited while the registry is locked.
const CHUNKS_AT_ONCE: usize = 1024;

/// Classes are counted together by doublings.
const GROUP: usize = 32;

/// A class *recurs* if fewer chunks were made since its last one.
const RECURS_WITHIN: u64 = 16;

pub(crate) struct Pool {
    free_lists: Box<[ChunkFreeList]>,
    /// The free list of uncached and retired chunks, which refuses those that no peer may lease.
    pub(crate) uncached: ChunkFreeList,
    fork: ForkGuard,
    classes: Box<[Class]>,
    reserving: Mutex<()>,
    /// Chunks of each class, except uncached ones; changed under the registry's lock. Side by side and
    /// summed by groups, for searches.
    listed: Box<[AtomicUsize]>,
    groups: Box<[AtomicUsize]>,
    /// Hints, side by side: the class may have chunks in its leased queue. If one is `false`
    /// although there are some, their memory is not found before a request searches all queues.
    may_be_leased: Box<[AtomicBool]>,
    pub(crate) limits: Limits,
    account: Account,
    pub(super) arenas: Arenas,
    pub(super) registry: Mutex<Registry>,
    /// Chunks that have a record, of all classes.
    shared: AtomicUsize,
    /// The bytes of the retired chunks that peers may lease.
    retired_bytes: AtomicUsize,
    /// Held during a first share. `true` once the pool is closed.
    first_share: Mutex<bool>,
    growing: Mutex<()>,
    /// See `obtain`.
    making: Mutex<Retired>,
    /// `None` once the pool is closed.
    ledgers: Mutex<Option<Vec<Arc<dyn Lends>>>>,
    /// Chunks made, plus [`RECURS_WITHIN`], so that no class recurs at first.
    made: AtomicU64,
    collection: Collection,
    /// One more than the class that was refused last, unless a chunk was made since. A hint, all
    /// Relaxed.
    refused: AtomicUsize,
    pub(crate) waiting: Arc<WaitingRoom>,
    pub(crate) notice: Notice,
    /// The class that had the most bytes in use at the last check for waiting requests. A hint: a
    /// wrong one costs a visit of all classes.
    busiest_class: AtomicUsize,
    windows: Windows,
    source: Box<dyn SegmentFactory>,
    /// `None` if a chunk's readers are counted elsewhere.
    control: Option<OwnerControl>,
    /// A reader may still have to map a chunk that this owner has destroyed.
    has_unread: AtomicBool,
    /// Each buffer that is dropped from now on returns its memory to the system.
    is_closed: AtomicBool,
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
    /// Chunks that have a record, and so a place in the leased queue. Increased under `first_share`.
    shared: AtomicUsize,
}

impl Class {
    fn new(shape: ClassShape) -> Self {
        Self {
            shape,
            reserved: AtomicUsize::new(0),
            misses: AtomicU64::new(0),
            last_made: AtomicU64::new(0),
            past_uses: AtomicU64::new(0),
            low: AtomicUsize::new(NO_MARK),
            unneeded: AtomicUsize::new(0),
            shared: AtomicUsize::new(0),
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
    /// The class whose leased chunks are checked next.
    next_class: usize,
}

/// A collection is worthwhile if it makes this share of all memory idle.
const YIELD_SHARE: usize = 8;

/// Or, for short chunks, if it leaves this many bytes idle for each one in use, all of which it
/// visits.
const SPARE: usize = 3 << 10;

/// And this many bytes in all. With a few short chunks in flight, each allocation would have to
/// collect otherwise; so many bytes are still in the processor's cache when they are used again.
const LEAST_SPARE: usize = 32 << 10;

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

    /// Returns how many idle bytes a collection has to leave.
    fn enough(&self) -> usize {
        self.enough.load(Ordering::Relaxed).max(LEAST_SPARE)
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
        self.enough.fetch_sub(worthwhile(bytes), Ordering::Relaxed);
        self.collect_at
            .fetch_min(made + self.enough(), Ordering::Relaxed);
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
        let keeps_nothing = limits.keeps_nothing();
        let count = || AtomicUsize::new(0);
        Arc::new(Self {
            free_lists: classes
                .iter()
                .map(|_| ChunkFreeList::new(keeps_nothing))
                .collect(),
            uncached: ChunkFreeList::new(true),
            fork: ForkGuard::new(),
            reserving: Mutex::new(()),
            listed: classes.iter().map(|_| count()).collect(),
            groups: classes.chunks(GROUP).map(|_| count()).collect(),
            may_be_leased: classes.iter().map(|_| AtomicBool::new(false)).collect(),
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
            shared: AtomicUsize::new(0),
            retired_bytes: AtomicUsize::new(0),
            first_share: Mutex::new(false),
            growing: Mutex::new(()),
            making: Mutex::new(Retired::default()),
            ledgers: Mutex::new(Some(Vec::new())),
            made: AtomicU64::new(RECURS_WITHIN),
            collection: Collection::default(),
            refused: AtomicUsize::new(0),
            waiting: Arc::new(WaitingRoom::new()),
            notice: Notice::new(),
            busiest_class: AtomicUsize::new(0),
            windows: Windows::default(),
            source,
            control,
            has_unread: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        })
    }

    #[cfg(test)]
    pub(crate) fn new_segment(&self, len: usize) -> crate::owner::control::Payload {
        self.source.create(len).unwrap()
    }

    #[inline]
    pub(crate) fn free_lists(&self) -> &[ChunkFreeList] {
        &self.free_lists
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
        match self.control() {
            Some(control) => control.memory_doorbell(),
            None => self.waiting.own_doorbell(),
        }
    }

    pub(crate) fn control(&self) -> Option<&OwnerControl> {
        self.control.as_ref()
    }

    pub(crate) fn id(&self) -> ProviderId {
        match self.control() {
            Some(control) => control.id(),
            None => ProviderId(0),
        }
    }

    #[inline]
    pub(crate) fn is_ours(&self) -> bool {
        self.fork.is_ours()
    }

    #[cold]
    pub(crate) fn prepare_to_share(&self, chunk: &Chunk) -> Result<u64, ShareError> {
        self.claim_records(|is_closed| self.claim_record(chunk, is_closed))
    }

    /// Claims a record for each chunk of a class.
    fn prepare_class(&self, class: usize) -> Result<(), ShareError> {
        self.claim_records(|is_closed| {
            let mut result = Ok(());
            self.each_chunk(|chunk| {
                let is_kept = chunk.class() == class && !chunk.is_retired();
                if !is_kept || result.is_err() {
                    return;
                }
                if let Err(error) = self.claim_record(chunk, is_closed) {
                    result = Err(error);
                }
            });
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
            if may_collect {
                may_collect = false;
                self.reclaim();
                self.return_leased(&mut self.lock_making());
                self.notify_unless_trying();
            } else if !self.evict_for_a_record() {
                return claimed;
            }
        }
    }

    /// Evicts an idle chunk that has a record, of the smallest class that has one.
    fn evict_for_a_record(&self) -> bool {
        let mut making = self.lock_making();
        let mut has_evicted = false;
        let mut last = None;
        while let Some(next) = self.smallest_shared(last) {
            let (_, class) = next;
            if self.evict_of(&mut making, class, 1, Chunk::has_record) > 0 {
                has_evicted = true;
                break;
            }
            last = Some(next);
        }
        drop(making);
        self.notify_unless_trying();
        has_evicted
    }

    /// Returns the next class, by size, that has an idle chunk and shared ones, with its size.
    fn smallest_shared(&self, last: Option<(usize, usize)>) -> Option<(usize, usize)> {
        self.evictable_classes()
            .filter(|&(class, _)| self.classes[class].shared.load(Ordering::Relaxed) > 0)
            .map(|(class, _)| (self.classes[class].shape.size(), class))
            .filter(|&next| Some(next) > last)
            .min()
    }

    /// The caller holds `first_share`.
    fn claim_record(&self, chunk: &Chunk, is_closed: bool) -> Result<u64, ShareError> {
        let generation = chunk.generation();
        if generation != 0 {
            return Ok(generation);
        }
        let Some(control) = self.control() else {
            return Err(ShareError::TooManyShared { max: 0 });
        };
        let class = chunk.class();
        let count = &self.classes[class].shared;
        if !is_closed {
            let of_class = count.load(Ordering::Relaxed) + 1;
            let of_all = self.shared.load(Ordering::Relaxed) + 1;
            self.free_lists[class].open_leased(of_class, control.records())?;
            // Each chunk may be retired.
            self.uncached.open_leased(of_all, control.records())?;
        }
        let (record, generation) = control.claim_record()?;
        // Relaxed: increased under the lock, and decreased once the chunk is in no place.
        count.fetch_add(1, Ordering::Relaxed);
        self.shared.fetch_add(1, Ordering::Relaxed);
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
        // Relaxed: a drop that does not see it yet leaves its memory to the next one, or to the
        // end of the pool.
        self.is_closed.store(true, Ordering::Relaxed);
        for free_list in self.free_lists.iter() {
            free_list.close(Self::destroy);
        }
        self.uncached.close(Self::destroy);
        loop {
            let retired = self.lock_making().retired().take_any();
            let Some(chunk) = retired else { break };
            Self::destroy(chunk);
        }
        // Only now that the free lists refuse: chunks still borrowed are leaked.
        let ledgers = std::mem::take(&mut *self.ledgers.lock());
        drop(ledgers);
        self.return_memory();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.return_memory();
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

    /// Drops the chunks that dead receivers had borrowed. Returns how many there were.
    fn reclaim(&self) -> usize;

    /// Calls `tell` with each chunk borrowed.
    fn each_borrowed(&self, tell: &mut dyn FnMut(&Chunk));

    /// Returns `true` if the chunk is borrowed.
    fn has_borrowed(&self, chunk: NonNull<Chunk>) -> bool;

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

    /// Drops this ledger if its channel is over. Otherwise it leaves later, when the pool collects.
    pub(crate) fn drop_ledger_if_over(&self, ledger: &Arc<dyn Lends>) {
        if !ledger.is_over() {
            return;
        }
        let mut ledgers = self.ledgers.lock();
        let Some(open) = &mut *ledgers else { return };
        // The addresses alone: a type may have several tables of methods.
        let address = |ledger: &Arc<dyn Lends>| Arc::as_ptr(ledger).cast::<()>();
        let at = open
            .iter()
            .position(|other| address(other) == address(ledger));
        if let Some(at) = at {
            open.swap_remove(at);
        }
    }

    /// Drops the ledgers whose channels are over. Returns how many there were.
    fn drop_finished_ledgers(&self) -> usize {
        let mut count = 0;
        loop {
            let mut ledgers = self.ledgers.lock();
            let Some(open) = &mut *ledgers else {
                return count;
            };
            let Some(at) = open.iter().position(|ledger| ledger.is_over()) else {
                return count;
            };
            let over = open.swap_remove(at);
            // Dropping it may unmap objects and close files, without the lock.
            drop(ledgers);
            drop(over);
            count += 1;
        }
    }

    /// Collects from all channels, and from dead processes. Returns `true` if that has released a
    /// chunk, or the objects of a channel that is over.
    pub(crate) fn reclaim_any(&self) -> bool {
        let (chunks, over) =
            self.collect_from_ledgers(|ledger| ledger.collect() + ledger.reclaim());
        let dead = self.reclaim_from_dead_peers();
        chunks + over + dead > 0
    }

    pub(super) fn reclaim_from_dead_peers(&self) -> usize {
        match self.control() {
            Some(control) => control.reclaim(),
            None => 0,
        }
    }

    pub(super) fn take_returned(&self, class: usize) -> Option<ClosedChunk> {
        // One lock after the other, never both.
        let has_ledgers = match &*self.ledgers.lock() {
            Some(ledgers) => !ledgers.is_empty(),
            None => false,
        };
        if !has_ledgers {
            return None;
        }
        let may_wait = self.reserved(class) > 0
            || self.arenas.room() != Room::ToGrow
            || self.registry.lock().count(class) >= DEPTH;
        if !may_wait || self.collect_returned() == 0 {
            return None;
        }
        self.take_own(class)
    }

    pub(super) fn collect_returned(&self) -> usize {
        let (chunks, _) = self.collect_from_ledgers(|ledger| ledger.collect());
        chunks
    }

    pub(crate) fn reclaim_borrowed(&self) -> usize {
        let (chunks, _) = self.collect_from_ledgers(|ledger| ledger.collect() + ledger.reclaim());
        chunks
    }

    /// Collects chunks from each ledger, then drops the ledgers whose channels are over. Returns how
    /// many chunks and ledgers there were.
    fn collect_from_ledgers(&self, collect: impl Fn(&dyn Lends) -> usize) -> (usize, usize) {
        let mut chunks = 0;
        if let Some(ledgers) = &*self.ledgers.lock() {
            for ledger in ledgers {
                chunks += collect(&**ledger);
            }
        }
        let over = self.drop_finished_ledgers();
        (chunks, over)
    }

    fn chunks_borrowed(&self) -> Vec<(NonNull<Chunk>, usize)> {
        let mut on_borrowed = Vec::new();
        let mut tell = |chunk: &Chunk| {
            if on_borrowed.try_reserve(1).is_ok() {
                on_borrowed.push((NonNull::from(chunk), chunk.capacity()));
            }
        };
        if let Some(ledgers) = &*self.ledgers.lock() {
            for ledger in ledgers {
                ledger.each_borrowed(&mut tell);
            }
        }
        // Several channels may have the same one.
        on_borrowed.sort_unstable();
        on_borrowed.dedup();
        on_borrowed
    }

    /// Returns `true` if a receiver of a channel has borrowed the chunk.
    pub(crate) fn has_borrowed(&self, chunk: NonNull<Chunk>) -> bool {
        self.collect_returned();
        let ledgers = self.ledgers.lock();
        match &*ledgers {
            Some(ledgers) => ledgers.iter().any(|ledger| ledger.has_borrowed(chunk)),
            None => false,
        }
    }
}

impl Pool {
    /// Not if nearly all of the cap was used.
    pub(crate) fn is_collection_due(&self) -> bool {
        let nearly_all = self.limits.max_bytes - self.limits.max_bytes / YIELD_SHARE;
        // A whole segment has all its memory long before that is used.
        let used = if self.arenas.are_whole() {
            self.collection.most_made.load(Ordering::Relaxed)
        } else {
            self.account.held()
        };
        let collect_at = self.collection.collect_at.load(Ordering::Relaxed);
        self.collection.made() >= collect_at && used < nearly_all
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

    /// Returns how many bytes have to be released, at least, before any request can get that many:
    /// 0 if one may get them now.
    pub(crate) fn bytes_missing(&self, bytes: usize) -> usize {
        let made = self.collection.made();
        let may_be_in_use = self.limits.max_bytes.saturating_sub(bytes);
        if made <= may_be_in_use {
            return 0;
        }
        // Often one class shows it.
        let busiest = self.busiest_class.load(Ordering::Relaxed);
        let in_use = self.in_use_at_least(busiest);
        if in_use > may_be_in_use {
            return in_use - may_be_in_use;
        }

        // Their leases may have ended.
        let mut idle = self.leased_bytes();
        let mut busiest = 0;
        let mut most_in_use = 0;
        for class in self.used_classes() {
            let shape = &self.classes[class].shape;
            idle += self.free_lists[class].idle_count() * shape.size().max(shape.need.size);
            let in_use = self.in_use_at_least(class);
            if in_use > most_in_use {
                most_in_use = in_use;
                busiest = class;
            }
        }
        let missing = made.saturating_sub(idle).saturating_sub(may_be_in_use);
        if missing > 0 {
            self.busiest_class.store(busiest, Ordering::Relaxed);
        }
        missing
    }

    /// Returns a lower bound of the bytes that are in use of a class.
    fn in_use_at_least(&self, class: usize) -> usize {
        let free_list = &self.free_lists[class];
        let at_hand = free_list.idle_count() + free_list.leased_count();
        let in_use = self.listed(class).saturating_sub(at_hand);
        // A chunk has more than half of its class's size.
        let bytes = in_use * (self.classes[class].shape.size() / 2);
        // Retired ones are in another queue.
        bytes.saturating_sub(self.retired_bytes.load(Ordering::Relaxed))
    }

    /// If enough is idle now (see [`worthwhile`]), the next collection is due at the next miss;
    /// otherwise once the pool has made the missing bytes.
    pub(crate) fn note_collection(&self) {
        let missing = self.collection.enough().saturating_sub(self.idle_bytes());
        let collect_at = self.collection.made() + missing;
        self.collection
            .collect_at
            .store(collect_at, Ordering::Relaxed);
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
    /// Bytes of chunks that this process has dropped and that peers still lease, or receivers of
    /// channels have borrowed. A chunk counts once, however many of them have it.
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
            for (class, free_list) in self.classes.iter().zip(self.free_lists.iter()) {
                classes.push(ClassStats {
                    size: class.shape.size(),
                    align: class.shape.align,
                    idle: free_list.idle_count(),
                    hits: class.past_uses.load(Ordering::Relaxed),
                    misses: class.misses.load(Ordering::Relaxed),
                    ..ClassStats::default()
                });
            }
        }
        let mut out_of_queues = 0;
        let mut leased_bytes = 0;
        // `hits` counts all uses at first.
        self.each_chunk(|chunk| {
            let mut unlisted = ClassStats::default();
            let class = classes.get_mut(chunk.class()).unwrap_or(&mut unlisted);
            class.chunks += 1;
            class.hits += chunk.uses();
            let place = chunk.whereabouts();
            if place != Whereabouts::Leased {
                out_of_queues += chunk.capacity();
            }
            // The free list has already counted every chunk in its queue as idle.
            match (place, chunk.is_leased()) {
                (Whereabouts::Leased, false) => class.idle += 1,
                (Whereabouts::Leased, true) => {
                    class.leased += 1;
                    leased_bytes += chunk.capacity();
                }
                (Whereabouts::Idle, true) => {
                    class.leased += 1;
                    class.idle = class.idle.saturating_sub(1);
                    leased_bytes += chunk.capacity();
                }
                (Whereabouts::Elsewhere, _) if is_borrowed(chunk) => {
                    class.leased += 1;
                    leased_bytes += chunk.capacity();
                }
                (Whereabouts::Idle | Whereabouts::Elsewhere, _) => {}
            }
        });
        let mut borrowed_bytes = 0;
        for (_, capacity) in &on_borrowed {
            borrowed_bytes += capacity;
        }
        let bytes_in_use = out_of_queues.saturating_sub(self.idle_bytes() + borrowed_bytes);
        for class in &mut classes {
            class.hits = class.hits.saturating_sub(class.misses);
            class.in_use = class.chunks.saturating_sub(class.idle + class.leased);
        }
        classes.retain(|class| class.misses > 0);
        classes.sort_by_key(|class| (class.size, class.align));
        let (segments, bytes_mapped) = self.arenas.count_and_len();
        Stats {
            max_bytes: self.limits.max_bytes,
            bytes_held: self.account.held(),
            peak_bytes_held: self.account.peak(),
            bytes_in_use,
            bytes_leased: leased_bytes,
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
        let mut misses = 0;
        for class in self.classes.iter() {
            misses += class.misses.load(Ordering::Relaxed);
        }
        Counters {
            max_bytes: self.limits.max_bytes,
            bytes_held: self.account.held(),
            peak_bytes_held: self.account.peak(),
            bytes_out: self.collection.made().saturating_sub(self.idle_bytes()),
            misses,
            segments_created: self.account.created(),
        }
    }

    /// Calls `each` with every chunk, in parts: no thread waits long for the registry meanwhile.
    ///
    /// A chunk that is made meanwhile is left out. One that exists all the time is not: the list's
    /// gaps are filled with its last chunks, and these were visited first.
    pub(super) fn each_chunk(&self, mut each: impl FnMut(&Chunk)) {
        let mut left = usize::MAX;
        while left > 0 {
            let registry = self.registry.lock();
            let end = left.min(registry.len());
            left = end.saturating_sub(CHUNKS_AT_ONCE);
            for chunk in registry.chunks_in(left..end) {
                each(chunk);
            }
        }
    }

    /// Returns the bytes of the chunks that peers leased when they were released. The leases of
    /// some may have ended since.
    fn leased_bytes(&self) -> usize {
        if self.shared.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let mut bytes = self.retired_bytes.load(Ordering::Relaxed);
        for class in self.used_classes() {
            bytes += self.free_lists[class].leased_count() * self.classes[class].shape.size();
        }
        bytes
    }

    /// Returns the bytes of the chunks that are borrowed through channels.
    fn borrowed_bytes(&self) -> usize {
        let mut bytes = 0;
        for (_, capacity) in self.chunks_borrowed() {
            bytes += capacity;
        }
        bytes
    }

    /// Returns the bytes that are in use, and those that are leased or borrowed. Looks at no chunk
    /// but those borrowed: a caller that polls at the cap is refused often.
    fn in_use_and_leased(&self) -> (usize, usize) {
        let leased = self.leased_bytes() + self.borrowed_bytes();
        let others = self.idle_bytes() + leased;
        (self.collection.made().saturating_sub(others), leased)
    }

    #[cfg(feature = "unstable-backend")]
    pub(crate) fn largest_that_fits(&self) -> usize {
        let longest = self.arenas.longest_run();
        let mut largest = 0;
        for class in &self.classes[..self.limits.classes()] {
            if class.shape.size() > longest {
                break;
            }
            largest = class.shape.size();
        }
        largest
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
        let max_bytes = self.limits.max_bytes;
        let (in_use, leased) = self.in_use_and_leased();
        let idle = max_bytes.saturating_sub(in_use + leased);
        event!(
            debug,
            provider = %self.id(),
            len = need.size,
            max_bytes,
            in_use,
            leased,
            "exhausted"
        );
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
