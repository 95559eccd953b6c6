//! Waiting for memory.
//!
//! A *look* tries each request in order of arrival, under the queue's lock. One that does not fit
//! is overtaken, and gets a region instead (see `arena::region`).
//!
//! A waiting thread sleeps on the memory doorbell, and looks for all requests when it wakes; for
//! futures, a helper thread does. The first thread that a ring wakes looks; the others see that the
//! doorbell has not notified since.
//!
//! | event | a look follows because |
//! |---|---|
//! | memory is released | the doorbell notifies |
//! | a thread joins | it looks before it sleeps |
//! | a future joins | it notifies |
//! | a request leaves | it notifies if others are left: they may fit now |
//! | a look delivers to a thread that may be asleep | it notifies |
//! | a request times out | its thread looks once more |
//!
//! A future's waker is user code: it may poll, panic, or drop the provider. So it is called with no
//! lock held, and the helper thread never waits for its own exit.

#![forbid(unsafe_code)]

use crate::os::fork::{self, PerProcess};
use crate::os::futex::{barrier, Deadline};
use crate::os::posix::start_thread;
use crate::owner::chunk::ClosedChunk;
use crate::owner::limits::{AllocError, Need, Refusal};
use crate::owner::pool::Pool;
use crate::protocol::memory_doorbell::{MemoryDoorbell, LOOK_AGAIN};
use atomic_waker::AtomicWaker;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};
use std::{mem, ptr};

pub(crate) type Delivery = Result<ClosedChunk, Refusal>;

pub(crate) struct WaitingRoom {
    queue: Mutex<Queue>,
    unhelped: Condvar,
    /// The looking thread. Written under the queue's lock.
    looker: AtomicU64,
    /// The doorbell if there is no control object.
    own_doorbell: MemoryDoorbell,
}

#[derive(Default)]
struct Queue {
    waiters: VecDeque<Arc<Waiter>>,
    helper: Option<ThreadId>,
    /// The doorbell's count before the last look, and the time of that look.
    looked: Option<(u32, Instant)>,
    is_closed: bool,
}

struct Waiter {
    class: usize,
    len: usize,
    /// `None` for a thread, which sleeps on the doorbell.
    waker: Option<AtomicWaker>,
    outcome: Mutex<Option<Delivery>>,
}

/// Catches a panic, which the panic hook has already reported.
pub(crate) fn wake(waker: Waker) {
    if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(|| waker.wake())) {
        // The payload is the user's too. If dropping it panics, the second payload is forgotten.
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
            looker: AtomicU64::new(fork::NO_THREAD),
            own_doorbell: MemoryDoorbell::new(),
        }
    }

    pub(crate) fn own_doorbell(&self) -> &MemoryDoorbell {
        &self.own_doorbell
    }

    /// Blocks until the helper thread has exited.
    pub(crate) fn close(&self, pool: &Pool) {
        let mut queue = self.queue.lock();
        queue.is_closed = true;
        while let Some(waiter) = queue.waiters.front().cloned() {
            *waiter.outcome.lock() = Some(Err(AllocError::Interrupted.into()));
            queue.remove(pool, 0);
            // The waker may hold the user's last reference, so it is also dropped unlocked.
            MutexGuard::unlocked(&mut queue, move || waiter.wake());
        }
        pool.memory_doorbell().notify_all();
        // A waker may close the pool on the helper thread itself.
        while queue
            .helper
            .is_some_and(|helper| helper != thread::current().id())
        {
            self.unhelped.wait(&mut queue);
        }
    }

    pub(crate) fn is_looking_here(&self) -> bool {
        // Relaxed: only this thread stores its own number.
        self.looker.load(Ordering::Relaxed) == fork::this_thread()
    }

    /// Looks on behalf of all, unless the last look is recent and the doorbell has not notified
    /// since. Returns the count to sleep on.
    fn look(&self, pool: &Arc<Pool>, is_forced: bool) -> u32 {
        let doorbell = pool.memory_doorbell();
        let mut queue = self.queue.lock();
        let (count, now) = (doorbell.count(), Instant::now());
        let last = queue.looked.filter(|&(looked, _)| looked == count);
        if !is_forced && last.is_some_and(|(_, at)| now.duration_since(at) < LOOK_AGAIN) {
            return count;
        }
        queue.looked = Some((count, now));
        self.looker.store(fork::this_thread(), Ordering::Relaxed);
        let served = panic::catch_unwind(AssertUnwindSafe(|| queue.serve(pool)));
        self.looker.store(fork::NO_THREAD, Ordering::Relaxed);
        drop(queue);
        let delivered = served.unwrap_or_else(|payload| panic::resume_unwind(payload));
        // A thread that fell asleep before this look began is awake, unless the count is the same.
        if last.is_some() && delivered.iter().any(|waiter| waiter.waker.is_none()) {
            doorbell.notify_all();
        }
        delivered.iter().for_each(|waiter| waiter.wake());
        count
    }

    fn helper_ends(&self, queue: &mut Queue) {
        queue.helper = None;
        self.unhelped.notify_all();
    }

    fn help(&self, pool: Arc<Pool>) {
        loop {
            let count = self.look(&pool, false);
            let mut queue = self.queue.lock();
            if !queue.waiters.iter().any(|waiter| waiter.waker.is_some()) {
                // Before the queue shows it, so that a thread that closes the pool has the last
                // reference.
                drop(pool);
                return self.helper_ends(&mut queue);
            }
            drop(queue);
            pool.memory_doorbell()
                .sleep(count, Deadline::after(LOOK_AGAIN));
        }
    }
}

impl Queue {
    fn serve(&mut self, pool: &Arc<Pool>) -> Vec<Arc<Waiter>> {
        // The shortest refused request, by grain: none as long or longer is tried.
        let mut refused = [usize::MAX; 2];
        // A chunk that is released during this look belongs to the first request of its class: the
        // next look finds it.
        let mut was_refused = vec![false; pool.shelves().len()];
        let (mut delivered, mut at) = (Vec::new(), 0);
        while let Some(waiter) = self.waiters.get(at).cloned() {
            let Need { grain, size } = pool.demand(waiter.class, waiter.len);
            let least = &mut refused[grain as usize];
            let is_hopeless =
                size >= *least && (was_refused[waiter.class] || !pool.has_ready(waiter.class));
            match if is_hopeless {
                None
            } else {
                Some(pool.take_slow(waiter.class, waiter.len))
            } {
                None => at += 1,
                Some(Err(error)) if error.is_exhausted() => {
                    was_refused[waiter.class] = true;
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

    fn remove(&mut self, pool: &Pool, at: usize) {
        self.waiters.remove(at);
        if self.waiters.is_empty() {
            stop(pool);
        }
    }
}

/// A request's place in the queue. Leaves it on drop.
pub(crate) struct Ticket {
    pool: Arc<Pool>,
    waiter: Arc<Waiter>,
}

impl Ticket {
    pub(crate) fn join(
        pool: &Arc<Pool>,
        class: usize,
        len: usize,
        is_thread: bool,
    ) -> Result<Self, Refusal> {
        let room = &pool.waiting;
        let waker = (!is_thread).then(AtomicWaker::new);
        let waiter = Arc::new(Waiter {
            class,
            len,
            waker,
            outcome: Mutex::new(None),
        });
        // First, so that if a step below fails, the queue is unlocked before the ticket leaves it.
        let ticket = Self {
            pool: pool.clone(),
            waiter,
        };
        let mut queue = room.queue.lock();
        if queue.is_closed {
            return Err(AllocError::Interrupted.into());
        }
        if queue.waiters.is_empty() {
            listen(pool);
        }
        queue.waiters.push_back(ticket.waiter.clone());
        if !is_thread {
            if queue.helper.is_none() {
                queue.helper = Some(start_helper(pool)?);
            }
            pool.memory_doorbell().notify_all();
        }
        drop(queue);
        Ok(ticket)
    }

    pub(crate) fn wait(self, until: Option<Deadline>) -> Option<Delivery> {
        self.wait_and(until, || LOOK_AGAIN)
    }

    /// Calls `collect` before each look; it returns the longest sleep after that look.
    pub(crate) fn wait_and(
        self,
        until: Option<Deadline>,
        mut collect: impl FnMut() -> Duration,
    ) -> Option<Delivery> {
        let mut is_first = true;
        loop {
            // First, so that the last look is after the deadline.
            let is_over = Deadline::is_past(until);
            let pause = collect();
            let count = self.pool.waiting.look(&self.pool, is_first || is_over);
            if is_over || self.waiter.outcome.lock().is_some() {
                return self.leave();
            }
            is_first = false;
            self.pool
                .memory_doorbell()
                .sleep(count, Deadline::first(until, Deadline::after(pause)));
        }
    }

    pub(crate) fn poll(&self, waker: &Waker) -> Option<Delivery> {
        if let Some(own) = &self.waiter.waker {
            // First, so that a delivery after the check below wakes it.
            own.register(waker);
        }
        self.waiter.outcome.lock().take()
    }

    fn leave(&self) -> Option<Delivery> {
        let room = &self.pool.waiting;
        let mut queue = room.queue.lock();
        if let Some(at) = queue
            .waiters
            .iter()
            .position(|waiter| Arc::ptr_eq(waiter, &self.waiter))
        {
            queue.remove(&self.pool, at);
            // Requests behind it may fit now, and the helper may have no future left.
            if !queue.waiters.is_empty() || queue.helper.is_some() {
                self.pool.memory_doorbell().notify_all();
            }
        }
        self.waiter.outcome.lock().take()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // In a forked child the queue is the parent's.
        if self.pool.is_ours() {
            if let Some(Ok(chunk)) = self.leave() {
                Pool::give(chunk);
            }
        }
    }
}

fn start_helper(pool: &Arc<Pool>) -> Result<ThreadId, Refusal> {
    let (room, pool) = (pool.waiting.clone(), pool.clone());
    let help = move || {
        if panic::catch_unwind(AssertUnwindSafe(|| room.help(pool))).is_err() {
            room.helper_ends(&mut room.queue.lock());
        }
    };
    Ok(start_thread(
        "shm-pool-wait",
        "a thread that waits for memory",
        help,
    )?)
}

/// The number of listening pools with this notice. Every drop of a buffer reads it.
#[repr(align(128))]
struct Flag(AtomicUsize);

#[allow(clippy::declare_interior_mutable_const)] // the initial value of each flag
const UNSET: Flag = Flag(AtomicUsize::new(0));

static FLAGS: [Flag; 256] = [UNSET; 256];

/// The listening pools. Per process, because a forked child may inherit the lock locked.
static POOLS: PerProcess<Mutex<Vec<Weak<Pool>>>> = PerProcess::new();

/// The index of a flag of the process: a request waits for a pool's memory. A thread that has
/// released a chunk may not touch the pool, so each chunk has a copy. Pools that share a flag ring
/// for each other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Notice(u8);

impl Notice {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU8 = AtomicU8::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn came_back(self) {
        barrier::light();
        // Relaxed: the heavy side of the barrier orders it (see `memory_doorbell`).
        if self.flag().load(Ordering::Relaxed) != 0 {
            self.notify();
        }
    }

    #[inline]
    fn flag(self) -> &'static AtomicUsize {
        &FLAGS[usize::from(self.0)].0
    }

    #[cold]
    fn notify(self) {
        // In a forked child, the flag may be set by the parent, which has no list here.
        let Some(pools) = POOLS.existing() else {
            return;
        };
        // Under the lock, which a closing pool needs to leave the list. So this is never the last
        // reference.
        let pools = pools.lock();
        let listening = pools
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|pool| pool.notice == self);
        listening.for_each(|pool| pool.memory_doorbell().notify());
    }
}

/// From now on, threads that release memory of the pool ring its doorbell.
fn listen(pool: &Arc<Pool>) {
    POOLS.get().lock().push(Arc::downgrade(pool));
    pool.notice.flag().fetch_add(1, Ordering::Relaxed);
    pool.memory_doorbell().listen(true);
    barrier::heavy();
}

fn stop(pool: &Pool) {
    let Some(pools) = POOLS.existing() else {
        return;
    };
    pools
        .lock()
        .retain(|listener| !ptr::eq(listener.as_ptr(), pool));
    pool.notice.flag().fetch_sub(1, Ordering::Relaxed);
    pool.memory_doorbell().listen(false);
}
