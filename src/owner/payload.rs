//! A payload segment: shared memory that chunks live in, and the two numbers that peers know it by.

#![forbid(unsafe_code)]

use crate::os::segment::Segment;
use std::sync::atomic::{AtomicU32, Ordering};

/// Not listed in the control object: none of its chunks has been shared.
const UNLISTED: u32 = u32::MAX;

/// A segment that chunks are carved out of, with its serial number and its place in the control
/// object's list.
pub(crate) struct Payload {
    segment: Segment,
    serial: u64,
    index: AtomicU32,
}

impl Payload {
    /// `serial` is part of the segment's name. No two segments that a provider has at the same time
    /// share it.
    pub(crate) fn new(segment: Segment, serial: u64) -> Self {
        Self { segment, serial, index: AtomicU32::new(UNLISTED) }
    }

    /// The memory.
    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.segment.mapping().len()
    }

    /// The number in the segment's name.
    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    /// Where the control object lists the segment, if it does. Relaxed: the caller holds the lock
    /// of the owner's free lists, or has a chunk whose record was claimed after the segment was
    /// listed.
    pub(crate) fn index(&self) -> Option<u32> {
        Some(self.index.load(Ordering::Relaxed)).filter(|&index| index != UNLISTED)
    }

    /// Notes where the segment is listed, for as long as it exists. The caller holds the lock of
    /// the owner's free lists.
    pub(crate) fn set_index(&self, index: u32) {
        self.index.store(index, Ordering::Relaxed);
    }
}
