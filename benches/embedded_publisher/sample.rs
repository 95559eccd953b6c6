//! What the device delivers: one record of raw measurements per sample, as a satellite receiver
//! with an inertial unit sends it. A record is a [`Head`], and then a [`Record`] for each signal,
//! those of a satellite next to each other.
//!
//! Numbers are little-endian. A record is a function of the seed, the number and the time, so that
//! whoever knows these three can tell what must have come.

#![forbid(unsafe_code)]

use shm_pool_support::Fallible;
use std::fmt;
use std::mem::size_of;
use zerocopy::little_endian::{F32, F64, I16, U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Most signals of a sample.
pub(crate) const MAX_SIGNALS: usize = 84;

/// Most lines of status of a sample.
pub(crate) const MAX_STATUS: usize = 5;

/// Most bytes of a record.
pub(crate) const MAX_LEN: usize = size_of::<Head>() + MAX_SIGNALS * size_of::<Record>();

/// Elements of the upper triangle of a symmetric matrix.
const TRIANGLE: usize = 21;

/// Where the device is, and how it moves.
#[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Motion {
    position: [F64; 3],
    /// Velocity, orientation, rate of turn, acceleration.
    others: [F32; 13],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Head {
    pub(crate) number: U64,
    /// In nanoseconds since the device was started.
    pub(crate) time: U64,
    pub(crate) motion: Motion,
    /// Of position and velocity: the upper triangle.
    covariance: [F32; TRIANGLE],
    /// In 0.1 °C.
    temperature: I16,
    /// In mV.
    supply: U16,
    fix: u8,
    is_antenna_open: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Record {
    place: Place,
    signal: Signal,
    _unused: [u8; 3],
}

/// Which satellite, and where in the sky.
#[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Place {
    system: u8,
    id: u8,
    elevation: i8,
    azimuth: U16,
}

/// What was measured of a signal.
#[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Signal {
    band: u8,
    strength: u8,
    locked: U16,
    range: F64,
    phase: F64,
    doppler: F32,
}

/// A record, read where it is.
pub(crate) struct Sample<'a> {
    pub(crate) head: &'a Head,
    signals: &'a [Record],
}

impl<'a> Sample<'a> {
    pub(crate) fn read(bytes: &'a [u8]) -> Fallible<Self> {
        let parts = Head::ref_from_prefix(bytes).ok();
        let parts = parts.and_then(|(head, rest)| Some((head, <[Record]>::ref_from_bytes(rest).ok()?)));
        match parts {
            Some((head, signals)) if signals.len() <= MAX_SIGNALS => Ok(Self { head, signals }),
            _ => Err(format!("the device delivered {} bytes, which is no sample", bytes.len()).into()),
        }
    }

    /// The satellites, each with its signals.
    pub(crate) fn satellites(&self) -> impl Iterator<Item = Heard<'a>> {
        self.signals.chunk_by(|one, next| one.place.id == next.place.id).map(Heard)
    }

    /// An element of the covariance.
    pub(crate) fn covariance(&self, row: usize, column: usize) -> f64 {
        let (row, column) = (row.min(column), row.max(column));
        // The rows above are shorter by one each.
        self.head.covariance[row * 6 - row * (row + 1) / 2 + column].get().into()
    }

    /// What an operator wants to know, line by line.
    pub(crate) fn status(&self) -> impl Iterator<Item = Status> {
        let antenna = (self.head.is_antenna_open != 0).then_some(Status::AntennaOpen);
        let signals = Status::Signals { satellites: self.satellites().count(), signals: self.signals.len() };
        let Head { fix, temperature, supply, .. } = self.head;
        let device = [Status::Fix(*fix), signals, Status::Temperature(temperature.get()), Status::Supply(supply.get())];
        device.into_iter().chain(antenna)
    }
}

/// A satellite, by the signals that were heard of it: at least one.
pub(crate) struct Heard<'a>(&'a [Record]);

impl<'a> Heard<'a> {
    pub(crate) fn place(&self) -> &'a Place {
        &self.0[0].place
    }

    pub(crate) fn signals(&self) -> impl Iterator<Item = &'a Signal> {
        self.0.iter().map(|record| &record.signal)
    }
}

/// A line for the operator.
pub(crate) enum Status {
    Fix(u8),
    Signals { satellites: usize, signals: usize },
    Temperature(i16),
    Supply(u16),
    AntennaOpen,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Fix(0) => f.write_str("no fix"),
            Self::Fix(1) => f.write_str("fix: carrier phase, float"),
            Self::Fix(_) => f.write_str("fix: carrier phase, fixed"),
            Self::Signals { satellites, signals } => write!(f, "{satellites} satellites, {signals} signals"),
            Self::Temperature(tenths) => write!(f, "temperature {}.{} °C", tenths / 10, tenths % 10),
            Self::Supply(millivolts) => write!(f, "supply {}.{:03} V", millivolts / 1000, millivolts % 1000),
            Self::AntennaOpen => f.write_str("antenna open"),
        }
    }
}

/// What the device measures at a time.
pub(crate) fn measure(seed: u64, number: u64, time: u64, record: &mut Vec<u8>) {
    // The increment of SplitMix64: numbers that follow each other give seeds that are far apart.
    let mut random = fastrand::Rng::with_seed(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    record.clear();
    let position = [(); 3].map(|()| (6.4e6 * (random.f64() - 0.5)).into());
    let mut small = || (random.f32() - 0.5).into();
    let head = Head {
        number: number.into(),
        time: time.into(),
        motion: Motion { position, others: [(); 13].map(|()| small()) },
        covariance: [(); TRIANGLE].map(|()| small()),
        temperature: random.i16(200..600).into(),
        supply: random.u16(4_800..5_200).into(),
        fix: random.u8(0..3),
        is_antenna_open: random.u8(0..8) / 7,
    };
    record.extend(head.as_bytes());
    for id in 0..random.u8(20..=28) {
        let (elevation, azimuth) = (random.i8(5..=90), random.u16(0..360).into());
        let place = Place { system: id % 4, id, elevation, azimuth };
        for band in 0..random.u8(1..=3) {
            let signal = Signal {
                band,
                strength: random.u8(20..55),
                locked: random.u16(..).into(),
                range: (2e7 + 5e6 * random.f64()).into(),
                phase: (1e8 * random.f64()).into(),
                doppler: (8e3 * (random.f32() - 0.5)).into(),
            };
            record.extend(Record { place, signal, _unused: [0; 3] }.as_bytes());
        }
    }
}
