//! Whole zenoh buffers that are used again: [`BufferPool`]. What is kept of each length is in
//! `class`, what is handed out in `handle`.

#![forbid(unsafe_code)]

use crate::class::Class;
use crate::handle::Buffer;
use crate::request::BufferRequest;
use crate::waiting::WaitingRoom;
use crate::whole::{Shared, Whole};
use crate::{is_for_want_of_memory, PoolBackend};
use parking_lot::Mutex;
use shm_pool::backend::SizeClass;
use shm_pool::OsError;
use shm_pool::Reservation;
use shm_pool::{AllocError, AllocErrorKind};
use std::cmp::Reverse;
use std::fmt;
use std::io;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;
use zenoh::shm::{ShmProvider, ShmProviderBackend};

/// A pool of whole zenoh buffers: for publishers of messages of few lengths. Clones share it.
///
/// zenoh's `ShmProvider` makes metadata for each message, has two threads watch it, and takes it
/// down when the message has been read. This pool keeps a buffer with all of that after it was
/// sent, and hands it out again once everybody has read it. Receivers are stock, and see stock
/// messages. [Which of the two to use](crate#provider-or-buffer-pool) is in the module's docs.
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
/// use shm_pool_zenoh::{BufferPool, PoolBackend};
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

pub(crate) struct Inner {
    /// Asks `provider`, and no other one, to collect.
    backend: PoolBackend,
    provider: Arc<ShmProvider<PoolBackend>>,
    classes: Box<[Mutex<Class>]>,
    sizes: Box<[SizeClass]>,
    /// The numbers of all classes, the largest first.
    largest_first: Box<[usize]>,
    /// How many wait for memory, threads and futures. A hint.
    waiting: AtomicUsize,
    waiting_room: Arc<WaitingRoom>,
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

impl BufferPool {
    /// A pool on top of a backend, whose memory and cap it shares with the backend's other users.
    pub fn new(backend: &PoolBackend) -> Self {
        let provider = backend.provider();
        let backend = backend.collecting_by(Arc::downgrade(&provider));
        let sizes: Box<[_]> = backend.chunks.classes().into();
        let classes = sizes.iter().map(|_| Mutex::default()).collect();
        let mut largest_first: Box<[usize]> = (0..sizes.len()).collect();
        largest_first.sort_by_key(|&class| Reverse(sizes[class].size));
        let (waiting, waiting_room) = (AtomicUsize::new(0), Arc::default());
        Self(Arc::new(Inner { backend, provider, classes, sizes, largest_first, waiting, waiting_room }))
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
        self.alloc_class(self.0.class(len, 1)?, len)
    }

    /// Begins a request for `len` bytes, which may be aligned, and may wait: see [`BufferRequest`].
    pub fn request(&self, len: usize) -> BufferRequest<'_> {
        BufferRequest::new(self, len)
    }

    /// Like [`alloc`](Self::alloc), but when there is no memory, waits for some until `timeout` has
    /// passed; with [`Duration::MAX`] as long as it takes. See [`BufferRequest::timeout`].
    ///
    /// # Errors
    ///
    /// Those of `alloc`; [`AllocErrorKind::TimedOut`] with the last of them when the time is over.
    pub fn alloc_timeout(&self, len: usize, timeout: Duration) -> Result<Buffer, AllocError> {
        self.request(len).timeout(timeout)
    }

    /// Allocates a buffer of a class.
    #[inline]
    pub(crate) fn alloc_class(&self, class: usize, len: usize) -> Result<Buffer, AllocError> {
        let mut buffers = self.0.classes[class].lock();
        let (found, is_window_over) = (buffers.take(), buffers.is_window_over());
        drop(buffers);
        if is_window_over {
            self.0.end_window(class);
        }
        let whole = found.map_or_else(|| self.0.make(class, len), Ok)?;
        Ok(self.hand_out(whole, class, len))
    }

    /// Makes a buffer of a class a handle.
    #[inline]
    pub(crate) fn hand_out(&self, whole: Whole, class: usize, len: usize) -> Buffer {
        Buffer::new(whole, len, class, self.0.clone())
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0
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
    /// # use shm_pool_zenoh::{BufferPool, PoolBackend};
    /// let pool = BufferPool::new(&PoolBackend::builder().max_bytes(1 << 20).build()?);
    /// pool.reserve(100_000, 4)?.keep();
    /// let frames = [(); 4].map(|()| pool.alloc(100_000));
    /// assert_eq!((pool.stats().made, pool.stats().reused), (4, 4));
    /// # drop(frames);
    /// # Ok(())
    /// # }
    /// ```
    pub fn reserve(&self, len: usize, count: usize) -> Result<Reservation, AllocError> {
        let class = self.0.class(len, 1)?;
        let reservation = self.0.backend.reserve(len, count)?;
        // What was made before an error goes to the idle ones, too, and is not reserved.
        let mut buffers = Vec::new();
        let made = (0..count).try_for_each(|_| self.0.make_one(class, len).map(|whole| buffers.push(whole)));
        let mut class = self.0.classes[class].lock();
        buffers.into_iter().for_each(|whole| class.put_idle(whole));
        drop(class);
        made.map(|()| reservation)
    }

    /// The provider that makes the buffers, for code that takes a `ShmProvider`.
    pub fn provider(&self) -> &Arc<ShmProvider<PoolBackend>> {
        &self.0.provider
    }

    /// Lets go of all buffers that are still read, and returns how many those were. They are
    /// ordinary messages of zenoh's from now on, which come back when they have been read.
    ///
    /// Call this when a receiver has died. What it held is then taken back by the provider's
    /// `garbage_collect_unsafe`, as [the module's docs](crate#when-processes-die) say, but not while
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
                class.lock().add_to(&mut stats);
            }
        }
        stats
    }
}

impl Inner {
    #[inline]
    pub(crate) fn is_ours(&self) -> bool {
        !self.backend.chunks.is_inherited()
    }

    /// The class of a layout, if this process may allocate it.
    #[inline]
    pub(crate) fn class(&self, len: usize, align: usize) -> Result<usize, AllocError> {
        let class = self.backend.chunks.class(len, align)?;
        // Before any lock is taken: in a forked child somebody may hold it who does not exist.
        match self.is_ours() {
            true => Ok(class),
            false => Err(AllocErrorKind::Forked.into()),
        }
    }

    /// Looks for a buffer of a class wherever it may be, on behalf of somebody who waits.
    pub(crate) fn find(&self, class: usize, len: usize) -> Result<Whole, AllocError> {
        let found = self.classes[class].lock().search();
        found.map_or_else(|| self.make(class, len), Ok)
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
        let SizeClass { size, align, .. } = self.sizes[class];
        let chunk = self.backend.take(size, align)?;
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
        for &class in &*self.largest_first {
            if evicted >= bytes {
                break;
            }
            let (size, mut buffers) = (self.sizes[class].size, self.classes[class].lock());
            evicted += buffers.tidy() * size;
            let count = buffers.idle().min(bytes.saturating_sub(evicted).div_ceil(size));
            buffers.give_up(count);
            evicted += count * size;
        }
        self.provider.garbage_collect();
        evicted
    }

    /// Gives up what a class has too much. Otherwise a burst is remembered for ever.
    #[cold]
    fn end_window(&self, class: usize) {
        let is_reserved = self.backend.chunks.reserved(class) > 0;
        let mut buffers = self.classes[class].lock();
        if is_reserved {
            buffers.skip_window();
        } else if buffers.end_window() > 0 {
            drop(buffers);
            self.provider.garbage_collect();
        }
    }

    /// Sleeps until a buffer comes back unsent, or `pause` is over.
    pub(crate) fn sleep(&self, pause: Duration) {
        self.note_waiting();
        self.waiting_room.sleep(pause);
        self.note_waited();
    }

    pub(crate) fn waiting_room(&self) -> &Arc<WaitingRoom> {
        &self.waiting_room
    }

    /// From now on, what comes back is told.
    pub(crate) fn note_waiting(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn note_waited(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Keeps a buffer that was sent.
    #[inline]
    pub(crate) fn keep_sent(&self, buffer: Shared, class: usize) {
        self.classes[class].lock().put_sent(buffer);
    }

    /// Takes back a buffer that was not sent.
    #[inline]
    pub(crate) fn take_back(&self, whole: Whole, class: usize) {
        self.classes[class].lock().put_idle(whole);
        // Relaxed: somebody who falls asleep at this moment looks again after the pause.
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.waiting_room.tell();
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

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool").field("backend", &self.0.backend).field("stats", &self.stats()).finish()
    }
}
