//! The receiver's end.

#![forbid(unsafe_code)]

use super::bell::{Deadline, Woken};
use super::error::{ChannelError, RecvError};
use super::message::{self, Carried, Message};
use super::object::{self, Object};
use super::ring::{self, Ticket, Words};
use super::{spin, DEFAULT_SPIN};
use crate::client::Client;
use crate::sync::{fence, Ordering};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

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

    /// Opens the channel `name`, and connects `client` to the sender's provider. The client's prefix and user are the channel's:
    /// [`ClientBuilder`](crate::ClientBuilder).
    ///
    /// # Errors
    ///
    /// [`ChannelError::Name`], [`ChannelError::NoChannel`], [`ChannelError::SenderGone`], [`ChannelError::HasReceiver`],
    /// [`ChannelError::NotAChannel`], [`ChannelError::Attach`], [`ChannelError::TooMany`], [`ChannelError::Os`].
    pub fn open(self, client: Arc<Client>, name: &str) -> Result<Receiver, ChannelError> {
        let (prefix, uid) = client.trusted();
        let name = object::name(prefix, name)?;
        let mut object = Object::open(&name, uid)?;
        let peer = client.connect(object.provider())?;
        object.join(peer, &name)?;
        Ok(Receiver { object, client, ticket: Ticket::default(), read: None, spin: self.spin })
    }
}

/// Receives the messages of one sender. See the [module](super).
pub struct Receiver {
    object: Object,
    client: Arc<Client>,
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
    pub fn open(client: Arc<Client>, name: &str) -> Result<Self, ChannelError> {
        Self::builder().open(client, name)
    }

    /// Receives the next message, and waits for it if need be.
    ///
    /// # Errors
    ///
    /// [`RecvError::PeerGone`] when the sender is gone, also while this waits, and all that it had sent was received;
    /// [`RecvError::Attach`] and [`RecvError::Damaged`], after which the next message may be good; [`RecvError::Forked`].
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
            Some(words) => self.open_message(&words),
            None if is_gone => Err(RecvError::PeerGone),
            None => Err(RecvError::Empty),
        }
    }

    #[inline]
    fn receive(&mut self, deadline: Option<Deadline>) -> Result<Message, RecvError> {
        self.check_fork()?;
        self.free_read();
        loop {
            if let Some(words) = self.take() {
                return self.open_message(&words);
            }
            match self.wait(deadline) {
                Woken::Ready => {}
                Woken::TimedOut => return Err(RecvError::TimedOut),
                Woken::Gone => return Err(RecvError::PeerGone),
            }
        }
    }

    /// Waits for the next message. Not inlined, so that what is received stays in registers on its way to the caller.
    #[inline(never)]
    fn wait(&self, deadline: Option<Deadline>) -> Woken {
        let slots = self.object.slots();
        spin(self.spin, self.object.to_receiver(), deadline, || ring::is_there(slots, self.ticket))
    }

    /// Reads the next message, if it is there.
    #[inline]
    fn take(&mut self) -> Option<Words> {
        let (words, read) = ring::read(self.object.slots(), &mut self.ticket)?;
        self.read = Some(read);
        Some(words)
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
    fn open_message(&self, words: &Words) -> Result<Message, RecvError> {
        match message::read(words)? {
            Carried::Bytes(bytes) => Ok(Message::Bytes(bytes)),
            Carried::Descriptor(descriptor) => Ok(Message::View(self.client.attach_once(&descriptor)?)),
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
            let Some(words) = ring::claim(slots, &mut self.ticket) else { break };
            if let Ok(Carried::Descriptor(descriptor)) = message::read(&words) {
                self.client.give_up(&descriptor);
            }
        }
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("provider", &self.object.provider()).finish()
    }
}
