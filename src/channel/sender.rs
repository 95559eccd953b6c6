//! The sender's end of a channel.

#![forbid(unsafe_code)]

use super::connection::{self, Connection, Tables, Timeout};
use super::error::{ChannelError, SendError, SendErrorKind};
use super::interrupt::{Interrupter, Interrupts};
use super::layout::{
    self, Facts, MessageType, DEFAULT_MAX_BORROWED, DEFAULT_SLOTS, EXTRA_SLOTS, MAX_BORROWED,
    MAX_SLOTS, MIN_SLOTS,
};
use super::ledger::Ledger;
use super::message::{self, Located};
use super::object::{name_process, Object};
use super::watch::Attempts;
use crate::os::futex::Deadline;
use crate::os::name::Name;
use crate::os::posix::is_object_mode;
use crate::owner::buf::ShmBytes;
use crate::owner::pool::PoolGuard;
use crate::owner::provider::Provider;
use crate::protocol::ids::ProviderId;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Options of a [`Sender`]. Start with [`Sender::builder`]; every option has a default.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `create` is called"]
pub struct SenderBuilder {
    slots: usize,
    max_borrowed: usize,
    mode: u32,
    spin: Option<Duration>,
    message_type: Option<MessageType>,
}

impl SenderBuilder {
    /// Sets how many unreceived messages the channel holds, from 2 to 65,536; default 256. Each
    /// takes 64 bytes of /dev/shm. One more fits while the receiver waits, or has no message yet.
    pub fn capacity(mut self, messages: usize) -> Self {
        self.slots = messages;
        self
    }

    /// Sets how many buffers the receiver may hold at a time, received or not: from 1 to 1,048,576,
    /// rounded up to a power of two; default 2048. Each takes 24 bytes of /dev/shm and 16 bytes of
    /// heap.
    pub fn max_borrowed(mut self, max_borrowed: usize) -> Self {
        self.max_borrowed = max_borrowed;
        self
    }

    /// Returns how many buffers of one size class a sender takes at most, if its receiver holds up
    /// to `views` received messages at a time: those, [`capacity`](Self::capacity) + 1 that wait,
    /// and one being filled. For [`Provider::reserve`](crate::Provider::reserve) and
    /// [`max_bytes`](crate::ProviderBuilder::max_bytes).
    pub fn buffers(&self, views: usize) -> usize {
        // `create` refuses a capacity this large, but only later.
        let waiting = self.slots.saturating_add(EXTRA_SLOTS);
        waiting.saturating_add(views).saturating_add(1)
    }

    /// Sets the permission bits of the object, regardless of the umask; default `0o600`, for
    /// receivers of the same user.
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    /// Sets how long [`send`](Sender::send) spins, waiting for room, before it sleeps; by default
    /// up to 20 µs, [where that pays](super#spinning). With [`Duration::MAX`] it never sleeps.
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = Some(spin);
        self
    }

    /// Declares the type of the messages, which a receiver may
    /// [expect](super::ReceiverBuilder::message_type); by default none.
    pub fn message_type(mut self, message_type: MessageType) -> Self {
        self.message_type = Some(message_type);
        self
    }

    /// Creates the channel `name`, for buffers of `provider`: 1 to 64 characters of `A-Z a-z 0-9 _
    /// -`, unique among the living senders and publishers of the provider's
    /// [namespace](crate::Namespace).
    ///
    /// A killed sender's name is free again once the kernel has torn down its process: some
    /// milliseconds per 100 MB of its memory.
    ///
    /// # Errors
    ///
    /// [`ChannelError::Name`], [`ChannelError::OutOfRange`], [`ChannelError::Mode`],
    /// [`ChannelError::Forked`], [`ChannelError::NameTaken`],
    /// [`ChannelError::NotAChannel`], [`ChannelError::WrongUid`], [`ChannelError::TooManyEnds`],
    /// [`ChannelError::Os`].
    pub fn create(self, provider: &Provider, name: &str) -> Result<Sender, ChannelError> {
        let object = layout::name(provider.names(), name)?;
        self.try_create(provider, &object, name)
            .map_err(|error| name_process(error, &object))
    }

    /// Like [`create`](Self::create), but waits, for at most `timeout`, while a live sender has the
    /// name.
    ///
    /// # Errors
    ///
    /// See [`create`](Self::create).
    pub fn create_timeout(
        self,
        provider: &Provider,
        name: &str,
        timeout: Duration,
    ) -> Result<Sender, ChannelError> {
        let object = layout::name(provider.names(), name)?;
        let is_taken = |error: &ChannelError| matches!(error, ChannelError::NameTaken { .. });
        let made = Attempts::run(object.clone(), timeout, is_taken, || {
            self.try_create(provider, &object, name)
        });
        made.map_err(|error| name_process(error, &object))
    }

    fn try_create(
        &self,
        provider: &Provider,
        name: &Name,
        channel: &str,
    ) -> Result<Sender, ChannelError> {
        ChannelError::check("capacity", self.slots, MIN_SLOTS, MAX_SLOTS)?;
        ChannelError::check("max_borrowed", self.max_borrowed, 1, MAX_BORROWED)?;
        MessageType::check(&self.message_type)?;
        if !is_object_mode(self.mode) {
            return Err(ChannelError::Mode { mode: self.mode });
        }
        // First: in a forked child, a thread that does not exist there may hold a lock.
        if !provider.pool().is_ours() {
            return Err(ChannelError::Forked);
        }
        let facts = Facts::of_pair(
            provider.id(),
            self.slots + EXTRA_SLOTS,
            self.max_borrowed.next_power_of_two(),
        );
        let tables = Tables::new(name, &facts)?;
        let object = Object::create(name, &facts, self.mode, self.message_type.as_ref())?;
        let ledger = Ledger::new(1);
        let connection = Connection::new(
            object,
            tables,
            facts.on_full,
            usize::MAX,
            Interrupts::new(),
            &ledger,
        );
        provider.pool().add_ledger(ledger.clone());
        Ok(Sender {
            connection,
            channel: channel.to_owned(),
            ledger,
            _guard: provider.guard().clone(),
            provider: provider.id(),
            spin: self.spin,
        })
    }
}

/// Sends messages to one receiver; see the [module](super).
pub struct Sender {
    connection: Connection,
    channel: String,
    ledger: Arc<Ledger>,
    /// Dropped after the connection and the ledger.
    _guard: Arc<PoolGuard>,
    provider: ProviderId,
    spin: Option<Duration>,
}

impl Sender {
    /// Returns a builder with the default options.
    pub fn builder() -> SenderBuilder {
        SenderBuilder {
            slots: DEFAULT_SLOTS,
            max_borrowed: DEFAULT_MAX_BORROWED,
            mode: 0o600,
            spin: None,
            message_type: None,
        }
    }

    /// Creates a channel with the default options.
    ///
    /// # Errors
    ///
    /// Those of [`SenderBuilder::create`].
    pub fn create(provider: &Provider, name: &str) -> Result<Self, ChannelError> {
        Self::builder().create(provider, name)
    }

    /// Blocks until a receiver has opened the channel, for at most `timeout`; with
    /// [`Duration::MAX`], without limit.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TimedOut`], [`SendErrorKind::Disconnected`],
    /// [`SendErrorKind::Interrupted`], [`SendErrorKind::Forked`].
    pub fn wait_for_receiver(&mut self, timeout: Duration) -> Result<(), SendErrorKind> {
        self.check_fork()?;
        self.connection.wait(
            Some(Duration::ZERO),
            Deadline::after(timeout),
            |object, _| {
                object.shared().has_had_receiver() && !object.shared().to_sender().is_disconnected()
            },
        )
    }

    /// Blocks until the receiver has received everything and asked for more, for at most `timeout`.
    /// What was sent arrives even without this call.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TimedOut`]; [`SendErrorKind::Disconnected`], even if the receiver had
    /// received everything; [`SendErrorKind::Interrupted`]; [`SendErrorKind::Forked`].
    pub fn wait_until_received(&mut self, timeout: Duration) -> Result<(), SendErrorKind> {
        self.check_fork()?;
        self.connection
            .wait_until_received(Deadline::after(timeout))?;
        // A closing receiver marks unreceived messages as received.
        if self.connection.is_disconnected() {
            return Err(SendErrorKind::Disconnected);
        }
        Ok(())
    }

    /// Returns the channel's name.
    pub fn name(&self) -> &str {
        &self.channel
    }

    /// Returns a handle that can interrupt this sender's waits.
    pub fn interrupter(&self) -> Interrupter {
        Interrupter::new(self.connection.parker.interrupts())
    }

    /// Returns how many unreceived messages the channel can hold.
    pub fn capacity(&self) -> usize {
        self.connection.object.shared().capacity()
    }

    /// Returns how many buffers the receiver may hold at a time.
    pub fn max_borrowed(&self) -> usize {
        self.connection.object.shared().max_borrowed()
    }

    /// Returns the id of the provider whose buffers this sender sends.
    pub fn provider(&self) -> ProviderId {
        self.provider
    }

    /// Sends a buffer to the receiver, which need not have opened the channel yet. Blocks until
    /// there is room.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::Disconnected`] if the receiver is closed or dead, or closes or dies during
    /// the wait; [`SendErrorKind::OtherProvider`]; [`SendErrorKind::Interrupted`];
    /// [`SendErrorKind::Forked`]. The error contains the buffer.
    ///
    /// A message sent while the receiver closes or dies may count as sent.
    #[inline]
    pub fn send(&mut self, buffer: ShmBytes) -> Result<(), SendError<ShmBytes>> {
        self.send_buffer(buffer, || Timeout::Until(None))
    }

    /// Like [`send`](Self::send), but does not wait for room.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::Full`], [`SendErrorKind::TooManyBorrowed`], and those of
    /// [`send`](Self::send).
    #[inline]
    pub fn try_send(&mut self, buffer: ShmBytes) -> Result<(), SendError<ShmBytes>> {
        self.send_buffer(buffer, || Timeout::None)
    }

    /// Like [`send`](Self::send), but blocks for at most `timeout`.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TimedOut`], and those of [`send`](Self::send).
    #[inline]
    pub fn send_timeout(
        &mut self,
        buffer: ShmBytes,
        timeout: Duration,
    ) -> Result<(), SendError<ShmBytes>> {
        self.send_buffer(buffer, || Timeout::of(timeout))
    }

    // All calls are in `prepare` and `finish`, which few sends need: saving registers for them
    // would be stores that the fence waits for.
    #[inline(always)]
    fn send_buffer(
        &mut self,
        message: ShmBytes,
        timeout: impl FnOnce() -> Timeout,
    ) -> Result<(), SendError<ShmBytes>> {
        let message = if self.can_send(&message) {
            message
        } else {
            self.prepare(message, timeout)?
        };
        let len = message.len();
        let bytes = message.capacity();
        let located = Located::new(&message);
        match self.connection.lend(&located, bytes, message, 0) {
            Ok(number) if self.connection.fence_and_look() => self.finish(number, len),
            Ok(_) => Ok(()),
            // Never: it may be borrowed.
            Err(message) => Err(SendError {
                kind: SendErrorKind::TooManyBorrowed {
                    max: self.max_borrowed(),
                },
                message,
            }),
        }
    }

    #[inline(always)]
    fn can_send(&self, message: &ShmBytes) -> bool {
        // First: a forked child cannot ask the buffer.
        self.check_fork().is_ok()
            && !self.connection.is_disconnected()
            && self.connection.is_ready()
            && self.connection.has_borrowed_at_hand(message.capacity())
            && message.provider() == self.provider
    }

    #[inline(never)]
    fn prepare(
        &mut self,
        message: ShmBytes,
        timeout: impl FnOnce() -> Timeout,
    ) -> Result<ShmBytes, SendError<ShmBytes>> {
        if let Err(kind) = self.reserve(message.capacity(), timeout()) {
            if kind == SendErrorKind::Disconnected {
                // After the provider's drop, no other thread reclaims.
                self.connection.reclaim();
            }
            return Err(SendError { kind, message });
        }
        let (found, expected) = (message.provider(), self.provider);
        if found != expected {
            return Err(SendError {
                kind: SendErrorKind::OtherProvider { found, expected },
                message,
            });
        }
        Ok(message)
    }

    #[inline(never)]
    fn finish(&mut self, number: u32, len: usize) -> Result<(), SendError<ShmBytes>> {
        let connection = &mut self.connection;
        connection.notify_after_fence();
        let is_left = connection.is_left();
        connection.collect_some();
        if !is_left {
            return Ok(());
        }
        match connection.take_back(number, len) {
            Some(message) => Err(SendError {
                kind: SendErrorKind::Disconnected,
                message,
            }),
            None => Ok(()),
        }
    }

    /// Sends up to [`MAX_INLINE`](super::MAX_INLINE) bytes, inline in the slot. Blocks until there
    /// is room.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TooLong`], [`SendErrorKind::Disconnected`], [`SendErrorKind::Interrupted`],
    /// [`SendErrorKind::Forked`].
    #[inline]
    pub fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), SendErrorKind> {
        self.send_inline(bytes, Timeout::Until(None))
    }

    /// Like [`send_bytes`](Self::send_bytes), but does not wait for room.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::Full`], and those of [`send_bytes`](Self::send_bytes).
    #[inline]
    pub fn try_send_bytes(&mut self, bytes: &[u8]) -> Result<(), SendErrorKind> {
        self.send_inline(bytes, Timeout::None)
    }

    /// Like [`send_bytes`](Self::send_bytes), but blocks for at most `timeout`.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TimedOut`], and those of [`send_bytes`](Self::send_bytes).
    #[inline]
    pub fn send_bytes_timeout(
        &mut self,
        bytes: &[u8],
        timeout: Duration,
    ) -> Result<(), SendErrorKind> {
        self.send_inline(bytes, Timeout::of(timeout))
    }

    #[inline]
    fn send_inline(&mut self, bytes: &[u8], timeout: Timeout) -> Result<(), SendErrorKind> {
        let words = message::of_bytes(bytes)?;
        self.reserve(0, timeout)?;
        let connection = &mut self.connection;
        connection.fill(&words);
        connection.notify();
        connection.look_for_room();
        if connection.is_left() {
            Err(SendErrorKind::Disconnected)
        } else {
            Ok(())
        }
    }

    /// Sends a buffer to the receiver, and waits for a free slot without blocking the thread, with
    /// any executor. If the future is dropped before it is ready, so is the buffer, and nothing is
    /// sent.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::NoHelper`], and those of [`send`](Self::send) except
    /// [`SendErrorKind::Interrupted`].
    pub async fn send_async(&mut self, buffer: ShmBytes) -> Result<(), SendError<ShmBytes>> {
        let bytes = buffer.capacity();
        connection::send(self, buffer, bytes, Self::try_send, |sender, _| {
            Some((&mut sender.connection, None))
        })
        .await
    }

    /// Sends up to [`MAX_INLINE`](super::MAX_INLINE) bytes as [`send_async`](Self::send_async)
    /// does.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::NoHelper`], and those of [`send_bytes`](Self::send_bytes) except
    /// [`SendErrorKind::Interrupted`].
    pub async fn send_bytes_async(&mut self, bytes: &[u8]) -> Result<(), SendErrorKind> {
        let try_send = |sender: &mut Self, message| {
            sender
                .try_send_bytes(message)
                .map_err(|kind| SendError { kind, message })
        };
        connection::send(self, bytes, 0, try_send, |sender, _| {
            Some((&mut sender.connection, None))
        })
        .await
        .map_err(|error| error.kind)
    }

    /// Returns ready if [`try_send`](Self::try_send) would not wait, and otherwise registers the
    /// task to be woken when that may be so. Only the waker of the last call is kept. For event
    /// loops, with a [`WakeFd`](crate::WakeFd).
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::Disconnected`], [`SendErrorKind::NoHelper`], [`SendErrorKind::Forked`].
    pub fn poll_ready(
        &mut self,
        context: &mut Context<'_>,
        buffer: &ShmBytes,
    ) -> Poll<Result<(), SendErrorKind>> {
        self.poll_room(context, buffer.capacity())
    }

    /// Like [`poll_ready`](Self::poll_ready), for [`try_send_bytes`](Self::try_send_bytes).
    ///
    /// # Errors
    ///
    /// Those of [`poll_ready`](Self::poll_ready).
    pub fn poll_ready_bytes(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), SendErrorKind>> {
        self.poll_room(context, 0)
    }

    fn poll_room(
        &mut self,
        context: &mut Context<'_>,
        bytes: usize,
    ) -> Poll<Result<(), SendErrorKind>> {
        // Twice, so that a receiver that pretends to have room does not block the thread.
        for _ in 0..2 {
            match self.reserve(bytes, Timeout::None) {
                Err(SendErrorKind::Full { .. } | SendErrorKind::TooManyBorrowed { .. }) => {}
                done => {
                    self.connection.parker.disarm();
                    return Poll::Ready(done);
                }
            }
            if self.connection.arm(context.waker(), bytes)?.is_none() {
                return Poll::Pending;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    #[inline]
    fn check_fork(&self) -> Result<(), SendErrorKind> {
        if !self.connection.object.is_ours() {
            return Err(SendErrorKind::Forked);
        }
        Ok(())
    }

    /// [`Connection::reserve`], unless the receiver is closed or dead.
    #[inline(always)]
    fn reserve(&mut self, bytes: usize, timeout: Timeout) -> Result<(), SendErrorKind> {
        self.check_fork()?;
        if self.connection.is_disconnected() {
            return Err(SendErrorKind::Disconnected);
        }
        self.connection.reserve(bytes, self.spin, timeout)
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // In a forked child the channel belongs to the parent.
        if self.connection.object.is_ours() {
            self.connection.close_pair();
            self.ledger.close();
        }
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("name", &self.channel)
            .field("capacity", &self.capacity())
            .field("provider", &self.provider)
            .finish()
    }
}
