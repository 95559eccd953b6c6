//! The owner's record of the chunks in use, by segment id and offset.
//!
//! zenoh frees a chunk by a descriptor that it read from memory that peers can write. So a descriptor
//! is only a key here, never an address. A bit for each place says whether a chunk in use begins there.
//! Freeing one means clearing its bit, which succeeds for one caller only. A descriptor of no chunk in
//! use is ignored.
//!
//! The chunk itself is looked up in a table, which is written when a chunk is first used. So with
//! thousands of messages in flight, an allocation touches a bit, and no line of the table.
//!
//! # Segment ids
//!
//! Receivers cache a segment by its id for as long as they run, so an id is never reused. The low 6
//! bits of an id are the number of its slot here. A slot belongs to one segment from that segment's
//! first chunk on: a pool creates few segments. The slot of a segment that is removed before, because
//! it could not be mapped for example, is free again. The other bits count up from a random start.
//! While a receiver has a segment of another process, dead or alive, its id cannot be taken: the
//! receiver's lock keeps the name, and creating it again fails.
//!
//! # Orderings
//!
//! | writer | reader | what becomes visible |
//! |---|---|---|
//! | `put`: bit, Release | `take`, `release_marked`, `take_all`: bit, Acquire | the chunk, and its entry |

use parking_lot::Mutex;
use shm_pool::backend::Chunk;
use std::alloc::{alloc_zeroed, Layout};
use std::array;
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

/// Pages whose marked chunks are released together.
const GROUP: usize = 16;

/// The table is divided into blocks of this many rows of this many entries.
const ROWS: usize = 16;
const ROW: usize = 1024;

/// Bits of a word.
const BITS: usize = u64::BITS as usize;

/// The [tag](Chunk::tag) of a chunk that has its entry in the table.
const ENTERED: u8 = 1;

/// The [raw](Chunk::into_raw) chunk that was last in use at a place. It may not exist any more.
type Entry = AtomicPtr<c_void>;

/// The chunks in use of one segment. Once the segment has had a chunk, it stays here until this record
/// is dropped, so a wrong descriptor finds a clear bit at worst.
struct OfSegment {
    id: u32,
    /// By [`index`].
    table: Box<[Entry]>,
    /// A word for each page, with a bit for each line where a chunk in use begins.
    used: Box<[AtomicU64]>,
    /// As `used`, for those to be taken out.
    marks: Box<[AtomicU64]>,
    /// A bit for each [`GROUP`] of pages that has marks.
    marked: Box<[AtomicU64]>,
}

impl OfSegment {
    /// Returns `None` without memory.
    fn new(id: u32, len: usize) -> Option<Self> {
        let pages = len.div_ceil(PAGE);
        let lines = pages
            .checked_mul(LINES)?
            .checked_next_multiple_of(ROWS * ROW)?;
        let (used, marks) = (zeroed(pages)?, zeroed(pages)?);
        Some(Self {
            id,
            table: zeroed(lines)?,
            used,
            marks,
            marked: zeroed(pages.div_ceil(GROUP * BITS))?,
        })
    }

    /// Clears bits of `used` in a page. Returns those that were set: the chunks there are the caller's.
    #[inline]
    fn clear(&self, page: usize, bits: u64) -> u64 {
        self.used[page].fetch_and(!bits, Ordering::Acquire) & bits
    }

    /// Returns the chunk that begins at a line.
    ///
    /// # Safety
    ///
    /// The caller has cleared the line's bit, and calls this once.
    #[inline]
    unsafe fn chunk(&self, line: usize) -> Option<Chunk> {
        // Relaxed: the bit has made it visible.
        let raw = NonNull::new(self.table[index(line)].load(Ordering::Relaxed))?;
        // SAFETY: `put` converted it before it set the bit, and the chunk has existed since.
        Some(unsafe { Chunk::from_raw(raw) })
    }

    /// Releases the marked chunks of a group. Returns a marked line without one. Each step is done for all of
    /// them before the next: the reads of the table overlap then, while a release waits for the reads before it.
    fn release_marked(&self, group: usize, chunks: &mut Vec<Chunk>) -> Option<usize> {
        let first = group * GROUP;
        let (mut unknown, mut taken) = (None, [0; GROUP]);
        for (at, marks) in take_words(&self.marks[first..self.marks.len().min(first + GROUP)]) {
            taken[at] = self.clear(first + at, marks);
            unknown = lines(first + at, marks & !taken[at]).next().or(unknown);
        }
        let taken = taken
            .into_iter()
            .enumerate()
            .flat_map(|(at, taken)| lines(first + at, taken));
        // SAFETY: this call cleared the bits.
        chunks.extend(taken.filter_map(|line| unsafe { self.chunk(line) }));
        chunks.drain(..).for_each(Chunk::drop_cold);
        unknown
    }
}

/// # Safety
///
/// Zeros are a valid value.
unsafe trait Zero {}

// SAFETY: the number 0.
unsafe impl Zero for AtomicU64 {}
// SAFETY: a null pointer.
unsafe impl Zero for Entry {}

/// Returns `count` zeroed values, or `None` without memory. The system provides the pages of a large slice as
/// they are written, and far from the heap's short blocks: zenoh has some for each message, and `malloc`
/// takes three times as long if others lie between them.
fn zeroed<T: Zero>(count: usize) -> Option<Box<[T]>> {
    let layout = Layout::array::<T>(count)
        .ok()
        .filter(|layout| layout.size() > 0)?;
    // SAFETY: the size is not zero.
    let start = NonNull::new(unsafe { alloc_zeroed(layout) })?
        .as_ptr()
        .cast();
    // SAFETY: the global allocator returned it for the layout of this slice, whose values are valid (`Zero`).
    Some(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(start, count)) })
}

/// Returns the index of a line's entry. Those of every 16th line of a mebibyte are side by side, so that short
/// chunks of one length have theirs in few cache lines.
#[inline]
fn index(line: usize) -> usize {
    let (block, line) = (line / (ROWS * ROW), line % (ROWS * ROW));
    block * ROWS * ROW + line % ROWS * ROW + line / ROWS
}

/// Returns the lines of a page whose bits are set.
fn lines(page: usize, set: u64) -> impl Iterator<Item = usize> {
    bits(set).map(move |bit| page * LINES + bit)
}

/// Sets a bit. Returns `false` if it was set. One thread at a time sets bits, or takes them all.
#[inline]
fn set(words: &[AtomicU64], bit: usize) -> bool {
    let (word, bit) = (&words[bit / BITS], 1 << (bit % BITS));
    let before = word.load(Ordering::Relaxed);
    word.store(before | bit, Ordering::Relaxed);
    before & bit == 0
}

/// Takes the words that are not zero, with their places.
fn take_words(words: &[AtomicU64]) -> impl Iterator<Item = (usize, u64)> + '_ {
    let take = |word: &AtomicU64| match word.load(Ordering::Relaxed) {
        0 => 0,
        bits => {
            word.store(0, Ordering::Relaxed);
            bits
        }
    };
    words
        .iter()
        .map(take)
        .enumerate()
        .filter(|&(_, bits)| bits != 0)
}

/// Returns the numbers of the bits that are set, in ascending order.
fn bits(mut left: u64) -> impl Iterator<Item = usize> {
    iter::from_fn(move || {
        let bit = left.trailing_zeros() as usize;
        left &= left.wrapping_sub(1);
        (bit < BITS).then_some(bit)
    })
}

/// The chunks in use, by [`Key`].
pub(crate) struct Outstanding {
    slots: [OnceLock<OfSegment>; SLOTS],
    new: Mutex<New>,
    /// Held by the thread whose collection marks chunks (see `freed`). Empty, with room for a group's chunks.
    pub(crate) marking: Mutex<Vec<Chunk>>,
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
        Self {
            segment: segment as u32,
            offset: offset as u32,
        }
    }

    #[inline]
    fn line(self) -> usize {
        self.offset as usize / MIN_SIZE
    }

    /// Returns `true` if a chunk may begin there.
    #[inline]
    fn is_aligned(self) -> bool {
        self.offset as usize & (MIN_SIZE - 1) == 0
    }
}

impl Outstanding {
    pub(crate) fn new() -> Self {
        Self {
            slots: array::from_fn(|_| OnceLock::new()),
            new: Mutex::default(),
            marking: Mutex::new(Vec::with_capacity(GROUP * LINES)),
        }
    }

    /// Returns an id for the next segment, or `None` if all slots are taken. One thread at a time creates
    /// a segment.
    pub(crate) fn next_id(&self, count: u32) -> Option<u32> {
        let slot = self.new.lock().taken.trailing_ones();
        (slot < SLOTS as u32).then(|| (count % COUNTS + FIRST_COUNT) << SLOT_BITS | slot)
    }

    /// Enters a segment of `len` bytes under an id that [`next_id`](Self::next_id) returned. Returns `None`
    /// without memory.
    pub(crate) fn enter(&self, id: u32, len: usize) -> Option<()> {
        let segment = OfSegment::new(id, len)?;
        let mut new = self.new.lock();
        new.segments.try_reserve(1).ok()?;
        new.segments.push(segment);
        new.taken |= 1 << (id as usize % SLOTS);
        Some(())
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

    /// Returns the segment of a chunk and the line in it, if a chunk can begin there.
    #[inline]
    fn place(&self, key: Key) -> Option<(&OfSegment, usize)> {
        let (segment, line) = (self.segment(key)?, key.line());
        (line / LINES < segment.used.len() && key.is_aligned()).then_some((segment, line))
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

    /// Has the system provide the page of a chunk's entry, so that [`put`](Self::put) does not have to.
    pub(crate) fn prepare(&self, key: Key) {
        if let Some((segment, line)) = self.place(key) {
            let (entry, null) = (&segment.table[index(line)], ptr::null_mut());
            // Writes the page, and leaves what is there.
            let _is_entered =
                entry.compare_exchange(null, null, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Records that a chunk is in use. The caller that clears its bit owns it.
    #[inline]
    pub(crate) fn put(&self, mut chunk: Chunk, key: Key) {
        let Some((segment, line)) = self.place(key) else {
            return;
        };
        let is_entered = chunk.tag() == ENTERED;
        chunk.set_tag(ENTERED);
        let raw = chunk.into_raw().as_ptr();
        let entry = &segment.table[index(line)];
        if !is_entered {
            entry.store(raw, Ordering::Relaxed);
        }
        debug_assert_eq!(entry.load(Ordering::Relaxed), raw);
        segment.used[line / LINES].fetch_or(1 << (line % LINES), Ordering::Release);
    }

    /// Takes out the chunk that a descriptor names, if there is one.
    #[inline]
    pub(crate) fn take(&self, key: Key) -> Option<Chunk> {
        let (segment, line) = self.place(key)?;
        if segment.clear(line / LINES, 1 << (line % LINES)) == 0 {
            return None;
        }
        // SAFETY: this call cleared the bit.
        unsafe { segment.chunk(line) }
    }

    /// Marks a chunk to be taken out later. Returns `false` if the descriptor does not name a place for
    /// one, or a marked one. The caller holds `marking`.
    #[inline]
    pub(crate) fn mark(&self, key: Key) -> bool {
        self.place(key).is_some_and(|(segment, line)| {
            set(&segment.marked, line / LINES / GROUP);
            set(&segment.marks, line)
        })
    }

    /// Releases the marked chunks, in the order of their addresses. Returns a marked place without one.
    pub(crate) fn release_marked(&self, chunks: &mut Vec<Chunk>) -> Option<Key> {
        let mut unknown = None;
        for segment in self.segments() {
            for (word, marked) in take_words(&segment.marked) {
                for group in bits(marked).map(|bit| word * BITS + bit) {
                    let line = segment.release_marked(group, chunks);
                    unknown = line
                        .map(|line| Key::new(segment.id.into(), line * MIN_SIZE))
                        .or(unknown);
                }
            }
        }
        unknown
    }

    /// Takes out all chunks.
    pub(crate) fn take_all(&self) -> impl Iterator<Item = Chunk> + '_ {
        self.segments().flat_map(|segment| {
            let taken =
                (0..segment.used.len()).flat_map(|page| lines(page, segment.clear(page, u64::MAX)));
            // SAFETY: this call cleared the bit.
            taken.filter_map(|line| unsafe { segment.chunk(line) })
        })
    }

    /// Returns `true` if no chunk is in use. A chunk that is in use during the whole call is not missed.
    pub(crate) fn is_empty(&self) -> bool {
        // Relaxed: no chunk is read. A bit that was set before this call is seen set.
        self.segments()
            .flat_map(|segment| segment.used.iter())
            .all(|word| word.load(Ordering::Relaxed) == 0)
    }

    fn segments(&self) -> impl Iterator<Item = &OfSegment> {
        self.slots.iter().filter_map(OnceLock::get)
    }
}
