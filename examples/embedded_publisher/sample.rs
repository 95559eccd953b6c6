//! What the device delivers: one record of raw measurements per sample, as a satellite receiver with an inertial unit sends it.
//!
//! | part of a record | bytes |
//! |---|---|
//! | number of the sample; its time, in nanoseconds since the device was started | 8 + 8 |
//! | position, velocity, orientation, rate of turn, acceleration | 24 + 12 + 16 + 12 + 12 |
//! | covariance of position and velocity, the upper triangle | 84 |
//! | temperature in 0.1 °C; supply in mV; kind of fix; is the antenna open? | 2 + 2 + 1 + 1 |
//! | each signal, those of a satellite next to each other | 32 |
//!
//! Numbers are little-endian. A record is a function of the seed, the number and the time, so that whoever knows these three can
//! tell what must have come.

#![forbid(unsafe_code)]

use crate::support::Fallible;
use bytes::{Buf, BufMut};
use std::fmt;

const HEAD: usize = 182;
const RECORD: usize = 32;

/// Most signals of a sample.
pub(crate) const MAX_SIGNALS: usize = 84;

/// Most lines of status of a sample.
pub(crate) const MAX_STATUS: usize = 5;

/// Most bytes of a record.
pub(crate) const MAX_LEN: usize = HEAD + MAX_SIGNALS * RECORD;

/// Elements of the upper triangle of a symmetric matrix.
const TRIANGLE: usize = 21;

/// Where the device is, and how it moves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Motion {
    pub(crate) position: [f64; 3],
    pub(crate) velocity: [f32; 3],
    pub(crate) orientation: [f32; 4],
    pub(crate) turn: [f32; 3],
    pub(crate) acceleration: [f32; 3],
}

/// A record, read. Its signals stay where they are.
pub(crate) struct Sample<'a> {
    pub(crate) number: u64,
    pub(crate) time: u64,
    pub(crate) motion: Motion,
    covariance: [f32; TRIANGLE],
    temperature: i16,
    supply: u16,
    fix: u8,
    is_antenna_open: bool,
    signals: &'a [[u8; RECORD]],
}

impl<'a> Sample<'a> {
    pub(crate) fn read(bytes: &'a [u8]) -> Fallible<Self> {
        let Some((mut head, signals)) = bytes.split_at_checked(HEAD) else {
            return Err(format!("the device delivered {} bytes, which is no sample", bytes.len()).into());
        };
        let (signals, rest) = signals.as_chunks();
        if !rest.is_empty() || signals.len() > MAX_SIGNALS {
            return Err(
                format!("the device delivered {} bytes of signals, which is no sample", bytes.len() - HEAD).into()
            );
        }
        // In the order of the fields, which is that of the record.
        Ok(Self {
            number: head.get_u64_le(),
            time: head.get_u64_le(),
            motion: Motion {
                position: std::array::from_fn(|_| head.get_f64_le()),
                velocity: std::array::from_fn(|_| head.get_f32_le()),
                orientation: std::array::from_fn(|_| head.get_f32_le()),
                turn: std::array::from_fn(|_| head.get_f32_le()),
                acceleration: std::array::from_fn(|_| head.get_f32_le()),
            },
            covariance: std::array::from_fn(|_| head.get_f32_le()),
            temperature: head.get_i16_le(),
            supply: head.get_u16_le(),
            fix: head.get_u8(),
            is_antenna_open: head.get_u8() != 0,
            signals,
        })
    }

    /// The satellites, each with its signals.
    pub(crate) fn satellites(&self) -> impl Iterator<Item = Heard<'a>> {
        self.signals.chunk_by(|one, next| one[..2] == next[..2]).map(Heard)
    }

    /// An element of the covariance.
    pub(crate) fn covariance(&self, row: usize, column: usize) -> f64 {
        let (row, column) = (row.min(column), row.max(column));
        // The rows above are shorter by one each.
        self.covariance[row * 6 - row * (row + 1) / 2 + column].into()
    }

    /// What an operator wants to know, line by line.
    pub(crate) fn status(&self) -> impl Iterator<Item = Status> {
        let antenna = self.is_antenna_open.then_some(Status::AntennaOpen);
        let signals = Status::Signals { satellites: self.satellites().count(), signals: self.signals.len() };
        let device =
            [Status::Fix(self.fix), signals, Status::Temperature(self.temperature), Status::Supply(self.supply)];
        device.into_iter().chain(antenna)
    }
}

/// A satellite, by the signals that were heard of it: at least one.
pub(crate) struct Heard<'a>(&'a [[u8; RECORD]]);

impl<'a> Heard<'a> {
    pub(crate) fn place(&self) -> Place {
        let mut bytes = &self.0[0][..];
        Place { system: bytes.get_u8(), id: bytes.get_u8(), elevation: bytes.get_i8(), azimuth: bytes.get_u16_le() }
    }

    pub(crate) fn signals(&self) -> impl ExactSizeIterator<Item = Signal> + 'a {
        self.0.iter().map(Signal::read)
    }
}

/// Which satellite, and where in the sky.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Place {
    pub(crate) system: u8,
    pub(crate) id: u8,
    pub(crate) elevation: i8,
    pub(crate) azimuth: u16,
}

/// What was measured of a signal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Signal {
    pub(crate) band: u8,
    pub(crate) strength: u8,
    pub(crate) locked: u16,
    pub(crate) range: f64,
    pub(crate) phase: f64,
    pub(crate) doppler: f32,
}

impl Signal {
    fn read(record: &[u8; RECORD]) -> Self {
        let mut bytes = &record[5..];
        Self {
            band: bytes.get_u8(),
            strength: bytes.get_u8(),
            locked: bytes.get_u16_le(),
            range: bytes.get_f64_le(),
            phase: bytes.get_f64_le(),
            doppler: bytes.get_f32_le(),
        }
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
    record.put_u64_le(number);
    record.put_u64_le(time);
    (0..3).for_each(|_| record.put_f64_le(6.4e6 * (random.f64() - 0.5)));
    // 13 numbers of motion.
    (0..13 + TRIANGLE).for_each(|_| record.put_f32_le(random.f32() - 0.5));
    record.put_i16_le(random.i16(200..600));
    record.put_u16_le(random.u16(4_800..5_200));
    record.put_u8(random.u8(0..3));
    record.put_u8(random.u8(0..8) / 7);
    for satellite in 0..random.u8(20..=28) {
        let (elevation, azimuth) = (random.i8(5..=90), random.u16(0..360));
        for band in 0..random.u8(1..=3) {
            record.put_u8(satellite % 4);
            record.put_u8(satellite);
            record.put_i8(elevation);
            record.put_u16_le(azimuth);
            record.put_u8(band);
            record.put_u8(random.u8(20..55));
            record.put_u16_le(random.u16(..));
            record.put_f64_le(2e7 + 5e6 * random.f64());
            record.put_f64_le(1e8 * random.f64());
            record.put_f32_le(8e3 * (random.f32() - 0.5));
            record.put_bytes(0, 3);
        }
    }
}
