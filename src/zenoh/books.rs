//! The owner's own record of what is out: which chunk, under which segment id and offset.
//!
//! zenoh hands a chunk back by a descriptor that it has read from memory which peers can write. So a descriptor is only a key
//! here, never an address: each chunk that is out stands in one cell, and to take it back is to swap it out of that cell,
//! which one caller wins. A descriptor that was made up, or comes twice, finds no chunk.
//!
//! # Segment ids
//!
//! Receivers cache a segment by its id for as long as they run, so that an id must not come again. The low 12 bits of an id number
//! its slot here, and the others are counted up from a random start, one for each segment. They start over after a million
//! segments; but an id is not taken from anybody, dead or alive, as long as a receiver has that segment, because the
//! receiver's lock keeps the name, and creating it again fails.
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

/// log2 of [`SLOTS`].
const SLOT_BITS: u32 = SLOTS.trailing_zeros();

/// Counts below this make ids of at most 16 bits, which are left to others: zenoh gives its own metadata such names.
const FIRST_COUNT: u32 = 1 << (16 - SLOT_BITS);

/// How many counts there are.
const COUNTS: u32 = (1 << (32 - SLOT_BITS)) - FIRST_COUNT;

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
        std::iter::once(&self.whole).chain(self.carved.get().into_iter().flat_map(|cells| cells.iter()))
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
        // Ids come from `Books::claim` and have 32 bits; segments have at most 4 GiB, so offsets do too.
        Self { segment: chunk.serial() as u32, offset: chunk.offset() as u32 }
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

    /// Sets a slot aside for a segment of `len` bytes, and returns its id; `None` if all are taken.
    ///
    /// Arenas get the last free slot and others the first, so that there are no more tables of cells than arenas at a time.
    pub(super) fn claim(&self, count: u32, len: usize) -> Option<u32> {
        let high = (count % COUNTS + FIRST_COUNT) << SLOT_BITS;
        let try_slot = |slot: usize| {
            let id = high | slot as u32;
            let claimed = self.slots[slot].id.compare_exchange(VACANT, id, Ordering::Relaxed, Ordering::Relaxed);
            claimed.ok().map(|_| id)
        };
        if len == self.arena_size {
            (0..SLOTS).rev().find_map(try_slot)
        } else {
            (0..SLOTS).find_map(try_slot)
        }
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
        let slot = self.slot(key.segment);
        let cell = match key.offset as usize / SPACING {
            0 => Some(&slot.whole),
            at => slot.carved.get_or_init(|| self.cells()).get(at),
        };
        // There is one for each chunk that can be.
        if let Some(cell) = cell {
            cell.store(chunk.as_ptr(), Ordering::Release);
        }
    }

    #[cold]
    fn cells(&self) -> Box<[Cell]> {
        (0..self.arena_size.div_ceil(SPACING)).map(|_| cell()).collect()
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
