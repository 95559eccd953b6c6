//! The idle chunks of one size class, in a hot slot and a queue; and the leased chunks of all
//! classes, in another queue.
//!
//! | place | holds | order |
//! |---|---|---|
//! | hot slot | at most one idle chunk of a class, the one released last | last in, first out: it is warm in the cache |
//! | idle queue | chunks of a class that no peer leased when they were released, up to the idle cap | first in, first out: a descriptor still in flight has the most time |
//! | leased queue | chunks of all classes that peers leased when they were released | first in, first out: the head was shared longest ago |
//!
//! A chunk is in one of these places or in one hand (I3). Every transfer is one successful atomic
//! exchange of the pointer, so exactly one thread wins it.
//!
//! # Closing
//!
//! A handle may be dropped while the provider is being dropped. The loser of that race must find
//! out *before* it gives the chunk away, because the chunk keeps the shelf's memory alive: after a
//! successful give, the giver no longer touches the shelf. So a "closed" flag checked afterwards
//! would be too late. Instead, [`Shelf::close`] and [`Queue::close`] make every place refuse: they
//! put a seal into the hot slot and fill each queue with seals. A give that is refused still owns
//! its chunk and destroys it. A give that succeeds precedes the seal in the modification order of
//! that location, so the closer takes the chunk out.
//!
//! A shelf that keeps nothing (`max_idle_per_class` 0) has its hot slot sealed from the start, and
//! no idle queue.
//!
//! # Orderings
//!
//! | writer | reader | what becomes visible |
//! |---|---|---|
//! | `give`: compare-exchange of the hot slot, Release | `take_hot`: swap, Acquire; a `give` that displaces it, Acquire | everything the last holder did to the chunk and its bytes |
//! | `push` to a queue, Release (crossbeam) | `pop`, Acquire (crossbeam) | the same |
//! | `give`, Release | `close`: swap of the hot slot, Acquire | the same, so that the closer may destroy the chunk |
//!
//! The hot slot is lock-free. A queue is crossbeam's `ArrayQueue`. It has no lock, but a thread
//! that stops between claiming a queue slot and filling it delays the thread that wants that slot.

use crate::os::posix::has_heap;
use crate::sync::{ArrayQueue, AtomicPtr, Ordering};
use std::mem::size_of;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU8};
use std::sync::OnceLock;

/// The items on a shelf: ownership of a chunk, as thin as a pointer. (The loom models use another
/// type.)
///
/// # Safety
///
/// [`from_raw`](Self::from_raw) of the result of [`into_raw`](Self::into_raw) is the same owner
/// again, in any thread.
pub(crate) unsafe trait Owner: Send + Sized {
    type Owned;

    /// Gives up ownership, which the pointer now represents.
    fn into_raw(self) -> NonNull<Self::Owned>;

    /// Takes ownership back.
    ///
    /// # Safety
    ///
    /// The pointer comes from [`into_raw`](Self::into_raw), and is taken back once.
    unsafe fn from_raw(owned: NonNull<Self::Owned>) -> Self;
}

/// The capacity of the shortest idle queue, and the factor from each queue to the next.
const SHORTEST: usize = 64;
const GROWTH: usize = 8;

/// Enough for the most chunks that any class may keep.
const QUEUES: usize = 6;

/// The idle places of one size class: a hot slot for a chunk that is closed to peers, and a queue.
///
/// The queue grows with the class: a longer one takes over new chunks, and the shorter ones are
/// emptied first, so the order stays first in, first out.
///
/// The hot slot has a pair of cache lines to itself. Threads that release chunks taken by another
/// thread read the queue's address, and must not evict the hot slot from that thread's cache.
#[repr(C, align(128))]
pub(crate) struct Shelf<C: Owner, O: Owner> {
    hot: Hot<C::Owned>,
    /// Whether a chunk was taken from the idle queue since the hot slot was last found full. If so,
    /// a take looks before it swaps: if one thread takes and another gives, the slot stays empty,
    /// and a swap would wait for all earlier stores. A hint.
    uses_queue: AtomicBool,
    /// The longest open queue, which takes new chunks.
    longest: AtomicU8,
    idle: [Queue<O>; QUEUES],
}

#[repr(align(128))]
struct Hot<T>(AtomicPtr<T>);

impl<C: Owner, O: Owner<Owned = C::Owned> + From<C>> Shelf<C, O> {
    /// The value of a sealed hot slot: not null, and below the address of any chunk.
    const SEAL: *mut C::Owned = NonNull::dangling().as_ptr();

    /// Creates a shelf with space for one chunk in its hot slot, or for none if `keeps_nothing`.
    pub(crate) fn new(keeps_nothing: bool) -> Self {
        let hot = Hot(AtomicPtr::new(if keeps_nothing { Self::SEAL } else { ptr::null_mut() }));
        let idle = std::array::from_fn(|_| Queue::new());
        Self { hot, uses_queue: AtomicBool::new(false), longest: AtomicU8::new(0), idle }
    }

    /// Makes space for `chunks` idle chunks beside the hot slot, at most `max`. Called off the warm
    /// path, before the number of chunks exceeds the space. Without private memory, there is no
    /// space.
    pub(crate) fn open_idle(&self, chunks: usize, max: usize) {
        let lengths = (0..QUEUES).map(|at| SHORTEST.saturating_mul(GROWTH.pow(at as u32)).min(max));
        let Some((at, capacity)) = lengths.enumerate().find(|&(_, length)| length >= chunks.min(max)) else { return };
        if capacity > 0 && self.idle[at].open(capacity) {
            // Release: partner of the Acquire in `give_idle`, which then finds the queue.
            self.longest.fetch_max(at as u8, Ordering::Release);
        }
    }

    #[inline]
    pub(crate) fn take_hot(&self) -> Option<C> {
        if self.uses_queue.load(Ordering::Relaxed) {
            if self.hot.0.load(Ordering::Relaxed).is_null() {
                return None;
            }
            self.uses_queue.store(false, Ordering::Relaxed);
        }
        let found = self.hot.0.swap(ptr::null_mut(), Ordering::Acquire);
        Self::owner(found).or_else(|| if found.is_null() { None } else { self.seal_hot() })
    }

    /// Returns the owner that was taken out of the hot slot, if it was a chunk.
    #[inline]
    fn owner(found: *mut C::Owned) -> Option<C> {
        // SAFETY: neither null nor the seal, so `give` put it there; one exchange took it out.
        NonNull::new(found).filter(|_| Self::is_chunk(found)).map(|found| unsafe { C::from_raw(found) })
    }

    /// Seals the hot slot, and takes out its chunk, if any. A take calls this after it swapped out
    /// the seal of a shelf that keeps nothing. If a give used that gap, the take gets a chunk after
    /// all.
    #[cold]
    fn seal_hot(&self) -> Option<C> {
        Self::owner(self.hot.0.swap(Self::SEAL, Ordering::Acquire))
    }

    /// Returns `true` if the pointer is neither null nor the seal.
    #[inline]
    fn is_chunk(found: *mut C::Owned) -> bool {
        found as usize > Self::SEAL as usize
    }

    /// Takes the oldest chunk of the idle queue.
    pub(crate) fn take_idle(&self) -> Option<O> {
        let found = self.idle.iter().find_map(Queue::take)?;
        if !self.uses_queue.load(Ordering::Relaxed) {
            self.uses_queue.store(true, Ordering::Relaxed);
        }
        Some(found)
    }

    /// Gives an idle chunk to the hot slot, and moves the slot's previous chunk to the idle queue.
    /// `Err` returns the chunk that has no place, or whose place is sealed. The caller destroys it.
    ///
    /// Afterwards the caller must not touch the chunk it gave. It must not touch the shelf either,
    /// unless it holds another of the shelf's chunks.
    #[inline]
    pub(crate) fn give(&self, chunk: C) -> Result<(), O> {
        let chunk = chunk.into_raw();
        // The slot is usually empty. Looking first would cost the warm path more than it saves the
        // other paths.
        match self.hot.0.compare_exchange(ptr::null_mut(), chunk.as_ptr(), Ordering::Release, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(seen) => self.displace(seen, chunk),
        }
    }

    /// Puts `chunk` into a hot slot that held another chunk, and moves that one to the idle queue.
    #[inline(never)]
    fn displace(&self, mut seen: *mut C::Owned, chunk: NonNull<C::Owned>) -> Result<(), O> {
        while seen != Self::SEAL {
            // AcqRel: displacing an older chunk also takes it.
            match self.hot.0.compare_exchange_weak(seen, chunk.as_ptr(), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(old) => return Self::owner(old).map_or(Ok(()), |displaced| self.give_idle(displaced.into())),
                Err(now) => seen = now,
            }
        }
        // SAFETY: it was not given, so the caller is still its only owner.
        Err(unsafe { C::from_raw(chunk) }.into())
    }

    /// Gives a chunk that no peer leases to the idle queue. Same contract as [`Shelf::give`].
    #[inline(never)]
    pub(crate) fn give_idle(&self, chunk: O) -> Result<(), O> {
        // Acquire: partner of the Release in `open_idle`.
        let longest = self.longest.load(Ordering::Acquire);
        self.idle[usize::from(longest)].give(chunk)
    }

    /// Returns the number of idle chunks, hot slot and queue together, at the time of the call.
    pub(crate) fn idle_count(&self) -> usize {
        usize::from(Self::is_chunk(self.hot.0.load(Ordering::Relaxed))) + self.queued_count()
    }

    /// Returns the number of idle chunks in the queue, at the time of the call.
    pub(crate) fn queued_count(&self) -> usize {
        self.idle.iter().map(Queue::count).sum()
    }

    /// Returns `true` if there is no idle chunk, at the time of the call. Costs few loads if the
    /// class was never used.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.idle_count() == 0
    }

    /// Seals every place, and passes each chunk found there to `destroy`, exactly once.
    ///
    /// Other threads may give chunks during the call. None may take chunks or open a queue: the
    /// caller must be the pool's only taker.
    pub(crate) fn close(&self, mut destroy: impl FnMut(O)) {
        if let Some(chunk) = self.seal_hot() {
            destroy(chunk.into());
        }
        self.idle.iter().for_each(|queue| queue.close(&mut destroy));
    }
}

/// A queue of chunks, without memory until it is opened. In it, `None` is a seal.
pub(crate) struct Queue<O>(OnceLock<Box<ArrayQueue<Option<O>>>>);

impl<O> Queue<O> {
    pub(crate) fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Allocates space for `capacity` chunks, unless the queue is open already. Called off the warm
    /// path, and not once the queue is closed. Returns `false` if there is no private memory for
    /// it.
    pub(crate) fn open(&self, capacity: usize) -> bool {
        // Without memory, creating the queue would abort the process.
        let may_open = self.0.get().is_some() || has_heap(Self::bytes(capacity));
        if may_open {
            self.0.get_or_init(|| Box::new(ArrayQueue::new(capacity)));
        }
        may_open
    }

    /// Returns the memory of a queue of `capacity` chunks in bytes: a stamp and an owner for each.
    pub(crate) const fn bytes(capacity: usize) -> usize {
        capacity * size_of::<[usize; 2]>()
    }

    /// Takes the chunk that has been in the queue longest.
    pub(crate) fn take(&self) -> Option<O> {
        // A pop of an empty queue would cost a fence.
        self.0.get().filter(|queue| !queue.is_empty())?.pop()?
    }

    /// Gives a chunk to the queue. `Err` returns it if the queue is full or not open. Apart from
    /// that, the contract is that of [`Shelf::give`].
    #[inline]
    pub(crate) fn give(&self, chunk: O) -> Result<(), O> {
        let Some(queue) = self.0.get() else { return Err(chunk) };
        // A full queue returns the argument, which is not a seal.
        queue.push(Some(chunk)).or_else(|refused| refused.map_or(Ok(()), Err))
    }

    /// Returns the number of chunks in the queue, at the time of the call.
    pub(crate) fn count(&self) -> usize {
        self.0.get().map_or(0, |queue| queue.len())
    }

    /// Seals the queue, as [`Shelf::close`] does. Each round that a give disturbs takes a chunk
    /// out, and the number of chunks is finite, so this terminates.
    pub(crate) fn close(&self, mut destroy: impl FnMut(O)) {
        let Some(queue) = self.0.get() else { return };
        // No other thread takes: once that many seals are in, the queue is full of them and stays
        // so.
        while !(0..queue.capacity()).all(|_| queue.push(None).is_ok()) {
            std::iter::from_fn(|| queue.pop()).flatten().for_each(&mut destroy);
        }
    }
}

#[cfg(all(test, loom))]
#[path = "../models/shelf.rs"]
mod models;
