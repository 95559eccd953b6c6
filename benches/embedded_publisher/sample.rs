//! The device's data: one record of raw measurements per sample, as a satellite receiver with an
//! inertial unit sends it.
//!
//! Numbers are in native byte order, without padding. A sample is a function of the seed, the
//! number and the time, so that the subscriber can compute the expected message.

#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};
use shm_pool_support::Fallible;
use std::fmt::{self, Display, Formatter};
use std::mem::size_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Most signals of a sample.
pub(crate) const MAX_SIGNALS: usize = 84;

/// Most bytes of a sample.
pub(crate) const MAX_LEN: usize = size_of::<Head>() + MAX_SIGNALS * size_of::<Record>();

/// Rows and columns of the covariance.
pub(crate) const ORDER: usize = 6;

/// A sample, read in place. The records of a satellite are adjacent.
#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Sample {
    pub(crate) head: Head,
    records: [Record],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C, packed)]
pub(crate) struct Head {
    pub(crate) number: u64,
    /// In nanoseconds since the device was started.
    pub(crate) time: u64,
    pub(crate) motion: Motion,
    /// Of position and velocity.
    pub(crate) covariance: [[f64; ORDER]; ORDER],
    /// In 0.1 °C.
    temperature: u16,
    /// In mV.
    supply: u16,
    fix: u8,
    is_antenna_open: u8,
}

/// The device's position and movement.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C, packed)]
pub(crate) struct Motion {
    position: [f64; 3],
    /// Velocity, orientation, rate of turn, acceleration.
    others: [f32; 13],
}

/// One signal of a satellite.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C, packed)]
pub(crate) struct Record {
    pub(crate) place: Place,
    pub(crate) signal: Signal,
}

/// The satellite, and its position in the sky.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C, packed)]
pub(crate) struct Place {
    system: u8,
    id: u8,
    elevation: u8,
    azimuth: u16,
}

/// The measurements of a signal.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C, packed)]
pub(crate) struct Signal {
    band: u8,
    strength: u8,
    locked: u16,
    range: f64,
    phase: f64,
    doppler: f32,
}

/// The lines of a status report. The last line is present only while its fault is.
pub(crate) const STATUS: [fn(&Sample, &mut Formatter<'_>) -> fmt::Result; 5] = [
    |sample, f| {
        f.write_str(
            ["no fix", "fix: carrier phase, float", "fix: carrier phase, fixed"][usize::from(sample.head.fix.min(2))],
        )
    },
    |sample, f| write!(f, "{} satellites, {} signals", sample.satellites().count(), sample.records.len()),
    |Sample { head, .. }, f| write!(f, "temperature {}.{} °C", head.temperature / 10, head.temperature % 10),
    |Sample { head, .. }, f| write!(f, "supply {}.{:03} V", head.supply / 1000, head.supply % 1000),
    |_, f| f.write_str("antenna open"),
];

impl Sample {
    pub(crate) fn read(bytes: &[u8]) -> Fallible<&Self> {
        let sample = Self::ref_from_bytes(bytes).ok().filter(|sample| sample.records.len() <= MAX_SIGNALS);
        sample.ok_or_else(|| format!("the device delivered {} bytes, which is no sample", bytes.len()).into())
    }

    /// Returns the satellites, each as the records of its signals: at least one.
    pub(crate) fn satellites(&self) -> impl Iterator<Item = &[Record]> + Clone {
        self.records.chunk_by(|one, next| one.place.id == next.place.id)
    }

    pub(crate) fn status(&self) -> impl Iterator<Item = impl Display + '_> + Clone {
        let lines = STATUS.len() - usize::from(self.head.is_antenna_open == 0);
        STATUS[..lines].iter().map(|line| fmt::from_fn(|f| line(self, f)))
    }
}

/// Writes the sample that the device measures at a time.
pub(crate) fn measure(seed: u64, number: u64, time: u64, sample: &mut Vec<u8>) {
    // The increment of SplitMix64: consecutive numbers give seeds that are far apart.
    let mut random = fastrand::Rng::with_seed(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    sample.clear();
    let position = [(); 3].map(|()| 6.4e6 * (random.f64() - 0.5));
    let mut small = || random.f32() - 0.5;
    let head = Head {
        number,
        time,
        motion: Motion { position, others: [(); 13].map(|()| small()) },
        covariance: [[(); ORDER]; ORDER].map(|row| row.map(|()| small().into())),
        temperature: random.u16(200..600),
        supply: random.u16(4_800..5_200),
        fix: random.u8(0..3),
        is_antenna_open: random.u8(0..8) / 7,
    };
    sample.extend(head.as_bytes());
    for id in 0..random.u8(20..=28) {
        let place = Place { system: id % 4, id, elevation: random.u8(5..=90), azimuth: random.u16(0..360) };
        for band in 0..random.u8(1..=3) {
            let signal = Signal {
                band,
                strength: random.u8(20..55),
                locked: random.u16(..),
                range: 2e7 + 5e6 * random.f64(),
                phase: 1e8 * random.f64(),
                doppler: 8e3 * (random.f32() - 0.5),
            };
            sample.extend(Record { place, signal }.as_bytes());
        }
    }
}
