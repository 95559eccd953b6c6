//! `Provider` with its reservations and statistics, and `Client`.

use crate::errors::{self, IntoPyErr};
use crate::exit::{self, detach, Closes};
use crate::fork::Process;
use crate::lock::lock;
use crate::memory::{self, Buffer, Bytes, Message};
use crate::names::{self, In};
use crate::options::{self, set};
use crate::pending::{Operation, Pending};
use crate::wait::{self, Deadline};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use shm_pool::{AllocError, Descriptor, ProviderBuilder, ProviderId, ShmBytesMut};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Instant;

/// What a [`Closable`] holds.
pub(crate) trait Closing: Send + Sync + 'static {
    /// Ends the waits of calls that still use it, if there may be any.
    fn end_waits(&self) {}
}

impl Closing for shm_pool::Reservation {}
impl Closing for shm_pool::Client {}

/// A value that `close` drops. The lock is never held while a thread waits.
pub(crate) struct Closable<T> {
    value: Mutex<Option<Arc<T>>>,
    process: Process,
    object: &'static str,
}

impl<T: Closing> Closable<T> {
    pub(crate) fn new(value: T, object: &'static str) -> Arc<Self> {
        let this = Arc::new(Self {
            value: Mutex::new(Some(Arc::new(value))),
            process: Process::current(),
            object,
        });
        exit::add(&this);
        this
    }

    pub(crate) fn get(&self) -> PyResult<Arc<T>> {
        self.process.check(self.object)?;
        let value = lock(&self.value);
        if let Some(value) = &*value {
            return Ok(value.clone());
        }
        drop(value);
        exit::park_if_exiting();
        Err(errors::Closed::new_err(format!(
            "this {} was closed",
            self.object
        )))
    }

    /// Drops the value, after the calls that use it.
    pub(crate) fn close(&self, py: Python<'_>) {
        let value = lock(&self.value).take();
        // Without the lock and the GIL: unmapping a large pool takes a while.
        detach(py, || {
            if let Some(value) = value {
                value.end_waits();
            }
        });
    }
}

impl<T: Closing> Closes for Closable<T> {
    fn process(&self) -> Process {
        self.process
    }

    fn close(&self, py: Python<'_>) {
        self.close(py);
    }
}

impl<T> Drop for Closable<T> {
    fn drop(&mut self) {
        exit::remove(self);
    }
}

/// A use of a provider's memory: by a `Provider`, a sender or a publisher. The last one that leaves ends
/// all waits for memory.
pub(crate) struct Pool {
    provider: shm_pool::Provider,
    users: Arc<AtomicUsize>,
    has_left: AtomicBool,
}

impl Pool {
    fn new(provider: shm_pool::Provider) -> Self {
        Self {
            provider,
            users: Arc::new(AtomicUsize::new(1)),
            has_left: AtomicBool::new(false),
        }
    }

    /// Returns another use of the same memory, of `object`.
    pub(crate) fn share(&self, object: &'static str) -> PyResult<Arc<Closable<Self>>> {
        // AcqRel: the users come and go in one order.
        let joined = self
            .users
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |users| match users {
                0 => None,
                users => Some(users + 1),
            });
        if joined.is_err() {
            return Err(errors::Closed::new_err("this provider was closed"));
        }
        let pool = Self {
            provider: self.provider.clone(),
            users: self.users.clone(),
            has_left: AtomicBool::new(false),
        };
        Ok(Closable::new(pool, object))
    }

    pub(crate) fn provider(&self) -> &shm_pool::Provider {
        &self.provider
    }

    /// Allocates a buffer for Python.
    pub(crate) fn alloc(
        &self,
        py: Python<'_>,
        len: usize,
        zeroed: bool,
        timeout: Option<f64>,
    ) -> PyResult<Buffer> {
        let deadline = Deadline::after(timeout)?;
        let buffer = self.allocate(py, len, zeroed, deadline)?;
        Ok(Buffer::new(buffer, self.provider.id()))
    }

    /// Allocates a buffer with a copy of these bytes.
    pub(crate) fn copy(
        &self,
        py: Python<'_>,
        bytes: &Bytes,
        deadline: Deadline,
    ) -> PyResult<shm_pool::ShmBytes> {
        let mut buffer = self.allocate(py, bytes.len(), false, deadline)?;
        bytes.copy_to(&mut buffer);
        Ok(buffer.freeze())
    }

    fn allocate(
        &self,
        py: Python<'_>,
        len: usize,
        zeroed: bool,
        deadline: Deadline,
    ) -> PyResult<shm_pool::ShmBytesMut> {
        let request = || {
            let request = self.provider.request(len);
            if zeroed {
                request.zeroed()
            } else {
                request
            }
        };
        match request().alloc() {
            Err(error) if error.is_exhausted() && !deadline.is_now() => {}
            allocated => return allocated.map_err(IntoPyErr::into_py),
        }
        let start = Instant::now();
        let whole_wait = |error| match error {
            AllocError::TimedOut { source, .. } => AllocError::TimedOut {
                timeout: errors::waited(start),
                source,
            },
            error => error,
        };
        let is_timeout = |error: &AllocError| matches!(error, AllocError::TimedOut { .. });
        wait::retry(py, deadline, is_timeout, |time| {
            request().wait_timeout(time).map_err(whole_wait)
        })
    }
}

impl Closing for Pool {
    fn end_waits(&self) {
        // Relaxed: only the first caller continues, whatever it has seen.
        if self.has_left.swap(true, Ordering::Relaxed) {
            return;
        }
        // AcqRel: the users come and go in one order.
        if self.users.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.provider.close_waits();
        }
    }
}

/// One that was not closed is closed now.
impl Drop for Pool {
    fn drop(&mut self) {
        self.end_waits();
    }
}

/// Allocates messages in shared memory.
///
/// ``max_bytes`` is the cap in bytes (default 1 GiB; memory is taken when it is first needed). ``room_for`` adds
/// what messages take to the cap, by default to nothing: it is a list of pairs, of a length and of how many
/// messages of that length there are at a time. ``max_alloc`` is the largest buffer, ``max_bytes_per_peer`` how
/// much one :class:`Client` may hold, ``namespace`` where its names are (a :class:`Namespace`, or its prefix), and
/// ``mode`` the permission bits (default 0o600). ``lock_memory=True`` keeps its memory from being swapped out,
/// ``max_idle_per_class`` is how many idle buffers of one size are kept, and ``max_shared`` how many buffers may be
/// shared at a time.
///
/// >>> import shm_pool
/// >>> with shm_pool.Provider(max_bytes=64 << 20) as provider:
/// ...     buffer = provider.alloc(640 * 480)
/// ...     len(buffer)
/// 307200
/// >>> with shm_pool.Provider(room_for=[(640 * 480, 8), (10_000, 16)]) as provider:
/// ...     frames = [provider.alloc(640 * 480) for _ in range(8)]
/// ...     scans = [provider.alloc(10_000) for _ in range(16)]
///
/// Its senders and publishers use its memory, too. When it and all of them are closed, idle memory returns to the
/// system. Buffers stay valid. Memory of a provider that was killed is removed by its last reader, or when the next
/// one is made.
///
/// >>> with shm_pool.Provider() as provider:
/// ...     publisher = shm_pool.Publisher(provider, "docs-outlives")
/// >>> len(publisher.alloc(1000))
/// 1000
/// >>> provider.alloc(1000)
/// Traceback (most recent call last):
///     ...
/// shm_pool.errors.Closed: this provider was closed
///
/// Raises :class:`InvalidArgument`, and :class:`SystemCallFailed`: with EPERM if it may not lock so much memory, and
/// with ENOMEM if it finds none for its lists.
#[pyclass(frozen, module = "shm_pool")]
pub(crate) struct Provider(Arc<Closable<Pool>>);

impl Provider {
    pub(crate) fn get(&self) -> PyResult<Arc<Pool>> {
        self.0.get()
    }
}

/// Reads the keyword arguments of a provider.
fn provider_builder(options: Option<&Bound<'_, PyDict>>) -> PyResult<ProviderBuilder> {
    let mut builder = shm_pool::Provider::builder();
    for option in options::keywords(options)? {
        builder = match option.name() {
            "max_bytes" => set(builder, option.read()?, ProviderBuilder::max_bytes),
            "room_for" => {
                let lengths: Option<Vec<(usize, usize)>> = option.read()?;
                for (len, count) in lengths.unwrap_or_default() {
                    builder = builder.room_for(len, count);
                }
                builder
            }
            "max_alloc" => set(builder, option.read()?, ProviderBuilder::max_alloc),
            "max_bytes_per_peer" => {
                set(builder, option.read()?, ProviderBuilder::max_bytes_per_peer)
            }
            "namespace" => builder.namespace(&names::namespace(option.read()?)?),
            "mode" => set(builder, option.read()?, ProviderBuilder::mode),
            "lock_memory" => set(builder, option.read()?, ProviderBuilder::lock_memory),
            "max_idle_per_class" => {
                set(builder, option.read()?, ProviderBuilder::max_idle_per_class)
            }
            "max_shared" => set(builder, option.read()?, ProviderBuilder::max_shared),
            _ => return Err(option.unexpected("Provider()")),
        };
    }
    Ok(builder)
}

#[pymethods]
impl Provider {
    #[new]
    #[pyo3(
        signature = (**options),
        text_signature = "(*, max_bytes=None, room_for=None, max_alloc=None, \
                          max_bytes_per_peer=None, namespace=None, mode=None, lock_memory=None, \
                          max_idle_per_class=None, max_shared=None)"
    )]
    fn new(py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let builder = provider_builder(options)?;
        let provider = detach(py, || builder.build()).map_err(IntoPyErr::into_py)?;
        Ok(Self(Closable::new(Pool::new(provider), "provider")))
    }

    /// Returns how many bytes of ``max_bytes`` a message of ``len`` bytes takes.
    ///
    /// >>> import shm_pool
    /// >>> shm_pool.Provider.chunk_size(100)
    /// 128
    #[staticmethod]
    fn chunk_size(len: usize) -> usize {
        shm_pool::Provider::chunk_size(len)
    }

    /// The number by which clients connect.
    #[getter]
    fn id(&self) -> PyResult<u64> {
        Ok(u64::from(self.get()?.provider.id()))
    }

    /// Allocates a buffer of ``len`` bytes, aligned to 64, with any content or zeroed.
    ///
    /// At the cap it waits at most ``timeout`` seconds for memory, by default not at all. In the main
    /// thread, a wait that lasts is renewed ten times a second, behind the requests of other threads.
    ///
    /// Raises :class:`PoolExhausted` at the cap and :class:`Timeout` after a wait, :class:`InvalidArgument`
    /// if it can never fit, :class:`Interrupted`, :class:`SystemCallFailed`.
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
        self.get()?.alloc(py, len, zeroed, timeout)
    }

    /// Allocates as :meth:`alloc`, and waits for memory without blocking the event loop of asyncio. When it is
    /// cancelled, nothing is allocated. Any number of tasks may wait.
    ///
    /// Raises :class:`InvalidArgument` if it can never fit, :class:`Interrupted`, :class:`SystemCallFailed`.
    #[pyo3(signature = (len, *, zeroed=false))]
    fn alloc_async<'py>(
        &self,
        py: Python<'py>,
        len: usize,
        zeroed: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let pool = self.get()?;
        let id = pool.provider.id();
        let mut allocation = Allocation::new(pool, len, zeroed);
        let operation: Operation = Box::new(move |py, context| {
            let Some(buffer) = allocation.poll(context)? else {
                return Ok(None);
            };
            let buffer = Py::new(py, Buffer::new(buffer, id))?;
            Ok(Some(buffer.into_any()))
        });
        Pending::coroutine(py, operation)
    }

    /// Makes ``count`` buffers of ``len`` bytes in advance, until the reservation is closed: the first
    /// message then costs no more than later ones.
    ///
    /// Raises as :meth:`alloc`, also :class:`InvalidArgument` above ``max_idle_per_class``, and :class:`Error` if too
    /// many buffers are shared.
    fn reserve(&self, py: Python<'_>, len: usize, count: usize) -> PyResult<Reservation> {
        let pool = self.get()?;
        let reservation =
            detach(py, || pool.provider.reserve(len, count)).map_err(IntoPyErr::into_py)?;
        Ok(Reservation {
            reservation: Closable::new(reservation, "reservation"),
            count,
        })
    }

    /// Ends all current and future waits for memory with :class:`Interrupted`, also those of senders and publishers.
    fn close_waits(&self, py: Python<'_>) -> PyResult<()> {
        let pool = self.get()?;
        detach(py, || pool.provider.close_waits());
        Ok(())
    }

    /// Returns all idle memory to the system, and the number of its bytes.
    fn trim(&self, py: Python<'_>) -> PyResult<usize> {
        let pool = self.get()?;
        Ok(detach(py, || pool.provider.trim()))
    }

    /// Returns idle memory to the system until ``bytes_held`` of :meth:`stats` is at most ``bytes``, as far as
    /// possible. Reserved buffers stay. Returns the number of bytes.
    ///
    /// >>> import shm_pool
    /// >>> provider = shm_pool.Provider()
    /// >>> provider.alloc(4 << 20).release()
    /// >>> provider.trim_to(1 << 20) > 0, provider.stats().bytes_held <= 1 << 20
    /// (True, True)
    fn trim_to(&self, py: Python<'_>, bytes: usize) -> PyResult<usize> {
        let pool = self.get()?;
        Ok(detach(py, || pool.provider.trim_to(bytes)))
    }

    /// Takes back what dead peers held, as :meth:`alloc` does at the cap. Returns how many messages.
    fn reclaim(&self, py: Python<'_>) -> PyResult<usize> {
        let pool = self.get()?;
        Ok(detach(py, || pool.provider.reclaim()))
    }

    /// Refuses a client of this id from now on. It may keep what it has. Returns ``False`` if it is not
    /// connected.
    fn disconnect(&self, peer: Vec<u8>) -> PyResult<bool> {
        let peer = memory::peer_id(&peer)?;
        let pool = self.get()?;
        Ok(pool.provider.disconnect(peer))
    }

    /// Returns how much memory is held, in use and leased.
    fn stats(&self) -> PyResult<Stats> {
        let stats = self.get()?.provider.stats();
        let hits = stats.hits();
        let misses = stats.misses();
        let shm_pool::Stats {
            max_bytes,
            bytes_held,
            peak_bytes_held,
            bytes_in_use,
            bytes_leased,
            bytes_mapped,
            segments,
            ..
        } = stats;
        Ok(Stats {
            max_bytes,
            bytes_held,
            peak_bytes_held,
            bytes_in_use,
            bytes_leased,
            bytes_mapped,
            segments,
            hits,
            misses,
        })
    }

    /// Closes the provider. Its senders and publishers keep its memory, and allocate and send as before. When they
    /// are closed, too, a call that waits for memory in another thread raises :class:`Interrupted`.
    fn close(&self, py: Python<'_>) {
        self.0.close(py);
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().get()?;
        Ok(slf)
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyAny>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        match self.get() {
            Ok(pool) => format!("<shm_pool.Provider {}>", pool.provider.id()),
            Err(_) => "<shm_pool.Provider, closed>".to_owned(),
        }
    }
}

/// Buffers made in advance, until it is closed. Made by :meth:`Provider.reserve`.
#[pyclass(frozen, module = "shm_pool")]
pub(crate) struct Reservation {
    reservation: Arc<Closable<shm_pool::Reservation>>,
    count: usize,
}

#[pymethods]
impl Reservation {
    /// The number of buffers.
    #[getter]
    fn count(&self) -> PyResult<usize> {
        self.reservation.get()?;
        Ok(self.count)
    }

    /// Ends the reservation: its idle buffers are like others from now on.
    fn close(&self, py: Python<'_>) {
        self.reservation.close(py);
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().reservation.get()?;
        Ok(slf)
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyAny>) {
        self.reservation.close(py);
    }

    fn __repr__(&self) -> String {
        match self.reservation.get() {
            Ok(_) => format!("<shm_pool.Reservation of {} buffers>", self.count),
            Err(_) => "<shm_pool.Reservation, closed>".to_owned(),
        }
    }
}

/// A snapshot of a provider's memory, in bytes. Made by :meth:`Provider.stats`.
#[pyclass(frozen, get_all, module = "shm_pool")]
pub(crate) struct Stats {
    max_bytes: usize,
    bytes_held: usize,
    peak_bytes_held: usize,
    bytes_in_use: usize,
    bytes_leased: usize,
    bytes_mapped: usize,
    segments: usize,
    hits: u64,
    misses: u64,
}

#[pymethods]
impl Stats {
    fn __repr__(&self) -> String {
        format!(
            "Stats(max_bytes={}, bytes_held={}, peak_bytes_held={}, bytes_in_use={}, \
             bytes_leased={}, bytes_mapped={}, segments={}, hits={}, misses={})",
            self.max_bytes,
            self.bytes_held,
            self.peak_bytes_held,
            self.bytes_in_use,
            self.bytes_leased,
            self.bytes_mapped,
            self.segments,
            self.hits,
            self.misses
        )
    }
}

/// An allocation that a coroutine awaits.
pub(crate) struct Allocation {
    pool: Arc<Pool>,
    len: usize,
    is_zeroed: bool,
    future: Option<AllocFuture>,
}

type AllocFuture = Pin<Box<dyn Future<Output = Result<ShmBytesMut, AllocError>> + Send>>;

impl Allocation {
    pub(crate) fn new(pool: Arc<Pool>, len: usize, is_zeroed: bool) -> Self {
        Self {
            pool,
            len,
            is_zeroed,
            future: None,
        }
    }

    /// Returns the buffer, or `None` if there is no memory: then call it again with a context.
    pub(crate) fn poll(
        &mut self,
        context: Option<&mut Context<'_>>,
    ) -> PyResult<Option<ShmBytesMut>> {
        let Some(context) = context else {
            let mut request = self.pool.provider.request(self.len);
            if self.is_zeroed {
                request = request.zeroed();
            }
            return match request.alloc() {
                Ok(buffer) => Ok(Some(buffer)),
                Err(error) if error.is_exhausted() => Ok(None),
                Err(error) => Err(error.into_py()),
            };
        };
        let future = self.future.get_or_insert_with(|| {
            let provider = self.pool.provider.clone();
            let len = self.len;
            let is_zeroed = self.is_zeroed;
            Box::pin(async move {
                let mut request = provider.request(len);
                if is_zeroed {
                    request = request.zeroed();
                }
                request.wait_async().await
            })
        });
        match future.as_mut().poll(context) {
            Poll::Ready(Ok(buffer)) => Ok(Some(buffer)),
            Poll::Ready(Err(error)) => Err(error.into_py()),
            Poll::Pending => Ok(None),
        }
    }
}

/// Reads messages of other processes by their descriptors. One for each process is enough.
///
/// The providers are in its ``namespace``, by default the default one.
///
/// >>> import shm_pool
/// >>> client = shm_pool.Client()
/// >>> provider = shm_pool.Provider()
/// >>> peer = client.connect(provider.id)  # 24 bytes, for the provider's process
/// >>> with provider.alloc(2, zeroed=True) as buffer:
/// ...     descriptor = buffer.grant(peer)
/// >>> bytes(client.attach(descriptor))
/// b'\x00\x00'
#[pyclass(frozen, module = "shm_pool")]
pub(crate) struct Client(Arc<Closable<shm_pool::Client>>);

impl Client {
    fn get(&self) -> PyResult<Arc<shm_pool::Client>> {
        self.0.get()
    }
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (namespace=None))]
    fn new(namespace: Option<In<'_>>) -> PyResult<Self> {
        let namespace = names::namespace(namespace)?;
        let client = shm_pool::Client::in_namespace(&namespace);
        Ok(Self(Closable::new(client, "client")))
    }

    /// Returns the message that the 32 bytes of a descriptor name.
    ///
    /// Raises :class:`Stale` if its memory was used again, :class:`NotFound` and :class:`Disconnected` if
    /// its provider has closed or died, :class:`TooManyBorrowed` if this client holds as much as it may,
    /// :class:`InvalidArgument` if the bytes are no descriptor.
    fn attach(&self, py: Python<'_>, descriptor: Vec<u8>) -> PyResult<Message> {
        let client = self.get()?;
        let descriptor = Descriptor::try_from(&*descriptor).map_err(IntoPyErr::into_py)?;
        // Without the GIL: the first attach to a provider maps its memory.
        let view = detach(py, || client.attach(&descriptor)).map_err(IntoPyErr::into_py)?;
        Ok(Message::of_client(view))
    }

    /// Connects to a provider, by its id, and returns the 24 bytes for :meth:`Buffer.grant`.
    fn connect<'py>(&self, py: Python<'py>, provider: u64) -> PyResult<Bound<'py, PyBytes>> {
        let client = self.get()?;
        let peer = detach(py, || client.connect(ProviderId::from(provider)))
            .map_err(IntoPyErr::into_py)?;
        Ok(PyBytes::new(py, &peer.to_bytes()))
    }

    /// Maps all memory of a provider now, so that the first message costs no page fault. Returns its bytes.
    fn warm(&self, py: Python<'_>, provider: u64) -> PyResult<usize> {
        let client = self.get()?;
        detach(py, || client.warm(ProviderId::from(provider))).map_err(IntoPyErr::into_py)
    }

    /// Closes the client. Messages stay valid, and keep its place at their providers.
    fn close(&self, py: Python<'_>) {
        self.0.close(py);
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().get()?;
        Ok(slf)
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyAny>) {
        self.0.close(py);
    }

    fn __repr__(&self) -> String {
        match self.get() {
            Ok(client) => format!("<shm_pool.Client of {:?}>", client.namespace().prefix()),
            Err(_) => "<shm_pool.Client, closed>".to_owned(),
        }
    }
}
