//! What a subscriber has of what its process has limits for: descriptors, mappings, locked memory.

use crate::{maps, Result};
use serde_json::{json, Value};

/// As it is at some moment.
pub(crate) struct Holdings {
    descriptors: usize,
    /// Mappings of zenoh's objects.
    mappings: usize,
    /// Bytes of these. zenoh locks all that it maps.
    locked: u64,
}

impl Holdings {
    /// As it is now.
    pub(crate) fn now() -> Result<Self> {
        let descriptors =
            std::fs::read_dir("/proc/self/fd").map_err(|error| format!("no list of descriptors: {error}"))?;
        // The list is read through a descriptor, too.
        let descriptors = descriptors.count().saturating_sub(1);
        let mappings = maps::mappings()?;
        let locked = mappings.iter().map(|mapping| mapping.bytes).sum();
        Ok(Self { descriptors, mappings: mappings.len(), locked })
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({ "descriptors": self.descriptors, "mappings": self.mappings, "locked": self.locked })
    }
}
