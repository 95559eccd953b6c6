//! `Receiver`, `Subscriber` and `wait_any`.

use crate::end::End;
use crate::errors::{self, IntoPyErr};
use crate::exit::detach;
use crate::memory::Message;
use crate::names::{self, In};
use crate::options::{self, set, Choice, MessageType};
use crate::pending::{Operation, Pending};
use crate::wait::{self, Deadline};
use pyo3::exceptions::{PyBaseException, PyStopIteration};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use shm_pool::channel::{
    self, ChannelError, ChannelEvent, OnFull, ReceiverBuilder, RecvError, Source, SubscriberBuilder,
};
use shm_pool::WakeFd;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// A source of items: messages, events or changes.
pub(crate) trait Incoming<I>: Send + 'static {
    fn try_next(&mut self) -> Result<I, RecvError>;
    fn next_within(&mut self, timeout: Duration) -> Result<I, RecvError>;
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<I, RecvError>>;
}

/// Something that receives, and the descriptor by which an event loop waits for it.
pub(crate) struct Input<S> {
    source: S,
    wake: Option<WakeFd>,
}

impl<S> Input<S> {
    pub(crate) fn new(source: S) -> Self {
        Self { source, wake: None }
    }

    fn receive<I>(&mut self, timeout: Duration) -> Result<I, RecvError>
    where
        S: Incoming<I>,
    {
        let Self { source, wake } = self;
        let Some(wake) = wake else {
            if timeout.is_zero() {
                return source.try_next();
            }
            return source.next_within(timeout);
        };
        if timeout.is_zero() {
            return match wake.poll(|context| source.poll_next(context)) {
                Poll::Ready(received) => received,
                Poll::Pending => Err(RecvError::Empty),
            };
        }
        let received = source.next_within(timeout);
        self.renew_wake();
        received
    }

    /// After a call that has dropped the waker: makes the descriptor readable, so that an event loop
    /// calls again, which registers another one.
    fn renew_wake(&mut self) {
        if let Some(wake) = &mut self.wake {
            let _pending: Poll<()> = wake.poll(|context| {
                context.waker().wake_by_ref();
                Poll::Pending
            });
        }
    }
}

/// Returns `true` if nothing has arrived, at once or in time.
fn is_empty(error: &RecvError) -> bool {
    matches!(error, RecvError::Empty | RecvError::TimedOut)
}

pub(crate) fn recv<I: Send, S: Incoming<I>>(
    py: Python<'_>,
    end: &End<Input<S>>,
    deadline: Deadline,
) -> PyResult<I> {
    end.until(py, deadline, is_empty, Input::receive)
}

pub(crate) fn try_recv<I, S: Incoming<I>>(end: &End<Input<S>>) -> PyResult<Option<I>> {
    match end.with(|input| input.receive(Duration::ZERO))? {
        Ok(item) => Ok(Some(item)),
        Err(error) if is_empty(&error) => Ok(None),
        Err(error) => Err(error.into_py()),
    }
}

pub(crate) fn fileno<S: Send + 'static>(end: &End<Input<S>>) -> PyResult<RawFd> {
    end.with(|input| {
        let wake = match input.wake.take() {
            Some(wake) => wake,
            None => WakeFd::new().map_err(IntoPyErr::into_py)?,
        };
        Ok(input.wake.insert(wake).as_raw_fd())
    })?
}

/// Polls for an asynchronous receive.
fn poll<I, S: Incoming<I>>(
    input: &mut Input<S>,
    context: Option<&mut Context<'_>>,
) -> Poll<PyResult<I>> {
    let received = match context {
        Some(context) => input.source.poll_next(context),
        None => match input.source.try_next() {
            Err(error) if is_empty(&error) => Poll::Pending,
            received => Poll::Ready(received),
        },
    };
    // The descriptor's waker was replaced.
    input.renew_wake();
    received.map_err(IntoPyErr::into_py)
}

pub(crate) fn recv_async<'py, I: 'static, S: Incoming<I>>(
    py: Python<'py>,
    end: &Arc<End<Input<S>>>,
    convert: fn(Python<'_>, I) -> PyResult<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    end.start(py, poll, convert)
}

// ---- receivers and subscribers --------------------------------------------------------------------

pub(crate) enum Ends {
    Receiver(channel::Receiver),
    Subscriber(channel::Subscriber),
}

macro_rules! each {
    ($ends:expr, $end:ident => $call:expr) => {
        match $ends {
            Ends::Receiver($end) => $call,
            Ends::Subscriber($end) => $call,
        }
    };
}

impl Incoming<channel::Message> for Ends {
    fn try_next(&mut self) -> Result<channel::Message, RecvError> {
        each!(self, end => end.try_recv())
    }

    fn next_within(&mut self, timeout: Duration) -> Result<channel::Message, RecvError> {
        each!(self, end => end.recv_timeout(timeout))
    }

    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<channel::Message, RecvError>> {
        each!(self, end => end.poll_recv(context))
    }
}

impl Incoming<ChannelEvent> for Ends {
    fn try_next(&mut self) -> Result<ChannelEvent, RecvError> {
        each!(self, end => end.try_recv_event())
    }

    fn next_within(&mut self, timeout: Duration) -> Result<ChannelEvent, RecvError> {
        each!(self, end => end.recv_event_timeout(timeout))
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<ChannelEvent, RecvError>> {
        each!(self, end => end.poll_recv_event(context))
    }
}

impl Ends {
    fn source(&mut self) -> &mut dyn Source {
        each!(self, end => end)
    }
}

/// Opens a channel: at once, or waiting for it until the deadline.
fn open<T: Send>(
    py: Python<'_>,
    timeout: Option<f64>,
    at_once: impl FnOnce() -> Result<T, ChannelError> + Send,
    within: impl Fn(Duration) -> Result<T, ChannelError> + Sync,
) -> PyResult<T> {
    let deadline = Deadline::after(timeout)?;
    if deadline.is_now() {
        return detach(py, at_once).map_err(IntoPyErr::into_py);
    }
    wait::retry(py, deadline, may_open_later, within)
}

/// Returns `true` if a sender, or a free registration, may appear.
fn may_open_later(error: &ChannelError) -> bool {
    matches!(
        error,
        ChannelError::NotFound { .. }
            | ChannelError::NotReady { .. }
            | ChannelError::Closed { .. }
            | ChannelError::TooManyReceivers { .. }
    )
}

fn receiver_builder(
    namespace: Option<In<'_>>,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<ReceiverBuilder> {
    let mut builder = channel::Receiver::builder().namespace(&names::namespace(namespace)?);
    for option in options::keywords(options)? {
        builder = match option.name() {
            "on_end" => set(builder, option.choice()?, ReceiverBuilder::on_end),
            "spin" => set(builder, option.seconds()?, ReceiverBuilder::spin),
            "message_type" => set(
                builder,
                option.message_type()?,
                ReceiverBuilder::message_type,
            ),
            _ => return Err(option.unexpected("Receiver")),
        };
    }
    Ok(builder)
}

fn subscriber_builder(
    namespace: Option<In<'_>>,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<SubscriberBuilder> {
    let mut builder = channel::Subscriber::builder().namespace(&names::namespace(namespace)?);
    for option in options::keywords(options)? {
        builder = match option.name() {
            "capacity" => set(builder, option.read()?, SubscriberBuilder::capacity),
            "max_borrowed" => set(builder, option.read()?, SubscriberBuilder::max_borrowed),
            "on_full" => set(builder, option.choice()?, SubscriberBuilder::on_full),
            "on_end" => set(builder, option.choice()?, SubscriberBuilder::on_end),
            "spin" => set(builder, option.seconds()?, SubscriberBuilder::spin),
            "message_type" => set(
                builder,
                option.message_type()?,
                SubscriberBuilder::message_type,
            ),
            _ => return Err(option.unexpected("Subscriber")),
        };
    }
    Ok(builder)
}

/// Receives the messages of a :class:`Sender`.
///
/// Opens the channel ``name``, waiting at most ``timeout`` seconds for it to exist. Its provider is in
/// ``namespace``, by default the default one. With ``on_end``, by default :attr:`OnEnd.RETURN`, it may wait for
/// the next sender when one has ended, and be made before there is one. A wait spins for ``spin`` seconds
/// before it sleeps, by default for up to 20 µs, where that pays. With a ``message_type``, it opens no channel
/// of another type.
///
/// A receiver is an iterator, and under asyncio an asynchronous iterator, that ends when the sender has
/// closed or died:
///
/// >>> import shm_pool
/// >>> provider = shm_pool.Provider()
/// >>> sender = shm_pool.Sender(provider, "docs-receiver")
/// >>> receiver = shm_pool.Receiver("docs-receiver")
/// >>> sender.send(b"first"), sender.send(b"second"), sender.close()
/// (None, None, None)
/// >>> [bytes(message) for message in receiver]
/// [b'first', b'second']
///
/// Raises :class:`NotFound`, :class:`NameTaken`, :class:`InvalidArgument` (also for the channel of a
/// publisher, or of another type), :class:`OtherVersion`, :class:`SystemCallFailed`.
#[pyclass(frozen, extends = ReceivingEnd, module = "shm_pool")]
pub(crate) struct Receiver;

impl Receiver {
    fn of(receiver: channel::Receiver, name: &str) -> PyClassInitializer<Self> {
        let interrupter = receiver.interrupter();
        let end = ReceivingEnd::new(Ends::Receiver(receiver), interrupter, "receiver", name);
        PyClassInitializer::from(end).add_subclass(Self)
    }
}

#[pymethods]
impl Receiver {
    #[new]
    #[pyo3(
        signature = (name, namespace=None, *, timeout=Some(0.0), **options),
        text_signature = "(name, namespace=None, *, timeout=0.0, on_end=None, spin=None, \
                          message_type=None)"
    )]
    fn new(
        py: Python<'_>,
        name: &str,
        namespace: Option<In<'_>>,
        timeout: Option<f64>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let builder = receiver_builder(namespace, options)?;
        let at_once = builder.clone();
        let receiver = open(
            py,
            timeout,
            || at_once.open(name),
            |time| builder.clone().open_timeout(name, time),
        )?;
        Ok(Self::of(receiver, name))
    }

    /// Waits until the channel exists, without blocking the event loop of asyncio, and returns its receiver. When
    /// it is cancelled, nothing was opened. ``asyncio.wait_for`` limits the wait.
    ///
    /// Raises as :class:`Receiver`, except :class:`NotFound`.
    #[staticmethod]
    #[pyo3(
        signature = (name, namespace=None, **options),
        text_signature = "(name, namespace=None, *, on_end=None, spin=None, message_type=None)"
    )]
    fn open_async<'py>(
        py: Python<'py>,
        name: String,
        namespace: Option<In<'py>>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let builder = receiver_builder(namespace, options)?;
        let channel = name.clone();
        let opening = async move { builder.open_async(&channel).await };
        Pending::of_future(py, opening, move |py, receiver| {
            let receiver = Py::new(py, Self::of(receiver, &name))?;
            Ok(receiver.into_any())
        })
    }

    fn __repr__(slf: &Bound<'_, Self>) -> String {
        slf.as_super().get().0.text("Receiver")
    }
}

/// Receives the messages of a :class:`Publisher`, and by default of each later one of that name.
///
/// Without a ``timeout``, there need not be a publisher yet: the subscriber joins it while it receives.
/// With one, it waits at most so many seconds for a publisher. ``capacity``, ``max_borrowed`` and ``on_full`` are
/// how many messages it may be behind, how many buffers it may hold, and what happens when it falls behind;
/// by default as the publisher says. ``namespace``, ``spin`` and ``message_type`` are those of a
/// :class:`Receiver`.
///
/// When a publisher has ended, by default it waits for the next one, so an iteration over it never ends. With
/// ``on_end="return"`` it raises :class:`Disconnected`, and iterations end. An iteration over a subscriber that
/// its publisher has disconnected raises :class:`Evicted`.
///
/// >>> import shm_pool
/// >>> subscriber = shm_pool.Subscriber("docs-subscriber")
/// >>> subscriber.try_recv()
/// >>> provider = shm_pool.Provider()
/// >>> publisher = shm_pool.Publisher(provider, "docs-subscriber", history=1)
/// >>> publisher.send(b"a sample").receivers
/// 0
/// >>> subscriber.try_recv()
/// >>> publisher.wait_for_receivers()
/// >>> bytes(subscriber.recv())
/// b'a sample'
///
/// Raises :class:`NotFound`, :class:`InvalidArgument` (also for the channel of a sender, or of another type),
/// :class:`OtherVersion`, :class:`SystemCallFailed`, and :class:`Error` if the publisher has ``max_subscribers``.
#[pyclass(frozen, extends = ReceivingEnd, module = "shm_pool")]
pub(crate) struct Subscriber;

impl Subscriber {
    fn of(subscriber: channel::Subscriber, name: &str) -> PyClassInitializer<Self> {
        let interrupter = subscriber.interrupter();
        let ends = Ends::Subscriber(subscriber);
        let end = ReceivingEnd::new(ends, interrupter, "subscriber", name);
        PyClassInitializer::from(end).add_subclass(Self)
    }
}

#[pymethods]
impl Subscriber {
    #[new]
    #[pyo3(
        signature = (name, namespace=None, *, timeout=Some(0.0), **options),
        text_signature = "(name, namespace=None, *, timeout=0.0, capacity=None, \
                          max_borrowed=None, on_full=None, on_end=None, spin=None, \
                          message_type=None)"
    )]
    fn new(
        py: Python<'_>,
        name: &str,
        namespace: Option<In<'_>>,
        timeout: Option<f64>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let builder = subscriber_builder(namespace, options)?;
        let at_once = builder.clone();
        let subscriber = open(
            py,
            timeout,
            || at_once.open(name),
            |time| builder.clone().open_timeout(name, time),
        )?;
        Ok(Self::of(subscriber, name))
    }

    /// Waits until there is a publisher, without blocking the event loop of asyncio, and returns a subscriber that
    /// has joined it. When it is cancelled, nothing was opened. ``asyncio.wait_for`` limits the wait.
    ///
    /// Raises as :class:`Subscriber`, except :class:`NotFound`.
    #[staticmethod]
    #[pyo3(
        signature = (name, namespace=None, **options),
        text_signature = "(name, namespace=None, *, capacity=None, max_borrowed=None, \
                          on_full=None, on_end=None, spin=None, message_type=None)"
    )]
    fn open_async<'py>(
        py: Python<'py>,
        name: String,
        namespace: Option<In<'py>>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let builder = subscriber_builder(namespace, options)?;
        let channel = name.clone();
        let opening = async move { builder.open_async(&channel).await };
        Pending::of_future(py, opening, move |py, subscriber| {
            let subscriber = Py::new(py, Self::of(subscriber, &name))?;
            Ok(subscriber.into_any())
        })
    }

    fn __repr__(slf: &Bound<'_, Self>) -> String {
        slf.as_super().get().0.text("Subscriber")
    }
}

/// What a receiver and a subscriber have in common.
#[pyclass(frozen, subclass, name = "_ReceivingEnd", module = "shm_pool._native")]
pub(crate) struct ReceivingEnd(Arc<End<Input<Ends>>>);

impl ReceivingEnd {
    fn new(
        ends: Ends,
        interrupter: channel::Interrupter,
        object: &'static str,
        name: &str,
    ) -> Self {
        Self(End::new(Input::new(ends), interrupter, object, name))
    }

    fn get<R>(&self, f: impl FnOnce(&mut Ends) -> R) -> PyResult<R> {
        self.0.with(|input| f(&mut input.source))
    }
}

fn message(py: Python<'_>, message: channel::Message) -> PyResult<Py<PyAny>> {
    Ok(Py::new(py, Message::of_channel(message))?.into_any())
}

fn event(py: Python<'_>, event: ChannelEvent) -> PyResult<Py<PyAny>> {
    let change = match event {
        ChannelEvent::Message(received) => return message(py, received),
        ChannelEvent::Connected(provider) => ConnectionChange {
            is_connected: true,
            provider: Some(u64::from(provider)),
        },
        ChannelEvent::Disconnected => ConnectionChange {
            is_connected: false,
            provider: None,
        },
        // The enum is not exhaustive.
        other => unreachable!("the kind of event is unknown: {other:?}"),
    };
    Ok(Py::new(py, change)?.into_any())
}

/// What :meth:`Subscriber.recv_event` and :meth:`Receiver.recv_event` return besides messages: a sender or
/// publisher was connected, whose messages are those of this ``provider``; or, if not ``is_connected``, it has closed
/// or died, and everything that it sent was received.
#[pyclass(frozen, get_all, eq, module = "shm_pool")]
#[derive(PartialEq, Eq)]
pub(crate) struct ConnectionChange {
    is_connected: bool,
    provider: Option<u64>,
}

#[pymethods]
impl ConnectionChange {
    fn __repr__(&self) -> String {
        let is_connected = if self.is_connected { "True" } else { "False" };
        match self.provider {
            Some(provider) => {
                format!("ConnectionChange(is_connected={is_connected}, provider={provider})")
            }
            None => format!("ConnectionChange(is_connected={is_connected}, provider=None)"),
        }
    }
}

/// How many messages of a :class:`Publisher` a :class:`Subscriber` has missed, in ``total`` and by reason: sent to
/// it and ``withdrawn``, to make room for newer ones or as it was disconnected; skipped because it was behind by its
/// capacity (``full``), held as many buffers or bytes as it may (``too_many_borrowed``), or had made no room for too
/// long (``stalled``); or sent before the system let the publisher connect it (``not_connected``).
#[pyclass(frozen, get_all, eq, module = "shm_pool")]
#[derive(PartialEq, Eq)]
pub(crate) struct Missed {
    withdrawn: u64,
    full: u64,
    too_many_borrowed: u64,
    stalled: u64,
    not_connected: u64,
    total: u64,
}

impl From<channel::Missed> for Missed {
    fn from(missed: channel::Missed) -> Self {
        Self {
            withdrawn: missed.withdrawn,
            full: missed.full,
            too_many_borrowed: missed.too_many_borrowed,
            stalled: missed.stalled,
            not_connected: missed.not_connected,
            total: missed.total(),
        }
    }
}

#[pymethods]
impl Missed {
    fn __repr__(&self) -> String {
        format!(
            "Missed(withdrawn={}, full={}, too_many_borrowed={}, stalled={}, not_connected={})",
            self.withdrawn, self.full, self.too_many_borrowed, self.stalled, self.not_connected
        )
    }
}

#[pymethods]
impl ReceivingEnd {
    /// Receives the next message, waiting at most ``timeout`` seconds, by default without limit.
    ///
    /// Raises :class:`Timeout`, :class:`Disconnected` if the other side has closed or died, all its
    /// messages were received, and the end does not wait for the next one, :class:`Evicted`,
    /// :class:`TooManyBorrowed`, :class:`MessageLost`, :class:`Interrupted`, :class:`SystemCallFailed`. An end that
    /// opens the channel of a later sender or publisher raises as when it was made, too: :class:`InvalidArgument`
    /// if that is of another type, and :class:`OtherVersion`.
    #[pyo3(signature = (*, timeout=None))]
    fn recv(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Message> {
        let deadline = Deadline::after(timeout)?;
        let message = recv(py, &self.0, deadline)?;
        Ok(Message::of_channel(message))
    }

    /// Receives the next message, or returns ``None`` if none has arrived. Raises as :meth:`recv`.
    fn try_recv(&self) -> PyResult<Option<Message>> {
        let message = try_recv(&self.0)?;
        Ok(message.map(Message::of_channel))
    }

    /// Receives the next message without blocking the event loop of asyncio.
    ///
    /// Cancelling loses no message. One task at a time; another one gets :class:`InUse`.
    ///
    /// >>> import asyncio, shm_pool
    /// >>> async def main():
    /// ...     with shm_pool.Provider() as provider, shm_pool.Sender(provider, "docs-async") as sender:
    /// ...         receiver = shm_pool.Receiver("docs-async")
    /// ...         sender.send(b"a sample")
    /// ...         return bytes(await receiver.recv_async())
    /// >>> asyncio.run(main())
    /// b'a sample'
    ///
    /// Raises as :meth:`recv`, except :class:`Timeout` and :class:`Interrupted`.
    fn recv_async<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        recv_async(py, &self.0, message)
    }

    /// Receives the next event, waiting as :meth:`recv`: a message, or the :class:`ConnectionChange` before the
    /// first message of a sender or publisher, or after the last one. The other methods that receive skip the
    /// changes.
    ///
    /// >>> import shm_pool
    /// >>> provider = shm_pool.Provider()
    /// >>> subscriber = shm_pool.Subscriber("docs-events")
    /// >>> with shm_pool.Publisher(provider, "docs-events", history=1) as publisher:
    /// ...     sent = publisher.send(b"a sample")
    /// ...     change = subscriber.recv_event()
    /// ...     publisher.wait_for_receivers()
    /// >>> change.is_connected, change.provider == provider.id
    /// (True, True)
    /// >>> bytes(subscriber.recv_event())
    /// b'a sample'
    /// >>> subscriber.recv_event()
    /// ConnectionChange(is_connected=False, provider=None)
    ///
    /// Raises as :meth:`recv`.
    #[pyo3(signature = (*, timeout=None))]
    fn recv_event(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let deadline = Deadline::after(timeout)?;
        event(py, recv(py, &self.0, deadline)?)
    }

    /// Receives the next event, or returns ``None`` if there is none. Raises as :meth:`recv`.
    fn try_recv_event(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        match try_recv(&self.0)? {
            Some(received) => Ok(Some(event(py, received)?)),
            None => Ok(None),
        }
    }

    /// Receives the next event as :meth:`recv_event`, and waits as :meth:`recv_async`.
    fn recv_event_async<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        recv_async(py, &self.0, event)
    }

    /// Returns a descriptor for ``select``, ``selectors`` and other event loops. It is readable
    /// whenever a message may have arrived: then call :meth:`try_recv` until it returns ``None``.
    fn fileno(&self) -> PyResult<RawFd> {
        fileno(&self.0)
    }

    /// Maps all memory of the sender's provider now. Returns its bytes.
    fn warm(&self, py: Python<'_>) -> PyResult<usize> {
        self.get(|ends| detach(py, || each!(ends, end => end.warm())))?
            .map_err(IntoPyErr::into_py)
    }

    /// How many messages may wait to be received.
    #[getter]
    fn capacity(&self) -> PyResult<usize> {
        self.get(|ends| each!(ends, end => end.capacity()))
    }

    /// How many buffers a receiver may hold, received or not.
    #[getter]
    fn max_borrowed(&self) -> PyResult<usize> {
        self.get(|ends| each!(ends, end => end.max_borrowed()))
    }

    /// What happens when ``capacity`` messages wait; ``None`` while there is no publisher.
    #[getter]
    fn on_full(&self) -> PyResult<Option<Choice<OnFull>>> {
        self.get(|ends| match ends {
            // A sender waits, and loses nothing.
            Ends::Receiver(receiver) => receiver.provider().map(|_| Choice(OnFull::Block)),
            Ends::Subscriber(subscriber) => subscriber.on_full().map(Choice),
        })
    }

    /// The type that the other side has declared; ``None`` if it has declared none, or there is no other side.
    #[getter]
    fn message_type(&self) -> PyResult<Option<MessageType>> {
        self.get(|ends| each!(ends, end => end.message_type().map(MessageType::of)))
    }

    /// How many messages of the present publisher were missed, by reason. Those of a :class:`Sender` are not.
    /// :attr:`Message.missed` is the number before one message.
    ///
    /// >>> import shm_pool
    /// >>> provider = shm_pool.Provider()
    /// >>> publisher = shm_pool.Publisher(provider, "docs-missed")
    /// >>> subscriber = shm_pool.Subscriber("docs-missed", capacity=1)
    /// >>> for number in range(3):
    /// ...     sent = publisher.send(bytes(number))
    /// >>> subscriber.missed
    /// Missed(withdrawn=2, full=0, too_many_borrowed=0, stalled=0, not_connected=0)
    #[getter]
    fn missed(&self) -> PyResult<Missed> {
        self.get(|ends| match ends {
            Ends::Receiver(_) => Missed::from(channel::Missed::default()),
            Ends::Subscriber(subscriber) => Missed::from(subscriber.missed()),
        })
    }

    /// The number of the provider of the messages, as :attr:`Provider.id`; ``None`` while there is no other side.
    #[getter]
    fn provider(&self) -> PyResult<Option<u64>> {
        self.get(|ends| each!(ends, end => end.provider().map(u64::from)))
    }

    /// Why the channel could not be opened at the last attempt, while it is not open, as the exception: for example
    /// :class:`NotFound`, or :class:`NameTaken` if a channel has its receiver. This end waits until it can. ``None``
    /// if a receive has raised it.
    ///
    /// >>> import shm_pool
    /// >>> subscriber = shm_pool.Subscriber("docs-last-error")
    /// >>> isinstance(subscriber.last_error, shm_pool.NotFound)
    /// True
    #[getter]
    fn last_error(&self, py: Python<'_>) -> PyResult<Option<Py<PyBaseException>>> {
        let error = self.get(|ends| each!(ends, end => end.last_error().cloned()))?;
        Ok(error.map(|error| error.into_py().into_value(py)))
    }

    /// The channel's name.
    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    /// Whether the channel is open, and the other side knows this end.
    #[getter]
    fn is_connected(&self) -> PyResult<bool> {
        self.get(|ends| each!(ends, end => end.is_connected()))
    }

    /// Ends the current wait, or the next one, with :class:`Interrupted`. For other threads.
    fn interrupt(&self) {
        self.0.interrupt();
    }

    /// Closes this end. Messages that were received stay valid. A call that waits in another thread, or a
    /// task that awaits, raises :class:`Closed`.
    fn close(&self, py: Python<'_>) {
        self.0.close(py);
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Message> {
        let error = match self.recv(py, None) {
            Ok(message) => return Ok(message),
            Err(error) => error,
        };
        let is_end = error.is_instance_of::<errors::Disconnected>(py)
            && !error.is_instance_of::<errors::Evicted>(py);
        if is_end {
            return Err(PyStopIteration::new_err(()));
        }
        Err(error)
    }

    fn __aiter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __anext__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut awaited = crate::end::Awaited::new(&self.0);
        let operation: Operation =
            Box::new(move |py, context| match awaited.poll(context, poll)? {
                Poll::Ready(received) => Ok(Some(message(py, received?)?)),
                Poll::Pending => Ok(None),
            });
        Pending::coroutine_by(py, "complete_next", operation)
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().0.check()?;
        Ok(slf)
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyAny>) {
        self.0.close(py);
    }
}

/// Waits until one of several receivers and subscribers has a message, and returns that one. Then its
/// :meth:`Receiver.try_recv` returns the message, unless that is withdrawn meanwhile. One that is to raise an
/// error counts as ready, too. If several have messages, the one is returned that was returned least
/// recently. Waits at most ``timeout`` seconds, by default without limit.
///
/// >>> import shm_pool
/// >>> provider = shm_pool.Provider()
/// >>> frames, samples = shm_pool.Sender(provider, "docs-frames"), shm_pool.Sender(provider, "docs-samples")
/// >>> receivers = [shm_pool.Receiver("docs-frames"), shm_pool.Receiver("docs-samples")]
/// >>> samples.send(b"a sample")
/// >>> ready = shm_pool.wait_any(receivers, timeout=1)
/// >>> ready.name, bytes(ready.recv())
/// ('docs-samples', b'a sample')
///
/// Under asyncio, await a task for each of them.
///
/// Raises :class:`Timeout`, :class:`InvalidArgument` if there is none or one twice, :class:`Interrupted`,
/// :class:`InUse`, :class:`SystemCallFailed`.
#[pyfunction]
#[pyo3(signature = (receivers, *, timeout=None))]
pub(crate) fn wait_any<'py>(
    py: Python<'py>,
    receivers: Vec<Bound<'py, ReceivingEnd>>,
    timeout: Option<f64>,
) -> PyResult<Bound<'py, ReceivingEnd>> {
    let deadline = Deadline::after(timeout)?;
    for (index, receiver) in receivers.iter().enumerate() {
        if receivers[..index].iter().any(|other| other.is(receiver)) {
            return Err(errors::InvalidArgument::new_err(
                "one of the receivers is given twice",
            ));
        }
    }
    let index = wait::until(py, deadline, |time, is_last| {
        let waited = wait_any_once(py, &receivers, time);
        match waited? {
            Err(RecvError::TimedOut) if !is_last => Ok(None),
            Ok(index) => Ok(Some(index)),
            Err(error) => {
                // Closed rather than interrupted.
                for receiver in &receivers {
                    receiver.get().0.check()?;
                }
                Err(error.into_py())
            }
        }
    })?;
    Ok(receivers[index].clone())
}

fn wait_any_once(
    py: Python<'_>,
    receivers: &[Bound<'_, ReceivingEnd>],
    timeout: Duration,
) -> PyResult<Result<usize, RecvError>> {
    let mut guards = Vec::new();
    for receiver in receivers {
        guards.push(receiver.get().0.lock()?);
    }
    let mut inputs = Vec::new();
    for guard in &mut guards {
        inputs.push(guard.get()?);
    }
    let waited = detach(py, || {
        let mut sources: Vec<&mut dyn Source> = Vec::new();
        for input in &mut inputs {
            sources.push(input.source.source());
        }
        channel::wait_any(&mut sources, timeout)
    });
    for input in &mut inputs {
        input.renew_wake();
    }
    drop(guards);
    for receiver in receivers {
        receiver.get().0.wake_task();
    }
    Ok(waited)
}
