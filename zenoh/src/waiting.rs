//! Waiting for a buffer.
//!
//! A buffer that returns unsent wakes the waiters. A reader that finishes does not: it decrements a
//! count in zenoh's metadata, and no public interface of zenoh reports that. (The backend is called
//! when a message is *collected*, by any thread that asks for it; zenoh's own `BlockOn` sleeps.) So
//! a waiting request looks every millisecond.
//!
//! # Which thread looks
//!
//! A thread looks for itself. Futures have no thread, so a helper thread looks for all of them, in
//! order of arrival, and exits when none is left. A future that can be served overtakes an earlier
//! one that cannot.
//!
//! | the queue's lock is held | not held |
//! |---|---|
//! | to join, poll and leave; to read the requests, and to deliver | while the helper looks, and while it calls wakers |
//!
//! So a poll never waits for a search. The helper refers to the pool only while it looks, and the
//! last future to leave waits until that look is over: the user's last handle of a pool is really
//! the last one, and its drop returns all memory.
//!
//! # Wakers
//!
//! A waker is user code. It may poll, drop or panic, so no lock is held when it is cloned, called
//! or dropped.
//!
//! # Panics
//!
//! A look runs zenoh's code and the user's `tracing` subscriber. If it panics on the helper thread,
//! the futures that wait get [`AllocError::Interrupted`], and the next one to join starts a new
//! helper.

#![deny(unsafe_code)]

use crate::buffers::Inner;
use crate::is_out_of_memory;
use crate::whole::Whole;
use parking_lot::{Condvar, Mutex, MutexGuard};
use shm_pool::{AllocError, OsError};
use std::collections::VecDeque;
use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

/// The pause between two looks, as long as that of zenoh's `BlockOn`. Shorter ones end a wait
/// sooner but take CPU from the readers it waits for: with pauses of 20 µs to 1 ms, publishers on
/// two busy cores used up to a fifth more CPU, and sent no more messages.
const PAUSE: Duration = Duration::from_millis(1);

/// The helper thread's stack in bytes: several times what a search and a waker need.
const STACK: usize = 1 << 20;

/// When a wait makes room next. A buffer that returns unsent in between makes it check only the
/// buffers of its class: many may return, and making room for another buffer has zenoh visit every
/// message in flight.
#[derive(Clone, Copy)]
pub(crate) struct NextLook(Instant);

impl NextLook {
    /// Schedules a look, after one that made no room.
    pub(crate) fn after_pause() -> Self {
        Self(Instant::now() + PAUSE)
    }

    pub(crate) fn is_due(self) -> bool {
        self.left().is_zero()
    }

    pub(crate) fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

/// The waiters of a pool.
#[derive(Default)]
pub(crate) struct WaitingRoom {
    queue: Mutex<Queue>,
    /// Signalled when a buffer has returned unsent.
    returned: Condvar,
    /// Signalled when the helper has looked.
    looked: Condvar,
}

/// The waiting futures.
#[derive(Default)]
struct Queue {
    waiters: VecDeque<Waiter>,
    next_ticket: u64,
    has_helper: bool,
    /// The pool, while any of them waits.
    pool: Option<Arc<Inner>>,
    /// The wakers of the futures that this look has served. They are called once it is over: until
    /// then, a waker that drops its future would wait for its own thread.
    served: Vec<Waker>,
    /// Whether the helper is looking, and so refers to the pool.
    is_looking: bool,
}

/// The class and the length.
type Request = (usize, usize);

type Outcome = Result<Whole, AllocError>;

struct Waiter {
    ticket: u64,
    request: Request,
    waker: Option<Waker>,
    /// The delivery, until the future takes it.
    outcome: Option<Outcome>,
}

impl WaitingRoom {
    /// Wakes all waiters. Those that are looking at this moment look again after their pause.
    #[cold]
    pub(crate) fn notify(&self) {
        self.returned.notify_all();
    }

    /// Sleeps until a buffer returns unsent, or `pause` is over.
    pub(crate) fn sleep(&self, pause: Duration) {
        self.returned.wait_for(&mut self.queue.lock(), pause);
    }

    /// The helper's thread: looks for as long as any future waits.
    fn help(&self) {
        let mut next = NextLook::after_pause();
        let mut queue = self.queue.lock();
        while let Some(pool) = queue.pool.clone() {
            queue.is_looking = true;
            let is_due = next.is_due();
            let mut refused = None;
            for request in queue.requests() {
                if refused == Some(request) {
                    continue;
                }
                if queue.pool.is_none() {
                    break;
                }
                let outcome = match MutexGuard::unlocked(&mut queue, || {
                    pool.look(request.0, request.1, is_due)
                }) {
                    Some(Err(error)) if is_out_of_memory(&error) => None,
                    outcome => outcome,
                };
                match outcome.map(|outcome| queue.deliver(request, outcome)) {
                    None => refused = Some(request),
                    Some(Ok(())) => {}
                    // Its future has been dropped.
                    Some(Err(outcome)) => MutexGuard::unlocked(&mut queue, || {
                        outcome
                            .into_iter()
                            .for_each(|whole| pool.take_back(whole, request.0))
                    }),
                }
            }
            if is_due {
                next = NextLook::after_pause();
            }
            // Under the lock: once the last future has found that the helper is not looking, only
            // the user's handles are left.
            drop(pool);
            queue.is_looking = false;
            self.looked.notify_all();
            let served = mem::take(&mut queue.served);
            MutexGuard::unlocked(&mut queue, || served.into_iter().for_each(wake));
            if queue.pool.is_some() {
                self.returned.wait_for(&mut queue, next.left());
            }
        }
        queue.has_helper = false;
    }

    /// Ends all waits, after a look has panicked.
    fn fail(&self) {
        let mut queue = self.queue.lock();
        let waiting = queue
            .waiters
            .iter_mut()
            .filter(|waiter| waiter.outcome.is_none());
        let failed: Vec<_> = waiting
            .filter_map(|waiter| {
                waiter.outcome = Some(Err(AllocError::Interrupted));
                waiter.waker.take()
            })
            .collect();
        let served = mem::take(&mut queue.served);
        (queue.has_helper, queue.is_looking) = (false, false);
        let pool = queue.pool.take();
        self.looked.notify_all();
        drop(queue);
        drop(pool);
        served.into_iter().chain(failed).for_each(wake);
    }
}

impl Queue {
    /// Returns the requests that wait, in order of arrival.
    fn requests(&self) -> Vec<Request> {
        let waiting = self
            .waiters
            .iter()
            .filter(|waiter| waiter.outcome.is_none());
        waiting.map(|waiter| waiter.request).collect()
    }

    /// Delivers to the first such request. Returns the outcome if there is none.
    fn deliver(&mut self, request: Request, outcome: Outcome) -> Result<(), Outcome> {
        let is_such = |waiter: &&mut Waiter| waiter.request == request && waiter.outcome.is_none();
        let Some(waiter) = self.waiters.iter_mut().find(is_such) else {
            return Err(outcome);
        };
        waiter.outcome = Some(outcome);
        self.served.extend(waiter.waker.take());
        if !self.is_needed() {
            self.pool = None;
        }
        Ok(())
    }

    /// Returns `true` if any future waits.
    fn is_needed(&self) -> bool {
        self.waiters.iter().any(|waiter| waiter.outcome.is_none())
    }

    fn position(&self, ticket: u64) -> Option<usize> {
        self.waiters
            .iter()
            .position(|waiter| waiter.ticket == ticket)
    }
}

/// Calls the user's waker. A panic is caught here; the panic hook has already reported it.
fn wake(waker: Waker) {
    if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(|| waker.wake())) {
        // The payload is also the user's. If dropping it panics, the second payload is forgotten.
        if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            mem::forget(payload);
        }
    }
}

/// A future's place in the queue, which it leaves on drop.
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
        queue.waiters.push_back(Waiter {
            ticket,
            request: (class, len),
            waker: None,
            outcome: None,
        });
        queue.pool = Some(pool.clone());
        drop(queue);
        pool.note_waiting();
        Ok(Self {
            pool: pool.clone(),
            class,
            ticket,
        })
    }

    /// Takes the delivery. If there is none yet, `waker` is called when there is.
    pub(crate) fn poll(&self, waker: &Waker) -> Option<Outcome> {
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
    /// Leaves the queue. The delivery to a dropped future returns to the pool.
    fn drop(&mut self) {
        // In a forked child the queue is the parent's.
        if !self.pool.is_ours() {
            return;
        }
        self.pool.note_waited();
        let room = self.pool.waiting_room();
        let mut queue = room.queue.lock();
        let left = queue
            .position(self.ticket)
            .and_then(|at| queue.waiters.remove(at));
        if !queue.is_needed() {
            queue.pool = None;
            while queue.is_looking {
                room.looked.wait(&mut queue);
            }
        }
        drop(queue);
        if let Some(Waiter {
            outcome: Some(Ok(whole)),
            ..
        }) = left
        {
            self.pool.take_back(whole, self.class);
        }
    }
}

/// Starts a thread that looks for as long as any future waits.
fn start_helper(room: Arc<WaitingRoom>) -> Result<(), AllocError> {
    let thread = thread::Builder::new()
        .name("shm-pool-wait".to_owned())
        .stack_size(STACK);
    let help = move || {
        if panic::catch_unwind(AssertUnwindSafe(|| room.help())).is_err() {
            room.fail();
        }
    };
    match thread.spawn(help) {
        Ok(_) => Ok(()),
        Err(error) => {
            let object = "a thread that looks for buffers";
            Err(AllocError::Os(
                OsError::new("pthread_create", object, error).with_bytes(STACK),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BufferPool, PoolBackend};
    use std::future::Future;
    use std::pin::pin;
    use std::sync::mpsc;
    use std::task::{Context, Poll, Wake};

    const LEN: usize = 100_000;

    struct Told(mpsc::Sender<()>);

    impl Wake for Told {
        fn wake(self: Arc<Self>) {
            let _ = self.0.send(());
        }
    }

    fn waker() -> (Waker, mpsc::Receiver<()>) {
        let (sender, told) = mpsc::channel();
        (Waker::from(Arc::new(Told(sender))), told)
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

    /// Of the futures that wait, and of those that the look had served before.
    #[test]
    fn panicking_look_ends_waits() {
        for is_served in [false, true] {
            let pool = pool();
            let held: Vec<_> = std::iter::from_fn(|| pool.alloc(LEN).ok()).collect();
            let (waker, told) = waker();
            let mut future = pin!(pool.request(LEN).wait_async());
            assert!(future
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending());
            let room = pool.inner().waiting_room();
            if is_served {
                let mut queue = room.queue.lock();
                let request = queue.requests()[0];
                assert!(queue.deliver(request, Err(AllocError::Forked)).is_ok());
            }
            room.fail();
            told.recv().unwrap();
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
            let parker = scope.spawn(|| pool.inner().sleep(Duration::from_secs(3600)));
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
        let (waker, told) = waker();
        let mut future = Box::pin(pool.request(LEN).wait_async());
        assert!(future
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending());
        drop(held);
        told.recv().unwrap();
        // Until the helper has exited, the room has another owner, which the child would inherit.
        while Arc::strong_count(pool.inner().waiting_room()) > 1 {
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
