//! What can go wrong with a channel.

#![forbid(unsafe_code)]

use crate::error::OsError;
use crate::peer::error::AttachError;
use crate::protocol::ids::ProviderId;
use std::fmt;
use thiserror::Error;

/// Why a channel could not be made or opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The channel's name cannot be part of a file name.
    #[error("channel name {name:?} must be 1 to {max} of the characters A-Z a-z 0-9 _ -")]
    Name {
        /// The name that was given.
        name: String,
        /// The longest name, in bytes.
        max: usize,
    },
    /// The capacity is out of range.
    #[error("a channel cannot hold {capacity} messages; it can hold {min} to {max}")]
    Capacity {
        /// What was asked for.
        capacity: usize,
        /// The smallest capacity.
        min: usize,
        /// The largest capacity.
        max: usize,
    },
    /// A living sender has a channel of this name.
    #[error("{object} is the channel of another sender that lives; choose another name")]
    Taken {
        /// The object's path.
        object: String,
    },
    /// There is no channel of this name.
    #[error("{object} does not exist: its sender has not made it yet, has closed it, or has another name_prefix than the client")]
    NoChannel {
        /// The object's path.
        object: String,
    },
    /// The sender has closed the channel, or has died.
    #[error("the sender of {object} is gone; open the channel of its successor")]
    SenderGone {
        /// The object's path.
        object: String,
    },
    /// The sender is still making the channel, or a dead sender's object is being removed: try
    /// again. Or the sender was killed before it gave the object a length; that looks the same
    /// until someone sweeps or creates a channel of that name.
    #[error("{object} is being made; try again (ReceiverBuilder::open_timeout does)")]
    Unfinished {
        /// The object's path.
        object: String,
    },
    /// The channel has a receiver, or had one that is gone: no other can have it.
    #[error("{object} has, or had, a receiver already; each channel has one")]
    HasReceiver {
        /// The object's path.
        object: String,
    },
    /// All seats of the publisher are taken.
    #[error("{object} has {max} receivers already; have one leave, or make the channel for more (PublisherBuilder::receivers)")]
    TooManyReceivers {
        /// The object's path.
        object: String,
        /// How many there may be.
        max: usize,
    },
    /// The number of receivers that there may be is out of range.
    #[error("a publisher cannot have {receivers} receivers; it can have {min} to {max}")]
    Receivers {
        /// What was asked for.
        receivers: usize,
        /// The fewest receivers.
        min: usize,
        /// The most receivers.
        max: usize,
    },
    /// The publisher waits for nobody, and this receiver asks it to.
    #[error("the publisher of {object} waits for nobody; choose OnFull::DropNew or OnFull::KeepLatest")]
    MayNotWait {
        /// The object's path.
        object: String,
    },
    /// This receiver has a capacity, loans or a rule of its own, and the channel's sender has fixed
    /// all of them.
    #[error("{object} is the channel of a Sender, which fixes its capacity, its loans and that it waits; leave them out, or make it with a Publisher")]
    NoPublisher {
        /// The object's path.
        object: String,
    },
    /// The object under the channel's name was not made by this crate, or was made by another
    /// version of it.
    #[error("{object} is not usable: {reason}")]
    NotAChannel {
        /// The object's path.
        object: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The object under the channel's name belongs to another user.
    #[error("{object} belongs to user {found} and not to user {expected}; see ClientBuilder::owner_uid, or choose another name")]
    WrongUid {
        /// The object's path.
        object: String,
        /// The uid that it belongs to.
        found: u32,
        /// The uid that it must belong to.
        expected: u32,
    },
    /// The number of buffers that the receiver may have is out of range.
    #[error("{loans} buffers at a time are not possible; from {min} to {max} are")]
    Loans {
        /// What was asked for.
        loans: usize,
        /// The fewest buffers.
        min: usize,
        /// The most buffers.
        max: usize,
    },
    /// The file mode locks the sender out, or has bits that mean nothing for shared memory.
    #[error("mode {mode:#o} must grant the owner read and write (0o600), and nothing but read and write to anyone")]
    Mode {
        /// The mode that was asked for.
        mode: u32,
    },
    /// This process is a forked child of the one that built the provider.
    #[error("the provider belongs to the process that this one was forked from; make one here")]
    Forked,
    /// The process already has the maximum number of channel ends.
    #[error("this process has {max} ends of channels already")]
    TooMany {
        /// The limit.
        max: usize,
    },
    /// A system call failed. Everything done before it was undone.
    #[error(transparent)]
    Os(#[from] OsError),
}

/// Why a message was not sent. It is given back: [`into_message`](Self::into_message).
#[derive(Error)]
#[error("{kind}")]
pub struct SendError<M> {
    pub(super) kind: SendErrorKind,
    pub(super) message: M,
}

impl<M> SendError<M> {
    /// What went wrong, to match on.
    pub fn kind(&self) -> SendErrorKind {
        self.kind
    }

    /// Gives the message back.
    pub fn into_message(self) -> M {
        self.message
    }
}

impl<M> fmt::Debug for SendError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SendError").field(&self.kind).finish()
    }
}

/// Why a message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SendErrorKind {
    /// All slots carry messages that the receiver has not received.
    #[error("the channel holds {capacity} messages already; wait, drop the message, or make the channel larger")]
    Full {
        /// How many messages fit.
        capacity: usize,
    },
    /// No slot became free, or no receiver came, in time.
    #[error("the receiver made no room in time")]
    TimedOut,
    /// The receiver already has the maximum number of buffers, received or not.
    #[error("the receiver has {max} buffers already; wait until it drops some, or make the channel with more (SenderBuilder::loans; of a publisher, ReceiverBuilder::loans and PublisherBuilder::loans)")]
    TooManyLent {
        /// The limit.
        max: usize,
    },
    /// So many receivers are waited for as there cannot be.
    #[error(
        "there can be {seats} receivers, and not {receivers}; make the channel for more (PublisherBuilder::receivers)"
    )]
    TooFewSeats {
        /// How many are waited for.
        receivers: usize,
        /// How many there may be.
        seats: usize,
    },
    /// The receiver has closed its end, or has died. What it had not received comes back.
    #[error("the receiver is gone; make a new channel")]
    Disconnected,
    /// The bytes do not fit in a slot.
    #[error("{len} bytes do not fit a slot, which takes {max}; put them into a buffer")]
    TooLong {
        /// Their length in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The buffer belongs to another provider.
    #[error("the buffer is of provider {found}, and the channel's is {expected}; make a channel for each provider")]
    OtherProvider {
        /// The buffer's provider.
        found: ProviderId,
        /// The channel's provider.
        expected: ProviderId,
    },
    /// This process is a forked child of the one that has the channel.
    #[error("the channel belongs to the process that this one was forked from")]
    Forked,
    /// An [`Interrupter`](super::Interrupter) has ended the wait. The next one waits again.
    #[error("the wait for the receiver was interrupted")]
    Interrupted,
    /// The thread that wakes those who await channels could not be started.
    #[error("no thread could be started to wake who awaits channels (error {errno}); raise the limit of threads, or use `send`")]
    NoHelper {
        /// The system's error number.
        errno: i32,
    },
}

impl From<AttachError> for RecvError {
    fn from(error: AttachError) -> Self {
        match error {
            AttachError::Closed { provider } => Self::Closed { provider },
            other => Self::Attach(other),
        }
    }
}

/// Why no message was received.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecvError {
    /// No message has arrived.
    #[error("no message is there")]
    Empty,
    /// No message came in time.
    #[error("no message came in time")]
    TimedOut,
    /// The sender has closed its end, or has died, and everything it sent has been received.
    #[error("the sender is gone, and all its messages were received")]
    Disconnected,
    /// The buffer's segment cannot be mapped for now, for want of descriptors or memory. The
    /// message is still there for the next call.
    #[error("a message that cannot be mapped now, and is still there: {0}")]
    NotNow(OsError),
    /// The buffer is gone: its provider was dropped, or was killed and swept. The next message may
    /// be good.
    #[error("a message of provider {provider}, which is gone with its segments")]
    Closed {
        /// The provider.
        provider: ProviderId,
    },
    /// The buffer's segment is not the sender's. The next message may be good.
    #[error("a message that cannot be read: {0}")]
    Attach(AttachError),
    /// The message is one that no sender writes. The next one may be good.
    #[error("a damaged message: {what}")]
    Damaged {
        /// What is wrong with it.
        what: &'static str,
    },
    /// This process is a forked child of the one that has the channel.
    #[error("the channel belongs to the process that this one was forked from")]
    Forked,
    /// An [`Interrupter`](super::Interrupter) has ended the wait. The next one waits again.
    #[error("the wait for a message was interrupted")]
    Interrupted,
    /// The thread that wakes those who await channels could not be started. No message is lost.
    #[error("no thread could be started to wake who awaits channels; raise the limit of threads, or use `recv`: {0}")]
    NoHelper(OsError),
}

/// Why [`wait_any`](super::wait_any) has found no receiver.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WaitAnyError {
    /// There is none to wait for.
    #[error("no receiver was given to wait for")]
    NoReceivers,
    /// No message came in time.
    #[error("none of {receivers} receivers had a message in time")]
    TimedOut {
        /// How many there are.
        receivers: usize,
    },
    /// The [`Interrupter`](super::Interrupter) of one of them has ended the wait. The next one
    /// waits again.
    #[error("the wait was interrupted, at receiver {index}")]
    Interrupted {
        /// Whose it was.
        index: usize,
    },
    /// The thread that wakes those who await channels could not be started.
    #[error("no thread could be started to wait for {receivers} receivers; raise the limit of threads: {source}")]
    NoHelper {
        /// How many there are.
        receivers: usize,
        /// What the system says.
        source: OsError,
    },
    /// This process is a forked child of the one that has this receiver.
    #[error("the channel of receiver {index} belongs to the process that this one was forked from")]
    Forked {
        /// Which it is.
        index: usize,
    },
}
