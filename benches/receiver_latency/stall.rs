//! The self-test: the receiver stalls for a while, and the figures must show it.
//!
//! In the middle of a repetition the receiver stops for [`STALL`]. Of the messages that are due in
//! that time, the first is received [`STALL`] late and the last hardly so, evenly in between:
//! `rate * (STALL - x)` of them with a latency of `x` or more. Other activity on the machine can
//! only delay more of them: these are lower bounds, and hold on a busy machine too.
//!
//! It is done twice. With room for all messages the publisher continues, and both columns have the
//! stall. With a few slots the publisher is blocked too, and sends the rest only after the stall:
//! the naive column starts there, and does not have it.

#![forbid(unsafe_code)]

use crate::link::{Columns, Link};
use crate::publisher::Order;
use crate::ways::DEFAULT;
use shm_pool_support::table::table;
use shm_pool_support::units::Nanoseconds;
use shm_pool_support::{clock, latency, Fallible};

const STALL: u64 = 5_000_000;
const ORDER: Order = Order { rate: 100_000, count: 2_000 };
const INTERVAL: u64 = 1_000_000_000 / ORDER.rate;
const STALLS_AFTER: u64 = ORDER.count / 2;

/// Latencies for which the messages with at least that latency are counted.
const LATENCIES: [u64; 4] = [1_000_000, 2_000_000, 3_000_000, 4_000_000];

/// Room for all messages, and for a few.
const SLOTS: [u64; 2] = [2_048, 8];

/// Both parts; the figures are printed unless `is_quick`.
pub(crate) fn test(core: Option<usize>, is_quick: bool) -> Fallible {
    let mut rows = table(&["self-test, room for", "latency", "due with it, at least", "by intended time", "naive"]);
    let mut problems = Vec::new();
    for slots in SLOTS {
        // The third is how late the publisher began to send.
        let (mut columns, mut late) = (Columns::new(), latency::histogram());
        let mut link = Link::start(DEFAULT, slots as usize, core)?;
        link.repeat(ORDER, |now, message| {
            columns.record(now, message);
            late.saturating_record(message.actual - message.intended);
            if message.number == STALLS_AFTER {
                clock::sleep_until(now + STALL);
            }
        })?;
        link.finish()?;
        let Columns { intended, naive } = &columns;
        for least in LATENCIES {
            let due = (STALL - least) / INTERVAL;
            let [received, by_naive, sent] = [intended, naive, &late].map(|all| all.count_between(least, u64::MAX));
            let name = format!("{} or more", Nanoseconds(least as f64));
            rows.add_row([
                format!("{slots} messages"),
                name,
                due.to_string(),
                received.to_string(),
                by_naive.to_string(),
            ]);
            // One message per slot gets through, and then none until the stall is over.
            for (what, seen, due) in [("received", received, due), ("sent", sent, due.saturating_sub(slots))] {
                if seen < due {
                    let late = Nanoseconds(least as f64);
                    problems
                        .push(format!("with {slots} slots {seen} messages were {what} {late} late or more, not {due}"));
                }
            }
        }
        // The next message is due at most an interval later.
        let most = [STALL - INTERVAL, intended.max(), naive.max()];
        let [_, seen, _] = most;
        let [due, by_intended, by_naive] = most.map(|ns| Nanoseconds(ns as f64).to_string());
        if seen < STALL - INTERVAL {
            problems.push(format!("with {slots} slots the highest latency is {by_intended}"));
        }
        rows.add_row([format!("{slots} messages"), "max".to_owned(), due, by_intended, by_naive]);
    }
    if !is_quick || !problems.is_empty() {
        println!("{rows}");
    }
    if !problems.is_empty() {
        return Err(format!("the self-test failed: {}", problems.join("; ")).into());
    }
    println!(
        "self-test passed: a stall of {} in the receiver, at {} msg/s, is in full in the latencies by intended time, \
         with {} slots and with {}, where the publisher is held up\n",
        Nanoseconds(STALL as f64),
        ORDER.rate,
        SLOTS[0],
        SLOTS[1]
    );
    Ok(())
}
