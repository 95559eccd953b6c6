//! The receiver's end of a channel.

#![forbid(unsafe_code)]

use super::bell::Woken;
use super::borrower::MappedSegments;
use super::end::Sleeper;
use super::error::RecvError;
use super::interrupt::{Interrupter, Interrupts};
use super::message::{self, Carried, Message};
use super::object::Object;
use super::ring::{self, Slot, Ticket, Words};
use super::rules::OnFull;
use super::spin;
use crate::error::OsError;
use crate::os::deadline::Deadline;
use crate::peer::error::AttachError;
use crate::sync::{fence, Ordering};
use std::fmt;
use std::task::Waker;
use std::time::Duration;

/// Receives the messages of one sender. The [module](super) tells what becomes of them.
pub struct Receiver {
    /// Not needed while there is no wait. Dropped before the object: once that has given up its
    /// seat, the bell is the next receiver's.
    pub(super) sleeper: Box<Sleeper>,
    object: Object,
    segments: MappedSegments,
    ticket: Ticket,
    /// The message received last; its slot is freed when the next message is asked for.
    read: Option<Ticket>,
    /// The place of the message after the one received last, among all that the sender had.
    expected: u32,
    /// With [`OnFull::KeepLatest`] messages may be withdrawn, so each has to be claimed.
    on_full: OnFull,
    pub(super) spin: Duration,
    /// When [`wait_any`](super::wait_any) has last named it; a larger number is later.
    pub(super) turn: u64,
}

/// A message that was copied out of its slot.
struct Arrived {
    /// Its ticket's number.
    number: u64,
    words: Words,
    /// The next message's ticket.
    next: Ticket,
    /// The message's own ticket, if its slot is still to be freed.
    read: Option<Ticket>,
}

impl Receiver {
    /// The receiver of a channel that it has joined.
    pub(super) fn new(object: Object, segments: MappedSegments, on_full: OnFull, spin: Duration) -> Self {
        let sleeper = Box::new(Sleeper::new(object.receivers_end(), Interrupts::new()));
        let (ticket, expected, read, turn) = (Ticket::default(), 0, None, 0);
        Self { sleeper, object, segments, ticket, expected, read, on_full, spin, turn }
    }

    /// Receives the next message, and waits for it if need be.
    ///
    /// # Errors
    ///
    /// * [`RecvError::Disconnected`] when the sender is gone, or goes while this waits, and
    ///   everything it sent has been received.
    /// * [`RecvError::NotNow`]: try again for the same message.
    /// * [`RecvError::Closed`], [`RecvError::Attach`] and [`RecvError::Damaged`]: this message is
    ///   lost, the next one may be good.
    /// * [`RecvError::Interrupted`] by an [`Interrupter`].
    /// * [`RecvError::Forked`] in a forked child.
    #[inline]
    pub fn recv(&mut self) -> Result<Message, RecvError> {
        self.receive(None)
    }

    /// Like [`recv`](Self::recv), but waits for `timeout` at most.
    ///
    /// # Errors
    ///
    /// [`RecvError::TimedOut`], and those of [`recv`](Self::recv).
    #[inline]
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<Message, RecvError> {
        self.receive(Deadline::after(timeout))
    }

    /// Like [`recv`](Self::recv), without waiting.
    ///
    /// # Errors
    ///
    /// [`RecvError::Empty`], and those of [`recv`](Self::recv).
    #[inline]
    pub fn try_recv(&mut self) -> Result<Message, RecvError> {
        self.check_fork()?;
        self.free_read();
        // Look at the bell first: what was sent before the sender left is received before
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
            // What was there may have been withdrawn just now, or the slot be damaged.
            if was_ready && deadline.is_some_and(Deadline::has_passed) {
                return Err(RecvError::TimedOut);
            }
            match self.wait(deadline) {
                Woken::Ready if !self.has_next() && self.sleeper.interrupts().take() => {
                    return Err(RecvError::Interrupted)
                }
                Woken::Ready => was_ready = true,
                Woken::TimedOut => return Err(RecvError::TimedOut),
                Woken::Gone => return Err(RecvError::Disconnected),
            }
        }
    }

    /// A handle by which any thread ends a wait of this receiver, in [`recv`](Self::recv),
    /// [`recv_timeout`](Self::recv_timeout) or [`wait_any`](super::wait_any).
    pub fn interrupter(&self) -> Interrupter {
        Interrupter::new(self.sleeper.interrupts())
    }

    /// Maps and faults in all that the sender's provider has now, so that a buffer of it costs this
    /// receiver no system call and no fault from the first one on. Returns how many bytes of
    /// payload are present. (The channel itself is present from the start.)
    ///
    /// What the provider takes from the system later is not included: have it
    /// [`reserve`](crate::Provider::reserve) first, or call this again. On Linux before 5.14 the
    /// segments are mapped, but their pages fault as before, and the result is 0. It is also 0 if
    /// the provider is gone, or does not let this user in.
    ///
    /// # Errors
    ///
    /// [`RecvError::NotNow`] for want of descriptors or memory; [`RecvError::Attach`] if a segment
    /// is not the provider's; [`RecvError::Forked`] in a forked child. Nothing is mapped then that
    /// was not before.
    pub fn warm(&mut self) -> Result<usize, RecvError> {
        self.check_fork()?;
        let Self { object, segments, .. } = self;
        segments.warm(|| is_sender_there(object)).map_err(|error| match error {
            AttachError::Os(error) if may_work_later(&error) => RecvError::NotNow(error),
            error => error.into(),
        })
    }

    /// How many messages the channel holds that it has not received; see
    /// [`ReceiverBuilder::capacity`](super::ReceiverBuilder::capacity).
    pub fn capacity(&self) -> usize {
        self.object.capacity()
    }

    /// What happens when it is that far behind. Of a [`Sender`](super::Sender): it waits.
    pub fn on_full(&self) -> OnFull {
        self.on_full
    }

    /// The number of segments of the sender's provider that this receiver has mapped.
    pub fn mapped_segments(&self) -> usize {
        self.segments.count()
    }

    /// Waits for the next message. Not inlined, so that a received message stays in registers on
    /// its way to the caller.
    #[inline(never)]
    fn wait(&mut self, deadline: Option<Deadline>) -> Woken {
        self.follow();
        self.sleeper.leave_helper();
        let is_over = || self.has_next() || self.sleeper.interrupts().is_set() || self.is_to_move();
        spin(self.spin, self.sleeper.bell(), deadline, is_over, || self.object.has_sender())
    }

    /// Has the publisher met this receiver, which still sleeps at its seat?
    #[inline]
    pub(super) fn is_to_move(&self) -> bool {
        self.sleeper.is_at_seat() && self.object.is_met()
    }

    /// Sleeps on the bell that the publisher rings, from the meeting on (see `meeting`).
    pub(super) fn follow(&mut self) {
        if self.is_to_move() {
            self.sleeper.move_to(self.object.receivers_end());
        }
    }

    /// Asks for the next message: the slot of the last one is free from now on.
    pub(super) fn ask(&mut self) -> Result<(), RecvError> {
        self.check_fork()?;
        self.free_read();
        Ok(())
    }

    /// Has the next message arrived?
    #[inline]
    pub(super) fn has_next(&self) -> bool {
        has_next(self.object.slots(), self.ticket, self.on_full)
    }

    pub(super) fn object(&self) -> &Object {
        &self.object
    }

    /// Has `waker` woken when the next message arrives, or the sender is gone; see
    /// [`Sleeper::arm`].
    pub(super) fn arm(&mut self, waker: &Waker) -> Result<Option<Woken>, OsError> {
        loop {
            self.follow();
            let Self { object, sleeper, ticket, on_full, .. } = self;
            let (is_at_seat, has_next) = (sleeper.is_at_seat(), || has_next(object.slots(), *ticket, *on_full));
            let is_over = || has_next() || is_at_seat && object.is_met();
            let woken = sleeper.arm(waker, is_over, || object.has_sender())?;
            if woken != Some(Woken::Ready) || has_next() {
                return Ok(woken);
            }
        }
    }

    /// Receives the next message, if it has arrived.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Result<Message, RecvError>> {
        let Arrived { number, words, next, read } = match self.on_full {
            OnFull::KeepLatest => match self.claim()? {
                Ok(arrived) => arrived,
                Err(error) => return Some(Err(RecvError::NotNow(error))),
            },
            OnFull::Wait | OnFull::DropNew => self.read()?,
        };
        let place = message::place(number, &words);
        let missed = place.wrapping_sub(self.expected);
        let message = match message::read(number, &words) {
            Ok(Carried::Bytes(bytes)) => Ok(Message::Bytes(bytes.with_missed(missed))),
            Ok(Carried::Buffer(place)) => {
                let object = &self.object;
                match self.segments.open(&place, || is_sender_there(object)) {
                    Ok(loan) => Ok(Message::Buffer(loan.with_missed(missed))),
                    // Where messages are claimed, the segment is mapped by now.
                    Err(AttachError::Os(error)) if may_work_later(&error) && read.is_some() => {
                        return Some(Err(RecvError::NotNow(error)))
                    }
                    Err(error) => {
                        self.segments.borrower().give_back(place.number);
                        Err(error.into())
                    }
                }
            }
            Err(error) => Err(error),
        };
        (self.ticket, self.read) = (next, read);
        // What a message that cannot be read should have said, the next one says.
        if message.is_ok() {
            self.expected = place.wrapping_add(1);
        }
        Some(message)
    }

    /// Reads the next message. It stays in its slot until [`take`](Self::take) moves on.
    #[inline]
    fn read(&self) -> Option<Arrived> {
        let mut next = self.ticket;
        let (words, read) = ring::read(self.object.slots(), &mut next)?;
        Some(Arrived { number: self.ticket.number(), words, next, read: Some(read) })
    }

    /// Claims the next message that was not withdrawn. Maps its segment first: once a message is
    /// claimed, the publisher takes it for received. Fails if that may work later.
    #[inline]
    fn claim(&mut self) -> Option<Result<Arrived, OsError>> {
        let Self { object, segments, ticket, .. } = self;
        let number = ticket.number();
        let words = ring::peek(object.slots(), *ticket);
        let is_prepared = |words: &Words| message::segment(words).map_or(true, |segment| segments.is_prepared(segment));
        match words.filter(is_prepared) {
            Some(words) if ring::take(object.slots(), ticket) => {
                object.to_sender().ring();
                Some(Ok(Arrived { number, words, next: *ticket, read: None }))
            }
            _ => self.claim_after_a_gap(),
        }
    }

    /// [`claim`](Self::claim), if messages may have been withdrawn or a segment is to be mapped.
    #[inline(never)]
    fn claim_after_a_gap(&mut self) -> Option<Result<Arrived, OsError>> {
        let Self { object, segments, ticket, .. } = self;
        // Bounded, as `ring::peek_next` is.
        for _ in 0..=object.slots().len() {
            let words = ring::peek_next(object.slots(), ticket)?;
            let number = ticket.number();
            if let Ok(Carried::Buffer(place)) = message::read(number, &words) {
                match segments.prepare(&place, || is_sender_there(object)) {
                    Err(AttachError::Os(error)) if may_work_later(&error) => return Some(Err(error)),
                    // What cannot be mapped is claimed, and found again when it is opened.
                    _ => {}
                }
            }
            if ring::take(object.slots(), ticket) {
                object.to_sender().ring();
                return Some(Ok(Arrived { number, words, next: *ticket, read: None }));
            }
        }
        None
    }

    /// Frees the slot of the message received last, and tells the sender that there is room.
    #[inline]
    fn free_read(&mut self) {
        if let Some(read) = self.read.take() {
            ring::free(self.object.slots(), read);
            self.object.to_sender().ring();
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

#[inline]
fn has_next(slots: &[Slot], ticket: Ticket, on_full: OnFull) -> bool {
    if on_full == OnFull::KeepLatest {
        ring::has_passed(slots, ticket)
    } else {
        ring::is_there(slots, ticket)
    }
}

fn is_sender_there(object: &Object) -> bool {
    !object.is_sender_gone() && object.has_sender()
}

/// Did the call fail for want of something that others give back?
pub(super) fn may_work_later(error: &OsError) -> bool {
    matches!(error.errno(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN | libc::EINTR))
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // In a forked child the channel belongs to the parent.
        if !self.object.is_ours() {
            return;
        }
        // Free this first, so that the sender does not take a received message for an unreceived
        // one.
        self.free_read();
        self.object.to_sender().leave();
        // Partner: the fence before the sender rings, which comes before its `Branch::is_left`.
        fence(Ordering::SeqCst);
        // Give back what was not received. The sender handles what it sends from now on.
        let slots = self.object.slots();
        let left = (0..slots.len()).map_while(|_| {
            let words = if self.on_full == OnFull::KeepLatest {
                ring::claim_next(slots, &mut self.ticket)?
            } else {
                ring::claim(slots, &mut self.ticket)?
            };
            Some((self.ticket.number().wrapping_sub(1), words))
        });
        for (number, words) in left {
            if let Ok(Carried::Buffer(place)) = message::read(number, &words) {
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
