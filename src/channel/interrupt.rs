//! Interrupts: another thread ends a wait.
//!
//! The flag is private to the process. Who waits reads it where it asks whether it is ready, after
//! the fence S2 of `bell`; who interrupts sets it, fences, and makes the sleeper look
//! ([`Bell::rouse`](super::bell::Bell::rouse)). So the wait sees the flag, or is woken and sees it
//! then. A message or room that is there goes first, so the warm path does not read the flag.

#![forbid(unsafe_code)]

use super::end::End;
use super::meeting::Page;
use crate::os::fork;
use parking_lot::Mutex;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Whether a wait is to end, and where it sleeps.
pub(super) struct Interrupts {
    is_set: AtomicBool,
    asleep: Mutex<Asleep>,
    fork_epoch: u64,
}

/// Where a wait sleeps, or has slept last.
pub(super) enum Asleep {
    Nowhere,
    AtBell(End),
    /// The publisher, until a receiver comes.
    AtMeeting(Arc<Page>),
}

impl Interrupts {
    pub(super) fn new() -> Arc<Self> {
        let (is_set, asleep) = (AtomicBool::new(false), Mutex::new(Asleep::Nowhere));
        Arc::new(Self { is_set, asleep, fork_epoch: fork::epoch() })
    }

    /// Notes where the next wait sleeps, before it asks whether it is to end. An interrupt that
    /// comes before this note has set the flag by then; a later one wakes who sleeps there.
    pub(super) fn aim(&self, asleep: Asleep) {
        *self.asleep.lock() = asleep;
    }

    /// Is the wait to end?
    pub(super) fn is_set(&self) -> bool {
        // Acquire: partner of the Release in `set`. The fences S2 and that in `rouse` order it with
        // the bell.
        self.is_set.load(Ordering::Acquire)
    }

    /// The same, and clears it. Only the end's own thread does.
    pub(super) fn take(&self) -> bool {
        self.is_set() && self.is_set.swap(false, Ordering::AcqRel)
    }

    fn set(&self) {
        // In a forked child the sleeper is the parent's, and somebody may have held the lock.
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
/// [`Publisher`](super::Publisher), from any thread. Made by their `interrupter` methods.
///
/// An interrupt is kept until a wait takes it: it ends the wait that is going on, or else the next
/// one that would sleep or spin, which returns `Interrupted`. That clears it; several interrupts in
/// a row count as one. What needs no wait goes first: a receiver gets the messages that are there,
/// a sender uses the room that is there, and the interrupt stays. Awaits are not interrupted; drop
/// the future.
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
/// interrupter.interrupt(); // before it waits, or while it does
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

    /// Interrupts the wait that is going on, or the next one. Does nothing when the end is gone, or
    /// in a forked child. Never waits; at most one system call.
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
