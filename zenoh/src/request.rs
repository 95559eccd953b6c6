//! A request for a buffer: its layout, and how long to wait for it.

#![forbid(unsafe_code)]

use crate::buffers::BufferPool;
use crate::handle::Buffer;
use crate::is_for_want_of_memory;
use crate::waiting::{pause, Place};
use shm_pool::{AllocError, AllocErrorKind};
use std::alloc::Layout;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// What is to be allocated, and how. Made by [`BufferPool::request`].
///
/// A request may be kept, and made again and again. That saves nothing: finding the size class of a
/// length takes a few instructions, so there is nothing to precompute as for zenoh's provider.
///
/// | zenoh's provider | a buffer pool |
/// |---|---|
/// | `JustAlloc`, `GarbageCollect`, `Defragment` | [`now`](Self::now), which does what all of them do |
/// | `BlockOn<…>` with `wait()` | [`wait`](Self::wait), [`timeout`](Self::timeout) |
/// | `BlockOn<…>` with `await` | [`wait_async`](Self::wait_async), with any executor |
/// | `Deallocate` | nothing: no reader's bytes change |
/// | a layout with `AllocAlignment` | [`layout`](Self::layout) |
/// | `TypedLayout` | [`layout`](Self::layout), then `Typed::new` |
/// | `alloc_layout` | a request that is kept |
///
/// # How it waits
///
/// A buffer that comes back unsent ends a wait at once. A reader that finishes does not: zenoh tells
/// nobody. So a wait looks again and again, first after 20 µs, then each time after an eighth of the
/// time waited so far, and at least every millisecond.
#[derive(Clone, Copy)]
#[must_use = "a request does nothing until it is made by `now`, `timeout`, `wait` or `wait_async`"]
pub struct BufferRequest<'a> {
    pool: &'a BufferPool,
    len: usize,
    align: usize,
    is_zeroed: bool,
}

impl<'a> BufferRequest<'a> {
    pub(crate) fn new(pool: &'a BufferPool, len: usize) -> Self {
        Self { pool, len, align: 1, is_zeroed: false }
    }

    /// Aligns the buffer to the layout's alignment, up to [`Provider::MAX_ALIGN`], and makes it as
    /// long as the layout. Without this, buffers are aligned to 64 bytes.
    ///
    /// With the layout of a type, zenoh's `Typed` writes a value into the buffer, and reads it where
    /// it arrives:
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// use shm_pool_zenoh::{BufferPool, PoolBackend};
    /// use std::alloc::Layout;
    /// use zenoh::bytes::ZBytes;
    /// use zenoh::shm::Typed;
    ///
    /// let pool = BufferPool::new(&PoolBackend::builder().max_bytes(1 << 20).build()?);
    /// let buffer = pool.request(0).layout(Layout::new::<[f64; 3]>()).now()?;
    /// let mut position = Typed::new(buffer)?.initialize([0.0; 3]);
    /// position[2] = 1.5;
    /// let message = ZBytes::from(position); // or `publisher.put(position)`
    /// assert_eq!(message.to_bytes()[16..], 1.5f64.to_ne_bytes());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`Provider::MAX_ALIGN`]: shm_pool::Provider::MAX_ALIGN
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
    /// As [`BufferPool::alloc`]; [`AllocErrorKind::UnsupportedAlignment`] above a page.
    pub fn now(self) -> Result<Buffer, AllocError> {
        let class = self.class()?;
        self.finish(self.pool.alloc_class(class, self.len))
    }

    /// Allocates, and waits at most `timeout` for memory. [`Duration::MAX`] is for ever.
    ///
    /// # Errors
    ///
    /// As [`now`](Self::now); [`AllocErrorKind::TimedOut`] with the last error when the time is over.
    /// What waiting cannot change is returned at once.
    pub fn timeout(self, timeout: Duration) -> Result<Buffer, AllocError> {
        let class = self.class()?;
        let mut source = match self.pool.alloc_class(class, self.len) {
            Err(error) if is_for_want_of_memory(&error) => error,
            done => return self.finish(done),
        };
        let start = Instant::now();
        let left = || timeout.saturating_sub(start.elapsed());
        while !left().is_zero() {
            self.pool.inner().sleep(pause(start).min(left()));
            match self.pool.inner().find(class, self.len) {
                Err(error) if is_for_want_of_memory(&error) => source = error,
                done => return self.finish(done.map(|whole| self.pool.hand_out(whole, class, self.len))),
            }
        }
        Err(AllocErrorKind::TimedOut { timeout, source }.into())
    }

    /// Allocates, and waits for memory as long as it takes.
    ///
    /// # Errors
    ///
    /// As [`now`](Self::now), but not for want of memory.
    pub fn wait(self) -> Result<Buffer, AllocError> {
        self.timeout(Duration::MAX)
    }

    /// Allocates, and waits for memory without blocking the thread. Works with any executor. The
    /// future can be dropped at any time; a buffer that was on its way to it is back at once.
    ///
    /// As long as any future waits, one thread looks on behalf of all those of the pool.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// use shm_pool_zenoh::{BufferPool, PoolBackend};
    ///
    /// let pool = BufferPool::new(&PoolBackend::builder().max_bytes(1 << 20).build()?);
    /// let publish = async move {
    ///     let frame = pool.request(100_000).wait_async().await?;
    ///     // `publisher.put(frame).await` …
    /// #   drop(frame);
    ///     Ok::<(), shm_pool::AllocError>(())
    /// };
    /// tokio::runtime::Builder::new_current_thread().build()?.block_on(publish)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait); [`AllocErrorKind::Os`] if the system refuses the thread.
    pub fn wait_async(self) -> BufferFuture<'a> {
        BufferFuture { request: self, place: None }
    }

    #[inline]
    fn class(&self) -> Result<usize, AllocError> {
        self.pool.inner().class(self.len, self.align)
    }

    fn finish(&self, buffer: Result<Buffer, AllocError>) -> Result<Buffer, AllocError> {
        let mut buffer = buffer?;
        if self.is_zeroed {
            buffer.fill(0);
        }
        Ok(buffer)
    }
}

impl fmt::Debug for BufferRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("BufferRequest");
        debug.field("len", &self.len).field("align", &self.align).field("is_zeroed", &self.is_zeroed).finish()
    }
}

/// An allocation that waits for memory. Made by [`BufferRequest::wait_async`].
#[must_use = "a future does nothing until it is polled"]
pub struct BufferFuture<'a> {
    request: BufferRequest<'a>,
    place: Option<Place>,
}

impl Future for BufferFuture<'_> {
    type Output = Result<Buffer, AllocError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let BufferRequest { pool, len, .. } = self.request;
        let class = match self.request.class() {
            Ok(class) => class,
            Err(error) => return Poll::Ready(Err(error)),
        };
        if self.place.is_none() {
            match self.request.now() {
                Err(error) if is_for_want_of_memory(&error) => {}
                done => return Poll::Ready(done),
            }
            match Place::join(pool.inner(), class, len) {
                Ok(place) => self.place = Some(place),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        let found = self.place.as_ref().and_then(|place| place.poll(context.waker()));
        let Some(found) = found else { return Poll::Pending };
        self.place = None;
        Poll::Ready(self.request.finish(found.map(|whole| pool.hand_out(whole, class, len))))
    }
}

impl fmt::Debug for BufferFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferFuture").field("request", &self.request).field("waits", &self.place.is_some()).finish()
    }
}
