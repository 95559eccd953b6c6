//! What goes over the sockets, in the frames of the support crate's `wire`.
//!
//! | between | direction | what |
//! |---|---|---|
//! | conductor and worker | to the worker | a [`Command`] |
//! | | to the conductor | a [`Word`] |
//! | owner and peer | to the peer | [`Sent::Hello`], then a [`Sent::Message`] or a [`Sent::LetGo`] each |
//! | | to the owner | the 24 bytes of its `PeerId`, then the sequence number of each frame that is done with |

#![forbid(unsafe_code)]

use derive_more::AddAssign;
use serde::{Deserialize, Serialize};
use shm_pool_support::procfs;
use std::time::Duration;

/// How long a process waits for what must come. Only a hang comes near it.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// How a process ends, other than by being killed.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Everything is dropped.
    Orderly,
    /// Nothing is dropped.
    Sudden,
    /// By a signal of its own making.
    Abort,
}

/// What the conductor tells a worker.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Command {
    Exit(Exit),
    /// To an owner: publish nothing, have everything let go by this many peers, and tell what is
    /// left.
    Quiesce(u64),
    /// To an owner: go on.
    Resume,
    /// To a peer: unmap what nobody needs, and tell what is left.
    Measure,
    /// To a peer: drop the client, make another.
    Recreate,
}

/// What an owner has done since it told last.
#[derive(Clone, Copy, Debug, Default, AddAssign, Serialize, Deserialize)]
pub(crate) struct Published {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// Descriptors that were sent: granted, kept until confirmed, neither.
    pub(crate) granted: u64,
    pub(crate) kept: u64,
    pub(crate) fleeting: u64,
    /// Allocations that had to wait until peers let go.
    pub(crate) exhausted: u64,
}

/// What a peer has done since it told last.
#[derive(Clone, Copy, Debug, Default, AddAssign, Serialize, Deserialize)]
pub(crate) struct Seen {
    pub(crate) messages: u64,
    /// Fleeting messages that came too late.
    pub(crate) stale: u64,
    /// Bytes looked at, each as often as it was.
    pub(crate) bytes: u64,
    /// Views looked at again while they were held, or before they were dropped.
    pub(crate) again: u64,
    /// Those of them whose owner had gone.
    pub(crate) outlived: u64,
    /// Messages that were not to be had, because their owner had gone.
    pub(crate) lost: u64,
    pub(crate) torn: u64,
}

/// What a process has open and mapped.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Footprint {
    /// Descriptors.
    pub(crate) descriptors: usize,
    /// Mappings of shared memory with the run's prefix, removed objects included.
    pub(crate) shared: usize,
    /// All mappings: the heap's and the stacks' too.
    pub(crate) mappings: usize,
}

impl Footprint {
    /// This process's.
    pub(crate) fn take(prefix: &str) -> Self {
        let objects = procfs::shared_mappings().expect("/proc");
        Self {
            descriptors: procfs::descriptors().expect("/proc"),
            shared: objects.iter().filter(|object| object.name.starts_with(&format!("{prefix}."))).count(),
            mappings: procfs::mappings().expect("/proc"),
        }
    }
}

/// What a quiet owner has left.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, Default)]
pub(crate) struct Quiet {
    /// Bytes leased after reclaiming.
    pub(crate) leased: u64,
    /// Bytes in use.
    pub(crate) in_use: u64,
    /// Bytes held after trimming.
    pub(crate) held: u64,
    /// The most that was ever held.
    pub(crate) peak: u64,
    pub(crate) footprint: Footprint,
}

/// What a worker tells the conductor.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Word {
    /// Built; or connected for the first time.
    Ready,
    Published(Published),
    Seen(Seen),
    Quiet(Quiet),
    Measured(Footprint),
    Recreated,
    /// It cannot go on, and has said why on its standard error.
    Failed,
}

/// How a message is kept until it is read.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) enum Way {
    /// By a grant.
    Granted,
    /// By the owner's handle, until the peer confirms.
    Kept,
    /// Not at all: it may be stale.
    Fleeting,
}

/// What an owner sends to a peer.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Sent {
    /// The provider's id.
    Hello(u64),
    Message {
        sequence: u64,
        way: Way,
        may_hold: bool,
        descriptor: [u8; 32],
    },
    /// Drop all views. This too is confirmed by its number.
    LetGo(u64),
}
