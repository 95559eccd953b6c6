//! Waiting for memory: the queue of requests, and the threads that look for memory.
//!
//! # A request
//!
//! | state | ends when |
//! |---|---|
//! | waiting, in the queue | a look delivers a chunk or an error; the request leaves (timeout, cancelled) |
//! | done | the request takes the delivery, or releases its chunk |
//!
//! # Looks
//!
//! A *look* tries each request in order of arrival, under the queue's lock. A request that fits
//! overtakes an earlier one that does not: the earlier one has its region (see `arena::region`), so
//! it is served in time without delaying the others.
//!
//! Each waiting thread sleeps on the memory bell (see `memory_bell`) and looks for itself and all
//! others when it wakes, so no request depends on another one's thread. For futures, a helper
//! thread does the same. It exits with the last future. Of all threads that one ring wakes, the
//! first one looks; the others find that the bell has not rung since that look began.
//!
//! | event | a look follows because |
//! |---|---|
//! | memory is released | the bell rings: every sleeper wakes |
//! | a thread joins | it looks before it sleeps |
//! | a future joins | it rings |
//! | a request leaves | it rings, if others are left: they may fit now |
//! | a look delivers to a thread that may be asleep | it rings |
//! | a request times out | its thread looks once more before it leaves |
//!
//! # Wakers
//!
//! A future's waker is user code. It may poll, panic, or drop the provider, so it is called with no
//! lock held, and the helper thread never waits for its own exit.

#![forbid(unsafe_code)]

use crate::error::OsError;
use crate::os::fork;
use crate::os::futex::Deadline;
use crate::owner::arena::Need;
use crate::owner::chunk::ClosedChunk;
use crate::owner::error::{AllocError, AllocErrorKind};
use crate::owner::listening;
use crate::owner::pool::Pool;
use crate::protocol::memory_bell::{MemoryBell, LOOK_AGAIN};
use atomic_waker::AtomicWaker;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::task::Waker;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// The helper thread's stack in bytes: several times what an allocation and a waker need.
const STACK: usize = 1 << 20;

/// The outcome of a request.
pub(crate) type Delivery = Result<ClosedChunk, AllocError>;

/// A pool's waiting requests.
pub(crate) struct WaitingRoom {
    queue: Mutex<Queue>,
    /// Signalled when the helper exits.
    unhelped: Condvar,
    /// The token of the looking thread. Written under the queue's lock.
    looker: AtomicU64,
    /// The bell if there is no control object.
    own_bell: MemoryBell,
}

#[derive(Default)]
struct Queue {
    waiters: VecDeque<Arc<Waiter>>,
    helper: Option<ThreadId>,
    /// The bell's count before the last look, and the time of that look.
    looked: Option<(u32, Instant)>,
    is_closed: bool,
}

struct Waiter {
    class: usize,
    len: usize,
    /// Present for a future; a thread sleeps on the bell instead.
    waker: Option<AtomicWaker>,
    outcome: Mutex<Option<Delivery>>,
}

/// Calls the user's waker. A panic is caught here; the panic hook has already reported it.
pub(crate) fn wake(waker: Waker) {
    if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(|| waker.wake())) {
        // The payload is also the user's. If dropping it panics, the second payload is forgotten.
        if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            mem::forget(payload);
        }
    }
}

impl Waiter {
    fn wake(&self) {
        if let Some(waker) = self.waker.as_ref().and_then(AtomicWaker::take) {
            wake(waker);
        }
    }
}

impl WaitingRoom {
    pub(crate) fn new() -> Self {
        Self {
            queue: Mutex::default(),
            unhelped: Condvar::new(),
            looker: AtomicU64::new(fork::NOBODY),
            own_bell: MemoryBell::new(),
        }
    }

    /// Returns the bell of a pool without a control object.
    pub(crate) fn own_bell(&self) -> &MemoryBell {
        &self.own_bell
    }

    /// Ends all waits, now and later. Returns when the helper thread has exited.
    pub(crate) fn close(&self, pool: &Pool) {
        let mut queue = self.queue.lock();
        queue.is_closed = true;
        while let Some(waiter) = queue.waiters.front().cloned() {
            *waiter.outcome.lock() = Some(Err(AllocErrorKind::WaitsEnded.into()));
            queue.remove(pool, 0);
            // The waker may hold the user's last reference, so it is dropped unlocked too.
            MutexGuard::unlocked(&mut queue, move || waiter.wake());
        }
        pool.memory_bell().toll();
        // A waker may close the pool on the helper thread itself.
        while queue.helper.is_some_and(|helper| helper != thread::current().id()) {
            self.unhelped.wait(&mut queue);
        }
    }

    /// Returns `true` if this thread is looking for memory on behalf of all.
    pub(crate) fn is_looking_here(&self) -> bool {
        // Relaxed: only this thread stores its own token.
        self.looker.load(Ordering::Relaxed) == fork::own_token()
    }

    /// Looks for memory on behalf of all, unless the bell has not rung since the last look and that
    /// was only just now. Returns the count to sleep on.
    fn look(&self, pool: &Arc<Pool>, is_forced: bool) -> u32 {
        let bell = pool.memory_bell();
        let mut queue = self.queue.lock();
        let (count, now) = (bell.count(), Instant::now());
        let last = queue.looked.filter(|&(looked, _)| looked == count);
        if !is_forced && last.is_some_and(|(_, at)| now.duration_since(at) < LOOK_AGAIN) {
            return count;
        }
        queue.looked = Some((count, now));
        self.looker.store(fork::own_token(), Ordering::Relaxed);
        let served = panic::catch_unwind(AssertUnwindSafe(|| queue.serve(pool)));
        self.looker.store(fork::NOBODY, Ordering::Relaxed);
        drop(queue);
        let delivered = served.unwrap_or_else(|payload| panic::resume_unwind(payload));
        // A thread that went to sleep before this look began has been woken, unless the count is
        // the same.
        if last.is_some() && delivered.iter().any(|waiter| waiter.waker.is_none()) {
            bell.toll();
        }
        delivered.iter().for_each(|waiter| waiter.wake());
        count
    }

    fn helper_ends(&self, queue: &mut Queue) {
        queue.helper = None;
        self.unhelped.notify_all();
    }

    /// The helper thread's loop, which runs for as long as futures wait.
    fn help(&self, pool: Arc<Pool>) {
        loop {
            let count = self.look(&pool, false);
            let mut queue = self.queue.lock();
            if !queue.waiters.iter().any(|waiter| waiter.waker.is_some()) {
                // In this order: a thread that closes the pool must find that it has the last
                // reference.
                drop(pool);
                return self.helper_ends(&mut queue);
            }
            drop(queue);
            pool.memory_bell().sleep(count, Deadline::after(LOOK_AGAIN));
        }
    }
}

impl Queue {
    /// Tries each request in turn, and removes those that are done.
    fn serve(&mut self, pool: &Arc<Pool>) -> Vec<Arc<Waiter>> {
        // The shortest refused request, by grain: none as long or longer is tried.
        let mut refused = [usize::MAX; 2];
        let (mut delivered, mut at) = (Vec::new(), 0);
        while let Some(waiter) = self.waiters.get(at).cloned() {
            let Need { grain, size } = pool.demand(waiter.class, waiter.len);
            let least = &mut refused[grain as usize];
            let is_hopeless = size >= *least && !pool.has_ready(waiter.class);
            match if is_hopeless { None } else { Some(pool.take_slow(waiter.class, waiter.len)) } {
                None => at += 1,
                Some(Err(error)) if error.is_exhausted() => {
                    *least = size.min(*least);
                    at += 1;
                }
                Some(result) => {
                    *waiter.outcome.lock() = Some(result);
                    self.remove(pool, at);
                    delivered.push(waiter);
                }
            }
        }
        delivered
    }

    /// Removes a request. With the last one, threads that release memory stop ringing.
    fn remove(&mut self, pool: &Pool, at: usize) {
        self.waiters.remove(at);
        if self.waiters.is_empty() {
            listening::stop(pool);
        }
    }
}

/// A request's place in the queue, which it leaves on drop.
pub(crate) struct Place {
    pool: Arc<Pool>,
    waiter: Arc<Waiter>,
}

impl Place {
    /// Joins the queue for a message of `len` bytes.
    pub(crate) fn join(pool: &Arc<Pool>, class: usize, len: usize, is_thread: bool) -> Result<Self, AllocError> {
        let room = &pool.waiting;
        let waker = (!is_thread).then(AtomicWaker::new);
        let waiter = Arc::new(Waiter { class, len, waker, outcome: Mutex::new(None) });
        // In this order: if a step below fails, the queue is unlocked before the place leaves it.
        let place = Self { pool: pool.clone(), waiter };
        let mut queue = room.queue.lock();
        if queue.is_closed {
            return Err(AllocErrorKind::WaitsEnded.into());
        }
        if queue.waiters.is_empty() {
            listening::listen(pool);
        }
        queue.waiters.push_back(place.waiter.clone());
        if !is_thread {
            if queue.helper.is_none() {
                queue.helper = Some(start_helper(pool)?);
            }
            pool.memory_bell().toll();
        }
        drop(queue);
        Ok(place)
    }

    /// Blocks until the request is done, or until the deadline. Returns `None` if nothing was
    /// delivered in time.
    pub(crate) fn wait(self, until: Option<Deadline>) -> Option<Delivery> {
        self.wait_and(until, || LOOK_AGAIN)
    }

    /// The same. Calls `collect` before each look, which returns how long to sleep at most after it.
    pub(crate) fn wait_and(self, until: Option<Deadline>, mut collect: impl FnMut() -> Duration) -> Option<Delivery> {
        let mut is_first = true;
        loop {
            // In this order, so that a last look happens after the deadline.
            let is_over = until.is_some_and(Deadline::has_passed);
            let pause = collect();
            let count = self.pool.waiting.look(&self.pool, is_first || is_over);
            if is_over || self.waiter.outcome.lock().is_some() {
                return self.leave();
            }
            is_first = false;
            self.pool.memory_bell().sleep(count, Deadline::first(until, Deadline::after(pause)));
        }
    }

    /// Takes the delivery. If there is none yet, `waker` is woken on delivery.
    pub(crate) fn poll(&self, waker: &Waker) -> Option<Delivery> {
        if let Some(own) = &self.waiter.waker {
            // In this order: a delivery after the check below wakes it.
            own.register(waker);
        }
        self.waiter.outcome.lock().take()
    }

    /// Leaves the queue, and returns the delivery.
    fn leave(&self) -> Option<Delivery> {
        let room = &self.pool.waiting;
        let mut queue = room.queue.lock();
        if let Some(at) = queue.waiters.iter().position(|waiter| Arc::ptr_eq(waiter, &self.waiter)) {
            queue.remove(&self.pool, at);
            // Requests behind it may fit now, and the helper may find no future left.
            if !queue.waiters.is_empty() || queue.helper.is_some() {
                self.pool.memory_bell().toll();
            }
        }
        self.waiter.outcome.lock().take()
    }
}

impl Drop for Place {
    /// Cancels the wait, and releases what was delivered.
    fn drop(&mut self) {
        // In a forked child the queue is the parent's.
        if self.pool.is_ours() {
            if let Some(Ok(chunk)) = self.leave() {
                Pool::give(chunk);
            }
        }
    }
}

/// Starts a thread that looks for memory for as long as futures wait.
fn start_helper(pool: &Arc<Pool>) -> Result<ThreadId, AllocError> {
    let thread = thread::Builder::new().name("shm-pool-wait".to_owned()).stack_size(STACK);
    let (room, pool) = (pool.waiting.clone(), pool.clone());
    let help = move || {
        if panic::catch_unwind(AssertUnwindSafe(|| room.help(pool))).is_err() {
            room.helper_ends(&mut room.queue.lock());
        }
    };
    let object = "a thread that waits for memory";
    let failed = |error| OsError::new("pthread_create", object, STACK, error, String::new());
    Ok(thread.spawn(help).map_err(failed)?.thread().id())
}
