//! When each message is due: from a start on, every 1e9 / rate nanoseconds, whatever the publisher really does.
//!
//! The publisher sends by it, and the receiver checks the intended times by it.

#![forbid(unsafe_code)]

const SECOND: u64 = 1_000_000_000;

/// The times, without end.
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
