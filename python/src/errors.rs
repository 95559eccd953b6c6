//! The crate's errors as exceptions. Their classes are written in Python, in `shm_pool/errors.py`:
//! most have a built-in class as a second base.
//!
//! An exception's text is that of the Rust error and of its causes, with advice that has the names
//! of this package.

use pyo3::PyErr;
use shm_pool::channel::{ChannelError, RecvError, SendError, SendErrorKind};
use shm_pool::{
    Advice, AllocError, AttachError, BuildError, CapacityError, DescriptorError, OsError,
    ShareError,
};
use std::error::Error as StdError;
use std::time::{Duration, Instant};

macro_rules! exceptions {
    ($($name:ident)+) => { $(pyo3::import_exception!(shm_pool.errors, $name);)+ };
}

exceptions! {
    Error Closed Disconnected Evicted Forked InUse Interrupted InvalidArgument MessageLost NameTaken
    NotFound OtherVersion PoolExhausted Stale SystemCallFailed Timeout TooManyBorrowed CopyWarning
}

/// Returns an error and its causes in one line.
fn chain(error: &(dyn StdError + 'static)) -> String {
    shm_pool::text_in(error, words)
}

/// The advice of an error, with the names of Python's interface.
fn words(advice: Advice) -> &'static str {
    match advice {
        Advice::RaiseMaxAlloc => "raise Provider(max_alloc=), and max_bytes=, which limits it",
        Advice::LowerMaxAlloc => {
            "raise the limit (ulimit -v, cgroup memory), or lower Provider(max_alloc=)"
        }
        Advice::MakeRoom => {
            "release buffers and messages, let the receivers release theirs, or raise \
             Provider(max_bytes=)"
        }
        Advice::RaiseMaxIdle => "reserve fewer, or raise Provider(max_idle_per_class=)",
        Advice::RaiseMaxShared => "release shared buffers, or raise Provider(max_shared=)",
        Advice::LowerMaxShared => {
            "raise the limit (ulimit -v, cgroup memory), or lower Provider(max_shared=)"
        }
        Advice::RaiseLockLimit => {
            "raise the limit (ulimit -l; LimitMEMLOCK of systemd; docker run --ulimit memlock), or \
             lower Provider(max_bytes=)"
        }
        Advice::OtherNumaNode => "choose a node of Mems_allowed_list in /proc/self/status",
        Advice::SweepLess => "do not sweep in a loop",
        Advice::CreateInThisProcess => "create a new one in this process",
        Advice::SkipPeer => "send to the remaining peers",
        Advice::WaitForAttach => "wait until the peer attaches",
        Advice::WaitForViews => "wait until the peer releases messages, or revoke grants",
        Advice::DropViews => "release messages, or take up grants",
        Advice::GrantOrKeep => {
            "grant each message to its receiver, or keep it until it is confirmed"
        }
        Advice::ShareView => "use one of them instead",
        Advice::CheckProvider => "the provider has closed, or is in another namespace",
        Advice::ConnectToSuccessor => "connect to its successor",
        Advice::WaitForPeerSlot => "wait until one of them ends",
        Advice::CreateClient => "create a new client",
        Advice::SetOwnerUid => "see Namespace(uid=)",
        Advice::OtherNameOrWait => "choose another name, or wait with timeout=",
        Advice::CheckSender => "it was not created yet, was closed, or is in another namespace",
        Advice::OpenSuccessor => "open the channel of its successor",
        Advice::OpenLater => "try again, or open it with a timeout",
        Advice::RaiseReceivers => "close one, or raise Publisher(max_subscribers=)",
        Advice::WaitForFewer => "wait for fewer, or raise Publisher(max_subscribers=)",
        Advice::CloseEnds => "close some of them",
        Advice::DoNotBlock => "choose an on_full that drops messages",
        Advice::UseSubscriber => "open it with a Subscriber",
        Advice::UseReceiver => "open it with a Receiver",
        Advice::SameType => "use one definition of the message on both sides",
        Advice::SameVersion => "install one version of shm-pool on both sides",
        Advice::SetOwnerUidOrMode => {
            "see Namespace(uid=) and Sender(mode=), or choose another name"
        }
        Advice::RaiseCapacity => "wait, drop the message, or raise capacity",
        Advice::RaiseMaxBorrowed => {
            "wait until it releases some, or raise max_borrowed or \
             Publisher(max_bytes_per_receiver=)"
        }
        Advice::DropMessages => "release some messages",
        Advice::CreateChannel => "create a new channel",
        Advice::ChannelForEachProvider => "create a channel for each provider",
        Advice::RaiseThreadLimit => "raise the limit of threads, or use a call that blocks",
        Advice::OpenAgain => "release what it has received, close it, and open the channel again",
        Advice::RaiseFileLimit => {
            "raise the limit of descriptors and receive again, or open the channel again"
        }
        Advice::AllocLarger => "allocate a larger one",
        _ => "see the documentation",
    }
}

/// Converts an error of the crate. A trait, because both types belong to other crates.
pub(crate) trait IntoPyErr: StdError + Sized + 'static {
    fn into_py(self) -> PyErr;
}

fn closed(error: &(dyn StdError + 'static)) -> PyErr {
    Disconnected::new_err((libc::EPIPE, chain(error)))
}

fn other(error: &(dyn StdError + 'static)) -> PyErr {
    Error::new_err(chain(error))
}

fn invalid(error: &(dyn StdError + 'static)) -> PyErr {
    InvalidArgument::new_err(chain(error))
}

fn forked(error: &(dyn StdError + 'static)) -> PyErr {
    Forked::new_err(chain(error))
}

/// `whole` contains `error`, and says what was attempted.
fn system(error: &OsError, whole: &(dyn StdError + 'static)) -> PyErr {
    refused(error.errno(), whole)
}

fn refused(errno: impl Into<Option<i32>>, error: &(dyn StdError + 'static)) -> PyErr {
    SystemCallFailed::new_err((errno.into(), chain(error)))
}

impl IntoPyErr for AllocError {
    fn into_py(self) -> PyErr {
        match &self {
            AllocError::TooLarge { .. }
            | AllocError::UnsupportedAlignment { .. }
            | AllocError::ReserveTooMany { .. } => invalid(&self),
            AllocError::ReserveShare(error) => share_error(error, &self),
            AllocError::TimedOut { .. } => Timeout::new_err((libc::ETIMEDOUT, chain(&self))),
            AllocError::Interrupted => Interrupted::new_err(chain(&self)),
            AllocError::Forked => forked(&self),
            _ if self.is_exhausted() => PoolExhausted::new_err(chain(&self)),
            AllocError::Os(error) => system(error, &self),
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
            | Self::OtherUser { .. }
            | Self::NumaNode { .. }
            | Self::Mode { .. } => invalid(&self),
            // These have the `errno` of the call that would fail.
            Self::LockMemory { .. } => refused(libc::EPERM, &self),
            Self::OutOfMemory { .. } => refused(libc::ENOMEM, &self),
            Self::Swept { .. } => refused(libc::ENOENT, &self),
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

fn share_error(error: &ShareError, whole: &(dyn StdError + 'static)) -> PyErr {
    match error {
        ShareError::PeerDisconnected(_) => closed(whole),
        ShareError::OtherProvider(_) => invalid(whole),
        ShareError::OverQuota { .. } => TooManyBorrowed::new_err(chain(whole)),
        ShareError::OutOfMemory { .. } => refused(libc::ENOMEM, whole),
        ShareError::Forked => forked(whole),
        _ => other(whole),
    }
}

impl IntoPyErr for ShareError {
    fn into_py(self) -> PyErr {
        share_error(&self, &self)
    }
}

fn attach_error(error: &AttachError, whole: &(dyn StdError + 'static)) -> PyErr {
    match error {
        AttachError::Stale => Stale::new_err(chain(whole)),
        AttachError::NoProvider { .. } => NotFound::new_err((libc::ENOENT, chain(whole))),
        AttachError::Closed { .. }
        | AttachError::ProviderDied { .. }
        | AttachError::Disconnected { .. } => closed(whole),
        AttachError::OverQuota { .. } | AttachError::TooManyLeases => {
            TooManyBorrowed::new_err(chain(whole))
        }
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

/// The exception of a channel that cannot be created or opened.
fn channel_error(error: &ChannelError, whole: &(dyn StdError + 'static)) -> PyErr {
    match error {
        ChannelError::NameTaken { .. } | ChannelError::HasReceiver { .. } => {
            NameTaken::new_err((libc::EEXIST, chain(whole)))
        }
        ChannelError::Name { .. }
        | ChannelError::Mode { .. }
        | ChannelError::OutOfRange { .. }
        | ChannelError::NotASender { .. }
        | ChannelError::BlockingNotAllowed { .. }
        | ChannelError::NotAPublisher { .. }
        | ChannelError::TypeMismatch { .. } => invalid(whole),
        ChannelError::OtherVersion { .. } => OtherVersion::new_err(chain(whole)),
        ChannelError::Forked => forked(whole),
        ChannelError::Os(error) => system(error, whole),
        ChannelError::NotFound { .. }
        | ChannelError::NotReady { .. }
        | ChannelError::Closed { .. } => NotFound::new_err((libc::ENOENT, chain(whole))),
        _ => other(whole),
    }
}

impl IntoPyErr for ChannelError {
    fn into_py(self) -> PyErr {
        channel_error(&self, &self)
    }
}

impl IntoPyErr for RecvError {
    fn into_py(self) -> PyErr {
        match &self {
            Self::Empty | Self::TimedOut => Timeout::new_err((libc::ETIMEDOUT, chain(&self))),
            Self::NoReceivers => invalid(&self),
            Self::Disconnected => closed(&self),
            Self::Evicted => Evicted::new_err((libc::EPIPE, chain(&self))),
            Self::TooManyBorrowed { .. } => TooManyBorrowed::new_err(chain(&self)),
            _ if self.is_message_lost() => MessageLost::new_err(chain(&self)),
            Self::Forked => forked(&self),
            Self::Interrupted => Interrupted::new_err(chain(&self)),
            Self::Os(error) | Self::NoHelper(error) => system(error, &self),
            Self::NotConnected { errno } => refused(*errno, &self),
            Self::Open(error) => channel_error(error, &self),
            _ => other(&self),
        }
    }
}

impl IntoPyErr for SendErrorKind {
    fn into_py(self) -> PyErr {
        match &self {
            _ if is_full(&self) => Timeout::new_err((libc::ETIMEDOUT, chain(&self))),
            Self::Disconnected => closed(&self),
            Self::TooManyReceivers(_) | Self::OtherProvider { .. } => invalid(&self),
            Self::Alloc(error) => (**error).clone().into_py(),
            Self::Forked => forked(&self),
            Self::Interrupted => Interrupted::new_err(chain(&self)),
            Self::NoHelper(error) => system(error, &self),
            _ => other(&self),
        }
    }
}

/// Returns `true` if the receiver has made no room, or has not joined, at once or in time.
pub(crate) fn is_full(kind: &SendErrorKind) -> bool {
    matches!(
        kind,
        SendErrorKind::Full { .. }
            | SendErrorKind::TooManyBorrowed { .. }
            | SendErrorKind::TimedOut
            | SendErrorKind::NoReceiver { .. }
            | SendErrorKind::OtherVersion { .. }
    )
}

impl IntoPyErr for SendError {
    fn into_py(self) -> PyErr {
        self.kind().into_py()
    }
}

/// How long a wait has lasted that was divided, in whole milliseconds.
pub(crate) fn waited(start: Instant) -> Duration {
    Duration::from_millis(start.elapsed().as_millis().try_into().unwrap_or(u64::MAX))
}
