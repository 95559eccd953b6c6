//! The user's handle of a buffer: [`Buffer`].

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

/// A buffer to write a message to: a `&mut [u8]` that no other process can see.
///
/// `ZBytes::from(buffer)` converts it into a message, without a copy; `put`, replies and attachments
/// take the buffer itself. The pool reuses the buffer once every reader is done with it. A buffer
/// that is dropped instead returns at once. A buffer may outlive its pool.
///
/// The pool keeps a reference to a buffer that it reuses. So no receiver is ever its only holder, and
/// zenoh's `zshmmut`, which lets the only holder of a message write it in place, is not available.
#[must_use = "a buffer that is dropped is not sent"]
pub struct Buffer {
    /// `None` once sent or dropped.
    whole: Option<Whole>,
    len: usize,
    class: usize,
    pool: Arc<Inner>,
}

impl Buffer {
    #[inline]
    pub(crate) fn new(whole: Whole, len: usize, class: usize, pool: Arc<Inner>) -> Self {
        Self {
            whole: Some(whole),
            len,
            class,
            pool,
        }
    }

    /// Returns the longest possible message in bytes.
    pub fn capacity(&self) -> usize {
        self.whole.as_ref().map_or(0, Whole::capacity)
    }

    /// Shortens the message to `len` bytes. Has no effect if it is already that short.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Sets the length of the message in bytes, up to the [capacity](Self::capacity). Added bytes have
    /// unspecified content.
    ///
    /// # Errors
    ///
    /// [`CapacityError`] above the capacity; the length does not change.
    pub fn resize(&mut self, len: usize) -> Result<(), CapacityError> {
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
        self.whole
            .as_ref()
            .map_or(&[], |whole| whole.bytes(self.len))
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.whole
            .as_mut()
            .map_or(&mut [], |whole| whole.bytes_mut(self.len))
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
    /// Returns `false` if zenoh has invalidated the buffer, because this process had no CPU to confirm
    /// it for some time.
    fn is_valid(&self) -> bool {
        self.whole.as_ref().is_some_and(Whole::is_valid)
    }
}

/// Allows zenoh's `Typed` to wrap a buffer: see [`BufferRequest::layout`].
///
/// [`BufferRequest::layout`]: crate::BufferRequest::layout
impl ShmBufMut<[u8]> for Buffer {}

impl From<Buffer> for ZBytes {
    /// Converts the buffer into a message. The bytes are not copied.
    #[inline]
    fn from(mut buffer: Buffer) -> Self {
        let Some(whole) = buffer.whole.take() else {
            return ZBytes::new();
        };
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
        let Some(whole) = self.whole.take() else {
            return;
        };
        if self.pool.is_ours() {
            self.pool.take_back(whole, self.class);
        } else {
            mem::forget(whole); // the parent's
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("len", &self.len)
            .field("capacity", &self.capacity())
            .finish()
    }
}
