//! The 32 bytes that name a message: plain data and a codec (see
//! `docs/format.md`). The checksum detects damage, not forgery: a descriptor
//! is checked against the record that the owner wrote before a pointer is formed (I2).

#![forbid(unsafe_code)]

use crate::error::{explained, Advice, Explain};
use crate::protocol::ids::{put_word, word, ProviderId};
use std::fmt;
use std::io;
use thiserror::Error;

explained!(DescriptorError);

const MAGIC: u16 = 0x5bd7;
const VERSION: u8 = 1;
const LEN_BITS: u32 = 48;

pub(crate) const MAX_LEN: usize = (1 << LEN_BITS) - 1;

/// Names one message: 32 plain bytes for any transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(into = "[u8; 32]", try_from = "[u8; 32]")
)]
pub struct Descriptor {
    pub(crate) provider: ProviderId,
    pub(crate) record: u32,
    pub(crate) generation: u64,
    pub(crate) len: u64,
    pub(crate) granted: Option<u8>,
}

impl Descriptor {
    /// Size of the encoded form in bytes.
    pub const SIZE: usize = 32;

    /// The provider that owns the message.
    pub const fn provider(self) -> ProviderId {
        self.provider
    }

    /// The message's length in bytes.
    pub const fn payload_len(self) -> u64 {
        self.len
    }

    /// The slot of the peer that the message was granted to, if any.
    pub const fn granted_to(self) -> Option<u8> {
        self.granted
    }

    /// Encodes the descriptor for any transport.
    pub const fn to_bytes(self) -> [u8; Self::SIZE] {
        let grant = match self.granted {
            Some(slot) => slot.wrapping_add(1),
            None => 0,
        };
        let head = MAGIC as u64
            | (VERSION as u64) << 16
            | (grant as u64) << 24
            | (self.record as u64) << 32;
        let len = self.len & MAX_LEN as u64;
        let checksum = checksum([head, self.provider.0, self.generation, len]);
        let tail = len | (checksum as u64) << LEN_BITS;
        let mut bytes = put_word([0; Self::SIZE], 0, head);
        bytes = put_word(bytes, 8, self.provider.0);
        bytes = put_word(bytes, 16, self.generation);
        put_word(bytes, 24, tail)
    }

    /// Decodes the bytes that [`to_bytes`](Self::to_bytes) returned. The result is untrusted:
    /// [`Client::attach`](crate::Client::attach) checks it.
    ///
    /// # Errors
    ///
    /// [`DescriptorError`] if the bytes are not a descriptor, of another version, or damaged.
    pub const fn from_bytes(bytes: [u8; Self::SIZE]) -> Result<Self, DescriptorError> {
        let head = word(&bytes, 0);
        let magic = head as u16;
        if magic != MAGIC {
            return Err(DescriptorError(Problem::Magic { found: magic }));
        }
        let version = (head >> 16) as u8;
        if version != VERSION {
            return Err(DescriptorError(Problem::Version { found: version }));
        }
        let tail = word(&bytes, 24);
        let len = tail & MAX_LEN as u64;
        let provider = word(&bytes, 8);
        let generation = word(&bytes, 16);
        let found = (tail >> LEN_BITS) as u16;
        let expected = checksum([head, provider, generation, len]);
        if found != expected {
            return Err(DescriptorError(Problem::Checksum { found, expected }));
        }
        let granted = ((head >> 24) as u8).checked_sub(1);
        Ok(Self {
            provider: ProviderId(provider),
            record: (head >> 32) as u32,
            generation,
            len,
            granted,
        })
    }
}

impl From<Descriptor> for [u8; Descriptor::SIZE] {
    fn from(descriptor: Descriptor) -> Self {
        descriptor.to_bytes()
    }
}

/// See [`Descriptor::from_bytes`].
impl TryFrom<[u8; Self::SIZE]> for Descriptor {
    type Error = DescriptorError;

    fn try_from(bytes: [u8; Self::SIZE]) -> Result<Self, DescriptorError> {
        Self::from_bytes(bytes)
    }
}

/// See [`Descriptor::from_bytes`]. Also fails if there are not [`SIZE`](Descriptor::SIZE) bytes.
impl TryFrom<&[u8]> for Descriptor {
    type Error = DescriptorError;

    fn try_from(bytes: &[u8]) -> Result<Self, DescriptorError> {
        let found = bytes.len();
        let bytes = bytes
            .try_into()
            .map_err(|_| DescriptorError(Problem::Length { found }))?;
        Self::from_bytes(bytes)
    }
}

/// An error from decoding a descriptor: there are more or fewer bytes, they do not begin as a
/// descriptor does, they are one of another version, or were damaged in transit. The text says which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub struct DescriptorError(pub(crate) Problem);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    Length { found: usize },
    Magic { found: u16 },
    Version { found: u8 },
    Checksum { found: u16, expected: u16 },
}

impl DescriptorError {
    pub(crate) fn io_kind(&self) -> io::ErrorKind {
        io::ErrorKind::InvalidData
    }
}

impl Explain for DescriptorError {
    fn write_facts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Problem::Length { found } => write!(
                f,
                "a descriptor has {} bytes, but {found} were given",
                Descriptor::SIZE
            ),
            Problem::Magic { found } => write!(
                f,
                "not a shm-pool descriptor: its first two bytes are {found:#06x}"
            ),
            Problem::Version { found } => write!(
                f,
                "the descriptor has version {found} of the format, and not version {VERSION}"
            ),
            Problem::Checksum { found, expected } => write!(
                f,
                "the descriptor's checksum is {found:#06x} instead of {expected:#06x}: the \
                 transport damaged it"
            ),
        }
    }

    fn find_advice(&self) -> Option<Advice> {
        match self.0 {
            Problem::Version { .. } => Some(Advice::SameVersion),
            _ => None,
        }
    }
}

/// Only the last line, which folds the bits, can miss damage in one place, with a probability of 1
/// in 65,536.
const fn checksum(words: [u64; 4]) -> u16 {
    let mut mixed = 0u64;
    let mut index = 0;
    while index < words.len() {
        // The multiplier of Knuth's 64-bit linear congruential generator (MMIX).
        mixed = (mixed ^ words[index]).wrapping_mul(6_364_136_223_846_793_005);
        mixed ^= mixed >> 29;
        index += 1;
    }
    (mixed ^ mixed >> 16 ^ mixed >> 32 ^ mixed >> 48) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_descriptor() -> impl Strategy<Value = Descriptor> {
        (
            any::<u64>(),
            any::<u32>(),
            any::<u64>(),
            0..=MAX_LEN as u64,
            proptest::option::of(0u8..64),
        )
            .prop_map(|(provider, record, generation, len, granted)| Descriptor {
                provider: ProviderId(provider),
                record,
                generation,
                len,
                granted,
            })
    }

    proptest! {
        #[test]
        fn bytes_round_trip(descriptor in any_descriptor()) {
            prop_assert_eq!(Descriptor::from_bytes(descriptor.to_bytes()), Ok(descriptor));
        }

        #[test]
        fn encoding_is_canonical(bytes: [u8; 32]) {
            if let Ok(descriptor) = Descriptor::from_bytes(bytes) {
                prop_assert_eq!(descriptor.to_bytes(), bytes);
            }
        }
    }

    #[test]
    fn fields_at_limits() {
        for (number, granted) in [
            (0, None),
            (0, Some(0)),
            (u64::MAX, Some(63)),
            (u64::MAX, Some(254)),
        ] {
            let (provider, record) = (ProviderId(number), number as u32);
            for len in [0, 1, MAX_LEN as u64 - 1, MAX_LEN as u64] {
                let descriptor = Descriptor {
                    provider,
                    record,
                    generation: number,
                    len,
                    granted,
                };
                assert_eq!(
                    Descriptor::from_bytes(descriptor.to_bytes()),
                    Ok(descriptor)
                );
            }
        }
    }

    #[test]
    fn flipped_bit() {
        let descriptor = Descriptor {
            provider: ProviderId(7),
            record: 3,
            generation: 8,
            len: 4096,
            granted: Some(0),
        };
        let mut missed = Vec::new();
        for bit in 0..256 {
            let mut bytes = descriptor.to_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            if Descriptor::from_bytes(bytes).is_ok() {
                missed.push(bit);
            }
        }
        assert!(
            missed.is_empty(),
            "flipped bits that went unnoticed: {missed:?}"
        );
    }
}
