//! Size classes, options, the account of memory, and the errors of a request beyond any of them.
//!
//! # Size classes
//!
//! Up to 2 KiB there is a class for each multiple of a cache line. Above, there are 32 evenly
//! spaced classes per doubling, so a class is at most 3.2 % larger than the smallest length that
//! needs it.

#![forbid(unsafe_code)]

use crate::error::{explained, Advice, BuildError, Explain, OsError, OutOfRange};
use crate::os::mapping::can_prefer_node;
use crate::os::posix::{has_heap, huge_page_size, page_size, round_to_pages, PAGE};
use crate::os::segment::Memory;
use crate::owner::free_list::NoMemory;
use crate::protocol::descriptor::MAX_LEN;
use crate::protocol::ids::PeerId;
use crate::protocol::record::MAX_GRANTS;
use std::fmt;
use std::io;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use thiserror::Error;

explained!(AllocError CapacityError ShareError);

/// The smallest class, and the alignment of every chunk: a cache line, so that no two messages
/// share one.
pub(crate) const MIN_SIZE: usize = 64;

const MIN_SHIFT: u32 = MIN_SIZE.trailing_zeros();

/// log2 of the number of classes per doubling.
const STEP_SHIFT: u32 = 5;

/// log2 of the length up to which the classes are a cache line apart.
const LINEAR_SHIFT: u32 = MIN_SHIFT + STEP_SHIFT;

/// Returns the smallest `c` with `size_of_class(c) >= len`, which may exceed the pool's classes.
#[inline]
pub(crate) const fn class_of(len: usize) -> usize {
    let last = len.saturating_sub(1);
    let log2 = (last | 1 << LINEAR_SHIFT).ilog2();
    (((log2 - LINEAR_SHIFT) as usize) << STEP_SHIFT) + (last >> (log2 - STEP_SHIFT))
}

pub(crate) const fn size_of_class(class: usize) -> usize {
    const PER_DOUBLING: usize = 1 << STEP_SHIFT;
    if class < PER_DOUBLING {
        return (class + 1) << MIN_SHIFT;
    }
    let steps = PER_DOUBLING + 1 + class % PER_DOUBLING;
    let shift = MIN_SHIFT + (class / PER_DOUBLING - 1) as u32;
    // `steps` needs at most `STEP_SHIFT + 2` bits.
    if shift > usize::BITS - STEP_SHIFT - 2 {
        return usize::MAX;
    }
    steps << shift
}

/// Returns what a chunk for `len` bytes takes of the cap.
pub(crate) fn chunk_size(len: usize) -> usize {
    let size = size_of_class(class_of(len));
    let page = page_size();
    if size < PAGES * page {
        return size;
    }
    size.checked_next_multiple_of(page).unwrap_or(usize::MAX)
}

/// The shortest heap in bytes, while the arenas can grow.
pub(crate) const SHORTEST_HEAP: usize = 64 << 10;

/// The shortest heap where they cannot.
pub(crate) const LAST_HEAP: usize = 32 << 10;

/// Returns what `count` chunks for `len` bytes take of the cap with the heaps that they are carved
/// from.
pub(crate) fn room_for(len: usize, count: usize) -> usize {
    let page = page_size();
    let size = chunk_size(len);
    let in_heap = if size < LAST_HEAP {
        LAST_HEAP.div_ceil(size)
    } else {
        1
    };
    let heap = size
        .saturating_mul(in_heap)
        .checked_next_multiple_of(page)
        .unwrap_or(usize::MAX);
    count.div_ceil(in_heap).saturating_mul(heap)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grain {
    /// Cache lines, out of a heap.
    Line,
    /// Pages, out of an arena.
    Page,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    pub(crate) size: usize,
    pub(crate) grain: Grain,
}

/// Classes of at least this many pages are whole pages. Smaller ones are carved by cache lines.
const PAGES: usize = 32;

const FIRST_SHARE: usize = 32;

const MIN_ARENA: usize = 64 << 10;

/// The longest segment of a provider, and so its largest message.
pub(crate) const LONGEST: usize = 64 << 30;

const MAX_IDLE: usize = 1 << 20;

/// The default idle cap of a class: this share of `max_bytes`, within these bounds.
const IDLE_SHARE: usize = 8;
const USUAL_IDLE: std::ops::RangeInclusive<usize> = 256..=8192;

/// Upper bounds of a new pool's private memory in bytes: of each class, and of the rest.
const BOOKS_OF_CLASS: usize = 512;
const BOOKS: usize = 96 << 10;

const DEFAULT_IDLE_WINDOW: u64 = 1 << 15;

const MAX_IDLE_WINDOW: u64 = 1 << 31;

/// Uses of a chunk are counted in batches of this size, a power of two.
pub(crate) const COUNTED: u64 = 64;

/// Options that few programs need, for [`ProviderBuilder::tuning`](crate::ProviderBuilder::tuning)
/// and [`BackendBuilder::tuning`](crate::backend::BackendBuilder::tuning). `build` checks them.
#[derive(Clone, Debug)]
#[must_use = "options have no effect until they are passed to a builder"]
pub struct Tuning {
    arena_size: Option<usize>,
    idle_window: u64,
    huge_pages: bool,
    numa_node: Option<u32>,
}

impl Default for Tuning {
    fn default() -> Self {
        Self::new()
    }
}

impl Tuning {
    /// Returns the default options.
    pub const fn new() -> Self {
        Self {
            arena_size: None,
            idle_window: DEFAULT_IDLE_WINDOW,
            huge_pages: false,
            numa_node: None,
        }
    }

    /// Sets the length of the first segment in bytes, from 1 to `max_bytes` and at most the longest
    /// segment (of a provider: 64 GiB), rounded up to whole pages and to a multiple of the first
    /// message's chunk.
    ///
    /// With [`room_for`](crate::ProviderBuilder::room_for) it is as long as the cap, and `build`
    /// refuses a shorter one.
    ///
    /// Default: a 32nd of `max_bytes`, but at least 64 KiB and eight of the first message; with
    /// [`max_idle_per_class`](crate::ProviderBuilder::max_idle_per_class) 0, one message. Each
    /// further segment is at least as long as all earlier ones together. All of this is only
    /// address space.
    pub const fn arena_size(mut self, bytes: usize) -> Self {
        self.arena_size = Some(bytes);
        self
    }

    /// Sets the number of allocations after which memory that was idle throughout is returned to
    /// the system: from 0 (never) to 2,147,483,648, rounded up to a multiple of 64; default 32,768.
    /// Such a window also has at least 128 allocations for each existing chunk.
    ///
    /// Idle throughout were, of a class's queue, the lowest number that a take has left; and
    /// between chunks, the memory that was there at the end of two windows. If that is at least a
    /// 1024th of `max_bytes`, about every 64th allocation evicts at most 64 chunks, and returns up to
    /// 1 MiB, at some 40 ns per 4 KiB page. [Reserved](crate::Provider::reserve) chunks stay. A publisher that allocates
    /// only reserved lengths has to call [`Provider::trim`](crate::Provider::trim).
    pub const fn idle_window(mut self, allocations: u64) -> Self {
        self.idle_window = allocations;
        self
    }

    /// Advises the kernel to put reserved memory into huge pages (2 MiB on x86-64), so that large
    /// messages cause fewer TLB misses. Needs Linux 6.1. Default `false`.
    ///
    /// A huge page is made when the last of its small pages is reserved, so it takes no more
    /// memory. Reserving takes about twice as long: [`reserve`](crate::Provider::reserve) at the
    /// start. A tmpfs mounted with `huge=always` ([`directory`](crate::Namespace::in_directory))
    /// has huge pages without this option, faster, but takes up to one more for each piece.
    pub const fn huge_pages(mut self, advise: bool) -> Self {
        self.huge_pages = advise;
        self
    }

    /// Prefers this NUMA node for payload memory. Default: the node of the thread that allocates
    /// first.
    pub const fn numa_node(mut self, node: u32) -> Self {
        self.numa_node = Some(node);
        self
    }

    /// Makes the first arena as long as the cap. Fails if a shorter one is set.
    pub(crate) fn use_one_arena(&mut self, max_bytes: usize) -> Result<(), BuildError> {
        let longest = max_bytes.clamp(1, LONGEST);
        let arena_size = *self.arena_size.get_or_insert(longest);
        range("arena_size", arena_size, longest, LONGEST)
    }

    pub(crate) fn memory(&self, is_locked: bool) -> Result<Memory, BuildError> {
        if let Some(node) = self.numa_node {
            if let Err(error) = can_prefer_node(node) {
                let source = OsError::new("mbind", "this process", error);
                return Err(BuildError::NumaNode { node, source });
            }
        }
        let huge_page = if self.huge_pages {
            huge_page_size()
        } else {
            None
        };
        Ok(Memory {
            is_locked,
            huge_page,
            numa_node: self.numa_node,
        })
    }
}

/// The checked options, in bytes and whole pages.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) max_bytes: usize,
    pub(crate) max_alloc: usize,
    /// Idle chunks of a class. `None`: an [`IDLE_SHARE`]th of the cap.
    max_idle: Option<usize>,
    pub(crate) first_arena: First,
    pub(crate) longest_arena: usize,
    /// Allocations in a window: a multiple of [`COUNTED`], or 0 if windows never end.
    pub(crate) idle_window: u64,
    pub(crate) page: usize,
    /// The classes that there is room for, by
    /// [`room_for`](crate::ProviderBuilder::room_for), sorted.
    pub(crate) planned: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum First {
    Given(usize),
    /// This many bytes, or longer for long messages.
    Usual(usize),
    /// As long as the message it is made for, and removed with that message.
    OneMessage,
}

pub(crate) fn range(
    option: &'static str,
    value: usize,
    min: usize,
    max: usize,
) -> Result<(), BuildError> {
    OutOfRange::check(option, value, min, max).map_err(BuildError::OutOfRange)
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ClassShape {
    pub(crate) need: Need,
    pub(crate) align: usize,
    pub(crate) max_idle: usize,
}

impl ClassShape {
    pub(crate) fn size(&self) -> usize {
        self.need.size
    }
}

impl Limits {
    pub(crate) fn new(
        max_bytes: usize,
        max_alloc: Option<usize>,
        max_idle: Option<usize>,
        tuning: &Tuning,
        longest: usize,
    ) -> Result<Self, BuildError> {
        range("max_bytes", max_bytes, 1, MAX_LEN)?;
        let page = page_size();
        let pages = |bytes| round_to_pages(bytes).unwrap_or(bytes);
        let max_bytes = pages(max_bytes);
        let longest = longest / page * page;
        let largest = max_bytes.min(longest);

        let max_alloc = max_alloc.unwrap_or(largest);
        range("max_alloc", max_alloc, 1, largest)?;
        let max_alloc = pages(max_alloc);

        let first_arena = match tuning.arena_size {
            Some(bytes) => {
                range("arena_size", bytes, 1, largest)?;
                First::Given(pages(bytes))
            }
            None => {
                let usual = (max_bytes / FIRST_SHARE).max(MIN_ARENA).min(largest);
                First::Usual(pages(usual))
            }
        };

        if let Some(max_idle) = max_idle {
            range("max_idle_per_class", max_idle, 0, MAX_IDLE)?;
        }

        let window = usize::try_from(tuning.idle_window).unwrap_or(usize::MAX);
        let longest_window = usize::try_from(MAX_IDLE_WINDOW).unwrap_or(usize::MAX);
        range("idle_window", window, 0, longest_window)?;

        let bytes = (class_of(max_alloc) + PAGES) * BOOKS_OF_CLASS + BOOKS;
        if !has_heap(bytes) {
            return Err(BuildError::OutOfMemory { bytes });
        }
        Ok(Self {
            max_bytes,
            max_alloc,
            max_idle,
            first_arena,
            longest_arena: longest,
            idle_window: tuning.idle_window.next_multiple_of(COUNTED),
            page,
            planned: Vec::new(),
        })
    }

    pub(crate) fn is_planned(&self, class: usize) -> bool {
        self.planned.binary_search(&class).is_ok()
    }

    pub(crate) fn keeps_nothing(&self) -> bool {
        self.max_idle == Some(0)
    }

    pub(crate) fn classes(&self) -> usize {
        class_of(self.max_alloc) + 1
    }

    /// The classes of ordinary alignment, the large ones being whole pages; then those of small
    /// page-aligned messages, one for each number of pages.
    pub(crate) fn shapes(&self) -> Vec<ClassShape> {
        let page = self.page;
        let (least, most) = USUAL_IDLE.into_inner();
        let shape = |size: usize, grain, align| {
            let usual_idle = (self.max_bytes / IDLE_SHARE / size).clamp(least, most);
            ClassShape {
                need: Need { size, grain },
                align,
                max_idle: self.max_idle.unwrap_or(usual_idle),
            }
        };
        let whole_pages = |size: usize| shape(size.next_multiple_of(page), Grain::Page, PAGE);

        let mut shapes = Vec::with_capacity(self.classes() + PAGES - 1);
        for class in 0..self.classes() {
            let size = size_of_class(class).min(self.max_alloc);
            if size < PAGES * page {
                shapes.push(shape(size, Grain::Line, MIN_SIZE));
            } else {
                shapes.push(whole_pages(size));
            }
        }
        for pages in 1..PAGES {
            let size = pages * page;
            if size > self.max_alloc {
                break;
            }
            shapes.push(whole_pages(size));
        }
        shapes
    }

    #[inline]
    pub(crate) fn class(&self, len: usize, align: usize) -> Result<usize, AllocError> {
        if align > PAGE {
            return Err(AllocError::UnsupportedAlignment(align));
        }
        if len > self.max_alloc {
            return Err(AllocError::TooLarge {
                len,
                max: self.max_alloc,
            });
        }
        if align <= MIN_SIZE {
            Ok(class_of(len))
        } else {
            Ok(self.page_aligned(len))
        }
    }

    fn page_aligned(&self, len: usize) -> usize {
        let pages = len.max(1).div_ceil(self.page);
        if pages < PAGES {
            self.classes() + pages - 1
        } else {
            class_of(pages * self.page)
        }
    }
}

#[derive(Default)]
pub(crate) struct Account {
    held: AtomicUsize,
    peak: AtomicUsize,
    created: AtomicU64,
}

impl Account {
    pub(crate) fn take(&self, bytes: usize) {
        let held = self.held.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(held, Ordering::Relaxed);
    }

    pub(crate) fn release(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_segment(&self) {
        self.created.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn uncount_segment(&self) {
        self.created.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    pub(crate) fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    pub(crate) fn created(&self) -> u64 {
        self.created.load(Ordering::Relaxed)
    }
}

/// The error of an allocation.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AllocError {
    /// The length exceeds the provider's largest allocation.
    TooLarge {
        /// Requested length in bytes.
        len: usize,
        /// Largest allocation in bytes.
        max: usize,
    },
    /// The alignment exceeds [`Provider::MAX_ALIGN`](crate::Provider::MAX_ALIGN).
    UnsupportedAlignment(usize),
    /// The cap is reached, and the memory that is neither in use nor leased is too small or
    /// scattered.
    Exhausted {
        /// Size of the required chunk in bytes: the requested length, rounded up.
        len: usize,
        /// The cap in bytes.
        max_bytes: usize,
        /// Bytes of chunks that this process holds handles to.
        in_use: usize,
        /// All other bytes under the cap: idle chunks and free parts of the segments.
        idle: usize,
        /// Bytes of chunks that this process has dropped, and that peers still lease or receivers of
        /// channels have borrowed. A chunk that a peer began to lease only after the drop may be
        /// among the idle ones; [`Stats`](crate::Stats) tells them apart.
        leased: usize,
    },
    /// No memory was released in time, and a last attempt found none.
    TimedOut {
        /// The time limit of the wait.
        timeout: Duration,
        /// Why the allocation failed when the wait began.
        source: Box<AllocError>,
    },
    /// [`Provider::close_waits`](crate::Provider::close_waits) was called.
    Interrupted,
    /// More chunks than the provider may keep idle.
    ReserveTooMany {
        /// Requested number of chunks.
        count: usize,
        /// The idle cap.
        max: usize,
    },
    /// A reserved chunk could not be prepared for sharing.
    ReserveShare(#[source] ShareError),
    /// This process is a forked child of the one that built the provider.
    Forked,
    /// The operating system refused a segment, or memory for it.
    Os(OsError),
}

impl AllocError {
    /// Returns `true` if there was too little memory, so that the same call may succeed later: at
    /// the cap, or in the system (`ENOSPC`, `EDQUOT`, `ENOMEM`).
    pub fn is_exhausted(&self) -> bool {
        match self {
            Self::Exhausted { .. } => true,
            Self::Os(error) => error.is_out_of_memory(),
            Self::TimedOut { source, .. } => source.is_exhausted(),
            _ => false,
        }
    }

    /// Returns `true` if no memory was released in time.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::TimedOut { .. })
    }

    /// Returns `true` if the same call may succeed later: when memory is released, or the system
    /// has descriptors again.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Os(error) => error.is_retryable(),
            Self::ReserveShare(error) => error.is_retryable(),
            _ => self.is_exhausted(),
        }
    }

    pub(crate) fn io_kind(&self) -> io::ErrorKind {
        match self {
            Self::TooLarge { .. }
            | Self::UnsupportedAlignment { .. }
            | Self::ReserveTooMany { .. } => io::ErrorKind::InvalidInput,
            Self::Exhausted { .. } => io::ErrorKind::OutOfMemory,
            Self::TimedOut { .. } => io::ErrorKind::TimedOut,
            Self::Interrupted => io::ErrorKind::Interrupted,
            Self::ReserveShare(error) => error.io_kind(),
            Self::Forked => io::ErrorKind::Other,
            Self::Os(error) => error.io_kind(),
        }
    }
}

impl Explain for AllocError {
    fn write_facts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { len, max } => write!(
                f,
                "{len} bytes are more than this provider's largest allocation of {max} bytes"
            ),
            Self::UnsupportedAlignment(align) => write!(
                f,
                "an alignment of {align} bytes is not supported: the largest is {PAGE} bytes"
            ),
            Self::Exhausted {
                len,
                max_bytes,
                in_use,
                idle,
                leased,
            } => write!(
                f,
                "no room for {len} bytes under max_bytes {max_bytes}: {in_use} bytes are in use by \
                 this process, {leased} are leased by peers or lent to receivers, and {idle} are \
                 idle, but in pieces that are too small"
            ),
            Self::TimedOut { timeout, .. } => {
                write!(f, "not enough memory was released within {timeout:?}")
            }
            Self::Interrupted => write!(f, "this provider's waits for memory were closed"),
            Self::ReserveTooMany { count, max } => write!(
                f,
                "cannot reserve {count} buffers: at most {max} of a size are kept idle"
            ),
            Self::ReserveShare(_) => write!(f, "a reserved buffer cannot be prepared for sharing"),
            Self::Forked => write!(
                f,
                "the provider belongs to the parent of this forked process"
            ),
            Self::Os(error) => write!(f, "{error}"),
        }
    }

    fn find_advice(&self) -> Option<Advice> {
        match self {
            Self::TooLarge { .. } => Some(Advice::RaiseMaxAlloc),
            Self::Exhausted { .. } => Some(Advice::MakeRoom),
            Self::ReserveTooMany { .. } => Some(Advice::RaiseMaxIdle),
            Self::Forked => Some(Advice::CreateInThisProcess),
            _ => None,
        }
    }
}

/// An [`AllocError`] on its way through the pool, one pointer wide: success is returned in few
/// words.
#[derive(Debug)]
pub(crate) struct Refusal(Box<AllocError>);

impl Refusal {
    pub(crate) fn is_at_the_cap(&self) -> bool {
        matches!(*self.0, AllocError::Exhausted { .. })
    }
}

impl Deref for Refusal {
    type Target = AllocError;

    fn deref(&self) -> &AllocError {
        &self.0
    }
}

impl From<AllocError> for Refusal {
    #[cold]
    fn from(error: AllocError) -> Self {
        Self(Box::new(error))
    }
}

impl From<OsError> for Refusal {
    #[cold]
    fn from(error: OsError) -> Self {
        AllocError::Os(error).into()
    }
}

impl From<Refusal> for AllocError {
    #[cold]
    fn from(refusal: Refusal) -> Self {
        *refusal.0
    }
}

/// The error of sharing a buffer with peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ShareError {
    /// As many buffers are shared, leased or reserved as can be.
    TooManyShared {
        /// The number of buffers.
        max: usize,
    },
    /// The peer has disconnected or died since it sent its id.
    PeerDisconnected(PeerId),
    /// The peer id belongs to another provider's control object.
    OtherProvider(PeerId),
    /// The peer has not claimed 7 earlier grants of this same buffer, the maximum.
    TooManyGrants(PeerId),
    /// The peer holds so many bytes that this grant would exceed
    /// [`ProviderBuilder::max_bytes_per_peer`](crate::ProviderBuilder::max_bytes_per_peer).
    OverQuota {
        /// The peer.
        peer: PeerId,
        /// The message's length in bytes.
        len: u64,
        /// The bytes that it reads or was granted.
        held: u64,
        /// The limit.
        max: u64,
    },
    /// No private memory for the queue of leased chunks.
    OutOfMemory {
        /// Requested bytes.
        bytes: usize,
    },
    /// This process is a forked child of the owner.
    Forked,
}

impl ShareError {
    /// Returns `true` if the same call may succeed later: when shared buffers or views are dropped,
    /// or grants are taken up.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::TooManyShared { .. }
                | Self::TooManyGrants { .. }
                | Self::OverQuota { .. }
                | Self::OutOfMemory { .. }
        )
    }

    pub(crate) fn io_kind(&self) -> io::ErrorKind {
        match self {
            Self::TooManyShared { .. } | Self::TooManyGrants { .. } | Self::OverQuota { .. } => {
                io::ErrorKind::WouldBlock
            }
            Self::PeerDisconnected(_) => io::ErrorKind::BrokenPipe,
            Self::OtherProvider { .. } => io::ErrorKind::InvalidInput,
            Self::OutOfMemory { .. } => io::ErrorKind::OutOfMemory,
            Self::Forked => io::ErrorKind::Other,
        }
    }
}

impl Explain for ShareError {
    fn write_facts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyShared { max } => {
                write!(f, "{max} buffers are shared or reserved, the maximum")
            }
            Self::PeerDisconnected(peer) => write!(f, "peer {peer} has disconnected or died"),
            Self::OtherProvider(peer) => {
                write!(f, "peer {peer} is not connected to the buffer's provider")
            }
            Self::TooManyGrants(peer) => {
                write!(
                    f,
                    "peer {peer} has {MAX_GRANTS} pending grants of this buffer, the maximum"
                )
            }
            Self::OverQuota {
                peer,
                len,
                held,
                max,
            } => write!(
                f,
                "a grant of {len} bytes is over the quota: peer {peer} holds {held} bytes of {max}"
            ),
            Self::OutOfMemory { bytes } => write!(
                f,
                "no private memory for the list of shared buffers ({bytes} bytes)"
            ),
            Self::Forked => write!(
                f,
                "the buffer's provider belongs to the parent of this forked process"
            ),
        }
    }

    fn find_advice(&self) -> Option<Advice> {
        match self {
            Self::TooManyShared { .. } => Some(Advice::RaiseMaxShared),
            Self::PeerDisconnected(_) => Some(Advice::SkipPeer),
            Self::TooManyGrants { .. } => Some(Advice::WaitForAttach),
            Self::OverQuota { .. } => Some(Advice::WaitForViews),
            Self::OutOfMemory { .. } => Some(Advice::LowerMaxShared),
            Self::Forked => Some(Advice::CreateInThisProcess),
            _ => None,
        }
    }
}

impl From<NoMemory> for ShareError {
    fn from(error: NoMemory) -> Self {
        Self::OutOfMemory { bytes: error.bytes }
    }
}

/// The requested length exceeds the buffer's capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub struct CapacityError {
    pub(crate) len: usize,
    pub(crate) capacity: usize,
}

impl CapacityError {
    /// For crates that hand out buffers of a [`backend`](crate::backend).
    #[cfg(feature = "unstable-backend")]
    pub fn new(len: usize, capacity: usize) -> Self {
        Self { len, capacity }
    }

    pub(crate) fn io_kind(&self) -> io::ErrorKind {
        io::ErrorKind::InvalidInput
    }
}

impl Explain for CapacityError {
    fn write_facts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { len, capacity } = self;
        write!(
            f,
            "a length of {len} bytes exceeds the buffer's capacity of {capacity} bytes"
        )
    }

    fn find_advice(&self) -> Option<Advice> {
        Some(Advice::AllocLarger)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_quota_is_a_lack_of_memory() {
        let quota = std::io::Error::from_raw_os_error(libc::EDQUOT);
        let error = AllocError::Os(OsError::new("posix_fallocate", "/dev/shm/x", quota));
        assert!(error.is_exhausted() && error.is_retryable(), "{error}");
    }

    #[test]
    fn first_classes() {
        let sizes =
            |classes: std::ops::Range<usize>| classes.map(size_of_class).collect::<Vec<_>>();
        assert_eq!(sizes(0..3), [64, 128, 192]);
        assert_eq!(sizes(30..34), [1984, 2048, 2112, 2176]);
        assert_eq!(sizes(62..66), [4032, 4096, 4224, 4352]);
        assert_eq!(class_of(0), 0);
        assert_eq!(class_of(64), 0);
        assert_eq!(class_of(65), 1);
    }

    #[test]
    fn boundaries_round_trip() {
        for class in 0..1600 {
            let size = size_of_class(class);
            assert_eq!(
                class_of(size),
                class,
                "a length of exactly {size} belongs to its own class"
            );
            assert_eq!(
                class_of(size + 1),
                class + 1,
                "one byte more belongs to the next"
            );
            assert!(size_of_class(class + 1) > size);
        }
    }

    proptest! {
        #[test]
        fn class_waste(len in 0usize..1 << 48) {
            let size = size_of_class(class_of(len));
            prop_assert!(size >= len);
            prop_assert!(size - len < MIN_SIZE || (size - len) * 32 < len, "{len} rounds to {size}");
        }

        #[test]
        fn monotone(a in 0usize..1 << 48, b in 0usize..1 << 48) {
            let (small, large) = (a.min(b), a.max(b));
            prop_assert!(class_of(small) <= class_of(large));
        }

        #[test]
        fn any_length(len: usize) {
            let class = class_of(len);
            prop_assert!(size_of_class(class) >= len);
        }
    }

    #[test]
    fn table_covers_lengths_and_alignments() {
        for max_alloc in [
            1,
            64,
            4096,
            5 * 4096,
            126 << 10,
            128 << 10,
            (128 << 10) + 1,
            1 << 20,
            33_000_000,
        ] {
            for page in [4 << 10, 16 << 10, 64 << 10] {
                let limits =
                    Limits::new(1 << 30, Some(max_alloc), Some(8), &Tuning::new(), LONGEST)
                        .unwrap();
                let limits = Limits {
                    page,
                    max_alloc: max_alloc.next_multiple_of(page),
                    ..limits
                };
                let shapes = limits.shapes();
                let lines = &shapes[..limits.classes()];
                assert_eq!(lines.last().map(ClassShape::size), Some(limits.max_alloc));
                assert!(lines
                    .windows(2)
                    .all(|pair| pair[0].size() <= pair[1].size()));
                for len in (0..=limits.max_alloc)
                    .step_by(limits.max_alloc / 1000 + 1)
                    .chain([limits.max_alloc])
                {
                    let (line, page) = (lines[class_of(len)], shapes[limits.page_aligned(len)]);
                    assert!(
                        line.size() >= len && page.size() >= len,
                        "{len}: {line:?} {page:?}"
                    );
                    assert_eq!(
                        (page.align, page.size() % limits.page),
                        (PAGE, 0),
                        "{len}: {page:?}"
                    );
                    let wasted = line.size() - len;
                    assert!(
                        wasted <= MIN_SIZE || line.size() == limits.max_alloc || wasted * 32 <= len,
                        "{len} in {line:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn rounds_up_to_pages() {
        let page = page_size();
        for (bytes, pages) in [
            (1, 1),
            (42, 1),
            (page, 1),
            (page + 1, 2),
            (5 * page / 2, 3),
            (20 * page - 1, 20),
        ] {
            let limits = Limits::new(bytes, None, Some(8), &Tuning::new(), LONGEST).unwrap();
            assert_eq!(
                (limits.max_bytes, limits.max_alloc),
                (pages * page, pages * page)
            );
        }
    }

    #[test]
    fn default_idle_cap() {
        let limits = Limits::new(64 << 20, None, None, &Tuning::new(), LONGEST).unwrap();
        let idle = |size| {
            limits
                .shapes()
                .iter()
                .find(|shape| shape.size() == size)
                .map(|shape| shape.max_idle)
        };
        assert_eq!(
            [64, 1 << 10, 4 << 10, 64 << 10].map(idle),
            [8192, 8192, 2048, 256].map(Some)
        );
        assert!(!limits.keeps_nothing());
    }

    #[test]
    fn account() {
        let account = Account::default();
        account.take(60);
        account.take(40);
        account.release(70);
        account.count_segment();
        assert_eq!(
            (account.held(), account.peak(), account.created()),
            (30, 100, 1)
        );
    }
}
