//! Waiting for a buffer.
//!
//! A buffer that comes back unsent wakes who waits. A reader that finishes does not: it counts
//! itself out in zenoh's metadata, and nothing in zenoh's public interface tells of that. (The
//! backend is called when a message is *collected*, and that is by whoever asks; zenoh's own
//! `BlockOn` sleeps.) So who waits looks again and again, rarely enough to cost little.
//!
//! # Who looks
//!
//! A thread looks for itself. Futures have no thread, so a helper looks for all of them, in the
//! order in which they came: it delivers what it finds, wakes the future, and ends when none is
//! left. A later one whose buffer is there goes before an earlier one whose is not.
//!
//! The helper keeps the pool only as long as futures wait, and lets go of it under the queue's lock,
//! which each future takes once more before it ends. So who drops the last handle of a pool is never
//! the helper, and what goes back with the pool is back when that drop returns.
//!
//! # Wakers
//!
//! A waker is the user's code. It may poll, drop or panic, so no lock is held when it is cloned,
//! called or dropped.

#![forbid(unsafe_code)]

use crate::buffers::Inner;
use crate::is_for_want_of_memory;
use crate::whole::Whole;
use parking_lot::{Condvar, Mutex, MutexGuard};
use shm_pool::AllocError;
use shm_pool::OsError;
use std::collections::VecDeque;
use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

/// How long a wait sleeps between two looks: this share of the time waited so far, within limits.
const PAUSE_SHARE: u32 = 8;
const SHORTEST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// The helper thread's stack in bytes: a search, and a waker, fit several times.
const STACK: usize = 1 << 20;

/// How long to sleep until the next look, in a wait that began at `start`.
pub(crate) fn pause(start: Instant) -> Duration {
    (start.elapsed() / PAUSE_SHARE).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
}

/// Those who wait for buffers of a pool.
#[derive(Default)]
pub(crate) struct WaitingRoom {
    queue: Mutex<Queue>,
    /// A buffer has come back unsent, or a future has come or gone.
    news: Condvar,
}

/// The futures.
#[derive(Default)]
struct Queue {
    waiters: VecDeque<Waiter>,
    next_ticket: u64,
    has_helper: bool,
    /// There while any of them waits: what the helper looks into, and when the last one came.
    searched: Option<(Arc<Inner>, Instant)>,
}

struct Waiter {
    ticket: u64,
    class: usize,
    len: usize,
    waker: Option<Waker>,
    /// What was delivered, until the future takes it.
    outcome: Option<Result<Whole, AllocError>>,
}

impl WaitingRoom {
    /// Has all who wait look, unless they do so at this moment. Then they look after their pause.
    #[cold]
    pub(crate) fn tell(&self) {
        self.news.notify_all();
    }

    /// Sleeps until there is news, or `pause` is over.
    pub(crate) fn sleep(&self, pause: Duration) {
        self.news.wait_for(&mut self.queue.lock(), pause);
    }

    /// The helper's thread: looks as long as any future waits.
    fn help(&self) {
        let mut queue = self.queue.lock();
        loop {
            let found = queue.look();
            // Here the look's pool is either back in the queue or gone.
            MutexGuard::unlocked(&mut queue, || found.into_iter().for_each(wake));
            match &queue.searched {
                Some((_, start)) => {
                    let pause = pause(*start);
                    self.news.wait_for(&mut queue, pause);
                }
                None => {
                    queue.has_helper = false;
                    return;
                }
            }
        }
    }
}

impl Queue {
    /// Looks for a buffer for each that waits, and returns the wakers of those that have one now.
    fn look(&mut self) -> Vec<Waker> {
        let Some((pool, start)) = self.searched.take() else { return Vec::new() };
        let mut found = Vec::new();
        // What was refused a moment ago is refused to the next one, too.
        let mut refused = None;
        for waiter in self.waiters.iter_mut().filter(|waiter| waiter.outcome.is_none()) {
            if refused == Some((waiter.class, waiter.len)) {
                continue;
            }
            match pool.find(waiter.class, waiter.len) {
                Err(error) if is_for_want_of_memory(&error) => refused = Some((waiter.class, waiter.len)),
                outcome => {
                    waiter.outcome = Some(outcome);
                    found.extend(waiter.waker.take());
                }
            }
        }
        if self.is_needed() {
            self.searched = Some((pool, start));
        }
        found
    }

    /// Does any future wait for the helper?
    fn is_needed(&self) -> bool {
        self.waiters.iter().any(|waiter| waiter.outcome.is_none())
    }

    fn position(&self, ticket: u64) -> Option<usize> {
        self.waiters.iter().position(|waiter| waiter.ticket == ticket)
    }
}

/// Calls the user's code. If it panics, that ends here; the panic hook has told of it.
fn wake(waker: Waker) {
    if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(|| waker.wake())) {
        // The payload is the user's, too. If its drop panics, it ends with what that leaves.
        if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            mem::forget(payload);
        }
    }
}

/// A future's place in the queue, left on drop.
pub(crate) struct Place {
    pool: Arc<Inner>,
    class: usize,
    ticket: u64,
}

impl Place {
    /// Joins the queue for a buffer of a class.
    pub(crate) fn join(pool: &Arc<Inner>, class: usize, len: usize) -> Result<Self, AllocError> {
        let room = pool.waiting_room();
        let mut queue = room.queue.lock();
        if !queue.has_helper {
            start_helper(room.clone())?;
            queue.has_helper = true;
        }
        let ticket = queue.next_ticket;
        queue.next_ticket += 1;
        queue.waiters.push_back(Waiter { ticket, class, len, waker: None, outcome: None });
        queue.searched = Some((pool.clone(), Instant::now()));
        drop(queue);
        pool.note_waiting();
        // The helper's pause begins anew: it is short at the beginning of a wait.
        room.tell();
        Ok(Self { pool: pool.clone(), class, ticket })
    }

    /// Takes what was delivered. If nothing was, `waker` is called when that changes.
    pub(crate) fn poll(&self, waker: &Waker) -> Option<Result<Whole, AllocError>> {
        let waker = waker.clone();
        let mut queue = self.pool.waiting_room().queue.lock();
        let at = queue.position(self.ticket)?;
        if queue.waiters[at].outcome.is_some() {
            return queue.waiters.remove(at)?.outcome;
        }
        let old = queue.waiters[at].waker.replace(waker);
        drop(queue);
        drop(old);
        None
    }
}

impl Drop for Place {
    /// Leaves the queue. What was delivered to a future that was dropped is given back.
    fn drop(&mut self) {
        // In a forked child the queue is the parent's.
        if !self.pool.is_ours() {
            return;
        }
        self.pool.note_waited();
        let mut queue = self.pool.waiting_room().queue.lock();
        let left = queue.position(self.ticket).and_then(|at| queue.waiters.remove(at));
        if !queue.is_needed() {
            queue.searched = None;
        }
        drop(queue);
        if let Some(Waiter { outcome: Some(Ok(whole)), .. }) = left {
            self.pool.take_back(whole, self.class);
        }
    }
}

/// Starts a thread that looks as long as any future waits.
fn start_helper(room: Arc<WaitingRoom>) -> Result<(), AllocError> {
    let thread = thread::Builder::new().name("shm-pool-wait".to_owned()).stack_size(STACK);
    match thread.spawn(move || room.help()) {
        Ok(_) => Ok(()),
        Err(error) => {
            let object = "a thread that looks for buffers";
            Err(OsError::new("pthread_create", object, STACK, error, String::new()).into())
        }
    }
}
