//! The crate's errors as exceptions. Their classes are written in Python, in `shm_pool/errors.py`:
//! most have a built-in class as a second base.
//!
//! An exception's text is that of the Rust error and of its causes.

use pyo3::PyErr;
use shm_pool::channel::{ChannelError, RecvError, SendErrorKind};
use shm_pool::{
    AllocError, AllocErrorKind, AttachError, BuildError, CapacityError, DescriptorError, OsError,
    ShareError,
};
use std::error::Error as StdError;
use std::iter;

macro_rules! exceptions {
    ($($name:ident)+) => { $(pyo3::import_exception!(shm_pool.errors, $name);)+ };
}

exceptions! {
    Error Closed Disconnected Evicted Forked InUse Interrupted InvalidArgument MessageLost NameTaken NotFound PoolExhausted
    Stale SystemCallFailed Timeout TooManyBorrowed
}

/// Returns an error and its causes in one line.
fn chain(error: &dyn StdError) -> String {
    let causes = iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Converts an error of the crate. A trait, because both types belong to other crates.
pub(crate) trait IntoPyErr: StdError + Sized {
    fn into_py(self) -> PyErr;
}

fn closed(error: &dyn StdError) -> PyErr {
    Disconnected::new_err(chain(error))
}

fn other(error: &dyn StdError) -> PyErr {
    Error::new_err(chain(error))
}

fn invalid(error: &dyn StdError) -> PyErr {
    InvalidArgument::new_err(chain(error))
}

fn forked(error: &dyn StdError) -> PyErr {
    Forked::new_err(chain(error))
}

/// `whole` contains `error`, and says what was attempted.
fn system(error: &OsError, whole: &dyn StdError) -> PyErr {
    SystemCallFailed::new_err((error.errno(), chain(whole)))
}

impl IntoPyErr for AllocError {
    fn into_py(self) -> PyErr {
        match self.kind() {
            AllocErrorKind::TooLarge { .. } | AllocErrorKind::UnsupportedAlignment { .. } => {
                invalid(&self)
            }
            AllocErrorKind::TimedOut { .. } => Timeout::new_err(chain(&self)),
            AllocErrorKind::Interrupted => Interrupted::new_err(chain(&self)),
            AllocErrorKind::Forked => forked(&self),
            _ if self.is_exhausted() => PoolExhausted::new_err(chain(&self)),
            AllocErrorKind::Os(error) => system(error, &self),
            _ => other(&self),
        }
    }
}

impl IntoPyErr for BuildError {
    fn into_py(self) -> PyErr {
        match &self {
            Self::OutOfRange { .. }
            | Self::Prefix { .. }
            | Self::Directory { .. }
            | Self::Mode { .. } => invalid(&self),
            Self::Os(error) => system(error, &self),
            _ => other(&self),
        }
    }
}

impl IntoPyErr for CapacityError {
    fn into_py(self) -> PyErr {
        invalid(&self)
    }
}

impl IntoPyErr for OsError {
    fn into_py(self) -> PyErr {
        system(&self, &self)
    }
}

impl IntoPyErr for DescriptorError {
    fn into_py(self) -> PyErr {
        invalid(&self)
    }
}

impl IntoPyErr for ShareError {
    fn into_py(self) -> PyErr {
        match self {
            Self::PeerDisconnected(_) => closed(&self),
            Self::OtherProvider { .. } => invalid(&self),
            Self::OverQuota { .. } => TooManyBorrowed::new_err(chain(&self)),
            Self::Forked => forked(&self),
            _ => other(&self),
        }
    }
}

fn attach_error(error: &AttachError, whole: &dyn StdError) -> PyErr {
    match error {
        AttachError::Stale => Stale::new_err(chain(whole)),
        AttachError::NoProvider { .. } => NotFound::new_err(chain(whole)),
        AttachError::Closed { .. }
        | AttachError::ProviderDied { .. }
        | AttachError::Disconnected { .. } => closed(whole),
        AttachError::Forked => forked(whole),
        AttachError::Os(error) => system(error, whole),
        _ => other(whole),
    }
}

impl IntoPyErr for AttachError {
    fn into_py(self) -> PyErr {
        attach_error(&self, &self)
    }
}

impl IntoPyErr for ChannelError {
    fn into_py(self) -> PyErr {
        match &self {
            Self::NameTaken { .. } | Self::HasReceiver { .. } => NameTaken::new_err(chain(&self)),
            Self::Name { .. }
            | Self::Mode { .. }
            | Self::OutOfRange { .. }
            | Self::NotASender { .. }
            | Self::NotAPublisher { .. }
            | Self::TypeMismatch { .. } => invalid(&self),
            Self::Forked => forked(&self),
            Self::Os(error) => system(error, &self),
            _ if self.is_not_found() => NotFound::new_err(chain(&self)),
            _ => other(&self),
        }
    }
}

impl IntoPyErr for RecvError {
    fn into_py(self) -> PyErr {
        match &self {
            _ if self.is_empty() => Timeout::new_err(chain(&self)),
            Self::Disconnected => closed(&self),
            Self::Evicted => Evicted::new_err(chain(&self)),
            Self::TooManyBorrowed { .. } => TooManyBorrowed::new_err(chain(&self)),
            Self::Closed { .. }
            | Self::Attach(_)
            | Self::Damaged { .. }
            | Self::WrongType { .. } => MessageLost::new_err(chain(&self)),
            Self::Forked => forked(&self),
            Self::Interrupted => Interrupted::new_err(chain(&self)),
            Self::Map(error) | Self::NoHelper(error) => system(error, &self),
            _ => other(&self),
        }
    }
}

impl IntoPyErr for SendErrorKind {
    fn into_py(self) -> PyErr {
        match self {
            _ if self.is_full() => Timeout::new_err(chain(&self)),
            Self::Disconnected => closed(&self),
            Self::TooManyReceivers { .. } | Self::TooLong { .. } | Self::OtherProvider { .. } => {
                invalid(&self)
            }
            Self::Forked => forked(&self),
            Self::Interrupted => Interrupted::new_err(chain(&self)),
            _ => other(&self),
        }
    }
}
