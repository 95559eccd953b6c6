//! A pool as a backend of zenoh's provider: [`PoolBackend`].

#![forbid(unsafe_code)]

use crate::collect::{self, Providers};
use crate::in_use::{ChunksInUse, Key};
use crate::{PoolBackendBuilder, PoolProvider};
use shm_pool::backend::Backend;
use shm_pool::{AllocError, Reservation, Stats};
use std::alloc::Layout;
use std::error::Error;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use zenoh::shm::{
    AllocatedChunk, ChunkAllocResult, ChunkDescriptor, MemoryLayout, ProtocolID, PtrInSegment,
    ShmProviderBackend, WithProtocolID, ZAllocError, ZLayoutError,
};

/// zenoh's protocol number for its own POSIX segments.
const POSIX_PROTOCOL: ProtocolID = 0;

/// A pool as the backend of zenoh's `ShmProvider`. Clones share the pool.
///
/// When the last clone and the last provider that has one are dropped, the memory of empty segments
/// returns to the system. Messages that are still in use stay valid for their holders, and for
/// receivers that they have yet to reach.
#[derive(Clone)]
pub struct PoolBackend {
    pub(crate) core: Arc<Core>,
    /// Has the providers on this backend collect.
    pub(crate) allocator: Backend,
}

pub(crate) struct Core {
    /// Does not collect.
    pub(crate) allocator: Backend,
    pub(crate) in_use: Arc<ChunksInUse>,
    pub(crate) providers: Arc<Providers>,
}

/// An allocation that failed.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) error: AllocError,
    /// Whether memory that is released can help.
    pub(crate) is_temporary: bool,
}

impl From<AllocError> for Refusal {
    fn from(error: AllocError) -> Self {
        let is_temporary = match &error {
            AllocError::Exhausted { .. } => true,
            AllocError::Os(os) => match os.errno() {
                Some(errno) => matches!(
                    errno,
                    libc::ENOSPC | libc::EDQUOT | libc::ENOMEM | libc::EMFILE | libc::ENFILE
                ),
                // All segment ids are in use.
                None => true,
            },
            _ => false,
        };
        Self {
            error,
            is_temporary,
        }
    }
}

impl PoolBackend {
    /// A builder with the default options.
    pub fn builder() -> PoolBackendBuilder {
        PoolBackendBuilder::new()
    }

    pub(crate) fn new(allocator: Backend, in_use: Arc<ChunksInUse>) -> Self {
        let providers = Arc::new(Providers::new(in_use.clone()));
        let collecting = allocator.with_collector(providers.clone());
        Self {
            core: Arc::new(Core {
                allocator,
                in_use,
                providers,
            }),
            allocator: collecting,
        }
    }

    /// Returns a provider on this backend. The backend collects it early, and its messages
    /// [outlive it](PoolProvider).
    pub fn provider(&self) -> PoolProvider {
        PoolProvider::new(self)
    }

    /// Returns statistics. A message counts as in use until zenoh has freed its chunk, whether or
    /// not it is still being read.
    pub fn stats(&self) -> Stats {
        self.allocator.stats()
    }

    /// Reserves `count` chunks for messages of `len` bytes, aligned to at most 64. They exist, in
    /// use or idle, until the [`Reservation`] is dropped. Their memory and bookkeeping are present,
    /// so that the backend makes no segment, system call or heap call for a message as long as one
    /// of them is free. (zenoh's own cost of a message remains.) Other lengths do not use them, and
    /// neither [`trim`](Self::trim) nor a shortage of memory destroys them. They count against the
    /// cap.
    ///
    /// Collects messages that have been read, if there is no room otherwise. Several reservations
    /// of one size class add up.
    ///
    /// # Errors
    ///
    /// [`AllocError::TooLarge`] above the largest message; [`AllocError::ReserveTooMany`]
    /// if the class has more reserved than
    /// [`max_idle_per_class`](PoolBackendBuilder::max_idle_per_class);
    /// [`AllocError::Exhausted`] at the cap; [`AllocError::Os`] if the system refuses;
    /// [`AllocError::Forked`] in a forked child. After an error nothing is reserved or left
    /// behind.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// # use zenoh::Wait;
    /// let backend = shm_pool_zenoh::PoolBackend::builder().max_bytes(1 << 20).build()?;
    /// backend.reserve(100_000, 4)?.keep();
    /// let provider = backend.provider();
    /// let frame = provider.alloc(100_000).wait()?;
    /// assert_eq!(backend.stats().misses(), 4, "no fifth one was created");
    /// # drop(frame);
    /// # Ok(())
    /// # }
    /// ```
    pub fn reserve(&self, len: usize, count: usize) -> Result<Reservation, AllocError> {
        self.core.providers.end_backoff();
        let layout = layout(len, 1);
        let reservation = self.allocator.reserve(layout, count)?;
        for (segment, offset) in self.allocator.places(self.allocator.class(layout)?) {
            self.core.in_use.prefault(Key::new(segment, offset));
        }
        Ok(reservation)
    }

    /// Collects messages that have been read, and returns the memory of empty segments to the
    /// system. Returns the number of bytes. A segment with a message in use keeps all its memory:
    /// see [When /dev/shm is full](crate#when-devshm-is-full). The empty segments remain: receivers
    /// never unmap one, so new ones would only fill the receivers' tables.
    pub fn trim(&self) -> usize {
        self.core.providers.end_backoff();
        self.allocator.trim()
    }

    /// Returns `true` in a forked child, where nothing is allocated or released.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.allocator.is_inherited()
    }

    /// Allocates a chunk, and records that it is in use.
    #[inline]
    pub(crate) fn alloc_chunk(
        &self,
        len: usize,
        align: usize,
    ) -> Result<AllocatedChunk, AllocError> {
        let core = &*self.core;
        let chunk = self.allocator.alloc(layout(len, align))?;
        core.providers.note_served();
        let key = Key::of(&chunk);
        let len = NonZeroUsize::new(chunk.len()).unwrap_or(NonZeroUsize::MIN);
        let data = PtrInSegment::new(chunk.as_ptr(), chunk.keep_mapped());
        core.in_use.insert(chunk, key);
        Ok(AllocatedChunk {
            descriptor: ChunkDescriptor::new(key.segment, key.offset, len),
            data,
        })
    }

    /// Returns zenoh's error for an allocation that failed. The reason is logged.
    #[cold]
    fn refuse(&self, layout: &MemoryLayout, error: AllocError) -> ZAllocError {
        if matches!(
            error,
            AllocError::TooLarge { .. } | AllocError::UnsupportedAlignment { .. }
        ) {
            log_unfit(layout, &error);
            return ZAllocError::Other;
        }

        // Reaching the cap is nothing unusual.
        let has_failed = !matches!(error, AllocError::Exhausted { .. });
        let is_new = self.core.providers.note_refused(has_failed);
        let cause = &error as &(dyn Error + 'static);
        if is_new {
            tracing::error!(
                %layout,
                error = cause,
                "no memory for a message; not logged again until there is some"
            );
        } else {
            tracing::debug!(%layout, error = cause, "no memory for a message");
        }
        if Refusal::from(error).is_temporary {
            ZAllocError::OutOfMemory
        } else {
            ZAllocError::Other
        }
    }
}

fn log_unfit(layout: &MemoryLayout, error: &AllocError) {
    tracing::warn!(%layout, %error, "a layout that the pool cannot serve");
}

fn len_of(layout: &MemoryLayout) -> usize {
    layout.size().get()
}

fn align_of(layout: &MemoryLayout) -> usize {
    layout.alignment().get_alignment_value().get()
}

impl WithProtocolID for PoolBackend {
    /// Returns the protocol of zenoh's own POSIX segments, which every receiver can map.
    fn id(&self) -> ProtocolID {
        POSIX_PROTOCOL
    }
}

impl ShmProviderBackend for PoolBackend {
    #[inline]
    fn alloc(&self, layout: &MemoryLayout) -> ChunkAllocResult {
        match self.alloc_chunk(len_of(layout), align_of(layout)) {
            Ok(chunk) => Ok(chunk),
            Err(error) => Err(self.refuse(layout, error)),
        }
    }

    #[inline]
    fn free(&self, chunk: &ChunkDescriptor) {
        let key = Key {
            segment: chunk.segment,
            offset: chunk.chunk,
        };
        collect::free(&self.core.in_use, key);
    }

    /// Returns all idle chunks to the segments that they were carved from. Returns the length of a
    /// message that is sure to fit now.
    fn defragment(&self) -> usize {
        self.allocator.evict_idle();
        self.allocator.largest_that_fits()
    }

    /// Returns the bytes under the cap that no message uses: idle, or not allocated yet. They may
    /// not be in one piece.
    fn available(&self) -> usize {
        let stats = self.stats();
        stats.max_bytes.saturating_sub(stats.bytes_in_use)
    }

    #[inline]
    fn layout_for(&self, layout: MemoryLayout) -> Result<MemoryLayout, ZLayoutError> {
        let bytes = self::layout(len_of(&layout), align_of(&layout));
        match self.allocator.class(bytes) {
            Ok(_) => Ok(layout),
            Err(error) => {
                log_unfit(&layout, &error);
                Err(ZLayoutError::ProviderIncompatibleLayout)
            }
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // A forked child owns nothing, and leaves its copies as they are.
        if self.allocator.is_inherited() {
            return;
        }
        // Readers may keep these for any time; their segments remain until this process drops its
        // last buffer.
        self.in_use.remove_all(|chunk| chunk.leak());
    }
}

impl fmt::Debug for PoolBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBackend")
            .field("allocator", &self.allocator)
            .finish()
    }
}

/// Longer than the longest message of every pool.
const TOO_LONG: Layout = match Layout::from_size_align(isize::MAX as usize, 1) {
    Ok(layout) => layout,
    Err(_) => unreachable!(),
};

/// Returns the layout of a message. One that is longer than any layout is too long for every pool.
#[inline]
pub(crate) fn layout(len: usize, align: usize) -> Layout {
    Layout::from_size_align(len, align).unwrap_or(TOO_LONG)
}
