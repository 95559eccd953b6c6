//! The memory of one message: [`Chunk`].

use crate::owner::chunk::ClosedChunk;
#[cfg(feature = "unstable-backend")]
use crate::owner::free_list::Owner;
use crate::owner::pool::Pool;
use std::fmt;
use std::mem::ManuallyDrop;
use std::slice;
#[cfg(feature = "unstable-backend")]
use std::{any::Any, ffi::c_void, ptr::NonNull, sync::Arc};

/// The memory of one message, owned exclusively. Dropping it returns it to its
/// [`Backend`](super::Backend), from any thread, even after the backend was dropped. In a forked
/// child the drop has no effect. Keep a chunk until no reader needs it.
#[must_use = "a chunk that is dropped is used again"]
pub struct Chunk(ManuallyDrop<ClosedChunk>);

impl Chunk {
    #[inline]
    pub(super) fn new(chunk: ClosedChunk) -> Self {
        Self(ManuallyDrop::new(chunk))
    }

    /// Returns the id of its segment, as set by the [source](super::SegmentSource).
    #[inline]
    pub fn segment(&self) -> u64 {
        self.0.serial()
    }

    /// Returns its offset in the segment in bytes, a multiple of 64.
    #[inline]
    pub fn offset(&self) -> usize {
        self.0.offset()
    }

    /// Returns its length in bytes: the requested length, or slightly more.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // It never is.
    pub fn len(&self) -> usize {
        self.0.capacity()
    }

    /// Returns a pointer to the first byte, valid as long as the chunk exists.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.data().as_ptr()
    }

    /// Returns the bytes. Their content is unspecified: usually that of an earlier message.
    ///
    /// # Safety
    ///
    /// While the slice exists, no other process and no pointer of this process reads or writes the
    /// bytes: the chunk was just allocated, or its readers are done. The
    /// [source](super::SegmentSource) has returned a new file for each segment, which no process
    /// shrinks.
    #[inline]
    pub unsafe fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: `len` bytes are mapped there as long as the chunk exists. The caller has
        // exclusive access.
        unsafe { slice::from_raw_parts_mut(self.as_ptr(), self.len()) }
    }

    #[cfg(feature = "unstable-backend")]
    #[inline]
    fn into_closed(self) -> ClosedChunk {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: taken once: `this` is not used after it.
        unsafe { ManuallyDrop::take(&mut this.0) }
    }
}

#[cfg(feature = "unstable-backend")]
impl Chunk {
    /// Leaves the bytes forever to a reader that can no longer be tracked. They count against the
    /// cap until the segment is removed.
    pub fn leak(self) {
        let chunk = self.into_closed();
        if chunk.is_ours() {
            chunk.keep_bytes();
            Pool::destroy(chunk.into());
        }
    }

    /// Returns a value that keeps the segment mapped, and so the [pointer](Self::as_ptr) valid, but
    /// not the bytes from being reused.
    #[inline]
    pub fn keep_mapped(&self) -> Arc<dyn Any + Send + Sync> {
        self.0.memory().payload().clone()
    }

    /// Returns the byte that [`set_tag`](Self::set_tag) set last, in this use of the memory or an earlier one.
    /// It is 0 in a chunk that was just created. A table by place need be written only for a chunk whose tag
    /// is 0: the entry stays right until another chunk, with tag 0, is created there.
    #[inline]
    pub fn tag(&self) -> u8 {
        self.0.tag()
    }

    /// Sets the [tag](Self::tag), which the backend does not use.
    #[inline]
    pub fn set_tag(&mut self, tag: u8) {
        self.0.set_tag(tag);
    }

    /// Drops the chunk so that it is the last idle one to be used again. After a plain drop in the
    /// thread that took it, it is the next. For a [collector](super::Collect) that releases many
    /// chunks: their bytes have left the processor's cache, and chunks that are released in the order
    /// of their addresses are used again fastest.
    #[inline]
    pub fn drop_cold(self) {
        Pool::release_queued(self.into_closed().into());
    }

    /// Converts the chunk into an opaque pointer, for tables of atomics. It is the same pointer each time.
    /// If it is never converted back, the chunk and the backend's memory are leaked.
    #[inline]
    pub fn into_raw(self) -> NonNull<c_void> {
        self.into_closed().into_raw().cast()
    }

    /// Converts a pointer returned by [`into_raw`](Self::into_raw) back into the chunk.
    ///
    /// # Safety
    ///
    /// `raw` was returned by `into_raw` in this process, or in the parent before a fork, and is
    /// converted back at most once for each call of `into_raw`.
    #[inline]
    pub unsafe fn from_raw(raw: NonNull<c_void>) -> Self {
        // SAFETY: the caller's promise; `into_closed` left nothing behind.
        Self::new(unsafe { ClosedChunk::from_raw(raw.cast()) })
    }
}

impl Drop for Chunk {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: taken once: this is the drop of the only owner.
        Pool::release(unsafe { ManuallyDrop::take(&mut self.0) });
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Chunk");
        debug
            .field("segment", &self.segment())
            .field("offset", &self.offset())
            .field("len", &self.len())
            .finish()
    }
}
