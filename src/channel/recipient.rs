//! A receiver, as its sender or publisher sees it: its connection, its rule, and what became of the
//! last message. The receiver of a [`Sender`](super::Sender) has [`OnFull::Block`] and no limit.
//!
//! # The clock of a receiver with `OnFull::Block`
//!
//! The publisher blocks for such a receiver until a deadline, the `block_limit` after the first
//! message for which the receiver had no room. The clock spans any number of messages and calls.
//! Messages differ in size, so a receiver may lack room for a large one and have room for small
//! ones meanwhile. The clock remembers the largest size that was `refused`, and the largest one
//! that has `fitted` since.
//!
//! | clock | a message finds room | a message finds none |
//! |---|---|---|
//! | none | none | starts |
//! | runs, or has run out | stops, if the refused size fits too; else that message has `fitted` | starts anew, if the refused size fits by now, or this size has `fitted` since; else unchanged |
//!
//! So a message waits for what is left of the limit, unless the receiver has had room for its size
//! since the clock started. While the clock has run out, a message that finds no room is skipped.

#![forbid(unsafe_code)]

use super::connection::{Connection, Timeout};
use super::error::SendErrorKind;
use super::message::{self, Located, Missed, Reason};
use super::ring::{OnFull, Words};
use crate::os::futex::Deadline;
use crate::owner::buf::ShmBytes;
use crate::protocol::ids::ReceiverId;
use std::time::Duration;

/// A snapshot of a receiver of a [`Publisher`](super::Publisher).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ReceiverState {
    /// Its id, for [`Publisher::disconnect`](super::Publisher::disconnect).
    pub id: ReceiverId,
    /// The id of its process, as stated by that process, in its own PID namespace.
    pub process: Option<u32>,
    /// The rule for when it falls behind.
    pub on_full: OnFull,
    /// How many messages it may be behind.
    pub capacity: usize,
    /// How many messages wait for it.
    pub waiting: usize,
    /// How many buffers it holds, received or not.
    pub borrowed: usize,
    /// How many messages it has missed since it joined, by reason.
    pub missed: Missed,
    /// `true` if it is past the [`block_limit`](super::PublisherBuilder::block_limit) and has no room yet.
    pub is_stalled: bool,
}

pub(super) struct Recipient {
    pub(super) connection: Connection,
    pub(super) id: u64,
    process: Option<u32>,
    /// How many messages were not sent to it, modulo 2^32.
    skipped: u32,
    pub(super) missed: Missed,
    pub(super) outcome: Outcome,
    /// Of a receiver with [`OnFull::Block`].
    clock: Option<Clock>,
    /// `true` if messages were withdrawn for the one being sent.
    has_lost: bool,
    /// How often the receiver could borrow no more, and whether that holds for the last message with
    /// a buffer.
    limit_reached: u64,
    is_at_limit: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Disconnected,
    Taken,
    Skipped(Reason),
}

/// Runs since the receiver had no room. Sizes are in bytes, as in [`Connection::reserve`].
#[derive(Clone, Copy)]
struct Clock {
    end: Deadline,
    refused: usize,
    fitted: Option<usize>,
}

impl Recipient {
    /// The receiver of a [`Sender`](super::Sender).
    pub(super) fn of_pair(connection: Connection) -> Self {
        Self::new(connection, 0, None, Missed::default())
    }

    /// A receiver of a [`Publisher`](super::Publisher), which was not connected when so many
    /// messages were sent.
    pub(super) fn of_publisher(connection: Connection, id: u64, not_connected: u64) -> Self {
        let process = connection.object.receiver_process();
        let missed = Missed {
            not_connected,
            ..Missed::default()
        };
        connection.note_missed(&missed);
        Self::new(connection, id, process, missed)
    }

    fn new(connection: Connection, id: u64, process: Option<u32>, missed: Missed) -> Self {
        Self {
            connection,
            id,
            process,
            skipped: missed.not_connected as u32,
            missed,
            outcome: Outcome::Disconnected,
            clock: None,
            has_lost: false,
            limit_reached: 0,
            is_at_limit: false,
        }
    }

    pub(super) fn is_skipped_as_stalled(&self) -> bool {
        self.outcome == Outcome::Skipped(Reason::Stalled)
    }

    #[inline]
    pub(super) fn is_taker(&self) -> bool {
        self.outcome == Outcome::Taken
    }

    /// Returns `true`, and makes it a taker, if there is nothing to find out: the receiver is
    /// connected, the sender has seen that it has room, and no clock runs.
    #[inline(always)]
    pub(super) fn takes_at_once(&mut self, bytes: usize) -> bool {
        let takes = !self.connection.is_disconnected()
            && self.connection.has_room_at_hand(bytes)
            && self.clock.is_none();
        if takes {
            self.outcome = Outcome::Taken;
        }
        takes
    }

    /// Makes it a taker if it has room now and, for a buffer, may borrow it.
    pub(super) fn take_room(&mut self, bytes: usize) -> Result<(), SendErrorKind> {
        let now = Some(Duration::ZERO);
        self.connection.reserve(bytes, now, Timeout::None)?;
        if self.clock.is_some() {
            self.note_room(bytes);
        }
        self.outcome = Outcome::Taken;
        Ok(())
    }

    /// After [`take_room`](Self::take_room) failed with `kind`: waits for room, at most until the
    /// stall deadline. Returns what becomes of the message.
    #[cold]
    pub(super) fn wait_for_room(
        &mut self,
        kind: SendErrorKind,
        bytes: usize,
        budget: Option<Duration>,
        timeout: &mut Timeout,
        limit: &mut BlockLimit,
    ) -> Result<Outcome, SendErrorKind> {
        if matches!(kind, SendErrorKind::TooManyBorrowed { .. }) {
            self.reach_limit();
        }
        self.start_clock(bytes, limit);
        if self.is_stalled() {
            return Ok(Outcome::Skipped(Reason::Stalled));
        }
        timeout.begin();
        let Timeout::Until(deadline) = *timeout else {
            return Err(kind);
        };
        let until = Timeout::Until(Deadline::first(deadline, self.stall_end()));
        match self.connection.reserve(bytes, budget, until) {
            Ok(()) => {
                self.note_room(bytes);
                Ok(Outcome::Taken)
            }
            // The next send drops its connection.
            Err(SendErrorKind::Disconnected) => Ok(Outcome::Disconnected),
            Err(SendErrorKind::TimedOut) if self.is_stalled() => {
                Ok(Outcome::Skipped(Reason::Stalled))
            }
            Err(kind) => Err(kind),
        }
    }

    /// Starts the clock of a receiver that a task waits for. Reports once to the receiver that it
    /// is at its limit.
    pub(super) fn note_wait(&mut self, bytes: usize, limit: &mut BlockLimit) {
        if !self.is_at_limit && self.connection.has_room() {
            self.reach_limit();
        }
        self.start_clock(bytes, limit);
    }

    /// Returns `true` if a living receiver has no room for a message.
    pub(super) fn is_short_of(&self, bytes: usize) -> bool {
        !self.connection.is_disconnected() && !self.connection.look_for(bytes)
    }

    /// Returns `true` if a send of this message waits for the receiver.
    pub(super) fn is_waited_for(&self, bytes: usize) -> bool {
        !self.is_stalled() && self.is_short_of(bytes)
    }

    /// Returns `true` if the clock has run out.
    fn is_stalled(&self) -> bool {
        match &self.clock {
            Some(clock) => clock.end.has_passed(),
            None => false,
        }
    }

    pub(super) fn stall_end(&self) -> Option<Deadline> {
        self.clock.map(|clock| clock.end)
    }

    /// A message finds no room: starts the clock, or leaves it as it is.
    pub(super) fn start_clock(&mut self, bytes: usize, limit: &mut BlockLimit) {
        let mut refused = bytes;
        if let Some(clock) = &mut self.clock {
            if !self.connection.look_for(clock.refused) {
                clock.refused = clock.refused.max(bytes);
                let has_fitted = clock.fitted.is_some_and(|fitted| fitted >= bytes);
                if !has_fitted {
                    return;
                }
                refused = clock.refused;
            }
        }
        // With an unlimited wait there is no deadline, and no clock.
        self.clock = limit.deadline().map(|end| Clock {
            end,
            refused,
            fitted: None,
        });
    }

    /// A message finds room: stops the clock, unless it runs for a larger one.
    #[cold]
    fn note_room(&mut self, bytes: usize) {
        let Some(clock) = &mut self.clock else {
            return;
        };
        if self.connection.look_for(clock.refused) {
            self.clock = None;
        } else {
            clock.fitted = clock.fitted.max(Some(bytes));
        }
    }

    /// Finds room without waiting, withdrawing buffers by the rule, so that it may borrow this one.
    pub(super) fn make_room(&mut self, bytes: usize) {
        let reason = if !self.connection.is_ready() && !self.connection.has_room() {
            Reason::Full
        } else if !self.connection.may_borrow(bytes) && !self.withdraw_for(bytes) {
            Reason::TooManyBorrowed
        } else {
            self.outcome = Outcome::Taken;
            return;
        };
        self.outcome = Outcome::Skipped(reason);
        self.skip(reason);
    }

    #[cold]
    fn withdraw_for(&mut self, bytes: usize) -> bool {
        if self.connection.on_full != OnFull::DropOldest || !self.connection.can_make_room(bytes) {
            return false;
        }
        while self.connection.withdraw_buffer() {
            self.note_withdrawn();
            if self.connection.may_borrow(bytes) {
                return true;
            }
        }
        false
    }

    #[cold]
    fn note_withdrawn(&mut self) {
        self.has_lost = true;
        self.missed.withdrawn += 1;
        self.connection.note_missed(&self.missed);
    }

    /// Step 4. Returns `true` if a message was withdrawn since the last call.
    #[inline]
    pub(super) fn make_room_ahead(&mut self) -> bool {
        if self.connection.make_room_ahead() {
            self.note_withdrawn();
        }
        std::mem::take(&mut self.has_lost)
    }

    #[cold]
    pub(super) fn skip(&mut self, reason: Reason) {
        self.skipped = self.skipped.wrapping_add(1);
        self.missed.count(reason);
        self.connection.note_missed(&self.missed);
        if reason == Reason::TooManyBorrowed {
            self.reach_limit();
        }
    }

    /// B1. A pair's receiver is not told: its sender waits.
    #[cold]
    fn reach_limit(&mut self) {
        if !self.connection.object.is_of_publisher() {
            return;
        }
        self.limit_reached += 1;
        self.is_at_limit = true;
        let missed = self.connection.object.shared().missed();
        missed.limit().reach(self.limit_reached);
        self.connection.notify();
    }

    #[inline(always)]
    pub(super) fn lend(&mut self, located: &Located, bytes: usize, buffer: ShmBytes) {
        if !self.is_taker() {
            return;
        }
        // A taker may borrow it.
        let _ = self.connection.lend(located, bytes, buffer, self.skipped);
        if self.is_at_limit {
            self.is_at_limit = false;
            let missed = self.connection.object.shared().missed();
            missed.limit().clear(self.limit_reached); // B2
        }
    }

    #[inline]
    pub(super) fn fill(&mut self, words: &Words) {
        if self.is_taker() {
            self.connection.fill(&message::after(words, self.skipped));
        }
    }

    pub(super) fn state(&self) -> ReceiverState {
        ReceiverState {
            id: ReceiverId(self.id),
            process: self.process,
            on_full: self.connection.on_full,
            capacity: self.connection.object.shared().capacity(),
            waiting: self.connection.waiting(),
            borrowed: self.connection.borrowed(),
            missed: self.missed,
            is_stalled: self.is_stalled_now(),
        }
    }

    /// Returns `true` if the clock has run out and there is still no room.
    fn is_stalled_now(&self) -> bool {
        match &self.clock {
            Some(clock) => clock.end.has_passed() && self.is_short_of(clock.refused),
            None => false,
        }
    }
}

/// The deadline that one call gives all receivers for which it starts the clock. The time is read
/// only if a receiver has no room.
pub(super) struct BlockLimit {
    time: Duration,
    deadline: Option<Option<Deadline>>,
}

impl BlockLimit {
    pub(super) fn new(time: Duration) -> Self {
        Self {
            time,
            deadline: None,
        }
    }

    /// Returns `None` if the time is unlimited.
    pub(super) fn deadline(&mut self) -> Option<Deadline> {
        if let Some(deadline) = self.deadline {
            return deadline;
        }
        let deadline = Deadline::after(self.time);
        self.deadline = Some(deadline);
        deadline
    }
}
