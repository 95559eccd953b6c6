//! Results: a code for each condition that a caller can act on, and a message for the rest.

use shm_pool::channel::{ChannelError, RecvError, SendError, SendErrorKind};
use shm_pool::threads::HookError;
use shm_pool::{
    Advice, AllocError, AttachError, BuildError, CapacityError, DescriptorError, OsError,
    ShareError,
};
use std::any::Any;
use std::cell::RefCell;
use std::error::Error;
use std::ffi::{c_char, c_int, CStr, CString};
use std::io;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// The result of a call. Numbers keep their meaning in later versions, which may add some.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The call succeeded.
    Ok = 0,
    /// An argument is null, an empty handle, out of range, or not a valid name.
    InvalidArgument = 1,
    /// A defect of the library: a panic was caught. The object may be unusable; destroy it.
    Panic = 2,
    /// The object belongs to the parent of this forked process.
    Forked = 3,
    /// A system call failed; see `shm_pool_last_errno`.
    Os = 4,
    /// This process has no heap memory left.
    OutOfMemory = 5,
    /// Another thread has ended the wait. The next one waits again.
    Interrupted = 6,
    /// The time is over.
    TimedOut = 7,
    /// The object belongs to another user.
    WrongUid = 8,
    /// An error that this version of the interface has no code for.
    Other = 9,
    /// The provider's cap is reached; the message says by what.
    Exhausted = 20,
    /// The length is above the largest allocation, or above the buffer's capacity.
    TooLarge = 21,
    /// The message has other handles or readers.
    NotExclusive = 22,
    /// The provider has no record left to share another buffer.
    TooManyShared = 30,
    /// The peer has disconnected or died.
    PeerDisconnected = 31,
    /// The buffer or the peer belongs to another provider.
    OtherProvider = 32,
    /// The peer has not taken up earlier grants of this buffer.
    TooManyGrants = 33,
    /// The memory has been reused since the descriptor was made.
    Stale = 40,
    /// The grant was taken up already, or revoked.
    NotGranted = 41,
    /// The descriptor was granted to another client.
    OtherPeer = 42,
    /// This client has as many views of the message as it may have.
    TooManyLeases = 43,
    /// The client reads, or was granted, as many bytes as the provider allows.
    OverQuota = 44,
    /// No such provider exists.
    NoProvider = 45,
    /// The provider's process has died.
    ProviderDied = 46,
    /// The provider, or the channel, has been closed.
    Closed = 47,
    /// The provider refuses this client, or the other end of the channel has closed or died.
    Disconnected = 48,
    /// All peer slots of the provider are taken.
    TooManyPeers = 49,
    /// Another process has this client's slot, because its descriptors were closed.
    SlotLost = 50,
    /// The descriptor or the shared memory has no valid content.
    Damaged = 51,
    /// The object under that name is not one of this library, or of another version.
    NotUsable = 52,
    /// No message has arrived.
    Empty = 60,
    /// The channel is full.
    Full = 61,
    /// The receiver holds as many buffers, or bytes, as it may.
    TooManyBorrowed = 62,
    /// No channel of that name exists.
    NotFound = 64,
    /// The channel is being created; try again.
    NotReady = 65,
    /// A live sender has a channel of that name.
    NameTaken = 66,
    /// The channel has, or had, a receiver.
    HasReceiver = 67,
    /// The publisher has as many receivers as it accepts.
    TooManyReceivers = 68,
    /// The publisher does not wait for receivers.
    BlockingNotAllowed = 69,
    /// The channel is a sender's: open it with `shm_pool_receiver_open`.
    NotAPublisher = 70,
    /// This process has as many ends of channels as it may have.
    TooManyEnds = 71,
    /// The publisher's process has no descriptors or memory for this receiver.
    NotConnected = 72,
    /// The thread that watches channels for descriptors could not be started.
    NoHelper = 73,
    /// The publisher has disconnected this receiver. With `SHM_POOL_WAIT`, the next call joins again;
    /// otherwise destroy it and drop what it has received, and open the channel again.
    Evicted = 74,
    /// The channel is not of the type that the receiver expects.
    TypeMismatch = 75,
    /// The channel is a publisher's: open it with `shm_pool_subscriber_open`.
    NotASender = 76,
    /// The other end was built with another version of the library, with another layout of shared memory.
    OtherVersion = 77,
    /// One message is lost: its buffer no longer exists, or is damaged. The next one may be good.
    MessageLost = 78,
}

/// Returns the version of the library that runs, such as "0.1.0": at least that of the header,
/// `SHM_POOL_VERSION_MAJOR`, `_MINOR` and `_PATCH`, that the program was compiled with.
///
/// Owner: the library. Valid for ever.
#[no_mangle]
pub extern "C" fn shm_pool_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Returns the name of a status, such as `SHM_POOL_STATUS_NOT_FOUND`; for a number that is none,
/// `SHM_POOL_STATUS_OTHER`.
///
/// Owner: the library. Valid for ever.
#[no_mangle]
pub extern "C" fn shm_pool_status_name(status: c_int) -> *const c_char {
    let name = match status {
        0 => c"SHM_POOL_STATUS_OK",
        1 => c"SHM_POOL_STATUS_INVALID_ARGUMENT",
        2 => c"SHM_POOL_STATUS_PANIC",
        3 => c"SHM_POOL_STATUS_FORKED",
        4 => c"SHM_POOL_STATUS_OS",
        5 => c"SHM_POOL_STATUS_OUT_OF_MEMORY",
        6 => c"SHM_POOL_STATUS_INTERRUPTED",
        7 => c"SHM_POOL_STATUS_TIMED_OUT",
        8 => c"SHM_POOL_STATUS_WRONG_UID",
        9 => c"SHM_POOL_STATUS_OTHER",
        20 => c"SHM_POOL_STATUS_EXHAUSTED",
        21 => c"SHM_POOL_STATUS_TOO_LARGE",
        22 => c"SHM_POOL_STATUS_NOT_EXCLUSIVE",
        30 => c"SHM_POOL_STATUS_TOO_MANY_SHARED",
        31 => c"SHM_POOL_STATUS_PEER_DISCONNECTED",
        32 => c"SHM_POOL_STATUS_OTHER_PROVIDER",
        33 => c"SHM_POOL_STATUS_TOO_MANY_GRANTS",
        40 => c"SHM_POOL_STATUS_STALE",
        41 => c"SHM_POOL_STATUS_NOT_GRANTED",
        42 => c"SHM_POOL_STATUS_OTHER_PEER",
        43 => c"SHM_POOL_STATUS_TOO_MANY_LEASES",
        44 => c"SHM_POOL_STATUS_OVER_QUOTA",
        45 => c"SHM_POOL_STATUS_NO_PROVIDER",
        46 => c"SHM_POOL_STATUS_PROVIDER_DIED",
        47 => c"SHM_POOL_STATUS_CLOSED",
        48 => c"SHM_POOL_STATUS_DISCONNECTED",
        49 => c"SHM_POOL_STATUS_TOO_MANY_PEERS",
        50 => c"SHM_POOL_STATUS_SLOT_LOST",
        51 => c"SHM_POOL_STATUS_DAMAGED",
        52 => c"SHM_POOL_STATUS_NOT_USABLE",
        60 => c"SHM_POOL_STATUS_EMPTY",
        61 => c"SHM_POOL_STATUS_FULL",
        62 => c"SHM_POOL_STATUS_TOO_MANY_BORROWED",
        64 => c"SHM_POOL_STATUS_NOT_FOUND",
        65 => c"SHM_POOL_STATUS_NOT_READY",
        66 => c"SHM_POOL_STATUS_NAME_TAKEN",
        67 => c"SHM_POOL_STATUS_HAS_RECEIVER",
        68 => c"SHM_POOL_STATUS_TOO_MANY_RECEIVERS",
        69 => c"SHM_POOL_STATUS_BLOCKING_NOT_ALLOWED",
        70 => c"SHM_POOL_STATUS_NOT_A_PUBLISHER",
        71 => c"SHM_POOL_STATUS_TOO_MANY_ENDS",
        72 => c"SHM_POOL_STATUS_NOT_CONNECTED",
        73 => c"SHM_POOL_STATUS_NO_HELPER",
        74 => c"SHM_POOL_STATUS_EVICTED",
        75 => c"SHM_POOL_STATUS_TYPE_MISMATCH",
        76 => c"SHM_POOL_STATUS_NOT_A_SENDER",
        77 => c"SHM_POOL_STATUS_OTHER_VERSION",
        78 => c"SHM_POOL_STATUS_MESSAGE_LOST",
        _ => c"SHM_POOL_STATUS_OTHER",
    };
    name.as_ptr()
}

/// The advice of an error, with the names of C's interface.
fn words(advice: Advice) -> &'static str {
    match advice {
        Advice::RaiseMaxAlloc => {
            "raise the option max_alloc of the provider, and max_bytes, which limits it"
        }
        Advice::LowerMaxAlloc => "raise the limit (ulimit -v, cgroup memory), or lower max_alloc",
        Advice::MakeRoom => "drop buffers, let the peers drop their views, or raise max_bytes",
        Advice::RaiseMaxIdle => "raise the option max_idle_per_class of the provider",
        Advice::RaiseMaxShared => "drop shared buffers, or raise the option max_shared",
        Advice::LowerMaxShared => "lower the option max_shared of the provider",
        Advice::RaiseLockLimit => {
            "raise the limit (ulimit -l; LimitMEMLOCK of systemd; docker run --ulimit memlock), or \
             lower max_bytes"
        }
        Advice::OtherNumaNode => "choose a node of Mems_allowed_list in /proc/self/status",
        Advice::SweepLess => "do not sweep in a loop",
        Advice::CreateInThisProcess => "create a new one in this process",
        Advice::SkipPeer => "send to the remaining peers",
        Advice::WaitForAttach => "wait until the peer attaches",
        Advice::WaitForViews => "wait until the peer drops views, or revoke grants",
        Advice::DropViews => "drop views, or take up grants",
        Advice::GrantOrKeep => {
            "grant each message to its receiver, or keep it until it is confirmed"
        }
        Advice::ShareView => "clone one of them instead",
        Advice::CheckProvider => {
            "the provider has closed, or uses another name_prefix than the client"
        }
        Advice::ConnectToSuccessor => "connect to its successor",
        Advice::WaitForPeerSlot => "wait until one of them ends",
        Advice::CreateClient => "create a new client",
        Advice::SetOwnerUid => "see the option owner_uid of the client",
        Advice::OtherNameOrWait => "choose another name, or create it with a timeout_ns",
        Advice::CheckSender => "it was not created yet, was closed, or has another name_prefix",
        Advice::OpenSuccessor => "open the channel of its successor",
        Advice::OpenLater => "try again, or open with a timeout_ns",
        Advice::RaiseReceivers => {
            "destroy one, or raise the option max_subscribers of the publisher"
        }
        Advice::WaitForFewer => {
            "wait for fewer, or raise the option max_subscribers of the publisher"
        }
        Advice::CloseEnds => "destroy some of them",
        Advice::DoNotBlock => "choose an on_full that drops messages",
        Advice::UseSubscriber => "open it as a subscriber",
        Advice::UseReceiver => "open it as a receiver",
        Advice::SameType => "build both sides with one definition",
        Advice::SameVersion => "build both sides with one version of shm-pool",
        Advice::SetOwnerUidOrMode => {
            "see the options owner_uid of the client and mode of the publisher, or choose another \
             name"
        }
        Advice::RaiseCapacity => "wait, drop the message, or raise the option capacity",
        Advice::RaiseMaxBorrowed => {
            "wait until it drops some, or raise max_borrowed or max_bytes_per_receiver"
        }
        Advice::DropMessages => "drop some messages",
        Advice::CreateChannel => "create a new channel",
        Advice::ChannelForEachProvider => "create a channel for each provider",
        Advice::RaiseThreadLimit => "raise the limit of threads, or use a call that blocks",
        Advice::OpenAgain => "destroy it, drop what it has received, and open the channel again",
        Advice::RaiseFileLimit => {
            "raise the limit of descriptors and receive again, or open the channel again"
        }
        Advice::AllocLarger => "allocate a larger one",
        _ => "see the manual",
    }
}

enum Text {
    Static(&'static CStr),
    /// Formatted when it is asked for: a full channel is no rare event.
    Send(SendErrorKind),
    Owned(CString),
}

/// The last error of a thread.
struct Last {
    status: Status,
    errno: c_int,
    text: Text,
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// An error on its way to C. The rest of it is kept for this thread, so that the results within a
/// call fit into registers.
pub(crate) struct Failure(Status);

impl Failure {
    /// The failure that another function of this library has returned, and described.
    pub(crate) fn described(status: Status) -> Self {
        Self(status)
    }

    #[cold]
    fn keep(status: Status, errno: c_int, text: Text) -> Self {
        // While the thread exits there is no place for it.
        let _ = LAST.try_with(|last| {
            *last.borrow_mut() = Some(Last {
                status,
                errno,
                text,
            })
        });
        Self(status)
    }

    #[cold]
    pub(crate) fn new(status: Status, text: String) -> Self {
        Self::with_errno(status, 0, text)
    }

    pub(crate) fn of_open(error: &ChannelError) -> Self {
        Self::of(of_channel(error), error)
    }

    fn with_errno(status: Status, errno: c_int, text: String) -> Self {
        // No message has a NUL.
        let text = CString::new(text).unwrap_or_default();
        Self::keep(status, errno, Text::Owned(text))
    }

    #[cold]
    fn of(status: Status, error: &(dyn Error + 'static)) -> Self {
        Self::of_errno(status, errno_of(error), error)
    }

    fn of_errno(status: Status, errno: c_int, error: &(dyn Error + 'static)) -> Self {
        Self::with_errno(status, errno, shm_pool::text_in(error, words))
    }

    /// `error` is, or contains, the error of a system call.
    #[cold]
    fn of_system(status: Status, system: &OsError, error: &(dyn Error + 'static)) -> Self {
        Self::of_errno(status, system.errno().unwrap_or(0), error)
    }

    #[cold]
    fn of_panic(payload: Box<dyn Any + Send>) -> Self {
        let text = if let Some(text) = payload.downcast_ref::<String>() {
            text
        } else if let Some(text) = payload.downcast_ref::<&str>() {
            text
        } else {
            "no message"
        };
        let failure = Self::new(Status::Panic, format!("the library panicked: {text}"));
        // Its drop might panic.
        std::mem::forget(payload);
        failure
    }
}

/// Returns the `errno` of the first error of a system call among an error and its causes; 0 if there
/// is none.
fn errno_of(error: &(dyn Error + 'static)) -> c_int {
    let mut next = Some(error);
    while let Some(cause) = next {
        let errno = if let Some(error) = cause.downcast_ref::<OsError>() {
            error.errno()
        } else if let Some(error) = cause.downcast_ref::<io::Error>() {
            error.raw_os_error()
        } else {
            None
        };
        if let Some(errno) = errno {
            return errno;
        }
        next = cause.source();
    }
    0
}

/// Runs the body of a call: no panic passes, and an error is kept for this thread.
#[inline]
pub(crate) fn guard(body: impl FnOnce() -> Result<(), Failure>) -> Status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Status::Ok,
        Ok(Err(Failure(status))) => status,
        Err(payload) => Failure::of_panic(payload).0,
    }
}

/// Like [`guard`], for a call that returns a value and cannot fail.
#[inline]
pub(crate) fn guard_value<T>(fallback: T, body: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => value,
        Err(payload) => {
            Failure::of_panic(payload);
            fallback
        }
    }
}

/// Returns the message of the last call of this thread that failed, in English and without a line
/// end; an empty string if none has. Successful calls do not change it.
///
/// Owner: the library. Valid until the next call of this thread that fails.
#[no_mangle]
pub extern "C" fn shm_pool_last_error() -> *const c_char {
    let text = LAST.try_with(|last| {
        let mut last = last.borrow_mut();
        let Some(failure) = &mut *last else {
            return c"".as_ptr();
        };
        if let Text::Send(kind) = &failure.text {
            let text = shm_pool::text_in(kind, words);
            failure.text = Text::Owned(CString::new(text).unwrap_or_default());
        }
        match &failure.text {
            Text::Static(text) => text.as_ptr(),
            Text::Owned(text) => text.as_ptr(),
            Text::Send(_) => c"".as_ptr(),
        }
    });
    text.unwrap_or(c"".as_ptr())
}

/// Returns the status of the last call of this thread that failed; `SHM_POOL_STATUS_OK` if none
/// has.
#[no_mangle]
pub extern "C" fn shm_pool_last_status() -> Status {
    let status = LAST.try_with(|last| match &*last.borrow() {
        Some(failure) => failure.status,
        None => Status::Ok,
    });
    status.unwrap_or(Status::Ok)
}

/// Returns the `errno` of the last call of this thread that failed, if a system call was the cause;
/// otherwise 0.
#[no_mangle]
pub extern "C" fn shm_pool_last_errno() -> c_int {
    let errno = LAST.try_with(|last| match &*last.borrow() {
        Some(failure) => failure.errno,
        None => 0,
    });
    errno.unwrap_or(0)
}

impl From<AllocError> for Failure {
    #[cold]
    fn from(error: AllocError) -> Self {
        match &error {
            AllocError::Os(system) => Self::of_system(Status::Os, system, &error),
            _ => Self::of(of_alloc(&error), &error),
        }
    }
}

fn of_alloc(error: &AllocError) -> Status {
    match error {
        AllocError::TooLarge { .. } => Status::TooLarge,
        AllocError::UnsupportedAlignment { .. } | AllocError::ReserveTooMany { .. } => {
            Status::InvalidArgument
        }
        AllocError::Exhausted { .. } => Status::Exhausted,
        AllocError::TimedOut { .. } => Status::TimedOut,
        AllocError::Interrupted => Status::Interrupted,
        AllocError::ReserveShare(error) => of_share(error),
        AllocError::Forked => Status::Forked,
        AllocError::Os(_) => Status::Os,
        _ => Status::Other,
    }
}

impl From<ShareError> for Failure {
    #[cold]
    fn from(error: ShareError) -> Self {
        Self::of(of_share(&error), &error)
    }
}

fn of_share(error: &ShareError) -> Status {
    match error {
        ShareError::TooManyShared { .. } => Status::TooManyShared,
        ShareError::PeerDisconnected(_) => Status::PeerDisconnected,
        ShareError::OtherProvider(_) => Status::OtherProvider,
        ShareError::TooManyGrants { .. } => Status::TooManyGrants,
        ShareError::OverQuota { .. } => Status::OverQuota,
        ShareError::OutOfMemory { .. } => Status::OutOfMemory,
        ShareError::Forked => Status::Forked,
        _ => Status::Other,
    }
}

impl From<BuildError> for Failure {
    fn from(error: BuildError) -> Self {
        let status = match &error {
            BuildError::OutOfRange { .. }
            | BuildError::Prefix { .. }
            | BuildError::Directory { .. }
            | BuildError::Mode { .. }
            | BuildError::LockMemory { .. }
            | BuildError::NumaNode { .. } => Status::InvalidArgument,
            BuildError::OutOfMemory { .. } => Status::OutOfMemory,
            BuildError::Os(system) => return Self::of_system(Status::Os, system, &error),
            _ => Status::Other,
        };
        Self::of(status, &error)
    }
}

impl From<HookError> for Failure {
    fn from(error: HookError) -> Self {
        Self::of(Status::Other, &error)
    }
}

impl From<CapacityError> for Failure {
    fn from(error: CapacityError) -> Self {
        Self::of(Status::TooLarge, &error)
    }
}

impl From<DescriptorError> for Failure {
    fn from(error: DescriptorError) -> Self {
        Self::of(Status::Damaged, &error)
    }
}

impl From<AttachError> for Failure {
    #[cold]
    fn from(error: AttachError) -> Self {
        match &error {
            AttachError::Os(system) => Self::of_system(Status::Os, system, &error),
            _ => Self::of(of_attach(&error), &error),
        }
    }
}

fn of_attach(error: &AttachError) -> Status {
    match error {
        AttachError::Stale => Status::Stale,
        AttachError::Forged { .. } | AttachError::Damaged { .. } => Status::Damaged,
        AttachError::OtherPeer => Status::OtherPeer,
        AttachError::NotGranted => Status::NotGranted,
        AttachError::TooManyLeases => Status::TooManyLeases,
        AttachError::OverQuota { .. } => Status::OverQuota,
        AttachError::NoProvider { .. } => Status::NoProvider,
        AttachError::Disconnected { .. } => Status::Disconnected,
        AttachError::Closed { .. } => Status::Closed,
        AttachError::ProviderDied { .. } => Status::ProviderDied,
        AttachError::NotAProvider { .. } => Status::NotUsable,
        AttachError::WrongUid { .. } => Status::WrongUid,
        AttachError::TooManyPeers { .. } => Status::TooManyPeers,
        AttachError::SlotLost { .. } => Status::SlotLost,
        AttachError::Forked => Status::Forked,
        AttachError::Os(_) => Status::Os,
        _ => Status::Other,
    }
}

impl From<ChannelError> for Failure {
    fn from(error: ChannelError) -> Self {
        match &error {
            ChannelError::Os(system) => Self::of_system(Status::Os, system, &error),
            _ => Self::of(of_channel(&error), &error),
        }
    }
}

fn of_channel(error: &ChannelError) -> Status {
    match error {
        ChannelError::Name { .. } | ChannelError::OutOfRange { .. } | ChannelError::Mode { .. } => {
            Status::InvalidArgument
        }
        ChannelError::NameTaken { .. } => Status::NameTaken,
        ChannelError::NotFound { .. } => Status::NotFound,
        ChannelError::Closed { .. } => Status::Closed,
        ChannelError::NotReady { .. } => Status::NotReady,
        ChannelError::HasReceiver { .. } => Status::HasReceiver,
        ChannelError::TooManyReceivers { .. } => Status::TooManyReceivers,
        ChannelError::BlockingNotAllowed { .. } => Status::BlockingNotAllowed,
        ChannelError::NotASender { .. } => Status::NotASender,
        ChannelError::NotAPublisher { .. } => Status::NotAPublisher,
        ChannelError::TypeMismatch { .. } => Status::TypeMismatch,
        ChannelError::NotAChannel { .. } => Status::NotUsable,
        ChannelError::OtherVersion { .. } => Status::OtherVersion,
        ChannelError::WrongUid { .. } => Status::WrongUid,
        ChannelError::Forked => Status::Forked,
        ChannelError::TooManyEnds => Status::TooManyEnds,
        ChannelError::Os(_) => Status::Os,
        _ => Status::Other,
    }
}

impl From<SendErrorKind> for Failure {
    #[cold]
    fn from(kind: SendErrorKind) -> Self {
        let (status, errno) = match kind {
            SendErrorKind::Alloc(error) => return (*error).into(),
            SendErrorKind::Full { .. } => (Status::Full, 0),
            SendErrorKind::TimedOut | SendErrorKind::NoReceiver { .. } => (Status::TimedOut, 0),
            SendErrorKind::OtherVersion { .. } => (Status::OtherVersion, 0),
            SendErrorKind::TooManyBorrowed { .. } => (Status::TooManyBorrowed, 0),
            SendErrorKind::TooManyReceivers(_) => (Status::InvalidArgument, 0),
            SendErrorKind::Disconnected => (Status::Disconnected, 0),
            SendErrorKind::OtherProvider { .. } => (Status::OtherProvider, 0),
            SendErrorKind::Forked => (Status::Forked, 0),
            SendErrorKind::Interrupted => (Status::Interrupted, 0),
            SendErrorKind::NoHelper(ref error) => (Status::NoHelper, error.errno().unwrap_or(0)),
            _ => (Status::Other, 0),
        };
        Self::keep(status, errno, Text::Send(kind))
    }
}

impl From<RecvError> for Failure {
    #[cold]
    fn from(error: RecvError) -> Self {
        let status = match &error {
            RecvError::Empty => {
                return Self::keep(Status::Empty, 0, Text::Static(c"no message has arrived"))
            }
            RecvError::TimedOut => {
                return Self::keep(
                    Status::TimedOut,
                    0,
                    Text::Static(c"the wait timed out: nothing arrived"),
                )
            }
            RecvError::Disconnected => Status::Disconnected,
            RecvError::Evicted => Status::Evicted,
            RecvError::TooManyBorrowed { .. } => Status::TooManyBorrowed,
            RecvError::Os(system) => return Self::of_system(Status::Os, system, &error),
            RecvError::NotConnected { errno } => {
                return Self::of_errno(Status::NotConnected, *errno, &error);
            }
            _ if error.is_message_lost() => Status::MessageLost,
            RecvError::Forked => Status::Forked,
            RecvError::Open(error) => of_channel(error),
            RecvError::Interrupted => Status::Interrupted,
            RecvError::NoHelper(_) => Status::NoHelper,
            RecvError::NoReceivers => Status::InvalidArgument,
            _ => Status::Other,
        };
        Self::of(status, &error)
    }
}

impl Failure {
    /// The error of a `warm`, which is about a segment, and not about one message.
    #[cold]
    pub(crate) fn of_warm(error: RecvError) -> Self {
        match &error {
            RecvError::Attach(cause) => Self::of(of_attach(cause), &error),
            _ => error.into(),
        }
    }
}

impl<M> From<SendError<M>> for Failure {
    #[cold]
    fn from(error: SendError<M>) -> Self {
        error.kind().into()
    }
}

impl From<OsError> for Failure {
    fn from(error: OsError) -> Self {
        Self::of(Status::Os, &error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shm_pool::ProviderId;

    fn last() -> &'static str {
        // SAFETY: the string is valid until the next failure of this thread.
        unsafe { CStr::from_ptr(shm_pool_last_error()) }
            .to_str()
            .expect("UTF-8")
    }

    #[test]
    fn panics_are_caught() {
        assert_eq!(guard(|| panic!("at {}", 7)), Status::Panic);
        assert_eq!(
            (shm_pool_last_status(), last()),
            (Status::Panic, "the library panicked: at 7")
        );
        assert_eq!(guard_value(3, || panic!("again")), 3);
        assert_eq!(last(), "the library panicked: again");
    }

    #[test]
    fn a_lost_message_is_not_the_end() {
        let lost = [
            RecvError::MessageLost(ProviderId::from(7)),
            RecvError::Attach(AttachError::Stale),
            RecvError::Damaged { reason: "its tag" },
        ];
        for error in lost {
            assert_eq!(guard(|| Err(error.into())), Status::MessageLost);
        }
        assert_eq!(
            guard(|| Err(RecvError::Disconnected.into())),
            Status::Disconnected
        );
    }

    #[test]
    fn messages_have_their_causes() {
        let cause = std::io::Error::from_raw_os_error(28);
        let error = OsError::new("fallocate", "a segment", cause);
        assert_eq!(guard(|| Err(BuildError::Os(error).into())), Status::Os);
        assert_eq!(
            last(),
            "fallocate on a segment failed: No space left on device (os error 28)"
        );
        assert_eq!(shm_pool_last_errno(), 28);
        assert_eq!(
            guard(|| Err(SendErrorKind::Full { capacity: 3 }.into())),
            Status::Full
        );
        assert_eq!(
            (
                last().contains("has not received 3 messages"),
                shm_pool_last_errno()
            ),
            (true, 0)
        );
        assert_eq!(guard(|| Ok(())), Status::Ok);
        assert_eq!(shm_pool_last_status(), Status::Full);
    }
}
