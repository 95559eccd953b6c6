//! The publisher, at a fixed rate in an open loop, and its messages of 32 bytes.
//!
//! It never skips a message. When it is late, because it was delayed or the channel was full, it
//! sends without waiting until it has caught up; the intended times continue unchanged.

#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};
use shm_pool_support::{clock, wire, Fallible};
use std::io::Read;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// From the order to the first message, so that the receiver is ready by then.
const LEAD: u64 = 1_000_000;

const SECOND: u64 = 1_000_000_000;

/// One repetition: a number of messages, at a number per second.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) rate: u64,
    pub(crate) count: u64,
}

impl Order {
    /// When the message with `before` others before it is due, after the first: every 1e9 / rate
    /// nanoseconds, independently of the publisher. It sends by this, and the receiver checks by
    /// it.
    #[inline]
    pub(crate) fn due(&self, before: u64) -> u64 {
        before / self.rate * SECOND + before % self.rate * SECOND / self.rate
    }
}

/// Carries out all orders until the sender of orders closes its end.
pub(crate) fn publish(
    mut orders: impl Read,
    mut send: impl FnMut(&Message) -> Fallible,
) -> Fallible {
    let mut number = 0;
    while let Some(order) = wire::receive::<Order>(&mut orders)? {
        let start = clock::now() + LEAD;
        for before in 0..order.count {
            let intended = start + order.due(before);
            // Pausing between polls would only make it later.
            let actual = loop {
                let now = clock::now();
                if now >= intended {
                    break now;
                }
            };
            send(&Message::new(number, intended, actual))?;
            number += 1;
        }
    }
    Ok(())
}

/// A message in transit. Times are of the monotonic clock.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Message {
    /// How many the publisher sent before it, in all repetitions.
    pub(crate) number: u64,
    /// When it was due by the rate.
    pub(crate) intended: u64,
    /// When the publisher began to send it.
    pub(crate) actual: u64,
    check: u64,
}

impl Message {
    #[inline]
    fn new(number: u64, intended: u64, actual: u64) -> Self {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        // Each of the three words affects all of it, and different bits of it.
        let check = number.wrapping_mul(ODD) ^ intended.rotate_left(21) ^ actual.rotate_left(42);
        Self {
            number,
            intended,
            actual,
            check,
        }
    }

    /// Returns `true` if it arrived intact.
    #[inline]
    pub(crate) fn is_whole(&self) -> bool {
        self.check == Self::new(self.number, self.intended, self.actual).check
    }
}
