//! The owner's front door: [`Provider`], its options, and [`Request`]s.

#![forbid(unsafe_code)]

use crate::error::{BuildError, OsError};
use crate::os::advice::no_directory;
use crate::os::futex::Deadline;
use crate::os::mapping::may_lock;
use crate::os::name::Namespace;
use crate::os::posix::{
    effective_uid, is_object_mode, is_on_hugetlbfs, lock_limit, round_to_pages, PAGE,
};
use crate::owner::buf::ShmBytesMut;
use crate::owner::chunk::ClosedChunk;
use crate::owner::control::{Numbered, OwnerControl};
use crate::owner::limits::{
    self, class_of, range, AllocError, Limits, Tuning, LONGEST, MIN_SIZE, SHORTEST_HEAP,
};
use crate::owner::pool::{Counters, Pool, PoolGuard, Reservation, Stats};
use crate::owner::waiting::{Delivery, Ticket};
use crate::protocol::control::{control_size, MAX_RECORDS};
use crate::protocol::descriptor::MAX_LEN;
use crate::protocol::ids::{control_name, PeerId, ProviderId};
use std::alloc::Layout;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Allocates messages in shared memory. A clone is another handle on the same pool, which costs a
/// few reference counts: give one to each thread or task.
///
/// ```
/// use shm_pool::Provider;
///
/// // Room for eight camera frames.
/// let provider = Provider::builder().room_for(640 * 480 * 3, 8).build()?;
/// let mut frame = provider.alloc(640 * 480 * 3)?;
/// frame.fill(0x7f); // a plain &mut [u8]
/// drop(frame); // its memory is idle now
///
/// let again = provider.alloc(640 * 480 * 3)?; // the same memory
/// assert_eq!(provider.stats().hits(), 1);
/// # drop(again);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// To send a buffer, see [`channel`](crate::channel), or [`ShmBytes::descriptor`](crate::ShmBytes::descriptor).
///
/// # The end of the pool
///
/// The pool ends with the last provider, sender or publisher. It then returns idle memory to the
/// system. Buffers and peers' mappings stay valid. What was sent or granted still arrives, as after the
/// death of the process: the segments stay until the last reader has finished. If that reader
/// belongs to another user, a [sweep](Namespace::sweep) by this user removes them.
#[derive(Clone)]
pub struct Provider {
    /// Waits end with the last clone of it; dropped before the pool's guard.
    _waits: Arc<WaitsGuard>,
    pool: Arc<Pool>,
    /// The pool ends with the last clone of it.
    _guard: Arc<PoolGuard>,
    max_alloc: usize,
    names: Namespace,
}

impl Provider {
    /// Returns a builder with the default options.
    pub fn builder() -> ProviderBuilder {
        ProviderBuilder::default()
    }

    /// Allocates `len` bytes with unspecified content, aligned to 64.
    ///
    /// If a chunk of the size class is idle, this makes no system call, takes no lock and uses no
    /// heap. Otherwise it takes microseconds, and in the worst case:
    ///
    /// | more time | for each |
    /// |---|---|
    /// | 50 ns | chunk that peers leased when it was dropped |
    /// | 0.4 ms | MiB of new memory |
    /// | 0.2 µs | idle chunk, at the cap |
    /// | 1 µs | peer, at the cap |
    ///
    /// If the system has no memory, it [sweeps](Namespace::sweep) first.
    ///
    /// # Errors
    ///
    /// [`AllocError::TooLarge`] above the largest allocation, [`AllocError::Exhausted`] at
    /// the cap, [`AllocError::Os`] if the system refuses a segment or memory,
    /// [`AllocError::Forked`] in a forked child.
    #[inline]
    pub fn alloc(&self, len: usize) -> Result<ShmBytesMut, AllocError> {
        if len <= self.max_alloc {
            let class = class_of(len);
            if let Some(free_list) = self.pool.free_lists().get(class) {
                if let Some(chunk) = free_list.take_hot() {
                    if Pool::adopt_warm(&chunk) {
                        return Ok(ShmBytesMut::new(chunk, len));
                    }
                    return self.hand_out(chunk, len);
                }
            }
        }
        self.alloc_slow(len)
    }

    /// Like [`alloc`](Self::alloc), but waits at most `timeout` for memory.
    ///
    /// # Errors
    ///
    /// As [`Request::wait_timeout`].
    pub fn alloc_timeout(&self, len: usize, timeout: Duration) -> Result<ShmBytesMut, AllocError> {
        self.request(len).wait_timeout(timeout)
    }

    /// Creates a request for `len` bytes, which may wait for memory.
    pub fn request(&self, len: usize) -> Request<'_> {
        Request::new(self, len)
    }

    /// Like [`alloc`](Self::alloc), and sets every byte to zero.
    ///
    /// # Errors
    ///
    /// As [`alloc`](Self::alloc).
    pub fn alloc_zeroed(&self, len: usize) -> Result<ShmBytesMut, AllocError> {
        self.request(len).zeroed().alloc()
    }

    /// Allocates `layout.size()` bytes with an alignment up to [`MAX_ALIGN`](Self::MAX_ALIGN).
    ///
    /// # Errors
    ///
    /// [`AllocError::UnsupportedAlignment`], and those of [`alloc`](Self::alloc).
    pub fn alloc_layout(&self, layout: Layout) -> Result<ShmBytesMut, AllocError> {
        self.alloc_aligned(layout.size(), layout.align())
    }

    /// Reserves `count` chunks for messages of `len` bytes, aligned to 64, until the
    /// [`Reservation`] is dropped. They count against the cap, and neither other lengths,
    /// [`trim`](Self::trim) nor a lack of memory takes them. Reservations of one size class add up.
    ///
    /// While one of them is free, a message of that length makes no system call, uses no heap and
    /// causes no page fault, from the first one on. Finding it takes some 50 ns for each one that
    /// is leased or borrowed. Peers prepare with [`Client::warm`](crate::Client::warm) and
    /// [`Receiver::warm`](crate::channel::Receiver::warm).
    ///
    /// # Errors
    ///
    /// [`AllocError::ReserveTooMany`] above `max_idle_per_class`;
    /// [`AllocError::ReserveShare`] if there are too few records (`max_shared`); and those of
    /// [`alloc`](Self::alloc), at the cap after a [`trim`](Self::trim) and another try. On an
    /// error, nothing is reserved.
    pub fn reserve(&self, len: usize, count: usize) -> Result<Reservation, AllocError> {
        let class = self.class(len, 1)?;
        self.pool.reserve(class, count)?;
        Ok(Reservation::new(&self.pool, class, count))
    }

    /// Returns statistics, all zero in a forked child. Takes a lock that creating and destroying
    /// chunks also take.
    pub fn stats(&self) -> Stats {
        self.pool.stats()
    }

    /// Returns the figures that a real-time thread may read, all zero in a forked child. Costs
    /// about a microsecond.
    pub fn counters(&self) -> Counters {
        self.pool.counters()
    }

    /// Returns all idle memory to the system. Returns the number of bytes.
    pub fn trim(&self) -> usize {
        let Some(pool) = self.own_pool() else {
            return 0;
        };
        pool.trim()
    }

    /// Returns idle memory to the system until the provider holds at most `bytes`
    /// ([`Stats::bytes_held`]), as far as possible. Reserved chunks and segments without memory
    /// stay. Returns the number of bytes, whole pages.
    pub fn trim_to(&self, bytes: usize) -> usize {
        let Some(pool) = self.own_pool() else {
            return 0;
        };
        pool.trim_to(bytes)
    }

    /// Reclaims the leases of dead peers. Returns how many messages they still held.
    pub fn reclaim(&self) -> usize {
        let Some(pool) = self.own_pool() else {
            return 0;
        };
        let reclaimed = pool.reclaim();
        pool.memory_doorbell().notify();
        reclaimed
    }

    /// Disconnects a peer that keeps too much (see [`report`](Self::report)). Its
    /// [`Client::attach`](crate::Client::attach) then fails with
    /// [`AttachError::Disconnected`](crate::AttachError::Disconnected),
    /// [`ShmBytes::grant`](crate::ShmBytes::grant) to it with
    /// [`ShareError::PeerDisconnected`](crate::ShareError::PeerDisconnected), and its unclaimed grants are revoked. Its views stay valid.
    ///
    /// Its process may connect again with a new client. This is no defence against a process that
    /// violates the protocol.
    ///
    /// Returns `false` if the peer is not connected to this provider; always in a forked child.
    pub fn disconnect(&self, peer: PeerId) -> bool {
        let Some(pool) = self.own_pool() else {
            return false;
        };
        let Some(control) = pool.control() else {
            return false;
        };
        let is_disconnected = control.disconnect(peer);
        if is_disconnected {
            pool.memory_doorbell().notify();
        }
        is_disconnected
    }

    /// Ends all current and future waits for memory with [`AllocError::Interrupted`]. Blocks
    /// until the helper thread for futures has exited, unless a waker calls this.
    pub fn close_waits(&self) {
        if let Some(pool) = self.own_pool() {
            pool.waiting.close(pool);
        }
    }

    /// Returns the id that peers connect by, part of every descriptor.
    pub fn id(&self) -> ProviderId {
        self.pool.id()
    }

    /// Returns the namespace of this provider, which its channels share.
    pub fn namespace(&self) -> &Namespace {
        &self.names
    }

    /// Returns how many bytes of [`max_bytes`](ProviderBuilder::max_bytes) a message of `len` bytes
    /// takes: `len`, rounded up by at most 3.2 %, or to 64 bytes up to 2 KiB, and to whole pages from
    /// 32 pages on. See [`room_for`](ProviderBuilder::room_for) for many.
    ///
    /// ```
    /// use shm_pool::Provider;
    ///
    /// assert_eq!(Provider::chunk_size(100), 128);
    /// assert_eq!(Provider::chunk_size(1_000_000), 1_015_808);
    /// ```
    pub fn chunk_size(len: usize) -> usize {
        limits::chunk_size(len)
    }
}

impl Provider {
    /// The largest alignment that [`alloc_layout`](Self::alloc_layout) supports, in bytes.
    pub const MAX_ALIGN: usize = PAGE;

    pub(super) fn new(pool: Arc<Pool>, names: Namespace) -> Self {
        Self {
            max_alloc: pool.limits.max_alloc,
            names,
            _guard: PoolGuard::new(pool.clone()),
            _waits: Arc::new(WaitsGuard(pool.clone())),
            pool,
        }
    }

    pub(crate) fn names(&self) -> &Namespace {
        &self.names
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    #[inline(never)]
    fn alloc_slow(&self, len: usize) -> Result<ShmBytesMut, AllocError> {
        let class = self.class(len, 1)?;
        self.hand_out(self.pool.take_slow(class, len)?, len)
    }

    pub(crate) fn alloc_aligned(
        &self,
        len: usize,
        align: usize,
    ) -> Result<ShmBytesMut, AllocError> {
        if align <= MIN_SIZE {
            return self.alloc(len);
        }
        let class = self.class(len, align)?;
        let chunk = match self.pool.free_lists()[class].take_hot() {
            Some(chunk) => chunk,
            None => self.pool.take_slow(class, len)?,
        };
        self.hand_out(chunk, len)
    }

    /// Returns the capacity of the buffer that [`alloc`](Self::alloc) returns for `len` bytes.
    pub(crate) fn chunk_for(&self, len: usize) -> usize {
        limits::chunk_size(len).min(self.max_alloc)
    }

    fn own_pool(&self) -> Option<&Arc<Pool>> {
        if self.pool.is_ours() {
            Some(&self.pool)
        } else {
            None
        }
    }

    pub(crate) fn class(&self, len: usize, align: usize) -> Result<usize, AllocError> {
        let class = self.pool.limits.class(len, align)?;
        if !self.pool.is_ours() {
            return Err(AllocError::Forked);
        }
        Ok(class)
    }

    #[inline(never)]
    pub(crate) fn hand_out(
        &self,
        chunk: ClosedChunk,
        len: usize,
    ) -> Result<ShmBytesMut, AllocError> {
        self.pool.adopt(&chunk)?;
        Ok(ShmBytesMut::new(chunk, len))
    }
}

/// Dropped with the last provider, sender or publisher: no request is left to wait.
struct WaitsGuard(Arc<Pool>);

impl Drop for WaitsGuard {
    fn drop(&mut self) {
        if self.0.is_ours() {
            self.0.waiting.close(&self.0);
        }
    }
}

impl std::fmt::Debug for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Provider")
            .field("id", &self.id())
            .field("prefix", &self.names.prefix())
            .field("max_bytes", &self.pool.limits.max_bytes)
            .field("max_alloc", &self.max_alloc)
            .finish_non_exhaustive()
    }
}

/// An allocation to be made. Created by [`Provider::request`].
///
/// # Order
///
/// Waiting requests are served first come, first served, except that one that fits may overtake one
/// that does not, or whose memory is still being made present. A thread whose timeout is over tries
/// once more, out of turn. Calls that do not wait go first. So that a large message does not starve, one range
/// of memory is set aside for a length that keeps being refused, whether it waits or is tried again
/// within 250 milliseconds.
#[derive(Clone, Copy, Debug)]
#[must_use = "a request does nothing until it is made by `alloc`, `wait`, `wait_timeout` or \
              `wait_async`"]
pub struct Request<'a> {
    provider: &'a Provider,
    len: usize,
    align: usize,
    is_zeroed: bool,
}

impl<'a> Request<'a> {
    pub(crate) fn new(provider: &'a Provider, len: usize) -> Self {
        Self {
            provider,
            len,
            align: 1,
            is_zeroed: false,
        }
    }

    /// Sets length and alignment, up to [`Provider::MAX_ALIGN`]; the default alignment is 64.
    pub fn layout(self, layout: Layout) -> Self {
        Self {
            len: layout.size(),
            align: layout.align(),
            ..self
        }
    }

    /// Sets every byte to zero.
    pub fn zeroed(self) -> Self {
        Self {
            is_zeroed: true,
            ..self
        }
    }

    /// Allocates without waiting.
    ///
    /// # Errors
    ///
    /// As [`Provider::alloc_layout`].
    pub fn alloc(self) -> Result<ShmBytesMut, AllocError> {
        self.finish(self.provider.alloc_aligned(self.len, self.align))
    }

    /// Allocates, and waits at most `timeout` for memory; with [`Duration::MAX`], for ever.
    ///
    /// # Errors
    ///
    /// [`AllocError::TimedOut`], after a last try; [`AllocError::Interrupted`]; at once
    /// [`AllocError::TooLarge`], [`AllocError::UnsupportedAlignment`],
    /// [`AllocError::Forked`], and [`AllocError::Os`] other than a lack of memory.
    pub fn wait_timeout(self, timeout: Duration) -> Result<ShmBytesMut, AllocError> {
        let source = match self.alloc() {
            Err(error) if error.is_exhausted() => error,
            result => return result,
        };
        let ticket = self.join(true)?;
        match ticket.wait(Deadline::after(timeout)) {
            Some(taken) => self.take(taken),
            None => Err(AllocError::TimedOut {
                timeout,
                source: Box::new(source),
            }),
        }
    }

    /// Allocates, and waits for memory without a limit.
    ///
    /// # Errors
    ///
    /// As [`wait_timeout`](Self::wait_timeout), except [`AllocError::TimedOut`].
    pub fn wait(self) -> Result<ShmBytesMut, AllocError> {
        self.wait_timeout(Duration::MAX)
    }

    /// Allocates, and waits for memory without blocking the thread. Works with any executor, and is
    /// cancel safe: memory delivered to a dropped future is passed on.
    ///
    /// While futures wait, a helper thread allocates on their behalf. Wakers are called with no lock
    /// held. A future that is dropped waits for nothing.
    ///
    /// A provider cannot be dropped while a request waits for it (a clone can, and does not end the
    /// wait):
    ///
    /// ```compile_fail,E0505
    /// # let provider = shm_pool::Provider::builder().build().unwrap();
    /// let future = provider.request(1).wait_async();
    /// drop(provider); // `future` borrows it
    /// drop(future);
    /// ```
    ///
    /// Drop the future first:
    ///
    /// ```
    /// # let provider = shm_pool::Provider::builder().build().unwrap();
    /// let future = provider.request(1).wait_async();
    /// drop(future);
    /// drop(provider);
    /// ```
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait), and [`AllocError::Os`] if the helper thread cannot be started.
    pub fn wait_async(self) -> AllocFuture<'a> {
        AllocFuture {
            request: self,
            ticket: None,
        }
    }

    fn join(&self, is_thread: bool) -> Result<Ticket, AllocError> {
        let class = self.provider.class(self.len, self.align)?;
        Ok(Ticket::join(
            self.provider.pool(),
            class,
            self.len,
            is_thread,
        )?)
    }

    fn take(&self, delivered: Delivery) -> Result<ShmBytesMut, AllocError> {
        self.finish(self.provider.hand_out(delivered?, self.len))
    }

    fn finish(
        &self,
        mut buffer: Result<ShmBytesMut, AllocError>,
    ) -> Result<ShmBytesMut, AllocError> {
        if self.is_zeroed {
            if let Ok(buffer) = &mut buffer {
                buffer.fill(0);
            }
        }
        buffer
    }
}

/// An allocation that waits for memory. Created by [`Request::wait_async`].
#[must_use = "a future does nothing until it is polled"]
pub struct AllocFuture<'a> {
    request: Request<'a>,
    ticket: Option<Ticket>,
}

impl Future for AllocFuture<'_> {
    type Output = Result<ShmBytesMut, AllocError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let request = self.request;
        if !request.provider.pool().is_ours() {
            return Poll::Ready(Err(AllocError::Forked));
        }
        if self.ticket.is_none() {
            match request.alloc() {
                Err(error) if error.is_exhausted() => self.ticket = Some(request.join(false)?),
                result => return Poll::Ready(result),
            }
        }
        let delivered = match &self.ticket {
            Some(ticket) => ticket.poll(context.waker()),
            None => None,
        };
        let Some(delivered) = delivered else {
            return Poll::Pending;
        };
        self.ticket = None;
        Poll::Ready(request.take(delivered))
    }
}

impl fmt::Debug for AllocFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AllocFuture")
            .field("request", &self.request)
            .field("waits", &self.ticket.is_some())
            .finish()
    }
}

/// How many control objects `build` creates before it gives up: sweeps may remove them.
const SWEPT_TRIES: usize = 16;

const DEFAULT_MAX_BYTES: usize = 1 << 30;
const DEFAULT_MAX_IDLE: usize = 8;
const DEFAULT_MAX_SHARED: usize = 4096;

/// Options of a [`Provider`]. Start with [`Provider::builder`]; every option has a default.
///
/// ```
/// use shm_pool::Provider;
///
/// let provider = Provider::builder()
///     .max_bytes(64 << 20)
///     .max_alloc(8 << 20)
///     .build()?;
/// assert!(provider.alloc((8 << 20) + 1).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct ProviderBuilder {
    max_bytes: Option<usize>,
    /// Added to `max_bytes`.
    room: Option<usize>,
    planned: Vec<usize>,
    max_alloc: Option<usize>,
    max_idle_per_class: usize,
    max_shared: usize,
    quota: Option<usize>,
    mode: u32,
    lock_memory: bool,
    tuning: Tuning,
    names: Namespace,
}

impl Default for ProviderBuilder {
    fn default() -> Self {
        Self {
            max_bytes: None,
            room: None,
            planned: Vec::new(),
            max_alloc: None,
            max_idle_per_class: DEFAULT_MAX_IDLE,
            max_shared: DEFAULT_MAX_SHARED,
            quota: None,
            mode: 0o600,
            lock_memory: false,
            tuning: Tuning::new(),
            names: Namespace::default(),
        }
    }
}

impl ProviderBuilder {
    /// Sets the cap on payload memory in bytes, at least 1, rounded up to whole pages; default 1
    /// GiB. Nothing is reserved in advance.
    ///
    /// Its memory is taken when it is first needed. (With `mlockall`, whole segments are.) The
    /// control object is not included: a page, and 128 bytes for each of
    /// [`max_shared`](Self::max_shared).
    ///
    /// A message takes more than its length ([`Provider::chunk_size`]), and some of the cap may lie
    /// between messages. [`room_for`](Self::room_for) adds up what is needed.
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// Adds to the cap what `count` messages of `len` bytes take at a time. Without
    /// [`max_bytes`](Self::max_bytes), the cap is the sum of these calls, and the first one also adds
    /// 64 KiB for a few small messages besides. The cap is one segment then, so that none of it is
    /// lost between segments, unless it is longer than 64 GiB; [`build`](Self::build) refuses a
    /// shorter [`Tuning::arena_size`] with [`BuildError::OutOfRange`].
    ///
    /// With one length, exactly `count` messages fit, whatever other messages were allocated and
    /// dropped before the first of them: idle chunks of lengths without room make way. A message is
    /// never moved, so messages of several lengths that come and go may leave gaps. The places of
    /// [reserved](Provider::reserve) ones are kept: reserve them right after
    /// [`build`](Self::build).
    ///
    /// ```
    /// use shm_pool::Provider;
    ///
    /// // Eight frames, and sixteen point clouds.
    /// let provider = Provider::builder()
    ///     .room_for(1920 * 1080 * 3, 8)
    ///     .room_for(300_000, 16)
    ///     .build()?;
    /// # let mut all = Vec::new();
    /// # for _ in 0..16 {
    /// #     all.push(provider.alloc(300_000)?);
    /// # }
    /// # for _ in 0..8 {
    /// #     all.push(provider.alloc(1920 * 1080 * 3)?);
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn room_for(mut self, len: usize, count: usize) -> Self {
        let room = self.room.unwrap_or(SHORTEST_HEAP);
        self.room = Some(room.saturating_add(limits::room_for(len, count)));
        self.planned.push(class_of(len));
        self
    }

    /// Sets the largest allocation in bytes, from 1 to `max_bytes` and at most 64 GiB, rounded up
    /// to whole pages; default: `max_bytes`, but at most 64 GiB.
    pub fn max_alloc(mut self, bytes: usize) -> Self {
        self.max_alloc = Some(bytes);
        self
    }

    /// Sets how many free chunks are kept per size class, from 0 to 1,048,576; default 8. With 0,
    /// each buffer's memory is returned to the system when the buffer is dropped.
    ///
    /// Chunks that peers lease do not count. A high number costs nothing by itself.
    pub fn max_idle_per_class(mut self, chunks: usize) -> Self {
        self.max_idle_per_class = chunks;
        self
    }

    /// Sets how many messages can be shared by [descriptor](crate::Descriptor) at a time, from 1 to
    /// 1,048,576; default 4096. Messages of channels do not count. Each takes 128 bytes of /dev/shm from
    /// the start, and up to 32 bytes of heap once so many are shared. A chunk that was shared counts
    /// until it is destroyed.
    pub fn max_shared(mut self, chunks: usize) -> Self {
        self.max_shared = chunks;
        self
    }

    /// Sets the most bytes of messages that one peer may hold at a time, read or granted to it, from
    /// 1 to 2^48 - 1; by default there is no limit. Above it, [`ShmBytes::grant`](crate::ShmBytes::grant)
    /// fails with [`ShareError::OverQuota`](crate::ShareError::OverQuota), and that peer's
    /// [`Client::attach`](crate::Client::attach) with
    /// [`AttachError::OverQuota`](crate::AttachError::OverQuota); it can still take up grants. So a
    /// subscriber that leaks messages, or is stopped, cannot use up the cap. The count is no
    /// defence against a process that violates the protocol. For channels, see
    /// [`SenderBuilder::max_borrowed`](crate::channel::SenderBuilder::max_borrowed).
    pub fn max_bytes_per_peer(mut self, bytes: usize) -> Self {
        self.quota = Some(bytes);
        self
    }

    /// Sets the permission bits of the objects, whatever umask is set; default `0o600`: peers of
    /// the same user. With `0o660`, peers of the same group may attach too. For others than the
    /// owner, write bits apply only to the control object.
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the namespace of the provider's objects and channels; default:
    /// [`Namespace::default`]. Its directory must exist. Clients, receivers and subscribers need
    /// the same one.
    pub fn namespace(mut self, namespace: &Namespace) -> Self {
        self.names = namespace.clone();
        self
    }

    /// Locks the pool and the control object into RAM. Default `false`.
    ///
    /// [`build`](Self::build) checks that `RLIMIT_MEMLOCK` allows for
    /// [`max_bytes`](Self::max_bytes) and the control object ([`BuildError::LockMemory`]). If the
    /// process has locked other memory by the time of an allocation, that fails with
    /// [`AllocError::Os`](crate::AllocError::Os) (`mlock2`).
    pub fn lock_memory(mut self, lock: bool) -> Self {
        self.lock_memory = lock;
        self
    }

    /// Sets all [options](Tuning) that few programs need.
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.tuning = tuning;
        self
    }

    /// Creates the provider and its control object, but no payload memory yet. First
    /// [sweeps](Namespace::sweep) the namespace, as far as possible.
    ///
    /// # Errors
    ///
    /// [`BuildError`]. Nothing is left behind.
    pub fn build(self) -> Result<Provider, BuildError> {
        let max_bytes = match (self.max_bytes, self.room) {
            (None, None) => DEFAULT_MAX_BYTES,
            (Some(bytes), None) | (None, Some(bytes)) => bytes,
            (Some(bytes), Some(room)) => bytes.saturating_add(room),
        };
        let mut tuning = self.tuning.clone();
        if self.room.is_some() {
            tuning.use_one_arena(max_bytes)?;
        }
        let max_idle = self.max_idle_per_class;
        let mut limits = Limits::new(max_bytes, self.max_alloc, Some(max_idle), &tuning, LONGEST)?;
        limits.planned = self.planned.clone();
        limits.planned.sort_unstable();
        if !is_object_mode(self.mode) {
            return Err(BuildError::Mode(self.mode));
        }
        range("max_shared", self.max_shared, 1, MAX_RECORDS)?;
        if let Some(quota) = self.quota {
            range("max_bytes_per_peer", quota, 1, MAX_LEN)?;
        }
        self.check_user()?;
        self.check_directory()?;
        let memory = self.tuning.memory(self.lock_memory)?;
        self.check_lock_limit(&limits)?;
        let _ = self.names.sweep();
        let control = self.create_control()?;
        if self.lock_memory {
            control.lock_memory()?;
        }
        event!(
            info,
            provider = %control.id(),
            prefix = self.names.prefix(),
            max_bytes,
            "provider made"
        );
        let segments = Numbered::new(self.names.clone(), control.id(), self.mode & 0o644, memory);
        Ok(Provider::new(
            Pool::new(limits, Box::new(segments), Some(control)),
            self.names,
        ))
    }

    fn check_user(&self) -> Result<(), BuildError> {
        let uid = self.names.uid();
        if uid == effective_uid() {
            return Ok(());
        }
        Err(BuildError::OtherUser(uid))
    }

    fn check_directory(&self) -> Result<(), BuildError> {
        let directory = self.names.directory();
        let failed = |error: io::Error| {
            let is_missing = error.kind() == io::ErrorKind::NotFound;
            let failed = OsError::new("stat", directory, error);
            if is_missing {
                failed.with_advice(no_directory(directory))
            } else {
                failed
            }
        };
        let unfit = |reason| {
            Err(BuildError::Directory {
                directory: directory.to_owned(),
                reason,
            })
        };
        let metadata = std::fs::metadata(directory).map_err(failed)?;
        if !metadata.is_dir() {
            return unfit("is not a directory");
        }
        if is_on_hugetlbfs(directory) {
            return unfit("is on hugetlbfs; use a tmpfs, and the option huge_pages");
        }
        Ok(())
    }

    fn check_lock_limit(&self, limits: &Limits) -> Result<(), BuildError> {
        let control = round_to_pages(control_size(self.max_shared)).unwrap_or(usize::MAX);
        let needed = limits.max_bytes.saturating_add(control);
        // If not, the first segment will show.
        if self.lock_memory && matches!(may_lock(needed), Ok(false)) {
            return Err(BuildError::LockMemory {
                needed,
                limit: lock_limit(),
            });
        }
        Ok(())
    }

    fn create_control(&self) -> Result<OwnerControl, BuildError> {
        let random = || {
            getrandom::u64()
                .map_err(|error| OsError::new("getrandom", "the provider's id", error.into()))
        };
        let quota = self.quota.unwrap_or(0) as u64;
        let mut id = ProviderId(0);
        for _ in 0..SWEPT_TRIES {
            id = ProviderId(random()?);
            let seed = random()?;
            let created =
                OwnerControl::create(&self.names, id, self.max_shared, self.mode, quota, seed)?;
            if let Some(control) = created {
                return Ok(control);
            }
        }
        Err(BuildError::Swept(control_name(&self.names, id).path()))
    }
}
