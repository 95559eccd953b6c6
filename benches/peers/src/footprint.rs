//! What a peer's messages take of the machine's memory, as the kernel sees it.

use crate::source::Source;
use crate::workload::{Mixed, MIXTURE};
use shm_pool_support::procfs::{self, OBJECTS};
use std::collections::BTreeSet;
use std::ops::Sub;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{fs, process};

/// Messages between two looks.
const PIECE: usize = 8;

const PASSES: usize = 2;

/// One peer's, or why there is none.
pub(crate) struct Footprint {
    pub(crate) name: &'static str,
    pub(crate) memory: Result<Memory, String>,
    /// By the peer's own account.
    pub(crate) account: String,
}

/// The most that was seen at a time, in bytes, of what came into being since the peer was built.
#[derive(Clone, Copy, Default)]
pub(crate) struct Memory {
    /// Length of the shared objects that are mapped.
    pub(crate) mapped: u64,
    /// What the kernel has given them pages for.
    pub(crate) resident: u64,
    /// Private memory: malloc's, and what a peer needs besides.
    pub(crate) private: u64,
}

impl Memory {
    fn now() -> Self {
        let private = procfs::memory(process::id(), "RssAnon").unwrap_or(0);
        let mut memory = Self { private, ..Self::default() };
        let names: BTreeSet<_> = procfs::shared_mappings().into_iter().flatten().map(|mapping| mapping.name).collect();
        // An object that somebody has removed meanwhile has no name to ask by, and is left out.
        for object in names.iter().filter_map(|name| fs::metadata(Path::new(OBJECTS).join(name)).ok()) {
            memory.mapped += object.size();
            memory.resident += object.blocks() * 512;
        }
        memory
    }

    fn max(self, other: Self) -> Self {
        Self {
            mapped: self.mapped.max(other.mapped),
            resident: self.resident.max(other.resident),
            private: self.private.max(other.private),
        }
    }
}

impl Sub for Memory {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            mapped: self.mapped.saturating_sub(before.mapped),
            resident: self.resident.saturating_sub(before.resident),
            private: self.private.saturating_sub(before.private),
        }
    }
}

/// Builds the peer, sends the mixture and looks at the memory again and again; no time is taken.
pub(crate) fn footprint<S: Source>(
    name: &'static str,
    build: impl FnOnce() -> Result<S, String>,
    is_thorough: bool,
) -> Footprint {
    let before = Memory::now();
    let mut mixed = match build() {
        Ok(source) => Mixed::new(source, is_thorough),
        Err(reason) => return Footprint { name, memory: Err(reason), account: String::new() },
    };
    let mut most = before;
    for _ in 0..PASSES * MIXTURE / PIECE {
        if let Err(reason) = mixed.run(PIECE as u64) {
            return Footprint { name, memory: Err(reason), account: mixed.account() };
        }
        most = most.max(Memory::now());
    }
    Footprint { name, memory: Ok(most - before), account: mixed.account() }
}
