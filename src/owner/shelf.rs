//! The idle chunks of one size class, a hot slot and a queue; and the lent chunks of all classes, another queue.
//!
//! | place | holds | order |
//! |---|---|---|
//! | hot slot | at most one idle chunk of a class, the one given back last | last in, first out: it is warm in the cache |
//! | idle queue | chunks of a class that nobody leased when they were given back, up to the idle cap | first in, first out: a descriptor that is still on its way has the most time |
//! | lent queue | chunks of all classes that peers leased when they were given back | first in, first out: the head was shared longest ago |
//!
//! A chunk is in one of these places or in one hand (invariant I3): every transfer is one successful atomic exchange
//! of the pointer, so it has one winner.
//!
//! # Closing
//!
//! A handle may be dropped while the provider is being dropped. Whoever loses that race must find out *before* it
//! gives the chunk away, because the chunk is what keeps the shelf's memory alive: after a successful give, the
//! giver touches nothing of the shelf again. So there is no "closed" flag to look at afterwards. Instead
//! [`Shelf::close`] and [`LentQueue::close`] make every place refuse: the hot slot gets a seal, and a queue is filled with seals. A give
//! that is refused still owns its chunk and destroys it; a give that succeeded came before the seal in the order of
//! that one location, so the closer takes the chunk out.
//!
//! A shelf that keeps nothing (`max_idle_per_class` 0) is one whose hot slot was sealed from the start and that has
//! no idle queue.
//!
//! # Orderings
//!
//! | writer | reader | what becomes visible |
//! |---|---|---|
//! | `give`: compare-exchange of the hot slot, Release | `take_hot`: swap, Acquire; a `give` that displaces it, Acquire | all that the last holder did with the chunk and its bytes |
//! | `push` to a queue, Release (crossbeam) | `pop`, Acquire (crossbeam) | the same |
//! | `close`: swap of the hot slot, Acquire | (takes part as a reader) | the same, so that the closer may destroy the chunk |
//!
//! The hot slot is lock-free. A queue is crossbeam's `ArrayQueue`: no lock, but a thread that is stopped between
//! claiming a queue slot and filling it delays the thread that wants that same slot.

use crate::sync::{ArrayQueue, AtomicPtr, Ordering};
use std::hint::black_box;
use std::mem::size_of;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicBool;
use std::sync::OnceLock;

/// A chunk on its way through a queue; `None` is a seal.
struct Parcel<T>(Option<NonNull<T>>);

// SAFETY: a ticket transfers exclusive ownership of what it points to (I3), like a Box would.
unsafe impl<T: Send> Send for Parcel<T> {}

type Queue<T> = Box<ArrayQueue<Parcel<T>>>;

/// What crossbeam's queue takes for each place: a stamp and a ticket.
type QueueSlot = [usize; 2];

fn queue<T: Send>(capacity: usize) -> Queue<T> {
    Box::new(ArrayQueue::new(capacity))
}

/// The idle places of one size class. See the module's text.
///
/// The hot slot has a pair of cache lines of its own: the queues' addresses are read by threads that give back what another
/// one took, and that one should keep its hot slot in its cache.
#[repr(C, align(128))]
pub(crate) struct Shelf<T> {
    hot: Hot<T>,
    /// Was the idle queue taken from since the hot slot was last found full? Then a take looks before it swaps: where one
    /// thread takes and another gives back the slot stays empty, and a swap would wait for all stores before it. A hint.
    uses_queue: AtomicBool,
    idle: OnceLock<Queue<T>>,
}

#[repr(align(128))]
struct Hot<T>(AtomicPtr<T>);

impl<T: Send> Shelf<T> {
    /// The value of a sealed hot slot: not null, and below the address of any chunk.
    const SEAL: *mut T = NonNull::dangling().as_ptr();

    /// A shelf that takes one chunk in its hot slot, or none at all if `keeps_nothing`.
    pub(crate) fn new(keeps_nothing: bool) -> Self {
        let hot = if keeps_nothing { Self::SEAL } else { ptr::null_mut() };
        Self { hot: Hot(AtomicPtr::new(hot)), uses_queue: AtomicBool::new(false), idle: OnceLock::new() }
    }

    /// Makes room for `capacity` idle chunks beside the hot slot. Called off the warm path, before the first give.
    pub(crate) fn open_idle(&self, capacity: usize) {
        if capacity > 0 {
            self.idle.get_or_init(|| queue(capacity));
        }
    }

    /// Takes the chunk in the hot slot.
    #[inline]
    pub(crate) fn take_hot(&self) -> Option<NonNull<T>> {
        if self.uses_queue.load(Ordering::Relaxed) {
            if self.hot.0.load(Ordering::Relaxed).is_null() {
                return None;
            }
            self.uses_queue.store(false, Ordering::Relaxed);
        }
        let found = self.hot.0.swap(ptr::null_mut(), Ordering::Acquire);
        if Self::is_chunk(found) {
            return NonNull::new(found);
        }
        if found.is_null() {
            return None;
        }
        self.seal_hot()
    }

    /// Puts the seal into the hot slot, and takes out the chunk that was there. A take calls it when it has taken the seal of
    /// a shelf that keeps nothing: a give may have used the gap, and then the take has found a chunk after all.
    #[cold]
    fn seal_hot(&self) -> Option<NonNull<T>> {
        let found = self.hot.0.swap(Self::SEAL, Ordering::Acquire);
        NonNull::new(found).filter(|_| Self::is_chunk(found))
    }

    /// Is it neither null nor the seal?
    #[inline]
    fn is_chunk(found: *mut T) -> bool {
        found as usize > Self::SEAL as usize
    }

    /// Takes the oldest chunk of the idle queue.
    pub(crate) fn take_idle(&self) -> Option<NonNull<T>> {
        let found = take(self.idle.get()?)?;
        if !self.uses_queue.load(Ordering::Relaxed) {
            self.uses_queue.store(true, Ordering::Relaxed);
        }
        Some(found)
    }

    /// Gives an idle chunk back; the one that was in the hot slot moves to the idle queue. `Err` returns the chunk for which
    /// there is no place, or a sealed one, and the caller destroys it.
    ///
    /// Afterwards the caller must not touch the chunk that it gave, nor the shelf, unless it has another chunk of it.
    #[inline]
    pub(crate) fn give(&self, chunk: NonNull<T>) -> Result<(), NonNull<T>> {
        // The slot is empty, most of the time; looking first would cost the warm path more than it saves the others.
        match self.hot.0.compare_exchange(ptr::null_mut(), chunk.as_ptr(), Ordering::Release, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(seen) => self.displace(seen, chunk),
        }
    }

    /// Puts `chunk` into the hot slot where there was another one, and that one into the idle queue.
    #[inline(never)]
    fn displace(&self, mut seen: *mut T, chunk: NonNull<T>) -> Result<(), NonNull<T>> {
        while seen != Self::SEAL {
            // AcqRel: what displaces an older chunk takes that one.
            match self.hot.0.compare_exchange_weak(seen, chunk.as_ptr(), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(old) => return NonNull::new(old).map_or(Ok(()), |displaced| self.give_idle(displaced)),
                Err(now) => seen = now,
            }
        }
        Err(chunk)
    }

    /// Gives a chunk that nobody leases to the queue. The same contract as [`Shelf::give`].
    #[inline(never)]
    pub(crate) fn give_idle(&self, chunk: NonNull<T>) -> Result<(), NonNull<T>> {
        push(self.idle.get().map(Box::as_ref), chunk)
    }

    /// How many idle chunks there are, hot slot and queue together. A snapshot.
    pub(crate) fn idle_count(&self) -> usize {
        usize::from(Self::is_chunk(self.hot.0.load(Ordering::Relaxed))) + self.idle.get().map_or(0, |queue| queue.len())
    }

    /// Is there surely no idle chunk? Costs two loads where the class was never used.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.idle_count() == 0
    }

    /// Seals every place and hands each chunk that was in one of them to `destroy`, each exactly once.
    ///
    /// Gives may go on meanwhile; takes may not, so the caller is the pool's only taker.
    pub(crate) fn close(&self, mut destroy: impl FnMut(NonNull<T>)) {
        if let Some(chunk) = self.seal_hot() {
            destroy(chunk);
        }
        // A queue that a handle might create later must be born sealed, so create it now.
        seal_queue(self.idle.get_or_init(|| queue(1)), &mut destroy);
    }
}

/// The chunks of all classes that were given back while peers leased them. See the module's text.
pub(crate) struct LentQueue<T>(OnceLock<Queue<T>>);

impl<T: Send> LentQueue<T> {
    pub(crate) fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Makes room for `capacity` chunks. Called off the warm path, before the first chunk is shared. `false`: there is no memory for it.
    pub(crate) fn open(&self, capacity: usize) -> bool {
        // To make the queue aborts the process where there is none.
        let has_memory = || {
            let mut places = Vec::<QueueSlot>::new();
            let has_memory = places.try_reserve_exact(capacity).is_ok();
            // Else the compiler may leave both out, the taking and the giving back.
            black_box(places);
            has_memory
        };
        if self.0.get().is_none() && !has_memory() {
            return false;
        }
        self.0.get_or_init(|| queue(capacity));
        true
    }

    /// What so many chunks take, in bytes.
    pub(crate) const fn bytes(capacity: usize) -> usize {
        capacity * size_of::<QueueSlot>()
    }

    /// Takes the chunk that was lent longest ago.
    pub(crate) fn take(&self) -> Option<NonNull<T>> {
        take(self.0.get()?)
    }

    /// Gives a chunk back that peers still lease. `Err` returns it: the pool is closed. The same contract as
    /// [`Shelf::give`] otherwise.
    pub(crate) fn give(&self, chunk: NonNull<T>) -> Result<(), NonNull<T>> {
        push(self.0.get().map(Box::as_ref), chunk)
    }

    /// How many chunks were given back and may be leased. A snapshot.
    pub(crate) fn count(&self) -> usize {
        self.0.get().map_or(0, |queue| queue.len())
    }

    /// As [`Shelf::close`].
    pub(crate) fn close(&self, mut destroy: impl FnMut(NonNull<T>)) {
        seal_queue(self.0.get_or_init(|| queue(1)), &mut destroy);
    }
}

#[inline]
fn take<T: Send>(queue: &ArrayQueue<Parcel<T>>) -> Option<NonNull<T>> {
    queue.pop()?.0
}

#[inline]
fn push<T: Send>(queue: Option<&ArrayQueue<Parcel<T>>>, chunk: NonNull<T>) -> Result<(), NonNull<T>> {
    match queue {
        Some(queue) => queue.push(Parcel(Some(chunk))).map_err(|_| chunk),
        None => Err(chunk),
    }
}

/// Leaves `queue` full of seals. Each round that is disturbed by a give has taken a chunk out, and there are finitely
/// many chunks, so this ends.
fn seal_queue<T: Send>(queue: &ArrayQueue<Parcel<T>>, destroy: &mut impl FnMut(NonNull<T>)) {
    loop {
        while let Some(Parcel(found)) = queue.pop() {
            if let Some(chunk) = found {
                destroy(chunk);
            }
        }
        // Nobody else takes: if all these go in, the queue holds nothing else and stays full for ever.
        if (0..queue.capacity()).all(|_| queue.push(Parcel(None)).is_ok()) {
            return;
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::atomic::AtomicUsize;
    use loom::sync::Arc;
    use loom::thread;

    /// The places of a pool.
    struct Places {
        shelf: Shelf<Item>,
        lent: LentQueue<Item>,
    }

    impl Places {
        fn new(keeps_nothing: bool) -> Arc<Self> {
            let places = Self { shelf: Shelf::new(keeps_nothing), lent: LentQueue::new() };
            if !keeps_nothing {
                places.shelf.open_idle(1);
                assert!(places.lent.open(2));
            }
            Arc::new(places)
        }

        fn close(&self) {
            self.shelf.close(destroy);
            self.lent.close(destroy);
        }
    }

    /// Stands for a chunk: it keeps the places alive and counts its own destruction.
    struct Item {
        places: Arc<Places>,
        /// Written by the holder without synchronisation, so that loom sees a missing happens-before.
        bytes: loom::cell::UnsafeCell<u32>,
        destroyed: Arc<AtomicUsize>,
    }

    // SAFETY: as for a real chunk: one holder at a time.
    unsafe impl Send for Item {}
    // SAFETY: as above.
    unsafe impl Sync for Item {}

    fn destroy(item: NonNull<Item>) {
        // SAFETY: the caller took the item out of its only place (I3).
        let item = unsafe { Box::from_raw(item.as_ptr()) };
        item.bytes.with(|_| ());
        item.destroyed.fetch_add(1, Ordering::Relaxed);
    }

    fn item(places: &Arc<Places>, destroyed: &Arc<AtomicUsize>) -> NonNull<Item> {
        let bytes = loom::cell::UnsafeCell::new(0);
        let item = Item { places: places.clone(), bytes, destroyed: destroyed.clone() };
        NonNull::new(Box::into_raw(Box::new(item))).unwrap()
    }

    struct Carry(NonNull<Item>);
    // SAFETY: moves the item's ownership to another thread.
    unsafe impl Send for Carry {}

    /// What a handle does on drop: write once more, give, destroy if refused.
    fn drop_handle(handle: Carry, lent: bool) {
        let handle = handle;
        // SAFETY: this thread is the holder.
        let (places, bytes) = unsafe { (NonNull::from(&*handle.0.as_ref().places), &handle.0.as_ref().bytes) };
        // SAFETY: the holder alone writes.
        bytes.with_mut(|b| unsafe { *b += 1 });
        // SAFETY: the item keeps the places alive until it has been given away.
        let places = unsafe { places.as_ref() };
        let given = if lent { places.lent.give(handle.0) } else { places.shelf.give(handle.0) };
        if let Err(item) = given {
            destroy(item);
        }
    }

    /// Handles dropped while the pool closes: every chunk is destroyed once, and with the last one the shelf is freed
    /// (loom reports a leaked `Arc`).
    fn close_and_drain(lent: [bool; 2]) {
        loom::model(move || {
            let destroyed = Arc::new(AtomicUsize::new(0));
            let places = Places::new(false);
            let handles = lent.map(|lent| (Carry(item(&places, &destroyed)), lent));
            let threads = handles.map(|(handle, lent)| thread::spawn(move || drop_handle(handle, lent)));
            places.close();
            drop(places);
            for thread in threads {
                thread.join().unwrap();
            }
            assert_eq!(destroyed.load(Ordering::Relaxed), 2, "a chunk was lost, or destroyed twice");
        });
    }

    #[test]
    fn close_drains_the_hot_slot_and_the_idle_queue() {
        close_and_drain([false, false]);
    }

    #[test]
    fn close_drains_the_lent_queue() {
        close_and_drain([true, false]);
    }

    /// A shelf that keeps nothing: a take that disturbs the seal loses no chunk and makes none up.
    #[test]
    fn a_shelf_that_keeps_nothing_loses_nothing() {
        loom::model(|| {
            let destroyed = Arc::new(AtomicUsize::new(0));
            let places = Places::new(true);
            let handle = Carry(item(&places, &destroyed));
            let giver = thread::spawn(move || drop_handle(handle, false));
            let taker = {
                let places = places.clone();
                thread::spawn(move || places.shelf.take_hot().map(destroy))
            };
            let taken = places.shelf.take_hot().map(destroy);
            taker.join().unwrap();
            giver.join().unwrap();
            places.shelf.close(|_| panic!("the shelf kept a chunk"));
            drop(places);
            let _ = taken;
            assert_eq!(destroyed.load(Ordering::Relaxed), 1);
        });
    }

    /// A chunk goes from one thread's drop to another's take with all that was written to it, and to one only.
    #[test]
    fn take_sees_what_the_giver_wrote() {
        loom::model(|| {
            let destroyed = Arc::new(AtomicUsize::new(0));
            let places = Places::new(false);
            let first = Carry(item(&places, &destroyed));
            let second = Carry(item(&places, &destroyed));
            let giver = thread::spawn(move || {
                drop_handle(first, false);
                drop_handle(second, false);
            });
            let taken = places.shelf.take_hot().or_else(|| places.shelf.take_idle());
            if let Some(taken) = taken {
                // SAFETY: taken out of its place: this thread is the holder.
                unsafe { taken.as_ref() }.bytes.with_mut(|b| unsafe { *b += 1 });
                drop_handle(Carry(taken), false);
            }
            giver.join().unwrap();
            places.close();
            drop(places);
            assert_eq!(destroyed.load(Ordering::Relaxed), 2);
        });
    }
}
