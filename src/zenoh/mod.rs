//! A backend for zenoh's own `ShmProvider`: a zenoh publisher changes where its provider comes from, and its receivers, in
//! whatever language, change nothing. Feature `zenoh`.
//!
//! # Before and after
//!
//! A stock publisher:
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! use zenoh::shm::{BlockOn, GarbageCollect, ShmProviderBuilder};
//! use zenoh::Wait;
//!
//! let session = zenoh::open(zenoh::Config::default()).wait()?;
//! let publisher = session.declare_publisher("camera/front").wait()?;
//! let provider = ShmProviderBuilder::default_backend(64 << 20).wait()?;
//! let mut frame = provider.alloc(1 << 20).with_policy::<BlockOn<GarbageCollect>>().wait()?;
//! frame[..5].copy_from_slice(b"image");
//! publisher.put(frame).wait()?;
//! # Ok(())
//! # }
//! ```
//!
//! The same on this crate's pool. Only the line that makes the provider is another one:
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! use zenoh::shm::{BlockOn, GarbageCollect};
//! use zenoh::Wait;
//!
//! let session = zenoh::open(zenoh::Config::default()).wait()?;
//! let publisher = session.declare_publisher("camera/front").wait()?;
//! let provider = shm_pool::zenoh::PoolBackend::builder().max_bytes(64 << 20).build()?.provider();
//! let mut frame = provider.alloc(1 << 20).with_policy::<BlockOn<GarbageCollect>>().wait()?;
//! frame[..5].copy_from_slice(b"image");
//! publisher.put(frame).wait()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Who counts the readers
//!
//! zenoh does, in metadata of its own, and this module never counts twice: a chunk comes back when zenoh says so
//! ([`ShmProviderBackend::free`]), not when the publisher's buffer is dropped. What zenoh says is checked against the owner's own
//! record of what is out; a descriptor that names nothing is logged and ignored.
//!
//! # ZenohSegments
//!
//! All messages are carved out of a few segments: at most 16 are ever made, whatever is allocated, and each stays until the backend is
//! dropped. (But for one case: when nothing is in use and a message comes that is longer than each of them, all give way to a single one
//! of all of the cap, once. Receivers then have the old ones locked, too. An [`arena_size`](PoolBackendBuilder::arena_size) of
//! all of the cap rules that out.) zenoh's receivers never let a segment go; they keep a descriptor and a mapping for each one that
//! they have seen, and lock all of it into memory when the first message in it comes.
//!
//! | what a receiver needs for one pool | how much | |
//! |---|---|---|
//! | descriptors (`ulimit -n`) and mappings | one for each segment | [`Stats::segments`] |
//! | locked memory (`ulimit -l`) | at most [`max_bytes`](PoolBackendBuilder::max_bytes) | [`Stats::bytes_mapped`] |
//!
//! A receiver that may not lock so much loses messages, and zenoh says so at its debug level only. So
//! [`build`](PoolBackendBuilder::build) fails where a process with this one's limits could not, as zenoh's own backends do.
//!
//! What is committed when: the publisher takes a page from the system when it is first needed, and the first receiver of a message takes
//! the rest of that message's segment, by locking it. So segments start small ([`arena_size`](PoolBackendBuilder::arena_size)) and
//! grow; but a cap of up to 64 MiB is one segment from the start, and with messages of more than a 32nd of the cap one takes most of
//! it, as a segment of zenoh's own does. A segment is made only where /dev/shm has room for all of it.
//!
//! # Collecting early
//!
//! zenoh looks for messages that everybody has read only when an allocation has failed. A backend that grows up to its cap before
//! it fails would therefore fill all of it, and each message would go to memory that has long left the cache. So
//! when no chunk that will do is idle, the backend asks the provider to collect, and makes a new chunk only if that brought none
//! back. Where a collection makes less than an eighth of the memory idle, it grows by what is missing before the next
//! one: collecting looks at all messages in flight, and would cost much for little where a slow subscriber holds thousands. So the
//! footprint stays within a seventh of what is in flight. Once nearly all of the cap was taken from the system, it
//! collects only when a message fits nowhere.
//!
//! An allocation policy of our own that collects first would do the same, but only in publishers that ask for it; and a backend
//! that answers `OutOfMemory` at a budget below the cap, to make zenoh's policies collect, fails allocations that it could
//! serve when nothing has been read yet. (`benches/peers` measures collecting early beside collecting when full.)
//!
//! This needs the provider that [`PoolBackend::provider`] makes; around a backend that was given to
//! `ShmProviderBuilder::backend` nothing is collected before the cap is reached.
//!
//! # What is trusted
//!
//! zenoh's receivers map segments writable, and zenoh's users can write through what they receive. A receiver that writes beyond its
//! message can damage other messages. It cannot damage the allocator, as it can with zenoh's own backends: what is carved where is kept
//! in private memory. Where receivers are not trusted with other messages, use this crate's own `Provider` and `Client`.
//!
//! # When processes die
//!
//! * The publisher is killed: the kernel drops its locks, and the next zenoh process that starts (or
//!   `zenoh::shm::cleanup_orphaned_shm_segments`, which [`PoolBackendBuilder::build`] calls) unlinks its segments. Receivers that
//!   run keep what they have mapped, and its memory, until they end: zenoh's receivers never let a segment go. That is at most
//!   `max_bytes`, in at most 16 segments, for each publisher that has died; of a publisher with zenoh's own backend, it is all of it.
//! * A receiver is killed while it holds messages: zenoh's count of their readers stays too high for ever, so they do not come back
//!   by themselves. Remedy: when you know that a receiver has died (its liveliness token is gone, say), call
//!   `ShmProvider::garbage_collect_unsafe`. It takes back every message that no living process has confirmed for 100 ms;
//!   it is unsafe because that may be one that a living receiver, or this process, still has, and gets no CPU to confirm.
//! * A forked child of the publisher allocates nothing and gives nothing back. While it lives without calling `exec`, the
//!   segments that it has inherited look alive; those that the publisher gives up meanwhile lose their memory but keep their
//!   names, until a zenoh process starts or ends after the child.

mod builder;
mod outstanding;
mod segments;

use crate::os::posix::PAGE;
use crate::owner::chunk::OwnedChunk;
use crate::owner::class::{class_of, MIN_SIZE};
use crate::owner::error::{AllocError, AllocErrorKind};
use crate::owner::pool::Pool;
use crate::owner::stats::Stats;
pub use builder::PoolBackendBuilder;
use outstanding::{Key, Outstanding};
use std::fmt;
use std::mem::ManuallyDrop;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use zenoh::shm::{
    AllocatedChunk, ChunkAllocResult, ChunkDescriptor, MemoryLayout, ProtocolID, PtrInSegment, ShmProvider,
    ShmProviderBackend, ShmProviderBuilder, WithProtocolID, ZAllocError, ZLayoutError,
};
use zenoh::Wait;

/// zenoh's number for its own POSIX segments.
const POSIX_PROTOCOL: ProtocolID = 0;

/// A pool as the backend of zenoh's `ShmProvider`. Clones share the pool; see the [module's text](self).
///
/// When the last clone is dropped, with the providers that have one, its idle memory goes back to the system. Messages that
/// are still out stay good where they are held.
#[derive(Clone)]
pub struct PoolBackend {
    core: Arc<Core>,
    /// The provider that this is the backend of, which is asked to collect.
    provider: Weak<ShmProvider<PoolBackend>>,
}

struct Core {
    pool: ManuallyDrop<Arc<Pool>>,
    outstanding: Arc<Outstanding>,
    max_alloc: usize,
    collect_early: bool,
    /// The system has refused memory, and the log says so.
    is_short: AtomicBool,
}

impl PoolBackend {
    /// Starts with the defaults.
    pub fn builder() -> PoolBackendBuilder {
        PoolBackendBuilder::new()
    }

    /// A provider on this backend, which collects early what it has given out itself.
    ///
    /// A message that is out when its provider is dropped stays in use until the last clone of the backend is dropped, too: only
    /// its provider knows of it.
    pub fn provider(&self) -> Arc<ShmProvider<Self>> {
        Arc::new_cyclic(|provider| {
            let backend = Self { core: self.core.clone(), provider: provider.clone() };
            ShmProviderBuilder::backend(backend).wait()
        })
    }

    /// What the pool holds and has done. A message counts as in use until zenoh has given it back, whether or not it is still read.
    pub fn stats(&self) -> Stats {
        self.core.pool.stats()
    }

    /// Gives all idle memory back to the system. Returns how many bytes that was. The segments stay, empty: receivers never let one go,
    /// so that new ones in their place would fill the receivers' tables.
    pub fn trim(&self) -> usize {
        if self.core.pool.is_ours() {
            self.core.pool.trim()
        } else {
            0
        }
    }

    /// Takes a chunk for `len` bytes, of a class that has none in its hot slot.
    #[inline(never)]
    fn take_slow(&self, class: usize, len: usize) -> Result<OwnedChunk, AllocError> {
        let pool = &self.core.pool;
        // Before any lock, which a thread that is not in this process may hold.
        if !pool.is_ours() {
            return Err(AllocErrorKind::Forked.into());
        }
        if let Some(chunk) = pool.take_ready(class) {
            return Ok(chunk);
        }
        let is_due = (self.core.collect_early && pool.is_collection_due()) || pool.is_full_for(class, len);
        let has_collected = is_due && self.collect().is_some();
        if has_collected {
            pool.note_collection();
            if let Some(chunk) = pool.take_ready(class) {
                return Ok(chunk);
            }
        }
        let taken = pool.take_slow(class, len).or_else(|error| {
            let may_fit_now = is_for_want_of_memory(&error) && self.has_come_back(has_collected, &error);
            if may_fit_now {
                pool.take_slow(class, len)
            } else {
                Err(error)
            }
        });
        if taken.is_ok() {
            self.core.is_short.store(false, Ordering::Relaxed);
        }
        taken
    }

    /// Has anything come back since an allocation failed? It may be enough, if not in one piece: so a policy does not decide alone
    /// whether to try again.
    #[cold]
    fn has_come_back(&self, has_collected: bool, error: &AllocError) -> bool {
        let found = if has_collected { None } else { self.collect() };
        // Another thread may have collected what is missing here.
        found.is_some_and(|longest| longest > 0) || self.core.pool.has_less_in_use(error)
    }

    /// What zenoh is told when there is no memory; the log gets the reason.
    #[cold]
    fn refused(&self, layout: &MemoryLayout, error: &AllocError) -> ZAllocError {
        // A policy that waits for memory tries again a thousand times a second: what the system refuses is said once, until there is
        // memory again. That the cap is reached is an ordinary thing.
        if error.is_exhausted() || self.core.is_short.swap(true, Ordering::Relaxed) {
            tracing::debug!(%layout, %error, "no memory for a message");
        } else {
            tracing::error!(%layout, %error, "no memory for a message; not said again before there is some");
        }
        if is_for_want_of_memory(error) {
            ZAllocError::OutOfMemory
        } else {
            ZAllocError::Other
        }
    }

    /// Has zenoh give back what everybody has read. Returns the length of the longest message; `None` if zenoh cannot be asked.
    fn collect(&self) -> Option<usize> {
        self.provider.upgrade().map(|provider| provider.garbage_collect())
    }
}

impl Core {
    /// The class for a layout; `None` if it is too large, or its alignment is.
    #[inline]
    fn class(&self, layout: &MemoryLayout) -> Option<usize> {
        let (size, align) = (layout.size().get(), layout.alignment().get_alignment_value().get());
        if size > self.max_alloc || align > PAGE {
            return None;
        }
        let class = class_of(size);
        Some(if align <= MIN_SIZE { class } else { self.pool.limits().page_aligned(size) })
    }
}

impl WithProtocolID for PoolBackend {
    /// zenoh's own POSIX segments, which every receiver can map.
    fn id(&self) -> ProtocolID {
        POSIX_PROTOCOL
    }
}

impl ShmProviderBackend for PoolBackend {
    #[inline]
    fn alloc(&self, layout: &MemoryLayout) -> ChunkAllocResult {
        let core = &*self.core;
        let Some(class) = core.class(layout) else {
            tracing::warn!(%layout, max_alloc = core.max_alloc, "a layout that the pool cannot serve");
            return Err(ZAllocError::Other);
        };
        let taken = core.pool.shelf(class).take_hot().map_or_else(|| self.take_slow(class, layout.size().get()), Ok);
        let adopted = taken.and_then(|chunk| core.pool.adopt(&chunk).map(|()| chunk));
        let chunk = adopted.map_err(|error| self.refused(layout, &error))?;
        let key = Key::of(&chunk);
        let len = NonZeroUsize::new(chunk.capacity()).unwrap_or(NonZeroUsize::MIN);
        let data = PtrInSegment::new(chunk.data().as_ptr(), chunk.memory().payload().clone());
        core.outstanding.put(chunk, key);
        Ok(AllocatedChunk { descriptor: ChunkDescriptor::new(key.segment, key.offset, len), data })
    }

    #[inline]
    fn free(&self, chunk: &ChunkDescriptor) {
        let key = Key { segment: chunk.segment, offset: chunk.chunk };
        match self.core.outstanding.take(key, chunk.len.get()) {
            Some(chunk) => Pool::give(chunk),
            None => tracing::error!(?chunk, "freed a chunk that is not out; ignored"),
        }
    }

    /// Gives all idle chunks back to the segments that they were carved out of, and tells how large a message surely fits now.
    fn defragment(&self) -> usize {
        if !self.core.pool.is_ours() {
            return 0;
        }
        self.core.pool.destroy_idle();
        self.core.pool.largest_that_fits()
    }

    /// Bytes under the cap that no message is in: idle, or not taken from the system. Not all of it need fit in one piece.
    fn available(&self) -> usize {
        let stats = self.stats();
        stats.max_bytes.saturating_sub(stats.bytes_in_use)
    }

    fn layout_for(&self, layout: MemoryLayout) -> Result<MemoryLayout, ZLayoutError> {
        if self.core.class(&layout).is_some() {
            return Ok(layout);
        }
        tracing::warn!(%layout, max_alloc = self.core.max_alloc, max_align = PAGE, "a layout that the pool cannot serve");
        Err(ZLayoutError::ProviderIncompatibleLayout)
    }
}

/// Can memory that is given back help?
fn is_for_want_of_memory(error: &AllocError) -> bool {
    match error.kind() {
        AllocErrorKind::Exhausted { .. } => true,
        // Without an errno: all segment ids are in use.
        AllocErrorKind::Os(os) => {
            matches!(os.errno(), Some(libc::ENOSPC | libc::ENOMEM | libc::EMFILE | libc::ENFILE) | None)
        }
        _ => false,
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // A forked child owns nothing: its copy of the pool is left as it is.
        if !self.pool.is_ours() {
            return;
        }
        self.pool.close();
        // Somebody may read these for as long as they like; their segments stay until the last buffer here is gone.
        self.outstanding.take_all().for_each(|chunk| Pool::dispose(chunk, false));
        // SAFETY: dropped here and never used again.
        unsafe { ManuallyDrop::drop(&mut self.pool) };
    }
}

impl fmt::Debug for PoolBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBackend").field("limits", self.core.pool.limits()).finish()
    }
}
