//! How a message is sent, and where bytes are copied to.

#![forbid(unsafe_code)]

use super::connection::Timeout;
use super::error::SendErrorKind;
use super::message::{INLINE_ALIGN, MAX_INLINE};
use crate::owner::buf::ShmBytes;
use crate::owner::provider::Provider;
use std::time::Duration;

/// Options of one message, for [`Publisher::send_with`](super::Publisher::send_with) and its
/// siblings.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shm_pool::channel::{Receiver, SendOptions, Sender};
/// use shm_pool::Provider;
/// use std::time::Duration;
///
/// # let name = format!("doc-options-{}", std::process::id());
/// let provider = Provider::builder().build()?;
/// let mut sender = Sender::create(&provider, &name)?;
/// let mut receiver = Receiver::open(&name)?;
///
/// let options = SendOptions::new().timeout(Duration::from_millis(5));
/// sender.send_copy_with(b"a sample", options)?;
/// assert_eq!(receiver.recv()?[..], *b"a sample");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "options have no effect until a message is sent with them"]
pub struct SendOptions {
    timeout: Option<Duration>,
}

impl SendOptions {
    /// Returns the default options, those of [`send`](super::Publisher::send): blocks until there
    /// is room.
    pub const fn new() -> Self {
        Self { timeout: None }
    }

    /// Sets for how long the call blocks at most; [`Duration::ZERO`] is
    /// [`try_send`](super::Publisher::try_send). The calls that return a future ignore it: drop the
    /// future to end the wait.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    #[inline]
    pub(super) fn patience(&self) -> Timeout {
        match self.timeout {
            None => Timeout::UNLIMITED,
            Some(Duration::ZERO) => Timeout::None,
            Some(timeout) => Timeout::After(timeout),
        }
    }
}

/// Allocates a buffer, without waiting for memory, and copies the bytes into it.
pub(super) fn copy_to_buffer(
    provider: &Provider,
    bytes: &[u8],
    align: usize,
) -> Result<ShmBytes, SendErrorKind> {
    match provider.alloc_aligned(bytes.len(), align) {
        Ok(mut buffer) => {
            buffer.copy_from_slice(bytes);
            Ok(buffer.freeze())
        }
        Err(error) => Err(SendErrorKind::Alloc(Box::new(error))),
    }
}

/// Returns the size in bytes of the chunk that a copy of `len` bytes takes; 0 for a copy in the
/// slot itself.
pub(super) fn chunk_of_copy(provider: &Provider, len: usize, align: usize) -> usize {
    if len <= MAX_INLINE && align <= INLINE_ALIGN {
        return 0;
    }
    provider.chunk_for(len)
}
