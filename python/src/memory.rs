//! `Buffer`, memory to fill and send, and `Message`, memory that was received: both by the buffer
//! protocol, without a copy.
//!
//! Python's consumers, such as memoryview and numpy, hold *exports*: raw pointers, each with a
//! reference to the object. **While there is an export, the content is neither dropped nor moved,
//! and a `Buffer` does not become a message.** So a pointer in Python's hands is valid, memory that
//! an array refers to stays borrowed, and nothing that was sent can be written.
//!
//! Content and count are behind one lock, taken with the GIL held and never while Python code runs.

use crate::dlpack;
use crate::errors::{self, IntoPyErr};
use crate::fork::Process;
use crate::lock::lock;
use pyo3::exceptions::{PyBufferError, PyIndexError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyEllipsis, PyMemoryView, PySlice};
use shm_pool::channel;
use shm_pool::{PeerId, ProviderId, ShmBytes, ShmBytesMut, ShmView};
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::ptr;
use std::sync::{Mutex, MutexGuard};

/// Content that Python may refer to.
struct Exported<T> {
    content: Option<T>,
    exports: usize,
    /// `true` if the content is dropped with its last export.
    is_ending: bool,
}

impl<T> Exported<T> {
    fn new(content: T) -> Mutex<Self> {
        Mutex::new(Self {
            content: Some(content),
            exports: 0,
            is_ending: false,
        })
    }

    fn get(&self, object: &str) -> PyResult<&T> {
        match &self.content {
            Some(content) if !self.is_ending => Ok(content),
            _ => Err(released(object)),
        }
    }

    fn check_exports(&self, object: &str, operation: &str) -> PyResult<()> {
        let text = match self.exports {
            0 => return Ok(()),
            1 => format!(
                "1 array or memoryview refers to this {object}: \
                 delete it before it is {operation}"
            ),
            exports => format!(
                "{exports} arrays or memoryviews refer to this {object}: \
                 delete them before it is {operation}"
            ),
        };
        Err(PyBufferError::new_err(text))
    }

    fn release(&mut self, object: &str) -> PyResult<()> {
        self.check_exports(object, "released")?;
        self.content = None;
        Ok(())
    }

    /// Releases the content, or leaves that to the last export.
    fn end(&mut self) {
        self.is_ending = true;
        if self.exports == 0 {
            self.content = None;
        }
    }

    fn end_export(&mut self) {
        self.exports = self.exports.saturating_sub(1);
        if self.is_ending && self.exports == 0 {
            self.content = None;
        }
    }
}

fn released(object: &str) -> PyErr {
    errors::Closed::new_err(format!("this {object} was released"))
}

/// Reads what `Client.connect` has returned.
pub(crate) fn peer_id(bytes: &[u8]) -> PyResult<PeerId> {
    PeerId::try_from(bytes).map_err(|_| {
        errors::InvalidArgument::new_err(format!(
            "a peer has {} bytes, but {} were given",
            PeerId::SIZE,
            bytes.len()
        ))
    })
}

/// Fills `view` with the bytes that `borrow` returns, with an address that stays good until
/// `__releasebuffer__` is called for `view`, and whether they may be written. `borrow` has counted the
/// export; if Python refuses the view, `undo` takes that back.
///
/// No lock is held here: a refusal may collect garbage, which may be anything.
///
/// # Safety
///
/// `view` is valid for writes, and the bytes are as said above.
unsafe fn export(
    object: &Bound<'_, PyAny>,
    borrow: impl FnOnce() -> PyResult<(*mut u8, usize, bool)>,
    undo: impl FnOnce(),
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    let (data, len, writable) = match borrow() {
        Ok(bytes) => bytes,
        Err(error) => {
            // SAFETY: by this function's contract. The protocol demands it for a view that is not
            // filled.
            unsafe { (*view).obj = ptr::null_mut() };
            return Err(error);
        }
    };
    // A slice has at most `isize::MAX` bytes.
    let len = len as ffi::Py_ssize_t;
    let read_only = c_int::from(!writable);
    // SAFETY: by this function's contract; `object` is a live object.
    match unsafe {
        ffi::PyBuffer_FillInfo(view, object.as_ptr(), data.cast(), len, read_only, flags)
    } {
        0 => Ok(()),
        _ => {
            undo();
            Err(PyErr::fetch(object.py()))
        }
    }
}

// ---- buffers ------------------------------------------------------------------------------------

enum Memory {
    Writable(ShmBytesMut),
    Frozen(ShmBytes),
}

impl Memory {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Writable(buffer) => buffer,
            Self::Frozen(buffer) => buffer,
        }
    }
}

/// Memory of a provider, to be filled and sent. Made by :meth:`Provider.alloc`.
///
/// It supports the buffer protocol, so arrays refer to it without a copy:
///
/// >>> import numpy as np, shm_pool
/// >>> provider = shm_pool.Provider()
/// >>> with provider.alloc(12) as buffer:
/// ...     np.asarray(buffer)[:] = 7  # uint8
/// ...     np.frombuffer(buffer, np.float32)[1] = 0.5
/// ...     bytes(buffer)
/// b'\x07\x07\x07\x07\x00\x00\x00?\x07\x07\x07\x07'
///
/// Sending freezes it: from then on it is read-only. That fails with BufferError while an array or
/// a memoryview refers to it, which could still write what was sent: ``del`` it before.
///
/// A frozen buffer may be sent again, and by several channels. Its memory is used again once the
/// buffer is released and all receivers have released the message. Leaving a ``with`` block
/// releases it: at once, or with the last array that refers to it.
#[pyclass(frozen, module = "shm_pool")]
pub(crate) struct Buffer {
    memory: Mutex<Exported<Memory>>,
    provider: ProviderId,
    process: Process,
}

const BUFFER: &str = "buffer";

impl Buffer {
    pub(crate) fn new(buffer: ShmBytesMut, provider: ProviderId) -> Self {
        Self {
            memory: Exported::new(Memory::Writable(buffer)),
            provider,
            process: Process::current(),
        }
    }

    /// Freezes the buffer if it is writable, and returns another handle of the message.
    pub(crate) fn message(&self) -> PyResult<ShmBytes> {
        self.process.check(BUFFER)?;
        let mut memory = lock(&self.memory);
        memory.get(BUFFER)?;
        if matches!(memory.content, Some(Memory::Writable(_))) {
            memory.check_exports(BUFFER, "frozen or sent")?;
        }
        let message = match memory.content.take() {
            Some(Memory::Writable(buffer)) => buffer.freeze(),
            Some(Memory::Frozen(buffer)) => buffer,
            None => return Err(released(BUFFER)),
        };
        memory.content = Some(Memory::Frozen(message.clone()));
        Ok(message)
    }

    fn end_export(&self) {
        let mut memory = lock(&self.memory);
        if memory.exports == 1 {
            if let Some(content) = &memory.content {
                remove_array(content.bytes().as_ptr());
            }
        }
        memory.end_export();
    }

    fn with<T>(&self, f: impl FnOnce(&Memory) -> T) -> PyResult<T> {
        self.process.check(BUFFER)?;
        Ok(f(lock(&self.memory).get(BUFFER)?))
    }
}

#[pymethods]
impl Buffer {
    /// Makes the buffer read-only, as sending does.
    ///
    /// Raises BufferError while arrays or memoryviews refer to it.
    fn freeze(&self) -> PyResult<()> {
        self.message()?;
        Ok(())
    }

    /// ``True`` if the buffer is frozen.
    #[getter]
    fn readonly(&self) -> PyResult<bool> {
        self.with(|memory| matches!(memory, Memory::Frozen(_)))
    }

    /// The longest length that :meth:`resize` accepts, in bytes.
    #[getter]
    fn capacity(&self) -> PyResult<usize> {
        self.with(|memory| match memory {
            Memory::Writable(buffer) => buffer.capacity(),
            Memory::Frozen(buffer) => buffer.capacity(),
        })
    }

    /// Sets the length in bytes, for messages whose length is known only at the end.
    ///
    /// Raises :class:`InvalidArgument` above the capacity, BufferError while arrays or memoryviews
    /// refer to the buffer, and :class:`Error` if it is frozen.
    fn resize(&self, len: usize) -> PyResult<()> {
        self.process.check(BUFFER)?;
        let mut memory = lock(&self.memory);
        memory.get(BUFFER)?;
        memory.check_exports(BUFFER, "resized")?;
        match &mut memory.content {
            Some(Memory::Writable(buffer)) => buffer.resize(len).map_err(IntoPyErr::into_py),
            _ => Err(errors::Error::new_err(
                "this buffer is frozen: resize it before it is sent",
            )),
        }
    }

    /// Freezes the buffer, and returns its 32-byte descriptor, to be sent by any transport.
    ///
    /// A descriptor holds nothing: keep the buffer until the receivers confirm that they have
    /// attached.
    ///
    /// >>> import shm_pool
    /// >>> provider, client = shm_pool.Provider(), shm_pool.Client()
    /// >>> buffer = provider.alloc(4, zeroed=True)
    /// >>> bytes(client.attach(buffer.descriptor()))
    /// b'\x00\x00\x00\x00'
    ///
    /// Raises BufferError as :meth:`freeze`, and :class:`Error` if too many buffers are shared.
    fn descriptor<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let descriptor = self.message()?.descriptor().map_err(IntoPyErr::into_py)?;
        Ok(PyBytes::new(py, &descriptor.to_bytes()))
    }

    /// Freezes the buffer, and returns a descriptor for one peer, which may attach to it once. The
    /// buffer may be released at once. ``peer`` is what the peer got from :meth:`Client.connect`.
    ///
    /// Raises :class:`Disconnected` if the peer has closed or died, :class:`InvalidArgument` if the
    /// bytes are no peer of this provider, and as :meth:`descriptor`.
    fn grant<'py>(&self, py: Python<'py>, peer: Vec<u8>) -> PyResult<Bound<'py, PyBytes>> {
        let peer = peer_id(&peer)?;
        let descriptor = self.message()?.grant(peer).map_err(IntoPyErr::into_py)?;
        Ok(PyBytes::new(py, &descriptor.to_bytes()))
    }

    /// Takes back a grant that could not be delivered. Returns ``False`` if none is left.
    fn revoke(&self, peer: Vec<u8>) -> PyResult<bool> {
        let peer = peer_id(&peer)?;
        Ok(self.message()?.revoke(peer))
    }

    /// ``True`` if a receiver reads the message, or has not received it yet.
    #[getter]
    fn is_leased(&self) -> PyResult<bool> {
        self.with(|memory| match memory {
            Memory::Writable(_) => false,
            Memory::Frozen(buffer) => buffer.is_leased(),
        })
    }

    /// Releases the memory now.
    ///
    /// Raises BufferError while arrays or memoryviews refer to it. Leaving a ``with`` block does
    /// not.
    fn release(&self) -> PyResult<()> {
        lock(&self.memory).release(BUFFER)
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().with(|_| ())?;
        Ok(slf)
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, _error: &Bound<'_, PyAny>) {
        lock(&self.memory).end();
    }

    fn __len__(&self) -> PyResult<usize> {
        self.with(|memory| memory.bytes().len())
    }

    /// Returns a byte, or the bytes of a slice, which are copied. As for ``mmap`` and bytes.
    fn __getitem__<'py>(
        slf: &Bound<'py, Self>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let place = Place::of(slf.get().__len__()?, key)?;
        slf.get()
            .with(|memory| place.read(slf.py(), memory.bytes()))?
    }

    /// Sets a byte, or the bytes of a slice, or all of them (``buffer[...] = array``), to those of an object of
    /// the same size.
    fn __setitem__(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let place = Place::of(self.__len__()?, key)?;
        let byte: [u8; 1];
        let bytes;
        let source = match place {
            Place::Byte(_) => {
                byte = [value.extract()?];
                Source::Byte(byte[0])
            }
            Place::Slice { .. } => {
                bytes = Bytes::of(value)?;
                Source::Bytes(&bytes)
            }
        };
        // No Python code runs under the lock.
        let mut memory = lock(&self.memory);
        memory.get(BUFFER)?;
        match &mut memory.content {
            Some(Memory::Writable(buffer)) => place.write(buffer, source),
            _ => Err(PyTypeError::new_err(
                "this buffer is frozen: it cannot be written any more",
            )),
        }
    }

    /// Returns an array of the bytes (uint8) without a copy, for numpy. Raises :class:`Closed` if it was released.
    #[pyo3(signature = (dtype=None, *, copy=None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        array(slf.as_any(), dtype, copy)
    }

    /// Returns a capsule of the bytes (uint8) for ``from_dlpack`` of other libraries. An array that is made of
    /// it refers to this memory, as those of numpy do. Read-only memory needs a consumer of DLPack 1.0 or
    /// later, or ``copy=True``.
    ///
    /// Raises BufferError otherwise.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        slf: &Bound<'py, Self>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<&Bound<'py, PyAny>>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let request = dlpack::Request {
            stream,
            max_version: dlpack::max_version(max_version)?,
            device: dl_device,
            copy,
        };
        dlpack::export(slf.as_any(), slf.get().readonly()?, request)
    }

    /// Returns the type and the number of the device: main memory.
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::CPU
    }

    fn __repr__(&self) -> String {
        let memory = lock(&self.memory);
        match memory.get(BUFFER) {
            Ok(Memory::Writable(buffer)) => format!("<shm_pool.Buffer of {} bytes>", buffer.len()),
            Ok(Memory::Frozen(buffer)) => {
                format!("<shm_pool.Buffer of {} bytes, frozen>", buffer.len())
            }
            Err(_) => "<shm_pool.Buffer, released>".to_owned(),
        }
    }

    /// # Safety
    ///
    /// `view` is valid for writes: Python calls this.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        let borrow = || {
            this.process.check(BUFFER)?;
            let mut memory = lock(&this.memory);
            memory.get(BUFFER)?;
            let bytes = match &mut memory.content {
                Some(Memory::Writable(buffer)) => (buffer.as_mut_ptr(), buffer.len(), true),
                Some(Memory::Frozen(buffer)) => (buffer.as_ptr().cast_mut(), buffer.len(), false),
                None => return Err(released(BUFFER)),
            };
            memory.exports += 1;
            if memory.exports == 1 {
                add_array(bytes.0, bytes.1, this.provider);
            }
            Ok(bytes)
        };
        // SAFETY: shared memory does not move, and the count keeps the handle from being dropped. A
        // writable one is the only handle, and is not frozen while there are exports.
        unsafe { export(slf.as_any(), borrow, || this.end_export(), view, flags) }
    }

    /// # Safety
    ///
    /// None: `_view` is not used.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.end_export();
    }
}

// ---- messages -----------------------------------------------------------------------------------

enum Received {
    Channel(channel::Message),
    View(ShmView),
}

impl Received {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Channel(message) => message,
            Self::View(view) => view,
        }
    }
}

/// A received message: read-only memory of the sender's process, which supports the buffer
/// protocol.
///
/// ``np.frombuffer(message, dtype)`` and ``memoryview(message)`` copy nothing, and ``bytes(message)``
/// copies. The message stays borrowed, and the sender cannot use its memory again, until it is
/// released or deleted, and so is every array that refers to it. A ``with`` block ends it: at once,
/// or with the last array.
///
/// >>> import numpy as np, shm_pool
/// >>> provider = shm_pool.Provider()
/// >>> sender = shm_pool.Sender(provider, "docs-message")
/// >>> receiver = shm_pool.Receiver("docs-message")
/// >>> sender.send(np.arange(3.0))
/// >>> message = receiver.recv()
/// >>> np.frombuffer(message, np.float64)
/// array([0., 1., 2.])
/// >>> sender.send(b"with a tag", tag=b"frame 0000000007")
/// >>> receiver.recv().tag
/// b'frame 0000000007'
///
/// The memory outlives its sender, even if that was killed.
#[pyclass(frozen, module = "shm_pool")]
pub(crate) struct Message {
    /// Not moved while there are exports: the bytes of a short message lie within it.
    received: Mutex<Exported<Received>>,
    missed: u32,
    tag: Option<[u8; 16]>,
    process: Process,
}

const MESSAGE: &str = "message";

impl Message {
    pub(crate) fn of_channel(message: channel::Message) -> Self {
        Self {
            missed: message.missed(),
            tag: message.tag(),
            received: Exported::new(Received::Channel(message)),
            process: Process::current(),
        }
    }

    pub(crate) fn of_client(view: ShmView) -> Self {
        Self {
            missed: 0,
            tag: None,
            received: Exported::new(Received::View(view)),
            process: Process::current(),
        }
    }
}

impl Message {
    fn with<T>(&self, f: impl FnOnce(&Received) -> T) -> PyResult<T> {
        self.process.check(MESSAGE)?;
        Ok(f(lock(&self.received).get(MESSAGE)?))
    }
}

#[pymethods]
impl Message {
    /// How many messages this receiver missed before this one. Always 0 after
    /// :meth:`Client.attach`.
    #[getter]
    fn missed(&self) -> u32 {
        self.missed
    }

    /// The 16 bytes that were sent with it, ``send(message, tag=...)``, or ``None``.
    #[getter]
    fn tag(&self) -> Option<&[u8]> {
        self.tag.as_ref().map(|tag| &tag[..])
    }

    /// Returns the message to its sender now.
    ///
    /// Raises BufferError while arrays or memoryviews refer to it. Leaving a ``with`` block does
    /// not.
    fn release(&self) -> PyResult<()> {
        lock(&self.received).release(MESSAGE)
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().with(|_| ())?;
        Ok(slf)
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, _error: &Bound<'_, PyAny>) {
        lock(&self.received).end();
    }

    fn __len__(&self) -> PyResult<usize> {
        self.with(|received| received.bytes().len())
    }

    /// Returns a byte, or the bytes of a slice, which are copied. As for ``mmap`` and bytes.
    fn __getitem__<'py>(
        slf: &Bound<'py, Self>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let place = Place::of(slf.get().__len__()?, key)?;
        slf.get()
            .with(|received| place.read(slf.py(), received.bytes()))?
    }

    /// Returns an array of the bytes (uint8) without a copy, for numpy. Raises :class:`Closed` if it was released.
    #[pyo3(signature = (dtype=None, *, copy=None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        array(slf.as_any(), dtype, copy)
    }

    /// Returns a capsule of the bytes (uint8) for ``from_dlpack`` of other libraries. An array that is made of
    /// it refers to this memory, as those of numpy do. Read-only memory needs a consumer of DLPack 1.0 or
    /// later, or ``copy=True``.
    ///
    /// Raises BufferError otherwise.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        slf: &Bound<'py, Self>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<&Bound<'py, PyAny>>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let request = dlpack::Request {
            stream,
            max_version: dlpack::max_version(max_version)?,
            device: dl_device,
            copy,
        };
        dlpack::export(slf.as_any(), true, request)
    }

    /// Returns the type and the number of the device: main memory.
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::CPU
    }

    fn __repr__(&self) -> String {
        match lock(&self.received).get(MESSAGE) {
            Ok(received) => format!("<shm_pool.Message of {} bytes>", received.bytes().len()),
            Err(_) => "<shm_pool.Message, released>".to_owned(),
        }
    }

    /// # Safety
    ///
    /// `view` is valid for writes: Python calls this.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        let received = &this.received;
        let borrow = || {
            this.process.check(MESSAGE)?;
            let mut received = lock(received);
            let bytes = received.get(MESSAGE)?.bytes();
            let bytes = (bytes.as_ptr().cast_mut(), bytes.len(), false);
            received.exports += 1;
            Ok(bytes)
        };
        // SAFETY: the bytes are read-only. The count keeps the message from being dropped, and it
        // lies in its Python object, which does not move.
        unsafe {
            export(
                slf.as_any(),
                borrow,
                || lock(received).end_export(),
                view,
                flags,
            )
        }
    }

    /// # Safety
    ///
    /// None: `_view` is not used.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        lock(&self.received).end_export();
    }
}

// ---- other objects with the buffer protocol -----------------------------------------------------

/// The bytes of any object with the buffer protocol, which cannot be resized meanwhile.
pub(crate) struct Bytes {
    view: ffi::Py_buffer,
}

impl Bytes {
    /// Fails with `BufferError` or `TypeError` if the object has none, or they are not contiguous.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut view = ffi::Py_buffer::new();
        // SAFETY: `object` is a live object, and `view` valid for writes.
        match unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut view, ffi::PyBUF_SIMPLE) } {
            0 => Ok(Self { view }),
            _ => Err(PyErr::fetch(object.py())),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.view.len as usize
    }

    /// Returns the address, which is good while this is held.
    pub(crate) fn data(&self) -> *mut u8 {
        self.view.buf.cast()
    }

    /// Copies the bytes to the beginning of `target`. Another thread may write the object
    /// meanwhile, as with every use of it: then the copy has some of both.
    pub(crate) fn copy_to(&self, target: &mut [u8]) {
        let len = self.len().min(target.len());
        // SAFETY: the view is held, so there are `len` bytes. They may be those of `target`.
        unsafe { ptr::copy(self.data(), target.as_mut_ptr(), len) };
    }
}

impl Drop for Bytes {
    /// With the GIL held: a `Bytes` is not sent to another thread.
    fn drop(&mut self) {
        // SAFETY: the view was filled by `PyObject_GetBuffer`, and is released once.
        unsafe { ffi::PyBuffer_Release(&mut self.view) };
    }
}

// ---- indices and arrays -------------------------------------------------------------------------

/// The length has changed since the index was checked.
struct LengthChanged;

impl From<LengthChanged> for PyErr {
    fn from(_: LengthChanged) -> Self {
        PyIndexError::new_err("the length has changed")
    }
}

/// The bytes that an index stands for.
enum Place {
    Byte(usize),
    Slice {
        start: isize,
        step: isize,
        count: usize,
    },
}

/// The new value of a place.
enum Source<'a> {
    Byte(u8),
    Bytes(&'a Bytes),
}

impl Place {
    fn of(len: usize, key: &Bound<'_, PyAny>) -> PyResult<Self> {
        // A slice has at most `isize::MAX` bytes.
        let signed = len as isize;
        if let Ok(slice) = key.cast::<PySlice>() {
            let indices = slice.indices(signed)?;
            return Ok(Self::Slice {
                start: indices.start,
                step: indices.step,
                count: indices.slicelength,
            });
        }
        if key.is_instance_of::<PyEllipsis>() {
            return Ok(Self::Slice {
                start: 0,
                step: 1,
                count: len,
            });
        }
        let index: isize = key.extract()?;
        let from_start = if index < 0 { index + signed } else { index };
        if from_start < 0 || from_start >= signed {
            return Err(PyIndexError::new_err(format!(
                "there are {len} bytes, but the index is {index}"
            )));
        }
        Ok(Self::Byte(from_start as usize))
    }

    /// Reads `bytes`, which may have become shorter.
    fn read<'py>(&self, py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        match *self {
            Self::Byte(index) => {
                let byte = bytes.get(index).ok_or(LengthChanged)?;
                Ok(byte.into_pyobject(py)?.into_any())
            }
            Self::Slice {
                start,
                step: 1,
                count,
            } => {
                let start = start as usize;
                let slice = bytes.get(start..start + count).ok_or(LengthChanged)?;
                Ok(PyBytes::new(py, slice).into_any())
            }
            Self::Slice { start, step, count } => {
                let mut copy = Vec::with_capacity(count);
                let mut index = start;
                for _ in 0..count {
                    copy.push(*bytes.get(index as usize).ok_or(LengthChanged)?);
                    index += step;
                }
                Ok(PyBytes::new(py, &copy).into_any())
            }
        }
    }

    fn write(&self, target: &mut [u8], source: Source<'_>) -> PyResult<()> {
        match (self, source) {
            (Self::Byte(index), Source::Byte(byte)) => {
                *target.get_mut(*index).ok_or(LengthChanged)? = byte;
                Ok(())
            }
            (Self::Slice { start, step, count }, Source::Bytes(bytes)) => {
                if bytes.len() != *count {
                    return Err(errors::InvalidArgument::new_err(format!(
                        "{} bytes cannot be written to {count}",
                        bytes.len()
                    )));
                }
                if *step == 1 {
                    let start = *start as usize;
                    let target = target.get_mut(start..start + count);
                    bytes.copy_to(target.ok_or(LengthChanged)?);
                    return Ok(());
                }
                let mut copy = vec![0; *count];
                bytes.copy_to(&mut copy);
                let mut index = *start;
                for byte in copy {
                    *target.get_mut(index as usize).ok_or(LengthChanged)? = byte;
                    index += step;
                }
                Ok(())
            }
            _ => Err(PyTypeError::new_err("a byte is a number")),
        }
    }
}

/// The array of a buffer or a message, by the rules of `__array__`.
fn array<'py>(
    object: &Bound<'py, PyAny>,
    dtype: Option<&Bound<'py, PyAny>>,
    copy: Option<bool>,
) -> PyResult<Bound<'py, PyAny>> {
    let view = PyMemoryView::from(object)?;
    let array = object
        .py()
        .import("numpy")?
        .call_method1("asarray", (view,))?;
    if let Some(dtype) = dtype {
        if array.getattr("dtype")?.ne(dtype)? {
            if copy == Some(false) {
                return Err(PyValueError::new_err(
                    "the bytes are uint8: another dtype takes a copy",
                ));
            }
            return array.call_method1("astype", (dtype,));
        }
    }
    if copy == Some(true) {
        return array.call_method0("copy");
    }
    Ok(array)
}

// ---- arrays that are copied in vain ---------------------------------------------------------------

/// The memory of buffers to which arrays refer: the address, the length and the provider. In a forked
/// child also the parent's: then a warning may be too many.
static ARRAYS: Mutex<BTreeMap<usize, (usize, ProviderId)>> = Mutex::new(BTreeMap::new());

fn arrays() -> MutexGuard<'static, BTreeMap<usize, (usize, ProviderId)>> {
    lock(&ARRAYS)
}

fn add_array(data: *const u8, len: usize, provider: ProviderId) {
    arrays().insert(data as usize, (len, provider));
}

fn remove_array(data: *const u8) {
    arrays().remove(&(data as usize));
}

/// Warns if these bytes, which are to be copied, are those of a buffer of this provider.
pub(crate) fn warn_of_copy(py: Python<'_>, bytes: &Bytes, provider: ProviderId) -> PyResult<()> {
    let data = bytes.data() as usize;
    if !is_in_array(data, provider) {
        return Ok(());
    }
    let category = py.get_type::<errors::CopyWarning>();
    PyErr::warn(
        py,
        &category,
        c"this array is in a buffer of the provider, and is copied: \
          delete it, and send the buffer itself",
        1,
    )
}

/// Returns `true` if the address is in an array in a buffer of this provider.
fn is_in_array(data: usize, provider: ProviderId) -> bool {
    let arrays = arrays();
    match arrays.range(..=data).next_back() {
        Some((start, (len, owner))) => data < start + len && *owner == provider,
        None => false,
    }
}
