//! Parses the names of objects. The inverse of `control_name`, `segment_name`, and the names in
//! `channel::layout`.

#![forbid(unsafe_code)]

use crate::os::name::is_part;
use crate::protocol::ids::ProviderId;

/// An object, parsed from its name. Parts of a name contain no dots, so names are unambiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Object<'a> {
    /// `{prefix}.{provider}.ctl`
    Control(ProviderId),
    /// `{prefix}.{provider}.{serial}`
    Segment(ProviderId, u64),
    /// `{prefix}.{channel}.channel`
    Channel(&'a str),
    /// `{prefix}.{channel}.{id}.branch`
    Branch(&'a str, u64),
}

impl Object<'_> {
    /// Returns the name of its file, the input of [`parse`].
    pub(crate) fn file(&self, prefix: &str) -> String {
        match self {
            Self::Control(id) => format!("{prefix}.{id}.ctl"),
            Self::Segment(id, serial) => format!("{prefix}.{id}.{serial:x}"),
            Self::Channel(name) => format!("{prefix}.{name}.channel"),
            Self::Branch(name, id) => format!("{prefix}.{name}.{id:016x}.branch"),
        }
    }
}

/// Returns the prefix of a file's name and the object that it names, or `None` for any other file.
pub(crate) fn parse(file: &str) -> Option<(&str, Object<'_>)> {
    let mut parts = file.split('.');
    let (prefix, owner, last) = (parts.next()?, parts.next()?, parts.next()?);
    let object = match (last, parts.next()) {
        ("channel", None) => Object::Channel(channel(owner)?),
        ("ctl", None) => Object::Control(provider(owner)?),
        (serial, None) => Object::Segment(provider(owner)?, hexadecimal(serial, false)?),
        (id, Some("branch")) => Object::Branch(channel(owner)?, hexadecimal(id, true)?),
        _ => return None,
    };
    (is_part(prefix) && parts.next().is_none()).then_some((prefix, object))
}

fn channel(text: &str) -> Option<&str> {
    is_part(text).then_some(text)
}

fn provider(text: &str) -> Option<ProviderId> {
    hexadecimal(text, true).map(ProviderId)
}

/// Parses a number written as this crate writes it: in 16 digits, or in as few as possible.
fn hexadecimal(text: &str, is_whole: bool) -> Option<u64> {
    let number = u64::from_str_radix(text, 16).ok()?;
    let written = if is_whole { format!("{number:016x}") } else { format!("{number:x}") };
    (written == text).then_some(number)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::os::name::{Name, Namespace};
    use crate::protocol::control::{control_name, segment_name};

    #[test]
    fn parses_names() {
        let id = ProviderId(0x0123_4567_89ab_cdef);
        let file = |name: Name| name.path().rsplit('/').next().unwrap().to_owned();
        let a = Namespace::in_shm("a");
        assert_eq!(parse(&file(control_name(&a, id))), Some(("a", Object::Control(id))));
        assert_eq!(parse(&file(segment_name(&a, id, 0x2f))), Some(("a", Object::Segment(id, 0x2f))));
        assert_eq!(parse("a.c.channel"), Some(("a", Object::Channel("c"))));
        assert_eq!(parse("a.c.00000000000000ff.branch"), Some(("a", Object::Branch("c", 0xff))));
        for named in [Object::Control(id), Object::Segment(id, 0x2f), Object::Channel("c"), Object::Branch("c", 0xff)] {
            assert_eq!(parse(&named.file("a")), Some(("a", named)));
        }
        let others = ["a.ctl", "a.0123456789abcdef", "a.0123456789abcdef.CTL", "a.0123456789ABCDEF.ctl", "a.123.ctl"];
        let more = ["a.0123456789abcdef.+1", "a.0123456789abcdef.01", "a.0123456789abcdef.1.2", ".0123456789abcdef.1"];
        let channels =
            ["a.channel", "a..channel", "a.c.branch", "a.c.ff.branch", "a.c d.channel", "a.c.channel.branch"];
        for other in others.iter().chain(&more).chain(&channels) {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
