//! The pool: takes chunks from the shelves, makes new ones under the cap, takes them back, closes.
//!
//! To take a chunk it tries, in this order:
//!
//! 1. the hot slot of the class (the warm path, in `provider`);
//! 2. the class's idle queue: chunks that nobody leased when they were given back;
//! 3. the lent queue: a few of the chunks that were shared longest ago, if their leases have ended;
//! 4. the chunks that channels have got back by now (`loans`), once the class has a few chunks;
//! 5. idle chunks of the next larger classes, as long as they waste little;
//! 6. a new chunk, carved out of the arenas, which grow up to the cap (`make`). Where they can no
//!    longer grow, it takes the place of idle chunks of other classes (`trade`), or of what dead
//!    peers held. There a chunk of a class that does not recur is a *one-off*: it is as long as its
//!    message, and destroyed when it is given back, or, if it was shared, by a later search of the
//!    lent queue.
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
mod loans;
mod make;
mod trade;

use crate::os::fork;
use crate::owner::arena::{Arenas, Room};
use crate::owner::chunk::{Chunk, OwnedChunk, Whereabouts};
use crate::owner::class::class_of;
use crate::owner::control::OwnerControl;
use crate::owner::error::{AllocError, AllocErrorKind, ShareError};
use crate::owner::limits::{Account, ClassShape, First, Limits};
use crate::owner::registry::Registry;
use crate::owner::segment_factory::SegmentFactory;
use crate::owner::shelf::{LentQueue, Shelf};
use crate::protocol::ids::ProviderId;
use class_set::ClassSet;
pub(crate) use loans::Lends;
use parking_lot::Mutex;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// How many lent chunks are looked at before a new one is made.
const LENT_TRIES: usize = 8;

/// One search of the lent queue in this many covers all of it, and destroys idle chunks above the
/// idle cap.
const SEARCHES_PER_TRIM: u64 = 64;

/// An idle chunk may serve for a smaller one if it is larger by at most this share.
const MOST_WASTE: usize = 4;

/// The same where the arenas can no longer grow.
const MOST_WASTE_AT_THE_CAP: usize = 32;

/// All chunks of one owner, and the memory they are carved out of.
pub(crate) struct Pool {
    shelves: Box<[Shelf<OwnedChunk>]>,
    /// Keeps nothing: the shelf of one-offs.
    no_shelf: Shelf<OwnedChunk>,
    fork_epoch: u64,
    lent: LentQueue<OwnedChunk>,
    shapes: Box<[ClassShape]>,
    tallies: Box<[Tally]>,
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
    /// Those that have lent chunks. Empty once the pool is closed.
    lenders: Mutex<Vec<Arc<dyn Lends>>>,
    /// Searches of the lent queue.
    searches: AtomicU64,
    /// Chunks made.
    made: AtomicU64,
    #[cfg(feature = "zenoh")]
    collection: collect::Collection,
    source: Box<dyn SegmentFactory>,
    /// Where peers count their leases. `None` if somebody else counts a chunk's readers.
    control: Option<OwnerControl>,
}

/// Counts for one class that change only on cold paths.
#[derive(Default)]
struct Tally {
    /// Chunks made.
    misses: AtomicU64,
    /// The pool's count of chunks made, as of the last one of this class; 0 if there was none.
    last_made: AtomicU64,
    /// Uses of chunks that have been destroyed.
    past_uses: AtomicU64,
}

impl Pool {
    pub(crate) fn new(limits: Limits, source: Box<dyn SegmentFactory>, control: Option<OwnerControl>) -> Arc<Self> {
        let shapes: Box<[ClassShape]> = limits.shapes().into();
        let first_arena = match limits.first_arena {
            First::Usual(_) if limits.max_idle == 0 && !source.keeps_segments() => First::OneMessage,
            first => first,
        };
        let shelves = shapes.iter().map(|_| Shelf::new(limits.max_idle == 0)).collect();
        let classes = shapes.len();
        Arc::new(Self {
            shelves,
            no_shelf: Shelf::new(true),
            fork_epoch: fork::epoch(),
            lent: LentQueue::new(),
            tallies: shapes.iter().map(|_| Tally::default()).collect(),
            used: ClassSet::new(shapes.len()),
            shapes,
            arenas: Arenas::new(limits.max_bytes, first_arena, limits.longest_arena),
            limits,
            account: Account::default(),
            registry: Mutex::new(Registry::new(classes)),
            first_share: Mutex::new(()),
            growing: Mutex::new(()),
            trading: Mutex::new(0),
            lenders: Mutex::default(),
            searches: AtomicU64::new(0),
            made: AtomicU64::new(0),
            #[cfg(feature = "zenoh")]
            collection: collect::Collection::default(),
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

    // ---- take -----------------------------------------------------------------------------------

    /// Makes a chunk that was just taken this thread's, and counts the use.
    ///
    /// In a forked child it fails. The child's copy of the pool loses the chunk, but is of no use
    /// anyway.
    #[inline]
    pub(crate) fn adopt(&self, chunk: &OwnedChunk) -> Result<(), AllocError> {
        if !chunk.was_taken_here() {
            self.set_taker(chunk)?;
        }
        chunk.count_use();
        Ok(())
    }

    /// For a chunk last taken by another thread, or on the other side of a fork.
    #[inline(never)]
    fn set_taker(&self, chunk: &Chunk) -> Result<(), AllocError> {
        if !self.is_ours() {
            return Err(AllocErrorKind::Forked.into());
        }
        chunk.set_taker();
        Ok(())
    }

    /// Takes a chunk for a message of `len` bytes after the hot slot of its class was found empty.
    #[inline(never)]
    pub(crate) fn take_slow(self: &Arc<Self>, class: usize, len: usize) -> Result<OwnedChunk, AllocError> {
        if let Some(chunk) = self.take_idle(class) {
            return Ok(chunk);
        }
        if let Some(chunk) = self.take_lent(class, LENT_TRIES) {
            return Ok(chunk);
        }
        if let Some(chunk) = self.take_returned(class) {
            return Ok(chunk);
        }
        if let Some(chunk) = self.take_larger(class) {
            return Ok(chunk);
        }
        self.make_for(class, len)
    }

    /// Takes an idle chunk that will do for a class, if there is one. Makes none.
    #[cfg(feature = "zenoh")]
    pub(crate) fn take_ready(&self, class: usize) -> Option<OwnedChunk> {
        self.take_own(class).or_else(|| self.take_larger(class))
    }

    /// Takes an idle chunk of this very class.
    pub(crate) fn take_own(&self, class: usize) -> Option<OwnedChunk> {
        self.take_idle(class).or_else(|| self.shelves[class].take_hot())
    }

    /// Takes an idle chunk of a slightly larger class.
    fn take_larger(&self, class: usize) -> Option<OwnedChunk> {
        let others = self.serving(class).skip(1).filter(|&other| !self.shelves[other].is_empty());
        others.filter_map(|other| self.take_own(other)).next()
    }

    /// The classes whose idle chunks will do for this one: itself, and those that waste little.
    fn serving(&self, class: usize) -> RangeInclusive<usize> {
        let classes = self.limits.classes();
        let size = self.shapes[class].size();
        let most_waste = match self.arenas.room() {
            Room::ToGrow => size / MOST_WASTE,
            Room::Ample => size / MOST_WASTE_AT_THE_CAP,
            Room::Crowded => 0,
        };
        let largest = size + most_waste;
        // The classes of small page-aligned messages come after all others, a page apart.
        let last = if class < classes {
            class_of(largest + 1).saturating_sub(1).min(classes - 1)
        } else {
            let pages = largest / self.limits.page;
            (classes + pages).saturating_sub(1).min(self.shapes.len() - 1)
        };
        class..=last.max(class)
    }

    /// Takes the chunk that has been in the class's idle queue longest.
    fn take_idle(&self, class: usize) -> Option<OwnedChunk> {
        let shelf = &self.shelves[class];
        std::iter::from_fn(|| shelf.take_idle()).find_map(Self::reopen)
    }

    /// Makes a chunk that was taken from a queue fit for use, or moves it to the lent queue if a
    /// peer leases it.
    fn reopen(chunk: OwnedChunk) -> Option<OwnedChunk> {
        if chunk.recycle() {
            chunk.set_whereabouts(Whereabouts::Elsewhere);
            return Some(chunk);
        }
        Self::lend(chunk);
        None
    }

    /// Puts a chunk that peers lease into the lent queue.
    fn lend(chunk: OwnedChunk) {
        chunk.set_whereabouts(Whereabouts::Lent);
        if let Err(chunk) = chunk.give_lent() {
            // Only a closed pool refuses.
            Self::destroy(chunk);
        }
    }

    /// Looks at up to `tries` lent chunks, from the head. Takes the first one whose leases have
    /// ended and that will do for the class. Others whose leases have ended go back to their
    /// shelves.
    fn take_lent(&self, class: usize, tries: usize) -> Option<OwnedChunk> {
        let lent = self.lent.count();
        if lent == 0 {
            return None;
        }
        let serving = self.serving(class);
        let wanted = |chunk: &OwnedChunk| serving.contains(&chunk.class()) && !chunk.is_one_off();
        for _ in 0..tries.min(lent) {
            match self.probe_lent() {
                Some(chunk) if wanted(&chunk) => return Some(chunk),
                Some(chunk) => Self::put_back(chunk),
                None => {}
            }
        }
        // A count lost to another thread only delays the trim, so it is not worth a
        // read-modify-write.
        let count = self.searches.load(Ordering::Relaxed) + 1;
        self.searches.store(count, Ordering::Relaxed);
        if count % SEARCHES_PER_TRIM == 0 {
            self.return_lent();
        }
        None
    }

    /// Takes the chunk at the head of the lent queue, or moves it to the tail if it is still
    /// leased.
    fn probe_lent(&self) -> Option<OwnedChunk> {
        self.lent.take().and_then(Self::reopen)
    }

    /// Gives all lent chunks whose leases have ended back to their shelves, or destroys those that
    /// have no place there.
    fn return_lent(&self) {
        (0..self.lent.count()).filter_map(|_| self.probe_lent()).for_each(Self::put_back);
    }

    /// Puts back a chunk that the caller has taken and not used.
    fn put_back(chunk: OwnedChunk) {
        if let Err(chunk) = chunk.give_idle().or_else(OwnedChunk::give) {
            Self::destroy(chunk);
        }
    }

    // ---- share ----------------------------------------------------------------------------------

    /// Gives a chunk its record, and makes room for it in the lent queue. Returns the generation.
    #[cold]
    pub(crate) fn prepare_to_share(&self, chunk: &Chunk) -> Result<u64, ShareError> {
        let _one_at_a_time = self.first_share.lock();
        let generation = chunk.generation();
        if generation != 0 {
            return Ok(generation);
        }
        let control = self.control().ok_or(ShareError::TooManyShared { max: 0 })?;
        // Room for every record there is, so the queue is never full unless it is sealed.
        if !self.lent.open(control.records()) {
            return Err(ShareError::OutOfMemory { bytes: LentQueue::<OwnedChunk>::bytes(control.records()) });
        }
        let (record, generation) = control.claim_record(chunk.memory().payload())?;
        chunk.set_record(record, generation);
        Ok(generation)
    }

    // ---- give back ------------------------------------------------------------------------------

    /// Gives back a chunk that was not shared since it was taken. Does nothing in a forked child.
    #[inline]
    pub(crate) fn give(chunk: OwnedChunk) {
        if !chunk.was_taken_here() {
            return Self::give_elsewhere(chunk);
        }
        if let Err(chunk) = chunk.give() {
            Self::destroy(chunk);
        }
    }

    /// Gives back a chunk that another thread took. It goes to the queue: the hot slot's cache line
    /// would travel between the two threads with every message, and the bytes are not in the other
    /// thread's cache anyway.
    #[inline(never)]
    fn give_elsewhere(chunk: OwnedChunk) {
        if chunk.is_ours() {
            Self::put_back(chunk);
        }
    }

    /// Gives back a chunk that was shared: peers may lease it, or be about to.
    ///
    /// It stays open to peers. A descriptor still in flight is good until the chunk is used again,
    /// or is given up for another one at the cap.
    pub(crate) fn give_shared(chunk: OwnedChunk) {
        // A one-off stays open in the lent queue, unless nothing is to be kept.
        if chunk.is_leased() || chunk.is_one_off() && chunk.pool().limits.max_idle > 0 {
            return Self::lend(chunk);
        }
        chunk.set_whereabouts(Whereabouts::Idle);
        if let Err(chunk) = chunk.give_idle() {
            Self::give_closed(chunk);
        }
    }

    /// Gives back a shared chunk that found no room in the idle queue.
    #[cold]
    fn give_closed(chunk: OwnedChunk) {
        if let Some(chunk) = Self::reopen(chunk) {
            Self::give(chunk);
        }
    }

    /// Destroys a chunk (I6: exactly once).
    #[cold]
    pub(crate) fn destroy(chunk: OwnedChunk) {
        let is_free = chunk.recycle() && !chunk.is_given_up();
        Self::dispose(chunk, is_free);
    }

    /// Destroys a chunk. If its bytes are not free, because somebody may read them, they are left
    /// as they are.
    pub(crate) fn dispose(chunk: OwnedChunk, is_free: bool) {
        {
            let mut registry = chunk.pool().registry.lock();
            if registry.remove(&chunk) == 0 {
                chunk.pool().used.remove(chunk.class());
            }
        }
        let remains = chunk.dismantle();
        let pool = remains.pool;
        pool.registry.lock().keep(remains.home);
        let tally = &pool.tallies[remains.class];
        tally.past_uses.fetch_add(remains.uses, Ordering::Relaxed);
        #[cfg(feature = "zenoh")]
        pool.collection.note_destroyed(remains.memory.len());
        if !is_free {
            // The pool is closed, and a peer still reads: neither the record nor the bytes are used
            // again. The arena goes with the pool; the peer keeps its mapping. Dropped here and not
            // after `pool`, so that if this is the last chunk its arena is removed before the
            // control object (see `sweep`).
            return drop(remains.memory);
        }
        if let (Some((record, generation)), Some(control)) = (remains.record, pool.control()) {
            control.release_record(record, generation);
        }
        pool.arenas.free(remains.memory);
        if pool.limits.max_idle == 0 {
            pool.give_memory_back();
        }
    }

    /// Closes the pool: it keeps nothing from now on. Called once, by the only taker of chunks.
    pub(crate) fn close(&self) {
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
