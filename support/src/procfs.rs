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
    // A process that has exited has a status, but no memory.
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(number.ok_or_else(|| format!("no {name}: has the process ended?"))? << 10)
}

/// Returns the number of open descriptors of this process.
pub fn descriptors() -> io::Result<usize> {
    // One of the entries is the directory that is being read, every time.
    Ok(fs::read_dir("/proc/self/fd")?.count() - 1)
}

/// Returns the number of threads of this process with this name. A thread gets its name shortly
/// after it starts, and exits shortly after it may.
pub fn threads(name: &str) -> io::Result<usize> {
    let threads = fs::read_dir("/proc/self/task")?.filter_map(Result::ok);
    let name_of = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("comm"));
    Ok(threads
        .filter_map(|thread| name_of(thread).ok())
        .filter(|found| found.trim_end() == name)
        .count())
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
    /// Whether the name is removed, and only the memory is left.
    pub is_removed: bool,
}

impl Mapping {
    /// Parses a line of the kernel's list. Returns `None` if it describes anything else.
    fn parse(line: &str) -> Option<Self> {
        let (_, name) = line.split_once("/dev/shm/")?;
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        let address = |text| u64::from_str_radix(text, 16).ok();
        let bytes = address(end)? - address(start)?;
        let removed = name.strip_suffix(" (deleted)");
        Some(Self {
            name: removed.unwrap_or(name).to_owned(),
            bytes,
            is_removed: removed.is_some(),
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
pub fn mapped_memory(path: &str, field: &str) -> io::Result<u64> {
    let (mut sum, mut is_meant) = (0, false);
    for line in fs::read_to_string("/proc/self/smaps")?.lines() {
        match line.split_once(':') {
            Some((name, rest)) if !name.contains(' ') => {
                let kilobytes = rest
                    .trim()
                    .strip_suffix(" kB")
                    .and_then(|number| number.parse::<u64>().ok());
                sum += kilobytes.filter(|_| is_meant && name == field).unwrap_or(0) << 10;
            }
            // The line that a mapping begins with.
            _ => is_meant = line.contains(path),
        }
    }
    Ok(sum)
}

/// Returns the names of the objects that start with `start`, sorted.
pub fn objects(start: &str) -> Vec<String> {
    let entries = fs::read_dir(OBJECTS).expect("a directory /dev/shm");
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut found: Vec<String> = names.filter(|name| name.starts_with(start)).collect();
    found.sort();
    found
}

/// Removes them. One that is already removed needs nothing more.
pub fn remove_objects(start: &str) {
    for name in objects(start) {
        let _ = fs::remove_file(format!("{OBJECTS}/{name}"));
    }
}
