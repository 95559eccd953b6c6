//! `Sender` and `Publisher`.

use crate::end::{Awaited, End};
use crate::errors::{self, IntoPyErr};
use crate::memory::{self, Buffer, Bytes};
use crate::options::{self, set, Choice, MessageType};
use crate::pending::{Operation, Pending};
use crate::provider::{Allocation, Provider};
use crate::wait::{self, Deadline};
use pyo3::prelude::*;
use shm_pool::channel::{
    self, ChannelError, OnFull, OnStall, ReceiverId, SendError, SendErrorKind, SendOptions,
    MAX_INLINE,
};
use shm_pool::ShmBytes;
use std::borrow::Cow;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

type Tag = [u8; 16];

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

/// What is sent.
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
        let room = match tag {
            // It takes the place of as many bytes.
            Some(tag) => MAX_INLINE - tag.len(),
            None => MAX_INLINE,
        };
        if bytes.len() > room {
            return Ok(Err(bytes));
        }
        let mut slot = [0; MAX_INLINE];
        bytes.copy_to(&mut slot);
        Ok(Ok(Self::Inline(slot, bytes.len())))
    }
}

/// What a `Sender` and a `Publisher` have in common.
trait Output: Send + 'static {
    type Report: Send + 'static;

    fn send_content(
        &mut self,
        content: Content,
        options: SendOptions,
    ) -> Result<Self::Report, SendErrorKind>;

    fn poll_room(
        &mut self,
        context: &mut Context<'_>,
        content: &Content,
    ) -> Poll<Result<(), SendErrorKind>>;
}

macro_rules! output {
    ($end:ty, $report:ty) => {
        impl Output for $end {
            type Report = $report;

            fn send_content(
                &mut self,
                content: Content,
                options: SendOptions,
            ) -> Result<$report, SendErrorKind> {
                match content {
                    Content::Buffer(buffer) => self
                        .send_with(buffer, options)
                        .map_err(|error| error.kind()),
                    Content::Inline(slot, len) => self
                        .send_copy_with(&slot[..len], options)
                        .map_err(|error| error.kind()),
                }
            }

            fn poll_room(
                &mut self,
                context: &mut Context<'_>,
                content: &Content,
            ) -> Poll<Result<(), SendErrorKind>> {
                let polled = match content {
                    Content::Buffer(buffer) => self.poll_ready(context, buffer),
                    Content::Inline(_, len) => self.poll_ready_copy(context, *len),
                };
                polled.map_err(|error| error.kind())
            }
        }
    };
}

output!(channel::Sender, ());
output!(channel::Publisher, channel::Sent);

/// Returns the options of one attempt, which waits at most so long.
fn options(tag: Option<Tag>, timeout: Duration) -> SendOptions {
    let options = SendOptions::new().timeout(timeout);
    match tag {
        Some(tag) => options.tag(tag),
        None => options,
    }
}

/// Sends a `Buffer`, or a copy of any other object's bytes.
fn send<T: Output>(
    py: Python<'_>,
    end: &End<T>,
    provider: &Py<Provider>,
    message: &Bound<'_, PyAny>,
    tag: Option<Tag>,
    timeout: Option<f64>,
) -> PyResult<T::Report> {
    let deadline = Deadline::after(timeout)?;
    end.check()?;
    let content = match Content::of(message, tag)? {
        Ok(content) => content,
        Err(bytes) => {
            let provider = provider.get();
            memory::warn_of_copy(py, &bytes, provider.get()?.id())?;
            Content::Buffer(provider.copy(py, &bytes, deadline)?)
        }
    };
    end.until(py, deadline, errors::is_full, |end, time| {
        end.send_content(content.clone(), options(tag, time))
    })
}

/// The steps of an asynchronous send.
enum Sending {
    New(Py<PyAny>),
    /// A copy is to be made, in memory that is not allocated yet.
    Copy(Py<PyAny>, Allocation),
    Room(Content),
}

/// Returns a coroutine that sends a `Buffer`, or a copy of any other object's bytes.
fn send_async<'py, T: Output>(
    py: Python<'py>,
    end: &Arc<End<T>>,
    provider: &Py<Provider>,
    message: Py<PyAny>,
    tag: Option<Tag>,
    convert: fn(Python<'_>, T::Report) -> PyResult<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut awaited = Awaited::new(end);
    let end = end.clone();
    let provider = provider.clone_ref(py);
    let mut sending = Sending::New(message);
    let operation: Operation = Box::new(move |py, mut context| loop {
        end.check()?;
        match &mut sending {
            Sending::New(message) => {
                sending = match Content::of(message.bind(py), tag)? {
                    Ok(content) => Sending::Room(content),
                    Err(bytes) => {
                        let provider = provider.get().get()?;
                        memory::warn_of_copy(py, &bytes, provider.id())?;
                        let allocation = Allocation::new(provider, bytes.len(), false);
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
                    Poll::Ready(sent) => {
                        let sent = sent.map_err(IntoPyErr::into_py)?;
                        convert(py, sent).map(Some)
                    }
                    Poll::Pending => Ok(None),
                };
            }
        }
    });
    Pending::coroutine(py, operation)
}

fn poll_send<T: Output>(
    end: &mut T,
    content: &Content,
    tag: Option<Tag>,
    mut context: Option<&mut Context<'_>>,
) -> Poll<Result<T::Report, SendErrorKind>> {
    loop {
        if let Some(context) = &mut context {
            match end.poll_room(context, content) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        match end.send_content(content.clone(), options(tag, Duration::ZERO)) {
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

/// Creates a channel, waiting for its name until the deadline.
fn create<T: Send>(
    py: Python<'_>,
    provider: &Py<Provider>,
    timeout: Option<f64>,
    attempt: impl Fn(&shm_pool::Provider, Duration) -> Result<T, ChannelError> + Sync,
) -> PyResult<T> {
    let deadline = Deadline::after(timeout)?;
    let provider = provider.get().get()?;
    if deadline.is_now() {
        return attempt(&provider, Duration::ZERO).map_err(IntoPyErr::into_py);
    }
    wait::until(py, deadline, |time, is_last| {
        match crate::exit::detach(py, || attempt(&provider, time)) {
            Err(ChannelError::NameTaken { .. }) if !is_last => Ok(None),
            created => created.map(Some).map_err(IntoPyErr::into_py),
        }
    })
}

fn none(py: Python<'_>, (): ()) -> PyResult<Py<PyAny>> {
    Ok(py.None())
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
#[pyclass(frozen, module = "shm_pool")]
pub(crate) struct Sender {
    end: Arc<End<channel::Sender>>,
    provider: Py<Provider>,
}

#[pymethods]
impl Sender {
    #[new]
    #[pyo3(
        signature = (provider, name, *, timeout=Some(0.0), capacity=None, max_borrowed=None, mode=None, spin=None, message_type=None),
        text_signature = "(provider, name, *, timeout=0.0, capacity=None, max_borrowed=None, mode=None, spin=None, message_type=None)"
    )]
    #[allow(clippy::too_many_arguments)] // They are the keywords of a Python class.
    fn new(
        py: Python<'_>,
        provider: Py<Provider>,
        name: &str,
        timeout: Option<f64>,
        capacity: Option<usize>,
        max_borrowed: Option<usize>,
        mode: Option<u32>,
        spin: Option<f64>,
        message_type: Option<&MessageType>,
    ) -> PyResult<Self> {
        let spin = wait::optional_duration("spin", spin)?;
        let message_type = options::message_type(message_type)?;
        let mut builder = channel::Sender::builder();
        set!(builder, capacity, max_borrowed, mode, spin, message_type);
        let sender = create(py, &provider, timeout, |provider, time| {
            builder.clone().create_timeout(provider, name, time)
        })?;
        let interrupter = sender.interrupter();
        Ok(Self {
            end: End::new(sender, interrupter, "sender", name),
            provider,
        })
    }

    /// Allocates a buffer of the provider, as :meth:`Provider.alloc`.
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
        self.provider.get().alloc(py, len, zeroed, timeout)
    }

    /// Sends a :class:`Buffer`, or a copy of any object's bytes: up to ``MAX_INLINE`` of them
    /// travel in the channel itself, more in a buffer. Waits at most ``timeout`` seconds for room,
    /// by default without limit. ``tag`` is 16 bytes of the user's own, such as a time stamp and a number, which
    /// the receiver finds in :attr:`Message.tag`.
    ///
    /// Warns with a :class:`CopyWarning` if what it copies is an array in a buffer of the provider.
    ///
    /// Raises :class:`Disconnected` if the receiver has closed or died, :class:`Timeout`,
    /// :class:`Interrupted`, BufferError as :meth:`Buffer.freeze`, :class:`InvalidArgument` for a
    /// buffer of another provider; for a copy, as :meth:`Provider.alloc`.
    #[pyo3(signature = (message, *, tag=None, timeout=None))]
    fn send(
        &self,
        py: Python<'_>,
        message: &Bound<'_, PyAny>,
        tag: Option<Cow<'_, [u8]>>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        send(
            py,
            &self.end,
            &self.provider,
            message,
            tag_of(tag)?,
            timeout,
        )
    }

    /// Sends as :meth:`send`, and waits for room, and memory for a copy, without blocking the event loop of
    /// asyncio. When it is cancelled, the message is not sent. One task at a time; another one gets
    /// :class:`InUse`.
    ///
    /// Raises as :meth:`send`, except :class:`Timeout` and :class:`PoolExhausted`.
    #[pyo3(signature = (message, *, tag=None))]
    fn send_async<'py>(
        &self,
        py: Python<'py>,
        message: Py<PyAny>,
        tag: Option<Cow<'_, [u8]>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        send_async(py, &self.end, &self.provider, message, tag_of(tag)?, none)
    }

    /// Waits until a receiver has opened the channel. Raises :class:`Timeout`,
    /// :class:`Disconnected`.
    #[pyo3(signature = (*, timeout=None))]
    fn wait_for_receiver(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let start = Instant::now();
        let deadline = Deadline::after(timeout)?;
        self.end.until(
            py,
            deadline,
            errors::is_full,
            |end: &mut channel::Sender, time| {
                end.wait_for_receiver(time)
                    .map_err(|error| whole_wait(error, start))
            },
        )
    }

    /// Waits until the receiver has received everything and asked for more. What was sent arrives even without
    /// this call. Raises :class:`Timeout`, :class:`Disconnected`.
    #[pyo3(signature = (*, timeout=None))]
    fn wait_until_received(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let deadline = Deadline::after(timeout)?;
        self.end.until(
            py,
            deadline,
            errors::is_full,
            |end: &mut channel::Sender, time| {
                end.wait_until_received(time).map_err(|error| error.kind())
            },
        )
    }

    /// Waits as :meth:`wait_for_receiver`, without blocking the event loop of asyncio. Meanwhile, other calls
    /// raise :class:`InUse`.
    fn wait_for_receiver_async<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.end.start_wait(
            py,
            |end| end.wait_for_receiver(Duration::ZERO),
            |end| Box::pin(end.wait_for_receiver_async()),
        )
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
        self.end.with(|end| end.capacity())
    }

    /// How many buffers a receiver may hold, received or not.
    #[getter]
    fn max_borrowed(&self) -> PyResult<usize> {
        self.end.with(|end| end.max_borrowed())
    }

    /// Ends the current wait, or the next one, with :class:`Interrupted`. For other threads.
    fn interrupt(&self) {
        self.end.interrupt();
    }

    /// Closes this end. A call that waits in another thread, or a task that awaits, raises :class:`Closed`.
    fn close(&self, py: Python<'_>) {
        self.end.close(py);
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().end.check()?;
        Ok(slf)
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyAny>) {
        self.end.close(py);
    }

    fn __repr__(&self) -> String {
        self.end.text("Sender")
    }
}

/// Sends messages to up to ``max_subscribers`` (default 16, at most 64) :class:`Subscriber` objects, which
/// may join, leave and die at any time.
///
/// ``on_full`` is what happens when a receiver is behind by ``capacity`` messages (default 256), for those that
/// do not choose: :attr:`OnFull.DROP_OLDEST` by default. ``allow_blocking=False`` refuses those
/// that choose :attr:`OnFull.BLOCK`. A message waits for those at most ``block_limit`` seconds (default 5):
/// then a receiver without room is stalled, and ``on_stall`` says what happens to it, by default
/// :attr:`OnStall.SKIP`. A new receiver first gets the last ``history`` messages (default 0). A receiver may hold
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
#[pyclass(frozen, module = "shm_pool")]
pub(crate) struct Publisher {
    end: Arc<End<channel::Publisher>>,
    provider: Py<Provider>,
}

/// A receiver of a publisher, or its number.
#[derive(FromPyObject)]
enum Which<'py> {
    #[pyo3(transparent, annotation = "ReceiverState")]
    State(Bound<'py, ReceiverState>),
    #[pyo3(transparent, annotation = "int")]
    Id(u64),
}

fn sent(py: Python<'_>, sent: channel::Sent) -> PyResult<Py<PyAny>> {
    Ok(Py::new(py, Sent::from(sent))?.into_any())
}

#[pymethods]
impl Publisher {
    #[new]
    #[pyo3(
        signature = (provider, name, *, timeout=Some(0.0), max_subscribers=None, capacity=None, max_borrowed=None, max_bytes_per_receiver=None, on_full=None, allow_blocking=None, block_limit=None, on_stall=None, history=None, mode=None, spin=None, message_type=None),
        text_signature = "(provider, name, *, timeout=0.0, max_subscribers=None, capacity=None, max_borrowed=None, max_bytes_per_receiver=None, on_full=None, allow_blocking=None, block_limit=None, on_stall=None, history=None, mode=None, spin=None, message_type=None)"
    )]
    #[allow(clippy::too_many_arguments)] // They are the keywords of a Python class.
    fn new(
        py: Python<'_>,
        provider: Py<Provider>,
        name: &str,
        timeout: Option<f64>,
        max_subscribers: Option<usize>,
        capacity: Option<usize>,
        max_borrowed: Option<usize>,
        max_bytes_per_receiver: Option<usize>,
        on_full: Option<Choice<OnFull>>,
        allow_blocking: Option<bool>,
        block_limit: Option<f64>,
        on_stall: Option<Choice<OnStall>>,
        history: Option<usize>,
        mode: Option<u32>,
        spin: Option<f64>,
        message_type: Option<&MessageType>,
    ) -> PyResult<Self> {
        let on_full = on_full.map(|choice| choice.0);
        let block_limit = wait::optional_duration("block_limit", block_limit)?;
        let on_stall = on_stall.map(|choice| choice.0);
        let spin = wait::optional_duration("spin", spin)?;
        let message_type = options::message_type(message_type)?;
        let mut builder = channel::Publisher::builder();
        set!(
            builder,
            max_subscribers,
            capacity,
            max_borrowed,
            max_bytes_per_receiver,
            on_full,
            allow_blocking,
            block_limit,
            on_stall,
            history,
            mode,
            spin,
            message_type,
        );
        let publisher = create(py, &provider, timeout, |provider, time| {
            builder.clone().create_timeout(provider, name, time)
        })?;
        let interrupter = publisher.interrupter();
        Ok(Self {
            end: End::new(publisher, interrupter, "publisher", name),
            provider,
        })
    }

    /// Allocates a buffer of the provider, as :meth:`Provider.alloc`.
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
        self.provider.get().alloc(py, len, zeroed, timeout)
    }

    /// Sends a :class:`Buffer` to all receivers without a copy, or one copy of any object's bytes.
    /// Returns to how many. Waits at most ``timeout`` seconds, by default for the ``block_limit``, for
    /// receivers with :attr:`OnFull.BLOCK`; if one makes no room, no receiver gets the message. A
    /// receiver that has made no room for the ``block_limit`` delays no further message until it does.
    /// ``tag`` is as for :meth:`Sender.send`.
    ///
    /// Warns with a :class:`CopyWarning` if what it copies is an array in a buffer of the provider.
    ///
    /// Raises as :meth:`Sender.send`, but not :class:`Disconnected`.
    #[pyo3(signature = (message, *, tag=None, timeout=None))]
    fn send(
        &self,
        py: Python<'_>,
        message: &Bound<'_, PyAny>,
        tag: Option<Cow<'_, [u8]>>,
        timeout: Option<f64>,
    ) -> PyResult<Sent> {
        send(
            py,
            &self.end,
            &self.provider,
            message,
            tag_of(tag)?,
            timeout,
        )
        .map(Sent::from)
    }

    /// Sends as :meth:`send`, and waits for room, and memory for a copy, without blocking the event loop of
    /// asyncio. When it is cancelled, the message is not sent. One task at a time; another one gets
    /// :class:`InUse`.
    ///
    /// Raises as :meth:`send`, except :class:`Timeout` and :class:`PoolExhausted`.
    #[pyo3(signature = (message, *, tag=None))]
    fn send_async<'py>(
        &self,
        py: Python<'py>,
        message: Py<PyAny>,
        tag: Option<Cow<'_, [u8]>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        send_async(py, &self.end, &self.provider, message, tag_of(tag)?, sent)
    }

    /// Waits until this many receivers have joined. Raises :class:`Timeout`.
    #[pyo3(signature = (receivers=1, *, timeout=None))]
    fn wait_for_receivers(
        &self,
        py: Python<'_>,
        receivers: usize,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let start = Instant::now();
        let deadline = Deadline::after(timeout)?;
        self.end.until(py, deadline, errors::is_full, |end, time| {
            end.wait_for_receivers(receivers, time)
                .map_err(|error| whole_wait(error, start))
        })
    }

    /// Waits until everything was received. Then nothing is lost if the provider is closed.
    /// Raises :class:`Timeout`, :class:`Disconnected`.
    #[pyo3(signature = (*, timeout=None))]
    fn wait_until_received(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let deadline = Deadline::after(timeout)?;
        self.end.until(
            py,
            deadline,
            errors::is_full,
            |end: &mut channel::Publisher, time| {
                end.wait_until_received(time).map_err(|error| error.kind())
            },
        )
    }

    /// Waits as :meth:`wait_for_receivers`, without blocking the event loop of asyncio. Meanwhile, other calls
    /// raise :class:`InUse`.
    #[pyo3(signature = (receivers=1))]
    fn wait_for_receivers_async<'py>(
        &self,
        py: Python<'py>,
        receivers: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.end.start_wait(
            py,
            move |end| end.wait_for_receivers(receivers, Duration::ZERO),
            move |end| Box::pin(end.wait_for_receivers_async(receivers)),
        )
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

    /// Connects one receiver that has joined, or disconnects those that have closed or died. Returns whether
    /// it did: then call it again. A send does that, too.
    fn serve_joins(&self) -> PyResult<bool> {
        self.end.with(channel::Publisher::serve_joins)
    }

    /// Returns the state of each connected receiver. One that has joined is connected by the next send, wait for
    /// receivers or :meth:`serve_joins`.
    fn receivers(&self) -> PyResult<Vec<ReceiverState>> {
        self.end
            .with(|end| end.receivers().map(ReceiverState::from).collect())
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
    fn disconnect(&self, receiver: Which<'_>) -> PyResult<bool> {
        let id = match receiver {
            Which::State(state) => state.get().id,
            Which::Id(id) => id,
        };
        self.end.with(|end| end.disconnect(ReceiverId::from(id)))
    }

    /// The channel's name.
    #[getter]
    fn name(&self) -> &str {
        self.end.name()
    }

    /// How many messages may wait to be received.
    #[getter]
    fn capacity(&self) -> PyResult<usize> {
        self.end.with(|end| end.capacity())
    }

    /// How many buffers a receiver may hold, received or not.
    #[getter]
    fn max_borrowed(&self) -> PyResult<usize> {
        self.end.with(|end| end.max_borrowed())
    }

    /// Ends the current wait, or the next one, with :class:`Interrupted`. For other threads.
    fn interrupt(&self) {
        self.end.interrupt();
    }

    /// Closes this end. A call that waits in another thread, or a task that awaits, raises :class:`Closed`.
    fn close(&self, py: Python<'_>) {
        self.end.close(py);
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().end.check()?;
        Ok(slf)
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyAny>) {
        self.end.close(py);
    }

    fn __repr__(&self) -> String {
        self.end.text("Publisher")
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
    withdrawn: usize,
    full: usize,
    too_many_borrowed: usize,
    stalled: usize,
    skipped: usize,
}

impl From<channel::Sent> for Sent {
    fn from(sent: channel::Sent) -> Self {
        let channel::Sent {
            receivers,
            withdrawn,
            full,
            too_many_borrowed,
            stalled,
            ..
        } = sent;
        Self {
            receivers,
            withdrawn,
            full,
            too_many_borrowed,
            stalled,
            skipped: sent.skipped(),
        }
    }
}

#[pymethods]
impl Sent {
    fn __repr__(&self) -> String {
        let Self {
            receivers,
            withdrawn,
            full,
            too_many_borrowed,
            stalled,
            ..
        } = self;
        format!(
            "Sent(receivers={receivers}, withdrawn={withdrawn}, full={full}, too_many_borrowed={too_many_borrowed}, stalled={stalled})"
        )
    }
}

/// A snapshot of a receiver of a :class:`Publisher`: how many messages wait for it, how many
/// buffers it holds (``borrowed``), how many messages it has ``missed``, and whether it
/// ``is_stalled``: messages are skipped until it makes room.
#[pyclass(frozen, get_all, module = "shm_pool")]
pub(crate) struct ReceiverState {
    id: u64,
    on_full: Choice<OnFull>,
    capacity: usize,
    waiting: usize,
    borrowed: usize,
    missed: u64,
    is_stalled: bool,
}

impl From<channel::ReceiverState> for ReceiverState {
    fn from(state: channel::ReceiverState) -> Self {
        let channel::ReceiverState {
            id,
            on_full,
            capacity,
            waiting,
            borrowed,
            missed,
            is_stalled,
            ..
        } = state;
        Self {
            id: id.to_u64(),
            on_full: Choice(on_full),
            capacity,
            waiting,
            borrowed,
            missed: missed.total(),
            is_stalled,
        }
    }
}

#[pymethods]
impl ReceiverState {
    fn __repr__(&self) -> String {
        let Self {
            id,
            on_full,
            capacity,
            waiting,
            borrowed,
            missed,
            is_stalled,
        } = self;
        let on_full = on_full.text();
        let is_stalled = if *is_stalled { "True" } else { "False" };
        format!(
            "ReceiverState(id={id}, on_full={on_full:?}, capacity={capacity}, waiting={waiting}, borrowed={borrowed}, missed={missed}, is_stalled={is_stalled})"
        )
    }
}
