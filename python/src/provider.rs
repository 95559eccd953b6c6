//! `Provider` and what it makes, and `Client`.

use crate::errors::{self, IntoPyErr};
use crate::exit::{self, detach, Closes};
use crate::fork::Process;
use crate::memory::{self, Buffer, Bytes, Message};
use crate::wait::{self, Deadline};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use shm_pool::{AllocError, BuildError, Descriptor, Namespace, ProviderId};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// A value that `close` drops. The lock is never held while a thread waits.
struct Closable<T> {
    value: Mutex<Option<Arc<T>>>,
    process: Process,
    object: &'static str,
}

impl<T: Send + Sync + 'static> Closable<T> {
    fn new(value: T, object: &'static str) -> Arc<Self> {
        let this = Arc::new(Self {
            value: Mutex::new(Some(Arc::new(value))),
            process: Process::current(),
            object,
        });
        exit::add(&this);
        this
    }

    fn get(&self) -> PyResult<Arc<T>> {
        self.process.check(self.object)?;
        let value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
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
    fn close(&self, py: Python<'_>) {
        let value = self
            .value
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        // Without the lock and the GIL: unmapping a large pool takes a while.
        detach(py, || drop(value));
    }
}

impl<T: Send + Sync + 'static> Closes for Closable<T> {
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

/// Allocates messages in shared memory.
///
/// ``max_bytes`` is the cap in bytes (default 1 GiB; memory is taken when it is first needed), ``max_alloc``
/// the largest buffer, ``max_bytes_per_peer`` how much one :class:`Client` may hold, ``name_prefix`` the
/// prefix of the names under /dev/shm (default ``"shm_pool"``), ``directory`` another tmpfs, and ``mode``
/// the permission bits (default 0o600).
///
/// >>> import shm_pool
/// >>> with shm_pool.Provider(max_bytes=64 << 20) as provider:
/// ...     buffer = provider.alloc(640 * 480)
/// ...     len(buffer)
/// 307200
///
/// Closing it returns idle memory to the system. Buffers stay valid. Memory of a provider that was
/// killed is removed by its last reader, or when the next one is made.
///
/// Raises :class:`InvalidArgument`, :class:`SystemCallFailed`.
#[pyclass(frozen, module = "shm_pool")]
pub(crate) struct Provider(Arc<Closable<shm_pool::Provider>>);

impl Provider {
    pub(crate) fn get(&self) -> PyResult<Arc<shm_pool::Provider>> {
        self.0.get()
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
        let provider = self.get()?;
        let request = || {
            let request = provider.request(len);
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
        wait::until(py, deadline, |time, is_last| {
            match detach(py, || request().wait_timeout(time)) {
                Err(AllocError::TimedOut { .. }) if !is_last => Ok(None),
                Err(AllocError::TimedOut { source, .. }) => {
                    let timeout = errors::waited(start);
                    Err(AllocError::TimedOut { timeout, source }.into_py())
                }
                allocated => allocated.map(Some).map_err(IntoPyErr::into_py),
            }
        })
    }
}

#[pymethods]
impl Provider {
    #[new]
    #[pyo3(signature = (*, max_bytes=None, max_alloc=None, max_bytes_per_peer=None, name_prefix=None, directory=None, mode=None))]
    fn new(
        py: Python<'_>,
        max_bytes: Option<usize>,
        max_alloc: Option<usize>,
        max_bytes_per_peer: Option<usize>,
        name_prefix: Option<String>,
        directory: Option<PathBuf>,
        mode: Option<u32>,
    ) -> PyResult<Self> {
        let mut builder = shm_pool::Provider::builder();
        if let Some(bytes) = max_bytes {
            builder = builder.max_bytes(bytes);
        }
        if let Some(bytes) = max_alloc {
            builder = builder.max_alloc(bytes);
        }
        if let Some(bytes) = max_bytes_per_peer {
            builder = builder.max_bytes_per_peer(bytes);
        }
        builder = builder.namespace(&namespace(name_prefix.as_deref(), directory)?);
        if let Some(mode) = mode {
            builder = builder.mode(mode);
        }
        let provider = detach(py, || builder.build()).map_err(IntoPyErr::into_py)?;
        Ok(Self(Closable::new(provider, "provider")))
    }

    /// The number by which clients connect.
    #[getter]
    fn id(&self) -> PyResult<u64> {
        Ok(self.get()?.id().to_u64())
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
        let deadline = Deadline::after(timeout)?;
        self.allocate(py, len, zeroed, deadline).map(Buffer::new)
    }

    /// Makes ``count`` buffers of ``len`` bytes in advance, until the reservation is closed: the first
    /// message then costs no more than later ones.
    ///
    /// Raises as :meth:`alloc`.
    fn reserve(&self, py: Python<'_>, len: usize, count: usize) -> PyResult<Reservation> {
        let provider = self.get()?;
        let reservation =
            detach(py, || provider.reserve(len, count)).map_err(IntoPyErr::into_py)?;
        Ok(Reservation(Closable::new(reservation, "reservation")))
    }

    /// Ends all current and future waits for memory with :class:`Interrupted`.
    fn close_waits(&self, py: Python<'_>) -> PyResult<()> {
        let provider = self.get()?;
        detach(py, || provider.close_waits());
        Ok(())
    }

    /// Returns all idle memory to the system, and the number of its bytes.
    fn trim(&self, py: Python<'_>) -> PyResult<usize> {
        let provider = self.get()?;
        Ok(detach(py, || provider.trim()))
    }

    /// Takes back what dead peers held, as :meth:`alloc` does at the cap. Returns how many messages.
    fn reclaim(&self, py: Python<'_>) -> PyResult<usize> {
        let provider = self.get()?;
        Ok(detach(py, || provider.reclaim()))
    }

    /// Refuses a client of this id from now on. It may keep what it has.
    fn disconnect(&self, peer: Vec<u8>) -> PyResult<()> {
        let peer = memory::peer_id(&peer)?;
        self.get()?.disconnect(peer).map_err(IntoPyErr::into_py)
    }

    /// Returns how much memory is held, in use and leased.
    fn stats(&self) -> PyResult<Stats> {
        let stats = self.get()?.stats();
        let (hits, misses) = (stats.hits(), stats.misses());
        let shm_pool::Stats {
            max_bytes,
            bytes_held,
            peak_bytes_held,
            bytes_in_use,
            bytes_leased,
            ..
        } = stats;
        let (bytes_mapped, segments) = (stats.bytes_mapped, stats.segments);
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

    /// Removes what killed providers of this prefix left in /dev/shm. Returns the numbers of objects and
    /// of bytes. :class:`Provider` does so, too, when it is made.
    #[staticmethod]
    #[pyo3(signature = (name_prefix, *, directory=None))]
    fn sweep(
        py: Python<'_>,
        name_prefix: &str,
        directory: Option<PathBuf>,
    ) -> PyResult<(u64, u64)> {
        let namespace = namespace(Some(name_prefix), directory)?;
        let swept =
            detach(py, || namespace.sweep()).map_err(|error| BuildError::from(error).into_py())?;
        Ok((swept.objects as u64, swept.bytes))
    }

    /// Closes the provider. A call that waits for memory in another thread raises :class:`Interrupted`.
    fn close(&self, py: Python<'_>) {
        // In a forked child, or if it is closed, there is nothing to end.
        if let Ok(provider) = self.get() {
            detach(py, || provider.close_waits());
        }
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
            Ok(provider) => format!("<shm_pool.Provider {}>", provider.id()),
            Err(_) => "<shm_pool.Provider, closed>".to_owned(),
        }
    }
}

/// Buffers made in advance, until it is closed. Made by :meth:`Provider.reserve`.
#[pyclass(frozen, module = "shm_pool")]
pub(crate) struct Reservation(Arc<Closable<shm_pool::Reservation>>);

#[pymethods]
impl Reservation {
    /// The number of buffers.
    #[getter]
    fn count(&self) -> PyResult<usize> {
        Ok(self.0.get()?.count())
    }

    /// Ends the reservation: its idle buffers are like others from now on.
    fn close(&self, py: Python<'_>) {
        self.0.close(py);
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().0.get()?;
        Ok(slf)
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyAny>) {
        self.0.close(py);
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
        let Self {
            max_bytes,
            bytes_held,
            bytes_in_use,
            bytes_leased,
            ..
        } = self;
        format!(
            "<shm_pool.Stats: {bytes_held} of {max_bytes} bytes held, {bytes_in_use} in use, {bytes_leased} leased>"
        )
    }
}

/// Returns the namespace of these options.
fn namespace(name_prefix: Option<&str>, directory: Option<PathBuf>) -> PyResult<Namespace> {
    let mut namespace = Namespace::default();
    if let Some(prefix) = name_prefix {
        namespace = Namespace::new(prefix).map_err(IntoPyErr::into_py)?;
    }
    if let Some(directory) = directory {
        namespace = namespace
            .in_directory(directory)
            .map_err(IntoPyErr::into_py)?;
    }
    Ok(namespace)
}

/// Reads messages of other processes by their descriptors. One for each process is enough.
///
/// The providers have its ``name_prefix``, ``directory`` and user (``owner_uid``, by default this one).
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
    pub(crate) fn get(&self) -> PyResult<Arc<shm_pool::Client>> {
        self.0.get()
    }

    pub(crate) fn build(
        name_prefix: Option<String>,
        directory: Option<PathBuf>,
        owner_uid: Option<u32>,
    ) -> PyResult<shm_pool::Client> {
        let mut namespace = namespace(name_prefix.as_deref(), directory)?;
        if let Some(uid) = owner_uid {
            namespace = namespace.of_user(uid);
        }
        Ok(shm_pool::Client::builder().namespace(&namespace).build())
    }
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (*, name_prefix=None, directory=None, owner_uid=None))]
    fn new(
        name_prefix: Option<String>,
        directory: Option<PathBuf>,
        owner_uid: Option<u32>,
    ) -> PyResult<Self> {
        Ok(Self(Closable::new(
            Self::build(name_prefix, directory, owner_uid)?,
            "client",
        )))
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
        let peer = detach(py, || client.connect(ProviderId::from_u64(provider)))
            .map_err(IntoPyErr::into_py)?;
        Ok(PyBytes::new(py, &peer.to_bytes()))
    }

    /// Maps all memory of a provider now, so that the first message costs no page fault. Returns its bytes.
    fn warm(&self, py: Python<'_>, provider: u64) -> PyResult<usize> {
        let client = self.get()?;
        detach(py, || client.warm(ProviderId::from_u64(provider))).map_err(IntoPyErr::into_py)
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
}
