//! The owner's record of the chunks in use, by segment id and offset.
//!
//! zenoh frees a chunk by a descriptor that it read from memory that peers can write. So a descriptor
//! is only a key here, never an address. Each chunk in use is in one cell, and freeing it means
//! swapping it out of that cell, which succeeds for one caller only. A descriptor that is forged, or
//! that comes twice, finds no chunk.
//!
//! # Segment ids
//!
//! Receivers cache a segment by its id for as long as they run, so an id must not be reused. The low
//! 6 bits of an id are the number of its slot here, which is used once: a pool creates few segments.
//! The other bits count up from a random start. While a receiver has a segment of another process,
//! dead or alive, its id cannot be taken: the receiver's lock keeps the name, and creating it again
//! fails.
//!
//! # Orderings
//!
//! | writer | reader | what becomes visible |
//! |---|---|---|
//! | `put`: cell, Release | `take`: cell, Acquire | the chunk |
//! | `take` puts back a chunk of another length: cell, Release | `take`: cell, Acquire | the same |

use shm_pool::backend::Chunk;
use std::array;
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::OnceLock;

/// The most segments that a pool can ever create: far more than it does.
pub(crate) const SLOTS: usize = 64;

/// log2 of [`SLOTS`].
const SLOT_BITS: u32 = SLOTS.trailing_zeros();

/// Counts below this yield ids of at most 16 bits. Those are left to zenoh, which gives its metadata
/// such names.
const FIRST_COUNT: u32 = 1 << (16 - SLOT_BITS);

/// The number of counts.
const COUNTS: u32 = (1 << (32 - SLOT_BITS)) - FIRST_COUNT;

/// The record is divided into pages of this many bytes, whatever the machine's page size.
const PAGE: usize = 4096;

/// Chunks begin on cache lines.
const MIN_SIZE: usize = 64;

/// Places in a page where a chunk can begin.
const LINES: usize = PAGE / MIN_SIZE;

/// Empty, or a [raw](Chunk::into_raw) chunk.
type Cell = AtomicPtr<c_void>;

fn cell() -> Cell {
    AtomicPtr::new(ptr::null_mut())
}

/// Takes the chunk out of a cell, if there is one.
#[inline]
fn empty(cell: &Cell) -> Option<Chunk> {
    let found = NonNull::new(cell.swap(ptr::null_mut(), Ordering::Acquire))?;
    // SAFETY: `put` or `take` stored a raw chunk there, and the swap took it out once.
    Some(unsafe { Chunk::from_raw(found) })
}

/// The chunks in use of one segment. It stays until this record is dropped, so a wrong descriptor
/// finds an empty cell at worst.
struct OfSegment {
    id: u32,
    pages: Box<[Page]>,
}

/// The chunks in use of one page. Only small chunks begin at other lines than the first.
struct Page {
    first: Cell,
    others: OnceLock<Box<[Cell; LINES - 1]>>,
}

impl Page {
    fn new() -> Self {
        Self { first: cell(), others: OnceLock::new() }
    }

    fn cells(&self) -> impl Iterator<Item = &Cell> {
        std::iter::once(&self.first).chain(self.others.get().into_iter().flat_map(|cells| cells.iter()))
    }
}

/// The chunks in use, by [`Key`].
pub(crate) struct Outstanding {
    slots: [OnceLock<OfSegment>; SLOTS],
    entered: AtomicUsize,
}

/// The place of a chunk's bytes, in zenoh's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) segment: u32,
    /// Bytes from the segment's start.
    pub(crate) offset: u32,
}

impl Key {
    pub(crate) fn of(chunk: &Chunk) -> Self {
        Self::new(chunk.segment(), chunk.offset())
    }

    pub(crate) fn new(segment: u64, offset: usize) -> Self {
        // Ids come from `Outstanding::next_id` and have 32 bits. Segments have at most 4 GiB, so
        // offsets have 32 bits too.
        Self { segment: segment as u32, offset: offset as u32 }
    }

    /// Returns the page, and the line in it.
    fn place(self) -> (usize, usize) {
        (self.offset as usize / PAGE, self.offset as usize % PAGE / MIN_SIZE)
    }
}

impl Outstanding {
    pub(crate) fn new() -> Self {
        Self { slots: array::from_fn(|_| OnceLock::new()), entered: AtomicUsize::new(0) }
    }

    /// Returns an id for the next segment, or `None` if there were too many. One thread at a time creates
    /// a segment.
    pub(crate) fn next_id(&self, count: u32) -> Option<u32> {
        let slot = self.entered.load(Ordering::Relaxed);
        (slot < SLOTS).then(|| (count % COUNTS + FIRST_COUNT) << SLOT_BITS | slot as u32)
    }

    /// Enters a segment of `len` bytes under an id returned by [`next_id`](Self::next_id).
    pub(crate) fn enter(&self, id: u32, len: usize) {
        let pages = (0..len.div_ceil(PAGE)).map(|_| Page::new()).collect();
        if self.slots[id as usize % SLOTS].set(OfSegment { id, pages }).is_ok() {
            self.entered.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[inline]
    fn page(&self, key: Key) -> Option<&Page> {
        let slot = self.slots[key.segment as usize % SLOTS].get()?;
        slot.pages.get(key.place().0).filter(|_| slot.id == key.segment)
    }

    /// Returns the cell for a chunk. There is one for every possible chunk, created when first needed.
    #[inline]
    fn cell(&self, key: Key) -> Option<&Cell> {
        let page = self.page(key)?;
        Some(match key.place().1 {
            0 => &page.first,
            line => &page.others.get_or_init(|| Box::new(array::from_fn(|_| cell())))[line - 1],
        })
    }

    /// Creates the cell for a chunk, so that [`put`](Self::put) does not have to.
    pub(crate) fn prepare(&self, key: Key) {
        self.cell(key);
    }

    /// Records that a chunk is in use. The caller that takes it out of its cell owns it.
    #[inline]
    pub(crate) fn put(&self, chunk: Chunk, key: Key) {
        if let Some(cell) = self.cell(key) {
            cell.store(chunk.into_raw().as_ptr(), Ordering::Release);
        }
    }

    /// Takes out the chunk that a descriptor names, if there is one and its length is `len`.
    #[inline]
    pub(crate) fn take(&self, key: Key, len: usize) -> Option<Chunk> {
        let page = self.page(key)?;
        let cell = match key.place().1 {
            0 => &page.first,
            line => page.others.get()?.get(line - 1)?,
        };
        let chunk = empty(cell)?;
        if Key::of(&chunk) == key && chunk.len() == len {
            return Some(chunk);
        }
        // If the rightful caller came in between, it found no chunk, which was logged.
        cell.store(chunk.into_raw().as_ptr(), Ordering::Release);
        None
    }

    /// Takes out all chunks.
    pub(crate) fn take_all(&self) -> impl Iterator<Item = Chunk> + '_ {
        let pages = self.slots.iter().filter_map(OnceLock::get).flat_map(|slot| slot.pages.iter());
        pages.flat_map(Page::cells).filter_map(empty)
    }
}
