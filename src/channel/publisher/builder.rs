//! The options of a publisher.

#![forbid(unsafe_code)]

use super::{Publisher, PublishingEnd, Refusal};
use crate::channel::error::ChannelError;
use crate::channel::fan_out::FanOut;
use crate::channel::interrupt::Interrupts;
use crate::channel::layout::{Facts, Kind, MessageType, EXTRA_SLOTS, MAX_SUBSCRIBERS};
use crate::channel::ledger::Ledger;
use crate::channel::object::Rendezvous;
use crate::channel::options::{self, Options};
use crate::channel::payload::{builder_traits, Of, Payload};
use crate::channel::receiver::Options as ReceiverOptions;
use crate::channel::ring::OnFull;
use crate::channel::subscriber::SubscriberBuilder;
use crate::os::name::Name;
use crate::os::posix::admits_others;
use crate::os::wake_fd::EndFd;
use crate::owner::provider::Provider;
use crate::protocol::ids::ParseError;
use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

const DEFAULT_MAX_SUBSCRIBERS: usize = 16;

const DEFAULT_BLOCK_LIMIT: Duration = Duration::from_secs(5);

/// By default, a receiver holds at most this part of the provider's `max_bytes`: a quarter.
const DEFAULT_SHARE: (usize, usize) = (1, 4);

/// What a publisher does with a receiver that makes no room within the
/// [limit](PublisherBuilder::block_limit).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnStall {
    /// The default: messages are skipped for this receiver until it has room again.
    #[default]
    Skip,
    /// The receiver is disconnected, as by [`Publisher::disconnect`].
    Disconnect,
}

/// `skip` or `disconnect`.
impl fmt::Display for OnStall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Skip => "skip",
            Self::Disconnect => "disconnect",
        })
    }
}

/// The inverse of `Display`.
impl FromStr for OnStall {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match text {
            "skip" => Ok(Self::Skip),
            "disconnect" => Ok(Self::Disconnect),
            _ => Err(ParseError {
                expected: "skip or disconnect",
            }),
        }
    }
}

/// Options of a [`Publisher`]. Start with [`Publisher::builder`]; every option has a default.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shm_pool::channel::Publisher;
/// use shm_pool::Provider;
///
/// # let name = format!("doc-publisher-builder-{}", std::process::id());
/// let provider = Provider::builder().build()?;
/// // A subscriber that joins gets the last message at once. None can make a send wait.
/// let options = Publisher::builder().history(1).allow_blocking(false);
/// let publisher = options.create(&provider, &name)?;
/// # drop(publisher);
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder does nothing until `create` is called"]
pub struct PublisherBuilder<T: ?Sized = [u8]> {
    options: PublisherOptions,
    of: Of<T>,
}

builder_traits!(PublisherBuilder);

/// The options of a publisher of any payload.
#[derive(Clone, Debug)]
struct PublisherOptions {
    common: Options,
    max_subscribers: usize,
    history: usize,
    on_full: OnFull,
    allow_blocking: bool,
    block_limit: Duration,
    on_stall: OnStall,
    max_bytes: Option<usize>,
    expected: Vec<(ReceiverOptions, usize)>,
    serves_joins: bool,
}

impl Default for PublisherBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl PublisherBuilder {
    pub(super) fn new() -> Self {
        let options = PublisherOptions {
            common: Options::new(),
            max_subscribers: DEFAULT_MAX_SUBSCRIBERS,
            history: 0,
            on_full: OnFull::default(),
            allow_blocking: true,
            block_limit: DEFAULT_BLOCK_LIMIT,
            on_stall: OnStall::default(),
            max_bytes: None,
            expected: Vec::new(),
            serves_joins: true,
        };
        Self {
            options,
            of: PhantomData,
        }
    }

    /// Declares the type of the messages, for receivers that
    /// [expect](crate::channel::SubscriberBuilder::message_type) one; by default none. Neither side
    /// checks a message.
    pub fn message_type(mut self, message_type: MessageType) -> Self {
        self.options.common.message_type = Some(message_type);
        self
    }

    /// Sets the type of the messages (feature `zerocopy`), and declares it; see
    /// [`typed`](crate::channel::typed). Keeps all other options.
    #[cfg(feature = "zerocopy")]
    pub fn typed<T: Payload + ?Sized>(mut self) -> PublisherBuilder<T> {
        self.options.common.message_type = T::message_type();
        PublisherBuilder {
            options: self.options,
            of: PhantomData,
        }
    }
}

impl<T: Payload + ?Sized> PublisherBuilder<T> {
    /// Sets how many receivers there may be at a time, from 1 to 64; default 16. Each counts as one
    /// of the process's 2048 channel ends.
    pub fn max_subscribers(mut self, max_subscribers: usize) -> Self {
        self.options.max_subscribers = max_subscribers;
        self
    }

    /// Sets how many messages a receiver may be behind, from 1 to 65,536; default 256. A receiver
    /// may [choose less](crate::channel::SubscriberBuilder::capacity).
    pub fn capacity(mut self, messages: usize) -> Self {
        self.options.common.capacity = messages;
        self
    }

    /// Sets how many buffers may be outstanding at a receiver, either queued or received and not yet
    /// dropped: from 1 to 1,048,576, rounded up to a power of two; default 2048. A receiver may choose
    /// less. Each takes 32 bytes of /dev/shm and 16 bytes of heap per receiver.
    pub fn max_borrowed(mut self, max_borrowed: usize) -> Self {
        self.options.common.max_borrowed = max_borrowed;
        self
    }

    /// Sets how many bytes of buffers may be outstanding at a receiver, as
    /// [`max_borrowed`](Self::max_borrowed) does for their number. The default is a share of the
    /// provider's [`max_bytes`](crate::ProviderBuilder::max_bytes): a quarter, or what
    /// [`share_among`](Self::share_among) sets. Two buffers are always allowed. [`usize::MAX`] means
    /// that there is no limit.
    pub fn max_bytes_per_receiver(mut self, bytes: usize) -> Self {
        self.options.max_bytes = Some(bytes);
        self
    }

    /// Sets the rule for receivers that do not choose one; default [`OnFull::DropOldest`].
    pub fn on_full(mut self, on_full: OnFull) -> Self {
        self.options.on_full = on_full;
        self
    }

    /// Sets whether receivers may choose [`OnFull::Block`], or are refused if they do; default
    /// `true`.
    pub fn allow_blocking(mut self, allow_blocking: bool) -> Self {
        self.options.allow_blocking = allow_blocking;
        self
    }

    /// Sets how long a message waits for all receivers with [`OnFull::Block`] together; default 5
    /// seconds. If a receiver makes no room for that long, added up over calls, it is *stalled*: it
    /// misses messages until it has room again. With [`Duration::MAX`], one stopped receiver blocks
    /// the publisher for ever. [`send_async`](Publisher::send_async) may notice up to a second later.
    pub fn block_limit(mut self, limit: Duration) -> Self {
        self.options.block_limit = limit;
        self
    }

    /// Sets what happens to a receiver past the [`block_limit`](Self::block_limit); default
    /// [`OnStall::Skip`].
    pub fn on_stall(mut self, on_stall: OnStall) -> Self {
        self.options.on_stall = on_stall;
        self
    }

    /// Sets whether a send connects receivers that have joined, and disconnects those that have
    /// closed or died, which takes some 20 system calls for each of them; default `true`. If `false`,
    /// only [`serve_joins`](Publisher::serve_joins) and the calls that wait for receivers do that.
    /// [`OnStall::Disconnect`] disconnects in the send nevertheless.
    pub fn joins_in_send(mut self, serve: bool) -> Self {
        self.options.serves_joins = serve;
        self
    }

    /// Sets how many of the last messages a new receiver gets when it is connected, at most its
    /// capacity; default 0. Their buffers stay in use.
    pub fn history(mut self, messages: usize) -> Self {
        self.options.history = messages;
        self
    }

    /// Sets the permission bits of the channel's objects, regardless of the umask; default `0o600`,
    /// for receivers of the same user. Other users also need the provider's
    /// [`mode`](crate::ProviderBuilder::mode) and
    /// [`Namespace::of_user`](crate::Namespace::of_user). See the [threat
    /// model](crate::docs::guarantees#threat-model).
    pub fn mode(mut self, mode: u32) -> Self {
        self.options.common.mode = mode;
        self
    }

    /// Sets how long a wait for room spins before it sleeps; by default up to 20 µs,
    /// [where that pays](crate::channel#spinning). With [`Duration::MAX`] it never sleeps.
    pub fn spin(mut self, spin: Duration) -> Self {
        self.options.common.spin = Some(spin);
        self
    }

    /// Returns how many buffers of one size class the publisher takes at most with these receivers.
    /// With each receiver goes the number of messages that it holds at a time, received and not yet
    /// dropped. The result is meant for [`ProviderBuilder::room_for`](crate::ProviderBuilder::room_for)
    /// and [`Provider::reserve`](crate::Provider::reserve). Set the other options first, and call
    /// [`share_among`](Self::share_among) with the same receivers.
    ///
    /// ```
    /// use shm_pool::channel::{OnFull, Publisher, Subscriber};
    ///
    /// let camera = Publisher::builder().capacity(2);
    /// let (display, logger) = (Subscriber::builder(), Subscriber::builder().on_full(OnFull::Block));
    /// // One being filled, three waiting for the logger, the newest two of them also for the display,
    /// // one being displayed, and four being written.
    /// assert_eq!(camera.buffers([(&display, 1), (&logger, 4)]), 1 + 3 + 1 + 4);
    /// ```
    ///
    /// The sum of:
    ///
    /// * 1 being filled;
    /// * for all receivers together, the maximum of [`history`](Self::history), of `capacity` for
    ///   each one with [`OnFull::DropOldest`], and of `capacity` + 1 for each one with
    ///   [`OnFull::Block`];
    /// * `capacity` + 1 for each receiver with [`OnFull::DropNewest`]; add as many for each one
    ///   that you expect to [stall](Self::block_limit);
    /// * the messages received and not yet dropped.
    pub fn buffers<'a>(
        &self,
        receivers: impl IntoIterator<Item = (&'a SubscriberBuilder<T>, usize)>,
    ) -> usize {
        let receivers = receivers.into_iter();
        let (buffers, _) = self
            .options
            .needs(receivers.map(|(receiver, views)| (receiver.options(), views)));
        buffers
    }

    /// Sets the share of the provider's memory that a receiver may hold
    /// [by default](Self::max_bytes_per_receiver) to what the largest of these receivers needs, of
    /// the [`buffers`](Self::buffers) that all of them need. Without receivers, it is a quarter.
    ///
    /// ```
    /// # use shm_pool::channel::{OnFull, Publisher, Subscriber};
    /// let (display, logger) = (Subscriber::builder(), Subscriber::builder().on_full(OnFull::Block));
    /// let receivers = [(&display, 1), (&logger, 4)];
    /// // The logger's share is 3 + 4 of 9 buffers.
    /// let camera = Publisher::builder().capacity(2).share_among(receivers);
    /// ```
    pub fn share_among<'a>(
        mut self,
        receivers: impl IntoIterator<Item = (&'a SubscriberBuilder<T>, usize)>,
    ) -> Self {
        self.options.expected = receivers
            .into_iter()
            .map(|(receiver, views)| (receiver.options().clone(), views))
            .collect();
        self
    }

    /// Creates the channel `name`, for buffers of `provider`. For valid names, see
    /// [`SenderBuilder::create`](crate::channel::SenderBuilder::create).
    ///
    /// # Errors
    ///
    /// [`ChannelError::Name`], [`ChannelError::OutOfRange`], [`ChannelError::Mode`],
    /// [`ChannelError::Forked`], [`ChannelError::NameTaken`], [`ChannelError::NotAChannel`],
    /// [`ChannelError::WrongUid`], [`ChannelError::TooManyEnds`], [`ChannelError::Os`].
    pub fn create(self, provider: &Provider, name: &str) -> Result<Publisher<T>, ChannelError> {
        let end = options::create(provider, name, |object| {
            self.options.try_create(provider, object, name)
        })?;
        Ok(Publisher {
            end,
            of: PhantomData,
        })
    }

    /// Like [`create`](Self::create), but waits, for at most `timeout`, while a predecessor that is
    /// still exiting has the name.
    ///
    /// # Errors
    ///
    /// See [`create`](Self::create). [`ChannelError::NameTaken`] names the predecessor's process.
    pub fn create_timeout(
        self,
        provider: &Provider,
        name: &str,
        timeout: Duration,
    ) -> Result<Publisher<T>, ChannelError> {
        let end = options::create_timeout(provider, name, timeout, |object| {
            self.options.try_create(provider, object, name)
        })?;
        Ok(Publisher {
            end,
            of: PhantomData,
        })
    }

    /// Like [`create_timeout`](Self::create_timeout), without a timeout and without blocking the
    /// thread, with any executor.
    ///
    /// # Errors
    ///
    /// See [`create`](Self::create), and [`ChannelError::Os`] if the thread that waits for names
    /// cannot be started.
    pub async fn create_async(
        self,
        provider: &Provider,
        name: &str,
    ) -> Result<Publisher<T>, ChannelError> {
        let created = options::create_async(provider, name, |object| {
            self.options.try_create(provider, object, name)
        });
        Ok(Publisher {
            end: created.await?,
            of: PhantomData,
        })
    }
}

impl PublisherOptions {
    /// Returns the number of buffers that the publisher takes with these receivers, and the largest
    /// number that one of them may hold.
    fn needs<'a>(
        &self,
        receivers: impl IntoIterator<Item = (&'a ReceiverOptions, usize)>,
    ) -> (usize, usize) {
        let mut newest = self.history.min(self.common.capacity);
        let mut others = 0_usize;
        let mut largest = 0;
        for (receiver, views) in receivers {
            let (capacity, on_full) = receiver.behind(self.common.capacity, self.on_full);
            // One more than the capacity: with `DropOldest`, until the send has withdrawn the
            // oldest.
            let queued = capacity.saturating_add(EXTRA_SLOTS);
            match on_full {
                OnFull::DropOldest => newest = newest.max(capacity),
                OnFull::Block => newest = newest.max(queued),
                OnFull::DropNewest => others = others.saturating_add(queued),
            }
            others = others.saturating_add(views);
            largest = largest.max(queued.saturating_add(views));
        }
        let buffers = newest.saturating_add(others).saturating_add(1);
        (buffers, largest)
    }

    fn share_of(&self, bytes: usize) -> usize {
        let expected = self.expected.iter();
        let (part, whole) = match self.needs(expected.map(|(receiver, views)| (receiver, *views))) {
            (_, 0) => DEFAULT_SHARE,
            (buffers, largest) => (largest, buffers),
        };
        // A receiver needs no more than there is.
        (bytes as u128 * part.min(whole) as u128 / whole as u128) as usize
    }

    fn try_create(
        &self,
        provider: &Provider,
        object: &Name,
        name: &str,
    ) -> Result<PublishingEnd, ChannelError> {
        let options = &self.common;
        ChannelError::check("max_subscribers", self.max_subscribers, 1, MAX_SUBSCRIBERS)?;
        options.check(1, provider)?;
        let facts = Facts {
            kind: Kind::Rendezvous,
            provider: provider.id(),
            slots: options.capacity + EXTRA_SLOTS,
            max_borrowed: options.max_borrowed.next_power_of_two(),
            max_subscribers: self.max_subscribers,
            on_full: self.on_full,
            allow_blocking: self.allow_blocking,
        };
        let rendezvous = Arc::new(Rendezvous::create(
            object,
            &facts,
            options.mode,
            options.message_type.as_ref(),
        )?);
        let ledger = Ledger::new(self.max_subscribers);
        provider.pool().add_ledger(ledger.clone());
        let fan_out = FanOut {
            // All at once, so that a send never moves them.
            recipients: Vec::with_capacity(self.max_subscribers),
            ledger,
            interrupts: Interrupts::new(),
            provider: provider.id(),
            spin: options.spin,
            block_limit: self.block_limit,
            has_disconnected: false,
            wake: EndFd::default(),
        };
        let max_bytes = match self.max_bytes {
            Some(bytes) => bytes,
            None => self.share_of(provider.pool().limits.max_bytes),
        };
        Ok(PublishingEnd {
            rendezvous,
            rules: facts,
            admits_others: admits_others(options.mode),
            names: provider.names().clone(),
            channel: name.to_owned(),
            provider: provider.clone(),
            fan_out,
            sent: 0,
            seen: [0; MAX_SUBSCRIBERS],
            refused: [Refusal::default(); MAX_SUBSCRIBERS],
            retry: None,
            joins: None,
            arrivals: 0,
            history: VecDeque::new(),
            history_len: self.history.min(options.capacity),
            on_stall: self.on_stall,
            max_bytes,
            serves_joins: self.serves_joins,
        })
    }
}
