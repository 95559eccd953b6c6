//! The result of a look, as plain data.

#![forbid(unsafe_code)]

use crate::channel::{MessageType, Missed, OnFull};
use crate::os::process::Process;
use crate::protocol::ids::{PeerId, ProviderId, ReceiverId};
use crate::protocol::sweep::Swept;
use std::ops::Add;
use std::path::PathBuf;
use std::time::Duration;

/// The state of a directory, whose parts are inspected one after another.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Report {
    /// The inspected directory.
    pub directory: PathBuf,
    /// Free bytes in its file system, if known.
    pub free_bytes: Option<u64>,
    /// The providers, by prefix and id.
    pub providers: Vec<ProviderReport>,
    /// The channels, by prefix and name.
    pub channels: Vec<ChannelReport>,
    /// Objects of this crate that belong to another user and were skipped.
    pub others: usize,
    /// Objects that are in use although their names are gone: no other process can open them.
    pub removed: Vec<RemovedName>,
    /// Processes that this user may not inspect, so that their memory has no owner here.
    pub hidden_processes: usize,
}

/// An object whose maker is alive, but whose name another process has removed: by hand, or as
/// systemd's `RemoveIPC` does at the user's last logout. Its maker has to make a new one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct RemovedName {
    /// The path that it had.
    pub path: PathBuf,
    /// The process that has made it.
    pub process: Process,
}

/// Whether the maker of an object is alive.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum ObjectState {
    /// Alive: the kernel reports its lock as held.
    Alive,
    /// Alive, and still making the object.
    Starting,
    /// Dead. A sweep removes the object, unless it still has a reader.
    Dead,
    /// The object is not what its name says, or has another version; the text says why.
    Unusable(String),
}

/// A provider.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ProviderReport {
    /// Prefix of its objects' names.
    pub prefix: String,
    /// Its id.
    pub id: ProviderId,
    /// Whether its process is alive.
    pub state: ObjectState,
    /// Its process, if visible.
    pub owner: Option<Process>,
    /// Memory of its segments, in bytes.
    pub bytes_held: u64,
    /// Address space of its segments, in bytes.
    pub bytes_mapped: u64,
    /// Its segments, by serial number.
    pub segments: Vec<SegmentReport>,
    /// The provider's [`max_shared`](crate::ProviderBuilder::max_shared).
    pub max_shared: usize,
    /// Bytes of messages that peers lease, each message once.
    pub bytes_leased: u64,
    /// Leased messages, by the size class of their length.
    pub leased: Vec<ClassReport>,
    /// Bytes of messages borrowed, once for each receiver, without channels whose [objects were
    /// removed](super#sources).
    pub bytes_borrowed: u64,
    /// Borrowed messages, by the size class of their length.
    pub borrowed: Vec<ClassReport>,
    /// The connected peers, and those that died with leases, by slot.
    pub peers: Vec<PeerReport>,
    /// What a sweep would remove now, segments and the control object; nothing while it is alive or
    /// read.
    pub orphans: Swept,
}

/// A segment of a provider.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SegmentReport {
    /// Serial number, part of its name.
    pub serial: u64,
    /// Its length in bytes.
    pub len: u64,
    /// Memory that it holds, in bytes.
    pub bytes_held: u64,
    /// The processes that map it, including the owner.
    pub mapped_by: Vec<Process>,
}

/// Messages of one size class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ClassReport {
    /// Size of the class's chunks in bytes.
    pub size: u64,
    /// Number of messages.
    pub messages: usize,
    /// Their total length in bytes.
    pub bytes: u64,
}

/// A peer of a provider.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PeerReport {
    /// Its slot.
    pub slot: u8,
    /// Its id, for [`Provider::disconnect`](crate::Provider::disconnect). `None` while the slot
    /// changes hands.
    pub id: Option<PeerId>,
    /// Whether the owner refuses it.
    pub is_refused: bool,
    /// Whether its process is alive.
    pub is_alive: bool,
    /// Its process, if visible.
    pub process: Option<Process>,
    /// Number of messages that it leases.
    pub messages: usize,
    /// Their total length in bytes.
    pub bytes: u64,
    /// Number of open views.
    pub views: u64,
    /// Number of unclaimed grants.
    pub grants: u64,
    /// How long its oldest lease [has been seen](super#what-only-the-owner-knows).
    pub oldest_lease: Option<Duration>,
}

/// A channel.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ChannelReport {
    /// The prefix of its objects' names.
    pub prefix: String,
    /// Its name.
    pub name: String,
    /// The provider whose buffers it carries.
    pub provider: Option<ProviderId>,
    /// Whether its sender's process is alive.
    pub state: ObjectState,
    /// The sender's process, if visible.
    pub sender: Option<Process>,
    /// Whether it can have several receivers.
    pub is_publisher: bool,
    /// The type of its messages, if its sender has declared one.
    pub message_type: Option<MessageType>,
    /// The receivers; of a sender, also the place for one that has not connected.
    pub receivers: Vec<ReceiverReport>,
    /// Branches that cannot be read.
    pub damaged: Vec<DamagedReceiver>,
    /// Whether a sweep would remove its own object now, not those shared with receivers.
    pub is_orphan: bool,
    /// What a sweep would remove of all its objects, half-made ones included.
    pub orphans: Swept,
}

/// A receiver of a channel.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ReceiverReport {
    /// The [`id`](crate::channel::ReceiverState::id) of a publisher's receiver.
    pub id: Option<ReceiverId>,
    /// Whether its process is alive and still holds anything that it received.
    pub is_alive: bool,
    /// Its process, if visible.
    pub process: Option<Process>,
    /// What happens when it falls behind.
    pub on_full: OnFull,
    /// How many messages it may fall behind.
    pub capacity: usize,
    /// The most buffers it may hold.
    pub max_borrowed: usize,
    /// Number of buffers that it holds, received or not.
    pub borrowed: usize,
    /// Their total length in bytes.
    pub bytes_borrowed: u64,
    /// How long its oldest borrowed buffer [has been seen](super#what-only-the-owner-knows).
    pub oldest_borrowed: Option<Duration>,
    /// Number of messages sent to it.
    pub sent: u64,
    /// Number of messages queued for it: at most `capacity` + 1.
    pub waiting: usize,
    /// Number of messages that a publisher's receiver has missed, by reason.
    pub missed: Missed,
    /// Whether the sender is connected to it, and neither closed nor dead.
    pub is_connected: bool,
    /// Whether the publisher has [disconnected](crate::channel::Publisher::disconnect) it.
    pub is_evicted: bool,
    /// Memory held by the object that it shares with the sender, in bytes.
    pub bytes_held: u64,
    /// Whether a sweep would remove that object now.
    pub is_orphan: bool,
}

/// An object that has the name of one shared by a publisher and a receiver, but cannot be read.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct DamagedReceiver {
    /// The id in its name.
    pub id: ReceiverId,
    /// What is wrong with it.
    pub reason: String,
    /// Whether a sweep would remove it now.
    pub is_orphan: bool,
}

impl Report {
    /// Returns what a sweep of all prefixes would remove now.
    pub fn orphans(&self) -> Swept {
        let providers = self.providers.iter().map(|provider| provider.orphans);
        providers
            .chain(self.channels.iter().map(|channel| channel.orphans))
            .fold(Swept::default(), Add::add)
    }
}
