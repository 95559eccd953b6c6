//! The options of a backend, and how it is built from them.

#![forbid(unsafe_code)]

use crate::outstanding::Outstanding;
use crate::probe;
use crate::segments::ZenohSegments;
use crate::system::{lock_limit, may_lock};
use crate::{BuildError, PoolBackend};
use shm_pool::backend::Backend;
use std::sync::Arc;
use zenoh::shm::cleanup_orphaned_shm_segments;

/// Unless told otherwise, a cap of up to this many bytes is one segment.
const MAX_WHOLE: usize = 64 << 20;

const DEFAULT_MAX_BYTES: usize = 1 << 30;

/// zenoh addresses the bytes of a segment with 32 bits.
const MAX_SEGMENT: usize = 1 << 32;

/// Options of a [`PoolBackend`]. Start with [`PoolBackend::builder`]; every option has a default.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct PoolBackendBuilder {
    max_bytes: usize,
    max_alloc: Option<usize>,
    max_idle_per_class: Option<usize>,
    arena_size: Option<usize>,
    collect_early: bool,
    check_lock_limit: bool,
}

impl PoolBackendBuilder {
    /// The defaults.
    pub(crate) fn new() -> Self {
        Self {
            max_bytes: DEFAULT_MAX_BYTES,
            max_alloc: None,
            max_idle_per_class: None,
            arena_size: None,
            collect_early: true,
            check_lock_limit: true,
        }
    }

    /// Sets the cap on memory in bytes, up to 64 GiB, rounded up to whole pages; default 1 GiB.
    /// This is a cap, not a reservation: memory is taken when it is needed.
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Sets the largest message in bytes; at most [`max_bytes`](Self::max_bytes) and 4 GiB.
    /// Default: as large as these allow.
    pub fn max_alloc(mut self, bytes: usize) -> Self {
        self.max_alloc = Some(bytes);
        self
    }

    /// Sets how many idle chunks of each size class are kept, from 0 to 1,048,576. Default: as many as
    /// make an eighth of [`max_bytes`](Self::max_bytes), but from 256 to 8192.
    ///
    /// That is many more than an ordinary provider keeps, because zenoh gives back many messages at
    /// a time. The list of idle chunks takes 16 bytes of heap for each, once a class has had its first
    /// message. A chunk that is not kept goes back to the segment that it was carved out of, which
    /// costs about a microsecond and no system call. With 0, memory goes back to the system at
    /// once.
    pub fn max_idle_per_class(mut self, chunks: usize) -> Self {
        self.max_idle_per_class = Some(chunks);
        self
    }

    /// Sets the length of the first segment in bytes, from 1 to [`max_bytes`](Self::max_bytes) and
    /// at most 4 GiB. The segment is made longer if the first message needs it, or if what it
    /// leaves of the cap is too little for another segment.
    ///
    /// By default, a `max_bytes` of up to 64 MiB is a single segment, so that the room for a
    /// message is never split between two. Otherwise the first segment is a 32nd of `max_bytes`, or
    /// longer, with room for eight messages. Each further segment is at least as long as all before
    /// it together, and has room for eight of the messages that it is made for, or for 32 if one
    /// takes more than a 32nd of `max_bytes`, as far as the cap allows.
    ///
    /// Receivers lock a whole segment into memory when the first message in it arrives, so a short
    /// first segment keeps the footprint of a light load small.
    pub fn arena_size(mut self, bytes: usize) -> Self {
        self.arena_size = Some(bytes);
        self
    }

    /// Sets whether to collect what has been read before the pool takes more memory, and not only
    /// when the cap is reached; default `true`. See [Collecting early](crate#collecting-early).
    pub fn collect_early(mut self, early: bool) -> Self {
        self.collect_early = early;
        self
    }

    /// Sets whether [`build`](Self::build) fails if a process with this one's limits could not lock
    /// as much memory as the pool may have; default `true`.
    ///
    /// zenoh's receivers lock each segment that they map. If their limit (`ulimit -l`, 8 MiB on
    /// many systems) does not allow it, they lose the message; zenoh says so at its debug level
    /// only, and a publisher that waits for memory waits for ever. Only the receivers' limits
    /// matter, and they are not known here: turn the check off if you know that theirs are higher.
    pub fn check_lock_limit(mut self, check: bool) -> Self {
        self.check_lock_limit = check;
        self
    }

    /// Builds the backend, without a segment yet. Removes segments that dead zenoh processes left
    /// behind, and has zenoh's own client read a page as its receivers do.
    ///
    /// # Errors
    ///
    /// [`BuildError`] if an option or a combination is out of range, if receivers cannot be
    /// expected to lock the pool's memory ([`check_lock_limit`](Self::check_lock_limit)), if zenoh's client
    /// reads something else than what was written, or if the system has no random bits.
    pub fn build(self) -> Result<PoolBackend, BuildError> {
        let first = getrandom::u32().map_err(|error| BuildError::Random(error.into()))?;
        let outstanding = Arc::new(Outstanding::new());
        let mut chunks =
            Backend::builder().max_bytes(self.max_bytes).max_segment(MAX_SEGMENT).collect_early(self.collect_early);
        let whole = Some(self.max_bytes).filter(|&bytes| bytes <= MAX_WHOLE);
        if let Some(bytes) = self.arena_size.or(whole) {
            chunks = chunks.arena_size(bytes);
        }
        if let Some(bytes) = self.max_alloc {
            chunks = chunks.max_alloc(bytes);
        }
        if let Some(count) = self.max_idle_per_class {
            chunks = chunks.max_idle_per_class(count);
        }
        let chunks = chunks.build(ZenohSegments::new(outstanding.clone(), first))?;
        let needed = chunks.stats().max_bytes;
        // If the kernel cannot be asked, the first message will show.
        if self.check_lock_limit && matches!(may_lock(needed), Ok(false)) {
            return Err(BuildError::LockLimit { needed, limit: lock_limit() });
        }
        tracing::debug!(
            locked_memory = needed,
            descriptors = Backend::MAX_SEGMENTS,
            "what each receiver needs for this pool at most (ulimit -l, ulimit -n)"
        );
        cleanup_orphaned_shm_segments();
        probe::check()?;
        Ok(PoolBackend::new(chunks, outstanding))
    }
}
