//! Output for programs. Its format belongs to this command: it persists, and gains fields, while
//! the library's types change. `version` changes when a field changes its meaning or is removed.

use crate::unseen::Unseen;
use serde::Serialize;
use shm_pool::inspect::{self, ObjectState, Report};
use shm_pool::{PeerId, ProviderId, Swept};
use std::time::Duration;

/// The version of every document.
pub(crate) const VERSION: u32 = 1;

pub(crate) fn of(document: &impl Serialize) -> serde_json::Result<String> {
    Ok(serde_json::to_string_pretty(document)? + "\n")
}

/// A snapshot: of `ls`, of `show` (only the requested parts), and of `top` (with rates).
#[derive(Serialize)]
pub(crate) struct Document {
    version: u32,
    directory: String,
    free_bytes: Option<u64>,
    providers: Vec<Provider>,
    pub(crate) channels: Vec<Channel>,
    orphans: Orphans,
    removed: Vec<Removed>,
    unseen: Unseen,
}

/// An object that is in use without a name.
#[derive(Serialize)]
struct Removed {
    path: String,
    process: Process,
}

#[derive(Serialize)]
pub(crate) struct Process {
    id: u32,
    command: String,
    is_stopped: bool,
}

#[derive(Serialize)]
pub(crate) struct Orphans {
    pub(crate) objects: usize,
    pub(crate) bytes: u64,
}

#[derive(Serialize)]
struct Provider {
    prefix: String,
    id: String,
    state: &'static str,
    problem: Option<String>,
    owner: Option<Process>,
    bytes_held: u64,
    bytes_mapped: u64,
    bytes_leased: u64,
    bytes_borrowed: u64,
    max_shared: usize,
    segments: Vec<Segment>,
    leased: Vec<Class>,
    borrowed: Vec<Class>,
    peers: Vec<Peer>,
    is_orphan: bool,
    orphans: Orphans,
}

#[derive(Serialize)]
struct Segment {
    serial: String,
    len: u64,
    bytes_held: u64,
    mapped_by: Vec<Process>,
}

#[derive(Serialize)]
struct Class {
    size: u64,
    messages: usize,
    bytes: u64,
}

#[derive(Serialize)]
struct Peer {
    slot: u8,
    /// The bytes of its `PeerId`, in hexadecimal, by which the owner can refuse it.
    id: Option<String>,
    is_refused: bool,
    is_alive: bool,
    process: Option<Process>,
    messages: usize,
    bytes: u64,
    views: u64,
    grants: u64,
    oldest_lease_seconds: Option<f64>,
}

#[derive(Serialize)]
pub(crate) struct Channel {
    prefix: String,
    name: String,
    provider: Option<String>,
    state: &'static str,
    problem: Option<String>,
    sender: Option<Process>,
    is_publisher: bool,
    message_type: Option<String>,
    receivers: Vec<Receiver>,
    damaged: Vec<Damaged>,
    is_orphan: bool,
    orphans: Orphans,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) messages_per_second: Option<f64>,
}

#[derive(Serialize)]
struct Damaged {
    id: String,
    problem: String,
    is_orphan: bool,
}

#[derive(Serialize)]
struct Receiver {
    id: Option<String>,
    is_alive: bool,
    process: Option<Process>,
    on_full: String,
    capacity: usize,
    max_borrowed: usize,
    borrowed: usize,
    bytes_borrowed: u64,
    oldest_borrowed_seconds: Option<f64>,
    sent: u64,
    waiting: usize,
    missed: Missed,
    is_connected: bool,
    is_evicted: bool,
    bytes_held: u64,
    is_orphan: bool,
}

/// Messages that a receiver has missed, by reason.
#[derive(Serialize)]
struct Missed {
    withdrawn: u64,
    full: u64,
    too_many_borrowed: u64,
    stalled: u64,
    not_connected: u64,
}

impl Document {
    pub(crate) fn of(report: &Report) -> Self {
        Self {
            version: VERSION,
            directory: report.directory.display().to_string(),
            free_bytes: report.free_bytes,
            providers: report.providers.iter().map(Provider::of).collect(),
            channels: report.channels.iter().map(Channel::of).collect(),
            orphans: report.orphans().into(),
            removed: report.removed.iter().map(Removed::of).collect(),
            unseen: Unseen::of(report),
        }
    }
}

impl Removed {
    fn of(removed: &inspect::RemovedName) -> Self {
        Self {
            path: removed.path.display().to_string(),
            process: Process::of(&removed.process),
        }
    }
}

impl Process {
    pub(crate) fn of(process: &inspect::Process) -> Self {
        Self {
            id: process.id,
            command: process.command.clone(),
            is_stopped: process.is_stopped,
        }
    }

    pub(crate) fn of_any(process: &Option<inspect::Process>) -> Option<Self> {
        process.as_ref().map(Self::of)
    }
}

impl From<Swept> for Orphans {
    fn from(swept: Swept) -> Self {
        Self {
            objects: swept.objects,
            bytes: swept.bytes,
        }
    }
}

/// Formats an id with 16 digits, as everywhere else.
pub(crate) fn id(id: ProviderId) -> String {
    id.to_string()
}

pub(crate) fn seconds(time: Option<Duration>) -> Option<f64> {
    Some(time?.as_secs_f64())
}

fn state(state: &ObjectState) -> (&'static str, Option<String>) {
    match state {
        ObjectState::Alive => ("alive", None),
        ObjectState::Starting => ("starting", None),
        ObjectState::Dead => ("dead", None),
        ObjectState::Unusable(problem) => ("unusable", Some(problem.clone())),
        other => ("other", Some(format!("{other:?}"))),
    }
}

impl Provider {
    fn of(provider: &inspect::ProviderReport) -> Self {
        let (state, problem) = state(&provider.state);
        Self {
            prefix: provider.prefix.clone(),
            id: id(provider.id),
            state,
            problem,
            owner: Process::of_any(&provider.owner),
            bytes_held: provider.bytes_held,
            bytes_mapped: provider.bytes_mapped,
            bytes_leased: provider.bytes_leased,
            bytes_borrowed: provider.bytes_borrowed,
            max_shared: provider.max_shared,
            segments: provider.segments.iter().map(Segment::of).collect(),
            leased: provider.leased.iter().map(Class::of).collect(),
            borrowed: provider.borrowed.iter().map(Class::of).collect(),
            peers: provider.peers.iter().map(Peer::of).collect(),
            is_orphan: provider.orphans.objects > 0,
            orphans: provider.orphans.into(),
        }
    }
}

impl Segment {
    fn of(segment: &inspect::SegmentReport) -> Self {
        Self {
            serial: format!("{:x}", segment.serial),
            len: segment.len,
            bytes_held: segment.bytes_held,
            mapped_by: segment.mapped_by.iter().map(Process::of).collect(),
        }
    }
}

impl Class {
    fn of(class: &inspect::ClassReport) -> Self {
        Self {
            size: class.size,
            messages: class.messages,
            bytes: class.bytes,
        }
    }
}

impl Peer {
    fn of(peer: &inspect::PeerReport) -> Self {
        Self {
            slot: peer.slot,
            id: peer.id.map(hexadecimal),
            is_refused: peer.is_refused,
            is_alive: peer.is_alive,
            process: Process::of_any(&peer.process),
            messages: peer.messages,
            bytes: peer.bytes,
            views: peer.views,
            grants: peer.grants,
            oldest_lease_seconds: seconds(peer.oldest_lease),
        }
    }
}

fn hexadecimal(id: PeerId) -> String {
    let mut digits = String::new();
    for byte in id.to_bytes() {
        digits += &format!("{byte:02x}");
    }
    digits
}

impl Channel {
    fn of(channel: &inspect::ChannelReport) -> Self {
        let (state, problem) = state(&channel.state);
        Self {
            prefix: channel.prefix.clone(),
            name: channel.name.clone(),
            provider: channel.provider.map(id),
            state,
            problem,
            sender: Process::of_any(&channel.sender),
            is_publisher: channel.is_publisher,
            message_type: channel.message_type.as_ref().map(ToString::to_string),
            receivers: channel.receivers.iter().map(Receiver::of).collect(),
            damaged: channel.damaged.iter().map(Damaged::of).collect(),
            is_orphan: channel.is_orphan,
            orphans: channel.orphans.into(),
            messages_per_second: None,
        }
    }
}

impl Damaged {
    fn of(damaged: &inspect::DamagedReceiver) -> Self {
        Self {
            id: damaged.id.to_string(),
            problem: damaged.reason.clone(),
            is_orphan: damaged.is_orphan,
        }
    }
}

impl Receiver {
    fn of(receiver: &inspect::ReceiverReport) -> Self {
        Self {
            id: receiver.id.map(|id| id.to_string()),
            is_alive: receiver.is_alive,
            process: Process::of_any(&receiver.process),
            on_full: receiver.on_full.to_string(),
            capacity: receiver.capacity,
            max_borrowed: receiver.max_borrowed,
            borrowed: receiver.borrowed,
            bytes_borrowed: receiver.bytes_borrowed,
            oldest_borrowed_seconds: seconds(receiver.oldest_borrowed),
            sent: receiver.sent,
            waiting: receiver.waiting,
            missed: Missed::of(&receiver.missed),
            is_connected: receiver.is_connected,
            is_evicted: receiver.is_evicted,
            bytes_held: receiver.bytes_held,
            is_orphan: receiver.is_orphan,
        }
    }
}

impl Missed {
    fn of(missed: &shm_pool::channel::Missed) -> Self {
        Self {
            withdrawn: missed.withdrawn,
            full: missed.full,
            too_many_borrowed: missed.too_many_borrowed,
            stalled: missed.stalled,
            not_connected: missed.not_connected,
        }
    }
}
