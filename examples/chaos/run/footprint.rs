//! What a process has open and mapped, and what is under /dev/shm.

#![forbid(unsafe_code)]

use std::fs;

/// What a process has open and mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Footprint {
    /// Descriptors.
    pub(crate) descriptors: u64,
    /// Mappings of shared memory with the run's prefix, removed objects included.
    pub(crate) shared: u64,
    /// All mappings: the heap's and the stacks' too.
    pub(crate) mappings: u64,
}

impl Footprint {
    /// This process's.
    pub(crate) fn take(prefix: &str) -> Self {
        let maps = fs::read_to_string("/proc/self/maps").expect("/proc");
        let object = format!("/dev/shm/{prefix}.");
        Self {
            // One of them is the directory that is being read, every time.
            descriptors: fs::read_dir("/proc/self/fd").expect("/proc").count() as u64,
            shared: maps.lines().filter(|line| line.contains(&object)).count() as u64,
            mappings: maps.lines().count() as u64,
        }
    }
}

/// The names of the objects with this prefix.
pub(crate) fn objects(prefix: &str) -> Vec<String> {
    let start = format!("{prefix}.");
    let entries = fs::read_dir("/dev/shm").expect("a directory /dev/shm");
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| name.starts_with(&start)).collect()
}

/// Removes them, after a run that has failed.
pub(crate) fn remove_objects(prefix: &str) {
    for name in objects(prefix) {
        let _ = fs::remove_file(format!("/dev/shm/{name}"));
    }
}
