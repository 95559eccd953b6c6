//! The driver as it is first written, and works: it polls the device every millisecond, builds a
//! message, publishes a copy of it, encodes that into a new vector, creates a segment of shared
//! memory for it, and counts under a lock.
//!
//! The name of the segment is sent through the same channel as the other driver's messages, so that
//! waking the subscriber costs both the same; a socket would cost this one more.

#![forbid(unsafe_code)]

use crate::message::Navigation;
use crate::publisher::{Counts, Driver, Ends};
use crate::segment;
use shm_pool_support::Fallible;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// How long it sleeps when the device has nothing.
const NAP: Duration = Duration::from_millis(1);

/// The driver.
#[derive(Default)]
pub(crate) struct Baseline {
    /// The message that was built last.
    latest: Option<Navigation>,
    counts: Mutex<Counts>,
}

impl Baseline {
    /// Returns the driver that polls. The one that waits separates the cost of polling from the
    /// rest.
    pub(crate) fn that_polls(ends: &Ends) -> Fallible<Self> {
        ends.device.set_nonblocking()?;
        Ok(Self::default())
    }
}

impl Driver for Baseline {
    fn publish_next(&mut self, ends: &mut Ends) -> Fallible {
        let built = loop {
            match ends.device.read()? {
                Some(sample) => break Navigation::of(sample),
                None => thread::sleep(NAP),
            }
        };
        let message = self.latest.insert(built).clone();
        let bytes = message.encode()?;
        let path = segment::path(&ends.channel, message.sequence);
        segment::create(&path, &bytes)?;
        ends.sender.send_bytes(path.as_bytes())?;
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.messages += 1;
        counts.bytes += bytes.len() as u64;
        counts.segments += 1;
        Ok(())
    }

    fn counts(&self, _ends: &Ends) -> Counts {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
