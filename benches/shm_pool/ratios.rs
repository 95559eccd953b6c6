//! Compares subjects and prints the ratios and their goals.
//!
//! As soon as Criterion has measured both subjects of a ratio, they run again in short alternating
//! batches, so that other activity on the machine affects both alike; the ratio is that of the two
//! medians.

#![forbid(unsafe_code)]

use crate::hand_off::PIECE;
use crate::subjects;
use shm_pool_support::latency::Spread;
use shm_pool_support::machine::Machine;
use shm_pool_support::table::{show, table, Goal};
use shm_pool_support::turns::{self, BATCH};

/// Batches of each subject in an interleaved comparison.
const ROUNDS: usize = 200;

/// Messages of a batch beside a waiting thread, about half a millisecond where waiting costs others
/// nothing. The number cannot be calibrated: most of such a batch passes until the thread has
/// parked, which is not timed.
const BESIDE_A_WAITER: u64 = 50_000;

/// Messages of a batch beside an inspecting process: several inspections.
const INSPECTED: u64 = 500_000;

/// Two subjects, and the goal for the ratio of their times.
const ROWS: [(&str, &str, Goal); 13] = [
    ("warm/64B", "floor/array_queue", Goal::AtMost(1.25)),
    ("warm/4KiB", "floor/array_queue", Goal::AtMost(1.25)),
    ("warm/64KiB", "floor/array_queue", Goal::AtMost(1.25)),
    ("warm/1MiB", "floor/array_queue", Goal::AtMost(1.25)),
    ("warm/16MiB", "floor/array_queue", Goal::AtMost(1.25)),
    // Without a second thread, malloc takes no lock: a floor.
    ("malloc/1MiB", "warm/1MiB", Goal::None),
    ("malloc_threads/1MiB", "warm/1MiB", Goal::AtLeast(2.0)),
    ("talc/1MiB", "warm/1MiB", Goal::AtLeast(3.0)),
    ("cold/1MiB", "warm/1MiB", Goal::AtLeast(2340.0)),
    // Its nine atomic operations keep a reader safe from the owner's death and reuse.
    ("shared/1MiB", "floor/array_queue", Goal::None),
    ("cross_thread/1MiB", "floor/cross_thread", Goal::AtMost(1.5)),
    (subjects::OTHER_POOL_WAITS, "warm/1MiB", Goal::AtMost(1.2)),
    (subjects::INSPECTED, "warm/1MiB", Goal::AtMost(1.1)),
];

/// The comparisons of this run.
pub(crate) struct Comparisons {
    machine: Machine,
    measured: Vec<&'static str>,
    /// By row, the nanoseconds per operation of both subjects.
    compared: [Option<Vec<Result<Spread, String>>>; ROWS.len()],
}

impl Comparisons {
    pub(crate) fn begin() -> Self {
        Self {
            machine: Machine::now(),
            measured: Vec::new(),
            compared: Default::default(),
        }
    }

    /// Makes the comparisons that lacked only this subject, now that Criterion has measured it.
    pub(crate) fn add(&mut self, id: &'static str) {
        self.measured.push(id);
        for ((over, under, _), compared) in ROWS.into_iter().zip(&mut self.compared) {
            let is_due = self.measured.contains(&over) && self.measured.contains(&under);
            if compared.is_some() || !is_due {
                continue;
            }
            let count = match over {
                subjects::OTHER_POOL_WAITS => Some(BESIDE_A_WAITER),
                subjects::INSPECTED => Some(INSPECTED),
                _ => None,
            };
            let both = [batch(over), batch(under)];
            *compared = Some(turns::interleave(both, ROUNDS, count));
        }
    }

    /// Prints nothing if there is nothing to compare.
    pub(crate) fn print(&self) {
        if self.compared.iter().all(Option::is_none) {
            return;
        }
        println!("\nRatios of this run, by: cargo bench --bench shm_pool\n");
        self.machine
            .print("std::time::Instant, as Criterion's", "nothing pinned");
        let mut rows = table(&["ratio", "goal", "this run", "", "ns"]);
        for ((over, under, goal), compared) in ROWS.into_iter().zip(&self.compared) {
            let mut row = vec![format!("{over} / {under}"), goal.to_string()];
            match compared.as_deref() {
                None => row.push("not measured in this run".to_owned()),
                Some([Ok(over), Ok(under)]) => {
                    let ratio = over.median / under.median;
                    let precision = if ratio < 100.0 { 2 } else { 0 };
                    row.push(format!("{ratio:.precision$}"));
                    row.push(goal.verdict(ratio).to_owned());
                    row.push(format!("{:.2} / {:.2}", over.median, under.median));
                }
                Some(_) => row.push("too disturbed to tell".to_owned()),
            }
            rows.add_row(row);
        }
        show("shm_pool", &rows);
        println!(
            "Medians of {ROUNDS} batches of about {BATCH:?}, both sides in turn. \
             Where two threads take part,"
        );
        println!("pieces of {PIECE} messages in which one lacked a core were repeated.");
        println!(
            "malloc: before the process has started a thread, so without a lock. \
             malloc_threads: after."
        );
    }
}

/// Batches of a subject; those in which a thread lacked a core do not count.
fn batch(id: &str) -> Result<turns::Batch, String> {
    let (_, build) = subjects::ALL
        .iter()
        .find(|subject| subject.0 == id)
        .expect("rows name subjects");
    let mut batch = build();
    Ok(Box::new(move |count| {
        let timed = batch(count);
        if timed.is_disturbed {
            return Ok(None);
        }
        Ok(Some(timed.elapsed))
    }))
}
