//! A receiver, as its publisher sees it: its branch, its rule, and what became of the last message.

#![forbid(unsafe_code)]

use crate::channel::branch::{Branch, Patience};
use crate::channel::error::SendErrorKind;
use crate::channel::message::{self, Missed, Reason};
use crate::channel::ring::{OnFull, Words};
use crate::os::futex::Deadline;
use crate::owner::buf::ShmBuf;
use std::time::Duration;

/// A snapshot of a receiver of a [`Publisher`](super::Publisher).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceiverState {
    /// A random id, part of the name of the receiver's object:
    /// `{prefix}.{channel}.{id:016x}.branch`.
    pub id: u64,
    /// The id of its process, as stated by that process, in its own PID namespace.
    pub process: Option<u32>,
    /// The rule for when it falls behind.
    pub on_full: OnFull,
    /// How many messages it may be behind.
    pub capacity: usize,
    /// How many messages wait for it.
    pub waiting: usize,
    /// How many buffers it holds, received or not.
    pub loaned: usize,
    /// How many messages it has missed since it joined, by reason.
    pub missed: Missed,
    /// `true` if it is past the [`block_limit`](super::PublisherBuilder::block_limit) and has no room yet.
    pub is_stalled: bool,
}

pub(super) struct Outlet {
    pub(super) branch: Branch,
    pub(super) id: u64,
    process: Option<u32>,
    /// How many messages were not sent to it, modulo 2^32.
    skipped: u32,
    pub(super) missed: Missed,
    pub(super) outcome: Outcome,
    /// Set by the first message for which it had no room.
    stall: Option<Stall>,
    /// `true` if messages were withdrawn for the one being sent.
    has_lost: bool,
    /// How many messages have found no loan, and whether the last one that needed one has.
    limit_reached: u64,
    is_at_limit: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Gone,
    Taken,
    Skipped(Reason),
}

/// The wait for a receiver, over however many messages.
#[derive(Clone, Copy)]
struct Stall {
    /// Until when.
    end: Deadline,
    /// For the largest message that it had no room for, in bytes as in [`Branch::reserve`].
    bytes: usize,
    /// The largest one that it has had room for since. It is waited for anew for one that is no
    /// larger.
    met: Option<usize>,
}

impl Stall {
    fn is_over(stall: Option<Self>) -> bool {
        stall.is_some_and(|stall| stall.end.has_passed())
    }
}

impl Outlet {
    pub(super) fn new(branch: Branch, id: u64, not_connected: u64) -> Self {
        let process = branch.object.receiver_process();
        let missed = Missed {
            not_connected,
            ..Missed::default()
        };
        branch.note_missed(&missed);
        let (skipped, outcome, stall, has_lost) =
            (not_connected as u32, Outcome::Gone, None, false);
        Self {
            branch,
            id,
            process,
            skipped,
            missed,
            outcome,
            stall,
            has_lost,
            limit_reached: 0,
            is_at_limit: false,
        }
    }

    pub(super) fn is_taker(&self) -> bool {
        self.outcome == Outcome::Taken
    }

    /// Waits for room and, for a buffer, a loan, at most until the stall deadline.
    #[inline]
    pub(super) fn wait(
        &mut self,
        bytes: usize,
        budget: Option<Duration>,
        patience: Patience,
        limit: &mut Limit,
    ) -> Result<(), SendErrorKind> {
        self.outcome = match self
            .branch
            .reserve(bytes, Some(Duration::ZERO), Patience::None)
        {
            Ok(()) => {
                if self.stall.is_some() {
                    self.note_room(bytes);
                }
                Outcome::Taken
            }
            Err(kind) => self.wait_for_room(kind, bytes, budget, patience, limit)?,
        };
        Ok(())
    }

    #[cold]
    fn wait_for_room(
        &mut self,
        kind: SendErrorKind,
        bytes: usize,
        budget: Option<Duration>,
        patience: Patience,
        limit: &mut Limit,
    ) -> Result<Outcome, SendErrorKind> {
        if matches!(kind, SendErrorKind::TooManyLoans { .. }) {
            self.reach_limit();
        }
        self.start_clock(bytes, limit);
        if Stall::is_over(self.stall) {
            return Ok(Outcome::Skipped(Reason::Stalled));
        }
        let Patience::Until(deadline) = patience else {
            return Err(kind);
        };
        let patience =
            Patience::Until(Deadline::first(deadline, self.stall.map(|stall| stall.end)));
        match self.branch.reserve(bytes, budget, patience) {
            Ok(()) => {
                self.note_room(bytes);
                Ok(Outcome::Taken)
            }
            // The next send drops its branch.
            Err(SendErrorKind::Disconnected) => Ok(Outcome::Gone),
            Err(SendErrorKind::TimedOut) if Stall::is_over(self.stall) => {
                Ok(Outcome::Skipped(Reason::Stalled))
            }
            Err(kind) => Err(kind),
        }
    }

    /// Starts the clock of a receiver that is waited for without a send, and tells it once if it is at
    /// its limit.
    pub(super) fn note_wait(&mut self, bytes: usize, limit: &mut Limit) {
        if !self.is_at_limit && self.branch.has_room() {
            self.reach_limit();
        }
        self.start_clock(bytes, limit);
    }

    /// Returns `true` if a living receiver has no room for a message.
    pub(super) fn is_short_of(&self, bytes: usize) -> bool {
        !self.branch.is_gone() && !self.branch.is_ready_for(bytes)
    }

    /// Returns `true` if a send of this message waits for the receiver.
    pub(super) fn is_waited_for(&self, bytes: usize) -> bool {
        !Stall::is_over(self.stall) && self.is_short_of(bytes)
    }

    pub(super) fn stall_end(&self) -> Option<Deadline> {
        self.stall.map(|stall| stall.end)
    }

    /// Starts the clock if it does not run for such a message.
    pub(super) fn start_clock(&mut self, bytes: usize, limit: &mut Limit) {
        let stall = self
            .stall
            .filter(|stall| !self.branch.is_ready_for(stall.bytes));
        let largest = stall.map_or(bytes, |stall| stall.bytes.max(bytes));
        let running = stall.filter(|stall| stall.met.map_or(true, |met| met < bytes));
        let stall = running.or_else(|| {
            limit.deadline().map(|end| Stall {
                end,
                bytes,
                met: None,
            })
        });
        self.stall = stall.map(|stall| Stall {
            bytes: largest,
            ..stall
        });
    }

    /// There is room for this message: ends the stall, unless that was for a larger one.
    #[cold]
    fn note_room(&mut self, bytes: usize) {
        let met = |stall: Stall| Stall {
            met: stall.met.max(Some(bytes)),
            ..stall
        };
        self.stall = self
            .stall
            .filter(|stall| !self.branch.is_ready_for(stall.bytes))
            .map(met);
    }

    /// Finds room without waiting, withdrawing buffers for their loans by the rule.
    #[inline]
    pub(super) fn make_room(&mut self, bytes: usize) {
        let branch = &mut self.branch;
        let has_room = branch.is_ready() || branch.has_room();
        self.outcome = match has_room {
            true if branch.has_loan(bytes) || self.withdraw_for(bytes) => Outcome::Taken,
            true => Outcome::Skipped(Reason::TooManyLoans),
            false => Outcome::Skipped(Reason::Full),
        };
        if let Outcome::Skipped(reason) = self.outcome {
            self.leave_out(reason);
        }
    }

    #[cold]
    fn withdraw_for(&mut self, bytes: usize) -> bool {
        let may_withdraw =
            self.branch.on_full == OnFull::DropOldest && self.branch.can_make_room(bytes);
        while may_withdraw && self.branch.withdraw_buffer() {
            self.note_withdrawn();
            if self.branch.has_loan(bytes) {
                return true;
            }
        }
        false
    }

    #[cold]
    fn note_withdrawn(&mut self) {
        self.has_lost = true;
        self.missed.withdrawn += 1;
        self.branch.note_missed(&self.missed);
    }

    /// Step 5. Returns `true` if a message was withdrawn since the last call.
    #[inline]
    pub(super) fn look_for_room(&mut self) -> bool {
        if self.branch.look_for_room() {
            self.note_withdrawn();
        }
        std::mem::take(&mut self.has_lost)
    }

    #[cold]
    pub(super) fn leave_out(&mut self, reason: Reason) {
        self.skipped = self.skipped.wrapping_add(1);
        self.missed.count(reason);
        self.branch.note_missed(&self.missed);
        if reason == Reason::TooManyLoans {
            self.reach_limit();
        }
    }

    /// L1.
    #[cold]
    fn reach_limit(&mut self) {
        self.limit_reached += 1;
        self.is_at_limit = true;
        self.branch
            .object
            .shared()
            .missed()
            .limit()
            .reach(self.limit_reached);
        self.branch.ring();
    }

    #[inline]
    pub(super) fn lend(&mut self, place: (u64, u64, u64), bytes: usize, buffer: ShmBuf) {
        if self.is_taker() {
            // `is_taker`: it has a loan.
            let _ = self.branch.lend(place, bytes, buffer, self.skipped);
            if self.is_at_limit {
                self.is_at_limit = false;
                self.branch
                    .object
                    .shared()
                    .missed()
                    .limit()
                    .clear(self.limit_reached);
                // L2
            }
        }
    }

    #[inline]
    pub(super) fn fill(&mut self, words: &Words) {
        if self.is_taker() {
            self.branch.fill(&message::after(words, self.skipped));
        }
    }

    pub(super) fn state(&self) -> ReceiverState {
        ReceiverState {
            id: self.id,
            process: self.process,
            on_full: self.branch.on_full,
            capacity: self.branch.object.shared().capacity(),
            waiting: self.branch.waiting(),
            loaned: self.branch.loaned(),
            missed: self.missed,
            is_stalled: Stall::is_over(self.stall)
                && self
                    .stall
                    .is_some_and(|stall| self.is_short_of(stall.bytes)),
        }
    }
}

/// The stall deadline of one message: the clock is read only if a receiver has no room.
pub(super) struct Limit {
    time: Duration,
    deadline: Option<Option<Deadline>>,
}

impl Limit {
    pub(super) fn new(time: Duration) -> Self {
        Self {
            time,
            deadline: None,
        }
    }

    pub(super) fn deadline(&mut self) -> Option<Deadline> {
        *self
            .deadline
            .get_or_insert_with(|| Deadline::after(self.time))
    }
}
