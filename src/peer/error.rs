#![forbid(unsafe_code)]

use crate::error::{explained, Advice, Explain, OsError, WrongUid};
use crate::os::segment::ObjectError;
use crate::protocol::ids::ProviderId;
use crate::protocol::record::{MAX_LEASES, PEERS};
use std::fmt;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

explained!(AttachError);

/// An error from connecting to a provider or attaching to a message.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The memory was reused after the descriptor was made: the receiver attached too late.
    Stale,
    /// The descriptor names a buffer that the provider cannot have, or another length than the
    /// message's: it was not made by the provider.
    ///
    /// The text says what is wrong with it, in numbers.
    Forged(String),
    /// The control object holds an invalid value: another process wrote garbage into it.
    Damaged {
        /// The provider.
        provider: ProviderId,
        /// What is wrong.
        reason: &'static str,
    },
    /// The descriptor was [granted to](crate::Descriptor::granted_to) another peer than this client.
    OtherPeer,
    /// The grant was already taken up or revoked. If the transport may deliver descriptors twice,
    /// try once more: an older duplicate can hold this grant for an instant.
    NotGranted,
    /// This client already has 31 views of this message, the maximum.
    TooManyLeases,
    /// This client would exceed
    /// [`ProviderBuilder::max_bytes_per_peer`](crate::ProviderBuilder::max_bytes_per_peer). Grants
    /// can still be taken up.
    OverQuota {
        /// The message's length in bytes.
        len: u64,
        /// The bytes that this client reads or was granted.
        held: u64,
        /// The limit.
        max: u64,
    },
    /// No such provider exists: it never existed, has closed, or has another name prefix.
    ///
    /// The path is that of its control object, whose name contains its id.
    NoProvider(PathBuf),
    /// The provider refuses this client: [`Provider::disconnect`](crate::Provider::disconnect).
    Disconnected(ProviderId),
    /// The provider has closed, or has died and was swept. The message no longer exists.
    Closed(ProviderId),
    /// The provider's process has died. Existing views stay valid.
    ProviderDied(ProviderId),
    /// The object under the provider's name was not created by this crate, or is incomplete.
    NotAProvider {
        /// The object's path.
        object: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The object belongs to another user than the one that this client trusts.
    WrongUid(WrongUid),
    /// Living processes hold all 64 peer slots of the provider.
    TooManyPeers(ProviderId),
    /// Another peer has this client's slot, because the descriptor that held it was closed, for
    /// example by `closefrom`. This client's views may change.
    SlotLost(ProviderId),
    /// This process is a forked child of the one that created the client.
    Forked,
    /// A system call failed.
    Os(OsError),
}

impl From<OsError> for AttachError {
    fn from(error: OsError) -> Self {
        Self::Os(error)
    }
}

impl Explain for AttachError {
    fn write_facts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stale => write!(
                f,
                "the descriptor is stale: the message was released before this client attached to it"
            ),
            Self::Forged(reason) => write!(f, "the descriptor {reason}"),
            Self::Damaged { provider, reason } => write!(
                f,
                "the control object of provider {provider} is damaged: {reason}"
            ),
            Self::OtherPeer => write!(
                f,
                "the descriptor was granted to another peer than this client"
            ),
            Self::NotGranted => write!(
                f,
                "no grant of this message is left to take up: each can be attached once"
            ),
            Self::TooManyLeases => {
                write!(f, "this client has {MAX_LEASES} views of the message, the maximum")
            }
            Self::OverQuota { len, held, max } => write!(
                f,
                "a message of {len} bytes is over the quota: this client holds {held} of the {max} \
                 bytes of this provider that it may hold"
            ),
            Self::NoProvider(object) => {
                write!(f, "there is no provider: {} does not exist", object.display())
            }
            Self::Disconnected(provider) => write!(
                f,
                "provider {provider} has disconnected this client, whose views stay valid"
            ),
            Self::Closed(provider) => write!(f, "provider {provider} has closed"),
            Self::ProviderDied(provider) => write!(f, "provider {provider} has died"),
            Self::NotAProvider { object, reason } => {
                write!(
                    f,
                    "{} cannot be used as a provider: {reason}",
                    object.display()
                )
            }
            Self::WrongUid(error) => write!(f, "{error}"),
            Self::TooManyPeers(provider) => {
                write!(f, "provider {provider} has {PEERS} peers, the maximum")
            }
            Self::SlotLost(provider) => write!(
                f,
                "another peer has this client's place at provider {provider}, because this \
                 process's descriptors were closed"
            ),
            Self::Forked => write!(f, "the client belongs to the parent of this forked process"),
            Self::Os(error) => write!(f, "{error}"),
        }
    }

    fn find_advice(&self) -> Option<Advice> {
        match self {
            Self::Stale => Some(Advice::GrantOrKeep),
            Self::TooManyLeases => Some(Advice::ShareView),
            Self::OverQuota { .. } => Some(Advice::DropViews),
            Self::NoProvider { .. } => Some(Advice::CheckProvider),
            Self::Closed { .. } | Self::ProviderDied { .. } => Some(Advice::ConnectToSuccessor),
            Self::WrongUid(error) if !error.is_unmapped() => Some(Advice::SetOwnerUid),
            Self::TooManyPeers { .. } => Some(Advice::WaitForPeerSlot),
            Self::Disconnected { .. } | Self::SlotLost { .. } => Some(Advice::CreateClient),
            Self::Forked => Some(Advice::CreateInThisProcess),
            _ => None,
        }
    }
}

impl AttachError {
    /// Returns `true` if nothing of this provider can be attached any more: it has closed, has
    /// died, or refuses this client.
    pub fn is_disconnected(&self) -> bool {
        matches!(
            self,
            Self::Closed { .. } | Self::ProviderDied { .. } | Self::Disconnected { .. }
        )
    }

    /// Returns `true` if the same call may succeed later: when a view is dropped, a peer ends, or
    /// the system has descriptors or memory again.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::OverQuota { .. } | Self::TooManyLeases | Self::TooManyPeers { .. } => true,
            Self::Os(error) => error.is_retryable(),
            _ => false,
        }
    }

    /// Returns `true` if the message can never be attached: its memory was reused, its grant is
    /// gone, its provider has closed, or the descriptor names no message.
    pub fn is_message_lost(&self) -> bool {
        matches!(
            self,
            Self::Stale | Self::NotGranted | Self::Closed { .. } | Self::Forged { .. }
        )
    }

    pub(crate) fn io_kind(&self) -> io::ErrorKind {
        match self {
            Self::NoProvider { .. } | Self::Stale | Self::NotGranted => io::ErrorKind::NotFound,
            Self::Closed { .. } | Self::ProviderDied { .. } | Self::Disconnected { .. } => {
                io::ErrorKind::BrokenPipe
            }
            Self::WrongUid { .. } | Self::OtherPeer => io::ErrorKind::PermissionDenied,
            Self::OverQuota { .. } | Self::TooManyLeases | Self::TooManyPeers { .. } => {
                io::ErrorKind::WouldBlock
            }
            Self::Forged { .. } | Self::Damaged { .. } | Self::NotAProvider { .. } => {
                io::ErrorKind::InvalidData
            }
            Self::SlotLost { .. } | Self::Forked => io::ErrorKind::Other,
            Self::Os(error) => error.io_kind(),
        }
    }
}

impl From<ObjectError> for AttachError {
    fn from(error: ObjectError) -> Self {
        match error {
            ObjectError::Unusable { object, reason } => Self::NotAProvider { object, reason },
            ObjectError::WrongUid(error) => Self::WrongUid(error),
            ObjectError::Os(error) => Self::Os(error),
        }
    }
}
