//! How much shared memory a process has mapped, measured outside of the allocator: from the
//! kernel's list of the process's mappings, and from the blocks of the files behind them.
//!
//! | object | how it is recognized | counted as |
//! |---|---|---|
//! | buffers of connections | mapped before the first message's memory was made | neither |
//! | zenoh's metadata: messages' readers, living processes | named by a 16-bit number | metadata |
//! | messages | all others | payload |
//!
//! zenoh keeps metadata for all kinds of memory, so it would only blur the comparison. The report
//! shows it in a row of its own.

use crate::news::{figures, Figures};
use shm_pool_support::procfs::{self, Mapping, OBJECTS};
use shm_pool_support::Fallible;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The unit in which the size of a file is reported, independent of the file system's blocks.
const BLOCK: u64 = 512;

/// Returns this process's mappings of zenoh's objects, with a name or without.
fn mappings() -> Fallible<Vec<Mapping>> {
    let mut mappings = procfs::shared_mappings()?;
    mappings.retain(|mapping| mapping.name.ends_with(".zenoh"));
    Ok(mappings)
}

/// Returns the names of zenoh's objects that this process has mapped and that still have a name.
pub(crate) fn named() -> Fallible<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for mapping in mappings()? {
        if !mapping.is_removed {
            names.insert(mapping.name);
        }
    }
    Ok(names)
}

/// Returns `true` if there is an object of this name.
pub(crate) fn exists(name: &str) -> bool {
    Path::new(OBJECTS).join(name).exists()
}

/// Returns how much this process uses of limited resources: descriptors, mappings of zenoh's
/// objects, and the bytes of these mappings, because zenoh locks all that it maps.
pub(crate) fn holdings(when: &str) -> Fallible<Figures> {
    let mappings = mappings()?;
    let mut locked = 0;
    for mapping in &mappings {
        locked += mapping.bytes;
    }
    let descriptors = procfs::descriptors()?;

    let mut holdings = Figures::new();
    holdings.insert(format!("{when} descriptors"), descriptors as f64);
    holdings.insert(format!("{when} mappings"), mappings.len() as f64);
    holdings.insert(format!("{when} locked"), locked as f64);
    Ok(holdings)
}

/// The peaks of mapped memory, without the objects that were mapped at first.
pub(crate) struct Footprint {
    before: BTreeSet<String>,
    /// All objects that were ever seen mapped.
    pub(crate) objects: BTreeSet<String>,
    payload: u64,
    metadata: u64,
}

impl Footprint {
    /// Objects that are mapped now are never counted.
    pub(crate) fn new() -> Fallible<Self> {
        let before = named()?;
        Ok(Self {
            objects: before.clone(),
            before,
            payload: 0,
            metadata: 0,
        })
    }

    /// Measures what is mapped now.
    pub(crate) fn sample(&mut self) -> Fallible {
        let now = named()?;
        let mut payload = 0;
        let mut metadata = 0;
        for name in now.difference(&self.before) {
            if is_metadata(name) {
                metadata += allocated(name);
            } else {
                payload += allocated(name);
            }
        }
        self.payload = self.payload.max(payload);
        self.metadata = self.metadata.max(metadata);
        self.objects.extend(now);
        Ok(())
    }

    /// Returns how many objects of messages were ever seen mapped.
    pub(crate) fn segments(&self) -> usize {
        let counted = self.objects.difference(&self.before);
        counted.filter(|name| !is_metadata(name)).count()
    }

    pub(crate) fn figures(&self) -> Figures {
        figures([
            ("payload", self.payload as f64),
            ("metadata", self.metadata as f64),
        ])
    }
}

/// Returns `true` for an object of zenoh's metadata, and `false` for one of messages.
fn is_metadata(name: &str) -> bool {
    name.trim_end_matches(".zenoh").parse::<u16>().is_ok()
}

/// Returns how many bytes of memory an object has: 0 if it was removed since it was seen.
fn allocated(name: &str) -> u64 {
    match fs::metadata(Path::new(OBJECTS).join(name)) {
        Ok(file) => file.blocks() * BLOCK,
        Err(_) => 0,
    }
}
