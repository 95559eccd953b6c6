//! A send to all receivers of a channel: the one of a [`Sender`](super::Sender), or the several of a
//! [`Publisher`](super::Publisher).
//!
//! 1. Find room, by each receiver's rule. Only the sender fills slots, so room once found stays.
//!    Receivers with [`OnFull::Block`] are waited for together, until the *stall* deadline, which
//!    starts with the first message for which one has no room. Past it, the receiver is skipped
//!    until it has room, or disconnected. If the call may not wait that long, no receiver gets the
//!    message.
//! 2. For each receiver: lend it the buffer and fill its slot.
//! 3. One full fence for all doorbells, then notify the receivers that sleep.
//! 4. Off the receivers' path: make room for the next message where the rule is to withdraw the
//!    oldest and, after a buffer, collect returned buffers.
//!
//! Killed between 2 and 4, a publisher leaves one message too many for a receiver that keeps the
//! latest. Step 1 withdraws a buffer only if such a receiver has borrowed all that it may.
//!
//! # The descriptor for event loops
//!
//! `wake_fd` of a sender or publisher is a `WakeFd`, which a refused send polls with
//! [`FanOut::poll_room`]. The steps Q and V are those of `os::wake_fd`.
//!
//! | | event | descriptor | waker |
//! |---|---|---|---|
//! | F1 | it is created | readable | none |
//! | F2 | a send is refused as [`Full`](SendErrorKind::Full) or [`TooManyBorrowed`](SendErrorKind::TooManyBorrowed) | not readable (Q3), unless there is room by now (Q1) | registered with the first receiver that is waited for |
//! | F3 | that receiver receives, returns a buffer, closes or dies; or a second has passed | readable (V2) | taken by the helper |
//! | F4 | another wait of this end replaces the waker, or the publisher drops a connection | readable (Q1) | none |
//! | F5 | a send finds room | unchanged | unchanged |
//!
//! **No room goes unnoticed.** While the descriptor is not readable, its waker is registered with a
//! connected receiver that had no room for the refused message. Until F3, a send of that message
//! would be refused again. One exception: when that receiver's clock runs out, the send skips it,
//! and nothing happens at that instant. The helper's check, once a second, makes the descriptor
//! readable then.

#![forbid(unsafe_code)]

use super::connection::{Timeout, WaitedFor};
use super::error::SendErrorKind;
use super::interrupt::Interrupts;
use super::ledger::Ledger;
use super::message::{Located, Reason, Sent, Tag};
use super::recipient::{BlockLimit, Outcome, Recipient};
use super::ring::{OnFull, Words};
use crate::os::wake_fd::EndFd;
use crate::owner::buf::ShmBytes;
use crate::owner::pool::Lends;
use crate::owner::provider::Provider;
use crate::protocol::ids::ProviderId;
use crate::sync::{fence, Ordering};
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// The receivers of a channel: an array of one, or a vector.
pub(super) struct FanOut<R> {
    /// Those with [`OnFull::Block`] first: nothing is withdrawn for a message that is not sent.
    pub(super) recipients: R,
    pub(super) ledger: Arc<Ledger>,
    pub(super) interrupts: Arc<Interrupts>,
    pub(super) provider: ProviderId,
    pub(super) spin: Option<Duration>,
    pub(super) block_limit: Duration,
    /// Set by the first step of a send that finds a receiver closed or dead.
    pub(super) has_disconnected: bool,
    /// Of an event loop.
    pub(super) wake: EndFd,
}

impl<R: AsRef<[Recipient]> + AsMut<[Recipient]>> FanOut<R> {
    /// Closes the ledger. If no buffer is borrowed, the pool forgets it now, and otherwise once it
    /// has collected the last one.
    pub(super) fn close_ledger(&self, provider: &Provider) {
        let ledger: Arc<dyn Lends> = self.ledger.clone();
        self.ledger.close();
        ledger.collect();
        provider.pool().drop_ledger_if_over(&ledger);
    }

    #[inline]
    pub(super) fn check_provider(&self, buffer: &ShmBytes) -> Result<(), SendErrorKind> {
        let found = buffer.provider();
        if found != self.provider {
            return Err(SendErrorKind::OtherProvider {
                found,
                expected: self.provider,
            });
        }
        Ok(())
    }

    /// Step 1, for a buffer in a chunk of `bytes`, or 0: makes all receivers takers, and returns their
    /// number. Returns `None` if one of them has no room at hand, is closed or dead, or its clock
    /// runs; [`find_room`](Self::find_room) must follow.
    #[inline(always)]
    pub(super) fn reserve_at_once(&mut self, bytes: usize) -> Option<usize> {
        let recipients = self.recipients.as_mut();
        let all_take = recipients
            .iter_mut()
            .all(|recipient| recipient.takes_at_once(bytes));
        all_take.then_some(recipients.len())
    }

    /// Step 1. Returns what becomes of the message.
    #[inline(never)]
    pub(super) fn find_room(
        &mut self,
        bytes: usize,
        mut timeout: Timeout,
    ) -> Result<Sent, SendErrorKind> {
        let mut sent = Sent::default();
        let mut limit = BlockLimit::new(self.block_limit);
        for recipient in self.recipients.as_mut() {
            if recipient.connection.is_disconnected() {
                recipient.outcome = Outcome::Disconnected;
                self.has_disconnected = true;
                continue;
            }
            match recipient.connection.on_full {
                OnFull::Block => {
                    if let Err(kind) = recipient.take_room(bytes) {
                        if timeout.allows_waiting() {
                            self.wake.renew(); // F4
                        }
                        let spin = self.spin;
                        match recipient.wait_for_room(kind, bytes, spin, &mut timeout, &mut limit) {
                            Ok(outcome) => recipient.outcome = outcome,
                            Err(kind) => {
                                self.start_clocks(bytes, &mut limit);
                                return Err(self.refuse(kind, bytes));
                            }
                        }
                    }
                }
                OnFull::DropNewest | OnFull::DropOldest => recipient.make_room(bytes),
            }
            match recipient.outcome {
                Outcome::Taken => sent.receivers += 1,
                Outcome::Skipped(reason) => sent.missed.count(reason),
                Outcome::Disconnected => {}
            }
        }
        if sent.missed.stalled > 0 {
            self.skip_stalled();
        }
        Ok(sent)
    }

    /// The message is not sent, because a receiver has no room. The clocks of the others that have
    /// none start too, so that all end together.
    #[cold]
    fn start_clocks(&mut self, bytes: usize, limit: &mut BlockLimit) {
        for recipient in self.recipients.as_mut() {
            if recipient.connection.on_full == OnFull::Block && recipient.is_short_of(bytes) {
                recipient.start_clock(bytes, limit);
            }
        }
    }

    /// F2, for a message that is not sent. Returns the error.
    #[cold]
    fn refuse(&mut self, kind: SendErrorKind, bytes: usize) -> SendErrorKind {
        let is_for_want_of_room = matches!(
            kind,
            SendErrorKind::Full { .. } | SendErrorKind::TooManyBorrowed { .. }
        );
        if !is_for_want_of_room {
            return kind;
        }
        let mut wake = mem::take(&mut self.wake);
        let polled = wake.poll(|context| self.poll_room(context, bytes));
        self.wake = wake;
        match polled {
            // Without a helper, nothing would make the descriptor readable.
            Some(Poll::Ready(Err(no_helper))) => no_helper,
            _ => kind,
        }
    }

    /// Once no receiver is waited for any more, so that the message is sent.
    #[cold]
    fn skip_stalled(&mut self) {
        for recipient in self.recipients.as_mut() {
            if recipient.is_skipped_as_stalled() {
                recipient.skip(Reason::Stalled);
            }
        }
    }

    /// Steps 2 to 4, for a buffer that so many takers have room for. Returns from how many receivers
    /// a message was withdrawn.
    #[inline(always)]
    pub(super) fn send(&mut self, buffer: ShmBytes, tag: Option<Tag>, takers: usize) -> u64 {
        let bytes = buffer.capacity();
        let located = Located::new(&buffer, tag);
        let mut handles = buffer.copies(takers);
        for recipient in self.recipients.as_mut() {
            if !recipient.is_taker() {
                continue;
            }
            // There are as many handles as takers.
            if let Some(handle) = handles.next() {
                recipient.lend(&located, bytes, handle);
            }
        }
        let withdrawn = self.notify();
        self.collect_some();
        withdrawn
    }

    /// Steps 2 to 4, for a message in the slots themselves. Returns from how many receivers a
    /// message was withdrawn.
    #[inline]
    pub(super) fn send_words(&mut self, words: &Words) -> u64 {
        for recipient in self.recipients.as_mut() {
            recipient.fill(words);
        }
        self.notify()
    }

    /// Step 3, and the first half of step 4. Returns from how many receivers a message was
    /// withdrawn.
    #[inline]
    fn notify(&mut self) -> u64 {
        fence(Ordering::SeqCst); // W2 of all doorbells (see `doorbell`)
        for recipient in self.recipients.as_ref() {
            if recipient.is_taker() {
                recipient.connection.notify_after_fence();
            }
        }
        let mut withdrawn = 0;
        for recipient in self.recipients.as_mut() {
            withdrawn += u64::from(recipient.make_room_ahead());
        }
        withdrawn
    }

    /// Collects a few returned buffers of each receiver, if there are any and the ledger's lock is
    /// free.
    #[inline(always)]
    fn collect_some(&mut self) {
        for recipient in self.recipients.as_ref() {
            if recipient.connection.account.has_returned() {
                self.collect_returned();
                return;
            }
        }
    }

    /// Out of line: a send that finds nothing returned needs no code for it.
    #[inline(never)]
    fn collect_returned(&mut self) {
        let mut collection = None;
        for recipient in self.recipients.as_mut() {
            let account = &mut recipient.connection.account;
            if !account.has_returned() {
                continue;
            }
            if collection.is_none() {
                collection = self.ledger.try_collect();
            }
            let Some(taken) = &mut collection else {
                return;
            };
            if !account.collect_with(taken) {
                collection = None;
            }
        }
    }

    pub(super) fn is_one_disconnected(&self) -> bool {
        let mut recipients = self.recipients.as_ref().iter();
        recipients.any(|recipient| recipient.connection.is_disconnected())
    }

    /// Returns the connection of the first receiver to wait for, and until when.
    fn waited_for(&mut self, bytes: usize) -> Option<WaitedFor<'_>> {
        for recipient in self.recipients.as_mut() {
            if recipient.connection.on_full == OnFull::Block && recipient.is_waited_for(bytes) {
                let end = recipient.stall_end();
                return Some((&mut recipient.connection, end));
            }
        }
        None
    }

    /// [`waited_for`](Self::waited_for), for a task that is about to await it.
    pub(super) fn begin_await(&mut self, bytes: usize) -> Option<WaitedFor<'_>> {
        self.wake.renew(); // F4
        self.waited_for(bytes)
    }

    /// Returns ready if a send would not wait for a receiver, and otherwise registers the task.
    pub(super) fn poll_room(
        &mut self,
        context: &mut Context<'_>,
        bytes: usize,
    ) -> Poll<Result<(), SendErrorKind>> {
        // Twice, so that a receiver that pretends to have room does not block the thread.
        for _ in 0..2 {
            let mut limit = BlockLimit::new(self.block_limit);
            for recipient in self.recipients.as_mut() {
                if recipient.connection.on_full == OnFull::Block && recipient.is_waited_for(bytes) {
                    recipient.note_wait(bytes, &mut limit);
                }
            }
            let Some((connection, _)) = self.waited_for(bytes) else {
                for recipient in self.recipients.as_mut() {
                    recipient.connection.parker.disarm();
                }
                return Poll::Ready(Ok(()));
            };
            if connection.arm(context.waker(), bytes)?.is_none() {
                return Poll::Pending;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}
