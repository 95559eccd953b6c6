//! Errors of channels.

#![forbid(unsafe_code)]

use super::layout::{MessageType, VERSION};
use crate::error::{explained, write_mode, Advice, Explain, OsError, OutOfRange, WrongUid};
use crate::os::process::Process;
use crate::os::robust_list::MAX_DOORBELLS;
use crate::owner::limits::AllocError;
use crate::peer::error::AttachError;
use crate::protocol::ids::{escaped, ProviderId};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;

explained!(ChannelError SendErrorKind RecvError);

/// The kind is kept, and the text. The message is dropped.
impl<M> From<SendError<M>> for io::Error {
    fn from(error: SendError<M>) -> Self {
        error.kind().into()
    }
}

/// The error returned when a channel could not be created or opened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The channel's name is empty, contains a NUL, or does not fit a file name with its prefix.
    Name {
        /// The name that was given.
        name: String,
        /// How many bytes of a file name a name may take, with this prefix.
        max: usize,
    },
    /// An option is out of range; for a subscriber, out of what its publisher allows.
    OutOfRange(OutOfRange),
    /// A live sender has a channel of this name.
    NameTaken {
        /// The object's path.
        object: PathBuf,
        /// The sender's process, if it is visible: one of the same user and PID namespace.
        process: Option<Process>,
    },
    /// No channel of this name exists.
    NotFound(PathBuf),
    /// The sender has closed the channel, or has died.
    Closed(PathBuf),
    /// The sender is still creating the channel, or a dead sender's object is being removed: try
    /// again. The object of a sender killed at that moment looks the same until a sweep, or until a
    /// channel of that name is created.
    NotReady(PathBuf),
    /// The channel has a receiver, or had one: it accepts no other.
    HasReceiver(PathBuf),
    /// All registrations of the publisher are taken, some perhaps by closed receivers whose
    /// messages are still being read.
    TooManyReceivers {
        /// The object's path.
        object: PathBuf,
        /// The maximum number of receivers.
        max: usize,
    },
    /// The receiver asks the publisher to wait for it, and the publisher waits for no receiver.
    BlockingNotAllowed(PathBuf),
    /// A [`Receiver`](super::Receiver) was to open the channel of a
    /// [`Publisher`](super::Publisher).
    NotASender(PathBuf),
    /// A [`Subscriber`](super::Subscriber) was to open the channel of a
    /// [`Sender`](super::Sender).
    NotAPublisher(PathBuf),
    /// The sender has declared another type of messages than the receiver expects, or none.
    TypeMismatch {
        /// The object's path.
        object: PathBuf,
        /// The type that the receiver expects.
        expected: Box<MessageType>,
        /// The type that the sender has declared; `None` for untyped messages.
        found: Option<Box<MessageType>>,
    },
    /// The channel was created by another version of this crate, with another layout.
    OtherVersion {
        /// The object's path.
        object: PathBuf,
        /// The version found.
        found: u32,
    },
    /// The object of that name is not one that this crate created for a channel.
    NotAChannel {
        /// The object's path.
        object: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The object of that name belongs to another user.
    WrongUid(WrongUid),
    /// The file mode denies the owner access, or has bits that mean nothing for shared memory.
    Mode(u32),
    /// This process is a forked child of the process that built the provider.
    Forked,
    /// This process already has 2048 channel ends, the maximum.
    TooManyEnds,
    /// A system call failed. All earlier steps were undone.
    Os(OsError),
}

impl From<OsError> for ChannelError {
    fn from(error: OsError) -> Self {
        Self::Os(error)
    }
}

impl Explain for ChannelError {
    fn write_facts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name { name, max } => write!(
                f,
                "channel name {name:?} takes {} bytes of a file name, but must take 1 to {max} \
                 with this prefix, and contain no NUL: A-Z a-z 0-9 _ - take one byte, and all \
                 others three for each byte of UTF-8",
                escaped(name).len()
            ),
            Self::OutOfRange(error) => write!(f, "{error}"),
            Self::NameTaken { object, process } => write!(
                f,
                "{} is the channel of a live sender or publisher{}",
                object.display(),
                named(process)
            ),
            Self::NotFound(object) => write!(f, "{} does not exist", object.display()),
            Self::Closed(object) => {
                write!(f, "the sender of {} has closed or died", object.display())
            }
            Self::NotReady(object) => write!(f, "{} is being created or removed", object.display()),
            Self::HasReceiver(object) => write!(
                f,
                "{} has, or had, a receiver: the channel of a sender accepts only one",
                object.display()
            ),
            Self::TooManyReceivers { object, max } => {
                write!(f, "{} has {max} receivers, the maximum", object.display())
            }
            Self::BlockingNotAllowed(object) => write!(
                f,
                "the publisher of {} waits for no receiver",
                object.display()
            ),
            Self::NotASender(object) => {
                write!(f, "{} is the channel of a publisher", object.display())
            }
            Self::NotAPublisher(object) => {
                write!(f, "{} is the channel of a sender", object.display())
            }
            Self::TypeMismatch {
                object,
                expected,
                found,
            } => {
                write!(f, "{} carries ", object.display())?;
                match found {
                    Some(found) => write!(f, "{found}")?,
                    None => write!(f, "untyped messages")?,
                }
                write!(f, ", but the receiver expects {expected}")
            }
            Self::OtherVersion { object, found } => write!(
                f,
                "{} has version {found} of the layout of channels, but this process uses version \
                 {VERSION}",
                object.display()
            ),
            Self::NotAChannel { object, reason } => {
                write!(
                    f,
                    "{} cannot be used as a channel: {reason}",
                    object.display()
                )
            }
            Self::WrongUid(error) => write!(f, "{error}"),
            Self::Mode(mode) => write_mode(*mode, f),
            Self::Forked => write!(
                f,
                "the provider belongs to the parent of this forked process"
            ),
            Self::TooManyEnds => {
                write!(
                    f,
                    "this process has {MAX_DOORBELLS} ends of channels, the maximum"
                )
            }
            Self::Os(error) => write!(f, "{error}"),
        }
    }

    fn find_advice(&self) -> Option<Advice> {
        match self {
            Self::NameTaken { .. } => Some(Advice::OtherNameOrWait),
            Self::NotFound { .. } => Some(Advice::CheckSender),
            Self::Closed { .. } => Some(Advice::OpenSuccessor),
            Self::NotReady { .. } => Some(Advice::OpenLater),
            Self::TooManyReceivers { .. } => Some(Advice::RaiseReceivers),
            Self::BlockingNotAllowed { .. } => Some(Advice::DoNotBlock),
            Self::NotASender { .. } => Some(Advice::UseSubscriber),
            Self::NotAPublisher { .. } => Some(Advice::UseReceiver),
            Self::TypeMismatch { .. } => Some(Advice::SameType),
            Self::OtherVersion { .. } => Some(Advice::SameVersion),
            Self::WrongUid(error) if !error.is_unmapped() => Some(Advice::SetOwnerUidOrMode),
            Self::Forked => Some(Advice::CreateInThisProcess),
            Self::TooManyEnds { .. } => Some(Advice::CloseEnds),
            _ => None,
        }
    }
}

impl ChannelError {
    /// Returns `true` if the same call may succeed later: once a sender has created the channel, the
    /// name is free, a receiver has closed, or the system has descriptors or memory again.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::NotFound { .. }
            | Self::NotReady { .. }
            | Self::Closed { .. }
            | Self::NameTaken { .. }
            | Self::TooManyReceivers { .. }
            | Self::TooManyEnds => true,
            Self::Os(error) => error.is_retryable(),
            _ => false,
        }
    }

    /// Returns `true` if opening the channel may succeed once its sender has created it.
    pub(super) fn is_not_found(&self) -> bool {
        matches!(
            self,
            Self::NotFound { .. } | Self::NotReady { .. } | Self::Closed { .. }
        )
    }

    pub(crate) fn io_kind(&self) -> io::ErrorKind {
        match self {
            Self::NotFound { .. } => io::ErrorKind::NotFound,
            Self::Closed { .. } => io::ErrorKind::BrokenPipe,
            Self::NameTaken { .. } | Self::HasReceiver { .. } => io::ErrorKind::AlreadyExists,
            Self::NotReady { .. } | Self::TooManyReceivers { .. } | Self::TooManyEnds => {
                io::ErrorKind::WouldBlock
            }
            Self::Name { .. }
            | Self::OutOfRange { .. }
            | Self::Mode { .. }
            | Self::BlockingNotAllowed { .. }
            | Self::NotASender { .. }
            | Self::NotAPublisher { .. } => io::ErrorKind::InvalidInput,
            Self::TypeMismatch { .. } | Self::OtherVersion { .. } | Self::NotAChannel { .. } => {
                io::ErrorKind::InvalidData
            }
            Self::WrongUid { .. } => io::ErrorKind::PermissionDenied,
            Self::Forked => io::ErrorKind::Other,
            Self::Os(error) => error.io_kind(),
        }
    }

    /// Checks that an option has one of the values from `min` to `max`.
    pub(super) fn check(
        option: &'static str,
        value: usize,
        min: usize,
        max: usize,
    ) -> Result<(), Self> {
        OutOfRange::check(option, value, min, max).map_err(Self::OutOfRange)
    }
}

fn named(process: &Option<Process>) -> String {
    let Some(Process {
        id,
        command,
        is_stopped,
        ..
    }) = process
    else {
        return String::new();
    };
    format!(
        " in process {id} ({command}){}",
        if *is_stopped {
            ", which is stopped"
        } else {
            ""
        }
    )
}

/// A message that was not sent, and the reason. Calls that are given no message to hand back return
/// a `SendError<()>`.
#[derive(Clone, PartialEq, Eq)]
pub struct SendError<M = ()> {
    pub(super) kind: SendErrorKind,
    pub(super) message: M,
}

impl<M> SendError<M> {
    /// Returns the kind of error, to match on.
    pub fn kind(&self) -> SendErrorKind {
        self.kind.clone()
    }

    /// Returns `true` if the receiver has closed its end or died.
    pub fn is_disconnected(&self) -> bool {
        self.kind.is_disconnected()
    }

    /// Returns `true` if a wait ended because its time was over.
    pub fn is_timeout(&self) -> bool {
        self.kind.is_timeout()
    }

    /// Returns `true` if the same call may succeed later: when the receiver has made room, or has
    /// joined.
    pub fn is_retryable(&self) -> bool {
        self.kind.is_retryable()
    }

    pub(super) fn with<N>(self, message: N) -> SendError<N> {
        SendError {
            kind: self.kind,
            message,
        }
    }

    /// Returns the message that was not sent.
    pub fn into_message(self) -> M {
        self.message
    }
}

impl From<SendErrorKind> for SendError {
    fn from(kind: SendErrorKind) -> Self {
        Self { kind, message: () }
    }
}

impl<M> fmt::Debug for SendError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SendError").field(&self.kind).finish()
    }
}

impl<M> fmt::Display for SendError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)
    }
}

impl<M> std::error::Error for SendError<M> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.kind.source()
    }
}

/// The reason why a message was not sent.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SendErrorKind {
    /// All slots hold messages that the receiver has not received.
    Full {
        /// The number of messages that fit.
        capacity: usize,
    },
    /// The receiver made no room in time, or did not receive everything in time.
    TimedOut,
    /// Fewer receivers than waited for joined in time.
    NoReceiver {
        /// The number of receivers to wait for.
        receivers: usize,
        /// The time limit of the wait.
        timeout: Duration,
    },
    /// Fewer receivers than waited for joined in time, and one was refused because it was built with
    /// another version of this crate, with another layout. It has got
    /// [`ChannelError::OtherVersion`].
    OtherVersion {
        /// The version of that receiver.
        found: u32,
    },
    /// The receiver already has the maximum number of buffers, or of a publisher's bytes, received
    /// or not.
    TooManyBorrowed {
        /// The most buffers that it may hold, of any length.
        max: usize,
        /// The most bytes that it may hold in buffers, if they are limited.
        max_bytes: Option<usize>,
    },
    /// More receivers to wait for than the publisher's `max_subscribers`.
    TooManyReceivers(OutOfRange),
    /// The receiver has closed its end or died. Buffers that it had not received are returned.
    Disconnected,
    /// No buffer could be allocated for the bytes, which do not fit in a slot.
    Alloc(#[source] Box<AllocError>),
    /// The buffer belongs to another provider.
    OtherProvider {
        /// The buffer's provider.
        found: ProviderId,
        /// The channel's provider.
        expected: ProviderId,
    },
    /// This process is a forked child of the process that owns the channel.
    Forked,
    /// An [`Interrupter`](super::Interrupter) ended the wait. The next wait blocks again.
    Interrupted,
    /// The helper thread that wakes the tasks of channels could not be started.
    NoHelper(#[source] OsError),
}

impl SendErrorKind {
    /// The end of a wait for receivers. `refused`: the version of one that was refused.
    pub(super) fn no_receiver(receivers: usize, timeout: Duration, refused: Option<u32>) -> Self {
        match refused {
            Some(found) => Self::OtherVersion { found },
            None => Self::NoReceiver { receivers, timeout },
        }
    }

    /// Returns `true` if the receiver has closed its end or died.
    pub(super) fn is_disconnected(&self) -> bool {
        *self == Self::Disconnected
    }

    /// Returns `true` if a wait ended because its time was over.
    pub(super) fn is_timeout(&self) -> bool {
        matches!(
            self,
            Self::TimedOut | Self::NoReceiver { .. } | Self::OtherVersion { .. }
        )
    }

    /// Returns `true` if the same call may succeed later: when the receiver has made room, or has
    /// joined, or memory is released. Not for an interrupted wait, which the program has ended itself.
    pub(super) fn is_retryable(&self) -> bool {
        match self {
            Self::Alloc(error) => error.is_retryable(),
            Self::Full { .. }
            | Self::TooManyBorrowed { .. }
            | Self::TimedOut
            | Self::NoReceiver { .. }
            | Self::OtherVersion { .. }
            | Self::NoHelper(_) => true,
            _ => false,
        }
    }

    pub(crate) fn io_kind(&self) -> io::ErrorKind {
        match self {
            Self::Full { .. } | Self::TooManyBorrowed { .. } => io::ErrorKind::WouldBlock,
            Self::TimedOut | Self::NoReceiver { .. } | Self::OtherVersion { .. } => {
                io::ErrorKind::TimedOut
            }
            Self::Disconnected => io::ErrorKind::BrokenPipe,
            Self::Interrupted => io::ErrorKind::Interrupted,
            Self::TooManyReceivers(_) | Self::OtherProvider { .. } => io::ErrorKind::InvalidInput,
            Self::Alloc(error) => error.io_kind(),
            Self::Forked => io::ErrorKind::Other,
            Self::NoHelper(error) => error.io_kind(),
        }
    }
}

impl Explain for SendErrorKind {
    fn write_facts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full { capacity } => write!(
                f,
                "the channel is full: the receiver has not received {capacity} messages"
            ),
            Self::TimedOut => write!(
                f,
                "the wait timed out: the receiver has not received, or dropped, enough"
            ),
            Self::NoReceiver {
                receivers: 1,
                timeout,
            } => write!(f, "no receiver joined within {timeout:?}"),
            Self::NoReceiver { receivers, timeout } => write!(
                f,
                "fewer than {receivers} receivers joined within {timeout:?}"
            ),
            Self::OtherVersion { found } => write!(
                f,
                "too few receivers joined in time: one has version {found} of the layout of \
                 channels, and this channel has version {VERSION}"
            ),
            Self::TooManyBorrowed { max, max_bytes } => {
                write!(
                    f,
                    "the receiver holds as much as it may: at most {max} buffers"
                )?;
                match max_bytes {
                    Some(bytes) => write!(f, " and {bytes} bytes"),
                    None => Ok(()),
                }
            }
            Self::TooManyReceivers(OutOfRange { value, max, .. }) => write!(
                f,
                "cannot wait for {value} receivers: at most {max} can join"
            ),
            Self::Disconnected => write!(f, "the receiver has closed or died"),
            Self::Alloc(_) => write!(f, "no buffer could be allocated for the copy"),
            Self::OtherProvider { found, expected } => write!(
                f,
                "the buffer belongs to provider {found}, and the channel to {expected}"
            ),
            Self::Forked => write!(
                f,
                "the channel belongs to the parent of this forked process"
            ),
            Self::Interrupted => write!(f, "the wait for the receiver was interrupted"),
            Self::NoHelper(_) => write!(f, "cannot start the thread that wakes tasks"),
        }
    }

    fn find_advice(&self) -> Option<Advice> {
        match self {
            Self::Full { .. } => Some(Advice::RaiseCapacity),
            Self::OtherVersion { .. } => Some(Advice::SameVersion),
            Self::TooManyBorrowed { .. } => Some(Advice::RaiseMaxBorrowed),
            Self::TooManyReceivers(_) => Some(Advice::WaitForFewer),
            Self::Disconnected => Some(Advice::CreateChannel),
            Self::OtherProvider { .. } => Some(Advice::ChannelForEachProvider),
            Self::Forked => Some(Advice::CreateInThisProcess),
            Self::NoHelper(_) => Some(Advice::RaiseThreadLimit),
            _ => None,
        }
    }
}

/// The reason why no message was received.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RecvError {
    /// No message has arrived yet.
    Empty,
    /// No message arrived in time; from a [`Watcher`](super::Watcher), no change.
    TimedOut,
    /// The sender has closed its end or died: nothing more will arrive.
    Disconnected,
    /// The publisher has [disconnected](super::Publisher::disconnect) this receiver, perhaps
    /// because it [made no room](super::OnStall::Disconnect). With [`OnEnd::Wait`](super::OnEnd::Wait), the
    /// next call joins again; otherwise drop the receiver and its messages, and open the channel again.
    Evicted,
    /// No message has arrived, and at least one was skipped, or waits, because this receiver holds
    /// as many buffers, or bytes, as it may. Reported once for each such message, and not while it
    /// holds none.
    TooManyBorrowed {
        /// The most buffers that it may hold, of any length.
        max: usize,
    },
    /// A system call failed: the message's buffer cannot be mapped now, or a
    /// [`Watcher`](super::Watcher) cannot list the channels. Nothing is lost: the message, or the
    /// change, is there for the next call.
    Os(OsError),
    /// The system refused to let the publisher connect this receiver, mostly because its process
    /// has run out of descriptors or memory (`EMFILE`, `ENFILE`, `ENOMEM`). Then the publisher
    /// retries when it sends, serves joins or waits for receivers, after 1 ms at first, and after twice as
    /// long each time, up to a second. After any other error it does not retry: open the receiver
    /// again.
    NotConnected {
        /// The operating system's error code, in the publisher's process.
        errno: i32,
    },
    /// The buffer no longer exists: its segment was removed before this receiver had mapped it, as
    /// a cleaner of /dev/shm may do (see [`deploying`](crate::docs::deploying#systemd)). The next
    /// message may be good.
    MessageLost(ProviderId),
    /// The buffer's segment does not belong to the sender. The next message may be good.
    Attach(#[source] AttachError),
    /// The message is one that no sender writes. The next message may be good.
    Damaged {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The message is no value of the type that the receiver expects. The next message may be good.
    WrongType {
        /// The name of the expected type.
        name: &'static str,
        /// The message's length in bytes.
        len: usize,
    },
    /// This process is a forked child of the process that owns the channel.
    Forked,
    /// The channel, or that of a successor, could not be opened. The next call tries again.
    Open(#[source] Box<ChannelError>),
    /// An [`Interrupter`](super::Interrupter) ended the wait. The next wait blocks again.
    Interrupted,
    /// [`wait_any`](super::wait_any) was given no receiver.
    NoReceivers,
    /// The helper thread that waits for channels or names could not be started. No message is lost.
    NoHelper(#[source] OsError),
}

impl RecvError {
    /// Returns `true` if no message will arrive any more: [`Disconnected`](Self::Disconnected) or
    /// [`Evicted`](Self::Evicted).
    pub fn is_disconnected(&self) -> bool {
        matches!(self, Self::Disconnected | Self::Evicted)
    }

    /// Returns `true` if a wait ended because its time was over.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::TimedOut)
    }

    /// Returns `true` if the same call may succeed later, and nothing was lost: no message has
    /// arrived yet, or the receiver holds too many, or the system was short of descriptors or memory.
    /// Not for an interrupted wait, which the program has ended itself.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Empty | Self::TimedOut | Self::TooManyBorrowed { .. } => true,
            Self::NotConnected { errno } => {
                matches!(*errno, libc::EMFILE | libc::ENFILE | libc::ENOMEM)
            }
            Self::Open(error) => error.is_retryable(),
            Self::NoHelper(error) | Self::Os(error) => error.is_retryable(),
            _ => false,
        }
    }

    /// Returns `true` if one message is lost. The next one may be good: receive again.
    pub fn is_message_lost(&self) -> bool {
        matches!(
            self,
            Self::MessageLost { .. }
                | Self::Attach(_)
                | Self::Damaged { .. }
                | Self::WrongType { .. }
        )
    }

    /// An error of one message.
    pub(super) fn of_message(error: AttachError) -> Self {
        match error {
            AttachError::Closed(provider) => Self::MessageLost(provider),
            other => Self::Attach(other),
        }
    }

    pub(crate) fn io_kind(&self) -> io::ErrorKind {
        match self {
            Self::Empty | Self::TooManyBorrowed { .. } => io::ErrorKind::WouldBlock,
            Self::TimedOut => io::ErrorKind::TimedOut,
            Self::Disconnected | Self::Evicted => io::ErrorKind::BrokenPipe,
            Self::NoHelper(error) | Self::Os(error) => error.io_kind(),
            Self::NotConnected { errno } => io::Error::from_raw_os_error(*errno).kind(),
            Self::MessageLost { .. } => io::ErrorKind::NotFound,
            Self::Attach(error) => error.io_kind(),
            Self::Damaged { .. } | Self::WrongType { .. } => io::ErrorKind::InvalidData,
            Self::Forked => io::ErrorKind::Other,
            Self::Open(error) => error.io_kind(),
            Self::Interrupted => io::ErrorKind::Interrupted,
            Self::NoReceivers => io::ErrorKind::InvalidInput,
        }
    }
}

impl Explain for RecvError {
    fn write_facts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "no message has arrived"),
            Self::TimedOut => write!(f, "the wait timed out: nothing arrived"),
            Self::Disconnected => {
                write!(f, "the sender has closed or died; nothing more will arrive")
            }
            Self::Evicted => write!(f, "the publisher has disconnected this receiver"),
            Self::TooManyBorrowed { max } => write!(
                f,
                "no message arrives because this receiver holds as many buffers (at most {max}) or \
                 bytes (max_bytes_per_receiver) as it may"
            ),
            Self::Os(error) => write!(f, "{error}"),
            Self::NotConnected { errno } => write!(
                f,
                "the publisher cannot connect this receiver: {}",
                io::Error::from_raw_os_error(*errno)
            ),
            Self::MessageLost(provider) => {
                write!(
                    f,
                    "the message is lost: its segment, of provider {provider}, was removed"
                )
            }
            Self::Attach(_) => write!(f, "the message is lost"),
            Self::Damaged { reason } => write!(f, "a damaged message is lost: {reason}"),
            Self::WrongType { name, len } => {
                write!(
                    f,
                    "the message is lost: its {len} bytes are not a valid value of type {name}"
                )
            }
            Self::Forked => write!(
                f,
                "the channel belongs to the parent of this forked process"
            ),
            Self::Open(_) => write!(f, "the channel cannot be opened"),
            Self::Interrupted => write!(f, "the wait was interrupted"),
            Self::NoReceivers => write!(f, "no receiver was given to wait for"),
            Self::NoHelper(_) => write!(f, "cannot start the thread that waits"),
        }
    }

    fn find_advice(&self) -> Option<Advice> {
        match self {
            Self::Evicted => Some(Advice::OpenAgain),
            Self::TooManyBorrowed { .. } => Some(Advice::DropMessages),
            Self::NotConnected { .. } => Some(Advice::RaiseFileLimit),
            Self::Forked => Some(Advice::CreateInThisProcess),
            Self::NoHelper(_) => Some(Advice::RaiseThreadLimit),
            _ => None,
        }
    }
}
