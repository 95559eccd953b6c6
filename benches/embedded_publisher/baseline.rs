//! The driver as it is written first, and works: it looks every millisecond whether the device has
//! something, builds a message, publishes a copy of it, encodes that into a new vector, makes a
//! segment of shared memory for it, and counts under a lock.
//!
//! The name of the segment goes through the same channel as the other driver's messages, so that
//! waking the subscriber costs both the same; a socket would cost this one more.

#![forbid(unsafe_code)]

use crate::device::Device;
use crate::message::Navigation;
use crate::publisher::{Counts, Driver};
use crate::round::PREFIX;
use crate::segment;
use shm_pool::channel::Sender;
use shm_pool::Provider;
use shm_pool_support::Fallible;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// How long it sleeps when the device has nothing.
const NAP: Duration = Duration::from_millis(1);

/// As many as the other driver's.
const UNDER_WAY: usize = 4;

/// How it learns of a sample.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    /// It looks, and sleeps if there is none.
    Poll,
    /// It waits, as the other driver does: to tell what the polling takes, and what all the rest.
    Block,
}

/// The driver.
pub(crate) struct Baseline {
    device: Device,
    wait: Wait,
    /// The message that was built last.
    latest: Option<Navigation>,
    channel: String,
    sender: Sender,
    counts: Mutex<Counts>,
    /// The channel's.
    _provider: Provider,
}

impl Baseline {
    pub(crate) fn new(device: Device, wait: Wait, channel: &str) -> Fallible<Self> {
        if matches!(wait, Wait::Poll) {
            device.set_nonblocking()?;
        }
        let provider = Provider::builder().name_prefix(PREFIX).max_bytes(256 << 10).max_shared(64).build()?;
        let sender = Sender::builder().capacity(UNDER_WAY).create(&provider, channel)?;
        Ok(Self {
            device,
            wait,
            latest: None,
            channel: channel.to_owned(),
            sender,
            counts: Mutex::default(),
            _provider: provider,
        })
    }

    fn next(&mut self) -> Fallible<Navigation> {
        if matches!(self.wait, Wait::Block) {
            return Ok(Navigation::of(&self.device.read()?));
        }
        loop {
            if let Some(sample) = self.device.try_read()? {
                return Ok(Navigation::of(&sample));
            }
            thread::sleep(NAP);
        }
    }

    fn publish(&mut self, message: Navigation) -> Fallible {
        let bytes = message.encode();
        let name = segment::name(&self.channel, message.sequence);
        segment::create(&name, &bytes)?;
        self.sender.send_bytes(name.as_bytes())?;
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.messages += 1;
        counts.bytes += bytes.len() as u64;
        counts.segments += 1;
        Ok(())
    }
}

impl Driver for Baseline {
    fn wait_for_subscriber(&mut self, timeout: Duration) -> Fallible {
        self.sender.wait_for_receiver(timeout)?;
        Ok(())
    }

    fn publish_next(&mut self) -> Fallible {
        let message = self.next()?;
        let copy = self.latest.insert(message).clone();
        self.publish(copy)
    }

    fn counts(&self) -> Counts {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(mut self) -> Fallible {
        self.device.wait_until_gone()
    }
}
