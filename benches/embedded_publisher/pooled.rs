//! The driver with the pool: it waits for the device, encodes each message where the subscriber
//! will read it, and sends the 32 bytes that locate it. After the warm-up it allocates nothing, and
//! makes no system call for memory.

#![forbid(unsafe_code)]

use crate::message::{encode_in_place, MAX_LEN};
use crate::publisher::{Counts, Driver, Ends, UNDER_WAY};
use shm_pool_support::Fallible;
use std::sync::atomic::{AtomicU64, Ordering};

/// The driver.
#[derive(Default)]
pub(crate) struct Pooled {
    messages: AtomicU64,
    bytes: AtomicU64,
}

impl Pooled {
    /// Reserves memory for the messages in transit, one that is being read, and one that is being
    /// written, so that a late subscriber causes no allocation.
    pub(crate) fn new(ends: &Ends) -> Fallible<Self> {
        ends.provider.reserve(MAX_LEN, UNDER_WAY + 2)?.keep();
        Ok(Self::default())
    }
}

impl Driver for Pooled {
    /// All steps: wait, allocate, write, send.
    fn publish_next(&mut self, ends: &mut Ends) -> Fallible {
        let sample = ends.device.read()?.ok_or("the device does not wait for its sample")?;
        let mut message = ends.provider.alloc(MAX_LEN)?;
        let len = encode_in_place(sample, &mut message)?;
        message.truncate(len);
        ends.sender.send(message.freeze())?;
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(len as u64, Ordering::Relaxed);
        Ok(())
    }

    fn counts(&self, ends: &Ends) -> Counts {
        Counts {
            messages: self.messages.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            segments: ends.provider.stats().segments_created,
        }
    }
}
