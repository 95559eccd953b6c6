#![forbid(unsafe_code)]

use crate::error::OsError;
use crate::os::segment::ObjectError;
use crate::protocol::ids::ProviderId;
use thiserror::Error;

/// An error from connecting to a provider or attaching to a message.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The memory was reused after the descriptor was made: the receiver attached too late.
    #[error(
        "stale descriptor: the chunk holds a newer message; \
         grant it to the receiver or keep it until confirmed"
    )]
    Stale,
    /// The descriptor names a record that the provider does not have.
    #[error("descriptor names record {record}, but provider {provider} has {records}")]
    NoSuchRecord {
        /// The provider.
        provider: ProviderId,
        /// The record asked for.
        record: u32,
        /// The number of the provider's records.
        records: u32,
    },
    /// The descriptor's length differs from the message's.
    #[error("descriptor says {len} bytes, but the message has {actual}")]
    WrongLength {
        /// The descriptor's length in bytes.
        len: u64,
        /// The message's length in bytes.
        actual: u64,
    },
    /// The control object holds an invalid value: another process wrote garbage into it.
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
        /// The slot that it was granted to.
        slot: u8,
        /// This client's slot.
        own: u8,
    },
    /// The grant was already taken up or revoked. If the transport may deliver descriptors twice,
    /// try once more: an older duplicate can hold this grant for an instant.
    #[error("no grant of this message is left to take up: each can be attached once")]
    NotGranted,
    /// This client already has the maximum number of views of this message.
    #[error("this client has {max} views of the message already; share one of them instead")]
    TooManyLeases {
        /// The limit.
        max: usize,
    },
    /// This client would exceed
    /// [`ProviderBuilder::max_bytes_per_peer`](crate::ProviderBuilder::max_bytes_per_peer). Grants
    /// can still be taken up.
    #[error(
        "a message of {len} bytes of provider {provider} is over the quota: \
         this client holds {held} bytes of {max}; drop views, or take up grants"
    )]
    OverQuota {
        /// The provider.
        provider: ProviderId,
        /// The message's length in bytes.
        len: u64,
        /// The bytes that this client reads or was granted.
        held: u64,
        /// The limit.
        max: u64,
    },
    /// No such provider exists: it never existed, has closed, or has another name prefix.
    #[error(
        "no provider {provider}: {object} does not exist; \
         it has closed, or uses another namespace"
    )]
    NoProvider {
        /// The provider.
        provider: ProviderId,
        /// The control object's path.
        object: String,
    },
    /// The provider refuses this client: [`Provider::disconnect`](crate::Provider::disconnect).
    #[error("provider {provider} has disconnected this client; the views that it has stay good")]
    Disconnected {
        /// The provider.
        provider: ProviderId,
    },
    /// The provider has closed, or has died and was swept. The message no longer exists.
    #[error("provider {provider} has closed; connect to its successor")]
    Closed {
        /// The provider.
        provider: ProviderId,
    },
    /// The provider's process has died. Existing views stay valid.
    #[error("provider {provider} has died; connect to its successor")]
    ProviderDied {
        /// The provider.
        provider: ProviderId,
    },
    /// The object under the provider's name was not created by this crate, or is incomplete.
    #[error("{object} is not usable: {reason}")]
    NotAProvider {
        /// The object's path.
        object: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The object belongs to another user.
    #[error("{object} belongs to uid {found}, not to {expected}; see Namespace::of_user")]
    WrongUid {
        /// The object's path.
        object: String,
        /// The uid that it belongs to.
        found: u32,
        /// The uid that this client trusts.
        expected: u32,
    },
    /// Living processes hold all peer slots of the provider.
    #[error("provider {provider} has {max} peers already; a slot is free when one of them ends")]
    TooManyPeers {
        /// The provider.
        provider: ProviderId,
        /// The limit.
        max: usize,
    },
    /// Another peer has this client's slot, because the descriptor that held it was closed, for
    /// example by `closefrom`. This client's views may change.
    #[error(
        "this client has lost its slot at provider {provider} to another peer: \
         its descriptors were closed; create a new client"
    )]
    SlotLost {
        /// The provider.
        provider: ProviderId,
    },
    /// This process is a forked child of the one that created the client.
    #[error("the client belongs to the parent of this forked process; create a new one")]
    Forked,
    /// A system call failed.
    #[error(transparent)]
    Os(#[from] OsError),
}

impl From<ObjectError> for AttachError {
    fn from(error: ObjectError) -> Self {
        match error {
            ObjectError::Unusable { object, reason } => Self::NotAProvider { object, reason },
            ObjectError::WrongUid {
                object,
                found,
                expected,
            } => Self::WrongUid {
                object,
                found,
                expected,
            },
            ObjectError::Os(error) => Self::Os(error),
        }
    }
}
