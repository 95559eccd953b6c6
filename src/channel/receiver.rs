//! The receiving side of one open channel.

#![forbid(unsafe_code)]

use super::doorbell::{LivenessCheck, WakeReason};
use super::error::{ChannelError, RecvError};
use super::interrupt::Interrupts;
use super::layout::{
    self, not_a_channel, Facts, Found, Kind, MessageType, Shared, EXTRA_SLOTS, MAX_BORROWED,
    MAX_SLOTS,
};
use super::message::{self, Carried, Inline, Missed, Tag};
use super::object::{Object, Rendezvous};
use super::parker::Parker;
use super::payload::{self, builder_traits, Of, Payload};
use super::receiving_end::{receiving_end, receiving_end_builder, OnEnd, ReceivingEnd};
use super::return_queue::{memory_doorbell, BorrowedBuffer, MappedSegments, ReturnQueue};
use super::ring::{self, OnFull, Ticket, Words};
use crate::error::{OsError, WrongUid};
use crate::os::futex::Deadline;
use crate::os::name::{Name, Namespace};
use crate::os::posix::{admits_others, effective_uid};
use crate::peer::error::AttachError;
use crate::protocol::control::CHANNEL_MAGIC;
use crate::protocol::ids::ProviderId;
use crate::protocol::sweep::remove_dead;
use crate::sync::{fence, Ordering};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A received message: a buffer of the sender, read in place, or up to
/// [`MAX_INLINE`](super::MAX_INLINE) bytes, copied out of the slot. Dereferences to `&[u8]`.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shm_pool::channel::{Receiver, Sender};
/// use shm_pool::Provider;
///
/// # let name = format!("doc-message-{}", std::process::id());
/// # let provider = Provider::builder().build()?;
/// # let mut sender = Sender::create(&provider, &name)?;
/// # let mut receiver = Receiver::open(&name)?;
/// let mut frame = sender.alloc(1_000)?;
/// frame.fill(7);
/// sender.send(frame)?;
///
/// let message = receiver.recv()?;
/// assert_eq!(message[..3], [7, 7, 7]); // a plain &[u8], in the sender's memory
/// let header = message.slice(..100); // keeps the message
/// drop(message);
/// std::thread::spawn(move || assert_eq!(header.len(), 100)).join().unwrap();
/// # Ok(())
/// # }
/// ```
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
/// counts once for [`max_borrowed`](super::SubscriberBuilder::max_borrowed). The first clone of a buffer
/// allocates a count; a message that is not cloned costs nothing for it.
#[derive(Clone)]
pub struct Message(Content);

#[derive(Clone)]
enum Content {
    Buffer(BorrowedBuffer),
    Tagged(TaggedBuffer),
    Bytes(Inline),
}

/// A variant of its own: a message without a tag writes and moves none. In C's layout, so that the
/// buffer lies where it does without a tag.
#[derive(Clone)]
#[repr(C)]
struct TaggedBuffer {
    buffer: BorrowedBuffer,
    tag: Tag,
}

// A message is returned by value.
#[cfg(not(all(test, loom)))]
const _: () = assert!(std::mem::size_of::<Message>() <= 64);

impl Message {
    /// Returns how many messages this receiver missed between the previous message that it received and
    /// this one. It misses a message if it is too slow (see [`OnFull`]), or because of an error. The
    /// number wraps around above [`u32::MAX`].
    #[inline]
    pub fn missed(&self) -> u32 {
        match &self.0 {
            Content::Buffer(message) => message.missed(),
            Content::Tagged(message) => message.buffer.missed(),
            Content::Bytes(bytes) => bytes.missed(),
        }
    }

    /// Returns the 16 bytes that were [sent with](super::SendOptions::tag) the message; `None` if
    /// it was sent without.
    #[inline]
    pub fn tag(&self) -> Option<[u8; 16]> {
        match &self.0 {
            Content::Buffer(_) => None,
            Content::Tagged(message) => Some(message.tag),
            Content::Bytes(bytes) => bytes.tag(),
        }
    }

    /// Returns `true` if the bytes were sent in the slot itself, as
    /// [`send_copy`](super::Sender::send_copy) does with few.
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
            Content::Tagged(message) => &message.buffer,
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

/// Options of a [`Receiver`]. Start with [`Receiver::builder`]; every option has a default.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shm_pool::channel::{OnEnd, Receiver, Sender};
/// use shm_pool::Provider;
/// use std::time::Duration;
///
/// # let name = format!("doc-receiver-builder-{}", std::process::id());
/// # let provider = Provider::builder().build()?;
/// # let sender = Sender::create(&provider, &name)?;
/// // Waits for the sender at first, and for its successor later.
/// let options = Receiver::builder().on_end(OnEnd::Wait);
/// let receiver = options.open_timeout(&name, Duration::from_secs(60))?;
/// assert!(receiver.is_connected());
/// # drop(sender);
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder does nothing until `open` is called"]
pub struct ReceiverBuilder<T: ?Sized = [u8]> {
    options: Options,
    of: Of<T>,
}

impl Default for ReceiverBuilder {
    fn default() -> Self {
        Receiver::builder()
    }
}

receiving_end_builder!(
    ReceiverBuilder,
    Receiver,
    "sender",
    "[`OnEnd::Return`]. With [`OnEnd::Wait`], the receiver follows the restarts of its sender, and \
     `open` succeeds even before there is one"
);

impl<T: Payload + ?Sized> ReceiverBuilder<T> {
    /// Opens the channel `name` of a [`Sender`](super::Sender). One of another user must admit this
    /// one: [`SenderBuilder::mode`](super::SenderBuilder::mode).
    ///
    /// # Errors
    ///
    /// * [`ChannelError::NotFound`], [`ChannelError::NotReady`], [`ChannelError::Closed`],
    ///   [`ChannelError::HasReceiver`]; not with [`OnEnd::Wait`], with which the receiver opens the
    ///   channel later.
    /// * [`ChannelError::NotASender`] if the channel is a publisher's: open it with a
    ///   [`Subscriber`](super::Subscriber).
    /// * [`ChannelError::Name`], [`ChannelError::NotAChannel`], [`ChannelError::OtherVersion`],
    ///   [`ChannelError::WrongUid`], [`ChannelError::TypeMismatch`],
    ///   [`ChannelError::TooManyEnds`], [`ChannelError::Os`].
    pub fn open(self, name: &str) -> Result<Receiver<T>, ChannelError> {
        let may_open_later = self.options.on_end == OnEnd::Wait;
        let mut end = ReceivingEnd::new(self.options, name)?;
        end.open(may_open_later)?;
        Ok(Receiver {
            end,
            of: PhantomData,
        })
    }
}

/// Receives the messages of one [`Sender`](super::Sender), none of which is lost.
///
/// By default it ends with its sender: then it returns [`RecvError::Disconnected`]. With
/// [`OnEnd::Wait`] it waits for the sender's successor.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shm_pool::channel::{Receiver, Sender};
/// use shm_pool::Provider;
///
/// # let name = format!("doc-receiver-{}", std::process::id());
/// let provider = Provider::builder().build()?;
/// let mut sender = Sender::create(&provider, &name)?;
/// let mut receiver = Receiver::open(&name)?; // in another process
///
/// sender.send_copy(b"a sample")?;
/// drop(sender);
/// for message in receiver.iter() {
///     assert_eq!(message?[..], *b"a sample");
/// }
/// # Ok(())
/// # }
/// ```
///
/// # A loop that receives
///
/// [`RecvError`] says what to do: go on after a lost message, try again when something is short,
/// and otherwise stop.
///
/// ```
/// use shm_pool::channel::{Receiver, RecvError};
/// use std::{thread, time::Duration};
///
/// fn run(receiver: &mut Receiver) -> Result<(), RecvError> {
///     loop {
///         match receiver.recv() {
///             Ok(message) => println!("{} bytes", message.len()),
///
///             // Go on: this message is lost: another process has removed or overwritten its memory.
///             Err(error) if error.is_message_lost() => eprintln!("{error}"),
///
///             // Try again: descriptors or memory are short, or the program holds too many messages.
///             Err(error) if error.is_retryable() => {
///                 eprintln!("{error}");
///                 thread::sleep(Duration::from_millis(10));
///             }
///
///             // Stop: the sender has ended, and everything it sent has been received; or another
///             // thread has called `interrupt`.
///             Err(RecvError::Disconnected | RecvError::Interrupted) => return Ok(()),
///
///             // Stop: this process was forked, or with `OnEnd::Wait` a successor cannot be opened.
///             Err(error) => return Err(error),
///         }
///     }
/// }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let name = format!("doc-receiver-loop-{}", std::process::id());
/// # let provider = shm_pool::Provider::builder().build()?;
/// # let mut sender = shm_pool::channel::Sender::create(&provider, &name)?;
/// # let mut receiver = Receiver::open(&name)?;
/// # sender.send_copy(b"a sample")?;
/// # drop(sender);
/// # run(&mut receiver)?;
/// # Ok(())
/// # }
/// ```
pub struct Receiver<T: ?Sized = [u8]> {
    pub(super) end: ReceivingEnd,
    of: Of<T>,
}

receiving_end!(Receiver, ReceiverBuilder, "sender", "Sender");

impl Receiver {
    /// Returns a builder with the default options.
    pub fn builder() -> ReceiverBuilder {
        ReceiverBuilder {
            options: Options::new(Kind::Pair, OnEnd::Return),
            of: PhantomData,
        }
    }
}

/// What a [`Receiver`](super::Receiver) or [`Subscriber`](super::Subscriber) opens, and how.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) names: Namespace,
    /// The kind of channel that it opens.
    pub(super) kind: Kind,
    pub(super) on_end: OnEnd,
    pub(super) spin: Option<Duration>,
    pub(super) message_type: Option<MessageType>,
    /// Only of a subscriber, as the next two.
    pub(super) capacity: Option<usize>,
    pub(super) max_borrowed: Option<usize>,
    pub(super) on_full: Option<OnFull>,
}

impl Options {
    pub(super) fn new(kind: Kind, on_end: OnEnd) -> Self {
        Self {
            names: Namespace::default(),
            kind,
            on_end,
            spin: None,
            message_type: None,
            capacity: None,
            max_borrowed: None,
            on_full: None,
        }
    }

    /// Returns the capacity and the rule, given those of the publisher.
    pub(super) fn behind(&self, most: usize, on_full: OnFull) -> (usize, OnFull) {
        (
            self.capacity.unwrap_or(most),
            self.on_full.unwrap_or(on_full),
        )
    }

    /// Opens the channel `name`, once, unless it is that of a provider that has `died`.
    pub(super) fn open(
        &self,
        name: &str,
        interrupts: &Arc<Interrupts>,
        died: Option<ProviderId>,
    ) -> Result<OpenChannel, ChannelError> {
        let names = &self.names;
        let uid = names.uid();
        let object = layout::name(names, name)?;
        let mut found = layout::open(&object, Some(uid))?;
        self.check_kind(found.facts.kind, &object)?;
        let message_type =
            MessageType::expect(&self.message_type, found.message_type.take(), || {
                object.path()
            })?;
        let provider = found.facts.provider;
        if died == Some(provider) {
            return Err(ChannelError::Closed(object.path()));
        }
        // Before joining, which could not be undone.
        let memory = memory_doorbell(names, provider, uid).map_err(not_a_channel)?;
        let (object, on_full) = if found.facts.kind == Kind::Rendezvous {
            self.take_a_registration(found, &object, |connection| {
                layout::connection_name(names, name, connection)
            })?
        } else {
            (Object::of_receiver(found).join(&object)?, OnFull::Block)
        };
        let return_queue = ReturnQueue::new(&object, names, memory);
        let segments = MappedSegments::new(names, uid, provider, return_queue);
        Ok(OpenChannel::new(
            object,
            segments,
            on_full,
            message_type,
            self.spin,
            interrupts.clone(),
        ))
    }

    fn check_kind(&self, found: Kind, name: &Name) -> Result<(), ChannelError> {
        let object = name.path();
        match found {
            Kind::Connection => Err(ChannelError::NotAChannel {
                object,
                reason: "it is one receiver's part of a channel",
            }),
            found if found == self.kind => Ok(()),
            Kind::Rendezvous => Err(ChannelError::NotASender(object)),
            Kind::Pair => Err(ChannelError::NotAPublisher(object)),
        }
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
            return Err(ChannelError::WrongUid(WrongUid {
                object: object(),
                found: access.uid(),
                expected: effective_uid(),
            }));
        }
        let (mode, group) = if is_own {
            (0o600, None)
        } else {
            (access.mode() & 0o666, Some(access.gid()))
        };
        let most = rules.slots - EXTRA_SLOTS;
        let most_borrowed = rules.max_borrowed;
        let capacity = self.capacity.unwrap_or(most);
        let max_borrowed = self.max_borrowed.unwrap_or(most_borrowed);
        ChannelError::check("capacity", capacity, 1, most.min(MAX_SLOTS))?;
        ChannelError::check(
            "max_borrowed",
            max_borrowed,
            1,
            most_borrowed.min(MAX_BORROWED),
        )?;
        let on_full = self.on_full.unwrap_or(rules.on_full);
        if on_full == OnFull::Block && !rules.allow_blocking {
            return Err(ChannelError::BlockingNotAllowed(object()));
        }
        let random = |error: getrandom::Error| name.error("getrandom", 0, error.into());
        let id = getrandom::u64().map_err(random)?;
        let rendezvous = Rendezvous::of_receiver(found);
        let gone = || ChannelError::Closed(object());
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
}

/// The receiving side of a channel that is open.
pub(super) struct OpenChannel {
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
}

impl OpenChannel {
    pub(super) fn new(
        object: Object,
        segments: MappedSegments,
        on_full: OnFull,
        message_type: Option<MessageType>,
        spin: Option<Duration>,
        interrupts: Arc<Interrupts>,
    ) -> Self {
        let check = if object.is_connected() {
            LivenessCheck::new()
        } else {
            LivenessCheck::soon()
        };
        let parker = Box::new(Parker::new(
            object.shared(),
            Shared::to_receiver,
            interrupts,
            check,
        ));
        Self {
            parker,
            object,
            segments,
            ticket: Ticket::default(),
            expected: 0,
            read: None,
            on_full,
            message_type,
            limit_seen: 0,
            borrowed: 0,
            spin,
        }
    }

    #[inline]
    pub(super) fn try_recv(&mut self) -> Result<Message, RecvError> {
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
        self.begin()?;
        match self.take_before(deadline) {
            Some(received) => received,
            None => Err(self.end()),
        }
    }

    /// [Takes](Self::take) the next message, waiting for it until the deadline. Returns `None` at
    /// the end of the channel.
    #[inline]
    pub(super) fn take_before(
        &mut self,
        deadline: Option<Deadline>,
    ) -> Option<Result<Message, RecvError>> {
        let mut was_ready = false;
        loop {
            if let Some(taken) = self.take() {
                return Some(taken);
            }
            // The message may just have been withdrawn, or its slot may be damaged.
            if was_ready && Deadline::is_past(deadline) {
                return Some(Err(RecvError::TimedOut));
            }
            match self.wait(deadline) {
                WakeReason::Interrupted => return Some(Err(RecvError::Interrupted)),
                WakeReason::Ready => was_ready = true,
                WakeReason::TimedOut => return Some(Err(RecvError::TimedOut)),
                WakeReason::Disconnected => return None,
            }
        }
    }

    pub(super) fn poll_recv(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Message, RecvError>> {
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

    pub(super) fn warm(&mut self) -> Result<usize, RecvError> {
        self.check_fork()?;
        let Self {
            object, segments, ..
        } = self;
        segments
            .warm(|| is_sender_there(object))
            .map_err(|error| match error {
                AttachError::Os(error) if error.is_retryable() => RecvError::Os(error),
                error => RecvError::of_message(error),
            })
    }

    pub(super) fn capacity(&self) -> usize {
        self.object.shared().capacity()
    }

    pub(super) fn max_borrowed(&self) -> usize {
        self.object.shared().max_borrowed()
    }

    pub(super) fn on_full(&self) -> OnFull {
        self.on_full
    }

    pub(super) fn message_type(&self) -> Option<&MessageType> {
        self.message_type.as_ref()
    }

    pub(super) fn missed(&self) -> Missed {
        self.object.shared().missed().load()
    }

    pub(super) fn is_connected(&self) -> bool {
        self.object.is_connected() && !self.object.is_sender_disconnected()
    }

    pub(super) fn provider(&self) -> ProviderId {
        self.object.provider()
    }

    pub(super) fn mapped_segments(&self) -> usize {
        self.segments.count()
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn shared(&self) -> Arc<Shared> {
        self.object.shared().clone()
    }

    pub(super) fn is_disconnected(&self) -> bool {
        self.object.is_sender_disconnected()
    }

    /// Closes this end within a receive, which goes on to the sender's successor.
    pub(super) fn leave(self) {
        self.segments.return_queue().leave();
    }

    pub(super) fn is_evicted(&self) -> bool {
        self.object.is_evicted()
    }

    /// Returns `true` if the sender's process has died, or is dying.
    pub(super) fn has_sender_died(&self) -> bool {
        self.is_disconnected() && !self.object.shared().header().what.0.is_closed()
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

    /// Begins a receive: frees the slot of the message received last.
    #[inline]
    pub(super) fn begin(&mut self) -> Result<(), RecvError> {
        self.check_fork()?;
        self.free_read();
        Ok(())
    }

    /// Begins a receive that does not wait.
    #[inline]
    pub(super) fn ask(&mut self) -> Result<(), RecvError> {
        self.begin()?;
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
    pub(super) fn take(&mut self) -> Option<Result<Message, RecvError>> {
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
                Some(Err(error)) => return Some(Err(RecvError::Os(error))),
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
                    Ok(buffer) => match message::tag(&words) {
                        None => Content::Buffer(buffer),
                        Some(tag) => Content::Tagged(TaggedBuffer { buffer, tag }),
                    },
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
        Err(AttachError::Os(error)) if error.is_retryable() => Err(error),
        // The message is received anyway; `open` then reports the error.
        _ => Ok(()),
    }
}

fn is_sender_there(object: &Object) -> bool {
    !object.is_sender_disconnected() && object.has_sender()
}

impl Drop for OpenChannel {
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
