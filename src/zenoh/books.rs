//! The owner's own record of what is out: which chunk, under which segment id and offset.
//!
//! zenoh hands a chunk back by a descriptor that it has read from memory which peers can write. So a descriptor is only a key
//! here, never an address: each chunk that is out stands in one cell, and to take it back is to swap it out of that cell,
//! which one caller wins. A descriptor that was made up, or comes twice, finds no chunk.
//!
//! # Segment ids
//!
//! Receivers cache a segment by its id for as long as they run. An id is therefore counted up from a random start and comes
//! again only after 2^32 segments; and it is not taken from a dead publisher as long as a receiver has that one's segment,
//! because the receiver's lock keeps the name, and creating it again fails. The low bits of an id number its slot here.
//!
//! # Orderings
//!
//! | writer | reader | what becomes visible |
//! |---|---|---|
//! | `put`: cell, Release | `take`: cell, Acquire | the chunk |
//! | `take` puts a wrong one back: cell, Release | `take`, Acquire | the same |

use crate::chunk::Chunk;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::OnceLock;

/// Segments that can exist at a time: more than a process may have files open, mostly.
pub(super) const SLOTS: usize = 4096;

/// Chunks in an arena begin at least this many bytes apart: the smallest one, and talc's tag up to the next line.
const SPACING: usize = 128;

/// Ids below are left to others, as stable names for instance.
pub(super) const FIRST_ID: u32 = 1 << 16;

/// No segment.
const VACANT: u32 = 0;

type Cell = AtomicPtr<Chunk>;

fn cell() -> Cell {
    AtomicPtr::new(ptr::null_mut())
}

/// What is out of one segment. Never freed before the books are, so a wrong descriptor finds an empty cell at worst.
struct Slot {
    id: AtomicU32,
    /// The chunk at offset 0: all of the segment. In an arena talc has its own data there.
    whole: Cell,
    /// Chunks of an arena, by offset.
    carved: OnceLock<Box<[Cell]>>,
}

impl Slot {
    fn cells(&self) -> impl Iterator<Item = &Cell> {
        std::iter::once(&self.whole).chain(self.carved.get().into_iter().flatten())
    }
}

/// See the module's text.
pub(super) struct Books {
    slots: Box<[Slot]>,
    /// Bytes of an arena.
    arena_size: usize,
}

/// Where a chunk's bytes are, in zenoh's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) segment: u32,
    /// Bytes from the segment's start.
    pub(super) offset: u32,
}

impl Key {
    pub(super) fn of(chunk: &Chunk) -> Self {
        let memory = chunk.memory();
        // Ids come from `Books::claim` and have 32 bits; segments have at most 4 GiB, so offsets do too.
        Self { segment: memory.payload().serial() as u32, offset: memory.offset() as u32 }
    }
}

impl Books {
    pub(super) fn new(arena_size: usize) -> Self {
        let slot = |_| Slot { id: AtomicU32::new(VACANT), whole: cell(), carved: OnceLock::new() };
        Self { slots: (0..SLOTS).map(slot).collect(), arena_size }
    }

    fn slot(&self, id: u32) -> &Slot {
        &self.slots[id as usize % SLOTS]
    }

    /// Sets an id's slot aside; `false` if it is taken, or the id is not to be used.
    pub(super) fn claim(&self, id: u32) -> bool {
        id >= FIRST_ID && self.slot(id).id.compare_exchange(VACANT, id, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// The segment with this id is gone, or never came to be.
    pub(super) fn release(&self, id: u32) {
        let _ = self.slot(id).id.compare_exchange(id, VACANT, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn cell(&self, key: Key) -> Option<&Cell> {
        let slot = self.slot(key.segment);
        if slot.id.load(Ordering::Relaxed) != key.segment {
            return None;
        }
        match key.offset as usize / SPACING {
            0 => Some(&slot.whole),
            at => slot.carved.get()?.get(at),
        }
    }

    /// Notes that a chunk is out. The caller holds it exclusively, and gives it up to the one who takes it out again.
    #[inline]
    pub(super) fn put(&self, chunk: NonNull<Chunk>, key: Key) {
        if key.offset != 0 {
            let cells = || (0..self.arena_size.div_ceil(SPACING)).map(|_| cell()).collect();
            self.slot(key.segment).carved.get_or_init(cells);
        }
        if let Some(cell) = self.cell(key) {
            cell.store(chunk.as_ptr(), Ordering::Release);
        }
    }

    /// Takes the chunk out that a descriptor names, if there is one and its capacity is `len`. Then it is the caller's.
    #[inline]
    pub(super) fn take(&self, key: Key, len: usize) -> Option<NonNull<Chunk>> {
        let cell = self.cell(key)?;
        let chunk = NonNull::new(cell.swap(ptr::null_mut(), Ordering::Acquire))?;
        // SAFETY: the swap has made it this caller's (I3).
        let this = unsafe { chunk.as_ref() };
        if Key::of(this) == key && this.capacity() == len {
            return Some(chunk);
        }
        // The rightful caller may have come by meanwhile, and has been told the same.
        cell.store(chunk.as_ptr(), Ordering::Release);
        None
    }

    /// Takes everything out that is still out.
    pub(super) fn take_all(&self) -> impl Iterator<Item = NonNull<Chunk>> + '_ {
        let all = self.slots.iter().flat_map(Slot::cells);
        all.filter_map(|cell| NonNull::new(cell.swap(ptr::null_mut(), Ordering::Acquire)))
    }
}
