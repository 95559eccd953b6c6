//! Waiting for memory: who waits, in what order, and who looks on behalf of all.
//!
//! # A waiter
//!
//! | state | is left through |
//! |---|---|
//! | waiting, in the queue | the server delivers a chunk or an error; the waiter leaves (timeout, cancelled) |
//! | done | the waiter takes what was delivered, or gives the chunk back |
//!
//! # The server
//!
//! As long as the queue is not empty, one thread serves it: a thread that waits itself, or, if only
//! futures wait, a helper thread that lives no longer than they do. The server looks for memory,
//! delivers it, and sleeps on the memory bell until some comes back (see `memory_bell`). A server
//! that leaves hands over, under the queue's lock, so the queue is never without one.
//!
//! A waiter that joins a served queue rings the bell: memory that came back between its own failed
//! attempt and its entry was not seen by anybody on its behalf.
//!
//! # Order
//!
//! Waiters are served in the order in which they came. While the first one's request does not fit,
//! a later one that fits goes first, and so does an allocation that does not wait; but after
//! [`MOST_PASSED_OVER`] times memory is kept for the first one. Then nobody else who waits is
//! served, and nothing is carved for an allocation that does not wait. What stays open is a shelf:
//! a publisher that uses its own chunks again is not stopped, for it takes nothing from others. To
//! have memory that is in use in that way, a large request needs room of its own (a larger cap).
//!
//! # Wakers
//!
//! A future's waker is the user's code. It may poll, drop or panic, so it is called with no lock
//! held.

#![forbid(unsafe_code)]

use crate::error::OsError;
use crate::os::deadline::Deadline;
use crate::owner::chunk::OwnedChunk;
use crate::owner::error::{AllocError, AllocErrorKind};
use crate::owner::listening::{self, WAITS};
use crate::owner::pool::Pool;
use crate::protocol::memory_bell::{MemoryBell, LOOK_AGAIN};
use crate::sync::light_barrier;
use atomic_waker::AtomicWaker;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;
use std::task::Waker;
use std::thread;
use std::time::Instant;

/// How often others may go before the first request.
const MOST_PASSED_OVER: u32 = 16;

/// The helper thread's stack in bytes: an allocation, and a waker, fit several times.
const STACK: usize = 1 << 20;

/// A pool's waiters.
pub(crate) struct WaitingRoom {
    queue: Mutex<Queue>,
    /// For the owner that closes: the queue is not served any more.
    unserved: Condvar,
    /// How often others went before the first waiter. A hint for those who do not wait.
    passed_over: AtomicU32,
    /// Does anybody wait? A hint.
    has_waiters: AtomicBool,
    /// Where there is no control object.
    own_bell: MemoryBell,
}

#[derive(Default)]
struct Queue {
    waiters: VecDeque<Arc<Waiter>>,
    server: Server,
    is_closed: bool,
}

/// Who looks for memory.
#[derive(Default)]
enum Server {
    #[default]
    Nobody,
    /// The thread of this waiter, which may not know yet.
    Thread(Arc<Waiter>),
    Helper,
}

/// Somebody who waits.
pub(crate) struct Waiter {
    class: usize,
    len: usize,
    told: Told,
    outcome: Mutex<Outcome>,
}

/// How a waiter is told of its outcome.
enum Told {
    /// A thread, which can serve.
    Thread(Condvar),
    Future(AtomicWaker),
}

enum Outcome {
    Waiting,
    /// It is this thread's turn to serve.
    Serve,
    Done(Result<OwnedChunk, AllocError>),
}

impl Waiter {
    /// Sets the outcome. The waiter is to be [woken](Self::wake), when no lock is held.
    fn tell(&self, outcome: Outcome) {
        *self.outcome.lock() = outcome;
    }

    fn wake(&self) {
        match &self.told {
            Told::Thread(told) => {
                told.notify_all();
            }
            Told::Future(waker) => waker.wake(),
        }
    }

    fn is_thread(&self) -> bool {
        matches!(self.told, Told::Thread(_))
    }

    fn is_done(&self) -> bool {
        matches!(*self.outcome.lock(), Outcome::Done(_))
    }
}

/// Waiters to be woken when the queue is unlocked.
#[derive(Default)]
#[must_use]
struct ToWake(Vec<Arc<Waiter>>);

impl ToWake {
    fn wake(self) {
        drop(self);
    }
}

impl Drop for ToWake {
    /// Wakes them all. A waker that panics keeps none of the others asleep.
    fn drop(&mut self) {
        let mut panicked = None;
        for waiter in self.0.drain(..) {
            if let Err(panic) = panic::catch_unwind(AssertUnwindSafe(|| waiter.wake())) {
                panicked = panicked.or(Some(panic));
            }
        }
        if let Some(panic) = panicked.filter(|_| !thread::panicking()) {
            panic::resume_unwind(panic);
        }
    }
}

/// Calls the user's code. If it panics, that ends here; the panic hook has told of it.
pub(crate) fn wake(waker: Waker) {
    if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(|| waker.wake())) {
        // The payload is the user's, too. If its drop panics, it ends with what that leaves.
        if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            mem::forget(payload);
        }
    }
}

/// May the same request be granted later?
pub(crate) fn is_worth_waiting(error: &AllocError) -> bool {
    error.is_exhausted()
}

impl WaitingRoom {
    pub(crate) fn new() -> Self {
        Self {
            queue: Mutex::default(),
            unserved: Condvar::new(),
            passed_over: AtomicU32::new(0),
            has_waiters: AtomicBool::new(false),
            own_bell: MemoryBell::new(),
        }
    }

    /// The bell of a pool without a control object.
    pub(crate) fn own_bell(&self) -> &MemoryBell {
        &self.own_bell
    }

    /// Is memory kept for the first waiter? A hint.
    pub(crate) fn is_held(&self) -> bool {
        // An addition may come after the last waiter has left.
        self.passed_over.load(Ordering::Relaxed) >= MOST_PASSED_OVER && self.has_waiters.load(Ordering::Relaxed)
    }

    /// A search that found nothing has let go of what it had in its hand, which the server may have
    /// missed.
    pub(crate) fn searched(&self, pool: &Pool) {
        light_barrier();
        // Relaxed: as in `listening::came_back`.
        if self.has_waiters.load(Ordering::Relaxed) {
            pool.memory_bell().toll();
        }
    }

    /// Memory was carved for somebody who does not wait.
    pub(crate) fn note_passed_over(&self) {
        if self.has_waiters.load(Ordering::Relaxed) {
            self.passed_over.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Ends all waiting, and returns when nobody serves any more. Nobody waits here from now on.
    pub(crate) fn close(&self, pool: &Pool) {
        let mut to_wake = ToWake::default();
        let mut queue = self.queue.lock();
        queue.is_closed = true;
        while let Some(waiter) = queue.waiters.front().cloned() {
            waiter.tell(Outcome::Done(Err(AllocErrorKind::WaitsEnded.into())));
            queue.remove(pool, 0);
            to_wake.0.push(waiter);
        }
        drop(queue);
        to_wake.wake();
        pool.memory_bell().toll();
        let mut queue = self.queue.lock();
        while !matches!(queue.server, Server::Nobody) {
            self.unserved.wait(&mut queue);
        }
    }
}

/// A waiter's place in the queue, left on drop.
pub(crate) struct Place {
    pool: Arc<Pool>,
    waiter: Arc<Waiter>,
}

impl Place {
    /// Joins the queue for a message of `len` bytes.
    pub(crate) fn join(pool: &Arc<Pool>, class: usize, len: usize, is_thread: bool) -> Result<Self, AllocError> {
        let (room, bell) = (pool.waiting(), pool.memory_bell());
        let told = if is_thread { Told::Thread(Condvar::new()) } else { Told::Future(AtomicWaker::new()) };
        let waiter = Arc::new(Waiter { class, len, told, outcome: Mutex::new(Outcome::Waiting) });
        let mut queue = room.queue.lock();
        if queue.is_closed {
            return Err(AllocErrorKind::WaitsEnded.into());
        }
        match queue.server {
            // Who serves has looked before this one came.
            Server::Thread(_) | Server::Helper => bell.toll(),
            Server::Nobody if is_thread => {
                waiter.tell(Outcome::Serve);
                queue.server = Server::Thread(waiter.clone());
            }
            Server::Nobody => queue.start_helper(pool)?,
        }
        if queue.waiters.is_empty() {
            room.passed_over.store(0, Ordering::Relaxed);
            room.has_waiters.store(true, Ordering::Relaxed);
            listening::listen(pool, WAITS);
        }
        queue.waiters.push_back(waiter.clone());
        Ok(Self { pool: pool.clone(), waiter })
    }

    /// Waits in this thread, at most until then. `None`: nothing was delivered in time.
    pub(crate) fn wait(self, until: Option<Instant>) -> Option<Result<OwnedChunk, AllocError>> {
        let Told::Thread(told) = &self.waiter.told else { return self.leave() };
        let mut outcome = self.waiter.outcome.lock();
        loop {
            match *outcome {
                Outcome::Done(_) => break,
                Outcome::Serve => {
                    drop(outcome);
                    serve(&self.pool, &self.waiter, until);
                    return self.leave();
                }
                Outcome::Waiting => {}
            }
            match until {
                Some(until) if told.wait_until(&mut outcome, until).timed_out() => break,
                Some(_) => {}
                None => told.wait(&mut outcome),
            }
        }
        drop(outcome);
        self.leave()
    }

    /// Takes what was delivered. If nothing was, `waker` is woken when that changes.
    pub(crate) fn poll(&self, waker: &Waker) -> Option<Result<OwnedChunk, AllocError>> {
        if let Told::Future(told) = &self.waiter.told {
            // In this order: what is delivered after the look wakes.
            told.register(waker);
        }
        if self.waiter.is_done() {
            self.leave()
        } else {
            None
        }
    }

    /// Leaves the queue, hands over if this thread served, and returns what was delivered.
    fn leave(&self) -> Option<Result<OwnedChunk, AllocError>> {
        let room = self.pool.waiting();
        let mut to_wake = ToWake::default();
        let mut queue = room.queue.lock();
        let at = queue.waiters.iter().position(|waiter| Arc::ptr_eq(waiter, &self.waiter));
        if let Some(at) = at {
            queue.remove(&self.pool, at);
        }
        let outcome = mem::replace(&mut *self.waiter.outcome.lock(), Outcome::Waiting);
        if matches!(&queue.server, Server::Thread(server) if Arc::ptr_eq(server, &self.waiter)) {
            queue.hand_over(&self.pool, &mut to_wake);
        }
        let is_served = !matches!(queue.server, Server::Nobody);
        drop(queue);
        // Those behind it may go now; or a helper finds the queue empty.
        if at.is_some() && is_served {
            self.pool.memory_bell().toll();
        }
        to_wake.wake();
        match outcome {
            Outcome::Done(result) => Some(result),
            Outcome::Waiting | Outcome::Serve => None,
        }
    }
}

impl Drop for Place {
    /// A wait that was cancelled: what was delivered is given back.
    fn drop(&mut self) {
        // In a forked child the queue is the parent's.
        if self.pool.is_ours() {
            if let Some(Ok(chunk)) = self.leave() {
                Pool::give(chunk);
            }
        }
    }
}

impl Queue {
    /// Looks for memory for every waiter in turn, and delivers what there is.
    fn serve(&mut self, pool: &Arc<Pool>, to_wake: &mut ToWake) {
        let room = pool.waiting();
        // The shortest request that was refused, by grain: what is no shorter is not tried.
        let mut refused = [usize::MAX; 2];
        let mut at = 0;
        while let Some(waiter) = self.waiters.get(at).cloned() {
            if at > 0 && room.is_held() {
                return;
            }
            let (grain, size) = pool.demand(waiter.class, waiter.len);
            // What is reserved for its class was not looked for.
            if size >= refused[grain] && !pool.has_reserved(waiter.class) {
                at += 1;
                continue;
            }
            match pool.take_for_waiter(waiter.class, waiter.len) {
                Err(error) if is_worth_waiting(&error) => {
                    refused[grain] = size;
                    at += 1;
                }
                result => {
                    if at > 0 && result.is_ok() {
                        room.passed_over.fetch_add(1, Ordering::Relaxed);
                    }
                    waiter.tell(Outcome::Done(result));
                    self.remove(pool, at);
                    to_wake.0.push(waiter);
                }
            }
        }
    }

    /// Takes a waiter out. With the last one, givers stop ringing.
    fn remove(&mut self, pool: &Pool, at: usize) {
        self.waiters.remove(at);
        let room = pool.waiting();
        if at == 0 {
            room.passed_over.store(0, Ordering::Relaxed);
        }
        if self.waiters.is_empty() {
            room.has_waiters.store(false, Ordering::Relaxed);
            listening::stop(pool, WAITS);
        }
    }

    /// The server leaves. Another waiter's thread takes its place, or a helper.
    fn hand_over(&mut self, pool: &Arc<Pool>, to_wake: &mut ToWake) {
        self.server = Server::Nobody;
        if let Some(next) = self.waiters.iter().find(|waiter| waiter.is_thread()) {
            next.tell(Outcome::Serve);
            to_wake.0.push(next.clone());
            self.server = Server::Thread(next.clone());
            return;
        }
        while let Some(waiter) = self.waiters.front().cloned() {
            match self.start_helper(pool) {
                Ok(()) => return,
                // Each future gets an error of its own, until a helper has started.
                Err(error) => {
                    waiter.tell(Outcome::Done(Err(error)));
                    self.remove(pool, 0);
                    to_wake.0.push(waiter);
                }
            }
        }
        pool.waiting().unserved.notify_all();
    }

    /// Starts a thread that serves as long as anybody waits.
    fn start_helper(&mut self, pool: &Arc<Pool>) -> Result<(), AllocError> {
        let thread = thread::Builder::new().name("shm-pool-wait".to_owned()).stack_size(STACK);
        let (room, pool) = (pool.waiting().clone(), pool.clone());
        match thread.spawn(move || Helper { room, pool: Some(pool) }.run()) {
            Ok(_) => {
                self.server = Server::Helper;
                Ok(())
            }
            Err(error) => {
                let object = "a thread that waits for memory";
                Err(OsError::new("pthread_create", object, STACK, error, String::new()).into())
            }
        }
    }
}

/// Looks for memory, and delivers it.
fn look(pool: &Arc<Pool>, queue: MutexGuard<'_, Queue>) {
    let (mut queue, mut to_wake) = (queue, ToWake::default());
    queue.serve(pool, &mut to_wake);
    drop(queue);
    to_wake.wake();
}

/// Serves in the thread of a waiter, until that has what it waits for or its time is over.
fn serve(pool: &Arc<Pool>, me: &Waiter, until: Option<Instant>) {
    let (room, bell) = (pool.waiting(), pool.memory_bell());
    loop {
        let count = bell.count();
        look(pool, room.queue.lock());
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if me.is_done() || left.is_some_and(|left| left.is_zero()) {
            return;
        }
        bell.sleep(count, Deadline::after(left.map_or(LOOK_AGAIN, |left| left.min(LOOK_AGAIN))));
    }
}

/// A thread that serves while only futures wait.
struct Helper {
    room: Arc<WaitingRoom>,
    /// Taken out at its end.
    pool: Option<Arc<Pool>>,
}

impl Helper {
    fn run(self) {
        let Some(pool) = &self.pool else { return };
        loop {
            let count = pool.memory_bell().count();
            let queue = self.room.queue.lock();
            if queue.waiters.is_empty() {
                return;
            }
            look(pool, queue);
            pool.memory_bell().sleep(count, Deadline::after(LOOK_AGAIN));
        }
    }
}

impl Drop for Helper {
    /// At the end of `run`, or if a waker has panicked: then another one takes its place.
    fn drop(&mut self) {
        let Some(pool) = self.pool.take() else { return };
        let mut to_wake = ToWake::default();
        let mut queue = self.room.queue.lock();
        queue.server = Server::Nobody;
        if !queue.waiters.is_empty() {
            queue.hand_over(&pool, &mut to_wake);
        }
        // In this order: who closes the pool must find that it has the last reference.
        drop(pool);
        self.room.unserved.notify_all();
        drop(queue);
        to_wake.wake();
    }
}
