//! A channel's object as anybody sees it who may read it. Nothing is mapped, locked or written: what
//! it says is read from a copy, and checked like anything that others may have written.

#![forbid(unsafe_code)]

use super::error::ChannelError;
use super::layout::{size, Facts, Kind, Shared, What, EXTRA_SLOTS, MAX_LOANS, MAX_SLOTS};
use super::lent::{self, Lent};
use super::message;
use super::ring;
use super::rules::OnFull;
use crate::os::mapping::Mapping;
use crate::os::name::Name;
use crate::os::posix::PAGE;
use crate::protocol::ids::ProviderId;
use std::fs::File;

/// What a channel's object says of itself.
pub(crate) struct Outside {
    pub(crate) provider: ProviderId,
    pub(crate) role: Role,
    /// What happens when a receiver is behind.
    pub(crate) on_full: OnFull,
    /// How many messages a receiver may be behind; of a meeting, the most that it may choose.
    pub(crate) capacity: usize,
    /// How many buffers a receiver may have, likewise.
    pub(crate) loans: usize,
    pub(crate) traffic: Traffic,
}

/// What part of a channel it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A whole channel.
    Pair,
    /// Where receivers meet the publisher.
    Meeting,
    /// One receiver's part.
    Branch,
}

/// What a ring says of what went through it.
#[derive(Default)]
pub(crate) struct Traffic {
    pub(crate) sent: u64,
    pub(crate) waiting: usize,
    /// How many messages were left out, as far as the last one that was sent tells.
    pub(crate) left_out: u32,
    /// The buffers that the receiver has, received or not.
    pub(crate) lent: Vec<Lent>,
}

/// Reads what the object says. `len` is its length.
pub(crate) fn look(file: &File, name: &Name, len: usize) -> Result<Outside, ChannelError> {
    let bad = |reason| Err(ChannelError::NotAChannel { object: name.path(), reason });
    if len < PAGE {
        return bad("it is too small for a header");
    }
    let copy = Mapping::copy_of(file, name, PAGE)?;
    let facts = What::of(&copy).facts(|| name.path())?;
    let are_slots = (1 + EXTRA_SLOTS..=MAX_SLOTS + EXTRA_SLOTS).contains(&facts.slots);
    if !are_slots || facts.loans > MAX_LOANS {
        return bad("its size does not match its header");
    }
    if facts.kind != Kind::Meeting && len < size(facts.slots, facts.loans) {
        return bad("its size does not match its header");
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
    let place = last.filter(|(ticket, words)| message::read(*ticket, words).is_ok());
    let left_out = place.map_or(0, |(ticket, words)| message::place(ticket, &words).wrapping_sub(ticket as u32));
    Ok(Traffic { sent, waiting: ring::waiting(slots), left_out, lent: lent::all(&shared) })
}
