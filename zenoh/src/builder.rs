//! The options of a backend, how it is built from them, and why that may fail.

#![forbid(unsafe_code)]

use crate::in_use::ChunksInUse;
use crate::provider::drop_unused;
use crate::segments::{check_format, lock_limit, may_lock, ZenohSegments};
use crate::PoolBackend;
use shm_pool::backend::Backend;
use shm_pool::{AllocError, Tuning};
use std::alloc::Layout;
use std::io;
use std::sync::Arc;
use thiserror::Error;

/// A cap of up to this many bytes is one segment, and the first segment of a large cap is this
/// long. It is allocated and locked before the first message can be read, which takes some 1.5 ms.
const FIRST_SEGMENT: usize = 4 << 20;

/// The first segment of other caps has this share of them: the default of [`Backend`].
const FIRST_SHARE: usize = 32;

/// How many idle chunks each size class keeps by default. A collection may return any number at once,
/// and a chunk that is not kept has to be carved again.
const MAX_IDLE: usize = 1 << 20;

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
    preallocate: bool,
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
            preallocate: false,
            collect_early: true,
            check_lock_limit: true,
        }
    }

    /// Sets the cap on memory in bytes, up to 64 GiB, rounded up to whole pages; default 1 GiB.
    /// Memory is taken a segment at a time, when it is needed. All of it and 2 MiB have to fit in
    /// /dev/shm; what does not [is refused](crate#when-devshm-is-full).
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Sets the largest message in bytes; at most [`max_bytes`](Self::max_bytes) and 4 GiB, which is
    /// the default.
    pub fn max_alloc(mut self, bytes: usize) -> Self {
        self.max_alloc = Some(bytes);
        self
    }

    /// Sets how many idle chunks of each size class are kept, from 0 to 1,048,576, which is the default.
    ///
    /// That is many more than an ordinary provider keeps, because zenoh returns many messages at a
    /// time. The list of idle chunks grows with the number of chunks, by 16 bytes each. A chunk
    /// that is not kept returns to the segment that it was carved from, which takes about a
    /// microsecond and no system call. With 0, the memory of a segment returns to the system as
    /// soon as it is empty, and is reserved again for the next message.
    pub fn max_idle_per_class(mut self, chunks: usize) -> Self {
        self.max_idle_per_class = Some(chunks);
        self
    }

    /// Sets the length of the first segment in bytes, from 1 to [`max_bytes`](Self::max_bytes) and
    /// at most 4 GiB. The segment is made longer if the first message needs it, or if what it
    /// leaves of the cap is too little for another segment.
    ///
    /// By default, a `max_bytes` of up to 4 MiB is a single segment. With up to 128 MiB, the first
    /// segment is a 32nd of it, or longer, with room for eight messages, or for 32 if one takes more
    /// than a 32nd of `max_bytes`. With more, it is 4 MiB, or as long as the first message. Each
    /// further segment is at least as long as all before it together, and has room for as many of the
    /// messages that it is made for, as far as the cap allows.
    ///
    /// A segment is allocated whole for its first message, and receivers lock it when that arrives.
    /// Both together take some 0.4 ms per MiB. A short first segment lets them read the first
    /// message early, and keeps the footprint of a light load small. A publisher that exits before
    /// then loses its messages.
    pub fn arena_size(mut self, bytes: usize) -> Self {
        self.arena_size = Some(bytes);
        self
    }

    /// Sets whether [`build`](Self::build) allocates all memory, up to 4 GiB, as zenoh's default
    /// provider does; default `false`. All messages are then in one segment. Its memory returns to the
    /// system by [`trim`](PoolBackend::trim) alone, and [`arena_size`](Self::arena_size) has no effect.
    ///
    /// Without this, the pool [grows](crate#segments) with its use, and an allocation that adds a
    /// segment waits for its memory.
    pub fn preallocate(mut self, preallocate: bool) -> Self {
        self.preallocate = preallocate;
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
    /// zenoh's receivers lock each segment that they map. If their limit (`ulimit -l`, 8 MiB on many
    /// systems) does not allow it, they lose the message; zenoh logs this at its debug level only, and
    /// a publisher that waits for memory waits forever. Only the receivers' limits matter, and they
    /// are not known here: turn the check off if you know that theirs are higher.
    pub fn check_lock_limit(mut self, check: bool) -> Self {
        self.check_lock_limit = check;
        self
    }

    /// Builds the backend, without a segment yet unless it is to
    /// [preallocate](Self::preallocate), and has zenoh's own client read a page as its
    /// receivers do. zenoh removes the segments of dead processes when a process first uses its shared
    /// memory. Later providers of the process remove none, as a receiver may not have opened the last
    /// messages of a publisher that has just exited.
    ///
    /// # Errors
    ///
    /// [`BuildError`] if an option or a combination is out of range, if receivers cannot be expected to
    /// lock the pool's memory ([`check_lock_limit`](Self::check_lock_limit)), if zenoh's client reads
    /// other bytes than were written, if the system has no random bits, or no memory to preallocate.
    pub fn build(self) -> Result<PoolBackend, BuildError> {
        drop_unused();
        let first_id = match getrandom::u32() {
            Ok(id) => id,
            Err(error) => return Err(BuildError::Random(error.into())),
        };

        let mut backend = Backend::builder()
            .max_bytes(self.max_bytes)
            .max_segment(MAX_SEGMENT)
            .max_idle_per_class(self.max_idle_per_class.unwrap_or(MAX_IDLE))
            .collect_early(self.collect_early);
        if let Some(bytes) = self.max_alloc {
            backend = backend.max_alloc(bytes);
        }
        let mut tuning = Tuning::new();
        if let Some(bytes) = self.first_segment() {
            tuning = tuning.arena_size(bytes);
        }
        if self.preallocate {
            // Otherwise memory that was idle for long returns to the system.
            tuning = tuning.idle_window(0);
        }
        backend = backend.tuning(tuning);
        let in_use = Arc::new(ChunksInUse::new());
        let allocator = backend.build(ZenohSegments::new(in_use.clone(), first_id))?;

        let needed = allocator.stats().max_bytes;
        // If the kernel cannot be asked, this remains unknown.
        if self.check_lock_limit && matches!(may_lock(needed), Ok(false)) {
            return Err(BuildError::LockLimit {
                needed,
                limit: lock_limit(),
            });
        }
        tracing::debug!(
            locked_memory = needed,
            descriptors = Backend::MAX_SEGMENTS,
            "limits that each receiver of this pool needs at most (ulimit -l, ulimit -n)"
        );
        check_format()?;
        if self.preallocate {
            // A segment is allocated whole for its first chunk.
            match allocator.alloc(Layout::new::<u8>()) {
                Ok(chunk) => drop(chunk),
                Err(error) => return Err(BuildError::NoMemory(error)),
            }
        }
        Ok(PoolBackend::new(allocator, in_use))
    }

    /// Returns the length of the first segment, or `None` for the default of [`Backend`].
    fn first_segment(&self) -> Option<usize> {
        if self.preallocate {
            return Some(self.max_bytes.min(MAX_SEGMENT));
        }
        if self.arena_size.is_some() {
            return self.arena_size;
        }
        if self.max_bytes <= FIRST_SEGMENT {
            return Some(self.max_bytes);
        }
        if self.max_bytes > FIRST_SHARE * FIRST_SEGMENT {
            return Some(FIRST_SEGMENT);
        }
        None
    }
}

/// An error from [`PoolBackendBuilder::build`](crate::PoolBackendBuilder::build).
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// An option is out of range, or the process has no heap.
    #[error(transparent)]
    Pool(#[from] shm_pool::BuildError),
    /// Receivers cannot lock the pool's segments into memory, and would silently lose messages; see
    /// [`check_lock_limit`](crate::PoolBackendBuilder::check_lock_limit).
    #[error(
        "zenoh's receivers lock all segments into memory, for this pool up to {needed} bytes, and \
         a process like this one may lock {limit}: raise the limit (ulimit -l) for publisher and \
         receivers, or lower max_bytes; if only the receivers may lock more, see \
         PoolBackendBuilder::check_lock_limit"
    )]
    LockLimit {
        /// The pool's cap in bytes.
        needed: usize,
        /// How many bytes this process may lock in all.
        limit: u64,
    },
    /// zenoh's client cannot read a segment that was written for it: the zenoh version of this program
    /// has another format. Every message would be lost.
    #[error(
        "zenoh's client does not read what shm-pool-zenoh writes: {reason}; use zenoh 1.10 with \
         this version"
    )]
    Format {
        /// The difference.
        reason: String,
    },
    /// The operating system provided no random numbers for the ids of segments.
    #[error("no random bits for the ids of segments")]
    Random(#[source] io::Error),
    /// The system has no memory for what [`preallocate`](crate::PoolBackendBuilder::preallocate)
    /// allocates.
    #[error("cannot preallocate the pool's memory")]
    NoMemory(#[source] AllocError),
}
