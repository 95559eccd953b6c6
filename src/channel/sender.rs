//! The sender's end.

#![forbid(unsafe_code)]

use super::bell::{Deadline, Woken};
use super::error::{ChannelError, SendError, SendFailure};
use super::object::{self, Object, MAX_SLOTS, MIN_SLOTS};
use super::ring::{self, Ticket, Words};
use super::{message, spin, DEFAULT_SLOTS, DEFAULT_SPIN};
use crate::buf::ShmBuf;
use crate::descriptor::{PeerId, ProviderId};
use crate::provider::Provider;
use std::fmt;
use std::time::Duration;

/// Options of a [`Sender`]. Start with [`Sender::builder`]; every option has a default.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `create` is called"]
pub struct SenderBuilder {
    slots: usize,
    mode: u32,
    spin: Duration,
}

impl SenderBuilder {
    /// How many messages fit that the receiver has not received, from 2 to 65,536; default 256. Each takes 64 bytes of /dev/shm. While the
    /// receiver has asked for a message that is not there yet, one more fits.
    pub fn slots(mut self, slots: usize) -> Self {
        self.slots = slots;
        self
    }

    /// Permission bits of the object, whatever the umask; default `0o600`: receivers of the same user. Both sides write to it.
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    /// How long [`send`](Sender::send) looks again and again for room before it sleeps; default 20 µs. [`Duration::MAX`] is for ever.
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = spin;
        self
    }

    /// Makes a channel that is called `name`: 1 to 64 of `A-Z a-z 0-9 _ -`, and different from those of all living senders whose
    /// providers have the same [`name_prefix`](crate::ProviderBuilder::name_prefix). Buffers that are sent must be `provider`'s.
    ///
    /// A sender that was killed makes room for the next one by its name as soon as the kernel has taken its process apart. That can take
    /// a little longer than until its receiver is told: some milliseconds for each 100 MB of its memory.
    ///
    /// # Errors
    ///
    /// [`ChannelError::Name`], [`ChannelError::Capacity`], [`ChannelError::Taken`], [`ChannelError::NotAChannel`],
    /// [`ChannelError::TooMany`], [`ChannelError::Os`].
    pub fn create(self, provider: &Provider, name: &str) -> Result<Sender, ChannelError> {
        if !(MIN_SLOTS..=MAX_SLOTS).contains(&self.slots) {
            return Err(ChannelError::Capacity { slots: self.slots, min: MIN_SLOTS, max: MAX_SLOTS });
        }
        let name = object::name(provider.name_prefix(), name)?;
        let provider = provider.id();
        let object = Object::create(&name, self.slots, provider, self.mode)?;
        let ticket = Ticket::default();
        Ok(Sender { object, provider, ticket, has_room: true, sent: None, receiver: None, spin: self.spin })
    }
}

/// Sends messages to one receiver, in this or another process. See the [module](super).
pub struct Sender {
    object: Object,
    provider: ProviderId,
    ticket: Ticket,
    /// Is the next slot known to be free? Nobody but this makes it full.
    has_room: bool,
    /// The message that was sent last.
    sent: Option<Ticket>,
    receiver: Option<PeerId>,
    spin: Duration,
}

/// How long a call may wait.
#[derive(Clone, Copy)]
enum Patience {
    None,
    Until(Option<Deadline>),
}

impl Patience {
    fn of(timeout: Duration) -> Self {
        Self::Until(Deadline::after(timeout))
    }
}

impl Sender {
    /// Starts with the defaults.
    pub fn builder() -> SenderBuilder {
        SenderBuilder { slots: DEFAULT_SLOTS, mode: 0o600, spin: DEFAULT_SPIN }
    }

    /// A channel with the default options.
    ///
    /// # Errors
    ///
    /// As [`SenderBuilder::create`].
    pub fn create(provider: &Provider, name: &str) -> Result<Self, ChannelError> {
        Self::builder().create(provider, name)
    }

    /// Waits until a receiver has opened the channel, at most for `timeout`; [`Duration::MAX`] is for ever. Returns who it is to the
    /// provider.
    ///
    /// # Errors
    ///
    /// [`SendFailure::TimedOut`], [`SendFailure::PeerGone`], [`SendFailure::Forked`].
    pub fn wait_for_receiver(&mut self, timeout: Duration) -> Result<PeerId, SendFailure> {
        if !self.object.is_ours() {
            return Err(SendFailure::Forked);
        }
        let (object, provider) = (&self.object, self.provider);
        match object.to_sender().wait(Deadline::after(timeout), || object.receiver(provider).is_some()) {
            Woken::TimedOut => Err(SendFailure::TimedOut),
            Woken::Ready if !object.to_sender().is_gone() => self.peer().ok_or(SendFailure::PeerGone),
            Woken::Ready | Woken::Gone => Err(SendFailure::PeerGone),
        }
    }

    /// Who has opened the channel, if somebody has.
    fn peer(&mut self) -> Option<PeerId> {
        if self.receiver.is_none() {
            self.receiver = self.object.receiver(self.provider);
        }
        self.receiver
    }

    /// Waits until the receiver has received all that was sent, and has asked for more; at most for `timeout`. Then the provider can
    /// be dropped, and nothing is lost: a buffer that the receiver has not received goes with its provider.
    ///
    /// # Errors
    ///
    /// [`SendFailure::TimedOut`], [`SendFailure::PeerGone`], whatever it has received before, and [`SendFailure::Forked`].
    pub fn wait_until_received(&mut self, timeout: Duration) -> Result<(), SendFailure> {
        if !self.object.is_ours() {
            return Err(SendFailure::Forked);
        }
        let Some(sent) = self.sent else { return Ok(()) };
        let (slots, bell) = (self.object.slots(), self.object.to_sender());
        match bell.wait(Deadline::after(timeout), || ring::is_done(slots, sent)) {
            // What a receiver has not received when it leaves, it makes as if it had.
            Woken::Ready if !bell.is_gone() => Ok(()),
            Woken::Ready | Woken::Gone => Err(SendFailure::PeerGone),
            Woken::TimedOut => Err(SendFailure::TimedOut),
        }
    }

    /// How many messages fit that the receiver has not received.
    pub fn slots(&self) -> usize {
        self.object.capacity()
    }

    /// Sends a buffer, and waits for room if need be. The receiver's lease is added first, so that the message is held from the
    /// moment it is sent.
    ///
    /// # Errors
    ///
    /// [`SendFailure::PeerGone`] if the receiver is gone, also while this waits; [`SendFailure::NoReceiver`],
    /// [`SendFailure::Share`], [`SendFailure::Forked`]. The buffer comes back with the error.
    #[inline]
    pub fn send(&mut self, buffer: ShmBuf) -> Result<(), SendError<ShmBuf>> {
        self.send_buffer(buffer, Patience::Until(None))
    }

    /// As [`send`](Self::send), without waiting.
    ///
    /// # Errors
    ///
    /// [`SendFailure::Full`], and those of [`send`](Self::send).
    #[inline]
    pub fn try_send(&mut self, buffer: ShmBuf) -> Result<(), SendError<ShmBuf>> {
        self.send_buffer(buffer, Patience::None)
    }

    /// As [`send`](Self::send), waiting at most for `timeout`.
    ///
    /// # Errors
    ///
    /// [`SendFailure::TimedOut`], and those of [`send`](Self::send).
    #[inline]
    pub fn send_timeout(&mut self, buffer: ShmBuf, timeout: Duration) -> Result<(), SendError<ShmBuf>> {
        self.send_buffer(buffer, Patience::of(timeout))
    }

    #[inline]
    fn send_buffer(&mut self, message: ShmBuf, patience: Patience) -> Result<(), SendError<ShmBuf>> {
        let fail = |failure, message| Err(SendError { failure, message });
        if let Err(failure) = self.make_room(patience) {
            return fail(failure, message);
        }
        let Some(peer) = self.peer() else { return fail(SendFailure::NoReceiver, message) };
        let descriptor = match message.lease_to(peer) {
            Ok(descriptor) => descriptor,
            Err(error) => return fail(SendFailure::Share(error), message),
        };
        if self.put(&message::of_descriptor(&descriptor)) {
            return Ok(());
        }
        message.take_lease_back(peer);
        fail(SendFailure::PeerGone, message)
    }

    /// Sends up to [`MAX_INLINE`](super::MAX_INLINE) bytes in the slot itself, and waits for room if need be. They may be sent before
    /// there is a receiver.
    ///
    /// # Errors
    ///
    /// [`SendFailure::TooLong`], [`SendFailure::PeerGone`], [`SendFailure::Forked`].
    #[inline]
    pub fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), SendFailure> {
        self.send_inline(bytes, Patience::Until(None))
    }

    /// As [`send_bytes`](Self::send_bytes), without waiting.
    ///
    /// # Errors
    ///
    /// [`SendFailure::Full`], and those of [`send_bytes`](Self::send_bytes).
    #[inline]
    pub fn try_send_bytes(&mut self, bytes: &[u8]) -> Result<(), SendFailure> {
        self.send_inline(bytes, Patience::None)
    }

    /// As [`send_bytes`](Self::send_bytes), waiting at most for `timeout`.
    ///
    /// # Errors
    ///
    /// [`SendFailure::TimedOut`], and those of [`send_bytes`](Self::send_bytes).
    #[inline]
    pub fn send_bytes_timeout(&mut self, bytes: &[u8], timeout: Duration) -> Result<(), SendFailure> {
        self.send_inline(bytes, Patience::of(timeout))
    }

    #[inline]
    fn send_inline(&mut self, bytes: &[u8], patience: Patience) -> Result<(), SendFailure> {
        let words = message::of_bytes(bytes)?;
        self.make_room(patience)?;
        if self.put(&words) {
            Ok(())
        } else {
            Err(SendFailure::PeerGone)
        }
    }

    /// Makes sure that the next slot is free.
    #[inline]
    fn make_room(&mut self, patience: Patience) -> Result<(), SendFailure> {
        if self.has_room && self.object.is_ours() && !self.object.to_sender().is_gone() {
            return Ok(());
        }
        self.wait_for_room(patience)
    }

    #[inline(never)]
    fn wait_for_room(&self, patience: Patience) -> Result<(), SendFailure> {
        let object = &self.object;
        if !object.is_ours() {
            return Err(SendFailure::Forked);
        }
        if object.to_sender().is_gone() {
            return Err(SendFailure::PeerGone);
        }
        let has_room = || ring::has_room(object.slots(), self.ticket);
        let deadline = match patience {
            _ if has_room() => return Ok(()),
            Patience::None => return Err(SendFailure::Full { slots: object.capacity() }),
            Patience::Until(deadline) => deadline,
        };
        match spin(self.spin, object.to_sender(), deadline, has_room) {
            Woken::Ready => Ok(()),
            Woken::TimedOut => Err(SendFailure::TimedOut),
            Woken::Gone => Err(SendFailure::PeerGone),
        }
    }

    /// Sends into the free slot. `false` if the receiver was gone by then, and has not taken the message.
    #[inline]
    fn put(&mut self, words: &Words) -> bool {
        let (slots, mut sent) = (self.object.slots(), self.ticket);
        ring::put(slots, &mut self.ticket, words);
        self.sent = Some(sent);
        self.object.to_receiver().ring();
        self.has_room = ring::has_room(slots, self.ticket);
        // After the full fence in `ring`, whose partner is in `Receiver::drop`: a receiver that leaves takes this message, or is seen
        // to be gone. It may be both.
        !self.object.to_sender().is_gone() || ring::claim(slots, &mut sent).is_none()
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // In a forked child the channel is the parent's.
        if self.object.is_ours() {
            self.object.close();
        }
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("slots", &self.slots()).field("receiver", &self.receiver).finish()
    }
}
