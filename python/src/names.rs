//! `Namespace`, and its results: `ChannelInfo`, `ChannelChange`, `Watcher`, `Swept`.

use crate::end::End;
use crate::errors::IntoPyErr;
use crate::exit::detach;
use crate::receiving::{self, Incoming, Input};
use crate::wait::Deadline;
use pyo3::prelude::*;
use shm_pool::channel::{self, RecvError};
use shm_pool::BuildError;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Where channels are and whose they are: the prefix of their names, a directory, and a user.
///
/// Programs with different prefixes do not see each other. By default it is the prefix ``"shm_pool"``, the
/// ``directory`` /dev/shm, and the user of this process; ``uid`` is another user, whose channels are to be
/// received. Wherever a namespace is an argument, a prefix is one, too.
///
/// >>> import shm_pool
/// >>> robot7 = shm_pool.Namespace("docs-robot7")
/// >>> provider = shm_pool.Provider(namespace=robot7)
/// >>> camera = shm_pool.Publisher(provider, "camera")
/// >>> robot7.channels()
/// [ChannelInfo('camera', is_publisher=True)]
/// >>> shm_pool.Subscriber("camera", namespace="docs-robot7", timeout=1).name
/// 'camera'
///
/// Raises :class:`InvalidArgument`.
#[pyclass(frozen, eq, hash, module = "shm_pool")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Namespace(shm_pool::Namespace);

/// An argument: a namespace, or a prefix of its names.
#[derive(FromPyObject)]
pub(crate) enum In<'py> {
    #[pyo3(transparent, annotation = "Namespace")]
    Namespace(Bound<'py, Namespace>),
    #[pyo3(transparent, annotation = "str")]
    Prefix(String),
}

/// Returns the namespace of an argument, by default the default.
pub(crate) fn namespace(argument: Option<In<'_>>) -> PyResult<shm_pool::Namespace> {
    match argument {
        None => Ok(shm_pool::Namespace::default()),
        Some(In::Namespace(namespace)) => Ok(namespace.get().0.clone()),
        Some(In::Prefix(prefix)) => shm_pool::Namespace::new(&prefix).map_err(IntoPyErr::into_py),
    }
}

#[pymethods]
impl Namespace {
    #[new]
    #[pyo3(signature = (prefix=None, *, directory=None, uid=None))]
    fn new(prefix: Option<&str>, directory: Option<PathBuf>, uid: Option<u32>) -> PyResult<Self> {
        let mut namespace = match prefix {
            Some(prefix) => shm_pool::Namespace::new(prefix).map_err(IntoPyErr::into_py)?,
            None => shm_pool::Namespace::default(),
        };
        if let Some(directory) = directory {
            namespace = namespace
                .in_directory(directory)
                .map_err(IntoPyErr::into_py)?;
        }
        if let Some(uid) = uid {
            namespace = namespace.of_user(uid);
        }
        Ok(Self(namespace))
    }

    /// What the names of its files begin with.
    #[getter]
    fn prefix(&self) -> &str {
        self.0.prefix()
    }

    /// Where its files are.
    #[getter]
    fn directory(&self) -> String {
        self.0.directory().to_string_lossy().into_owned()
    }

    /// The user to whom they belong.
    #[getter]
    fn uid(&self) -> u32 {
        self.0.uid()
    }

    /// Returns the channels whose senders and publishers are alive, by name. See :class:`Watcher` to wait
    /// for them.
    ///
    /// Raises :class:`SystemCallFailed`.
    fn channels(&self, py: Python<'_>) -> PyResult<Vec<ChannelInfo>> {
        let channels = detach(py, || self.0.channels()).map_err(IntoPyErr::into_py)?;
        Ok(channels.into_iter().map(ChannelInfo).collect())
    }

    /// Removes what killed providers left in its directory. :class:`Provider` does so, too, when it is made.
    ///
    /// >>> import shm_pool
    /// >>> shm_pool.Namespace("docs-sweep").sweep()
    /// Swept(objects=0, bytes=0)
    ///
    /// Raises :class:`SystemCallFailed`.
    fn sweep(&self, py: Python<'_>) -> PyResult<Swept> {
        let swept =
            detach(py, || self.0.sweep()).map_err(|error| BuildError::from(error).into_py())?;
        Ok(Swept {
            objects: swept.objects,
            bytes: swept.bytes,
        })
    }

    fn __repr__(&self) -> String {
        let prefix = self.0.prefix();
        let directory = self.directory();
        format!(
            "Namespace({prefix:?}, directory={directory:?}, uid={})",
            self.0.uid()
        )
    }
}

/// What :meth:`Namespace.sweep` has removed: the number of ``objects`` and of their ``bytes``.
#[pyclass(frozen, get_all, eq, module = "shm_pool")]
#[derive(PartialEq, Eq)]
pub(crate) struct Swept {
    objects: usize,
    bytes: u64,
}

#[pymethods]
impl Swept {
    fn __repr__(&self) -> String {
        format!("Swept(objects={}, bytes={})", self.objects, self.bytes)
    }
}

/// A channel whose sender or publisher is alive. Made by :meth:`Namespace.channels` and :class:`Watcher`.
#[pyclass(frozen, eq, hash, module = "shm_pool")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct ChannelInfo(channel::ChannelInfo);

#[pymethods]
impl ChannelInfo {
    /// Its name.
    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    /// Whether it has a :class:`Publisher`, and not a :class:`Sender`.
    #[getter]
    fn is_publisher(&self) -> bool {
        self.0.is_publisher
    }

    /// The number of its provider, as :attr:`Provider.id`.
    #[getter]
    fn provider(&self) -> u64 {
        u64::from(self.0.provider)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let name = self.0.name.as_str().into_pyobject(py)?.repr()?;
        let is_publisher = if self.0.is_publisher { "True" } else { "False" };
        Ok(format!("ChannelInfo({name}, is_publisher={is_publisher})"))
    }
}

/// What a :class:`Watcher` reports: a ``channel`` was created, or, if ``is_closed``, its sender or publisher
/// has closed or died.
#[pyclass(frozen, get_all, eq, module = "shm_pool")]
#[derive(PartialEq, Eq)]
pub(crate) struct ChannelChange {
    channel: ChannelInfo,
    is_closed: bool,
}

impl From<channel::ChannelChange> for ChannelChange {
    fn from(change: channel::ChannelChange) -> Self {
        match change {
            channel::ChannelChange::Closed(channel) => Self {
                channel: ChannelInfo(channel),
                is_closed: true,
            },
            channel::ChannelChange::Created(channel) => Self {
                channel: ChannelInfo(channel),
                is_closed: false,
            },
            // The enum is not exhaustive.
            other => unreachable!("the kind of change is unknown: {other:?}"),
        }
    }
}

#[pymethods]
impl ChannelChange {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let channel = self.channel.__repr__(py)?;
        let is_closed = if self.is_closed { "True" } else { "False" };
        Ok(format!("ChannelChange({channel}, is_closed={is_closed})"))
    }
}

impl Incoming<channel::ChannelChange> for channel::Watcher {
    fn try_next(&mut self) -> Result<channel::ChannelChange, RecvError> {
        self.recv_timeout(Duration::ZERO)
    }

    fn next_within(&mut self, timeout: Duration) -> Result<channel::ChannelChange, RecvError> {
        self.recv_timeout(timeout)
    }

    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<channel::ChannelChange, RecvError>> {
        self.poll_recv(context)
    }
}

/// Reports the channels of a namespace that exist, and then each one that is created or ends. A restart is
/// reported as an end and a creation. A channel that ends before the watcher has looked at it is not
/// reported.
///
/// >>> import shm_pool
/// >>> watcher = shm_pool.Watcher("docs-watcher")
/// >>> provider = shm_pool.Provider(namespace="docs-watcher")
/// >>> camera = shm_pool.Publisher(provider, "camera")
/// >>> watcher.recv(timeout=1)
/// ChannelChange(ChannelInfo('camera', is_publisher=True), is_closed=False)
/// >>> camera.close()
/// >>> watcher.recv(timeout=1).is_closed
/// True
///
/// It is an iterator, and under asyncio an asynchronous iterator, that never ends.
///
/// Raises :class:`InvalidArgument`.
#[pyclass(frozen, module = "shm_pool")]
pub(crate) struct Watcher(Arc<End<Input<channel::Watcher>>>);

fn change(py: Python<'_>, change: channel::ChannelChange) -> PyResult<Py<PyAny>> {
    Ok(Py::new(py, ChannelChange::from(change))?.into_any())
}

#[pymethods]
impl Watcher {
    #[new]
    #[pyo3(signature = (namespace=None))]
    fn new(namespace: Option<In<'_>>) -> PyResult<Self> {
        let namespace = self::namespace(namespace)?;
        let watcher = channel::Watcher::new(&namespace);
        let interrupter = watcher.interrupter();
        let input = Input::new(watcher);
        let end = End::new(input, interrupter, "watcher", namespace.prefix());
        Ok(Self(end))
    }

    /// Returns the next change, waiting at most ``timeout`` seconds, by default without limit.
    ///
    /// Raises :class:`Timeout`, :class:`Interrupted`, :class:`SystemCallFailed`.
    #[pyo3(signature = (*, timeout=None))]
    fn recv(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<ChannelChange> {
        let deadline = Deadline::after(timeout)?;
        let change = receiving::recv(py, &self.0, deadline)?;
        Ok(ChannelChange::from(change))
    }

    /// Returns the next change, or ``None`` if there is none. Raises as :meth:`recv`.
    fn try_recv(&self) -> PyResult<Option<ChannelChange>> {
        let change = receiving::try_recv(&self.0)?;
        Ok(change.map(ChannelChange::from))
    }

    /// Returns the next change without blocking the event loop of asyncio. Cancelling loses no change. One
    /// task at a time; another one gets :class:`InUse`.
    ///
    /// Raises :class:`SystemCallFailed`.
    fn recv_async<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        receiving::recv_async(py, &self.0, change)
    }

    /// Returns a descriptor for ``select``, ``selectors`` and other event loops. It is readable
    /// whenever there may be a change: then call :meth:`try_recv` until it returns ``None``.
    fn fileno(&self) -> PyResult<RawFd> {
        receiving::fileno(&self.0)
    }

    /// Ends the current wait, or the next one, with :class:`Interrupted`. For other threads.
    fn interrupt(&self) {
        self.0.interrupt();
    }

    /// Closes the watcher. A call that waits in another thread, or a task that awaits, raises
    /// :class:`Closed`.
    fn close(&self, py: Python<'_>) {
        self.0.close(py);
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<ChannelChange> {
        self.recv(py, None)
    }

    fn __aiter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __anext__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.recv_async(py)
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().0.check()?;
        Ok(slf)
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyAny>) {
        self.0.close(py);
    }

    fn __repr__(&self) -> String {
        self.0.text("Watcher of")
    }
}
