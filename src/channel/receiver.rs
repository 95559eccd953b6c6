//! The receiver's end of a channel.

#![forbid(unsafe_code)]

use super::bell::Woken;
use super::borrower::{memory_bell, Borrower, MappedSegments};
use super::end::Sleeper;
use super::error::{ChannelError, RecvError};
use super::interrupt::Interrupter;
use super::message::{self, Carried, Message};
use super::object::{self, not_a_channel, Object, Shared};
use super::ring::{self, Ticket};
use super::{spin, DEFAULT_SPIN};
use crate::error::OsError;
use crate::os::deadline::Deadline;
use crate::peer::client::Client;
use crate::peer::error::AttachError;
use crate::sync::{fence, Ordering};
use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::thread;
use std::time::Duration;

/// How long [`ReceiverBuilder::open_timeout`] sleeps between two tries. It has to poll: before the
/// object exists, the two sides share nothing that could wake it.
const BETWEEN_TRIES: Duration = Duration::from_millis(1);

/// Options of a [`Receiver`]. Start with [`Receiver::builder`]; every option has a default.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `open` is called"]
pub struct ReceiverBuilder {
    spin: Duration,
}

impl ReceiverBuilder {
    /// Sets how long [`recv`](Receiver::recv) spins for a message before it sleeps; default 20 µs.
    /// [`Duration::MAX`] means for ever.
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = spin;
        self
    }

    /// Opens the channel `name` of a sender whose provider has the client's directory, name
    /// prefix and user (see [`ClientBuilder`](crate::ClientBuilder)).
    ///
    /// # Errors
    ///
    /// [`ChannelError::Name`], [`ChannelError::NoChannel`], [`ChannelError::Unfinished`],
    /// [`ChannelError::SenderGone`], [`ChannelError::HasReceiver`], [`ChannelError::NotAChannel`],
    /// [`ChannelError::WrongUid`], [`ChannelError::TooMany`], [`ChannelError::Os`].
    pub fn open(self, client: &Client, name: &str) -> Result<Receiver, ChannelError> {
        let (names, uid) = client.trusted();
        let name = object::name(names, name)?;
        let mut object = Object::open(&name, uid)?;
        // Before it joins: what fails afterwards could not be undone.
        let memory = memory_bell(names, object.provider(), uid).map_err(not_a_channel)?;
        object.join(&name)?;
        let sleeper = Box::new(Sleeper::new(object.shared(), Shared::to_receiver));
        let borrower = Arc::new(Borrower::new(object.shared().clone(), object.locks().clone(), memory));
        let segments = MappedSegments::new(names, uid, object.provider(), borrower);
        Ok(Receiver { object, sleeper, segments, ticket: Ticket::default(), read: None, spin: self.spin, turn: 0 })
    }

    /// Like [`open`](Self::open), but tries again every millisecond, for `timeout` at most, while
    /// there is no sender: none was started, or it is still making the channel, or it is dead and
    /// has no successor yet.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_timeout(self, client: &Client, name: &str, timeout: Duration) -> Result<Receiver, ChannelError> {
        let deadline = Deadline::after(timeout);
        loop {
            match self.clone().open(client, name) {
                Err(
                    ChannelError::NoChannel { .. } | ChannelError::Unfinished { .. } | ChannelError::SenderGone { .. },
                ) if !deadline.is_some_and(Deadline::has_passed) => thread::sleep(BETWEEN_TRIES),
                result => return result,
            }
        }
    }
}

/// Receives the messages of one sender. The [module](super) tells what becomes of them.
pub struct Receiver {
    object: Object,
    /// Not needed while there is no wait.
    pub(super) sleeper: Box<Sleeper>,
    segments: MappedSegments,
    ticket: Ticket,
    /// The message received last; its slot is freed when the next message is asked for.
    read: Option<Ticket>,
    pub(super) spin: Duration,
    /// When [`wait_any`](super::wait_any) has last named it; a larger number is later.
    pub(super) turn: u64,
}

impl Receiver {
    /// A builder with the default options.
    pub fn builder() -> ReceiverBuilder {
        ReceiverBuilder { spin: DEFAULT_SPIN }
    }

    /// Opens a channel with the default options.
    ///
    /// # Errors
    ///
    /// As [`ReceiverBuilder::open`].
    pub fn open(client: &Client, name: &str) -> Result<Self, ChannelError> {
        Self::builder().open(client, name)
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
        let is_gone = self.object.to_receiver().is_gone();
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
        loop {
            if let Some(taken) = self.take() {
                return taken;
            }
            match self.wait(deadline) {
                Woken::Ready if !self.has_next() && self.sleeper.interrupts().take() => {
                    return Err(RecvError::Interrupted)
                }
                Woken::Ready => {}
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

    /// The number of segments of the sender's provider that this receiver has mapped.
    pub fn mapped_segments(&self) -> usize {
        self.segments.count()
    }

    /// Waits for the next message. Not inlined, so that a received message stays in registers on
    /// its way to the caller.
    #[inline(never)]
    fn wait(&mut self, deadline: Option<Deadline>) -> Woken {
        self.sleeper.leave_helper();
        let is_ready = || self.has_next() || self.sleeper.interrupts().is_set();
        spin(self.spin, self.object.to_receiver(), deadline, is_ready, || self.object.has_sender())
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
        ring::is_there(self.object.slots(), self.ticket)
    }

    pub(super) fn object(&self) -> &Object {
        &self.object
    }

    /// Has `waker` woken when the next message arrives, or the sender is gone; see
    /// [`Sleeper::arm`].
    pub(super) fn arm(&mut self, waker: &Waker) -> Result<Option<Woken>, OsError> {
        let Self { object, sleeper, ticket, .. } = self;
        sleeper.arm(waker, || ring::is_there(object.slots(), *ticket), || object.has_sender())
    }

    /// Receives the next message, if it has arrived.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Result<Message, RecvError>> {
        let mut next = self.ticket;
        let (words, read) = ring::read(self.object.slots(), &mut next)?;
        let message = match message::read(self.ticket.number(), &words) {
            Ok(Carried::Bytes(bytes)) => Ok(Message::Bytes(bytes)),
            Ok(Carried::Buffer(place)) => {
                let object = &self.object;
                match self.segments.open(&place, || is_sender_there(object)) {
                    Ok(loan) => Ok(Message::Buffer(loan)),
                    Err(AttachError::Os(error)) if may_work_later(&error) => {
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
        (self.ticket, self.read) = (next, Some(read));
        Some(message)
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

fn is_sender_there(object: &Object) -> bool {
    !object.to_receiver().is_gone() && object.has_sender()
}

/// Did the call fail for want of something that others give back?
fn may_work_later(error: &OsError) -> bool {
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
        // Partner: the fence in `Bell::ring`, called by the sender's `Progress::put`.
        fence(Ordering::SeqCst);
        // Give back what was not received. The sender handles what it sends from now on.
        let slots = self.object.slots();
        for _ in 0..slots.len() {
            let ticket = self.ticket.number();
            let Some(words) = ring::claim(slots, &mut self.ticket) else { break };
            if let Ok(Carried::Buffer(place)) = message::read(ticket, &words) {
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
