//! The output: the machine, the contenders, tables, ratios with their goals.

use crate::contenders::names::*;
use crate::contenders::{time_in_flight, time_one_at_a_time, Effort, Row, AMONG};
use crate::footprint::Memory;
use crate::sent::{End, Written};
use crate::source::Made;
use crate::workload::{FRAME, LIVE};
use crate::zenoh_peers::SEGMENT;
use shm_pool_support::compare::{comparison, Compared};
use shm_pool_support::machine::Machine;
use shm_pool_support::table::{show, table, Goal, Table};
use shm_pool_support::units::{grouped, mib, Nanoseconds};
use std::fs;

const LOCK: &str = include_str!("../Cargo.lock");

/// The rows of one message length.
pub(crate) type Sized = (&'static str, Vec<Row>);

/// Prints the machine that the figures are taken on.
pub(crate) fn print_machine(machine: &Machine) {
    machine.print("std::time::Instant", "nothing pinned");
    println!("limits   locked memory {}", locked_memory());
    println!("peers    {}", versions());
}

/// Returns the versions of the peers that this program was built with.
fn versions() -> String {
    let names = ["zenoh-shm", "iceoryx2", "shm-pool"];
    let versions = names.map(|name| format!("{name} {}", version(name)));
    versions.join(", ")
}

/// Returns the version of a package in the lock file.
fn version(name: &str) -> &'static str {
    let start = format!("name = \"{name}\"");
    let mut is_found = false;
    for line in LOCK.lines() {
        if line == start {
            is_found = true;
        } else if is_found {
            if let Some(version) = line.strip_prefix("version = ") {
                return version.trim_matches('"');
            }
        }
    }
    "?"
}

/// Returns the limit on locked memory, because zenoh locks its segments.
fn locked_memory() -> String {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let mut soft = "unknown";
    for line in limits.lines() {
        if let Some(values) = line.strip_prefix("Max locked memory") {
            soft = values.split_whitespace().next().unwrap_or(soft);
        }
    }
    format!("{soft} bytes, unless the process is privileged")
}

const NOTES: &str = "\
Compared is the publishing process's cost of allocating memory for a message and freeing it. Not
compared: sending, receiving, the first message of a length. Nothing is logged, and all are warm
before the clock starts.
  zenoh      Its provider gets memory back only when it collects garbage: by its policy when an
             allocation fails, or when our backend requests it, and here also at the end of each
             batch, within the time. Its thread that confirms live messages runs on the other
             core, uncounted. Bare: alloc and free of the backend alone.
  iceoryx2   Loans a sample and drops it unsent; its service allows one subscriber, and has none.
  malloc     Allocates private memory: a floor and not a rival. The process has threads, so
             malloc locks.";

pub(crate) fn print_notes(effort: Effort) {
    let segment = SEGMENT >> 20;
    let frame = FRAME as f64 / 1e6;
    println!(
        "rounds   {}, of the mixture {}; all in turn in each\n",
        effort.rounds, effort.mixed_rounds
    );
    println!("{NOTES}");
    println!(
        "Each has {segment} MiB: zenoh's backends as one segment, ours as a cap; \
         iceoryx2 what it needs."
    );
    println!(
        "Mixture: of eight messages about one is a camera frame ({frame:.0} MB), one a point\n\
         cloud (0.75 to 1.25 MB) and six are telemetry (100 to 4000 B), in one pseudo-random\n\
         order for all; {LIVE} live at a time, every byte written, and its ends compared\n\
         before it is dropped.\n"
    );
}

pub(crate) fn print_rows(title: &str, rows: &[Row]) {
    print(&[title, "median", "min", "max"], rows, |spread| {
        vec![
            Nanoseconds(spread.median).to_string(),
            Nanoseconds(spread.least).to_string(),
            Nanoseconds(spread.most).to_string(),
        ]
    });
}

pub(crate) fn print_footprints(footprints: &[(&str, Made<(Memory, String)>)]) {
    let heads = [
        "mixture, most memory in MiB",
        "mapped",
        "resident",
        "private",
        "by its own account",
    ];
    print(&heads, footprints, |(memory, account)| {
        let mut cells = Vec::new();
        for bytes in memory {
            cells.push(format!("{:.1}", mib(*bytes)));
        }
        cells.push(account.clone());
        cells
    });
}

/// Prints a line for each contender, and the reasons of those that cannot take part.
fn print<T>(heads: &[&str], rows: &[(&str, Made<T>)], cells: impl Fn(&T) -> Vec<String>) {
    let mut table = table(heads);
    for (name, figures) in rows {
        let mut row = vec![(*name).to_owned()];
        match figures {
            Ok(figures) => row.extend(cells(figures)),
            Err(_) => row.push("cannot".to_owned()),
        }
        table.add_row(row);
    }
    show(heads[0], &table);
    for (name, figures) in rows {
        if let Err(reason) = figures {
            println!("{name} cannot: {reason}\n");
        }
    }
}

/// Prints the ratios that the crate promises. A missing or failed measurement is reported as
/// missing.
pub(crate) fn print_ratios(sizes: &[Sized], mixed: &[Row]) {
    let rows = |size| match sizes.iter().find(|(name, _)| *name == size) {
        Some((_, rows)) => &rows[..],
        None => &[],
    };
    let small = rows("4 KiB");
    let large = rows("1 MiB");
    let pool = median(large, POOL);
    let (best_of_large, large_time) = best(large);
    let (best_of_mixed, mixed_time) = best(mixed);
    let mut table = table(&["ratio of medians", "goal", "this run", "", "made of"]);
    for (what, goal, over, under) in [
        (
            "bare backend: talc / ours, 4 KiB",
            Goal::AtLeast(2.0),
            median(small, BARE_TALC),
            median(small, BARE_OURS),
        ),
        (
            "bare backend: talc / ours, 1 MiB",
            Goal::AtLeast(2.0),
            median(large, BARE_TALC),
            median(large, BARE_OURS),
        ),
        (
            "iceoryx2 loan + drop / shm-pool alloc + drop, 1 MiB",
            Goal::AtLeast(7.0),
            median(large, ICEORYX),
            pool,
        ),
        (
            &format!("{best_of_large} / shm-pool alloc + drop, 1 MiB"),
            Goal::AtLeast(30.0),
            large_time,
            pool,
        ),
        (
            &format!("mixture: our backend / {best_of_mixed}"),
            Goal::AtMost(1.0),
            median(mixed, ZENOH_OURS),
            mixed_time,
        ),
        (
            "  the same, if ours collects only when full",
            Goal::None,
            median(mixed, ZENOH_OURS_FULL),
            mixed_time,
        ),
    ] {
        table.add_row(ratio(what.to_owned(), goal, over, under));
    }
    show("peers", &table);
}

/// A row: the name of a ratio, its goal, and the ratio of two medians.
fn ratio(what: String, goal: Goal, over: Option<f64>, under: Option<f64>) -> [String; 5] {
    let (Some(over), Some(under)) = (over, under) else {
        return [
            what,
            goal.to_string(),
            "missing: one side was not measured".to_owned(),
            String::new(),
            String::new(),
        ];
    };
    let made_of = format!("{} / {}", Nanoseconds(over), Nanoseconds(under));
    [
        what,
        goal.to_string(),
        format!("{:.2}", over / under),
        goal.verdict(over / under).to_owned(),
        made_of,
    ]
}

/// Prints the gain of whole buffers for each length.
pub(crate) fn print_buffers(sizes: &[Sized]) {
    let mut table = table(&["ratio of medians", "goal", "this run", "", "made of"]);
    for (size, rows) in sizes {
        let (best, time) = best(rows);
        let title = format!("alloc + drop, {size}: {best} / our buffer pool");
        let buffers = median(rows, BUFFERS);
        table.add_row(ratio(title, Goal::AtLeast(6.0), time, buffers));
    }
    show("peers buffers", &table);
}

/// Lengths of the messages that are alone.
const ALONE: [(usize, &str); 5] = [
    (64, "64 B"),
    (1 << 10, "1 KiB"),
    (4 << 10, "4 KiB"),
    (64 << 10, "64 KiB"),
    (1 << 20, "1 MiB"),
];

const NOTE_ONE_AT_A_TIME: &str = "\
One at a time, all bytes or one byte written. Messages are written: the rows with one byte have no
goal. They show what the memory itself costs a program that writes it: talc returns another place of
its 64 MiB for each message, so the bytes are in no cache when they are written, and ours have been
there before.
";

/// Measures one message at a time, and prints how ours compare with zenoh's default.
pub(crate) fn print_one_at_a_time(effort: Effort) {
    let writes = [(Written::All, "all bytes"), (Written::OneByte, "one byte")];
    let ends = [(End::Dropped, "dropped"), (End::Sent, "sent")];
    let mut rows = Vec::new();
    for (written, how_much) in writes {
        let goal = match written {
            Written::All => Goal::AtMost(1.05),
            Written::OneByte => Goal::None,
        };
        for (end, how) in ends {
            for (len, size) in ALONE {
                let times = time_one_at_a_time(len, written, end, effort);
                let name = format!("{size}, {how_much} written, {how}");
                rows.push(compared(name, goal, times));
            }
        }
    }
    println!("{NOTE_ONE_AT_A_TIME}");
    show("peers one at a time", &compare_with_talc(rows));
}

/// Returns a row of the times of [`AMONG`].
fn compared(name: String, goal: Goal, times: Vec<Made<Vec<f64>>>) -> Compared {
    // One that cannot take part has no rounds.
    let mut rounds = Vec::new();
    for times in times {
        rounds.push(times.unwrap_or_default());
    }
    let theirs = rounds.remove(0);
    Compared {
        name,
        goal,
        show: |time| Nanoseconds(time).to_string(),
        ours: rounds,
        theirs,
    }
}

fn compare_with_talc(rows: Vec<Compared>) -> Table {
    let [talc, ours @ ..] = AMONG;
    comparison(&ours, talc, rows)
}

/// Lengths and numbers of the messages in flight.
const FLIGHTS: [(usize, usize); 4] = [
    (1 << 10, 10_000),
    (1 << 10, 30_000),
    (300, 10_000),
    (5000, 10_000),
];

/// Measures many messages in flight, and prints how ours compare with zenoh's default.
pub(crate) fn print_in_flight(effort: Effort) {
    let mut rows = Vec::new();
    for (len, held) in FLIGHTS {
        // CI's build has talc's own checks, which visit every gap at each free.
        let held = if effort.is_quick { held / 10 } else { held };
        for (how, times) in time_in_flight(len, held, effort) {
            let name = format!(
                "{} of {} B in flight, {how}",
                grouped(held as u64),
                grouped(len as u64)
            );
            rows.push(compared(name, Goal::AtMost(1.05), times));
        }
    }
    show("peers in flight", &compare_with_talc(rows));
}

/// Returns zenoh's provider with the fastest of its own backends here.
fn best(rows: &[Row]) -> (&'static str, Option<f64>) {
    let mut best = ("zenoh provider, its best backend", None);
    for name in ZENOH_STOCK {
        let Some(median) = median(rows, name) else {
            continue;
        };
        if best.1.is_none_or(|least| median < least) {
            best = (name, Some(median));
        }
    }
    best
}

fn median(rows: &[Row], name: &str) -> Option<f64> {
    let (_, spread) = rows.iter().find(|row| row.0 == name)?;
    match spread {
        Ok(spread) => Some(spread.median),
        Err(_) => None,
    }
}
