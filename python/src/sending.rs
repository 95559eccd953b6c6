//! `Sender` and `Publisher`.

use crate::end::{Awaited, End};
use crate::errors::{self, IntoPyErr};
use crate::memory::{self, Buffer, Bytes};
use crate::options::{self, set, Choice};
use crate::pending::{Operation, Pending};
use crate::provider::{Allocation, Closable, Pool, Provider};
use crate::wait::{self, Deadline};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use shm_pool::channel::{
    self, ChannelError, OnFull, PublisherBuilder, ReceiverId, SendError, SendErrorKind,
    SendOptions, SenderBuilder, MAX_INLINE,
};
use shm_pool::ShmBytes;
use std::borrow::Cow;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

type Tag = [u8; 16];

/// The crate's default of a publisher's `block_limit`.
const DEFAULT_BLOCK_LIMIT: Duration = Duration::from_secs(5);

/// Reads the argument `tag`.
fn tag_of(argument: Option<Cow<'_, [u8]>>) -> PyResult<Option<Tag>> {
    let Some(bytes) = argument else {
        return Ok(None);
    };
    match Tag::try_from(&*bytes) {
        Ok(tag) => Ok(Some(tag)),
        Err(_) => Err(errors::InvalidArgument::new_err(format!(
            "a tag has 16 bytes, but {} were given",
            bytes.len()
        ))),
    }
}

/// The content of a message.
#[derive(Clone)]
enum Content {
    Buffer(ShmBytes),
    Inline([u8; MAX_INLINE], usize),
}

impl Content {
    /// Returns the content of a `Buffer`, or of an object with few bytes; otherwise the object's bytes.
    fn of(message: &Bound<'_, PyAny>, tag: Option<Tag>) -> PyResult<Result<Self, Bytes>> {
        if let Ok(buffer) = message.cast::<Buffer>() {
            return Ok(Ok(Self::Buffer(buffer.get().message()?)));
        }
        let bytes = Bytes::of(message)?;
        let max_len = match tag {
            // The tag is in the slot, too.
            Some(tag) => MAX_INLINE - tag.len(),
            None => MAX_INLINE,
        };
        if bytes.len() > max_len {
            return Ok(Err(bytes));
        }
        let mut slot = [0; MAX_INLINE];
        bytes.copy_to(&mut slot);
        Ok(Ok(Self::Inline(slot, bytes.len())))
    }
}

/// The sending end of a channel.
#[allow(clippy::large_enum_variant)] // It lies in an `Arc`.
enum Output {
    Sender(channel::Sender),
    Publisher(channel::Publisher),
}

macro_rules! each {
    ($output:expr, $end:ident => $call:expr) => {
        match $output {
            Output::Sender($end) => $call,
            Output::Publisher($end) => $call,
        }
    };
}

impl Output {
    /// Sends, and returns what a publisher reports.
    fn send(
        &mut self,
        content: Content,
        options: SendOptions,
    ) -> Result<Option<channel::Sent>, SendErrorKind> {
        match (self, content) {
            (Self::Sender(sender), Content::Buffer(buffer)) => {
                match sender.send_with(buffer, options) {
                    Ok(()) => Ok(None),
                    Err(error) => Err(error.kind()),
                }
            }
            (Self::Sender(sender), Content::Inline(slot, len)) => {
                match sender.send_copy_with(&slot[..len], options) {
                    Ok(()) => Ok(None),
                    Err(error) => Err(error.kind()),
                }
            }
            (Self::Publisher(publisher), Content::Buffer(buffer)) => {
                match publisher.send_with(buffer, options) {
                    Ok(sent) => Ok(Some(sent)),
                    Err(error) => Err(error.kind()),
                }
            }
            (Self::Publisher(publisher), Content::Inline(slot, len)) => {
                match publisher.send_copy_with(&slot[..len], options) {
                    Ok(sent) => Ok(Some(sent)),
                    Err(error) => Err(error.kind()),
                }
            }
        }
    }

    fn poll_room(
        &mut self,
        context: &mut Context<'_>,
        content: &Content,
    ) -> Poll<Result<(), SendErrorKind>> {
        let polled = match content {
            Content::Buffer(buffer) => each!(self, end => end.poll_ready(context, buffer)),
            Content::Inline(_, len) => each!(self, end => end.poll_ready_copy(context, *len)),
        };
        polled.map_err(|error| error.kind())
    }

    /// Waits for this many receivers. A sender has one.
    fn wait_for_receivers(&mut self, count: usize, timeout: Duration) -> Result<(), SendError> {
        match self {
            Self::Sender(sender) => sender.wait_for_receiver(timeout),
            Self::Publisher(publisher) => publisher.wait_for_receivers(count, timeout),
        }
    }

    async fn wait_for_receivers_async(&mut self, count: usize) -> Result<(), SendError> {
        match self {
            Self::Sender(sender) => sender.wait_for_receiver_async().await,
            Self::Publisher(publisher) => publisher.wait_for_receivers_async(count).await,
        }
    }

    fn wait_until_received(&mut self, timeout: Duration) -> Result<(), SendError> {
        each!(self, end => end.wait_until_received(timeout))
    }

    async fn wait_until_received_async(&mut self) -> Result<(), SendError> {
        each!(self, end => end.wait_until_received_async().await)
    }
}

/// Returns the options of one attempt, which waits at most for `timeout`.
fn options(tag: Option<Tag>, timeout: Duration) -> SendOptions {
    let options = SendOptions::new().timeout(timeout);
    match tag {
        Some(tag) => options.tag(tag),
        None => options,
    }
}

/// Sends a `Buffer`, or a copy of any other object's bytes.
fn send(
    py: Python<'_>,
    end: &SendingEnd,
    message: &Bound<'_, PyAny>,
    tag: Option<Cow<'_, [u8]>>,
    timeout: Option<f64>,
) -> PyResult<Option<Sent>> {
    let SendingEnd {
        end,
        pool,
        memory_limit,
    } = end;
    let tag = tag_of(tag)?;
    let deadline = Deadline::after(timeout)?;
    end.check()?;
    let content = match Content::of(message, tag)? {
        Ok(content) => content,
        Err(bytes) => {
            let pool = pool.get()?;
            memory::warn_of_copy(py, &bytes, pool.provider().id())?;
            let for_memory = match timeout {
                Some(_) => deadline,
                None => Deadline::within(*memory_limit),
            };
            Content::Buffer(pool.copy(py, &bytes, for_memory)?)
        }
    };
    let sent = end.until(py, deadline, errors::is_full, |end, time| {
        end.send(content.clone(), options(tag, time))
    })?;
    Ok(sent.map(Sent::from))
}

/// The steps of an asynchronous send.
enum Sending {
    New(Py<PyAny>),
    /// A copy is to be made, in memory that is not allocated yet.
    Copy(Py<PyAny>, Allocation),
    Room(Content),
}

/// Returns a coroutine that sends a `Buffer`, or a copy of any other object's bytes.
fn send_async<'py>(
    py: Python<'py>,
    end: &SendingEnd,
    message: Py<PyAny>,
    tag: Option<Cow<'_, [u8]>>,
) -> PyResult<Bound<'py, PyAny>> {
    let tag = tag_of(tag)?;
    let mut awaited = Awaited::new(&end.end);
    let pool = end.pool.clone();
    let end = end.end.clone();
    let mut sending = Sending::New(message);
    let operation: Operation = Box::new(move |py, mut context| loop {
        end.check()?;
        match &mut sending {
            Sending::New(message) => {
                sending = match Content::of(message.bind(py), tag)? {
                    Ok(content) => Sending::Room(content),
                    Err(bytes) => {
                        let pool = pool.get()?;
                        memory::warn_of_copy(py, &bytes, pool.provider().id())?;
                        let allocation = Allocation::new(pool, bytes.len(), false);
                        Sending::Copy(message.clone_ref(py), allocation)
                    }
                };
            }
            Sending::Copy(message, allocation) => {
                let context = context.as_deref_mut();
                let Some(mut buffer) = allocation.poll(context)? else {
                    return Ok(None);
                };
                let bytes = Bytes::of(message.bind(py))?;
                if bytes.len() != buffer.len() {
                    return Err(errors::InvalidArgument::new_err(
                        "the message changed its length while it waited for memory",
                    ));
                }
                bytes.copy_to(&mut buffer);
                sending = Sending::Room(Content::Buffer(buffer.freeze()));
            }
            Sending::Room(content) => {
                let context = context.as_deref_mut();
                let polled = awaited.poll(context, |end, context| {
                    poll_send(end, content, tag, context)
                });
                return match polled? {
                    Poll::Ready(sent) => match sent.map_err(IntoPyErr::into_py)? {
                        Some(sent) => {
                            let sent = Py::new(py, Sent::from(sent))?;
                            Ok(Some(sent.into_any()))
                        }
                        None => Ok(Some(py.None())),
                    },
                    Poll::Pending => Ok(None),
                };
            }
        }
    });
    Pending::coroutine(py, operation)
}

fn poll_send(
    end: &mut Output,
    content: &Content,
    tag: Option<Tag>,
    mut context: Option<&mut Context<'_>>,
) -> Poll<Result<Option<channel::Sent>, SendErrorKind>> {
    loop {
        if let Some(context) = &mut context {
            match end.poll_room(context, content) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        match end.send(content.clone(), options(tag, Duration::ZERO)) {
            Err(error) if errors::is_full(&error) => {
                if context.is_none() {
                    return Poll::Pending;
                }
                // A receiver has joined in between.
            }
            sent => return Poll::Ready(sent),
        }
    }
}

/// Replaces the time of the last part of a wait by that of the whole wait.
fn whole_wait(error: SendError, start: Instant) -> SendErrorKind {
    match error.kind() {
        SendErrorKind::NoReceiver { receivers, .. } => SendErrorKind::NoReceiver {
            receivers,
            timeout: errors::waited(start),
        },
        kind => kind,
    }
}

/// Returns `true` if the name may become free.
fn is_taken(error: &ChannelError) -> bool {
    matches!(error, ChannelError::NameTaken { .. })
}

/// Creates a sender or a publisher, waiting until no other one has the name.
fn create<T: Send>(
    py: Python<'_>,
    pool: &Closable<Pool>,
    timeout: Option<f64>,
    create: impl Fn(&shm_pool::Provider, Duration) -> Result<T, ChannelError> + Sync,
) -> PyResult<T> {
    let deadline = Deadline::after(timeout)?;
    let pool = pool.get()?;
    wait::retry(py, deadline, is_taken, |time| create(pool.provider(), time))
}

fn sender_builder(options: Option<&Bound<'_, PyDict>>) -> PyResult<SenderBuilder> {
    let mut builder = channel::Sender::builder();
    for option in options::keywords(options)? {
        builder = match option.name() {
            "capacity" => set(builder, option.read()?, SenderBuilder::capacity),
            "max_borrowed" => set(builder, option.read()?, SenderBuilder::max_borrowed),
            "mode" => set(builder, option.read()?, SenderBuilder::mode),
            "spin" => set(builder, option.seconds()?, SenderBuilder::spin),
            "message_type" => set(builder, option.message_type()?, SenderBuilder::message_type),
            _ => return Err(option.unexpected("Sender")),
        };
    }
    Ok(builder)
}

/// Returns the builder of a publisher, and its `block_limit`.
fn publisher_builder(
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<(PublisherBuilder, Duration)> {
    let mut builder = channel::Publisher::builder();
    let mut block_limit = DEFAULT_BLOCK_LIMIT;
    for option in options::keywords(options)? {
        builder = match option.name() {
            "max_subscribers" => set(builder, option.read()?, PublisherBuilder::max_subscribers),
            "capacity" => set(builder, option.read()?, PublisherBuilder::capacity),
            "max_borrowed" => set(builder, option.read()?, PublisherBuilder::max_borrowed),
            "max_bytes_per_receiver" => set(
                builder,
                option.read()?,
                PublisherBuilder::max_bytes_per_receiver,
            ),
            "on_full" => set(builder, option.choice()?, PublisherBuilder::on_full),
            "allow_blocking" => set(builder, option.read()?, PublisherBuilder::allow_blocking),
            "block_limit" => {
                block_limit = option.seconds()?.unwrap_or(block_limit);
                builder
            }
            "on_stall" => set(builder, option.choice()?, PublisherBuilder::on_stall),
            "joins_in_send" => set(builder, option.read()?, PublisherBuilder::joins_in_send),
            "history" => set(builder, option.read()?, PublisherBuilder::history),
            "mode" => set(builder, option.read()?, PublisherBuilder::mode),
            "spin" => set(builder, option.seconds()?, PublisherBuilder::spin),
            "message_type" => set(
                builder,
                option.message_type()?,
                PublisherBuilder::message_type,
            ),
            _ => return Err(option.unexpected("Publisher")),
        };
    }
    Ok((builder.block_limit(block_limit), block_limit))
}

/// What a sender and a publisher have in common. Each uses the memory of its provider until it is closed itself,
/// also when the provider was closed before.
#[pyclass(frozen, subclass, name = "_SendingEnd", module = "shm_pool._native")]
pub(crate) struct SendingEnd {
    end: Arc<End<Output>>,
    /// Its own use of the provider's memory.
    pool: Arc<Closable<Pool>>,
    /// How long a send without a timeout waits for the memory of a copy.
    memory_limit: Duration,
}

impl SendingEnd {
    fn new(
        output: Output,
        interrupter: channel::Interrupter,
        object: &'static str,
        name: &str,
        pool: Arc<Closable<Pool>>,
        memory_limit: Duration,
    ) -> Self {
        Self {
            end: End::new(output, interrupter, object, name),
            pool,
            memory_limit,
        }
    }

    fn wait_for_receivers(
        &self,
        py: Python<'_>,
        count: usize,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let start = Instant::now();
        let deadline = Deadline::after(timeout)?;
        self.end.until(py, deadline, errors::is_full, |end, time| {
            end.wait_for_receivers(count, time)
                .map_err(|error| whole_wait(error, start))
        })
    }

    fn wait_for_receivers_async<'py>(
        &self,
        py: Python<'py>,
        count: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.end.start_wait(
            py,
            move |end| end.wait_for_receivers(count, Duration::ZERO),
            move |end| Box::pin(end.wait_for_receivers_async(count)),
        )
    }

    fn with_publisher<R>(&self, f: impl FnOnce(&mut channel::Publisher) -> R) -> PyResult<R> {
        self.end.with(|end| match end {
            Output::Publisher(publisher) => f(publisher),
            Output::Sender(_) => unreachable!("the class Publisher has no sender"),
        })
    }
}

#[pymethods]
impl SendingEnd {
    /// Allocates a buffer of the provider, as :meth:`Provider.alloc`, also when the provider was closed.
    #[pyo3(
        signature = (len, *, zeroed=false, timeout=Some(0.0)),
        text_signature = "($self, len, *, zeroed=False, timeout=0.0)"
    )]
    fn alloc(
        &self,
        py: Python<'_>,
        len: usize,
        zeroed: bool,
        timeout: Option<f64>,
    ) -> PyResult<Buffer> {
        self.pool.get()?.alloc(py, len, zeroed, timeout)
    }

    /// Waits until the receivers have received everything. What was sent arrives even without this call.
    ///
    /// Raises :class:`Timeout`, :class:`Disconnected`.
    #[pyo3(signature = (*, timeout=None))]
    fn wait_until_received(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let deadline = Deadline::after(timeout)?;
        self.end.until(py, deadline, errors::is_full, |end, time| {
            end.wait_until_received(time).map_err(|error| error.kind())
        })
    }

    /// Waits as :meth:`wait_until_received`, without blocking the event loop of asyncio. Meanwhile, other calls
    /// raise :class:`InUse`.
    fn wait_until_received_async<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.end.start_wait(
            py,
            |end| end.wait_until_received(Duration::ZERO),
            |end| Box::pin(end.wait_until_received_async()),
        )
    }

    /// The channel's name.
    #[getter]
    fn name(&self) -> &str {
        self.end.name()
    }

    /// How many messages may wait to be received.
    #[getter]
    fn capacity(&self) -> PyResult<usize> {
        self.end.with(|end| each!(end, end => end.capacity()))
    }

    /// How many buffers a receiver may hold, received or not.
    #[getter]
    fn max_borrowed(&self) -> PyResult<usize> {
        self.end.with(|end| each!(end, end => end.max_borrowed()))
    }

    /// Ends the current wait, or the next one, with :class:`Interrupted`. For other threads.
    fn interrupt(&self) {
        self.end.interrupt();
    }

    /// Closes this end. A call that waits in another thread, or a task that awaits, raises :class:`Closed`. One that
    /// waits for memory continues, unless the provider and all other ends of it are closed: then it raises
    /// :class:`Interrupted`.
    fn close(&self, py: Python<'_>) {
        self.end.close(py);
        self.pool.close(py);
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().end.check()?;
        Ok(slf)
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyAny>) {
        self.end.close(py);
        self.pool.close(py);
    }
}

/// Sends messages to one :class:`Receiver`, in this or another process, and loses none of them.
///
/// Creates the channel ``name``: any text without a NUL, such as ``/front/image_raw``; if another one has it,
/// waits at most ``timeout`` seconds, by default not at all. It holds ``capacity`` messages that were not
/// received (default 256), and the receiver may hold ``max_borrowed`` buffers (2048). ``mode`` is the permission
/// bits of the channel (default 0o600). A wait for room spins for ``spin`` seconds before it sleeps, by
/// default for up to 20 µs, where that pays. ``message_type`` declares the type of the messages.
///
/// >>> import shm_pool
/// >>> provider = shm_pool.Provider()
/// >>> sender = shm_pool.Sender(provider, "docs-sender")
/// >>> receiver = shm_pool.Receiver("docs-sender")
/// >>> sender.send(b"any object with the buffer protocol is copied once")
/// >>> buffer = sender.alloc(1 << 20)
/// >>> sender.send(buffer)  # a buffer is not
/// >>> [len(receiver.recv()) for _ in range(2)]
/// [50, 1048576]
///
/// Raises :class:`NameTaken`, :class:`InvalidArgument`, :class:`SystemCallFailed`.
#[pyclass(frozen, extends = SendingEnd, module = "shm_pool")]
pub(crate) struct Sender;

impl Sender {
    fn of(
        sender: channel::Sender,
        name: &str,
        pool: Arc<Closable<Pool>>,
    ) -> PyClassInitializer<Self> {
        let interrupter = sender.interrupter();
        let output = Output::Sender(sender);
        let end = SendingEnd::new(output, interrupter, "sender", name, pool, Duration::MAX);
        PyClassInitializer::from(end).add_subclass(Self)
    }
}

#[pymethods]
impl Sender {
    #[new]
    #[pyo3(
        signature = (provider, name, *, timeout=Some(0.0), **options),
        text_signature = "(provider, name, *, timeout=0.0, capacity=None, max_borrowed=None, \
                          mode=None, spin=None, message_type=None)"
    )]
    fn new(
        py: Python<'_>,
        provider: Py<Provider>,
        name: &str,
        timeout: Option<f64>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let builder = sender_builder(options)?;
        let pool = provider.get().get()?.share("sender")?;
        let sender = create(py, &pool, timeout, |provider, time| {
            builder.clone().create_timeout(provider, name, time)
        })?;
        Ok(Self::of(sender, name, pool))
    }

    /// Creates a sender, waiting until no other one has the name, without blocking the event loop of asyncio. When
    /// it is cancelled, nothing was created. ``asyncio.wait_for`` limits the wait.
    ///
    /// Raises as :class:`Sender`, except :class:`NameTaken`.
    #[staticmethod]
    #[pyo3(
        signature = (provider, name, **options),
        text_signature = "(provider, name, *, capacity=None, max_borrowed=None, mode=None, \
                          spin=None, message_type=None)"
    )]
    fn create_async<'py>(
        py: Python<'py>,
        provider: Py<Provider>,
        name: String,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let builder = sender_builder(options)?;
        let pool = provider.get().get()?.share("sender")?;
        let provider = pool.get()?.provider().clone();
        let channel = name.clone();
        let creating = async move { builder.create_async(&provider, &channel).await };
        Pending::of_future(py, creating, move |py, sender| {
            let sender = Py::new(py, Self::of(sender, &name, pool.clone()))?;
            Ok(sender.into_any())
        })
    }

    /// Sends a :class:`Buffer`, or a copy of any object's bytes: up to ``MAX_INLINE`` of them
    /// travel in the channel itself, more in a buffer. Waits at most ``timeout`` seconds for room, and for the memory
    /// of a copy, by default without limit. ``tag`` is 16 bytes of the user's own, such as a time stamp and a
    /// number, which the receiver finds in :attr:`Message.tag`.
    ///
    /// Warns with a :class:`CopyWarning` if what it copies is an array in a buffer of the provider.
    ///
    /// Raises :class:`Disconnected` if the receiver has closed or died, :class:`Timeout`,
    /// :class:`Interrupted`, BufferError as :meth:`Buffer.freeze`, :class:`InvalidArgument` for a
    /// buffer of another provider. If there is no memory for a copy, it raises :class:`Timeout` after a wait, and
    /// :class:`PoolExhausted` with ``timeout=0``; otherwise as :meth:`Provider.alloc`.
    #[pyo3(signature = (message, *, tag=None, timeout=None))]
    fn send(
        slf: &Bound<'_, Self>,
        message: &Bound<'_, PyAny>,
        tag: Option<Cow<'_, [u8]>>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        send(slf.py(), slf.as_super().get(), message, tag, timeout)?;
        Ok(())
    }

    /// Sends as :meth:`send`, and waits for room, and memory for a copy, without blocking the event loop of
    /// asyncio. When it is cancelled, the message is not sent. One task at a time; another one gets
    /// :class:`InUse`.
    ///
    /// It waits for memory without limit. Raises as :meth:`send`, except :class:`Timeout` and
    /// :class:`PoolExhausted`.
    #[pyo3(signature = (message, *, tag=None))]
    fn send_async<'py>(
        slf: &Bound<'py, Self>,
        message: Py<PyAny>,
        tag: Option<Cow<'_, [u8]>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        send_async(slf.py(), slf.as_super().get(), message, tag)
    }

    /// Waits until a receiver has opened the channel. Raises :class:`Timeout`, :class:`Disconnected`. If a receiver
    /// of another version of this package was refused, the text names both versions.
    #[pyo3(signature = (*, timeout=None))]
    fn wait_for_receiver(slf: &Bound<'_, Self>, timeout: Option<f64>) -> PyResult<()> {
        slf.as_super()
            .get()
            .wait_for_receivers(slf.py(), 1, timeout)
    }

    /// Waits as :meth:`wait_for_receiver`, without blocking the event loop of asyncio. Meanwhile, other calls
    /// raise :class:`InUse`.
    fn wait_for_receiver_async<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.as_super().get().wait_for_receivers_async(slf.py(), 1)
    }

    fn __repr__(slf: &Bound<'_, Self>) -> String {
        slf.as_super().get().end.text("Sender")
    }
}

/// Sends messages to up to ``max_subscribers`` (default 16, at most 64) :class:`Subscriber` objects, which
/// may join, leave and die at any time.
///
/// ``on_full`` is what happens when a receiver is behind by ``capacity`` messages (default 256), for those that
/// do not choose: :attr:`OnFull.DROP_OLDEST` by default. ``allow_blocking=False`` refuses those
/// that choose :attr:`OnFull.BLOCK`. A message waits for those at most ``block_limit`` seconds (default 5):
/// then a receiver without room is stalled, and ``on_stall`` says what happens to it, by default
/// :attr:`OnStall.SKIP`. With ``joins_in_send=False``, a send connects no receiver that has joined, and disconnects
/// none that has closed or died, which takes some 20 system calls for each: :meth:`serve_joins` and the waits for
/// receivers do. A new receiver first gets the last ``history`` messages (default 0). A receiver may hold
/// ``max_borrowed`` buffers (default 2048), of ``max_bytes_per_receiver`` (default: a quarter of the provider's
/// ``max_bytes``). ``timeout``, ``mode``, ``spin`` and ``message_type`` are as for a :class:`Sender`.
///
/// >>> import shm_pool
/// >>> provider = shm_pool.Provider()
/// >>> publisher = shm_pool.Publisher(provider, "docs-publisher")
/// >>> logger = shm_pool.Subscriber("docs-publisher", on_full="block")
/// >>> display = shm_pool.Subscriber("docs-publisher", capacity=1)
/// >>> for number in range(3):
/// ...     buffer = publisher.alloc(1000)
/// ...     buffer[0] = number
/// ...     sent = publisher.send(buffer)
/// >>> sent
/// Sent(receivers=2, withdrawn=1, full=0, too_many_borrowed=0, stalled=0)
/// >>> newest = display.recv()
/// >>> newest[0], newest.missed
/// (2, 2)
/// >>> logger.recv()[0]
/// 0
///
/// Raises :class:`NameTaken`, :class:`InvalidArgument`, :class:`SystemCallFailed`.
#[pyclass(frozen, extends = SendingEnd, module = "shm_pool")]
pub(crate) struct Publisher;

/// A receiver of a publisher, or its number.
#[derive(FromPyObject)]
enum Which<'py> {
    #[pyo3(transparent, annotation = "ReceiverState")]
    State(Bound<'py, ReceiverState>),
    #[pyo3(transparent, annotation = "int")]
    Id(u64),
}

impl Publisher {
    fn of(
        publisher: channel::Publisher,
        name: &str,
        pool: Arc<Closable<Pool>>,
        block_limit: Duration,
    ) -> PyClassInitializer<Self> {
        let interrupter = publisher.interrupter();
        let output = Output::Publisher(publisher);
        let end = SendingEnd::new(output, interrupter, "publisher", name, pool, block_limit);
        PyClassInitializer::from(end).add_subclass(Self)
    }
}

#[pymethods]
impl Publisher {
    #[new]
    #[pyo3(
        signature = (provider, name, *, timeout=Some(0.0), **options),
        text_signature = "(provider, name, *, timeout=0.0, max_subscribers=None, capacity=None, \
                          max_borrowed=None, max_bytes_per_receiver=None, on_full=None, \
                          allow_blocking=None, block_limit=None, on_stall=None, \
                          joins_in_send=None, history=None, mode=None, spin=None, \
                          message_type=None)"
    )]
    fn new(
        py: Python<'_>,
        provider: Py<Provider>,
        name: &str,
        timeout: Option<f64>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let (builder, block_limit) = publisher_builder(options)?;
        let pool = provider.get().get()?.share("publisher")?;
        let publisher = create(py, &pool, timeout, |provider, time| {
            builder.clone().create_timeout(provider, name, time)
        })?;
        Ok(Self::of(publisher, name, pool, block_limit))
    }

    /// Creates a publisher, waiting until no other one has the name, without blocking the event loop of asyncio.
    /// When it is cancelled, nothing was created. ``asyncio.wait_for`` limits the wait.
    ///
    /// >>> import asyncio, shm_pool
    /// >>> async def main():
    /// ...     with shm_pool.Provider() as provider:
    /// ...         publisher = await shm_pool.Publisher.create_async(provider, "docs-create")
    /// ...         subscriber = await shm_pool.Subscriber.open_async("docs-create")
    /// ...         publisher.send(b"a sample")
    /// ...         return bytes(await subscriber.recv_async())
    /// >>> asyncio.run(main())
    /// b'a sample'
    ///
    /// Raises as :class:`Publisher`, except :class:`NameTaken`.
    #[staticmethod]
    #[pyo3(
        signature = (provider, name, **options),
        text_signature = "(provider, name, *, max_subscribers=None, capacity=None, \
                          max_borrowed=None, max_bytes_per_receiver=None, on_full=None, \
                          allow_blocking=None, block_limit=None, on_stall=None, \
                          joins_in_send=None, history=None, mode=None, spin=None, \
                          message_type=None)"
    )]
    fn create_async<'py>(
        py: Python<'py>,
        provider: Py<Provider>,
        name: String,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (builder, block_limit) = publisher_builder(options)?;
        let pool = provider.get().get()?.share("publisher")?;
        let provider = pool.get()?.provider().clone();
        let channel = name.clone();
        let creating = async move { builder.create_async(&provider, &channel).await };
        Pending::of_future(py, creating, move |py, publisher| {
            let publisher = Py::new(py, Self::of(publisher, &name, pool.clone(), block_limit))?;
            Ok(publisher.into_any())
        })
    }

    /// Sends a :class:`Buffer` to all receivers without a copy, or one copy of any object's bytes.
    /// Returns to how many. Waits at most ``timeout`` seconds, by default for the ``block_limit``, for
    /// receivers with :attr:`OnFull.BLOCK`; if one makes no room, no receiver gets the message. A
    /// receiver that has made no room for the ``block_limit`` delays no further message until it does.
    /// ``tag`` is as for :meth:`Sender.send`.
    ///
    /// A copy first waits for memory, within the same ``timeout``, by default also at most for the ``block_limit``.
    /// If there is none, it raises :class:`Timeout` after the wait, and :class:`PoolExhausted` if it may not wait,
    /// with ``timeout=0`` or a ``block_limit`` of 0.
    ///
    /// Warns with a :class:`CopyWarning` if what it copies is an array in a buffer of the provider.
    ///
    /// Raises as :meth:`Sender.send`, but not :class:`Disconnected`.
    #[pyo3(signature = (message, *, tag=None, timeout=None))]
    fn send(
        slf: &Bound<'_, Self>,
        message: &Bound<'_, PyAny>,
        tag: Option<Cow<'_, [u8]>>,
        timeout: Option<f64>,
    ) -> PyResult<Option<Sent>> {
        send(slf.py(), slf.as_super().get(), message, tag, timeout)
    }

    /// Sends as :meth:`send`, and waits for room, and memory for a copy, without blocking the event loop of
    /// asyncio. When it is cancelled, the message is not sent. One task at a time; another one gets
    /// :class:`InUse`.
    ///
    /// It waits for memory without limit. Raises as :meth:`send`, except :class:`Timeout` and
    /// :class:`PoolExhausted`.
    #[pyo3(signature = (message, *, tag=None))]
    fn send_async<'py>(
        slf: &Bound<'py, Self>,
        message: Py<PyAny>,
        tag: Option<Cow<'_, [u8]>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        send_async(slf.py(), slf.as_super().get(), message, tag)
    }

    /// Waits until this many receivers have joined. Raises :class:`Timeout`. If a receiver of another version of
    /// this package was refused, the text names both versions.
    #[pyo3(signature = (receivers=1, *, timeout=None))]
    fn wait_for_receivers(
        slf: &Bound<'_, Self>,
        receivers: usize,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let end = slf.as_super().get();
        end.wait_for_receivers(slf.py(), receivers, timeout)
    }

    /// Waits as :meth:`wait_for_receivers`, without blocking the event loop of asyncio. Meanwhile, other calls
    /// raise :class:`InUse`.
    #[pyo3(signature = (receivers=1))]
    fn wait_for_receivers_async<'py>(
        slf: &Bound<'py, Self>,
        receivers: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let end = slf.as_super().get();
        end.wait_for_receivers_async(slf.py(), receivers)
    }

    /// Connects one receiver that has joined, or disconnects those that have closed or died. Returns whether
    /// it did: then call it again. A send does that, too, unless ``joins_in_send=False``:
    ///
    /// >>> import shm_pool
    /// >>> provider = shm_pool.Provider()
    /// >>> publisher = shm_pool.Publisher(provider, "docs-joins", joins_in_send=False)
    /// >>> subscriber = shm_pool.Subscriber("docs-joins")
    /// >>> publisher.send(b"").receivers
    /// 0
    /// >>> while publisher.serve_joins():
    /// ...     pass
    /// >>> publisher.send(b"").receivers
    /// 1
    fn serve_joins(slf: &Bound<'_, Self>) -> PyResult<bool> {
        slf.as_super()
            .get()
            .with_publisher(channel::Publisher::serve_joins)
    }

    /// Returns the state of each connected receiver. One that has joined is connected by the next wait for receivers
    /// or :meth:`serve_joins`, or by the next send, unless ``joins_in_send=False``.
    fn receivers(slf: &Bound<'_, Self>) -> PyResult<Vec<ReceiverState>> {
        let end = slf.as_super().get();
        end.with_publisher(|publisher| publisher.receivers().map(ReceiverState::from).collect())
    }

    /// Disconnects a receiver, given by its state or its ``id``. Returns ``False`` if it is not connected.
    ///
    /// The messages that it has not received are withdrawn, and its next receive raises :class:`Evicted`. It
    /// may read on what it has received.
    ///
    /// >>> import shm_pool
    /// >>> provider = shm_pool.Provider()
    /// >>> publisher = shm_pool.Publisher(provider, "docs-disconnect")
    /// >>> subscriber = shm_pool.Subscriber("docs-disconnect")
    /// >>> publisher.wait_for_receivers()
    /// >>> [publisher.disconnect(receiver) for receiver in publisher.receivers()]
    /// [True]
    fn disconnect(slf: &Bound<'_, Self>, receiver: Which<'_>) -> PyResult<bool> {
        let id = match receiver {
            Which::State(state) => state.get().id,
            Which::Id(id) => id,
        };
        let end = slf.as_super().get();
        end.with_publisher(|publisher| publisher.disconnect(ReceiverId::from(id)))
    }

    fn __repr__(slf: &Bound<'_, Self>) -> String {
        slf.as_super().get().end.text("Publisher")
    }
}

/// What became of a message that a :class:`Publisher` has sent: the number of ``receivers`` that it
/// was sent to, of those that lost an older message so that there is room for the next one
/// (``withdrawn``), and of those that were ``skipped``, in all and by reason: behind by their
/// capacity (``full``), holding as many buffers or bytes as they may (``too_many_borrowed``), or
/// :attr:`OnFull.BLOCK` without room for too long (``stalled``).
#[pyclass(frozen, get_all, eq, module = "shm_pool")]
#[derive(PartialEq, Eq)]
pub(crate) struct Sent {
    receivers: usize,
    withdrawn: u64,
    full: u64,
    too_many_borrowed: u64,
    stalled: u64,
    skipped: usize,
}

impl From<channel::Sent> for Sent {
    fn from(sent: channel::Sent) -> Self {
        Self {
            receivers: sent.receivers,
            withdrawn: sent.missed.withdrawn,
            full: sent.missed.full,
            too_many_borrowed: sent.missed.too_many_borrowed,
            stalled: sent.missed.stalled,
            skipped: sent.skipped(),
        }
    }
}

#[pymethods]
impl Sent {
    fn __repr__(&self) -> String {
        format!(
            "Sent(receivers={}, withdrawn={}, full={}, too_many_borrowed={}, stalled={})",
            self.receivers, self.withdrawn, self.full, self.too_many_borrowed, self.stalled
        )
    }
}

/// A snapshot of a receiver of a :class:`Publisher`: the id of its ``process``, as that states it, in its own PID
/// namespace; how many messages wait for it, how many buffers it holds (``borrowed``), how many messages it has
/// ``missed``, and whether it ``is_stalled``: messages are skipped until it makes room.
#[pyclass(frozen, get_all, module = "shm_pool")]
pub(crate) struct ReceiverState {
    id: u64,
    process: Option<u32>,
    on_full: Choice<OnFull>,
    capacity: usize,
    waiting: usize,
    borrowed: usize,
    missed: u64,
    is_stalled: bool,
}

impl From<channel::ReceiverState> for ReceiverState {
    fn from(state: channel::ReceiverState) -> Self {
        Self {
            id: state.id.into(),
            process: state.process,
            on_full: Choice(state.on_full),
            capacity: state.capacity,
            waiting: state.waiting,
            borrowed: state.borrowed,
            missed: state.missed.total(),
            is_stalled: state.is_stalled,
        }
    }
}

#[pymethods]
impl ReceiverState {
    fn __repr__(&self) -> String {
        let is_stalled = if self.is_stalled { "True" } else { "False" };
        let process = match self.process {
            Some(id) => id.to_string(),
            None => "None".to_owned(),
        };
        format!(
            "ReceiverState(id={}, process={process}, on_full={:?}, capacity={}, waiting={}, borrowed={}, missed={}, \
             is_stalled={is_stalled})",
            self.id,
            self.on_full.text(),
            self.capacity,
            self.waiting,
            self.borrowed,
            self.missed
        )
    }
}
