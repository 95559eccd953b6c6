//! The owner's record of the chunks in use, by segment id and offset.
//!
//! zenoh frees a chunk by a descriptor that it read from memory that peers can write. So a descriptor
//! is only a key here, never an address. Each chunk in use is in one cell, and freeing it means
//! swapping it out of that cell, which succeeds for one caller only. A descriptor of no chunk in use is
//! ignored.
//!
//! # Segment ids
//!
//! Receivers cache a segment by its id for as long as they run, so an id is never reused. The low 6
//! bits of an id are the number of its slot here. A slot belongs to one segment from that segment's
//! first chunk on: a pool creates few segments. The slot of a segment that is removed before, because
//! it could not be mapped for example, is free again. The other bits count up from a random start.
//! While a receiver has a segment of another process, dead or alive, its id cannot be taken: the
//! receiver's lock keeps the name, and creating it again
//! fails.
//!
//! # Orderings
//!
//! | writer | reader | what becomes visible |
//! |---|---|---|
//! | `put`: cell, Release | `take`: cell, Acquire | the chunk |

use parking_lot::Mutex;
use shm_pool::backend::Chunk;
use std::array;
use std::collections::TryReserveError;
use std::ffi::c_void;
use std::iter;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
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

/// The record is divided into pages of this many bytes, independent of the machine's page size.
const PAGE: usize = 4096;

/// Chunks begin on cache lines.
const MIN_SIZE: usize = 64;

/// Places in a page where a chunk can begin.
const LINES: usize = PAGE / MIN_SIZE;

/// Pages whose small chunks are recorded side by side.
const GROUP: usize = 16;

/// Bits of a word.
const BITS: usize = u64::BITS as usize;

/// Empty, or a [raw](Chunk::into_raw) chunk.
type Cell = AtomicPtr<c_void>;

fn cell() -> Cell {
    AtomicPtr::new(ptr::null_mut())
}

/// Takes the chunk out of a cell, if there is one.
#[inline]
fn empty(cell: &Cell) -> Option<Chunk> {
    let found = NonNull::new(cell.swap(ptr::null_mut(), Ordering::Acquire))?;
    // SAFETY: `put` stored a raw chunk there, and the swap took it out once.
    Some(unsafe { Chunk::from_raw(found) })
}

/// The chunks in use of one segment. Once the segment has had a chunk, it stays here until this record
/// is dropped, so a wrong descriptor finds an empty cell at worst.
struct OfSegment {
    id: u32,
    groups: Box<[Group]>,
    /// A bit for each group that has marks.
    marked: Box<[AtomicU64]>,
}

/// The chunks in use of a few pages. Only small chunks begin at other lines than a page's first.
struct Group {
    first: [Cell; GROUP],
    /// By [`index`]. Those of the first lines are not used.
    others: OnceLock<Box<[Cell; GROUP * LINES]>>,
    /// A word for each page, with a bit for each line.
    marks: [AtomicU64; GROUP],
}

impl Group {
    fn new() -> Self {
        Self {
            first: array::from_fn(|_| cell()),
            others: OnceLock::new(),
            marks: array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Returns the cell of a line, if it exists.
    #[inline]
    fn cell(&self, line: usize) -> Option<&Cell> {
        match line % LINES {
            0 => Some(&self.first[line / LINES]),
            _ => Some(&self.others.get()?[index(line)]),
        }
    }

    fn cells(&self) -> impl Iterator<Item = &Cell> {
        self.first.iter().chain(self.others.get().into_iter().flat_map(|cells| cells.iter()))
    }
}

/// Returns the index of a line's cell. Those of every 16th line are side by side, so that short chunks
/// of one length have theirs in few cache lines.
#[inline]
fn index(line: usize) -> usize {
    line / GROUP + line % GROUP * LINES
}

/// Sets a bit. Returns `false` if it was set. One thread at a time sets bits, or takes them all.
#[inline]
fn set(words: &[AtomicU64], bit: usize) -> bool {
    let (word, bit) = (&words[bit / BITS], 1 << (bit % BITS));
    let before = word.load(Ordering::Relaxed);
    word.store(before | bit, Ordering::Relaxed);
    before & bit == 0
}

/// Takes all bits that are set, in ascending order.
fn take_bits(words: &[AtomicU64]) -> impl Iterator<Item = usize> + '_ {
    words.iter().enumerate().flat_map(|(at, word)| {
        let mut left = word.load(Ordering::Relaxed);
        if left != 0 {
            word.store(0, Ordering::Relaxed);
        }
        iter::from_fn(move || {
            let bit = left.trailing_zeros() as usize;
            left &= left.wrapping_sub(1);
            (bit < BITS).then_some(at * BITS + bit)
        })
    })
}

/// The chunks in use, by [`Key`].
pub(crate) struct Outstanding {
    slots: [OnceLock<OfSegment>; SLOTS],
    new: Mutex<New>,
    /// Held by the thread whose collection marks chunks (see `freed`).
    pub(crate) marking: Mutex<()>,
}

/// Segments that had no chunk yet.
#[derive(Default)]
struct New {
    segments: Vec<OfSegment>,
    /// One bit for each slot that belongs to a segment, here or in `slots`.
    taken: u64,
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

    /// Returns the group, and the line in it.
    #[inline]
    fn place(self) -> (usize, usize) {
        let line = self.offset as usize / MIN_SIZE;
        (line / (GROUP * LINES), line % (GROUP * LINES))
    }

    /// Returns `true` if a chunk may begin there.
    #[inline]
    fn is_aligned(self) -> bool {
        self.offset as usize & (MIN_SIZE - 1) == 0
    }
}

impl Outstanding {
    pub(crate) fn new() -> Self {
        Self { slots: array::from_fn(|_| OnceLock::new()), new: Mutex::default(), marking: Mutex::default() }
    }

    /// Returns an id for the next segment, or `None` if all slots are taken. One thread at a time creates
    /// a segment.
    pub(crate) fn next_id(&self, count: u32) -> Option<u32> {
        let slot = self.new.lock().taken.trailing_ones();
        (slot < SLOTS as u32).then(|| (count % COUNTS + FIRST_COUNT) << SLOT_BITS | slot)
    }

    /// Enters a segment of `len` bytes under an id that [`next_id`](Self::next_id) returned.
    pub(crate) fn enter(&self, id: u32, len: usize) -> Result<(), TryReserveError> {
        let (count, mut groups, mut marked) = (len.div_ceil(GROUP * PAGE), Vec::new(), Vec::new());
        groups.try_reserve_exact(count)?;
        groups.extend(iter::repeat_with(Group::new).take(count));
        marked.try_reserve_exact(count.div_ceil(BITS))?;
        marked.extend(iter::repeat_with(|| AtomicU64::new(0)).take(count.div_ceil(BITS)));
        let mut new = self.new.lock();
        new.segments.try_reserve(1)?;
        new.segments.push(OfSegment { id, groups: groups.into(), marked: marked.into() });
        new.taken |= 1 << (id as usize % SLOTS);
        Ok(())
    }

    /// Frees the slot of a segment that is removed, if it never had a chunk.
    pub(crate) fn leave(&self, id: u32) {
        let mut new = self.new.lock();
        if let Some(at) = new.segments.iter().position(|segment| segment.id == id) {
            new.segments.swap_remove(at);
            new.taken &= !(1 << (id as usize % SLOTS));
        }
    }

    #[inline]
    fn segment(&self, key: Key) -> Option<&OfSegment> {
        let slot = &self.slots[key.segment as usize % SLOTS];
        let segment = slot.get().or_else(|| self.first_chunk(key.segment, slot))?;
        (segment.id == key.segment).then_some(segment)
    }

    #[inline]
    fn group(&self, key: Key) -> Option<&Group> {
        self.segment(key)?.groups.get(key.place().0)
    }

    /// Moves a segment to its slot, with its first chunk.
    #[cold]
    fn first_chunk<'a>(&self, id: u32, slot: &'a OnceLock<OfSegment>) -> Option<&'a OfSegment> {
        let mut new = self.new.lock();
        if let Some(at) = new.segments.iter().position(|segment| segment.id == id) {
            // Its slot is empty: the slot's bit was set when it was entered.
            let _was_empty = slot.set(new.segments.swap_remove(at));
        }
        slot.get()
    }

    /// Returns the cell for a chunk. There is one for every possible chunk, created when first needed.
    #[inline]
    fn cell(&self, key: Key) -> Option<&Cell> {
        let (group, line) = (self.group(key)?, key.place().1);
        Some(match line % LINES {
            0 => &group.first[line / LINES],
            _ => &group.others.get_or_init(|| Box::new(array::from_fn(|_| cell())))[index(line)],
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

    /// Takes out the chunk that a descriptor names, if there is one.
    #[inline]
    pub(crate) fn take(&self, key: Key) -> Option<Chunk> {
        let group = self.group(key).filter(|_| key.is_aligned())?;
        empty(group.cell(key.place().1)?)
    }

    /// Marks a chunk to be taken out later. Returns `false` if the descriptor does not name a place for
    /// one, or a marked one. The caller holds `marking`.
    #[inline]
    pub(crate) fn mark(&self, key: Key) -> bool {
        let (at, line) = key.place();
        let segment = self.segment(key).filter(|segment| at < segment.groups.len() && key.is_aligned());
        segment.is_some_and(|segment| {
            set(&segment.marked, at);
            set(&segment.groups[at].marks, line)
        })
    }

    /// Takes the marked chunks out, in the order of their addresses. An error is a place without one.
    /// The caller holds `marking`.
    pub(crate) fn take_marked(&self) -> impl Iterator<Item = Result<Chunk, Key>> + '_ {
        let segments = self.slots.iter().filter_map(OnceLock::get);
        let groups = segments.flat_map(|segment| take_bits(&segment.marked).map(move |at| (segment, at)));
        groups.flat_map(|(segment, at)| {
            let group = &segment.groups[at];
            take_bits(&group.marks).map(move |line| {
                let chunk = group.cell(line).and_then(empty);
                chunk.ok_or_else(|| Key::new(segment.id.into(), (at * GROUP * LINES + line) * MIN_SIZE))
            })
        })
    }

    /// Takes out all chunks.
    pub(crate) fn take_all(&self) -> impl Iterator<Item = Chunk> + '_ {
        self.cells().filter_map(empty)
    }

    /// Returns `true` if no chunk is in use. A chunk that is in use during the whole call is not missed.
    pub(crate) fn is_empty(&self) -> bool {
        // Relaxed: the chunk is not read. A cell that was filled before this call is seen filled.
        self.cells().all(|cell| cell.load(Ordering::Relaxed).is_null())
    }

    fn cells(&self) -> impl Iterator<Item = &Cell> {
        let groups = self.slots.iter().filter_map(OnceLock::get).flat_map(|slot| slot.groups.iter());
        groups.flat_map(Group::cells)
    }
}
