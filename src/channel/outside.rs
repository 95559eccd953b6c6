//! A channel's object as seen by any process that may read it: from a checked copy, without
//! mapping, locking or writing it.
//!
//! The object has a word for each borrowed buffer (see `docs/format.md`),
//! which the sender writes and neither side reads, so they stay in its core's cache. The ledger's
//! lock orders the writes of a word: 0 is written under it, and the sender gets the number under
//! it.

#![forbid(unsafe_code)]

use super::error::ChannelError;
use super::layout::{
    size, Facts, Kind, MessageType, Shared, TypeWords, What, EXTRA_SLOTS, WRONG_SIZE,
};
use super::message::Missed;
use super::ring::{self, OnFull};
use crate::os::mapping::Mapping;
use crate::os::name::Name;
use crate::os::posix::PAGE;
use crate::owner::limits::LONGEST;
use crate::protocol::ids::ProviderId;
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) struct Outside {
    pub(crate) provider: ProviderId,
    pub(crate) role: Role,
    /// As its sender has declared it.
    pub(crate) message_type: Option<MessageType>,
    pub(crate) on_full: OnFull,
    /// How many messages a receiver may be behind; for a publisher, at most.
    pub(crate) capacity: usize,
    /// How many buffers a receiver may hold, likewise.
    pub(crate) max_borrowed: usize,
    pub(crate) traffic: Traffic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Pair,
    Rendezvous,
    Connection,
}

#[derive(Default)]
pub(crate) struct Traffic {
    pub(crate) sent: u64,
    pub(crate) waiting: usize,
    pub(crate) missed: Missed,
    /// The sender holds its doorbell.
    pub(crate) is_connected: bool,
    pub(crate) is_evicted: bool,
    pub(crate) borrowed: Vec<Borrowed>,
}

pub(crate) fn look(file: &File, name: &Name, len: usize) -> Result<Outside, ChannelError> {
    let bad = |reason| {
        Err(ChannelError::NotAChannel {
            object: name.path(),
            reason,
        })
    };
    if len < PAGE {
        return bad("it is too small for a header");
    }
    let copy = Mapping::copy_of(file, name, PAGE)?;
    let facts = What::of(&copy).facts(|| name.path())?;
    // First, because the size of impossible numbers may not be one.
    if !facts.are_possible()
        || facts.kind != Kind::Rendezvous && len < size(facts.slots, facts.max_borrowed)
    {
        return bad(WRONG_SIZE);
    }
    let (role, traffic) = match facts.kind {
        Kind::Rendezvous => (Role::Rendezvous, Traffic::default()),
        Kind::Pair => (Role::Pair, traffic(file, name, &facts)?),
        Kind::Connection => (Role::Connection, traffic(file, name, &facts)?),
    };
    let Facts {
        provider,
        on_full,
        slots,
        max_borrowed,
        ..
    } = facts;
    let message_type = TypeWords::of(&copy).read();
    Ok(Outside {
        provider,
        role,
        message_type,
        on_full,
        capacity: slots - EXTRA_SLOTS,
        max_borrowed,
        traffic,
    })
}

fn traffic(file: &File, name: &Name, facts: &Facts) -> Result<Traffic, ChannelError> {
    let copy = Mapping::copy_of(file, name, size(facts.slots, facts.max_borrowed))?;
    let shared = Shared::new(copy, facts);
    let slots = shared.slots();
    let sent = ring::sent(slots);
    // The extra slot may hold a message too.
    let waiting = ring::waiting(slots).min(shared.capacity());
    Ok(Traffic {
        sent,
        waiting,
        missed: shared.missed().load(),
        is_connected: shared.to_receiver().is_held(),
        is_evicted: shared.header().what.0.is_evicted(),
        borrowed: all(&shared),
    })
}

/// The bits of a word that hold 1 + the length.
const LEN_BITS: u32 = 37;
const LENGTHS: u64 = 1 << LEN_BITS;

const _: () = assert!((LONGEST as u64) < LENGTHS - 1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Borrowed {
    pub(crate) number: u32,
    /// Distinguishes this borrowed buffer from earlier ones of this number, except for one in 2^27.
    pub(crate) word: u64,
    pub(crate) len: u64,
}

/// Notes that a borrowed buffer is out. `ticket` is the number of messages sent before it.
#[inline]
pub(super) fn note(words: &[AtomicU64], number: usize, ticket: u64, len: usize) {
    if let Some(word) = words.get(number) {
        word.store(
            (ticket << LEN_BITS) | ((len as u64 + 1) % LENGTHS),
            Ordering::Relaxed,
        );
    }
}

#[inline]
pub(super) fn strike(words: &[AtomicU64], number: usize) {
    if let Some(word) = words.get(number) {
        word.store(0, Ordering::Relaxed);
    }
}

/// Returns the borrowed buffers that are out, from a copy of the object; one that begins or ends
/// meanwhile may be missing or included.
pub(super) fn all(copy: &Shared) -> Vec<Borrowed> {
    let words = copy.borrowed_words();
    let read = copy.returns_read();
    let returns = copy.returns();
    for (returns, read) in [
        (returns.at_home, &read.at_home),
        (returns.elsewhere, &read.elsewhere),
    ] {
        let read = read.load(Ordering::Relaxed);
        // Bounded by the number of words, as genuine returns are. The copy is private.
        for ahead in 0..words.len() as u64 {
            let Some(number) = ring::returned(returns, read.wrapping_add(ahead)) else {
                break;
            };
            strike(words, number as usize);
        }
    }

    let mut borrowed = Vec::new();
    for (number, word) in (0..).zip(words) {
        let word = word.load(Ordering::Relaxed);
        // 1 + the length; 0 if the number is free.
        let length = word % LENGTHS;
        if length != 0 && length <= LONGEST as u64 + 1 {
            let len = length - 1;
            borrowed.push(Borrowed { number, word, len });
        }
    }
    borrowed
}
