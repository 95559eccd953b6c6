//! Errors shared by all modules. Each operation has its own error, an enum to match on, whose text
//! names the object, the sizes and a remedy. An error that another one caused returns it from
//! [`source`](std::error::Error::source) and does not display it, so that a chain says each thing
//! once.

#![forbid(unsafe_code)]

use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

/// What to do about an error: a key for the bindings of this project.
///
/// An error's text ends with its advice in the words of Rust. A binding for another language writes
/// its own, with the names that this language has: see [`text_in`](crate::text_in).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Advice {
    /// Raise the provider's largest allocation.
    RaiseMaxAlloc,
    /// Lower the provider's largest allocation, or raise the limit of private memory.
    LowerMaxAlloc,
    /// Make room in the pool: drop buffers, let the peers drop theirs, or raise its cap.
    MakeRoom,
    /// Raise the number of chunks that the provider keeps idle in each size class.
    RaiseMaxIdle,
    /// Drop shared buffers, or raise the number of buffers that can be shared at once.
    RaiseMaxShared,
    /// Lower the number of buffers that can be shared at once.
    LowerMaxShared,
    /// Raise the limit of locked memory, or lower the pool's cap.
    RaiseLockLimit,
    /// Choose another NUMA node.
    OtherNumaNode,
    /// Do not sweep in a loop.
    SweepLess,
    /// The object belongs to the parent of this forked process: create one in this process.
    CreateInThisProcess,
    /// Send to the remaining peers.
    SkipPeer,
    /// Wait until the peer attaches to earlier grants.
    WaitForAttach,
    /// Wait until the peer drops views, or revoke grants.
    WaitForViews,
    /// Drop views, or take up grants, which the quota does not limit.
    DropViews,
    /// Grant the message to its receiver, or keep it until the receiver confirms.
    GrantOrKeep,
    /// Clone a view instead of attaching again.
    ShareView,
    /// The provider has closed, or has another name prefix.
    CheckProvider,
    /// Connect to the provider's successor.
    ConnectToSuccessor,
    /// Wait until a peer ends.
    WaitForPeerSlot,
    /// Create a new client.
    CreateClient,
    /// Set the user whose providers the client trusts.
    SetOwnerUid,
    /// Choose another name, or wait until this one is free.
    OtherNameOrWait,
    /// The sender has not created the channel, has closed it, or has another name prefix.
    CheckSender,
    /// Open the channel of the sender's successor.
    OpenSuccessor,
    /// Try again, or open with a time limit.
    OpenLater,
    /// Close a receiver, or raise the publisher's number of receivers.
    RaiseReceivers,
    /// Wait for fewer receivers, or raise the publisher's number of receivers.
    WaitForFewer,
    /// Close senders, publishers, receivers or subscribers of this process.
    CloseEnds,
    /// Choose a rule for a full channel that does not block.
    DoNotBlock,
    /// Open the channel with a subscriber.
    UseSubscriber,
    /// Open the channel with a receiver.
    UseReceiver,
    /// Build both sides with one definition of the type.
    SameType,
    /// Build both sides with one version of this library.
    SameVersion,
    /// Set the user whose channels are trusted, the publisher's mode, or choose another name.
    SetOwnerUidOrMode,
    /// Receive, drop the message, or raise the channel's capacity.
    RaiseCapacity,
    /// Wait until the receiver drops some buffers, or raise its limit.
    RaiseMaxBorrowed,
    /// Drop some of the messages received.
    DropMessages,
    /// Create the channel anew.
    CreateChannel,
    /// Create a channel for each provider.
    ChannelForEachProvider,
    /// Raise the limit of threads, or use a call that blocks.
    RaiseThreadLimit,
    /// Drop the receiver and what it has received, and open the channel again.
    OpenAgain,
    /// Raise the publisher's limit of descriptors and receive again, or open the channel again.
    RaiseFileLimit,
    /// Allocate a larger buffer.
    AllocLarger,
}

impl Advice {
    /// The words of Rust.
    fn in_rust(self) -> &'static str {
        match self {
            Self::RaiseMaxAlloc => "raise ProviderBuilder::max_alloc, and max_bytes, which limits it",
            Self::LowerMaxAlloc => {
                "raise the limit (ulimit -v, cgroup memory), or lower ProviderBuilder::max_alloc"
            }
            Self::MakeRoom => {
                "drop buffers, let the peers drop their views, or raise ProviderBuilder::max_bytes"
            }
            Self::RaiseMaxIdle => "raise ProviderBuilder::max_idle_per_class",
            Self::RaiseMaxShared => "drop shared buffers, or raise ProviderBuilder::max_shared",
            Self::LowerMaxShared => "lower ProviderBuilder::max_shared",
            Self::RaiseLockLimit => {
                "raise the limit (ulimit -l; LimitMEMLOCK of systemd; docker run --ulimit memlock), \
                 or lower ProviderBuilder::max_bytes"
            }
            Self::OtherNumaNode => "choose a node of Mems_allowed_list in /proc/self/status",
            Self::SweepLess => "do not sweep in a loop",
            Self::CreateInThisProcess => "create a new one in this process",
            Self::SkipPeer => "send to the remaining peers",
            Self::WaitForAttach => "wait until the peer attaches",
            Self::WaitForViews => "wait until the peer drops views, or revoke grants",
            Self::DropViews => "drop views, or take up grants",
            Self::GrantOrKeep => "grant each message to its receiver, or keep it until it is confirmed",
            Self::ShareView => "clone one of them instead",
            Self::CheckProvider => "the provider has closed, or uses another namespace",
            Self::ConnectToSuccessor => "connect to its successor",
            Self::WaitForPeerSlot => "wait until one of them ends",
            Self::CreateClient => "create a new client",
            Self::SetOwnerUid => "see Namespace::of_user",
            Self::OtherNameOrWait => "choose another name, or wait with create_timeout",
            Self::CheckSender => {
                "it was not created yet, was closed, or is in another namespace"
            }
            Self::OpenSuccessor => "open the channel of its successor",
            Self::OpenLater => "try again, as open_timeout does",
            Self::RaiseReceivers => "close one, or raise PublisherBuilder::max_subscribers",
            Self::WaitForFewer => "wait for fewer, or raise PublisherBuilder::max_subscribers",
            Self::CloseEnds => "drop some of them",
            Self::DoNotBlock => "choose OnFull::DropNewest or OnFull::DropOldest",
            Self::UseSubscriber => "open it with a Subscriber",
            Self::UseReceiver => "open it with a Receiver",
            Self::SameType => "build both sides with one definition",
            Self::SameVersion => "build both sides with one version of shm-pool",
            Self::SetOwnerUidOrMode => {
                "see Namespace::of_user and PublisherBuilder::mode, or choose another name"
            }
            Self::RaiseCapacity => "wait, drop the message, or raise the channel's capacity",
            Self::RaiseMaxBorrowed => {
                "wait until it drops some, or raise max_borrowed or \
                 PublisherBuilder::max_bytes_per_receiver"
            }
            Self::DropMessages => "drop some messages",
            Self::CreateChannel => "create a new channel",
            Self::ChannelForEachProvider => "create a channel for each provider",
            Self::RaiseThreadLimit => "raise the limit of threads, or use a call that blocks",
            Self::OpenAgain => "drop it and what it has received, and open the channel again",
            Self::RaiseFileLimit => {
                "raise the limit of descriptors and receive again, or open the channel again"
            }
            Self::AllocLarger => "allocate a larger one",
        }
    }
}

/// The parts of which an error's text is made.
pub(crate) trait Explain: std::error::Error {
    /// Writes what failed, without advice.
    fn write_facts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;

    /// What to do, if there is something.
    fn find_advice(&self) -> Option<Advice>;
}

/// Writes an error in the words of Rust.
pub(crate) fn display(error: &impl Explain, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    error.write_facts(f)?;
    match error.find_advice() {
        Some(advice) => write!(f, "; {}", advice.in_rust()),
        None => Ok(()),
    }
}

/// Implements what all errors have: [`Display`](fmt::Display), and the conversion into an
/// [`io::Error`].
macro_rules! explained {
    ($($error:ident)+) => {$(
        impl std::fmt::Display for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                $crate::error::display(self, f)
            }
        }

        /// The kind is kept, and the text.
        impl From<$error> for std::io::Error {
            fn from(error: $error) -> Self {
                std::io::Error::new(error.io_kind(), error)
            }
        }
    )+};
}
pub(crate) use explained;

explained!(BuildError);

/// The kind is kept, and the text.
impl From<OsError> for io::Error {
    fn from(error: OsError) -> Self {
        io::Error::new(error.io_kind(), error)
    }
}

/// A system call that failed, and the system's own error. Earlier steps of the operation have been
/// undone.
///
/// ```
/// use shm_pool::OsError;
/// use std::io;
///
/// let source = io::Error::from_raw_os_error(28);
/// let error = OsError::new("posix_fallocate", "/dev/shm/mine", source);
/// assert_eq!(
///     error.to_string(),
///     "posix_fallocate on /dev/shm/mine failed: No space left on device (os error 28)"
/// );
/// ```
#[derive(Clone, Error)]
pub struct OsError(Arc<Failed>);

#[derive(Clone, Debug)]
struct Failed {
    call: &'static str,
    object: PathBuf,
    bytes: Option<usize>,
    advice: String,
    error: Arc<io::Error>,
}

// An error is only read: no panic leaves it half changed.
impl UnwindSafe for OsError {}
impl RefUnwindSafe for OsError {}

impl fmt::Debug for OsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OsError")
            .field("call", &self.0.call)
            .field("object", &self.0.object)
            .field("bytes", &self.0.bytes)
            .field("error", &self.0.error)
            .field("advice", &self.0.advice)
            .finish()
    }
}

impl fmt::Display for OsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failed {
            call,
            object,
            bytes,
            advice,
            error,
        } = &*self.0;
        write!(f, "{call} on {}", object.display())?;
        if let Some(bytes) = bytes {
            write!(f, " ({bytes} bytes)")?;
        }
        write!(f, " failed: {error}")?;
        if !advice.is_empty() {
            write!(f, "; {advice}")?;
        }
        Ok(())
    }
}

/// Equal if call, object, size and error number are.
impl PartialEq for OsError {
    fn eq(&self, other: &Self) -> bool {
        self.call() == other.call()
            && self.object() == other.object()
            && self.bytes() == other.bytes()
            && self.errno() == other.errno()
            && self.io_kind() == other.io_kind()
    }
}

impl Eq for OsError {}

/// An error and its causes in one line, for logs and reports.
pub(crate) struct Chain<'a>(pub(crate) &'a dyn std::error::Error);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut causes = std::iter::successors(self.0.source(), |&cause| cause.source());
        causes.try_for_each(|cause| write!(f, ": {cause}"))
    }
}

impl OsError {
    /// An error of a `call` on an `object`.
    pub fn new(call: &'static str, object: impl Into<PathBuf>, error: io::Error) -> Self {
        Self(Arc::new(Failed {
            call,
            object: object.into(),
            bytes: None,
            advice: String::new(),
            error: Arc::new(error),
        }))
    }

    /// Adds the size in bytes that the call asked for.
    #[must_use]
    pub(crate) fn with_bytes(mut self, bytes: usize) -> Self {
        self.inner().bytes = Some(bytes);
        self
    }

    /// Adds what to do, as text that follows the system's own: `make room in /dev/shm`.
    #[must_use]
    pub(crate) fn with_advice(mut self, advice: impl Into<String>) -> Self {
        self.inner().advice = advice.into();
        self
    }

    fn inner(&mut self) -> &mut Failed {
        Arc::make_mut(&mut self.0)
    }

    /// Returns the name of the system call or library function that failed.
    pub fn call(&self) -> &'static str {
        self.0.call
    }

    /// Returns the object of the call, such as `/dev/shm/shm_pool.0123456789abcdef.2`.
    pub fn object(&self) -> &Path {
        &self.0.object
    }

    /// Returns the requested size in bytes, if the call has one.
    pub fn bytes(&self) -> Option<usize> {
        self.0.bytes
    }

    /// Returns the error number, such as `libc::ENOSPC`.
    pub fn errno(&self) -> Option<i32> {
        self.0.error.raw_os_error()
    }

    pub(crate) fn io_kind(&self) -> io::ErrorKind {
        self.0.error.kind()
    }

    /// Returns `true` if the same call may succeed later: memory, descriptors or threads were short.
    pub fn is_retryable(&self) -> bool {
        self.is_out_of_memory()
            || self.is_out_of_descriptors()
            || matches!(self.errno(), Some(libc::EAGAIN | libc::EINTR))
    }

    /// Returns `true` if memory was short: in the file system, in its quota, or for this process.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        matches!(
            self.errno(),
            Some(libc::ENOSPC | libc::EDQUOT | libc::ENOMEM)
        )
    }

    /// Returns `true` if descriptors were short, for this process or the system.
    pub(crate) fn is_out_of_descriptors(&self) -> bool {
        matches!(self.errno(), Some(libc::EMFILE | libc::ENFILE))
    }
}

/// An option of a builder, or one that a publisher limits, has a value that is not allowed. The text
/// names the option, the value and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfRange {
    pub(crate) option: &'static str,
    pub(crate) value: usize,
    pub(crate) min: usize,
    pub(crate) max: usize,
}

impl OutOfRange {
    /// Checks that an option has one of the values from `min` to `max`.
    pub(crate) fn check(
        option: &'static str,
        value: usize,
        min: usize,
        max: usize,
    ) -> Result<(), Self> {
        if (min..=max).contains(&value) {
            return Ok(());
        }
        Err(Self {
            option,
            value,
            min,
            max,
        })
    }

    /// Returns the name of the builder's method that sets the option.
    pub fn option(&self) -> &'static str {
        self.option
    }

    /// Returns the values that are allowed, given the other options, or those of the publisher.
    pub fn allowed(&self) -> RangeInclusive<usize> {
        self.min..=self.max
    }
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            option,
            value,
            min,
            max,
        } = self;
        write!(
            f,
            "option {option} is {value}, but must be from {min} to {max}{}",
            unit(option)
        )
    }
}

/// An object belongs to another user than expected. The text names both users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongUid {
    pub(crate) object: PathBuf,
    pub(crate) found: u32,
    pub(crate) expected: u32,
}

impl WrongUid {
    /// Returns the object's path.
    pub fn object(&self) -> &Path {
        &self.object
    }

    /// Returns the uid of its owner. If it is the one that was expected, this user namespace shows
    /// several users so.
    pub fn found(&self) -> u32 {
        self.found
    }

    /// Returns `true` if the owner cannot be told from others.
    pub(crate) fn is_unmapped(&self) -> bool {
        self.found == self.expected
    }
}

impl fmt::Display for WrongUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let object = self.object.display();
        let found = self.found;
        if self.is_unmapped() {
            return write!(
                f,
                "{object} belongs to uid {found}, which this user namespace shows for all users \
                 that have no id in it; give its owner one (uid_map; podman run --userns keep-id)"
            );
        }
        write!(
            f,
            "{object} belongs to uid {found}, and not to uid {}",
            self.expected
        )
    }
}

/// Returns the unit of an option's value, as text that follows a number.
fn unit(option: &str) -> &'static str {
    match option {
        "max_bytes" | "max_bytes_per_peer" | "max_segment" => " bytes",
        "max_alloc" | "arena_size" => " bytes (max_bytes, or the longest segment)",
        "max_idle_per_class" | "max_shared" => " chunks",
        "idle_window" => " allocations",
        _ => "",
    }
}

/// The most bytes of a prefix: 166 of the 255 bytes of a file name remain for a channel's name.
/// Defined here because an error's text has it.
pub(crate) const MAX_PREFIX: usize = 60;

/// An error from [`ProviderBuilder::build`](crate::ProviderBuilder::build), or a
/// [`Namespace`](crate::Namespace) that no object can have.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// An option is out of range.
    OutOfRange(OutOfRange),
    /// The name prefix cannot be part of a file name.
    Prefix(String),
    /// The directory cannot hold the provider's objects.
    Directory {
        /// The directory given.
        directory: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The namespace is that of another user, whose uid this is. A provider creates the objects of
    /// the effective user of its process.
    OtherUser(u32),
    /// The file mode locks out the owner, or has bits without a meaning for shared memory.
    Mode(u32),
    /// Other processes repeatedly swept the control object while it was being created.
    Swept(PathBuf),
    /// The process may not lock as much memory as the provider may use; see
    /// [`ProviderBuilder::lock_memory`](crate::ProviderBuilder::lock_memory).
    LockMemory {
        /// The pool's cap and the control object together, in bytes.
        needed: usize,
        /// How many bytes this process may lock in all (`RLIMIT_MEMLOCK`).
        limit: u64,
    },
    /// The kernel does not accept this NUMA node.
    NumaNode {
        /// The node given.
        node: u32,
        /// The kernel's error.
        source: OsError,
    },
    /// The process has no heap for the provider's lists, which grow with
    /// [`max_alloc`](crate::ProviderBuilder::max_alloc).
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// A system call failed, for the control object or for the random bits of the provider's id.
    Os(OsError),
}

impl From<OsError> for BuildError {
    fn from(error: OsError) -> Self {
        Self::Os(error)
    }
}

impl Explain for BuildError {
    fn write_facts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfRange(error) => write!(f, "{error}"),
            Self::Prefix(prefix) => write!(
                f,
                "the name prefix {prefix:?} must have 1 to {MAX_PREFIX} characters, which may be A-Z a-z 0-9 \
                 _ - and, between others, single dots"
            ),
            Self::Directory { directory, reason } => write!(f, "the directory {directory:?} {reason}"),
            Self::OtherUser(uid) => write!(
                f,
                "the namespace is that of uid {uid}, but this process creates objects of its own user"
            ),
            Self::Mode(mode) => write_mode(*mode, f),
            Self::Swept(object) => write!(
                f,
                "{} was removed again and again while it was being created",
                object.display()
            ),
            Self::LockMemory { needed, limit } => write!(
                f,
                "lock_memory needs {needed} bytes, for max_bytes and the control object, but this \
                 process may lock only {limit}, including what it has locked already"
            ),
            Self::NumaNode { node, .. } => write!(
                f,
                "numa_node {node} cannot be preferred: it does not exist, has no memory, or is not \
                 among this process's nodes"
            ),
            Self::OutOfMemory { bytes } => write!(
                f,
                "no private memory for the provider's lists ({bytes} bytes)"
            ),
            Self::Os(error) => write!(f, "{error}"),
        }
    }

    fn find_advice(&self) -> Option<Advice> {
        match self {
            Self::Swept { .. } => Some(Advice::SweepLess),
            Self::LockMemory { .. } => Some(Advice::RaiseLockLimit),
            Self::NumaNode { .. } => Some(Advice::OtherNumaNode),
            Self::OutOfMemory { .. } => Some(Advice::LowerMaxAlloc),
            _ => None,
        }
    }
}

impl BuildError {
    /// Returns `true` if the same call may succeed later: memory or descriptors were short.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::OutOfMemory { .. } | Self::Swept { .. } => true,
            Self::Os(error) => error.is_retryable(),
            _ => false,
        }
    }

    fn io_kind(&self) -> io::ErrorKind {
        match self {
            Self::Swept { .. } => io::ErrorKind::NotFound,
            Self::LockMemory { .. } => io::ErrorKind::PermissionDenied,
            Self::OutOfMemory { .. } => io::ErrorKind::OutOfMemory,
            Self::Os(error) => error.io_kind(),
            _ => io::ErrorKind::InvalidInput,
        }
    }
}

/// Writes that a file mode cannot be used.
pub(crate) fn write_mode(mode: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(
        f,
        "mode {mode:#o} must grant the owner read and write (0o600), and may grant others only \
         read and write"
    )
}
