//! A chunk: one allocation's memory, with what the owner knows about it. Private to the owner's process.
//!
//! A chunk is made on the cold path and then travels by pointer: between a handle (one hand, or clones of a
//! `ShmBuf` that count themselves in `refs`) and its shelf. It keeps the pool alive, so that a handle need not.
//!
//! # Orderings
//!
//! | writer | reader | what becomes visible |
//! |---|---|---|
//! | `ShmBuf` clone dropped: `refs` Release | last drop: `refs` Acquire | that the other clones' holders have done reading, and that they shared the chunk |
//! | `share`: `generation`, Release | `share` in another thread, Acquire | the record's number |
//!
//! All other fields are written by the one who holds the chunk exclusively, and handed on through the shelf.

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

/// Most handles of a frozen chunk.
pub(crate) const MAX_HANDLES: usize = isize::MAX as usize;

/// No record was claimed yet.
const NO_RECORD: u32 = u32::MAX;

/// Where a chunk is that was given back while shared. Chunks that were never shared do not say: that would cost the warm
/// path two stores.
#[derive(Clone, Copy)]
pub(crate) enum Whereabouts {
    Elsewhere = 0,
    /// In the idle queue, still open to peers.
    Idle = 1,
    Lent = 2,
}

/// See the module's text.
///
/// The first cache line is what every drop reads. Nothing in it changes while one thread takes a chunk and another gives it
/// back, never shared, again and again; so both keep it in their caches. What changes with each use is kept apart, and out
/// of reach of the prefetcher that fetches lines in pairs.
#[repr(C, align(64))]
pub(crate) struct Chunk {
    shelf: NonNull<Shelf<OwnedChunk>>,
    data: NonNull<u8>,
    capacity: usize,
    /// Handles of a frozen chunk. 1 whenever the chunk is anywhere else.
    refs: AtomicUsize,
    /// The token of the thread that took it last.
    taker: AtomicU64,
    /// The owner's own copy: odd while closed to peers, even while published. 0 before the first time.
    generation: AtomicU64,
    fork_epoch: u64,
    record: AtomicU32,
    /// Was it published since it was taken? Then leases decide when it is free.
    shared: AtomicBool,
    rest: Rest,
}

#[repr(C, align(128))]
struct Rest {
    /// How often the chunk was taken. Written by the holder with a load and a store.
    uses: AtomicU64,
    /// Somebody reads its bytes who is not known any more.
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

// SAFETY: the shelf and the data live as long as the chunk (it holds the pool and the payload), and the fields are
// atomics or constant.
unsafe impl Send for Chunk {}
// SAFETY: as above.
unsafe impl Sync for Chunk {}

/// A chunk in one hand: nobody else has it (I3). It is used up by giving the chunk back, lending or destroying it; forgotten, the chunk
/// is lost, and nothing else.
#[repr(transparent)]
#[must_use = "a chunk that is in no place is lost"]
pub(crate) struct OwnedChunk(NonNull<Chunk>);

// SAFETY: a chunk may be used from any thread.
unsafe impl Send for OwnedChunk {}
// SAFETY: as for `Send`.
unsafe impl Sync for OwnedChunk {}

// SAFETY: the pointer is all there is to it.
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
        // SAFETY: a chunk lives until its owner dismantles it (I3).
        unsafe { self.0.as_ref() }
    }
}

impl OwnedChunk {
    /// Gives it to its shelf, where the next one of its class looks first. `Err`: the shelf has refused.
    #[inline]
    pub(crate) fn give(self) -> Result<(), Self> {
        let shelf = self.shelf;
        // SAFETY: the shelf is part of the pool, which the chunk keeps until it is given away; what `give` promises holds from there on.
        unsafe { shelf.as_ref() }.give(self)
    }

    /// Gives it to the idle queue of its shelf. `Err`: that has refused.
    pub(crate) fn give_idle(self) -> Result<(), Self> {
        let shelf = self.shelf;
        // SAFETY: as in `give`.
        unsafe { shelf.as_ref() }.give_idle(self)
    }

    /// Gives it to the queue of those that peers lease. `Err`: the pool is closed.
    pub(crate) fn give_lent(self) -> Result<(), Self> {
        let lent = NonNull::from(self.pool().lent());
        // SAFETY: the queue is part of the pool; then as in `give`.
        unsafe { lent.as_ref() }.give(self)
    }

    /// Takes the chunk apart. The registry does not list it any more.
    pub(crate) fn dismantle(self) -> Remains {
        // SAFETY: leaked by `Chunk::make`, and nobody else has it (I3).
        let home: Home = unsafe { Box::from_raw(self.0.cast().as_ptr()) };
        // SAFETY: written by `Chunk::make`, and moved out of its home once: that is empty from now on.
        let chunk = unsafe { home.assume_init_read() };
        let (record, generation) = (chunk.record.into_inner(), chunk.generation.into_inner());
        let record = (record != NO_RECORD).then_some((record, generation));
        let Rest { pool, memory, class, uses, .. } = chunk.rest;
        Remains { pool, memory, class, uses: uses.into_inner(), record, home }
    }
}

/// Private memory for a chunk, empty.
pub(crate) type Home = Box<MaybeUninit<Chunk>>;

/// What a destroyed chunk leaves behind.
pub(crate) struct Remains {
    pub(crate) pool: Arc<Pool>,
    pub(crate) memory: Carved,
    pub(crate) class: usize,
    pub(crate) uses: u64,
    /// The claimed record and the generation that it stands at.
    pub(crate) record: Option<(u32, u64)>,
    /// Where it was itself.
    pub(crate) home: Home,
}

impl Chunk {
    /// `is_one_off`: no shelf keeps it.
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

    /// Is it not kept when it is given back?
    pub(crate) fn is_one_off(&self) -> bool {
        self.shelf == NonNull::from(self.pool().no_shelf())
    }

    /// Is this process the one that made the chunk, and not a forked child?
    #[inline]
    pub(crate) fn is_ours(&self) -> bool {
        self.fork_epoch == fork::epoch()
    }

    /// Did this thread take the chunk last, and is this process the one that made it?
    #[inline]
    pub(crate) fn was_taken_here(&self) -> bool {
        self.taker.load(Ordering::Relaxed) == fork::token()
    }

    /// Remembers that this thread took the chunk.
    pub(crate) fn set_taker(&self) {
        self.taker.store(fork::own_token(), Ordering::Relaxed);
    }

    /// Counts an allocation. The caller has just taken the chunk.
    #[inline]
    pub(crate) fn count_use(&self) {
        let uses = &self.rest.uses;
        uses.store(uses.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    pub(crate) fn uses(&self) -> u64 {
        self.rest.uses.load(Ordering::Relaxed)
    }

    /// Its index in the pool's registry. The caller holds the registry's lock.
    pub(crate) fn registered(&self) -> usize {
        self.rest.registered.load(Ordering::Relaxed)
    }

    /// Notes its index in the pool's registry. The caller holds the registry's lock.
    pub(crate) fn set_registered(&self, at: usize) {
        self.rest.registered.store(at, Ordering::Relaxed);
    }

    // ---- handles of a frozen chunk ---------------------------------------------------------------------------

    /// One more handle. The caller has one.
    #[inline]
    pub(crate) fn add_handle(&self) {
        // As `Arc` does it: so many handles are only there if they are forgotten, and a count that started over would free a chunk
        // that is in use. The other half of the numbers is for threads that pass the limit at the same time.
        if self.refs.fetch_add(1, Ordering::Relaxed) > MAX_HANDLES {
            std::process::abort();
        }
    }

    /// Makes the count of handles another one.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn set_handles(&self, count: usize) {
        self.refs.store(count, Ordering::Relaxed);
    }

    /// Is the caller's handle the only one?
    #[inline]
    pub(crate) fn is_only_handle(&self) -> bool {
        // Acquire: partner of the Release below.
        self.refs.load(Ordering::Acquire) == 1
    }

    /// Gives up the caller's handle; `true` if it was the last, and then the chunk is the caller's.
    #[inline]
    pub(crate) fn drop_handle(&self) -> bool {
        // Nobody can clone a handle that only the caller has, so the last one needs no read-modify-write.
        if self.is_only_handle() {
            return true;
        }
        // AcqRel: Release for the reads of this handle's holder, Acquire in case this is the last after all.
        if self.refs.fetch_sub(1, Ordering::AcqRel) != 1 {
            return false;
        }
        self.refs.store(1, Ordering::Relaxed);
        true
    }

    // ---- sharing with peers ----------------------------------------------------------------------------------

    /// Was the chunk published since it was taken?
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        // Relaxed: set by a holder of a handle, and handed on with the handle.
        self.shared.load(Ordering::Relaxed)
    }

    /// Publishes the first `len` bytes to peers, and returns the record and generation that name them. The caller
    /// has a handle of the frozen chunk. Several threads may share the same chunk at the same time: they repeat the
    /// same stores.
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

    /// The owner's copy of the generation; 0 if no record was claimed.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Gives the chunk its record, for life. Called once, under a lock.
    pub(crate) fn set_record(&self, record: u32, generation: u64) {
        self.record.store(record, Ordering::Relaxed);
        self.generation.store(generation, Ordering::Release);
    }

    /// Closes the chunk to peers and tells whether none leases it, so that the holder may write. The caller holds the
    /// chunk exclusively.
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

    /// Does a peer lease the chunk, or has one a grant?
    pub(crate) fn is_leased(&self) -> bool {
        self.is_shared() && self.record().is_some_and(Record::is_leased)
    }

    // ---- lending it to channels ------------------------------------------------------------------------------

    /// Its bytes are never used again. Relaxed: the caller drops its handle after this (Release), and who asks
    /// [`is_given_up`](Self::is_given_up) is the last handle (Acquire), or asks for a snapshot.
    pub(crate) fn keep_bytes(&self) {
        self.rest.is_given_up.store(true, Ordering::Relaxed);
    }

    /// Are its bytes some reader's, for good?
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
