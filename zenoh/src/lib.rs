//! A backend for zenoh's own `ShmProvider`, and a pool of whole zenoh buffers on top of it. Only
//! the publisher changes, and only where it allocates; receivers, in any language, stay as they
//! are.
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
//! The same on the pool of [`shm_pool`]. Only the line that creates the provider differs:
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
//! For each message, zenoh's provider sets up metadata, registers it with two watching threads, and
//! removes both again. That is most of the cost of an allocation, with any backend. A
//! [`BufferPool`] keeps them together with the chunk, and reuses all three when zenoh's own check
//! says that no reader has the message any more:
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
//! | use it if | existing code takes a `ShmProvider`; receivers write messages in place | allocation should be cheap, and lengths recur |
//! | lengths | any | any; a length that hardly recurs costs as much as with the provider |
//! | aligned, zeroed and typed buffers, precomputed layouts | as zenoh's | [`request`](BufferPool::request); nothing needs to be precomputed |
//! | waits for a reader by | sleeping for 1 ms at a time (zenoh's `BlockOn`) | looking every millisecond |
//! | awaits | on tokio | [on any executor](BufferRequest::wait_async) |
//! | errors | zenoh's; the reason is in the log only | [`AllocError`], with all figures |
//! | the only holder of a received message may write it in place | yes | no: the pool is a holder, too, of each buffer that it reuses |
//! | memory | the messages in flight and a seventh, or 3 KiB for each of them if that is more, or 32 KiB | of each class the messages in flight and an eighth; twice those of up to 2 KiB, falling to an eighth more at 9 KiB |
//! | a receiver dies with messages | `garbage_collect_unsafe` | [`let_go`](BufferPool::let_go), or 64 allocations, then the same |
//!
//! Both may share one backend and its cap. Both serve publishers, queries, replies and attachments;
//! zenoh always copies attachments.
//!
//! # Beyond one machine
//!
//! Subscribers without shared memory, on this machine or another, receive the same bytes: zenoh
//! copies them to the network before `put` returns. So they hold no buffer, and the next message
//! may use the same one, with or without a router in between. A subscriber or router with shared
//! memory receives the buffer itself, even if others do not.
//!
//! # Differences from zenoh's own provider
//!
//! | | zenoh 1.10's default | on this backend |
//! |---|---|---|
//! | `JustAlloc`, after all memory was used and read | fails until the publisher collects | succeeds: the backend collects |
//! | a message in use, and its provider is dropped | invalid: receivers lose it | valid ([`PoolProvider`]) |
//! | `available()` | always 0 | the bytes under the cap that no message uses |
//! | `garbage_collect()` | returns the length of the longest message collected | returns the size of its class |
//! | `try_resize` | makes a message shorter | also longer, up to the size of its class |
//! | largest alignment | that of the layout it was created with: 1 for a length | 4096 |
//! | cap | the requested bytes, allocated at once | rounded up to whole pages, allocated a segment at a time |
//!
//! `tests/zenoh/differences.rs` checks each of these on both backends; `tests/zenoh/zenohs_own.rs`
//! contains zenoh's checks of its own providers.
//!
//! # Counting readers
//!
//! zenoh counts readers, in its own metadata. This crate does not count them again: a chunk returns
//! when zenoh frees it ([`ShmProviderBackend::free`]), not when the publisher's buffer is dropped.
//! Each such call is checked against a private record of the chunks in use. A descriptor of no such
//! chunk is logged and ignored.
//!
//! # Segments
//!
//! All messages are carved from a few segments: never more than 16, and each exists until the
//! backend is dropped. There is one exception: if a message is longer than every segment and
//! nothing is in use, all segments are replaced, once, by a single one as long as the cap.
//! Receivers then keep the old ones locked too. An [`arena_size`](PoolBackendBuilder::arena_size)
//! as long as the cap rules that out.
//!
//! zenoh's receivers never unmap a segment. They keep a descriptor and a mapping for each segment
//! that they have seen, and lock the whole segment into memory when the first message in it
//! arrives.
//!
//! | a receiver needs, for one pool | how much | statistic |
//! |---|---|---|
//! | descriptors (`ulimit -n`) and mappings | one for each segment | [`Stats::segments`] |
//! | locked memory (`ulimit -l`) | at most [`max_bytes`](PoolBackendBuilder::max_bytes) | [`Stats::bytes_mapped`] |
//!
//! A receiver that may not lock that much loses messages, and zenoh logs this at its debug level
//! only. So [`build`](PoolBackendBuilder::build) fails if a process with this one's limits could
//! not lock it, as zenoh's own backends do.
//!
//! The publisher allocates all of a segment before its first message, and the receivers then map
//! that memory. Both together take some 0.4 ms per MiB. So segments start small
//! ([`arena_size`](PoolBackendBuilder::arena_size)) and grow: a receiver reads the first message
//! early, and a publisher that exits soon afterwards does not lose it. With messages of more than a
//! 32nd of the cap, one segment covers most of it, as zenoh's own does.
//!
//! # When /dev/shm is full
//!
//! A receiver's lock on a segment would fail if a part of the segment had no memory and /dev/shm
//! were full. zenoh would then drop the message, and log that at its debug level only. So a segment
//! has all its memory while it has a message or an idle chunk: receivers allocate none, whenever
//! they join.
//!
//! * **A message that was allocated and sent is not lost because /dev/shm is full**, with memory of
//!   this pool, of other pools and publishers, or of other programs.
//! * If /dev/shm has no room for a whole segment and 2 MiB for zenoh's metadata, the pool creates a
//!   shorter one. If there is no room for that either, the allocation is refused: with
//!   [`AllocError::Os`] and the sizes by a [`BufferPool`], and with zenoh's `OutOfMemory` and
//!   an error in the log by a provider. [`AllocError::is_exhausted`] is then `true`.
//! * A refusal takes nothing from the segments that exist. Idle memory in them is used as at the
//!   cap, so a cap above the size of /dev/shm does no harm. Pools that share /dev/shm get its
//!   memory in the order in which they need it: to divide it, give them caps that fit together.
//! * An empty segment's memory returns to the system by [`trim`](PoolBackend::trim), after a while
//!   without use, or if a longer segment needs it. Others may take it, and the next allocation may
//!   then be refused.
//!
//! Not promised, because no allocator can:
//!
//! * zenoh's own objects: 1.25 MiB of metadata for each process that publishes, as much for each
//!   further 32,768 messages in flight, and 16 KiB for each session. The pool leaves 2 MiB for
//!   them, which other programs may take. zenoh panics if there is no memory for the first metadata
//!   of a process; later, an allocation fails.
//! * What else keeps a receiver from a message: its limits on locked memory and descriptors (see
//!   above), and no CPU time for 100 ms, after which zenoh invalidates messages.
//!
//! # Collecting early
//!
//! zenoh looks for messages that have been read only when an allocation fails. A backend that fails
//! only at its cap would therefore fill all of it, and each message would be written to memory that
//! left the cache long ago. So when no suitable chunk is idle, this backend first has its providers
//! collect, and creates another chunk only if that released none.
//!
//! A collection visits all messages in flight; if a slow subscriber holds thousands, it would cost
//! much and gain little. If few short messages are in flight, a collection for each allocation would
//! cost more than the allocation. So if a collection leaves less idle memory than a seventh of the
//! messages in flight, than 3 KiB for each of them, or than 32 KiB, the pool grows by the missing
//! amount before the next one. Its chunks are at most that much more than the messages in flight. Once nearly all of the
//! cap has been used, the backend collects only when there is no room for a message.
//!
//! Two other designs fall short. An allocation policy that collects first would help only
//! publishers that select it. A backend that returns `OutOfMemory` at a budget below the cap, to
//! make zenoh's policies collect, fails allocations that it could serve when nothing has been read
//! yet. (`benches/peers` compares collecting early with collecting when full.)
//!
//! Messages that the backend's collections release are used again in the order of their addresses,
//! which the processor's caches favour. The record of chunks in use reserves 13 % of a segment's
//! length in private address space, of which the pages that are used are resident.
//!
//! The backend also collects before it refuses an allocation. After eight refusals in a row, it
//! limits collections that release nothing to a 512th of the time: zenoh's policies collect in each
//! try themselves.
//!
//! The backend collects only the providers from [`PoolBackend::provider`], and only their messages
//! outlive them. A caller that passes the backend to `ShmProviderBuilder::backend` has to collect,
//! and has to keep the provider while its messages are in use.
//!
//! # Long messages
//!
//! A message that is refused again and again gets a *region*: chunks in it return to the segment
//! when they have been read, instead of being reused, until the message fits. So it is not starved
//! by shorter messages, and these are never refused because of it. A [`BufferPool`] releases its
//! buffers in a region likewise.
//!
//! # Trust
//!
//! zenoh's receivers map segments writable, and zenoh's users can write through what they receive.
//! A receiver that writes beyond its message can damage other messages. Unlike with zenoh's own
//! backends, it cannot damage the allocator, whose bookkeeping is in private memory. If receivers
//! must not be trusted with other messages, use the `Provider` and the `Client` of [`shm_pool`].
//!
//! # When processes die
//!
//! * The publisher exits: receivers still read the messages that it has sent, even those that they
//!   receive later. The segments of these messages keep their names until the receivers exit or, if
//!   no receiver maps them, until another zenoh process starts or exits.
//! * The publisher is killed: the kernel drops its locks, and the next zenoh process that starts
//!   (or `zenoh::shm::cleanup_orphaned_shm_segments`) unlinks its segments. Running receivers keep
//!   what they have mapped, and its memory, until they exit: zenoh's receivers never unmap a
//!   segment. For each dead publisher that is at most `max_bytes`, in at most 16 segments; with
//!   zenoh's own backend it is always all of it.
//! * A receiver is killed while it holds messages, or exits while some are on their way to it:
//!   zenoh's count of their readers stays too high forever, so they do not return by themselves.
//!   Once you know that a receiver has died (for example because its liveliness token has
//!   disappeared), call `ShmProvider::garbage_collect_unsafe`. It reclaims every message that no
//!   living process has confirmed for 100 ms. A [`BufferPool`] confirms the buffers that it keeps,
//!   so call [`BufferPool::let_go`] before, each time. The call is unsafe because a living
//!   receiver, or this process, may still have such a message and lack the CPU time to confirm it.
//!   Keep the [`PoolBackend`] until then: a provider without a handle stays with such messages, and
//!   its whole backend, until the process exits. [`PoolBackend::provider`] returns it.
//! * A forked child of the publisher allocates nothing and releases nothing. It cannot publish with
//!   a pool of its own either: zenoh's threads do not exist there. While it runs without calling
//!   `exec`, the segments that it inherited look alive. Those that the publisher removes meanwhile
//!   lose their memory but keep their names, until a zenoh process starts or exits after the child.

mod buffers;
mod builder;
mod class;
mod error;
mod freed;
mod handle;
mod idle;
mod outstanding;
mod probe;
mod provider;
mod request;
mod segments;
mod system;
mod waiting;
mod whole;

pub use buffers::{BufferPool, BufferStats};
pub use builder::PoolBackendBuilder;
pub use error::BuildError;
pub use handle::Buffer;
pub use provider::PoolProvider;
pub use request::{BufferFuture, BufferRequest};
pub use shm_pool::{AllocError, CapacityError, OsError, Reservation, Stats};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;

use outstanding::{Key, Outstanding};
use parking_lot::Mutex;
use shm_pool::backend::{Backend, Chunk, Collect};
use std::alloc::Layout;
use std::error::Error;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use zenoh::shm::{
    AllocatedChunk, ChunkAllocResult, ChunkDescriptor, MemoryLayout, ProtocolID, PtrInSegment,
    ShmProvider, ShmProviderBackend, WithProtocolID, ZAllocError, ZLayoutError,
};

/// zenoh's protocol number for its own POSIX segments.
const POSIX_PROTOCOL: ProtocolID = 0;

/// The call that fails if zenoh has no metadata for a message. zenoh does not report why.
const MAP: &str = "zenoh::shm::ShmProvider::map";

/// A pool as the backend of zenoh's `ShmProvider`. Clones share the pool.
///
/// When the last clone and the last provider that has one are dropped, the memory of empty segments
/// returns to the system. Messages that are still in use stay valid for their holders, and for
/// receivers that they have yet to reach.
#[derive(Clone)]
pub struct PoolBackend {
    core: Arc<Core>,
    /// Has the providers on this backend collect.
    chunks: Backend,
}

struct Core {
    chunks: Backend,
    outstanding: Arc<Outstanding>,
    providers: Arc<Providers>,
}

/// After this many refusals in a row the caller is polling, and [`POLLED_SHARE`] applies.
const TIMEOUT: u32 = 8;

/// A collection that released nothing is followed by another one after this many times its
/// duration.
const POLLED_SHARE: u32 = 512;

/// The providers on a backend, and the allocations that were refused since the last one that was
/// served. No lock for the latter, which a forked child reaches, too. All accesses are Relaxed:
/// each value is a hint by itself.
struct Providers {
    all: Mutex<Vec<Weak<ShmProvider<PoolBackend>>>>,
    outstanding: Arc<Outstanding>,
    refusals: AtomicU32,
    /// Whether the system refused one of them, and the log has said so.
    is_logged: AtomicBool,
    /// No collection is worth its time before, in nanoseconds since `start`.
    collect_at: AtomicU64,
    start: Instant,
}

impl Providers {
    fn new(outstanding: Arc<Outstanding>) -> Self {
        Self {
            all: Mutex::default(),
            outstanding,
            refusals: AtomicU32::new(0),
            is_logged: AtomicBool::new(false),
            collect_at: AtomicU64::new(0),
            start: Instant::now(),
        }
    }

    fn add(&self, provider: Weak<ShmProvider<PoolBackend>>) {
        let mut providers = self.all.lock();
        providers.retain(|provider| provider.strong_count() > 0);
        providers.push(provider);
    }

    /// Forgets the refusals.
    #[cold]
    fn note_served(&self) {
        self.refusals.store(0, Ordering::Relaxed);
        self.is_logged.store(false, Ordering::Relaxed);
        self.hurry();
    }

    /// Makes the next collection take place, however many allocations were refused.
    fn hurry(&self) {
        self.collect_at.store(0, Ordering::Relaxed);
    }
}

impl Collect for Providers {
    fn collect(&self) -> bool {
        let start = self.start.elapsed();
        if start < Duration::from_nanos(self.collect_at.load(Ordering::Relaxed)) {
            return false;
        }
        // Not under the lock: a collection runs the user's code, in zenoh's log. From the last one
        // on:
        // `add` removes some and adds to the end, so none of the others is skipped.
        let before = |at: usize| {
            let all = self.all.lock();
            let at = at.min(all.len()).checked_sub(1)?;
            Some((at, all[at].clone()))
        };
        let mut has_collected = false;
        let mut next = before(usize::MAX);
        while let Some((at, provider)) = next {
            let collect = |provider: Arc<ShmProvider<_>>| {
                self.outstanding
                    .collect_in_order(|| provider.garbage_collect() > 0)
            };
            has_collected |= provider.upgrade().is_some_and(collect);
            next = before(at);
        }
        if !has_collected && self.refusals.load(Ordering::Relaxed) >= TIMEOUT {
            let next = start + (self.start.elapsed() - start) * POLLED_SHARE;
            self.collect_at
                .store(next.as_nanos() as u64, Ordering::Relaxed);
        }
        has_collected
    }
}

impl PoolBackend {
    /// A builder with the default options.
    pub fn builder() -> PoolBackendBuilder {
        PoolBackendBuilder::new()
    }

    fn new(chunks: Backend, outstanding: Arc<Outstanding>) -> Self {
        let providers = Arc::new(Providers::new(outstanding.clone()));
        let collecting = chunks.with_collector(providers.clone());
        Self {
            core: Arc::new(Core {
                chunks,
                outstanding,
                providers,
            }),
            chunks: collecting,
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
        self.chunks.stats()
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
        self.core.providers.hurry();
        let reservation = self.chunks.reserve(layout(len, 1), count)?;
        for (segment, offset) in self.chunks.places(self.chunks.class(layout(len, 1))?) {
            self.core.outstanding.prepare(Key::new(segment, offset));
        }
        Ok(reservation)
    }

    /// Collects messages that have been read, and returns the memory of empty segments to the
    /// system. Returns the number of bytes. A segment with a message in use keeps all its memory:
    /// see [When /dev/shm is full](crate#when-devshm-is-full). The empty segments remain: receivers
    /// never unmap one, so new ones would only fill the receivers' tables.
    pub fn trim(&self) -> usize {
        self.core.providers.hurry();
        self.chunks.trim()
    }

    /// Takes a chunk, and records that it is in use.
    #[inline]
    fn take(&self, len: usize, align: usize) -> Result<AllocatedChunk, AllocError> {
        let core = &*self.core;
        let chunk = self.chunks.alloc(layout(len, align))?;
        if core.providers.refusals.load(Ordering::Relaxed) > 0 {
            core.providers.note_served();
        }
        let key = Key::of(&chunk);
        let len = NonZeroUsize::new(chunk.len()).unwrap_or(NonZeroUsize::MIN);
        let data = PtrInSegment::new(chunk.as_ptr(), chunk.keep_mapped());
        core.outstanding.put(chunk, key);
        Ok(AllocatedChunk {
            descriptor: ChunkDescriptor::new(key.segment, key.offset, len),
            data,
        })
    }

    /// Returns the error for zenoh when there is no memory. The reason is logged.
    #[cold]
    fn refused(&self, layout: &MemoryLayout, error: &AllocError) -> ZAllocError {
        if matches!(
            error,
            AllocError::TooLarge { .. } | AllocError::UnsupportedAlignment { .. }
        ) {
            log_unfit(layout, error);
            return ZAllocError::Other;
        }
        // A policy that waits for memory tries a thousand times a second, so a refusal by the
        // system is logged once until there is memory again. Reaching the cap is nothing unusual.
        let is_at_the_cap = matches!(error, AllocError::Exhausted { .. });
        let Providers {
            refusals,
            is_logged,
            ..
        } = &*self.core.providers;
        refusals.fetch_add(1, Ordering::Relaxed);
        let cause = error as &(dyn Error + 'static);
        if is_at_the_cap || is_logged.swap(true, Ordering::Relaxed) {
            tracing::debug!(%layout, error = cause, "no memory for a message");
        } else {
            tracing::error!(%layout, error = cause, "no memory for a message; not logged again until there is some");
        }
        if is_out_of_memory(error) {
            ZAllocError::OutOfMemory
        } else {
            ZAllocError::Other
        }
    }

    /// Returns `true` if the pool can serve a layout. The reason against it is logged.
    #[inline]
    fn can_serve(&self, layout: &MemoryLayout) -> bool {
        self.chunks
            .class(self::layout(len_of(layout), align_of(layout)))
            .map_err(|error| log_unfit(layout, &error))
            .is_ok()
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
        self.take(len_of(layout), align_of(layout))
            .map_err(|error| self.refused(layout, &error))
    }

    #[inline]
    fn free(&self, chunk: &ChunkDescriptor) {
        let key = Key {
            segment: chunk.segment,
            offset: chunk.chunk,
        };
        self.core.outstanding.free(key);
    }

    /// Returns all idle chunks to the segments that they were carved from. Returns the length of a
    /// message that is sure to fit now.
    fn defragment(&self) -> usize {
        self.chunks.evict_idle();
        self.chunks.largest_that_fits()
    }

    /// Returns the bytes under the cap that no message uses: idle, or not allocated yet. They may
    /// not be in one piece.
    fn available(&self) -> usize {
        let stats = self.stats();
        stats.max_bytes.saturating_sub(stats.bytes_in_use)
    }

    fn layout_for(&self, layout: MemoryLayout) -> Result<MemoryLayout, ZLayoutError> {
        self.can_serve(&layout)
            .then_some(layout)
            .ok_or(ZLayoutError::ProviderIncompatibleLayout)
    }
}

/// Returns `true` if memory that is released can help.
fn is_out_of_memory(error: &AllocError) -> bool {
    match error {
        AllocError::Exhausted { .. } => true,
        AllocError::Os(os) => match os.errno() {
            Some(errno) => matches!(
                errno,
                libc::ENOSPC | libc::EDQUOT | libc::ENOMEM | libc::EMFILE | libc::ENFILE
            ),
            // All segment ids are in use, or zenoh has no metadata. The latter may last forever.
            None => os.call() != MAP,
        },
        _ => false,
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // Readers may keep these for any time; their segments remain until this process drops its
        // last buffer. A forked child owns nothing, and leaves its copies as they are.
        if !self.chunks.is_inherited() {
            self.outstanding.take_all().for_each(Chunk::leak);
        }
    }
}

impl fmt::Debug for PoolBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBackend")
            .field("chunks", &self.chunks)
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
fn layout(len: usize, align: usize) -> Layout {
    Layout::from_size_align(len, align).unwrap_or(TOO_LONG)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};
    use zenoh::shm::JustAlloc;
    use zenoh::Wait;

    const LEN: usize = 4096;

    fn backend() -> PoolBackend {
        PoolBackend::builder()
            .max_bytes(16 * LEN)
            .check_lock_limit(false)
            .build()
            .unwrap()
    }

    /// A caller that polls at the cap must not have every try visit all messages in flight.
    #[test]
    fn polling_collects_rarely() {
        let backend = backend();
        let provider = backend.provider();
        let alloc = || provider.alloc(LEN).with_policy::<JustAlloc>().wait().ok();
        let mut held: Vec<_> = std::iter::from_fn(alloc).collect();
        let is_limited = || backend.core.providers.collect_at.load(Ordering::Relaxed) > 0;
        for _ in 1..TIMEOUT {
            assert!(alloc().is_none());
            assert!(!is_limited());
        }
        assert!(alloc().is_none());
        assert!(is_limited());
        held.pop();
        // Ends: the limit is a share of the time.
        let served = std::iter::repeat_with(alloc).flatten().next();
        assert!(!is_limited());
        assert!(alloc().is_none());
        drop(served);
        assert!(alloc().is_some(), "the next one is served at once");
    }

    /// Counts zenoh's collections, and those during which the list of providers is locked.
    #[derive(Clone, Default)]
    struct Watch {
        providers: Arc<Mutex<Option<Arc<Providers>>>>,
        collections: Arc<AtomicU32>,
        locked: Arc<AtomicU32>,
    }

    impl Subscriber for Watch {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn event(&self, event: &Event<'_>) {
            if let (true, Some(providers)) = (
                event.metadata().target().starts_with("zenoh_shm"),
                &*self.providers.lock(),
            ) {
                self.collections.fetch_add(1, Ordering::Relaxed);
                self.locked
                    .fetch_add(u32::from(providers.all.is_locked()), Ordering::Relaxed);
            }
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    /// A collection runs the user's code, which may create a provider.
    #[test]
    fn collection_holds_no_lock() {
        let backend = backend();
        let _provider = backend.provider();
        let watch = Watch::default();
        *watch.providers.lock() = Some(backend.core.providers.clone());
        tracing::subscriber::with_default(watch.clone(), || backend.core.providers.collect());
        assert!(watch.collections.load(Ordering::Relaxed) > 0);
        assert_eq!(watch.locked.load(Ordering::Relaxed), 0);
    }
}
