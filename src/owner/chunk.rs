//! The memory of one allocation with what the owner knows about it, in private memory. A chunk
//! moves by pointer between its free list and its handles: one hand, or clones of a `ShmBytes` that are
//! counted in `refs`. It keeps its pool alive, so a handle need not.
//!
//! # Orderings
//!
//! | writer | reader | what becomes visible |
//! |---|---|---|
//! | `ShmBytes` clone dropped: `refs` Release | last drop: `refs` Acquire | the end of the other holders' reads; `shared` and `is_leaked` |
//! | `share`: `generation`, Release | `share` in another thread, Acquire | the record's number |
//!
//! Only the exclusive holder writes the other fields.

use crate::os::fork::{self, ForkGuard};
use crate::owner::arena::Carved;
use crate::owner::free_list::{FreeList, Owner};
use crate::owner::limits::ShareError;
use crate::owner::pool::Pool;
use crate::owner::waiting::Notice;
use crate::protocol::record::{published_after, Place, Record};
use std::iter;
use std::mem::MaybeUninit;
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering,
};
use std::sync::Arc;

pub(crate) const MAX_HANDLES: usize = isize::MAX as usize;

const NO_RECORD: u32 = u32::MAX;

/// Unshared chunks are always `Elsewhere`, which saves them two stores.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whereabouts {
    Elsewhere = 0,
    /// Still open to peers.
    Idle = 1,
    Leased = 2,
}

/// Every drop reads the first cache line, which has no field that changes with each use. There are two:
/// with thousands of messages in flight, each is fetched from memory.
#[repr(C, align(64))]
pub(crate) struct Chunk {
    /// The class's free list, or [`Pool::uncached`] once it is retired.
    free_list: AtomicPtr<ChunkFreeList>,
    data: NonNull<u8>,
    capacity: usize,
    /// Handles of a frozen chunk; otherwise 1.
    refs: AtomicUsize,
    /// The token of the thread that took it last (see `os::fork`).
    taker: AtomicU64,
    /// Odd while closed to peers, even while published, 0 before a record is claimed.
    generation: AtomicU64,
    fork: ForkGuard,
    record: AtomicU32,
    /// Published since it was taken, so leases decide when it is free.
    shared: AtomicBool,
    notice: Notice,
    rest: Rest,
}

#[repr(C, align(64))]
struct Rest {
    /// Written by the holder, with a load and a store.
    uses: AtomicU64,
    pool: Arc<Pool>,
    memory: Carved,
    registered: AtomicUsize,
    class: u32,
    is_uncached: bool,
    /// A reader of unknown lifetime has the bytes.
    is_leaked: AtomicBool,
    whereabouts: AtomicU8,
    /// The backend's user's.
    tag: AtomicU8,
}

// SAFETY: the chunk holds the pool and the payload, so its free list and its data outlive it. All other
// fields are atomics or never change.
unsafe impl Send for Chunk {}
// SAFETY: shared access reads constant fields and atomics only; the chunk keeps both pointers
// valid.
unsafe impl Sync for Chunk {}

pub(crate) type ChunkFreeList = FreeList<ClosedChunk, OwnedChunk>;

/// A chunk in one hand (I3). Leaking it loses the chunk and does no other harm.
#[repr(transparent)]
#[must_use = "a chunk that is in no place is lost"]
pub(crate) struct Hand<const IS_CLOSED: bool>(NonNull<Chunk>);

/// Peers may lease it or attach to it.
pub(crate) type OwnedChunk = Hand<false>;

/// No peer leases it or can attach to it, so its holder may write it (I5).
pub(crate) type ClosedChunk = Hand<true>;

// SAFETY: a pointer to a `Chunk`, which is `Send`; ownership moves with it (I3).
unsafe impl<const IS_CLOSED: bool> Send for Hand<IS_CLOSED> {}
// SAFETY: a shared reference gives out `&Chunk` only, and `Chunk` is `Sync`.
unsafe impl<const IS_CLOSED: bool> Sync for Hand<IS_CLOSED> {}

// SAFETY: both functions only unwrap or wrap the pointer, and a hand is `Send`. A closed chunk
// stays closed while it is a pointer: only a handle can open it.
unsafe impl<const IS_CLOSED: bool> Owner for Hand<IS_CLOSED> {
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

impl<const IS_CLOSED: bool> Deref for Hand<IS_CLOSED> {
    type Target = Chunk;

    #[inline]
    fn deref(&self) -> &Chunk {
        // SAFETY: only `dismantle` frees a chunk, and it takes the one owner (I3).
        unsafe { self.0.as_ref() }
    }
}

impl From<ClosedChunk> for OwnedChunk {
    #[inline]
    fn from(chunk: ClosedChunk) -> Self {
        Self(chunk.0)
    }
}

impl OwnedChunk {
    #[inline]
    pub(crate) fn close(self) -> Result<ClosedChunk, Self> {
        if self.recycle() {
            Ok(Hand(self.0))
        } else {
            Err(self)
        }
    }

    /// Pushes it to its free list's idle queue. `Err` returns a refused chunk.
    pub(crate) fn push_idle(self) -> Result<(), Self> {
        let free_list = self.free_list();
        // SAFETY: the chunk keeps the pool, and so the free list, until the queue has taken it;
        // `push_idle` touches nothing afterwards.
        unsafe { free_list.as_ref() }.push_idle(self)
    }

    /// Pushes it to the leased queue of its class or, if it `is_retired`, of the pool. `Err` returns
    /// it if the pool is closed.
    pub(crate) fn push_leased(self, is_retired: bool) -> Result<(), Self> {
        let pool = self.pool();
        let free_list = if is_retired {
            NonNull::from(&pool.uncached)
        } else {
            NonNull::from(&pool.free_lists()[self.class()])
        };
        // SAFETY: the chunk keeps the pool, and so the free list, until the queue has taken it;
        // `FreeList::push_leased` touches nothing afterwards.
        unsafe { free_list.as_ref() }.push_leased(self)
    }

    /// Returns its pool and its memory. The registry must no longer list it.
    pub(crate) fn dismantle(self) -> (Arc<Pool>, Carved) {
        let home: Home = self.0.cast();
        // SAFETY: `Registry::enter` wrote the value. It is moved out once, as nothing else has the
        // chunk (I3), and before its pool, which owns the home, is dropped.
        let chunk = unsafe { self.0.as_ptr().read() };
        let Rest { pool, memory, .. } = chunk.rest;
        pool.registry.lock().keep(home);
        (pool, memory)
    }
}

impl ClosedChunk {
    /// Pushes it to its free list's hot slot if that is empty; else returns it.
    #[inline]
    pub(crate) fn push_hot(self) -> Result<(), Self> {
        let free_list = self.free_list();
        // SAFETY: the chunk keeps the pool, and so the free list (I3), until it is pushed. From then
        // on `FreeList::push_hot` does not touch the free list.
        unsafe { free_list.as_ref() }.push_hot(self)
    }

    /// Pushes it to its free list's hot slot. `Err` returns a refused chunk.
    pub(crate) fn push(self) -> Result<(), OwnedChunk> {
        let free_list = self.free_list();
        // SAFETY: as above; `FreeList::push` touches the free list only while it holds another of its chunks.
        unsafe { free_list.as_ref() }.push(self)
    }
}

/// The memory of a chunk, in a block of its pool's registry.
type Home = NonNull<MaybeUninit<Chunk>>;

impl Chunk {
    fn new(pool: Arc<Pool>, class: usize, memory: Carved, is_uncached: bool) -> Self {
        let free_list = if is_uncached {
            &pool.uncached
        } else {
            &pool.free_lists()[class]
        };
        Self {
            free_list: AtomicPtr::new(NonNull::from(free_list).as_ptr()),
            data: memory.start(),
            capacity: memory.len(),
            notice: pool.notice,
            refs: AtomicUsize::new(1),
            taker: AtomicU64::new(fork::NO_THREAD),
            fork: ForkGuard::new(),
            record: AtomicU32::new(NO_RECORD),
            generation: AtomicU64::new(0),
            shared: AtomicBool::new(false),
            rest: Rest {
                uses: AtomicU64::new(0),
                is_leaked: AtomicBool::new(false),
                whereabouts: AtomicU8::new(Whereabouts::Elsewhere as u8),
                tag: AtomicU8::new(0),
                registered: AtomicUsize::new(usize::MAX),
                class: class as u32,
                is_uncached,
                memory,
                pool,
            },
        }
    }

    #[inline]
    pub(crate) fn data(&self) -> NonNull<u8> {
        self.data
    }

    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn class(&self) -> usize {
        self.rest.class as usize
    }

    pub(crate) fn memory(&self) -> &Carved {
        &self.rest.memory
    }

    #[inline]
    pub(crate) fn offset(&self) -> usize {
        self.rest.memory.offset()
    }

    #[inline]
    pub(crate) fn serial(&self) -> u64 {
        self.rest.memory.payload().serial()
    }

    #[inline]
    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.rest.pool
    }

    #[inline]
    fn free_list(&self) -> NonNull<ChunkFreeList> {
        // Relaxed: both free lists are part of the pool, which is older than the chunk.
        // SAFETY: `new` and `retire` store pointers that were made from references.
        unsafe { NonNull::new_unchecked(self.free_list.load(Ordering::Relaxed)) }
    }

    pub(crate) fn is_uncached(&self) -> bool {
        self.rest.is_uncached
    }

    /// No free list keeps it: it is uncached, or retired.
    pub(crate) fn is_retired(&self) -> bool {
        self.free_list() == NonNull::from(&self.pool().uncached)
    }

    /// Makes every free list refuse it from now on. One that holds it still hands it out.
    pub(crate) fn retire(&self) {
        self.free_list.store(
            NonNull::from(&self.pool().uncached).as_ptr(),
            Ordering::Relaxed,
        );
    }

    #[inline]
    pub(crate) fn notice(&self) -> Notice {
        self.notice
    }

    #[inline]
    pub(crate) fn is_ours(&self) -> bool {
        self.fork.is_ours()
    }

    /// Returns `true` if this thread, on this side of every fork, was the last to take it.
    #[inline]
    pub(crate) fn was_taken_here(&self) -> bool {
        self.taker.load(Ordering::Relaxed) == fork::token()
    }

    pub(crate) fn set_taker(&self) {
        self.taker.store(fork::recorded_token(), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn count_use(&self) -> u64 {
        let uses = self.rest.uses.load(Ordering::Relaxed) + 1;
        self.rest.uses.store(uses, Ordering::Relaxed);
        uses
    }

    #[cfg(feature = "unstable-backend")]
    #[inline]
    pub(crate) fn tag(&self) -> u8 {
        self.rest.tag.load(Ordering::Relaxed)
    }

    #[cfg(feature = "unstable-backend")]
    #[inline]
    pub(crate) fn set_tag(&self, tag: u8) {
        self.rest.tag.store(tag, Ordering::Relaxed);
    }

    pub(crate) fn uses(&self) -> u64 {
        self.rest.uses.load(Ordering::Relaxed)
    }

    /// Clears the token of the thread that took it last. Returns `true` if it was taken since the
    /// previous call.
    pub(crate) fn clear_taker(&self) -> bool {
        let was_taken = self.taker.load(Ordering::Relaxed) != fork::NO_THREAD;
        self.taker.store(fork::NO_THREAD, Ordering::Relaxed);
        was_taken
    }

    fn registered(&self) -> usize {
        self.rest.registered.load(Ordering::Relaxed)
    }

    fn set_registered(&self, at: usize) {
        self.rest.registered.store(at, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn add_handles(&self, count: usize) {
        // As in `Arc`: only leaked handles can be this many, and a count that wrapped would free a
        // chunk in use. The other half of the range absorbs concurrent calls.
        if self.refs.fetch_add(count, Ordering::Relaxed) > MAX_HANDLES {
            std::process::abort();
        }
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn set_handles(&self, count: usize) {
        self.refs.store(count, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_only_handle(&self) -> bool {
        // Acquire: partner of the Release in `drop_handle`.
        self.refs.load(Ordering::Acquire) == 1
    }

    /// Turns `count` of the caller's handles into one, if there are no others; else drops them all.
    /// Returns `true` if that one is left.
    #[inline]
    pub(crate) fn merge_handles(&self, count: usize) -> bool {
        // Acquire: partner of the Release in `drop_handle`. No other thread can clone a handle that
        // it does not have.
        let are_all = self.refs.load(Ordering::Acquire) == count;
        // AcqRel: as in `drop_handle`.
        if !are_all && self.refs.fetch_sub(count, Ordering::AcqRel) != count {
            return false;
        }
        self.refs.store(1, Ordering::Relaxed);
        true
    }

    /// Returns `true` if the caller's handle was the last; then it owns the chunk.
    #[inline]
    pub(crate) fn drop_handle(&self) -> bool {
        // No other thread can clone the only handle, so dropping it needs no read-modify-write.
        if self.is_only_handle() {
            return true;
        }
        // AcqRel: Release for this holder's reads, Acquire in case this is the last one after all.
        if self.refs.fetch_sub(1, Ordering::AcqRel) != 1 {
            return false;
        }
        self.refs.store(1, Ordering::Relaxed);
        true
    }

    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        // Relaxed: a handle's holder sets it, and passing the handle on makes it visible.
        self.shared.load(Ordering::Relaxed)
    }

    /// Publishes the first `len` bytes. Concurrent callers repeat the same stores.
    #[inline]
    pub(crate) fn share(&self, len: usize) -> Result<(u32, u64), ShareError> {
        let mut generation = self.generation.load(Ordering::Acquire);
        if generation == 0 {
            generation = self.pool().prepare_to_share(self)?;
        }
        let record = self.record.load(Ordering::Relaxed);
        if generation % 2 == 1 {
            generation = published_after(generation);
            let index = match self.memory().payload().index() {
                Some(index) => u64::from(index),
                None => u64::MAX,
            };
            let place = Place {
                segment: self.serial(),
                index,
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

    #[inline]
    pub(crate) fn record(&self) -> Option<&Record> {
        self.pool()
            .control()?
            .record(self.record.load(Ordering::Relaxed))
    }

    pub(crate) fn has_record(&self) -> bool {
        self.generation() != 0
    }

    pub(crate) fn claimed(&self) -> Option<(u32, u64)> {
        if !self.has_record() {
            return None;
        }
        Some((self.record.load(Ordering::Relaxed), self.generation()))
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Called once, under a lock.
    pub(crate) fn set_record(&self, record: u32, generation: u64) {
        self.record.store(record, Ordering::Relaxed);
        self.generation.store(generation, Ordering::Release);
    }

    /// Closes the chunk to peers. `true`: no peer leases it, so the exclusive holder may write.
    #[inline]
    fn recycle(&self) -> bool {
        if !self.is_shared() {
            return true;
        }
        let mut generation = self.generation.load(Ordering::Relaxed);
        let is_free = match self.record() {
            Some(record) => record.recycle(&mut generation),
            None => true,
        };
        self.generation.store(generation, Ordering::Relaxed);
        if is_free {
            self.shared.store(false, Ordering::Relaxed);
            self.set_whereabouts(Whereabouts::Elsewhere);
        }
        is_free
    }

    pub(crate) fn is_leased(&self) -> bool {
        if !self.is_shared() {
            return false;
        }
        match self.record() {
            Some(record) => record.is_leased(),
            None => false,
        }
    }

    /// Returns `true` if a peer has a grant of it that it has not taken up.
    pub(crate) fn is_granted(&self) -> bool {
        match self.record() {
            Some(record) => record.is_granted(),
            None => false,
        }
    }

    /// Keeps the bytes from ever being reused. Relaxed: the caller then drops its handle (Release),
    /// and a caller of [`is_leaked`](Self::is_leaked) has the last one (Acquire), or wants a
    /// snapshot.
    pub(crate) fn keep_bytes(&self) {
        self.rest.is_leaked.store(true, Ordering::Relaxed);
        // No length waits for this memory from now on.
        self.pool().arenas.leak(self.memory());
    }

    pub(crate) fn is_leaked(&self) -> bool {
        self.rest.is_leaked.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set_whereabouts(&self, whereabouts: Whereabouts) {
        self.rest
            .whereabouts
            .store(whereabouts as u8, Ordering::Relaxed);
    }

    pub(crate) fn whereabouts(&self) -> Whereabouts {
        match self.rest.whereabouts.load(Ordering::Relaxed) {
            1 => Whereabouts::Idle,
            2 => Whereabouts::Leased,
            _ => Whereabouts::Elsewhere,
        }
    }
}

/// The least number of chunks in a block.
const SHORTEST: usize = 32;

/// Returns the number of chunks in the next block if there are blocks for `chunks`: a quarter of that, so
/// that the blocks of thousands of chunks are few and leave no holes in the heap. One under
/// AddressSanitizer, which then catches stray accesses.
fn next_block(chunks: usize) -> usize {
    if cfg!(shm_pool_asan) {
        1
    } else {
        (chunks / 4).max(SHORTEST)
    }
}

/// The list of a pool's chunks, under one lock.
pub(crate) struct Registry {
    listed: Vec<Registered>,
    /// The number of chunks of each class, except uncached and retired ones.
    kept: Box<[usize]>,
    /// The memory of all chunks. Chunks in a row make a pass over thousands of them fast.
    blocks: Vec<Block>,
    /// Unused, in these blocks.
    homes: Vec<Home>,
}

// SAFETY: homes are pointers into the blocks, which move with them.
unsafe impl Send for Registry {}

impl Registry {
    pub(crate) fn new(classes: usize) -> Self {
        Self {
            listed: Vec::new(),
            kept: vec![0; classes].into(),
            blocks: Vec::new(),
            homes: Vec::new(),
        }
    }

    pub(crate) fn count(&self, class: usize) -> usize {
        self.kept[class]
    }

    /// Returns `true` if every chunk is of this class, and neither uncached nor retired.
    pub(crate) fn is_all_of(&self, class: usize) -> bool {
        self.kept[class] == self.listed.len()
    }

    pub(crate) fn enter(
        &mut self,
        pool: Arc<Pool>,
        class: usize,
        memory: Carved,
        is_uncached: bool,
    ) -> ClosedChunk {
        let home = match self.homes.pop() {
            Some(home) => home,
            None => self.build(),
        };
        let chunk = Chunk::new(pool, class, memory, is_uncached);
        chunk.set_registered(self.listed.len());
        let place: NonNull<Chunk> = home.cast();
        // SAFETY: the home is unused, in a block that is kept as long as the pool, and so the chunk.
        unsafe { place.as_ptr().write(chunk) };
        self.listed.push(Registered(place));
        if !is_uncached {
            self.kept[class] += 1;
        }
        Hand(place)
    }

    pub(crate) fn remove(&mut self, chunk: &Chunk) {
        let at = chunk.registered();
        self.listed.swap_remove(at);
        if let Some(moved) = self.listed.get(at) {
            moved.chunk().set_registered(at);
        }
        if !chunk.is_retired() {
            self.kept[chunk.class()] -= 1;
        }
    }

    #[cold]
    fn build(&mut self) -> Home {
        let chunks = self.capacity();
        let block = Block::new(next_block(chunks));
        // Room for all homes: to release a chunk must not need memory (D23).
        self.homes.reserve(chunks + block.len());
        for at in (1..block.len()).rev() {
            self.homes.push(block.home(at));
        }
        let first = block.home(0);
        self.blocks.push(block);
        first
    }

    fn capacity(&self) -> usize {
        self.blocks.iter().map(Block::len).sum()
    }

    /// Keeps the home of a destroyed chunk for another one. Frees all homes once no chunk is left.
    fn keep(&mut self, home: Home) {
        if cfg!(shm_pool_asan) {
            self.blocks.retain(|block| block.home(0) != home);
            return;
        }
        self.homes.push(home);
        if self.blocks.len() > 1 && self.homes.len() == self.capacity() {
            self.homes.clear();
            self.blocks.clear();
        }
    }

    /// Retires those chunks at these places for which `least` returns a number, while their class
    /// keeps more.
    pub(crate) fn retire(
        &mut self,
        places: Range<usize>,
        mut least: impl FnMut(&Chunk) -> Option<usize>,
    ) {
        for registered in &self.listed[places] {
            let chunk = registered.chunk();
            let Some(least) = least(chunk) else {
                continue;
            };
            let kept = &mut self.kept[chunk.class()];
            if *kept > least && !chunk.is_retired() {
                *kept -= 1;
                chunk.retire();
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.listed.len()
    }

    /// Returns the chunks at these places of the list.
    pub(crate) fn chunks_in(&self, places: Range<usize>) -> impl Iterator<Item = &Chunk> {
        self.listed[places].iter().map(Registered::chunk)
    }
}

/// The memory of some chunks.
struct Block(NonNull<[MaybeUninit<Chunk>]>);

// SAFETY: plain memory, which only the chunks in it use.
unsafe impl Send for Block {}

impl Block {
    /// Makes room for that many, or for fewer if the heap is short of memory.
    fn new(mut chunks: usize) -> Self {
        let mut homes = Vec::new();
        if homes.try_reserve_exact(chunks).is_err() {
            chunks = chunks.min(SHORTEST);
        }
        homes.extend(iter::repeat_with(MaybeUninit::uninit).take(chunks));
        Self(NonNull::from(Box::leak(homes.into_boxed_slice())))
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn home(&self, at: usize) -> Home {
        assert!(at < self.len());
        let first: Home = self.0.cast();
        // SAFETY: within the slice, and so not null.
        unsafe { NonNull::new_unchecked(first.as_ptr().wrapping_add(at)) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: `new` leaked the box. No chunk is in it: the registry drops its blocks when all
        // homes are unused, or with the pool, which each chunk keeps alive.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

struct Registered(NonNull<Chunk>);

// SAFETY: it only hands out shared references, under the registry's lock, and `Chunk` is `Sync`.
unsafe impl Send for Registered {}

impl Registered {
    fn chunk(&self) -> &Chunk {
        // SAFETY: a chunk is removed from the registry, under its lock, before it is destroyed.
        unsafe { self.0.as_ref() }
    }
}

#[cfg(all(test, not(loom), not(shm_pool_asan)))]
mod tests {
    use super::{Chunk, SHORTEST};
    use crate::{Namespace, Provider};

    #[test]
    fn homes_are_reused_and_released() {
        assert_eq!(std::mem::size_of::<Chunk>(), 128, "see `docs::limits`");
        let name = format!("shm_pool-unit-{}-homes", std::process::id());
        let provider = Provider::builder()
            .namespace(&Namespace::new(&name).unwrap())
            .build()
            .unwrap();
        let blocks = || provider.pool().registry.lock().blocks.len();
        for _ in 0..3 {
            let held: Vec<_> = (0..20 * SHORTEST)
                .map(|_| provider.alloc(1000).unwrap())
                .collect();
            assert!(
                (8..20).contains(&blocks()),
                "the later ones are longer: {}",
                blocks()
            );
            assert!(
                provider.pool().registry.lock().homes.capacity() >= held.len(),
                "no release needs memory"
            );
            drop(held);
            provider.trim();
            assert_eq!(blocks(), 0);
            drop(provider.alloc(1000).unwrap());
            provider.trim();
            assert_eq!(blocks(), 1, "one is kept");
        }
    }
}
