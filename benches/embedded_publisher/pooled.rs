//! The driver with the pool: a thread that waits for the device, encodes each message where the
//! subscriber will read it, and sends 32 bytes that say where that is. After the warm-up it
//! allocates nothing, and makes no system call for memory.

#![forbid(unsafe_code)]

use crate::device::Device;
use crate::message::{encode_in_place, MAX_LEN};
use crate::publisher::{Counts, Driver};
use crate::round::PREFIX;
use shm_pool::channel::Sender;
use shm_pool::Provider;
use shm_pool_support::Fallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Messages that are sent and not read: with more, `send` waits, and samples wait in the device.
///
/// This bounds the memory: so many messages, one that is being read, and one that is being written.
/// They are reserved, so that a subscriber that is late for once costs nothing new. (The pool looks
/// at up to 8 messages that were lent before it makes a new one. With no more than that under way
/// it never misses one that has come back.)
const UNDER_WAY: usize = 4;

/// The driver.
pub(crate) struct Pooled {
    device: Device,
    provider: Provider,
    sender: Sender,
    messages: AtomicU64,
    bytes: AtomicU64,
}

impl Pooled {
    pub(crate) fn new(device: Device, channel: &str) -> Fallible<Self> {
        let provider = Provider::builder().name_prefix(PREFIX).max_bytes(256 << 10).max_shared(64).build()?;
        provider.reserve(MAX_LEN, UNDER_WAY + 2)?.keep();
        let sender = Sender::builder().capacity(UNDER_WAY).create(&provider, channel)?;
        Ok(Self { device, provider, sender, messages: AtomicU64::new(0), bytes: AtomicU64::new(0) })
    }
}

impl Driver for Pooled {
    fn wait_for_subscriber(&mut self, timeout: Duration) -> Fallible {
        self.sender.wait_for_receiver(timeout)?;
        Ok(())
    }

    /// All of it: wait, take memory, write, send.
    fn publish_next(&mut self) -> Fallible {
        let sample = self.device.read()?;
        let mut message = self.provider.alloc(MAX_LEN)?;
        let len = encode_in_place(&sample, &mut message);
        message.truncate(len);
        self.sender.send(message.freeze())?;
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(len as u64, Ordering::Relaxed);
        Ok(())
    }

    fn counts(&self) -> Counts {
        Counts {
            messages: self.messages.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            segments: self.provider.stats().segments_created,
        }
    }

    fn finish(mut self) -> Fallible {
        self.device.wait_until_gone()
    }
}
