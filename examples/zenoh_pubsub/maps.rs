//! The kernel's list of what this process has mapped: zenoh's objects in it.

use crate::Result;
use std::collections::BTreeSet;

/// Where they are.
pub(crate) const OBJECTS: &str = "/dev/shm";

/// What their names end with.
pub(crate) const SUFFIX: &str = ".zenoh";

/// What the kernel adds to an object that has no name any more.
const REMOVED: &str = " (deleted)";

/// One mapping of an object.
pub(crate) struct Mapping {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// Whether the name is gone, and only the memory there.
    removed: bool,
}

impl Mapping {
    /// From a line of the list; `None` if it is about something else.
    fn parse(line: &str) -> Option<Self> {
        let (range, rest) = line.split_once(' ')?;
        let (_, path) = rest.split_once(OBJECTS)?;
        let name = path.strip_prefix('/')?;
        let removed = name.strip_suffix(REMOVED);
        let name = removed.unwrap_or(name);
        let (start, end) = range.split_once('-')?;
        let address = |text| u64::from_str_radix(text, 16).ok();
        let bytes = address(end)? - address(start)?;
        name.ends_with(SUFFIX).then(|| Self { name: name.to_owned(), bytes, removed: removed.is_some() })
    }
}

/// All mappings of zenoh's objects, with a name or without.
pub(crate) fn mappings() -> Result<Vec<Mapping>> {
    let list = std::fs::read_to_string("/proc/self/maps").map_err(|error| format!("no list of mappings: {error}"))?;
    Ok(list.lines().filter_map(Mapping::parse).collect())
}

/// The names of zenoh's objects that this process has mapped and that have a name still.
pub(crate) fn named() -> Result<BTreeSet<String>> {
    Ok(mappings()?.into_iter().filter(|mapping| !mapping.removed).map(|mapping| mapping.name).collect())
}
