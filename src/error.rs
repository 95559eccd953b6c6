//! Every error of the crate: one type per operation that a user calls, each naming the object, the sizes and what
//! to do about it.

#![forbid(unsafe_code)]

use crate::descriptor::{PeerId, ProviderId};
use std::io;
use thiserror::Error;

/// A system call failed. Everything that the operation had done before it was undone.
#[derive(Debug, Error)]
#[error("{call} on {object} ({bytes} bytes) failed: {source}{advice}")]
pub struct OsError {
    call: &'static str,
    object: String,
    bytes: usize,
    advice: String,
    source: io::Error,
}

impl OsError {
    pub(crate) fn new(call: &'static str, object: &str, bytes: usize, source: io::Error, advice: String) -> Self {
        Self { call, object: object.to_owned(), bytes, advice, source }
    }

    /// The system call or library function that failed.
    pub fn call(&self) -> &'static str {
        self.call
    }

    /// The object that it failed on, such as `/dev/shm/shm_pool.0123456789abcdef.2`.
    pub fn object(&self) -> &str {
        &self.object
    }

    /// The size that was asked for, in bytes; 0 where the call has none.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The error number, such as `libc::ENOSPC`.
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }
}

/// Why [`ProviderBuilder::build`](crate::ProviderBuilder::build) failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// An option is out of its range.
    #[error("option {option} is {value}, but must be from {min} to {max}{unit}")]
    OutOfRange {
        /// The builder's method.
        option: &'static str,
        /// What it was given.
        value: usize,
        /// The least it may be.
        min: usize,
        /// The most it may be, other options being what they are.
        max: usize,
        /// The unit, as text that follows a number.
        unit: &'static str,
    },
    /// The name prefix cannot be part of a file name.
    #[error("name_prefix {prefix:?} must be 1 to {max} of the characters A-Z a-z 0-9 _ -")]
    Prefix {
        /// What was given.
        prefix: String,
        /// Longest prefix in bytes.
        max: usize,
    },
    /// The file mode would lock out the owner, or has bits that mean nothing for shared memory.
    #[error("mode {mode:#o} must grant the owner read and write (0o600), and nothing but read and write to anyone")]
    Mode {
        /// What was given.
        mode: u32,
    },
    /// The operating system gave no random numbers for the provider's id.
    #[error("no random bits for the provider's id: {0}")]
    Random(getrandom::Error),
    /// Other processes swept the control object away while it was made, time after time.
    #[error("{object} was removed {tries} times while it was made; do not sweep in a loop")]
    Swept {
        /// The last one's path.
        object: String,
        /// How often.
        tries: usize,
    },
    /// zenoh's receivers would not be able to lock the pool's segments into memory, and would lose messages in silence; see
    /// `zenoh::PoolBackendBuilder::check_lock_limit`.
    #[error(
        "zenoh's receivers lock all segments into memory, for this pool up to {needed} bytes, and a process like this one may lock \
         {limit}: raise the limit (ulimit -l) for publisher and receivers, or lower max_bytes; if only the receivers may lock more, \
         see PoolBackendBuilder::check_lock_limit"
    )]
    LockLimit {
        /// The cap in bytes.
        needed: usize,
        /// What this process may lock in all, in bytes.
        limit: u64,
    },
    /// The control object could not be created.
    #[error(transparent)]
    Os(#[from] OsError),
}

/// Why an allocation failed.
///
/// One pointer wide, so that the result of a successful allocation still fits two registers.
#[derive(Debug, Error)]
#[error(transparent)]
pub struct AllocError(Box<AllocErrorKind>);

impl AllocError {
    /// What went wrong, to match on.
    pub fn kind(&self) -> &AllocErrorKind {
        &self.0
    }

    /// Is it [`AllocErrorKind::Exhausted`]? Then the same call works after buffers or views were dropped.
    pub fn is_exhausted(&self) -> bool {
        matches!(*self.0, AllocErrorKind::Exhausted { .. })
    }
}

impl From<AllocErrorKind> for AllocError {
    #[cold]
    fn from(kind: AllocErrorKind) -> Self {
        Self(Box::new(kind))
    }
}

impl From<OsError> for AllocError {
    fn from(error: OsError) -> Self {
        AllocErrorKind::Os(error).into()
    }
}

/// What went wrong in an allocation.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AllocErrorKind {
    /// The length is above the provider's largest allocation.
    #[error(
        "{len} bytes are more than this provider's largest allocation of {max} bytes; raise ProviderBuilder::max_alloc"
    )]
    TooLarge {
        /// Bytes asked for.
        len: usize,
        /// Largest allocation in bytes.
        max: usize,
    },
    /// The alignment is above a page.
    #[error("alignment {align} is not supported; the largest is {max} bytes")]
    UnsupportedAlignment {
        /// Alignment asked for, in bytes.
        align: usize,
        /// Largest alignment in bytes.
        max: usize,
    },
    /// The cap is reached, and all of it is in use or leased.
    #[error(
        "a chunk of {len} bytes does not fit under max_bytes {max_bytes}: {in_use} bytes are in use by this process, {leased} are \
         leased by peers, {idle} are idle but too small or too scattered; drop buffers, let the peers drop their \
         views, or raise ProviderBuilder::max_bytes"
    )]
    Exhausted {
        /// Size of the chunk that was needed, in bytes: the length asked for, rounded up to its class, or at the cap to 64 bytes or whole pages.
        len: usize,
        /// The cap in bytes.
        max_bytes: usize,
        /// Bytes of chunks that this process holds handles to.
        in_use: usize,
        /// All other bytes under the cap: idle chunks, and what the segments have free; not in one piece, though.
        idle: usize,
        /// Bytes of chunks that this process has dropped and peers still lease.
        leased: usize,
    },
    /// More chunks than the provider keeps idle.
    #[error("cannot reserve {count} chunks: max_idle_per_class keeps {max} of a class; raise it")]
    ReserveTooMany {
        /// Chunks asked for.
        count: usize,
        /// The idle cap.
        max: usize,
    },
    /// This process is a forked child of the one that built the provider, and owns nothing of it.
    #[error("the provider belongs to the process that this one was forked from; build a new one here")]
    Forked,
    /// The system has no memory for a new segment.
    #[error(transparent)]
    Os(OsError),
}

/// Why a buffer could not be shared with peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ShareError {
    /// Every record of the control object is in use.
    #[error(
        "all {max} records for shared chunks are taken; drop shared buffers and trim the provider, or raise \
             ProviderBuilder::max_shared"
    )]
    TooManyShared {
        /// The number of records.
        max: usize,
    },
    /// The peer has disconnected or died since it told its id.
    #[error("peer {0} is gone; send to the peers that are left")]
    PeerGone(PeerId),
    /// The peer id was given by another provider's control object.
    #[error("peer {peer} is not connected to provider {provider}")]
    OtherProvider {
        /// The peer.
        peer: PeerId,
        /// The provider that was asked.
        provider: ProviderId,
    },
    /// The peer has not taken up earlier grants of this very buffer.
    #[error("peer {peer} has {max} grants of this buffer that it has not taken up; wait until it attaches")]
    TooManyGrants {
        /// The peer.
        peer: PeerId,
        /// The limit.
        max: usize,
    },
    /// There is no private memory for the queue of buffers that were dropped and are still read, which the first buffer that is shared takes.
    #[error("no private memory for {bytes} bytes; lower ProviderBuilder::max_shared")]
    OutOfMemory {
        /// How much was asked for, in bytes.
        bytes: usize,
    },
    /// This process is a forked child of the owner.
    #[error("the buffer belongs to the process that this one was forked from")]
    Forked,
}

/// Why 32 bytes are not a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DescriptorError {
    /// The bytes do not start with the magic number.
    #[error("not a shm-pool descriptor: magic is {found:#06x}")]
    Magic {
        /// What they start with.
        found: u16,
    },
    /// The sender speaks another version of the format.
    #[error("descriptor version {found} is not the supported {supported}; build both sides with one version")]
    Version {
        /// The sender's version.
        found: u8,
        /// This crate's version.
        supported: u8,
    },
    /// The bytes were damaged on the way.
    #[error("descriptor checksum is {found:#06x} instead of {expected:#06x}; the transport damaged it")]
    Checksum {
        /// The checksum in the bytes.
        found: u16,
        /// The checksum of the bytes.
        expected: u16,
    },
}

/// Why a peer could not connect to a provider or attach to a chunk.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The chunk was recycled since the descriptor was made: the message came too late.
    #[error("stale descriptor: the chunk holds a newer message; grant it to the receiver or keep it until confirmed")]
    Stale,
    /// The descriptor names a record that the provider does not have.
    #[error("descriptor names record {record}, but provider {provider} has {records}")]
    NoSuchRecord {
        /// The provider.
        provider: ProviderId,
        /// The record asked for.
        record: u32,
        /// How many there are.
        records: u32,
    },
    /// The descriptor's length is not the message's.
    #[error("descriptor says {len} bytes, but the message has {actual}")]
    WrongLength {
        /// The descriptor's length in bytes.
        len: u64,
        /// The message's length in bytes.
        actual: u64,
    },
    /// The control object says something that cannot be: another process wrote garbage into it.
    #[error("control object of provider {provider} is damaged: {what}")]
    Damaged {
        /// The provider.
        provider: ProviderId,
        /// What is wrong.
        what: &'static str,
    },
    /// The descriptor was granted to another peer.
    #[error("descriptor was granted to peer slot {slot}, and this client has slot {own}")]
    OtherPeer {
        /// The slot it was granted to.
        slot: u8,
        /// This client's slot.
        own: u8,
    },
    /// The grant was taken up already, or taken back. If the transport may deliver a descriptor twice, try once more: a duplicate
    /// of an older one that is refused in another thread can hold this one's grant for an instant.
    #[error("no grant of this message is left to take up: each can be attached once")]
    NotGranted,
    /// This client has the largest number of views of one chunk.
    #[error("this client has {max} views of the message already; share one of them instead")]
    TooManyLeases {
        /// The limit.
        max: usize,
    },
    /// No such provider: it was never there, or has closed, or has another name prefix.
    #[error("no provider {provider}: {object} does not exist; it has closed, or uses another name_prefix")]
    NoProvider {
        /// The provider.
        provider: ProviderId,
        /// The control object's path.
        object: String,
    },
    /// The provider has closed, or died and was swept, and has taken the message's memory away.
    #[error("provider {provider} has closed; connect to its successor")]
    Closed {
        /// The provider.
        provider: ProviderId,
    },
    /// The provider's process has died. Views that are held stay good.
    #[error("provider {provider} has died; connect to its successor")]
    OwnerDied {
        /// The provider.
        provider: ProviderId,
    },
    /// The object under the provider's name was not made by this crate's owner side, or not completely.
    #[error("{object} is not usable: {reason}")]
    NotAProvider {
        /// The object's path.
        object: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The object belongs to another user.
    #[error("{object} belongs to uid {found}, not to {expected}; see ClientBuilder::owner_uid")]
    WrongUid {
        /// The object's path.
        object: String,
        /// Its owner.
        found: u32,
        /// The owner that this client trusts.
        expected: u32,
    },
    /// Every peer slot of the provider is taken by a living process.
    #[error("provider {provider} has {max} peers already; a slot is free when one of them ends")]
    TooManyPeers {
        /// The provider.
        provider: ProviderId,
        /// The limit.
        max: usize,
    },
    /// Another peer has this client's slot: the descriptor that held it was closed, by `closefrom` say. What the client's views show may
    /// be used again.
    #[error("this client's slot at provider {provider} is another peer's: something has closed its descriptors; make a new client")]
    SlotLost {
        /// The provider.
        provider: ProviderId,
    },
    /// This process is a forked child of the one that made the client.
    #[error("the client belongs to the process that this one was forked from; make a new one here")]
    Forked,
    /// A system call failed.
    #[error(transparent)]
    Os(#[from] OsError),
}

/// A message was to be longer than its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("length {len} is above the buffer's capacity of {capacity} bytes; allocate a larger one")]
pub struct CapacityError {
    pub(crate) len: usize,
    pub(crate) capacity: usize,
}
