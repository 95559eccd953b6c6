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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::posix::PAGE;
    use std::path::Path;

    /// Ids that nobody else is likely to draw, whatever runs beside this.
    fn first_id() -> u32 {
        getrandom::u32().unwrap() | 1 << 31
    }

    fn path(id: u32) -> String {
        name(id).path()
    }

    /// A receiver may have the other segment of that name in its cache for as long as it runs.
    #[test]
    fn a_name_that_is_taken_is_passed_over() {
        let books = Arc::new(Books::new(PAGE));
        let first = first_id();
        std::fs::write(path(first), "somebody else's").unwrap();
        let segments = Segments::new(books, first);
        let payload = segments.create(PAGE).unwrap();
        assert_eq!(payload.serial(), u64::from(first) + 1);
        drop(payload);
        assert_eq!(std::fs::read(path(first)).unwrap(), b"somebody else's");
        std::fs::remove_file(path(first)).unwrap();
        assert!(!Path::new(&path(first + 1)).exists());
    }

    #[test]
    fn small_ids_are_left_to_others_when_the_count_starts_over() {
        let segments = Segments::new(Arc::new(Books::new(PAGE)), u32::MAX);
        let serials = [(); 3].map(|()| segments.create(PAGE).unwrap()).map(|payload| payload.serial());
        assert!(serials.iter().all(|&serial| serial >= u64::from(FIRST_ID)), "{serials:?}");
    }

    #[test]
    fn a_segment_that_cannot_be_leaves_nothing() {
        let books = Arc::new(Books::new(PAGE));
        let first = first_id();
        let segments = Segments::new(books.clone(), first);
        let error = segments.create(1 << 50).err().unwrap();
        assert_eq!((error.call(), error.bytes()), ("posix_fallocate", 1 << 50));
        assert!(!Path::new(&path(first)).exists());
        assert!(books.claim(first), "its slot is free again");
    }
}
