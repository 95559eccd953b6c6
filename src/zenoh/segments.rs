//! Segments as zenoh's receivers expect them: named `<id>.zenoh`, mode 0600, without a header, under a shared `flock`.
//!
//! The lock is what tells zenoh's processes that a segment is in use: each of them unlinks those that it can lock exclusively,
//! when it starts and when it ends. Whoever gives the last shared lock back unlinks the name, as zenoh itself does; or
//! else the next zenoh process does, as after a publisher that has forked: its child has the mapping, and so the lock. A
//! segment that the pool gives up while receivers still have it mapped loses its memory at once (see `Pool`), and keeps its
//! name, so that nobody makes another one by that name, until the last of the receivers ends.

#![forbid(unsafe_code)]

use super::books::{Books, SLOTS};
use crate::error::OsError;
use crate::payload::Payload;
use crate::posix::Name;
use crate::segment::Segment;
use crate::source::Source;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

/// How many names are tried before it is somebody's intention that they are taken.
const NAME_TRIES: usize = 100;

/// What zenoh gives its own segments.
const MODE: u32 = 0o600;

/// Makes a pool's segments for zenoh.
pub(super) struct Segments {
    books: Arc<Books>,
    next: AtomicU32,
}

impl Segments {
    /// `first` is where the ids start to be counted up from.
    pub(super) fn new(books: Arc<Books>, first: u32) -> Self {
        Self { books, next: AtomicU32::new(first) }
    }
}

fn name(id: u32) -> Name {
    Name::new(&format!("{id}.zenoh"))
}

impl Source for Segments {
    fn create(&self, len: usize) -> Result<Payload, OsError> {
        for _ in 0..NAME_TRIES {
            let Some(id) = self.books.claim(self.next.fetch_add(1, Ordering::Relaxed), len) else { break };
            match Segment::create_counted(name(id), len, MODE) {
                Ok(Some(segment)) => return Ok(Payload::new(segment, id.into())),
                Ok(None) => self.books.release(id),
                Err(error) => {
                    self.books.release(id);
                    // Another process has the name, or a receiver still has a dead one's.
                    if error.errno() != Some(libc::EEXIST) {
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

    fn path(id: u32) -> String {
        name(id).path()
    }

    fn segments() -> (Arc<Books>, Segments) {
        let books = Arc::new(Books::new(2 * PAGE));
        (books.clone(), Segments::new(books, getrandom::u32().unwrap()))
    }

    /// A receiver may have the other segment of that name in its cache for as long as it runs.
    #[test]
    fn a_name_that_is_taken_is_passed_over() {
        let (books, segments) = segments();
        let next = segments.next.load(Ordering::Relaxed);
        let taken = books.claim(next, PAGE).unwrap();
        books.release(taken);
        std::fs::write(path(taken), "somebody else's").unwrap();
        let payload = segments.create(PAGE).unwrap();
        assert_ne!(payload.serial(), u64::from(taken));
        assert_eq!(std::fs::read(path(taken)).unwrap(), b"somebody else's");
        drop(payload);
        std::fs::remove_file(path(taken)).unwrap();
    }

    #[test]
    fn small_ids_are_left_to_others() {
        let books = Books::new(2 * PAGE);
        for count in [0, 1, u32::MAX, 1 << 20, (1 << 20) - 1, (1 << 20) - 17] {
            let id = books.claim(count, PAGE).unwrap();
            assert!(id >= 1 << 16, "{count} gives {id}");
        }
    }

    #[test]
    fn a_segment_that_cannot_be_leaves_nothing() {
        let (books, segments) = segments();
        let next = segments.next.load(Ordering::Relaxed);
        let error = segments.create(1 << 50).err().unwrap();
        assert_eq!((error.call(), error.bytes()), ("posix_fallocate", 1 << 50));
        let id = books.claim(next, 1 << 50).expect("its slot is free again");
        assert!(!Path::new(&path(id)).exists());
    }

    #[test]
    fn a_segment_takes_no_descriptor_and_goes_with_its_name() {
        let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let (_books, segments) = segments();
        let payload = segments.create(PAGE).unwrap();
        let path = path(payload.serial() as u32);
        let is_it = |target: std::path::PathBuf| target == Path::new(&path);
        assert!(!descriptors().any(|fd| std::fs::read_link(fd.path()).is_ok_and(is_it)));
        assert!(Path::new(&path).exists());
        drop(payload);
        assert!(!Path::new(&path).exists());
    }
}
