//! Lengths of messages: one at a time, and mixtures.

use crate::random::Random;
use crate::workload::mixture_len;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Powers of two, what lies just above them, and what sensors send.
pub(super) const SIZES: [(usize, &str); 22] = [
    (64, "64 B"),
    (100, "100 B"),
    (1000, "1000 B"),
    (2100, "2100 B"),
    (4 * KIB, "4 KiB"),
    (10_000, "10,000 B"),
    (20_000, "20,000 B"),
    (64 * KIB, "64 KiB"),
    (64 * KIB + 1, "64 KiB + 1 B"),
    (100_000, "100,000 B"),
    (300_000, "300,000 B"),
    (640 * 480 * 3, "640 x 480 x 3 B"),
    (1_000_000, "1,000,000 B"),
    (MIB, "1 MiB"),
    (MIB + 100, "1 MiB + 100 B"),
    (2_500_000, "2,500,000 B"),
    (4 * MIB, "4 MiB"),
    (6_200_000, "6,200,000 B"),
    (8 * MIB, "8 MiB"),
    (16 * MIB, "16 MiB"),
    (22_000_000, "22,000,000 B"),
    (33_000_000, "33,000,000 B"),
];

/// A mixture of lengths.
#[derive(Clone, Copy)]
pub(super) struct Mixture {
    pub(super) name: &'static str,
    /// The next length.
    pub(super) len: fn(&mut Random) -> usize,
}

pub(super) const MIXTURES: [Mixture; 4] = [
    Mixture { name: "uniform, 1 B to 4 MiB", len: |random| 1 + random.below(4 * MIB) },
    Mixture { name: "log-uniform, 64 B to 8 MiB", len: log_uniform },
    Mixture { name: "6.2 MB, 1 MB or 2 KB", len: |random| [6_200_000, 1_000_000, 2_000][random.below(3)] },
    Mixture { name: "frames, clouds, telemetry", len: mixture_len },
];

/// Each doubling is as likely as any other.
fn log_uniform(random: &mut Random) -> usize {
    const LEAST: f64 = 64.0;
    const MOST: f64 = (8 * MIB) as f64;
    (LEAST * (MOST / LEAST).powf(random.fraction())) as usize
}
