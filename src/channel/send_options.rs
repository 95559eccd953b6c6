//! How a message is sent, and where bytes are copied to.

#![forbid(unsafe_code)]

use super::connection::Timeout;
use super::error::SendErrorKind;
use super::message::{Tag, INLINE_ALIGN, MAX_INLINE};
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
/// let stamp = 1_700_000_000_000_000_000_u128.to_le_bytes();
/// let frame = sender.alloc(1_000_000)?;
/// sender.send_with(frame, stamp)?; // a tag is an option by itself
/// assert_eq!(receiver.recv()?.tag(), Some(stamp));
///
/// let options = SendOptions::new().tag(stamp).timeout(Duration::from_millis(5));
/// sender.send_copy_with(b"a sample", options)?;
/// let message = receiver.recv()?;
/// assert_eq!((&message[..], message.tag()), (&b"a sample"[..], Some(stamp)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "options have no effect until a message is sent with them"]
pub struct SendOptions {
    timeout: Option<Duration>,
    tag: Option<Tag>,
}

/// The default options, with this [tag](SendOptions::tag).
impl From<[u8; 16]> for SendOptions {
    #[inline]
    fn from(tag: [u8; 16]) -> Self {
        Self::new().tag(tag)
    }
}

impl SendOptions {
    /// Returns the default options, those of [`send`](super::Publisher::send): blocks until there
    /// is room.
    pub const fn new() -> Self {
        Self {
            timeout: None,
            tag: None,
        }
    }

    /// Sends 16 bytes of the program's own with the message, such as a time stamp and a sequence
    /// number: [`Message::tag`](super::Message::tag). A message in the slot itself holds 32 bytes
    /// beside its tag; longer copies go into a buffer. The tag is not part of the buffer, which may
    /// be sent again with another one.
    pub const fn tag(mut self, tag: [u8; 16]) -> Self {
        self.tag = Some(tag);
        self
    }

    /// Sets for how long the call blocks at most; [`Duration::ZERO`] is
    /// [`try_send`](super::Publisher::try_send). The calls that return a future ignore it: drop the
    /// future to end the wait.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    #[inline]
    pub(super) fn tag_to_send(&self) -> Option<Tag> {
        self.tag
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
