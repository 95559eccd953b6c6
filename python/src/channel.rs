//! `Sender`, `Publisher`, `Receiver` and `Subscriber`.
//!
//! One thread at a time uses an end: a call in another thread raises `InUse`, and never waits for
//! the first, which may wait for a message. An end is locked anew for each slice of a wait, so that
//! a signal handler may close it. `close` interrupts the wait of another thread.

use crate::errors::{self, IntoPyErr};
use crate::exit::{self, detach, Closes};
use crate::fork::Process;
use crate::memory::{Buffer, Bytes, Message};
use crate::provider::{Client, Provider};
use crate::wait::{self, Deadline};
use pyo3::prelude::*;
use shm_pool::channel::{
    self, ChannelError, Interrupter, RecvError, SendError, SendErrorKind, SendOptions, MAX_INLINE,
};
use shm_pool::{ShmBytes, WakeFd};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::Poll;
use std::time::{Duration, Instant};

/// One end of a channel, which `close` drops.
struct End<T> {
    end: Mutex<Option<T>>,
    is_closed: AtomicBool,
    interrupter: Interrupter,
    process: Process,
    object: &'static str,
}

impl<T: Send + 'static> End<T> {
    fn new(end: T, interrupter: Interrupter, object: &'static str) -> Arc<Self> {
        let (end, is_closed) = (Mutex::new(Some(end)), AtomicBool::new(false));
        let this = Arc::new(Self {
            end,
            is_closed,
            interrupter,
            process: Process::current(),
            object,
        });
        exit::add(&this);
        this
    }

    fn check(&self) -> PyResult<()> {
        self.process.check(self.object)?;
        // Acquire: partner of the Release in `close`.
        if !self.is_closed.load(Ordering::Acquire) {
            return Ok(());
        }
        exit::park_if_exiting();
        Err(errors::Closed::new_err(format!(
            "this {} was closed",
            self.object
        )))
    }

    fn lock(&self) -> PyResult<MutexGuard<'_, Option<T>>> {
        self.check()?;
        match self.end.try_lock() {
            Ok(end) => Ok(end),
            Err(TryLockError::Poisoned(end)) => Ok(end.into_inner()),
            Err(TryLockError::WouldBlock) => Err(errors::InUse::new_err(format!(
                "another thread uses this {}",
                self.object
            ))),
        }
    }

    /// Calls `f` with the GIL held.
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> PyResult<R> {
        let mut end = self.lock()?;
        // `close` sets `is_closed` first.
        end.as_mut()
            .map(f)
            .ok_or_else(|| errors::Closed::new_err("closed"))
    }

    /// Waits as [`wait::until`]. `attempt` waits at most so long; the first time not at all, with
    /// the GIL held, and then without it.
    fn until<R: Send, E: IntoPyErr + Send>(
        &self,
        py: Python<'_>,
        deadline: Deadline,
        is_timeout: fn(&E) -> bool,
        mut attempt: impl FnMut(&mut T, Duration) -> Result<R, E> + Send,
    ) -> PyResult<R> {
        match self.with(|end| attempt(end, Duration::ZERO))? {
            Err(error) if is_timeout(&error) && !deadline.is_now() => {}
            result => return result.map_err(IntoPyErr::into_py),
        }
        wait::until(py, deadline, |time, is_last| {
            match self.with(|end| detach(py, || attempt(end, time)))? {
                Err(error) if is_timeout(&error) && !is_last => Ok(None),
                Ok(result) => Ok(Some(result)),
                // Closed rather than interrupted.
                Err(error) => self.check().and(Err(error.into_py())),
            }
        })
    }

    fn close(&self, py: Python<'_>) {
        // The end belongs to the parent, one of whose threads may have locked it.
        if !self.process.is_current() {
            return;
        }
        self.is_closed.store(true, Ordering::Release);
        let end = match self.end.try_lock() {
            Ok(mut end) => end.take(),
            // The thread that holds the lock does not come back.
            Err(_) if exit::is_exiting() => None,
            Err(_) => {
                self.interrupter.interrupt();
                detach(py, || {
                    self.end
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .take()
                })
            }
        };
        detach(py, || drop(end));
    }
}

impl<T: Send + 'static> Closes for End<T> {
    fn process(&self) -> Process {
        self.process
    }

    fn close(&self, py: Python<'_>) {
        self.close(py);
    }
}

impl<T> Drop for End<T> {
    fn drop(&mut self) {
        exit::remove(self);
    }
}

// ---- sending ------------------------------------------------------------------------------------

/// What a `Sender` and a `Publisher` have in common.
trait Output: Send {
    type Report: Send;

    fn send(&mut self, buffer: ShmBytes, timeout: Duration) -> Result<Self::Report, SendErrorKind>;
    fn send_copy(&mut self, bytes: &[u8], timeout: Duration)
        -> Result<Self::Report, SendErrorKind>;
}

macro_rules! output {
    ($end:ty, $report:ty) => {
        impl Output for $end {
            type Report = $report;

            fn send(
                &mut self,
                buffer: ShmBytes,
                timeout: Duration,
            ) -> Result<$report, SendErrorKind> {
                let sent = match timeout.is_zero() {
                    true => self.try_send(buffer),
                    false => self.send_timeout(buffer, timeout),
                };
                sent.map_err(|error| error.kind())
            }

            fn send_copy(
                &mut self,
                bytes: &[u8],
                timeout: Duration,
            ) -> Result<$report, SendErrorKind> {
                let options = SendOptions::new().timeout(timeout);
                self.send_copy_with(bytes, options)
                    .map_err(|error| error.kind())
            }
        }
    };
}

output!(channel::Sender, ());
output!(channel::Publisher, channel::Sent);

/// Sends a `Buffer`, or a copy of any other object's bytes.
fn send<T: Output + 'static>(
    py: Python<'_>,
    end: &End<T>,
    provider: &Py<Provider>,
    message: &Bound<'_, PyAny>,
    timeout: Option<f64>,
) -> PyResult<T::Report> {
    let deadline = Deadline::after(timeout)?;
    end.check()?;
    let buffer = match message.cast::<Buffer>() {
        Ok(buffer) => buffer.get().message()?,
        Err(_) => {
            let bytes = Bytes::of(message)?;
            let mut slot = [0; MAX_INLINE];
            if let Some(slot) = slot.get_mut(..bytes.len()) {
                bytes.copy_to(slot);
                let slot = &*slot;
                return end.until(py, deadline, errors::is_full, |end, time| {
                    end.send_copy(slot, time)
                });
            }
            provider.get().copy(py, &bytes, deadline)?
        }
    };
    end.until(py, deadline, errors::is_full, |end, time| {
        end.send(buffer.clone(), time)
    })
}

/// Sends messages to one :class:`Receiver`, in this or another process, and loses none of them.
///
/// Creates the channel ``name``: any text without a NUL, such as ``/front/image_raw``. It holds
/// ``capacity`` messages that were not received (default 256), and the receiver may hold
/// ``max_borrowed`` buffers (2048). A wait for room spins for ``spin`` seconds before it sleeps, by
/// default for up to 20 µs, where that pays.
///
/// >>> import shm_pool
/// >>> provider = shm_pool.Provider()
/// >>> sender = shm_pool.Sender(provider, "docs-sender")
/// >>> receiver = shm_pool.Receiver("docs-sender")
/// >>> sender.send(b"any object with the buffer protocol is copied once")
/// >>> buffer = provider.alloc(1 << 20)
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
    #[pyo3(signature = (provider, name, *, capacity=None, max_borrowed=None, mode=None, spin=None))]
    fn new(
        provider: Py<Provider>,
        name: &str,
        capacity: Option<usize>,
        max_borrowed: Option<usize>,
        mode: Option<u32>,
        spin: Option<f64>,
    ) -> PyResult<Self> {
        let mut builder = channel::Sender::builder();
        if let Some(messages) = capacity {
            builder = builder.capacity(messages);
        }
        if let Some(max_borrowed) = max_borrowed {
            builder = builder.max_borrowed(max_borrowed);
        }
        if let Some(mode) = mode {
            builder = builder.mode(mode);
        }
        if let Some(seconds) = spin {
            builder = builder.spin(wait::duration("spin", seconds)?);
        }
        let sender = builder
            .create(&*provider.get().get()?, name)
            .map_err(IntoPyErr::into_py)?;
        let interrupter = sender.interrupter();
        Ok(Self {
            end: End::new(sender, interrupter, "sender"),
            provider,
        })
    }

    /// Sends a :class:`Buffer`, or a copy of any object's bytes: up to ``MAX_INLINE`` of them
    /// travel in the channel itself, more in a buffer. Waits at most ``timeout`` seconds for room,
    /// by default without limit.
    ///
    /// Raises :class:`Disconnected` if the receiver has closed or died, :class:`Timeout`,
    /// :class:`Interrupted`, BufferError as :meth:`Buffer.freeze`, :class:`InvalidArgument` for a
    /// buffer of another provider; for a copy, as :meth:`Provider.alloc`.
    #[pyo3(signature = (message, *, timeout=None))]
    fn send(
        &self,
        py: Python<'_>,
        message: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        send(py, &self.end, &self.provider, message, timeout)
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

    /// Waits until everything was received. Then nothing is lost if the provider is closed.
    /// Raises :class:`Timeout`, :class:`Disconnected`.
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
        self.end.interrupter.interrupt();
    }

    /// Closes this end. A call that waits in another thread raises :class:`Closed`.
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
}

/// What happens when a message is sent to a receiver that is behind by its capacity.
///
/// ``BLOCK``: the publisher waits for it. ``DROP_NEWEST``: it misses the new message. ``DROP_OLDEST``: it
/// misses the oldest message that it has not received. :attr:`Message.missed` counts those missed.
#[pyclass(
    frozen,
    eq,
    hash,
    module = "shm_pool",
    rename_all = "SCREAMING_SNAKE_CASE"
)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum OnFull {
    Block,
    DropNewest,
    DropOldest,
}

impl From<OnFull> for channel::OnFull {
    fn from(on_full: OnFull) -> Self {
        match on_full {
            OnFull::Block => Self::Block,
            OnFull::DropNewest => Self::DropNewest,
            OnFull::DropOldest => Self::DropOldest,
        }
    }
}

impl From<channel::OnFull> for OnFull {
    fn from(on_full: channel::OnFull) -> Self {
        match on_full {
            channel::OnFull::Block => Self::Block,
            channel::OnFull::DropNewest => Self::DropNewest,
            // The enum is not exhaustive, and this is its default.
            _ => Self::DropOldest,
        }
    }
}

/// Sends messages to up to ``max_subscribers`` (default 16, at most 64) :class:`Subscriber` objects, which
/// may join, leave and die at any time.
///
/// ``on_full`` is what happens when a receiver is behind by ``capacity`` messages (default 256), for those that
/// do not choose: :attr:`OnFull.DROP_OLDEST` by default. ``allow_blocking=False`` refuses those
/// that choose :attr:`OnFull.BLOCK`. A new receiver first gets the last ``history`` messages
/// (default 0). A receiver may hold ``max_borrowed`` buffers (default 2048), of
/// ``max_bytes_per_receiver`` (default: a quarter of the provider's ``max_bytes``). ``spin`` is as
/// for a :class:`Sender`.
///
/// >>> import shm_pool
/// >>> provider = shm_pool.Provider()
/// >>> publisher = shm_pool.Publisher(provider, "docs-publisher")
/// >>> logger = shm_pool.Subscriber("docs-publisher", on_full=shm_pool.OnFull.BLOCK)
/// >>> display = shm_pool.Subscriber("docs-publisher", capacity=1)
/// >>> for number in range(3):
/// ...     buffer = provider.alloc(1000)
/// ...     memoryview(buffer)[0] = number
/// ...     sent = publisher.send(buffer)
/// >>> sent
/// Sent(receivers=2, withdrawn=1, full=0, too_many_borrowed=0, stalled=0)
/// >>> newest = display.recv()
/// >>> memoryview(newest)[0], newest.missed
/// (2, 2)
/// >>> memoryview(logger.recv())[0]
/// 0
///
/// Raises :class:`NameTaken`, :class:`InvalidArgument`, :class:`SystemCallFailed`.
#[pyclass(frozen, module = "shm_pool")]
pub(crate) struct Publisher {
    end: Arc<End<channel::Publisher>>,
    provider: Py<Provider>,
}

#[pymethods]
impl Publisher {
    #[new]
    #[pyo3(signature = (provider, name, *, max_subscribers=None, capacity=None, max_borrowed=None, max_bytes_per_receiver=None, on_full=None, allow_blocking=None, history=None, spin=None))]
    #[allow(clippy::too_many_arguments)] // They are the keywords of a Python class.
    fn new(
        provider: Py<Provider>,
        name: &str,
        max_subscribers: Option<usize>,
        capacity: Option<usize>,
        max_borrowed: Option<usize>,
        max_bytes_per_receiver: Option<usize>,
        on_full: Option<OnFull>,
        allow_blocking: Option<bool>,
        history: Option<usize>,
        spin: Option<f64>,
    ) -> PyResult<Self> {
        let mut builder = channel::Publisher::builder();
        if let Some(max_subscribers) = max_subscribers {
            builder = builder.max_subscribers(max_subscribers);
        }
        if let Some(messages) = capacity {
            builder = builder.capacity(messages);
        }
        if let Some(max_borrowed) = max_borrowed {
            builder = builder.max_borrowed(max_borrowed);
        }
        if let Some(bytes) = max_bytes_per_receiver {
            builder = builder.max_bytes_per_receiver(bytes);
        }
        if let Some(on_full) = on_full {
            builder = builder.on_full(on_full.into());
        }
        if let Some(allow) = allow_blocking {
            builder = builder.allow_blocking(allow);
        }
        if let Some(messages) = history {
            builder = builder.history(messages);
        }
        if let Some(seconds) = spin {
            builder = builder.spin(wait::duration("spin", seconds)?);
        }
        let publisher = builder
            .create(&*provider.get().get()?, name)
            .map_err(IntoPyErr::into_py)?;
        let interrupter = publisher.interrupter();
        Ok(Self {
            end: End::new(publisher, interrupter, "publisher"),
            provider,
        })
    }

    /// Sends a :class:`Buffer` to all receivers without a copy, or one copy of any object's bytes.
    /// Returns to how many. Waits at most ``timeout`` seconds, by default without limit, for
    /// receivers with :attr:`OnFull.BLOCK`; if one makes no room, no receiver gets the message. A
    /// receiver that has made no room for five seconds delays no further message until it does.
    ///
    /// Raises as :meth:`Sender.send`, but not :class:`Disconnected`.
    #[pyo3(signature = (message, *, timeout=None))]
    fn send(
        &self,
        py: Python<'_>,
        message: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Sent> {
        send(py, &self.end, &self.provider, message, timeout).map(Sent::from)
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

    /// Returns the state of each receiver.
    fn receivers(&self) -> PyResult<Vec<ReceiverState>> {
        self.end
            .with(|end| end.receivers().map(ReceiverState::from).collect())
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
        self.end.interrupter.interrupt();
    }

    /// Closes this end. A call that waits in another thread raises :class:`Closed`.
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
    on_full: OnFull,
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
            on_full: on_full.into(),
            capacity,
            waiting,
            borrowed,
            missed: missed.total(),
            is_stalled,
        }
    }
}

// ---- receiving ----------------------------------------------------------------------------------

enum Ends {
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

/// A receiving end, and the descriptor by which an event loop waits for it.
struct Input {
    ends: Ends,
    wake: Option<WakeFd>,
}

impl Input {
    fn receive(&mut self, timeout: Duration) -> Result<channel::Message, RecvError> {
        let Self { ends, wake } = self;
        let Some(wake) = wake else {
            return each!(ends, end => match timeout.is_zero() {
                true => end.try_recv(),
                false => end.recv_timeout(timeout),
            });
        };
        if timeout.is_zero() {
            let polled = wake.poll(|context| each!(ends, end => end.poll_recv(context)));
            return match polled {
                Poll::Ready(received) => received,
                Poll::Pending => Err(RecvError::Empty),
            };
        }
        let received = each!(ends, end => end.recv_timeout(timeout));
        // The wait has dropped the waker. An event loop has to call again, to register another one.
        let _pending: Poll<()> = wake.poll(|context| {
            context.waker().wake_by_ref();
            Poll::Pending
        });
        received
    }
}

/// What a channel's end does when the other side has closed or died, and all its messages were
/// received.
#[pyclass(
    frozen,
    eq,
    hash,
    module = "shm_pool",
    rename_all = "SCREAMING_SNAKE_CASE"
)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum OnEnd {
    /// It waits for the successor of that name.
    Wait,
    /// It raises :class:`Disconnected`.
    Return,
}

impl From<OnEnd> for channel::OnEnd {
    fn from(on_end: OnEnd) -> Self {
        match on_end {
            OnEnd::Wait => Self::Wait,
            OnEnd::Return => Self::Return,
        }
    }
}

/// The part of `shm_pool.Receiver` that needs no event loop.
#[pyclass(frozen, subclass, extends = ReceivingEnd, module = "shm_pool._native")]
pub(crate) struct Receiver;

#[pymethods]
impl Receiver {
    #[new]
    #[pyo3(
        signature = (name, client=None, *, timeout=Some(0.0), on_end=None, spin=None),
        text_signature = "(name, client=None, *, timeout=0.0, on_end=None, spin=None)"
    )]
    fn new(
        py: Python<'_>,
        name: &str,
        client: Option<&Client>,
        timeout: Option<f64>,
        on_end: Option<OnEnd>,
        spin: Option<f64>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let deadline = Deadline::after(timeout)?;
        let mut builder = channel::Receiver::builder();
        if let Some(on_end) = on_end {
            builder = builder.on_end(on_end.into());
        }
        if let Some(seconds) = spin {
            builder = builder.spin(wait::duration("spin", seconds)?);
        }
        let client = client.map_or_else(|| Ok(Arc::default()), Client::get)?;
        builder = builder.namespace(client.namespace());
        let receiver = if deadline.is_now() {
            detach(py, || builder.open(name)).map_err(IntoPyErr::into_py)?
        } else {
            open(py, deadline, |time| {
                builder.clone().open_timeout(name, time)
            })?
        };
        let interrupter = receiver.interrupter();
        let end = ReceivingEnd::new(Ends::Receiver(receiver), interrupter, "receiver");
        Ok(PyClassInitializer::from(end).add_subclass(Self))
    }
}

/// The part of `shm_pool.Subscriber` that needs no event loop.
#[pyclass(frozen, subclass, extends = ReceivingEnd, module = "shm_pool._native")]
pub(crate) struct Subscriber;

#[pymethods]
impl Subscriber {
    #[new]
    #[pyo3(
        signature = (name, client=None, *, timeout=Some(0.0), capacity=None, max_borrowed=None, on_full=None, on_end=None, spin=None),
        text_signature = "(name, client=None, *, timeout=0.0, capacity=None, max_borrowed=None, on_full=None, on_end=None, spin=None)"
    )]
    #[allow(clippy::too_many_arguments)] // They are the keywords of a Python class.
    fn new(
        py: Python<'_>,
        name: &str,
        client: Option<&Client>,
        timeout: Option<f64>,
        capacity: Option<usize>,
        max_borrowed: Option<usize>,
        on_full: Option<OnFull>,
        on_end: Option<OnEnd>,
        spin: Option<f64>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let deadline = Deadline::after(timeout)?;
        let mut builder = channel::Subscriber::builder();
        if let Some(messages) = capacity {
            builder = builder.capacity(messages);
        }
        if let Some(max_borrowed) = max_borrowed {
            builder = builder.max_borrowed(max_borrowed);
        }
        if let Some(on_full) = on_full {
            builder = builder.on_full(on_full.into());
        }
        if let Some(on_end) = on_end {
            builder = builder.on_end(on_end.into());
        }
        if let Some(seconds) = spin {
            builder = builder.spin(wait::duration("spin", seconds)?);
        }
        let client = client.map_or_else(|| Ok(Arc::default()), Client::get)?;
        builder = builder.namespace(client.namespace());
        let subscriber = if deadline.is_now() {
            detach(py, || builder.open(name)).map_err(IntoPyErr::into_py)?
        } else {
            open(py, deadline, |time| {
                builder.clone().open_timeout(name, time)
            })?
        };
        let interrupter = subscriber.interrupter();
        let end = ReceivingEnd::new(Ends::Subscriber(subscriber), interrupter, "subscriber");
        Ok(PyClassInitializer::from(end).add_subclass(Self))
    }
}

/// Opens a channel, waiting for it until the deadline.
fn open<T: Send>(
    py: Python<'_>,
    deadline: Deadline,
    attempt: impl Fn(Duration) -> Result<T, ChannelError> + Sync,
) -> PyResult<T> {
    wait::until(py, deadline, |time, is_last| {
        match detach(py, || attempt(time)) {
            Err(error) if may_open_later(&error) && !is_last => Ok(None),
            opened => opened.map(Some).map_err(IntoPyErr::into_py),
        }
    })
}

/// What a receiver and a subscriber have in common.
#[pyclass(frozen, subclass, name = "_ReceivingEnd", module = "shm_pool._native")]
pub(crate) struct ReceivingEnd(Arc<End<Input>>);

impl ReceivingEnd {
    fn new(ends: Ends, interrupter: channel::Interrupter, what: &'static str) -> Self {
        Self(End::new(Input { ends, wake: None }, interrupter, what))
    }
}

#[pymethods]
impl ReceivingEnd {
    /// Receives the next message, waiting at most ``timeout`` seconds, by default without limit.
    ///
    /// Raises :class:`Timeout`, :class:`Disconnected` if the other side has closed or died, all its
    /// messages were received, and the end does not wait for the next one, :class:`Evicted`, :class:`TooManyBorrowed`,
    /// :class:`MessageLost`, :class:`Interrupted`, :class:`SystemCallFailed`.
    #[pyo3(signature = (*, timeout=None))]
    fn recv(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Message> {
        let deadline = Deadline::after(timeout)?;
        self.0
            .until(py, deadline, is_empty, Input::receive)
            .map(Message::of_channel)
    }

    /// Receives the next message, or returns ``None`` if none has arrived. Raises as :meth:`recv`.
    fn try_recv(&self) -> PyResult<Option<Message>> {
        match self.0.with(|end| end.receive(Duration::ZERO))? {
            Ok(message) => Ok(Some(Message::of_channel(message))),
            Err(RecvError::Empty | RecvError::TimedOut) => Ok(None),
            Err(error) => Err(error.into_py()),
        }
    }

    /// Returns a descriptor for ``select``, ``selectors`` and other event loops. It is readable
    /// whenever a message may have arrived: then call :meth:`try_recv` until it returns ``None``.
    fn fileno(&self) -> PyResult<RawFd> {
        self.0.with(|end| {
            let wake = match end.wake.take() {
                Some(wake) => wake,
                None => WakeFd::new().map_err(IntoPyErr::into_py)?,
            };
            Ok(end.wake.insert(wake).as_raw_fd())
        })?
    }

    /// Maps all memory of the sender's provider now. Returns its bytes.
    fn warm(&self, py: Python<'_>) -> PyResult<usize> {
        self.0
            .with(|end| detach(py, || each!(&mut end.ends, end => end.warm())))?
            .map_err(IntoPyErr::into_py)
    }

    /// How many messages may wait to be received.
    #[getter]
    fn capacity(&self) -> PyResult<usize> {
        self.0.with(|end| each!(&end.ends, end => end.capacity()))
    }

    /// How many buffers a receiver may hold, received or not.
    #[getter]
    fn max_borrowed(&self) -> PyResult<usize> {
        self.0
            .with(|end| each!(&end.ends, end => end.max_borrowed()))
    }

    /// What happens when ``capacity`` messages wait; ``None`` while there is no publisher.
    #[getter]
    fn on_full(&self) -> PyResult<Option<OnFull>> {
        self.0
            .with(|end| each!(&end.ends, end => end.on_full().map(OnFull::from)))
    }

    /// The channel's name.
    #[getter]
    fn name(&self) -> PyResult<String> {
        self.0
            .with(|end| each!(&end.ends, end => end.name().to_owned()))
    }

    /// Whether the channel is open, and the other side knows this end.
    #[getter]
    fn is_connected(&self) -> PyResult<bool> {
        self.0
            .with(|end| each!(&end.ends, end => end.is_connected()))
    }

    /// Ends the current wait, or the next one, with :class:`Interrupted`. For other threads.
    fn interrupt(&self) {
        self.0.interrupter.interrupt();
    }

    fn close(&self, py: Python<'_>) {
        self.0.close(py);
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().0.check()?;
        Ok(slf)
    }
}

/// Returns `true` if no message has arrived, at once or in time.
fn is_empty(error: &RecvError) -> bool {
    matches!(error, RecvError::Empty | RecvError::TimedOut)
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
