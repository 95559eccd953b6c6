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
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{env, fs};

/// Batches of each subject in an interleaved comparison.
const ROUNDS: usize = 200;

/// Two subjects, and what the ratio of their times should be.
const ROWS: [(&str, &str, Goal); 11] = [
    ("warm/64B", "floor/array_queue", Goal::AtMost(1.25)),
    ("warm/4KiB", "floor/array_queue", Goal::AtMost(1.25)),
    ("warm/64KiB", "floor/array_queue", Goal::AtMost(1.25)),
    ("warm/1MiB", "floor/array_queue", Goal::AtMost(1.25)),
    ("warm/16MiB", "floor/array_queue", Goal::AtMost(1.25)),
    ("malloc/1MiB", "warm/1MiB", Goal::AtLeast(2.0)),
    ("malloc_threads/1MiB", "warm/1MiB", Goal::AtLeast(2.0)),
    ("talc/1MiB", "warm/1MiB", Goal::AtLeast(3.0)),
    ("cold/1MiB", "warm/1MiB", Goal::AtLeast(2340.0)),
    ("shared/1MiB", "floor/array_queue", Goal::AtMost(4.0)),
    ("cross_thread/1MiB", "floor/cross_thread", Goal::AtMost(1.5)),
];

/// Nanoseconds per operation of the two subjects of a row.
type Pair = [f64; 2];

/// What a row was, both ways.
#[derive(Clone, Copy)]
struct Compared {
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
    /// By row.
    compared: [Option<Compared>; ROWS.len()],
}

impl Comparisons {
    pub(crate) fn begin() -> Self {
        let here = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("criterion");
        let home = env::var_os("CRITERION_HOME").map_or(here, PathBuf::from);
        // Criterion has no function that tells where it keeps its results.
        env::set_var("CRITERION_HOME", &home);
        let (start, machine) = (SystemTime::now(), Machine::now());
        Self { start, machine, results: home.join(GROUP), compared: [None; ROWS.len()] }
    }

    /// Makes the comparisons that a subject was missing for, now that Criterion has measured it.
    /// Does nothing if Criterion only tests or lists, or filters it out.
    pub(crate) fn add(&mut self, id: &str) {
        for (index, (over, under, _)) in ROWS.into_iter().enumerate().filter(|(_, row)| row.0 == id || row.1 == id) {
            if let Some((first, second)) = self.estimate(over).zip(self.estimate(under)) {
                let interleaved = interleave(over, under);
                self.compared[index] = Some(Compared { interleaved, criterion: [first, second] });
            }
        }
    }

    /// Prints nothing if there is nothing to compare.
    pub(crate) fn print(&self) {
        if self.compared.iter().all(Option::is_none) {
            return;
        }
        println!("\nRatios of this run, by: cargo bench --bench shm_pool\n");
        self.machine.print("std::time::Instant, as Criterion's", "nothing pinned");
        let mut rows = table(&["ratio", "goal", "interleaved", "", "ns", "Criterion", "", "ns"]);
        for ((over, under, goal), compared) in ROWS.into_iter().zip(&self.compared) {
            let mut row = vec![format!("{over} / {under}"), goal.to_string()];
            match compared {
                Some(Compared { interleaved, criterion }) => {
                    let disturbed = ["too disturbed to tell", "", ""].map(str::to_owned);
                    row.extend(interleaved.map_or(disturbed, |pair| cells(pair, goal)));
                    row.extend(cells(*criterion, goal));
                }
                None => row.push("not measured in this run".to_owned()),
            }
            rows.add_row(row);
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

/// The ratio, how it stands to the goal, and what it is made of.
fn cells([over, under]: Pair, goal: Goal) -> [String; 3] {
    let ratio = over / under;
    let precision = if ratio < 100.0 { 2 } else { 0 };
    [format!("{ratio:.precision$}"), goal.verdict(ratio).to_owned(), format!("{over:.2} / {under:.2}")]
}

/// Measures two subjects in turn. `None` if less than half of the batches of one were undisturbed.
fn interleave(over: &str, under: &str) -> Option<Pair> {
    let batch = |id| -> Result<turns::Batch, String> {
        let subject = subjects::ALL.iter().find(|subject| subject.id == id).expect("rows name subjects");
        let mut batch = (subject.build)();
        Ok(Box::new(move |count| {
            let timed = batch(count);
            Ok((!timed.is_disturbed).then_some(timed.elapsed))
        }))
    };
    match &turns::interleave([batch(over), batch(under)], ROUNDS, None)[..] {
        [Ok(over), Ok(under)] => Some([over.median, under.median]),
        _ => None,
    }
}
