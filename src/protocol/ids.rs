//! Ids of providers and peers, and their encodings.

#![forbid(unsafe_code)]

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

/// Identifies a provider: 64 random bits, which are part of the names of its objects.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProviderId(pub(crate) u64);

impl ProviderId {
    /// Returns the id as a number, for a peer that connects before the first message.
    pub const fn to_u64(self) -> u64 {
        self.0
    }

    /// Creates an id from a number that [`to_u64`](Self::to_u64) returned. Any number is an id;
    /// most name no provider.
    pub const fn from_u64(id: u64) -> Self {
        Self(id)
    }
}

impl fmt::Display for ProviderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The inverse of `Display`: up to 16 hexadecimal digits.
impl FromStr for ProviderId {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        u64::from_str_radix(text, 16).map(Self)
    }
}

impl fmt::Debug for ProviderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProviderId({self})")
    }
}

/// Identifies one connection of a client to a provider, so that the provider can grant it leases.
///
/// A slot is reused after its peer disconnects; the epoch distinguishes the two peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerId {
    pub(crate) provider: ProviderId,
    pub(crate) slot: u8,
    pub(crate) epoch: u64,
}

impl PeerId {
    /// Size of the encoded form in bytes.
    pub const SIZE: usize = 24;

    /// The provider that the peer is connected to.
    pub fn provider(&self) -> ProviderId {
        self.provider
    }

    /// The peer's slot, 0 to 63.
    pub fn slot(&self) -> u8 {
        self.slot
    }

    /// Encodes the id for any transport.
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[0..8].copy_from_slice(&self.provider.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[16] = self.slot;
        bytes
    }

    /// Decodes the bytes that [`to_bytes`](Self::to_bytes) returned.
    /// [`ShmBuf::grant`](crate::ShmBuf::grant) checks that they name a live peer.
    pub fn from_bytes(bytes: [u8; Self::SIZE]) -> Self {
        Self { provider: ProviderId(word(&bytes, 0)), epoch: word(&bytes, 8), slot: bytes[16] }
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of provider {} (epoch {})", self.slot, self.provider, self.epoch)
    }
}

/// Returns the little-endian number at byte `at`.
pub(crate) fn word(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn peer_ids_round_trip(provider: u64, slot in 0u8..64, epoch: u64) {
            let peer = PeerId { provider: ProviderId(provider), slot, epoch };
            prop_assert_eq!(PeerId::from_bytes(peer.to_bytes()), peer);
            prop_assert_eq!(peer.provider.to_string().parse(), Ok(peer.provider));
        }
    }
}
