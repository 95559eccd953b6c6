//! Segments as zenoh's receivers expect them: named `<id>.zenoh`, mode 0600, without a header,
//! under a shared `flock`.
//!
//! The lock tells zenoh's processes that a segment is in use: each of them, when it starts and when
//! it ends, unlinks the segments that it can lock exclusively. The process that gives back the last
//! shared lock unlinks the name, as zenoh itself does. Otherwise the next zenoh process does, for
//! example after a publisher that has forked: its child has the mapping, and so the lock. A segment
//! that the pool gives up while receivers still have it mapped loses its memory at once (see
//! `Pool`). It keeps its name until the last of the receivers ends, so that nobody reuses it.
//!
//! Receivers never let a segment go, so the pool keeps it too when it is empty. Receivers also lock
//! the whole segment into memory, and so take memory that was not needed yet. So a segment is made
//! only if /dev/shm has room for all of it. Otherwise the receivers would find /dev/shm full, and
//! they lose messages silently.

#![forbid(unsafe_code)]

use super::outstanding::{Outstanding, SLOTS};
use crate::error::OsError;
use crate::os::name::{Name, DIRECTORY};
use crate::os::posix::free_bytes;
use crate::os::segment::Segment;
use crate::owner::payload::Payload;
use crate::owner::segment_factory::SegmentFactory;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

/// How many names to try before giving up: so many taken names are no coincidence.
const NAME_TRIES: usize = 100;

/// The mode of zenoh's own segments.
const MODE: u32 = 0o600;

/// Makes a pool's segments for zenoh.
pub(super) struct ZenohSegments {
    outstanding: Arc<Outstanding>,
    next: AtomicU32,
}

impl ZenohSegments {
    /// Ids count up from `first`.
    pub(super) fn new(outstanding: Arc<Outstanding>, first: u32) -> Self {
        Self { outstanding, next: AtomicU32::new(first) }
    }
}

fn name(id: u32) -> Name {
    Name::new(&format!("{id}.zenoh"))
}

impl SegmentFactory for ZenohSegments {
    fn create(&self, len: usize) -> Result<Payload, OsError> {
        for _ in 0..NAME_TRIES {
            let Some(id) = self.outstanding.next_id(self.next.fetch_add(1, Ordering::Relaxed)) else { break };
            if free_bytes(DIRECTORY.as_ref()).is_some_and(|free| free < len as u64) {
                return Err(name(id).error("statvfs", len, io::Error::from_raw_os_error(libc::ENOSPC)));
            }
            match Segment::create_counted(name(id), len, MODE) {
                Ok(Some(segment)) => {
                    self.outstanding.enter(id, len);
                    return Ok(Payload::new(segment, id.into()));
                }
                // Another process has the name, or a receiver still holds a dead process's segment.
                Err(error) if error.errno() != Some(libc::EEXIST) => return Err(error),
                Ok(None) | Err(_) => {}
            }
        }
        let source = io::Error::other("no segment id is free");
        let advice = format!("; the pool has made {SLOTS} segments, or their names are taken");
        Err(OsError::new("open", "/dev/shm/<id>.zenoh", len, source, advice))
    }

    fn keeps_segments(&self) -> bool {
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::os::posix::PAGE;
    use std::path::Path;

    fn path(id: u32) -> String {
        name(id).path()
    }

    fn segments() -> (Arc<Outstanding>, ZenohSegments) {
        let outstanding = Arc::new(Outstanding::new());
        (outstanding.clone(), ZenohSegments::new(outstanding, getrandom::u32().unwrap()))
    }

    /// Otherwise a receiver that has the other segment of that name in its cache reads that one,
    /// for as long as it runs.
    #[test]
    fn a_name_that_is_taken_is_passed_over() {
        let (outstanding, segments) = segments();
        let next = segments.next.load(Ordering::Relaxed);
        let taken = outstanding.next_id(next).unwrap();
        std::fs::write(path(taken), "somebody else's").unwrap();
        let payload = segments.create(PAGE).unwrap();
        assert_ne!(payload.serial(), u64::from(taken));
        assert_eq!(std::fs::read(path(taken)).unwrap(), b"somebody else's");
        drop(payload);
        std::fs::remove_file(path(taken)).unwrap();
    }

    #[test]
    fn small_ids_are_left_to_others() {
        let outstanding = Outstanding::new();
        for count in [0, 1, u32::MAX, 1 << 20, (1 << 20) - 1, (1 << 20) - 17] {
            let id = outstanding.next_id(count).unwrap();
            assert!(id >= 1 << 16, "{count} gives {id}");
        }
    }

    #[test]
    fn a_segment_that_cannot_be_leaves_nothing() {
        let (outstanding, segments) = segments();
        let next = segments.next.load(Ordering::Relaxed);
        let error = segments.create(1 << 50).err().unwrap();
        assert_eq!((error.call(), error.bytes()), ("statvfs", 1 << 50));
        let id = outstanding.next_id(next).expect("its slot is free");
        assert!(!Path::new(&path(id)).exists());
    }

    #[test]
    fn a_segment_goes_with_its_name() {
        let (_outstanding, segments) = segments();
        let payload = segments.create(PAGE).unwrap();
        let path = path(payload.serial() as u32);
        assert!(Path::new(&path).exists());
        drop(payload);
        assert!(!Path::new(&path).exists());
    }
}
