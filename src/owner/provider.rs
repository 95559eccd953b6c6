//! The owner's front door: [`Provider`], the [`Request`]s that may wait for memory, and
//! [`Reservation`]s.

use crate::error::BuildError;
use crate::os::deadline::Deadline;
use crate::os::name::{Namespace, DIRECTORY};
use crate::os::posix::PAGE;
use crate::owner::buf::ShmBufMut;
use crate::owner::chunk::ClosedChunk;
use crate::owner::error::{AllocError, AllocErrorKind, ShareError};
use crate::owner::limits::{class_of, MIN_SIZE};
use crate::owner::pool::{Pool, Stats};
use crate::owner::waiting::{Delivery, Ticket};
use crate::protocol::ids::{PeerId, ProviderId};
use crate::protocol::sweep::{self, Swept};
use std::alloc::Layout;
use std::fmt;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

/// Allocates messages in shared memory. Make one per process or per kind of traffic, and share it
/// by reference or in an `Arc`.
///
/// Dropping the provider gives its idle memory back. Buffers that are still held stay valid, and
/// their memory goes back when the last of them is dropped. Peers keep what they have mapped.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shm_pool::Provider;
///
/// let provider = Provider::builder().max_bytes(64 << 20).build()?;
/// for frame in 0..3u8 {
///     // After the first: no system call, no lock, no heap.
///     let mut buffer = provider.alloc(640 * 480)?;
///     buffer.fill(frame);
///     let message = buffer.freeze();
///     let _to_send = message.descriptor()?.to_bytes();
/// }
/// assert_eq!(provider.stats().segments_created, 1);
/// # Ok(())
/// # }
/// ```
pub struct Provider {
    pool: ManuallyDrop<Arc<Pool>>,
    max_alloc: usize,
    names: Namespace,
}

impl Provider {
    /// The only taker of the pool's chunks. It closes the pool when it is dropped.
    pub(super) fn new(pool: Arc<Pool>, names: Namespace) -> Self {
        Self { max_alloc: pool.limits.max_alloc, names, pool: ManuallyDrop::new(pool) }
    }

    /// Where its objects are.
    pub(crate) fn names(&self) -> &Namespace {
        &self.names
    }

    /// The pool of its chunks.
    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// The largest alignment that [`alloc_layout`](Self::alloc_layout) gives, in bytes.
    pub const MAX_ALIGN: usize = PAGE;

    /// The id that peers connect by, part of every descriptor.
    pub fn id(&self) -> ProviderId {
        self.pool.id()
    }

    /// Allocates `len` bytes, aligned to 64, for any length from 0 to the largest allocation. The
    /// content is unspecified.
    ///
    /// If a chunk of the size class is idle, this makes no system call, takes no lock and touches
    /// no heap.
    ///
    /// If none is idle, it takes microseconds, and in the worst case the sum of these:
    ///
    /// * a look at chunks that peers leased when they were dropped, some 50 ns each: at 8, and one
    ///   more per 128 bytes of `len`; at all of them before a segment is made, and for a reserved
    ///   length;
    /// * a new segment, or memory for parts of one that have none: some 0.4 ms for each MiB;
    /// * at the cap, a look at idle chunks, the largest first, some 0.2 µs each, until there is room;
    ///   and if all of them would not do, at the locks of up to 64 peers, about 1 µs each. A length that keeps
    ///   being refused also costs a look at every chunk, at most every 250 ms;
    /// * where the system has no memory, a look through the objects of this prefix for those of
    ///   dead owners, as [`sweep`](Self::sweep) does.
    ///
    /// Every 64th or so also gives back up to 1 MiB of idle memory, if a
    /// [window](crate::ProviderBuilder::idle_window) has found any; not where the length is reserved.
    ///
    /// # Errors
    ///
    /// [`AllocErrorKind::TooLarge`] above the largest allocation, [`AllocErrorKind::Exhausted`] if
    /// the cap is reached and nothing under it can make room, [`AllocErrorKind::Os`] if the system
    /// refuses a segment or memory for it, [`AllocErrorKind::Forked`] in a forked child.
    #[inline]
    pub fn alloc(&self, len: usize) -> Result<ShmBufMut, AllocError> {
        if len <= self.max_alloc {
            let class = class_of(len);
            if let Some(chunk) = self.pool.shelves().get(class).and_then(|shelf| shelf.take_hot()) {
                return self.hand_out(chunk, len);
            }
        }
        self.alloc_slow(len)
    }

    #[inline(never)]
    fn alloc_slow(&self, len: usize) -> Result<ShmBufMut, AllocError> {
        let class = self.class(len, 1)?;
        self.hand_out(self.pool.take_slow(class, len)?, len)
    }

    /// Allocates `layout.size()` bytes aligned to `layout.align()`, which is at most
    /// [`MAX_ALIGN`](Self::MAX_ALIGN).
    ///
    /// # Errors
    ///
    /// [`AllocErrorKind::UnsupportedAlignment`] for a larger alignment; otherwise as
    /// [`alloc`](Self::alloc).
    pub fn alloc_layout(&self, layout: Layout) -> Result<ShmBufMut, AllocError> {
        self.alloc_aligned(layout.size(), layout.align())
    }

    pub(crate) fn alloc_aligned(&self, len: usize, align: usize) -> Result<ShmBufMut, AllocError> {
        if align <= MIN_SIZE {
            return self.alloc(len);
        }
        let class = self.class(len, align)?;
        let hot = self.pool.shelves()[class].take_hot();
        self.hand_out(hot.map_or_else(|| self.pool.take_slow(class, len), Ok)?, len)
    }

    /// Begins a request for `len` bytes, which may wait for memory: see [`Request`].
    pub fn request(&self, len: usize) -> Request<'_> {
        Request::new(self, len)
    }

    /// Allocates as [`alloc`](Self::alloc) does, and waits at most `timeout` for memory. It wakes
    /// as soon as memory comes back, in this process or another; after a peer's death within 50
    /// milliseconds. [`Request`] has the order in which requests are served.
    ///
    /// # Errors
    ///
    /// As [`Request::timeout`].
    pub fn alloc_timeout(&self, len: usize, timeout: Duration) -> Result<ShmBufMut, AllocError> {
        self.request(len).timeout(timeout)
    }

    /// Ends all waits for memory, those to come included, with [`AllocErrorKind::WaitsEnded`].
    /// Allocations that do not wait go on as before.
    ///
    /// Blocks until the thread that looks for memory on behalf of futures has ended. A waker may
    /// call it, too: in that thread it does not block.
    pub fn end_waits(&self) {
        if let Some(pool) = self.own_pool() {
            pool.waiting.close(pool);
        }
    }

    /// Allocates as [`alloc`](Self::alloc) does, with every byte zero. Costs writing them.
    ///
    /// # Errors
    ///
    /// As [`alloc`](Self::alloc).
    pub fn alloc_zeroed(&self, len: usize) -> Result<ShmBufMut, AllocError> {
        self.request(len).zeroed().now()
    }

    /// Reserves `count` chunks for messages of `len` bytes, aligned to 64: they exist from now on,
    /// in use or idle, until the [`Reservation`] is dropped. No other length takes them, and
    /// neither [`trim`](Self::trim) nor a lack of memory destroys them. They count against the cap.
    /// Several reservations of one size class add up.
    ///
    /// As long as one of them is free, a message of that length makes no system call, touches no
    /// heap and faults no page, from the first one on. Each chunk comes with all that takes:
    ///
    /// * memory, present in this process, and room on its shelf;
    /// * a record for [`descriptor`](crate::ShmBuf::descriptor) and
    ///   [`grant`](crate::ShmBuf::grant), and room in the queue of messages that are dropped while
    ///   peers lease them;
    /// * its place in the search for what has come back: a free one is found, however many are
    ///   leased or lent to channels. A look takes some 50 ns for each.
    ///
    /// What else a publisher needs is made present with its own object: a channel by
    /// [`SenderBuilder::create`](crate::channel::SenderBuilder::create). Peers prepare by
    /// [`Client::warm`](crate::Client::warm) and
    /// [`Receiver::warm`](crate::channel::Receiver::warm). Not included: waking a receiver that
    /// sleeps, which is a system call; threads that meet at one of the pool's locks; and chunks of
    /// other lengths that a search comes across and has to put away.
    ///
    /// # Errors
    ///
    /// [`AllocErrorKind::ReserveTooMany`] if the class has more reserved than `max_idle_per_class`;
    /// [`AllocErrorKind::ReserveShare`] if there are too few records (`max_shared`); otherwise as
    /// [`alloc`](Self::alloc). If the chunks do not fit under the cap, it first does what
    /// [`trim`](Self::trim) does, and tries again. On an error nothing is reserved, and nothing is
    /// left of it.
    pub fn reserve(&self, len: usize, count: usize) -> Result<Reservation, AllocError> {
        let class = self.class(len, 1)?;
        self.pool.reserve(class, count)?;
        Ok(Reservation::new(&self.pool, class, count))
    }

    /// Gives idle memory back to the system until the provider holds no more than `bytes`
    /// ([`Stats::bytes_held`](crate::Stats::bytes_held)), or nothing more is idle: first the memory
    /// between chunks, then idle chunks, the largest first, and none that is not needed for that.
    /// Memory goes in whole pages, so up to a page more may go. Takes back the leases of dead
    /// peers. Returns how many bytes went. Reserved chunks stay, and so do segments; without memory
    /// they are only address space.
    pub fn trim_to(&self, bytes: usize) -> usize {
        self.own_pool().map_or(0, |pool| pool.trim_to(bytes))
    }

    /// Gives all idle memory back to the system: idle chunks, unused segments, the free pages of
    /// the others, and what dead peers leased. Returns how many bytes that was. Memory that is
    /// needed again later is reserved anew.
    pub fn trim(&self) -> usize {
        self.own_pool().map_or(0, |pool| pool.trim())
    }

    /// Takes back the leases of peers that have died. Returns how many messages they still held.
    /// This happens by itself when memory runs out; call it to clear the leases of the dead from
    /// [`stats`](Self::stats).
    pub fn reclaim(&self) -> usize {
        let Some(pool) = self.own_pool() else { return 0 };
        let reclaimed = pool.reclaim();
        pool.memory_bell().ring();
        reclaimed
    }

    /// Refuses a peer from now on. It gets no new message:
    /// [`Client::attach`](crate::Client::attach) fails there with
    /// [`AttachError::Disconnected`](crate::AttachError::Disconnected),
    /// [`ShmBuf::grant`](crate::ShmBuf::grant) to it here with [`ShareError::PeerGone`]. What it
    /// has been granted and has not taken up comes back. What it reads stays good and stays its own
    /// until it drops it, or dies.
    ///
    /// For a peer that keeps too much; [`report`](Self::report) says who that is. It keeps its
    /// slot. Nothing keeps its process from connecting again by a new client, as another peer.
    ///
    /// Its client's library is what refuses, so this is no defence against a process that does not
    /// keep to the protocol.
    ///
    /// # Errors
    ///
    /// [`ShareError::PeerGone`] if it has disconnected or died, or is refused already;
    /// [`ShareError::OtherProvider`]; [`ShareError::Forked`] in a forked child.
    pub fn disconnect(&self, peer: PeerId) -> Result<(), ShareError> {
        let pool = self.own_pool().ok_or(ShareError::Forked)?;
        let other = ShareError::OtherProvider { peer, provider: self.id() };
        pool.control().map_or(Err(other), |control| control.disconnect(peer))?;
        pool.memory_bell().ring();
        Ok(())
    }

    /// Removes from /dev/shm what killed providers of this
    /// [`name_prefix`](crate::ProviderBuilder::name_prefix) have left behind: objects of this user whose
    /// owner's lock no process holds. Objects of living providers stay, and so do the bytes that
    /// their peers read, because a mapping keeps its memory. Any number of processes may sweep at
    /// the same time, and be killed while they do.
    ///
    /// A file that merely has the name of an object is neither written nor removed. A control
    /// object or a channel must begin as one, or be unfinished; a segment must be whole pages; and
    /// none may have a second name (a hard link). A control object that stays keeps all segments
    /// named after it.
    ///
    /// Segments without a control object count as a dead owner's. So do not remove a living
    /// provider's control object by hand: the next sweep takes the segments, and peers that have
    /// not mapped them get [`AttachError::Closed`](crate::AttachError::Closed).
    ///
    /// There is seldom a need to call this. The last reader of a dead provider removes what that
    /// left, [`ProviderBuilder::build`](crate::ProviderBuilder::build) sweeps, and so does an allocation or a new channel for
    /// which the system has no memory, before it fails. Another directory than /dev/shm is swept by
    /// [`sweep_in`](Self::sweep_in).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let swept = shm_pool::Provider::sweep("camera")?;
    /// println!("{} objects, {} bytes", swept.objects, swept.bytes);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`BuildError::Prefix`] for a prefix that no provider can have, [`BuildError::Os`] if
    /// /dev/shm cannot be read. An object that cannot be removed is left for the next sweep.
    pub fn sweep(name_prefix: &str) -> Result<Swept, BuildError> {
        Self::sweep_in(DIRECTORY, name_prefix)
    }

    /// Sweeps as [`sweep`](Self::sweep) does, in the [`directory`](crate::ProviderBuilder::directory) of
    /// the providers.
    ///
    /// # Errors
    ///
    /// [`BuildError::Directory`] if it is not an absolute path; otherwise as
    /// [`sweep`](Self::sweep).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let swept = shm_pool::Provider::sweep_in("/dev/shm", "camera")?;
    /// println!("{} objects, {} bytes", swept.objects, swept.bytes);
    /// # Ok(())
    /// # }
    /// ```
    pub fn sweep_in(directory: impl AsRef<Path>, name_prefix: &str) -> Result<Swept, BuildError> {
        Ok(sweep::sweep(&Namespace::new(directory.as_ref(), name_prefix)?)?)
    }

    /// What the provider holds and has done; all zero in a forked child. Takes a lock that creating
    /// and destroying chunks also take. What each peer has is in the [`report`](Self::report).
    pub fn stats(&self) -> Stats {
        self.pool.stats()
    }

    /// The pool, unless this is a forked child, which owns nothing of it.
    fn own_pool(&self) -> Option<&Arc<Pool>> {
        Some(&*self.pool).filter(|pool| pool.is_ours())
    }

    /// The class of messages of `len` bytes with an alignment. Fails in a forked child.
    pub(crate) fn class(&self, len: usize, align: usize) -> Result<usize, AllocError> {
        let class = self.pool.limits.class(len, align)?;
        self.own_pool().map(|_| class).ok_or_else(|| AllocErrorKind::Forked.into())
    }

    /// Makes a chunk that was just taken this thread's, and returns the handle to its first `len`
    /// bytes.
    #[inline]
    pub(crate) fn hand_out(&self, chunk: ClosedChunk, len: usize) -> Result<ShmBufMut, AllocError> {
        self.pool.adopt(&chunk)?;
        Ok(ShmBufMut::new(chunk, len))
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        // A forked child owns nothing, so its copy of the pool is left as it is.
        if self.pool.is_ours() {
            self.pool.close();
            event!(info, provider = %self.id(), "provider closed");
            // SAFETY: dropped here and never used again.
            unsafe { ManuallyDrop::drop(&mut self.pool) };
        }
    }
}

impl std::fmt::Debug for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Provider").field("id", &self.id()).field("limits", &self.pool.limits).finish()
    }
}

// ---- requests -----------------------------------------------------------------------------------

/// What is to be allocated, and how. Made by [`Provider::request`].
///
/// # Order
///
/// Requests that wait are tried in the order in which they came. One that fits goes before an
/// earlier one that does not, and an allocation that does not wait goes before all of them. So that
/// the earlier one does not starve, a length that keeps being refused gets a region: one place
/// under the cap, in which chunks are not used again once they are dropped. When all of them have
/// been dropped, the request is served. There is one region at a time; it passes to another length
/// after 250 milliseconds at the earliest. It takes nothing that is [reserved](Provider::reserve),
/// and a smaller message that fits nowhere else is carved there.
/// [`docs::design`](crate::docs::design) has the details.
///
/// The same holds for a publisher that does not wait, and asks again at least every 250
/// milliseconds.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// let provider = shm_pool::Provider::builder().max_bytes(1 << 20).build()?;
/// let held = provider.alloc(1 << 20)?;
/// let later = std::thread::scope(|scope| {
///     // Waits until the buffer is dropped below.
///     let waits = scope.spawn(|| provider.request(5000).zeroed().timeout(Duration::from_secs(10)));
///     drop(held);
///     waits.join().unwrap()
/// })?;
/// assert!(later.iter().all(|&byte| byte == 0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "a request does nothing until it is made by `now`, `timeout`, `wait` or `wait_async`"]
pub struct Request<'a> {
    provider: &'a Provider,
    len: usize,
    align: usize,
    is_zeroed: bool,
}

impl<'a> Request<'a> {
    pub(crate) fn new(provider: &'a Provider, len: usize) -> Self {
        Self { provider, len, align: 1, is_zeroed: false }
    }

    /// Aligns the buffer to the layout's alignment, up to [`Provider::MAX_ALIGN`], and makes it as
    /// long as the layout. Without this, buffers are aligned to 64 bytes.
    pub fn layout(self, layout: Layout) -> Self {
        Self { len: layout.size(), align: layout.align(), ..self }
    }

    /// Makes every byte zero. Costs writing them.
    pub fn zeroed(self) -> Self {
        Self { is_zeroed: true, ..self }
    }

    /// Allocates without waiting.
    ///
    /// # Errors
    ///
    /// As [`Provider::alloc_layout`].
    pub fn now(self) -> Result<ShmBufMut, AllocError> {
        self.finish(self.provider.alloc_aligned(self.len, self.align))
    }

    /// Allocates, and waits at most `timeout` for memory. [`Duration::MAX`] is for ever. It looks a
    /// last time when the time is over.
    ///
    /// # Errors
    ///
    /// [`AllocErrorKind::TimedOut`], [`AllocErrorKind::WaitsEnded`]; errors that waiting cannot
    /// change, at once: [`AllocErrorKind::TooLarge`], [`AllocErrorKind::UnsupportedAlignment`],
    /// [`AllocErrorKind::Forked`], and [`AllocErrorKind::Os`] other than a lack of memory.
    pub fn timeout(self, timeout: Duration) -> Result<ShmBufMut, AllocError> {
        let source = match self.now() {
            Err(error) if error.is_exhausted() => error,
            result => return result,
        };
        let ticket = self.join(true)?;
        match ticket.wait(Deadline::after(timeout)) {
            Some(taken) => self.take(taken),
            None => Err(AllocErrorKind::TimedOut { timeout, source }.into()),
        }
    }

    /// Allocates, and waits for memory as long as it takes.
    ///
    /// # Errors
    ///
    /// As [`timeout`](Self::timeout), except [`AllocErrorKind::TimedOut`].
    pub fn wait(self) -> Result<ShmBufMut, AllocError> {
        self.timeout(Duration::MAX)
    }

    /// Allocates, and waits for memory without blocking the thread. Works with any executor. The
    /// future can be dropped at any time; memory that was on its way to it goes to the next one.
    ///
    /// While futures wait, a helper thread looks for memory on their behalf. It ends with the last
    /// of them. It calls their wakers, or another thread that waits does, with no lock held: a
    /// waker may allocate, poll, drop its task or the last `Arc` of the provider, and panic.
    ///
    /// A provider is not dropped while a request waits for it:
    ///
    /// ```compile_fail,E0505
    /// # let provider = shm_pool::Provider::builder().build().unwrap();
    /// let future = provider.request(1).wait_async();
    /// drop(provider); // `future` borrows it
    /// drop(future);
    /// ```
    ///
    /// ```
    /// # let provider = shm_pool::Provider::builder().build().unwrap();
    /// let future = provider.request(1).wait_async();
    /// drop(future);
    /// drop(provider); // the twin that compiles
    /// ```
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait), and [`AllocErrorKind::Os`] if the helper thread cannot be started.
    pub fn wait_async(self) -> AllocFuture<'a> {
        AllocFuture { request: self, ticket: None }
    }

    /// Joins the queue of those that wait. The layout was accepted before.
    fn join(&self, is_thread: bool) -> Result<Ticket, AllocError> {
        let class = self.provider.class(self.len, self.align)?;
        Ticket::join(self.provider.pool(), class, self.len, is_thread)
    }

    /// The buffer of what was delivered.
    fn take(&self, delivered: Delivery) -> Result<ShmBufMut, AllocError> {
        self.finish(delivered.and_then(|chunk| self.provider.hand_out(chunk, self.len)))
    }

    fn finish(&self, mut buffer: Result<ShmBufMut, AllocError>) -> Result<ShmBufMut, AllocError> {
        if self.is_zeroed {
            buffer.iter_mut().for_each(|buffer| buffer.fill(0));
        }
        buffer
    }
}

/// An allocation that waits for memory. Made by [`Request::wait_async`].
#[must_use = "a future does nothing until it is polled"]
pub struct AllocFuture<'a> {
    request: Request<'a>,
    ticket: Option<Ticket>,
}

impl Future for AllocFuture<'_> {
    type Output = Result<ShmBufMut, AllocError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let request = self.request;
        if !request.provider.pool().is_ours() {
            return Poll::Ready(Err(AllocErrorKind::Forked.into()));
        }
        if self.ticket.is_none() {
            match request.now() {
                Err(error) if error.is_exhausted() => self.ticket = Some(request.join(false)?),
                result => return Poll::Ready(result),
            }
        }
        let delivered = self.ticket.as_ref().and_then(|ticket| ticket.poll(context.waker()));
        let Some(delivered) = delivered else { return Poll::Pending };
        self.ticket = None;
        Poll::Ready(request.take(delivered))
    }
}

impl fmt::Debug for AllocFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AllocFuture").field("request", &self.request).field("waits", &self.ticket.is_some()).finish()
    }
}

// ---- reservations -------------------------------------------------------------------------------

/// Chunks kept for one size class for as long as this value lives. Created by
/// [`Provider::reserve`](crate::Provider::reserve) and
/// [`Backend::reserve`](crate::backend::Backend::reserve).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let provider = shm_pool::Provider::builder().max_bytes(1 << 20).max_idle_per_class(64).build()?;
/// let telemetry = provider.reserve(48, 64)?;
/// // The camera takes all the rest, and tries to take more.
/// let frames: Vec<_> = std::iter::from_fn(|| provider.alloc(100_000).ok()).collect();
/// assert!(provider.alloc(48).is_ok(), "reserved");
/// drop(telemetry); // now other lengths may use the memory
/// # drop(frames);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a reservation ends when it is dropped; `keep` it for the provider's life"]
pub struct Reservation {
    pool: Weak<Pool>,
    class: usize,
    count: usize,
}

impl Reservation {
    pub(crate) fn new(pool: &Arc<Pool>, class: usize, count: usize) -> Self {
        Self { pool: Arc::downgrade(pool), class, count }
    }

    /// Returns the number of reserved chunks.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Keeps the reservation for as long as the provider lives.
    pub fn keep(mut self) {
        self.pool = Weak::new();
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // In a forked child the pool is the parent's, and its locks may be held.
        if let Some(pool) = self.pool.upgrade().filter(|pool| pool.is_ours()) {
            pool.end_reservation(self.class, self.count);
        }
    }
}
