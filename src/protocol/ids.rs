//! Ids of providers and peers, and the names of objects.

#![forbid(unsafe_code)]

use crate::os::name::{is_part, Name, Namespace};
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
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        let id = u64::from_str_radix(text, 16)?;
        Ok(Self(id))
    }
}

impl fmt::Debug for ProviderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProviderId({self})")
    }
}

/// Identifies one connection of a client to a provider, so that the provider can grant it leases.
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
    /// [`ShmBytes::grant`](crate::ShmBytes::grant) checks that they name a live peer.
    pub fn from_bytes(bytes: [u8; Self::SIZE]) -> Self {
        Self {
            provider: ProviderId(word(&bytes, 0)),
            epoch: word(&bytes, 8),
            slot: bytes[16],
        }
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of provider {} (epoch {})",
            self.slot, self.provider, self.epoch
        )
    }
}

/// Returns the little-endian number at byte `at`.
pub(crate) fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
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
            prop_assert_eq!(peer.provider.to_string().parse(), Ok(peer.provider));
        }
    }

    #[test]
    fn parses_names() {
        let id = ProviderId(0x0123_4567_89ab_cdef);
        let file = |name: Name| {
            name.path()
                .to_str()
                .unwrap()
                .rsplit('/')
                .next()
                .unwrap()
                .to_owned()
        };
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
