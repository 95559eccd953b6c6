//! The memory that a peer's messages take of the machine, as the kernel sees it.

use crate::source::Made;
use crate::workload::{Mixture, MIXTURE};
use shm_pool_support::procfs::{self, OBJECTS};
use std::array;
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{fs, process};

/// Messages between two samples.
const PIECE: usize = 8;

const PASSES: usize = 2;

/// In bytes: the length of the shared objects that are mapped, the pages that the kernel has given
/// them, and private memory, which is malloc's and the peer's other needs.
pub(crate) type Memory = [u64; 3];

fn memory() -> Memory {
    let mut names = BTreeSet::new();
    for mapping in procfs::shared_mappings().unwrap_or_default() {
        names.insert(mapping.name);
    }
    let mut mapped = 0;
    let mut resident = 0;
    for name in names {
        // An object that was removed meanwhile has no name to query, and is left out.
        if let Ok(file) = fs::metadata(Path::new(OBJECTS).join(name)) {
            mapped += file.size();
            resident += file.blocks() * 512;
        }
    }
    let private = procfs::memory(process::id(), "RssAnon").unwrap_or(0);
    [mapped, resident, private]
}

/// Builds the peer, sends the mixture and samples the memory repeatedly, without timing. Returns
/// the largest growth seen since the peer was built, and the peer's own account.
pub(crate) fn footprint(build: impl FnOnce() -> Made<Box<dyn Mixture>>) -> Made<(Memory, String)> {
    let before = memory();
    let mut mixture = build()?;
    let mut most = before;
    for _ in 0..PASSES * MIXTURE / PIECE {
        mixture.run(PIECE as u64)?;
        let now = memory();
        most = array::from_fn(|at| most[at].max(now[at]));
    }
    Ok((
        array::from_fn(|at| most[at] - before[at]),
        mixture.account(),
    ))
}
