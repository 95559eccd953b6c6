//! A payload segment: shared memory that chunks live in, and the two numbers that peers know it by.

#![forbid(unsafe_code)]

use crate::os::segment::Segment;

/// A segment that chunks are carved out of, with its serial number and its place in the control
/// object's list.
pub(crate) struct Payload {
    segment: Segment,
    serial: u64,
    index: Option<u32>,
}

impl Payload {
    /// `serial` is part of the segment's name. No two segments that a provider has at the same time
    /// share it.
    pub(crate) fn new(segment: Segment, serial: u64) -> Self {
        Self { segment, serial, index: None }
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

    /// Where the control object lists the segment, if there is one.
    pub(crate) fn index(&self) -> Option<u32> {
        self.index
    }

    /// Notes where the segment is listed, for as long as it exists.
    pub(crate) fn set_index(&mut self, index: u32) {
        self.index = Some(index);
    }
}
