//! The owner's record of the chunks in use, by segment id and offset.
//!
//! zenoh frees a chunk by a descriptor that it read from memory that peers can write. So a descriptor
//! is only a key here, never an address. Each segment has a bitmap with a bit for each place where a
//! chunk can begin. The bit is set while a chunk in use begins there. Freeing one means clearing its
//! bit, which succeeds for one caller only. A descriptor of no chunk in use is ignored.
//!
//! The chunk itself is in a table, which is written when a chunk is first used. So with thousands of
//! messages in flight, an allocation touches a bit, and no line of the table.
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
//! | `insert`: bit, Release | `remove`, `release_marked`, `remove_all`: bit, Acquire | the chunk, and its entry |

use parking_lot::Mutex;
use shm_pool::backend::Chunk;
use std::alloc::{alloc_zeroed, Layout};
use std::array;
use std::ffi::c_void;
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

/// Lines of a page, each of which can be the first of a chunk.
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

/// The [raw](Chunk::into_raw) chunk that was last in use at a line. It may not exist any more.
type Entry = AtomicPtr<c_void>;

/// The chunks in use of one segment. Once the segment has had a chunk, it stays here until this record
/// is dropped, so a wrong descriptor finds a clear bit at worst.
struct SegmentRecord {
    id: u32,
    /// By [`entry_index`].
    table: Box<[Entry]>,
    /// A word for each page, with a bit for each line where a chunk in use begins.
    used: Box<[AtomicU64]>,
    /// As `used`, for those that the collection has freed.
    marks: Box<[AtomicU64]>,
    /// A bit for each [`GROUP`] of pages that has marks.
    marked_groups: Box<[AtomicU64]>,
}

impl SegmentRecord {
    /// Returns `None` without memory.
    fn new(id: u32, len: usize) -> Option<Self> {
        let pages = len.div_ceil(PAGE);
        let lines = pages.checked_mul(LINES)?;
        Some(Self {
            id,
            table: zeroed(lines.checked_next_multiple_of(ROWS * ROW)?)?,
            used: zeroed(pages)?,
            marks: zeroed(pages)?,
            marked_groups: zeroed(pages.div_ceil(GROUP * BITS))?,
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
        let raw = NonNull::new(self.table[entry_index(line)].load(Ordering::Relaxed))?;
        // SAFETY: `insert` converted it before it set the bit, and the chunk has existed since.
        Some(unsafe { Chunk::from_raw(raw) })
    }

    /// Releases the marked chunks of a group, in the order of their addresses. Returns a marked line
    /// where no chunk in use begins, if there is one.
    fn release_marked(&self, group: usize, chunks: &mut Vec<Chunk>) -> Option<usize> {
        let mut unknown = None;
        let first = group * GROUP;
        let last = self.marks.len().min(first + GROUP);

        // Each step is done for all chunks before the next: the reads of the table overlap then,
        // while a release waits for the reads before it.
        let mut cleared = [0; GROUP];
        for page in first..last {
            let marks = take_word(&self.marks[page]);
            if marks == 0 {
                continue;
            }
            let used = self.clear(page, marks);
            cleared[page - first] = used;
            if let Some(line) = Bits(marks & !used).next() {
                unknown = Some(page * LINES + line);
            }
        }
        for page in first..last {
            for line in Bits(cleared[page - first]) {
                // SAFETY: this call cleared the bit.
                chunks.extend(unsafe { self.chunk(page * LINES + line) });
            }
        }
        for chunk in chunks.drain(..) {
            chunk.drop_cold();
        }
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

/// Returns `count` zeroed values, or `None` without memory. The system provides the pages of a large
/// slice as they are written, and far from the heap's short blocks: zenoh has some for each message,
/// and `malloc` takes three times as long if others lie between them.
fn zeroed<T: Zero>(count: usize) -> Option<Box<[T]>> {
    let layout = Layout::array::<T>(count).ok()?;
    if layout.size() == 0 {
        return None;
    }
    // SAFETY: the size is not zero.
    let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
    let slice = ptr::slice_from_raw_parts_mut(start.as_ptr().cast(), count);
    // SAFETY: the global allocator returned it for the layout of this slice, whose values are valid (`Zero`).
    Some(unsafe { Box::from_raw(slice) })
}

/// Returns the index of a line's entry. Those of every 16th line of a mebibyte are side by side, so
/// that short chunks of one length have theirs in few cache lines.
#[inline]
fn entry_index(line: usize) -> usize {
    let block = line / (ROWS * ROW);
    let line = line % (ROWS * ROW);
    block * ROWS * ROW + line % ROWS * ROW + line / ROWS
}

/// Sets a bit. Returns `false` if it was set. One thread at a time sets bits, or takes them all.
#[inline]
fn set(words: &[AtomicU64], index: usize) -> bool {
    let word = &words[index / BITS];
    let bit = 1 << (index % BITS);
    let before = word.load(Ordering::Relaxed);
    word.store(before | bit, Ordering::Relaxed);
    before & bit == 0
}

/// Returns the bits of a word, and clears them.
#[inline]
fn take_word(word: &AtomicU64) -> u64 {
    let bits = word.load(Ordering::Relaxed);
    if bits != 0 {
        word.store(0, Ordering::Relaxed);
    }
    bits
}

/// The numbers of the bits that are set in a word, in ascending order.
struct Bits(u64);

impl Iterator for Bits {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(bit)
    }
}

/// The chunks in use, by [`Key`].
pub(crate) struct ChunksInUse {
    slots: [OnceLock<SegmentRecord>; SLOTS],
    unused: Mutex<UnusedSegments>,
    /// Held by the thread whose collection marks chunks. Empty, with room for a group's chunks.
    pub(crate) marking: Mutex<Vec<Chunk>>,
}

/// Segments that had no chunk yet.
#[derive(Default)]
struct UnusedSegments {
    segments: Vec<SegmentRecord>,
    /// One bit for each slot that belongs to a segment, here or in `slots`.
    taken_slots: u64,
}

impl UnusedSegments {
    fn remove(&mut self, id: u32) -> Option<SegmentRecord> {
        let index = self.segments.iter().position(|segment| segment.id == id)?;
        Some(self.segments.swap_remove(index))
    }
}

/// Where a chunk begins, in zenoh's terms.
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
        // Ids come from `ChunksInUse::next_id` and have 32 bits. Segments have at most 4 GiB, so
        // offsets have 32 bits too.
        Self {
            segment: segment as u32,
            offset: offset as u32,
        }
    }
}

impl ChunksInUse {
    pub(crate) fn new() -> Self {
        Self {
            slots: array::from_fn(|_| OnceLock::new()),
            unused: Mutex::default(),
            marking: Mutex::new(Vec::with_capacity(GROUP * LINES)),
        }
    }

    /// Returns an id for the next segment, or `None` if all slots are taken. One thread at a time creates
    /// a segment.
    pub(crate) fn next_id(&self, count: u32) -> Option<u32> {
        let slot = self.unused.lock().taken_slots.trailing_ones();
        if slot == SLOTS as u32 {
            return None;
        }
        Some((count % COUNTS + FIRST_COUNT) << SLOT_BITS | slot)
    }

    /// Adds a segment of `len` bytes under an id that [`next_id`](Self::next_id) returned. Returns `None`
    /// without memory.
    pub(crate) fn add_segment(&self, id: u32, len: usize) -> Option<()> {
        let segment = SegmentRecord::new(id, len)?;
        let mut unused = self.unused.lock();
        unused.segments.try_reserve(1).ok()?;
        unused.segments.push(segment);
        unused.taken_slots |= 1 << (id as usize % SLOTS);
        Some(())
    }

    /// Frees the slot of a segment that is removed, if it never had a chunk.
    pub(crate) fn remove_segment(&self, id: u32) {
        let mut unused = self.unused.lock();
        if unused.remove(id).is_some() {
            unused.taken_slots &= !(1 << (id as usize % SLOTS));
        }
    }

    #[inline]
    fn segment(&self, id: u32) -> Option<&SegmentRecord> {
        let slot = &self.slots[id as usize % SLOTS];
        let segment = match slot.get() {
            Some(segment) => segment,
            None => self.fill_slot(id, slot)?,
        };
        if segment.id != id {
            return None;
        }
        Some(segment)
    }

    /// Moves a segment to its slot, with its first chunk.
    #[cold]
    fn fill_slot<'a>(
        &self,
        id: u32,
        slot: &'a OnceLock<SegmentRecord>,
    ) -> Option<&'a SegmentRecord> {
        let mut unused = self.unused.lock();
        if let Some(segment) = unused.remove(id) {
            // Its slot is empty: the slot's bit was set when it was added.
            let _was_empty = slot.set(segment);
        }
        slot.get()
    }

    /// Returns the segment of a chunk and the line in it, if a chunk can begin there.
    #[inline]
    fn locate(&self, key: Key) -> Option<(&SegmentRecord, usize)> {
        let segment = self.segment(key.segment)?;
        let offset = key.offset as usize;
        if !offset.is_multiple_of(MIN_SIZE) || offset / PAGE >= segment.used.len() {
            return None;
        }
        Some((segment, offset / MIN_SIZE))
    }

    /// Has the system provide the page of a chunk's entry, so that [`insert`](Self::insert) does not
    /// have to.
    pub(crate) fn prefault(&self, key: Key) {
        let Some((segment, line)) = self.locate(key) else {
            return;
        };
        // Writes the page, and leaves what is there.
        let entry = &segment.table[entry_index(line)];
        let null = ptr::null_mut();
        let _is_entered = entry.compare_exchange(null, null, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Records that a chunk is in use. The caller that clears its bit owns it.
    #[inline]
    pub(crate) fn insert(&self, mut chunk: Chunk, key: Key) {
        let Some((segment, line)) = self.locate(key) else {
            return;
        };
        let is_entered = chunk.tag() == ENTERED;
        chunk.set_tag(ENTERED);
        let raw = chunk.into_raw().as_ptr();
        let entry = &segment.table[entry_index(line)];
        if !is_entered {
            entry.store(raw, Ordering::Relaxed);
        }
        debug_assert_eq!(entry.load(Ordering::Relaxed), raw);
        segment.used[line / LINES].fetch_or(1 << (line % LINES), Ordering::Release);
    }

    /// Removes the chunk that a descriptor names, if there is one.
    #[inline]
    pub(crate) fn remove(&self, key: Key) -> Option<Chunk> {
        let (segment, line) = self.locate(key)?;
        if segment.clear(line / LINES, 1 << (line % LINES)) == 0 {
            return None;
        }
        // SAFETY: this call cleared the bit.
        unsafe { segment.chunk(line) }
    }

    /// Marks a chunk to be released later. Returns `false` if no chunk can begin there, or it is marked
    /// already. The caller holds `marking`.
    #[inline]
    pub(crate) fn mark(&self, key: Key) -> bool {
        let Some((segment, line)) = self.locate(key) else {
            return false;
        };
        set(&segment.marked_groups, line / LINES / GROUP);
        set(&segment.marks, line)
    }

    /// Releases the marked chunks, in the order of their addresses. Returns a mark where no chunk in use
    /// begins, if there is one.
    pub(crate) fn release_marked(&self, chunks: &mut Vec<Chunk>) -> Option<Key> {
        let mut unknown = None;
        for segment in self.segments() {
            for (index, word) in segment.marked_groups.iter().enumerate() {
                for bit in Bits(take_word(word)) {
                    let line = segment.release_marked(index * BITS + bit, chunks);
                    if let Some(line) = line {
                        unknown = Some(Key::new(segment.id.into(), line * MIN_SIZE));
                    }
                }
            }
        }
        unknown
    }

    /// Removes all chunks, and calls `visit` with each.
    pub(crate) fn remove_all(&self, mut visit: impl FnMut(Chunk)) {
        for segment in self.segments() {
            for page in 0..segment.used.len() {
                for line in Bits(segment.clear(page, u64::MAX)) {
                    // SAFETY: this call cleared the bit.
                    if let Some(chunk) = unsafe { segment.chunk(page * LINES + line) } {
                        visit(chunk);
                    }
                }
            }
        }
    }

    /// Returns `true` if no chunk is in use. A chunk that is in use during the whole call is not missed.
    pub(crate) fn is_empty(&self) -> bool {
        for segment in self.segments() {
            for word in &segment.used {
                // Relaxed: no chunk is read. A bit that was set before this call is seen set.
                if word.load(Ordering::Relaxed) != 0 {
                    return false;
                }
            }
        }
        true
    }

    fn segments(&self) -> impl Iterator<Item = &SegmentRecord> {
        self.slots.iter().filter_map(OnceLock::get)
    }
}
