//! A backend for zenoh's own `ShmProvider`, and a pool of whole zenoh buffers on top of it. A zenoh
//! publisher changes where its memory comes from; its receivers, in whatever language, change
//! nothing.
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
//! The same on the pool of [`shm_pool`]. Only the line that makes the provider differs:
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! use zenoh::shm::{BlockOn, GarbageCollect};
//! use zenoh::Wait;
//!
//! let session = zenoh::open(zenoh::Config::default()).wait()?;
//! let publisher = session.declare_publisher("camera/front").wait()?;
//! let provider = shm_pool_zenoh::PoolBackend::builder().max_bytes(64 << 20).build()?.provider();
//! let mut frame = provider.alloc(1 << 20).with_policy::<BlockOn<GarbageCollect>>().wait()?;
//! frame[..5].copy_from_slice(b"image");
//! publisher.put(frame).wait()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Provider or buffer pool
//!
//! For each message, zenoh's provider makes metadata and has it watched, and takes both down again.
//! That is most of what an allocation costs, whatever the backend. A [`BufferPool`] keeps them
//! together with the chunk, and hands the whole out again when zenoh's own check says that
//! everybody has read it:
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! # use zenoh::Wait;
//! # let session = zenoh::open(zenoh::Config::default()).wait()?;
//! # let publisher = session.declare_publisher("camera/front").wait()?;
//! use shm_pool_zenoh::{BufferPool, PoolBackend};
//! use std::time::Duration;
//!
//! let pool = BufferPool::new(&PoolBackend::builder().max_bytes(64 << 20).build()?);
//! let mut frame = pool.alloc_timeout(1 << 20, Duration::from_millis(100))?;
//! frame[..5].copy_from_slice(b"image");
//! publisher.put(frame).wait()?;
//! # Ok(())
//! # }
//! ```
//!
//! | | [`provider`](PoolBackend::provider) | [`BufferPool`] |
//! |---|---|---|
//! | use it when | code that takes a `ShmProvider` stays as it is; receivers write messages in place | allocation should cost little, and lengths recur |
//! | lengths | any | any; a length that hardly recurs costs what the provider costs |
//! | aligned, zeroed and typed buffers, precomputed layouts | as zenoh's | [`request`](BufferPool::request); nothing needs to be precomputed |
//! | waits for a reader by | sleeping for 1 ms at a time (zenoh's `BlockOn`) | looking after 20 µs, then after each eighth of the time waited, at least every 1 ms |
//! | awaits | on tokio | [on any executor](BufferRequest::wait_async) |
//! | errors | zenoh's: no reason but in the log | [`AllocError`], with the figures |
//! | a receiver that has a message alone may write it in place | yes | no: the pool has it, too |
//! | memory | what is in flight and a seventh | what is in flight and an eighth, of each class |
//! | a receiver dies with messages | `garbage_collect_unsafe` | [`let_go`](BufferPool::let_go), or 64 allocations, then the same |
//!
//! Both may be used on one backend, under one cap. Both serve publishers, queries, replies and
//! attachments; zenoh copies attachments, whatever they are in.
//!
//! # Beyond one machine
//!
//! Subscribers without shared memory, on this machine or another, get the same bytes: zenoh copies
//! them to the network, before `put` returns. So they hold nothing, and the next message may use
//! the same buffer. It makes no difference whether there is a router between. A subscriber, and a
//! router, that has shared memory gets the buffer itself, even if others beside it do not.
//!
//! # Differences from zenoh's own provider
//!
//! | | zenoh 1.10's default | on this backend |
//! |---|---|---|
//! | `JustAlloc`, when all memory was used and has been read | fails until somebody collects | succeeds: the backend collects |
//! | `available()` | 0, always | the bytes under the cap that no message takes |
//! | `garbage_collect()` | returns the length of the longest message collected | returns the size of its class |
//! | `try_resize` | makes a message shorter | and longer, up to the size of its class |
//! | largest alignment | that of the layout that it was made with: 1, if that was a length | 4096 |
//! | cap | the bytes that are asked for, all taken at once | rounded up to whole pages, taken when needed |
//!
//! `tests/zenoh/differences.rs` checks each of these on both, and `tests/zenoh/zenohs_own.rs` what
//! zenoh checks of its own providers.
//!
//! # Who counts the readers
//!
//! zenoh does, in metadata of its own, and this module does not count twice: a chunk comes back
//! when zenoh says so ([`ShmProviderBackend::free`]), not when the publisher's buffer is dropped.
//! What zenoh says is checked against the owner's own record of what is out. A descriptor that
//! names nothing is logged and ignored.
//!
//! # Segments
//!
//! All messages are carved out of a few segments. At most 16 are ever made, whatever is allocated,
//! and each stays until the backend is dropped. There is one exception: if a message comes that is
//! longer than every segment while nothing is in use, all segments give way, once, to a single one
//! as long as the cap. Receivers then have the old ones locked too. An
//! [`arena_size`](PoolBackendBuilder::arena_size) as long as the cap rules that out.
//!
//! zenoh's receivers never let a segment go. They keep a descriptor and a mapping for each segment
//! that they have seen, and lock the whole segment into memory when the first message in it
//! arrives.
//!
//! | what a receiver needs for one pool | how much | |
//! |---|---|---|
//! | descriptors (`ulimit -n`) and mappings | one for each segment | [`Stats::segments`] |
//! | locked memory (`ulimit -l`) | at most [`max_bytes`](PoolBackendBuilder::max_bytes) | [`Stats::bytes_mapped`] |
//!
//! A receiver that may not lock that much loses messages, and zenoh says so at its debug level
//! only. So [`build`](PoolBackendBuilder::build) fails where a process with this one's limits could
//! not lock it, as zenoh's own backends do.
//!
//! The publisher takes a page from the system when it first needs it. The first receiver of a
//! message takes the rest of that message's segment by locking it. So segments start small
//! ([`arena_size`](PoolBackendBuilder::arena_size)) and grow. But a cap of up to 64 MiB is one
//! segment from the start, and with messages of more than a 32nd of the cap one segment takes most
//! of it, as a segment of zenoh's own does. A segment is made only if /dev/shm has room for all of
//! it.
//!
//! # Collecting early
//!
//! zenoh looks for messages that everybody has read only when an allocation fails. A backend that
//! fails only at its cap would therefore fill all of it, and each message would go to memory that
//! left the cache long ago. So when no suitable chunk is idle, this backend first asks the provider
//! to collect, and makes a new chunk only if that brought none back.
//!
//! Collecting looks at all messages in flight; if a slow subscriber holds thousands, it would cost
//! much and gain little. So if a collection makes less than an eighth of the memory idle, the pool
//! grows by what is missing before the next one. The footprint stays within a seventh of what is in
//! flight. Once nearly all of the cap has been taken from the system, the backend collects only
//! when a message fits nowhere.
//!
//! Two other designs fall short. An allocation policy of our own that collects first would help
//! only publishers that ask for it. A backend that answers `OutOfMemory` at a budget below the cap,
//! to make zenoh's policies collect, fails allocations that it could serve when nothing has been
//! read yet. (`benches/peers` compares collecting early with collecting when full.)
//!
//! Collecting early needs the provider that [`PoolBackend::provider`] makes. Around a backend that
//! was passed to `ShmProviderBuilder::backend`, nothing is collected before the cap is reached.
//!
//! # What is trusted
//!
//! zenoh's receivers map segments writable, and zenoh's users can write through what they receive.
//! A receiver that writes beyond its message can damage other messages. It cannot damage the
//! allocator, as it can with zenoh's own backends: the record of what is carved where is in private
//! memory. If receivers must not be trusted with other messages, use the `Provider` and the
//! `Client` of [`shm_pool`].
//!
//! # When processes die
//!
//! * The publisher is killed: the kernel drops its locks, and the next zenoh process that starts
//!   (or `zenoh::shm::cleanup_orphaned_shm_segments`, which [`PoolBackendBuilder::build`] calls)
//!   unlinks its segments. Running receivers keep what they have mapped, and its memory, until they
//!   end: zenoh's receivers never let a segment go. For each dead publisher that is at most
//!   `max_bytes`, in at most 16 segments; with zenoh's own backend it is always all of it.
//! * A receiver is killed while it holds messages, or ends while some are on their way to it:
//!   zenoh's count of their readers stays too high
//!   for ever, so they do not come back by themselves. Once you know that a receiver has died
//!   (because its liveliness token is gone, for example), call
//!   `ShmProvider::garbage_collect_unsafe`. It takes back every message that no living process has
//!   confirmed for 100 ms. A [`BufferPool`] confirms what it keeps, so have it
//!   [let go](BufferPool::let_go) first. The call is unsafe because a living receiver, or this process, may still have
//!   such a message and get no CPU to confirm it.
//! * A forked child of the publisher allocates nothing and gives nothing back. While it lives
//!   without calling `exec`, the segments that it inherited look alive. Those that the publisher
//!   gives up meanwhile lose their memory but keep their names, until a zenoh process starts or
//!   ends after the child.

mod buffers;
mod builder;
mod class;
mod error;
mod handle;
mod outstanding;
mod probe;
mod request;
mod segments;
mod system;
mod waiting;
mod whole;

pub use buffers::{BufferPool, BufferStats};
pub use builder::PoolBackendBuilder;
pub use error::BuildError;
pub use handle::Buffer;
pub use request::{BufferFuture, BufferRequest};
pub use shm_pool::{AllocError, AllocErrorKind, CapacityError, OsError, Reservation, Stats};

use outstanding::{Key, Outstanding};
use shm_pool::backend::{Backend, Chunk, Collect};
use std::error::Error;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use zenoh::shm::{
    AllocatedChunk, ChunkAllocResult, ChunkDescriptor, MemoryLayout, ProtocolID, PtrInSegment, ShmProvider,
    ShmProviderBackend, ShmProviderBuilder, WithProtocolID, ZAllocError, ZLayoutError,
};
use zenoh::Wait;

/// zenoh's protocol number for its own POSIX segments.
const POSIX_PROTOCOL: ProtocolID = 0;

/// A pool as the backend of zenoh's `ShmProvider`. Clones share the pool.
///
/// When the last clone and the last provider that has one are dropped, idle memory goes back to the
/// system. Messages that are still out stay good where they are held.
#[derive(Clone)]
pub struct PoolBackend {
    core: Arc<Core>,
    /// Asks the provider on this backend to collect, if there is one.
    chunks: Backend,
}

struct Core {
    chunks: Backend,
    outstanding: Arc<Outstanding>,
    /// The system has refused memory, and the log has said so.
    is_short: AtomicBool,
}

/// Has a provider give back what everybody has read.
struct Collector(Weak<ShmProvider<PoolBackend>>);

impl Collect for Collector {
    fn collect(&self) -> bool {
        self.0.upgrade().is_some_and(|provider| provider.garbage_collect() > 0)
    }
}

impl PoolBackend {
    /// A builder with the default options.
    pub fn builder() -> PoolBackendBuilder {
        PoolBackendBuilder::new()
    }

    fn new(chunks: Backend, outstanding: Arc<Outstanding>) -> Self {
        let core = Core { chunks: chunks.clone(), outstanding, is_short: AtomicBool::new(false) };
        Self { core: Arc::new(core), chunks }
    }

    /// The same backend, which has this provider collect.
    fn collecting_by(&self, provider: Weak<ShmProvider<Self>>) -> Self {
        Self { core: self.core.clone(), chunks: self.chunks.collecting_by(Arc::new(Collector(provider))) }
    }

    /// Creates a provider on this backend. It collects early what it has given out itself.
    ///
    /// A message that is out when its provider is dropped stays in use until the last clone of the
    /// backend is dropped too: only its provider knows of it.
    pub fn provider(&self) -> Arc<ShmProvider<Self>> {
        Arc::new_cyclic(|provider| ShmProviderBuilder::backend(self.collecting_by(provider.clone())).wait())
    }

    /// What the pool holds and has done. A message counts as in use until zenoh has given it back,
    /// whether or not anybody still reads it.
    pub fn stats(&self) -> Stats {
        self.chunks.stats()
    }

    /// Reserves `count` chunks for messages of `len` bytes, aligned to at most 64: they exist from
    /// now on, in use or idle, until the [`Reservation`] is dropped. Their memory is present, and
    /// the backend has room in its own books for them, so that it makes no segment, no system call
    /// and no heap call for a message as long as one of them is free. (What zenoh itself does for a
    /// message stays.) No other length takes them, and neither [`trim`](Self::trim) nor a lack of
    /// memory destroys them. They count against the cap.
    ///
    /// Several reservations of one size class add up.
    ///
    /// # Errors
    ///
    /// [`AllocErrorKind::TooLarge`] above the largest message; [`AllocErrorKind::ReserveTooMany`]
    /// if the class has more reserved than
    /// [`max_idle_per_class`](PoolBackendBuilder::max_idle_per_class);
    /// [`AllocErrorKind::Exhausted`] at the cap; [`AllocErrorKind::Os`] if the system refuses;
    /// [`AllocErrorKind::Forked`] in a forked child. On an error nothing is reserved, and nothing
    /// is left of it.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// # use zenoh::Wait;
    /// let backend = shm_pool_zenoh::PoolBackend::builder().max_bytes(1 << 20).build()?;
    /// backend.reserve(100_000, 4)?.keep();
    /// let provider = backend.provider();
    /// let frame = provider.alloc(100_000).wait()?;
    /// assert_eq!(backend.stats().misses(), 4, "no fifth one was made");
    /// # drop(frame);
    /// # Ok(())
    /// # }
    /// ```
    pub fn reserve(&self, len: usize, count: usize) -> Result<Reservation, AllocError> {
        let reservation = self.chunks.reserve(len, 1, count)?;
        for (segment, offset) in self.chunks.places(self.chunks.class(len, 1)?) {
            self.core.outstanding.prepare(Key::new(segment, offset));
        }
        Ok(reservation)
    }

    /// Gives all idle memory back to the system, and returns how many bytes that was. The segments
    /// stay, empty: receivers never let one go, so new ones would only fill the receivers' tables.
    pub fn trim(&self) -> usize {
        self.chunks.trim()
    }

    /// Takes a chunk, and notes that it is out.
    #[inline]
    fn take(&self, len: usize, align: usize) -> Result<AllocatedChunk, AllocError> {
        let core = &*self.core;
        let chunk = self.chunks.alloc(len, align)?;
        if core.is_short.load(Ordering::Relaxed) {
            core.is_short.store(false, Ordering::Relaxed);
        }
        let key = Key::of(&chunk);
        let len = NonZeroUsize::new(chunk.len()).unwrap_or(NonZeroUsize::MIN);
        let data = PtrInSegment::new(chunk.as_ptr(), chunk.keep_mapped());
        core.outstanding.put(chunk, key);
        Ok(AllocatedChunk { descriptor: ChunkDescriptor::new(key.segment, key.offset, len), data })
    }

    /// What zenoh is told when there is no memory. The log gets the reason.
    #[cold]
    fn refused(&self, layout: &MemoryLayout, error: &AllocError) -> ZAllocError {
        // A policy that waits for memory tries again a thousand times a second, so a refusal by the
        // system is logged once until there is memory again. Reaching the cap is nothing unusual.
        let is_at_the_cap = matches!(error.kind(), AllocErrorKind::Exhausted { .. });
        let cause = error as &(dyn Error + 'static);
        if is_at_the_cap || self.core.is_short.swap(true, Ordering::Relaxed) {
            tracing::debug!(%layout, error = cause, "no memory for a message");
        } else {
            tracing::error!(%layout, error = cause, "no memory for a message; not said again before there is some");
        }
        if is_for_want_of_memory(error) {
            ZAllocError::OutOfMemory
        } else {
            ZAllocError::Other
        }
    }

    /// Can the pool serve a layout? The log gets the reason why not.
    #[inline]
    fn can_serve(&self, layout: &MemoryLayout) -> bool {
        let log = |error| tracing::warn!(%layout, %error, "a layout that the pool cannot serve");
        self.chunks.class(len_of(layout), align_of(layout)).map_err(log).is_ok()
    }
}

fn len_of(layout: &MemoryLayout) -> usize {
    layout.size().get()
}

fn align_of(layout: &MemoryLayout) -> usize {
    layout.alignment().get_alignment_value().get()
}

impl WithProtocolID for PoolBackend {
    /// The protocol of zenoh's own POSIX segments, which every receiver can map.
    fn id(&self) -> ProtocolID {
        POSIX_PROTOCOL
    }
}

impl ShmProviderBackend for PoolBackend {
    #[inline]
    fn alloc(&self, layout: &MemoryLayout) -> ChunkAllocResult {
        if !self.can_serve(layout) {
            return Err(ZAllocError::Other);
        }
        self.take(len_of(layout), align_of(layout)).map_err(|error| self.refused(layout, &error))
    }

    #[inline]
    fn free(&self, chunk: &ChunkDescriptor) {
        let key = Key { segment: chunk.segment, offset: chunk.chunk };
        match self.core.outstanding.take(key, chunk.len.get()) {
            Some(chunk) => drop(chunk),
            None => tracing::error!(?chunk, "freed a chunk that is not out; ignored"),
        }
    }

    /// Gives all idle chunks back to the segments that they were carved out of. Returns the length
    /// of a message that surely fits now.
    fn defragment(&self) -> usize {
        self.chunks.evict_idle();
        self.chunks.largest_that_fits()
    }

    /// Bytes under the cap that no message takes: idle, or not taken from the system yet. They may
    /// not fit in one piece.
    fn available(&self) -> usize {
        let stats = self.stats();
        stats.max_bytes.saturating_sub(stats.bytes_in_use)
    }

    fn layout_for(&self, layout: MemoryLayout) -> Result<MemoryLayout, ZLayoutError> {
        self.can_serve(&layout).then_some(layout).ok_or(ZLayoutError::ProviderIncompatibleLayout)
    }
}

/// Can memory that is given back help?
fn is_for_want_of_memory(error: &AllocError) -> bool {
    match error.kind() {
        AllocErrorKind::Exhausted { .. } => true,
        // No errno: all segment ids are in use.
        AllocErrorKind::Os(os) => {
            matches!(os.errno(), Some(libc::ENOSPC | libc::ENOMEM | libc::EMFILE | libc::ENFILE) | None)
        }
        _ => false,
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // Readers may keep these for as long as they like; their segments stay until the last
        // buffer here is gone. A forked child owns nothing, and leaves its copies as they are.
        if !self.chunks.is_inherited() {
            self.outstanding.take_all().for_each(Chunk::give_up);
        }
    }
}

impl fmt::Debug for PoolBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBackend").field("chunks", &self.chunks).finish()
    }
}
