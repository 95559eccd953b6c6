//! The publisher: at a fixed rate, in an open loop; and the messages that it sends, of 32 bytes.
//!
//! It never skips a message. When it is late, because it was held up or because the way was full,
//! it sends without waiting until it has caught up; the intended times go on as if nothing had
//! happened.
//!
//! | bytes | |
//! |---|---|
//! | 0 to 7 | its number: how many the publisher sent before it, in all repetitions |
//! | 8 to 15 | when it was due by the rate, on the monotonic clock: the *intended* send time |
//! | 16 to 23 | when the publisher came to send it: the *actual* send time |
//! | 24 to 31 | a word made from the other three, so that a torn message is noticed |

#![forbid(unsafe_code)]

use crate::ways::Outgoing;
use serde::{Deserialize, Serialize};
use shm_pool_support::{clock, wire, Fallible};
use std::io::Read;

/// From the order to the first message, so that the receiver is there by then.
const LEAD: u64 = 1_000_000;

/// One repetition: so many messages, so many a second.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) rate: u64,
    pub(crate) count: u64,
}

/// Carries out all orders that come, until there are no more, or who gives them is gone.
pub(crate) fn publish(mut orders: impl Read, way: &mut dyn Outgoing) -> Fallible {
    let mut number = 0;
    while let Some(Order { rate, count }) = wire::receive(&mut orders)? {
        for intended in Pace::new(clock::now() + LEAD, rate).take(count as usize) {
            let actual = wait_for(intended);
            way.send(&Message { number, intended, actual }.to_bytes())?;
            number += 1;
        }
    }
    Ok(())
}

/// Waits until a time has come, and gives the clock's. A pause between the looks would only make it
/// later.
#[inline]
fn wait_for(time: u64) -> u64 {
    loop {
        let now = clock::now();
        if now >= time {
            return now;
        }
    }
}

const SECOND: u64 = 1_000_000_000;

/// When each message is due, without end: from a start on, every 1e9 / rate nanoseconds, whatever
/// the publisher does. The publisher sends by it, and the receiver checks the intended times by it.
pub(crate) struct Pace {
    next: u64,
    rate: u64,
    /// What the whole nanoseconds have left out so far, in 1 / rate of one.
    owed: u64,
}

impl Pace {
    pub(crate) fn new(start: u64, rate: u64) -> Self {
        Self { next: start, rate, owed: 0 }
    }
}

impl Iterator for Pace {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        let time = self.next;
        self.next += SECOND / self.rate;
        self.owed += SECOND % self.rate;
        if self.owed >= self.rate {
            self.owed -= self.rate;
            self.next += 1;
        }
        Some(time)
    }
}

/// As it travels.
pub(crate) type Bytes = [u8; LEN];

const LEN: usize = 32;

/// A message; see above.
pub(crate) struct Message {
    pub(crate) number: u64,
    pub(crate) intended: u64,
    pub(crate) actual: u64,
}

impl Message {
    #[inline]
    pub(crate) fn to_bytes(&self) -> Bytes {
        let words = [self.number, self.intended, self.actual, self.check()];
        let mut bytes = [0; LEN];
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    #[inline]
    pub(crate) fn from_bytes(bytes: &Bytes) -> Fallible<Self> {
        let word = |index: usize| u64::from_ne_bytes(std::array::from_fn(|at| bytes[8 * index + at]));
        let message = Self { number: word(0), intended: word(1), actual: word(2) };
        if word(3) == message.check() {
            Ok(message)
        } else {
            Err(format!("a message came with other bytes than were sent: {bytes:x?}").into())
        }
    }

    /// Each of the three words decides about all of it, and about different bits of it.
    fn check(&self) -> u64 {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        self.number.wrapping_mul(ODD) ^ self.intended.rotate_left(21) ^ self.actual.rotate_left(42)
    }
}
