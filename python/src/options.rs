//! Keyword arguments that are options, those that are enums in Python (`package/shm_pool/options.py`), and `MessageType`.

use crate::errors;
use crate::lock::lock;
use crate::wait;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use shm_pool::channel::{self, OnEnd, OnFull, OnStall};
use std::alloc::Layout;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

/// A keyword argument that is an option of a builder. `None` leaves the default.
pub(crate) struct Keyword<'py> {
    name: String,
    value: Bound<'py, PyAny>,
}

/// Returns the keyword arguments of a call.
pub(crate) fn keywords<'py>(arguments: Option<&Bound<'py, PyDict>>) -> PyResult<Vec<Keyword<'py>>> {
    let mut keywords = Vec::new();
    let Some(arguments) = arguments else {
        return Ok(keywords);
    };
    for (name, value) in arguments {
        keywords.push(Keyword {
            name: name.extract()?,
            value,
        });
    }
    Ok(keywords)
}

impl<'py> Keyword<'py> {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Reads the value. A wrong type is reported with the name of the argument.
    pub(crate) fn read<T>(&self) -> PyResult<Option<T>>
    where
        T: for<'a> FromPyObject<'a, 'py, Error: Into<PyErr>>,
    {
        if self.value.is_none() {
            return Ok(None);
        }
        let error: PyErr = match self.value.extract() {
            Ok(value) => return Ok(Some(value)),
            Err(error) => error.into(),
        };
        let py = self.value.py();
        if !error.get_type(py).is(py.get_type::<PyTypeError>()) {
            return Err(error);
        }
        let name = &self.name;
        let text = error.value(py);
        Err(PyTypeError::new_err(format!("argument '{name}': {text}")))
    }

    /// Reads a number of seconds.
    pub(crate) fn seconds(&self) -> PyResult<Option<Duration>> {
        wait::optional_duration(&self.name, self.read()?)
    }

    /// Reads a member of an enum.
    pub(crate) fn choice<T: Named>(&self) -> PyResult<Option<T>> {
        let choice: Option<Choice<T>> = self.read()?;
        Ok(choice.map(|choice| choice.0))
    }

    /// Reads the type of messages.
    pub(crate) fn message_type(&self) -> PyResult<Option<channel::MessageType>> {
        let message_type: Option<Bound<'py, MessageType>> = self.read()?;
        match message_type {
            Some(message_type) => Ok(Some(message_type.get().get()?)),
            None => Ok(None),
        }
    }

    /// Returns the error for a name that the call does not have.
    pub(crate) fn unexpected(&self, function: &str) -> PyErr {
        let name = &self.name;
        PyTypeError::new_err(format!(
            "{function} got an unexpected keyword argument '{name}'"
        ))
    }
}

/// Sets an option of a builder, unless its value is `None`.
pub(crate) fn set<B, T>(builder: B, value: Option<T>, with: impl FnOnce(B, T) -> B) -> B {
    match value {
        Some(value) => with(builder, value),
        None => builder,
    }
}

/// A value of an enum whose members are strings. Python's argument may be a member or its string.
#[derive(Clone, Copy)]
pub(crate) struct Choice<T>(pub(crate) T);

/// An enum of the crate that is one of Python's, too.
pub(crate) trait Named: Copy + 'static {
    const CLASS: &'static str;
    const NAMES: &'static [(&'static str, Self)];

    fn is(self, other: Self) -> bool;
}

macro_rules! named {
    ($type:ident: $($name:literal $variant:ident),*) => {
        impl Named for $type {
            const CLASS: &'static str = stringify!($type);
            const NAMES: &'static [(&'static str, Self)] = &[$(($name, $type::$variant)),*];

            fn is(self, other: Self) -> bool {
                self == other
            }
        }
    };
}

named!(OnFull: "block" Block, "drop_newest" DropNewest, "drop_oldest" DropOldest);
named!(OnStall: "skip" Skip, "disconnect" Disconnect);
named!(OnEnd: "wait" Wait, "return" Return);

impl<T: Named> FromPyObject<'_, '_> for Choice<T> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let text: String = object.extract()?;
        for (name, value) in T::NAMES {
            if *name == text {
                return Ok(Self(*value));
            }
        }
        let mut names = Vec::new();
        for (name, _) in T::NAMES {
            names.push(format!("{name:?}"));
        }
        Err(errors::InvalidArgument::new_err(format!(
            "{text:?} is no {}: it is one of {}",
            T::CLASS,
            names.join(", ")
        )))
    }
}

impl<'py, T: Named> IntoPyObject<'py> for Choice<T> {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        let class = py.import("shm_pool.options")?.getattr(T::CLASS)?;
        class.call1((self.text(),))
    }
}

impl<T: Named> Choice<T> {
    pub(crate) fn text(self) -> &'static str {
        for (name, value) in T::NAMES {
            if value.is(self.0) {
                return name;
            }
        }
        // The enums are not exhaustive.
        "unknown"
    }
}

/// The type of a channel's messages, which both sides declare: a name of 1 to 96 bytes, a version, and the
/// size of a message in bytes.
///
/// ``version`` is any number that changes when the meaning of the bytes does. A message of a variable length
/// has ``size`` bytes, followed by any number of elements of ``element_size`` bytes each. ``align`` is the
/// alignment in bytes, as in Rust.
///
/// A receiver that expects a type opens no channel of another one. Neither side checks a message.
///
/// >>> import shm_pool
/// >>> pose = shm_pool.MessageType("robot.Pose", version=1, size=24, align=8)
/// >>> provider = shm_pool.Provider()
/// >>> publisher = shm_pool.Publisher(provider, "docs-typed", message_type=pose)
/// >>> shm_pool.Subscriber("docs-typed", message_type=pose).message_type == pose
/// True
/// >>> newer = shm_pool.MessageType("robot.Pose", version=2, size=24, align=8)
/// >>> shm_pool.Subscriber("docs-typed", message_type=newer, timeout=0.01)
/// Traceback (most recent call last):
///     ...
/// shm_pool.errors.InvalidArgument: ...
///
/// Raises :class:`InvalidArgument` if ``align`` is no power of two, or the size too large.
#[pyclass(frozen, eq, hash, module = "shm_pool")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct MessageType {
    name: String,
    version: u64,
    size: u64,
    element_size: u64,
    align: u32,
}

/// The names of types, which live as long as the process. There are as many as a program declares.
static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

fn leaked(name: &str) -> &'static str {
    let mut names = lock(&NAMES);
    if let Some(known) = names.get(name) {
        return known;
    }
    let name: &'static str = Box::leak(name.to_owned().into_boxed_str());
    names.insert(name);
    name
}

impl MessageType {
    pub(crate) fn get(&self) -> PyResult<channel::MessageType> {
        let invalid = || {
            errors::InvalidArgument::new_err(format!(
                "no value has {} bytes and an alignment of {}",
                self.size, self.align
            ))
        };
        let size = usize::try_from(self.size).map_err(|_| invalid())?;
        let element = usize::try_from(self.element_size).map_err(|_| invalid())?;
        let layout = Layout::from_size_align(size, self.align as usize).map_err(|_| invalid())?;
        let message_type = channel::MessageType::new(leaked(&self.name), self.version, layout);
        Ok(message_type.with_elements(element))
    }

    pub(crate) fn of(message_type: &channel::MessageType) -> Self {
        Self {
            name: message_type.name().to_owned(),
            version: message_type.version(),
            size: message_type.size(),
            element_size: message_type.element_size(),
            align: message_type.align(),
        }
    }
}

#[pymethods]
impl MessageType {
    #[new]
    #[pyo3(signature = (name, version, size, *, align=1, element_size=0))]
    fn new(name: String, version: u64, size: u64, align: u32, element_size: u64) -> PyResult<Self> {
        if name.is_empty() || name.len() > 96 {
            return Err(errors::InvalidArgument::new_err(format!(
                "a name has 1 to 96 bytes, but {name:?} has {}",
                name.len()
            )));
        }
        let this = Self {
            name,
            version,
            size,
            element_size,
            align,
        };
        this.get()?;
        Ok(this)
    }

    /// Its name.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Its version.
    #[getter]
    fn version(&self) -> u64 {
        self.version
    }

    /// The bytes of a message without its elements.
    #[getter]
    fn size(&self) -> u64 {
        self.size
    }

    /// The bytes of an element, or 0 if there are none.
    #[getter]
    fn element_size(&self) -> u64 {
        self.element_size
    }

    /// The alignment in bytes.
    #[getter]
    fn align(&self) -> u32 {
        self.align
    }

    /// For pickle and copy.
    fn __getnewargs_ex__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        let arguments = (&self.name, self.version, self.size).into_pyobject(py)?;
        let options = PyDict::new(py);
        options.set_item("align", self.align)?;
        options.set_item("element_size", self.element_size)?;
        Ok((arguments, options))
    }

    fn __repr__(&self) -> String {
        format!(
            "MessageType({:?}, version={}, size={}, align={}, element_size={})",
            self.name, self.version, self.size, self.align, self.element_size
        )
    }
}
