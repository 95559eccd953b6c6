//! Segments as zenoh's receivers expect them: named `<id>.zenoh`, mode 0600, without a header, under a shared `flock`.
//!
//! The lock is what tells zenoh's processes that a segment is in use: each of them unlinks those that it can lock exclusively,
//! when it starts and when it ends. Whoever gives the last shared lock back unlinks the name, as zenoh itself does. A
//! segment that the pool gives up while receivers still have it mapped loses its memory at once (see `Pool`), and keeps its
//! name, so that nobody makes another one by that name, until the last of the receivers ends.

#![forbid(unsafe_code)]

use super::books::{Books, FIRST_ID, SLOTS};
use crate::error::OsError;
use crate::payload::Payload;
use crate::posix::Name;
use crate::segment::Segment;
use crate::source::Source;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

/// What zenoh gives its own segments.
const MODE: u32 = 0o600;

/// Makes a pool's segments for zenoh.
pub(super) struct Segments {
    books: Arc<Books>,
    next: AtomicU32,
}

impl Segments {
    /// Ids are counted up from `first`.
    pub(super) fn new(books: Arc<Books>, first: u32) -> Self {
        Self { books, next: AtomicU32::new(first) }
    }
}

fn name(id: u32) -> Name {
    Name::new(&format!("{id}.zenoh"))
}

impl Source for Segments {
    fn create(&self, len: usize) -> Result<Payload, OsError> {
        // As many ids in a row as there are slots, and some more where others have the names or ids are skipped.
        for _ in 0..FIRST_ID as usize + 2 * SLOTS {
            let id = self.next.fetch_add(1, Ordering::Relaxed);
            if !self.books.claim(id) {
                continue;
            }
            match Segment::create_counted(name(id), len, MODE) {
                Ok(segment) => return Ok(Payload::new(segment, id.into())),
                Err(error) => {
                    self.books.release(id);
                    // Somebody else has the name, or a zenoh process has just swept it, because it saw no lock yet.
                    if !matches!(error.errno(), Some(libc::EEXIST | libc::EWOULDBLOCK)) {
                        return Err(error);
                    }
                }
            }
        }
        let source = io::Error::other("no segment id is free");
        let advice = format!("; {SLOTS} segments exist: raise arena_size, or allocate fewer and larger messages");
        Err(OsError::new("shm_open", "/dev/shm/<id>.zenoh", len, source, advice))
    }

    fn retired(&self, serial: u64) {
        self.books.release(serial as u32);
    }
}
