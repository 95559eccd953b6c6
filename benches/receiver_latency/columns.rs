//! The two latencies of each message, each in a histogram.

#![forbid(unsafe_code)]

use crate::message::Message;
use crate::support::latency;
use hdrhistogram::Histogram;

/// See the module's text.
pub(crate) struct Columns {
    /// Since the message was due. What held the publisher up is in it.
    pub(crate) intended: Histogram<u64>,
    /// Since the publisher came to send the message. What held it up before is not in it.
    pub(crate) naive: Histogram<u64>,
}

impl Columns {
    pub(crate) fn new() -> Self {
        Self { intended: latency::histogram(), naive: latency::histogram() }
    }

    pub(crate) fn reset(&mut self) {
        self.intended.reset();
        self.naive.reset();
    }

    #[inline]
    pub(crate) fn record(&mut self, now: u64, message: &Message) {
        self.intended.saturating_record(now - message.intended);
        self.naive.saturating_record(now - message.actual);
    }
}
