//! Whole zenoh buffers that are used again: [`BufferPool`], and the [`Buffer`] that it hands out.
//!
//! Each size class has its idle buffers, and a queue of those that were sent, oldest first. Sent
//! buffers stay in the queue, read or not, until an allocation finds one at its head that nobody
//! has any more. Nothing else tells: zenoh's readers count in zenoh's metadata, and ring no bell.

#![forbid(unsafe_code)]

use super::whole::{Shared, Whole};
use super::{is_for_want_of_memory, PoolBackend};
use crate::error::OsError;
use crate::os::deadline::Deadline;
use crate::owner::class::{class_of, size_of_class};
use crate::owner::error::{AllocError, AllocErrorKind, CapacityError};
use crate::owner::reservation::Reservation;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zenoh::bytes::ZBytes;
use zenoh::shm::{ShmProvider, ShmProviderBackend};

/// How many sent buffers an allocation looks at.
const LOOKS: usize = 4;

/// After so many looks at a buffer that is still read, the pool lets it go.
const PATIENCE: u8 = 64;

/// A window is so many allocations, and so many more for each buffer of the class.
const WINDOW: usize = 256;
const WINDOW_SHARE: usize = 8;

/// What is idle, or not known to be free, is not too much up to this share of all.
const SPARE_SHARE: usize = 9;

/// How long a wait sleeps between two looks: this share of the time waited so far, within limits.
const PAUSE_SHARE: u32 = 8;
const SHORTEST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// A pool of whole zenoh buffers: for publishers of messages of few lengths. Clones share it.
///
/// zenoh's `ShmProvider` makes metadata for each message, has two threads watch it, and takes it
/// down when the message has been read. This pool keeps a buffer with all of that after it was
/// sent, and hands it out again once everybody has read it. Receivers are stock, and see stock
/// messages. [Which of the two to use](super#provider-or-buffer-pool) is in the module's docs.
///
/// An allocation looks at the 4 buffers of its size class that were sent longest ago, and takes the
/// first one that zenoh says nobody has. Otherwise it takes one that was not sent, or searches all
/// of the class, or makes one, as `ShmProvider` does. It searches as often as keeps the pool within
/// an eighth of what is in flight. It makes no
/// system call and does not touch the heap as long as it finds one, and the message has the length
/// of the buffer's last one; another length of the class costs one clone of zenoh's handle.
///
/// A buffer that was still read each of 64 times that it was looked at is let go: the pool forgets
/// it, and it is an ordinary message of zenoh's from then on. So readers that keep messages, or
/// have died with them, do not stand in the way.
///
/// What the pool keeps counts against the cap. At the cap it gives back buffers of other classes
/// that nobody has before an allocation fails. Below it, each time a class of *n* buffers has served
/// 256 + 8 *n* allocations, half of the buffers that were idle all that time go back to the backend.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use shm_pool::zenoh::{BufferPool, PoolBackend};
/// use zenoh::bytes::ZBytes;
///
/// let pool = BufferPool::new(&PoolBackend::builder().max_bytes(1 << 20).build()?);
/// let mut frame = pool.alloc(100_000)?;
/// frame[..5].copy_from_slice(b"image");
/// let address = frame.as_ptr();
/// let message = ZBytes::from(frame); // or `publisher.put(frame)`
/// drop(message); // it has been read
/// assert_eq!(pool.alloc(100_000)?.as_ptr(), address);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct BufferPool(Arc<Inner>);

struct Inner {
    /// Asks `provider`, and no other one, to collect.
    backend: PoolBackend,
    provider: Arc<ShmProvider<PoolBackend>>,
    classes: Box<[Mutex<Class>]>,
    /// Who waits for memory, and what wakes them when a buffer comes back unsent.
    waiting: AtomicUsize,
    asleep: Mutex<()>,
    came_back: Condvar,
}

/// The buffers of one size class that are kept.
#[derive(Default)]
struct Class {
    /// The one that came back last is used first: it may be in the cache.
    idle: Vec<Whole>,
    /// Oldest first.
    sent: VecDeque<Sent>,
    /// How many there are, with those in the hands of this process. Both lists have room for all.
    kept: usize,
    /// From so many on, free ones are searched for before another one is made.
    tidy_at: usize,
    /// Allocations in this window, and the fewest idle ones in it.
    window: usize,
    low: usize,
    reused: u64,
    made: u64,
    let_go: u64,
}

struct Sent {
    buffer: Shared,
    /// How often it was looked at and still read.
    looks: u8,
}

/// What a [`BufferPool`] has and has done. Exact while nothing else goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BufferStats {
    /// Allocations served by a buffer that was there.
    pub reused: u64,
    /// Buffers made, by allocations and by [`BufferPool::reserve`].
    pub made: u64,
    /// Buffers that were read too long and were let go.
    pub let_go: u64,
    /// Buffers that lie ready, unsent.
    pub idle: usize,
    /// Buffers that were sent and are kept. Some may have been read by now.
    pub sent: usize,
}

impl Class {
    /// Takes a buffer that nobody has. The oldest that was sent comes before the idle ones, so that
    /// those that are not needed stay idle.
    #[inline]
    fn take(&mut self) -> Option<Whole> {
        self.window += 1;
        let looks = if self.idle.is_empty() { LOOKS } else { 1 };
        self.take_sent(looks).or_else(|| self.take_idle()).or_else(|| self.take_hidden())
    }

    /// Takes a buffer that nobody has from behind others that are read, if it is time to search for
    /// those. A search that finds a ninth of all is worth its time; after one that finds less,
    /// what is missing is made before the next. So the pool has at most an eighth more than is in flight.
    #[cold]
    fn take_hidden(&mut self) -> Option<Whole> {
        if self.kept < self.tidy_at {
            return None;
        }
        self.tidy();
        self.tidy_at = self.kept + (self.kept / SPARE_SHARE).saturating_sub(self.idle.len());
        self.take_idle()
    }

    /// Takes a buffer that nobody has, wherever it is.
    fn search(&mut self) -> Option<Whole> {
        self.tidy();
        self.take_idle()
    }

    #[inline]
    fn take_idle(&mut self) -> Option<Whole> {
        while let Some(whole) = self.idle.pop() {
            // Nobody else has it. But zenoh may have invalidated it, if this process got no CPU to
            // confirm it; then the provider may have freed it.
            if whole.is_valid() {
                self.low = self.low.min(self.idle.len());
                self.reused += 1;
                return Some(whole);
            }
            self.note_let_go(1);
        }
        None
    }

    /// Takes the first of the `looks` oldest sent buffers that nobody has. The others stay in their order,
    /// except those whose time is up.
    #[inline]
    fn take_sent(&mut self, looks: usize) -> Option<Whole> {
        let mut passed_over = 0;
        let mut taken = None;
        for _ in 0..looks.min(self.sent.len()) {
            let Some(Sent { buffer, looks }) = self.sent.pop_front() else { break };
            match buffer.reclaim() {
                Ok(whole) => {
                    self.reused += 1;
                    taken = Some(whole);
                    break;
                }
                Err(buffer) if looks + 1 < PATIENCE && buffer.is_valid() => {
                    self.sent.push_back(Sent { buffer, looks: looks + 1 });
                    passed_over += 1;
                }
                Err(_) => self.note_let_go(1),
            }
        }
        self.sent.rotate_right(passed_over);
        taken
    }

    /// Moves the sent buffers that nobody has any more to the idle ones. Whoever waits for memory
    /// looks often, so this does not count against anybody's patience.
    fn tidy(&mut self) {
        for _ in 0..self.sent.len() {
            let Some(Sent { buffer, looks }) = self.sent.pop_front() else { break };
            match buffer.reclaim() {
                Ok(whole) => self.idle.push(whole),
                Err(buffer) => self.sent.push_back(Sent { buffer, looks }),
            }
        }
    }

    /// Gives up idle buffers, those first that came back first.
    fn give_up(&mut self, count: usize) {
        self.idle.drain(..count);
        self.note_gone(count);
    }

    /// Forgets the sent buffers that somebody has.
    fn let_go(&mut self) -> usize {
        self.tidy();
        let gone = self.sent.len();
        self.sent.clear();
        self.note_let_go(gone);
        gone
    }

    fn note_let_go(&mut self, count: usize) {
        self.let_go += count as u64;
        self.note_gone(count);
    }

    fn note_gone(&mut self, count: usize) {
        self.kept -= count;
        self.low = self.low.min(self.idle.len());
        self.tidy_at = self.tidy_at.min(self.kept + self.kept / SPARE_SHARE);
    }

    fn note_made(&mut self) {
        self.made += 1;
        self.kept += 1;
        self.idle.reserve(self.kept - self.idle.len());
        self.sent.reserve(self.kept - self.sent.len());
    }

    /// Is it time to look whether there are more than are needed? That costs a look at each, so the
    /// more there are, the more rarely.
    #[inline]
    fn is_window_over(&self) -> bool {
        self.window >= WINDOW + WINDOW_SHARE * self.kept
    }

    /// Ends a window: gives up half of what was idle all the time, but for a few spare ones. Returns
    /// how many those were.
    fn end_window(&mut self) -> usize {
        let spare = (self.kept - self.low) / SPARE_SHARE + 1;
        let count = self.low.saturating_sub(spare).div_ceil(2);
        self.give_up(count);
        self.tidy();
        (self.window, self.low) = (0, self.idle.len());
        count
    }
}

impl BufferPool {
    /// A pool on top of a backend, whose memory and cap it shares with the backend's other users.
    pub fn new(backend: &PoolBackend) -> Self {
        let provider = backend.provider();
        let backend = PoolBackend { core: backend.core.clone(), provider: Arc::downgrade(&provider) };
        let classes = (0..=class_of(backend.core.max_alloc)).map(|_| Mutex::default()).collect();
        let (waiting, asleep, came_back) = (AtomicUsize::new(0), Mutex::new(()), Condvar::new());
        Self(Arc::new(Inner { backend, provider, classes, waiting, asleep, came_back }))
    }

    /// Allocates a buffer of `len` bytes, aligned to 64. Its content is unspecified: what its last
    /// message has left.
    ///
    /// # Errors
    ///
    /// [`AllocErrorKind::TooLarge`] above the largest message; [`AllocErrorKind::Exhausted`] at the
    /// cap; [`AllocErrorKind::Os`] if the system refuses memory, to the backend or for zenoh's
    /// metadata; [`AllocErrorKind::Forked`] in a forked child.
    #[inline]
    pub fn alloc(&self, len: usize) -> Result<Buffer, AllocError> {
        let class = self.0.class(len)?;
        let mut buffers = self.0.classes[class].lock();
        let (found, is_window_over) = (buffers.take(), buffers.is_window_over());
        drop(buffers);
        if is_window_over {
            self.0.end_window(class);
        }
        let whole = found.map_or_else(|| self.0.make(class, len), Ok)?;
        Ok(Buffer { whole: Some(whole), len, class, pool: self.0.clone() })
    }

    /// Like [`alloc`](Self::alloc), but when there is no memory, waits for some until `timeout` has
    /// passed. With [`Duration::MAX`] it waits for as long as it takes.
    ///
    /// A buffer that comes back unsent ends the wait at once. A reader that finishes does not: zenoh
    /// tells nobody. So this looks again and again, first after 20 µs, then each time after an
    /// eighth of the time waited so far, and at least every millisecond.
    ///
    /// # Errors
    ///
    /// Those of `alloc`; [`AllocErrorKind::TimedOut`] with the last of them when the time is over.
    pub fn alloc_timeout(&self, len: usize, timeout: Duration) -> Result<Buffer, AllocError> {
        let mut source = match self.alloc(len) {
            Err(error) if is_for_want_of_memory(&error) => error,
            done => return done,
        };
        let (start, deadline) = (Instant::now(), Deadline::after(timeout));
        let class = self.0.class(len)?;
        while !deadline.is_some_and(Deadline::has_passed) {
            let pause = (start.elapsed() / PAUSE_SHARE).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
            self.0.sleep(deadline.map_or(pause, |deadline| pause.min(deadline.left())));
            let found = self.0.classes[class].lock().search();
            match found.map_or_else(|| self.0.make(class, len), Ok) {
                Ok(whole) => return Ok(Buffer { whole: Some(whole), len, class, pool: self.0.clone() }),
                Err(error) if is_for_want_of_memory(&error) => source = error,
                Err(error) => return Err(error),
            }
        }
        Err(AllocErrorKind::TimedOut { timeout, source }.into())
    }

    /// Makes `count` buffers for messages of `len` bytes, with all that zenoh needs for them, so that
    /// the first messages cost no more than later ones. The backend keeps their memory until the
    /// [`Reservation`] is dropped. At the cap the pool may give the buffers themselves back to it,
    /// so that the next message makes zenoh's metadata anew, but never needs the system.
    ///
    /// # Errors
    ///
    /// Those of [`PoolBackend::reserve`]. On an error nothing is reserved.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// # use shm_pool::zenoh::{BufferPool, PoolBackend};
    /// let pool = BufferPool::new(&PoolBackend::builder().max_bytes(1 << 20).build()?);
    /// pool.reserve(100_000, 4)?.keep();
    /// let frames = [(); 4].map(|()| pool.alloc(100_000));
    /// assert_eq!((pool.stats().made, pool.stats().reused), (4, 4));
    /// # drop(frames);
    /// # Ok(())
    /// # }
    /// ```
    pub fn reserve(&self, len: usize, count: usize) -> Result<Reservation, AllocError> {
        let class = self.0.class(len)?;
        let reservation = self.0.backend.reserve(len, count)?;
        // What was made before an error goes to the idle ones, too, and is not reserved.
        let mut buffers = Vec::new();
        let made = (0..count).try_for_each(|_| self.0.make_one(class, len).map(|whole| buffers.push(whole)));
        self.0.classes[class].lock().idle.extend(buffers);
        made.map(|()| reservation)
    }

    /// The provider that makes the buffers, for what this pool does not do: typed and aligned
    /// buffers, precomputed layouts, zenoh's policies.
    pub fn provider(&self) -> &Arc<ShmProvider<PoolBackend>> {
        &self.0.provider
    }

    /// Lets go of all buffers that are still read, and returns how many those were. They are
    /// ordinary messages of zenoh's from now on, which come back when they have been read.
    ///
    /// Call this when a receiver has died. What it held is then taken back by the provider's
    /// `garbage_collect_unsafe`, as [the module's docs](super#when-processes-die) say, but not while
    /// this pool keeps it: a process that keeps a buffer confirms to zenoh that it lives.
    pub fn let_go(&self) -> usize {
        match self.0.is_ours() {
            true => self.0.classes.iter().map(|class| class.lock().let_go()).sum(),
            false => 0,
        }
    }

    /// Gives all memory that nobody has back to the system, and returns how many bytes that was.
    pub fn trim(&self) -> usize {
        if !self.0.is_ours() {
            return 0;
        }
        self.0.evict(usize::MAX);
        self.0.backend.trim()
    }

    /// What the pool has and has done. The backend's [`stats`](PoolBackend::stats) count all that
    /// the pool keeps as in use.
    pub fn stats(&self) -> BufferStats {
        let mut stats = BufferStats::default();
        if self.0.is_ours() {
            for class in &*self.0.classes {
                let class = class.lock();
                stats.reused += class.reused;
                stats.made += class.made;
                stats.let_go += class.let_go;
                stats.idle += class.idle.len();
                stats.sent += class.sent.len();
            }
        }
        stats
    }
}

impl Inner {
    #[inline]
    fn is_ours(&self) -> bool {
        self.backend.core.pool.is_ours()
    }

    /// The class of a length, if this process may allocate it.
    #[inline]
    fn class(&self, len: usize) -> Result<usize, AllocError> {
        let max = self.backend.core.max_alloc;
        if len > max {
            return Err(AllocErrorKind::TooLarge { len, max }.into());
        }
        // Before any lock is taken: in a forked child somebody may hold it who does not exist.
        if !self.is_ours() {
            return Err(AllocErrorKind::Forked.into());
        }
        Ok(class_of(len))
    }

    /// Makes a buffer. At the cap, uses one that is free by now, or has others make way.
    #[cold]
    #[inline(never)]
    fn make(&self, class: usize, len: usize) -> Result<Whole, AllocError> {
        loop {
            let error = match self.make_one(class, len) {
                Err(error) if is_for_want_of_memory(&error) => error,
                done => return done,
            };
            if let Some(whole) = self.classes[class].lock().search() {
                return Ok(whole);
            }
            if self.evict(len.max(1)) == 0 {
                return Err(error);
            }
        }
    }

    /// Makes a buffer that has room for every length of its class.
    fn make_one(&self, class: usize, len: usize) -> Result<Whole, AllocError> {
        let size = size_of_class(class).min(self.backend.core.max_alloc);
        let chunk = self.backend.take(class, size)?;
        let descriptor = chunk.descriptor.clone();
        let buffer = self.provider.map(chunk, size).map_err(|error| {
            self.backend.free(&descriptor);
            let advice = "; make room in /dev/shm, or raise the limits on mappings and descriptors".to_owned();
            OsError::new("open", "zenoh's metadata in /dev/shm", 0, io::Error::other(error), advice)
        })?;
        self.classes[class].lock().note_made();
        Ok(Whole::new(buffer, len))
    }

    /// Gives at least `bytes` bytes of buffers that nobody has back to the backend, if there are so
    /// many. The largest go first: few make room for many.
    #[cold]
    fn evict(&self, bytes: usize) -> usize {
        let mut evicted = 0;
        for (class, buffers) in self.classes.iter().enumerate().rev() {
            if evicted >= bytes {
                break;
            }
            let (size, mut buffers) = (size_of_class(class), buffers.lock());
            buffers.tidy();
            let count = buffers.idle.len().min((bytes - evicted).div_ceil(size));
            buffers.give_up(count);
            evicted += count * size;
        }
        self.provider.garbage_collect();
        evicted
    }

    /// Gives up what a class has too much. Otherwise a burst is remembered for ever.
    #[cold]
    fn end_window(&self, class: usize) {
        let is_reserved = self.backend.core.pool.has_reserved(class);
        let mut buffers = self.classes[class].lock();
        if is_reserved {
            buffers.window = 0;
        } else if buffers.end_window() > 0 {
            drop(buffers);
            self.provider.garbage_collect();
        }
    }

    /// Sleeps until a buffer comes back unsent, or `pause` is over.
    fn sleep(&self, pause: Duration) {
        let mut asleep = self.asleep.lock();
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.came_back.wait_for(&mut asleep, pause);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes back a buffer that was not sent.
    #[inline]
    fn take_back(&self, whole: Whole, class: usize) {
        self.classes[class].lock().idle.push(whole);
        // Relaxed: somebody who falls asleep at this moment looks again after the pause.
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.came_back.notify_all();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.is_ours() {
            // The counts in zenoh's metadata are the parent's.
            mem::take(&mut self.classes).into_vec().into_iter().for_each(mem::forget);
            mem::forget(self.provider.clone());
            return;
        }
        self.classes.iter_mut().for_each(|class| *class.get_mut() = Class::default());
        self.provider.garbage_collect();
    }
}

/// A buffer to write a message in: a plain `&mut [u8]` that nobody else can see.
///
/// `ZBytes::from(buffer)` makes the message, without a copy; `put`, replies and attachments take
/// the buffer itself. The pool uses the buffer again once everybody has read it. A buffer that is
/// dropped instead is back at once. It outlives its pool.
///
/// As the pool keeps the buffer, no receiver ever has it alone: zenoh's `zshmmut`, by which the only
/// holder of a received message may write it in place, is not to be had for these.
#[must_use = "a buffer that is dropped is not sent"]
pub struct Buffer {
    /// `None` once it is sent or dropped.
    whole: Option<Whole>,
    len: usize,
    class: usize,
    pool: Arc<Inner>,
}

impl Buffer {
    /// The longest message in bytes.
    pub fn capacity(&self) -> usize {
        self.whole.as_ref().map_or(0, Whole::capacity)
    }

    /// Makes the message shorter. Does nothing if it is already that short.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Makes the message `len` bytes long, up to the [capacity](Self::capacity). Added bytes have
    /// unspecified content.
    ///
    /// # Errors
    ///
    /// [`CapacityError`] if `len` is above the capacity; the length does not change.
    pub fn try_set_len(&mut self, len: usize) -> Result<(), CapacityError> {
        let capacity = self.capacity();
        if len > capacity {
            return Err(CapacityError { len, capacity });
        }
        self.len = len;
        Ok(())
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.whole.as_ref().map_or(&[], |whole| whole.bytes(self.len))
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.whole.as_mut().map_or(&mut [], |whole| whole.bytes_mut(self.len))
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl From<Buffer> for ZBytes {
    /// Ends writing. Nothing is copied.
    #[inline]
    fn from(mut buffer: Buffer) -> Self {
        let Some(whole) = buffer.whole.take() else { return ZBytes::new() };
        let (kept, message) = whole.share(buffer.len);
        if buffer.pool.is_ours() {
            buffer.pool.classes[buffer.class].lock().sent.push_back(Sent { buffer: kept, looks: 0 });
        } else {
            mem::forget(kept); // the parent's
        }
        message
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        let Some(whole) = self.whole.take() else { return };
        if self.pool.is_ours() {
            self.pool.take_back(whole, self.class);
        } else {
            mem::forget(whole); // the parent's
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len).field("capacity", &self.capacity()).finish()
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool").field("backend", &self.0.backend).field("stats", &self.stats()).finish()
    }
}
