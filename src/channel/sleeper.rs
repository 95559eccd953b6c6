//! How one end of a channel waits: a thread or a task sleeps on its bell, and another thread may
//! interrupt it.
//!
//! The interrupt flag is private to the process. A waiting thread reads it after the fence S2 of
//! `bell`; the interrupting thread sets it, fences, and rouses the sleeper ([`Bell::rouse`]). So
//! either the flag is seen, or the sleeper woken. Readiness takes precedence, so the fast path does
//! not read the flag.

#![forbid(unsafe_code)]

use super::bell::{spin, Bell, Look, Woken};
use super::helper::Awaited;
use super::layout::{MappedBell, MappedMeeting, Shared};
use crate::error::OsError;
use crate::os::fork;
use crate::os::futex::Deadline;
use parking_lot::Mutex;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::thread::Thread;
use std::time::Duration;

pub(super) struct Sleeper {
    end: MappedBell,
    interrupts: Arc<Interrupts>,
    pub(super) look: Look,
    /// From the first await until a thread waits.
    awaited: Option<Awaited>,
}

impl Sleeper {
    pub(super) fn new(shared: &Arc<Shared>, bell: fn(&Shared) -> &Bell, interrupts: Arc<Interrupts>) -> Self {
        let end = MappedBell::new(shared, bell);
        Self { end, interrupts, look: Look::new(), awaited: None }
    }

    pub(super) fn interrupts(&self) -> &Arc<Interrupts> {
        &self.interrupts
    }

    #[inline]
    pub(super) fn bell(&self) -> &Bell {
        self.end.bell()
    }

    pub(super) fn look_for_ringer(&mut self, is_there: impl Fn() -> bool) {
        self.end.bell().look_for_ringer(&mut self.look, is_there);
    }

    pub(super) fn leave_helper(&mut self) {
        self.awaited = None;
        self.aim();
    }

    /// [`Bell::wait`], after spinning for at most `budget`, unless interrupted.
    pub(super) fn wait(
        &mut self,
        budget: Duration,
        deadline: Option<Deadline>,
        is_ready: impl Fn() -> bool,
        is_there: impl Fn() -> bool,
    ) -> Woken {
        self.leave_helper();
        let Self { end, interrupts, look, .. } = self;
        let is_over = || is_ready() || interrupts.is_set();
        match spin(budget, end.bell(), deadline, look, is_over, is_there) {
            Woken::Ready if !is_ready() && interrupts.take() => Woken::Interrupted,
            woken => woken,
        }
    }

    /// Directs interrupts to the sleeper on the bell.
    pub(super) fn aim(&self) {
        self.interrupts.aim(Asleep::AtBell(self.end.clone()));
    }

    /// Registers `waker` to be woken when the end may be ready or its ringer has left, or returns
    /// that it already is. Fails if the helper thread cannot be started. `is_there` is as in
    /// [`Bell::wait`].
    pub(super) fn arm(
        &mut self,
        waker: &Waker,
        is_ready: impl Fn() -> bool,
        is_there: impl Fn() -> bool,
    ) -> Result<Option<Woken>, OsError> {
        let awaited = match self.awaited.take() {
            Some(awaited) => awaited,
            None => Awaited::new(self.end.clone())?,
        };
        let awaited = self.awaited.insert(awaited);
        awaited.register(waker);
        let bell = self.end.bell();
        let is_gone = bell.lie_down().is_none(); // S1, S2
        let woken = if is_ready() {
            Woken::Ready // S3
        } else if is_gone {
            Woken::Gone
        } else if awaited.is_to_look() && !is_there() {
            // Leave on the ringer's behalf. Its last message is visible now.
            bell.leave();
            if is_ready() {
                Woken::Ready
            } else {
                Woken::Gone
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
            // In a forked child the bell's sleeper is the parent's.
            if awaited.deregister() && self.end.is_ours() {
                self.end.bell().get_up();
            }
        }
    }
}

pub(super) struct Interrupts {
    is_set: AtomicBool,
    asleep: Mutex<Asleep>,
    fork_epoch: u64,
}

pub(super) enum Asleep {
    Nowhere,
    AtBell(MappedBell),
    AtMeeting(Arc<MappedMeeting>),
    Parked(Thread),
}

impl Interrupts {
    pub(super) fn new() -> Arc<Self> {
        let (is_set, asleep) = (AtomicBool::new(false), Mutex::new(Asleep::Nowhere));
        Arc::new(Self { is_set, asleep, fork_epoch: fork::epoch() })
    }

    /// Records where the next wait sleeps, before the wait checks the flag. An earlier interrupt
    /// has set the flag by then; a later one wakes the sleeper recorded here.
    pub(super) fn aim(&self, asleep: Asleep) {
        *self.asleep.lock() = asleep;
    }

    pub(super) fn is_set(&self) -> bool {
        // Acquire: partner of the Release in `set`. The fences S2 and in `rouse` order it with the
        // bell.
        self.is_set.load(Ordering::Acquire)
    }

    /// Clears the flag. Returns `true` if it was set. Only the end's own thread calls this.
    pub(super) fn take(&self) -> bool {
        self.is_set() && self.is_set.swap(false, Ordering::AcqRel)
    }

    fn set(&self) {
        // In a forked child, a thread that does not exist there may hold the lock.
        if self.fork_epoch != fork::epoch() {
            return;
        }
        self.is_set.store(true, Ordering::Release);
        match &*self.asleep.lock() {
            Asleep::Nowhere => {}
            Asleep::AtBell(end) => end.bell().rouse(),
            Asleep::AtMeeting(page) => page.rouse(),
            Asleep::Parked(thread) => thread.unpark(),
        }
    }
}

/// Interrupts the waits of one [`Receiver`](super::Receiver), [`Sender`](super::Sender) or
/// [`Publisher`](super::Publisher), from any thread.
///
/// An interrupt ends the current wait, or else the next one that would sleep or spin, which returns
/// `Interrupted`; several in a row count as one. Futures are not interrupted; drop them.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shm_pool::channel::{Receiver, RecvError, Sender};
/// use shm_pool::{Client, Provider};
///
/// # let name = format!("doc-interrupt-{}", std::process::id());
/// let provider = Provider::builder().build()?;
/// let sender = Sender::create(&provider, &name)?;
/// let mut receiver = Receiver::open(&Client::new(), &name)?;
/// let interrupter = receiver.interrupter();
/// let receiving = std::thread::spawn(move || receiver.recv().map(drop));
/// interrupter.interrupt(); // before or during the wait
/// assert!(matches!(receiving.join().unwrap(), Err(RecvError::Interrupted)));
/// # drop(sender);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Interrupter(Weak<Interrupts>);

impl Interrupter {
    pub(super) fn new(interrupts: &Arc<Interrupts>) -> Self {
        Self(Arc::downgrade(interrupts))
    }

    /// Interrupts the current or the next wait, unless the end was dropped or this is a forked
    /// child. Never blocks; makes at most one system call.
    pub fn interrupt(&self) {
        if let Some(interrupts) = self.0.upgrade() {
            interrupts.set();
        }
    }
}

impl fmt::Debug for Interrupter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_set = self.0.upgrade().map(|interrupts| interrupts.is_set());
        f.debug_struct("Interrupter").field("is_set", &is_set).finish()
    }
}
