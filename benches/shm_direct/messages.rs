//! The contents of messages, and what both sides do by any way: the timestamps, and the checks.
//!
//! | bytes of a message | |
//! |---|---|
//! | the first 8 | its number |
//! | the next 8 | when it was sent |
//! | the last 8 | its number again |
//! | between | the same in every message, and different from position to position |

#![forbid(unsafe_code)]

use crate::rows::Setting;
use hdrhistogram::Histogram;
use shm_pool_support::{clock, latency, Fallible};
use std::hint::black_box;
use std::time::Duration;

/// A word of a message.
const WORD: usize = 8;

/// Shorter messages have no room for three words.
pub(crate) const MIN_LEN: usize = 3 * WORD;

/// The application's own buffer: the sender fills it, and the receiver compares with it.
struct Payload(Vec<u8>);

impl Payload {
    fn new(len: usize) -> Self {
        Self((0..len).map(|at| (at * 31 + 7) as u8).collect())
    }

    fn set_number(&mut self, number: u64) {
        self.set_word(0, number);
        self.set_word(self.0.len() - WORD, number);
    }

    fn set_sent(&mut self, time: u64) {
        self.set_word(WORD, time);
    }

    fn set_word(&mut self, at: usize, word: u64) {
        self.0[at..at + WORD].copy_from_slice(&word.to_ne_bytes());
    }

    /// Compares a received message with what was sent under this number. Returns when it was sent.
    fn check(&mut self, number: u64, came: &[u8]) -> Fallible<u64> {
        if came.len() != self.0.len() {
            return Err(format!("message {number} came with {} bytes, not {}", came.len(), self.0.len()).into());
        }
        let (first, sent) = (word(came), word(&came[WORD..]));
        if first != number {
            return Err(format!("message {number} came as {first}").into());
        }
        self.set_number(number);
        self.set_sent(sent);
        let is_same = came == self.0;
        is_same.then_some(sent).ok_or_else(|| format!("message {number} came with other bytes than were sent").into())
    }
}

/// The first of some bytes.
fn word(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|at| bytes[at]))
}

/// Reads every byte once, as cheaply as possible: a sum.
fn touch(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(WORD);
    let rest = words.remainder().iter().map(|&byte| u64::from(byte)).sum();
    words.map(word).fold(rest, u64::wrapping_add)
}

/// Sends all messages, each when it is due, or back to back. The buffer is the application's, and
/// is reused after each. The timestamp is taken last.
pub(crate) fn send_all(setting: &Setting, mut send: impl FnMut(&[u8]) -> Fallible) -> Fallible {
    let pace = setting.pace.as_nanos() as u64;
    let mut payload = Payload::new(setting.len);
    let start = clock::now();
    for number in 0..setting.messages() {
        if pace > 0 {
            clock::sleep_until(start + number * pace);
        }
        payload.set_number(number);
        payload.set_sent(clock::now());
        send(&payload.0)?;
    }
    Ok(())
}

/// The receiver's results of one round.
pub(crate) struct Round {
    /// By [stamp](crate::report::STAMPS).
    pub(crate) latencies: [Histogram<u64>; 2],
    pub(crate) took: Duration,
}

/// Receives a message and the time of the wake.
pub(crate) type Read<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Fallible;

/// Receives all messages in order, reads every byte of each, and then compares it with what was
/// sent. Those of the warm-up are not recorded.
pub(crate) fn receive_all(setting: &Setting, mut receive: impl FnMut(Read) -> Fallible) -> Fallible<Round> {
    let mut latencies = [latency::histogram(), latency::histogram()];
    let mut expected = Payload::new(setting.len);
    let mut start = clock::now();
    for number in 0..setting.messages() {
        if number == setting.warm_up {
            start = clock::now();
        }
        receive(&mut |wake, bytes| {
            black_box(touch(bytes));
            let usable = clock::now();
            let sent = expected.check(number, bytes)?;
            let since =
                |time: u64| time.checked_sub(sent).ok_or("received before it was sent: the cores' clocks differ");
            if number >= setting.warm_up {
                latencies[0].saturating_record(since(wake)?);
                latencies[1].saturating_record(since(usable)?);
            }
            Ok(())
        })?;
    }
    Ok(Round { latencies, took: Duration::from_nanos(clock::now() - start) })
}
