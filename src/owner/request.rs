//! A request for memory that may wait: the options of an allocation, and what ends its wait.

use crate::os::futex::Deadline;
use crate::owner::buf::ShmBufMut;
use crate::owner::error::{AllocError, AllocErrorKind};
use crate::owner::provider::Provider;
use crate::owner::waiting::{Delivery, Place};
use std::alloc::Layout;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

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
        let place = self.join(true)?;
        match place.wait(Deadline::after(timeout)) {
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
        AllocFuture { request: self, place: None }
    }

    /// Joins the queue of those that wait. The layout was accepted before.
    fn join(&self, is_thread: bool) -> Result<Place, AllocError> {
        let class = self.provider.class(self.len, self.align)?;
        Place::join(self.provider.pool(), class, self.len, is_thread)
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
    place: Option<Place>,
}

impl Future for AllocFuture<'_> {
    type Output = Result<ShmBufMut, AllocError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let request = self.request;
        if !request.provider.pool().is_ours() {
            return Poll::Ready(Err(AllocErrorKind::Forked.into()));
        }
        if self.place.is_none() {
            match request.now() {
                Err(error) if error.is_exhausted() => self.place = Some(request.join(false)?),
                result => return Poll::Ready(result),
            }
        }
        let delivered = self.place.as_ref().and_then(|place| place.poll(context.waker()));
        let Some(delivered) = delivered else { return Poll::Pending };
        self.place = None;
        Poll::Ready(request.take(delivered))
    }
}

impl fmt::Debug for AllocFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AllocFuture").field("request", &self.request).field("waits", &self.place.is_some()).finish()
    }
}
