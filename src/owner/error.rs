//! Errors on the owner's side: allocating and sharing.

#![forbid(unsafe_code)]

use crate::error::OsError;
use crate::protocol::ids::{PeerId, ProviderId};
use std::time::Duration;
use thiserror::Error;

/// The error of an allocation. One pointer wide, so that a successful result fits two registers.
#[derive(Debug, Error)]
#[error(transparent)]
pub struct AllocError(Box<AllocErrorKind>);

impl AllocError {
    /// Returns the kind of failure, to match on.
    pub fn kind(&self) -> &AllocErrorKind {
        &self.0
    }

    /// Returns `true` if there was too little memory, so that the same call may succeed later: at
    /// the cap ([`AllocErrorKind::Exhausted`]) once buffers or views are dropped, and if the system
    /// has none ([`AllocErrorKind::Os`] with `ENOSPC` or `ENOMEM`) once another process frees some.
    pub fn is_exhausted(&self) -> bool {
        match &*self.0 {
            AllocErrorKind::Exhausted { .. } => true,
            AllocErrorKind::Os(error) => error.is_out_of_memory(),
            AllocErrorKind::TimedOut { source, .. } => source.is_exhausted(),
            _ => false,
        }
    }

    pub(crate) fn is_at_the_cap(&self) -> bool {
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

/// The kind of failure of an allocation.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AllocErrorKind {
    /// The length exceeds the provider's largest allocation.
    #[error(
        "{len} bytes are more than this provider's largest allocation of {max} bytes; raise ProviderBuilder::max_alloc"
    )]
    TooLarge {
        /// Requested length in bytes.
        len: usize,
        /// Largest allocation in bytes.
        max: usize,
    },
    /// The alignment exceeds a page.
    #[error("alignment {align} is not supported; the largest is {max} bytes")]
    UnsupportedAlignment {
        /// Requested alignment in bytes.
        align: usize,
        /// Largest alignment in bytes.
        max: usize,
    },
    /// The cap is reached, and the memory that is neither in use nor leased is too small or too
    /// scattered.
    #[error(
        "a chunk of {len} bytes does not fit under max_bytes {max_bytes}: {in_use} bytes are in use by this process, {leased} are \
         leased by peers, {idle} are idle but too small or too scattered; drop buffers, let the peers drop their \
         views, or raise ProviderBuilder::max_bytes"
    )]
    Exhausted {
        /// Size of the required chunk in bytes: the requested length, rounded up to its class, or
        /// at the cap to 64 bytes or whole pages.
        len: usize,
        /// The cap in bytes.
        max_bytes: usize,
        /// Bytes of chunks that this process holds handles to.
        in_use: usize,
        /// All other bytes under the cap: idle chunks and free parts of the segments, in several
        /// pieces.
        idle: usize,
        /// Bytes of chunks that this process has dropped and peers still lease, and of chunks on
        /// loan through channels.
        leased: usize,
    },
    /// No memory was released in time, and a last attempt found none.
    #[error("no memory was released within {timeout:?}")]
    TimedOut {
        /// The time limit of the wait.
        timeout: Duration,
        /// Why the allocation failed when the wait began.
        source: AllocError,
    },
    /// [`Provider::interrupt_waits`](crate::Provider::interrupt_waits) was called.
    #[error("this provider's waits for memory were ended")]
    Interrupted,
    /// More chunks than the provider may keep idle.
    #[error("cannot reserve {count} chunks: max_idle_per_class keeps {max} of a class; raise it")]
    ReserveTooMany {
        /// Requested number of chunks.
        count: usize,
        /// The idle cap.
        max: usize,
    },
    /// A reserved chunk could not be prepared for sharing.
    #[error("a reserved chunk cannot be prepared for sharing")]
    ReserveShare(#[source] ShareError),
    /// This process is a forked child of the one that built the provider, and owns no part of it.
    #[error("the provider belongs to the parent of this forked process; build a new one")]
    Forked,
    /// The operating system refused a segment, or memory for it.
    #[error(transparent)]
    Os(OsError),
}

/// The error of sharing a buffer with peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ShareError {
    /// Every record of the control object is in use: its chunk is held, leased or reserved.
    #[error(
        "all {max} records for shared chunks are taken; drop shared buffers, or raise ProviderBuilder::max_shared"
    )]
    TooManyShared {
        /// The number of records.
        max: usize,
    },
    /// The peer has disconnected or died since it sent its id.
    #[error("peer {0} has disconnected or died; send to the remaining peers")]
    PeerDisconnected(PeerId),
    /// The peer id belongs to another provider's control object.
    #[error("peer {peer} is not connected to provider {provider}")]
    OtherProvider {
        /// The peer.
        peer: PeerId,
        /// The provider that was called.
        provider: ProviderId,
    },
    /// The peer has not claimed earlier grants of this same buffer.
    #[error("peer {peer} has {max} pending grants of this buffer; wait until it attaches")]
    TooManyGrants {
        /// The peer.
        peer: PeerId,
        /// The limit.
        max: usize,
    },
    /// No private memory for the queue of buffers that are dropped but still read. The first shared
    /// buffer allocates it.
    #[error("no private memory for {bytes} bytes; lower ProviderBuilder::max_shared")]
    OutOfMemory {
        /// Requested bytes.
        bytes: usize,
    },
    /// This process is a forked child of the owner.
    #[error("the buffer belongs to the parent of this forked process")]
    Forked,
}

/// The requested length exceeds the buffer's capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("length {len} is above the buffer's capacity of {capacity} bytes; allocate a larger one")]
pub struct CapacityError {
    pub(crate) len: usize,
    pub(crate) capacity: usize,
}

impl CapacityError {
    /// Creates an error about a length of `len` bytes in a buffer of `capacity` bytes.
    pub fn new(len: usize, capacity: usize) -> Self {
        Self { len, capacity }
    }

    /// Returns the requested length in bytes.
    pub fn requested(&self) -> usize {
        self.len
    }

    /// Returns the capacity of the buffer in bytes.
    pub fn capacity(&self) -> usize {
        self.capacity
    }
}
