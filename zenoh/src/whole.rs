//! A whole zenoh buffer: chunk, metadata and watchdog, which stay together from one message to the
//! next.
//!
//! zenoh allocates all three for each message and frees them after it, although the next message
//! needs the same. Here they stay. A [`Whole`] is in one hand, for writing. Sharing it gives a
//! message for zenoh and a [`Shared`], which becomes a `Whole` again once zenoh's own check says
//! that nobody else has the buffer. Both hold the message as `ZBytes`: cloning those costs one count
//! of this process, where a clone of `ZShm` costs a count in shared memory, and a transaction with
//! the thread that confirms messages, each twice.
//!
//! # What zenoh promises
//!
//! Only its public interface is used:
//!
//! | used | relied on |
//! |---|---|
//! | `ZBytes::as_shm_mut` | gives the buffer only if no other `ZBytes` of this process shares it |
//! | `TryFrom<&mut zshm> for &mut zshmmut` | succeeds only if zenoh counts one holder in all processes, has not invalidated the buffer, and has not freed it since |
//! | `OwnedShmBuf::try_resize` of `ZShm` | the buffer stays where it is, and is sent with its new length |
//! | `From<ZShm> for ZBytes`, `Clone for ZBytes` | nothing is copied |
//!
//! # Invariant
//!
//! W1: whoever has a `Whole` is the only one in any process that reads or writes the `capacity`
//! bytes at `start`. They stay mapped as long as `message` exists.

use std::ptr::NonNull;
use std::slice;
use zenoh::bytes::ZBytes;
use zenoh::shm::{zshmmut, OwnedShmBuf, ShmBuf, ZShm, ZShmMut};

/// A buffer that nobody else has. In a box, because it moves with every message.
pub(crate) struct Whole(Box<Parts>);

struct Parts {
    message: ZBytes,
    start: NonNull<u8>,
    capacity: usize,
}

// SAFETY: the pointer is to memory that no thread owns, and only the `Whole` gives access (W1).
unsafe impl Send for Parts {}
// SAFETY: a shared reference gives shared references to the bytes, and nothing else (W1).
unsafe impl Sync for Parts {}

/// A buffer that was sent.
pub(crate) struct Shared(Whole);

impl Whole {
    /// Keeps a buffer with all its bytes, to be sent with `len` of them.
    pub(crate) fn new(mut buffer: ZShmMut, len: usize) -> Self {
        let capacity = buffer.len();
        let start = NonNull::from(&mut buffer[..]).cast();
        if let Ok(len) = len.try_into() {
            let _shorter = buffer.try_resize(len);
        }
        Self(Box::new(Parts { message: buffer.into(), start, capacity }))
    }

    /// The longest message in bytes.
    pub(crate) fn capacity(&self) -> usize {
        self.0.capacity
    }

    /// The first `len` bytes.
    #[inline]
    pub(crate) fn bytes(&self, len: usize) -> &[u8] {
        // SAFETY: that many bytes are mapped and belong to `self` (W1). Any bytes are valid `u8`s.
        unsafe { slice::from_raw_parts(self.0.start.as_ptr(), len.min(self.0.capacity)) }
    }

    /// The first `len` bytes, to write.
    #[inline]
    pub(crate) fn bytes_mut(&mut self, len: usize) -> &mut [u8] {
        // SAFETY: as in `bytes`; and the reference to `self` is the only one.
        unsafe { slice::from_raw_parts_mut(self.0.start.as_ptr(), len.min(self.0.capacity)) }
    }

    /// Makes a message of the first `len` bytes.
    #[inline]
    pub(crate) fn share(mut self, len: usize) -> (Shared, ZBytes) {
        let message = match self.0.message.len() == len || self.set_len(len) {
            true => self.0.message.clone(),
            // No bytes, or a peer wrote into zenoh's metadata: then at least the bytes arrive.
            false => ZBytes::from(self.bytes(len).to_vec()),
        };
        (Shared(self), message)
    }

    /// Has zenoh neither invalidated nor freed it?
    #[inline]
    pub(crate) fn is_valid(&self) -> bool {
        self.0.message.as_shm().is_some_and(|handle| handle.is_valid())
    }

    /// Sets the length that zenoh sends. zenoh resizes only owned handles, so this makes another
    /// one, and drops the first.
    #[cold]
    fn set_len(&mut self, len: usize) -> bool {
        let handle: Option<ZShm> = self.0.message.as_shm().map(ToOwned::to_owned);
        let resized = handle.zip(len.try_into().ok()).and_then(|(mut handle, len)| {
            handle.try_resize(len)?;
            Some(handle)
        });
        resized.map(|handle| self.0.message = handle.into()).is_some()
    }
}

impl Shared {
    /// The buffer, if nobody else has it any more, in this process or another.
    #[inline]
    pub(crate) fn reclaim(mut self) -> Result<Whole, Self> {
        let Whole(parts) = &mut self.0;
        let handle = parts.message.as_shm_mut();
        match handle.and_then(|handle| <&mut zshmmut>::try_from(handle).ok()).is_some() {
            true => Ok(self.0),
            false => Err(self),
        }
    }

    /// Has zenoh neither invalidated nor freed it?
    pub(crate) fn is_valid(&self) -> bool {
        self.0.is_valid()
    }
}
