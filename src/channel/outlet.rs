//! One receiver of a publisher: what is made of its rule, message by message.

#![forbid(unsafe_code)]

use super::borrower::SentBuffer;
use super::branch::{Branch, Patience};
use super::error::SendErrorKind;
use super::message;
use super::ring::Words;
use super::rules::OnFull;
use crate::owner::buf::ShmBuf;
use std::time::Duration;

/// One receiver of a publisher.
pub(super) struct Outlet {
    pub(super) branch: Branch,
    pub(super) id: u64,
    /// How many messages it was not sent, modulo 2^32.
    pub(super) left_out: u32,
    /// How many it did not get, those that were withdrawn included.
    pub(super) dropped: u64,
    /// The number of the loan of the message that is being sent, or 0 if it has none. `None` if
    /// this receiver does not get it.
    pub(super) turn: Option<usize>,
}

/// A receiver of a [`Publisher`](super::Publisher), as it was at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceiverState {
    /// Random, and part of the name of the object that the two share:
    /// `{prefix}.{channel}.{id:016x}.branch`.
    pub id: u64,
    /// What happens when it is behind.
    pub on_full: OnFull,
    /// How many messages it may be behind.
    pub capacity: usize,
    /// How many messages wait for it. Unless it keeps the latest, this includes the one that it has
    /// received last, until it asks for the next.
    pub waiting: usize,
    /// How many buffers it has, received or not.
    pub lent: usize,
    /// How many messages it did not get since it came: those that were withdrawn, and those that
    /// were never sent to it.
    pub dropped: u64,
}

impl Outlet {
    /// Makes room for a receiver that is waited for. With `is_buffer`, for a loan too.
    #[inline]
    pub(super) fn wait(&mut self, is_buffer: bool, budget: Duration, patience: Patience) -> Result<(), SendErrorKind> {
        let branch = &mut self.branch;
        if !branch.is_ready() {
            match branch.wait_for_room(budget, patience) {
                // It is let go of next time.
                Err(SendErrorKind::Disconnected) => return Ok(()),
                done => done?,
            }
        }
        self.turn = if is_buffer { branch.free_loan() } else { Some(0) };
        match self.turn {
            Some(_) => Ok(()),
            None => Err(SendErrorKind::TooManyLent { max: branch.object.shared().loans() }),
        }
    }

    /// Makes room without waiting, if the receiver's rule has any made.
    #[inline]
    pub(super) fn make_room(&mut self, is_buffer: bool) {
        let branch = &mut self.branch;
        let is_latest = branch.on_full == OnFull::KeepLatest;
        let is_ready = branch.is_ready() || branch.has_room();
        if !is_ready && !is_latest {
            return self.leave_out();
        }
        self.turn = if is_buffer { branch.free_loan() } else { Some(0) };
        if self.turn.is_none() && is_latest && branch.withdraw_buffer() {
            self.dropped += 1;
            self.turn = branch.free_loan();
        }
        if self.turn.is_none() {
            return self.leave_out();
        }
        if !is_ready {
            self.dropped += u64::from(self.branch.withdraw());
        }
    }

    #[cold]
    fn leave_out(&mut self) {
        self.turn = None;
        self.left_out = self.left_out.wrapping_add(1);
        self.dropped += 1;
    }

    /// Sends a buffer, under the number of this turn.
    #[inline]
    pub(super) fn lend(&mut self, place: (u64, u64, u64), buffer: ShmBuf) {
        let (Some(number), (segment, offset, len)) = (self.turn, place) else { return };
        let place = SentBuffer { number: number as u32, segment, offset, len };
        self.branch.lend(number, buffer);
        self.branch.fill(&message::of_buffer(self.branch.count(), &place, self.left_out));
    }

    #[inline]
    pub(super) fn fill(&mut self, words: Words) {
        if self.turn.is_some() {
            self.branch.fill(&message::after(words, self.left_out));
        }
    }

    pub(super) fn state(&self) -> ReceiverState {
        ReceiverState {
            id: self.id,
            on_full: self.branch.on_full,
            capacity: self.branch.object.capacity(),
            waiting: self.branch.waiting(),
            lent: self.branch.lent(),
            dropped: self.dropped,
        }
    }
}
