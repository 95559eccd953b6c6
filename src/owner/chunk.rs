//! A chunk: the memory of one allocation, with what the owner knows about it. Private to the
//! owner's process.
//!
//! The cold path makes a chunk. From then on it travels by pointer between its shelf and a handle:
//! one hand, or clones of a `ShmBuf`, which count themselves in `refs`. A chunk keeps the pool
//! alive, so a handle need not.
//!
//! # Orderings
//!
//! | writer | reader | what becomes visible |
//! |---|---|---|
//! | `ShmBuf` clone dropped: `refs` Release | last drop: `refs` Acquire | the other holders have finished reading, and what they set: `shared`, `is_given_up` |
//! | `share`: `generation`, Release | `share` in another thread, Acquire | the record's number |
//!
//! The registry's lock guards `registered`. Only the exclusive holder of the chunk writes the other
//! fields; the shelf hands them on.

use crate::os::fork;
use crate::owner::arena::Carved;
use crate::owner::error::ShareError;
use crate::owner::pool::Pool;
use crate::owner::shelf::{Owner, Shelf};
use crate::protocol::record::{published_after, Place, Record};
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering};
use std::sync::Arc;

/// The most handles a frozen chunk may have.
pub(crate) const MAX_HANDLES: usize = isize::MAX as usize;

/// No record has been claimed yet.
const NO_RECORD: u32 = u32::MAX;

/// Where a chunk is that was shared and then given back. Chunks that were never shared do not say,
/// because that would cost the warm path two stores.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whereabouts {
    Elsewhere = 0,
    /// In the idle queue, still open to peers.
    Idle = 1,
    Lent = 2,
}

/// One allocation's memory and its bookkeeping, reached by pointer.
///
/// Every drop reads the first cache line. While one thread takes the chunk and another gives it
/// back unshared, over and over, nothing in that line changes, so both keep it in their caches.
/// What changes with each use is kept apart, out of reach of the prefetcher that fetches lines in
/// pairs.
#[repr(C, align(64))]
pub(crate) struct Chunk {
    shelf: NonNull<Shelf<OwnedChunk>>,
    data: NonNull<u8>,
    capacity: usize,
    /// Handles of a frozen chunk. 1 in every other state.
    refs: AtomicUsize,
    /// The token of the thread that took it last.
    taker: AtomicU64,
    /// The owner's own copy: odd while closed to peers, even while published, 0 before a record is
    /// claimed.
    generation: AtomicU64,
    fork_epoch: u64,
    record: AtomicU32,
    /// Has it been published since it was taken? If so, leases decide when it is free.
    shared: AtomicBool,
    rest: Rest,
}

#[repr(C, align(128))]
struct Rest {
    /// How often the chunk was taken. Written by the holder, with a load and a store.
    uses: AtomicU64,
    uses_when_asked: AtomicU64,
    /// A reader of unknown lifetime still has the bytes.
    is_given_up: AtomicBool,
    /// The segment's serial number.
    serial: u64,
    memory: Carved,
    pool: Arc<Pool>,
    class: usize,
    /// Its index in the pool's registry, guarded by the registry's lock.
    registered: AtomicUsize,
    /// A [`Whereabouts`].
    whereabouts: AtomicU8,
}

// SAFETY: the chunk holds the pool and the payload, so its shelf and its data outlive it. All other
// fields are atomics or never change.
unsafe impl Send for Chunk {}
// SAFETY: shared access reads constant fields and atomics only; the pool and the payload, which the
// chunk holds, keep the two pointers valid.
unsafe impl Sync for Chunk {}

/// A chunk in one hand: nobody else has it (I3). Giving it back, lending it or destroying it uses
/// this up. Forgetting it loses the chunk and does no other harm.
#[repr(transparent)]
#[must_use = "a chunk that is in no place is lost"]
pub(crate) struct OwnedChunk(NonNull<Chunk>);

// SAFETY: a pointer to a `Chunk`, which is `Send`; ownership moves with it (I3).
unsafe impl Send for OwnedChunk {}
// SAFETY: `&OwnedChunk` gives out `&Chunk` only, and `Chunk` is `Sync`.
unsafe impl Sync for OwnedChunk {}

// SAFETY: both functions only unwrap or wrap the pointer, and `OwnedChunk` is `Send`.
unsafe impl Owner for OwnedChunk {
    type Owned = Chunk;

    #[inline]
    fn into_raw(self) -> NonNull<Chunk> {
        self.0
    }

    #[inline]
    unsafe fn from_raw(chunk: NonNull<Chunk>) -> Self {
        Self(chunk)
    }
}

impl Deref for OwnedChunk {
    type Target = Chunk;

    #[inline]
    fn deref(&self) -> &Chunk {
        // SAFETY: only `dismantle` frees a chunk, and it takes the one owner (I3).
        unsafe { self.0.as_ref() }
    }
}

impl OwnedChunk {
    /// Gives it to its shelf's hot slot, where the next allocation of the class looks first. `Err`:
    /// the shelf refused it.
    #[inline]
    pub(crate) fn give(self) -> Result<(), Self> {
        let shelf = self.shelf;
        // SAFETY: the shelf is part of the pool, which the chunk keeps alive until it is given
        // away. From then on `Shelf::give` touches the shelf only while it has another chunk of it.
        unsafe { shelf.as_ref() }.give(self)
    }

    /// Gives it to its shelf's idle queue. `Err`: the queue refused it.
    pub(crate) fn give_idle(self) -> Result<(), Self> {
        let shelf = self.shelf;
        // SAFETY: the chunk keeps the pool, and so the shelf, until the queue has taken it;
        // `give_idle` touches nothing afterwards.
        unsafe { shelf.as_ref() }.give_idle(self)
    }

    /// Gives it to the queue of chunks that peers lease. `Err`: the pool is closed.
    pub(crate) fn give_lent(self) -> Result<(), Self> {
        let lent = NonNull::from(self.pool().lent());
        // SAFETY: the chunk keeps the pool, and so the queue, until the queue has taken it;
        // `LentQueue::give` touches nothing afterwards.
        unsafe { lent.as_ref() }.give(self)
    }

    /// Takes the chunk apart. The registry must no longer list it.
    pub(crate) fn dismantle(self) -> Remains {
        // SAFETY: `Chunk::make` leaked this box, and nobody else has the chunk (I3).
        let home: Home = unsafe { Box::from_raw(self.0.cast().as_ptr()) };
        // SAFETY: `Chunk::make` wrote the value. It is moved out once: the home counts as empty
        // from here on.
        let chunk = unsafe { home.assume_init_read() };
        let (record, generation) = (chunk.record.into_inner(), chunk.generation.into_inner());
        let record = (record != NO_RECORD).then_some((record, generation));
        let Rest { pool, memory, class, uses, .. } = chunk.rest;
        Remains { pool, memory, class, uses: uses.into_inner(), record, home }
    }
}

/// Private memory for one chunk, uninitialised.
pub(crate) type Home = Box<MaybeUninit<Chunk>>;

/// What is left of a chunk that was taken apart.
pub(crate) struct Remains {
    pub(crate) pool: Arc<Pool>,
    pub(crate) memory: Carved,
    pub(crate) class: usize,
    pub(crate) uses: u64,
    /// The claimed record and its current generation.
    pub(crate) record: Option<(u32, u64)>,
    /// The memory that the chunk itself was in.
    pub(crate) home: Home,
}

impl Chunk {
    /// Makes a chunk in `home`. `is_one_off`: no shelf keeps it.
    pub(crate) fn make(home: Home, pool: Arc<Pool>, class: usize, memory: Carved, is_one_off: bool) -> OwnedChunk {
        let home = Box::leak(home);
        let chunk = home.write(Self {
            shelf: NonNull::from(if is_one_off { pool.no_shelf() } else { pool.shelf(class) }),
            data: memory.start(),
            capacity: memory.len(),
            refs: AtomicUsize::new(1),
            taker: AtomicU64::new(fork::NOBODY),
            fork_epoch: fork::epoch(),
            record: AtomicU32::new(NO_RECORD),
            generation: AtomicU64::new(0),
            shared: AtomicBool::new(false),
            rest: Rest {
                uses: AtomicU64::new(0),
                uses_when_asked: AtomicU64::new(0),
                is_given_up: AtomicBool::new(false),
                whereabouts: AtomicU8::new(Whereabouts::Elsewhere as u8),
                registered: AtomicUsize::new(usize::MAX),
                class,
                serial: memory.payload().serial(),
                memory,
                pool,
            },
        });
        OwnedChunk(NonNull::from(chunk))
    }

    #[inline]
    pub(crate) fn data(&self) -> NonNull<u8> {
        self.data
    }

    /// Usable bytes.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn class(&self) -> usize {
        self.rest.class
    }

    pub(crate) fn memory(&self) -> &Carved {
        &self.rest.memory
    }

    /// Bytes from the segment's start.
    #[inline]
    pub(crate) fn offset(&self) -> usize {
        self.rest.memory.offset()
    }

    /// The segment's serial number.
    #[inline]
    pub(crate) fn serial(&self) -> u64 {
        self.rest.serial
    }

    #[inline]
    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.rest.pool
    }

    /// Is this a one-off, which no shelf keeps?
    pub(crate) fn is_one_off(&self) -> bool {
        self.shelf == NonNull::from(self.pool().no_shelf())
    }

    /// Did this process make the chunk, as opposed to a parent that forked it?
    #[inline]
    pub(crate) fn is_ours(&self) -> bool {
        self.fork_epoch == fork::epoch()
    }

    /// Was this thread, on this side of every fork, the last to take the chunk?
    #[inline]
    pub(crate) fn was_taken_here(&self) -> bool {
        self.taker.load(Ordering::Relaxed) == fork::token()
    }

    /// Remembers that this thread took the chunk.
    pub(crate) fn set_taker(&self) {
        self.taker.store(fork::own_token(), Ordering::Relaxed);
    }

    /// Counts an allocation, and returns how many there were. The caller has just taken the chunk.
    #[inline]
    pub(crate) fn count_use(&self) -> u64 {
        let uses = self.rest.uses.load(Ordering::Relaxed) + 1;
        self.rest.uses.store(uses, Ordering::Relaxed);
        uses
    }

    pub(crate) fn uses(&self) -> u64 {
        self.rest.uses.load(Ordering::Relaxed)
    }

    /// Was it used since this was last asked? The caller has just taken it.
    pub(crate) fn was_used_since_asked(&self) -> bool {
        let uses = self.uses();
        // Relaxed: who gives the chunk back passes both on.
        let before = self.rest.uses_when_asked.load(Ordering::Relaxed);
        self.rest.uses_when_asked.store(uses, Ordering::Relaxed);
        uses != before
    }

    /// Its index in the pool's registry. The caller holds the registry's lock.
    pub(crate) fn registered(&self) -> usize {
        self.rest.registered.load(Ordering::Relaxed)
    }

    /// Sets its index in the pool's registry. The caller holds the registry's lock.
    pub(crate) fn set_registered(&self, at: usize) {
        self.rest.registered.store(at, Ordering::Relaxed);
    }

    // ---- handles of a frozen chunk --------------------------------------------------------------

    /// Adds a handle. The caller has one.
    #[inline]
    pub(crate) fn add_handle(&self) {
        self.add_handles(1);
    }

    /// Adds a few handles. The caller has one.
    #[inline]
    pub(crate) fn add_handles(&self, count: usize) {
        // As in `Arc`: only forgotten handles can be this many, and a count that wrapped would free
        // a chunk in use. The other half of the range absorbs threads that pass the limit at the
        // same moment.
        if self.refs.fetch_add(count, Ordering::Relaxed) > MAX_HANDLES {
            std::process::abort();
        }
    }

    /// Sets the number of handles, for tests of the limit.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn set_handles(&self, count: usize) {
        self.refs.store(count, Ordering::Relaxed);
    }

    /// Is the caller's handle the only one?
    #[inline]
    pub(crate) fn is_only_handle(&self) -> bool {
        // Acquire: pairs with the Release in `drop_handle`.
        self.refs.load(Ordering::Acquire) == 1
    }

    /// Gives up the caller's handle. `true` if it was the last; then the caller owns the chunk.
    #[inline]
    pub(crate) fn drop_handle(&self) -> bool {
        // Nobody can clone a handle that only the caller has, so the last one needs no
        // read-modify-write.
        if self.is_only_handle() {
            return true;
        }
        // AcqRel: Release for what this holder has read, Acquire in case this is the last one after
        // all.
        if self.refs.fetch_sub(1, Ordering::AcqRel) != 1 {
            return false;
        }
        self.refs.store(1, Ordering::Relaxed);
        true
    }

    // ---- sharing with peers ---------------------------------------------------------------------

    /// Has the chunk been published since it was taken?
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        // Relaxed: the holder of a handle sets it, and passing the handle on makes it visible.
        self.shared.load(Ordering::Relaxed)
    }

    /// Publishes the first `len` bytes to peers. Returns the record and the generation that name
    /// them. The caller has a handle of the frozen chunk. Threads that share the same chunk at the
    /// same time repeat the same stores.
    #[inline]
    pub(crate) fn share(&self, len: usize) -> Result<(u32, u64), ShareError> {
        let mut generation = self.generation.load(Ordering::Acquire);
        if generation == 0 {
            generation = self.pool().prepare_to_share(self)?;
        }
        let record = self.record.load(Ordering::Relaxed);
        if generation % 2 == 1 {
            generation = published_after(generation);
            let payload = self.memory().payload();
            let place = Place {
                segment: self.serial(),
                index: payload.index().map_or(u64::MAX, u64::from),
                offset: self.offset() as u64,
                len: len as u64,
            };
            self.shared.store(true, Ordering::Relaxed);
            if let Some(record) = self.record() {
                record.publish(generation, place);
            }
            self.generation.store(generation, Ordering::Release);
        }
        Ok((record, generation))
    }

    /// The record, if one was claimed.
    #[inline]
    pub(crate) fn record(&self) -> Option<&Record> {
        self.pool().control()?.record(self.record.load(Ordering::Relaxed))
    }

    /// Was a record claimed for it? It has that for life.
    pub(crate) fn has_record(&self) -> bool {
        self.generation() != 0
    }

    /// The owner's copy of the generation; 0 if no record was claimed.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Gives the chunk its record, for life. Called once, under a lock.
    pub(crate) fn set_record(&self, record: u32, generation: u64) {
        self.record.store(record, Ordering::Relaxed);
        self.generation.store(generation, Ordering::Release);
    }

    /// Closes the chunk to peers. `true` if no peer leases it, so that the holder may write. The
    /// caller holds the chunk exclusively.
    #[inline]
    pub(crate) fn recycle(&self) -> bool {
        if !self.is_shared() {
            return true;
        }
        let mut generation = self.generation.load(Ordering::Relaxed);
        let is_free = self.record().map_or(true, |record| record.recycle(&mut generation));
        self.generation.store(generation, Ordering::Relaxed);
        if is_free {
            self.shared.store(false, Ordering::Relaxed);
        }
        is_free
    }

    /// Does a peer have a lease or a grant on the chunk?
    pub(crate) fn is_leased(&self) -> bool {
        self.is_shared() && self.record().is_some_and(Record::is_leased)
    }

    // ---- lending it to channels -----------------------------------------------------------------

    /// Marks the bytes as never to be used again. Relaxed: the caller drops its handle afterwards
    /// (Release). A caller of [`is_given_up`](Self::is_given_up) has the last handle (Acquire), or
    /// wants a snapshot only.
    pub(crate) fn keep_bytes(&self) {
        self.rest.is_given_up.store(true, Ordering::Relaxed);
    }

    /// Do the bytes belong to a reader for good?
    pub(crate) fn is_given_up(&self) -> bool {
        self.rest.is_given_up.load(Ordering::Relaxed)
    }

    /// Remembers where the chunk is, for statistics.
    #[inline]
    pub(crate) fn set_whereabouts(&self, whereabouts: Whereabouts) {
        self.rest.whereabouts.store(whereabouts as u8, Ordering::Relaxed);
    }

    /// Where the chunk is. A snapshot.
    pub(crate) fn whereabouts(&self) -> Whereabouts {
        match self.rest.whereabouts.load(Ordering::Relaxed) {
            1 => Whereabouts::Idle,
            2 => Whereabouts::Lent,
            _ => Whereabouts::Elsewhere,
        }
    }
}
