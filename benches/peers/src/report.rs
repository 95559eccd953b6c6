//! What is printed and drawn: the machine, what is compared and what is not, tables, ratios with
//! their goals, the chart.

use crate::contenders::names::*;
use crate::contenders::Effort;
use crate::footprint::Footprint;
use crate::workload::{FRAME, LIVE};
use crate::zenoh_peers::SEGMENT;
use shm_pool_support::chart::{self, Bar};
use shm_pool_support::latency::Spread;
use shm_pool_support::machine::Machine;
use shm_pool_support::table::{table, Goal};
use shm_pool_support::units::{mib, Nanoseconds};
use shm_pool_support::Fallible;
use std::fs;
use std::path::Path;

const LOCK: &str = include_str!("../Cargo.lock");

/// A contender's nanoseconds per message, or why there are none.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) spread: Result<Spread, String>,
}

/// The rows of one message length.
pub(crate) struct Sized {
    pub(crate) len: usize,
    pub(crate) name: &'static str,
    pub(crate) rows: Vec<Row>,
}

/// What the figures are taken on.
pub(crate) fn print_machine(machine: &Machine) {
    machine.print("std::time::Instant", "nothing pinned");
    println!("limits   locked memory {}", locked_memory());
    println!("peers    {}", versions());
}

/// The peers' versions, as this program was built with them.
fn versions() -> String {
    ["zenoh-shm", "iceoryx2", "shm-pool"].map(|name| format!("{name} {}", version(name))).join(", ")
}

fn version(name: &str) -> &'static str {
    let mut lines = LOCK.lines().skip_while(|line| line.strip_prefix("name = ").map(unquoted) != Some(name));
    lines.find_map(|line| line.strip_prefix("version = ")).map_or("?", unquoted)
}

fn unquoted(text: &str) -> &str {
    text.trim_matches('"')
}

/// zenoh locks its segments, so this says whether it can.
fn locked_memory() -> String {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let soft = line.and_then(|line| line.split_whitespace().next()).unwrap_or("unknown");
    format!("{soft} bytes, unless the process is privileged")
}

const NOTES: &str = "\
Compared is what the publishing process pays to get memory for a message and to give it back. Not compared: sending,
receiving, the first message of a length. Nothing is logged, and everybody is warm before the clock starts.
  zenoh      Its provider gets memory back only when it collects garbage: by its policy when an allocation fails, or when
             our backend asks for it, and here also at the end of each batch, within the time. Its thread that
             confirms live messages runs on the other core, uncounted. Bare: alloc and free of the backend alone.
  iceoryx2   Loans a sample and drops it unsent; its service has room for one subscriber, and there is none.
  malloc     Gives private memory: a floor and not a rival. The process has threads, so malloc locks.";

pub(crate) fn print_notes(effort: Effort) {
    let (segment, frame) = (SEGMENT >> 20, FRAME as f64 / 1e6);
    println!("rounds   {}, of the mixture {}; all in turn in each\n", effort.rounds, effort.mixed_rounds);
    println!("{NOTES}");
    println!("Everybody has {segment} MiB: zenoh's backends as one segment, ours as a cap; iceoryx2 what it needs.");
    println!(
        "Mixture: of eight messages about one is a camera frame ({frame:.0} MB), one a point cloud (0.75 to 1.25 MB)"
    );
    println!(
        "and six are telemetry (100 to 4000 B), in one pseudo-random order for all; {LIVE} live at a time, every byte"
    );
    println!("written, and its ends compared before it is dropped.\n");
}

pub(crate) fn print_rows(title: &str, rows: &[Row]) {
    let mut table = table(&[title, "median", "min", "max"]);
    for Row { name, spread } in rows {
        match spread {
            Ok(Spread { median, least, most }) => {
                let figures = [median, least, most].map(|&ns| Nanoseconds(ns).to_string());
                table.add_row([(*name).to_owned()].into_iter().chain(figures));
            }
            Err(_) => drop(table.add_row([name, "cannot"])),
        }
    }
    println!("{table}\n");
    print_reasons(rows.iter().filter_map(|row| Some((row.name, row.spread.as_ref().err()?))));
}

pub(crate) fn print_footprints(footprints: &[Footprint]) {
    let mut table = table(&["mixture, most memory in MiB", "mapped", "resident", "private", "by its own account"]);
    for Footprint { name, memory, account } in footprints {
        match memory {
            Ok(memory) => {
                let figures =
                    [memory.mapped, memory.resident, memory.private].map(|bytes| format!("{:.1}", mib(bytes)));
                table.add_row([(*name).to_owned()].into_iter().chain(figures).chain([account.clone()]));
            }
            Err(_) => drop(table.add_row([name, "cannot"])),
        }
    }
    println!("{table}\n");
    print_reasons(footprints.iter().filter_map(|one| Some((one.name, one.memory.as_ref().err()?))));
}

fn print_reasons<'a>(reasons: impl Iterator<Item = (&'static str, &'a String)>) {
    reasons.for_each(|(name, reason)| println!("{name} cannot: {reason}\n"));
}

/// The ratios that the crate promises. What was not measured, or failed, is said to be missing.
pub(crate) fn print_ratios(sizes: &[Sized], mixed: &[Row]) {
    let mut table = table(&["ratio of medians", "goal", "this run", "", "made of"]);
    let mut line = |what: &str, goal: Goal, over: Option<f64>, under: Option<f64>| {
        let cells = match over.zip(under) {
            Some((over, under)) => {
                let ratio = over / under;
                let made_of = format!("{} / {}", Nanoseconds(over), Nanoseconds(under));
                [format!("{ratio:.2}"), goal.verdict(ratio).to_owned(), made_of]
            }
            None => ["missing: one side was not measured", "", ""].map(str::to_owned),
        };
        table.add_row([what.to_owned(), goal.to_string()].into_iter().chain(cells));
    };
    for (size, name) in [(4 << 10, "4 KiB"), (1 << 20, "1 MiB")] {
        let rows = rows_of(sizes, size);
        let what = format!("bare backend: talc / ours, {name}");
        line(&what, Goal::AtLeast(2.0), median(rows, BARE_TALC), median(rows, BARE_OURS));
    }
    let rows = rows_of(sizes, 1 << 20);
    let pool = median(rows, POOL);
    line("iceoryx2 loan + drop / shm-pool alloc + drop, 1 MiB", Goal::AtLeast(7.0), median(rows, ICEORYX), pool);
    let (name, time) = best(rows);
    line(&format!("{name} / shm-pool alloc + drop, 1 MiB"), Goal::AtLeast(30.0), time, pool);
    let (name, time) = best(mixed);
    let ours = |name| median(mixed, name);
    line(&format!("mixture: our backend / {name}"), Goal::AtMost(1.0), ours(ZENOH_OURS), time);
    line("  the same, if ours collects only when full", Goal::None, ours(ZENOH_OURS_FULL), time);
    println!("{table}\n");
}

/// zenoh's provider with the backend of its own that is fastest here.
fn best(rows: &[Row]) -> (&'static str, Option<f64>) {
    let measured = ZENOH_STOCK.iter().filter_map(|&name| Some((name, median(rows, name)?)));
    match measured.min_by(|one, other| one.1.total_cmp(&other.1)) {
        Some((name, median)) => (name, Some(median)),
        None => ("zenoh provider, its best backend", None),
    }
}

fn rows_of(sizes: &[Sized], len: usize) -> &[Row] {
    sizes.iter().find(|sized| sized.len == len).map_or(&[], |sized| &sized.rows)
}

fn median(rows: &[Row], name: &str) -> Option<f64> {
    let row = rows.iter().find(|row| row.name == name)?;
    row.spread.as_ref().ok().map(|spread| spread.median)
}

/// Bars of a group, from left to right. One colour per backend: strong behind zenoh's provider,
/// pale when bare.
const BARS: &[Bar] = &[
    (ZENOH_OURS, [0x1f, 0x5f, 0xb4]),
    (ZENOH_TALC, [0xd0, 0x6a, 0x1c]),
    (ZENOH_BUDDY, [0x2e, 0x8b, 0x57]),
    (ZENOH_HEAP, [0x7d, 0x55, 0xa8]),
    (BARE_OURS, [0x9c, 0xc3, 0xee]),
    (BARE_TALC, [0xf6, 0xc3, 0x93]),
    (BARE_BUDDY, [0xa5, 0xd6, 0xb7]),
    (BARE_HEAP, [0xcf, 0xbb, 0xe6]),
    (ICEORYX, [0xc0, 0x2d, 0x43]),
    (POOL, [0x0b, 0x2c, 0x5e]),
    (MALLOC, [0x8a, 0x8a, 0x8a]),
];

/// Draws what allocating and dropping a message costs.
pub(crate) fn draw(file: &Path, sizes: &[Sized], machine: &Machine) -> Fallible {
    let times = |sized: &Sized| BARS.iter().map(|(name, _)| median(&sized.rows, name)).collect();
    let groups: Vec<_> = sizes.iter().map(|sized| (sized.name, times(sized))).collect();
    let caption = format!("{}; {}", machine.caption(), versions());
    chart::bars(file, "Allocating and dropping one message, by its length", &caption, BARS, &groups)
}
