//! Options and states that are enums in Python (`package/shm_pool/options.py`), and `MessageType`.

use crate::errors;
use pyo3::prelude::*;
use shm_pool::channel::{self, OnEnd, OnFull, OnStall};
use std::alloc::Layout;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Sets those options of a builder that are not `None`.
macro_rules! set {
    ($builder:ident, $($option:ident),* $(,)?) => {
        $(if let Some(value) = $option {
            $builder = $builder.$option(value);
        })*
    };
}

pub(crate) use set;

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
        let found = T::NAMES.iter().find(|(_, value)| value.is(self.0));
        // The enums are not exhaustive.
        let name = found.map_or("unknown", |(name, _)| name);
        class.call1((name,))
    }
}

impl<T: Named> Choice<T> {
    pub(crate) fn text(self) -> &'static str {
        let found = T::NAMES.iter().find(|(_, value)| value.is(self.0));
        found.map_or("unknown", |(name, _)| name)
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
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
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

/// The argument `message_type`.
pub(crate) fn message_type(
    argument: Option<&MessageType>,
) -> PyResult<Option<channel::MessageType>> {
    argument.map(MessageType::get).transpose()
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

    fn __repr__(&self) -> String {
        let Self {
            name,
            version,
            size,
            element_size,
            align,
        } = self;
        format!(
            "MessageType({name:?}, version={version}, size={size}, align={align}, element_size={element_size})"
        )
    }
}
