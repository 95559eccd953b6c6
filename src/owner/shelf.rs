//! The idle chunks of one size class, in a hot slot and a queue; and the lent chunks of all
//! classes, in another queue.
//!
//! | place | holds | order |
//! |---|---|---|
//! | hot slot | at most one idle chunk of a class, the one given back last | last in, first out: it is warm in the cache |
//! | idle queue | chunks of a class that nobody leased when they were given back, up to the idle cap | first in, first out: a descriptor still in flight has the most time |
//! | lent queue | chunks of all classes that peers leased when they were given back | first in, first out: the head was shared longest ago |
//!
//! A chunk is in one of these places or in one hand (I3). Every transfer is one successful atomic
//! exchange of the pointer, so it has one winner.
//!
//! # Closing
//!
//! A handle may be dropped while the provider is being dropped. The loser of that race must find
//! out *before* it gives the chunk away, because the chunk keeps the shelf's memory alive: after a
//! successful give, the giver touches nothing of the shelf again. So a "closed" flag to look at
//! afterwards would not do. Instead [`Shelf::close`] and [`LentQueue::close`] make every place
//! refuse: they put a seal into the hot slot and fill each queue with seals. A give that is refused
//! still owns its chunk and destroys it. A give that succeeds comes before the seal in the order of
//! that one location, so the closer takes the chunk out.
//!
//! A shelf that keeps nothing (`max_idle_per_class` 0) has its hot slot sealed from the start, and
//! no idle queue.
//!
//! # Orderings
//!
//! | writer | reader | what becomes visible |
//! |---|---|---|
//! | `give`: compare-exchange of the hot slot, Release | `take_hot`: swap, Acquire; a `give` that displaces it, Acquire | all that the last holder did with the chunk and its bytes |
//! | `push` to a queue, Release (crossbeam) | `pop`, Acquire (crossbeam) | the same |
//! | `give`, Release | `close`: swap of the hot slot, Acquire | the same, so that the closer may destroy the chunk |
//!
//! The hot slot is lock-free. A queue is crossbeam's `ArrayQueue`. It has no lock, but a thread
//! that stops between claiming a queue slot and filling it delays the thread that wants that slot.

use crate::sync::{ArrayQueue, AtomicPtr, Ordering};
use std::hint::black_box;
use std::mem::size_of;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicBool;
use std::sync::OnceLock;

/// What shelves keep: the ownership of a chunk, as thin as a pointer. (The models keep another
/// type.)
///
/// # Safety
///
/// [`from_raw`](Self::from_raw) of what [`into_raw`](Self::into_raw) returned is the same owner
/// again, in any thread.
pub(crate) unsafe trait Owner: Send + Sized {
    /// What is owned.
    type Owned;

    /// Gives up ownership: the pointer stands for it now.
    fn into_raw(self) -> NonNull<Self::Owned>;

    /// Takes ownership back.
    ///
    /// # Safety
    ///
    /// The pointer comes from [`into_raw`](Self::into_raw), and nobody else takes it back.
    unsafe fn from_raw(owned: NonNull<Self::Owned>) -> Self;
}

/// `None` is a seal.
type Queue<O> = Box<ArrayQueue<Option<O>>>;

/// What crossbeam's queue allocates per place: a stamp and an owner.
type QueueSlot = [usize; 2];

fn queue<O: Owner>(capacity: usize) -> Queue<O> {
    Box::new(ArrayQueue::new(capacity))
}

/// The idle places of one size class: a hot slot and a queue.
///
/// The hot slot has a pair of cache lines to itself. Threads that give back what another thread
/// took read the queue's address, and must not evict the hot slot from that thread's cache.
#[repr(C, align(128))]
pub(crate) struct Shelf<O: Owner> {
    hot: Hot<O::Owned>,
    /// Has the idle queue been taken from since the hot slot was last found full? If so, a take
    /// looks before it swaps: where one thread takes and another gives back, the slot stays empty,
    /// and a swap would wait for all earlier stores. A hint.
    uses_queue: AtomicBool,
    idle: OnceLock<Queue<O>>,
}

#[repr(align(128))]
struct Hot<T>(AtomicPtr<T>);

impl<O: Owner> Shelf<O> {
    /// The value of a sealed hot slot: not null, and below the address of any chunk.
    const SEAL: *mut O::Owned = NonNull::dangling().as_ptr();

    /// A shelf with room for one chunk in its hot slot, or for none if `keeps_nothing`.
    pub(crate) fn new(keeps_nothing: bool) -> Self {
        let hot = if keeps_nothing { Self::SEAL } else { ptr::null_mut() };
        Self { hot: Hot(AtomicPtr::new(hot)), uses_queue: AtomicBool::new(false), idle: OnceLock::new() }
    }

    /// Makes room for `capacity` idle chunks beside the hot slot. Called off the warm path, before
    /// the first give.
    pub(crate) fn open_idle(&self, capacity: usize) {
        if capacity > 0 {
            self.idle.get_or_init(|| queue(capacity));
        }
    }

    /// Takes the chunk in the hot slot.
    #[inline]
    pub(crate) fn take_hot(&self) -> Option<O> {
        if self.uses_queue.load(Ordering::Relaxed) {
            if self.hot.0.load(Ordering::Relaxed).is_null() {
                return None;
            }
            self.uses_queue.store(false, Ordering::Relaxed);
        }
        let found = self.hot.0.swap(ptr::null_mut(), Ordering::Acquire);
        if let Some(chunk) = Self::owner(found) {
            return Some(chunk);
        }
        if found.is_null() {
            return None;
        }
        self.seal_hot()
    }

    /// The owner of what was taken out of the hot slot, if it was a chunk.
    #[inline]
    fn owner(found: *mut O::Owned) -> Option<O> {
        // SAFETY: neither null nor the seal, so `give` put it there; one exchange took it out.
        NonNull::new(found).filter(|_| Self::is_chunk(found)).map(|found| unsafe { O::from_raw(found) })
    }

    /// Seals the hot slot, and takes out the chunk that was there. A take calls it after it swapped
    /// out the seal of a shelf that keeps nothing. A give may have used that gap; then the take
    /// gets a chunk after all.
    #[cold]
    fn seal_hot(&self) -> Option<O> {
        Self::owner(self.hot.0.swap(Self::SEAL, Ordering::Acquire))
    }

    /// Is it neither null nor the seal?
    #[inline]
    fn is_chunk(found: *mut O::Owned) -> bool {
        found as usize > Self::SEAL as usize
    }

    /// Takes the oldest chunk of the idle queue.
    pub(crate) fn take_idle(&self) -> Option<O> {
        let found = take(self.idle.get()?)?;
        if !self.uses_queue.load(Ordering::Relaxed) {
            self.uses_queue.store(true, Ordering::Relaxed);
        }
        Some(found)
    }

    /// Gives an idle chunk back to the hot slot; a chunk that was there moves to the idle queue.
    /// `Err` returns the chunk that has no place, or whose place is sealed. The caller destroys it.
    ///
    /// Afterwards the caller must not touch the chunk it gave. It must not touch the shelf either,
    /// unless it has another of the shelf's chunks.
    #[inline]
    pub(crate) fn give(&self, chunk: O) -> Result<(), O> {
        let chunk = chunk.into_raw();
        // The slot is usually empty. Looking first would cost the warm path more than it saves the
        // others.
        match self.hot.0.compare_exchange(ptr::null_mut(), chunk.as_ptr(), Ordering::Release, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(seen) => self.displace(seen, chunk),
        }
    }

    /// Puts `chunk` into a hot slot that held another chunk, and moves that one to the idle queue.
    #[inline(never)]
    fn displace(&self, mut seen: *mut O::Owned, chunk: NonNull<O::Owned>) -> Result<(), O> {
        while seen != Self::SEAL {
            // AcqRel: displacing an older chunk also takes it.
            match self.hot.0.compare_exchange_weak(seen, chunk.as_ptr(), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(old) => return Self::owner(old).map_or(Ok(()), |displaced| self.give_idle(displaced)),
                Err(now) => seen = now,
            }
        }
        // SAFETY: it was not given, so nobody else has it.
        Err(unsafe { O::from_raw(chunk) })
    }

    /// Gives a chunk that nobody leases to the idle queue. Same contract as [`Shelf::give`].
    #[inline(never)]
    pub(crate) fn give_idle(&self, chunk: O) -> Result<(), O> {
        push(self.idle.get().map(Box::as_ref), chunk)
    }

    /// How many idle chunks there are, hot slot and queue together. A snapshot.
    pub(crate) fn idle_count(&self) -> usize {
        usize::from(Self::is_chunk(self.hot.0.load(Ordering::Relaxed))) + self.queued_count()
    }

    /// How many idle chunks there are in the queue. A snapshot.
    pub(crate) fn queued_count(&self) -> usize {
        self.idle.get().map_or(0, |queue| queue.len())
    }

    /// Is there no idle chunk? A snapshot. Costs two loads where the class was never used.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.idle_count() == 0
    }

    /// Seals every place, and hands each chunk found there to `destroy`, exactly once.
    ///
    /// Gives may go on meanwhile. Takes may not: the caller must be the pool's only taker.
    pub(crate) fn close(&self, mut destroy: impl FnMut(O)) {
        if let Some(chunk) = self.seal_hot() {
            destroy(chunk);
        }
        // A queue that a handle might create later must be born sealed, so create it now.
        seal_queue(self.idle.get_or_init(|| queue(1)), &mut destroy);
    }
}

/// The chunks of all classes that were given back while peers leased them.
pub(crate) struct LentQueue<O: Owner>(OnceLock<Queue<O>>);

impl<O: Owner> LentQueue<O> {
    pub(crate) fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Makes room for `capacity` chunks. Called off the warm path, before the first chunk is
    /// shared. `false`: there is no memory for it.
    pub(crate) fn open(&self, capacity: usize) -> bool {
        // Without memory, creating the queue would abort the process.
        let has_memory = || {
            let mut places = Vec::<QueueSlot>::new();
            let has_memory = places.try_reserve_exact(capacity).is_ok();
            // Otherwise the compiler may remove both the allocation and its release.
            black_box(places);
            has_memory
        };
        if self.0.get().is_none() && !has_memory() {
            return false;
        }
        self.0.get_or_init(|| queue(capacity));
        true
    }

    /// Bytes that a queue of `capacity` chunks takes.
    pub(crate) const fn bytes(capacity: usize) -> usize {
        capacity * size_of::<QueueSlot>()
    }

    /// Takes the chunk that has been in the queue longest.
    pub(crate) fn take(&self) -> Option<O> {
        take(self.0.get()?)
    }

    /// Gives back a chunk that peers still lease. `Err` returns it: the pool is closed. Otherwise
    /// the same contract as [`Shelf::give`].
    pub(crate) fn give(&self, chunk: O) -> Result<(), O> {
        push(self.0.get().map(Box::as_ref), chunk)
    }

    /// How many chunks are in the queue: given back, and perhaps still leased. A snapshot.
    pub(crate) fn count(&self) -> usize {
        self.0.get().map_or(0, |queue| queue.len())
    }

    /// Seals the queue, as [`Shelf::close`] does.
    pub(crate) fn close(&self, mut destroy: impl FnMut(O)) {
        seal_queue(self.0.get_or_init(|| queue(1)), &mut destroy);
    }
}

#[inline]
fn take<O: Owner>(queue: &ArrayQueue<Option<O>>) -> Option<O> {
    queue.pop()?
}

#[inline]
fn push<O: Owner>(queue: Option<&ArrayQueue<Option<O>>>, chunk: O) -> Result<(), O> {
    match queue {
        Some(queue) => match queue.push(Some(chunk)) {
            Err(Some(refused)) => Err(refused),
            // A full queue returns what was to go in, and that was no seal.
            Ok(()) | Err(None) => Ok(()),
        },
        None => Err(chunk),
    }
}

/// Leaves `queue` full of seals. Each round that a give disturbs takes a chunk out, and there are
/// finitely many chunks, so this ends.
fn seal_queue<O: Owner>(queue: &ArrayQueue<Option<O>>, destroy: &mut impl FnMut(O)) {
    loop {
        while let Some(found) = queue.pop() {
            if let Some(chunk) = found {
                destroy(chunk);
            }
        }
        // Nobody else takes: once all of these are in, the queue holds nothing else and stays full.
        if (0..queue.capacity()).all(|_| queue.push(None).is_ok()) {
            return;
        }
    }
}

#[cfg(all(test, loom))]
#[path = "../models/shelf.rs"]
mod models;
