//! `docs/format.md` agrees with the code.

use crate::channel::{format as channel, OnFull};
use crate::os::name::{Name, Namespace};
use crate::protocol::control;
use crate::protocol::descriptor::Descriptor;
use crate::protocol::ids::{control_name, segment_name, ProviderId};
use crate::protocol::record;

const TEXT: &str = include_str!("../docs/format.md");

const ID: ProviderId = ProviderId(0x0123_4567_89ab_cdef);

/// The text under a heading.
fn section(heading: &str) -> &'static str {
    let (_, rest) = TEXT
        .split_once(&format!("\n## {heading}"))
        .unwrap_or_else(|| panic!("no section {heading}"));
    rest.split("\n## ").next().unwrap()
}

fn assert_says(heading: &str, text: &str) {
    assert!(
        section(heading).contains(text),
        "{heading} does not say {text:?}"
    );
}

/// Checks the offsets, on which tools in other languages depend.
#[test]
fn documented_fields() {
    let tables = [
        ("The control object", control::OFFSETS.to_vec()),
        ("A record", record::OFFSETS.to_vec()),
        ("The objects of a channel", channel::offsets()),
    ];
    for (heading, offsets) in tables {
        for (field, offset) in &offsets {
            assert_says(heading, &format!("\n| {offset} | `{field}` |"));
        }
        let rows = section(heading).matches("| `").count();
        assert_eq!(
            rows,
            offsets.len(),
            "{heading} has a row too many, or one is not checked"
        );
    }
}

/// The same, for the cache lines after the first.
#[test]
fn documented_bells_and_counts() {
    for (field, offset) in channel::HEADER {
        assert_says("The objects of a channel", &format!(" at {offset}"));
        assert!(offset % 64 == 0, "{field} shares a line");
    }
    let (_, returns_read) = channel::HEADER[2];
    for (_, offset) in channel::RETURNS_READ {
        assert_says(
            "The objects of a channel",
            &format!(" at {}", returns_read + offset),
        );
    }
    for (field, offset) in channel::MISSED {
        assert_says(
            "The objects of a channel",
            &format!("\n| {offset} `{field}` |"),
        );
    }
}

#[test]
fn documented_versions_and_names() {
    assert_says(
        "The control object",
        &format!(", version {}\n", control::VERSION),
    );
    assert_says(
        "The objects of a channel",
        &format!(", version {}\n", channel::VERSION),
    );
    let names = Namespace::in_shm("shm_pool");
    let file = |name: Name| {
        let path = name.path();
        path.file_name().unwrap().to_str().unwrap().to_owned()
    };
    let all = [control_name(&names, ID), segment_name(&names, ID, 0x2f)]
        .into_iter()
        .chain(channel::names(&names));
    all.for_each(|name| assert_says("Names", &format!("\n| `{}` |", file(name))));
    for (rule, text) in [
        (OnFull::Block, "block"),
        (OnFull::DropNewest, "drop newest"),
        (OnFull::DropOldest, "drop oldest"),
    ] {
        assert_says(
            "The objects of a channel",
            &format!("{} {text}", channel::number(rule)),
        );
    }
}

#[test]
fn documented_descriptor() {
    let descriptor = Descriptor {
        provider: ID,
        record: 7,
        generation: 0x1122_3344_5566_7788,
        len: 1000,
        granted: Some(2),
    };
    let bytes = descriptor.to_bytes().map(|byte| format!("{byte:02x}"));
    let [first, second] = [&bytes[..16], &bytes[16..]].map(|line| line.join(" "));
    assert_says("A descriptor", &format!("{first}\n{second}\n"));
}
