//! What the kernel reports about a process: its memory, descriptors and mappings; and the objects
//! under /dev/shm.

use crate::Fallible;
use std::fs;
use std::io;

/// The directory of shared objects.
pub const OBJECTS: &str = "/dev/shm";

/// Returns a number of `/proc/PROCESS/status`, in bytes; `name` has no colon.
pub fn memory(process: u32, name: &str) -> Fallible<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    for line in status.lines() {
        if let Some((field, value)) = line.split_once(':') {
            if field == name {
                return bytes(value);
            }
        }
    }
    // A process that has exited has a status, but no memory.
    Err(format!("no {name}: has the process ended?").into())
}

/// Parses a value in kilobytes, such as `1234 kB`.
fn bytes(value: &str) -> Fallible<u64> {
    let Some(number) = value.trim().strip_suffix(" kB") else {
        return Err(format!("{value:?} is no number of kilobytes").into());
    };
    Ok(number.parse::<u64>()? << 10)
}

/// Returns the number of open descriptors of this process.
pub fn descriptors() -> io::Result<usize> {
    // One of the entries is the directory that is being read, every time.
    Ok(fs::read_dir("/proc/self/fd")?.count() - 1)
}

/// Returns the number of threads of this process with this name. A thread gets its name shortly
/// after it starts, and exits shortly after it may.
pub fn threads(name: &str) -> io::Result<usize> {
    let mut count = 0;
    for thread in fs::read_dir("/proc/self/task")? {
        // A thread that exits during the listing fails one of these.
        let Ok(thread) = thread else { continue };
        let Ok(found) = fs::read_to_string(thread.path().join("comm")) else {
            continue;
        };
        if found.trim_end() == name {
            count += 1;
        }
    }
    Ok(count)
}

/// Returns the number of mappings of this process.
pub fn mappings() -> io::Result<usize> {
    Ok(fs::read_to_string("/proc/self/maps")?.lines().count())
}

/// A mapping of a shared object.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// Below [`OBJECTS`].
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// Whether the name was removed, and only the memory remains.
    pub is_removed: bool,
}

impl Mapping {
    /// Parses a line of the kernel's list. Returns `None` if it describes anything else.
    fn parse(line: &str) -> Option<Self> {
        let (_, path) = line.split_once("/dev/shm/")?;
        let (range, _) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let start = u64::from_str_radix(start, 16).ok()?;
        let end = u64::from_str_radix(end, 16).ok()?;
        let (name, is_removed) = match path.strip_suffix(" (deleted)") {
            Some(name) => (name, true),
            None => (path, false),
        };
        Some(Self {
            name: name.to_owned(),
            bytes: end - start,
            is_removed,
        })
    }
}

/// Returns this process's mappings of shared objects, in order of addresses.
pub fn shared_mappings() -> io::Result<Vec<Mapping>> {
    let list = fs::read_to_string("/proc/self/maps")?;
    Ok(list.lines().filter_map(Mapping::parse).collect())
}

/// Returns the sum of a field of /proc/self/smaps, such as `Locked`, in bytes, over this process's
/// mappings of files whose path contains `path`.
pub fn mapped_memory(path: &str, field: &str) -> Fallible<u64> {
    let mut sum = 0;
    let mut is_counted = false;
    for line in fs::read_to_string("/proc/self/smaps")?.lines() {
        match line.split_once(':') {
            Some((name, value)) if !name.contains(' ') => {
                if is_counted && name == field {
                    sum += bytes(value)?;
                }
            }
            // The first line of a mapping.
            _ => is_counted = line.contains(path),
        }
    }
    Ok(sum)
}

/// Returns the names of the objects that start with `start`, sorted.
pub fn objects(start: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(OBJECTS).expect("a directory /dev/shm") {
        let Ok(entry) = entry else { continue };
        if let Ok(name) = entry.file_name().into_string() {
            if name.starts_with(start) {
                found.push(name);
            }
        }
    }
    found.sort();
    found
}

/// Removes them. One that is already removed needs nothing more.
pub fn remove_objects(start: &str) {
    for name in objects(start) {
        let _ = fs::remove_file(format!("{OBJECTS}/{name}"));
    }
}
