//! A channel's object as seen by any process that may read it. The object is not mapped, locked or
//! written: its facts are read from a copy, and checked like all data that other processes may have
//! written.

#![forbid(unsafe_code)]

use super::error::ChannelError;
use super::layout::{size, Facts, Kind, Shared, What, EXTRA_SLOTS, WRONG_SIZE};
use super::lent::{self, Lent};
use super::message;
use super::ring::{self, OnFull};
use crate::os::mapping::Mapping;
use crate::os::name::Name;
use crate::os::posix::PAGE;
use crate::protocol::ids::ProviderId;
use std::fs::File;

/// The state of a channel's object.
pub(crate) struct Outside {
    pub(crate) provider: ProviderId,
    pub(crate) role: Role,
    /// What happens when a receiver is behind.
    pub(crate) on_full: OnFull,
    /// The number of messages that a receiver may be behind; for a publisher, the maximum that it
    /// may choose.
    pub(crate) capacity: usize,
    /// The number of buffers that a receiver may hold, likewise.
    pub(crate) loans: usize,
    pub(crate) traffic: Traffic,
}

/// The part of a channel that an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A whole channel.
    Pair,
    /// The object through which receivers join a publisher.
    Meeting,
    /// One receiver's part.
    Branch,
}

/// The traffic through a ring.
#[derive(Default)]
pub(crate) struct Traffic {
    pub(crate) sent: u64,
    pub(crate) waiting: usize,
    /// The number of messages not sent, as of the last one that was sent.
    pub(crate) left_out: u32,
    /// The buffers that the receiver holds, received or not.
    pub(crate) lent: Vec<Lent>,
}

/// Reads the object's state. `len` is its length in bytes.
pub(crate) fn look(file: &File, name: &Name, len: usize) -> Result<Outside, ChannelError> {
    let bad = |reason| Err(ChannelError::NotAChannel { object: name.path(), reason });
    if len < PAGE {
        return bad("it is too small for a header");
    }
    let copy = Mapping::copy_of(file, name, PAGE)?;
    let facts = What::of(&copy).facts(|| name.path())?;
    // Checked first, because the size of impossible numbers may not be one.
    if !facts.are_possible() || facts.kind != Kind::Meeting && len < size(facts.slots, facts.loans) {
        return bad(WRONG_SIZE);
    }
    let (role, traffic) = match facts.kind {
        Kind::Meeting => (Role::Meeting, Traffic::default()),
        Kind::Pair => (Role::Pair, traffic(file, name, &facts)?),
        Kind::Branch => (Role::Branch, traffic(file, name, &facts)?),
    };
    let Facts { provider, on_full, slots, loans, .. } = facts;
    Ok(Outside { provider, role, on_full, capacity: slots - EXTRA_SLOTS, loans, traffic })
}

fn traffic(file: &File, name: &Name, facts: &Facts) -> Result<Traffic, ChannelError> {
    let copy = Mapping::copy_of(file, name, size(facts.slots, facts.loans))?;
    let shared = Shared::new(copy, facts);
    let slots = shared.slots();
    let sent = ring::sent(slots);
    let last = sent.checked_sub(1).and_then(|ticket| Some((ticket, ring::words_of(slots, ticket)?)));
    let place = last.filter(|(ticket, words)| message::read(*ticket, words, 0).is_ok());
    let left_out = place.map_or(0, |(ticket, words)| message::place(ticket, &words).wrapping_sub(ticket as u32));
    // The extra slot may hold a message too.
    let waiting = ring::waiting(slots).min(shared.capacity());
    Ok(Traffic { sent, waiting, left_out, lent: lent::all(&shared) })
}
