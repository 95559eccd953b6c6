//! What is printed: a table for each kind of setting, and the ratios that the goals are for.

#![forbid(unsafe_code)]

use crate::rows::{Kind, Row, Setting, DEFAULT_WAITING, FUTEX_ONLY, KINDS, LARGEST, REFERENCE, SLOT};
use crate::ways::Round;
use hdrhistogram::Histogram;
use shm_pool_support::latency::{Latencies, Spread};
use shm_pool_support::table::{self, table};
use shm_pool_support::units::Nanoseconds;
use shm_pool_support::Fallible;

/// What one row was in one setting, over all rounds.
pub(crate) struct Cell {
    pub(crate) setting: Setting,
    pub(crate) row: &'static Row,
    pub(crate) wake: Latencies,
    pub(crate) usable: Latencies,
}

/// When the receiver looks at the clock.
#[derive(Clone, Copy)]
enum Stamp {
    Wake,
    Usable,
}

impl Stamp {
    fn name(self) -> &'static str {
        match self {
            Self::Wake => "wake",
            Self::Usable => "usable",
        }
    }
}

/// A ratio of one-way means, and what it should be.
struct Goal {
    kind: Kind,
    len: usize,
    stamp: Stamp,
    bound: table::Goal,
}

const AT_MOST_ONE: table::Goal = table::Goal::AtMost(1.0);
const BELOW_ONE: table::Goal = table::Goal::Below(1.0);

const GOALS: &[Goal] = &[
    Goal { kind: Kind::Reference, len: REFERENCE, stamp: Stamp::Wake, bound: AT_MOST_ONE },
    Goal { kind: Kind::Reference, len: REFERENCE, stamp: Stamp::Usable, bound: AT_MOST_ONE },
    Goal { kind: Kind::Paced, len: LARGEST, stamp: Stamp::Usable, bound: BELOW_ONE },
    Goal { kind: Kind::BackToBack, len: LARGEST, stamp: Stamp::Usable, bound: BELOW_ONE },
];

impl Cell {
    pub(crate) fn new(setting: Setting, row: &'static Row) -> Self {
        Self { setting, row, wake: Latencies::default(), usable: Latencies::default() }
    }

    pub(crate) fn add(&mut self, round: &Round) -> Fallible {
        self.wake.add(&round.wake, round.took)?;
        self.usable.add(&round.usable, round.took)
    }

    fn at(&self, stamp: Stamp) -> &Latencies {
        match stamp {
            Stamp::Wake => &self.wake,
            Stamp::Usable => &self.usable,
        }
    }
}

/// The curves of the reference: both stamps of each row.
pub(crate) fn curves(cells: &[Cell]) -> Vec<(String, &Histogram<u64>)> {
    let reference = cells.iter().filter(|cell| cell.setting.kind == Kind::Reference);
    let both = reference.flat_map(|cell| [(cell, Stamp::Wake), (cell, Stamp::Usable)]);
    both.map(|(cell, stamp)| (format!("{}, {}", cell.row.name, stamp.name()), &cell.at(stamp).all)).collect()
}

/// All tables, and what to know about them.
pub(crate) fn print(cells: &[Cell]) {
    for kind in KINDS {
        let of_kind: Vec<_> = cells.iter().filter(|cell| cell.setting.kind == kind).collect();
        if let Some(first) = of_kind.first() {
            print_kind(kind, first.setting.count * first.wake.means().len() as u64, &of_kind);
        }
    }
    print_goals(cells);
    print!("{NOTES}");
}

fn title(kind: Kind) -> String {
    match kind.pace() {
        None => "back to back".to_owned(),
        Some(pace) => format!("every {} ms", pace.as_millis()),
    }
}

fn print_kind(kind: Kind, messages: u64, cells: &[&Cell]) {
    println!("{}, {messages} messages a row:\n", title(kind));
    let mut heads = vec!["one way", "B", "wake: mean", "p50", "p99", "max", "usable: mean", "p50", "p99", "max"];
    if kind == Kind::BackToBack {
        heads.push("MB/s");
    }
    let mut table = table(&heads);
    for cell in cells {
        let mut line = vec![cell.row.name.to_owned(), cell.setting.len.to_string()];
        for stamp in [Stamp::Wake, Stamp::Usable] {
            let all = &cell.at(stamp).all;
            let figures =
                [all.mean(), all.value_at_quantile(0.5) as f64, all.value_at_quantile(0.99) as f64, all.max() as f64];
            line.extend(figures.map(|ns| match cell.row.has_latencies() {
                true => Nanoseconds(ns).to_string(),
                false => String::new(),
            }));
        }
        if kind == Kind::BackToBack {
            line.push(format!("{:.0}", cell.usable.rate().median * cell.setting.len as f64 / 1e6));
        }
        table.add_row(line);
    }
    println!("{table}\n");
}

fn print_goals(cells: &[Cell]) {
    println!("one-way means, channel / slot, median and range of the rounds:\n");
    let mut table = table(&["ratio", "goal", "this run", "", "channel's mean", "slot's mean"]);
    for goal in GOALS {
        for row in [&FUTEX_ONLY, &DEFAULT_WAITING] {
            if let Some((ours, theirs)) = goal.find(cells, row).zip(goal.find(cells, &SLOT)) {
                table.add_row(goal.line(row, ours, theirs));
            }
        }
    }
    println!("{table}\n");
}

impl Goal {
    fn find<'a>(&self, cells: &'a [Cell], row: &Row) -> Option<&'a Latencies> {
        let is_it =
            |cell: &&Cell| (cell.setting.kind, cell.setting.len, cell.row.name) == (self.kind, self.len, row.name);
        Some(cells.iter().find(is_it)?.at(self.stamp))
    }

    fn line(&self, row: &Row, ours: &Latencies, theirs: &Latencies) -> [String; 6] {
        // Of rounds that were run one after the other, so that what the machine did meanwhile is in
        // both.
        let ratios: Vec<_> = ours.means().iter().zip(theirs.means()).map(|(ours, theirs)| ours / theirs).collect();
        let ratio = Spread::of(&ratios);
        [
            format!("{}, {} B {}, {}", row.name, self.len, title(self.kind), self.stamp.name()),
            self.bound.to_string(),
            ratio.range(3),
            self.bound.verdict(ratio.median).to_owned(),
            ours.mean().to_string(),
            theirs.mean().to_string(),
        ]
    }
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
