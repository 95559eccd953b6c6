//! The receiving end of a channel.

#![forbid(unsafe_code)]

use super::doorbell::WakeReason;
use super::error::{ChannelError, RecvError};
use super::interrupt::{Interrupter, Interrupts};
use super::layout::{
    self, not_a_channel, Facts, Found, Kind, MessageType, Shared, EXTRA_SLOTS, MAX_BORROWED,
    MAX_SLOTS,
};
use super::message::{self, Carried, Inline, Missed};
use super::object::{Object, Rendezvous};
use super::parker::Parker;
use super::return_queue::{memory_doorbell, BorrowedBuffer, MappedSegments, ReturnQueue};
use super::ring::{self, OnFull, Ticket, Words};
use super::watch::Attempts;
use crate::error::OsError;
use crate::os::futex::Deadline;
use crate::os::name::{Name, Namespace};
use crate::os::posix::{admits_others, effective_uid};
use crate::peer::client::Client;
use crate::peer::error::AttachError;
use crate::protocol::control::CHANNEL_MAGIC;
use crate::protocol::ids::ProviderId;
use crate::protocol::sweep::remove_dead;
use crate::sync::{fence, Ordering};
use std::fmt;
use std::future::{poll_fn, Future};
use std::ops::Deref;
use std::os::unix::fs::MetadataExt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A received message: a buffer of the sender, read in place, or up to
/// [`MAX_INLINE`](super::MAX_INLINE) bytes, copied out of the slot. Dereferences to `&[u8]`.
///
/// The sender does not reuse the memory of a buffer before the message is dropped, even after the
/// receiver, the sender and the provider have been dropped.
///
/// A message begins where the sender's buffer does, so it has the alignment requested from
/// [`Provider::alloc_layout`](crate::Provider::alloc_layout), and at least 64 bytes; an
/// [inline](Self::is_inline) one has 8. Unsafe code must check the alignment, which depends on
/// other processes following the protocol.
///
/// A message can be cloned. A buffer goes back to the sender when its last clone is dropped, and
/// counts once for [`max_borrowed`](ReceiverBuilder::max_borrowed). The first clone of a buffer
/// allocates a count; a message that is not cloned costs nothing for it.
#[derive(Clone)]
pub struct Message(Content);

#[derive(Clone)]
enum Content {
    Buffer(BorrowedBuffer),
    Bytes(Inline),
}

// A message is returned by value.
#[cfg(not(all(test, loom)))]
const _: () = assert!(std::mem::size_of::<Message>() <= 64);

impl Message {
    /// Returns how many messages were sent between the previous message received and this one:
    /// those that this receiver was too slow for (see [`OnFull`]), and those lost to an error.
    /// Wraps around above [`u32::MAX`].
    #[inline]
    pub fn missed(&self) -> u32 {
        match &self.0 {
            Content::Buffer(message) => message.missed(),
            Content::Bytes(bytes) => bytes.missed(),
        }
    }

    /// Returns `true` if the bytes were sent in the slot itself, by
    /// [`send_bytes`](super::Sender::send_bytes).
    #[inline]
    pub fn is_inline(&self) -> bool {
        matches!(self.0, Content::Bytes(_))
    }
}

impl Deref for Message {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Content::Buffer(message) => message,
            Content::Bytes(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for Message {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut message = f.debug_struct("Message");
        message
            .field("len", &self.len())
            .field("is_inline", &self.is_inline());
        message.field("missed", &self.missed()).finish()
    }
}

pub(super) fn may_open_later(error: &ChannelError) -> bool {
    error.is_not_found() || matches!(error, ChannelError::TooManyReceivers { .. })
}

/// Options of a [`Receiver`]. Start with [`Receiver::builder`]; every option has a default.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `open` is called"]
pub struct ReceiverBuilder {
    spin: Option<Duration>,
    capacity: Option<usize>,
    max_borrowed: Option<usize>,
    on_full: Option<OnFull>,
    message_type: Option<MessageType>,
}

impl Default for ReceiverBuilder {
    fn default() -> Self {
        Receiver::builder()
    }
}

impl ReceiverBuilder {
    /// Sets how many messages of a [`Publisher`](super::Publisher) this receiver may be behind,
    /// from 1 to the publisher's maximum, which is the default. Each takes 64 bytes of /dev/shm.
    /// One more fits, except with [`OnFull::DropOldest`].
    pub fn capacity(mut self, messages: usize) -> Self {
        self.capacity = Some(messages);
        self
    }

    /// Sets how many buffers of a [`Publisher`](super::Publisher) this receiver may hold at a time,
    /// including those not received: from 1 to the publisher's maximum, which is the default,
    /// rounded up to a power of two. Each takes 24 bytes of /dev/shm.
    pub fn max_borrowed(mut self, max_borrowed: usize) -> Self {
        self.max_borrowed = Some(max_borrowed);
        self
    }

    pub(super) fn behind(&self, most: usize, on_full: OnFull) -> (usize, OnFull) {
        (
            self.capacity.unwrap_or(most),
            self.on_full.unwrap_or(on_full),
        )
    }

    /// Sets what happens when this receiver of a [`Publisher`](super::Publisher) is behind by its
    /// [`capacity`](Self::capacity); default: the publisher's rule.
    pub fn on_full(mut self, on_full: OnFull) -> Self {
        self.on_full = Some(on_full);
        self
    }

    /// Sets how long [`recv`](Receiver::recv) spins for a message before it sleeps; by default up
    /// to 20 µs, [where that pays](super#spinning). With [`Duration::MAX`] it never sleeps.
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = Some(spin);
        self
    }

    /// Sets the type that the channel's messages must have, as its sender has
    /// [declared](super::SenderBuilder::message_type) it; by default any, or none.
    pub fn message_type(mut self, message_type: MessageType) -> Self {
        self.message_type = Some(message_type);
        self
    }

    /// Opens the channel `name` of a [`Sender`](super::Sender) or a [`Publisher`](super::Publisher)
    /// whose provider has the client's directory, name prefix and user (see
    /// [`ClientBuilder`](crate::ClientBuilder)). One of another user must admit this one:
    /// [`SenderBuilder::mode`](super::SenderBuilder::mode),
    /// [`PublisherBuilder::mode`](super::PublisherBuilder::mode).
    ///
    /// # Errors
    ///
    /// [`ChannelError::Name`], [`ChannelError::NotFound`], [`ChannelError::NotReady`],
    /// [`ChannelError::Closed`], [`ChannelError::HasReceiver`], [`ChannelError::NotAChannel`],
    /// [`ChannelError::OtherVersion`], [`ChannelError::WrongUid`], [`ChannelError::TypeMismatch`],
    /// [`ChannelError::TooManyEnds`], [`ChannelError::Os`]; of a sender:
    /// [`ChannelError::NotAPublisher`]; of a publisher: [`ChannelError::TooManyReceivers`],
    /// [`ChannelError::OutOfRange`], [`ChannelError::BlockingNotAllowed`].
    pub fn open(self, client: &Client, name: &str) -> Result<Receiver, ChannelError> {
        let (names, uid) = client.trusted();
        self.open_in(names, uid, name, Interrupts::new())
    }

    pub(super) fn open_in(
        &self,
        names: &Namespace,
        uid: u32,
        name: &str,
        interrupts: Arc<Interrupts>,
    ) -> Result<Receiver, ChannelError> {
        let object = layout::name(names, name)?;
        let mut found = layout::open(&object, uid)?;
        let message_type =
            MessageType::expect(&self.message_type, found.message_type.take(), || {
                object.path()
            })?;
        let provider = found.facts.provider;
        // Before joining, which could not be undone.
        let memory = memory_doorbell(names, provider, uid).map_err(not_a_channel)?;
        let (object, on_full) = match found.facts.kind {
            Kind::Pair => (self.join(found, &object)?, OnFull::Block),
            Kind::Rendezvous => self.take_a_registration(found, &object, |connection| {
                layout::connection_name(names, name, connection)
            })?,
            Kind::Connection => {
                let reason = "it is one receiver's part of a channel";
                return Err(ChannelError::NotAChannel {
                    object: object.path(),
                    reason,
                });
            }
        };
        let return_queue = ReturnQueue::new(&object, names, memory);
        let segments = MappedSegments::new(names, uid, provider, return_queue);
        Ok(Receiver::new(
            object,
            segments,
            on_full,
            message_type,
            self.spin,
            interrupts,
        ))
    }

    fn join(&self, found: Found, name: &Name) -> Result<Object, ChannelError> {
        if self.capacity.is_some() || self.max_borrowed.is_some() || self.on_full.is_some() {
            return Err(ChannelError::NotAPublisher {
                object: name.path(),
            });
        }
        Object::of_receiver(found).join(name)
    }

    /// Takes a registration of a publisher (R1 to R5 of `object`).
    fn take_a_registration(
        &self,
        found: Found,
        name: &Name,
        connection_name: impl Fn(u64) -> Name,
    ) -> Result<(Object, OnFull), ChannelError> {
        let rules = found.facts;
        let object = || name.path();
        let access = found
            .locks
            .file()
            .metadata()
            .map_err(|error| name.error("fstat", 0, error))?;
        let is_own = access.uid() == effective_uid();
        if !is_own && !admits_others(access.mode()) {
            // The publisher could not open the connection that this process creates.
            let (found, expected) = (access.uid(), effective_uid());
            return Err(ChannelError::WrongUid {
                object: object(),
                found,
                expected,
            });
        }
        let (mode, group) = if is_own {
            (0o600, None)
        } else {
            (access.mode() & 0o666, Some(access.gid()))
        };
        let (most, most_borrowed) = (rules.slots - EXTRA_SLOTS, rules.max_borrowed);
        let (capacity, max_borrowed) = (
            self.capacity.unwrap_or(most),
            self.max_borrowed.unwrap_or(most_borrowed),
        );
        ChannelError::check("capacity", capacity, 1, most.min(MAX_SLOTS))?;
        ChannelError::check(
            "max_borrowed",
            max_borrowed,
            1,
            most_borrowed.min(MAX_BORROWED),
        )?;
        let on_full = self.on_full.unwrap_or(rules.on_full);
        if on_full == OnFull::Block && !rules.allow_blocking {
            return Err(ChannelError::BlockingNotAllowed { object: object() });
        }
        let random = |error: getrandom::Error| name.error("getrandom", 0, error.into());
        let id = getrandom::u64().map_err(random)?;
        let rendezvous = Rendezvous::of_receiver(found);
        let gone = || ChannelError::Closed { object: object() };
        if !rendezvous.has_publisher() {
            return Err(gone());
        }
        let Some(registration) = rendezvous.register(name)? else {
            return Err(ChannelError::TooManyReceivers {
                object: object(),
                max: rules.max_subscribers,
            });
        };
        if let Some(former) = registration.connection() {
            // If this fails, a sweep does it.
            let _ = remove_dead(&connection_name(former), effective_uid(), CHANNEL_MAGIC);
        }
        let facts = Facts {
            kind: Kind::Connection,
            slots: capacity + EXTRA_SLOTS,
            max_borrowed: max_borrowed.next_power_of_two(),
            max_subscribers: 1,
            on_full,
            ..rules
        };
        let connection = Object::create_connection(
            &connection_name(id),
            &facts,
            registration.clone(),
            mode,
            group,
        )?;
        // R5. A dead publisher notifies for no new receiver.
        let is_open = registration.announce(id) && registration.has_publisher();
        // Since R4 the publisher may have connected this receiver, sent and closed.
        if is_open || ring::has_passed(connection.shared().slots(), Ticket::default()) {
            return Ok((connection, on_full));
        }
        // The publisher may have opened the connection already.
        connection.shared().to_sender().leave();
        Err(gone())
    }

    /// Like [`open`](Self::open), but waits, for at most `timeout`, while there is no sender, it is
    /// still creating the channel, it has died and has no successor yet, or all of a publisher's
    /// registrations are taken. See [waiting for a name](super#waiting-for-a-name).
    ///
    /// # Errors
    ///
    /// See [`open`](Self::open).
    pub fn open_timeout(
        self,
        client: &Client,
        name: &str,
        timeout: Duration,
    ) -> Result<Receiver, ChannelError> {
        let object = layout::name(client.trusted().0, name)?;
        Attempts::run(object, timeout, may_open_later, || {
            self.clone().open(client, name)
        })
    }

    /// Like [`open_timeout`](Self::open_timeout), without a timeout and without blocking the
    /// thread, with any executor.
    ///
    /// # Errors
    ///
    /// See [`open`](Self::open), and [`ChannelError::Os`] if the thread that waits for names cannot
    /// be started.
    pub async fn open_async(self, client: &Client, name: &str) -> Result<Receiver, ChannelError> {
        let mut attempts = Attempts::new(layout::name(client.trusted().0, name)?);
        loop {
            match attempts.attempt(|| self.clone().open(client, name)) {
                Some(Err(error)) if may_open_later(&error) => {}
                None => {}
                Some(result) => return result,
            }
            poll_fn(|context| attempts.poll(context)).await?;
        }
    }
}

/// Receives the messages of one sender; see the [module](super).
pub struct Receiver {
    /// Not touched by a receive that does not wait.
    pub(super) parker: Box<Parker>,
    object: Object,
    segments: MappedSegments,
    ticket: Ticket,
    /// The message received last, whose slot the next receive frees.
    read: Option<Ticket>,
    /// The number of the next message, counting those not sent to this receiver.
    expected: u32,
    on_full: OnFull,
    message_type: Option<MessageType>,
    /// The word of the publisher that the receiver has last seen (see `missed`).
    limit_seen: u64,
    /// How many buffers it has borrowed.
    borrowed: u64,
    pub(super) spin: Option<Duration>,
    /// When [`wait_any`](super::wait_any) last returned this receiver; larger is later.
    pub(super) turn: u64,
}

impl Receiver {
    /// Returns a builder with the default options.
    pub fn builder() -> ReceiverBuilder {
        ReceiverBuilder {
            spin: None,
            capacity: None,
            max_borrowed: None,
            on_full: None,
            message_type: None,
        }
    }

    /// Opens a channel with the default options.
    ///
    /// # Errors
    ///
    /// See [`ReceiverBuilder::open`].
    pub fn open(client: &Client, name: &str) -> Result<Self, ChannelError> {
        Self::builder().open(client, name)
    }

    pub(super) fn new(
        object: Object,
        segments: MappedSegments,
        on_full: OnFull,
        message_type: Option<MessageType>,
        spin: Option<Duration>,
        interrupts: Arc<Interrupts>,
    ) -> Self {
        let parker = Box::new(Parker::new(
            object.shared(),
            Shared::to_receiver,
            interrupts,
        ));
        let (ticket, expected, read) = (Ticket::default(), 0, None);
        let (limit_seen, borrowed, turn) = (0, 0, 0);
        Self {
            parker,
            object,
            segments,
            ticket,
            expected,
            read,
            on_full,
            message_type,
            limit_seen,
            borrowed,
            spin,
            turn,
        }
    }

    /// Receives the next message, blocking until one arrives.
    ///
    /// # Errors
    ///
    /// * [`RecvError::Disconnected`] if the sender has been dropped or has died, and everything it
    ///   sent has been received.
    /// * [`RecvError::Evicted`] if the publisher has disconnected this receiver.
    /// * [`RecvError::Map`]: try again for the same message.
    /// * [`RecvError::NotConnected`]: if descriptors or memory were short, the publisher retries
    ///   within a second; messages are lost until then.
    /// * [`RecvError::TooManyBorrowed`]: drop messages; others are skipped or wait until then.
    /// * [`RecvError::MessageLost`], [`RecvError::Attach`] and [`RecvError::Damaged`]: this message is
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
        // Before the messages: those sent before the sender left precede `Disconnected`.
        let is_disconnected = self.object.is_sender_disconnected();
        match self.take() {
            Some(taken) => taken,
            None if is_disconnected => Err(self.end()),
            None => Err(RecvError::Empty),
        }
    }

    #[inline]
    pub(super) fn receive(&mut self, deadline: Option<Deadline>) -> Result<Message, RecvError> {
        self.check_fork()?;
        self.free_read();
        let mut was_ready = false;
        loop {
            if let Some(taken) = self.take() {
                return taken;
            }
            // The message may just have been withdrawn, or its slot may be damaged.
            if was_ready && Deadline::is_past(deadline) {
                return Err(RecvError::TimedOut);
            }
            match self.wait(deadline) {
                WakeReason::Interrupted => return Err(RecvError::Interrupted),
                WakeReason::Ready => was_ready = true,
                WakeReason::TimedOut => return Err(RecvError::TimedOut),
                WakeReason::Disconnected => return Err(self.end()),
            }
        }
    }

    /// Receives the next message without blocking the thread, with any executor. Cancel safe:
    /// dropping the future loses no message.
    ///
    /// # Errors
    ///
    /// [`RecvError::NoHelper`], and those of [`recv`](Self::recv) except
    /// [`RecvError::Interrupted`].
    pub fn recv_async(&mut self) -> RecvFuture<'_> {
        RecvFuture(self)
    }

    /// Receives the next message if it has arrived; otherwise registers the task to be woken when
    /// one may have. Only the waker of the last call is kept.
    ///
    /// # Errors
    ///
    /// As [`recv_async`](Self::recv_async).
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Result<Message, RecvError>> {
        self.ask()?;
        loop {
            if let Some(taken) = self.take() {
                self.parker.disarm();
                return Poll::Ready(taken);
            }
            match self.arm(context.waker()).map_err(RecvError::NoHelper)? {
                None => return Poll::Pending,
                Some(WakeReason::Disconnected) => return Poll::Ready(Err(self.end())),
                Some(_) => {}
            }
        }
    }

    /// Returns a handle that can interrupt this receiver's blocking waits, including
    /// [`wait_any`](super::wait_any).
    pub fn interrupter(&self) -> Interrupter {
        Interrupter::new(self.parker.interrupts())
    }

    /// Maps and faults in all segments that the sender's provider has now, so that the first read
    /// of a buffer in them costs no system call and no page fault. Returns the number of payload
    /// bytes present.
    ///
    /// For memory that the provider takes later, call this again, or let it
    /// [`reserve`](crate::Provider::reserve) first. The result is 0 if the provider has closed, or
    /// does not admit this user, and before Linux 5.14.
    ///
    /// # Errors
    ///
    /// [`RecvError::Map`] if descriptors or memory run out; [`RecvError::Attach`] if a segment is
    /// not the provider's; [`RecvError::Forked`] in a forked child.
    pub fn warm(&mut self) -> Result<usize, RecvError> {
        self.check_fork()?;
        let Self {
            object, segments, ..
        } = self;
        segments
            .warm(|| is_sender_there(object))
            .map_err(|error| match error {
                AttachError::Os(error) if may_work_later(&error) => RecvError::Map(error),
                error => RecvError::of_message(error),
            })
    }

    /// Returns how many unreceived messages the channel can hold.
    pub fn capacity(&self) -> usize {
        self.object.shared().capacity()
    }

    /// Returns how many buffers this receiver may hold at a time.
    pub fn max_borrowed(&self) -> usize {
        self.object.shared().max_borrowed()
    }

    /// Returns what happens when that many messages are waiting. A [`Sender`](super::Sender)
    /// blocks.
    pub fn on_full(&self) -> OnFull {
        self.on_full
    }

    /// Returns the type of the messages, if the sender has declared one.
    pub fn message_type(&self) -> Option<&MessageType> {
        self.message_type.as_ref()
    }

    /// Returns how many messages of a [`Publisher`](super::Publisher) this receiver has missed
    /// since it joined, by reason.
    pub fn missed(&self) -> Missed {
        self.object.shared().missed().load()
    }

    /// Returns `true` if the sender's end has found this receiver: always, for a
    /// [`Sender`](super::Sender); a [`Publisher`](super::Publisher) does when it next sends, or is
    /// asked for its receivers.
    pub fn is_connected(&self) -> bool {
        self.object.is_connected() && !self.object.is_sender_disconnected()
    }

    /// Returns the id of the provider whose buffers this receiver receives.
    pub fn provider(&self) -> ProviderId {
        self.object.provider()
    }

    /// Returns how many segments of the sender's provider are mapped.
    pub fn mapped_segments(&self) -> usize {
        self.segments.count()
    }

    /// Not inlined, so that a received message stays in registers on its way to the caller.
    #[inline(never)]
    fn wait(&mut self, deadline: Option<Deadline>) -> WakeReason {
        let Self {
            object,
            parker,
            segments,
            ticket,
            limit_seen,
            borrowed,
            ..
        } = self;
        object.check_publisher();
        let has_next = || has_next(object, segments, *ticket, *limit_seen, *borrowed);
        parker.wait(self.spin, deadline, has_next, || object.has_sender())
    }

    /// If a check is due and the sender has died, closes the channel on its behalf.
    pub(super) fn look_for_sender(&mut self) {
        let Self { object, parker, .. } = self;
        parker.check_notifier(|| object.has_sender());
    }

    #[inline]
    pub(super) fn ask(&mut self) -> Result<(), RecvError> {
        self.check_fork()?;
        self.free_read();
        self.object.check_publisher();
        Ok(())
    }

    #[inline]
    pub(super) fn has_next(&self) -> bool {
        has_next(
            &self.object,
            &self.segments,
            self.ticket,
            self.limit_seen,
            self.borrowed,
        )
    }

    pub(super) fn object(&self) -> &Object {
        &self.object
    }

    /// Registers `waker` for [`has_next`](Self::has_next); see [`Parker::arm`].
    pub(super) fn arm(&mut self, waker: &Waker) -> Result<Option<WakeReason>, OsError> {
        let Self {
            object,
            parker,
            segments,
            ticket,
            limit_seen,
            borrowed,
            ..
        } = self;
        let has_next = || has_next(object, segments, *ticket, *limit_seen, *borrowed);
        parker.arm(waker, has_next, || object.has_sender())
    }

    /// Receives the next message if it has arrived, or the reason why none can.
    #[inline]
    fn take(&mut self) -> Option<Result<Message, RecvError>> {
        // Mapped before the claim: the sender counts a claimed message as received.
        let Self {
            object,
            segments,
            ticket,
            ..
        } = self;
        let may_vanish = object.is_of_publisher();
        let prepare = |ticket, words: &_| prepare(object, segments, ticket, words);
        let (words, ticket) =
            match ring::receive(object.shared().slots(), ticket, may_vanish, prepare) {
                Some(Ok(received)) => received,
                Some(Err(error)) => return Some(Err(RecvError::Map(error))),
                None => return self.why_none().map(Err),
            };
        if may_vanish {
            object.shared().to_sender().ring_after_rmw();
        } else {
            self.read = Some(ticket);
        }

        let number = ticket.number();
        let ordinal = message::ordinal(number, &words);
        let missed = ordinal.wrapping_sub(self.expected);
        let content = match message::read(number, &words, missed) {
            Ok(Carried::Bytes(bytes)) => Content::Bytes(bytes),
            Ok(Carried::Buffer(buffer)) => {
                self.borrowed += 1;
                match segments.open(&buffer, missed, || is_sender_there(object)) {
                    Ok(message) => Content::Buffer(message),
                    Err(error) => {
                        segments.return_queue().give_back(buffer.number);
                        return Some(Err(RecvError::of_message(error)));
                    }
                }
            }
            Err(error) => return Some(Err(error)),
        };
        // After an error, the next message reports those missed.
        self.expected = ordinal.wrapping_add(1);
        Some(Ok(Message(content)))
    }

    /// Returns why no message arrives, if there is a reason that was not reported yet.
    fn why_none(&mut self) -> Option<RecvError> {
        if let Some(errno) = self.object.take_refusal() {
            return Some(RecvError::NotConnected { errno });
        }
        let is_at_limit = self
            .object
            .shared()
            .missed()
            .limit()
            .take(&mut self.limit_seen);
        let holds_any = holds_any(&self.segments, self.borrowed);
        // After the end of the channel, that is the reason.
        let is_reason = is_at_limit && holds_any && !self.object.is_sender_disconnected();
        if !is_reason {
            return None;
        }
        Some(RecvError::TooManyBorrowed {
            max: self.max_borrowed(),
        })
    }

    #[cold]
    fn end(&self) -> RecvError {
        if self.object.is_evicted() {
            RecvError::Evicted
        } else {
            RecvError::Disconnected
        }
    }

    #[inline]
    fn free_read(&mut self) {
        if let Some(read) = self.read.take() {
            ring::free(self.object.shared().slots(), read);
            self.object.shared().to_sender().notify();
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

/// Returns `true` if the next message has arrived, or there is a reason why none does.
#[inline]
fn has_next(
    object: &Object,
    segments: &MappedSegments,
    ticket: Ticket,
    limit_seen: u64,
    borrowed: u64,
) -> bool {
    let shared = object.shared();
    ring::has_passed(shared.slots(), ticket)
        || object.refusal().is_some()
        || (shared.missed().limit().change(limit_seen).is_some() && holds_any(segments, borrowed))
}

/// A receiver that has borrowed nothing has nothing to drop: the publisher is about to find those
/// returned.
#[inline]
fn holds_any(segments: &MappedSegments, borrowed: u64) -> bool {
    borrowed != segments.return_queue().returned()
}

/// Maps the segment of a message. Fails only if a later attempt may succeed.
#[inline]
fn prepare(
    object: &Object,
    segments: &mut MappedSegments,
    ticket: Ticket,
    words: &Words,
) -> Result<(), OsError> {
    let Some(segment) = message::segment(words) else {
        return Ok(());
    };
    if segments.is_prepared(segment) {
        return Ok(());
    }
    let Ok(Carried::Buffer(place)) = message::read(ticket.number(), words, 0) else {
        return Ok(());
    };
    match segments.prepare(&place, || is_sender_there(object)) {
        Err(AttachError::Os(error)) if may_work_later(&error) => Err(error),
        // The message is received anyway; `open` then reports the error.
        _ => Ok(()),
    }
}

fn is_sender_there(object: &Object) -> bool {
    !object.is_sender_disconnected() && object.has_sender()
}

fn may_work_later(error: &OsError) -> bool {
    matches!(
        error.errno(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN | libc::EINTR)
    )
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // In a forked child the channel belongs to the parent.
        if !self.object.is_ours() {
            return;
        }
        // First, so that the sender does not count a received message as unreceived.
        self.free_read();
        self.object.shared().to_sender().leave();
        // Partner: the fence before the sender notifies, which precedes its `Connection::claim_unread`.
        fence(Ordering::SeqCst);
        // The sender handles the messages that it sends from now on.
        let slots = self.object.shared().slots();
        for (words, ticket) in
            (0..slots.len()).map_while(|_| ring::claim_next(slots, &mut self.ticket))
        {
            if let Ok(Carried::Buffer(place)) = message::read(ticket.number(), &words, 0) {
                self.segments.return_queue().give_back(place.number);
            }
        }
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("provider", &self.object.provider())
            .finish()
    }
}

/// A future that receives the next message of a [`Receiver`]. Created by [`Receiver::recv_async`].
#[must_use = "a future does nothing until it is polled"]
pub struct RecvFuture<'a>(&'a mut Receiver);

impl Future for RecvFuture<'_> {
    type Output = Result<Message, RecvError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_recv(context)
    }
}

impl Drop for RecvFuture<'_> {
    /// A message that has arrived by now stays queued for the next call.
    fn drop(&mut self) {
        self.0.parker.disarm();
    }
}

impl fmt::Debug for RecvFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RecvFuture").field(&self.0).finish()
    }
}

/// A stream of the sender's messages (feature `stream`), which ends at an error that
/// [`is_disconnected`](RecvError::is_disconnected). Other errors are items.
#[cfg(feature = "stream")]
impl futures_core::Stream for Receiver {
    type Item = Result<Message, RecvError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_recv(context).map(|received| match received {
            Err(RecvError::Disconnected | RecvError::Evicted) => None,
            received => Some(received),
        })
    }
}
