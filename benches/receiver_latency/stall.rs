//! The self-test: the receiver stands still for a while, and the figures must say so.
//!
//! In the middle of a repetition the receiver stops for [`STALL`]. Of the messages that are due in
//! that time, the first is received [`STALL`] late and the last hardly so, evenly in between:
//! `rate * (STALL - x)` of them with a latency of `x` or more. Whatever else the machine does can
//! only delay more of them: these are lower bounds, and hold on a busy machine too.
//!
//! It is done twice. With room for all messages the publisher goes on, and both columns have the
//! stall. With a few slots the publisher is held up too, and comes to send the rest only after the
//! stall: the naive column starts there, and does not have it.

#![forbid(unsafe_code)]

use crate::link::{Link, DEFAULT};
use crate::publisher::Order;
use crate::report::Columns;
use hdrhistogram::Histogram;
use shm_pool_support::table::table;
use shm_pool_support::units::Nanoseconds;
use shm_pool_support::{clock, latency, Fallible};

const STALL: u64 = 5_000_000;
const ORDER: Order = Order { rate: 100_000, count: 2_000 };
const INTERVAL: u64 = 1_000_000_000 / ORDER.rate;
const STALLS_AFTER: u64 = ORDER.count / 2;

/// Latencies of which the messages are counted that have so much or more.
const LATENCIES: [u64; 4] = [1_000_000, 2_000_000, 3_000_000, 4_000_000];

/// Room for all messages, and for a few.
const SLOTS: [usize; 2] = [2_048, 8];

/// What was seen with a stall.
struct Seen {
    slots: usize,
    columns: Columns,
    /// How late the publisher came to send.
    late: Histogram<u64>,
}

/// Both parts; the figures are printed unless `is_quick`.
pub(crate) fn test(core: Option<usize>, is_quick: bool) -> Fallible {
    let mut rows = table(&["self-test, room for", "latency", "due with it, at least", "by intended time", "naive"]);
    for slots in SLOTS {
        let seen = Seen::with(slots, core)?;
        for cells in seen.rows() {
            rows.add_row(cells);
        }
        if let Err(error) = seen.check() {
            println!("{rows}");
            return Err(format!("the self-test failed: {error}").into());
        }
    }
    if !is_quick {
        println!("{rows}");
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

/// How many have a latency of so much or more.
fn count(histogram: &Histogram<u64>, latency: u64) -> u64 {
    histogram.count_between(latency, u64::MAX)
}

/// How many must have it.
fn due(latency: u64) -> u64 {
    (STALL - latency) / INTERVAL
}

impl Seen {
    fn with(slots: usize, core: Option<usize>) -> Fallible<Self> {
        let mut seen = Self { slots, columns: Columns::new(), late: latency::histogram() };
        let mut link = Link::start(DEFAULT, slots, core)?;
        link.repeat(ORDER, |now, message| {
            seen.columns.record(now, message);
            seen.late.saturating_record(message.actual - message.intended);
            if message.number == STALLS_AFTER {
                clock::sleep_until(now + STALL);
            }
        })?;
        link.finish()?;
        Ok(seen)
    }

    fn check(&self) -> Fallible {
        let Columns { intended, .. } = &self.columns;
        // The next message is due an interval later at most.
        let most = intended.max();
        if most < STALL - INTERVAL {
            let most = Nanoseconds(most as f64);
            return Err(format!("with {} slots the highest latency is {most}", self.slots).into());
        }
        for latency in LATENCIES {
            self.require("were received", intended, latency, due(latency))?;
            // As many as there are slots go through, and then none until the stall is over.
            self.require("were sent", &self.late, latency, due(latency).saturating_sub(self.slots as u64))?;
        }
        Ok(())
    }

    /// So many messages at least must be so late.
    fn require(&self, what: &str, histogram: &Histogram<u64>, latency: u64, least: u64) -> Fallible {
        let seen = count(histogram, latency);
        if seen >= least {
            return Ok(());
        }
        let (slots, late) = (self.slots, Nanoseconds(latency as f64));
        Err(format!("with {slots} slots {seen} messages {what} {late} late or more, and not {least}").into())
    }

    fn rows(&self) -> Vec<[String; 5]> {
        let Columns { intended, naive } = &self.columns;
        let slots = format!("{} messages", self.slots);
        let ns = |ns: u64| Nanoseconds(ns as f64).to_string();
        let counts = LATENCIES.map(|latency| {
            let counts = [due(latency), count(intended, latency), count(naive, latency)].map(|count| count.to_string());
            let [due, intended, naive] = counts;
            [slots.clone(), format!("{} or more", ns(latency)), due, intended, naive]
        });
        let most = [slots.clone(), "max".to_owned(), ns(STALL - INTERVAL), ns(intended.max()), ns(naive.max())];
        counts.into_iter().chain([most]).collect()
    }
}
