//! DLPack 1.0: arrays of other libraries in the memory of a buffer or a message.
//!
//! A capsule holds an export of the object, as a memoryview does, until its consumer is done with it.

use crate::errors;
use crate::memory::Bytes;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{c_void, CStr};
use std::ptr;

/// The type and the number of the device: main memory.
pub(crate) const CPU: (i32, i32) = (1, 0);

const UNSIGNED: u8 = 1;
const IS_READ_ONLY: u64 = 1;
const IS_COPIED: u64 = 2;

const NAME: &CStr = c"dltensor";
const NAME_VERSIONED: &CStr = c"dltensor_versioned";

// The layout of `dlpack.h`.

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    dimensions: i32,
    type_code: u8,
    type_bits: u8,
    type_lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Unversioned {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Unversioned)>,
}

#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: Tensor,
}

/// What the pointers of a tensor point to, and the tensor itself.
struct Shared<T> {
    managed: T,
    shape: [i64; 1],
    strides: [i64; 1],
    _memory: Memory,
}

/// Held, and never read, until the tensor is deleted.
#[allow(dead_code)]
enum Memory {
    Export(Bytes),
    Copy(Vec<u8>),
}

fn tensor(data: *mut u8) -> Tensor {
    Tensor {
        data: data.cast(),
        device_type: CPU.0,
        device_id: CPU.1,
        dimensions: 1,
        type_code: UNSIGNED,
        type_bits: 8,
        type_lanes: 1,
        shape: ptr::null_mut(),
        strides: ptr::null_mut(),
        byte_offset: 0,
    }
}

/// A kind of managed tensor.
trait Managed: Sized {
    const NAME: &'static CStr;

    fn tensor(&mut self) -> &mut Tensor;
    fn set_context(&mut self, context: *mut c_void);
    fn context(&self) -> *mut c_void;
}

impl Managed for Unversioned {
    const NAME: &'static CStr = NAME;

    fn tensor(&mut self) -> &mut Tensor {
        &mut self.tensor
    }

    fn set_context(&mut self, context: *mut c_void) {
        self.context = context;
    }

    fn context(&self) -> *mut c_void {
        self.context
    }
}

impl Managed for Versioned {
    const NAME: &'static CStr = NAME_VERSIONED;

    fn tensor(&mut self) -> &mut Tensor {
        &mut self.tensor
    }

    fn set_context(&mut self, context: *mut c_void) {
        self.context = context;
    }

    fn context(&self) -> *mut c_void {
        self.context
    }
}

/// Frees what a tensor shares. Its consumer calls this from any thread.
///
/// # Safety
///
/// `managed` is one that `capsule` has made, and is not used any more.
unsafe extern "C" fn delete<T: Managed>(managed: *mut T) {
    // SAFETY: by this function's contract, it is still allocated.
    let context = unsafe { (*managed).context() };
    // If Python has exited, there is no object to release.
    let _exited = Python::try_attach(|_py| {
        // SAFETY: `capsule` has made it of a box, and this is its last use.
        drop(unsafe { Box::from_raw(context.cast::<Shared<T>>()) });
    });
}

/// Frees the tensor of a capsule that no consumer has taken: one renames it.
///
/// # Safety
///
/// `capsule` is a capsule that `capsule` has made, and is being destroyed.
unsafe extern "C" fn destroy<T: Managed>(capsule: *mut ffi::PyObject) {
    // SAFETY: by this function's contract, it is a capsule.
    if unsafe { ffi::PyCapsule_IsValid(capsule, T::NAME.as_ptr()) } == 0 {
        return;
    }
    // SAFETY: it is valid under this name.
    let managed = unsafe { ffi::PyCapsule_GetPointer(capsule, T::NAME.as_ptr()) };
    // SAFETY: the pointer is that of the managed tensor, which has no consumer.
    unsafe { delete::<T>(managed.cast()) };
}

fn capsule<T: Managed>(
    py: Python<'_>,
    managed: T,
    len: usize,
    memory: Memory,
) -> PyResult<Bound<'_, PyAny>> {
    let shared = Box::into_raw(Box::new(Shared {
        managed,
        shape: [len as i64],
        strides: [1],
        _memory: memory,
    }));
    // SAFETY: it was just made of a box, and has no other reference.
    let parts = unsafe { &mut *shared };
    let shape = parts.shape.as_mut_ptr();
    let strides = parts.strides.as_mut_ptr();
    let tensor = parts.managed.tensor();
    tensor.shape = shape;
    tensor.strides = strides;
    parts.managed.set_context(shared.cast());
    let managed: *mut T = &mut parts.managed;

    // SAFETY: the pointer is not null, the name is static, and `destroy` fits the kind.
    let capsule =
        unsafe { ffi::PyCapsule_New(managed.cast(), T::NAME.as_ptr(), Some(destroy::<T>)) };
    if capsule.is_null() {
        // SAFETY: nothing else knows it.
        drop(unsafe { Box::from_raw(shared) });
        return Err(PyErr::fetch(py));
    }
    // SAFETY: it is a new reference.
    Ok(unsafe { Bound::from_owned_ptr(py, capsule) })
}

/// The options of `__dlpack__`.
pub(crate) struct Request<'a, 'py> {
    pub(crate) stream: Option<&'a Bound<'py, PyAny>>,
    pub(crate) max_version: Option<(u32, u32)>,
    pub(crate) device: Option<(i32, i32)>,
    pub(crate) copy: Option<bool>,
}

/// Makes a capsule of an object with the buffer protocol, one of this package.
pub(crate) fn export<'py>(
    object: &Bound<'py, PyAny>,
    is_read_only: bool,
    request: Request<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    if request.stream.is_some() {
        return Err(PyBufferError::new_err("main memory has no streams"));
    }
    if request.device.is_some_and(|device| device != CPU) {
        return Err(PyBufferError::new_err(
            "shared memory is main memory: no other device has it",
        ));
    }
    let is_copied = request.copy == Some(true);
    let is_versioned = request.max_version.is_some_and(|(major, _)| major >= 1);
    if is_read_only && !is_copied && !is_versioned {
        return Err(PyBufferError::new_err(
            "this memory is read-only, which a consumer of DLPack before 1.0 does not know: \
             use numpy.asarray, or a copy",
        ));
    }

    let bytes = Bytes::of(object)?;
    let len = bytes.len();
    let (data, memory) = if is_copied {
        let mut copy = vec![0; len];
        bytes.copy_to(&mut copy);
        (copy.as_mut_ptr(), Memory::Copy(copy))
    } else {
        (bytes.data(), Memory::Export(bytes))
    };
    if !is_versioned {
        let managed = Unversioned {
            tensor: tensor(data),
            context: ptr::null_mut(),
            deleter: Some(delete),
        };
        return capsule(py, managed, len, memory);
    }
    let mut flags = 0;
    if is_copied {
        flags |= IS_COPIED;
    } else if is_read_only {
        flags |= IS_READ_ONLY;
    }
    let managed = Versioned {
        major: 1,
        minor: 0,
        context: ptr::null_mut(),
        deleter: Some(delete),
        flags,
        tensor: tensor(data),
    };
    capsule(py, managed, len, memory)
}

/// Reads the argument `max_version`, a pair, or `None`.
pub(crate) fn max_version(argument: Option<&Bound<'_, PyAny>>) -> PyResult<Option<(u32, u32)>> {
    let Some(version) = argument else {
        return Ok(None);
    };
    match version.extract() {
        Ok(version) => Ok(Some(version)),
        Err(_) => Err(errors::InvalidArgument::new_err(
            "max_version is a pair of numbers",
        )),
    }
}
