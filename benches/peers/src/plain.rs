//! What needs no adapter: the library by itself, and glibc's malloc.

use crate::source::Source;
use crate::zenoh_peers::SEGMENT;
use shm_pool::{AllocError, Provider, ShmBufMut, Stats};
use std::convert::Infallible;

/// Our own provider, with the cap that everybody has.
pub(crate) struct Pool(Provider);

impl Pool {
    pub(crate) fn new() -> Result<Self, String> {
        Provider::builder().max_bytes(SEGMENT).build().map(Self).map_err(|error| error.to_string())
    }
}

impl Source for Pool {
    type Message = ShmBufMut;
    type Filled = ShmBufMut;
    type Error = AllocError;

    #[inline]
    fn take(&self, len: usize) -> Result<ShmBufMut, AllocError> {
        self.0.alloc(len)
    }

    fn fill(mut message: ShmBufMut, byte: u8) -> ShmBufMut {
        message.fill(byte);
        message
    }

    fn account(&self) -> String {
        most_held(&self.0.stats())
    }
}

pub(crate) fn most_held(stats: &Stats) -> String {
    format!("held {:.1} MiB", stats.peak_bytes_held as f64 / f64::from(1 << 20))
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
