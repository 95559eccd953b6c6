//! The output: a table for each pace, and the ratios that have goals.

#![forbid(unsafe_code)]

use crate::messages::Round;
use crate::rows::{
    Setting, Way, BACK_TO_BACK, DEFAULT_WAITING, FUTEX_ONLY, LARGEST, PACED, REFERENCE, SETTINGS, SLOT, SLOW,
};
use hdrhistogram::Histogram;
use shm_pool_support::latency::{Latencies, Spread};
use shm_pool_support::table::{table, Goal};
use shm_pool_support::units::Nanoseconds;
use shm_pool_support::Fallible;
use std::time::Duration;

/// When the receiver reads the clock.
pub(crate) const STAMPS: [&str; 2] = ["wake", "usable"];
const WAKE: usize = 0;
const USABLE: usize = 1;

/// The results of one row in one setting, over all rounds.
pub(crate) struct Cell {
    pub(crate) name: &'static str,
    pub(crate) way: Way,
    pub(crate) setting: Setting,
    /// By stamp.
    latencies: [Latencies; 2],
}

/// A ratio of one-way means, and its goal.
const GOALS: [(Duration, usize, usize, Goal); 4] = [
    (SLOW, REFERENCE, WAKE, Goal::AtMost(1.0)),
    (SLOW, REFERENCE, USABLE, Goal::AtMost(1.0)),
    (PACED, LARGEST, USABLE, Goal::Below(1.0)),
    (BACK_TO_BACK, LARGEST, USABLE, Goal::Below(1.0)),
];

impl Cell {
    pub(crate) fn new((name, way): (&'static str, Way), setting: Setting) -> Self {
        Self { name, way, setting, latencies: Default::default() }
    }

    pub(crate) fn add(&mut self, round: &Round) -> Fallible {
        let mut both = self.latencies.iter_mut().zip(&round.latencies);
        both.try_for_each(|(all, latencies)| all.add(latencies, round.took))
    }
}

/// The curves of the reference: both stamps of each row.
pub(crate) fn curves(cells: &[Cell]) -> Vec<(String, &Histogram<u64>)> {
    let reference = cells.iter().filter(|cell| cell.setting.pace == SLOW);
    let both = reference.flat_map(|cell| STAMPS.iter().zip(&cell.latencies).map(move |stamp| (cell.name, stamp)));
    both.map(|(name, (stamp, latencies))| (format!("{name}, {stamp}"), &latencies.all)).collect()
}

/// Prints all tables, with notes.
pub(crate) fn print(cells: &[Cell], rounds: u32) {
    for (pace, _) in SETTINGS {
        print_pace(pace, cells.iter().filter(|cell| cell.setting.pace == pace), rounds);
    }
    println!("one-way means, channel / slot, median and range of the rounds:\n");
    let mut table = table(&["ratio", "goal", "this run", "", "channel's mean", "slot's mean"]);
    for (pace, len, stamp, goal) in GOALS {
        let find = |name| {
            let is_it = |cell: &&Cell| (cell.setting.pace, cell.setting.len, cell.name) == (pace, len, name);
            cells.iter().find(is_it).map(|cell| &cell.latencies[stamp])
        };
        for name in [FUTEX_ONLY, DEFAULT_WAITING] {
            let Some((ours, theirs)) = find(name).zip(find(SLOT)) else { continue };
            // Of rounds that ran one after the other, so that the machine's other activity affects
            // both.
            let ratios: Vec<_> = ours.means().iter().zip(theirs.means()).map(|(ours, theirs)| ours / theirs).collect();
            let ratio = Spread::of(&ratios);
            table.add_row([
                format!("{name}, {len} B {}, {}", title(pace), STAMPS[stamp]),
                goal.to_string(),
                ratio.range(3),
                goal.verdict(ratio.median).to_owned(),
                ours.mean().to_string(),
                theirs.mean().to_string(),
            ]);
        }
    }
    println!("{table}\n");
    print!("{NOTES}");
}

fn title(pace: Duration) -> String {
    match pace {
        BACK_TO_BACK => "back to back".to_owned(),
        pace => format!("every {} ms", pace.as_millis()),
    }
}

/// The table of a pace.
fn print_pace<'a>(pace: Duration, cells: impl Iterator<Item = &'a Cell> + Clone, rounds: u32) {
    let count = cells.clone().next().map_or(0, |cell| cell.setting.count);
    println!("{}, {} messages a row:\n", title(pace), count * u64::from(rounds));
    let mut heads = vec!["one way", "B", "wake: mean", "p50", "p99", "max", "usable: mean", "p50", "p99", "max"];
    if pace == BACK_TO_BACK {
        heads.push("MB/s");
    }
    let mut table = table(&heads);
    for Cell { name, way, setting, latencies } in cells {
        let mut line = vec![name.to_string(), setting.len.to_string()];
        for latencies in latencies {
            let mean = Nanoseconds(latencies.all.mean()).to_string();
            let figures = [mean, latencies.at(0.5), latencies.at(0.99), latencies.at(1.0)];
            line.extend(figures.map(|figure| if way.has_latencies() { figure } else { String::new() }));
        }
        if pace == BACK_TO_BACK {
            line.push(format!("{:.0}", latencies[USABLE].rate().median * setting.len as f64 / 1e6));
        }
        table.add_row(line);
    }
    println!("{table}\n");
}

const NOTES: &str = "\
Sent: the sender's clock before it begins, with the message complete in a buffer of its own; waiting for room is
  included. Both ways then copy it once: into a pooled buffer, or into the slot.
Wake: for the channel when `recv_timeout` returns, for the slot when the receiver holds the lock and finds the message.
  So the channel's contains what makes a descriptor a slice (attach), and the slot's does not contain the copy.
Usable: when the receiver has the bytes in hand and has read each of them once, by the same sum. For the channel that is
  what brings them over from the other core; for the slot the copy has done so. The slot's contains giving the slot and
  the lock free, before which nobody has the copy: after a sleep that is a system call, in glibc.
Futex only is the like-for-like row, because a condition variable sleeps at once as well. Default waiting is what users
  get: it looks for 20 µs first.
The channel has 2 slots, the fewest, so that back to back few messages are under way: two beside the one that is read.
  Without a number: through 256 slots a message waits for 255 others; only MB/s says something about the way.
Every message was received in order and compared byte by byte, after the stamps.
";
