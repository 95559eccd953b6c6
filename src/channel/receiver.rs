//! The receiving end of a channel.

#![forbid(unsafe_code)]

use super::bell::Woken;
use super::borrower::MappedSegments;
use super::end::Sleeper;
use super::error::RecvError;
use super::interrupt::{Interrupter, Interrupts};
use super::layout::Shared;
use super::message::{self, Carried, Message};
use super::object::Object;
use super::ring::{self, Ticket, Words};
use super::rules::OnFull;
use crate::error::OsError;
use crate::os::futex::Deadline;
use crate::peer::error::AttachError;
use crate::sync::{fence, Ordering};
use std::fmt;
use std::task::Waker;
use std::time::Duration;

/// Receives the messages of one sender; see the [module](super).
pub struct Receiver {
    /// Not touched by a receive that does not wait.
    pub(super) sleeper: Box<Sleeper>,
    object: Object,
    segments: MappedSegments,
    ticket: Ticket,
    /// The message received last, if its slot is still to be freed: that happens on the next
    /// receive.
    read: Option<Ticket>,
    /// The number of the next message expected, counting those that were not sent to this receiver.
    expected: u32,
    /// With [`OnFull::KeepLatest`] the sender may withdraw a message, so the receiver claims each
    /// one.
    on_full: OnFull,
    pub(super) spin: Duration,
    /// When [`wait_any`](super::wait_any) last returned this receiver; larger is later.
    pub(super) turn: u64,
}

impl Receiver {
    /// Returns the receiver of a channel that it has joined.
    pub(super) fn new(object: Object, segments: MappedSegments, on_full: OnFull, spin: Duration) -> Self {
        let sleeper = Box::new(Sleeper::new(object.shared(), Shared::to_receiver, Interrupts::new()));
        let (ticket, expected, read, turn) = (Ticket::default(), 0, None, 0);
        Self { sleeper, object, segments, ticket, expected, read, on_full, spin, turn }
    }

    /// Receives the next message, blocking until one arrives.
    ///
    /// # Errors
    ///
    /// * [`RecvError::Disconnected`] if the sender has been dropped or has died, before or during
    ///   the wait, and everything it sent has been received.
    /// * [`RecvError::NotNow`]: try again for the same message.
    /// * [`RecvError::NotConnected`]: the publisher retries on its next send; messages are lost
    ///   until then.
    /// * [`RecvError::Closed`], [`RecvError::Attach`] and [`RecvError::Damaged`]: this message is
    ///   lost; the next one may be good.
    /// * [`RecvError::Interrupted`] if an [`Interrupter`] ended the wait.
    /// * [`RecvError::Forked`] in a forked child.
    #[inline]
    pub fn recv(&mut self) -> Result<Message, RecvError> {
        self.receive(None)
    }

    /// Like [`recv`](Self::recv), but blocks for at most `timeout`.
    #[inline]
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<Message, RecvError> {
        self.receive(Deadline::after(timeout))
    }

    /// Like [`recv`](Self::recv), but never blocks.
    #[inline]
    pub fn try_recv(&mut self) -> Result<Message, RecvError> {
        self.ask()?;
        // Check the bell first: messages sent before the sender left are received before
        // `Disconnected`.
        let is_gone = self.object.is_sender_gone();
        match self.take() {
            Some(taken) => taken,
            None if is_gone => Err(RecvError::Disconnected),
            None => Err(RecvError::Empty),
        }
    }

    #[inline]
    fn receive(&mut self, deadline: Option<Deadline>) -> Result<Message, RecvError> {
        self.check_fork()?;
        self.free_read();
        let mut was_ready = false;
        loop {
            if let Some(taken) = self.take() {
                return taken;
            }
            // The message may just have been withdrawn, or its slot may be damaged.
            if was_ready && deadline.is_some_and(Deadline::has_passed) {
                return Err(RecvError::TimedOut);
            }
            match self.wait(deadline) {
                Woken::Interrupted => return Err(RecvError::Interrupted),
                Woken::Ready => was_ready = true,
                Woken::TimedOut => return Err(RecvError::TimedOut),
                Woken::Gone => return Err(RecvError::Disconnected),
            }
        }
    }

    /// Returns a handle with which any thread can interrupt this receiver's waits in
    /// [`recv`](Self::recv), [`recv_timeout`](Self::recv_timeout) or [`wait_any`](super::wait_any).
    pub fn interrupter(&self) -> Interrupter {
        Interrupter::new(self.sleeper.interrupts())
    }

    /// Maps and faults in all segments that the sender's provider has now, so that even the first
    /// read of a buffer in them costs no system call and no page fault. Returns the number of
    /// payload bytes present. (The channel itself is always present.)
    ///
    /// Memory that the provider takes from the system later is not included:
    /// [`reserve`](crate::Provider::reserve) it first, or call this again. Before Linux 5.14 the
    /// segments are mapped but their pages still fault, and the result is 0. It is also 0 if the
    /// provider has closed, or does not admit this user.
    ///
    /// # Errors
    ///
    /// [`RecvError::NotNow`] if descriptors or memory run out; [`RecvError::Attach`] if a segment
    /// is not the provider's; [`RecvError::Forked`] in a forked child. On error, no additional
    /// segment stays mapped.
    pub fn warm(&mut self) -> Result<usize, RecvError> {
        self.check_fork()?;
        let Self { object, segments, .. } = self;
        segments.warm(|| is_sender_there(object)).map_err(|error| match error {
            AttachError::Os(error) if may_work_later(&error) => RecvError::NotNow(error),
            error => error.into(),
        })
    }

    /// Returns the number of unreceived messages that the channel can hold; see
    /// [`ReceiverBuilder::capacity`](super::ReceiverBuilder::capacity).
    pub fn capacity(&self) -> usize {
        self.object.shared().capacity()
    }

    /// Returns what happens when that many messages are waiting. A [`Sender`](super::Sender)
    /// blocks.
    pub fn on_full(&self) -> OnFull {
        self.on_full
    }

    /// Returns the number of segments of the sender's provider that this receiver has mapped.
    pub fn mapped_segments(&self) -> usize {
        self.segments.count()
    }

    /// Blocks until the next message arrives. Not inlined, so that a received message stays in
    /// registers on its way to the caller.
    #[inline(never)]
    fn wait(&mut self, deadline: Option<Deadline>) -> Woken {
        let Self { object, sleeper, ticket, .. } = self;
        object.look_for_publisher();
        sleeper.wait(self.spin, deadline, || has_next(object, *ticket), || object.has_sender())
    }

    /// If a check is due and the sender has died, closes the channel on its behalf.
    pub(super) fn look_for_sender(&mut self) {
        let Self { object, sleeper, .. } = self;
        sleeper.look_for_ringer(|| object.has_sender());
    }

    /// Frees the slot of the last message and prepares to receive the next one.
    #[inline]
    pub(super) fn ask(&mut self) -> Result<(), RecvError> {
        self.check_fork()?;
        self.free_read();
        self.object.look_for_publisher();
        Ok(())
    }

    /// Returns `true` if the next message has arrived.
    #[inline]
    pub(super) fn has_next(&self) -> bool {
        has_next(&self.object, self.ticket)
    }

    pub(super) fn object(&self) -> &Object {
        &self.object
    }

    /// Arranges for `waker` to be woken when the next message arrives or the sender leaves; see
    /// [`Sleeper::arm`].
    pub(super) fn arm(&mut self, waker: &Waker) -> Result<Option<Woken>, OsError> {
        let Self { object, sleeper, ticket, .. } = self;
        sleeper.arm(waker, || has_next(object, *ticket), || object.has_sender())
    }

    /// Receives the next message if it has arrived, or returns why none can arrive.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Result<Message, RecvError>> {
        // `prepare` maps the segment before the claim: the sender counts a claimed message as
        // received.
        let Self { object, segments, ticket, on_full, .. } = self;
        let may_vanish = *on_full == OnFull::KeepLatest;
        let prepare = |ticket, words: &_| prepare(object, segments, ticket, words);
        let (words, ticket) = match ring::receive(object.shared().slots(), ticket, may_vanish, prepare) {
            Some(Ok(received)) => received,
            Some(Err(error)) => return Some(Err(RecvError::NotNow(error))),
            None => return object.take_refusal().map(|errno| Err(RecvError::NotConnected { errno })),
        };
        if may_vanish {
            object.shared().to_sender().ring_after_rmw();
        } else {
            self.read = Some(ticket);
        }
        let number = ticket.number();
        let place = message::place(number, &words);
        let missed = place.wrapping_sub(self.expected);
        let message = match message::read(number, &words, missed) {
            Ok(Carried::Bytes(bytes)) => Ok(Message::Bytes(bytes)),
            Ok(Carried::Buffer(place)) => match segments.open(&place, missed, || is_sender_there(object)) {
                Ok(loan) => Ok(Message::Buffer(loan)),
                Err(error) => {
                    segments.borrower().give_back(place.number);
                    Err(error.into())
                }
            },
            Err(error) => Err(error),
        };
        // If a message cannot be read, the next one reports its count of missed messages.
        if message.is_ok() {
            self.expected = place.wrapping_add(1);
        }
        Some(message)
    }

    /// Frees the slot of the message received last, and rings for the sender.
    #[inline]
    fn free_read(&mut self) {
        if let Some(read) = self.read.take() {
            ring::free(self.object.shared().slots(), read);
            self.object.shared().to_sender().ring();
        }
    }

    #[inline]
    fn check_fork(&self) -> Result<(), RecvError> {
        if self.object.is_ours() {
            Ok(())
        } else {
            Err(RecvError::Forked)
        }
    }
}

/// Returns `true` if the next message has arrived, or none can because the publisher could not
/// connect this receiver.
#[inline]
fn has_next(object: &Object, ticket: Ticket) -> bool {
    ring::has_passed(object.shared().slots(), ticket) || object.refusal().is_some()
}

/// Maps the segment of a message if possible. Fails only if a later attempt may succeed.
#[inline]
fn prepare(object: &Object, segments: &mut MappedSegments, ticket: Ticket, words: &Words) -> Result<(), OsError> {
    if message::segment(words).map_or(true, |segment| segments.is_prepared(segment)) {
        return Ok(());
    }
    let Ok(Carried::Buffer(place)) = message::read(ticket.number(), words, 0) else { return Ok(()) };
    match segments.prepare(&place, || is_sender_there(object)) {
        Err(AttachError::Os(error)) if may_work_later(&error) => Err(error),
        // A message that cannot be mapped is received anyway; `open` then reports the error.
        _ => Ok(()),
    }
}

fn is_sender_there(object: &Object) -> bool {
    !object.is_sender_gone() && object.has_sender()
}

/// Returns `true` if the call failed because a resource that may be released later is exhausted.
pub(super) fn may_work_later(error: &OsError) -> bool {
    matches!(error.errno(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN | libc::EINTR))
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // In a forked child the channel belongs to the parent.
        if !self.object.is_ours() {
            return;
        }
        // Free the slot first, so that the sender does not count a received message as unreceived.
        self.free_read();
        self.object.shared().to_sender().leave();
        // Partner: the fence before the sender rings, which precedes its `Branch::is_left`.
        fence(Ordering::SeqCst);
        // Return the unreceived buffers. The sender handles whatever it sends from now on.
        let slots = self.object.shared().slots();
        for (words, ticket) in (0..slots.len()).map_while(|_| ring::claim_next(slots, &mut self.ticket)) {
            if let Ok(Carried::Buffer(place)) = message::read(ticket.number(), &words, 0) {
                self.segments.borrower().give_back(place.number);
            }
        }
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("provider", &self.object.provider()).finish()
    }
}
