//! The options of a backend, and how it is built from them.

#![forbid(unsafe_code)]

use super::source::Sourced;
use super::{Backend, SegmentSource, Shared};
use crate::error::{BuildError, OsError};
use crate::os::locks;
use crate::owner::limits::{range, Limits, DEFAULT_IDLE_WINDOW, LONGEST};
use crate::owner::pool::Pool;
use std::mem::ManuallyDrop;
use std::sync::Arc;

const DEFAULT_MAX_BYTES: usize = 1 << 30;

/// Options of a [`Backend`]. Start with [`Backend::builder`]; every option has a default.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct BackendBuilder {
    max_bytes: usize,
    max_alloc: Option<usize>,
    max_idle_per_class: Option<usize>,
    arena_size: Option<usize>,
    max_segment: usize,
    idle_window: u64,
    collect_early: bool,
}

impl BackendBuilder {
    pub(super) fn new() -> Self {
        Self {
            max_bytes: DEFAULT_MAX_BYTES,
            max_alloc: None,
            max_idle_per_class: None,
            arena_size: None,
            max_segment: LONGEST,
            idle_window: DEFAULT_IDLE_WINDOW,
            collect_early: true,
        }
    }

    /// Sets the cap on memory in bytes, up to 16 of the [longest segments](Self::max_segment),
    /// rounded up to whole pages; default 1 GiB. Memory is taken when it is needed.
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Sets the largest chunk in bytes; at most [`max_bytes`](Self::max_bytes) and the
    /// [longest segment](Self::max_segment), which is the default.
    pub fn max_alloc(mut self, bytes: usize) -> Self {
        self.max_alloc = Some(bytes);
        self
    }

    /// Sets how many idle chunks of each size class are kept, from 0 to 1,048,576. Default: as many
    /// as make an eighth of [`max_bytes`](Self::max_bytes), but from 256 to 8192, because a
    /// collection returns many at a time. With 0, memory goes back to the system at once.
    pub fn max_idle_per_class(mut self, chunks: usize) -> Self {
        self.max_idle_per_class = Some(chunks);
        self
    }

    /// Sets the length of the first segment in bytes. The default, and how long further segments
    /// are, is as for [`ProviderBuilder::arena_size`](crate::ProviderBuilder::arena_size).
    pub fn arena_size(mut self, bytes: usize) -> Self {
        self.arena_size = Some(bytes);
        self
    }

    /// Sets the longest segment in bytes, from a page to 64 GiB, which is the default: how far an
    /// offset reaches that readers understand.
    pub fn max_segment(mut self, bytes: usize) -> Self {
        self.max_segment = bytes;
        self
    }

    /// Sets how soon idle memory goes back to the system, as
    /// [`ProviderBuilder::idle_window`](crate::ProviderBuilder::idle_window) does; default 32,768
    /// allocations.
    pub fn idle_window(mut self, allocations: u64) -> Self {
        self.idle_window = allocations;
        self
    }

    /// Sets whether the [collector](super::Collect) is asked before the backend takes more memory,
    /// and not only when the cap is reached; default `true`. See [Collecting](super#collecting).
    pub fn collect_early(mut self, early: bool) -> Self {
        self.collect_early = early;
        self
    }

    /// Builds the backend, without a segment yet.
    ///
    /// # Errors
    ///
    /// [`BuildError`] if an option or a combination is out of range, or if the process has no heap for the
    /// backend's lists.
    pub fn build(self, source: impl SegmentSource + 'static) -> Result<Backend, BuildError> {
        range("max_segment", self.max_segment, crate::os::posix::page_size(), LONGEST, " bytes")?;
        range("max_bytes", self.max_bytes, 1, Backend::MAX_SEGMENTS.saturating_mul(self.max_segment), " bytes")?;
        let (max_alloc, max_idle) = (self.max_alloc, self.max_idle_per_class);
        let limits = Limits::new(self.max_bytes, max_alloc, max_idle, self.arena_size, self.max_segment)?;
        let limits = limits.with_idle_window(self.idle_window)?;
        locks::watch_forks()
            .map_err(|error| OsError::new("pthread_atfork", "this process", 0, error, String::new()))?;
        let pool = Pool::new(limits, Box::new(Sourced(Arc::new(source))), None);
        let shared = Shared { pool: ManuallyDrop::new(pool), collect_early: self.collect_early };
        Ok(Backend { shared: Arc::new(shared), collector: None })
    }
}
