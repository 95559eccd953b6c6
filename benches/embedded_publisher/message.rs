//! The message, about 2 KB with nested lists, and its encoding: from a struct that was built, or in
//! place. Both write the same bytes: postcard's, followed by their CRC-32.

#![forbid(unsafe_code)]

use crate::sample::{Head, Motion, Place, Record, Sample, Signal, MAX_SIGNALS, ORDER, STATUS};
use serde::ser::{SerializeSeq, Serializer};
use serde::{Deserialize, Serialize};
use shm_pool_support::Fallible;
use std::fmt::Display;
use std::mem::size_of;

const FRAME: &str = "gnss_antenna";

/// Longest line of status.
const MAX_LINE: usize = 64;

/// Most bytes of a message. A number of 64 bits may take ten bytes, one of 16 bits three, and each
/// length here one.
pub(crate) const MAX_LEN: usize = 2 * 10
    + (1 + FRAME.len())
    + size_of::<Motion>()
    + size_of::<[[f64; ORDER]; ORDER]>()
    + (1 + MAX_SIGNALS * (1 + size_of::<Record>() + 2))
    + (1 + STATUS.len() * (1 + MAX_LINE))
    + size_of::<u32>();

/// A message. One that was built owns its texts and lists.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Navigation<Text = String, Satellites = Vec<(Place, Vec<Signal>)>, Status = Vec<String>> {
    pub(crate) sequence: u64,
    time: u64,
    frame: Text,
    motion: Motion,
    covariance: [[f64; ORDER]; ORDER],
    satellites: Satellites,
    status: Status,
}

impl<Text, Satellites, Status> Navigation<Text, Satellites, Status> {
    fn new(sample: &Sample, frame: Text, satellites: Satellites, status: Status) -> Self {
        let Head { number: sequence, time, motion, covariance, .. } = sample.head;
        Self { sequence, time, frame, motion, covariance, satellites, status }
    }
}

impl Navigation {
    /// Builds the message of a sample.
    pub(crate) fn of(sample: &Sample) -> Self {
        let satellites =
            sample.satellites().map(|heard| (heard[0].place, heard.iter().map(|record| record.signal).collect()));
        let status = sample.status().map(|line| line.to_string());
        Self::new(sample, FRAME.to_owned(), satellites.collect(), status.collect())
    }

    /// Encodes it into a new vector.
    pub(crate) fn encode(&self) -> Fallible<Vec<u8>> {
        let mut bytes = postcard::to_stdvec(self)?;
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        Ok(bytes)
    }

    /// Checks a message, and reads all of it.
    pub(crate) fn decode(message: &[u8]) -> Fallible<Self> {
        let (bytes, checksum) = message.split_last_chunk().ok_or("a message without a checksum")?;
        if crc32fast::hash(bytes) != u32::from_le_bytes(*checksum) {
            return Err("the checksum is not that of the bytes".into());
        }
        match postcard::take_from_bytes(bytes)? {
            (message, []) => Ok(message),
            (_, rest) => Err(format!("{} bytes too many", rest.len()).into()),
        }
    }
}

/// Encodes the message of a sample where it will be read, each part as it is generated, and returns
/// its length. `memory` has at least [`MAX_LEN`] bytes.
pub(crate) fn encode_in_place(sample: &Sample, memory: &mut [u8]) -> Fallible<usize> {
    let satellites = sample.satellites().map(|heard| (heard[0].place, List(heard.iter().map(|record| record.signal))));
    let message = Navigation::new(sample, FRAME, List(satellites), List(sample.status().map(Text)));
    let len = postcard::to_slice(&message, memory)?.len();
    let (bytes, rest) = memory.split_at_mut(len);
    let checksum = rest.first_chunk_mut().ok_or("no room for the checksum")?;
    *checksum = crc32fast::hash(bytes).to_le_bytes();
    Ok(len + checksum.len())
}

/// A list that is never built. It is iterated twice, because its length is written first.
struct List<I>(I);

impl<I: Iterator<Item: Serialize> + Clone> Serialize for List<I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.clone().count()))?;
        self.0.clone().try_for_each(|item| list.serialize_element(&item))?;
        list.end()
    }
}

/// A text that is formatted where it will be read.
struct Text<D>(D);

impl<D: Display> Serialize for Text<D> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}
