//! The publisher: one sender, many receivers, each with a [connection] of its own.
//!
//! Before a send, it connects new receivers, sends them the history, and drops the connections of
//! those that have closed or died. Then it sends as `fan_out` describes.
//!
//! Dropping a connection leaves its borrowed buffers to the ledger, including a message sent while
//! the receiver closed.
//!
//! # Disconnecting a receiver
//!
//! | step | publisher | what is left if it dies here |
//! |---|---|---|
//! | E1 | store in the connection that its receiver is disconnected: Release | the kernel notifies; the receiver gets the messages that wait, and then the error of E2 |
//! | E2 | leave the doorbell, which wakes the receiver | the same |
//! | E3 | claim each message that waits, and drop its buffer | the same, for the messages that are left |
//! | E4 | drop the connection | the borrowed buffers of the messages received, as if the publisher had closed |
//!
//! The receiver claims each message before it reads it (see `ring`), so E3 takes none that is read.
//! What it has received, and its registration, it keeps as a closed receiver does. The publisher
//! waits for no step of the receiver, which may be killed or stopped.

#![forbid(unsafe_code)]

mod builder;
mod waits;

pub use builder::{OnStall, PublisherBuilder};

use super::connection::{self, Connection, Tables, Timeout};
use super::error::{ChannelError, SendError, SendErrorKind};
use super::fan_out::FanOut;
use super::interrupt::Interrupter;
use super::layout::{self, Facts, Kind, EXTRA_SLOTS, MAX_SUBSCRIBERS};
use super::message::{self, Located, Sent, Tag};
use super::object::{Object, Registration, Rendezvous};
use super::parker::Awaited;
use super::payload::{Of, Payload};
use super::recipient::{ReceiverState, Recipient};
use super::ring::{OnFull, Words};
use super::send_options::{chunk_of_copy, copy_to_buffer, SendOptions};
use crate::error::OsError;
use crate::os::futex::Deadline;
use crate::os::name::{Name, Namespace};
use crate::os::posix::{effective_uid, has_heap};
use crate::owner::buf::{ShmBytes, ShmBytesMut};
use crate::owner::limits::AllocError;
use crate::owner::provider::Provider;
use crate::protocol::ids::ReceiverId;
use crate::protocol::sweep;
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// How often a wait checks for new receivers: descriptors may have been short, or the count
/// overwritten.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How long to wait before the first retry to connect a receiver. Doubled for each retry, up to
/// [`CHECK_INTERVAL`].
const FIRST_RETRY: Duration = Duration::from_millis(1);

/// An upper bound on the heap that dropping a publisher needs, in bytes.
const HEAP: usize = 32 << 10;

/// Sends messages to several receivers, which may join and leave. See the [module](super).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shm_pool::channel::{OnFull, Publisher, Subscriber};
/// use shm_pool::Provider;
/// use std::time::Duration;
///
/// # let name = format!("doc-{}", std::process::id());
/// let provider = Provider::builder().build()?;
/// let mut publisher = Publisher::create(&provider, &name)?;
///
/// // Each of these would be a process of its own.
/// let mut logger = Subscriber::builder().on_full(OnFull::Block).open(&name)?;
/// let mut display = Subscriber::builder().capacity(2).open(&name)?;
///
/// publisher.wait_for_receivers(2, Duration::from_secs(10))?;
/// for number in 0..5_u8 {
///     let mut frame = publisher.alloc(1_000)?;
///     frame.fill(number);
///     assert_eq!(publisher.send(frame)?.receivers, 2); // without a copy
/// }
/// assert_eq!(logger.recv()?[0], 0); // everything
/// let newest = display.recv()?; // the last two
/// assert_eq!((newest[0], newest.missed()), (3, 3));
/// # Ok(())
/// # }
/// ```
pub struct Publisher<T: ?Sized = [u8]> {
    end: PublishingEnd,
    of: Of<T>,
}

/// A publisher of any payload.
struct PublishingEnd {
    rendezvous: Arc<Rendezvous>,
    rules: Facts,
    admits_others: bool,
    names: Namespace,
    channel: String,
    fan_out: FanOut<Vec<Recipient>>,
    sent: u64,
    seen: [u64; MAX_SUBSCRIBERS],
    /// The receiver last refused at each registration.
    refused: [Refusal; MAX_SUBSCRIBERS],
    /// When to try again to connect one of them.
    retry: Option<Deadline>,
    arrivals: u32,
    /// From the first await of a receiver.
    joins: Option<Awaited>,
    history: VecDeque<Kept>,
    history_len: usize,
    on_stall: OnStall,
    max_bytes: usize,
    serves_joins: bool,
    /// Dropped after the connections, the history and the ledger.
    provider: Provider,
}

/// A receiver that could not be connected, but perhaps can be later.
#[derive(Clone, Copy, Default)]
struct Refusal {
    id: u64,
    /// How many messages had been sent when it was refused first.
    sent: u64,
    /// Between the last try and the next one.
    delay: Duration,
    due: Option<Deadline>,
}

/// What became of a receiver that has announced itself.
enum Admission {
    Connected,
    /// Until then.
    Postponed(Option<Deadline>),
    Refused,
}

/// Returns `true` if the same call may succeed later.
fn is_temporary(errno: Option<i32>) -> bool {
    matches!(errno, Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

enum Kept {
    Buffer(ShmBytes, Option<Tag>),
    Bytes(Words),
}

impl Kept {
    /// As in [`Connection::reserve`].
    fn bytes(&self) -> usize {
        match self {
            Self::Buffer(buffer, _) => buffer.capacity(),
            Self::Bytes(_) => 0,
        }
    }
}

impl Publisher {
    /// Returns a builder with the default options.
    pub fn builder() -> PublisherBuilder {
        PublisherBuilder::new()
    }

    /// Creates a channel with the default options.
    ///
    /// # Errors
    ///
    /// See [`PublisherBuilder::create`].
    pub fn create(provider: &Provider, name: &str) -> Result<Self, ChannelError> {
        Self::builder().create(provider, name)
    }

    /// Allocates a buffer of `len` bytes for [`send`](Self::send): [`Provider::alloc`].
    ///
    /// # Errors
    ///
    /// Those of [`Provider::alloc`].
    #[inline]
    pub fn alloc(&self, len: usize) -> Result<ShmBytesMut, AllocError> {
        self.end.provider.alloc(len)
    }
}

impl<T: Payload + ?Sized> Publisher<T> {
    /// Creates a channel of this type with the default options (feature `zerocopy`).
    ///
    /// # Errors
    ///
    /// Those of [`PublisherBuilder::create`].
    #[cfg(feature = "zerocopy")]
    pub fn create_typed(provider: &Provider, name: &str) -> Result<Self, ChannelError> {
        Publisher::builder().typed::<T>().create(provider, name)
    }

    /// Sends a message to all receivers, and returns to how many, and why others were skipped.
    /// Blocks until every receiver with [`OnFull::Block`] has room and may borrow a buffer, at most
    /// for the [`block_limit`](PublisherBuilder::block_limit).
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::OtherProvider`]; [`SendErrorKind::Interrupted`]; [`SendErrorKind::Forked`].
    /// Then no receiver gets the message, and the error contains the buffer.
    #[inline]
    pub fn send(&mut self, message: impl Into<T::Frozen>) -> Result<Sent, SendError<T::Frozen>> {
        let bytes = T::into_bytes(message.into());
        T::sent(self.end.send_buffer(bytes, None, Timeout::UNLIMITED))
    }

    /// Like [`send`](Self::send), but does not wait for room.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::Full`] if the call would wait for room, [`SendErrorKind::TooManyBorrowed`]
    /// if it would wait for a receiver to return one, and those of [`send`](Self::send).
    #[inline]
    pub fn try_send(
        &mut self,
        message: impl Into<T::Frozen>,
    ) -> Result<Sent, SendError<T::Frozen>> {
        let bytes = T::into_bytes(message.into());
        T::sent(self.end.send_buffer(bytes, None, Timeout::None))
    }

    /// Like [`send`](Self::send), but blocks for at most `timeout`.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TimedOut`] if that ends before the
    /// [`block_limit`](PublisherBuilder::block_limit), and those of [`send`](Self::send).
    #[inline]
    pub fn send_timeout(
        &mut self,
        message: impl Into<T::Frozen>,
        timeout: Duration,
    ) -> Result<Sent, SendError<T::Frozen>> {
        let bytes = T::into_bytes(message.into());
        T::sent(self.end.send_buffer(bytes, None, Timeout::After(timeout)))
    }

    /// Like [`send`](Self::send), with options: a [tag](SendOptions::tag), a time limit.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TimedOut`], and those of [`try_send`](Self::try_send).
    #[inline]
    pub fn send_with(
        &mut self,
        message: impl Into<T::Frozen>,
        options: impl Into<SendOptions>,
    ) -> Result<Sent, SendError<T::Frozen>> {
        let options = options.into();
        let bytes = T::into_bytes(message.into());
        T::sent(
            self.end
                .send_buffer(bytes, options.tag_to_send(), options.patience()),
        )
    }

    /// Sends a copy of bytes, or of a value, as [`send`](Self::send) sends a buffer.
    ///
    /// Up to [`MAX_INLINE`](super::MAX_INLINE) bytes are copied into the slot of each receiver.
    /// More, and a value with an alignment above 8, are copied once, into a buffer that this call
    /// [allocates](Provider::alloc), without waiting for memory. To write a long message without a
    /// copy, [`alloc`](Self::alloc) its buffer.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::Alloc`] if there is no memory for the buffer;
    /// [`SendErrorKind::Interrupted`]; [`SendErrorKind::Forked`]. Then no receiver gets the
    /// message.
    #[inline]
    pub fn send_copy(&mut self, message: &T) -> Result<Sent, SendError> {
        self.end
            .copy_aligned(message.bytes(), T::COPY_ALIGN, SendOptions::new())
    }

    /// Like [`send_copy`](Self::send_copy), but does not wait for room.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::Full`] and [`SendErrorKind::TooManyBorrowed`], as for
    /// [`try_send`](Self::try_send), and those of [`send_copy`](Self::send_copy).
    #[inline]
    pub fn try_send_copy(&mut self, message: &T) -> Result<Sent, SendError> {
        self.end.copy_aligned(
            message.bytes(),
            T::COPY_ALIGN,
            SendOptions::new().timeout(Duration::ZERO),
        )
    }

    /// Like [`send_copy`](Self::send_copy), with options.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TimedOut`], and those of [`try_send_copy`](Self::try_send_copy).
    #[inline]
    pub fn send_copy_with(
        &mut self,
        message: &T,
        options: impl Into<SendOptions>,
    ) -> Result<Sent, SendError> {
        self.end
            .copy_aligned(message.bytes(), T::COPY_ALIGN, options.into())
    }

    /// Like [`send`](Self::send), but waits without blocking the thread. Dropping the future before
    /// it is ready drops the buffer unsent.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::NoHelper`], and those of [`send`](Self::send) except
    /// [`SendErrorKind::Interrupted`].
    pub async fn send_async(
        &mut self,
        message: impl Into<T::Frozen>,
    ) -> Result<Sent, SendError<T::Frozen>> {
        self.send_with_async(message, SendOptions::new()).await
    }

    /// Like [`send_async`](Self::send_async), with options, of which the timeout does not apply.
    ///
    /// # Errors
    ///
    /// Those of [`send_async`](Self::send_async).
    pub async fn send_with_async(
        &mut self,
        message: impl Into<T::Frozen>,
        options: impl Into<SendOptions>,
    ) -> Result<Sent, SendError<T::Frozen>> {
        let bytes = T::into_bytes(message.into());
        T::sent(self.end.send_with_async(bytes, options.into()).await)
    }

    /// Like [`send_copy`](Self::send_copy), but waits without blocking the thread, as
    /// [`send_async`](Self::send_async) does. For a copy with a tag, fill a buffer and use
    /// [`send_with_async`](Self::send_with_async).
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::NoHelper`], and those of [`send_copy`](Self::send_copy) except
    /// [`SendErrorKind::Interrupted`].
    pub async fn send_copy_async(&mut self, message: &T) -> Result<Sent, SendError> {
        self.end
            .copy_aligned_async(message.bytes(), T::COPY_ALIGN, SendOptions::new())
            .await
    }

    /// Returns ready if [`try_send`](Self::try_send) would not wait for a receiver, and otherwise
    /// registers the task to be woken when that may be so. Only the waker of the last call is kept.
    /// For event loops, with a [`WakeFd`](crate::WakeFd). It counts as a wait for the
    /// [`block_limit`](PublisherBuilder::block_limit), whose end it may notice up to a second
    /// later.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::NoHelper`], [`SendErrorKind::Forked`].
    pub fn poll_ready(
        &mut self,
        context: &mut Context<'_>,
        message: &T::Frozen,
    ) -> Poll<Result<(), SendError>> {
        self.end
            .poll_room(context, T::frozen_bytes(message).capacity())
            .map_err(SendError::from)
    }

    /// Like [`poll_ready`](Self::poll_ready), for [`try_send_copy`](Self::try_send_copy) of `len`
    /// bytes, to which a tag adds 16.
    ///
    /// # Errors
    ///
    /// Those of [`poll_ready`](Self::poll_ready).
    pub fn poll_ready_copy(
        &mut self,
        context: &mut Context<'_>,
        len: usize,
    ) -> Poll<Result<(), SendError>> {
        self.end
            .poll_room(
                context,
                chunk_of_copy(&self.end.provider, len, T::COPY_ALIGN),
            )
            .map_err(SendError::from)
    }

    /// Connects one receiver that has joined, or disconnects those that have closed or died.
    /// Returns `true` if it did: then call it again, when there is time. For a real-time publisher,
    /// which sets [`joins_in_send`](PublisherBuilder::joins_in_send) to `false`. In a forked child
    /// it does nothing.
    pub fn serve_joins(&mut self) -> bool {
        if !self.end.rendezvous.is_ours() {
            return false;
        }
        if self.end.fan_out.is_one_disconnected() {
            self.end.drop_disconnected();
            return true;
        }
        let arrivals = self.end.rendezvous.header().arrivals();
        let may_connect = arrivals != self.end.arrivals || self.end.is_retry_due();
        may_connect && self.end.admit(arrivals, 1) > 0
    }

    /// Disconnects a receiver, which may be stopped. Returns `false` if none with this
    /// [`id`](ReceiverState::id) is connected.
    ///
    /// Withdraws the messages that it has not received; its next receive returns
    /// [`RecvError::Evicted`](super::RecvError::Evicted). It may read on what it has received, and
    /// join again once it and all of that are dropped.
    pub fn disconnect(&mut self, receiver: ReceiverId) -> bool {
        if !self.end.rendezvous.is_ours() {
            return false;
        }
        let Some(at) = self
            .end
            .recipients()
            .iter()
            .position(|recipient| recipient.id == receiver.0)
        else {
            return false;
        };
        self.end.evict(at);
        true
    }

    /// [Disconnects](Self::disconnect) the receivers for which the closure returns `true`. Returns
    /// how many those were.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use shm_pool::{channel::Publisher, Provider};
    /// # let name = format!("doc-disconnect-{}", std::process::id());
    /// # let provider = Provider::builder().build()?;
    /// let mut publisher = Publisher::create(&provider, &name)?;
    /// publisher.disconnect_where(|receiver| receiver.missed.total() > 1000);
    /// # Ok(())
    /// # }
    /// ```
    pub fn disconnect_where(
        &mut self,
        mut is_disconnected: impl FnMut(&ReceiverState) -> bool,
    ) -> usize {
        let mut receivers = Vec::new();
        for state in self.receivers() {
            if is_disconnected(&state) {
                receivers.push(state.id);
            }
        }
        let mut count = 0;
        for receiver in receivers {
            if self.disconnect(receiver) {
                count += 1;
            }
        }
        count
    }

    /// Returns the connected receivers, those with [`OnFull::Block`] first; in a forked child,
    /// none. One that has closed or died is not among them.
    ///
    /// This only reads. A receiver that has joined is connected by the next send,
    /// [`wait_for_receivers`](Self::wait_for_receivers) or [`serve_joins`](Self::serve_joins):
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use shm_pool::{channel::{Publisher, Subscriber}, Provider};
    /// # let name = format!("doc-receivers-{}", std::process::id());
    /// # let provider = Provider::builder().build()?;
    /// let mut publisher = Publisher::create(&provider, &name)?;
    /// let _display = Subscriber::open(&name)?; // in another process
    ///
    /// while publisher.serve_joins() {}
    /// for receiver in publisher.receivers() {
    ///     println!("{}: {} messages wait", receiver.id, receiver.waiting);
    /// }
    /// assert_eq!(publisher.receivers().count(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn receivers(&self) -> impl Iterator<Item = ReceiverState> + '_ {
        self.end.connected().map(Recipient::state)
    }

    /// Blocks until `count` receivers or more are connected, for at most `timeout`, or without
    /// limit with [`Duration::MAX`].
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TooManyReceivers`], at once, if `count` exceeds the number of
    /// registrations; [`SendErrorKind::NoReceiver`], or [`SendErrorKind::OtherVersion`] if a
    /// receiver of another version has tried; [`SendErrorKind::Interrupted`],
    /// [`SendErrorKind::Forked`].
    pub fn wait_for_receivers(&mut self, count: usize, timeout: Duration) -> Result<(), SendError> {
        let deadline = Deadline::after(timeout);
        self.end.check_count(count)?;
        self.end.fan_out.interrupts.begin_wait();
        let waited = self.end.wait_until_connected(count, deadline);
        self.end.fan_out.interrupts.end_wait();
        match waited {
            Err(SendErrorKind::TimedOut) => {
                let refused = self.end.rendezvous.header().refused_version();
                Err(SendErrorKind::no_receiver(count, timeout, refused).into())
            }
            waited => Ok(waited?),
        }
    }

    /// Blocks until all connected receivers have received everything, for at most `timeout`. Skips
    /// receivers that close or die. What was sent arrives even without this call.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TimedOut`], [`SendErrorKind::Interrupted`], [`SendErrorKind::Forked`].
    pub fn wait_until_received(&mut self, timeout: Duration) -> Result<(), SendError> {
        self.end.check_fork()?;
        let deadline = Deadline::after(timeout);
        self.end.fan_out.wake.renew(); // F4 of `fan_out`
        self.end.update_connections();
        for recipient in &mut self.end.fan_out.recipients {
            match recipient.connection.wait_until_received(deadline) {
                Err(SendErrorKind::Disconnected) => {}
                done => done?,
            }
        }
        Ok(())
    }

    /// Returns the channel's name.
    pub fn name(&self) -> &str {
        &self.end.channel
    }

    /// Returns a descriptor for event loops: `poll`, `epoll`, `mio` and others. It is readable until
    /// a send has returned [`SendErrorKind::Full`] or [`SendErrorKind::TooManyBorrowed`], and again
    /// when the receiver that had no room may have some, or has
    /// closed or died.
    ///
    /// Only a receiver with [`OnFull::Block`] has a send refused. When its
    /// [`block_limit`](PublisherBuilder::block_limit) ends, so that a send skips it, the descriptor
    /// is readable up to a second later.
    ///
    /// It may be readable although there is no room, so call [`try_send`](Self::try_send) or
    /// [`try_send_copy`](Self::try_send_copy). As with a socket that is writable, it stays readable
    /// while nothing is sent: watch it only while a message is refused. The first call creates it,
    /// and the publisher closes it. Use [`try_clone_to_owned`](BorrowedFd::try_clone_to_owned) for an
    /// event loop that owns what it polls.
    ///
    /// A send for which there is room costs the same with a descriptor as without one. A refused
    /// one returns [`SendErrorKind::NoHelper`] if the [helper thread](crate::docs::limits) that
    /// would make the descriptor readable cannot be started.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use shm_pool::channel::{OnFull, Publisher, SendErrorKind, Subscriber};
    /// use std::os::fd::AsRawFd;
    ///
    /// # let name = format!("doc-wake-fd-Publisher-{}", std::process::id());
    /// # let provider = shm_pool::Provider::builder().build()?;
    /// let mut publisher = Publisher::builder().capacity(8).create(&provider, &name)?;
    /// // In another process:
    /// let logger = Subscriber::builder().on_full(OnFull::Block);
    /// # let mut logger = logger.open(&name)?;
    /// # publisher.wait_for_receivers(1, std::time::Duration::from_secs(10))?;
    /// # let receiving = std::thread::spawn(move || {
    /// #     for number in 0..100_u32 {
    /// #         assert_eq!(logger.recv().unwrap()[..], number.to_ne_bytes());
    /// #     }
    /// # });
    ///
    /// for number in 0..100_u32 {
    ///     // A refused message is kept, and sent when the receiver has made room.
    ///     while let Err(error) = publisher.try_send_copy(&number.to_ne_bytes()) {
    ///         let SendErrorKind::Full { .. } = error.kind() else {
    ///             return Err(error.into());
    ///         };
    ///         let mut events = [libc::pollfd {
    ///             fd: publisher.wake_fd()?.as_raw_fd(),
    ///             events: libc::POLLIN,
    ///             revents: 0,
    ///         }];
    ///         // In the loop, with other descriptors and a timeout:
    ///         unsafe { libc::poll(events.as_mut_ptr(), 1, -1) };
    ///     }
    /// }
    /// # receiving.join().unwrap();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`OsError`] if the process or the system has too many descriptors.
    pub fn wake_fd(&mut self) -> Result<BorrowedFd<'_>, OsError> {
        self.end.fan_out.wake.get()
    }

    /// Returns a handle with which any thread can end a wait of this publisher.
    pub fn interrupter(&self) -> Interrupter {
        Interrupter::new(&self.end.fan_out.interrupts)
    }

    /// Returns how many messages a receiver may be behind at most.
    pub fn capacity(&self) -> usize {
        self.end.rules.slots - EXTRA_SLOTS
    }

    /// Returns how many buffers a receiver may hold at a time at most.
    pub fn max_borrowed(&self) -> usize {
        self.end.rules.max_borrowed
    }

    /// Returns the provider whose buffers this publisher sends.
    pub fn provider(&self) -> &Provider {
        &self.end.provider
    }
}

impl PublishingEnd {
    #[inline]
    fn send_buffer(
        &mut self,
        message: ShmBytes,
        tag: Option<Tag>,
        timeout: Timeout,
    ) -> Result<Sent, SendError<ShmBytes>> {
        let mut sent = match self.prepare_for(&message, timeout) {
            Ok(sent) => sent,
            Err(kind) => return Err(SendError { kind, message }),
        };
        if self.history_len > 0 {
            self.keep(Kept::Buffer(message.clone(), tag));
        }
        sent.missed.withdrawn = self.fan_out.send(message, tag, sent.receivers);
        Ok(sent)
    }

    #[inline]
    fn prepare_for(&mut self, message: &ShmBytes, timeout: Timeout) -> Result<Sent, SendErrorKind> {
        // First: a forked child cannot ask the buffer.
        self.check_fork()?;
        self.fan_out.check_provider(message)?;
        self.prepare(message.capacity(), timeout)
    }

    /// Sends a copy of bytes that a receiver reads with this alignment, up to a page.
    #[inline]
    fn copy_aligned(
        &mut self,
        bytes: &[u8],
        align: usize,
        options: SendOptions,
    ) -> Result<Sent, SendError> {
        // Here, where it inlines: callers mostly know the length.
        match message::of_bytes(bytes, align, options.tag_to_send()) {
            Some(words) => Ok(self.send_words(&words, options.patience())?),
            None => self.copy_in_buffer(bytes, align, options),
        }
    }

    fn copy_in_buffer(
        &mut self,
        bytes: &[u8],
        align: usize,
        options: SendOptions,
    ) -> Result<Sent, SendError> {
        self.check_fork()?;
        let buffer = copy_to_buffer(&self.provider, bytes, align)?;
        self.send_buffer(buffer, options.tag_to_send(), options.patience())
            .map_err(|error| error.with(()))
    }

    fn send_words(&mut self, words: &Words, timeout: Timeout) -> Result<Sent, SendErrorKind> {
        self.check_fork()?;
        let mut sent = self.prepare(0, timeout)?;
        if self.history_len > 0 {
            self.keep(Kept::Bytes(*words));
        }
        sent.missed.withdrawn = self.fan_out.send_words(words);
        Ok(sent)
    }

    /// [`copy_aligned`](Self::copy_aligned) without blocking the thread.
    async fn copy_aligned_async(
        &mut self,
        bytes: &[u8],
        align: usize,
        options: SendOptions,
    ) -> Result<Sent, SendError> {
        let Some(words) = message::of_bytes(bytes, align, options.tag_to_send()) else {
            self.check_fork()?;
            let buffer = copy_to_buffer(&self.provider, bytes, align)?;
            let sent = self.send_with_async(buffer, options).await;
            return sent.map_err(|error| error.with(()));
        };
        let try_send = |publisher: &mut Self, words| {
            publisher
                .send_words(&words, Timeout::None)
                .map_err(|kind| SendError {
                    kind,
                    message: words,
                })
        };
        connection::send(self, words, 0, try_send, |publisher, bytes| {
            publisher.fan_out.begin_await(bytes)
        })
        .await
        .map_err(|error| error.with(()))
    }

    async fn send_with_async(
        &mut self,
        buffer: ShmBytes,
        options: SendOptions,
    ) -> Result<Sent, SendError<ShmBytes>> {
        let tag = options.tag_to_send();
        let bytes = buffer.capacity();
        connection::send(
            self,
            buffer,
            bytes,
            |end: &mut Self, buffer| end.send_buffer(buffer, tag, Timeout::None),
            |end, bytes| end.fan_out.begin_await(bytes),
        )
        .await
    }

    fn poll_room(
        &mut self,
        context: &mut Context<'_>,
        bytes: usize,
    ) -> Poll<Result<(), SendErrorKind>> {
        self.check_fork()?;
        self.fan_out.wake.renew(); // F4 of `fan_out`
        self.fan_out.poll_room(context, bytes)
    }

    #[inline]
    fn check_fork(&self) -> Result<(), SendErrorKind> {
        if !self.rendezvous.is_ours() {
            return Err(SendErrorKind::Forked);
        }
        Ok(())
    }

    /// Connects new receivers and finds room. Returns what becomes of the message.
    #[inline]
    fn prepare(&mut self, bytes: usize, timeout: Timeout) -> Result<Sent, SendErrorKind> {
        if self.serves_joins {
            self.connect_new();
        }
        // One function for both would return its result in memory, to be copied in other widths than
        // it was written in. The processor cannot forward such stores, and waits: 4 ns.
        let sent = match self.fan_out.reserve_at_once(bytes) {
            Some(receivers) => Sent {
                receivers,
                ..Sent::default()
            },
            None => self.find_room(bytes, timeout)?,
        };
        self.sent += 1;
        Ok(sent)
    }

    /// Finds room, if a receiver has none at hand, is closed or dead, or its clock runs.
    #[inline(never)]
    fn find_room(&mut self, bytes: usize, timeout: Timeout) -> Result<Sent, SendErrorKind> {
        let found = self.fan_out.find_room(bytes, timeout);
        if self.fan_out.has_disconnected {
            self.fan_out.has_disconnected = false;
            if self.serves_joins {
                self.drop_disconnected();
            }
        }
        let sent = found?;
        if sent.missed.stalled > 0 && self.on_stall == OnStall::Disconnect {
            self.evict_stalled();
        }
        Ok(sent)
    }

    #[cold]
    fn evict_stalled(&mut self) {
        while let Some(at) = self
            .recipients()
            .iter()
            .position(Recipient::is_skipped_as_stalled)
        {
            self.evict(at);
        }
    }

    #[inline]
    fn recipients(&self) -> &[Recipient] {
        &self.fan_out.recipients
    }

    #[inline]
    fn connect_new(&mut self) {
        let arrivals = self.rendezvous.header().arrivals();
        if arrivals != self.arrivals || self.is_retry_due() {
            self.admit(arrivals, MAX_SUBSCRIBERS);
        }
    }

    /// Reads the clock only while a receiver cannot be connected.
    #[inline]
    fn is_retry_due(&self) -> bool {
        Deadline::is_past(self.retry)
    }

    fn update_connections(&mut self) {
        if self.fan_out.is_one_disconnected() {
            self.drop_disconnected();
        }
        self.connect_new();
    }

    /// E1 to E4.
    #[cold]
    fn evict(&mut self, at: usize) {
        let mut recipient = self.fan_out.recipients.remove(at);
        self.fan_out.wake.renew(); // F4 of `fan_out`
        recipient.missed.withdrawn += recipient.connection.evict();
        recipient.connection.note_missed(&recipient.missed);
        event!(
            info,
            channel = self.channel,
            receiver = recipient.id,
            borrowed = recipient.connection.borrowed(),
            "receiver evicted"
        );
    }

    /// Disconnects the receivers that have closed or died.
    #[cold]
    fn drop_disconnected(&mut self) {
        self.disconnect_if(|recipient| recipient.connection.is_disconnected());
    }

    /// Also disconnects those whose lock is free although their doorbell, which others may write,
    /// says that they are there. A system call for each receiver.
    #[cold]
    fn disconnect_unlocked(&mut self) {
        self.disconnect_if(|recipient| {
            recipient.connection.is_disconnected()
                || !recipient.connection.object.is_receiver_locked()
        });
    }

    fn disconnect_if(&mut self, is_disconnected: impl Fn(&Recipient) -> bool) {
        let mut at = 0;
        while let Some(recipient) = self.fan_out.recipients.get(at) {
            if !is_disconnected(recipient) {
                at += 1;
                continue;
            }
            let recipient = self.fan_out.recipients.remove(at);
            self.fan_out.wake.renew(); // F4 of `fan_out`
            recipient.connection.close();
            event!(
                info,
                channel = self.channel,
                receiver = recipient.id,
                borrowed = recipient.connection.borrowed(),
                "receiver disconnected"
            );
        }
        self.fan_out.ledger.settle_closed();
    }

    /// P2 and P3, for the first receivers only, up to `most`. Returns how many were connected.
    #[cold]
    fn admit(&mut self, arrivals: u32, most: usize) -> usize {
        let mut admitted = 0;
        let mut retry = None;
        let rendezvous = self.rendezvous.clone();
        for (registration, id) in rendezvous.announced() {
            if self.is_known(registration.at(), id) {
                continue;
            }
            let refused = &self.refused[registration.at()];
            if refused.id == id && !Deadline::is_past(refused.due) {
                retry = Deadline::first(retry, refused.due);
                continue;
            }
            if admitted == most {
                // The next call continues here.
                return admitted;
            }
            match self.admit_one(registration, id) {
                Admission::Connected => admitted += 1,
                Admission::Postponed(due) => retry = Deadline::first(retry, due),
                Admission::Refused => {}
            }
        }
        self.arrivals = arrivals;
        self.retry = retry;
        admitted
    }

    /// Returns `true` if this receiver was connected or refused before. Ids may have been copied to
    /// other registrations.
    fn is_known(&self, at: usize, id: u64) -> bool {
        id == self.seen[at] || self.recipients().iter().any(|recipient| recipient.id == id)
    }

    fn is_full(&self) -> bool {
        self.recipients().len() == self.rules.max_subscribers
    }

    /// Connects a receiver, or notes that it cannot be, now or ever.
    fn admit_one(&mut self, registration: Registration, id: u64) -> Admission {
        let at = registration.at();
        // All earlier receivers of that registration, whose lock the new one holds, have left.
        if self.is_full() {
            self.drop_disconnected();
        }
        if self.is_full() {
            self.disconnect_unlocked();
        }
        if self.is_full() {
            // A receiver has written its own ids to other registrations.
            return Admission::Postponed(self.postpone(at, id));
        }

        let error = match self.open(registration.clone(), id) {
            Ok(recipient) => {
                self.seen[at] = id;
                let Some(recipient) = recipient else {
                    return Admission::Refused;
                };
                self.add(recipient);
                return Admission::Connected;
            }
            Err(ChannelError::Os(error)) => error,
            Err(_) => {
                // The receiver has left or died, or the object is no connection of this channel.
                self.seen[at] = id;
                return Admission::Refused;
            }
        };
        let admission = if is_temporary(error.errno()) {
            // The receiver stays announced.
            Admission::Postponed(self.postpone(at, id))
        } else {
            self.seen[at] = id;
            Admission::Refused
        };
        // P3'
        if registration.refuse(error.errno().unwrap_or(libc::EMFILE)) {
            event!(
                warn,
                channel = self.channel,
                receiver = id,
                error = %crate::error::Chain(&error),
                "receiver not connected"
            );
        }
        admission
    }

    /// Returns when to try again to connect this receiver.
    fn postpone(&mut self, at: usize, id: u64) -> Option<Deadline> {
        let refused = &mut self.refused[at];
        if refused.id == id {
            refused.delay = CHECK_INTERVAL.min(2 * refused.delay);
        } else {
            refused.id = id;
            refused.sent = self.sent;
            refused.delay = FIRST_RETRY;
        }
        refused.due = Deadline::after(refused.delay);
        refused.due
    }

    /// Those with [`OnFull::Block`] stay first.
    fn add(&mut self, recipient: Recipient) {
        let recipients = &mut self.fan_out.recipients;
        let at = if recipient.connection.on_full == OnFull::Block {
            recipients.partition_point(|other| other.connection.on_full == OnFull::Block)
        } else {
            recipients.len()
        };
        recipients.insert(at, recipient);
    }

    /// Returns the connection of a receiver that is alive, if it is valid.
    fn find(
        &self,
        registration: Registration,
        name: &Name,
    ) -> Result<Option<(Object, Facts)>, ChannelError> {
        let rules = &self.rules;
        let uid = if self.admits_others {
            None
        } else {
            Some(effective_uid())
        };
        let found = layout::open(name, uid)?;
        let facts = found.facts;
        let is_within = facts.kind == Kind::Connection
            && facts.provider == rules.provider
            && facts.slots <= rules.slots
            && facts.max_borrowed <= rules.max_borrowed
            && (rules.allow_blocking || facts.on_full != OnFull::Block);
        if !is_within || !found.has_all_its_memory(name)? {
            return Ok(None);
        }
        let object = Object::of_publisher(found, registration);
        let is_here = !object.shared().to_sender().is_disconnected() && object.is_receiver_locked();
        if !is_here {
            return Ok(None);
        }
        Ok(Some((object, facts)))
    }

    /// P3 to P5. Returns `None` if the connection is invalid.
    fn open(&self, registration: Registration, id: u64) -> Result<Option<Recipient>, ChannelError> {
        let name = layout::connection_name(&self.names, &self.channel, id);
        let refused = self.refused[registration.at()];
        let missed = if refused.id == id {
            self.sent - refused.sent
        } else {
            0
        };
        let Some((object, facts)) = self.find(registration, &name)? else {
            return Ok(None);
        };
        let tables = Tables::new(&name, &facts)?;
        // Last, because it cannot be undone. An id may appear twice: a second account holder for
        // one receiver would reclaim its messages while it reads them.
        let Some(object) = object.connect(&name)? else {
            return Ok(None);
        };
        let connection = Connection::new(
            object,
            tables,
            facts.on_full,
            self.max_bytes,
            self.fan_out.interrupts.clone(),
            &self.fan_out.ledger,
        );
        let newest = self
            .history
            .iter()
            .rev()
            .take(connection.object.shared().capacity());
        let kept = connection.fitting(newest.map(Kept::bytes));
        // The history has some of the messages that it missed.
        let mut recipient =
            Recipient::of_publisher(connection, id, missed.saturating_sub(kept as u64));
        for kept in self.history.iter().skip(self.history.len() - kept) {
            recipient.make_room(kept.bytes());
            match kept {
                Kept::Buffer(buffer, tag) => {
                    recipient.lend(&Located::new(buffer, *tag), kept.bytes(), buffer.clone());
                }
                Kept::Bytes(words) => recipient.fill(words),
            }
            recipient.make_room_ahead();
        }
        event!(info, channel = self.channel, receiver = id, on_full = ?facts.on_full, "receiver connected");
        recipient.connection.notify(); // P5
        Ok(Some(recipient))
    }

    #[cold]
    fn keep(&mut self, message: Kept) {
        if self.history.len() == self.history_len {
            self.history.pop_front();
        }
        self.history.push_back(message);
    }

    fn connected(&self) -> impl Iterator<Item = &Recipient> {
        // In a forked child, a thread that does not exist there may hold a lock.
        let is_ours = self.rendezvous.is_ours();
        self.recipients()
            .iter()
            .filter(move |recipient| is_ours && !recipient.connection.is_disconnected())
    }

    fn wait_until_connected(
        &mut self,
        count: usize,
        deadline: Option<Deadline>,
    ) -> Result<(), SendErrorKind> {
        loop {
            let known = self.rendezvous.header().arrivals();
            self.update_connections();
            if self.fan_out.recipients.len() >= count {
                return Ok(());
            }
            if self.fan_out.interrupts.take() {
                return Err(SendErrorKind::Interrupted);
            }
            if Deadline::is_past(deadline) {
                return Err(SendErrorKind::TimedOut);
            }
            let next_check = Deadline::first(self.retry, Deadline::after(CHECK_INTERVAL));
            let until = Deadline::first(deadline, next_check);
            self.rendezvous
                .header()
                .wait_for_another(known, &self.fan_out.interrupts, until);
        }
    }
}

impl Drop for PublishingEnd {
    fn drop(&mut self) {
        // In a forked child the channel belongs to the parent.
        if self.rendezvous.is_ours() {
            // C1
            self.rendezvous.header().close();
            // C2
            for recipient in &self.fan_out.recipients {
                recipient.connection.close();
            }
            self.fan_out.close_ledger(&self.provider);
            // A drop must not need memory: without heap, receivers find the lock free.
            if !has_heap(HEAP) {
                return;
            }
            for (registration, id) in self.rendezvous.announced() {
                if id == 0 || id == self.seen[registration.at()] {
                    continue;
                }
                // C3
                let name = layout::connection_name(&self.names, &self.channel, id);
                if let Ok(Some((object, _))) = self.find(registration, &name) {
                    object.close();
                }
            }
            // C4. Also of receivers that were killed before they announced theirs. A living
            // receiver holds its connection's lock. If this fails, a sweep does it.
            let _ = sweep::remove_connections(&self.names, &self.channel);
        }
    }
}

impl<T: ?Sized> fmt::Debug for Publisher<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let receivers = self.end.fan_out.recipients.len();
        f.debug_struct("Publisher")
            .field("name", &self.end.channel)
            .field("provider", &self.end.provider.id())
            .field("receivers", &receivers)
            .finish()
    }
}
