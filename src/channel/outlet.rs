//! One receiver of a publisher: applies its rule to each message.

#![forbid(unsafe_code)]

use super::branch::{Branch, Patience};
use super::error::SendErrorKind;
use super::message;
use super::ring::{OnFull, Words};
use crate::owner::buf::ShmBuf;
use std::time::Duration;

/// One receiver of a publisher.
pub(super) struct Outlet {
    pub(super) branch: Branch,
    pub(super) id: u64,
    /// How many messages were not sent to it, modulo 2^32.
    pub(super) left_out: u32,
    /// How many messages it did not get, including withdrawn ones.
    pub(super) dropped: u64,
    /// `true` if this receiver gets the message being sent.
    pub(super) is_taker: bool,
}

/// A snapshot of a receiver of a [`Publisher`](super::Publisher).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceiverState {
    /// A random id, part of the name of the object that publisher and receiver share:
    /// `{prefix}.{channel}.{id:016x}.branch`.
    pub id: u64,
    /// The rule for when it falls behind.
    pub on_full: OnFull,
    /// How many messages it may be behind.
    pub capacity: usize,
    /// How many messages wait for it. Unless the rule is [`OnFull::KeepLatest`], this includes the
    /// last one received, until the receiver asks for the next.
    pub waiting: usize,
    /// How many buffers it holds, received or not.
    pub lent: usize,
    /// How many messages it has missed since it joined: those withdrawn, and those never sent to
    /// it.
    pub dropped: u64,
}

impl Outlet {
    /// Waits until a receiver with [`OnFull::Wait`] has room and, with `is_buffer`, a loan.
    #[inline]
    pub(super) fn wait(&mut self, is_buffer: bool, budget: Duration, patience: Patience) -> Result<(), SendErrorKind> {
        match self.branch.reserve(is_buffer, budget, patience) {
            // The next send drops its branch.
            Err(SendErrorKind::Disconnected) => {}
            reserved => {
                reserved?;
                self.is_taker = true;
            }
        }
        Ok(())
    }

    /// Finds room without waiting, withdrawing a buffer for its loan if the receiver's rule says
    /// so.
    #[inline]
    pub(super) fn make_room(&mut self, is_buffer: bool) {
        let branch = &mut self.branch;
        let has_room = branch.is_ready() || branch.has_room();
        self.is_taker = has_room && branch.has_loan(is_buffer);
        if has_room && !self.is_taker && branch.on_full == OnFull::KeepLatest && branch.withdraw_buffer() {
            self.dropped += 1;
            self.is_taker = branch.has_loan(is_buffer);
        }
        if !self.is_taker {
            self.leave_out();
        }
    }

    /// Checks for room for the next message, and withdraws one if the receiver's rule says so.
    #[inline]
    pub(super) fn look_for_room(&mut self) {
        self.dropped += u64::from(self.branch.look_for_room());
    }

    #[cold]
    fn leave_out(&mut self) {
        self.left_out = self.left_out.wrapping_add(1);
        self.dropped += 1;
    }

    #[inline]
    pub(super) fn lend(&mut self, place: (u64, u64, u64), buffer: ShmBuf) {
        if self.is_taker {
            self.branch.lend(place, buffer, self.left_out);
        }
    }

    #[inline]
    pub(super) fn fill(&mut self, words: &Words) {
        if self.is_taker {
            self.branch.fill(&message::after(words, self.left_out));
        }
    }

    pub(super) fn state(&self) -> ReceiverState {
        ReceiverState {
            id: self.id,
            on_full: self.branch.on_full,
            capacity: self.branch.object.shared().capacity(),
            waiting: self.branch.waiting(),
            lent: self.branch.lent(),
            dropped: self.dropped,
        }
    }
}
