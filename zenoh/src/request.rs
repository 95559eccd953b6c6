//! A request for a buffer: its layout, and how long to wait for it.
//!
//! # Waiting
//!
//! A buffer that returns unsent wakes the waiters. A reader that finishes does not: it decrements a
//! count in zenoh's metadata, and no public interface of zenoh reports that. (The backend is called
//! when a message is *collected*, by any thread that asks for it; zenoh's own `BlockOn` sleeps.) So
//! a waiting request tries again every millisecond.
//!
//! A thread tries for itself. Futures have no thread, so a helper thread tries for all of them, in
//! order of arrival, and exits when none is left. A future that can be served overtakes an earlier
//! one that cannot.
//!
//! | the queue's lock is held | not held |
//! |---|---|
//! | to join, poll and leave; to read the requests, and to deliver | while the helper tries, and while it calls wakers |
//!
//! So a poll never waits for a scan. The helper refers to the pool only while it tries, and the
//! last future to leave waits until that is over: the user's last handle of a pool is really
//! the last one, and its drop returns all memory.
//!
//! # Wakers
//!
//! A waker is user code. It may poll, drop or panic, so no lock is held when it is cloned, called
//! or dropped.
//!
//! # Panics
//!
//! A retry runs zenoh's code and the user's `tracing` subscriber. If it panics on the helper thread,
//! the futures that wait get [`AllocError::Interrupted`], and the next one to join starts a new
//! helper.

#![deny(unsafe_code)]

use crate::buffer::{Buffer, UniqueBuffer};
use crate::buffers::{BufferPool, Inner};
use parking_lot::{Condvar, Mutex, MutexGuard};
use shm_pool::backend::start_thread;
use shm_pool::{AllocError, OsError};
use std::alloc::Layout;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// The pause between two scans, as long as that of zenoh's `BlockOn`. Shorter ones end a wait
/// sooner but take CPU from the readers it waits for: with pauses of 20 µs to 1 ms, publishers on
/// two busy cores used up to a fifth more CPU, and sent no more messages.
const PAUSE: Duration = Duration::from_millis(1);

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
/// not, because zenoh does not report it. So a wait tries again every millisecond, as zenoh's `BlockOn`
/// does. A retry checks the buffers that were sent first and some of the others in turn, has the provider
/// collect, and releases free buffers of other classes. Of a class of which more than 1,024 were sent, it
/// also releases those that are in use: as ordinary messages, they are found sooner. The crate's docs
/// have [what a wait costs](crate#waiting-for-memory).
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
        match self.pool.alloc_class(class, self.len) {
            Ok(buffer) => Ok(self.finish(buffer)),
            Err(refusal) => Err(refusal.error),
        }
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
            Ok(buffer) => return Ok(self.finish(buffer)),
            Err(refusal) if !refusal.is_temporary => return Err(refusal.error),
            Err(refusal) => refusal.error,
        };

        let pool = self.pool.inner();
        let start = Instant::now();
        let mut next = NextScan::after_pause();
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Err(AllocError::TimedOut {
                    timeout,
                    source: Box::new(source),
                });
            }
            pool.waiters.sleep(next.left().min(left));
            // The last retry is a thorough one.
            let is_due = next.is_due() || start.elapsed() >= timeout;
            match pool.retry(class, self.len, is_due) {
                Ok(Some(buffer)) => return Ok(self.wrap(buffer, class)),
                Ok(None) => {}
                Err(refusal) if !refusal.is_temporary => return Err(refusal.error),
                Err(refusal) => {
                    source = refusal.error;
                    next = NextScan::after_pause();
                }
            }
        }
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
    /// As long as any future waits, one thread tries again for all futures of the pool.
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
            waiter: None,
        }
    }

    #[inline]
    fn class(&self) -> Result<usize, AllocError> {
        self.pool.inner().class(self.len, self.align)
    }

    fn wrap(&self, buffer: UniqueBuffer, class: usize) -> Buffer {
        self.finish(Buffer::new(
            buffer,
            self.len,
            class,
            self.pool.inner().clone(),
        ))
    }

    fn finish(&self, mut buffer: Buffer) -> Buffer {
        if self.is_zeroed {
            buffer.fill(0);
        }
        buffer
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
    waiter: Option<WaiterGuard>,
}

impl Future for BufferFuture<'_> {
    type Output = Result<Buffer, AllocError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let request = self.request;
        let class = match request.class() {
            Ok(class) => class,
            Err(error) => return Poll::Ready(Err(error)),
        };
        if self.waiter.is_none() {
            match request.pool.alloc_class(class, request.len) {
                Ok(buffer) => return Poll::Ready(Ok(request.finish(buffer))),
                Err(refusal) if !refusal.is_temporary => return Poll::Ready(Err(refusal.error)),
                Err(_) => {}
            }
            let waited = Request {
                class,
                len: request.len,
            };
            match WaiterGuard::join(request.pool.inner(), waited) {
                Ok(waiter) => self.waiter = Some(waiter),
                Err(error) => return Poll::Ready(Err(AllocError::Os(error))),
            }
        }
        let Some(waiter) = &self.waiter else {
            return Poll::Pending;
        };
        let Some(outcome) = waiter.poll(context.waker()) else {
            return Poll::Pending;
        };
        self.waiter = None;
        match outcome {
            Ok(buffer) => Poll::Ready(Ok(request.wrap(buffer, class))),
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl fmt::Debug for BufferFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferFuture")
            .field("request", &self.request)
            .field("waits", &self.waiter.is_some())
            .finish()
    }
}

/// When a wait scans next. A buffer that returns unsent in between makes it check only the idle
/// buffers of its class: many may return, and making room for another buffer has zenoh visit every
/// message in flight.
#[derive(Clone, Copy)]
struct NextScan(Instant);

impl NextScan {
    /// Schedules a scan, after one that made no room.
    fn after_pause() -> Self {
        Self(Instant::now() + PAUSE)
    }

    fn is_due(self) -> bool {
        self.left().is_zero()
    }

    fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

/// The waiting threads and futures of a pool.
#[derive(Default)]
pub(crate) struct Waiters {
    /// The number of waiting threads and futures. A hint.
    count: AtomicUsize,
    queue: Mutex<Queue>,
    /// Signalled when a buffer has returned unsent.
    returned: Condvar,
    /// Signalled when the helper has tried for all.
    tried: Condvar,
}

/// The waiting futures.
#[derive(Default)]
struct Queue {
    waiters: VecDeque<Waiter>,
    next_id: u64,
    has_helper: bool,
    /// The pool, while any of them waits.
    pool: Option<Arc<Inner>>,
    /// The wakers of the futures that the helper has served. They are called once it has tried for all:
    /// until then, a waker that drops its future would wait for its own thread.
    served: Vec<Waker>,
    /// Whether the helper tries, and so refers to the pool.
    is_trying: bool,
}

/// What a future waits for.
#[derive(Clone, Copy, PartialEq)]
struct Request {
    class: usize,
    len: usize,
}

type Outcome = Result<UniqueBuffer, AllocError>;

struct Waiter {
    id: u64,
    request: Request,
    waker: Option<Waker>,
    /// The delivery, until the future takes it.
    outcome: Option<Outcome>,
}

impl Waiters {
    /// Wakes all waiters. Those that try at this moment try again after their pause.
    #[inline]
    pub(crate) fn notify(&self) {
        // Relaxed: a waiter that falls asleep at this moment tries again after the pause.
        if self.count.load(Ordering::Relaxed) > 0 {
            self.returned.notify_all();
        }
    }

    /// Sleeps until a buffer returns unsent, or `pause` is over.
    fn sleep(&self, pause: Duration) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.returned.wait_for(&mut self.queue.lock(), pause);
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// The helper's thread: tries for as long as any future waits.
    fn help(&self) {
        let mut next = NextScan::after_pause();
        let mut queue = self.queue.lock();
        while let Some(pool) = queue.pool.clone() {
            queue.is_trying = true;
            let is_due = next.is_due();
            try_for_all(&mut queue, &pool, is_due);
            if is_due {
                next = NextScan::after_pause();
            }
            // Under the lock: once the last future has found that the helper does not try, only
            // the user's handles are left.
            drop(pool);
            queue.is_trying = false;
            self.tried.notify_all();

            let served = mem::take(&mut queue.served);
            MutexGuard::unlocked(&mut queue, || wake_all(served));
            if queue.pool.is_some() {
                self.returned.wait_for(&mut queue, next.left());
            }
        }
        queue.has_helper = false;
    }

    /// Ends all waits, after a retry has panicked.
    fn fail(&self) {
        let mut queue = self.queue.lock();
        let mut wakers = mem::take(&mut queue.served);
        for waiter in &mut queue.waiters {
            if waiter.outcome.is_none() {
                waiter.outcome = Some(Err(AllocError::Interrupted));
                wakers.extend(waiter.waker.take());
            }
        }
        queue.has_helper = false;
        queue.is_trying = false;
        let pool = queue.pool.take();
        self.tried.notify_all();
        drop(queue);
        drop(pool);
        wake_all(wakers);
    }
}

/// Tries for all requests in the queue. Does not hold its lock meanwhile.
fn try_for_all(queue: &mut MutexGuard<'_, Queue>, pool: &Inner, is_due: bool) {
    let mut refused = None;
    for request in queue.requests() {
        if refused == Some(request) {
            continue;
        }
        if queue.pool.is_none() {
            return;
        }
        let retried =
            MutexGuard::unlocked(queue, || pool.retry(request.class, request.len, is_due));
        let outcome = match retried {
            Ok(Some(buffer)) => Ok(buffer),
            Err(refusal) if !refusal.is_temporary => Err(refusal.error),
            Ok(None) | Err(_) => {
                refused = Some(request);
                continue;
            }
        };
        if let Some(Ok(buffer)) = queue.deliver(request, outcome) {
            // Its future has been dropped.
            MutexGuard::unlocked(queue, || pool.keep_unsent(buffer, request.class));
        }
    }
}

impl Queue {
    /// Returns the requests that wait, in order of arrival.
    fn requests(&self) -> Vec<Request> {
        let mut requests = Vec::new();
        for waiter in &self.waiters {
            if waiter.outcome.is_none() {
                requests.push(waiter.request);
            }
        }
        requests
    }

    /// Delivers to the first such request. Returns the outcome if there is none.
    fn deliver(&mut self, request: Request, outcome: Outcome) -> Option<Outcome> {
        for waiter in &mut self.waiters {
            if waiter.request == request && waiter.outcome.is_none() {
                waiter.outcome = Some(outcome);
                self.served.extend(waiter.waker.take());
                self.release_unneeded_pool();
                return None;
            }
        }
        Some(outcome)
    }

    /// Drops the reference to the pool once no future waits. Returns `true` if none does.
    fn release_unneeded_pool(&mut self) -> bool {
        for waiter in &self.waiters {
            if waiter.outcome.is_none() {
                return false;
            }
        }
        self.pool = None;
        true
    }

    fn position(&self, id: u64) -> Option<usize> {
        self.waiters.iter().position(|waiter| waiter.id == id)
    }
}

/// Calls the users' wakers. A panic is caught here; the panic hook has already reported it.
fn wake_all(wakers: Vec<Waker>) {
    for waker in wakers {
        if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(|| waker.wake())) {
            // The payload is also the user's. If dropping it panics, the second payload is forgotten.
            if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                mem::forget(payload);
            }
        }
    }
}

/// A future in the queue, which it leaves on drop.
struct WaiterGuard {
    pool: Arc<Inner>,
    class: usize,
    id: u64,
}

impl WaiterGuard {
    /// Joins the queue.
    fn join(pool: &Arc<Inner>, request: Request) -> Result<Self, OsError> {
        let waiters = &pool.waiters;
        let mut queue = waiters.queue.lock();
        if !queue.has_helper {
            start_helper(waiters.clone())?;
            queue.has_helper = true;
        }
        let id = queue.next_id;
        queue.next_id += 1;
        queue.waiters.push_back(Waiter {
            id,
            request,
            waker: None,
            outcome: None,
        });
        queue.pool = Some(pool.clone());
        drop(queue);
        waiters.count.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            pool: pool.clone(),
            class: request.class,
            id,
        })
    }

    /// Takes the delivery. If there is none yet, `waker` is called when there is.
    fn poll(&self, waker: &Waker) -> Option<Outcome> {
        let waker = waker.clone();
        let mut queue = self.pool.waiters.queue.lock();
        let index = queue.position(self.id)?;
        if queue.waiters[index].outcome.is_some() {
            return queue.waiters.remove(index)?.outcome;
        }
        let old = queue.waiters[index].waker.replace(waker);
        drop(queue);
        drop(old);
        None
    }

    /// Leaves the queue. Returns the delivery that was not taken.
    fn leave(&self) -> Option<Outcome> {
        let waiters = &self.pool.waiters;
        waiters.count.fetch_sub(1, Ordering::Relaxed);
        let mut queue = waiters.queue.lock();
        let removed = match queue.position(self.id) {
            Some(index) => queue.waiters.remove(index),
            None => None,
        };
        if queue.release_unneeded_pool() {
            while queue.is_trying {
                waiters.tried.wait(&mut queue);
            }
        }
        // Its waker is dropped without the lock.
        drop(queue);
        removed?.outcome
    }
}

impl Drop for WaiterGuard {
    /// The delivery to a dropped future returns to the pool.
    fn drop(&mut self) {
        // In a forked child the queue is the parent's.
        if self.pool.is_forked() {
            return;
        }
        if let Some(Ok(buffer)) = self.leave() {
            self.pool.keep_unsent(buffer, self.class);
        }
    }
}

/// Starts a thread that tries for as long as any future waits.
fn start_helper(waiters: Arc<Waiters>) -> Result<(), OsError> {
    let help = move || {
        if panic::catch_unwind(AssertUnwindSafe(|| waiters.help())).is_err() {
            waiters.fail();
        }
    };
    start_thread("shm-pool-wait", "a thread that waits for buffers", help)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PoolBackend;
    use std::pin::pin;
    use std::sync::mpsc;
    use std::task::Wake;
    use std::thread;

    const LEN: usize = 100_000;

    struct ChannelWaker(mpsc::Sender<()>);

    impl Wake for ChannelWaker {
        fn wake(self: Arc<Self>) {
            let _ = self.0.send(());
        }
    }

    fn waker() -> (Waker, mpsc::Receiver<()>) {
        let (sender, woken) = mpsc::channel();
        (Waker::from(Arc::new(ChannelWaker(sender))), woken)
    }

    fn pool() -> BufferPool {
        BufferPool::new(
            &PoolBackend::builder()
                .max_bytes(1 << 20)
                .check_lock_limit(false)
                .build()
                .unwrap(),
        )
    }

    /// Of the futures that wait, and of those that the helper had served before.
    #[test]
    fn panicking_retry_ends_waits() {
        for is_served in [false, true] {
            let pool = pool();
            let held: Vec<_> = std::iter::from_fn(|| pool.alloc(LEN).ok()).collect();
            let (waker, woken) = waker();
            let mut future = pin!(pool.request(LEN).wait_async());
            assert!(future
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending());
            let waiters = &pool.inner().waiters;
            if is_served {
                let mut queue = waiters.queue.lock();
                let request = queue.requests()[0];
                assert!(queue.deliver(request, Err(AllocError::Forked)).is_none());
            }
            waiters.fail();
            woken.recv().unwrap();
            let outcome = future.as_mut().poll(&mut Context::from_waker(&waker));
            let Poll::Ready(Err(error)) = outcome else {
                panic!("{outcome:?}")
            };
            match is_served {
                true => assert!(matches!(error, AllocError::Forked), "{error}"),
                false => assert!(matches!(error, AllocError::Interrupted), "{error}"),
            }
            drop(held);
        }
    }

    /// A buffer that returns unsent ends the sleep of a waiting thread.
    #[test]
    fn unsent_buffer_wakes() {
        let pool = pool();
        thread::scope(|scope| {
            let parker = scope.spawn(|| pool.inner().waiters.sleep(Duration::from_secs(3600)));
            while !parker.is_finished() {
                drop(pool.alloc(LEN).unwrap());
                thread::yield_now();
            }
        });
    }

    /// A forked child that drops a delivered buffer must not release it: the parent's future still
    /// has it.
    #[test]
    #[allow(unsafe_code)] // fork
    fn forked_child_keeps_delivery() {
        let pool = pool();
        let held: Vec<_> = std::iter::from_fn(|| pool.alloc(LEN).ok()).collect();
        let (waker, woken) = waker();
        let mut future = Box::pin(pool.request(LEN).wait_async());
        assert!(future
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending());
        drop(held);
        woken.recv().unwrap();
        // Until the helper has exited, the queue has another owner, which the child would inherit.
        while Arc::strong_count(&pool.inner().waiters) > 1 {
            thread::yield_now();
        }
        // SAFETY: the child only drops its copies, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(future);
            drop(pool);
            // SAFETY: `_exit` runs none of the parent's exit handlers.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: `status` is valid for the write, and `child` was forked above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        let Poll::Ready(Ok(delivered)) = future.as_mut().poll(&mut Context::from_waker(&waker))
        else {
            panic!("it was delivered before the fork");
        };
        pool.provider().garbage_collect();
        let others: Vec<_> = std::iter::from_fn(|| pool.alloc(LEN).ok()).collect();
        assert!(
            !others.is_empty()
                && others
                    .iter()
                    .all(|other| other.as_ptr() != delivered.as_ptr())
        );
    }
}
