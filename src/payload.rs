//! A payload segment: shared memory that chunks live in, and the two numbers that peers know it by.

#![forbid(unsafe_code)]

use crate::segment::Segment;
use std::sync::atomic::{AtomicU32, Ordering};

/// Not listed in the control object: no chunk of the segment has a record.
const UNLISTED: u32 = u32::MAX;

/// See the module's text.
pub(crate) struct Payload {
    segment: Segment,
    serial: u64,
    index: AtomicU32,
    /// How many of its chunks have a record. Guarded by the lock of the owner's books.
    sharers: AtomicU32,
}

impl Payload {
    /// `serial` is part of the segment's name and is never used twice by one provider.
    pub(crate) fn new(segment: Segment, serial: u64) -> Self {
        Self { segment, serial, index: AtomicU32::new(UNLISTED), sharers: AtomicU32::new(0) }
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

    /// Where the control object lists the segment, if it does. Relaxed: the caller has a chunk whose record was claimed after
    /// the segment was listed, and which keeps it listed.
    pub(crate) fn index(&self) -> Option<u32> {
        Some(self.index.load(Ordering::Relaxed)).filter(|&index| index != UNLISTED)
    }

    /// Counts one more chunk with a record, in a segment that is listed at `index`. Under the lock of the owner's books.
    pub(crate) fn add_sharer(&self, index: u32) {
        self.index.store(index, Ordering::Relaxed);
        self.sharers.store(self.sharers.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Counts one chunk with a record less. If it was the last, returns where the segment was listed. Under the lock of the
    /// owner's books.
    pub(crate) fn remove_sharer(&self) -> Option<u32> {
        let left = self.sharers.load(Ordering::Relaxed).saturating_sub(1);
        self.sharers.store(left, Ordering::Relaxed);
        (left == 0).then(|| self.index.swap(UNLISTED, Ordering::Relaxed))
    }
}
