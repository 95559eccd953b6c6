//! An allocator of raw chunks, for middleware that counts its readers itself.
//!
//! It keeps memory within a cap, serves any mix of lengths from few segments, reuses chunks without
//! a system call, waits for memory, and returns idle memory to the system, as
//! [`Provider`](crate::Provider) does, but without descriptors, leases and peers:
//!
//! | the middleware | the backend |
//! |---|---|
//! | creates and removes segments by its own rules: a [`SegmentSource`] | maps the segments, reserves and returns their memory, and carves [`Chunk`]s from them |
//! | sends segment, offset and length to its readers | provides these numbers: [`Chunk::segment`], [`Chunk::offset`], [`Chunk::len`] |
//! | counts readers, and drops a chunk when no reader is left | reuses the chunk |
//! | collects released chunks, if it has to look for them: a [`Collect`] | calls the collector when that is worth the time |
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use shm_pool::backend::{Backend, SegmentFile, SegmentSource};
//! use shm_pool::OsError;
//! use std::alloc::Layout;
//! use std::fs::File;
//! use std::sync::atomic::{AtomicU64, Ordering};
//!
//! /// Segments named `/dev/shm/doc-<process>-<id>`.
//! struct Source(AtomicU64);
//!
//! fn path(id: u64) -> String {
//!     format!("/dev/shm/doc-{}-{id}", std::process::id())
//! }
//!
//! impl SegmentSource for Source {
//!     fn create(&self, _len: usize) -> Result<SegmentFile, OsError> {
//!         let id = self.0.fetch_add(1, Ordering::Relaxed);
//!         let file = File::options().read(true).write(true).create_new(true).open(path(id));
//!         let file = file.map_err(|error| OsError::new("open", path(id), error))?;
//!         Ok(SegmentFile { id, file, path: path(id).into() })
//!     }
//!
//!     fn remove(&self, id: u64, _file: File) {
//!         let _ = std::fs::remove_file(path(id));
//!     }
//! }
//!
//! let backend = Backend::builder().max_bytes(64 << 20).build(Source(AtomicU64::new(0)))?;
//! let mut chunk = backend.alloc(Layout::new::<[u8; 100_000]>())?;
//! // SAFETY: no reader knows of it yet.
//! let bytes = unsafe { chunk.bytes_mut() };
//! bytes[..5].copy_from_slice(b"image");
//! let _to_send = (chunk.segment(), chunk.offset(), 100_000);
//! drop(chunk); // every reader is done
//! # Ok(())
//! # }
//! ```
//!
//! `examples/toy_middleware.rs` is a complete middleware; `shm-pool-zenoh` is a backend for zenoh.
//!
//! # Collecting
//!
//! If readers decrement a count in shared memory, the publisher has to look for free chunks. If it
//! looked only when an allocation fails, the pool would grow to the cap, and every message would be
//! written to cold memory. So the backend calls the collector before it creates a chunk.
//!
//! A collection may leave little idle memory: less than a seventh of the messages in flight, than
//! 3 KiB for each of them, or than 32 KiB. Then the backend grows by what is missing from the largest
//! of the three before it collects again. So its chunks are at most that much more than the messages
//! in flight.
//!
//! Once nearly all of the cap has been used, the backend collects only when there is no room for a
//! chunk. If the chunk has whole pages, it first evicts idle ones to make room.
//!
//! The guide [`middleware`](crate::docs::middleware) has a complete program, and says what to do about
//! names and about processes that die.
//!
//! # Unstable items
//!
//! The feature `unstable-backend` adds what `shm-pool-zenoh` needs to make the backend as fast as
//! zenoh's own: size classes by number, tags and raw pointers of chunks, chunks that are left to a
//! reader, the longest segment, and segments that receivers never unmap. These items show how the pool
//! works inside. They are exempt from semantic versioning: any release may change or remove them.
//!
//! # Trust
//!
//! The allocator's bookkeeping is in private memory. A reader that writes to a segment can damage
//! messages, but not the allocator.

#![deny(unsafe_code)]

// The pointers of a chunk: to its bytes, and in place of itself.
#[allow(unsafe_code)]
mod chunk;
#[cfg(feature = "unstable-backend")]
mod unstable;

pub use chunk::Chunk;
#[cfg(feature = "unstable-backend")]
pub use unstable::{start_thread, SizeClass};

use crate::error::{BuildError, OsError};
use crate::os::fork::ForkGuard;
use crate::os::futex::Deadline;
use crate::os::locks;
use crate::os::name::Name;
use crate::os::segment::{Memory, Segment};
use crate::owner::chunk::ClosedChunk;
use crate::owner::control::{Payload, SegmentFactory};
use crate::owner::limits::{range, AllocError, Limits, Refusal, Tuning, LONGEST};
use crate::owner::pool::{Pool, Reservation, Stats};
use crate::owner::waiting::Ticket;
use crate::protocol::control;
use std::alloc::Layout;
use std::fmt;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// This share of the time waited so far, within limits.
const PAUSE_SHARE: u32 = 8;
const SHORTEST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

const DEFAULT_MAX_BYTES: usize = 1 << 30;

/// Names, creates and removes the segments of a [`Backend`]. The source also decides how readers find
/// a segment. The methods are called with locks of the backend held, so they must not call the
/// backend. The memory of a [`Chunk`] is exclusive only if each segment has a new file, which no
/// process shrinks.
pub trait SegmentSource: Send + Sync {
    /// Creates the file of a segment of `len` bytes. One thread calls this at a time.
    ///
    /// # Errors
    ///
    /// After `ENOSPC`, `EDQUOT` or `ENOMEM`, the backend makes room and tries again, also with a shorter
    /// segment. Otherwise the allocation fails with [`AllocError::Os`], whose text has the length too.
    fn create(&self, len: usize) -> Result<SegmentFile, OsError>;

    /// Unlinks a segment that this process no longer maps. Not called in a forked child.
    fn remove(&self, id: u64, file: File);

    /// Returns `true` if empty segments are kept, because readers never unmap them; default
    /// `false`.
    #[cfg(feature = "unstable-backend")]
    fn keeps_segments(&self) -> bool {
        false
    }

    /// Returns `true` if a reader allocates all of a segment that it maps, by locking it into
    /// memory for example; default `false`.
    ///
    /// A segment then has all its memory while it has a chunk, and returns it to the system only
    /// when it is empty, also at [`Backend::trim`]. So a reader that maps it allocates nothing, and
    /// cannot find the file system full.
    #[cfg(feature = "unstable-backend")]
    fn reserves_whole(&self) -> bool {
        false
    }

    /// Checks whether the file system has room for a segment of `len` bytes; default `Ok`. Called
    /// before [`create`](Self::create), and before memory that an empty segment has returned is
    /// reserved again. A source can leave room to its readers here, and save failing attempts.
    ///
    /// # Errors
    ///
    /// As `create`.
    #[cfg(feature = "unstable-backend")]
    fn check_room(&self, _len: usize) -> Result<(), OsError> {
        Ok(())
    }

    /// Removes segments of dead processes, when memory is short. Returns the bytes.
    fn sweep(&self) -> u64 {
        0
    }
}

/// The file of a segment, as its source created it.
#[derive(Debug)]
pub struct SegmentFile {
    /// Identifies the segment to readers. Refused with `EEXIST` if it exists.
    pub id: u64,
    /// Empty, open for reading and writing. Held, with its locks, while the segment is mapped.
    pub file: File,
    /// Used in errors, and to ask how much memory the file system has left.
    pub path: PathBuf,
}

struct Sourced<S> {
    source: Arc<S>,
    memory: Memory,
}

impl<S: SegmentSource + 'static> SegmentFactory for Sourced<S> {
    fn create(&self, len: usize) -> Result<Payload, OsError> {
        let made = self.source.create(len);
        let SegmentFile { id, file, path } = made.map_err(|error| error.with_bytes(len))?;
        let file = Arc::new(file);
        let removal = Removal {
            source: self.source.clone(),
            id,
            file: Some(file.clone()),
            fork: ForkGuard::new(),
        };
        let segment = Segment::of_file(file, Name::of_path(&path), len, self.memory)?;
        Ok(Payload::removed_by(segment, id, removal))
    }

    fn sweep(&self) -> u64 {
        self.source.sweep()
    }

    #[cfg(feature = "unstable-backend")]
    fn keeps_segments(&self) -> bool {
        self.source.keeps_segments()
    }

    #[cfg(feature = "unstable-backend")]
    fn reserves_whole(&self) -> bool {
        self.source.reserves_whole()
    }

    #[cfg(feature = "unstable-backend")]
    fn check_room(&self, len: usize) -> Result<(), OsError> {
        self.source.check_room(len)
    }
}

struct Removal<S: SegmentSource> {
    source: Arc<S>,
    id: u64,
    /// Shared with the segment, which is dropped first.
    file: Option<Arc<File>>,
    fork: ForkGuard,
}

impl<S: SegmentSource> Drop for Removal<S> {
    fn drop(&mut self) {
        let Some(file) = self.file.take() else {
            return;
        };
        if !self.fork.is_ours() {
            return;
        }
        if let Some(file) = Arc::into_inner(file) {
            self.source.remove(self.id, file);
        }
    }
}

/// Options of a [`Backend`]. Start with [`Backend::builder`]; every option has a default.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct BackendBuilder {
    max_bytes: usize,
    max_alloc: Option<usize>,
    max_idle_per_class: Option<usize>,
    /// The longest segment in bytes.
    max_segment: usize,
    collect_early: bool,
    tuning: Tuning,
}

impl Default for BackendBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl BackendBuilder {
    fn new() -> Self {
        Self {
            max_bytes: DEFAULT_MAX_BYTES,
            max_alloc: None,
            max_idle_per_class: None,
            max_segment: LONGEST,
            collect_early: true,
            tuning: Tuning::new(),
        }
    }

    /// Sets the cap on memory in bytes, up to 1 TiB, rounded up to whole pages; default 1 GiB. Memory is
    /// taken when it is needed.
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Sets the largest chunk in bytes. The default is the most: the smaller of
    /// [`max_bytes`](Self::max_bytes) and 64 GiB.
    pub fn max_alloc(mut self, bytes: usize) -> Self {
        self.max_alloc = Some(bytes);
        self
    }

    /// Sets how many idle chunks of each size class are kept, from 0 (memory goes back to the
    /// system at once) to 1,048,576. Default: an eighth of [`max_bytes`](Self::max_bytes), from 256
    /// to 8192.
    pub fn max_idle_per_class(mut self, chunks: usize) -> Self {
        self.max_idle_per_class = Some(chunks);
        self
    }

    /// Sets whether the backend [collects](self#collecting) before it takes more memory, and not
    /// only at the cap; default `true`.
    pub fn collect_early(mut self, early: bool) -> Self {
        self.collect_early = early;
        self
    }

    /// Sets all [options](Tuning) that few programs need.
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.tuning = tuning;
        self
    }

    /// Builds the backend, without a segment yet.
    ///
    /// # Errors
    ///
    /// [`BuildError`].
    pub fn build(self, source: impl SegmentSource + 'static) -> Result<Backend, BuildError> {
        range(
            "max_segment",
            self.max_segment,
            crate::os::posix::page_size(),
            LONGEST,
        )?;
        range(
            "max_bytes",
            self.max_bytes,
            1,
            control::MAX_SEGMENTS.saturating_mul(self.max_segment),
        )?;
        let limits = Limits::new(
            self.max_bytes,
            self.max_alloc,
            self.max_idle_per_class,
            &self.tuning,
            self.max_segment,
        )?;
        let memory = self.tuning.memory(false)?;
        locks::require_fork_handlers()?;
        let pool = Pool::new(
            limits,
            Box::new(Sourced {
                source: Arc::new(source),
                memory,
            }),
            None,
        );
        let shared = Shared {
            pool,
            collect_early: self.collect_early,
        };
        Ok(Backend {
            shared: Arc::new(shared),
            collector: None,
        })
    }
}

/// Releases the chunks that readers are done with: see [Collecting](self#collecting).
pub trait Collect: Send + Sync {
    /// Drops the chunks that no reader holds any more. Returns `true` if there were any.
    /// Called with none of the backend's locks held. Must not allocate from the same backend.
    fn collect(&self) -> bool;
}

/// Allocates chunks in segments of a [`SegmentSource`]. Chunks outlive the last clone.
#[derive(Clone)]
pub struct Backend {
    shared: Arc<Shared>,
    collector: Option<Arc<dyn Collect>>,
}

struct Shared {
    pool: Arc<Pool>,
    collect_early: bool,
}

impl Backend {
    /// Returns a builder with the default options.
    pub fn builder() -> BackendBuilder {
        BackendBuilder::new()
    }

    /// Returns a handle of the same backend whose allocations call `collector`. A collector may
    /// hold chunks, but only weak handles of its own backend.
    pub fn with_collector(&self, collector: Arc<dyn Collect>) -> Self {
        Self {
            shared: self.shared.clone(),
            collector: Some(collector),
        }
    }

    /// Allocates the bytes of a layout, aligned to 64 at least.
    ///
    /// If a chunk of the size class is idle, this makes no system call, takes no lock and does not
    /// touch the heap.
    ///
    /// # Errors
    ///
    /// Those of [`Provider::alloc`](crate::Provider::alloc), and
    /// [`AllocError::UnsupportedAlignment`].
    #[inline]
    pub fn alloc(&self, layout: Layout) -> Result<Chunk, AllocError> {
        let class = self.class_of(layout)?;
        let pool = self.pool();
        let mut taken = pool.free_lists()[class].take_hot();
        // Not in a forked child: a thread that does not exist there may be in the middle of a push.
        if taken.is_none() && pool.is_ours() {
            taken = pool.take_own(class);
        }
        let chunk = match taken {
            Some(chunk) => chunk,
            None => self.take_slow(class, layout.size())?,
        };
        self.hand_out(chunk)
    }

    /// Like [`alloc`](Self::alloc), but blocks for up to `timeout` until there is memory. The
    /// collector is called after 20 µs, then after each eighth of the time waited, at least every
    /// millisecond.
    ///
    /// # Errors
    ///
    /// Those of `alloc`; [`AllocError::TimedOut`].
    pub fn alloc_timeout(&self, layout: Layout, timeout: Duration) -> Result<Chunk, AllocError> {
        let source = match self.alloc(layout) {
            Err(error) if error.is_exhausted() => error,
            result => return result,
        };
        let start = Instant::now();
        let collect = || {
            let collector = self.collector.as_ref()?;
            collector.collect();
            let pause = start.elapsed() / PAUSE_SHARE;
            Some(pause.clamp(SHORTEST_PAUSE, LONGEST_PAUSE))
        };
        let ticket = Ticket::join(self.pool(), self.class_of(layout)?, layout.size(), true)?;
        match ticket.wait_and(Deadline::after(timeout), collect) {
            Some(taken) => self.hand_out(taken?),
            None => Err(AllocError::TimedOut {
                timeout,
                source: Box::new(source),
            }),
        }
    }

    /// Reserves `count` chunks, as [`Provider::reserve`](crate::Provider::reserve) does.
    ///
    /// # Errors
    ///
    /// Those of [`alloc`](Self::alloc); [`AllocError::ReserveTooMany`].
    pub fn reserve(&self, layout: Layout, count: usize) -> Result<Reservation, AllocError> {
        let class = self.class_of(layout)?;
        if self.is_forked() {
            return Err(AllocError::Forked);
        }
        let pool = self.pool();
        if let Err(error) = pool.reserve(class, count) {
            let has_collected = self.collect();
            if !has_collected || !error.is_exhausted() {
                return Err(error.into());
            }
            pool.reserve(class, count)?;
        }
        Ok(Reservation::new(pool, class, count))
    }

    /// Returns all idle memory to the system. Returns the number of bytes.
    pub fn trim(&self) -> usize {
        self.trim_to(0)
    }

    /// Returns idle memory to the system until the backend holds at most `bytes`.
    pub fn trim_to(&self, bytes: usize) -> usize {
        if self.is_forked() {
            return 0;
        }
        self.collect();
        if bytes == 0 {
            self.pool().trim()
        } else {
            self.pool().trim_to(bytes)
        }
    }

    /// Returns statistics; all zero in a forked child.
    pub fn stats(&self) -> Stats {
        self.pool().stats()
    }

    #[inline]
    fn class_of(&self, layout: Layout) -> Result<usize, AllocError> {
        self.pool().limits.class(layout.size(), layout.align())
    }

    #[inline]
    fn is_forked(&self) -> bool {
        !self.pool().is_ours()
    }

    #[inline]
    fn pool(&self) -> &Arc<Pool> {
        &self.shared.pool
    }

    #[inline]
    fn hand_out(&self, chunk: ClosedChunk) -> Result<Chunk, AllocError> {
        self.pool().adopt(&chunk)?;
        Ok(Chunk::new(chunk))
    }

    #[inline(never)]
    fn take_slow(&self, class: usize, len: usize) -> Result<ClosedChunk, Refusal> {
        let pool = self.pool();
        // Before any lock: in a forked child, a thread that does not exist there may hold it.
        if self.is_forked() {
            return Err(AllocError::Forked.into());
        }
        if let Some(chunk) = pool.take_larger(class) {
            return Ok(chunk);
        }
        let is_due = (self.shared.collect_early && pool.is_collection_due())
            || pool.is_another_waiting(class);
        // A collection costs more than a chunk for which there is room. But if it visits many
        // messages, nothing of the pool is left in the caches: a request that is refused again and
        // again searches once, after it.
        if self.collector.is_some() && !is_due && !pool.was_refused(class) {
            if let Some(chunk) = pool.make_if_room(class, len) {
                return Ok(chunk);
            }
        }
        let has_collected =
            self.collector.is_some() && (is_due || !pool.should_evict_for(class, len));
        if has_collected {
            self.collect();
            pool.note_collection();
            if let Some(chunk) = pool.take_ready(class) {
                return Ok(chunk);
            }
        }
        let error = match pool.take_now(class, len) {
            Ok(chunk) => return Ok(chunk),
            Err(error) => error,
        };
        if may_pass(&error) && self.has_come_back(has_collected, &error) {
            return pool.take_slow(class, len);
        }
        // Only now: a length that a collection serves needs no region.
        if pool.is_out_of_room(&error) {
            pool.note_refused(class, len);
        }
        Err(error)
    }

    #[cold]
    fn has_come_back(&self, has_collected: bool, error: &AllocError) -> bool {
        let found = !has_collected && self.collect();
        // Another thread may have released some.
        found || self.pool().has_less_in_use(error)
    }

    fn collect(&self) -> bool {
        match &self.collector {
            Some(collector) => collector.collect(),
            None => false,
        }
    }
}

fn may_pass(error: &AllocError) -> bool {
    match error {
        // A segment may no longer be needed. An error of the source's own has no number.
        AllocError::Os(os) => {
            os.errno().is_none() || os.is_out_of_descriptors() || error.is_exhausted()
        }
        _ => error.is_exhausted(),
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.pool.is_ours() {
            self.pool.close();
        } else {
            // A forked child owns nothing (D11), so its copy of the pool is never dropped.
            std::mem::forget(self.pool.clone());
        }
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backend")
            .field("max_bytes", &self.pool().limits.max_bytes)
            .field("max_alloc", &self.pool().limits.max_alloc)
            .finish_non_exhaustive()
    }
}
