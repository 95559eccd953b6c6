//! Compares subjects and prints how the ratios stand to their goals, computed in two ways from the same run.
//!
//! * *interleaved*: as soon as Criterion has measured both subjects of a ratio, they run again in short batches, turn
//!   about, so that whatever else the machine does meets both alike; the ratio of the two medians.
//! * *Criterion*: the ratio of the two estimates that Criterion has printed, taken seconds or minutes apart.

#![forbid(unsafe_code)]

use crate::hand_off::PIECE;
use crate::{subjects, GROUP};
use serde_json::Value;
use std::env;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime};

/// Batches of each subject in an interleaved comparison.
const ROUNDS: usize = 200;

/// About how long such a batch takes: many times the clock's resolution, and mostly less than a scheduler's time slice.
const BATCH: Duration = Duration::from_micros(500);

static ROWS: &[Row] = &[
    Row { over: "warm/64B", under: "floor/array_queue", goal: Goal::AtMost(1.25) },
    Row { over: "warm/4KiB", under: "floor/array_queue", goal: Goal::AtMost(1.25) },
    Row { over: "warm/64KiB", under: "floor/array_queue", goal: Goal::AtMost(1.25) },
    Row { over: "warm/1MiB", under: "floor/array_queue", goal: Goal::AtMost(1.25) },
    Row { over: "warm/16MiB", under: "floor/array_queue", goal: Goal::AtMost(1.25) },
    Row { over: "malloc/1MiB", under: "warm/1MiB", goal: Goal::AtLeast(2.0) },
    Row { over: "malloc_threads/1MiB", under: "warm/1MiB", goal: Goal::AtLeast(2.0) },
    Row { over: "talc/1MiB", under: "warm/1MiB", goal: Goal::AtLeast(3.0) },
    Row { over: "cold/1MiB", under: "warm/1MiB", goal: Goal::AtLeast(2340.0) },
    Row { over: "shared/1MiB", under: "floor/array_queue", goal: Goal::AtMost(4.0) },
    Row { over: "cross_thread/1MiB", under: "floor/cross_thread", goal: Goal::AtMost(1.5) },
];

struct Row {
    over: &'static str,
    under: &'static str,
    goal: Goal,
}

#[derive(Clone, Copy)]
enum Goal {
    AtMost(f64),
    AtLeast(f64),
}

impl Goal {
    fn verdict(self, ratio: f64) -> &'static str {
        match self {
            Self::AtMost(bound) if ratio <= bound => "pass",
            Self::AtLeast(bound) if ratio >= bound => "pass",
            _ => "SHORT",
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::AtMost(bound) => format!("at most {bound}"),
            Self::AtLeast(bound) => format!("at least {bound}"),
        };
        f.pad(&text)
    }
}

/// Nanoseconds per operation of the two subjects of a row.
#[derive(Clone, Copy)]
struct Pair {
    over: f64,
    under: f64,
}

impl Pair {
    fn ratio(self) -> f64 {
        self.over / self.under
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
    load: String,
    /// Criterion's results of the group.
    results: PathBuf,
    done: Vec<Comparison>,
}

impl Comparisons {
    pub(crate) fn begin() -> Self {
        let (start, load) = (SystemTime::now(), first_line("/proc/loadavg"));
        Self { start, load, results: criterion_home().join(GROUP), done: Vec::new() }
    }

    /// Makes the comparisons that a subject was missing for, now that Criterion has measured it. Does nothing if
    /// Criterion only tests or lists, or filters it out.
    pub(crate) fn add(&mut self, id: &str) {
        for row in ROWS.iter().filter(|row| row.over == id || row.under == id) {
            if let (Some(over), Some(under)) = (self.estimate(row.over), self.estimate(row.under)) {
                let criterion = Pair { over, under };
                self.done.push(Comparison { row, interleaved: interleave(row, criterion), criterion });
            }
        }
    }

    /// Prints nothing if there is nothing to compare.
    pub(crate) fn print(&self) {
        if self.done.is_empty() {
            return;
        }
        self.print_conditions();
        println!("{:<38} {:<14} {:<38} Criterion", "ratio", "goal", "interleaved");
        for row in ROWS {
            let name = format!("{} / {}", row.over, row.under);
            let cells = match self.done.iter().find(|comparison| std::ptr::eq(comparison.row, row)) {
                Some(Comparison { interleaved, criterion, .. }) => {
                    let interleaved =
                        interleaved.map_or_else(|| "too disturbed to tell".to_owned(), |pair| cell(row.goal, pair));
                    format!("{interleaved:<38} {}", cell(row.goal, *criterion))
                }
                None => "not measured in this run".to_owned(),
            };
            println!("{name:<38} {:<14} {cells}", row.goal);
        }
        println!();
        println!("interleaved: ratio of medians; both sides in turn, {ROUNDS} batches each of about {BATCH:?}.");
        println!("Criterion: ratio of the estimates printed above, which were taken one after the other.");
        println!("cross_thread and its floor: time per message between two threads; all else runs in one.");
        println!("    Pieces of {PIECE} messages in which a thread lacked a core were repeated, on both sides.");
        println!("malloc: before the process has started a thread, so without a lock. malloc_threads: after.");
    }

    fn print_conditions(&self) {
        let cores = thread::available_parallelism().map_or_else(|_| "?".to_owned(), |cores| cores.to_string());
        let clock = first_line("/sys/devices/system/clocksource/clocksource0/current_clocksource");
        let assertions = if cfg!(debug_assertions) { "on" } else { "off" };
        let flags = env::var("RUSTFLAGS").unwrap_or_else(|_| "none".to_owned());
        println!("\nRatios of this run, by: cargo bench --bench shm_pool\n");
        println!("CPU      {}, {cores} cores available, nothing pinned", cpu_model());
        println!("kernel   {}, load average at the start {}", first_line("/proc/sys/kernel/osrelease"), self.load);
        println!("build    profile bench of Cargo.toml, debug assertions {assertions}, RUSTFLAGS {flags}");
        println!("clock    std::time::Instant, as Criterion's (source: {clock})\n");
    }

    /// Criterion's estimate in nanoseconds, if this run has made one. It is what Criterion prints: the slope over
    /// batches of growing length, or the mean where batches had one length.
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

fn cell(goal: Goal, pair: Pair) -> String {
    let figures = format!("({} / {})", Nanoseconds(pair.over), Nanoseconds(pair.under));
    let ratio = pair.ratio();
    let precision = if ratio < 100.0 { 2 } else { 0 };
    format!("{ratio:.precision$} {:<5} {figures}", goal.verdict(ratio))
}

struct Nanoseconds(f64);

impl fmt::Display for Nanoseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1000.0 {
            write!(f, "{:.2} ns", self.0)
        } else {
            write!(f, "{:.1} µs", self.0 / 1000.0)
        }
    }
}

/// Measures the two subjects of a row in turn. `estimates` tells how many operations make a batch. `None` if less than
/// half of the batches of a subject were undisturbed.
fn interleave(row: &Row, estimates: Pair) -> Option<Pair> {
    let mut sides = [Side::new(row.over, estimates.over), Side::new(row.under, estimates.under)];
    for round in 0..ROUNDS {
        sides[round % 2].run();
        sides[(round + 1) % 2].run();
    }
    let [over, under] = sides.map(Side::median);
    Some(Pair { over: over?, under: under? })
}

struct Side {
    batch: subjects::Batch,
    count: u64,
    times: Vec<f64>,
}

impl Side {
    fn new(id: &str, estimate: f64) -> Self {
        let subject = subjects::ALL.iter().find(|subject| subject.id == id).expect("rows name subjects");
        let count = (BATCH.as_nanos() as f64 / estimate).max(1.0) as u64;
        Self { batch: (subject.build)(), count, times: Vec::with_capacity(ROUNDS) }
    }

    fn run(&mut self) {
        let timed = (self.batch)(self.count);
        if !timed.is_disturbed {
            self.times.push(timed.elapsed.as_nanos() as f64 / self.count as f64);
        }
    }

    fn median(mut self) -> Option<f64> {
        self.times.sort_by(f64::total_cmp);
        (self.times.len() >= ROUNDS / 2).then(|| self.times[self.times.len() / 2])
    }
}

/// Where Criterion keeps its results; it has no public function that tells, so this looks where it looks.
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

fn cpu_model() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    model.map_or_else(|| "unknown".to_owned(), |(_, name)| name.to_owned())
}

fn first_line(file: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().next().unwrap_or("unknown").to_owned()
}
