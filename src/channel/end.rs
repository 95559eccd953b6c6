//! What a sleeper has of its end of a channel: the bell, what keeps it mapped, and who may wake it.

#![forbid(unsafe_code)]

use super::bell::{Bell, Woken};
use super::helper::Awaited;
use super::interrupt::Interrupts;
use super::object::Shared;
use crate::error::OsError;
use crate::os::fork;
use std::sync::Arc;
use std::task::Waker;

/// A bell, and what keeps it mapped.
#[derive(Clone)]
pub(super) struct End {
    shared: Arc<Shared>,
    bell: fn(&Shared) -> &Bell,
    fork_epoch: u64,
}

impl End {
    /// The end that sleeps on this bell of the object.
    pub(super) fn new(shared: &Arc<Shared>, bell: fn(&Shared) -> &Bell) -> Self {
        Self { shared: shared.clone(), bell, fork_epoch: fork::epoch() }
    }

    pub(super) fn bell(&self) -> &Bell {
        (self.bell)(&self.shared)
    }

    /// Is this the process that made the end, and not a forked child?
    pub(super) fn is_ours(&self) -> bool {
        self.fork_epoch == fork::epoch()
    }
}

/// One side's end, to sleep on: in a thread, or as a task.
pub(super) struct Sleeper {
    end: End,
    interrupts: Arc<Interrupts>,
    /// Made by the first await; ended by a wait in a thread, for which the helper would wake in
    /// vain.
    awaited: Option<Awaited>,
}

impl Sleeper {
    pub(super) fn new(shared: &Arc<Shared>, bell: fn(&Shared) -> &Bell) -> Self {
        let end = End::new(shared, bell);
        Self { interrupts: Arc::new(Interrupts::new(end.clone())), end, awaited: None }
    }

    pub(super) fn interrupts(&self) -> &Arc<Interrupts> {
        &self.interrupts
    }

    /// From now on a thread sleeps on the bell itself.
    pub(super) fn leave_helper(&mut self) {
        self.awaited = None;
    }

    /// Has `waker` woken when the end may be ready, or its ringer is gone. If it is, or has,
    /// returns that instead. `is_there` is as in [`Bell::wait`].
    ///
    /// Fails if the helper thread cannot be started.
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
            // Leave in the ringer's place. What it made ready before it died is found now.
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

    /// The task does not sleep any more.
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
