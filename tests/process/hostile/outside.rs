//! What the kernel reports about a prefix, independently of the library: files, mappings, open
//! files.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Files under /dev/shm that start with `prefix` and a dot.
pub(crate) fn files(prefix: &str) -> Vec<PathBuf> {
    let start = format!("{prefix}.");
    let mut found = Vec::new();
    for entry in fs::read_dir("/dev/shm").expect("a directory /dev/shm") {
        let Ok(entry) = entry else { continue };
        let name = entry.file_name();
        if name.as_encoded_bytes().starts_with(start.as_bytes()) {
            found.push(entry.path());
        }
    }
    found
}

/// Removes a file or an empty directory.
pub(crate) fn remove(path: &Path) {
    // Another process may have swept it away.
    if fs::remove_file(path).is_err() {
        let _ = fs::remove_dir(path);
    }
}

/// Returns `true` if a slice lies in one mapping (if `writable`, a writable one) of an object with
/// the prefix.
pub(crate) fn is_mapped(bytes: &[u8], prefix: &str, writable: bool) -> bool {
    let start = bytes.as_ptr() as usize;
    let end = bytes.as_ptr() as usize + bytes.len();
    mappings(prefix).iter().any(|mapping| {
        mapping.start <= start && end <= mapping.end && (!writable || mapping.is_writable)
    })
}

/// As [`assert_nothing_left`], after garbage was written. That may make an owner's end leave
/// objects to a sweep, which leaves those whose header was overwritten.
pub(crate) fn assert_swept(prefix: &str) {
    for path in files(prefix) {
        let extension = match path.extension() {
            Some(extension) => extension.to_string_lossy(),
            None => "".into(),
        };
        let magic = if extension == "ctl" {
            b"SHMPOOL\0"
        } else {
            b"SHMCHAN\0"
        };
        let is_segment = u64::from_str_radix(&extension, 16).is_ok();
        if !is_segment {
            let file = fs::OpenOptions::new().write(true).open(&path);
            let file = file.expect("an object");
            file.write_at(magic, 0).expect("an object");
        }
    }
    shm_pool::Namespace::new(prefix)
        .unwrap()
        .sweep()
        .expect("/dev/shm can be read");
    assert_nothing_left(prefix);
}

/// Panics if anything with this prefix is left: a file, a mapping or an open file.
pub(crate) fn assert_nothing_left(prefix: &str) {
    let files = files(prefix);
    assert!(files.is_empty(), "left in /dev/shm: {files:?}");
    assert_eq!(mappings(prefix).len(), 0, "mappings that are left");
    let mut left: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir("/proc/self/fd").expect("/proc") {
        let Ok(entry) = entry else { continue };
        // The directory's own descriptor is closed by then.
        let Ok(path) = fs::read_link(entry.path()) else {
            continue;
        };
        if path.to_string_lossy().contains(&format!("/{prefix}.")) {
            left.push(path);
        }
    }
    assert!(left.is_empty(), "open files that are left: {left:?}");
}

struct Mapping {
    start: usize,
    end: usize,
    is_writable: bool,
}

fn mappings(prefix: &str) -> Vec<Mapping> {
    let maps = fs::read_to_string("/proc/self/maps").expect("/proc");
    let name = format!("/dev/shm/{prefix}.");
    let mut mappings = Vec::new();
    for line in maps.lines() {
        if line.contains(&name) {
            mappings.push(Mapping::parse(line).expect("a line of maps"));
        }
    }
    mappings
}

impl Mapping {
    fn parse(line: &str) -> Option<Self> {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        Some(Self {
            start: address(start)?,
            end: address(end)?,
            is_writable: rest.starts_with("rw"),
        })
    }
}
