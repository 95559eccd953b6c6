//! Whole zenoh buffers that are reused: [`BufferPool`]. The lists of each length are in `class`, the
//! user's handle is in `handle`.

#![forbid(unsafe_code)]

use crate::class::Class;
use crate::handle::Buffer;
use crate::idle::{Classes, Idle, MANY};
use crate::outstanding::Key;
use crate::request::BufferRequest;
use crate::waiting::WaitingRoom;
use crate::whole::{Shared, Whole};
use crate::{is_out_of_memory, PoolBackend, PoolProvider, MAP};
use parking_lot::Mutex;
use shm_pool::backend::SizeClass;
use shm_pool::{AllocError, OsError, Reservation};
use std::fmt;
use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;
use zenoh::shm::ShmProviderBackend;

/// A pool of whole zenoh buffers, for publishers of messages of few lengths. Clones share it.
///
/// zenoh's `ShmProvider` sets up metadata for each message, has two threads watch it, and removes it
/// when the message has been read. This pool keeps a buffer with all of that after it was sent, and
/// reuses it once every reader is done. Receivers are stock, and see stock messages. The crate's docs
/// say [which of the two to use](crate#provider-or-buffer-pool).
///
/// An allocation looks at the 4 buffers of its size class that were sent longest ago, and takes the
/// first one that no reader has, according to zenoh. Otherwise it takes one that was not sent, or
/// searches the whole class, or creates one, as `ShmProvider` does. It searches often enough to keep
/// the pool within an eighth of the messages in flight; of up to 2 KiB, within twice as many. If it
/// finds one, and the message is as long as the buffer's previous one, it makes no system call and does
/// not touch the heap; another length of the class costs one clone of zenoh's handle.
///
/// If 64 allocations have found a buffer being read, the pool releases it, and it becomes an ordinary
/// zenoh message. So readers that keep messages, or have died with them, do not prevent reuse. A request
/// that waits also releases, a part at a time, the buffers being read of a class of which more than 1,024
/// were sent.
///
/// The pool's buffers count against the cap. At the cap, it releases all free buffers of other classes
/// before an allocation fails. Below it, each time a class of *n* buffers has served 256 + 8 *n*
/// allocations, half of the buffers that were idle all the time return to the backend, except those
/// that are reserved. After a second without an allocation, a thread releases all but 32 idle buffers
/// of each class that has more than 128. Once the segments span the whole cap, a new buffer may be
/// only as long as its message, to leave room for others, and is then not reused.
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

/// How often a look of a waiting request releases buffers. Other threads may put back more meanwhile, and
/// a look takes bounded time.
const ROUNDS: usize = 8;

pub(crate) struct Inner {
    backend: PoolBackend,
    provider: PoolProvider,
    /// Dropped before `idle`, whose thread then ends.
    classes: Classes,
    idle: Idle,
    sizes: Box<[SizeClass]>,
    /// By class: `false` only if it has no buffers. A search skips those: there are hundreds, and most are
    /// in no cache. Written while the class is locked. Relaxed: a thread that synchronizes with the one
    /// that made a buffer sees `true`, and any other thread may miss the buffer.
    occupied: Box<[AtomicBool]>,
    /// The number of waiting threads and futures. A hint.
    waiting: AtomicUsize,
    waiting_room: Arc<WaitingRoom>,
}

/// Statistics of a [`BufferPool`]. Exact while no other thread uses the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BufferStats {
    /// Allocations served by an existing buffer.
    pub reused: u64,
    /// Buffers created, by allocations and by [`BufferPool::reserve`].
    pub made: u64,
    /// Buffers released while they were being read, or because zenoh had invalidated them.
    pub let_go: u64,
    /// Buffers that are ready for use.
    pub idle: usize,
    /// Buffers that were sent, and are reused when they have been read. Some may have been read by now.
    pub sent: usize,
}

impl BufferPool {
    /// Creates a pool on a backend, whose memory and cap it shares with the backend's other users.
    pub fn new(backend: &PoolBackend) -> Self {
        let provider = backend.provider();
        let sizes: Box<[_]> = backend.chunks.classes().into();
        let classes = sizes
            .iter()
            .map(|class| Mutex::new(Class::new(class.size)))
            .collect();
        let occupied = sizes.iter().map(|_| AtomicBool::new(false)).collect();
        let (waiting, waiting_room) = (AtomicUsize::new(0), Arc::default());
        Self(Arc::new(Inner {
            backend: backend.clone(),
            provider,
            classes,
            idle: Idle::default(),
            sizes,
            occupied,
            waiting,
            waiting_room,
        }))
    }

    /// Allocates a buffer of `len` bytes, aligned to 64. Its content is unspecified: usually that of an
    /// earlier message.
    ///
    /// # Errors
    ///
    /// [`AllocError::TooLarge`] above the largest message; [`AllocError::Exhausted`] at the
    /// cap; [`AllocError::Os`] if the system refuses memory, to the backend or for zenoh's
    /// metadata; [`AllocError::Forked`] in a forked child.
    #[inline]
    pub fn alloc(&self, len: usize) -> Result<Buffer, AllocError> {
        self.alloc_class(self.0.class(len, 1)?, len)
    }

    /// Begins a request for `len` bytes, with options for alignment and waiting.
    pub fn request(&self, len: usize) -> BufferRequest<'_> {
        BufferRequest::new(self, len)
    }

    /// Like [`alloc`](Self::alloc), but blocks for up to `timeout` until there is memory;
    /// [`Duration::MAX`] means without limit. See [`BufferRequest::wait_timeout`].
    ///
    /// # Errors
    ///
    /// Those of `alloc`; [`AllocError::TimedOut`] after `timeout`, with the last of them.
    pub fn alloc_timeout(&self, len: usize, timeout: Duration) -> Result<Buffer, AllocError> {
        self.request(len).wait_timeout(timeout)
    }

    /// Allocates a buffer of a class.
    #[inline]
    pub(crate) fn alloc_class(&self, class: usize, len: usize) -> Result<Buffer, AllocError> {
        let mut is_window_over = false;
        let found = self.0.take(class, |buffers| {
            let found = buffers.take();
            is_window_over = buffers.is_window_over();
            found
        });
        if is_window_over {
            self.0.end_window(class);
        }
        let whole = found.map_or_else(|| self.0.make(class, len, true), Ok)?;
        Ok(self.hand_out(whole, class, len))
    }

    /// Wraps a buffer of a class in a handle.
    #[inline]
    pub(crate) fn hand_out(&self, whole: Whole, class: usize, len: usize) -> Buffer {
        debug_assert!(whole.capacity() >= len);
        Buffer::new(whole, len, class, self.0.clone())
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0
    }

    /// Creates `count` buffers for messages of `len` bytes, with zenoh's metadata, so that the first
    /// messages cost no more than later ones. The backend keeps their memory until the
    /// [`Reservation`] is dropped. At the cap, the pool may release the buffers themselves to it: then
    /// the next message needs new metadata, but no memory from the system.
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
        // Buffers created before an error become idle, too, and are not reserved.
        let mut buffers = Vec::new();
        let made = (0..count)
            .try_for_each(|_| self.0.make_one(class, len).map(|whole| buffers.push(whole)));
        let reserved = self.0.backend.chunks.reserved(class);
        self.0.classes[class].lock().note_reserved(reserved);
        buffers
            .into_iter()
            .for_each(|whole| self.0.take_back(whole, class));
        made.map(|()| reservation)
    }

    /// Returns the provider that creates the buffers, for code that takes a `ShmProvider`.
    pub fn provider(&self) -> &PoolProvider {
        &self.0.provider
    }

    /// Releases all buffers that are being read, and those that zenoh has invalidated. Returns their
    /// number. They become ordinary zenoh messages, which return when they have been read.
    ///
    /// Call this before each of the provider's `garbage_collect_unsafe`, which reclaims the messages
    /// of a receiver that [has died](crate#when-processes-die): it does not reclaim a buffer while this
    /// pool confirms to zenoh that it holds a buffer, and the pool must not hold one that zenoh is to reclaim.
    pub fn let_go(&self) -> usize {
        let mut released = 0;
        if self.0.is_ours() {
            self.0.each_class(|_, buffers| released += buffers.let_go());
        }
        released
    }

    /// Releases all idle buffers, and returns the memory of empty segments to the system, as
    /// [`PoolBackend::trim`] does. Returns the number of bytes.
    pub fn trim(&self) -> usize {
        if !self.0.is_ours() {
            return 0;
        }
        self.0.each_class(|_, buffers| {
            buffers.tidy();
            buffers.release_all_idle();
        });
        self.0.backend.trim()
    }

    /// Returns statistics. The backend's [`stats`](PoolBackend::stats) count all buffers of the pool as
    /// in use.
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

    /// Returns the class of a layout, if this process may allocate it.
    #[inline]
    pub(crate) fn class(&self, len: usize, align: usize) -> Result<usize, AllocError> {
        let class = self.backend.chunks.class(crate::layout(len, align))?;
        // Before any lock: in a forked child, a thread that does not exist there may hold it.
        match self.is_ours() {
            true => Ok(class),
            false => Err(AllocError::Forked),
        }
    }

    /// Looks for a buffer on behalf of a waiting request: for one of its class that returned unsent, and if a
    /// look `is_due`, for one that has been read, or for room for another one.
    pub(crate) fn look(
        &self,
        class: usize,
        len: usize,
        is_due: bool,
    ) -> Option<Result<Whole, AllocError>> {
        match self.take(class, |buffers| {
            if is_due {
                buffers.look(false)
            } else {
                buffers.take_idle()
            }
        }) {
            None if is_due => {
                // Refusals of users of the provider put collections off, but not for a request that waits.
                self.backend.core.providers.hurry();
                Some(self.make(class, len, false))
            }
            whole => whole.map(Ok),
        }
    }

    /// Takes a buffer from a class. Releases those that the backend wants back for a longer message.
    #[inline]
    fn take(
        &self,
        class: usize,
        mut take: impl FnMut(&mut Class) -> Option<Whole>,
    ) -> Option<Whole> {
        loop {
            let whole = take(&mut self.classes[class].lock())?;
            if !self.is_wanted_back(&whole) {
                return Some(whole);
            }
            self.release(whole, class);
        }
    }

    #[inline]
    fn is_wanted_back(&self, whole: &Whole) -> bool {
        let Key { segment, offset } = whole.key();
        self.backend
            .chunks
            .wants_back(segment.into(), offset as usize, whole.capacity())
    }

    /// Releases a buffer that is in no list. Its memory returns when the provider collects next, which
    /// it does before an allocation is refused.
    #[cold]
    fn release(&self, whole: Whole, class: usize) {
        self.classes[class].lock().note_gone(1);
        drop(whole);
        self.backend.core.providers.hurry();
    }

    /// Makes a buffer. At the cap, takes one that has become idle, or releases others; if `is_thorough`, after
    /// a search of all.
    #[cold]
    #[inline(never)]
    fn make(&self, class: usize, len: usize, is_thorough: bool) -> Result<Whole, AllocError> {
        let mut rounds = if is_thorough { usize::MAX } else { ROUNDS };
        loop {
            let error = match self.make_one(class, len) {
                Err(error) if is_out_of_memory(&error) => error,
                done => return done,
            };
            // A waiting request has just looked at its part of the sent ones.
            let take = |buffers: &mut Class| {
                if is_thorough {
                    buffers.look(true)
                } else {
                    buffers.take_idle()
                }
            };
            if let Some(whole) = self.take(class, take) {
                return Ok(whole);
            }
            if rounds == 0 || !self.evict(class, is_thorough) {
                return Err(error);
            }
            rounds -= 1;
        }
    }

    /// Creates a buffer. It has room for every length of its class, unless the backend has room for this
    /// one only, or expects no other message of the class. Then it is a one-off (see [`Class`]).
    fn make_one(&self, class: usize, len: usize) -> Result<Whole, AllocError> {
        let align = self.sizes[class].align;
        debug_assert_eq!(
            self.backend.chunks.class(crate::layout(len, align)).ok(),
            Some(class)
        );
        let chunk = self.backend.take(len, align)?;
        let descriptor = chunk.descriptor.clone();
        let key = Key {
            segment: descriptor.segment,
            offset: descriptor.chunk,
        };
        let buffer = self
            .provider
            .map(chunk, descriptor.len.get())
            .map_err(|error| {
                self.backend.free(&descriptor);
                let advice =
                    "make room in /dev/shm, or raise the limits on mappings and descriptors"
                        .to_owned();
                AllocError::Os(
                    OsError::new(MAP, "zenoh's metadata in /dev/shm", io::Error::other(error))
                        .with_advice(advice),
                )
            })?;
        let mut buffers = self.classes[class].lock();
        buffers.note_made();
        let kept = buffers.kept();
        self.occupied[class].store(true, Ordering::Relaxed);
        drop(buffers);
        if kept > MANY {
            self.idle.watch(&self.classes);
        }
        Ok(Whole::new(buffer, len, key))
    }

    /// Releases all free buffers of other classes, as zenoh's own collection does: a few that are left between
    /// messages of other lengths get in the way of long ones. Returns `true` if there were any.
    #[cold]
    fn evict(&self, wanted: usize, is_thorough: bool) -> bool {
        let mut evicted = 0;
        // The wanted class has been searched.
        self.each_class(|class, buffers| {
            if class != wanted {
                buffers.find(is_thorough);
                evicted += buffers.release_all_idle();
            }
        });
        if evicted > 0 {
            self.provider.garbage_collect();
        }
        evicted > 0
    }

    /// Calls `visit` with each class that has buffers.
    fn each_class(&self, mut visit: impl FnMut(usize, &mut Class)) {
        for (class, occupied) in self.occupied.iter().enumerate() {
            if occupied.load(Ordering::Relaxed) {
                let mut buffers = self.classes[class].lock();
                visit(class, &mut buffers);
                occupied.store(buffers.kept() > 0, Ordering::Relaxed);
            }
        }
    }

    /// Releases the buffers of a class that the last window has not needed. Otherwise the class would
    /// stay as large as its largest burst.
    #[cold]
    fn end_window(&self, class: usize) {
        let released = self.classes[class]
            .lock()
            .end_window(self.backend.chunks.reserved(class));
        if released > 0 {
            self.provider.garbage_collect();
        }
    }

    /// Sleeps until a buffer returns unsent, or `pause` is over.
    pub(crate) fn sleep(&self, pause: Duration) {
        self.note_waiting();
        self.waiting_room.sleep(pause);
        self.note_waited();
    }

    pub(crate) fn waiting_room(&self) -> &Arc<WaitingRoom> {
        &self.waiting_room
    }

    /// From now on, buffers that return unsent wake the waiters.
    pub(crate) fn note_waiting(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn note_waited(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Keeps a buffer that was sent. A one-off becomes an ordinary zenoh message.
    #[inline]
    pub(crate) fn keep_sent(&self, buffer: Shared, class: usize) {
        self.classes[class].lock().put_sent(buffer);
    }

    /// Puts back a buffer that was not sent.
    #[inline]
    pub(crate) fn take_back(&self, whole: Whole, class: usize) {
        if self.is_wanted_back(&whole) {
            return self.release(whole, class);
        }
        let refused = self.classes[class].lock().put_idle(whole);
        if let Err(one_off) = refused {
            return self.release(one_off, class);
        }
        // Relaxed: a waiter that falls asleep at this moment looks again after the pause.
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.waiting_room.notify();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.is_ours() {
            // The counts in zenoh's metadata are the parent's.
            mem::forget(self.classes.clone());
            mem::forget(mem::take(&mut self.idle));
            mem::forget(self.waiting_room.clone());
            return;
        }
        self.classes.iter().for_each(|class| class.lock().clear());
        self.provider.garbage_collect();
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool")
            .field("backend", &self.0.backend)
            .field("stats", &self.stats())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::BATCH;
    use zenoh::bytes::ZBytes;

    const LEN: usize = 1024;
    /// Several times what one look visits.
    const COUNT: usize = 8000;

    /// Guards against a waiting request that keeps a CPU busy when many messages are in flight, or takes long to
    /// find a free one among them: in turn, they become ordinary messages.
    #[test]
    fn look_of_a_waiting_request_is_bounded() {
        let backend = PoolBackend::builder()
            .max_bytes(COUNT * LEN)
            .build()
            .unwrap();
        let pool = BufferPool::new(&backend);
        let fill = || {
            std::iter::from_fn(|| pool.alloc(LEN).ok())
                .map(ZBytes::from)
                .collect::<Vec<_>>()
        };
        let class = pool.0.class(LEN, 1).unwrap();
        let look = || pool.0.look(class, LEN, true).and_then(Result::ok);
        // All have been read: it takes one, and does not search for others.
        drop(fill());
        pool.0.take_back(look().unwrap(), class);
        assert!(pool.stats().idle <= BATCH, "{:?}", pool.stats());
        let mut sent = fill();
        let before = pool.stats().sent;
        assert!(before > 2 * BATCH, "{before}");
        for looks in 1..=before.div_ceil(BATCH) {
            assert!(look().is_none());
            assert_eq!(pool.stats().sent, before.saturating_sub(looks * BATCH));
        }
        drop(sent.swap_remove(before / 2));
        let whole = look().expect("zenoh collects it at once");
        pool.0.take_back(whole, class);
    }

    /// Guards against waiters that have zenoh visit all messages for each buffer that returns unsent.
    #[test]
    fn only_due_look_makes_room() {
        let backend = PoolBackend::builder()
            .max_bytes(COUNT * LEN)
            .build()
            .unwrap();
        let pool = BufferPool::new(&backend);
        let sent: Vec<_> = std::iter::from_fn(|| pool.alloc(LEN).ok())
            .map(ZBytes::from)
            .collect();
        drop(sent);
        let half = COUNT / 2 * LEN;
        let (class, before) = (pool.0.class(half, 1).unwrap(), pool.stats());
        assert!(pool.0.look(class, half, false).is_none());
        assert_eq!(pool.stats(), before);
        let whole = pool.0.look(class, half, true).unwrap().unwrap();
        assert!(pool.stats().idle + pool.stats().sent < before.sent);
        pool.0.take_back(whole, class);
    }

    /// Places that looks have emptied do not make a class long.
    #[test]
    fn emptied_places_do_not_count() {
        const ALL: usize = BATCH * 3 / 2;
        let pool = BufferPool::new(&PoolBackend::builder().max_bytes(ALL * LEN).build().unwrap());
        let class = pool.0.class(LEN, 1).unwrap();
        let mut unsent: Vec<_> = std::iter::from_fn(|| pool.alloc(LEN).ok()).collect();
        assert_eq!(unsent.len(), ALL);
        let send = |unsent: &mut Vec<_>, count: usize| -> Vec<ZBytes> {
            unsent.drain(..count).map(ZBytes::from).collect()
        };
        let mut sent = send(&mut unsent, BATCH * 3 / 4);
        // The oldest ones are still being read, so the places of those behind them stay.
        sent.drain(BATCH / 8..BATCH / 2);
        let whole = pool.0.look(class, LEN, true).unwrap().unwrap();
        pool.0.take_back(whole, class);
        unsent.extend((0..pool.stats().idle).map(|_| pool.alloc(LEN).unwrap()));
        sent.extend(send(&mut unsent, BATCH * 3 / 8));
        let before = pool.stats();
        assert!(before.sent < BATCH && pool.0.classes[class].lock().places() > BATCH);
        for _ in 0..COUNT {
            assert!(pool
                .0
                .look(class, LEN, true)
                .is_some_and(|found| found.is_err()));
        }
        assert_eq!(pool.stats(), before);
    }

    /// A class whose sent buffers are soon visited keeps them.
    #[test]
    fn short_queue_is_kept() {
        let backend = PoolBackend::builder().max_bytes(32 * LEN).build().unwrap();
        let pool = BufferPool::new(&backend);
        let sent: Vec<_> = std::iter::from_fn(|| pool.alloc(LEN).ok())
            .map(ZBytes::from)
            .collect();
        let class = pool.0.class(LEN, 1).unwrap();
        for _ in 0..COUNT {
            assert!(pool
                .0
                .look(class, LEN, true)
                .is_some_and(|found| found.is_err()));
        }
        assert_eq!(pool.stats().sent, sent.len());
    }
}
