//! The options of a provider, and how it is built from them.

#![forbid(unsafe_code)]

use crate::error::{BuildError, OsError};
use crate::os::mapping::{can_prefer_node, may_lock};
use crate::os::name::{Namespace, DEFAULT_PREFIX, DIRECTORY};
use crate::os::posix::{huge_page_size, is_object_mode, is_on_hugetlbfs, lock_limit, round_to_pages};
use crate::os::segment::Memory;
use crate::owner::control::{Numbered, OwnerControl};
use crate::owner::limits::{range, Limits, DEFAULT_IDLE_WINDOW, LONGEST};
use crate::owner::pool::Pool;
use crate::owner::provider::Provider;
use crate::protocol::control::{control_size, MAX_RECORDS};
use crate::protocol::ids::{control_name, ProviderId};
use crate::protocol::sweep;
use std::path::PathBuf;

/// How many control objects `build` creates before it gives up because sweeps remove them.
const SWEPT_TRIES: usize = 16;

const DEFAULT_MAX_BYTES: usize = 1 << 30;
const DEFAULT_MAX_IDLE: usize = 8;
const DEFAULT_MAX_SHARED: usize = 4096;

/// Options of a [`Provider`], each with a default. Created by [`Provider::builder`].
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

impl Provider {
    /// Returns a builder with the default options.
    pub fn builder() -> ProviderBuilder {
        ProviderBuilder::default()
    }
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
    /// Sets the cap on payload memory in bytes, at least 1, rounded up to whole pages; default 1
    /// GiB. Nothing is reserved in advance.
    ///
    /// All messages are carved from a few segments whose total length is within the cap and whose
    /// pages take memory when they are first needed. (A process that locks everything it maps with
    /// `mlockall` takes memory for whole segments.) The control object is not included: a page, and
    /// 128 bytes for each of [`max_shared`](Self::max_shared).
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Sets the largest allocation in bytes, from 1 to `max_bytes` and at most 64 GiB, rounded up
    /// to whole pages; default: the largest possible.
    pub fn max_alloc(mut self, bytes: usize) -> Self {
        self.max_alloc = Some(bytes);
        self
    }

    /// Sets how many free chunks are kept per size class, from 0 to 1,048,576; default 8. Others
    /// return to their segments, without a system call. With 0, each buffer's memory is returned to
    /// the system when the buffer is dropped.
    ///
    /// Chunks that peers lease do not count, and are found by later allocations when their leases
    /// end. A high number costs nothing by itself: a class's queue begins with 64 slots of 16 bytes
    /// of heap and grows with the class. Without heap for it, fewer are kept.
    pub fn max_idle_per_class(mut self, chunks: usize) -> Self {
        self.max_idle_per_class = chunks;
        self
    }

    /// Sets how many chunks peers can know at a time, from 1 to 1,048,576; default 4096. Each takes
    /// 128 bytes of /dev/shm from the start, and 16 bytes of heap from the first shared chunk on. A
    /// shared chunk counts until it is destroyed; if records run short, idle ones are.
    pub fn max_shared(mut self, chunks: usize) -> Self {
        self.max_shared = chunks;
        self
    }

    /// Sets the most bytes of messages that one peer may read at a time, at least 1; by default
    /// there is no limit. Above it, that peer's [`Client::attach`](crate::Client::attach) fails
    /// with [`AttachError::OverQuota`](crate::AttachError::OverQuota) until it drops views. So a
    /// subscriber that leaks messages cannot use up the cap.
    ///
    /// Unclaimed grants do not count, and a grant refused for this reason can be claimed later. The
    /// peer's own library enforces this: it is no defence against a process that violates the
    /// protocol. For channels, see [`SenderBuilder::loans`](crate::channel::SenderBuilder::loans).
    pub fn max_bytes_per_peer(mut self, bytes: u64) -> Self {
        self.quota = Some(bytes);
        self
    }

    /// Sets the length of the first segment in bytes, from 1 to `max_bytes` and at most 64 GiB,
    /// rounded up to whole pages and to a multiple of the first message's chunk, or to `max_bytes`
    /// if little of it would be left.
    ///
    /// By default it is a 32nd of `max_bytes`, but at least 64 KiB and eight of the first message;
    /// with [`max_idle_per_class`](Self::max_idle_per_class) 0, one message. Each further segment
    /// is at least as long as all earlier ones together and as eight of its first message, or 32 of
    /// a message above a 32nd of `max_bytes`. All of this is within the cap, and only address
    /// space.
    pub fn arena_size(mut self, bytes: usize) -> Self {
        self.arena_size = Some(bytes);
        self
    }

    /// Sets the number of allocations after which memory that was idle throughout is returned to
    /// the system: from 0 (never) to 2,147,483,648, rounded up to a multiple of 64; default 32,768.
    /// Such a window also has at least 128 allocations for each existing chunk.
    ///
    /// These were not needed in a window:
    ///
    /// * of the chunks in a class's queue, the lowest number that a take has left there;
    /// * a class's most recently released chunk, if no message has used it;
    /// * of the memory between chunks, the amount that was also there at the end of the previous
    ///   window.
    ///
    /// If that is at least a 1024th of `max_bytes`, about every 64th allocation returns up to 1 MiB
    /// of it, at some 40 ns per 4 KiB page. [Reserved](Provider::reserve) chunks stay. Allocations
    /// of a reserved length count but return nothing, so a publisher that makes no others, or
    /// stops, has to call [`Provider::trim`].
    pub fn idle_window(mut self, allocations: u64) -> Self {
        self.idle_window = allocations;
        self
    }

    /// Sets the permission bits of the objects under /dev/shm, whatever umask is set; default
    /// `0o600`: peers of the same user. With `0o660`, peers of the same group may attach too. For
    /// others than the owner, write bits apply only to the control object, which holds the leases.
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the prefix of the names under /dev/shm: 1 to 64 of `A-Z a-z 0-9 _ -`; default
    /// `shm_pool`. Clients need [the same](crate::ClientBuilder::name_prefix).
    pub fn name_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.name_prefix = prefix.into();
        self
    }

    /// Sets the directory of the objects, an absolute path that exists; default /dev/shm. Clients
    /// need [the same](crate::ClientBuilder::directory), and each directory is swept separately
    /// ([`Provider::sweep_in`]).
    ///
    /// Choose a tmpfs, for example one with its own size or with `huge=` (see
    /// [`huge_pages`](Self::huge_pages)). Another local file system writes messages to the disk now
    /// and then, and writers may wait for that. A network file system does not work: locks show
    /// which processes are alive. hugetlbfs is refused: every object would take whole huge pages.
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = directory.into();
        self
    }

    /// Locks the pool and the control object into RAM, so that a message never waits to be read
    /// back from swap. Default `false`.
    ///
    /// [`build`](Self::build) checks that `RLIMIT_MEMLOCK` allows for
    /// [`max_bytes`](Self::max_bytes) and the control object ([`BuildError::LockMemory`]). Each
    /// segment is locked at its whole length when it is created, and takes memory page by page as
    /// usual. If the process has locked other memory by then, the allocation fails with
    /// [`AllocErrorKind::Os`](crate::AllocErrorKind::Os) (`mlock2`). The lock ends with the owner's
    /// process; peers may use `mlockall`.
    pub fn lock_memory(mut self, lock: bool) -> Self {
        self.lock_memory = lock;
        self
    }

    /// Advises the kernel to put reserved memory into huge pages (2 MiB on x86-64), so that large
    /// messages cause fewer TLB misses. Other memory stays in small pages, without an
    /// error. Needs Linux 6.1. Default `false`.
    ///
    /// A huge page is made when the last of its small pages is reserved, so it takes no more
    /// memory. Reserving then takes about twice as long, because the kernel copies, and may delay
    /// other threads: [`reserve`](Provider::reserve) at the start.
    ///
    /// A tmpfs mounted with `huge=always` ([`directory`](Self::directory)) has huge pages without
    /// this option, faster, but takes up to one more for each piece. `ShmemPmdMapped` in
    /// /proc/*pid*/smaps shows how much a process has mapped in huge pages; a peer does so only
    /// where it faults a segment in at once.
    pub fn huge_pages(mut self, advise: bool) -> Self {
        self.huge_pages = advise;
        self
    }

    /// Prefers this NUMA node for payload memory. Default: the node of the thread that allocates
    /// first.
    pub fn numa_node(mut self, node: u32) -> Self {
        self.numa_node = Some(node);
        self
    }

    /// Creates the provider and its control object, but no payload memory yet. First
    /// [sweeps](Provider::sweep_in) this directory and prefix; a failing sweep is no error.
    ///
    /// # Errors
    ///
    /// [`BuildError`] if an option or a combination is out of range, if memory cannot be locked or
    /// taken from the node, if the process has no heap for the pool's lists, or if the system
    /// refuses the control object. Nothing is left behind.
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
