//! The message, about 2 KB with lists in lists, and how it is encoded: from a struct that was
//! built, or in place.
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
use bytes::BufMut;
use shm_pool_support::Fallible;
use std::fmt::Display;
use std::io::Write;
use std::mem::size_of;
use zerocopy::little_endian::{F64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes};

const FRAME: &str = "gnss_antenna";

/// Rows and columns of the covariance.
const ORDER: usize = 6;

/// Longest line of status.
const MAX_LINE: usize = 64;

const FIXED: usize = 8 + 8 + 2 + FRAME.len() + size_of::<Motion>() + 8 * ORDER * ORDER + 2 + 2 + 4;

/// Most bytes of a message.
pub(crate) const MAX_LEN: usize = FIXED + MAX_SIGNALS * (7 + size_of::<Signal>()) + MAX_STATUS * (2 + MAX_LINE);

/// A message as a struct.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Navigation {
    pub(crate) sequence: u64,
    time: u64,
    frame: String,
    motion: Motion,
    covariance: [F64; ORDER * ORDER],
    satellites: Vec<(Place, Vec<Signal>)>,
    status: Vec<String>,
}

impl Navigation {
    /// Builds the message of a sample.
    pub(crate) fn of(sample: &Sample) -> Self {
        Self {
            sequence: sample.head.number.get(),
            time: sample.head.time.get(),
            frame: FRAME.to_owned(),
            motion: sample.head.motion,
            covariance: std::array::from_fn(|at| sample.covariance(at / ORDER, at % ORDER).into()),
            satellites: sample.satellites().map(|heard| (*heard.place(), heard.signals().copied().collect())).collect(),
            status: sample.status().map(|line| line.to_string()).collect(),
        }
    }

    /// Encodes it into memory of its own.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.put_u64_le(self.sequence);
        bytes.put_u64_le(self.time);
        put_text(&mut bytes, &self.frame);
        put(&mut bytes, &self.motion);
        put(&mut bytes, &self.covariance);
        bytes.put_u16_le(self.satellites.len() as u16);
        for (place, signals) in &self.satellites {
            put(&mut bytes, place);
            bytes.put_u16_le(signals.len() as u16);
            signals.iter().for_each(|signal| put(&mut bytes, signal));
        }
        bytes.put_u16_le(self.status.len() as u16);
        self.status.iter().for_each(|line| put_text(&mut bytes, line));
        bytes.put_u32_le(crc32fast::hash(&bytes));
        bytes
    }

    /// Checks a message, and reads all of it.
    pub(crate) fn decode(message: &[u8]) -> Fallible<Self> {
        let (mut bytes, checksum) = U32::read_from_suffix(message).map_err(|_| "a message without a checksum")?;
        if crc32fast::hash(bytes) != checksum.get() {
            return Err("the checksum is not that of the bytes".into());
        }
        let bytes = &mut bytes;
        let this = Self {
            sequence: get::<U64>(bytes)?.get(),
            time: get::<U64>(bytes)?.get(),
            frame: get_text(bytes)?,
            motion: get(bytes)?,
            covariance: get(bytes)?,
            satellites: get_list(bytes, |bytes| Ok((get(bytes)?, get_list(bytes, get)?)))?,
            status: get_list(bytes, get_text)?,
        };
        match bytes.len() {
            0 => Ok(this),
            rest => Err(format!("{rest} bytes too many").into()),
        }
    }
}

/// Encodes the message of a sample where it will be read from, each part as it comes, and returns
/// its length. `memory` has [`MAX_LEN`] bytes, or more.
pub(crate) fn encode_in_place(sample: &Sample, memory: &mut [u8]) -> usize {
    let room = memory.len();
    let mut rest = &mut *memory;
    let bytes = &mut rest;
    put(bytes, &sample.head.number);
    put(bytes, &sample.head.time);
    put_text(bytes, FRAME);
    put(bytes, &sample.head.motion);
    (0..ORDER * ORDER).for_each(|at| bytes.put_f64_le(sample.covariance(at / ORDER, at % ORDER)));
    put_list(bytes, sample.satellites(), |bytes, heard| {
        put(bytes, heard.place());
        put_list(bytes, heard.signals(), |bytes, signal| put(bytes, signal));
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

fn put(bytes: &mut impl BufMut, value: &(impl IntoBytes + Immutable)) {
    bytes.put_slice(value.as_bytes());
}

fn get<T: FromBytes>(bytes: &mut &[u8]) -> Fallible<T> {
    let (value, rest) = T::read_from_prefix(bytes).map_err(|_| "a message that ends too early")?;
    *bytes = rest;
    Ok(value)
}

fn get_list<T>(bytes: &mut &[u8], get_one: impl Fn(&mut &[u8]) -> Fallible<T>) -> Fallible<Vec<T>> {
    let count = get::<U16>(bytes)?.get();
    (0..count).map(|_| get_one(bytes)).collect()
}

fn get_text(bytes: &mut &[u8]) -> Fallible<String> {
    let len = get::<U16>(bytes)?.get();
    let text = bytes.split_off(..len.into()).ok_or("a text that is longer than its message")?;
    Ok(std::str::from_utf8(text)?.to_owned())
}
