//! The free list of one size class.
//!
//! | place | holds | order |
//! |---|---|---|
//! | hot slot | at most one idle chunk | last in, first out: it is warm in the cache |
//! | idle queue | chunks that no peer leased when they were released | first in, first out: a descriptor in flight stays valid longest |
//! | leased queue | chunks that peers leased when they were released | first in, first out: the oldest lease probably ends first |
//!
//! A chunk is in one of these places or in one hand (I3), and each transfer is one atomic exchange.
//! The hot slot is lock-free; the `ArrayQueue` is not.
//!
//! # Closing
//!
//! A handle may be dropped while the provider is. Its chunk keeps the free list's memory alive, so a
//! thread that has pushed the chunk may not touch the free list to check a "closed" flag. Instead,
//! closing puts a seal into the hot slot and fills each queue with seals. A refused push still owns
//! its chunk and destroys it. A successful push precedes the seal in the modification order of that
//! location, so the closer finds the chunk.
//!
//! # Orderings
//!
//! | writer | reader | what becomes visible |
//! |---|---|---|
//! | `push`: compare-exchange of the hot slot, Release | `take_hot` and `close`: swap, Acquire; a `push` that displaces it, Acquire | everything the last holder did to the chunk and its bytes |
//! | `push` to a queue, Release (crossbeam) | `pop`, Acquire (crossbeam) | the same |

use crate::os::posix::has_heap;
use crate::sync::{ArrayQueue, AtomicPtr, Ordering};
use std::mem::size_of;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU8};
use std::sync::OnceLock;

/// Ownership of a chunk, as thin as a pointer. (The loom models use another type.)
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

/// The free list of one size class.
///
/// The hot slot has cache lines to itself.
#[repr(C, align(128))]
pub(crate) struct FreeList<C: Owner, O: Owner> {
    hot: Hot<C::Owned>,
    /// A hint: a chunk was taken from the idle queue since the hot slot was last found full. Then a
    /// take loads before it swaps: the slot may stay empty, and a swap would wait for all earlier
    /// stores.
    uses_queue: AtomicBool,
    idle: GrowingQueue<O>,
    leased: GrowingQueue<O>,
}

#[repr(align(128))]
struct Hot<T>(AtomicPtr<T>);

impl<C: Owner, O: Owner<Owned = C::Owned> + From<C>> FreeList<C, O> {
    /// The value of a sealed hot slot: not null, and below the address of any chunk.
    const SEAL: *mut C::Owned = NonNull::dangling().as_ptr();

    pub(crate) fn new(keeps_nothing: bool) -> Self {
        let hot = if keeps_nothing {
            Self::SEAL
        } else {
            ptr::null_mut()
        };
        Self {
            hot: Hot(AtomicPtr::new(hot)),
            uses_queue: AtomicBool::new(false),
            idle: GrowingQueue::new(),
            leased: GrowingQueue::new(),
        }
    }

    /// Makes space for so many idle chunks, at most `max`. Without memory, the queue stays as it
    /// is, and refuses chunks once it is full. Called off the warm path, before there are that many.
    pub(crate) fn open_idle(&self, chunks: usize, max: usize) {
        let _ = self.idle.open(chunks.min(max), max);
    }

    /// Makes space for so many leased chunks, of at most `max`. Called before a chunk is shared for
    /// the first time, with the number of shared chunks of the class: so the leased queue is never
    /// full.
    pub(crate) fn open_leased(&self, chunks: usize, max: usize) -> Result<(), NoMemory> {
        self.leased.open(chunks, max)
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
        if let Some(chunk) = Self::owner(found) {
            return Some(chunk);
        }
        if found.is_null() {
            return None;
        }
        self.seal_hot()
    }

    #[inline]
    fn owner(found: *mut C::Owned) -> Option<C> {
        if !Self::is_chunk(found) {
            return None;
        }
        let chunk = NonNull::new(found)?;
        // SAFETY: neither null nor the seal, so `push` put it there; one exchange took it out.
        Some(unsafe { C::from_raw(chunk) })
    }

    /// Seals the hot slot, and takes out its chunk. Called by a take that swapped out the seal,
    /// too.
    #[cold]
    fn seal_hot(&self) -> Option<C> {
        Self::owner(self.hot.0.swap(Self::SEAL, Ordering::Acquire))
    }

    #[inline]
    fn is_chunk(found: *mut C::Owned) -> bool {
        found as usize > Self::SEAL as usize
    }

    /// Returns the oldest idle chunk of the queue, and how many it leaves there (while the queue
    /// grows, fewer).
    pub(crate) fn take_idle(&self) -> Option<(O, usize)> {
        let found = self.idle.take()?;
        if !self.uses_queue.load(Ordering::Relaxed) {
            self.uses_queue.store(true, Ordering::Relaxed);
        }
        Some(found)
    }

    /// Returns the chunk whose lease is the oldest. The lease may have ended.
    pub(crate) fn take_leased(&self) -> Option<O> {
        let (chunk, _) = self.leased.take()?;
        Some(chunk)
    }

    /// Makes the next take begin with the shortest queue. A search puts chunks back into the longest
    /// one, and would not reach the others.
    pub(crate) fn search_all(&self) {
        self.idle.search_all();
        self.leased.search_all();
    }

    /// Pushes an idle chunk to the hot slot if that is empty; else returns it. The caller must not
    /// touch one that was accepted, nor the free list unless it holds another of its chunks.
    #[inline]
    pub(crate) fn push_hot(&self, chunk: C) -> Result<(), C> {
        let chunk = chunk.into_raw();
        // The slot is usually empty, so a load first would cost more than it saves.
        match self.hot.0.compare_exchange(
            ptr::null_mut(),
            chunk.as_ptr(),
            Ordering::Release,
            Ordering::Relaxed,
        ) {
            Ok(_) => Ok(()),
            // SAFETY: the exchange failed, so this call still owns what `into_raw` has released.
            Err(_) => Err(unsafe { C::from_raw(chunk) }),
        }
    }

    /// Pushes an idle chunk to the hot slot, and moves the slot's previous chunk to the idle queue.
    /// Same contract as [`FreeList::push_hot`], but the caller destroys a refused chunk.
    pub(crate) fn push(&self, chunk: C) -> Result<(), O> {
        let chunk = chunk.into_raw();
        // Relaxed: only a guess, which the exchange checks.
        let mut seen = self.hot.0.load(Ordering::Relaxed);
        while seen != Self::SEAL {
            // AcqRel: displacing an older chunk also takes it.
            match self.hot.0.compare_exchange_weak(
                seen,
                chunk.as_ptr(),
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(old) => {
                    return match Self::owner(old) {
                        Some(displaced) => self.push_idle(displaced.into()),
                        None => Ok(()),
                    }
                }
                Err(now) => seen = now,
            }
        }
        // SAFETY: it was not pushed, so the caller is still its only owner.
        Err(unsafe { C::from_raw(chunk) }.into())
    }

    /// Pushes a chunk that no peer leases to the idle queue. Same contract as [`FreeList::push`].
    #[inline(never)]
    pub(crate) fn push_idle(&self, chunk: O) -> Result<(), O> {
        self.idle.push(chunk)
    }

    /// Pushes a chunk that a peer leases to the leased queue, which only refuses it once the free list
    /// is closed. Same contract as [`FreeList::push`].
    pub(crate) fn push_leased(&self, chunk: O) -> Result<(), O> {
        self.leased.push(chunk)
    }

    pub(crate) fn idle_count(&self) -> usize {
        usize::from(Self::is_chunk(self.hot.0.load(Ordering::Relaxed))) + self.queued_count()
    }

    pub(crate) fn queued_count(&self) -> usize {
        self.idle.count()
    }

    pub(crate) fn leased_count(&self) -> usize {
        self.leased.count()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.idle_count() == 0
    }

    /// Seals every place, and passes each chunk found there to `destroy`, once. Other threads may
    /// push chunks meanwhile, but not take any or open a queue.
    pub(crate) fn close(&self, mut destroy: impl FnMut(O)) {
        if let Some(chunk) = self.seal_hot() {
            destroy(chunk.into());
        }
        self.idle.close(&mut destroy);
        self.leased.close(&mut destroy);
    }
}

/// The heap has no memory for a queue of this many bytes.
pub(crate) struct NoMemory {
    pub(crate) bytes: usize,
}

/// A queue that grows: a longer one takes over, and shorter ones are emptied first, so the order
/// stays first in, first out.
struct GrowingQueue<O> {
    /// The longest open queue, which takes new chunks.
    longest: AtomicU8,
    /// A hint: shorter queues were found empty.
    shortest: AtomicU8,
    queues: [Queue<O>; QUEUES],
}

impl<O> GrowingQueue<O> {
    fn new() -> Self {
        Self {
            longest: AtomicU8::new(0),
            shortest: AtomicU8::new(0),
            queues: std::array::from_fn(|_| Queue::new()),
        }
    }

    /// Opens the shortest queue for so many chunks, of at most `max`, if there is none yet.
    ///
    /// A chunk that is counted here is pushed to this queue or a longer one. So each queue has a
    /// place for each chunk that is pushed to it, if the caller counts a chunk before it can be
    /// pushed.
    fn open(&self, chunks: usize, max: usize) -> Result<(), NoMemory> {
        if max == 0 {
            return Ok(());
        }
        let mut at = 0;
        let mut capacity = SHORTEST.min(max);
        while capacity < chunks && at + 1 < QUEUES {
            at += 1;
            capacity = capacity.saturating_mul(GROWTH).min(max);
        }
        // Relaxed: a thread that sees an older value opens the queue again, which changes nothing.
        let is_longest = usize::from(self.longest.load(Ordering::Relaxed)) >= at;
        if is_longest && self.queues[at].is_open() {
            return Ok(());
        }
        if !self.queues[at].open(capacity) {
            let bytes = Queue::<O>::bytes(capacity);
            return Err(NoMemory { bytes });
        }
        // Release: partner of the Acquire in `push`, which then finds the queue.
        self.longest.fetch_max(at as u8, Ordering::Release);
        Ok(())
    }

    /// Returns the oldest chunk, and how many are left in its queue.
    fn take(&self) -> Option<(O, usize)> {
        // Relaxed: a hint. A late push may have filled a shorter queue, so those are tried last.
        let shortest = usize::from(self.shortest.load(Ordering::Relaxed));
        for at in (shortest..QUEUES).chain(0..shortest) {
            if let Some(found) = self.queues[at].take() {
                if at != shortest {
                    self.shortest.store(at as u8, Ordering::Relaxed);
                }
                return Some(found);
            }
        }
        None
    }

    fn search_all(&self) {
        // Usually it is 0, and then the cache line stays shared.
        if self.shortest.load(Ordering::Relaxed) != 0 {
            self.shortest.store(0, Ordering::Relaxed);
        }
    }

    fn push(&self, chunk: O) -> Result<(), O> {
        // Acquire: partner of the Release in `open`.
        let longest = self.longest.load(Ordering::Acquire);
        self.queues[usize::from(longest)].push(chunk)
    }

    fn count(&self) -> usize {
        self.queues.iter().map(Queue::count).sum()
    }

    fn close(&self, destroy: &mut impl FnMut(O)) {
        for queue in &self.queues {
            queue.close(&mut *destroy);
        }
    }
}

/// A queue of chunks, without memory until it is opened. `None` is a seal.
struct Queue<O>(OnceLock<Box<ArrayQueue<Option<O>>>>);

impl<O> Queue<O> {
    fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Called off the warm path, and not once the queue is closed.
    fn open(&self, capacity: usize) -> bool {
        // Creating the queue without memory would abort the process.
        let may_open = self.0.get().is_some() || has_heap(Self::bytes(capacity));
        if may_open {
            self.0.get_or_init(|| Box::new(ArrayQueue::new(capacity)));
        }
        may_open
    }

    fn is_open(&self) -> bool {
        self.0.get().is_some()
    }

    const fn bytes(capacity: usize) -> usize {
        capacity * size_of::<[usize; 2]>()
    }

    /// Returns the oldest chunk, and how many are left.
    #[inline]
    fn take(&self) -> Option<(O, usize)> {
        let queue = self.0.get()?;
        // A pop of an empty queue would cost a fence.
        let left = queue.len().checked_sub(1)?;
        Some((queue.pop()??, left))
    }

    #[inline]
    fn push(&self, chunk: O) -> Result<(), O> {
        let Some(queue) = self.0.get() else {
            return Err(chunk);
        };
        match queue.push(Some(chunk)) {
            // A full queue returns the argument, which is not a seal.
            Err(Some(chunk)) => Err(chunk),
            Ok(()) | Err(None) => Ok(()),
        }
    }

    fn count(&self) -> usize {
        match self.0.get() {
            Some(queue) => queue.len(),
            None => 0,
        }
    }

    /// Seals the queue, as [`FreeList::close`] does. Terminates: each round that a push disturbs takes
    /// a chunk out.
    fn close(&self, mut destroy: impl FnMut(O)) {
        let Some(queue) = self.0.get() else { return };
        // No other thread takes, so after this many seals the queue stays full of them.
        while !(0..queue.capacity()).all(|_| queue.push(None).is_ok()) {
            while let Some(found) = queue.pop() {
                if let Some(chunk) = found {
                    destroy(chunk);
                }
            }
        }
    }
}

#[cfg(all(test, loom))]
#[path = "../models/free_list.rs"]
mod models;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct Numbered(Box<usize>);

    // SAFETY: the box is leaked and restored.
    unsafe impl Owner for Numbered {
        type Owned = usize;

        fn into_raw(self) -> NonNull<usize> {
            NonNull::from(Box::leak(self.0))
        }

        unsafe fn from_raw(owned: NonNull<usize>) -> Self {
            // SAFETY: the caller's promise.
            Self(unsafe { Box::from_raw(owned.as_ptr()) })
        }
    }

    fn push(queue: &Queue<Numbered>, numbers: std::ops::Range<usize>) {
        numbers.for_each(|number| assert!(queue.push(Numbered(number.into())).is_ok()));
    }

    fn take(free_list: &FreeList<Numbered, Numbered>) -> Vec<usize> {
        std::iter::from_fn(|| free_list.take_idle())
            .map(|(chunk, _)| *chunk.0)
            .collect()
    }

    /// A push may have read which queue is the longest before that changed.
    #[test]
    fn late_push_is_found() {
        let free_list = FreeList::new(false);
        free_list.open_idle(1, 1000);
        push(&free_list.idle.queues[0], 0..2);
        free_list.open_idle(SHORTEST + 1, 1000);
        (2..5).for_each(|number| assert!(free_list.push_idle(Numbered(number.into())).is_ok()));
        assert_eq!(
            take(&free_list),
            [0, 1, 2, 3, 4],
            "first in, first out while the queue grows"
        );
        push(&free_list.idle.queues[0], 5..6);
        push(&free_list.idle.queues[1], 6..8);
        assert_eq!(
            free_list.take_idle().map(|(chunk, left)| (*chunk.0, left)),
            Some((6, 1))
        );
        assert_eq!(take(&free_list), [7, 5], "the late one is not lost");
        push(&free_list.idle.queues[1], 8..10);
        assert_eq!(free_list.take_idle().map(|(chunk, _)| *chunk.0), Some(8));
        push(&free_list.idle.queues[0], 10..11);
        free_list.search_all();
        assert_eq!(
            take(&free_list),
            [10, 9],
            "an eviction finds it though other chunks are put back"
        );
    }
}
