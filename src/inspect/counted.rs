//! Messages, counted by size class, and for how long they have been seen out.

#![forbid(unsafe_code)]

use super::report::ClassReport;
use crate::os::name::Inode;
use crate::owner::class::{class_of, size_of_class};
use crate::protocol::ids::ProviderId;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How many leases are remembered from one look to the next, in all and of one object, and how many
/// loans. The ages of others are not known. Far more than anybody has: objects may be damaged.
const MAX: usize = 1 << 20;
const MAX_OF_ONE: usize = 1 << 16;

/// Some messages, by the size class of their length.
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

    /// The classes, smallest first.
    pub(super) fn into_classes(self) -> Vec<ClassReport> {
        self.classes.into_values().collect()
    }
}

/// A peer's lease of a message, told apart from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Lease {
    pub(super) provider: ProviderId,
    pub(super) record: u32,
    pub(super) generation: u64,
    pub(super) slot: usize,
    /// Which peer has the slot.
    pub(super) epoch: Option<u64>,
}

/// A receiver's loan of a message, likewise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Loan {
    pub(super) provider: ProviderId,
    /// The object that the receiver shares with the sender, and, of a publisher, its random id.
    pub(super) object: Inode,
    pub(super) branch: Option<u64>,
    pub(super) number: u32,
    /// Which message has the number.
    pub(super) word: u64,
}

/// When each was first seen, of those that were seen at every look since.
pub(super) type Since<T> = BTreeMap<T, Instant>;

/// For how long leases, or loans, have been seen.
pub(super) struct Ages<T> {
    now: Instant,
    before: Since<T>,
    seen: Since<T>,
}

/// Of those of one object.
pub(super) struct AgesOfOne<'a, T> {
    ages: &'a mut Ages<T>,
    left: usize,
}

impl<T: Copy + Ord> Ages<T> {
    /// At the beginning of a look. `before` is what the last one saw.
    pub(super) fn new(before: Since<T>) -> Self {
        Self { now: Instant::now(), before, seen: BTreeMap::new() }
    }

    /// For the next look.
    pub(super) fn into_since(self) -> Since<T> {
        self.seen
    }

    pub(super) fn of_one(&mut self) -> AgesOfOne<'_, T> {
        AgesOfOne { left: MAX_OF_ONE.min(MAX.saturating_sub(self.seen.len())), ages: self }
    }
}

impl<T: Copy + Ord> AgesOfOne<'_, T> {
    /// For how long this has been seen. `None` if there are too many.
    pub(super) fn of(&mut self, held: T) -> Option<Duration> {
        self.left = self.left.checked_sub(1)?;
        let Ages { now, before, seen } = &mut *self.ages;
        let since = before.get(&held).copied().unwrap_or(*now);
        seen.insert(held, since);
        Some(*now - since)
    }
}
