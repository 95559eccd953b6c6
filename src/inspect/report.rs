//! What a look finds, as plain data.

#![forbid(unsafe_code)]

use crate::channel::OnFull;
use crate::os::processes::Process;
use crate::owner::sweep::Swept;
use crate::protocol::ids::{PeerId, ProviderId};
use std::ops::Add;
use std::path::PathBuf;
use std::time::Duration;

/// What there was in a directory, at about one moment: the parts were looked at one after another.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// The directory that was looked at.
    pub directory: PathBuf,
    /// Bytes that its file system has left, if it says.
    pub free_bytes: Option<u64>,
    /// The providers, by prefix and id.
    pub providers: Vec<ProviderReport>,
    /// The channels, by prefix and name.
    pub channels: Vec<ChannelReport>,
    /// Objects of this crate that belong to another user, and so were not looked at.
    pub others: usize,
    /// Processes that may not be looked at: what they hold is shown, but not that it is they.
    pub hidden_processes: usize,
}

/// Is the maker of an object there?
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// It lives: the kernel says that it has its lock.
    Alive,
    /// It lives and has not finished making the object.
    Unfinished,
    /// It is dead. A sweep removes the object, unless somebody still has to read it.
    Dead,
    /// The object is not what its name says, or is of another version. The text says why. If its
    /// maker is dead, a sweep may remove it.
    Unusable(String),
}

/// A provider.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ProviderReport {
    /// The prefix of its objects' names.
    pub prefix: String,
    /// Its id, which follows the prefix.
    pub id: ProviderId,
    /// Is its process there?
    pub state: State,
    /// Its process, if it is seen.
    pub owner: Option<Process>,
    /// Bytes of memory that its segments have.
    pub bytes_held: u64,
    /// Bytes that its segments are long: address space.
    pub bytes_mapped: u64,
    /// Its segments, by serial number.
    pub segments: Vec<SegmentReport>,
    /// How many messages can be attached to at a time.
    pub max_shared: usize,
    /// Bytes of messages that peers lease. A message that several lease counts once. What the owner
    /// has besides, in use and idle, is known to the owner alone: [`Provider::stats`].
    ///
    /// [`Provider::stats`]: crate::Provider::stats
    pub bytes_leased: u64,
    /// The messages that peers lease, by the size class of their length.
    pub leased: Vec<ClassReport>,
    /// Bytes of messages that channels have lent to receivers. A message that several have counts
    /// once for each. Not what is still read of a channel whose objects are gone: see [the module's
    /// docs](super#what-is-believed).
    pub bytes_lent: u64,
    /// The messages that are lent, by the size class of their length.
    pub lent: Vec<ClassReport>,
    /// The peers that are connected, and those that died with leases, by slot.
    pub peers: Vec<PeerReport>,
    /// Would a sweep remove it now?
    pub is_orphan: bool,
    /// What that would remove: segments and the control object.
    pub orphans: Swept,
}

/// A segment of a provider.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SegmentReport {
    /// Its serial number, part of its name.
    pub serial: u64,
    /// Its length in bytes.
    pub len: u64,
    /// Bytes of memory that it has.
    pub bytes_held: u64,
    /// The processes that have it mapped, the owner included.
    pub mapped_by: Vec<Process>,
}

/// Messages of one size class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClassReport {
    /// Size of the class's chunks in bytes.
    pub size: u64,
    /// How many messages.
    pub messages: usize,
    /// Their length in bytes, all together.
    pub bytes: u64,
}

/// A peer of a provider.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PeerReport {
    /// Its slot.
    pub slot: u8,
    /// Its id, for [`Provider::disconnect`]. `None` while the slot changes hands.
    ///
    /// [`Provider::disconnect`]: crate::Provider::disconnect
    pub id: Option<PeerId>,
    /// Does the owner refuse it?
    pub is_refused: bool,
    /// Is its process there?
    pub is_alive: bool,
    /// Its process, if it is seen.
    pub process: Option<Process>,
    /// How many messages it leases.
    pub messages: usize,
    /// Their length in bytes, all together.
    pub bytes: u64,
    /// How many views it has open.
    pub views: u64,
    /// How many grants it has not taken up.
    pub grants: u64,
    /// How long ago this [`Inspector`](super::Inspector) first saw a lease that it has seen at each
    /// look since: see [the module's docs](super#what-only-the-owner-knows).
    pub oldest_lease: Option<Duration>,
}

/// A channel.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ChannelReport {
    /// The prefix of its objects' names.
    pub prefix: String,
    /// Its name.
    pub name: String,
    /// The provider whose buffers it carries.
    pub provider: Option<ProviderId>,
    /// Is its sender's process there?
    pub state: State,
    /// The sender's process, if it is seen.
    pub sender: Option<Process>,
    /// Can it have several receivers?
    pub is_publisher: bool,
    /// The receivers that there are; of a sender, also the place of one that has not come.
    pub receivers: Vec<ReceiverReport>,
    /// Would a sweep remove its own object now? Those shared with receivers are theirs.
    pub is_orphan: bool,
    /// What a sweep would remove of all its objects, half-made ones too.
    pub orphans: Swept,
}

/// A receiver of a channel.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReceiverReport {
    /// Of a publisher: the id of what it shares with this receiver.
    pub branch: Option<u64>,
    /// Does its process live, and has it not dropped all that it received?
    pub is_alive: bool,
    /// Its process, if it is seen.
    pub process: Option<Process>,
    /// What happens when it is behind.
    pub on_full: OnFull,
    /// How many messages it may be behind.
    pub capacity: usize,
    /// How many buffers it may have.
    pub loans: usize,
    /// How many it has, received or not. What a dead one had comes back when the owner needs
    /// memory.
    pub lent: usize,
    /// Their length in bytes, all together.
    pub bytes_lent: u64,
    /// For how long this [`Inspector`](super::Inspector) has seen this receiver have one of them, at
    /// every look: see [the module's docs](super#what-only-the-owner-knows).
    pub oldest_loan: Option<Duration>,
    /// How many messages were sent to it.
    pub sent: u64,
    /// How many wait for it.
    pub waiting: usize,
    /// How many messages were left out, as far as the last one that was sent to it tells. Those
    /// that were withdrawn are not among them.
    pub left_out: u32,
    /// Bytes of memory of the object that it shares with the sender.
    pub bytes_held: u64,
    /// Would a sweep remove that now?
    pub is_orphan: bool,
}

impl Report {
    /// What a sweep of all prefixes would remove now. Memory that somebody still has mapped goes back
    /// to the system when it is unmapped.
    pub fn orphans(&self) -> Swept {
        let providers = self.providers.iter().map(|provider| provider.orphans);
        providers.chain(self.channels.iter().map(|channel| channel.orphans)).fold(Swept::default(), Add::add)
    }
}

impl Add for Swept {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { objects: self.objects + other.objects, bytes: self.bytes + other.bytes }
    }
}
