//! The sender's end.

#![forbid(unsafe_code)]

use super::bell::{Deadline, Woken};
use super::book::Book;
use super::borrower::SentBuffer;
use super::error::{ChannelError, SendError, SendErrorKind};
use super::lender::{Lender, NotLent};
use super::object::{self, Object, MAX_LOANS, MAX_SLOTS, MIN_SLOTS};
use super::ring::{self, Ticket, Words};
use super::{message, spin, DEFAULT_LOANS, DEFAULT_SLOTS, DEFAULT_SPIN};
use crate::os::posix::is_object_mode;
use crate::owner::buf::ShmBuf;
use crate::owner::pool::Lends;
use crate::owner::provider::Provider;
use crate::protocol::ids::ProviderId;
use std::fmt;
use std::io;
use std::mem::size_of;
use std::sync::Arc;
use std::time::Duration;

/// Options of a [`Sender`]. Start with [`Sender::builder`]; every option has a default.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `create` is called"]
pub struct SenderBuilder {
    slots: usize,
    loans: usize,
    mode: u32,
    spin: Duration,
}

impl SenderBuilder {
    /// How many messages fit that the receiver has not received, from 2 to 65,536; default 256. Each takes 64 bytes of /dev/shm. While the
    /// receiver has asked for a message that is not there yet, one more fits.
    pub fn capacity(mut self, messages: usize) -> Self {
        self.slots = messages;
        self
    }

    /// How many buffers the receiver may have at a time, those that it has not received included: from 1 to 1,048,576, rounded up to a
    /// power of two; default 2048. Each takes 8 bytes of /dev/shm and 8 of heap.
    pub fn loans(mut self, loans: usize) -> Self {
        self.loans = loans;
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
    /// [`ChannelError::Name`], [`ChannelError::Capacity`], [`ChannelError::Loans`], [`ChannelError::Mode`],
    /// [`ChannelError::Forked`], [`ChannelError::Taken`],
    /// [`ChannelError::NotAChannel`], [`ChannelError::WrongUid`], [`ChannelError::TooMany`], [`ChannelError::Os`].
    pub fn create(self, provider: &Provider, name: &str) -> Result<Sender, ChannelError> {
        if !(MIN_SLOTS..=MAX_SLOTS).contains(&self.slots) {
            return Err(ChannelError::Capacity { capacity: self.slots, min: MIN_SLOTS, max: MAX_SLOTS });
        }
        if !(1..=MAX_LOANS).contains(&self.loans) {
            return Err(ChannelError::Loans { loans: self.loans, min: 1, max: MAX_LOANS });
        }
        if !is_object_mode(self.mode) {
            return Err(ChannelError::Mode { mode: self.mode });
        }
        // Before any lock, which a thread that is not in this process may hold.
        if !provider.pool().is_ours() {
            return Err(ChannelError::Forked);
        }
        let loans = self.loans.next_power_of_two();
        let name = object::name(provider.name_prefix(), name)?;
        // Before the object: once that is there, a receiver may come.
        let Some(book) = Book::new(loans) else {
            return Err(name
                .error("malloc", loans * size_of::<usize>(), io::Error::from_raw_os_error(libc::ENOMEM))
                .into());
        };
        let object = Object::create(&name, self.slots, loans, provider.id(), self.mode)?;
        let lender = Arc::new(Lender::new(object.shared().clone(), object.locks().clone(), book));
        provider.pool().add_lender(lender.clone());
        let progress = Progress { ticket: Ticket::default(), has_room: true, sent: None };
        Ok(Sender { object, lender, next_loan: 0, loans, provider: provider.id(), progress, spin: self.spin })
    }
}

/// Sends messages to one receiver, in this or another process. See the [module](super).
pub struct Sender {
    object: Object,
    lender: Arc<Lender>,
    /// Where a free number is looked for.
    next_loan: usize,
    /// The most that the receiver may have.
    loans: usize,
    provider: ProviderId,
    progress: Progress,
    spin: Duration,
}

/// Where in the ring the sender is.
struct Progress {
    /// The next message.
    ticket: Ticket,
    /// Is the next slot known to be free? Nobody but the sender makes it full.
    has_room: bool,
    /// The message that was sent last.
    sent: Option<Ticket>,
}

impl Progress {
    /// Sends into the free slot. `false` if the receiver was gone by then, and has not taken the message.
    #[inline]
    fn put(&mut self, object: &Object, words: &Words) -> bool {
        let (slots, mut sent) = (object.slots(), self.ticket);
        ring::put(slots, &mut self.ticket, words);
        self.sent = Some(sent);
        object.to_receiver().ring();
        self.has_room = ring::has_room(slots, self.ticket);
        // After the full fence in `ring`, whose partner is in `Receiver::drop`: a receiver that leaves takes this message, or is seen
        // to be gone. It may be both.
        // Not claimed as long as the receiver's process may read: of one that is dying, the bell may ring before its last thread stops.
        !object.to_sender().is_gone() || object.is_receiver_locked() || ring::claim(slots, &mut sent).is_none()
    }
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
        SenderBuilder { slots: DEFAULT_SLOTS, loans: DEFAULT_LOANS, mode: 0o600, spin: DEFAULT_SPIN }
    }

    /// A channel with the default options.
    ///
    /// # Errors
    ///
    /// As [`SenderBuilder::create`].
    pub fn create(provider: &Provider, name: &str) -> Result<Self, ChannelError> {
        Self::builder().create(provider, name)
    }

    /// Waits until a receiver has opened the channel, at most for `timeout`; [`Duration::MAX`] is for ever. Messages can be sent before.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TimedOut`], [`SendErrorKind::Disconnected`], [`SendErrorKind::Forked`].
    pub fn wait_for_receiver(&mut self, timeout: Duration) -> Result<(), SendErrorKind> {
        if !self.object.is_ours() {
            return Err(SendErrorKind::Forked);
        }
        let bell = self.object.to_sender();
        match bell.wait(Deadline::after(timeout), || bell.is_held(), || self.object.may_have_receiver()) {
            Woken::Ready => Ok(()),
            Woken::TimedOut => Err(SendErrorKind::TimedOut),
            Woken::Gone => Err(SendErrorKind::Disconnected),
        }
    }

    /// Waits until the receiver has received all that was sent, and has asked for more; at most for `timeout`. Then sender and
    /// provider can be dropped, and nothing is lost: a buffer that the receiver has not received goes with the two.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TimedOut`], [`SendErrorKind::Disconnected`], whatever it has received before, and [`SendErrorKind::Forked`].
    pub fn wait_until_received(&mut self, timeout: Duration) -> Result<(), SendErrorKind> {
        if !self.object.is_ours() {
            return Err(SendErrorKind::Forked);
        }
        let Some(sent) = self.progress.sent else { return Ok(()) };
        let (slots, bell) = (self.object.slots(), self.object.to_sender());
        match bell.wait(Deadline::after(timeout), || ring::is_done(slots, sent), || self.object.may_have_receiver()) {
            // What a receiver has not received when it leaves, it makes as if it had.
            Woken::Ready if !bell.is_gone() => Ok(()),
            Woken::Ready | Woken::Gone => Err(SendErrorKind::Disconnected),
            Woken::TimedOut => Err(SendErrorKind::TimedOut),
        }
    }

    /// How many messages fit that the receiver has not received.
    pub fn capacity(&self) -> usize {
        self.object.capacity()
    }

    /// Lends a buffer to the receiver, and waits for room in the ring if need be. It may be sent before there is a receiver.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::Disconnected`] if the receiver is gone, also while this waits (what is sent when it is just going may count as sent, and
    /// comes back with all that it had, when it does not read any more); [`SendErrorKind::TooManyLent`], without waiting;
    /// [`SendErrorKind::OtherProvider`], [`SendErrorKind::Forked`]. The buffer comes back with the error.
    #[inline]
    pub fn send(&mut self, buffer: ShmBuf) -> Result<(), SendError<ShmBuf>> {
        self.send_buffer(buffer, Patience::Until(None))
    }

    /// As [`send`](Self::send), without waiting.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::Full`], and those of [`send`](Self::send).
    #[inline]
    pub fn try_send(&mut self, buffer: ShmBuf) -> Result<(), SendError<ShmBuf>> {
        self.send_buffer(buffer, Patience::None)
    }

    /// As [`send`](Self::send), waiting at most for `timeout`.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TimedOut`], and those of [`send`](Self::send).
    #[inline]
    pub fn send_timeout(&mut self, buffer: ShmBuf, timeout: Duration) -> Result<(), SendError<ShmBuf>> {
        self.send_buffer(buffer, Patience::of(timeout))
    }

    #[inline]
    fn send_buffer(&mut self, message: ShmBuf, patience: Patience) -> Result<(), SendError<ShmBuf>> {
        let fail = |kind, message| Err(SendError { kind, message });
        if let Err(kind) = self.make_room(patience) {
            if kind == SendErrorKind::Disconnected {
                // Where the provider is gone, nobody else does.
                self.lender.reclaim();
            }
            return fail(kind, message);
        }
        // Of a process that this one was forked from, there is no sender that has not been refused.
        let (found, expected) = (message.provider(), self.provider);
        if found != expected {
            return fail(SendErrorKind::OtherProvider { found, expected }, message);
        }
        let (segment, offset, len) = message.place();
        let Self { object, progress, next_loan, .. } = self;
        let lent = self.lender.lend(next_loan, message, |number| {
            let place = SentBuffer { number, segment, offset, len };
            progress.put(object, &message::of_buffer(progress.ticket.number(), &place))
        });
        match lent {
            Ok(()) => Ok(()),
            Err(NotLent::TooMany(message)) => fail(SendErrorKind::TooManyLent { max: self.loans }, message),
            Err(NotLent::NotSent(message)) => fail(SendErrorKind::Disconnected, message),
        }
    }

    /// Sends up to [`MAX_INLINE`](super::MAX_INLINE) bytes in the slot itself, and waits for room if need be. They may be sent before
    /// there is a receiver.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TooLong`], [`SendErrorKind::Disconnected`], [`SendErrorKind::Forked`].
    #[inline]
    pub fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), SendErrorKind> {
        self.send_inline(bytes, Patience::Until(None))
    }

    /// As [`send_bytes`](Self::send_bytes), without waiting.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::Full`], and those of [`send_bytes`](Self::send_bytes).
    #[inline]
    pub fn try_send_bytes(&mut self, bytes: &[u8]) -> Result<(), SendErrorKind> {
        self.send_inline(bytes, Patience::None)
    }

    /// As [`send_bytes`](Self::send_bytes), waiting at most for `timeout`.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TimedOut`], and those of [`send_bytes`](Self::send_bytes).
    #[inline]
    pub fn send_bytes_timeout(&mut self, bytes: &[u8], timeout: Duration) -> Result<(), SendErrorKind> {
        self.send_inline(bytes, Patience::of(timeout))
    }

    #[inline]
    fn send_inline(&mut self, bytes: &[u8], patience: Patience) -> Result<(), SendErrorKind> {
        let words = message::of_bytes(bytes)?;
        self.make_room(patience)?;
        if self.progress.put(&self.object, &words) {
            Ok(())
        } else {
            Err(SendErrorKind::Disconnected)
        }
    }

    /// Makes sure that the next slot is free.
    #[inline]
    fn make_room(&mut self, patience: Patience) -> Result<(), SendErrorKind> {
        if self.progress.has_room && self.object.is_ours() && !self.object.to_sender().is_gone() {
            return Ok(());
        }
        self.wait_for_room(patience)
    }

    #[inline(never)]
    fn wait_for_room(&self, patience: Patience) -> Result<(), SendErrorKind> {
        let object = &self.object;
        if !object.is_ours() {
            return Err(SendErrorKind::Forked);
        }
        if object.to_sender().is_gone() {
            return Err(SendErrorKind::Disconnected);
        }
        let has_room = || ring::has_room(object.slots(), self.progress.ticket);
        let deadline = match patience {
            _ if has_room() => return Ok(()),
            Patience::None => return Err(SendErrorKind::Full { capacity: object.capacity() }),
            Patience::Until(deadline) => deadline,
        };
        match spin(self.spin, object.to_sender(), deadline, has_room, || object.may_have_receiver()) {
            Woken::Ready => Ok(()),
            Woken::TimedOut => Err(SendErrorKind::TimedOut),
            Woken::Gone => Err(SendErrorKind::Disconnected),
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // In a forked child the channel is the parent's.
        if self.object.is_ours() {
            self.object.close();
            self.lender.close();
        }
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("capacity", &self.capacity()).field("provider", &self.provider).finish()
    }
}
