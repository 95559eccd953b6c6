//! What came out of the runs, side by side: of several rounds the median of each figure, and how
//! they compare.

use crate::limits::FILES;
use crate::news::{Figures, Seen};
use crate::options::{Load, Options, Whose};
use shm_pool_support::latency::Spread;
use shm_pool_support::table::{table, Goal, Table};
use shm_pool_support::units::{grouped, Bytes};

/// A row's name, and its figures: the name of each, and how it is shown.
type Row = (&'static str, &'static [(&'static str, fn(f64) -> String)]);

/// The row that is there even if there was no provider.
const SETUP: Row = ("making the provider", &[("setup", micros)]);

/// The row that is there if the messages had a rate.
const BEHIND: Row = ("behind schedule at most", &[("behind", micros)]);

const PUBLISHER: &[Row] = &[
    ("messages", &[("messages", count)]),
    ("bytes", &[("bytes", bytes)]),
    ("seconds", &[("seconds", hundredths)]),
    ("msg/s", &[("per second", count)]),
    ("GB/s to each subscriber", &[("GB per second", hundredths)]),
    ("publisher's CPU per message", &[("cpu", micros)]),
    BEHIND,
    SETUP,
    ("allocation, µs: p50 / p99 / p99.9", &[("p50", thousandths), ("p99", thousandths), ("p999", thousandths)]),
    ("peak payload in /dev/shm, from outside", &[("payload", bytes)]),
    ("…, by the pool's own statistics", &[("held", bytes)]),
    ("…, segments created: first tenth / all", &[("early segments", count), ("late segments", count)]),
    ("zenoh's metadata, not in the above", &[("metadata", bytes)]),
];

/// Of each subscriber; its name stands before that of the first row.
const SUBSCRIBER: &[Row] = &[
    ("messages", &[("messages", count)]),
    ("…, latency, µs: p50 / p99 / p99.9", &[("p50", thousandths), ("p99", thousandths), ("p999", thousandths)]),
    ("…, compared", &[("compared", bytes)]),
    ("…, most held", &[("held", count), ("held bytes", bytes)]),
    ("…, descriptors: first tenth / all", &[("early descriptors", count), ("late descriptors", count)]),
    ("…, zenoh's mappings: first tenth / all", &[("early mappings", count), ("late mappings", count)]),
    ("…, locked memory: first tenth / all", &[("early locked", bytes), ("late locked", bytes)]),
];

fn count(number: f64) -> String {
    grouped(number as u64)
}

fn bytes(bytes: f64) -> String {
    Bytes(bytes as u64).to_string()
}

fn hundredths(number: f64) -> String {
    format!("{number:.2}")
}

fn thousandths(nanoseconds: f64) -> String {
    format!("{:.1}", nanoseconds / 1e3)
}

fn micros(nanoseconds: f64) -> String {
    thousandths(nanoseconds) + " µs"
}

/// One kind of memory.
pub(crate) struct Column {
    pub(crate) whose: Whose,
    /// Why there was no provider.
    pub(crate) refused: Option<String>,
    /// Each process's name and what it has seen in each round; first the publisher.
    processes: Vec<(String, Vec<Figures>)>,
}

impl Column {
    pub(crate) fn new(whose: Whose) -> Self {
        Self { whose, refused: None, processes: Vec::new() }
    }

    pub(crate) fn title(&self) -> &'static str {
        self.whose.title()
    }

    /// Adds a round, of the same processes as the others.
    pub(crate) fn add(&mut self, processes: Vec<(String, Seen)>) {
        if self.processes.is_empty() {
            self.processes = processes.iter().map(|(name, _)| (name.clone(), Vec::new())).collect();
        }
        for ((_, rounds), (_, seen)) in self.processes.iter_mut().zip(processes) {
            rounds.push(seen.figures);
        }
    }

    /// A process's figure: the median of all rounds, if it tells it.
    fn figure(&self, process: usize, name: &str) -> Option<f64> {
        let rounds = self.processes.get(process)?.1.iter();
        let figures = rounds.map(|round| round.get(name).copied()).collect::<Option<Vec<_>>>()?;
        Some(Spread::of(&figures).median)
    }

    fn cell(&self, process: usize, row: Row) -> String {
        if self.refused.is_some() {
            return if row.0 == SETUP.0 { "refused" } else { "-" }.to_owned();
        }
        let show = |&(name, show): &(&str, fn(f64) -> String)| self.figure(process, name).map_or("-".to_owned(), show);
        row.1.iter().map(show).collect::<Vec<_>>().join(" / ")
    }
}

/// The whole story.
pub(crate) fn print(options: &Options, columns: &[Column]) {
    let file_len = columns.iter().find_map(|column| column.figure(0, "file"));
    println!(
        "{} ({}), again and again, by zenoh over TCP on this machine to {} subscribers; at most {} of shared memory, {} messages \
         ahead, {} files for each process.",
        options.file.display(),
        file_len.map_or("-".to_owned(), bytes),
        options.audience(),
        Bytes(options.max_bytes as u64),
        grouped(options.window.into()),
        grouped(FILES),
    );
    if options.rounds > 1 {
        println!("Each figure is the median of {} rounds.", options.rounds);
    }
    if columns.iter().all(|column| column.refused.is_none()) {
        println!("Every message came in shared memory, in order and unchanged; no object is left in /dev/shm.");
    }
    println!("\n{}", figures(options, columns));
    for column in columns {
        if let Some(why) = &column.refused {
            println!("\n{}: refused at build: {why}", column.title());
        }
    }
    let finished = |wanted| columns.iter().find(|column| column.whose == wanted && column.refused.is_none());
    let both = finished(Whose::Pool).zip(finished(Whose::Zenoh));
    if let (Some(Load::Saturated), Some((ours, theirs))) = (options.load, both) {
        println!("\n{}", ratios(ours, theirs));
    }
}

fn figures(options: &Options, columns: &[Column]) -> Table {
    let heads: Vec<_> = [""].into_iter().chain(columns.iter().map(Column::title)).collect();
    let mut table = table(&heads);
    let mut add = |name: &str, process, row: Row| {
        let cells = columns.iter().map(|column| column.cell(process, row));
        table.add_row([name.to_owned()].into_iter().chain(cells));
    };
    let Some(finished) = columns.iter().find(|column| column.refused.is_none()) else {
        add(SETUP.0, 0, SETUP);
        return table;
    };
    for &row in PUBLISHER {
        if row.0 != BEHIND.0 || options.due(0).is_some() {
            add(row.0, 0, row);
        }
    }
    for (process, (name, _)) in finished.processes.iter().enumerate().skip(1) {
        for (at, &row) in SUBSCRIBER.iter().enumerate() {
            let name = if at == 0 { format!("{name}: {}", row.0) } else { row.0.to_owned() };
            add(&name, process, row);
        }
    }
    table
}

/// How the two kinds of memory compare. A ratio that misses its goal says so, and that is all.
fn ratios(ours: &Column, theirs: &Column) -> Table {
    let mut rows = table(&["shm-pool / zenoh's default", "goal", "this run", ""]);
    for (name, figure, goal) in [
        ("publisher's CPU per message", "cpu", Goal::AtMost(1.0)),
        ("messages per second", "per second", Goal::AtLeast(1.0)),
        ("allocation, p99", "p99", Goal::AtMost(1.0)),
        ("allocation, p99.9", "p999", Goal::AtMost(1.0)),
    ] {
        let of = |column: &Column| column.figure(0, figure).unwrap_or(f64::NAN);
        let ratio = of(ours) / of(theirs);
        rows.add_row([name, &goal.to_string(), &format!("{ratio:.3}"), goal.verdict(ratio)]);
    }
    rows
}
