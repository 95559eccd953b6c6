//! The options of a provider, and how it is built from them.

#![forbid(unsafe_code)]

use crate::error::{BuildError, OsError};
use crate::os::mapping::{can_prefer_node, may_lock};
use crate::os::name::{Namespace, DEFAULT_PREFIX, DIRECTORY};
use crate::os::posix::{huge_page_size, is_object_mode, is_on_hugetlbfs, lock_limit, round_to_pages};
use crate::os::segment::Memory;
use crate::owner::control::OwnerControl;
use crate::owner::limits::{range, Limits, DEFAULT_IDLE_WINDOW, LONGEST};
use crate::owner::pool::Pool;
use crate::owner::provider::Provider;
use crate::owner::segment_factory::Numbered;
use crate::protocol::control::{control_size, MAX_RECORDS};
use crate::protocol::ids::{control_name, ProviderId};
use crate::protocol::sweep;
use std::path::PathBuf;

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
    quota: Option<u64>,
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
            quota: None,
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
    /// all that it maps (`mlockall`) takes memory for the whole of a segment.
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
    ///
    /// A high number costs nothing by itself: the queue of a class has 64 places at first, of 16
    /// bytes of heap each, and grows with the chunks that the class has. If the process has no heap
    /// for it, fewer are kept.
    pub fn max_idle_per_class(mut self, chunks: usize) -> Self {
        self.max_idle_per_class = chunks;
        self
    }

    /// How many chunks peers can know at a time, from 1 to 1,048,576; default 4096. Each takes 128
    /// bytes of /dev/shm from the start. A chunk that was once shared counts until it is destroyed,
    /// so idle ones count too; where records are short, those are destroyed. The first shared chunk
    /// also allocates 16 bytes of heap for each, for the queue of dropped messages that are still
    /// read, which then always has room.
    pub fn max_shared(mut self, chunks: usize) -> Self {
        self.max_shared = chunks;
        self
    }

    /// The most bytes of messages that one peer may read at a time, from 1 on; by default there is
    /// no limit, and 0 is [`BuildError::OutOfRange`]. Above it, that peer's
    /// [`Client::attach`](crate::Client::attach) fails with
    /// [`AttachError::OverQuota`](crate::AttachError::OverQuota) until it drops views; other peers
    /// are not affected. So one subscriber that forgets to drop its messages cannot use up the cap.
    ///
    /// Each view counts with its message's length. Grants that a peer has not taken up do not
    /// count: the owner made them. A grant that is refused for this reason can be taken up later.
    ///
    /// The peer's own library counts, so this is no defence against a process that does not keep to
    /// the protocol. For channels, see
    /// [`SenderBuilder::loans`](crate::channel::SenderBuilder::loans).
    pub fn max_bytes_per_peer(mut self, bytes: u64) -> Self {
        self.quota = Some(bytes);
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

    /// How soon idle memory goes back to the system with no call of yours: after a window of so
    /// many allocations, from 0 (never) to 2,147,483,648, rounded up to a multiple of 64; default
    /// 32,768. A window is also no shorter than 128 allocations for each chunk that there is.
    ///
    /// At its end the pool judges which memory was not needed in it:
    ///
    /// * of the chunks in the queue of a size class, as many as were left whenever one was taken;
    /// * the chunk that a class was given back last, if no message has used it;
    /// * of the memory between chunks, as much as there was at the end of the window before, too.
    ///
    /// If that is at least a 1024th of `max_bytes`, it goes: with every 64th allocation or so up to
    /// 1 MiB, some 40 ns for each page of 4 KiB, until none is left. If the memory is needed again,
    /// it costs what it did at first. [Reserved](Provider::reserve) chunks stay.
    ///
    /// Allocations of a reserved length count, but neither judge nor give back. A publisher that
    /// allocates nothing else, or stops altogether, gives nothing back; it can call
    /// [`Provider::trim`].
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
    /// from the start. Locked memory is never written to swap, so a message never waits to
    /// be read back. Default `false`.
    ///
    /// [`build`](Self::build) checks that `RLIMIT_MEMLOCK` allows for
    /// [`max_bytes`](Self::max_bytes) and the control object, as [`BuildError::LockMemory`] tells.
    /// It reserves nothing of the limit: each segment is locked when it is made, with its whole
    /// length, although it takes memory page by page as before. If the process has locked other
    /// memory meanwhile, that fails with [`AllocErrorKind::Os`](crate::AllocErrorKind::Os)
    /// (`mlock2`), and nothing is left of the segment.
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
    /// be had from a node as asked, if the process has no heap for the pool's own lists
    /// ([`BuildError::OutOfMemory`]), or if the system refuses the control object. Nothing is left
    /// then. A failing sweep is no error.
    pub fn build(self) -> Result<Provider, BuildError> {
        let (max_bytes, max_alloc, max_idle) = (self.max_bytes, self.max_alloc, self.max_idle_per_class);
        let limits = Limits::new(max_bytes, max_alloc, Some(max_idle), self.arena_size, LONGEST)?;
        let limits = limits.with_idle_window(self.idle_window)?;
        if !is_object_mode(self.mode) {
            return Err(BuildError::Mode { mode: self.mode });
        }
        range("max_shared", self.max_shared, 1, MAX_RECORDS, " chunks")?;
        let quota = self.quota.map_or(usize::MAX, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        range("max_bytes_per_peer", quota, 1, usize::MAX, " bytes")?;
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
        event!(info, provider = %control.id(), prefix = names.prefix(), max_bytes, "provider made");
        let segments = Numbered::new(names.clone(), control.id(), self.mode & 0o644, memory);
        Ok(Provider::new(Pool::new(limits, Box::new(segments), Some(control)), names))
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
        let random = || getrandom::u64().map_err(|error| BuildError::Random(error.into()));
        let mut id = ProviderId(0);
        for _ in 0..SWEPT_TRIES {
            id = ProviderId(random()?);
            let quota = self.quota.unwrap_or(0);
            if let Some(control) = OwnerControl::create(names, id, self.max_shared, self.mode, quota, random()?)? {
                return Ok(control);
            }
        }
        Err(BuildError::Swept { object: control_name(names, id).path(), tries: SWEPT_TRIES })
    }
}
