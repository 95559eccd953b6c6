//! A message: 32 bytes.
//!
//! | bytes | |
//! |---|---|
//! | 0 to 7 | its number: how many the publisher sent before it, in all repetitions |
//! | 8 to 15 | when it was due by the rate, on the monotonic clock: the *intended* send time |
//! | 16 to 23 | when the publisher came to send it: the *actual* send time |
//! | 24 to 31 | a word made from the other three, so that a torn message is noticed |

#![forbid(unsafe_code)]

use crate::support::Fallible;

/// As it travels.
pub(crate) type Bytes = [u8; LEN];

const LEN: usize = 32;

/// See the module's text.
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
