//! What every peer can do: allocate messages. One trait, so that each workload is written once; and
//! the peers that need no adapter: the library by itself, and glibc's malloc.

use crate::zenoh_peers::SEGMENT;
use shm_pool::{AllocError, Provider, ShmBytesMut, Stats};
use shm_pool_support::units::mib;
use std::convert::Infallible;
use std::fmt::Display;
use std::ops::Deref;

/// A peer's result, or why it cannot take part.
pub(crate) type Made<T> = Result<T, String>;

/// Formats an error as such a reason.
pub(crate) fn text(error: impl Display) -> String {
    error.to_string()
}

/// An allocator of messages.
pub(crate) trait Source: 'static {
    /// A message that is not written yet.
    type Message;
    /// A written one.
    type Filled: Deref<Target = [u8]>;
    type Error: Display;

    fn take(&self, len: usize) -> Result<Self::Message, Self::Error>;

    /// Writes every byte.
    fn fill(message: Self::Message, byte: u8) -> Self::Filled;

    /// Releases what dropped messages still hold, where dropping them does not.
    fn settle(&self) {}

    /// Returns the most memory that it held at any time, by its own account.
    fn account(&self) -> String {
        "keeps none".to_owned()
    }
}

/// Our own provider, with the common cap.
pub(crate) fn pool() -> Made<Provider> {
    Provider::builder().max_bytes(SEGMENT).build().map_err(text)
}

impl Source for Provider {
    type Message = ShmBytesMut;
    type Filled = ShmBytesMut;
    type Error = AllocError;

    #[inline]
    fn take(&self, len: usize) -> Result<ShmBytesMut, AllocError> {
        self.alloc(len)
    }

    fn fill(mut message: ShmBytesMut, byte: u8) -> ShmBytesMut {
        message.fill(byte);
        message
    }

    fn account(&self) -> String {
        most_held(&self.stats())
    }
}

pub(crate) fn most_held(stats: &Stats) -> String {
    format!("held {:.1} MiB", mib(stats.peak_bytes_held as u64))
}

/// Private memory, which no other process can read: a floor and not a rival.
pub(crate) struct Malloc;

impl Source for Malloc {
    type Message = Vec<u8>;
    type Filled = Vec<u8>;
    type Error = Infallible;

    #[inline]
    fn take(&self, len: usize) -> Result<Vec<u8>, Infallible> {
        Ok(Vec::with_capacity(len))
    }

    fn fill(mut message: Vec<u8>, byte: u8) -> Vec<u8> {
        message.resize(message.capacity(), byte);
        message
    }
}
