//! How one end of a channel waits: a thread or a task sleeps on its doorbell. A thread's wait may
//! be interrupted (see `interrupt`).
//!
//! # The helper
//!
//! A *helper* is a thread that sleeps for the tasks of this process that await a channel. It starts
//! with the first await, sleeps on the doorbells of all awaited ends (`futex_waitv`), wakes their
//! tasks, and exits with the last such end. An end stays with the helper until it is dropped or a
//! thread waits on it: a message costs the task no system call and no lock. A future that is ready
//! when first polled never involves the helper.
//!
//! The steps S and W are those of `doorbell`.
//!
//! | step | the task: [`Parker::arm`] | step | the helper |
//! |---|---|---|---|
//! | T1 | register the waker | H1 | read the count, then take in new ends |
//! | T2 | add one to the count | H2 | read each doorbell |
//! | S1, S2 | set bit 31 of the doorbell, clear bit 30; fence | H3 | if no task sleeps on it, or it was notified, take the waker and wake it |
//! | S3 | if ready, return | H4 | sleep, if doorbells and count are what H1 and H2 read |
//!
//! **No wake-up is lost.** A doorbell may be notified before H2 while its task has not returned, so that
//! there is no waker to take. If the task returns before H4, T2 has changed the count, and H4
//! returns at once: the doorbell alone could have been notified once more, and have the value that
//! H2 read. If it returns after H4, the next ring wakes the helper: the kernel compares values, the
//! count last, only at the beginning. The effects of a ring that the helper sees follow T1, by S1
//! and W4.
//!
//! # More than 127 ends, and older kernels
//!
//! `futex_waitv` takes 128 words, so there is a helper for each 127 ends. Before Linux 5.16, or
//! where a filter forbids the call, there is one for each end. It sleeps on the end's doorbell
//! until that is notified; then, until the task returns by a system call, on its own count
//! (`is_idle`). If the call fails later, a helper sleeps on its count alone, a millisecond at a
//! time.
//!
//! Dropping an end marks it and wakes the helper, which may be in a waker: it unmaps the end on its
//! next pass, on older kernels within a second.
//!
//! A waker is the user's code and may poll, drop ends or panic: it is called with no lock held, and
//! a panic is caught.
//!
//! **A publisher's receivers.** A task that waits for receivers to join awaits the number of them
//! (R4 of `object`), which has no bits: H3 wakes it if that differs from the number that the task
//! knows, which it stores before T1 and compares again as S3. A number that the helper reads late is
//! an earlier one, and wakes the task once too often.
//!
//! **No death is kept from a thread.** When a notifier dies, the kernel wakes one waiter. A thread
//! that takes its end back from the helper may sleep on the doorbell before the helper has left it,
//! and then the helper may be the one that is woken. So a helper that finds an end dropped wakes
//! the doorbell's other waiters, which it has left by then.
//!
//! The helper wakes a waiting task to check its notifier's lock when [`LivenessCheck`] says so, and all
//! those together that do so once a second. It writes to no doorbell. A forked child starts its own.

#![forbid(unsafe_code)]

use super::doorbell::{is_asleep, is_notified, Doorbell, LivenessCheck, WakeReason};
use super::interrupt::Interrupts;
use super::layout::{MappedArrivals, MappedDoorbell, Shared};
use super::spin::{note_wake, spin, Adaptive};
use crate::error::OsError;
use crate::os::fork::PerProcess;
use crate::os::futex::{can_sleep_on_many, monotonic_nanos, Deadline, Futex, Words, MOST_WORDS};
use crate::os::helper_thread::start_thread;
use crate::owner::waiting::wake;
use crate::sync::{fence, fence_after_rmw, Ordering};
use atomic_waker::AtomicWaker;
use parking_lot::Mutex;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

pub(super) struct Parker {
    end: MappedDoorbell,
    interrupts: Arc<Interrupts>,
    pub(super) check: LivenessCheck,
    pub(super) adaptive: Adaptive,
    /// From the first await until a thread waits.
    awaited: Option<Awaited>,
}

impl Parker {
    pub(super) fn new(
        shared: &Arc<Shared>,
        doorbell: fn(&Shared) -> &Doorbell,
        interrupts: Arc<Interrupts>,
        check: LivenessCheck,
    ) -> Self {
        let end = MappedDoorbell::new(shared, doorbell);
        Self {
            end,
            interrupts,
            check,
            adaptive: Adaptive::new(),
            awaited: None,
        }
    }

    #[inline]
    pub(super) fn doorbell(&self) -> &Doorbell {
        self.end.doorbell()
    }

    pub(super) fn check_notifier(&mut self, is_there: impl Fn() -> bool) {
        self.end
            .doorbell()
            .check_notifier(&mut self.check, is_there);
    }

    pub(super) fn leave_helper(&mut self) {
        self.awaited = None;
    }

    /// [`Doorbell::wait`], after spinning for at most `budget`, if that is set, or else as
    /// [`Adaptive`] says.
    pub(super) fn wait(
        &mut self,
        budget: Option<Duration>,
        deadline: Option<Deadline>,
        is_ready: impl Fn() -> bool,
        is_there: impl Fn() -> bool,
    ) -> WakeReason {
        self.leave_helper();
        let Self {
            end,
            interrupts,
            check,
            adaptive,
            ..
        } = self;
        let doorbell = end.doorbell();
        let is_adaptive = budget.is_none();
        let budget = match budget {
            Some(budget) => budget,
            None => adaptive.budget(),
        };
        let mut began = None;
        let spun = spin(
            budget, &mut began, doorbell, deadline, check, interrupts, &is_ready, &is_there,
        );
        if let Some(woken) = spun {
            adaptive.grow();
            return woken;
        }
        let began = match began {
            Some(began) => began,
            None => monotonic_nanos(),
        };
        let woken = doorbell.wait(deadline, check, interrupts, is_ready, is_there);
        if is_adaptive {
            adaptive.learn(began, doorbell, woken);
        } else {
            note_wake(began);
        }
        woken
    }

    /// Notes that a wait slept, which began at that time.
    pub(super) fn learn(&mut self, began: u64, woken: WakeReason) {
        self.adaptive.learn(began, self.end.doorbell(), woken);
    }

    /// Registers `waker` to be woken when the end may be ready or its notifier has left, or returns
    /// that it already is. Fails if the helper thread cannot be started. `is_there` is as in
    /// [`Doorbell::wait`].
    pub(super) fn arm(
        &mut self,
        waker: &Waker,
        is_ready: impl Fn() -> bool,
        is_there: impl Fn() -> bool,
    ) -> Result<Option<WakeReason>, OsError> {
        let awaited = match self.awaited.take() {
            Some(awaited) => awaited,
            None => Awaited::new(AwaitedWord::Doorbell(self.end.clone()), self.check)?,
        };
        let awaited = self.awaited.insert(awaited);
        awaited.register(waker);
        let doorbell = self.end.doorbell();
        let is_disconnected = doorbell.announce_wait().is_none(); // S1, S2
        let woken = if is_ready() {
            WakeReason::Ready // S3
        } else if is_disconnected {
            WakeReason::Disconnected
        } else if awaited.is_check_due() && !is_there() {
            // Leave on the notifier's behalf. Its last message is visible now.
            doorbell.leave();
            if is_ready() {
                WakeReason::Ready
            } else {
                WakeReason::Disconnected
            }
        } else {
            return Ok(None);
        };
        self.disarm();
        Ok(Some(woken))
    }

    #[inline]
    pub(super) fn disarm(&mut self) {
        if let Some(awaited) = &mut self.awaited {
            // In a forked child the doorbell's waiter is the parent's.
            if awaited.deregister() && self.end.is_ours() {
                self.end.doorbell().end_wait();
            }
        }
    }
}

static HELPERS: PerProcess<Mutex<Vec<Arc<Helper>>>> = PerProcess::new();

struct Helper {
    /// Changes whenever the helper has to check again.
    count: Futex,
    is_idle: AtomicBool,
    most: usize,
    ends: Mutex<Ends>,
}

#[derive(Default)]
struct Ends {
    new: Vec<Watched>,
    count: usize,
    is_over: bool,
}

/// What wakes a task.
pub(super) enum AwaitedWord {
    /// Notified for an end.
    Doorbell(MappedDoorbell),
    /// Counts the receivers of a publisher, whose task knows of so many.
    Arrivals(MappedArrivals, AtomicU32),
}

impl AwaitedWord {
    pub(super) fn of_arrivals(arrivals: MappedArrivals) -> Self {
        Self::Arrivals(arrivals, AtomicU32::new(0))
    }

    fn word(&self) -> &Futex {
        match self {
            Self::Doorbell(end) => end.doorbell().word(),
            Self::Arrivals(arrivals, _) => arrivals.word(),
        }
    }

    fn is_ours(&self) -> bool {
        match self {
            Self::Doorbell(end) => end.is_ours(),
            Self::Arrivals(arrivals, _) => arrivals.is_ours(),
        }
    }

    /// H3: `word` was read after the waker was registered, or the task has not returned.
    fn is_to_wake(&self, word: u32) -> bool {
        match self {
            Self::Doorbell(_) => !is_asleep(word),
            // Relaxed: an earlier number only wakes the task once more.
            Self::Arrivals(_, known) => word != known.load(Ordering::Relaxed),
        }
    }

    fn end_wait(&self) {
        if let Self::Doorbell(end) = self {
            end.doorbell().end_wait();
        }
    }
}

struct AwaitedEnd {
    end: AwaitedWord,
    waker: AtomicWaker,
    is_dropped: AtomicBool,
    /// The task has to check its notifier.
    is_check_due: AtomicBool,
}

/// An end, as the helper sees it.
struct Watched {
    end: Arc<AwaitedEnd>,
    check: LivenessCheck,
    /// In this pass.
    is_check_due: bool,
}

pub(super) struct Awaited {
    this: Arc<AwaitedEnd>,
    helper: Arc<Helper>,
    has_waker: bool,
}

impl Awaited {
    /// Hands an end to a helper, starting one if none has room.
    pub(super) fn new(end: AwaitedWord, check: LivenessCheck) -> Result<Self, OsError> {
        let is_dropped = AtomicBool::new(false);
        let is_check_due = AtomicBool::new(false);
        let this = Arc::new(AwaitedEnd {
            end,
            waker: AtomicWaker::new(),
            is_dropped,
            is_check_due,
        });
        let mut helpers = HELPERS.get().lock();
        let helper = match helpers.iter().find(|helper| helper.add(&this, check)) {
            Some(helper) => helper.clone(),
            None => {
                let helper = Arc::new(Helper::new());
                helper.add(&this, check);
                helper.start()?;
                helpers.push(helper.clone());
                helper
            }
        };
        drop(helpers);
        helper.call();
        Ok(Self {
            this,
            helper,
            has_waker: false,
        })
    }

    /// T1 and T2.
    pub(super) fn register(&mut self, waker: &Waker) {
        self.has_waker = true;
        self.this.waker.register(waker); // T1
        self.helper.note_change(); // T2
        fence_after_rmw(); // partner: the fence in `Helper::sleep`
        if self.helper.is_idle.load(Ordering::Relaxed) {
            self.helper.count.wake();
        }
    }

    /// For a publisher that knows of so many receivers: see [`register`](Self::register). The caller
    /// then compares the number once more, as S3.
    pub(super) fn register_for_arrivals(&mut self, waker: &Waker, number: u32) {
        if let AwaitedWord::Arrivals(_, known) = &self.this.end {
            known.store(number, Ordering::Relaxed);
        }
        self.register(waker);
    }

    /// Forgets the waker. Returns `true` if one was registered since the last call.
    #[inline]
    pub(super) fn deregister(&mut self) -> bool {
        let had_waker = mem::take(&mut self.has_waker);
        if had_waker {
            drop(self.this.waker.take());
        }
        had_waker
    }

    pub(super) fn is_check_due(&self) -> bool {
        // Relaxed: it says nothing about other memory.
        self.this.is_check_due.load(Ordering::Relaxed)
            && self.this.is_check_due.swap(false, Ordering::Relaxed)
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        // In a forked child the helper has no thread.
        if !self.this.end.is_ours() {
            return;
        }
        if self.deregister() {
            self.this.end.end_wait();
        }
        // Release: partner of the Acquire in `Helper::check`.
        self.this.is_dropped.store(true, Ordering::Release);
        self.helper.call();
        if self.helper.most == 1 {
            // The helper may sleep on the doorbell alone.
            self.this.end.word().wake();
        }
    }
}

impl Helper {
    fn new() -> Self {
        // One word is the helper's own count.
        let most = if can_sleep_on_many() {
            MOST_WORDS - 1
        } else {
            1
        };
        Self {
            count: Futex::new(0),
            is_idle: AtomicBool::new(false),
            most,
            ends: Mutex::default(),
        }
    }

    fn add(&self, end: &Arc<AwaitedEnd>, check: LivenessCheck) -> bool {
        let mut ends = self.ends.lock();
        let has_room = !ends.is_over && ends.count < self.most;
        if has_room {
            ends.count += 1;
            ends.new.push(Watched {
                end: end.clone(),
                check,
                is_check_due: false,
            });
        }
        has_room
    }

    fn note_change(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    fn call(&self) {
        self.note_change();
        self.count.wake();
    }

    fn start(self: &Arc<Self>) -> Result<(), OsError> {
        let this = self.clone();
        start_thread(
            "shm-pool-await",
            "a thread that wakes the tasks that await channels",
            move || this.run(),
        )
        .map(drop)
    }

    fn run(self: Arc<Self>) {
        let mut ends = Vec::new();
        let mut to_wake = Vec::new();
        loop {
            let count = self.count.load(Ordering::SeqCst); // H1
            let (dropped, is_over) = self.update(&mut ends);
            for this in dropped {
                // A thread may sleep on it now whose wake-up the helper has got.
                this.end.word().wake();
            }
            if is_over {
                break;
            }
            begin_checks(&mut ends);
            let next_check = next_check(&ends);
            let words = self.check(&ends, &mut to_wake);
            for waker in to_wake.drain(..) {
                wake(waker);
            }
            // Saves a system call if a woken task has returned already.
            if self.count.load(Ordering::SeqCst) == count {
                self.sleep(words, count, next_check); // H4
            }
        }
        HELPERS
            .get()
            .lock()
            .retain(|helper| !Arc::ptr_eq(helper, &self));
    }

    /// Returns the ends that were dropped, and `true` if none is left.
    fn update(&self, ends: &mut Vec<Watched>) -> (Vec<Arc<AwaitedEnd>>, bool) {
        let mut shared = self.ends.lock();
        ends.append(&mut shared.new);
        let mut dropped = Vec::new();
        ends.retain(|watched| {
            // Acquire: partner of the Release in `Awaited::drop`.
            let is_dropped = watched.end.is_dropped.load(Ordering::Acquire);
            if is_dropped {
                dropped.push(watched.end.clone());
            }
            !is_dropped
        });
        shared.count = ends.len();
        shared.is_over = ends.is_empty();
        (dropped, shared.is_over)
    }

    /// H2 and H3.
    fn check<'a>(&self, ends: &'a [Watched], to_wake: &mut Vec<Waker>) -> Words<'a> {
        let mut words = Words::new();
        for watched in ends {
            let this = &watched.end;
            let awaited = this.end.word();
            // Acquire: partner of the Release in S1, in whose release sequence W4 is; T1 precedes
            // S1. Or of R4.
            let word = awaited.load(Ordering::Acquire); // H2
            if watched.is_check_due {
                this.is_check_due.store(true, Ordering::Relaxed);
            }
            if watched.is_check_due || this.end.is_to_wake(word) {
                to_wake.extend(this.waker.take()); // H3
            }
            words.push(awaited, word);
        }
        words
    }

    fn sleep<'a>(&'a self, mut words: Words<'a>, count: u32, until: Option<Deadline>) {
        if self.most > 1 {
            words.push(&self.count, count);
            words.sleep(until);
        } else {
            self.sleep_for_one(&words, count, until);
        }
    }

    /// Without `futex_waitv` a thread sleeps on one word: the doorbell of the only end, as long as
    /// it is not notified. After a notification there is nothing to wait for until the task
    /// returns: then the helper is *idle*, and sleeps on its count.
    fn sleep_for_one(&self, words: &Words<'_>, count: u32, until: Option<Deadline>) {
        if let Some((doorbell, word)) = words.last() {
            if !is_notified(word) {
                // The task clears bit 30 when it returns, which changes the word.
                doorbell.sleep_while(word, until);
                return;
            }
        }
        self.is_idle.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst); // partner: the fence in `Awaited::register`
        self.count.sleep_while(count, until);
        self.is_idle.store(false, Ordering::Relaxed);
    }
}

/// Notes which checks are due. One that is made once a second makes all others of that kind due.
fn begin_checks(ends: &mut [Watched]) {
    let is_one_due = Deadline::is_past(next_check(ends));
    let mut is_regular_due = false;
    for watched in &mut *ends {
        let is_regular = watched.check.is_regular();
        watched.is_check_due = is_one_due && watched.check.is_due();
        is_regular_due |= is_regular && watched.is_check_due;
    }
    if !is_regular_due {
        return;
    }
    for watched in ends {
        if watched.check.is_regular() && !watched.is_check_due {
            watched.check.begin_next();
            watched.is_check_due = true;
        }
    }
}

fn next_check(ends: &[Watched]) -> Option<Deadline> {
    let mut next = None;
    for watched in ends {
        next = Deadline::first(next, watched.check.time());
    }
    next
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::channel::{Receiver, Sender};
    use crate::Provider;
    use nix::unistd::{gettid, Pid};
    use std::fs;
    use std::sync::mpsc;
    use std::thread;

    const FOR_EVER: Duration = Duration::from_secs(60);

    fn wait_until_asleep(thread: Pid) {
        let in_futex = format!("{} ", libc::SYS_futex);
        let in_futex_waitv = "449 ";
        loop {
            let call = fs::read_to_string(format!("/proc/self/task/{thread}/syscall")).unwrap();
            if call.starts_with(&in_futex) || call.starts_with(in_futex_waitv) {
                return;
            }
            thread::yield_now();
        }
    }

    /// The kernel wakes one waiter when a notifier dies: the helper, if it has not left the
    /// doorbell yet when a thread takes the end back.
    #[test]
    fn helper_passes_a_death_on() {
        let name = format!("unit-helper-{}", std::process::id());
        let provider = Provider::builder().build().unwrap();
        let _sender = Sender::create(&provider, &name).unwrap();
        let receiver = Receiver::open(&name).unwrap();
        let end = receiver.end.open.as_ref().unwrap().parker.end.clone();
        let word = end.doorbell().announce_wait().unwrap();

        let (tell, threads) = mpsc::channel();
        let helper = Arc::new(Helper::new());
        let this = Arc::new(AwaitedEnd {
            end: AwaitedWord::Doorbell(end.clone()),
            waker: AtomicWaker::new(),
            is_dropped: AtomicBool::new(false),
            is_check_due: AtomicBool::new(false),
        });
        assert!(helper.add(&this, LivenessCheck::new()));
        let helping = thread::spawn({
            let tell = tell.clone();
            move || {
                tell.send(gettid()).unwrap();
                helper.run();
            }
        });
        wait_until_asleep(threads.recv().unwrap());

        // As `Awaited::drop` does, but the helper does not hear of it yet.
        this.is_dropped.store(true, Ordering::Release);
        let waiting = thread::spawn(move || {
            tell.send(gettid()).unwrap();
            let deadline = Deadline::after(FOR_EVER);
            end.doorbell().word().sleep_while(word, deadline);
            Deadline::is_past(deadline)
        });
        wait_until_asleep(threads.recv().unwrap());

        // As the kernel does. The helper has slept for longer.
        this.end.word().wake_one();
        assert!(!waiting.join().unwrap(), "the thread was not woken");
        helping.join().unwrap();
    }
}
