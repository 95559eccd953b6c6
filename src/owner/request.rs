//! A request for memory that may wait: the options of an allocation, and what ends its wait.

use crate::owner::buf::ShmBufMut;
use crate::owner::error::{AllocError, AllocErrorKind};
use crate::owner::provider::Provider;
use crate::owner::waiting::{is_worth_waiting, Place};
use std::alloc::Layout;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// What is to be allocated, and how. Made by [`Provider::request`].
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
#[derive(Clone, Copy)]
#[must_use = "a request does nothing until it is made by `now`, `timeout`, `wait` or `wait_async`"]
pub struct Request<'a> {
    provider: &'a Provider,
    layout: Result<Layout, usize>,
    is_zeroed: bool,
}

impl<'a> Request<'a> {
    pub(crate) fn new(provider: &'a Provider, len: usize) -> Self {
        Self { provider, layout: Layout::from_size_align(len, 1).map_err(|_| len), is_zeroed: false }
    }

    /// Aligns the buffer to the layout's alignment, up to [`Provider::MAX_ALIGN`], and makes it as
    /// long as the layout. Without this, buffers are aligned to 64 bytes.
    pub fn layout(self, layout: Layout) -> Self {
        Self { layout: Ok(layout), ..self }
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
        let layout = self.layout.or_else(|len| self.provider.too_large(len))?;
        self.finish(self.provider.alloc_layout(layout)?)
    }

    /// Allocates, and waits at most `timeout` for memory. [`Duration::MAX`] is for ever.
    ///
    /// # Errors
    ///
    /// [`AllocErrorKind::TimedOut`], [`AllocErrorKind::WaitsEnded`]; what waiting cannot change, at
    /// once: [`AllocErrorKind::TooLarge`], [`AllocErrorKind::UnsupportedAlignment`],
    /// [`AllocErrorKind::Forked`], and [`AllocErrorKind::Os`] but for want of memory.
    pub fn timeout(self, timeout: Duration) -> Result<ShmBufMut, AllocError> {
        let source = match self.before_waiting() {
            Err(error) if is_worth_waiting(&error) => error,
            result => return result,
        };
        let (class, len) = self.class()?;
        let place = Place::join(self.provider.pool(), class, len, true)?;
        match place.wait(Instant::now().checked_add(timeout)) {
            Some(chunk) => self.finish(self.provider.hand_over(chunk?, len)?),
            None => Err(AllocErrorKind::TimedOut { timeout, source }.into()),
        }
    }

    /// Allocates, and waits for memory as long as it takes.
    ///
    /// # Errors
    ///
    /// As [`timeout`](Self::timeout), but for [`AllocErrorKind::TimedOut`].
    pub fn wait(self) -> Result<ShmBufMut, AllocError> {
        self.timeout(Duration::MAX)
    }

    /// Allocates, and waits for memory without blocking the thread. Works with any executor. The
    /// future can be dropped at any time; memory that was on its way to it goes to the next one.
    ///
    /// While only futures wait, a thread waits for them. It ends with the last of them.
    ///
    /// A provider is not dropped while anybody waits for it:
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
    /// As [`wait`](Self::wait).
    pub fn wait_async(self) -> AllocFuture<'a> {
        AllocFuture { request: self, place: None }
    }

    /// Allocates without waiting, unless that would go before a request that memory is kept for.
    fn before_waiting(self) -> Result<ShmBufMut, AllocError> {
        let pool = self.provider.pool();
        if !pool.waiting().is_held() || !pool.is_ours() {
            return self.now();
        }
        let layout = self.layout.or_else(|len| self.provider.too_large(len))?;
        if layout.align() > Provider::MAX_ALIGN {
            return self.now();
        }
        self.provider.check(layout.size())?;
        Err(pool.refused(self.provider.class(layout)))
    }

    /// Class and length. The layout was accepted before.
    fn class(&self) -> Result<(usize, usize), AllocError> {
        let layout = self.layout.or_else(|len| self.provider.too_large(len))?;
        Ok((self.provider.class(layout), layout.size()))
    }

    fn finish(&self, mut buffer: ShmBufMut) -> Result<ShmBufMut, AllocError> {
        if self.is_zeroed {
            buffer.fill(0);
        }
        Ok(buffer)
    }
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("layout", &self.layout).field("is_zeroed", &self.is_zeroed).finish()
    }
}

/// An allocation that waits for memory. Made by [`Request::wait_async`].
#[must_use = "a future does nothing until it is polled"]
pub struct AllocFuture<'a> {
    request: Request<'a>,
    place: Option<Place>,
}

impl Future for AllocFuture<'_> {
    type Output = Result<ShmBufMut, AllocError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let request = this.request;
        if !request.provider.pool().is_ours() {
            return Poll::Ready(Err(AllocErrorKind::Forked.into()));
        }
        let (class, len) = match request.class() {
            Ok(found) => found,
            Err(error) => return Poll::Ready(Err(error)),
        };
        if this.place.is_none() {
            match request.before_waiting() {
                Err(error) if is_worth_waiting(&error) => {}
                result => return Poll::Ready(result),
            }
        }
        let place = match this.place.take().map_or_else(|| Place::join(request.provider.pool(), class, len, false), Ok)
        {
            Ok(place) => this.place.insert(place),
            Err(error) => return Poll::Ready(Err(error)),
        };
        let Some(taken) = place.poll(context.waker()) else { return Poll::Pending };
        this.place = None;
        let taken = taken.and_then(|chunk| request.provider.hand_over(chunk, len));
        Poll::Ready(taken.and_then(|buffer| request.finish(buffer)))
    }
}

impl fmt::Debug for AllocFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AllocFuture").field("request", &self.request).field("waits", &self.place.is_some()).finish()
    }
}
