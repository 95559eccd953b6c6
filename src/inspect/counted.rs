//! Counts messages by size class, and remembers how long leases and loans have been observed.

#![forbid(unsafe_code)]

use super::report::ClassReport;
use crate::os::name::Inode;
use crate::owner::limits::{class_of, size_of_class};
use crate::protocol::ids::ProviderId;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The most leases, and the most loans, remembered from one look to the next, in all and per
/// object. Ages beyond these limits are unknown. Both are far above real use: objects may be
/// damaged.
const MAX: usize = 1 << 20;
const MAX_OF_ONE: usize = 1 << 16;

/// A set of messages, counted by the size class of their length.
#[derive(Default)]
pub(super) struct Counted {
    pub(super) bytes: u64,
    classes: BTreeMap<usize, ClassReport>,
}

impl Counted {
    pub(super) fn add(&mut self, len: u64) {
        self.bytes = self.bytes.saturating_add(len);
        let class = class_of(len as usize);
        let report = self.classes.entry(class).or_default();
        report.size = size_of_class(class) as u64;
        report.messages += 1;
        report.bytes = report.bytes.saturating_add(len);
    }

    /// Returns the classes, smallest first.
    pub(super) fn into_classes(self) -> Vec<ClassReport> {
        self.classes.into_values().collect()
    }
}

/// Identifies one peer's lease of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Lease {
    pub(super) provider: ProviderId,
    pub(super) record: u32,
    pub(super) generation: u64,
    pub(super) slot: usize,
    /// The peer that occupies the slot.
    pub(super) epoch: Option<u64>,
}

/// Identifies one receiver's loan of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Loan {
    pub(super) provider: ProviderId,
    /// The object shared by the receiver and the sender and, for a publisher, the branch's random
    /// id.
    pub(super) object: Inode,
    pub(super) branch: Option<u64>,
    pub(super) number: u32,
    /// The message that the number refers to.
    pub(super) word: u64,
}

/// When each item was first seen, for items present in every look since.
pub(super) type Since<T> = BTreeMap<T, Instant>;

/// How long leases, or loans, have been observed.
pub(super) struct Ages<T> {
    now: Instant,
    before: Since<T>,
    seen: Since<T>,
}

/// The leases, or loans, of one object.
pub(super) struct AgesOfOne<'a, T> {
    ages: &'a mut Ages<T>,
    left: usize,
}

impl<T: Copy + Ord> Ages<T> {
    /// Starts a look. `before` is what the last look saw.
    pub(super) fn new(before: Since<T>) -> Self {
        Self { now: Instant::now(), before, seen: BTreeMap::new() }
    }

    /// Returns what the next look starts from.
    pub(super) fn into_since(self) -> Since<T> {
        self.seen
    }

    pub(super) fn of_one(&mut self) -> AgesOfOne<'_, T> {
        AgesOfOne { left: MAX_OF_ONE.min(MAX.saturating_sub(self.seen.len())), ages: self }
    }
}

impl<T: Copy + Ord> AgesOfOne<'_, T> {
    /// Returns how long `held` has been observed, or `None` if there are too many to remember.
    pub(super) fn of(&mut self, held: T) -> Option<Duration> {
        self.left = self.left.checked_sub(1)?;
        let Ages { now, before, seen } = &mut *self.ages;
        let since = before.get(&held).copied().unwrap_or(*now);
        seen.insert(held, since);
        Some(*now - since)
    }
}
