//! The owner's front door: [`Provider`] and its builder.

use crate::error::{BuildError, OsError};
use crate::os::mapping::{can_prefer_node, may_lock};
use crate::os::name::{Namespace, DEFAULT_PREFIX, DIRECTORY};
use crate::os::posix::{huge_page_size, is_object_mode, is_on_hugetlbfs, lock_limit, round_to_pages, PAGE};
use crate::os::segment::Memory;
use crate::owner::buf::ShmBufMut;
use crate::owner::chunk::OwnedChunk;
use crate::owner::class::{class_of, MIN_SIZE};
use crate::owner::control::OwnerControl;
use crate::owner::error::{AllocError, AllocErrorKind};
use crate::owner::limits::{range, Limits, DEFAULT_IDLE_WINDOW, LONGEST};
use crate::owner::pool::Pool;
use crate::owner::request::Request;
use crate::owner::reservation::Reservation;
use crate::owner::segment_factory::Numbered;
use crate::owner::stats::Stats;
use crate::owner::sweep::{self, Swept};
use crate::protocol::control::{control_name, control_size, MAX_RECORDS};
use crate::protocol::ids::ProviderId;
use std::alloc::Layout;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How many times the control object is made before `build` gives up because sweeps remove it.
const SWEPT_TRIES: usize = 16;

const DEFAULT_MAX_BYTES: usize = 1 << 30;
const DEFAULT_MAX_IDLE: usize = 8;
const DEFAULT_MAX_SHARED: usize = 4096;

/// Options of a [`Provider`]. Start with [`Provider::builder`]; every option has a default.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct ProviderBuilder {
    max_bytes: usize,
    max_alloc: Option<usize>,
    max_idle_per_class: usize,
    max_shared: usize,
    arena_size: Option<usize>,
    idle_window: u64,
    mode: u32,
    lock_memory: bool,
    huge_pages: bool,
    numa_node: Option<u32>,
    directory: PathBuf,
    name_prefix: String,
}

impl Default for ProviderBuilder {
    fn default() -> Self {
        Self {
            max_bytes: DEFAULT_MAX_BYTES,
            max_alloc: None,
            max_idle_per_class: DEFAULT_MAX_IDLE,
            max_shared: DEFAULT_MAX_SHARED,
            arena_size: None,
            idle_window: DEFAULT_IDLE_WINDOW,
            mode: 0o600,
            lock_memory: false,
            huge_pages: false,
            numa_node: None,
            directory: PathBuf::from(DIRECTORY),
            name_prefix: DEFAULT_PREFIX.to_owned(),
        }
    }
}

impl ProviderBuilder {
    /// The cap on payload memory: the most bytes of /dev/shm that are held at a time. It is not a
    /// reservation: memory is taken when it is needed. In bytes, at least 1, rounded up to whole
    /// pages; default 1 GiB.
    ///
    /// All messages are carved out of a few segments, whose total length is within the cap and
    /// whose pages take memory when they are first needed. When all of the cap is in use or idle,
    /// memory changes hands inside these segments, and no further one is made. A process that locks
    /// all that it maps (`mlockall`, or zenoh's receivers) takes memory for the whole of a segment.
    ///
    /// The control object comes on top: a page, and 128 bytes for each of
    /// [`max_shared`](Self::max_shared).
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// The largest allocation in bytes, from 1 to `max_bytes` and at most 64 GiB, rounded up to
    /// whole pages; default: the largest that these allow.
    pub fn max_alloc(mut self, bytes: usize) -> Self {
        self.max_alloc = Some(bytes);
        self
    }

    /// How many free chunks are kept per size class, from 0 to 1,048,576; default 8. Others go back
    /// to the segments they were carved out of, without a system call. With 0 nothing is kept: each
    /// buffer's memory goes back to the system when it is dropped.
    ///
    /// Chunks that peers still lease do not count. A chunk whose lease ends after it was dropped is
    /// found when a later allocation looks for it, so for a while there may be more.
    pub fn max_idle_per_class(mut self, chunks: usize) -> Self {
        self.max_idle_per_class = chunks;
        self
    }

    /// How many chunks peers can know at a time, from 1 to 1,048,576; default 4096. Each takes 128
    /// bytes of /dev/shm from the start. A chunk that was once shared counts until it is destroyed,
    /// so idle ones count too; [`Provider::trim`] destroys those. The first shared chunk also
    /// allocates 16 bytes of heap for each, for the queue of dropped messages that are still read,
    /// which then always has room.
    pub fn max_shared(mut self, chunks: usize) -> Self {
        self.max_shared = chunks;
        self
    }

    /// Length of the first segment in bytes, from 1 to `max_bytes` and at most 64 GiB, rounded up
    /// to whole pages and to a multiple of what is first carved out of it. It takes all of
    /// `max_bytes` if little would be left.
    ///
    /// By default it is a 32nd of `max_bytes`, but at least 64 KiB and long enough for eight of the
    /// first message; with [`max_idle_per_class`](Self::max_idle_per_class) 0 it is as long as that
    /// message. Each further segment is at least as long as all earlier ones together, and long
    /// enough for eight of the message it is made for. For a message above a 32nd of `max_bytes` it
    /// is 32 instead of eight. All of this is as far as the cap allows, and only address space:
    /// memory is taken page by page.
    pub fn arena_size(mut self, bytes: usize) -> Self {
        self.arena_size = Some(bytes);
        self
    }

    /// How soon idle memory goes back to the system with no call of yours: at the end of a window
    /// of so many allocations, from 0 (never) to 2,147,483,648, rounded up to a multiple of 64;
    /// default 32,768. A window is also no shorter than 128 allocations for each chunk that there
    /// is.
    ///
    /// Then go the idle chunks that no message has needed since the last window, and the memory
    /// between chunks that was not needed either, 128 MiB at most. The allocation that does it
    /// takes longer: some 40 ns for each page of 4 KiB that goes. If the memory is needed again, it
    /// costs what it did at first. What is [reserved](Provider::reserve) stays.
    ///
    /// A publisher that stops altogether gives nothing back; it can call [`Provider::trim`].
    pub fn idle_window(mut self, allocations: u64) -> Self {
        self.idle_window = allocations;
        self
    }

    /// Permission bits of the objects under /dev/shm, whatever the umask; default `0o600`: peers of
    /// the same user. With `0o660`, peers of the same group may attach too. Only the owner gets
    /// write access to payload: for others the write bits apply to the control object, which holds
    /// the leases.
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    /// What the names under /dev/shm start with: 1 to 64 of `A-Z a-z 0-9 _ -`; default `shm_pool`.
    /// Clients need the same prefix:
    /// [`ClientBuilder::name_prefix`](crate::ClientBuilder::name_prefix).
    pub fn name_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.name_prefix = prefix.into();
        self
    }

    /// The directory that the objects are in, an absolute path; default /dev/shm. It must exist,
    /// and clients need the same: [`ClientBuilder::directory`](crate::ClientBuilder::directory).
    ///
    /// Choose a tmpfs: one with a size of its own, so that others cannot fill it, or with `huge=`
    /// (see [`huge_pages`](Self::huge_pages)). On other local file systems the pool works too, but
    /// messages are written to the disk now and then, and writing them may wait for that. A network
    /// file system, or two machines on one, cannot work: locks tell who is alive. hugetlbfs is
    /// refused: every object would be whole huge pages.
    ///
    /// Each directory is swept by itself ([`Provider::sweep_in`]).
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = directory.into();
        self
    }

    /// Locks the pool into RAM: all that it holds, and the control object, which is then present
    /// from the start. What is locked is never written to swap, so a message never waits to
    /// be read back. Default `false`.
    ///
    /// [`build`](Self::build) checks that `RLIMIT_MEMLOCK` allows for
    /// [`max_bytes`](Self::max_bytes) and the control object, as [`BuildError::LockMemory`] tells.
    /// It reserves nothing of the limit: each segment is locked when it is made, with its whole
    /// length, although it takes memory page by page as before. If the process has locked other
    /// memory meanwhile, that fails with [`AllocErrorKind::Os`] (`mlock2`), and nothing is left of
    /// the segment.
    ///
    /// The lock is the owner's: it ends with the process. Peers may lock what they map by
    /// `mlockall`.
    pub fn lock_memory(mut self, lock: bool) -> Self {
        self.lock_memory = lock;
        self
    }

    /// Has the kernel put reserved memory into huge pages (2 MiB on x86-64), so that reading and
    /// writing large messages misses the TLB less. It is advice: what the kernel cannot put there
    /// stays in small pages, without an error. Default `false`.
    ///
    /// A huge page is made when the last of its small pages is reserved, and so takes no more
    /// memory than they do. Reserving memory then takes about twice as long, because the kernel
    /// copies, and other threads that carve memory may wait for it: [`reserve`](Provider::reserve)
    /// at the start.
    ///
    /// It needs Linux 6.1. A tmpfs that is mounted with `huge=always`
    /// ([`directory`](Self::directory)) has huge pages without this option, faster than with it,
    /// but takes them whole even for a few bytes: up to one more than is reserved, for each piece.
    /// `ShmemPmdMapped` in /proc/*pid*/smaps tells how much a process has mapped in huge pages. A
    /// peer does so where it faults a segment in at once, and not where it reads page by page.
    pub fn huge_pages(mut self, advise: bool) -> Self {
        self.huge_pages = advise;
        self
    }

    /// Takes payload memory from this NUMA node, as long as it has any free; then from others.
    /// Default: from the node of the thread that allocates first.
    pub fn numa_node(mut self, node: u32) -> Self {
        self.numa_node = Some(node);
        self
    }

    /// Creates the provider: its control object, and no payload memory yet. It first removes what
    /// killed providers of this directory and prefix have left behind, as
    /// [`sweep_in`](Provider::sweep_in) does.
    ///
    /// # Errors
    ///
    /// [`BuildError`] if an option or a combination is out of range, if memory cannot be locked or
    /// be had from a node as asked, or if the system refuses the control object. Nothing is left
    /// then. A failing sweep is no error.
    pub fn build(self) -> Result<Provider, BuildError> {
        let (max_bytes, max_alloc, max_idle) = (self.max_bytes, self.max_alloc, self.max_idle_per_class);
        let limits = Limits::new(max_bytes, max_alloc, max_idle, self.arena_size, LONGEST)?;
        let limits = limits.with_idle_window(self.idle_window)?;
        if !is_object_mode(self.mode) {
            return Err(BuildError::Mode { mode: self.mode });
        }
        range("max_shared", self.max_shared, 1, MAX_RECORDS, " chunks")?;
        let names = Namespace::new(&self.directory, &self.name_prefix)?;
        self.check_directory()?;
        self.check_memory(&limits)?;
        let _ = sweep::sweep(&names);
        let control = self.create_control(&names)?;
        if self.lock_memory {
            control.lock_memory()?;
        }
        let huge_page = self.huge_pages.then(huge_page_size).flatten();
        let memory = Memory { is_locked: self.lock_memory, huge_page, numa_node: self.numa_node };
        let segments = Numbered::new(names.clone(), control.id(), self.mode & 0o644, memory);
        let pool = Pool::new(limits, Box::new(segments), Some(control));
        Ok(Provider { max_alloc: pool.limits().max_alloc, names, pool: ManuallyDrop::new(pool) })
    }

    fn check_directory(&self) -> Result<(), BuildError> {
        let directory = &self.directory;
        let failed = |error| OsError::new("stat", &directory.to_string_lossy(), 0, error, String::new());
        let unfit = |reason| Err(BuildError::Directory { directory: directory.clone(), reason });
        if !std::fs::metadata(directory).map_err(failed)?.is_dir() {
            return unfit("is not a directory");
        }
        if is_on_hugetlbfs(directory) {
            return unfit("is on hugetlbfs; use a tmpfs, and ProviderBuilder::huge_pages");
        }
        Ok(())
    }

    /// Can memory be had as wanted? Nothing is made yet.
    fn check_memory(&self, limits: &Limits) -> Result<(), BuildError> {
        if let Some(node) = self.numa_node {
            can_prefer_node(node).map_err(|source| BuildError::NumaNode { node, source })?;
        }
        let control = round_to_pages(control_size(self.max_shared)).unwrap_or(usize::MAX);
        let needed = limits.max_bytes.saturating_add(control);
        // If the kernel cannot be asked, the first segment will show.
        if self.lock_memory && matches!(may_lock(needed), Ok(false)) {
            return Err(BuildError::LockMemory { needed, limit: lock_limit() });
        }
        Ok(())
    }

    fn create_control(&self, names: &Namespace) -> Result<OwnerControl, BuildError> {
        let mut tries = 1;
        loop {
            let id = ProviderId(getrandom::u64().map_err(|error| BuildError::Random(error.into()))?);
            let seed = getrandom::u64().map_err(|error| BuildError::Random(error.into()))?;
            match OwnerControl::create(names, id, self.max_shared, self.mode, seed)? {
                Some(control) => return Ok(control),
                None if tries < SWEPT_TRIES => tries += 1,
                None => return Err(BuildError::Swept { object: control_name(names, id).path(), tries }),
            }
        }
    }
}

/// Allocates messages in shared memory. Make one per process or per kind of traffic, and share it
/// by reference or in an `Arc`.
///
/// Dropping the provider gives its idle memory back. Buffers that are still held stay valid, and
/// their memory goes back when the last of them is dropped. Peers keep what they have mapped.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shm_pool::Provider;
///
/// let provider = Provider::builder().max_bytes(64 << 20).build()?;
/// for frame in 0..3u8 {
///     // After the first: no system call, no lock, no heap.
///     let mut buffer = provider.alloc(640 * 480)?;
///     buffer.fill(frame);
///     let message = buffer.freeze();
///     let _to_send = message.descriptor()?.to_bytes();
/// }
/// assert_eq!(provider.stats().segments_created, 1);
/// # Ok(())
/// # }
/// ```
pub struct Provider {
    pool: ManuallyDrop<Arc<Pool>>,
    max_alloc: usize,
    names: Namespace,
}

impl Provider {
    /// Where its objects are.
    pub(crate) fn names(&self) -> &Namespace {
        &self.names
    }

    /// The pool of its chunks.
    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// The largest alignment that [`alloc_layout`](Self::alloc_layout) gives, in bytes.
    pub const MAX_ALIGN: usize = PAGE;

    /// A builder with the defaults.
    pub fn builder() -> ProviderBuilder {
        ProviderBuilder::default()
    }

    /// The id that peers connect by, part of every descriptor.
    pub fn id(&self) -> ProviderId {
        self.pool.id()
    }

    /// Allocates `len` bytes, aligned to 64, for any length from 0 to the largest allocation. The
    /// content is unspecified.
    ///
    /// If a chunk of the size class is idle, this makes no system call, takes no lock and touches
    /// no heap.
    ///
    /// Otherwise it takes microseconds, and in the worst case the sum of these: a look at chunks
    /// that peers leased when they were dropped (some 50 ns each: at 8, and one more per 128 bytes
    /// of `len`; at all of them before a segment is made, and for a reserved size); a new segment,
    /// or memory for parts of one that have none (some 0.4 ms for each MiB); at the cap, a look at
    /// everything idle (some 50 ns a chunk) and at the locks of up to 64 peers (about 1 µs each).
    /// The bench `backpressure` shows it with up to 512 chunks held by a reader.
    ///
    /// # Errors
    ///
    /// [`AllocErrorKind::TooLarge`] above the largest allocation, [`AllocErrorKind::Exhausted`] if
    /// the cap is reached and nothing under it can make room, [`AllocErrorKind::Os`] if the system
    /// refuses a segment or memory for it, [`AllocErrorKind::Forked`] in a forked child.
    #[inline]
    pub fn alloc(&self, len: usize) -> Result<ShmBufMut, AllocError> {
        if len <= self.max_alloc {
            let class = class_of(len);
            if let Some(chunk) = self.pool.shelves().get(class).and_then(|shelf| shelf.take_hot()) {
                // SAFETY: `take_hot` has just taken it, and a chunk of the class of `len` holds
                // `len`.
                return unsafe { self.hand_out(chunk, len) };
            }
        }
        self.alloc_slow(len)
    }

    #[inline(never)]
    fn alloc_slow(&self, len: usize) -> Result<ShmBufMut, AllocError> {
        self.check(len)?;
        self.take(class_of(len), len)
    }

    /// Allocates `layout.size()` bytes aligned to `layout.align()`, which is at most
    /// [`MAX_ALIGN`](Self::MAX_ALIGN).
    ///
    /// # Errors
    ///
    /// [`AllocErrorKind::UnsupportedAlignment`] for a larger alignment; otherwise as
    /// [`alloc`](Self::alloc).
    pub fn alloc_layout(&self, layout: Layout) -> Result<ShmBufMut, AllocError> {
        let (len, align) = (layout.size(), layout.align());
        if align <= MIN_SIZE {
            return self.alloc(len);
        }
        if align > Self::MAX_ALIGN {
            return Err(AllocErrorKind::UnsupportedAlignment { align, max: Self::MAX_ALIGN }.into());
        }
        self.check(len)?;
        let class = self.pool.limits().page_aligned(len);
        if let Some(chunk) = self.pool.shelf(class).take_hot() {
            // SAFETY: `take_hot` has just taken it, and a chunk of the page-aligned class of `len`
            // holds `len`.
            return unsafe { self.hand_out(chunk, len) };
        }
        self.take(class, len)
    }

    /// Begins a request for `len` bytes, which may wait for memory: see [`Request`].
    pub fn request(&self, len: usize) -> Request<'_> {
        Request::new(self, len)
    }

    /// Allocates as [`alloc`](Self::alloc) does, and waits at most `timeout` for memory. It wakes
    /// as soon as memory comes back, in this process or another; after a peer's death within 50
    /// milliseconds.
    ///
    /// # Errors
    ///
    /// As [`Request::timeout`].
    pub fn alloc_timeout(&self, len: usize, timeout: Duration) -> Result<ShmBufMut, AllocError> {
        self.request(len).timeout(timeout)
    }

    /// Ends all waits for memory, those to come included, with [`AllocErrorKind::WaitsEnded`].
    /// Allocations that do not wait go on as before. Not from a waker: this returns when nobody is
    /// woken any more.
    pub fn end_waits(&self) {
        if self.pool.is_ours() {
            self.pool.waiting().close(&self.pool);
        }
    }

    /// Allocates as [`alloc`](Self::alloc) does, with every byte zero. Costs writing them.
    ///
    /// # Errors
    ///
    /// As [`alloc`](Self::alloc).
    pub fn alloc_zeroed(&self, len: usize) -> Result<ShmBufMut, AllocError> {
        let mut buffer = self.alloc(len)?;
        buffer.fill(0);
        Ok(buffer)
    }

    /// Reserves `count` chunks for messages of `len` bytes, aligned to 64: they exist from now on,
    /// in use or idle, until the [`Reservation`] is dropped. No other length takes them, and
    /// neither [`trim`](Self::trim) nor a lack of memory destroys them. They count against the cap.
    /// Several reservations of one size class add up.
    ///
    /// As long as one of them is free, a message of that length makes no system call, touches no
    /// heap and faults no page, from the first one on. Each chunk comes with all that takes:
    ///
    /// * memory, present in this process, and room on its shelf;
    /// * a record for [`descriptor`](crate::ShmBuf::descriptor) and
    ///   [`grant`](crate::ShmBuf::grant), and room in the queue of messages that are dropped while
    ///   peers lease them;
    /// * its place in the search for what has come back: a free one is found, however many are
    ///   leased or lent to channels. A look takes some 50 ns for each.
    ///
    /// What else a publisher needs is made present with its own object: a channel by
    /// [`SenderBuilder::create`](crate::channel::SenderBuilder::create). Peers prepare by
    /// [`Client::warm`](crate::Client::warm) and
    /// [`Receiver::warm`](crate::channel::Receiver::warm). Not included: waking a receiver that
    /// sleeps, which is a system call; threads that meet at one of the pool's locks; and chunks of
    /// other lengths that a search comes across and has to put away.
    ///
    /// # Errors
    ///
    /// [`AllocErrorKind::ReserveTooMany`] if the class has more reserved than `max_idle_per_class`;
    /// [`AllocErrorKind::ReserveShare`] if there are too few records (`max_shared`); otherwise as
    /// [`alloc`](Self::alloc). On an error nothing is reserved, and nothing is left of it.
    pub fn reserve(&self, len: usize, count: usize) -> Result<Reservation, AllocError> {
        self.check(len)?;
        let class = class_of(len);
        self.pool.reserve(class, count)?;
        Ok(Reservation::new(&self.pool, class, count))
    }

    /// Gives idle memory back to the system until the provider holds no more than `bytes`
    /// ([`Stats::bytes_held`](crate::Stats::bytes_held)), or nothing more is idle: first the memory
    /// between chunks, then idle chunks, the largest first. Takes back what dead peers leased.
    /// Returns how many bytes went. What is reserved stays, and so do segments; without memory they
    /// are only address space.
    pub fn trim_to(&self, bytes: usize) -> usize {
        if self.pool.is_ours() {
            self.pool.trim_to(bytes)
        } else {
            0
        }
    }

    /// Gives all idle memory back to the system: idle chunks, unused segments, the free pages of
    /// the others, and what dead peers leased. Returns how many bytes that was. Memory that is
    /// needed again later is reserved anew.
    pub fn trim(&self) -> usize {
        if self.pool.is_ours() {
            self.pool.trim()
        } else {
            0
        }
    }

    /// Takes back the leases of peers that have died. Returns how many messages they still held.
    /// This happens by itself when memory runs out; call it to clear the leases of the dead from
    /// [`stats`](Self::stats).
    pub fn reclaim(&self) -> usize {
        if self.pool.is_ours() {
            let reclaimed = self.pool.reclaim();
            self.pool.memory_bell().ring();
            reclaimed
        } else {
            0
        }
    }

    /// Removes from /dev/shm what killed providers of this
    /// [`name_prefix`](ProviderBuilder::name_prefix) have left behind: objects of this user whose
    /// owner's lock nobody holds. Objects of living providers stay, and so does what their peers
    /// read, because a mapping keeps its memory. Any number of processes may sweep at the same
    /// time, and be killed while they do.
    ///
    /// Segments without a control object count as a dead owner's. So do not remove a living
    /// provider's control object by hand: the next sweep takes the segments, and peers that have
    /// not mapped them get [`AttachError::Closed`](crate::AttachError::Closed).
    ///
    /// [`ProviderBuilder::build`] sweeps by itself. Another directory than /dev/shm is swept by
    /// [`sweep_in`](Self::sweep_in).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let swept = shm_pool::Provider::sweep("camera")?;
    /// println!("{} objects, {} bytes", swept.objects, swept.bytes);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`BuildError::Prefix`] for a prefix that no provider can have, [`BuildError::Os`] if
    /// /dev/shm cannot be read. An object that cannot be removed is left for the next sweep.
    pub fn sweep(name_prefix: &str) -> Result<Swept, BuildError> {
        Self::sweep_in(DIRECTORY, name_prefix)
    }

    /// Sweeps as [`sweep`](Self::sweep) does, in the [`directory`](ProviderBuilder::directory) of
    /// the providers.
    ///
    /// # Errors
    ///
    /// [`BuildError::Directory`] if it is not an absolute path; otherwise as
    /// [`sweep`](Self::sweep).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let swept = shm_pool::Provider::sweep_in("/dev/shm", "camera")?;
    /// println!("{} objects, {} bytes", swept.objects, swept.bytes);
    /// # Ok(())
    /// # }
    /// ```
    pub fn sweep_in(directory: impl AsRef<Path>, name_prefix: &str) -> Result<Swept, BuildError> {
        Ok(sweep::sweep(&Namespace::new(directory.as_ref(), name_prefix)?)?)
    }

    /// What the provider holds and has done; all zero in a forked child. Takes a lock that creating
    /// and destroying chunks also take.
    pub fn stats(&self) -> Stats {
        self.pool.stats()
    }

    #[inline]
    pub(crate) fn check(&self, len: usize) -> Result<(), AllocError> {
        if len > self.max_alloc {
            return Err(AllocErrorKind::TooLarge { len, max: self.max_alloc }.into());
        }
        if !self.pool.is_ours() {
            return Err(AllocErrorKind::Forked.into());
        }
        Ok(())
    }

    /// A message of that length is too long for any layout.
    pub(crate) fn too_large(&self, len: usize) -> Result<Layout, AllocError> {
        Err(AllocErrorKind::TooLarge { len, max: self.max_alloc }.into())
    }

    /// The class for a layout that can be had.
    pub(crate) fn class(&self, layout: Layout) -> usize {
        if layout.align() <= MIN_SIZE {
            class_of(layout.size())
        } else {
            self.pool.limits().page_aligned(layout.size())
        }
    }

    /// Makes a chunk that was taken for `len` bytes a buffer.
    pub(crate) fn hand_over(&self, chunk: OwnedChunk, len: usize) -> Result<ShmBufMut, AllocError> {
        // SAFETY: the pool took it for `len` bytes.
        unsafe { self.hand_out(chunk, len) }
    }

    fn take(&self, class: usize, len: usize) -> Result<ShmBufMut, AllocError> {
        let chunk = self.pool.take_slow(class, len)?;
        // SAFETY: `take_slow` has just taken it for `len` bytes.
        unsafe { self.hand_out(chunk, len) }
    }

    /// Makes a chunk this thread's, and returns the handle to its first `len` bytes.
    ///
    /// # Safety
    ///
    /// The chunk was just taken, and its capacity is at least `len`.
    #[inline]
    unsafe fn hand_out(&self, chunk: OwnedChunk, len: usize) -> Result<ShmBufMut, AllocError> {
        self.pool.adopt(&chunk)?;
        // SAFETY: it is closed to peers: a hot slot never holds a shared chunk, and every other
        // take recycles it. The caller vouches for `len`.
        Ok(unsafe { ShmBufMut::new(chunk, len) })
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        // A forked child owns nothing, so its copy of the pool is left as it is.
        if self.pool.is_ours() {
            self.pool.close();
            // SAFETY: dropped here and never used again.
            unsafe { ManuallyDrop::drop(&mut self.pool) };
        }
    }
}

impl std::fmt::Debug for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Provider").field("id", &self.id()).field("limits", self.pool.limits()).finish()
    }
}
