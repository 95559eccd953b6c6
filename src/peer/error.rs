//! What can go wrong at a peer's: connecting and attaching.

#![forbid(unsafe_code)]

use crate::error::OsError;
use crate::os::segment::ObjectError;
use crate::protocol::ids::ProviderId;
use thiserror::Error;

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

impl From<ObjectError> for AttachError {
    fn from(error: ObjectError) -> Self {
        match error {
            ObjectError::Unusable { object, reason } => Self::NotAProvider { object, reason },
            ObjectError::WrongUid { object, found, expected } => Self::WrongUid { object, found, expected },
            ObjectError::Os(error) => Self::Os(error),
        }
    }
}
