//! A whole zenoh buffer: chunk, metadata and watchdog, kept together from one message to the next.
//!
//! zenoh allocates all three for each message and frees them afterwards, although the next message
//! needs the same. A [`Whole`] has one owner, which may write. Sharing it yields a message for zenoh
//! and a [`Shared`], which becomes a `Whole` again once zenoh's own check finds no other holder. Both
//! contain the message as `ZBytes`: cloning it increments a count of this process, whereas a clone of
//! `ZShm` increments a count in shared memory and involves the thread that confirms messages, and so
//! does its drop.
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
//! W1: the owner of a `Whole` is the only reader and writer, in all processes, of the `capacity` bytes
//! at `start`. They stay mapped as long as `message` exists.

use crate::outstanding::Key;
use std::ptr::NonNull;
use std::slice;
use zenoh::bytes::ZBytes;
use zenoh::shm::{zshmmut, OwnedShmBuf, ShmBuf, ZShm, ZShmMut};

/// A buffer with a single holder. Boxed, because it moves with every message.
pub(crate) struct Whole(Box<Parts>);

struct Parts {
    message: ZBytes,
    start: NonNull<u8>,
    capacity: usize,
    /// Where its chunk lies.
    key: Key,
}

// SAFETY: the pointer is to memory of no particular thread, and only the `Whole` gives access (W1).
unsafe impl Send for Parts {}
// SAFETY: a shared reference gives shared references to the bytes, and nothing else (W1).
unsafe impl Sync for Parts {}

/// A buffer that was sent.
pub(crate) struct Shared(Whole);

impl Whole {
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

    /// Returns where its chunk lies.
    #[inline]
    pub(crate) fn key(&self) -> Key {
        self.0.key
    }

    /// Returns the longest possible message in bytes.
    pub(crate) fn capacity(&self) -> usize {
        self.0.capacity
    }

    /// Returns the first `len` bytes.
    #[inline]
    pub(crate) fn bytes(&self, len: usize) -> &[u8] {
        // SAFETY: that many bytes are mapped and belong to `self` (W1). Any bytes are valid `u8`s.
        unsafe { slice::from_raw_parts(self.0.start.as_ptr(), len.min(self.0.capacity)) }
    }

    /// Returns the first `len` bytes, for writing.
    #[inline]
    pub(crate) fn bytes_mut(&mut self, len: usize) -> &mut [u8] {
        // SAFETY: as in `bytes`; and the reference to `self` is the only one.
        unsafe { slice::from_raw_parts_mut(self.0.start.as_ptr(), len.min(self.0.capacity)) }
    }

    /// Converts the first `len` bytes into a message.
    #[inline]
    pub(crate) fn share(mut self, len: usize) -> (Shared, ZBytes) {
        let message = match self.0.message.len() == len || self.set_len(len) {
            true => self.0.message.clone(),
            // No bytes, or a peer wrote into zenoh's metadata. Then the bytes are copied.
            false => ZBytes::from(self.bytes(len).to_vec()),
        };
        (Shared(self), message)
    }

    /// Returns `true` if zenoh has neither invalidated nor freed the buffer.
    #[inline]
    pub(crate) fn is_valid(&self) -> bool {
        self.0
            .message
            .as_shm()
            .is_some_and(|handle| handle.is_valid())
    }

    /// Sets the length that zenoh sends. zenoh resizes owned handles only, so this creates another one
    /// and drops the first.
    #[cold]
    fn set_len(&mut self, len: usize) -> bool {
        let handle: Option<ZShm> = self.0.message.as_shm().map(ToOwned::to_owned);
        let resized = handle
            .zip(len.try_into().ok())
            .and_then(|(mut handle, len)| {
                handle.try_resize(len)?;
                Some(handle)
            });
        resized
            .map(|handle| self.0.message = handle.into())
            .is_some()
    }
}

impl Shared {
    /// Returns the buffer if it has no other holder, in this process or another.
    #[inline]
    pub(crate) fn reclaim(mut self) -> Result<Whole, Self> {
        let Whole(parts) = &mut self.0;
        let handle = parts.message.as_shm_mut();
        match handle
            .and_then(|handle| <&mut zshmmut>::try_from(handle).ok())
            .is_some()
        {
            true => Ok(self.0),
            false => Err(self),
        }
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
