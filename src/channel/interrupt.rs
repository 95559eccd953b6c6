//! Interrupts: another thread ends a wait.
//!
//! The flag is private to the process. Who waits reads it where it asks whether it is ready, after
//! the fence S2 of `bell`; who interrupts sets it, fences, and makes the sleeper look
//! ([`Bell::rouse`](super::bell::Bell::rouse)). So the wait sees the flag, or is woken and sees it
//! then. A message or room that is there goes first, so the warm path does not read the flag.

#![forbid(unsafe_code)]

use super::end::End;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Whether an end's wait is to end, and its bell.
pub(super) struct Interrupts {
    is_set: AtomicBool,
    end: End,
}

impl Interrupts {
    pub(super) fn new(end: End) -> Self {
        Self { is_set: AtomicBool::new(false), end }
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
        // In a forked child the sleeper is the parent's.
        if self.end.is_ours() {
            self.is_set.store(true, Ordering::Release);
            self.end.bell().rouse();
        }
    }
}

/// Interrupts the waits of one [`Receiver`](super::Receiver) or [`Sender`](super::Sender), from any
/// thread. Made by their `interrupter` methods.
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
