//! The ratios that the crate promises, with their goals.

use crate::contenders::names::*;
use crate::measure::Row;
use crate::report::{Nanoseconds, Sized};
use std::fmt;

const MIB: usize = 1 << 20;

#[derive(Clone, Copy)]
pub(crate) enum Goal {
    AtMost(f64),
    AtLeast(f64),
    /// Only told.
    None,
}

impl Goal {
    pub(crate) fn verdict(self, ratio: f64) -> &'static str {
        match self {
            Self::AtMost(bound) if ratio <= bound => "pass",
            Self::AtLeast(bound) if ratio >= bound => "pass",
            Self::None => "",
            _ => "SHORT",
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(bound) => f.pad(&format!("at most {bound}")),
            Self::AtLeast(bound) => f.pad(&format!("at least {bound}")),
            Self::None => f.pad("none"),
        }
    }
}

/// Prints them. What was not measured, or failed, is said to be missing.
pub(crate) fn print(sizes: &[Sized], mixed: &[Row]) {
    println!("{:<60} {:<12} this run", "ratio of medians", "goal");
    for (size, name) in [(4 << 10, "4 KiB"), (MIB, "1 MiB")] {
        let rows = rows_of(sizes, size);
        let what = format!("bare backend: talc / ours, {name}");
        line(&what, Goal::AtLeast(2.0), median(rows, BARE_TALC), median(rows, BARE_OURS));
    }
    let rows = rows_of(sizes, MIB);
    let pool = median(rows, POOL);
    line("iceoryx2 loan + drop / shm-pool alloc + drop, 1 MiB", Goal::AtLeast(7.0), median(rows, ICEORYX), pool);
    let (name, time) = best(rows);
    line(&format!("{name} / shm-pool alloc + drop, 1 MiB"), Goal::AtLeast(30.0), time, pool);
    let (name, time) = best(mixed);
    let ours = |name| median(mixed, name);
    line(&format!("mixture: our backend / {name}"), Goal::AtMost(1.0), ours(ZENOH_OURS), time);
    line("  the same, if ours collects only when full", Goal::None, ours(ZENOH_OURS_FULL), time);
    println!();
}

fn line(what: &str, goal: Goal, over: Option<f64>, under: Option<f64>) {
    let cell = match (over, under) {
        (Some(over), Some(under)) => {
            let ratio = over / under;
            format!("{ratio:<7.2} {:<6} ({} / {})", goal.verdict(ratio), Nanoseconds(over), Nanoseconds(under))
        }
        _ => "missing: one side was not measured".to_owned(),
    };
    println!("{what:<60} {goal:<12} {cell}");
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
