//! Waiting for memory.
//!
//! A thread that waits tries its own request. A helper thread tries those of futures. The list's
//! lock is held only to read and change the list: never during a try, a system call or a waker.
//!
//! # Turns
//!
//! Requests are tried in order of arrival, and one that does not fit is overtaken. So one request at
//! a time has the *turn* (see [`list`]):
//!
//! ```text
//!                   the doorbell rings                    refused, served or busy:
//!                 ┌────────────────────► trying (first) ─────────────► trying (next) ──┐
//!   listening ────┤                                                                    │
//!   (first) ▲     └─ RECHECK_AFTER has passed, or a pass is due                        │
//!           └──────────────────────────── after the last request ──────────────────────┘
//! ```
//!
//! The first request listens: it sleeps on the memory doorbell, and all others sleep until they have
//! the turn. A request that is *busy* stays in its place and is passed over:
//!
//! - one whose try begins to make memory present ([`WaitingRoom::pass_turn_early`]);
//! - one whose thread is in the program's code: a collector, or for futures, a waker.
//!
//! | event | what follows |
//! |---|---|
//! | memory is released | the doorbell rings (see [`notifier`]) |
//! | a request joins, or is no longer busy and a pass has missed it | a pass from it on |
//! | a try ends that had passed its turn on | a pass for all others: it has held memory meanwhile |
//! | a request leaves that has the turn | the turn passes on |
//! | a thread's deadline is over | it leaves, and tries once more, out of turn |
//! | a future is dropped that memory was delivered to | the memory is released |
//! | a future is dropped that the helper thread tries | the helper releases what it obtains; a request that would be refused meanwhile waits for that, unless the memory is being made present, and tries again; so does one that has searched before the release |
//!
//! A round that serves nobody has cost other threads locks. So the next one begins only after a
//! rest in proportion, of at most a millisecond. A round that serves somebody is followed at once.
//!
//! No thread waits for another to end a try, except for the turn itself. A pass that is due while
//! somebody tries begins after the last request, and wakes one that listens.
//!
//! # Crash points
//!
//! - A process that is killed takes its list along. Its peers find the doorbell set to ring, and
//!   nothing else.
//! - In a forked child, tickets do nothing: the list is the parent's.
//! - A try that panics, in a segment source, counts as refused, and passes the turn on. A waker's
//!   panic is caught, with no lock held.
//! - Nothing rings when a peer is killed, when other programs free space in the file system, or when
//!   a region lapses. So the listener begins a round [`RECHECK_AFTER`](crate::protocol::memory_doorbell::RECHECK_AFTER) after the last one, and nobody
//!   else polls.
//!
//! A future's waker is user code: it may poll, panic, or drop the provider. So the helper thread
//! never waits for its own exit.

#![forbid(unsafe_code)]

mod list;
mod notifier;

use crate::os::fork::PerProcess;
use crate::os::futex::{barrier, Deadline};
use crate::os::helper_thread::start_thread;
use crate::owner::chunk::ClosedChunk;
use crate::owner::limits::{AllocError, Grain, Refusal};
use crate::owner::pool::Pool;
use crate::protocol::memory_doorbell::MemoryDoorbell;
use atomic_waker::AtomicWaker;
use list::{List, Place};
use notifier::{Notifier, Shortfall};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::thread::{self, ThreadId};
use std::time::Duration;
use std::{mem, ptr};

/// How long a refused request waits for memory that the helper thread has obtained for a future that
/// was dropped. It takes microseconds if the thread has a processor.
const LONGEST_ABANDONED_TRY: Duration = Duration::from_millis(100);

pub(crate) type Delivery = Result<ClosedChunk, Refusal>;

pub(crate) struct WaitingRoom {
    list: Mutex<List>,
    /// The next request's number.
    arrivals: AtomicU64,
    notifier: Notifier,
    helper: Mutex<Helper>,
    helper_turn: Condvar,
    helper_exited: Condvar,
    /// The helper thread has ended a try for a future that was dropped meanwhile.
    abandoned_try_ended: Condvar,
    /// How many such tries have ended. Changed under the list's lock.
    abandoned_tries: AtomicU64,
    /// The doorbell if there is no control object.
    own_doorbell: MemoryDoorbell,
}

/// The helper thread. Its lock is held while the thread starts, so that of several first futures
/// one starts it. It comes before the list's, and no other request takes it.
#[derive(Default)]
struct Helper {
    is_running: bool,
    /// Set by the thread itself.
    id: Option<ThreadId>,
}

struct Waiter {
    place: Place,
    grain: Grain,
    len: usize,
    /// Set if the waiter is a thread and has the turn.
    turn: Condvar,
    /// `None` for a thread.
    waker: Option<AtomicWaker>,
    /// Set under the list's lock.
    outcome: Mutex<Option<Delivery>>,
    /// The round in which memory could not be made present for it. Changed under the list's lock.
    failed_in: AtomicU64,
}

/// Catches a panic, which the panic hook has already reported.
pub(crate) fn wake(waker: Waker) {
    if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(|| waker.wake())) {
        forget(payload);
    }
}

/// Drops what a panic has left. It is the user's: if dropping it panics, the second one is leaked.
fn forget(payload: Box<dyn Any + Send>) {
    if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        mem::forget(payload);
    }
}

impl Waiter {
    /// Called without the list's lock, as a waker is user code.
    fn wake(&self) {
        let Some(waker) = &self.waker else {
            self.turn.notify_one();
            return;
        };
        if let Some(waker) = waker.take() {
            wake(waker);
        }
    }
}

/// A try on behalf of a waiting request.
#[derive(Clone, Copy)]
struct Attempt {
    /// The address of its room.
    room: usize,
    number: u64,
}

thread_local! {
    /// What this thread tries.
    static ATTEMPT: Cell<Option<Attempt>> = const { Cell::new(None) };
}

impl WaitingRoom {
    pub(crate) fn new() -> Self {
        Self {
            list: Mutex::default(),
            arrivals: AtomicU64::new(0),
            notifier: Notifier::new(),
            helper: Mutex::default(),
            helper_turn: Condvar::new(),
            helper_exited: Condvar::new(),
            abandoned_try_ended: Condvar::new(),
            abandoned_tries: AtomicU64::new(0),
            own_doorbell: MemoryDoorbell::new(),
        }
    }

    pub(crate) fn own_doorbell(&self) -> &MemoryDoorbell {
        &self.own_doorbell
    }

    /// Rings for waiting requests, if the memory that was released may serve one. Otherwise returns
    /// how many bytes are missing, at least.
    fn notify_released(&self, pool: &Pool) -> usize {
        self.notifier
            .notify(pool.memory_doorbell(), |bytes| pool.bytes_missing(bytes))
    }

    /// Blocks until the helper thread has exited.
    pub(crate) fn close(&self, pool: &Pool) {
        let mut list = self.list.lock();
        list.is_closed = true;
        while let Some(waiter) = list.pop() {
            *waiter.outcome.lock() = Some(Err(AllocError::Interrupted.into()));
            self.note_removed(&mut list, pool);
            // The waker may hold the user's last reference, so it is also dropped unlocked.
            MutexGuard::unlocked(&mut list, move || waiter.wake());
        }
        list.end_turn();
        drop(list);
        pool.memory_doorbell().notify_all();
        self.helper_turn.notify_all();

        let mut helper = self.helper.lock();
        // A waker may close the pool on the helper thread itself.
        while helper.is_running && helper.id != Some(thread::current().id()) {
            self.helper_exited.wait(&mut helper);
        }
    }

    fn address(&self) -> usize {
        ptr::addr_of!(*self) as usize
    }

    fn attempt_here(&self) -> Option<Attempt> {
        match ATTEMPT.get() {
            Some(attempt) if attempt.room == self.address() => Some(attempt),
            _ => None,
        }
    }

    /// Returns `true` if this thread tries a waiting request of this room.
    pub(crate) fn is_trying_here(&self) -> bool {
        self.attempt_here().is_some()
    }

    /// Passes the turn on if this thread has it, because its try begins something that takes long.
    /// The request stays in its place.
    pub(crate) fn pass_turn_early(&self, pool: &Pool) {
        let Some(attempt) = self.attempt_here() else {
            return;
        };
        let mut list = self.list.lock();
        if !list.is_turn_of(attempt.number) {
            return;
        }
        let Some(waiter) = list.holder().cloned() else {
            return;
        };
        list.set_busy(&waiter);
        if waiter.place.is_future {
            list.is_helper_ready = false;
            // If the future is dropped now, a refused request does not wait for its memory.
            self.end_try(&mut list);
        }
        self.pass_turn(&mut list, pool);
        self.settle(&mut list, pool);
    }

    /// Tries a request that has the turn. If it is refused, it stays in its place, and the turn has
    /// passed on. Otherwise the caller removes it.
    fn attempt(
        &self,
        list: &mut MutexGuard<'_, List>,
        pool: &Arc<Pool>,
        waiter: &Waiter,
    ) -> Option<Delivery> {
        let number = waiter.place.number;
        let began = list.round();
        let taken = MutexGuard::unlocked(list, || {
            let room = self.address();
            // A segment source may wait for another pool's memory.
            let outer = ATTEMPT.replace(Some(Attempt { room, number }));
            let taken = panic::catch_unwind(AssertUnwindSafe(|| {
                pool.take_slow(waiter.place.class, waiter.len)
            }));
            ATTEMPT.set(outer);
            // Releases meanwhile may have missed what the try had in its hand.
            pool.notice.reset_shortfall();
            taken
        });
        let panicked = match taken {
            Ok(Err(error)) if error.is_exhausted() => None,
            Ok(delivery) => {
                if !list.is_turn_of(number) {
                    // Its search may have held chunks that others have missed.
                    list.request_pass(0);
                }
                return Some(delivery);
            }
            Err(payload) => Some(payload),
        };
        if list.is_turn_of(number) {
            list.note_refused(waiter.grain, waiter.place.size);
            self.pass_turn(list, pool);
        } else {
            list.set_failed(&waiter.place, began);
        }
        self.settle(list, pool);
        if let Some(payload) = panicked {
            panic::resume_unwind(payload);
        }
        None
    }

    /// Passes the turn on from its holder, or to the first one if nobody has it.
    fn pass_turn(&self, list: &mut MutexGuard<'_, List>, pool: &Pool) {
        let before = list.holder_number();
        while !list.pass_turn(pool) {
            MutexGuard::bump(list);
            if list.holder_number() != before {
                // Another thread has found the next one.
                return;
            }
        }
        let Some(next) = list.holder() else {
            return;
        };
        if next.place.is_future {
            self.helper_turn.notify_one();
        } else {
            next.turn.notify_one();
        }
    }

    /// Called after each change of the list, so that somebody has the turn if anybody can.
    fn settle(&self, list: &mut MutexGuard<'_, List>, pool: &Pool) {
        if list.holder().is_none() {
            let has_rung = list.has_rung(pool.memory_doorbell().count());
            if has_rung && list.rest().is_none() {
                self.begin_round(list, pool);
            } else {
                list.begin_due_pass();
            }
            self.pass_turn(list, pool);
        } else if list.must_wake_listener() {
            MutexGuard::unlocked(list, || pool.memory_doorbell().notify_all());
        }
    }

    fn begin_round(&self, list: &mut List, pool: &Pool) {
        let count = self.notifier.begin_round(pool.memory_doorbell());
        list.begin_round(count);
    }

    /// Begins a round if there is a reason, and otherwise sleeps until there may be one. The caller
    /// listens.
    fn listen(&self, list: &mut MutexGuard<'_, List>, pool: &Pool, until: Option<Deadline>) {
        let doorbell = pool.memory_doorbell();
        let count = doorbell.count();
        if list.has_rung(count) || Deadline::is_past(list.recheck_at()) {
            if let Some(rest) = list.rest() {
                let rest = Deadline::first(until, Deadline::after(rest));
                self.rest(list, rest);
                return;
            }
            self.begin_round(list, pool);
            self.pass_turn(list, pool);
        } else if list.begin_due_pass() {
            self.pass_turn(list, pool);
        } else {
            let until = Deadline::first(until, list.recheck_at());
            MutexGuard::unlocked(list, || doorbell.sleep(count, until));
        }
    }

    /// Sleeps until then, whatever rings. The caller listens.
    fn rest(&self, list: &mut MutexGuard<'_, List>, until: Option<Deadline>) {
        let (Some(holder), Some(until)) = (list.holder().cloned(), until) else {
            return;
        };
        let woken = if holder.place.is_future {
            &self.helper_turn
        } else {
            &holder.turn
        };
        woken.wait_for(list, until.time_left());
    }

    /// Called after a request was removed.
    fn note_removed(&self, list: &mut List, pool: &Pool) {
        self.notifier.set_shortest(list.shortest());
        if list.end_if_empty() {
            stop(pool);
        }
    }

    /// Removes a request, and passes its turn on. Returns `false` if it was removed before.
    fn remove(&self, list: &mut MutexGuard<'_, List>, pool: &Pool, place: &Place) -> bool {
        let is_removed = list.remove(place);
        if is_removed {
            self.note_removed(list, pool);
        }
        if list.is_turn_of(place.number) {
            self.pass_turn(list, pool);
        }
        self.settle(list, pool);
        is_removed
    }

    /// Tries a thread's request whenever it has the turn, until it is served or `until`.
    fn wait_for_turns(
        &self,
        pool: &Arc<Pool>,
        waiter: &Arc<Waiter>,
        until: Option<Deadline>,
    ) -> Option<Delivery> {
        let number = waiter.place.number;
        let mut list = self.list.lock();
        list.set_ready(&waiter.place);
        self.settle(&mut list, pool);
        loop {
            if let Some(outcome) = waiter.outcome.lock().take() {
                return Some(outcome);
            }
            let has_turn = list.is_turn_of(number);
            if has_turn && !list.is_listening() {
                // Also after the deadline: the turn stands for memory that was released.
                if let Some(delivery) = self.attempt(&mut list, pool, waiter) {
                    list.note_served();
                    self.remove(&mut list, pool, &waiter.place);
                    return Some(delivery);
                }
            } else if Deadline::is_past(until) {
                break;
            } else if has_turn {
                self.listen(&mut list, pool, until);
            } else if let Some(until) = until {
                waiter.turn.wait_for(&mut list, until.time_left());
            } else {
                waiter.turn.wait(&mut list);
            }
        }
        list.set_busy(waiter);
        if list.is_turn_of(number) {
            self.pass_turn(&mut list, pool);
        }
        self.settle(&mut list, pool);
        None
    }
}

// The helper thread.
impl WaitingRoom {
    fn help(&self, pool: Arc<Pool>) {
        self.helper.lock().id = Some(thread::current().id());
        loop {
            self.serve_futures(&pool);
            let mut helper = self.helper.lock();
            // A future joins under that lock.
            if self.list.lock().has_futures() {
                continue;
            }
            // First, so that a thread that closes the pool has the last reference.
            drop(pool);
            *helper = Helper::default();
            self.helper_exited.notify_all();
            return;
        }
    }

    /// Takes the turns of futures until there is none.
    fn serve_futures(&self, pool: &Arc<Pool>) {
        let mut list = self.list.lock();
        loop {
            if !list.has_futures() && !list.is_turn_of_future() {
                list.is_helper_ready = false;
                return;
            }
            if !list.is_helper_ready {
                list.helper_is_ready();
                self.settle(&mut list, pool);
            }
            if !list.is_turn_of_future() {
                self.helper_turn.wait(&mut list);
            } else if list.is_listening() {
                self.listen(&mut list, pool, None);
            } else if let Some(waiter) = list.holder().cloned() {
                self.serve_future(&mut list, pool, &waiter);
            }
        }
    }

    fn serve_future(
        &self,
        list: &mut MutexGuard<'_, List>,
        pool: &Arc<Pool>,
        waiter: &Arc<Waiter>,
    ) {
        let place = &waiter.place;
        if !list.is_waiting(place) {
            // It was dropped after it got the turn.
            self.pass_turn(list, pool);
            self.settle(list, pool);
            return;
        }
        list.begin_try(place);
        let result = panic::catch_unwind(AssertUnwindSafe(|| self.attempt(list, pool, waiter)));
        let delivery = match result {
            Ok(Some(delivery)) => delivery,
            Ok(None) => {
                self.end_try(list);
                return;
            }
            Err(payload) => {
                self.end_try(list);
                MutexGuard::unlocked(list, || forget(payload));
                return;
            }
        };
        list.note_served();
        // The waker may take long.
        list.is_helper_ready = false;
        if list.is_listed(place) {
            *waiter.outcome.lock() = Some(delivery);
            self.end_try(list);
            self.remove(list, pool, place);
            MutexGuard::unlocked(list, || waiter.wake());
            return;
        }
        self.remove(list, pool, place);
        if let Ok(chunk) = delivery {
            MutexGuard::unlocked(list, || Pool::release(chunk));
        }
        self.end_try(list);
    }

    fn end_try(&self, list: &mut List) {
        if list.is_try_abandoned() {
            // Release: a request that counts this try sees the memory that it has released.
            self.abandoned_tries.fetch_add(1, Ordering::Release);
            self.abandoned_try_ended.notify_all();
        }
        list.end_try();
    }

    /// Returns how many tries have ended whose futures were dropped meanwhile.
    pub(crate) fn abandoned_tries(&self) -> u64 {
        // Partner: the Release in `end_try`.
        self.abandoned_tries.load(Ordering::Acquire)
    }

    /// The helper thread may have memory in its hand for a future that was dropped meanwhile. Blocks
    /// until it is released, at most [`LONGEST_ABANDONED_TRY`], unless the thread makes it present.
    /// Returns `false` if there has been none since there were `before` such tries.
    pub(crate) fn await_abandoned_try(&self, before: u64) -> bool {
        if self.is_trying_here() {
            return false;
        }
        let mut list = self.list.lock();
        if list.is_try_abandoned() {
            self.abandoned_try_ended
                .wait_for(&mut list, LONGEST_ABANDONED_TRY);
            return true;
        }
        // One has ended since this request began to search, which may have missed its memory.
        self.abandoned_tries() != before
    }
}

/// A request's place in the list. Leaves it on drop.
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
        let need = pool.demand(class, len);
        let place = Place {
            size: need.size,
            class,
            is_future: !is_thread,
            number: room.arrivals.fetch_add(1, Ordering::Relaxed),
        };
        let waker = if is_thread {
            None
        } else {
            Some(AtomicWaker::new())
        };
        let waiter = Arc::new(Waiter {
            place,
            grain: need.grain,
            len,
            turn: Condvar::new(),
            waker,
            outcome: Mutex::new(None),
            failed_in: AtomicU64::new(u64::MAX),
        });
        let ticket = Self {
            pool: pool.clone(),
            waiter,
        };
        if room.list.lock().is_closed {
            return Err(AllocError::Interrupted.into());
        }

        // Until the future is listed, so that the helper thread does not exit before.
        let mut helper = None;
        if !is_thread {
            let mut locked = room.helper.lock();
            if !locked.is_running {
                start_helper(pool)?;
                locked.is_running = true;
            }
            helper = Some(locked);
        }

        let mut list = room.list.lock();
        if list.is_closed {
            return Err(AllocError::Interrupted.into());
        }
        let before = list.shortest();
        list.join(ticket.waiter.clone());
        room.notifier.set_shortest(list.shortest());
        if before.is_none() {
            listen(pool);
        }
        // Threads that release memory must see what has changed, before the first try.
        let needs_barrier = list.begin_barrier(before);
        drop(list);
        drop(helper);
        if needs_barrier {
            barrier::heavy();
            // After the barrier: a check that has missed the new length has its threshold replaced.
            pool.notice.reset_shortfall();
            room.list.lock().end_barrier();
        }

        if !is_thread {
            let mut list = room.list.lock();
            list.set_ready(&place);
            room.settle(&mut list, pool);
        }
        Ok(ticket)
    }

    pub(crate) fn wait(self, until: Option<Deadline>) -> Option<Delivery> {
        self.wait_and(until, || None)
    }

    /// Calls `collect` before the first try, and again after each pause that it returns. What it
    /// collects rings the doorbell.
    pub(crate) fn wait_and(
        self,
        until: Option<Deadline>,
        mut collect: impl FnMut() -> Option<Duration>,
    ) -> Option<Delivery> {
        let room = &self.pool.waiting;
        while !Deadline::is_past(until) {
            let pause = match collect() {
                Some(pause) => Deadline::after(pause),
                None => None,
            };
            let until = Deadline::first(until, pause);
            let outcome = room.wait_for_turns(&self.pool, &self.waiter, until);
            if outcome.is_some() {
                return outcome;
            }
        }
        let outcome = self.leave();
        if outcome.is_some() {
            return outcome;
        }
        // Once more: no turn may have come, whatever the others do.
        collect();
        match self
            .pool
            .take_slow(self.waiter.place.class, self.waiter.len)
        {
            Err(error) if error.is_exhausted() => None,
            taken => Some(taken),
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
        let place = &self.waiter.place;
        let mut list = room.list.lock();
        if !place.is_future {
            room.remove(&mut list, &self.pool, place);
        } else if list.remove(place) {
            room.note_removed(&mut list, &self.pool);
            // The helper thread passes on the turn of a future that it may be trying.
            let was_listening = list.is_turn_of(place.number) && list.is_listening();
            if was_listening {
                room.pass_turn(&mut list, &self.pool);
            }
            room.settle(&mut list, &self.pool);
            if !list.has_futures() {
                room.helper_turn.notify_one();
            }
            if was_listening && !(list.is_turn_of_future() && list.is_listening()) {
                // The helper thread sleeps on the doorbell, and has no reason left.
                list.note_own_ring();
                drop(list);
                self.pool.memory_doorbell().notify_all();
            }
        }
        self.waiter.outcome.lock().take()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // In a forked child the list is the parent's.
        if self.pool.is_ours() {
            if let Some(Ok(chunk)) = self.leave() {
                Pool::release(chunk);
            }
        }
    }
}

fn start_helper(pool: &Arc<Pool>) -> Result<(), Refusal> {
    let room = pool.waiting.clone();
    let pool = pool.clone();
    let help = move || {
        if panic::catch_unwind(AssertUnwindSafe(|| room.help(pool))).is_err() {
            *room.helper.lock() = Helper::default();
            room.helper_exited.notify_all();
        }
    };
    start_thread("shm-pool-wait", "a thread that waits for memory", help)?;
    Ok(())
}

#[repr(align(128))]
struct Flag {
    /// The number of listening pools with this notice. Every drop of a buffer reads it.
    listening: AtomicUsize,
    /// Used only while a pool listens. Loom's atomics cannot be in a static.
    #[cfg(not(all(test, loom)))]
    shortfall: Shortfall,
}

#[allow(clippy::declare_interior_mutable_const)] // the initial value of each flag
const UNSET: Flag = Flag {
    listening: AtomicUsize::new(0),
    #[cfg(not(all(test, loom)))]
    shortfall: Shortfall::new(),
};

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

    /// To be called after a release of that many bytes.
    #[inline]
    pub(crate) fn notify_released(self, bytes: usize) {
        barrier::light();
        // Relaxed: the heavy side of the barrier orders it (see `memory_doorbell`).
        if self.flag().listening.load(Ordering::Relaxed) != 0 {
            self.notify(bytes);
        }
    }

    #[inline]
    fn flag(self) -> &'static Flag {
        &FLAGS[usize::from(self.0)]
    }

    #[cold]
    fn notify(self, bytes: usize) {
        if self.shortfall().note_released(bytes) {
            self.check();
        }
    }

    /// To be called after a change that may serve a waiting request, and is no release.
    pub(crate) fn notify_changed(self) {
        barrier::light();
        if self.flag().listening.load(Ordering::Relaxed) != 0 {
            self.shortfall().reset();
            self.check();
        }
    }

    /// Has the next release check whether it serves a waiting request.
    fn reset_shortfall(self) {
        self.shortfall().reset();
    }

    #[cfg(not(all(test, loom)))]
    fn shortfall(self) -> &'static Shortfall {
        &self.flag().shortfall
    }

    #[cfg(all(test, loom))]
    fn shortfall(self) -> &'static Shortfall {
        unreachable!("no pool listens in a model")
    }

    /// Rings for waiting requests of pools with this notice, if there is enough for one.
    fn check(self) {
        // In a forked child, the flag may be set by the parent, which has no list here.
        let Some(pools) = POOLS.existing() else {
            return;
        };
        // Under the lock, which a closing pool needs to leave the list. So this is never the last
        // reference.
        let pools = pools.lock();
        self.shortfall().check(|| {
            let mut missing = usize::MAX;
            for pool in pools.iter() {
                let Some(pool) = pool.upgrade() else {
                    continue;
                };
                if pool.notice == self {
                    missing = missing.min(pool.waiting.notify_released(&pool));
                }
            }
            missing
        });
    }
}

/// From now on, threads that release memory of the pool ring its doorbell. The caller runs the heavy
/// barrier.
fn listen(pool: &Arc<Pool>) {
    POOLS.get().lock().push(Arc::downgrade(pool));
    pool.notice.flag().listening.fetch_add(1, Ordering::Relaxed);
    pool.memory_doorbell().listen(true);
}

fn stop(pool: &Pool) {
    let Some(pools) = POOLS.existing() else {
        return;
    };
    pools
        .lock()
        .retain(|listener| !ptr::eq(listener.as_ptr(), pool));
    pool.notice.flag().listening.fetch_sub(1, Ordering::Relaxed);
    pool.memory_doorbell().listen(false);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::{Namespace, Provider};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::Duration;

    const MIB: usize = 1 << 20;

    /// A thread that makes and destroys chunks does not wake a request that cannot be served.
    #[test]
    fn hopeless_request_is_not_woken() {
        let name = format!("shm_pool-unit-{}-hopeless", std::process::id());
        let provider = Provider::builder()
            .namespace(&Namespace::new(&name).unwrap())
            .max_bytes(4 * MIB)
            .build()
            .unwrap();
        let in_use = provider.alloc(64).unwrap();
        let pool = provider.pool();
        let is_served = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let all = provider.request(4 * MIB).wait().unwrap();
                is_served.store(true, Ordering::Relaxed);
                drop(all);
            });
            while !pool.waiting.list.lock().is_listening() {
                thread::yield_now();
            }
            let before = pool.memory_doorbell().count();
            for pages in 1..200 {
                drop(provider.alloc(pages * 4096));
            }
            assert_eq!(pool.memory_doorbell().count(), before, "it was woken");
            assert!(!is_served.load(Ordering::Relaxed));
            drop(in_use);
        });
    }

    /// One that might be served is woken at most once for each of its tries.
    #[test]
    fn one_ring_a_round() {
        let name = format!("shm_pool-unit-{}-rings", std::process::id());
        let provider = Provider::builder()
            .namespace(&Namespace::new(&name).unwrap())
            .max_bytes(4 * MIB)
            .build()
            .unwrap();
        let held: Vec<_> = std::iter::from_fn(|| provider.alloc(60_000).ok()).collect();
        let pool = provider.pool();
        thread::scope(|scope| {
            let waits = scope.spawn(|| provider.alloc_timeout(MIB, Duration::from_secs(60)));
            while !pool.waiting.list.lock().is_listening() {
                thread::yield_now();
            }
            let before = (
                pool.memory_doorbell().count(),
                pool.waiting.list.lock().round(),
            );
            for buffer in held {
                drop(buffer);
            }
            let rings = pool.memory_doorbell().count() - before.0;
            let rounds = pool.waiting.list.lock().round() - before.1;
            assert!(
                u64::from(rings) <= rounds + 1,
                "{rings} rings for {rounds} rounds"
            );
            assert!(waits.join().unwrap().is_ok());
        });
    }

    /// The doorbell of a pool rings as soon as enough is released, whatever a request of another pool
    /// with the same notice lacks.
    #[test]
    fn pools_that_share_a_notice() {
        let name = format!("shm_pool-unit-{}-notices", std::process::id());
        let namespace = Namespace::new(&name).unwrap();
        let build = || {
            let builder = Provider::builder().namespace(&namespace);
            builder.max_bytes(4 * MIB).build().unwrap()
        };
        let hopeless = build();
        let pool = loop {
            let provider = build();
            if provider.pool().notice == hopeless.pool().notice {
                break provider;
            }
        };
        let in_use = hopeless.alloc(64).unwrap();
        let first = pool.alloc(2 * MIB).unwrap();
        let second = pool.alloc(2 * MIB).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| hopeless.request(4 * MIB).wait().unwrap());
            scope.spawn(|| pool.request(3 * MIB).wait().unwrap());
            for provider in [&hopeless, &pool] {
                while !provider.pool().waiting.list.lock().is_listening() {
                    thread::yield_now();
                }
            }
            let doorbell = pool.pool().memory_doorbell();
            let before = doorbell.count();
            drop(first);
            assert_eq!(doorbell.count(), before, "it is too little");
            drop(second);
            assert_eq!(doorbell.count(), before + 1, "it is enough");
            drop(in_use);
        });
    }
}
