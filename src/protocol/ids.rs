//! Ids of providers and peers, and the names of objects.

#![forbid(unsafe_code)]

use crate::os::name::{is_part, Name, Namespace};
use std::array::TryFromSliceError;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// An error from parsing an id or a rule: the text is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("expected {expected}")]
pub struct ParseError {
    pub(crate) expected: &'static str,
}

/// Parses up to 16 hexadecimal digits, without a sign.
fn hex_digits(text: &str) -> Option<u64> {
    let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_hex || text.len() > 16 {
        return None;
    }
    u64::from_str_radix(text, 16).ok()
}

/// Parses a decimal number, without a sign.
fn decimal<T: FromStr>(text: &str) -> Option<T> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// Identifies a provider: 64 random bits, which are part of the names of its objects.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProviderId(pub(crate) u64);

impl ProviderId {
    /// Returns the id as a number, for a peer that connects before the first message.
    pub const fn to_u64(self) -> u64 {
        self.0
    }

    /// Creates an id from a number that [`to_u64`](Self::to_u64) returned. Any number is accepted.
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
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let id = hex_digits(text).ok_or(ParseError {
            expected: "a provider's id: up to 16 hexadecimal digits",
        })?;
        Ok(Self(id))
    }
}

impl From<u64> for ProviderId {
    fn from(id: u64) -> Self {
        Self::from_u64(id)
    }
}

impl From<ProviderId> for u64 {
    fn from(id: ProviderId) -> Self {
        id.to_u64()
    }
}

impl fmt::Debug for ProviderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProviderId({self})")
    }
}

/// Identifies one receiver of a [`Publisher`](crate::channel::Publisher): 64 random bits, which are
/// part of the name of the receiver's object, `{prefix}.{channel}.{id}.connection`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReceiverId(pub(crate) u64);

impl ReceiverId {
    /// Returns the id as a number.
    pub const fn to_u64(self) -> u64 {
        self.0
    }

    /// Creates an id from a number that [`to_u64`](Self::to_u64) returned. Any number is accepted.
    pub const fn from_u64(id: u64) -> Self {
        Self(id)
    }
}

impl fmt::Display for ReceiverId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The inverse of `Display`: up to 16 hexadecimal digits.
impl FromStr for ReceiverId {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let id = hex_digits(text).ok_or(ParseError {
            expected: "a receiver's id: up to 16 hexadecimal digits",
        })?;
        Ok(Self(id))
    }
}

impl From<u64> for ReceiverId {
    fn from(id: u64) -> Self {
        Self::from_u64(id)
    }
}

impl From<ReceiverId> for u64 {
    fn from(id: ReceiverId) -> Self {
        id.to_u64()
    }
}

impl fmt::Debug for ReceiverId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReceiverId({self})")
    }
}

/// Identifies one connection of a client to a provider, so that the provider can grant it leases.
///
/// Sorts by provider, then by slot, then by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId {
    pub(crate) provider: ProviderId,
    pub(crate) slot: u8,
    pub(crate) epoch: u64,
}

impl PeerId {
    /// Size of the encoded form in bytes.
    pub const SIZE: usize = 24;

    /// The provider that the peer is connected to.
    pub const fn provider(self) -> ProviderId {
        self.provider
    }

    /// The peer's slot, 0 to 63.
    pub const fn slot(self) -> u8 {
        self.slot
    }

    /// Encodes the id for any transport.
    pub const fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = put_word([0; Self::SIZE], 0, self.provider.0);
        bytes = put_word(bytes, 8, self.epoch);
        bytes[16] = self.slot;
        bytes
    }

    /// Decodes the bytes that [`to_bytes`](Self::to_bytes) returned.
    /// [`ShmBytes::grant`](crate::ShmBytes::grant) checks that they name a live peer.
    pub const fn from_bytes(bytes: [u8; Self::SIZE]) -> Self {
        Self {
            provider: ProviderId(word(&bytes, 0)),
            epoch: word(&bytes, 8),
            slot: bytes[16],
        }
    }
}

impl From<PeerId> for [u8; PeerId::SIZE] {
    fn from(id: PeerId) -> Self {
        id.to_bytes()
    }
}

impl From<[u8; Self::SIZE]> for PeerId {
    fn from(bytes: [u8; Self::SIZE]) -> Self {
        Self::from_bytes(bytes)
    }
}

/// Fails if there are not [`SIZE`](PeerId::SIZE) bytes.
impl TryFrom<&[u8]> for PeerId {
    type Error = TryFromSliceError;

    fn try_from(bytes: &[u8]) -> Result<Self, TryFromSliceError> {
        Ok(Self::from_bytes(bytes.try_into()?))
    }
}

/// The provider's id, the slot, and the number of the slot's connection: `0123456789abcdef-3-17`.
impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.provider, self.slot, self.epoch)
    }
}

/// The inverse of `Display`.
impl FromStr for PeerId {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let error = ParseError {
            expected: "a peer's id, such as 0123456789abcdef-3-17",
        };
        let mut parts = text.split('-');
        let provider = parts.next().and_then(hex_digits).ok_or(error)?;
        let slot = parts.next().and_then(decimal).ok_or(error)?;
        let epoch = parts.next().and_then(decimal).ok_or(error)?;
        if parts.next().is_some() {
            return Err(error);
        }
        Ok(Self {
            provider: ProviderId(provider),
            slot,
            epoch,
        })
    }
}

/// Returns the little-endian number at byte `at`.
pub(crate) const fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    let mut index = 0;
    while index < 8 {
        word[index] = bytes[at + index];
        index += 1;
    }
    u64::from_le_bytes(word)
}

/// Stores a little-endian number at byte `at`.
pub(crate) const fn put_word<const N: usize>(mut bytes: [u8; N], at: usize, word: u64) -> [u8; N] {
    let word = word.to_le_bytes();
    let mut index = 0;
    while index < 8 {
        bytes[at + index] = word[index];
        index += 1;
    }
    bytes
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Object<'a> {
    Control(ProviderId),
    Segment(ProviderId, u64),
    Channel(&'a str),
    Connection(&'a str, u64),
}

impl Object<'_> {
    pub(crate) fn file(&self, prefix: &str) -> String {
        match self {
            Self::Control(id) => format!("{prefix}.{id}.ctl"),
            Self::Segment(id, serial) => format!("{prefix}.{id}.{serial:x}"),
            Self::Channel(name) => format!("{prefix}.{name}.channel"),
            Self::Connection(name, id) => format!("{prefix}.{name}.{id:016x}.connection"),
        }
    }
}

pub(crate) fn control_name(names: &Namespace, provider: ProviderId) -> Name {
    names.file(&Object::Control(provider).file(names.prefix()))
}

pub(crate) fn segment_name(names: &Namespace, provider: ProviderId, serial: u64) -> Name {
    names.file(&Object::Segment(provider, serial).file(names.prefix()))
}

/// Returns the name of a connection: that of a publisher's receiver, or that of a channel that has
/// ended and is still being read.
pub(crate) fn connection_name(names: &Namespace, channel: &str, id: u64) -> Name {
    names.file(&Object::Connection(channel, id).file(names.prefix()))
}

/// Returns a new name for a channel's object, by which sweeps find its receiver while another
/// channel may have the object's name. Returns `None` if the object is not a channel, or if the
/// system has no random numbers.
pub(crate) fn name_while_read(channel: &Name) -> Option<Name> {
    let names = channel.namespace();
    let file = channel.as_path().file_name()?.to_str()?;
    let Some((_, Object::Channel(channel))) = parse(file) else {
        return None;
    };
    let id = getrandom::u64().ok()?;
    Some(connection_name(&names, channel, id))
}

/// Parses the name of a file into its prefix and the object that it names.
pub(crate) fn parse(file: &str) -> Option<(&str, Object<'_>)> {
    let mut parts = file.split('.');
    let prefix = parts.next()?;
    let owner = parts.next()?;
    let last = parts.next()?;
    let object = match (last, parts.next()) {
        ("channel", None) => Object::Channel(channel(owner)?),
        ("ctl", None) => Object::Control(provider(owner)?),
        (serial, None) => Object::Segment(provider(owner)?, hexadecimal(serial, false)?),
        (id, Some("connection")) => Object::Connection(channel(owner)?, hexadecimal(id, true)?),
        _ => return None,
    };
    if !is_part(prefix) || parts.next().is_some() {
        return None;
    }
    Some((prefix, object))
}

fn channel(text: &str) -> Option<&str> {
    if !is_part(text) {
        return None;
    }
    Some(text)
}

fn provider(text: &str) -> Option<ProviderId> {
    let id = hexadecimal(text, true)?;
    Some(ProviderId(id))
}

/// Parses a number written as this crate writes it: in 16 digits, or in as few as possible.
fn hexadecimal(text: &str, is_whole: bool) -> Option<u64> {
    let number = u64::from_str_radix(text, 16).ok()?;
    let written = if is_whole {
        format!("{number:016x}")
    } else {
        format!("{number:x}")
    };
    if written != text {
        return None;
    }
    Some(number)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn peer_ids_round_trip(provider: u64, slot in 0u8..64, epoch: u64) {
            let peer = PeerId { provider: ProviderId(provider), slot, epoch };
            prop_assert_eq!(PeerId::from_bytes(peer.to_bytes()), peer);
            prop_assert_eq!(peer.to_string().parse(), Ok(peer));
            prop_assert_eq!(peer.provider.to_string().parse(), Ok(peer.provider));
        }
    }

    #[test]
    fn parses_names() {
        let id = ProviderId(0x0123_4567_89ab_cdef);
        let file = |name: Name| name.path().rsplit('/').next().unwrap().to_owned();
        let a = Namespace::in_shm("a");
        assert_eq!(
            parse(&file(control_name(&a, id))),
            Some(("a", Object::Control(id)))
        );
        assert_eq!(
            parse(&file(segment_name(&a, id, 0x2f))),
            Some(("a", Object::Segment(id, 0x2f)))
        );
        assert_eq!(parse("a.c.channel"), Some(("a", Object::Channel("c"))));
        assert_eq!(
            parse("a.c.00000000000000ff.connection"),
            Some(("a", Object::Connection("c", 0xff)))
        );
        for named in [
            Object::Control(id),
            Object::Segment(id, 0x2f),
            Object::Channel("c"),
            Object::Connection("c", 0xff),
        ] {
            assert_eq!(parse(&named.file("a")), Some(("a", named)));
        }
        let others = [
            "a.ctl",
            "a.0123456789abcdef",
            "a.0123456789abcdef.CTL",
            "a.0123456789ABCDEF.ctl",
            "a.123.ctl",
        ];
        let more = [
            "a.0123456789abcdef.+1",
            "a.0123456789abcdef.01",
            "a.0123456789abcdef.1.2",
            ".0123456789abcdef.1",
        ];
        let channels = [
            "a.channel",
            "a..channel",
            "a.c.connection",
            "a.c.ff.connection",
            "a.c d.channel",
            "a.c.channel.connection",
        ];
        for other in others.iter().chain(&more).chain(&channels) {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
