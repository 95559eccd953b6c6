//! Interrupts: another thread of the process ends a wait.
//!
//! The flag is private to the process. A waiting thread reads it in its readiness check, after the
//! fence S2 of `bell`; the interrupting thread sets it, fences, and rouses the sleeper
//! ([`Bell::rouse`](super::bell::Bell::rouse)). So the waiting thread either sees the flag, or is
//! woken and sees it then. A message or a free slot takes precedence, so the fast path does not
//! read the flag.

#![forbid(unsafe_code)]

use super::end::End;
use super::meeting::Page;
use crate::os::fork;
use parking_lot::Mutex;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// The interrupt flag, and where the wait sleeps.
pub(super) struct Interrupts {
    is_set: AtomicBool,
    asleep: Mutex<Asleep>,
    fork_epoch: u64,
}

/// Where a wait sleeps, or last slept.
pub(super) enum Asleep {
    Nowhere,
    AtBell(End),
    /// The publisher, waiting for a receiver to join.
    AtMeeting(Arc<Page>),
}

impl Interrupts {
    pub(super) fn new() -> Arc<Self> {
        let (is_set, asleep) = (AtomicBool::new(false), Mutex::new(Asleep::Nowhere));
        Arc::new(Self { is_set, asleep, fork_epoch: fork::epoch() })
    }

    /// Records where the next wait sleeps. Must precede the check of the flag: an interrupt before
    /// this call has set the flag by then; a later one wakes the sleeper recorded here.
    pub(super) fn aim(&self, asleep: Asleep) {
        *self.asleep.lock() = asleep;
    }

    /// Returns `true` if an interrupt is pending.
    pub(super) fn is_set(&self) -> bool {
        // Acquire: partner of the Release in `set`. The fences S2 and in `rouse` order it with the
        // bell.
        self.is_set.load(Ordering::Acquire)
    }

    /// Returns `true` if an interrupt was pending, and clears it. Only the end's own thread calls
    /// this.
    pub(super) fn take(&self) -> bool {
        self.is_set() && self.is_set.swap(false, Ordering::AcqRel)
    }

    fn set(&self) {
        // In a forked child the sleeper is the parent's, and a thread may have held the lock at the
        // fork.
        if self.fork_epoch != fork::epoch() {
            return;
        }
        self.is_set.store(true, Ordering::Release);
        match &*self.asleep.lock() {
            Asleep::Nowhere => {}
            Asleep::AtBell(end) => end.bell().rouse(),
            Asleep::AtMeeting(page) => page.rouse(),
        }
    }
}

/// Interrupts the waits of one [`Receiver`](super::Receiver), [`Sender`](super::Sender) or
/// [`Publisher`](super::Publisher), from any thread. Created by their `interrupter` methods.
///
/// An interrupt ends the current wait, or else stays pending and ends the next one that would sleep
/// or spin. That wait returns `Interrupted` and clears the interrupt; several interrupts in a row
/// count as one. A call that need not wait succeeds, and leaves the interrupt pending: a receiver
/// gets the messages that have arrived, a sender uses the free slots. Futures are not interrupted;
/// drop them.
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

    /// Interrupts the current wait, or the next one. Does nothing if the end has been dropped, or
    /// in a forked child. Never blocks; makes at most one system call.
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
