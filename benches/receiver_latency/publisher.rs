//! The publisher: at a fixed rate, in an open loop; and the messages that it sends, of 32 bytes.
//!
//! It never skips a message. When it is late, because it was held up or because the way was full,
//! it sends without waiting until it has caught up; the intended times go on as if nothing had
//! happened.

#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};
use shm_pool_support::{clock, wire, Fallible};
use std::io::Read;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// From the order to the first message, so that the receiver is there by then.
const LEAD: u64 = 1_000_000;

const SECOND: u64 = 1_000_000_000;

/// One repetition: so many messages, so many a second.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) rate: u64,
    pub(crate) count: u64,
}

impl Order {
    /// When a message is due that has so many before it, after the first: every 1e9 / rate
    /// nanoseconds, whatever the publisher does. It sends by it, and the receiver checks by it.
    #[inline]
    pub(crate) fn due(&self, before: u64) -> u64 {
        before / self.rate * SECOND + before % self.rate * SECOND / self.rate
    }
}

/// Carries out all orders that come, until there are no more, or who gives them is gone.
pub(crate) fn publish(mut orders: impl Read, mut send: impl FnMut(&Message) -> Fallible) -> Fallible {
    let mut number = 0;
    while let Some(order) = wire::receive::<Order>(&mut orders)? {
        let start = clock::now() + LEAD;
        for before in 0..order.count {
            let intended = start + order.due(before);
            // A pause between the looks would only make it later.
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

/// A message, as it travels. Times are of the monotonic clock.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Message {
    /// How many the publisher sent before it, in all repetitions.
    pub(crate) number: u64,
    /// When it was due by the rate.
    pub(crate) intended: u64,
    /// When the publisher came to send it.
    pub(crate) actual: u64,
    check: u64,
}

impl Message {
    #[inline]
    fn new(number: u64, intended: u64, actual: u64) -> Self {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        // Each of the three words decides about all of it, and about different bits of it.
        let check = number.wrapping_mul(ODD) ^ intended.rotate_left(21) ^ actual.rotate_left(42);
        Self { number, intended, actual, check }
    }

    /// Is it as it was sent, and not torn?
    #[inline]
    pub(crate) fn is_whole(&self) -> bool {
        self.check == Self::new(self.number, self.intended, self.actual).check
    }
}
