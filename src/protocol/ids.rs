//! Ids of providers and peers, and the names of objects.

#![forbid(unsafe_code)]

use crate::os::name::{is_prefix, Name, Namespace};
use std::array::TryFromSliceError;
use std::borrow::Cow;
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

/// Identifies a provider: 64 random bits, which are part of the names of its objects. Converts to and
/// from `u64`, for a peer that connects before the first message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProviderId(pub(crate) u64);

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
        Self(id)
    }
}

impl From<ProviderId> for u64 {
    fn from(id: ProviderId) -> Self {
        id.0
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

/// Any number is accepted.
impl From<u64> for ReceiverId {
    fn from(id: u64) -> Self {
        Self(id)
    }
}

impl From<ReceiverId> for u64 {
    fn from(id: ReceiverId) -> Self {
        id.0
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
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

impl fmt::Debug for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PeerId({self})")
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
        let parts: Vec<&str> = text.split('-').collect();
        let [provider, slot, epoch] = parts[..] else {
            return Err(error);
        };
        let (Some(provider), Some(slot), Some(epoch)) =
            (hex_digits(provider), decimal(slot), decimal(epoch))
        else {
            return Err(error);
        };
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

/// The longest name of a file on Linux's file systems, in bytes.
const MAX_FILE_NAME: usize = 255;

/// The bytes of a connection's file name besides its prefix and its channel's name. No other object
/// of a channel has more.
const BESIDE_CHANNEL: usize = "..0123456789abcdef.connection".len();

/// Returns how many bytes a channel's name may take in the names of its files, escaped.
pub(crate) fn max_channel_bytes(prefix: &str) -> usize {
    MAX_FILE_NAME - BESIDE_CHANNEL - prefix.len()
}

/// What a file is, by its name. See `docs/format.md` for the grammar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Object<'a> {
    Control(ProviderId),
    Segment(ProviderId, u64),
    /// With the channel's name, as the user gave it.
    Channel(Cow<'a, str>),
    Connection(Cow<'a, str>, u64),
}

impl Object<'_> {
    pub(crate) fn channel(name: &str) -> Object<'_> {
        Object::Channel(Cow::Borrowed(name))
    }

    pub(crate) fn connection(channel: &str, id: u64) -> Object<'_> {
        Object::Connection(Cow::Borrowed(channel), id)
    }

    pub(crate) fn file(&self, prefix: &str) -> String {
        match self {
            Self::Control(id) => format!("{prefix}.{id}.ctl"),
            Self::Segment(id, serial) => format!("{prefix}.{id}.{serial:x}"),
            Self::Channel(name) => format!("{prefix}.{}.channel", escaped(name)),
            Self::Connection(name, id) => {
                format!("{prefix}.{}.{id:016x}.connection", escaped(name))
            }
        }
    }
}

/// Returns `true` if this byte of a channel's name stands for itself in the name of a file.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

/// Returns a channel's name as it is part of the names of files: without slashes and dots.
pub(crate) fn escaped(name: &str) -> Cow<'_, str> {
    if name.bytes().all(is_plain) {
        return Cow::Borrowed(name);
    }
    let mut text = String::with_capacity(3 * name.len());
    for byte in name.bytes() {
        if is_plain(byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    Cow::Owned(text)
}

/// The inverse of [`escaped`]. Returns `None` for what `escaped` does not return, so that each
/// channel has one file name, and for a name that no channel may have.
fn unescaped(text: &str) -> Option<Cow<'_, str>> {
    if text.bytes().all(is_plain) {
        return is_channel(text).then_some(Cow::Borrowed(text));
    }
    let mut name = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        if byte != b'%' {
            name.push(byte);
            rest = after;
            continue;
        }
        let digits = std::str::from_utf8(after.get(..2)?).ok()?;
        name.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &after[2..];
    }
    let name = String::from_utf8(name).ok()?;
    if !is_channel(&name) || escaped(&name) != text {
        return None;
    }
    Some(Cow::Owned(name))
}

/// Returns `true` if a channel may have this name, if it fits the name of a file.
pub(crate) fn is_channel(name: &str) -> bool {
    // C has no strings with a NUL.
    !name.is_empty() && !name.contains('\0')
}

pub(crate) fn control_name(names: &Namespace, provider: ProviderId) -> Name {
    names.file(&Object::Control(provider).file(names.prefix()))
}

pub(crate) fn segment_name(names: &Namespace, provider: ProviderId, serial: u64) -> Name {
    names.file(&Object::Segment(provider, serial).file(names.prefix()))
}

/// Returns the name of a pair's object, or of a publisher's rendezvous.
pub(crate) fn channel_name(names: &Namespace, channel: &str) -> Name {
    names.file(&Object::channel(channel).file(names.prefix()))
}

/// Returns the name of a connection: that of a publisher's receiver, or that of a channel that has
/// ended and is still being read.
pub(crate) fn connection_name(names: &Namespace, channel: &str, id: u64) -> Name {
    names.file(&Object::connection(channel, id).file(names.prefix()))
}

/// Returns the namespace of an object; `None` if its file has no name of this crate.
pub(crate) fn namespace(object: &Name) -> Option<Namespace> {
    let file = object.as_path().file_name()?.to_str()?;
    let (prefix, _) = parse(file)?;
    let names = Namespace::new(prefix).ok()?;
    names.in_directory(object.directory()).ok()
}

/// Returns a new name for a channel's object, by which sweeps find its receiver while another
/// channel may have the object's name. Returns `None` if the object is not a channel, or if the
/// system has no random numbers.
pub(crate) fn name_while_read(channel: &Name) -> Option<Name> {
    let file = channel.as_path().file_name()?.to_str()?;
    let Some((prefix, Object::Channel(name))) = parse(file) else {
        return None;
    };
    let id = getrandom::u64().ok()?;
    let file = Object::Connection(name, id).file(prefix);
    Some(Name::in_directory(channel.directory(), &file))
}

/// Parses the name of a file into its prefix and the object that it names.
///
/// From the right: the last part says what the object is, and so how many parts it has. None of
/// them contains a dot. The rest is the prefix, which may have dots.
pub(crate) fn parse(file: &str) -> Option<(&str, Object<'_>)> {
    let (rest, last) = file.rsplit_once('.')?;
    let (rest, before) = rest.rsplit_once('.')?;
    let (prefix, object) = match last {
        "channel" => (rest, Object::Channel(unescaped(before)?)),
        "ctl" => (rest, Object::Control(provider(before)?)),
        "connection" => {
            let (prefix, channel) = rest.rsplit_once('.')?;
            let id = hexadecimal(before, true)?;
            (prefix, Object::Connection(unescaped(channel)?, id))
        }
        serial => {
            let serial = hexadecimal(serial, false)?;
            (rest, Object::Segment(provider(before)?, serial))
        }
    };
    if !is_prefix(prefix) {
        return None;
    }
    Some((prefix, object))
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
    use crate::error::MAX_PREFIX;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn file_names_round_trip(
            prefix in "[a-c0-9_-]{1,3}(\\.(channel|connection|ctl|[0-9a-f]{16}|[a-c]{1,3})){0,3}",
            name in "[^\0]{1,20}",
            id: u64,
        ) {
            let objects = [
                Object::Control(ProviderId(id)),
                Object::Segment(ProviderId(id), id >> 40),
                Object::channel(&name),
                Object::connection(&name, id),
            ];
            for object in objects {
                let file = object.file(&prefix);
                prop_assert_eq!(parse(&file), Some((&*prefix, object)));
            }
        }

        /// What can be parsed is what would be written.
        #[test]
        fn files_have_one_name(file in "([a-c0%2EF.]|\\.channel|\\.connection|0123456789abcdef){1,12}") {
            if let Some((prefix, object)) = parse(&file) {
                prop_assert_eq!(object.file(prefix), file);
            }
        }

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
        assert_eq!(parse("a.c.channel"), Some(("a", Object::channel("c"))));
        assert_eq!(
            parse("a.c.00000000000000ff.connection"),
            Some(("a", Object::connection("c", 0xff)))
        );
        for named in [
            Object::Control(id),
            Object::Segment(id, 0x2f),
            Object::channel("c"),
            Object::connection("c", 0xff),
        ] {
            let file = named.file("a");
            assert_eq!(parse(&file), Some(("a", named)));
        }
        let others = [
            "a.ctl",
            "a.0123456789abcdef",
            "a.0123456789abcdef.CTL",
            "a.0123456789ABCDEF.ctl",
            "a.123.ctl",
            "a.0123456789abcdef.+1",
            "a.0123456789abcdef.01",
            "a.0123456789abcdef.",
            "a.0123456789abcdef.1.2",
            ".0123456789abcdef.1",
            "0123456789abcdef.1",
            "a.channel",
            "a..channel",
            ".a.channel",
            "..a.channel",
            "a..b.channel",
            ".a.b.channel",
            "a.b..c.channel",
            "a b.c.channel",
            "a%2Eb.c.channel",
            "a.c.connection",
            "a.c.ff.connection",
            "a.c.00000000000000FF.connection",
            "a.00000000000000ff.connection",
            "a.c d.channel",
            "a.c.channel.connection",
        ];
        for other in others {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    /// A dot belongs to the prefix: none of the other parts has one.
    #[test]
    fn dotted_prefixes() {
        let id = ProviderId(0x0123_4567_89ab_cdef);
        let tricky = [
            "snap.robot",
            "a.channel",
            "a.connection",
            "a.ctl",
            "a.0123456789abcdef",
            "a.c.0123456789abcdef",
            "0123456789abcdef.0123456789abcdef",
            "channel.channel",
            "1.2.3",
        ];
        for prefix in tricky {
            for name in ["c", "channel", "0123456789abcdef", "a.b", "/", "..", "%2E"] {
                let objects = [
                    Object::Control(id),
                    Object::Segment(id, 0),
                    Object::Segment(id, 0xc),
                    Object::channel(name),
                    Object::connection(name, 0x0123_4567_89ab_cdef),
                ];
                for object in objects {
                    let file = object.file(prefix);
                    assert_eq!(parse(&file), Some((prefix, object)), "{file}");
                }
            }
        }
        // With the prefix `a`, this would be a segment; it is one of another prefix.
        let file = "a.0123456789abcdef.fedcba9876543210.1";
        assert_eq!(parse(file).unwrap().0, "a.0123456789abcdef");
    }

    #[test]
    fn escaped_names() {
        let pairs = [
            ("front_left-2", "front_left-2"),
            ("/front/image_raw", "%2Ffront%2Fimage_raw"),
            ("robot/*/pose", "robot%2F%2A%2Fpose"),
            ("a.b", "a%2Eb"),
            ("two words", "two%20words"),
            ("100%", "100%25"),
            ("%41", "%2541"),
            ("Z\u{fc}rich", "Z%C3%BCrich"),
            ("\n", "%0A"),
        ];
        for (name, file) in pairs {
            assert_eq!(escaped(name), file);
            assert_eq!(unescaped(file).as_deref(), Some(name));
        }
        // Each name has one form.
        let others = [
            "", "%", "%2", "%2f", "%41", "%5F", "%+1", "%00", "%FF", "%C3", "a/b", "a.b", "a b",
            "%2F%2", "\u{fc}", "%\u{fc}1",
        ];
        for other in others {
            assert_eq!(unescaped(other), None, "{other}");
        }
    }

    #[test]
    fn file_names_fit() {
        let prefix = "p".repeat(MAX_PREFIX);
        assert_eq!(max_channel_bytes(&prefix), 166);
        let name = "c".repeat(166);
        let objects = [Object::channel(&name), Object::connection(&name, u64::MAX)];
        let longest = objects.map(|object| object.file(&prefix).len());
        assert_eq!(longest, [60 + 1 + 166 + 8, MAX_FILE_NAME]);
        let segment = Object::Segment(ProviderId(u64::MAX), u64::MAX);
        assert!(segment.file(&prefix).len() < MAX_FILE_NAME);
    }
}
