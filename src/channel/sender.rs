//! The sender's end of a channel.

#![forbid(unsafe_code)]

use super::connection::{self, Connection, Tables, Timeout};
use super::error::{ChannelError, SendError, SendErrorKind};
use super::fan_out::FanOut;
use super::interrupt::{Interrupter, Interrupts};
use super::layout::{Facts, MessageType, EXTRA_SLOTS, MIN_SLOTS};
use super::ledger::Ledger;
use super::message::{self, Tag};
use super::object::Object;
use super::options::{self, Options};
use super::payload::{builder_traits, Of, Payload};
use super::recipient::Recipient;
use super::ring::Words;
use super::send_options::{chunk_of_copy, copy_to_buffer, SendOptions};
use crate::error::OsError;
use crate::os::futex::Deadline;
use crate::os::name::Name;
use crate::os::wake_fd::EndFd;
use crate::owner::buf::{ShmBytes, ShmBytesMut};
use crate::owner::limits::AllocError;
use crate::owner::provider::Provider;
use std::fmt;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::task::{ready, Context, Poll};
use std::time::Duration;

/// Options of a [`Sender`]. Start with [`Sender::builder`]; every option has a default.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shm_pool::channel::Sender;
/// use shm_pool::Provider;
///
/// # let name = format!("doc-sender-builder-{}", std::process::id());
/// let options = Sender::builder().capacity(8);
/// // Eight that are queued, two that the receiver reads at a time, and one being written.
/// let provider = Provider::builder().room_for(100_000, options.buffers(2)).build()?;
/// let sender = options.create(&provider, &name)?;
/// assert_eq!(sender.capacity(), 8);
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder does nothing until `create` is called"]
pub struct SenderBuilder<T: ?Sized = [u8]> {
    options: Options,
    of: Of<T>,
}

builder_traits!(SenderBuilder);

impl Default for SenderBuilder {
    fn default() -> Self {
        Sender::builder()
    }
}

impl SenderBuilder {
    /// Declares the type of the messages, which a receiver may
    /// [expect](super::ReceiverBuilder::message_type); by default none.
    pub fn message_type(mut self, message_type: MessageType) -> Self {
        self.options.message_type = Some(message_type);
        self
    }

    /// Sets the type of the messages (feature `zerocopy`), and declares it; see
    /// [`typed`](super::typed). Keeps all other options.
    #[cfg(feature = "zerocopy")]
    pub fn typed<T: Payload + ?Sized>(mut self) -> SenderBuilder<T> {
        self.options.message_type = T::message_type();
        SenderBuilder {
            options: self.options,
            of: PhantomData,
        }
    }
}

impl<T: Payload + ?Sized> SenderBuilder<T> {
    /// Sets how many unreceived messages the channel holds, from 2 to 65,536; default 256. Each
    /// takes 64 bytes of /dev/shm. One more fits while the receiver waits, or has no message yet.
    pub fn capacity(mut self, messages: usize) -> Self {
        self.options.capacity = messages;
        self
    }

    /// Sets how many buffers may be outstanding at the receiver, either queued or received and not yet
    /// dropped: from 1 to 1,048,576, rounded up to a power of two; default 2048. Each takes 32 bytes of
    /// /dev/shm and 16 bytes of heap.
    pub fn max_borrowed(mut self, max_borrowed: usize) -> Self {
        self.options.max_borrowed = max_borrowed;
        self
    }

    /// Returns how many buffers of one size class a sender takes at most, if its receiver holds up
    /// to `views` received messages at a time: `views`, [`capacity`](Self::capacity) + 1 that wait,
    /// and one that is being filled. The result is meant for
    /// [`Provider::reserve`](crate::Provider::reserve) and
    /// [`ProviderBuilder::room_for`](crate::ProviderBuilder::room_for).
    pub fn buffers(&self, views: usize) -> usize {
        // `create` refuses a capacity this large, but only later.
        let waiting = self.options.capacity.saturating_add(EXTRA_SLOTS);
        waiting.saturating_add(views).saturating_add(1)
    }

    /// Sets the permission bits of the object, regardless of the umask; default `0o600`, for
    /// receivers of the same user.
    pub fn mode(mut self, mode: u32) -> Self {
        self.options.mode = mode;
        self
    }

    /// Sets how long [`send`](Sender::send) spins, waiting for room, before it sleeps; by default
    /// up to 20 µs, [where that pays](super#spinning). With [`Duration::MAX`] it never sleeps.
    pub fn spin(mut self, spin: Duration) -> Self {
        self.options.spin = Some(spin);
        self
    }

    /// Creates the channel `name`, for buffers of `provider`. The name is any text that is not
    /// empty and has no NUL, such as `/front/image_raw` or `robot/*/pose`. It is unique among the
    /// living senders and publishers of the provider's
    /// [namespace](crate::Namespace).
    ///
    /// It has to fit the name of a file: the characters `A-Z a-z 0-9 _ -` take one byte, and all
    /// others three for each byte of UTF-8. 166 bytes fit with every prefix, and 218 with the
    /// default one.
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
    pub fn create(self, provider: &Provider, name: &str) -> Result<Sender<T>, ChannelError> {
        let end = options::create(provider, name, |object| {
            SendingEnd::create(&self.options, provider, object, name)
        })?;
        Ok(Sender {
            end,
            of: PhantomData,
        })
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
    ) -> Result<Sender<T>, ChannelError> {
        let end = options::create_timeout(provider, name, timeout, |object| {
            SendingEnd::create(&self.options, provider, object, name)
        })?;
        Ok(Sender {
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
    ) -> Result<Sender<T>, ChannelError> {
        let created = options::create_async(provider, name, |object| {
            SendingEnd::create(&self.options, provider, object, name)
        });
        Ok(Sender {
            end: created.await?,
            of: PhantomData,
        })
    }
}

/// Sends messages to one [`Receiver`](super::Receiver), in order and without loss.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shm_pool::channel::{Receiver, RecvError, Sender};
/// use shm_pool::Provider;
///
/// # let name = format!("doc-sender-{}", std::process::id());
/// let provider = Provider::builder().build()?;
/// let mut sender = Sender::create(&provider, &name)?;
/// let mut receiver = Receiver::open(&name)?; // in another process
///
/// let mut record = sender.alloc(100_000)?; // in shared memory
/// record.fill(7);
/// sender.send(record)?; // without a copy; waits while the channel is full
/// sender.send_copy(b"a note")?; // what is short is copied
/// drop(sender); // what was sent still arrives
///
/// assert_eq!(receiver.recv()?.len(), 100_000);
/// assert_eq!(receiver.recv()?, b"a note");
/// assert!(matches!(receiver.recv(), Err(RecvError::Disconnected)));
/// # Ok(())
/// # }
/// ```
pub struct Sender<T: ?Sized = [u8]> {
    end: SendingEnd,
    of: Of<T>,
}

/// A sender of any payload.
struct SendingEnd {
    fan_out: FanOut<[Recipient; 1]>,
    channel: String,
    /// Dropped after the connection and the ledger.
    provider: Provider,
}

impl Sender {
    /// Returns a builder with the default options.
    pub fn builder() -> SenderBuilder {
        SenderBuilder {
            options: Options::new(),
            of: PhantomData,
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

impl<T: Payload + ?Sized> Sender<T> {
    /// Creates a channel of this type with the default options (feature `zerocopy`).
    ///
    /// # Errors
    ///
    /// Those of [`SenderBuilder::create`].
    #[cfg(feature = "zerocopy")]
    pub fn create_typed(provider: &Provider, name: &str) -> Result<Self, ChannelError> {
        Sender::builder().typed::<T>().create(provider, name)
    }

    /// Blocks until a receiver has opened the channel, for at most `timeout`; with
    /// [`Duration::MAX`], without limit.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::NoReceiver`], or [`SendErrorKind::OtherVersion`] if a receiver of another
    /// version has tried; [`SendErrorKind::Disconnected`], [`SendErrorKind::Interrupted`],
    /// [`SendErrorKind::Forked`].
    pub fn wait_for_receiver(&mut self, timeout: Duration) -> Result<(), SendError> {
        self.end.check_fork()?;
        let deadline = Deadline::after(timeout);
        self.end.fan_out.wake.renew(); // F4 of `fan_out`
        let waited = self
            .end
            .connection_mut()
            .wait(Some(Duration::ZERO), deadline, |object, _| {
                has_joined(object)
            });
        match waited {
            Err(SendErrorKind::TimedOut) => {
                let refused = self.end.connection_mut().refused_version();
                Err(SendErrorKind::no_receiver(1, timeout, refused).into())
            }
            waited => Ok(waited?),
        }
    }

    /// Blocks until the receiver has received everything and asked for more, for at most `timeout`.
    /// What was sent arrives even without this call.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TimedOut`]; [`SendErrorKind::Disconnected`], even if the receiver had
    /// received everything; [`SendErrorKind::Interrupted`]; [`SendErrorKind::Forked`].
    pub fn wait_until_received(&mut self, timeout: Duration) -> Result<(), SendError> {
        self.end.check_fork()?;
        let deadline = Deadline::after(timeout);
        self.end.fan_out.wake.renew(); // F4 of `fan_out`
        self.end.connection_mut().wait_until_received(deadline)?;
        // A closing receiver marks unreceived messages as received.
        Ok(self.end.check_receiver()?)
    }

    /// Returns the channel's name.
    pub fn name(&self) -> &str {
        &self.end.channel
    }

    /// Returns a descriptor for event loops: `poll`, `epoll`, `mio` and others. It is readable until
    /// a send has returned [`SendErrorKind::Full`] or [`SendErrorKind::TooManyBorrowed`], and again
    /// when the refused message may fit, or when the receiver has closed or died.
    ///
    /// It may be readable although there is no room, so call [`try_send`](Self::try_send) or
    /// [`try_send_copy`](Self::try_send_copy). As with a socket that is writable, it stays readable
    /// while nothing is sent: watch it only while a message is refused. The first call creates it,
    /// and the sender closes it. Use [`try_clone_to_owned`](BorrowedFd::try_clone_to_owned) for an
    /// event loop that owns what it polls.
    ///
    /// A send for which there is room costs the same with a descriptor as without one. A refused
    /// one returns [`SendErrorKind::NoHelper`] if the [helper thread](crate::docs::limits) that
    /// would make the descriptor readable cannot be started.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use shm_pool::channel::{SendErrorKind, Sender};
    /// use std::os::fd::AsRawFd;
    ///
    /// # let name = format!("doc-wake-fd-Sender-{}", std::process::id());
    /// # let provider = shm_pool::Provider::builder().build()?;
    /// let mut sender = Sender::builder().capacity(8).create(&provider, &name)?;
    /// # let receiving = std::thread::spawn(move || {
    /// #     let mut receiver = shm_pool::channel::Receiver::open(&name).unwrap();
    /// #     for number in 0..100_u32 {
    /// #         assert_eq!(receiver.recv().unwrap()[..], number.to_ne_bytes());
    /// #     }
    /// # });
    /// for number in 0..100_u32 {
    ///     // A refused message is kept, and sent when the receiver has made room.
    ///     while let Err(error) = sender.try_send_copy(&number.to_ne_bytes()) {
    ///         let SendErrorKind::Full { .. } = error.kind() else {
    ///             return Err(error.into());
    ///         };
    ///         let mut events = [libc::pollfd {
    ///             fd: sender.wake_fd()?.as_raw_fd(),
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

    /// Returns a handle that can interrupt this sender's waits.
    pub fn interrupter(&self) -> Interrupter {
        Interrupter::new(&self.end.fan_out.interrupts)
    }

    /// Returns how many unreceived messages the channel can hold.
    pub fn capacity(&self) -> usize {
        self.end.capacity()
    }

    /// Returns how many buffers the receiver may hold at a time.
    pub fn max_borrowed(&self) -> usize {
        self.end.connection().object.shared().max_borrowed()
    }

    /// Returns the provider whose buffers this sender sends.
    pub fn provider(&self) -> &Provider {
        &self.end.provider
    }

    /// Sends a message to the receiver, which need not have opened the channel yet. Blocks until
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
    pub fn send(&mut self, message: impl Into<T::Frozen>) -> Result<(), SendError<T::Frozen>> {
        let bytes = T::into_bytes(message.into());
        T::sent(self.end.send_buffer(bytes, None, Timeout::UNLIMITED))
    }

    /// Like [`send`](Self::send), but does not wait for room.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::Full`], [`SendErrorKind::TooManyBorrowed`], and those of
    /// [`send`](Self::send).
    #[inline]
    pub fn try_send(&mut self, message: impl Into<T::Frozen>) -> Result<(), SendError<T::Frozen>> {
        let bytes = T::into_bytes(message.into());
        T::sent(self.end.send_buffer(bytes, None, Timeout::None))
    }

    /// Like [`send`](Self::send), but blocks for at most `timeout`.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::TimedOut`], and those of [`send`](Self::send).
    #[inline]
    pub fn send_timeout(
        &mut self,
        message: impl Into<T::Frozen>,
        timeout: Duration,
    ) -> Result<(), SendError<T::Frozen>> {
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
    ) -> Result<(), SendError<T::Frozen>> {
        let options = options.into();
        let bytes = T::into_bytes(message.into());
        T::sent(
            self.end
                .send_buffer(bytes, options.tag_to_send(), options.patience()),
        )
    }

    /// Sends a copy of bytes, or of a value. Blocks until there is room.
    ///
    /// Up to [`MAX_INLINE`](super::MAX_INLINE) bytes are copied into the slot itself. More, and a
    /// value with an alignment above 8, are copied into a buffer that this call
    /// [allocates](Provider::alloc), without waiting for memory. To write a long message without a
    /// copy, [`alloc`](Self::alloc) its buffer.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::Alloc`] if there is no memory for the buffer: then nothing was sent, and
    /// the channel is as before. [`SendErrorKind::Disconnected`], [`SendErrorKind::Interrupted`],
    /// [`SendErrorKind::Forked`].
    #[inline]
    pub fn send_copy(&mut self, message: &T) -> Result<(), SendError> {
        self.end
            .copy_aligned(message.bytes(), T::COPY_ALIGN, SendOptions::new())
    }

    /// Like [`send_copy`](Self::send_copy), but does not wait for room.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::Full`], [`SendErrorKind::TooManyBorrowed`], and those of
    /// [`send_copy`](Self::send_copy).
    #[inline]
    pub fn try_send_copy(&mut self, message: &T) -> Result<(), SendError> {
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
    ) -> Result<(), SendError> {
        self.end
            .copy_aligned(message.bytes(), T::COPY_ALIGN, options.into())
    }

    /// Sends a buffer to the receiver, and waits for a free slot without blocking the thread, with
    /// any executor. If the future is dropped before it is ready, so is the buffer, and nothing is
    /// sent.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::NoHelper`], and those of [`send`](Self::send) except
    /// [`SendErrorKind::Interrupted`].
    pub async fn send_async(
        &mut self,
        message: impl Into<T::Frozen>,
    ) -> Result<(), SendError<T::Frozen>> {
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
    ) -> Result<(), SendError<T::Frozen>> {
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
    pub async fn send_copy_async(&mut self, message: &T) -> Result<(), SendError> {
        self.end
            .copy_aligned_async(message.bytes(), T::COPY_ALIGN, SendOptions::new())
            .await
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
}

impl SendingEnd {
    fn create(
        options: &Options,
        provider: &Provider,
        name: &Name,
        channel: &str,
    ) -> Result<Self, ChannelError> {
        options.check(MIN_SLOTS, provider)?;
        let facts = Facts::of_pair(
            provider.id(),
            options.capacity + EXTRA_SLOTS,
            options.max_borrowed.next_power_of_two(),
        );
        let tables = Tables::new(name, &facts)?;
        let object = Object::create(name, &facts, options.mode, options.message_type.as_ref())?;
        let ledger = Ledger::new(1);
        let interrupts = Interrupts::new();
        let connection = Connection::new(
            object,
            tables,
            facts.on_full,
            usize::MAX,
            interrupts.clone(),
            &ledger,
        );
        provider.pool().add_ledger(ledger.clone());
        let fan_out = FanOut {
            recipients: [Recipient::of_pair(connection)],
            ledger,
            interrupts,
            provider: provider.id(),
            spin: options.spin,
            block_limit: Duration::MAX,
            has_disconnected: false,
            wake: EndFd::default(),
        };
        Ok(Self {
            fan_out,
            channel: channel.to_owned(),
            provider: provider.clone(),
        })
    }

    #[inline(always)]
    fn send_buffer(
        &mut self,
        message: ShmBytes,
        tag: Option<Tag>,
        timeout: Timeout,
    ) -> Result<(), SendError<ShmBytes>> {
        if let Err(kind) = self.reserve_for(&message, timeout) {
            return Err(SendError { kind, message });
        }
        let len = message.len();
        self.fan_out.send(message, tag, 1);
        if self.connection().is_disconnected() {
            return self.take_back_unread(len);
        }
        Ok(())
    }

    #[inline(always)]
    fn reserve_for(&mut self, message: &ShmBytes, timeout: Timeout) -> Result<(), SendErrorKind> {
        // First: a forked child cannot ask the buffer.
        self.check_fork()?;
        self.fan_out.check_provider(message)?;
        self.reserve(message.capacity(), timeout)
    }

    /// After the message was sent. The error contains it, if the receiver did not take it.
    #[cold]
    fn take_back_unread(&mut self, len: usize) -> Result<(), SendError<ShmBytes>> {
        let connection = self.connection();
        if !connection.claim_unread() {
            return Ok(());
        }
        match connection.take_back(len) {
            Some(message) => Err(SendError {
                kind: SendErrorKind::Disconnected,
                message,
            }),
            None => Ok(()),
        }
    }

    /// Sends a copy of bytes that a receiver reads with this alignment, up to a page.
    #[inline]
    fn copy_aligned(
        &mut self,
        bytes: &[u8],
        align: usize,
        options: SendOptions,
    ) -> Result<(), SendError> {
        match message::of_bytes(bytes, align, options.tag_to_send()) {
            Some(words) => self.send_words(&words, options.patience()),
            None => self.copy_in_buffer(bytes, align, options),
        }
    }

    #[inline]
    fn send_words(&mut self, words: &Words, timeout: Timeout) -> Result<(), SendError> {
        self.check_fork()?;
        self.reserve(0, timeout)?;
        self.fan_out.send_words(words);
        if self.connection().claim_unread() {
            return Err(SendErrorKind::Disconnected.into());
        }
        Ok(())
    }

    fn copy_in_buffer(
        &mut self,
        bytes: &[u8],
        align: usize,
        options: SendOptions,
    ) -> Result<(), SendError> {
        self.check_fork()?;
        let buffer = copy_to_buffer(&self.provider, bytes, align)?;
        self.send_buffer(buffer, options.tag_to_send(), options.patience())
            .map_err(|error| error.with(()))
    }

    /// [`copy_aligned`](Self::copy_aligned) without blocking the thread.
    async fn copy_aligned_async(
        &mut self,
        bytes: &[u8],
        align: usize,
        options: SendOptions,
    ) -> Result<(), SendError> {
        let Some(words) = message::of_bytes(bytes, align, options.tag_to_send()) else {
            self.check_fork()?;
            let buffer = copy_to_buffer(&self.provider, bytes, align)?;
            let sent = self.send_with_async(buffer, options).await;
            return sent.map_err(|error| error.with(()));
        };
        let try_send = |sender: &mut Self, words| {
            sender
                .send_words(&words, Timeout::None)
                .map_err(|error| error.with(words))
        };
        connection::send(self, words, 0, try_send, |sender, bytes| {
            sender.fan_out.begin_await(bytes)
        })
        .await
        .map_err(|error| error.with(()))
    }

    async fn send_with_async(
        &mut self,
        buffer: ShmBytes,
        options: SendOptions,
    ) -> Result<(), SendError<ShmBytes>> {
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
        self.check_receiver()?;
        ready!(self.fan_out.poll_room(context, bytes))?;
        Poll::Ready(self.check_receiver())
    }

    #[inline]
    fn check_fork(&self) -> Result<(), SendErrorKind> {
        if !self.connection().object.is_ours() {
            return Err(SendErrorKind::Forked);
        }
        Ok(())
    }

    fn check_receiver(&self) -> Result<(), SendErrorKind> {
        if self.connection().is_disconnected() {
            return Err(SendErrorKind::Disconnected);
        }
        Ok(())
    }

    /// Finds room, unless the receiver is closed or dead.
    #[inline(always)]
    fn reserve(&mut self, bytes: usize, timeout: Timeout) -> Result<(), SendErrorKind> {
        match self.fan_out.reserve_at_once(bytes) {
            Some(_) => Ok(()),
            None => self.find_room(bytes, timeout),
        }
    }

    /// Waits for room if necessary.
    #[inline(never)]
    fn find_room(&mut self, bytes: usize, timeout: Timeout) -> Result<(), SendErrorKind> {
        let sent = self.fan_out.find_room(bytes, timeout)?;
        if sent.receivers == 0 {
            // After the provider's drop, no other thread reclaims.
            self.connection().reclaim();
            return Err(SendErrorKind::Disconnected);
        }
        Ok(())
    }

    #[inline]
    fn connection(&self) -> &Connection {
        let [recipient] = &self.fan_out.recipients;
        &recipient.connection
    }

    fn capacity(&self) -> usize {
        self.connection().object.shared().capacity()
    }

    fn connection_mut(&mut self) -> &mut Connection {
        let [recipient] = &mut self.fan_out.recipients;
        &mut recipient.connection
    }
}

/// Waits of a task.
impl<T: Payload + ?Sized> Sender<T> {
    /// Like [`wait_for_receiver`](Self::wait_for_receiver), without a timeout and without blocking
    /// the thread, with any executor.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::NoHelper`], [`SendErrorKind::Disconnected`], [`SendErrorKind::Forked`].
    pub async fn wait_for_receiver_async(&mut self) -> Result<(), SendError> {
        self.end.check_fork()?;
        self.end.fan_out.wake.renew(); // F4 of `fan_out`
        let waited = self
            .end
            .connection_mut()
            .wait_async(|object, _| has_joined(object));
        Ok(waited.await?)
    }

    /// Like [`wait_until_received`](Self::wait_until_received), without a timeout and without
    /// blocking the thread, with any executor.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::NoHelper`]; [`SendErrorKind::Disconnected`], even if the receiver had
    /// received everything; [`SendErrorKind::Forked`].
    pub async fn wait_until_received_async(&mut self) -> Result<(), SendError> {
        self.end.check_fork()?;
        self.end.fan_out.wake.renew(); // F4 of `fan_out`
        self.end
            .connection_mut()
            .wait_until_received_async()
            .await?;
        // A closing receiver marks unreceived messages as received.
        Ok(self.end.check_receiver()?)
    }
}

fn has_joined(object: &Object) -> bool {
    let shared = object.shared();
    shared.has_had_receiver() && !shared.to_sender().is_disconnected()
}

impl Drop for SendingEnd {
    fn drop(&mut self) {
        // In a forked child the channel belongs to the parent.
        if self.connection().object.is_ours() {
            self.connection_mut().close_pair();
            self.fan_out.close_ledger(&self.provider);
        }
    }
}

impl<T: ?Sized> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("name", &self.end.channel)
            .field("capacity", &self.end.capacity())
            .field("provider", &self.end.provider.id())
            .finish()
    }
}
