//! Compares subjects and prints how the ratios stand to their goals, computed in two ways from the
//! same run.
//!
//! * *interleaved*: as soon as Criterion has measured both subjects of a ratio, they run again in short batches, turn
//!   about, so that whatever else the machine does meets both alike; the ratio of the two medians.
//! * *Criterion*: the ratio of the two estimates that Criterion has printed, taken seconds or minutes apart.

#![forbid(unsafe_code)]

use crate::hand_off::PIECE;
use crate::{subjects, GROUP};
use serde_json::Value;
use shm_pool_support::machine::Machine;
use shm_pool_support::table::{table, Goal};
use shm_pool_support::turns::{self, BATCH};
use std::path::PathBuf;
use std::process::Command;
use std::time::SystemTime;
use std::{env, fs};

/// Batches of each subject in an interleaved comparison.
const ROUNDS: usize = 200;

static ROWS: &[Row] = &[
    row("warm/64B", "floor/array_queue", Goal::AtMost(1.25)),
    row("warm/4KiB", "floor/array_queue", Goal::AtMost(1.25)),
    row("warm/64KiB", "floor/array_queue", Goal::AtMost(1.25)),
    row("warm/1MiB", "floor/array_queue", Goal::AtMost(1.25)),
    row("warm/16MiB", "floor/array_queue", Goal::AtMost(1.25)),
    row("malloc/1MiB", "warm/1MiB", Goal::AtLeast(2.0)),
    row("malloc_threads/1MiB", "warm/1MiB", Goal::AtLeast(2.0)),
    row("talc/1MiB", "warm/1MiB", Goal::AtLeast(3.0)),
    row("cold/1MiB", "warm/1MiB", Goal::AtLeast(2340.0)),
    row("shared/1MiB", "floor/array_queue", Goal::AtMost(4.0)),
    row("cross_thread/1MiB", "floor/cross_thread", Goal::AtMost(1.5)),
];

struct Row {
    over: &'static str,
    under: &'static str,
    goal: Goal,
}

const fn row(over: &'static str, under: &'static str, goal: Goal) -> Row {
    Row { over, under, goal }
}

/// Nanoseconds per operation of the two subjects of a row.
#[derive(Clone, Copy)]
struct Pair {
    over: f64,
    under: f64,
}

impl Pair {
    /// The ratio, how it stands to the goal, and what it is made of.
    fn cells(self, goal: Goal) -> [String; 3] {
        let ratio = self.over / self.under;
        let precision = if ratio < 100.0 { 2 } else { 0 };
        let figures = format!("{:.2} / {:.2}", self.over, self.under);
        [format!("{ratio:.precision$}"), goal.verdict(ratio).to_owned(), figures]
    }
}

/// A row that both ways have measured.
struct Comparison {
    row: &'static Row,
    /// `None` if the machine was too busy.
    interleaved: Option<Pair>,
    criterion: Pair,
}

/// What this run of the program has compared.
pub(crate) struct Comparisons {
    start: SystemTime,
    machine: Machine,
    /// Criterion's results of the group.
    results: PathBuf,
    done: Vec<Comparison>,
}

impl Comparisons {
    pub(crate) fn begin() -> Self {
        let (start, machine) = (SystemTime::now(), Machine::now());
        Self { start, machine, results: criterion_home().join(GROUP), done: Vec::new() }
    }

    /// Makes the comparisons that a subject was missing for, now that Criterion has measured it.
    /// Does nothing if Criterion only tests or lists, or filters it out.
    pub(crate) fn add(&mut self, id: &str) {
        for row in ROWS.iter().filter(|row| row.over == id || row.under == id) {
            if let (Some(over), Some(under)) = (self.estimate(row.over), self.estimate(row.under)) {
                let criterion = Pair { over, under };
                self.done.push(Comparison { row, interleaved: interleave(row), criterion });
            }
        }
    }

    /// Prints nothing if there is nothing to compare.
    pub(crate) fn print(&self) {
        if self.done.is_empty() {
            return;
        }
        println!("\nRatios of this run, by: cargo bench --bench shm_pool\n");
        self.machine.print("std::time::Instant, as Criterion's", "nothing pinned");
        let mut rows = table(&["ratio", "goal", "interleaved", "", "ns", "Criterion", "", "ns"]);
        for row in ROWS {
            let mut cells = vec![format!("{} / {}", row.over, row.under), row.goal.to_string()];
            match self.done.iter().find(|comparison| std::ptr::eq(comparison.row, row)) {
                Some(Comparison { interleaved, criterion, .. }) => {
                    let disturbed = || ["too disturbed to tell", "", ""].map(str::to_owned);
                    cells.extend(interleaved.map_or_else(disturbed, |pair| pair.cells(row.goal)));
                    cells.extend(criterion.cells(row.goal));
                }
                None => cells.push("not measured in this run".to_owned()),
            }
            rows.add_row(cells);
        }
        println!("\n{rows}\n");
        println!("interleaved: ratio of medians; both sides in turn, {ROUNDS} batches each of about {BATCH:?}.");
        println!("Criterion: ratio of the estimates printed above, which were taken one after the other.");
        println!("cross_thread and its floor: time per message between two threads; all else runs in one.");
        println!("    Pieces of {PIECE} messages in which a thread lacked a core were repeated, on both sides.");
        println!("malloc: before the process has started a thread, so without a lock. malloc_threads: after.");
    }

    /// Criterion's estimate in nanoseconds, if this run has made one. It is what Criterion prints:
    /// the slope over batches of growing length, or the mean where batches had one length.
    fn estimate(&self, id: &str) -> Option<f64> {
        let file = self.results.join(id).join("new/estimates.json");
        let written = fs::metadata(&file).ok()?.modified().ok()?;
        if written < self.start {
            return None;
        }
        let estimates: Value = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
        let point = |statistic: &str| estimates[statistic]["point_estimate"].as_f64();
        point("slope").or_else(|| point("mean"))
    }
}

/// Measures the two subjects of a row in turn. `None` if less than half of the batches of one were
/// undisturbed.
fn interleave(row: &Row) -> Option<Pair> {
    let batch = |id| -> Result<turns::Batch, String> {
        let subject = subjects::ALL.iter().find(|subject| subject.id == id).expect("rows name subjects");
        let mut batch = (subject.build)();
        Ok(Box::new(move |count| {
            let timed = batch(count);
            Ok((!timed.is_disturbed).then_some(timed.elapsed))
        }))
    };
    let medians = turns::interleave([batch(row.over), batch(row.under)], ROUNDS, None);
    let mut medians = medians.into_iter().map(|spread| Some(spread.ok()?.median));
    Some(Pair { over: medians.next()??, under: medians.next()?? })
}

/// Where Criterion keeps its results; it has no public function that tells, so this looks where it
/// looks.
fn criterion_home() -> PathBuf {
    if let Some(home) = env::var_os("CRITERION_HOME") {
        return home.into();
    }
    let target = env::var_os("CARGO_TARGET_DIR").map(PathBuf::from).or_else(target_directory);
    target.unwrap_or_else(|| "target".into()).join("criterion")
}

fn target_directory() -> Option<PathBuf> {
    let output = Command::new(env::var_os("CARGO")?).args(["metadata", "--format-version", "1"]).output().ok()?;
    let metadata: Value = serde_json::from_slice(&output.stdout).ok()?;
    Some(metadata["target_directory"].as_str()?.into())
}
