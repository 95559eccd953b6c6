//! A segment of shared memory for one message: the publisher makes it, the subscriber removes it.

use memmap2::{Mmap, MmapOptions};
use nix::fcntl::OFlag;
use nix::sys::mman::{shm_open, shm_unlink};
use nix::sys::stat::Mode;
use shm_pool_support::{procfs, Fallible};
use std::fs::File;
use std::ops::Deref;

fn prefix(channel: &str) -> String {
    format!("navigation-{channel}-")
}

pub(crate) fn name(channel: &str, sequence: u64) -> String {
    format!("/{}{sequence}", prefix(channel))
}

/// Makes a segment with these bytes.
pub(crate) fn create(name: &str, bytes: &[u8]) -> Fallible {
    let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_RDWR;
    let file = File::from(shm_open(name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
    file.set_len(bytes.len() as u64)?;
    // SAFETY: made above, of this length, and nobody knows its name yet.
    let mut map = unsafe { MmapOptions::new().len(bytes.len()).map_mut(&file) }?;
    map.copy_from_slice(bytes);
    Ok(())
}

/// Removes what nobody has taken.
pub(crate) fn remove_all(channel: &str) {
    procfs::remove_objects(&prefix(channel));
}

/// A segment that is being read. It is removed when it is dropped.
pub(crate) struct Segment {
    name: String,
    map: Mmap,
}

impl Segment {
    pub(crate) fn open(name: &[u8]) -> Fallible<Self> {
        let name = std::str::from_utf8(name)?.to_owned();
        let file = File::from(shm_open(name.as_str(), OFlag::O_RDONLY, Mode::empty())?);
        // SAFETY: its maker has unmapped it before it told the name, and nobody else writes to it
        // or makes it shorter.
        let map = unsafe { Mmap::map(&file) }?;
        Ok(Self { name, map })
    }
}

impl Deref for Segment {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // If it fails, the parent removes it.
        let _ = shm_unlink(self.name.as_str());
    }
}
