//! The messages that a receiver got, and those it missed.

use serde::{Deserialize, Serialize};
use shm_pool_support::Fallible;

/// Counts messages that are numbered from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) received: u64,
    /// How many are missing, according to the receiver.
    pub(crate) missed: u64,
}

impl Tally {
    /// How many were sent, up to the last one received.
    pub(crate) fn sent(self) -> u64 {
        self.received + self.missed
    }

    /// Counts the next message. Its number shows whether the gap before it matches the reported
    /// one.
    pub(crate) fn count(&mut self, number: u64, missed: u32) -> Fallible {
        let expected = self.sent() + u64::from(missed);
        if number != expected {
            return Err(format!("message {number} came as {expected}, {missed} of them missed just before").into());
        }
        self.received += 1;
        self.missed += u64::from(missed);
        Ok(())
    }
}
