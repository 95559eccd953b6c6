//! How much shared memory a process has mapped, seen from outside of the allocator: by the kernel's
//! list of its mappings, and the blocks of the files behind them.
//!
//! | object | which it is | counted as |
//! |---|---|---|
//! | what connections use | mapped before the first message's memory was made | neither |
//! | zenoh's metadata: who holds which message, who is alive | its name is a number of 16 bits | metadata |
//! | messages | all others | payload |
//!
//! zenoh keeps metadata for both backends, so it would only blur the comparison; the report has it
//! in a row of its own.

use serde_json::{json, Value};
use shm_pool_support::procfs::{self, Mapping, OBJECTS};
use shm_pool_support::Fallible;
use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// This process's mappings of zenoh's objects, with a name or without.
fn mappings() -> Fallible<Vec<Mapping>> {
    Ok(procfs::shared_mappings()?.into_iter().filter(|mapping| mapping.name.ends_with(".zenoh")).collect())
}

/// The names of zenoh's objects that this process has mapped and that have a name still.
pub(crate) fn named() -> Fallible<BTreeSet<String>> {
    Ok(mappings()?.into_iter().filter(|mapping| !mapping.is_removed).map(|mapping| mapping.name).collect())
}

/// What files report their size in, whatever the file system's own blocks are.
const BLOCK: u64 = 512;

/// The most that was seen, of objects that were not mapped at first.
pub(crate) struct Footprint {
    before: BTreeSet<String>,
    seen: BTreeSet<String>,
    pub(crate) payload: u64,
    pub(crate) metadata: u64,
}

impl Footprint {
    /// What is mapped now is not counted.
    pub(crate) fn new() -> Fallible<Self> {
        let before = named()?;
        Ok(Self { seen: before.clone(), before, payload: 0, metadata: 0 })
    }

    /// Looks at what is mapped now.
    pub(crate) fn sample(&mut self) -> Fallible {
        let (mut payload, mut metadata) = (0, 0);
        let now = named()?;
        for name in now.difference(&self.before) {
            let bytes = match std::fs::metadata(Path::new(OBJECTS).join(name)) {
                Ok(file) => file.blocks() * BLOCK,
                // Removed since.
                Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
                Err(error) => return Err(format!("cannot look at {OBJECTS}/{name}: {error}").into()),
            };
            if is_metadata(name) {
                metadata += bytes;
            } else {
                payload += bytes;
            }
        }
        self.payload = self.payload.max(payload);
        self.metadata = self.metadata.max(metadata);
        self.seen.extend(now);
        Ok(())
    }

    /// How many objects of messages were ever seen mapped.
    pub(crate) fn segments(&self) -> usize {
        self.seen.difference(&self.before).filter(|name| !is_metadata(name)).count()
    }

    /// The names of all objects that were ever seen mapped.
    pub(crate) fn objects(&self) -> &BTreeSet<String> {
        &self.seen
    }
}

/// Is it zenoh's metadata, and no messages'?
fn is_metadata(name: &str) -> bool {
    name.trim_end_matches(".zenoh").parse::<u16>().is_ok()
}

/// Those of `names` that are still there.
pub(crate) fn left(names: &BTreeSet<String>) -> impl Iterator<Item = &String> {
    names.iter().filter(|name| Path::new(OBJECTS).join(name).exists())
}

/// What a subscriber has of what its process has limits for: descriptors, mappings, locked memory.
pub(crate) struct Holdings {
    descriptors: usize,
    /// Mappings of zenoh's objects.
    mappings: usize,
    /// Bytes of these. zenoh locks all that it maps.
    locked: u64,
}

impl Holdings {
    /// As it is now.
    pub(crate) fn now() -> Fallible<Self> {
        let (descriptors, mappings) = (procfs::descriptors()?, mappings()?);
        let locked = mappings.iter().map(|mapping| mapping.bytes).sum();
        Ok(Self { descriptors, mappings: mappings.len(), locked })
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({ "descriptors": self.descriptors, "mappings": self.mappings, "locked": self.locked })
    }
}
