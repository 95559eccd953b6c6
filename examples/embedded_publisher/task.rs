//! What a round is: which driver, how many samples, and when. All processes of a round are told the same.

#![forbid(unsafe_code)]

use clap::{Args, ValueEnum};
use std::fmt;

/// What names under /dev/shm start with.
pub(crate) const PREFIX: &str = "embedded_publisher";

/// Nanoseconds from one sample of the warm-up to the next, unless the rate is higher.
const WARM_UP_PERIOD: u64 = 1_000_000;

/// See the modules of these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    Baseline,
    Blocking,
    Pooled,
}

impl Form {
    pub(crate) const ALL: [Self; 3] = [Self::Baseline, Self::Blocking, Self::Pooled];
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Baseline => "baseline",
            Self::Blocking => "baseline that blocks",
            Self::Pooled => "pooled",
        })
    }
}

/// See the module's text.
#[derive(Args, Clone, Debug)]
pub(crate) struct Task {
    #[arg(value_enum)]
    pub(crate) form: Form,
    pub(crate) channel: String,
    pub(crate) seed: u64,
    /// Samples that come first and are not measured.
    pub(crate) warm_up: u64,
    /// Samples that are measured.
    pub(crate) count: u64,
    /// Nanoseconds from one sample to the next.
    pub(crate) period: u64,
}

impl Task {
    /// Samples in all.
    pub(crate) fn total(&self) -> u64 {
        self.warm_up + self.count
    }

    /// When a sample is due, in nanoseconds since the device was started. A whole period passes before the first that is measured, as
    /// before every other.
    pub(crate) fn time_of(&self, number: u64) -> u64 {
        let warm_up = self.warm_up.min(number) * WARM_UP_PERIOD.min(self.period);
        match number.checked_sub(self.warm_up) {
            None => warm_up,
            Some(measured) => warm_up + (measured + 1) * self.period,
        }
    }

    /// As arguments.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let form = self.form.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        let numbers = [self.seed, self.warm_up, self.count, self.period];
        [form, self.channel.clone()].into_iter().chain(numbers.iter().map(u64::to_string)).collect()
    }
}
