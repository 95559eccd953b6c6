//! The handle of a buffer to write a message in: [`Buffer`].

#![forbid(unsafe_code)]

use crate::buffers::Inner;
use crate::whole::Whole;
use shm_pool::CapacityError;
use std::fmt;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use zenoh::bytes::ZBytes;
use zenoh::shm::{ShmBuf, ShmBufMut};

/// A buffer to write a message in: a plain `&mut [u8]` that nobody else can see.
///
/// `ZBytes::from(buffer)` makes the message, without a copy; `put`, replies and attachments take
/// the buffer itself. The pool uses the buffer again once everybody has read it. A buffer that is
/// dropped instead is back at once. It outlives its pool.
///
/// As the pool keeps the buffer, no receiver ever has it alone: zenoh's `zshmmut`, by which the only
/// holder of a received message may write it in place, is not to be had for these.
#[must_use = "a buffer that is dropped is not sent"]
pub struct Buffer {
    /// `None` once it is sent or dropped.
    whole: Option<Whole>,
    len: usize,
    class: usize,
    pool: Arc<Inner>,
}

impl Buffer {
    #[inline]
    pub(crate) fn new(whole: Whole, len: usize, class: usize, pool: Arc<Inner>) -> Self {
        Self { whole: Some(whole), len, class, pool }
    }

    /// The longest message in bytes.
    pub fn capacity(&self) -> usize {
        self.whole.as_ref().map_or(0, Whole::capacity)
    }

    /// Makes the message shorter. Does nothing if it is already that short.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Makes the message `len` bytes long, up to the [capacity](Self::capacity). Added bytes have
    /// unspecified content.
    ///
    /// # Errors
    ///
    /// [`CapacityError`] if `len` is above the capacity; the length does not change.
    pub fn try_set_len(&mut self, len: usize) -> Result<(), CapacityError> {
        let capacity = self.capacity();
        if len > capacity {
            return Err(CapacityError::new(len, capacity));
        }
        self.len = len;
        Ok(())
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.whole.as_ref().map_or(&[], |whole| whole.bytes(self.len))
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.whole.as_mut().map_or(&mut [], |whole| whole.bytes_mut(self.len))
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl ShmBuf<[u8]> for Buffer {
    /// Is it still this process's? zenoh takes it away from a process that gets no CPU for long.
    fn is_valid(&self) -> bool {
        self.whole.as_ref().is_some_and(Whole::is_valid)
    }
}

/// So zenoh's `Typed` takes a buffer, and gives a value in it: see [`BufferRequest::layout`].
///
/// [`BufferRequest::layout`]: crate::BufferRequest::layout
impl ShmBufMut<[u8]> for Buffer {}

impl From<Buffer> for ZBytes {
    /// Ends writing. Nothing is copied.
    #[inline]
    fn from(mut buffer: Buffer) -> Self {
        let Some(whole) = buffer.whole.take() else { return ZBytes::new() };
        let (kept, message) = whole.share(buffer.len);
        if buffer.pool.is_ours() {
            buffer.pool.keep_sent(kept, buffer.class);
        } else {
            mem::forget(kept); // the parent's
        }
        message
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        let Some(whole) = self.whole.take() else { return };
        if self.pool.is_ours() {
            self.pool.take_back(whole, self.class);
        } else {
            mem::forget(whole); // the parent's
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len).field("capacity", &self.capacity()).finish()
    }
}
