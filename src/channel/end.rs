//! What a sleeper has of its end of a channel: the bell, what keeps it mapped, and who may wake it.

#![forbid(unsafe_code)]

use super::bell::{Bell, Woken};
use super::helper::Awaited;
use super::interrupt::{Asleep, Interrupts};
use super::layout::Shared;
use super::meeting::Page;
use crate::error::OsError;
use crate::os::fork;
use std::sync::Arc;
use std::task::Waker;

/// A bell, and what keeps it mapped.
#[derive(Clone)]
pub(super) struct End {
    bell: Place,
    fork_epoch: u64,
}

/// Where a bell is.
#[derive(Clone)]
enum Place {
    Object(Arc<Shared>, fn(&Shared) -> &Bell),
    Seat(Arc<Page>, usize),
}

impl End {
    /// The end that sleeps on this bell of the object.
    pub(super) fn of_object(shared: &Arc<Shared>, bell: fn(&Shared) -> &Bell) -> Self {
        Self { bell: Place::Object(shared.clone(), bell), fork_epoch: fork::epoch() }
    }

    /// The end that sleeps on the bell of this seat.
    pub(super) fn of_seat(page: &Arc<Page>, at: usize) -> Self {
        Self { bell: Place::Seat(page.clone(), at), fork_epoch: fork::epoch() }
    }

    pub(super) fn bell(&self) -> &Bell {
        match &self.bell {
            Place::Object(shared, bell) => bell(shared),
            Place::Seat(page, at) => page.bell(*at),
        }
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
    pub(super) fn new(end: End, interrupts: Arc<Interrupts>) -> Self {
        Self { end, interrupts, awaited: None }
    }

    pub(super) fn interrupts(&self) -> &Arc<Interrupts> {
        &self.interrupts
    }

    /// From now on a thread sleeps on the bell itself.
    pub(super) fn leave_helper(&mut self) {
        self.awaited = None;
        self.aim();
    }

    /// From now on an interrupt wakes who sleeps on the bell.
    pub(super) fn aim(&self) {
        self.interrupts.aim(Asleep::AtBell(self.end.clone()));
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
