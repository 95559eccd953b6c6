//! A zenoh buffer that is reused: chunk, metadata and watchdog, kept together from one message to the
//! next; and the user's handle of one, [`Buffer`].
//!
//! zenoh allocates all three for each message and frees them afterwards, although the next message
//! needs the same. A [`UniqueBuffer`] has one owner, which may write. Sharing it yields a message for
//! zenoh and a [`SharedBuffer`], which becomes unique again once zenoh's own check finds no other
//! holder. Both contain the message as `ZBytes`: cloning it increments a count of this process, whereas
//! a clone of `ZShm` increments a count in shared memory and involves the thread that confirms
//! messages, and so does its drop.
//!
//! # Reliance on zenoh
//!
//! Only its public interface is used:
//!
//! | item | relied on |
//! |---|---|
//! | `ZBytes::as_shm_mut` | returns the buffer only if no other `ZBytes` of this process shares it |
//! | `TryFrom<&mut zshm> for &mut zshmmut` | succeeds only if zenoh counts one holder in all processes, and has neither invalidated nor freed the buffer |
//! | `OwnedShmBuf::try_resize` of `ZShm` | the bytes do not move, and the buffer is sent with its new length |
//! | `From<ZShm> for ZBytes`, `Clone for ZBytes` | the bytes are not copied |
//!
//! # Invariant
//!
//! U1: the owner of a `UniqueBuffer` is the only reader and writer, in all processes, of the `capacity`
//! bytes at `start`. They stay mapped as long as `message` exists.

#![deny(unsafe_code)]

use crate::buffers::Inner;
use crate::in_use::Key;
use shm_pool::CapacityError;
use std::fmt;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use zenoh::bytes::ZBytes;
use zenoh::shm::{zshmmut, OwnedShmBuf, ShmBuf, ShmBufMut, ZShm, ZShmMut};

/// A buffer with a single holder. Boxed, because it moves with every message.
pub(crate) struct UniqueBuffer(Box<Parts>);

struct Parts {
    message: ZBytes,
    start: NonNull<u8>,
    capacity: usize,
    /// Where its chunk begins.
    key: Key,
}

// SAFETY: the pointer is to memory of no particular thread, and only the `UniqueBuffer` gives access (U1).
#[allow(unsafe_code)]
unsafe impl Send for Parts {}
// SAFETY: a shared reference gives shared references to the bytes, and nothing else (U1).
#[allow(unsafe_code)]
unsafe impl Sync for Parts {}

/// A buffer that was sent.
pub(crate) struct SharedBuffer(UniqueBuffer);

impl UniqueBuffer {
    /// Takes over a buffer with all its bytes, to be sent with `len` of them.
    pub(crate) fn new(mut buffer: ZShmMut, len: usize, key: Key) -> Self {
        let capacity = buffer.len();
        let start = NonNull::from(&mut buffer[..]).cast();
        if let Ok(len) = len.try_into() {
            let _shorter = buffer.try_resize(len);
        }
        Self(Box::new(Parts {
            message: buffer.into(),
            start,
            capacity,
            key,
        }))
    }

    /// Returns where its chunk begins.
    #[inline]
    pub(crate) fn key(&self) -> Key {
        self.0.key
    }

    /// Returns the longest possible message in bytes.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.0.capacity
    }

    /// Returns the first `len` bytes.
    #[inline]
    #[allow(unsafe_code)]
    fn bytes(&self, len: usize) -> &[u8] {
        // SAFETY: that many bytes are mapped and belong to `self` (U1). Any bytes are valid `u8`s.
        unsafe { slice::from_raw_parts(self.0.start.as_ptr(), len.min(self.0.capacity)) }
    }

    /// Returns the first `len` bytes, for writing.
    #[inline]
    #[allow(unsafe_code)]
    fn bytes_mut(&mut self, len: usize) -> &mut [u8] {
        // SAFETY: as in `bytes`; and the reference to `self` is the only one.
        unsafe { slice::from_raw_parts_mut(self.0.start.as_ptr(), len.min(self.0.capacity)) }
    }

    /// Converts the first `len` bytes into a message.
    #[inline]
    fn share(mut self, len: usize) -> (SharedBuffer, ZBytes) {
        let message = if self.0.message.len() == len || self.set_len(len) {
            self.0.message.clone()
        } else {
            // No bytes, or a peer wrote into zenoh's metadata. Then the bytes are copied.
            ZBytes::from(self.bytes(len).to_vec())
        };
        (SharedBuffer(self), message)
    }

    /// Returns `true` if zenoh has neither invalidated nor freed the buffer.
    #[inline]
    pub(crate) fn is_valid(&self) -> bool {
        match self.0.message.as_shm() {
            Some(handle) => handle.is_valid(),
            None => false,
        }
    }

    /// Sets the length that zenoh sends. zenoh resizes owned handles only, so this creates another one
    /// and drops the first. Returns `false` if zenoh refuses.
    #[cold]
    fn set_len(&mut self, len: usize) -> bool {
        let Ok(len) = len.try_into() else {
            return false;
        };
        let Some(handle) = self.0.message.as_shm() else {
            return false;
        };
        let mut handle: ZShm = handle.to_owned();
        if handle.try_resize(len).is_none() {
            return false;
        }
        self.0.message = handle.into();
        true
    }
}

impl SharedBuffer {
    /// Returns the buffer if it has no other holder, in this process or another.
    #[inline]
    pub(crate) fn reclaim(mut self) -> Result<UniqueBuffer, Self> {
        let UniqueBuffer(parts) = &mut self.0;
        let Some(handle) = parts.message.as_shm_mut() else {
            return Err(self);
        };
        if <&mut zshmmut>::try_from(handle).is_err() {
            return Err(self);
        }
        Ok(self.0)
    }

    /// Returns the longest possible message in bytes.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Returns `true` if zenoh has neither invalidated nor freed the buffer.
    pub(crate) fn is_valid(&self) -> bool {
        self.0.is_valid()
    }
}

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
    buffer: Option<UniqueBuffer>,
    len: usize,
    class: usize,
    pool: Arc<Inner>,
}

impl Buffer {
    #[inline]
    pub(crate) fn new(buffer: UniqueBuffer, len: usize, class: usize, pool: Arc<Inner>) -> Self {
        debug_assert!(buffer.capacity() >= len);
        Self {
            buffer: Some(buffer),
            len,
            class,
            pool,
        }
    }

    /// Returns the longest possible message in bytes.
    pub fn capacity(&self) -> usize {
        match &self.buffer {
            Some(buffer) => buffer.capacity(),
            None => 0,
        }
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
        match &self.buffer {
            Some(buffer) => buffer.bytes(self.len),
            None => &[],
        }
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.buffer {
            Some(buffer) => buffer.bytes_mut(self.len),
            None => &mut [],
        }
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
        match &self.buffer {
            Some(buffer) => buffer.is_valid(),
            None => false,
        }
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
        let Some(unique) = buffer.buffer.take() else {
            return ZBytes::new();
        };
        let (shared, message) = unique.share(buffer.len);
        if buffer.pool.is_forked() {
            mem::forget(shared); // the parent's
        } else {
            buffer.pool.keep_sent(shared, buffer.class);
        }
        message
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        let Some(buffer) = self.buffer.take() else {
            return;
        };
        if self.pool.is_forked() {
            mem::forget(buffer); // the parent's
        } else {
            self.pool.keep_unsent(buffer, self.class);
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
