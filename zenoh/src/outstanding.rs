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
//! receiver's lock keeps the name, and creating it again
//! fails.
//!
//! # Orderings
//!
//! | writer | reader | what becomes visible |
//! |---|---|---|
//! | `put`: bit, Release | `take`, `take_marked`, `take_all`: bit, Acquire | the chunk, and its entry |

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

/// The [tag](Chunk::tag) of a chunk that has its entry in the table.
const ENTERED: u8 = 1;

/// The [raw](Chunk::into_raw) chunk that was last in use at a place. It may not exist any more.
type Entry = AtomicPtr<c_void>;

fn entry() -> Entry {
    AtomicPtr::new(ptr::null_mut())
}

/// The chunks in use of one segment. Once the segment has had a chunk, it stays here until this record
/// is dropped, so a wrong descriptor finds a clear bit at worst.
struct OfSegment {
    id: u32,
    groups: Box<[Group]>,
    /// A bit for each group that has marks.
    marked: Box<[AtomicU64]>,
}

/// The chunks in use of a few pages. Only small chunks begin at other lines than a page's first.
struct Group {
    first: [Entry; GROUP],
    /// By [`index`]. Those of the first lines are not used.
    others: OnceLock<Box<[Entry; GROUP * LINES]>>,
    /// A word for each page, with a bit for each line where a chunk in use begins.
    used: [AtomicU64; GROUP],
    /// As `used`, for those to be taken out.
    marks: [AtomicU64; GROUP],
}

impl Group {
    fn new() -> Self {
        Self {
            first: array::from_fn(|_| entry()),
            others: OnceLock::new(),
            used: array::from_fn(|_| AtomicU64::new(0)),
            marks: array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Returns the entry of a line.
    #[inline]
    fn entry(&self, line: usize) -> &Entry {
        match line % LINES {
            0 => &self.first[line / LINES],
            _ => &self.others.get_or_init(|| Box::new(array::from_fn(|_| entry())))[index(line)],
        }
    }

    /// Clears bits of `used` in a page. Returns those that were set: the chunks there are the caller's.
    #[inline]
    fn clear(&self, page: usize, bits: u64) -> u64 {
        self.used[page].fetch_and(!bits, Ordering::Acquire) & bits
    }

    /// Releases the marked chunks. Returns a marked line without one. Each step is done for all of them before
    /// the next: the reads of the table overlap then, while a release waits for all reads before it.
    fn release_marked(&self, chunks: &mut Vec<Chunk>) -> Option<usize> {
        let mut unknown = None;
        let mut taken = [0; GROUP];
        for (page, marks) in take_words(&self.marks) {
            taken[page] = self.clear(page, marks);
            unknown = bits(marks & !taken[page]).map(|bit| page * LINES + bit).next().or(unknown);
        }
        let lines =
            taken.into_iter().enumerate().flat_map(|(page, taken)| bits(taken).map(move |bit| page * LINES + bit));
        // SAFETY: this call cleared the bits.
        chunks.extend(lines.filter_map(|line| unsafe { self.chunk(line) }));
        chunks.drain(..).for_each(Chunk::drop_cold);
        unknown
    }

    /// Returns the chunk that begins at a line.
    ///
    /// # Safety
    ///
    /// The caller has cleared the line's bit, and calls this once.
    #[inline]
    unsafe fn chunk(&self, line: usize) -> Option<Chunk> {
        let raw = NonNull::new(self.entry(line).load(Ordering::Relaxed))?;
        // SAFETY: `put` converted it before it set the bit, and the chunk has existed since.
        Some(unsafe { Chunk::from_raw(raw) })
    }
}

/// Returns the index of a line's entry. Those of every 16th line are side by side, so that short chunks
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

/// Takes the words that are not zero, with their places.
fn take_words(words: &[AtomicU64]) -> impl Iterator<Item = (usize, u64)> + '_ {
    let take = |word: &AtomicU64| match word.load(Ordering::Relaxed) {
        0 => 0,
        bits => {
            word.store(0, Ordering::Relaxed);
            bits
        }
    };
    words.iter().map(take).enumerate().filter(|&(_, bits)| bits != 0)
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

    /// Returns the group of a chunk and the line in it, if a chunk can begin there.
    #[inline]
    fn place(&self, key: Key) -> Option<(&Group, usize)> {
        let (at, line) = key.place();
        Some((self.segment(key)?.groups.get(at).filter(|_| key.is_aligned())?, line))
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

    /// Creates the entry for a chunk, so that [`put`](Self::put) does not have to.
    pub(crate) fn prepare(&self, key: Key) {
        if let Some((group, line)) = self.place(key) {
            group.entry(line);
        }
    }

    /// Records that a chunk is in use. The caller that clears its bit owns it.
    #[inline]
    pub(crate) fn put(&self, mut chunk: Chunk, key: Key) {
        let Some((group, line)) = self.place(key) else { return };
        let is_entered = chunk.tag() == ENTERED;
        chunk.set_tag(ENTERED);
        let raw = chunk.into_raw().as_ptr();
        if !is_entered {
            group.entry(line).store(raw, Ordering::Relaxed);
        }
        debug_assert_eq!(group.entry(line).load(Ordering::Relaxed), raw);
        group.used[line / LINES].fetch_or(1 << (line % LINES), Ordering::Release);
    }

    /// Takes out the chunk that a descriptor names, if there is one.
    #[inline]
    pub(crate) fn take(&self, key: Key) -> Option<Chunk> {
        let (group, line) = self.place(key)?;
        // SAFETY: this call cleared the bit.
        (group.clear(line / LINES, 1 << (line % LINES)) != 0).then(|| unsafe { group.chunk(line) })?
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

    /// Releases the marked chunks, in the order of their addresses. Returns a marked place without one.
    pub(crate) fn release_marked(&self, chunks: &mut Vec<Chunk>) -> Option<Key> {
        let mut unknown = None;
        for segment in self.segments() {
            for (word, marked) in take_words(&segment.marked) {
                for at in bits(marked).map(|bit| word * BITS + bit) {
                    let group = &segment.groups[at];
                    let place = |line| Key::new(segment.id.into(), (at * GROUP * LINES + line) * MIN_SIZE);
                    unknown = group.release_marked(chunks).map(place).or(unknown);
                }
            }
        }
        unknown
    }

    /// Takes out all chunks.
    pub(crate) fn take_all(&self) -> impl Iterator<Item = Chunk> + '_ {
        let groups = self.segments().flat_map(|segment| segment.groups.iter());
        groups.flat_map(|group| {
            (0..GROUP).flat_map(move |page| {
                // SAFETY: this call cleared the bit.
                bits(group.clear(page, u64::MAX)).filter_map(move |bit| unsafe { group.chunk(page * LINES + bit) })
            })
        })
    }

    /// Returns `true` if no chunk is in use. A chunk that is in use during the whole call is not missed.
    pub(crate) fn is_empty(&self) -> bool {
        // Relaxed: no chunk is read. A bit that was set before this call is seen set.
        let mut words = self.segments().flat_map(|segment| segment.groups.iter()).flat_map(|group| &group.used);
        words.all(|word| word.load(Ordering::Relaxed) == 0)
    }

    fn segments(&self) -> impl Iterator<Item = &OfSegment> {
        self.slots.iter().filter_map(OnceLock::get)
    }
}
