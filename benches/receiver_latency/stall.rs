//! The self-test: the receiver stalls for a while, and the figures must show it.
//!
//! In the middle of a repetition the receiver stops for [`STALL`]. Of the messages that are due in
//! that time, the first is received [`STALL`] late and the last hardly so, evenly in between:
//! `rate * (STALL - x)` of them with a latency of `x` or more. Other activity on the machine can
//! only delay more of them: these are lower bounds, and hold on a busy machine too.
//!
//! It is done twice. With a slot for every message the publisher continues, and both columns have
//! the stall. With a few slots the publisher is blocked too, and sends the rest only after the stall:
//! the naive column starts there, without the stall.

#![forbid(unsafe_code)]

use crate::link::{Columns, Link};
use crate::publisher::Order;
use crate::ways::DEFAULT;
use shm_pool_support::{clock, latency, Fallible};

const STALL: u64 = 5_000_000;
const ORDER: Order = Order {
    rate: 100_000,
    count: 2_000,
};
const INTERVAL: u64 = 1_000_000_000 / ORDER.rate;
const STALLS_AFTER: u64 = ORDER.count / 2;

/// Latencies for which the messages with at least that latency are counted.
const LATENCIES: [u64; 4] = [1_000_000, 2_000_000, 3_000_000, 4_000_000];

/// Slots for all messages, and for a few.
const SLOTS: [u64; 2] = [2_048, 8];

/// Both parts.
pub(crate) fn test(core: Option<usize>) -> Fallible {
    let mut problems = Vec::new();
    for slots in SLOTS {
        let mut columns = Columns::new();
        // How late the publisher began to send.
        let mut late = latency::histogram();
        let mut link = Link::start(DEFAULT, slots as usize, core)?;
        link.repeat(ORDER, |now, message| {
            columns.record(now, message);
            late.saturating_record(message.actual - message.intended);
            if message.number == STALLS_AFTER {
                clock::sleep_until(now + STALL);
            }
        })?;
        link.finish()?;
        for least in LATENCIES {
            let due = (STALL - least) / INTERVAL;
            let received = columns.intended.count_between(least, u64::MAX);
            if received < due {
                problems.push(format!(
                    "with {slots} slots {received} messages were received {least} ns late or more, \
                     not {due}"
                ));
            }
            // One message per slot gets through, and then none until the stall is over.
            let due = due.saturating_sub(slots);
            let sent = late.count_between(least, u64::MAX);
            if sent < due {
                problems.push(format!(
                    "with {slots} slots {sent} messages were sent {least} ns late or more, not {due}"
                ));
            }
        }
        // The next message is due at most an interval later.
        if columns.intended.max() < STALL - INTERVAL {
            problems.push(format!(
                "with {slots} slots the highest latency is {} ns",
                columns.intended.max()
            ));
        }
    }
    if !problems.is_empty() {
        return Err(format!("the self-test failed: {}", problems.join("; ")).into());
    }
    println!(
        "self-test passed: a stall of the receiver is in full in the latencies by intended time\n"
    );
    Ok(())
}
