//! What is due when, and when which hoard ends. All processes derive it by the same rule.
//!
//! Each subscriber keeps all its messages until its hoard ends: then it releases everything, and
//! starts again. A hoard is as many frames as there is memory for, and the subscribers' hoards end
//! a third of that apart. So every third of a hoard the camera finds no memory when a frame is due,
//! and half a frame later a hoard ends.

#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};
use shm_pool_support::clock;

/// Bytes of a camera's frame.
pub(crate) const FRAME: usize = 6_000_000;

/// Nanoseconds from one frame to the next, at 60 Hz.
pub(crate) const FRAME_PERIOD: u64 = 16_666_667;

/// Bytes of the IMU's sample.
pub(crate) const SAMPLE: usize = 48;

/// Nanoseconds from one sample to the next, at 1 kHz.
pub(crate) const SAMPLE_PERIOD: u64 = 1_000_000;

pub(crate) const SUBSCRIBERS: u64 = 3;

/// How long after a frame was due the hoard ends that it needs. It is less than a frame's period,
/// so that memory is always released in time.
const LATE: u64 = FRAME_PERIOD / 2;

/// Of one round.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Schedule {
    /// By the monotonic clock.
    pub(crate) start: u64,
    pub(crate) frames: u64,
    /// How many frames there is memory for.
    pub(crate) fits: u64,
}

impl Schedule {
    pub(crate) fn samples(&self) -> u64 {
        self.frames * FRAME_PERIOD / SAMPLE_PERIOD
    }

    pub(crate) fn wait_for_frame(&self, frame: u64) {
        clock::sleep_until(self.start + frame * FRAME_PERIOD);
    }

    pub(crate) fn wait_for_sample(&self, sample: u64) {
        clock::sleep_until(self.start + sample * SAMPLE_PERIOD);
    }

    /// The frames before which a subscriber's hoards end.
    pub(crate) fn ends(&self, subscriber: u64) -> impl Iterator<Item = u64> {
        let first = self.fits * (subscriber + 1) / SUBSCRIBERS;
        (first..self.frames).step_by(self.fits as usize)
    }

    /// Returns `true` if `frame` waits for the end of a hoard.
    pub(crate) fn is_awaited(&self, frame: u64) -> bool {
        frame >= self.fits && (0..SUBSCRIBERS).any(|one| self.ends(one).any(|end| end == frame))
    }

    /// When the hoard ends before `frame`.
    pub(crate) fn end(&self, frame: u64) -> u64 {
        self.start + frame * FRAME_PERIOD + LATE
    }
}

/// The last frame that was due when a sample was.
pub(crate) fn frame_of(sample: u64) -> u64 {
    sample * SAMPLE_PERIOD / FRAME_PERIOD
}
