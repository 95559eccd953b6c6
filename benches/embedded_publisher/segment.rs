//! A segment of shared memory for one message, created by the publisher and removed by the
//! subscriber.

use memmap2::{Mmap, MmapOptions};
use shm_pool_support::procfs::{self, OBJECTS};
use shm_pool_support::Fallible;
use std::fs::{self, File};

fn prefix(channel: &str) -> String {
    format!("navigation-{channel}-")
}

pub(crate) fn path(channel: &str, sequence: u64) -> String {
    format!("{OBJECTS}/{}{sequence}", prefix(channel))
}

/// Creates a segment with these bytes.
pub(crate) fn create(path: &str, bytes: &[u8]) -> Fallible {
    let file = File::create_new(path)?;
    file.set_len(bytes.len() as u64)?;
    // SAFETY: created above, of this length, and no other process knows its name yet.
    let mut map = unsafe { MmapOptions::new().len(bytes.len()).map_mut(&file) }?;
    map.copy_from_slice(bytes);
    Ok(())
}

/// Maps a segment, and removes its name.
pub(crate) fn take(path: &[u8]) -> Fallible<Mmap> {
    let path = std::str::from_utf8(path)?;
    // SAFETY: its creator unmapped it before sending the name, and no other process writes to it or
    // truncates it.
    let map = unsafe { Mmap::map(&File::open(path)?) }?;
    fs::remove_file(path)?;
    Ok(map)
}

/// Removes the segments that were never taken.
pub(crate) fn remove_all(channel: &str) {
    procfs::remove_objects(&prefix(channel));
}
