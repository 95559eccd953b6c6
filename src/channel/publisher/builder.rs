//! The options of a publisher.

#![forbid(unsafe_code)]

use super::{Interrupts, Publisher, Refusal};
use crate::channel::error::ChannelError;
use crate::channel::layout::{
    self, Facts, Kind, MessageType, DEFAULT_MAX_BORROWED, DEFAULT_SLOTS, EXTRA_SLOTS, MAX_BORROWED,
    MAX_SLOTS, MAX_SUBSCRIBERS,
};
use crate::channel::ledger::Ledger;
use crate::channel::object::{name_process, Rendezvous};
use crate::channel::ring::OnFull;
use crate::channel::subscriber::SubscriberBuilder;
use crate::channel::watch::Attempts;
use crate::os::name::Name;
use crate::os::posix::{admits_others, is_object_mode};
use crate::owner::provider::Provider;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

const DEFAULT_MAX_SUBSCRIBERS: usize = 16;

const DEFAULT_BLOCK_LIMIT: Duration = Duration::from_secs(5);

/// By default, a receiver holds at most this part of the provider's `max_bytes`: a quarter.
const DEFAULT_SHARE: (usize, usize) = (1, 4);

/// What a publisher does with a receiver that makes no room within the
/// [limit](PublisherBuilder::block_limit).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnStall {
    /// The default: messages are skipped for this receiver until it has room again.
    #[default]
    Skip,
    /// The receiver is disconnected, as by [`Publisher::disconnect`].
    Disconnect,
}

/// Options of a [`Publisher`]; every option has a default.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `create` is called"]
pub struct PublisherBuilder {
    max_subscribers: usize,
    slots: usize,
    max_borrowed: usize,
    history: usize,
    on_full: OnFull,
    allow_blocking: bool,
    block_limit: Duration,
    on_stall: OnStall,
    max_bytes: Option<usize>,
    share: (usize, usize),
    serves_joins: bool,
    mode: u32,
    spin: Option<Duration>,
    message_type: Option<MessageType>,
}

impl PublisherBuilder {
    pub(super) fn new() -> Self {
        Self {
            max_subscribers: DEFAULT_MAX_SUBSCRIBERS,
            slots: DEFAULT_SLOTS,
            max_borrowed: DEFAULT_MAX_BORROWED,
            history: 0,
            on_full: OnFull::default(),
            allow_blocking: true,
            block_limit: DEFAULT_BLOCK_LIMIT,
            on_stall: OnStall::default(),
            max_bytes: None,
            share: DEFAULT_SHARE,
            serves_joins: true,
            mode: 0o600,
            spin: None,
            message_type: None,
        }
    }

    /// Sets how many receivers there may be at a time, from 1 to 64; default 16. Each counts as one
    /// of the process's 2048 channel ends.
    pub fn receivers(mut self, receivers: usize) -> Self {
        self.max_subscribers = receivers;
        self
    }

    /// Sets how many messages a receiver may be behind, from 1 to 65,536; default 256. A receiver
    /// may [choose less](crate::channel::SubscriberBuilder::capacity).
    pub fn capacity(mut self, messages: usize) -> Self {
        self.slots = messages;
        self
    }

    /// Sets how many buffers a receiver may hold at a time, received or not: from 1 to 1,048,576,
    /// rounded up to a power of two; default 2048. A receiver may choose less. Each takes 24 bytes
    /// of /dev/shm and 16 bytes of heap per receiver.
    pub fn max_borrowed(mut self, max_borrowed: usize) -> Self {
        self.max_borrowed = max_borrowed;
        self
    }

    /// Sets how many bytes of buffers a receiver may hold at a time, received or not, as
    /// [`max_borrowed`](Self::max_borrowed) does for their number; default: a share of the
    /// provider's [`max_bytes`](crate::ProviderBuilder::max_bytes), a quarter or as set by
    /// [`buffers`](Self::buffers). Two buffers are always allowed. [`usize::MAX`] is no limit.
    pub fn max_bytes_per_receiver(mut self, bytes: usize) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// Sets the rule for receivers that do not choose one; default [`OnFull::DropOldest`].
    pub fn on_full(mut self, on_full: OnFull) -> Self {
        self.on_full = on_full;
        self
    }

    /// Sets whether receivers may choose [`OnFull::Block`], or are refused if they do; default
    /// `true`.
    pub fn allow_blocking(mut self, allow_blocking: bool) -> Self {
        self.allow_blocking = allow_blocking;
        self
    }

    /// Sets how long a message waits for all receivers with [`OnFull::Block`] together; default 5
    /// seconds. A receiver without room for that long, over however many calls, is *stalled*:
    /// messages skip it until it has room again. With [`Duration::MAX`] a stopped receiver stops
    /// the others. [`send_async`](Publisher::send_async) may notice up to a second later.
    pub fn block_limit(mut self, limit: Duration) -> Self {
        self.block_limit = limit;
        self
    }

    /// Sets what happens to a receiver past the [`block_limit`](Self::block_limit); default
    /// [`OnStall::Skip`].
    pub fn on_stall(mut self, on_stall: OnStall) -> Self {
        self.on_stall = on_stall;
        self
    }

    /// Sets whether a send connects receivers that have joined, and disconnects those that have
    /// closed or died, at some 20 system calls each; default `true`. If `false`, only
    /// [`serve_joins`](Publisher::serve_joins) and the calls that ask for receivers do.
    /// [`OnStall::Disconnect`] disconnects in the send nevertheless.
    pub fn joins_in_send(mut self, serve: bool) -> Self {
        self.serves_joins = serve;
        self
    }

    /// Sets how many of the last messages a new receiver gets when it is connected, at most its
    /// capacity; default 0. Their buffers stay in use.
    pub fn history(mut self, messages: usize) -> Self {
        self.history = messages;
        self
    }

    /// Sets the permission bits of the channel's objects, regardless of the umask; default `0o600`,
    /// for receivers of the same user. Other users also need the provider's
    /// [`mode`](crate::ProviderBuilder::mode) and
    /// [`Namespace::of_user`](crate::Namespace::of_user). See the [threat
    /// model](crate::docs::guarantees#threat-model).
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    /// Sets how long a wait for room spins before it sleeps; by default up to 20 µs,
    /// [where that pays](crate::channel#spinning). With [`Duration::MAX`] it never sleeps.
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = Some(spin);
        self
    }

    /// Declares the type of the messages, for receivers that
    /// [expect](crate::channel::ReceiverBuilder::message_type) one; by default none. Neither side
    /// checks a message.
    pub fn message_type(mut self, message_type: MessageType) -> Self {
        self.message_type = Some(message_type);
        self
    }

    /// Returns how many buffers of one size class, for
    /// [`Provider::reserve`](crate::Provider::reserve), the publisher takes at most with these
    /// receivers, each with the most messages that it holds received. Sets the share of the
    /// provider's memory that a receiver may hold [by default](Self::max_bytes_per_receiver) to
    /// what the largest of them needs. Set the other options first.
    ///
    /// ```
    /// use shm_pool::channel::{OnFull, Publisher, Subscriber};
    ///
    /// let mut camera = Publisher::builder().capacity(2);
    /// let (display, logger) = (Subscriber::builder(), Subscriber::builder().on_full(OnFull::Block));
    /// // One being filled, three waiting for the logger, the newest two of them also for the display,
    /// // one being displayed, and four being written. The logger's share is 3 + 4 of 9.
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
        &mut self,
        receivers: impl IntoIterator<Item = (&'a SubscriberBuilder, usize)>,
    ) -> usize {
        let (mut newest, mut others, mut largest) = (self.history.min(self.slots), 0_usize, 0);
        for (receiver, views) in receivers {
            let (capacity, on_full) = receiver.behind(self.slots, self.on_full);
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
        self.share = if largest > 0 {
            (largest, buffers)
        } else {
            DEFAULT_SHARE
        };
        buffers
    }

    /// Creates the channel `name`, for buffers of `provider`. For valid names, see
    /// [`SenderBuilder::create`](crate::channel::SenderBuilder::create).
    ///
    /// # Errors
    ///
    /// [`ChannelError::Name`], [`ChannelError::OutOfRange`], [`ChannelError::Mode`],
    /// [`ChannelError::Forked`], [`ChannelError::NameTaken`], [`ChannelError::NotAChannel`],
    /// [`ChannelError::WrongUid`], [`ChannelError::TooManyEnds`], [`ChannelError::Os`].
    pub fn create(self, provider: &Provider, name: &str) -> Result<Publisher, ChannelError> {
        let object = layout::name(provider.names(), name)?;
        self.try_create(provider, &object, name)
            .map_err(|error| name_process(error, &object))
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
    ) -> Result<Publisher, ChannelError> {
        let object = layout::name(provider.names(), name)?;
        let is_taken = |error: &ChannelError| matches!(error, ChannelError::NameTaken { .. });
        let made = Attempts::run(object.clone(), timeout, is_taken, || {
            self.try_create(provider, &object, name)
        });
        made.map_err(|error| name_process(error, &object))
    }

    fn share_of(&self, bytes: usize) -> usize {
        let (part, whole) = self.share;
        // A receiver needs no more than there is.
        (bytes as u128 * part.min(whole) as u128 / whole as u128) as usize
    }

    fn try_create(
        &self,
        provider: &Provider,
        object: &Name,
        name: &str,
    ) -> Result<Publisher, ChannelError> {
        ChannelError::check("receivers", self.max_subscribers, 1, MAX_SUBSCRIBERS)?;
        ChannelError::check("capacity", self.slots, 1, MAX_SLOTS)?;
        ChannelError::check("max_borrowed", self.max_borrowed, 1, MAX_BORROWED)?;
        MessageType::check(&self.message_type)?;
        if !is_object_mode(self.mode) {
            return Err(ChannelError::Mode { mode: self.mode });
        }
        // First: in a forked child, a thread that does not exist there may hold a lock.
        if !provider.pool().is_ours() {
            return Err(ChannelError::Forked);
        }
        let facts = Facts {
            kind: Kind::Rendezvous,
            provider: provider.id(),
            slots: self.slots + EXTRA_SLOTS,
            max_borrowed: self.max_borrowed.next_power_of_two(),
            max_subscribers: self.max_subscribers,
            on_full: self.on_full,
            allow_blocking: self.allow_blocking,
        };
        let rendezvous = Arc::new(Rendezvous::create(
            object,
            &facts,
            self.mode,
            self.message_type.as_ref(),
        )?);
        let ledger = Ledger::new(self.max_subscribers);
        provider.pool().add_ledger(ledger.clone());
        Ok(Publisher {
            rendezvous,
            rules: facts,
            admits_others: admits_others(self.mode),
            names: provider.names().clone(),
            channel: name.to_owned(),
            _guard: provider.guard().clone(),
            // All at once, so that a send never moves them.
            subscriptions: Vec::with_capacity(self.max_subscribers),
            ledger,
            sent: 0,
            seen: [0; MAX_SUBSCRIBERS],
            refused: [Refusal::default(); MAX_SUBSCRIBERS],
            retry: None,
            arrivals: 0,
            history: VecDeque::new(),
            history_len: self.history.min(self.slots),
            interrupts: Interrupts::new(),
            block_limit: self.block_limit,
            on_stall: self.on_stall,
            max_bytes: self
                .max_bytes
                .unwrap_or_else(|| self.share_of(provider.pool().limits.max_bytes)),
            serves_joins: self.serves_joins,
            spin: self.spin,
        })
    }
}
