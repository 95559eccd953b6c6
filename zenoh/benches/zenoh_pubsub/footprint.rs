//! How much shared memory a process has mapped, seen from outside of the allocator: by the kernel's
//! list of its mappings, and the blocks of the files behind them.
//!
//! | object | which it is | counted as |
//! |---|---|---|
//! | what connections use | mapped before the first message's memory was made | neither |
//! | zenoh's metadata: the readers of each message, the living processes | its name is a number of 16 bits | metadata |
//! | messages | all others | payload |
//!
//! zenoh keeps metadata for both backends, so it would only blur the comparison; the report shows it
//! in a row of its own.

use crate::news::{figures, Figures};
use shm_pool_support::procfs::{self, Mapping, OBJECTS};
use shm_pool_support::Fallible;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The unit in which the size of a file is reported, independent of the file system's blocks.
const BLOCK: u64 = 512;

/// This process's mappings of zenoh's objects, with a name or without.
fn mappings() -> Fallible<Vec<Mapping>> {
    Ok(procfs::shared_mappings()?
        .into_iter()
        .filter(|mapping| mapping.name.ends_with(".zenoh"))
        .collect())
}

/// The names of zenoh's objects that this process has mapped and that have a name still.
pub(crate) fn named() -> Fallible<BTreeSet<String>> {
    Ok(mappings()?
        .into_iter()
        .filter(|mapping| !mapping.is_removed)
        .map(|mapping| mapping.name)
        .collect())
}

/// Those of some objects that are still there.
pub(crate) fn left<'a>(names: impl Iterator<Item = &'a String>) -> BTreeSet<&'a String> {
    names
        .filter(|name| Path::new(OBJECTS).join(name).exists())
        .collect()
}

/// What this process has of what there are limits for: descriptors; mappings of zenoh's objects,
/// and the bytes of these, because zenoh locks all that it maps.
pub(crate) fn holdings(when: &str) -> Fallible<Figures> {
    let mappings = mappings()?;
    let locked: u64 = mappings.iter().map(|mapping| mapping.bytes).sum();
    let all = [
        ("descriptors", procfs::descriptors()?),
        ("mappings", mappings.len()),
        ("locked", locked as usize),
    ];
    Ok(all
        .map(|(what, number)| (format!("{when} {what}"), number as f64))
        .into())
}

/// The most that was seen, of objects that were not mapped at first.
pub(crate) struct Footprint {
    before: BTreeSet<String>,
    /// All objects that were ever seen mapped.
    pub(crate) objects: BTreeSet<String>,
    payload: u64,
    metadata: u64,
}

impl Footprint {
    /// What is mapped now is not counted.
    pub(crate) fn new() -> Fallible<Self> {
        let before = named()?;
        Ok(Self {
            objects: before.clone(),
            before,
            payload: 0,
            metadata: 0,
        })
    }

    /// Looks at what is mapped now.
    pub(crate) fn sample(&mut self) -> Fallible {
        let now = named()?;
        let (metadata, payload): (Vec<_>, Vec<_>) = now
            .difference(&self.before)
            .partition(|name| is_metadata(name));
        self.payload = self.payload.max(payload.into_iter().map(allocated).sum());
        self.metadata = self.metadata.max(metadata.into_iter().map(allocated).sum());
        self.objects.extend(now);
        Ok(())
    }

    /// How many objects of messages were ever seen mapped.
    pub(crate) fn segments(&self) -> usize {
        self.objects
            .difference(&self.before)
            .filter(|name| !is_metadata(name))
            .count()
    }

    pub(crate) fn figures(&self) -> Figures {
        figures([
            ("payload", self.payload as f64),
            ("metadata", self.metadata as f64),
        ])
    }
}

/// Is it zenoh's metadata, and no messages'?
fn is_metadata(name: &str) -> bool {
    name.trim_end_matches(".zenoh").parse::<u16>().is_ok()
}

/// Bytes that an object has memory for: none if it was removed since it was seen.
fn allocated(name: &String) -> u64 {
    fs::metadata(Path::new(OBJECTS).join(name)).map_or(0, |file| file.blocks() * BLOCK)
}
