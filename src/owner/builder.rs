//! The options of a provider, and how it is built from them.

#![forbid(unsafe_code)]

use crate::error::{BuildError, OsError};
use crate::os::mapping::may_lock;
use crate::os::name::{Namespace, DEFAULT_PREFIX, DIRECTORY};
use crate::os::posix::{is_object_mode, is_on_hugetlbfs, lock_limit, round_to_pages};
use crate::owner::control::{Numbered, OwnerControl};
use crate::owner::limits::{range, Limits, Tuning, LONGEST};
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
    mode: u32,
    lock_memory: bool,
    tuning: Tuning,
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
            mode: 0o600,
            lock_memory: false,
            tuning: Tuning::new(),
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
    /// [`huge_pages`](Tuning::huge_pages)). Another local file system writes messages to the disk now
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

    /// Sets the options of segments and memory that few programs need; see [`Tuning`].
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.tuning = tuning;
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
        let limits = Limits::new(max_bytes, max_alloc, Some(max_idle), &self.tuning, LONGEST)?;
        if !is_object_mode(self.mode) {
            return Err(BuildError::Mode { mode: self.mode });
        }
        range("max_shared", self.max_shared, 1, MAX_RECORDS, " chunks")?;
        let quota = self.quota.map_or(usize::MAX, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        range("max_bytes_per_peer", quota, 1, usize::MAX, " bytes")?;
        let names = Namespace::new(&self.directory, &self.name_prefix)?;
        self.check_directory()?;
        let memory = self.tuning.memory(self.lock_memory)?;
        self.check_lock_limit(&limits)?;
        let _ = sweep::sweep(&names);
        let control = self.create_control(&names)?;
        if self.lock_memory {
            control.lock_memory()?;
        }
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
            return unfit("is on hugetlbfs; use a tmpfs, and Tuning::huge_pages");
        }
        Ok(())
    }

    fn check_lock_limit(&self, limits: &Limits) -> Result<(), BuildError> {
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
