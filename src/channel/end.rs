//! A sleeper's end of a channel: the bell, the mapping that holds it, and its wakers.

#![forbid(unsafe_code)]

use super::bell::{Bell, Look, Woken};
use super::helper::Awaited;
use super::interrupt::{Asleep, Interrupts};
use super::layout::Shared;
use super::spin;
use crate::error::OsError;
use crate::os::fork;
use crate::os::futex::Deadline;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

/// A bell and its mapping.
#[derive(Clone)]
pub(super) struct End {
    shared: Arc<Shared>,
    bell: fn(&Shared) -> &Bell,
    fork_epoch: u64,
}

impl End {
    pub(super) fn bell(&self) -> &Bell {
        (self.bell)(&self.shared)
    }

    /// Returns `true` in the process that created the end, and `false` in a forked child.
    pub(super) fn is_ours(&self) -> bool {
        self.fork_epoch == fork::epoch()
    }
}

/// One side's end, on which a thread or a task sleeps.
pub(super) struct Sleeper {
    end: End,
    interrupts: Arc<Interrupts>,
    pub(super) look: Look,
    /// Created by the first await; dropped when a thread waits, so that the helper does not wake in
    /// vain.
    awaited: Option<Awaited>,
}

impl Sleeper {
    /// Returns the end that sleeps on this bell of the object.
    pub(super) fn new(shared: &Arc<Shared>, bell: fn(&Shared) -> &Bell, interrupts: Arc<Interrupts>) -> Self {
        let end = End { shared: shared.clone(), bell, fork_epoch: fork::epoch() };
        Self { end, interrupts, look: Look::new(), awaited: None }
    }

    pub(super) fn interrupts(&self) -> &Arc<Interrupts> {
        &self.interrupts
    }

    /// Returns the bell to sleep on.
    #[inline]
    pub(super) fn bell(&self) -> &Bell {
        self.end.bell()
    }

    /// See [`Bell::look_for_ringer`].
    pub(super) fn look_for_ringer(&mut self, is_there: impl Fn() -> bool) {
        self.end.bell().look_for_ringer(&mut self.look, is_there);
    }

    /// Leaves the helper: from now on a thread sleeps on the bell itself.
    pub(super) fn leave_helper(&mut self) {
        self.awaited = None;
        self.aim();
    }

    /// Blocks until `is_ready` returns `true`, the ringer has left, or the wait was interrupted: spins
    /// for at most `budget`, then sleeps. `is_there` is as in [`Bell::wait`].
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

    /// Registers `waker` to be woken when the end may be ready or its ringer has left. If either is
    /// already the case, returns that instead. `is_there` is as in [`Bell::wait`].
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
            // Leave on the ringer's behalf. Anything it made ready before it died is visible now.
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

    /// Deregisters the task's waker.
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
