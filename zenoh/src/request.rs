//! A request for a buffer: its layout, and how long to wait for it.

#![forbid(unsafe_code)]

use crate::buffers::BufferPool;
use crate::handle::Buffer;
use crate::is_out_of_memory;
use crate::waiting::{NextLook, Place};
use shm_pool::AllocError;
use std::alloc::Layout;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// A request for a buffer, with options. Created by [`BufferPool::request`].
///
/// A request can be kept and used again, but nothing is saved by that: unlike with zenoh's provider
/// there is nothing to precompute, since finding the size class takes a few instructions.
///
/// | zenoh's provider | a buffer pool |
/// |---|---|
/// | `JustAlloc`, `GarbageCollect`, `Defragment` | [`alloc`](Self::alloc), which does what all of them do |
/// | `BlockOn<…>` with `wait()` | [`wait`](Self::wait), [`wait_timeout`](Self::wait_timeout) |
/// | `BlockOn<…>` with `await` | [`wait_async`](Self::wait_async), with any executor |
/// | `Deallocate` | none: no reader's bytes change |
/// | a layout with `AllocAlignment` | [`layout`](Self::layout) |
/// | `TypedLayout` | [`layout`](Self::layout), then `Typed::new` |
/// | `alloc_layout` | a request that is kept |
///
/// # How it waits
///
/// A reusable buffer of the size class that returns unsent ends a wait at once. A reader that finishes does
/// not, because zenoh does not report it. So a wait looks every millisecond, as zenoh's `BlockOn` does. A
/// look checks the buffers that were sent first and some of the others in turn, has the provider collect,
/// and releases free buffers of other classes. Of a class of which more than 1,024 were sent, it also releases
/// those that it finds being read: as ordinary messages, they are found sooner.
#[derive(Clone, Copy)]
#[must_use = "a request does nothing until `alloc`, `wait`, `wait_timeout` or `wait_async` is called"]
pub struct BufferRequest<'a> {
    pool: &'a BufferPool,
    len: usize,
    align: usize,
    is_zeroed: bool,
}

impl<'a> BufferRequest<'a> {
    pub(crate) fn new(pool: &'a BufferPool, len: usize) -> Self {
        Self {
            pool,
            len,
            align: 1,
            is_zeroed: false,
        }
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
    /// let buffer = pool.request(0).layout(Layout::new::<[f64; 3]>()).alloc()?;
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
    /// As [`BufferPool::alloc`]; [`AllocError::UnsupportedAlignment`] above a page.
    pub fn alloc(self) -> Result<Buffer, AllocError> {
        let class = self.class()?;
        self.finish(self.pool.alloc_class(class, self.len))
    }

    /// Allocates, and blocks for up to `timeout` until there is memory; [`Duration::MAX`] means without
    /// limit.
    ///
    /// # Errors
    ///
    /// As [`alloc`](Self::alloc); [`AllocError::TimedOut`] after `timeout`, with the last error. An
    /// error that waiting cannot change is returned at once.
    pub fn wait_timeout(self, timeout: Duration) -> Result<Buffer, AllocError> {
        let class = self.class()?;
        let mut source = match self.pool.alloc_class(class, self.len) {
            Err(error) if is_out_of_memory(&error) => error,
            done => return self.finish(done),
        };
        let start = Instant::now();
        let left = || timeout.saturating_sub(start.elapsed());
        let mut next = NextLook::after_pause();
        while !left().is_zero() {
            self.pool.inner().sleep(next.left().min(left()));
            let is_due = next.is_due() || left().is_zero();
            match self.pool.inner().look(class, self.len, is_due) {
                None => {}
                Some(Err(error)) if is_out_of_memory(&error) => {
                    source = error;
                    next = NextLook::after_pause();
                }
                Some(found) => {
                    return self
                        .finish(found.map(|whole| self.pool.hand_out(whole, class, self.len)));
                }
            }
        }
        Err(AllocError::TimedOut {
            timeout,
            source: Box::new(source),
        })
    }

    /// Allocates, and blocks until there is memory.
    ///
    /// # Errors
    ///
    /// As [`alloc`](Self::alloc), except for a shortage of memory.
    pub fn wait(self) -> Result<Buffer, AllocError> {
        self.wait_timeout(Duration::MAX)
    }

    /// Allocates, and waits for memory without blocking the thread, on any executor. The future can be
    /// dropped at any time; a buffer that was delivered to it returns to the pool.
    ///
    /// As long as any future waits, one thread looks for all futures of the pool.
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
    /// As [`wait`](Self::wait); [`AllocError::Os`] if the system refuses the thread.
    pub fn wait_async(self) -> BufferFuture<'a> {
        BufferFuture {
            request: self,
            place: None,
        }
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
        debug
            .field("len", &self.len)
            .field("align", &self.align)
            .field("is_zeroed", &self.is_zeroed)
            .finish()
    }
}

/// An allocation that waits for memory. Created by [`BufferRequest::wait_async`].
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
            match self.request.alloc() {
                Err(error) if is_out_of_memory(&error) => {}
                done => return Poll::Ready(done),
            }
            match Place::join(pool.inner(), class, len) {
                Ok(place) => self.place = Some(place),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        let found = self
            .place
            .as_ref()
            .and_then(|place| place.poll(context.waker()));
        let Some(found) = found else {
            return Poll::Pending;
        };
        self.place = None;
        Poll::Ready(
            self.request
                .finish(found.map(|whole| pool.hand_out(whole, class, len))),
        )
    }
}

impl fmt::Debug for BufferFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferFuture")
            .field("request", &self.request)
            .field("waits", &self.place.is_some())
            .finish()
    }
}
