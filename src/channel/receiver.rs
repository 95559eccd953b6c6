//! The receiver's end.

#![forbid(unsafe_code)]

use super::bell::{Deadline, Woken};
use super::borrower::{Borrower, MappedSegments};
use super::error::{ChannelError, RecvError};
use super::message::{self, Carried, Message};
use super::object::{self, Object};
use super::ring::{self, Ticket};
use super::{spin, DEFAULT_SPIN};
use crate::error::OsError;
use crate::peer::client::Client;
use crate::peer::error::AttachError;
use crate::sync::{fence, Ordering};
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// How long [`ReceiverBuilder::open_timeout`] waits between two tries. Nobody can tell it: there is nothing yet that both know.
const BETWEEN_TRIES: Duration = Duration::from_millis(1);

/// Options of a [`Receiver`]. Start with [`Receiver::builder`]; every option has a default.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `open` is called"]
pub struct ReceiverBuilder {
    spin: Duration,
}

impl ReceiverBuilder {
    /// How long [`recv`](Receiver::recv) looks again and again for a message before it sleeps; default 20 µs. [`Duration::MAX`] is
    /// for ever.
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = spin;
        self
    }

    /// Opens the channel `name`, of a sender whose provider has the client's prefix and user: [`ClientBuilder`](crate::ClientBuilder).
    ///
    /// # Errors
    ///
    /// [`ChannelError::Name`], [`ChannelError::NoChannel`], [`ChannelError::Unfinished`], [`ChannelError::SenderGone`],
    /// [`ChannelError::HasReceiver`], [`ChannelError::NotAChannel`], [`ChannelError::WrongUid`], [`ChannelError::TooMany`],
    /// [`ChannelError::Os`].
    pub fn open(self, client: &Client, name: &str) -> Result<Receiver, ChannelError> {
        let (prefix, uid) = client.trusted();
        let name = object::name(prefix, name)?;
        let mut object = Object::open(&name, uid)?;
        object.join(&name)?;
        let borrower = Arc::new(Borrower::new(object.shared().clone(), object.locks().clone()));
        let segments = MappedSegments::new(prefix, uid, object.provider(), borrower);
        Ok(Receiver { object, segments, ticket: Ticket::default(), read: None, spin: self.spin })
    }

    /// As [`open`](Self::open), trying again each millisecond for up to `timeout` while there is no sender yet: none that was started, one
    /// that is making the channel, or one that is dead and was not replaced.
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

/// Receives the messages of one sender. See the [module](super).
pub struct Receiver {
    object: Object,
    segments: MappedSegments,
    ticket: Ticket,
    /// The message that was received last; its slot is freed when the next one is asked for.
    read: Option<Ticket>,
    spin: Duration,
}

impl Receiver {
    /// Starts with the defaults.
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
    /// [`RecvError::Disconnected`] when the sender is gone, also while this waits, and all that it had sent was received;
    /// [`RecvError::NotNow`], after which the same message can be received; [`RecvError::Closed`], [`RecvError::Attach`] and
    /// [`RecvError::Damaged`], after which the next one may be good; [`RecvError::Forked`].
    #[inline]
    pub fn recv(&mut self) -> Result<Message, RecvError> {
        self.receive(None)
    }

    /// As [`recv`](Self::recv), waiting at most for `timeout`.
    ///
    /// # Errors
    ///
    /// [`RecvError::TimedOut`], and those of [`recv`](Self::recv).
    #[inline]
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<Message, RecvError> {
        self.receive(Deadline::after(timeout))
    }

    /// As [`recv`](Self::recv), without waiting.
    ///
    /// # Errors
    ///
    /// [`RecvError::Empty`], and those of [`recv`](Self::recv).
    #[inline]
    pub fn try_recv(&mut self) -> Result<Message, RecvError> {
        self.check_fork()?;
        self.free_read();
        // In this order: what was sent before the sender left is received first.
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
                Woken::Ready => {}
                Woken::TimedOut => return Err(RecvError::TimedOut),
                Woken::Gone => return Err(RecvError::Disconnected),
            }
        }
    }

    /// How many segments of the sender's provider this receiver has mapped.
    pub fn mapped_segments(&self) -> usize {
        self.segments.count()
    }

    /// Waits for the next message. Not inlined, so that what is received stays in registers on its way to the caller.
    #[inline(never)]
    fn wait(&self, deadline: Option<Deadline>) -> Woken {
        let slots = self.object.slots();
        let is_there = || self.object.has_sender();
        spin(self.spin, self.object.to_receiver(), deadline, || ring::is_there(slots, self.ticket), is_there)
    }

    /// Receives the next message, if it is there.
    #[inline]
    fn take(&mut self) -> Option<Result<Message, RecvError>> {
        let mut next = self.ticket;
        let (words, read) = ring::read(self.object.slots(), &mut next)?;
        let message = match message::read(self.ticket.number(), &words) {
            Ok(Carried::Bytes(bytes)) => Ok(Message::Bytes(bytes)),
            Ok(Carried::Buffer(place)) => {
                let object = &self.object;
                let is_sender_there = || !object.to_receiver().is_gone() && object.has_sender();
                match self.segments.open(&place, is_sender_there) {
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

    /// Frees the slot of the message that was received last, and tells the sender that there is room.
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

/// Was it for want of something that others give back?
fn may_work_later(error: &OsError) -> bool {
    matches!(error.errno(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN | libc::EINTR))
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // In a forked child the channel is the parent's.
        if !self.object.is_ours() {
            return;
        }
        // First: what was received, the sender must not take for not received.
        self.free_read();
        self.object.to_sender().leave();
        fence(Ordering::SeqCst); // partner: the one in `Bell::ring`, in `Sender::put`
                                 // What was not received is given back; what is sent from now on the sender finds out about itself.
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
