//! What the messages say, and whether they came as they were sent.
//!
//! | bytes | |
//! |---|---|
//! | the first 8 | the message's number |
//! | the next 8 | when it was sent |
//! | the last 8 | its number again |
//! | between | the same in every message, and different from place to place |

#![forbid(unsafe_code)]

use shm_pool_support::Fallible;

/// A word of a message.
const WORD: usize = 8;

const SENT: usize = WORD;

/// Shorter messages have no room for three words.
pub(crate) const MIN_LEN: usize = 3 * WORD;

/// The application's own buffer: of the sender, who fills it, and of the receiver, who compares
/// with it.
pub(crate) struct Payload(Vec<u8>);

impl Payload {
    /// Of at least [`MIN_LEN`] bytes.
    pub(crate) fn new(len: usize) -> Self {
        Self((0..len.max(MIN_LEN)).map(|at| (at * 31 + 7) as u8).collect())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn set_number(&mut self, number: u64) {
        let last = self.0.len() - WORD;
        self.set_word(0, number);
        self.set_word(last, number);
    }

    pub(crate) fn set_sent(&mut self, time: u64) {
        self.set_word(SENT, time);
    }

    fn set_word(&mut self, at: usize, word: u64) {
        self.0[at..at + WORD].copy_from_slice(&word.to_ne_bytes());
    }

    /// Compares all of a message that came with what was sent under this number. Returns when it
    /// was sent.
    pub(crate) fn check(&mut self, number: u64, came: &[u8]) -> Fallible<u64> {
        if came.len() != self.0.len() {
            return Err(format!("message {number} came with {} bytes, not {}", came.len(), self.0.len()).into());
        }
        let (first, sent) = (word(came, 0), word(came, SENT));
        if first != number {
            return Err(format!("message {number} came as {first}").into());
        }
        self.set_number(number);
        self.set_sent(sent);
        if came == self.0 {
            Ok(sent)
        } else {
            Err(format!("message {number} came with other bytes than were sent").into())
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

/// Reads every byte once, as cheaply as can be: a sum.
pub(crate) fn touch(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(WORD);
    let rest = words.remainder().iter().map(|&byte| u64::from(byte)).sum();
    words.map(|bytes| word(bytes, 0)).fold(rest, u64::wrapping_add)
}
