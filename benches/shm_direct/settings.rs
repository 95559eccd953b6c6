//! Under what conditions the ways are compared: how long the messages are, and how often they come.

#![forbid(unsafe_code)]

use crate::payload::MIN_LEN;
use crate::slot::MAX_LEN;
use std::time::Duration;

/// Settings that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    BackToBack,
    Paced,
    /// What the figures in SHM-direct's own report are for.
    Reference,
}

pub(crate) const KINDS: [Kind; 3] = [Kind::BackToBack, Kind::Paced, Kind::Reference];

const LENS: &[usize] = &[64, 100, 512, 1024, 4096, LARGEST];

pub(crate) const LARGEST: usize = 8192;

pub(crate) const REFERENCE: usize = 116;

const _: () = assert!(LENS[0] >= MIN_LEN && REFERENCE >= MIN_LEN && LARGEST <= MAX_LEN);

impl Kind {
    pub(crate) fn lens(self) -> &'static [usize] {
        match self {
            Self::BackToBack | Self::Paced => LENS,
            Self::Reference => &[REFERENCE],
        }
    }

    /// From one message to the next, by the clock.
    pub(crate) fn pace(self) -> Option<Duration> {
        match self {
            Self::BackToBack => None,
            Self::Paced => Some(Duration::from_millis(1)),
            Self::Reference => Some(Duration::from_millis(10)),
        }
    }
}

/// See the module's text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) kind: Kind,
    pub(crate) len: usize,
    /// Messages before those that count.
    pub(crate) warm_up: u64,
    /// Messages of a round.
    pub(crate) count: u64,
}

impl Setting {
    pub(crate) fn new(kind: Kind, len: usize, count: u64) -> Self {
        Self { kind, len, warm_up: count.div_ceil(10), count }
    }

    /// All messages of a round.
    pub(crate) fn messages(&self) -> u64 {
        self.warm_up + self.count
    }

    /// How long a round takes by the clock.
    pub(crate) fn duration(&self) -> Duration {
        self.kind.pace().unwrap_or_default().mul_f64(self.messages() as f64)
    }
}
