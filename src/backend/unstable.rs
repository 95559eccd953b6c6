//! What the feature `unstable-backend` adds to [`Backend`].

#![forbid(unsafe_code)]

use super::{Backend, BackendBuilder};
use crate::error::OsError;
use crate::os::helper_thread;
use crate::owner::limits::AllocError;
use crate::protocol::control;
use std::alloc::Layout;

/// Starts a thread as the library starts [its own](crate::threads): all signals are blocked from its
/// first instruction, except those that an instruction raises; it calls the hook of
/// [`threads::on_start`](crate::threads::on_start); and the shared object with this code stays loaded.
/// `purpose` says in the error what it is for.
///
/// # Errors
///
/// [`OsError`] if the system refuses a thread, or the shared object cannot be kept.
pub fn start_thread(
    name: &'static str,
    purpose: &str,
    body: impl FnOnce() + Send + 'static,
) -> Result<(), OsError> {
    helper_thread::start_thread(name, purpose, body)?;
    Ok(())
}

/// The properties of a size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SizeClass {
    /// Bytes of a chunk. A chunk created at the cap may be shorter: as long as its message.
    pub size: usize,
    /// Alignment in bytes.
    pub align: usize,
}

impl OsError {
    /// Adds the size in bytes that the call asked for, and what to do, as text that follows the
    /// system's own: `make room in /dev/shm`.
    #[must_use]
    pub fn with_details(self, bytes: Option<usize>, advice: impl Into<String>) -> Self {
        let error = self.with_advice(advice);
        match bytes {
            Some(bytes) => error.with_bytes(bytes),
            None => error,
        }
    }
}

impl BackendBuilder {
    /// Sets the longest segment in bytes, from a page to 64 GiB, the default. A pool has at most
    /// [`MAX_SEGMENTS`](Backend::MAX_SEGMENTS), which limits its cap.
    pub fn max_segment(mut self, bytes: usize) -> Self {
        self.max_segment = bytes;
        self
    }
}

impl Backend {
    /// The maximum number of segments at a time.
    pub const MAX_SEGMENTS: usize = control::MAX_SEGMENTS;

    /// Returns all idle chunks to their segments, where they merge, but not to the system.
    pub fn evict_idle(&self) {
        if !self.is_forked() {
            self.pool().evict_all();
        }
    }

    /// Returns the length of a chunk that is sure to fit now, unless idle chunks are in the way.
    pub fn largest_that_fits(&self) -> usize {
        if self.is_forked() {
            return 0;
        }
        self.pool().largest_that_fits()
    }

    /// Returns the size classes, by number.
    pub fn classes(&self) -> Vec<SizeClass> {
        let mut classes = Vec::new();
        for shape in self.pool().limits.shapes() {
            classes.push(SizeClass {
                size: shape.size(),
                align: shape.align,
            });
        }
        classes
    }

    /// Returns the number of the size class for a layout.
    ///
    /// # Errors
    ///
    /// [`AllocError::TooLarge`], [`AllocError::UnsupportedAlignment`].
    #[inline]
    pub fn class(&self, layout: Layout) -> Result<usize, AllocError> {
        self.class_of(layout)
    }

    /// Returns how many chunks of a size class are reserved; 0 if there is no such class.
    pub fn reserved(&self, class: usize) -> usize {
        if class >= self.pool().free_lists().len() {
            return 0;
        }
        self.pool().reserved(class)
    }

    /// Returns segment and offset of each chunk of a size class, including those in use.
    pub fn places(&self, class: usize) -> Vec<(u64, usize)> {
        let mut places = Vec::new();
        if !self.is_forked() {
            self.pool()
                .each_of_class(class, |chunk| places.push((chunk.serial(), chunk.offset())));
        }
        places
    }

    /// Returns `true` if a chunk should be dropped once its readers are done: a longer message
    /// keeps being refused, and will fit where this chunk lies. Otherwise one relaxed load.
    #[inline]
    pub fn wants_back(&self, segment: u64, offset: usize, len: usize) -> bool {
        // In a forked child, a thread that does not exist there may hold the lock.
        !self.is_forked()
            && self
                .pool()
                .wants_back(segment, &(offset..offset.saturating_add(len)))
    }

    /// Returns `true` if segments span the cap, and less than half of it is free: where a chunk lies
    /// determines what else fits. One relaxed load.
    #[inline]
    pub fn is_crowded(&self) -> bool {
        self.pool().is_crowded()
    }

    /// Returns `true` in a forked child, where allocations fail and dropping chunks has no effect.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        self.is_forked()
    }
}
