//! zenoh buffers that are reused: [`BufferPool`], and the thread that releases what a burst has left.

#![forbid(unsafe_code)]

use crate::backend::{layout, Refusal};
use crate::buffer::{Buffer, SharedBuffer, UniqueBuffer};
use crate::class::{Class, Scan};
use crate::in_use::Key;
use crate::request::{BufferRequest, Waiters};
use crate::{PoolBackend, PoolProvider};
use parking_lot::{Condvar, Mutex};
use shm_pool::backend::{start_thread, SizeClass};
use shm_pool::{AllocError, OsError, Reservation};
use std::fmt;
use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use zenoh::shm::ShmProviderBackend;

/// A pool of zenoh buffers that are reused, for publishers of messages of few lengths. Clones share it.
///
/// zenoh's `ShmProvider` sets up metadata for each message, has two threads watch it, and removes it
/// when the message has been read. This pool keeps a buffer with all of that after it was sent, and
/// reuses it once every reader is done. Receivers are stock, and see stock messages. The crate's docs
/// say [which of the two to use](crate#provider-or-buffer-pool).
///
/// An allocation checks the 4 buffers of its size class that were sent longest ago, and takes the
/// first one that no reader has, according to zenoh. Otherwise it takes one that was not sent, or
/// checks the whole class, or creates one, as `ShmProvider` does. It checks the class often enough to
/// keep the pool within an eighth of the messages in flight; of up to 2 KiB, within twice as many. If it
/// finds one, and the message is as long as the buffer's previous one, it makes no system call and does
/// not touch the heap; another length of the class costs one clone of zenoh's handle.
///
/// If 64 allocations have found a buffer in use, the pool releases it, and it becomes an ordinary
/// zenoh message. So readers that keep messages, or have died with them, do not prevent reuse. A request
/// that waits also releases, a part at a time, the buffers in use of a class of which more than 1,024
/// were sent.
///
/// The pool's buffers count against the cap. At the cap, it releases all free buffers of other classes
/// before an allocation fails. Below it, each time a class of *n* buffers has served 256 + 8 *n*
/// allocations, half of the buffers that were idle all the time return to the backend, except those
/// that are reserved. After a second without an allocation, a thread releases all but 32 idle buffers
/// of each class that has more than 128. Once the segments span the whole cap, a new buffer may be
/// only as long as its message, to leave room for others, and is then not reused. If less than half of
/// the cap is free by then, and one message in five needs such a buffer because the lengths vary, the
/// pool keeps none of 4 KiB or more: each becomes an ordinary zenoh message when it is sent.
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

/// How often one try of a request releases buffers. Other threads may return more meanwhile, and a try
/// takes bounded time.
const EVICTIONS: usize = 8;

type Classes = Arc<[Mutex<Class>]>;

pub(crate) struct Inner {
    backend: PoolBackend,
    provider: PoolProvider,
    /// Dropped before `idle_thread`, which then ends.
    classes: Classes,
    idle_thread: IdleThread,
    sizes: Box<[SizeClass]>,
    /// By class: `false` only if it has no buffers. A visit of all classes skips those: there are
    /// hundreds, and most are in no cache. Written while the class is locked. Relaxed: a thread that
    /// synchronizes with the one that created a buffer sees `true`, and any other thread may miss the
    /// buffer.
    occupied: Box<[AtomicBool]>,
    squeeze: Squeeze,
    pub(crate) waiters: Arc<Waiters>,
}

/// Statistics of a [`BufferPool`]. Exact while no other thread uses the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BufferStats {
    /// Allocations served by an existing buffer.
    pub reused: u64,
    /// Buffers created, by allocations and by [`BufferPool::reserve`].
    pub created: u64,
    /// Buffers released while they were being read, or because zenoh had invalidated them.
    pub released_in_use: u64,
    /// Buffers that are ready for use.
    pub idle: usize,
    /// Buffers that were sent, and are reused when they have been read. Some may have been read by now.
    pub sent: usize,
}

impl BufferPool {
    /// Creates a pool on a backend, whose memory and cap it shares with the backend's other users.
    pub fn new(backend: &PoolBackend) -> Self {
        let sizes: Box<[SizeClass]> = backend.allocator.classes().into();
        let mut classes = Vec::new();
        let mut occupied = Vec::new();
        for class in &sizes {
            classes.push(Mutex::new(Class::new(class.size)));
            occupied.push(AtomicBool::new(false));
        }
        Self(Arc::new(Inner {
            backend: backend.clone(),
            provider: backend.provider(),
            classes: classes.into(),
            idle_thread: IdleThread::default(),
            sizes,
            occupied: occupied.into(),
            squeeze: Squeeze::default(),
            waiters: Arc::default(),
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
        let class = self.0.class(len, 1)?;
        match self.alloc_class(class, len) {
            Ok(buffer) => Ok(buffer),
            Err(refusal) => Err(refusal.error),
        }
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
    pub(crate) fn alloc_class(&self, class: usize, len: usize) -> Result<Buffer, Refusal> {
        let mut is_epoch_over = false;
        let taken = self.0.take(class, |buffers| {
            let taken = buffers.take();
            is_epoch_over = buffers.is_epoch_over();
            taken
        });
        if is_epoch_over {
            self.0.end_epoch(class);
        }
        let buffer = match taken {
            Some(buffer) => {
                self.0.squeeze.note_cached();
                buffer
            }
            None => self.0.create_or_evict(class, len, Scan::All)?,
        };
        Ok(Buffer::new(buffer, len, class, self.0.clone()))
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
    /// assert_eq!((pool.stats().created, pool.stats().reused), (4, 4));
    /// # drop(frames);
    /// # Ok(())
    /// # }
    /// ```
    pub fn reserve(&self, len: usize, count: usize) -> Result<Reservation, AllocError> {
        let class = self.0.class(len, 1)?;
        let reservation = self.0.backend.reserve(len, count)?;
        let reserved = self.0.backend.allocator.reserved(class);
        self.0.classes[class].lock().note_reserved(reserved);

        // Buffers created before an error become idle, too, and are not reserved.
        let mut buffers = Vec::new();
        let mut result = Ok(reservation);
        for _ in 0..count {
            match self.0.create(class, len) {
                Ok(buffer) => buffers.push(buffer),
                Err(refusal) => {
                    result = Err(refusal.error);
                    break;
                }
            }
        }
        for buffer in buffers {
            self.0.keep_unsent(buffer, class);
        }
        result
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
    /// pool confirms to zenoh that it holds a buffer, and the pool must not hold one that zenoh is to
    /// reclaim.
    pub fn release_in_use(&self) -> usize {
        let mut released = 0;
        if !self.0.is_forked() {
            self.0
                .visit_classes(|_, buffers| released += buffers.release_in_use());
        }
        released
    }

    /// Releases all idle buffers, and returns the memory of empty segments to the system, as
    /// [`PoolBackend::trim`] does. Returns the number of bytes.
    pub fn trim(&self) -> usize {
        if self.0.is_forked() {
            return 0;
        }
        self.0.visit_classes(|_, buffers| {
            buffers.scan_all();
            buffers.release_all_idle();
        });
        self.0.backend.trim()
    }

    /// Returns statistics. The backend's [`stats`](PoolBackend::stats) count all buffers of the pool as
    /// in use.
    pub fn stats(&self) -> BufferStats {
        let mut stats = BufferStats::default();
        if !self.0.is_forked() {
            for class in &*self.0.classes {
                class.lock().add_to(&mut stats);
            }
        }
        stats
    }
}

impl Inner {
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.backend.is_forked()
    }

    /// Returns the class of a layout, if this process may allocate it.
    #[inline]
    pub(crate) fn class(&self, len: usize, align: usize) -> Result<usize, AllocError> {
        let class = self.backend.allocator.class(layout(len, align))?;
        // Before any lock: in a forked child, a thread that does not exist there may hold it.
        if self.is_forked() {
            return Err(AllocError::Forked);
        }
        Ok(class)
    }

    /// Tries again on behalf of a waiting request: to take a buffer of its class that returned unsent;
    /// and if a scan `is_due`, to take one that has been read, or to create one. Returns `None` if
    /// neither was due or possible.
    pub(crate) fn retry(
        &self,
        class: usize,
        len: usize,
        is_due: bool,
    ) -> Result<Option<UniqueBuffer>, Refusal> {
        if !is_due {
            return Ok(self.take(class, Class::take_idle));
        }
        if let Some(buffer) = self.take(class, |buffers| buffers.scan_and_take(Scan::Batch)) {
            return Ok(Some(buffer));
        }
        // Refusals of users of the provider delay collections, but not for a request that waits.
        self.backend.core.providers.end_backoff();
        let buffer = self.create_or_evict(class, len, Scan::Batch)?;
        Ok(Some(buffer))
    }

    /// Takes a buffer from a class. Releases those that the backend wants back for a longer message.
    #[inline]
    fn take(
        &self,
        class: usize,
        mut take: impl FnMut(&mut Class) -> Option<UniqueBuffer>,
    ) -> Option<UniqueBuffer> {
        loop {
            let buffer = take(&mut self.classes[class].lock())?;
            if !self.is_wanted_back(&buffer) {
                return Some(buffer);
            }
            self.release(buffer, class);
        }
    }

    #[inline]
    fn is_wanted_back(&self, buffer: &UniqueBuffer) -> bool {
        let Key { segment, offset } = buffer.key();
        self.backend
            .allocator
            .wants_back(segment.into(), offset as usize, buffer.capacity())
    }

    /// Releases a buffer that is in no list. Its memory returns when the provider collects next, which
    /// it does before an allocation is refused.
    #[cold]
    fn release(&self, buffer: UniqueBuffer, class: usize) {
        self.classes[class].lock().note_released(1);
        drop(buffer);
        self.backend.core.providers.end_backoff();
    }

    /// Creates a buffer. At the cap, takes one that has become idle, or releases others, after a scan.
    #[cold]
    #[inline(never)]
    fn create_or_evict(
        &self,
        class: usize,
        len: usize,
        scan: Scan,
    ) -> Result<UniqueBuffer, Refusal> {
        let mut evictions = 0;
        loop {
            let refusal = match self.create(class, len) {
                Ok(buffer) => return Ok(buffer),
                Err(refusal) if !refusal.is_temporary => return Err(refusal),
                Err(refusal) => refusal,
            };
            // A waiting request has just scanned its part of the sent ones.
            let taken = match scan {
                Scan::Batch => self.take(class, Class::take_idle),
                Scan::All => self.take(class, |buffers| buffers.scan_and_take(Scan::All)),
            };
            if let Some(buffer) = taken {
                return Ok(buffer);
            }
            if evictions == EVICTIONS {
                return Err(refusal);
            }
            if !self.evict_others(class, scan) {
                return Err(refusal);
            }
            evictions += 1;
        }
    }

    /// Creates a buffer. It has room for every length of its class, unless the backend has room for this
    /// one only, or expects no other message of the class. Then it is uncached (see [`Class`]).
    fn create(&self, class: usize, len: usize) -> Result<UniqueBuffer, Refusal> {
        let align = self.sizes[class].align;
        debug_assert_eq!(
            self.backend.allocator.class(layout(len, align)).ok(),
            Some(class)
        );
        let chunk = self.backend.alloc_chunk(len, align)?;
        let descriptor = chunk.descriptor.clone();
        let key = Key {
            segment: descriptor.segment,
            offset: descriptor.chunk,
        };
        let buffer = match self.provider.map(chunk, descriptor.len.get()) {
            Ok(buffer) => buffer,
            Err(error) => {
                self.backend.free(&descriptor);
                return Err(no_metadata(io::Error::other(error)));
            }
        };

        let buffer = UniqueBuffer::new(buffer, len, key);
        let mut buffers = self.classes[class].lock();
        buffers.note_created();
        let count = buffers.count();
        let is_uncached = buffers.is_uncached(buffer.capacity());
        self.occupied[class].store(true, Ordering::Relaxed);
        drop(buffers);
        if count > MANY {
            self.idle_thread.start(&self.classes);
        }
        if !is_uncached {
            self.squeeze.note_cached();
        } else if self.is_long(class) && self.backend.allocator.is_crowded() {
            self.squeeze.note_uncached();
        }
        Ok(buffer)
    }

    /// Releases all free buffers of other classes, as zenoh's own collection does: a few that are left
    /// between messages of other lengths get in the way of long ones. Returns `true` if there were any.
    #[cold]
    fn evict_others(&self, wanted: usize, scan: Scan) -> bool {
        let mut evicted = 0;
        // The wanted class has been scanned.
        self.visit_classes(|class, buffers| {
            if class != wanted {
                buffers.scan(scan);
                evicted += buffers.release_all_idle();
            }
        });
        if evicted > 0 {
            self.provider.garbage_collect();
        }
        evicted > 0
    }

    /// Calls `visit` with each class that has buffers.
    fn visit_classes(&self, mut visit: impl FnMut(usize, &mut Class)) {
        for (class, occupied) in self.occupied.iter().enumerate() {
            if !occupied.load(Ordering::Relaxed) {
                continue;
            }
            let mut buffers = self.classes[class].lock();
            visit(class, &mut buffers);
            occupied.store(buffers.count() > 0, Ordering::Relaxed);
        }
    }

    /// Releases the buffers of a class that the last epoch has not needed. Otherwise the class would
    /// stay as large as its largest burst.
    #[cold]
    fn end_epoch(&self, class: usize) {
        let reserved = self.backend.allocator.reserved(class);
        let released = self.classes[class].lock().end_epoch(reserved);
        if released > 0 {
            self.provider.garbage_collect();
        }
    }

    /// Keeps a buffer that was sent. An uncached one becomes an ordinary zenoh message. So does a long
    /// one while the pool is [squeezed](Squeeze).
    #[inline]
    pub(crate) fn keep_sent(&self, buffer: SharedBuffer, class: usize) {
        let is_in_the_way = self.squeeze.is_squeezed()
            && self.is_long(class)
            && self.backend.allocator.is_crowded();
        let mut buffers = self.classes[class].lock();
        if is_in_the_way {
            buffers.release_sent(buffer);
        } else {
            buffers.push_sent(buffer);
        }
    }

    fn is_long(&self, class: usize) -> bool {
        self.sizes[class].size >= LONG
    }

    /// Keeps a buffer that was not sent.
    #[inline]
    pub(crate) fn keep_unsent(&self, buffer: UniqueBuffer, class: usize) {
        if self.is_wanted_back(&buffer) {
            return self.release(buffer, class);
        }
        let refused = self.classes[class].lock().push_idle(buffer);
        if let Err(uncached) = refused {
            return self.release(uncached, class);
        }
        self.waiters.notify();
    }
}

/// The refusal if zenoh has no metadata for a message. zenoh does not report why, and it may last
/// forever.
#[cold]
fn no_metadata(error: io::Error) -> Refusal {
    let advice =
        "make room in /dev/shm, or raise the limits on mappings and descriptors".to_owned();
    let object = "zenoh's metadata in /dev/shm";
    let error =
        OsError::new("zenoh::shm::ShmProvider::map", object, error).with_details(None, advice);
    Refusal {
        error: AllocError::Os(error),
        is_temporary: false,
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.is_forked() {
            // The counts in zenoh's metadata are the parent's.
            mem::forget(self.classes.clone());
            mem::forget(mem::take(&mut self.idle_thread));
            mem::forget(self.waiters.clone());
            return;
        }
        for class in &*self.classes {
            class.lock().clear();
        }
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

/// Buffers of classes from this size on take space that messages of other classes could use, in bytes.
const LONG: usize = 4096;

/// The pool is squeezed while the score is higher, and it is never higher than twice that. At 8, readers
/// that keep 85 % of the cap have some messages of random lengths refused (`zenoh_cases -- full`).
const SQUEEZED_AT: usize = 16;

/// What an uncached buffer adds to the score, of which any other message takes one: more than one in
/// five squeezes the pool. With 2, readers that keep 87 % of the cap have more messages refused.
const UNCACHED: usize = 4;

/// Whether long messages often find no buffer of their class where memory is short.
///
/// The backend counts an idle buffer of the pool as in use. If the lengths vary, there are idle ones of
/// many classes, and a message of yet another class is refused although there is memory, in pieces
/// between them. While the pool is squeezed, it keeps no long buffer that was sent. Then the backend
/// places messages as it does for a `ShmProvider`.
///
/// A hint: all accesses are Relaxed, and an update that is lost to another thread's delays a change.
#[derive(Default)]
struct Squeeze {
    score: AtomicUsize,
}

impl Squeeze {
    #[inline]
    fn is_squeezed(&self) -> bool {
        self.score.load(Ordering::Relaxed) > SQUEEZED_AT
    }

    /// Notes a message that found a buffer, or created one that the class keeps.
    #[inline]
    fn note_cached(&self) {
        let score = self.score.load(Ordering::Relaxed);
        if score > 0 {
            self.score.store(score - 1, Ordering::Relaxed);
        }
    }

    /// Notes a long message that created an uncached buffer.
    fn note_uncached(&self) {
        let score = self.score.load(Ordering::Relaxed);
        let raised = (score + UNCACHED).min(2 * SQUEEZED_AT);
        self.score.store(raised, Ordering::Relaxed);
    }
}

/// A class of up to this many buffers keeps them: zenoh confirms them in little time.
const MANY: usize = 128;

/// The thread leaves this many idle buffers to a larger one.
const LEFT_IDLE: usize = 32;

/// How long nothing must be allocated. While readers keep the buffers of an unused pool, the thread
/// checks less and less often.
const SHORTEST_PERIOD: Duration = Duration::from_secs(1);
const LONGEST_PERIOD: Duration = Duration::from_secs(64);

/// The thread that releases idle buffers, if it runs.
///
/// zenoh confirms every buffer that exists twenty times a second: 50,000 idle ones cost 2 % of a CPU.
/// Allocations shrink a pool that is in use (see `class`). For one that is not, a thread runs as long
/// as any class has more than [`MANY`] buffers, and releases idle ones once nothing was allocated for
/// a second.
///
/// The thread refers to the classes alone, and the pool empties them when it is dropped. So the thread
/// keeps no pool alive, and a buffer is released once, by either.
#[derive(Default)]
struct IdleThread(Arc<IdleState>);

#[derive(Default)]
struct IdleState {
    is_running: Mutex<bool>,
    /// Signalled when the pool is dropped.
    dropped: Condvar,
}

impl IdleThread {
    /// Starts the thread, unless it runs. If the system refuses one, the next call tries again.
    fn start(&self, classes: &Classes) {
        let mut is_running = self.0.is_running.lock();
        if *is_running {
            return;
        }
        let state = self.0.clone();
        let classes = Arc::downgrade(classes);
        let started = start_thread("shm-pool-idle", "a thread that releases idle buffers", {
            move || state.release_idle(&classes)
        });
        *is_running = started.is_ok();
    }
}

impl Drop for IdleThread {
    /// Ends the thread, after the drop of the classes.
    fn drop(&mut self) {
        // The thread either waits by now, or finds them dropped.
        drop(self.0.is_running.lock());
        self.0.dropped.notify_all();
    }
}

impl IdleState {
    fn release_idle(&self, classes: &Weak<[Mutex<Class>]>) {
        let mut period = SHORTEST_PERIOD;
        let mut last_allocs = None;
        loop {
            self.sleep(period, classes);
            let Some(classes) = classes.upgrade() else {
                return;
            };

            let mut allocs = 0;
            for class in &*classes {
                allocs += class.lock().allocs();
            }
            if last_allocs == Some(allocs) {
                period = LONGEST_PERIOD.min(period * 2);
                for class in &*classes {
                    release_most_idle(class);
                }
            } else {
                period = SHORTEST_PERIOD;
            }
            last_allocs = Some(allocs);

            // A class that grows after this finds no thread, and starts one.
            let mut is_running = self.is_running.lock();
            if !classes.iter().any(|class| class.lock().count() > MANY) {
                *is_running = false;
                return;
            }
        }
    }

    /// Sleeps for a period, or until the classes are dropped.
    fn sleep(&self, period: Duration, classes: &Weak<[Mutex<Class>]>) {
        let end = Instant::now() + period;
        let mut is_running = self.is_running.lock();
        while classes.strong_count() > 0 {
            if self.dropped.wait_until(&mut is_running, end).timed_out() {
                return;
            }
        }
    }
}

/// Releases the idle buffers of a large class but [`LEFT_IDLE`]. Locks it for a short time at once: an
/// allocation may wait.
fn release_most_idle(class: &Mutex<Class>) {
    if class.lock().count() <= MANY {
        return;
    }
    while class.lock().release_some_idle(LEFT_IDLE) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::BATCH;
    use zenoh::bytes::ZBytes;

    const LEN: usize = 1024;
    /// Several times what one retry visits.
    const COUNT: usize = 8000;

    /// Guards against a waiting request that keeps a CPU busy when many messages are in flight, or takes long to
    /// find a free one among them: in turn, they become ordinary messages.
    #[test]
    fn retry_of_a_waiting_request_is_bounded() {
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
        let retry = || pool.0.retry(class, LEN, true).ok().flatten();
        // All have been read: it takes one, and does not search for others.
        drop(fill());
        pool.0.keep_unsent(retry().unwrap(), class);
        assert!(pool.stats().idle <= BATCH, "{:?}", pool.stats());
        let mut sent = fill();
        let before = pool.stats().sent;
        assert!(before > 2 * BATCH, "{before}");
        for retries in 1..=before.div_ceil(BATCH) {
            assert!(retry().is_none());
            assert_eq!(pool.stats().sent, before.saturating_sub(retries * BATCH));
        }
        drop(sent.swap_remove(before / 2));
        let buffer = retry().expect("zenoh collects it at once");
        pool.0.keep_unsent(buffer, class);
    }

    /// Guards against waiters that have zenoh visit all messages for each buffer that returns unsent.
    #[test]
    fn only_a_due_retry_makes_room() {
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
        assert!(pool.0.retry(class, half, false).unwrap().is_none());
        assert_eq!(pool.stats(), before);
        let buffer = pool.0.retry(class, half, true).unwrap().unwrap();
        assert!(pool.stats().idle + pool.stats().sent < before.sent);
        pool.0.keep_unsent(buffer, class);
    }

    /// Places that scans have emptied do not make a class long.
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
        let buffer = pool.0.retry(class, LEN, true).unwrap().unwrap();
        pool.0.keep_unsent(buffer, class);
        unsent.extend((0..pool.stats().idle).map(|_| pool.alloc(LEN).unwrap()));
        sent.extend(send(&mut unsent, BATCH * 3 / 8));
        let before = pool.stats();
        assert!(before.sent < BATCH && pool.0.classes[class].lock().queue_len() > BATCH);
        for _ in 0..COUNT {
            assert!(pool.0.retry(class, LEN, true).is_err());
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
            assert!(pool.0.retry(class, LEN, true).is_err());
        }
        assert_eq!(pool.stats().sent, sent.len());
    }
}
