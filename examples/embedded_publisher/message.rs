//! The message, about 2 KB with lists in lists, and how it is encoded: from a struct that was built, or in place.
//!
//! | part | bytes |
//! |---|---|
//! | sequence number; time of the sample in nanoseconds since the device was started | 8 + 8 |
//! | name of the frame of reference: text | 2 + length |
//! | position, velocity, orientation, rate of turn, acceleration | 24 + 12 + 16 + 12 + 12 |
//! | covariance of position and velocity, all of it | 288 |
//! | number of satellites | 2 |
//! | each: system, id, elevation, azimuth, number of signals | 1 + 1 + 1 + 2 + 2 |
//! | ... and each signal: band, strength, time locked, range, phase, Doppler shift | 1 + 1 + 2 + 8 + 8 + 4 |
//! | number of status lines; each: text | 2; 2 + length |
//! | CRC-32 of all before | 4 |
//!
//! Numbers are little-endian; a text is its length and its bytes.

#![forbid(unsafe_code)]

use crate::sample::{Motion, Place, Sample, Signal, MAX_SIGNALS, MAX_STATUS};
use crate::support::Fallible;
use bytes::{Buf, BufMut};
use std::fmt::Display;
use std::io::Write;

const FRAME: &str = "gnss_antenna";

/// Rows and columns of the covariance.
const ORDER: usize = 6;

/// Longest line of status.
const MAX_LINE: usize = 64;

const FIXED: usize = 8 + 8 + 2 + FRAME.len() + 76 + 8 * ORDER * ORDER + 2 + 2 + 4;

/// Most bytes of a message.
pub(crate) const MAX_LEN: usize = FIXED + MAX_SIGNALS * (7 + 24) + MAX_STATUS * (2 + MAX_LINE);

/// A message as a struct.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Navigation {
    pub(crate) sequence: u64,
    pub(crate) time: u64,
    frame: String,
    motion: Motion,
    covariance: [f64; ORDER * ORDER],
    satellites: Vec<Satellite>,
    status: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
struct Satellite {
    place: Place,
    signals: Vec<Signal>,
}

impl Navigation {
    /// Builds the message of a sample.
    pub(crate) fn of(sample: &Sample) -> Self {
        Self {
            sequence: sample.number,
            time: sample.time,
            frame: FRAME.to_owned(),
            motion: sample.motion,
            covariance: std::array::from_fn(|at| sample.covariance(at / ORDER, at % ORDER)),
            satellites: sample
                .satellites()
                .map(|heard| Satellite { place: heard.place(), signals: heard.signals().collect() })
                .collect(),
            status: sample.status().map(|line| line.to_string()).collect(),
        }
    }

    /// Encodes it into memory of its own.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.put_u64_le(self.sequence);
        bytes.put_u64_le(self.time);
        put_text(&mut bytes, &self.frame);
        put_motion(&mut bytes, &self.motion);
        self.covariance.iter().for_each(|&element| bytes.put_f64_le(element));
        bytes.put_u16_le(self.satellites.len() as u16);
        for satellite in &self.satellites {
            put_place(&mut bytes, satellite.place);
            bytes.put_u16_le(satellite.signals.len() as u16);
            satellite.signals.iter().for_each(|signal| put_signal(&mut bytes, signal));
        }
        bytes.put_u16_le(self.status.len() as u16);
        self.status.iter().for_each(|line| put_text(&mut bytes, line));
        bytes.put_u32_le(crc32fast::hash(&bytes));
        bytes
    }

    /// Checks a message, and reads all of it.
    pub(crate) fn decode(message: &[u8]) -> Fallible<Self> {
        let Some((mut bytes, mut checksum)) = message.split_last_chunk::<4>().map(|(bytes, last)| (bytes, &last[..]))
        else {
            return Err("a message without a checksum".into());
        };
        if crc32fast::hash(bytes) != checksum.get_u32_le() {
            return Err("the checksum is not that of the bytes".into());
        }
        let bytes = &mut bytes;
        let this = Self {
            sequence: bytes.try_get_u64_le()?,
            time: bytes.try_get_u64_le()?,
            frame: get_text(bytes)?,
            motion: get_motion(bytes)?,
            covariance: get_array(bytes, Buf::try_get_f64_le)?,
            satellites: get_list(bytes, |bytes| {
                Ok(Satellite { place: get_place(bytes)?, signals: get_list(bytes, get_signal)? })
            })?,
            status: get_list(bytes, get_text)?,
        };
        match bytes.len() {
            0 => Ok(this),
            rest => Err(format!("{rest} bytes too many").into()),
        }
    }
}

/// Encodes the message of a sample where it will be read from, each part as it comes, and returns its length. `memory` has
/// [`MAX_LEN`] bytes, or more.
pub(crate) fn encode_in_place(sample: &Sample, memory: &mut [u8]) -> usize {
    let room = memory.len();
    let mut rest = &mut *memory;
    let bytes = &mut rest;
    bytes.put_u64_le(sample.number);
    bytes.put_u64_le(sample.time);
    put_text(bytes, FRAME);
    put_motion(bytes, &sample.motion);
    (0..ORDER * ORDER).for_each(|at| bytes.put_f64_le(sample.covariance(at / ORDER, at % ORDER)));
    put_list(bytes, sample.satellites(), |bytes, heard| {
        put_place(bytes, heard.place());
        put_list(bytes, heard.signals(), |bytes, signal| put_signal(bytes, &signal));
    });
    put_list(bytes, sample.status(), put_display);
    let len = room - bytes.len();
    let (message, mut checksum) = memory.split_at_mut(len);
    checksum.put_u32_le(crc32fast::hash(message));
    len + 4
}

/// Memory that is being written: what is left of it.
type Rest<'a> = &'a mut [u8];

/// Writes a list whose length is known when it has been written: the length's place is kept.
fn put_list<T>(bytes: &mut Rest, items: impl Iterator<Item = T>, put: impl Fn(&mut Rest, T)) {
    let (mut length, mut rest) = std::mem::take(bytes).split_at_mut(2);
    let mut count = 0;
    for item in items {
        put(&mut rest, item);
        count += 1;
    }
    length.put_u16_le(count);
    *bytes = rest;
}

/// Formats a text where it will be read from.
fn put_display(bytes: &mut Rest, text: impl Display) {
    let (mut length, mut rest) = std::mem::take(bytes).split_at_mut(2);
    let room = rest.len();
    // Fails when there is no room, which MAX_LEN has for every text.
    let _ = write!(rest, "{text}");
    length.put_u16_le((room - rest.len()) as u16);
    *bytes = rest;
}

fn put_text(bytes: &mut impl BufMut, text: &str) {
    bytes.put_u16_le(text.len() as u16);
    bytes.put_slice(text.as_bytes());
}

fn put_motion(bytes: &mut impl BufMut, motion: &Motion) {
    let Motion { position, velocity, orientation, turn, acceleration } = motion;
    position.iter().for_each(|&number| bytes.put_f64_le(number));
    let others = velocity.iter().chain(orientation).chain(turn).chain(acceleration);
    others.for_each(|&number| bytes.put_f32_le(number));
}

fn put_place(bytes: &mut impl BufMut, place: Place) {
    bytes.put_u8(place.system);
    bytes.put_u8(place.id);
    bytes.put_i8(place.elevation);
    bytes.put_u16_le(place.azimuth);
}

fn put_signal(bytes: &mut impl BufMut, signal: &Signal) {
    bytes.put_u8(signal.band);
    bytes.put_u8(signal.strength);
    bytes.put_u16_le(signal.locked);
    bytes.put_f64_le(signal.range);
    bytes.put_f64_le(signal.phase);
    bytes.put_f32_le(signal.doppler);
}

type Got<T> = Result<T, bytes::TryGetError>;

fn get_array<'a, T: Default + Copy, const N: usize>(
    bytes: &mut &'a [u8],
    get: impl Fn(&mut &'a [u8]) -> Got<T>,
) -> Got<[T; N]> {
    let mut array = [T::default(); N];
    for element in &mut array {
        *element = get(bytes)?;
    }
    Ok(array)
}

fn get_list<T>(bytes: &mut &[u8], get: impl Fn(&mut &[u8]) -> Fallible<T>) -> Fallible<Vec<T>> {
    let count = bytes.try_get_u16_le()?;
    (0..count).map(|_| get(bytes)).collect()
}

fn get_text(bytes: &mut &[u8]) -> Fallible<String> {
    let len = bytes.try_get_u16_le()?;
    let text = bytes.split_off(..len.into()).ok_or("a text that is longer than its message")?;
    Ok(std::str::from_utf8(text)?.to_owned())
}

fn get_motion(bytes: &mut &[u8]) -> Got<Motion> {
    Ok(Motion {
        position: get_array(bytes, Buf::try_get_f64_le)?,
        velocity: get_array(bytes, Buf::try_get_f32_le)?,
        orientation: get_array(bytes, Buf::try_get_f32_le)?,
        turn: get_array(bytes, Buf::try_get_f32_le)?,
        acceleration: get_array(bytes, Buf::try_get_f32_le)?,
    })
}

fn get_place(bytes: &mut &[u8]) -> Got<Place> {
    Ok(Place {
        system: bytes.try_get_u8()?,
        id: bytes.try_get_u8()?,
        elevation: bytes.try_get_i8()?,
        azimuth: bytes.try_get_u16_le()?,
    })
}

fn get_signal(bytes: &mut &[u8]) -> Fallible<Signal> {
    Ok(Signal {
        band: bytes.try_get_u8()?,
        strength: bytes.try_get_u8()?,
        locked: bytes.try_get_u16_le()?,
        range: bytes.try_get_f64_le()?,
        phase: bytes.try_get_f64_le()?,
        doppler: bytes.try_get_f32_le()?,
    })
}
