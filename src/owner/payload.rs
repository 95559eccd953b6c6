//! A payload segment: shared memory for chunks, and the two numbers by which readers identify it.

#![forbid(unsafe_code)]

use crate::os::segment::Segment;
use std::any::Any;

/// A segment that chunks are carved from, with its serial number and its index in the control
/// object's list.
pub(crate) struct Payload {
    segment: Segment,
    serial: u64,
    index: Option<u32>,
    /// Dropped last, when this process no longer has the segment mapped or open.
    _removes: Option<Box<dyn Any + Send + Sync>>,
}

impl Payload {
    /// `serial` is part of the segment's name, and unique among the provider's existing segments.
    pub(crate) fn new(segment: Segment, serial: u64) -> Self {
        Self { segment, serial, index: None, _removes: None }
    }

    /// The same with a value that is dropped once the segment is unmapped.
    pub(crate) fn removed_by(segment: Segment, serial: u64, removes: impl Any + Send + Sync) -> Self {
        Self { _removes: Some(Box::new(removes)), ..Self::new(segment, serial) }
    }

    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    pub(crate) fn len(&self) -> usize {
        self.segment.mapping().len()
    }

    /// Returns the number in the segment's name.
    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    /// Returns the segment's index in the control object's list, if it is listed.
    pub(crate) fn index(&self) -> Option<u32> {
        self.index
    }

    /// Records the index, which stays for as long as the segment exists.
    pub(crate) fn set_index(&mut self, index: u32) {
        self.index = Some(index);
    }
}
