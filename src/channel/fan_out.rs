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

#![forbid(unsafe_code)]

use super::connection::{Timeout, WaitedFor};
use super::error::SendErrorKind;
use super::interrupt::Interrupts;
use super::ledger::Ledger;
use super::message::{Located, Reason, Sent, Tag};
use super::recipient::{BlockLimit, Outcome, Recipient};
use super::ring::{OnFull, Words};
use crate::owner::buf::ShmBytes;
use crate::protocol::ids::ProviderId;
use crate::sync::{fence, Ordering};
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
}

impl<R: AsRef<[Recipient]> + AsMut<[Recipient]>> FanOut<R> {
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

    /// Step 1, for a buffer in a chunk of `bytes`, or 0. Returns what becomes of the message.
    #[inline]
    pub(super) fn reserve(
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
                    if let Err(kind) = recipient.wait(bytes, self.spin, &mut timeout, &mut limit) {
                        self.start_clocks(bytes, &mut limit);
                        return Err(kind);
                    }
                }
                OnFull::DropNewest | OnFull::DropOldest => recipient.make_room(bytes),
            }
            match recipient.outcome {
                Outcome::Taken => sent.receivers += 1,
                Outcome::Skipped(reason) => sent.count(reason),
                Outcome::Disconnected => {}
            }
        }
        if sent.stalled > 0 {
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

    /// Once no receiver is waited for any more, so that the message is sent.
    #[cold]
    fn skip_stalled(&mut self) {
        for recipient in self.recipients.as_mut() {
            if recipient.is_skipped_as_stalled() {
                recipient.skip(Reason::Stalled);
            }
        }
    }

    /// Steps 2 to 4, for a buffer that [has room](Self::reserve).
    #[inline]
    pub(super) fn send(&mut self, buffer: ShmBytes, tag: Option<Tag>, sent: &mut Sent) {
        let bytes = buffer.capacity();
        let located = Located::new(&buffer, tag);
        let mut handles = buffer.copies(sent.receivers);
        for recipient in self.recipients.as_mut() {
            if !recipient.is_taker() {
                continue;
            }
            // There are as many handles as takers.
            if let Some(handle) = handles.next() {
                recipient.lend(&located, bytes, handle);
            }
        }
        sent.withdrawn = self.notify();
        self.collect_some();
    }

    /// Steps 2 to 4, for a message in the slots themselves.
    #[inline]
    pub(super) fn send_words(&mut self, words: &Words, sent: &mut Sent) {
        for recipient in self.recipients.as_mut() {
            recipient.fill(words);
        }
        sent.withdrawn = self.notify();
    }

    /// Step 3, and the first half of step 4. Returns from how many receivers a message was
    /// withdrawn.
    #[inline]
    fn notify(&mut self) -> usize {
        fence(Ordering::SeqCst); // W2 of all doorbells (see `doorbell`)
        for recipient in self.recipients.as_ref() {
            if recipient.is_taker() {
                recipient.connection.notify_after_fence();
            }
        }
        let mut withdrawn = 0;
        for recipient in self.recipients.as_mut() {
            withdrawn += usize::from(recipient.make_room_ahead());
        }
        withdrawn
    }

    /// A few returned buffers of each receiver, if the ledger's lock is free.
    #[inline]
    fn collect_some(&mut self) {
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
    pub(super) fn waited_for(&mut self, bytes: usize) -> Option<WaitedFor<'_>> {
        for recipient in self.recipients.as_mut() {
            if recipient.connection.on_full == OnFull::Block && recipient.is_waited_for(bytes) {
                let end = recipient.stall_end();
                return Some((&mut recipient.connection, end));
            }
        }
        None
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
