//! Errors of channels.

#![forbid(unsafe_code)]

use super::layout::MessageType;
use crate::error::OsError;
use crate::os::process::Process;
use crate::peer::error::AttachError;
use crate::protocol::ids::ProviderId;
use std::fmt;
use std::io;
use thiserror::Error;

/// The error returned when a channel could not be created or opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The channel's name cannot be used in a file name.
    #[error("channel name {name:?} must be 1 to {max} of the characters A-Z a-z 0-9 _ -")]
    Name {
        /// The name that was given.
        name: String,
        /// The longest name, in bytes.
        max: usize,
    },
    /// An option is out of range.
    #[error("option {option} is {value}, but must be from {min} to {max}")]
    OutOfRange {
        /// The builder's method that sets the option.
        option: &'static str,
        /// The requested value.
        value: usize,
        /// The smallest value allowed.
        min: usize,
        /// The largest value allowed: for a receiver, the publisher's.
        max: usize,
    },
    /// A live sender has a channel of this name.
    #[error(
        "{object} is the channel of a live sender{}; choose another name, or wait with \
         create_timeout",
        named(.process)
    )]
    NameTaken {
        /// The object's path.
        object: String,
        /// The sender's process, if it is visible: one of the same user and PID namespace.
        process: Option<Process>,
    },
    /// No channel of this name exists.
    #[error(
        "{object} does not exist: its sender has not created it yet, has closed it, or uses \
         another namespace"
    )]
    NotFound {
        /// The object's path.
        object: String,
    },
    /// The sender has closed the channel, or has died.
    #[error("the sender of {object} has closed or died; open the channel of its successor")]
    Closed {
        /// The object's path.
        object: String,
    },
    /// The sender is still creating the channel, or a dead sender's object is being removed: try
    /// again. The object of a sender killed at that moment looks the same until a sweep, or until a
    /// channel of that name is created.
    #[error("{object} is being created; try again, as `open_timeout` does")]
    NotReady {
        /// The object's path.
        object: String,
    },
    /// The channel has a receiver, or had one: it accepts no other.
    #[error("{object} has, or had, a receiver; a channel accepts only one")]
    HasReceiver {
        /// The object's path.
        object: String,
    },
    /// All registrations of the publisher are taken, some perhaps by closed receivers whose
    /// messages are still being read.
    #[error(
        "{object} has {max} receivers, the maximum; close one, or raise \
         PublisherBuilder::receivers"
    )]
    TooManyReceivers {
        /// The object's path.
        object: String,
        /// The maximum number of receivers.
        max: usize,
    },
    /// The receiver asks the publisher to wait for it, and the publisher waits for no receiver.
    #[error(
        "the publisher of {object} does not allow OnFull::Block; choose DropNewest or DropOldest"
    )]
    BlockingNotAllowed {
        /// The object's path.
        object: String,
    },
    /// A [`Receiver`](super::Receiver) was to open the channel of a
    /// [`Publisher`](super::Publisher).
    #[error("{object} is the channel of a Publisher; open it with a Subscriber")]
    NotASender {
        /// The object's path.
        object: String,
    },
    /// A [`Subscriber`](super::Subscriber) was to open the channel of a
    /// [`Sender`](super::Sender).
    #[error("{object} is the channel of a Sender; open it with a Receiver")]
    NotAPublisher {
        /// The object's path.
        object: String,
    },
    /// The sender has declared another type of messages than the receiver expects, or none.
    #[error(
        "{object} carries {}, but the receiver expects {}; build both sides with one definition",
        name_of(&types.1), name_of(&types.0)
    )]
    TypeMismatch {
        /// The object's path.
        object: String,
        /// The type that the receiver expects, and the one that the sender has declared.
        types: Box<(Option<MessageType>, Option<MessageType>)>,
    },
    /// The channel was created by another version of this crate, with another layout.
    #[error(
        "{object} has version {found} of the layout of channels, and not version {expected}; \
         build both sides with one version of shm-pool"
    )]
    OtherVersion {
        /// The object's path.
        object: String,
        /// The version found.
        found: u32,
        /// The version that this crate reads and writes.
        expected: u32,
    },
    /// The object of that name is not one that this crate created for a channel.
    #[error("{object} is not usable: {reason}")]
    NotAChannel {
        /// The object's path.
        object: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The object of that name belongs to another user.
    #[error(
        "{object} belongs to user {found} and not to user {expected}; see \
         Namespace::of_user and PublisherBuilder::mode, or choose another name"
    )]
    WrongUid {
        /// The object's path.
        object: String,
        /// The uid of the object.
        found: u32,
        /// The expected uid.
        expected: u32,
    },
    /// The file mode denies the owner access, or has bits that mean nothing for shared memory.
    #[error(
        "mode {mode:#o} must grant the owner read and write (0o600), and nothing but read and \
         write to anyone"
    )]
    Mode {
        /// The requested mode.
        mode: u32,
    },
    /// This process is a forked child of the process that built the provider.
    #[error("the provider belongs to the parent of this forked process; build a new one")]
    Forked,
    /// This process already has the maximum number of channel ends.
    #[error("this process has {max} channel ends, the maximum")]
    TooManyEnds {
        /// The limit.
        max: usize,
    },
    /// A system call failed. All earlier steps were undone.
    #[error(transparent)]
    Os(#[from] OsError),
}

fn name_of(message_type: &Option<MessageType>) -> String {
    message_type
        .as_ref()
        .map_or("untyped messages".into(), MessageType::to_string)
}

impl ChannelError {
    /// Returns `true` if opening the channel may succeed once its sender has created it.
    pub fn is_not_found(&self) -> bool {
        matches!(
            self,
            Self::NotFound { .. } | Self::NotReady { .. } | Self::Closed { .. }
        )
    }

    /// Checks that an option has one of the values from `min` to `max`.
    pub(super) fn check(
        option: &'static str,
        value: usize,
        min: usize,
        max: usize,
    ) -> Result<(), Self> {
        match (min..=max).contains(&value) {
            true => Ok(()),
            false => Err(Self::OutOfRange {
                option,
                value,
                min,
                max,
            }),
        }
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

/// A message that was not sent, and the reason.
#[derive(Error)]
#[error("{kind}")]
pub struct SendError<M> {
    pub(super) kind: SendErrorKind,
    pub(super) message: M,
}

impl<M> SendError<M> {
    /// Returns the kind of error.
    pub fn kind(&self) -> SendErrorKind {
        self.kind
    }

    /// Returns `true` if the receiver has closed its end or died.
    pub fn is_disconnected(&self) -> bool {
        self.kind == SendErrorKind::Disconnected
    }

    /// Returns `true` if there is no room now: the same call may succeed later.
    pub fn is_full(&self) -> bool {
        self.kind.is_full()
    }

    /// Returns the message that was not sent.
    pub fn into_message(self) -> M {
        self.message
    }
}

impl<M> fmt::Debug for SendError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SendError").field(&self.kind).finish()
    }
}

/// The reason why a message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SendErrorKind {
    /// All slots hold messages that the receiver has not received.
    #[error(
        "the channel is full with {capacity} messages; wait, drop the message, or raise its \
         `capacity`"
    )]
    Full {
        /// The number of messages that fit.
        capacity: usize,
    },
    /// The receiver made no room in time, or no receiver joined in time.
    #[error("the wait timed out: the receiver made no room")]
    TimedOut,
    /// The receiver already has the maximum number of buffers, or of a publisher's bytes, received
    /// or not.
    #[error(
        "the receiver holds the most buffers that it may (at most {max}, and \
         PublisherBuilder::max_bytes_per_receiver); wait until it drops some, or raise the \
         limit"
    )]
    TooManyBorrowed {
        /// The most buffers that it may hold, of any length.
        max: usize,
    },
    /// More receivers to wait for than the publisher accepts.
    #[error(
        "cannot wait for {receivers} receivers: at most {max} can join; raise \
         PublisherBuilder::receivers"
    )]
    TooManyReceivers {
        /// The number of receivers to wait for.
        receivers: usize,
        /// The maximum number of receivers.
        max: usize,
    },
    /// The receiver has closed its end or died. Buffers that it had not received are returned.
    #[error("the receiver has closed or died; create a new channel")]
    Disconnected,
    /// The bytes do not fit in a slot.
    #[error("{len} bytes do not fit in a slot of {max}; send a buffer")]
    TooLong {
        /// The length in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The buffer belongs to another provider.
    #[error(
        "the buffer belongs to provider {found}, and the channel to {expected}; create a \
         channel for each provider"
    )]
    OtherProvider {
        /// The buffer's provider.
        found: ProviderId,
        /// The channel's provider.
        expected: ProviderId,
    },
    /// This process is a forked child of the process that owns the channel.
    #[error("the channel belongs to the parent of this forked process")]
    Forked,
    /// An [`Interrupter`](super::Interrupter) ended the wait. The next wait blocks again.
    #[error("the wait for the receiver was interrupted")]
    Interrupted,
    /// The helper thread that wakes the tasks of channels could not be started.
    #[error(
        "cannot start the thread that wakes tasks (error {errno}); raise the limit of threads, \
         or use `send`"
    )]
    NoHelper {
        /// The operating system's error code.
        errno: i32,
    },
}

impl SendErrorKind {
    /// Returns `true` if there is no room now: the same call may succeed later.
    pub fn is_full(&self) -> bool {
        matches!(
            self,
            Self::Full { .. } | Self::TooManyBorrowed { .. } | Self::TimedOut
        )
    }
}

impl From<AttachError> for RecvError {
    fn from(error: AttachError) -> Self {
        match error {
            AttachError::Closed { provider } => Self::Closed { provider },
            other => Self::Attach(other),
        }
    }
}

/// The reason why no message was received.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecvError {
    /// No message has arrived.
    #[error("no message has arrived")]
    Empty,
    /// No message arrived in time.
    #[error("the wait timed out: no message arrived")]
    TimedOut,
    /// The sender has closed its end or died, and everything it sent has been received.
    #[error("the sender has closed or died, and none of its messages is left to receive")]
    Disconnected,
    /// The publisher has [disconnected](super::Publisher::disconnect) this receiver, perhaps
    /// because it [made no room](super::OnStall::Disconnect). Drop the messages received and the
    /// receiver to join again.
    #[error(
        "the publisher has disconnected this receiver; drop it and what it has received, and \
         open the channel again"
    )]
    Evicted,
    /// No message has arrived, and at least one was skipped, or waits, because this receiver holds
    /// as many buffers, or bytes, as it may. Reported once for each such message, and not while it
    /// holds none.
    #[error(
        "no message arrives because this receiver holds the most buffers that it may (at most \
         {max}, and PublisherBuilder::max_bytes_per_receiver); drop some"
    )]
    TooManyBorrowed {
        /// The most buffers that it may hold, of any length.
        max: usize,
    },
    /// The buffer's segment cannot be mapped now: descriptors or memory have run out. The message
    /// stays queued for the next call.
    #[error("the message cannot be mapped now, and stays queued")]
    Map(#[source] OsError),
    /// The system refused to let the publisher connect this receiver, mostly because its process
    /// has run out of descriptors or memory (`EMFILE`, `ENFILE`, `ENOMEM`). Then the publisher
    /// retries when it sends or is asked for its receivers, after 1 ms at first, and after twice as
    /// long each time, up to a second. After any other error it does not retry: open the receiver
    /// again.
    #[error(
        "the publisher cannot connect this receiver: {}; if its process has too few \
         descriptors, raise the limit, and receive again; else open this receiver again",
        io::Error::from_raw_os_error(*.errno)
    )]
    NotConnected {
        /// The operating system's error code, in the publisher's process.
        errno: i32,
    },
    /// The buffer no longer exists: its provider was dropped, or was killed and swept. The next
    /// message may be good.
    #[error("the message is lost: provider {provider} has closed")]
    Closed {
        /// The provider.
        provider: ProviderId,
    },
    /// The buffer's segment does not belong to the sender. The next message may be good.
    #[error("the message cannot be read")]
    Attach(#[source] AttachError),
    /// The message is one that no sender writes. The next message may be good.
    #[error("a damaged message: {what}")]
    Damaged {
        /// What is wrong with it.
        what: &'static str,
    },
    /// The message is no value of the type that the receiver expects. The next message may be good.
    #[error("a message of {len} bytes is no {name}")]
    WrongType {
        /// The name of the expected type.
        name: &'static str,
        /// The message's length in bytes.
        len: usize,
    },
    /// This process is a forked child of the process that owns the channel.
    #[error("the channel belongs to the parent of this forked process")]
    Forked,
    /// The channel, or that of a successor, could not be opened. The next call tries again.
    #[error("the channel cannot be opened")]
    Open(#[source] Box<ChannelError>),
    /// An [`Interrupter`](super::Interrupter) ended the wait. The next wait blocks again.
    #[error("the wait for a message was interrupted")]
    Interrupted,
    /// The helper thread that wakes the tasks of channels could not be started. No message is lost.
    #[error("cannot start the thread that wakes tasks; raise the limit of threads, or use `recv`")]
    NoHelper(#[source] OsError),
}

impl RecvError {
    /// Returns `true` if no message has arrived, at once or in time.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Empty | Self::TimedOut)
    }

    /// Returns `true` if no message will arrive any more: [`Disconnected`](Self::Disconnected) or
    /// [`Evicted`](Self::Evicted).
    pub fn is_disconnected(&self) -> bool {
        matches!(self, Self::Disconnected | Self::Evicted)
    }
}

/// The error returned by a [`Watcher`](super::Watcher).
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WatchError {
    /// No channel was created or closed in time.
    #[error("the wait timed out: no channel was created or closed")]
    TimedOut,
    /// The channels cannot be listed. No change is lost.
    #[error(transparent)]
    Os(OsError),
    /// An [`Interrupter`](super::Interrupter) ended the wait. The next wait blocks again.
    #[error("the wait for channels was interrupted")]
    Interrupted,
    /// This process is a forked child of the process that created the watcher.
    #[error("the watcher belongs to the parent of this forked process")]
    Forked,
    /// The thread that waits for names could not be started.
    #[error(
        "cannot start the thread that waits for names; raise the limit of threads, or use `recv`"
    )]
    NoHelper(#[source] OsError),
}

/// The error returned by [`wait_any`](super::wait_any).
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WaitAnyError {
    /// The slice of receivers is empty.
    #[error("the list of receivers is empty")]
    NoReceivers,
    /// No message arrived in time.
    #[error("none of {receivers} receivers had a message in time")]
    TimedOut {
        /// The number of receivers.
        receivers: usize,
    },
    /// The [`Interrupter`](super::Interrupter) of one receiver ended the wait. The next wait blocks
    /// again.
    #[error("the wait was interrupted, at receiver {index}")]
    Interrupted {
        /// The index of that receiver.
        index: usize,
    },
    /// The helper thread could not be started.
    #[error(
        "cannot start the thread that waits for {receivers} receivers; raise the limit of threads"
    )]
    NoHelper {
        /// The number of receivers.
        receivers: usize,
        /// The operating system's error.
        source: OsError,
    },
    /// This process is a forked child of the process that owns a receiver's channel.
    #[error("the channel of receiver {index} belongs to the parent of this forked process")]
    Forked {
        /// The index of that receiver.
        index: usize,
    },
}
