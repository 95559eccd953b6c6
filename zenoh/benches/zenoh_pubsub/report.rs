//! What came out of the runs, side by side: of several rounds the median of each figure, and how
//! they compare.

use crate::limits::FILES;
use crate::news::{Figures, Seen};
use crate::options::{Load, Options, Whose};
use shm_pool_support::compare::{comparison, Compared, Ratio};
use shm_pool_support::latency::Spread;
use shm_pool_support::table::{show, table, Goal, Table};
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
    (
        "allocation, µs: p50 / p99 / p99.9",
        &[
            ("p50", thousandths),
            ("p99", thousandths),
            ("p999", thousandths),
        ],
    ),
    (
        "peak payload in /dev/shm, from outside",
        &[("payload", bytes)],
    ),
    ("…, held by the pool's own statistics", &[("held", bytes)]),
    (
        "…, segments created: first tenth / all",
        &[("early segments", count), ("late segments", count)],
    ),
    ("zenoh's metadata, not in the above", &[("metadata", bytes)]),
];

/// Of each subscriber; its name stands before that of the first row.
const SUBSCRIBER: &[Row] = &[
    ("messages", &[("messages", count)]),
    (
        "…, latency, µs: p50 / p99 / p99.9",
        &[
            ("p50", thousandths),
            ("p99", thousandths),
            ("p999", thousandths),
        ],
    ),
    ("…, compared", &[("compared", bytes)]),
    ("…, most held", &[("held", count), ("held bytes", bytes)]),
    (
        "…, descriptors: first tenth / all",
        &[("early descriptors", count), ("late descriptors", count)],
    ),
    (
        "…, zenoh's mappings: first tenth / all",
        &[("early mappings", count), ("late mappings", count)],
    ),
    (
        "…, locked memory: first tenth / all",
        &[("early locked", bytes), ("late locked", bytes)],
    ),
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
    /// The name and the results of each process in each round, the publisher first.
    processes: Vec<(String, Vec<Figures>)>,
}

impl Column {
    pub(crate) fn new(whose: Whose) -> Self {
        Self {
            whose,
            refused: None,
            processes: Vec::new(),
        }
    }

    pub(crate) fn title(&self) -> &'static str {
        self.whose.title()
    }

    /// Adds a round, of the same processes as the others.
    pub(crate) fn add(&mut self, processes: Vec<(String, Seen)>) {
        let is_first = self.processes.is_empty();
        for (at, (name, seen)) in processes.into_iter().enumerate() {
            if is_first {
                self.processes.push((name, Vec::new()));
            }
            self.processes[at].1.push(seen.figures);
        }
    }

    /// A process's figure: the median of all rounds, if it tells it.
    fn figure(&self, process: usize, name: &str) -> Option<f64> {
        let rounds = self.rounds(process, name);
        if rounds.is_empty() {
            return None;
        }
        Some(Spread::of(&rounds).median)
    }

    /// A process's figure in each round; none if it does not tell it.
    fn rounds(&self, process: usize, name: &str) -> Vec<f64> {
        let mut figures = Vec::new();
        if let Some((_, rounds)) = self.processes.get(process) {
            for round in rounds {
                match round.get(name) {
                    Some(&figure) => figures.push(figure),
                    None => return Vec::new(),
                }
            }
        }
        figures
    }

    fn show(&self, process: usize, name: &str, show: fn(f64) -> String) -> String {
        match self.figure(process, name) {
            Some(figure) => show(figure),
            None => "-".to_owned(),
        }
    }

    fn cell(&self, process: usize, row: Row) -> String {
        if self.refused.is_some() {
            return if row.0 == SETUP.0 { "refused" } else { "-" }.to_owned();
        }
        let mut shown = Vec::new();
        for &(name, show) in row.1 {
            shown.push(self.show(process, name, show));
        }
        shown.join(" / ")
    }
}

/// The whole story.
pub(crate) fn print(options: &Options, columns: &[Column]) {
    let file_len = columns.iter().find_map(|column| column.figure(0, "file"));
    println!(
        "{} ({}), again and again, in {}, by zenoh over TCP on this machine to {} subscribers; \
         at most {} of shared memory, {} messages ahead, {} files for each process.",
        options.file.display(),
        file_len.map_or("-".to_owned(), bytes),
        options.describe_sizes(),
        options.audience(),
        Bytes(options.max_bytes as u64),
        grouped(options.window.into()),
        grouped(FILES),
    );
    if options.rounds > 1 {
        println!("Each figure is the median of {} rounds.", options.rounds);
    }
    if columns.iter().all(|column| column.refused.is_none()) {
        println!(
            "Every message arrived in shared memory, in order and unchanged; \
             no object is left in /dev/shm."
        );
    }
    println!();
    let name = options.name();
    show(&name, &figures(options, columns));
    for column in columns {
        if let Some(why) = &column.refused {
            println!("{}: refused at build: {why}", column.title());
        }
    }
    let Some(load) = options.load else { return };
    let mut ours = Vec::new();
    let mut theirs = None;
    for column in columns {
        match column.whose {
            _ if column.refused.is_some() => {}
            Whose::Zenoh => theirs = Some(column),
            Whose::Pool | Whose::Buffers => ours.push(column),
        }
    }
    if let Some(theirs) = theirs {
        print_comparison(&name, load, &ours, theirs);
    }
    match load {
        Load::Paced => show(&format!("{name}, memory"), &spare(&ours)),
        Load::Killed => show(&format!("{name}, survived"), &killed(columns)),
        _ => {}
    }
}

fn print_comparison(name: &str, load: Load, ours: &[&Column], theirs: &Column) {
    let mut rows = Vec::new();
    for figure in compared(load) {
        let rounds = |column: &Column| column.rounds(figure.process, figure.key);
        rows.push(Compared {
            name: figure.name.to_owned(),
            goal: figure.goal,
            show: figure.show,
            ours: ours.iter().map(|column| rounds(column)).collect(),
            theirs: rounds(theirs),
        });
    }
    if ours.is_empty() || rows.is_empty() {
        return;
    }
    let titles: Vec<_> = ours.iter().map(|column| column.title()).collect();
    let table = comparison(&titles, theirs.title(), rows);
    show(&format!("{name}, compared"), &table);
}

fn figures(options: &Options, columns: &[Column]) -> Table {
    let mut heads = vec![""];
    for column in columns {
        heads.push(column.title());
    }
    let mut table = table(&heads);
    let mut add = |name: &str, process, row: Row| {
        let mut cells = vec![name.to_owned()];
        for column in columns {
            cells.push(column.cell(process, row));
        }
        table.add_row(cells);
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
            let name = if at == 0 {
                format!("{name}: {}", row.0)
            } else {
                row.0.to_owned()
            };
            add(&name, process, row);
        }
    }
    table
}

/// What is compared of a load.
struct Figure {
    name: &'static str,
    process: usize,
    /// The figure of that process.
    key: &'static str,
    show: fn(f64) -> String,
    /// For ours, as a share of what zenoh's default takes.
    goal: Goal,
}

impl Figure {
    fn new(
        goal: Goal,
        name: &'static str,
        process: usize,
        key: &'static str,
        show: fn(f64) -> String,
    ) -> Self {
        Self {
            name,
            process,
            key,
            show,
            goal,
        }
    }
}

/// The process whose figures are the publisher's, and the one of the first subscriber.
const SENDS: usize = 0;
const RECEIVES: usize = 1;

fn compared(load: Load) -> Vec<Figure> {
    const LESS: Goal = Goal::AtMost(1.0);
    const MORE: Goal = Goal::AtLeast(1.0);
    const NONE: Goal = Goal::None;
    match load {
        // What includes the first messages includes taking memory from the system. zenoh's
        // provider takes it when it is created.
        Load::Saturated => vec![
            Figure::new(LESS, "publisher's CPU per message", SENDS, "cpu", micros),
            Figure::new(LESS, "…, after a tenth", SENDS, "steady cpu", micros),
            Figure::new(MORE, "messages per second", SENDS, "per second", count),
            Figure::new(MORE, "…, after a tenth", SENDS, "steady per second", count),
            Figure::new(LESS, "allocation, p99", SENDS, "p99", micros),
            Figure::new(LESS, "allocation, p99.9", SENDS, "p999", micros),
            Figure::new(LESS, "…, after a tenth", SENDS, "steady p999", micros),
        ],
        // The allocations' p99 is where memory is taken from the system at first need. `first` is
        // about that.
        Load::Paced => vec![
            Figure::new(LESS, "put to callback, p50", RECEIVES, "p50", micros),
            Figure::new(LESS, "…, p99", RECEIVES, "p99", micros),
            Figure::new(LESS, "…, p99.9", RECEIVES, "p999", micros),
            Figure::new(LESS, "allocation, p50", SENDS, "p50", micros),
            Figure::new(NONE, "…, p99", SENDS, "p99", micros),
            Figure::new(NONE, "…, p99.9", SENDS, "p999", micros),
            Figure::new(LESS, STEADY_CPU, SENDS, "steady cpu", micros),
            Figure::new(LESS, "peak payload in /dev/shm", SENDS, "payload", bytes),
        ],
        Load::FlatOut => vec![
            Figure::new(MORE, "messages per second", SENDS, "per second", count),
            Figure::new(LESS, STEADY_CPU, SENDS, "steady cpu", micros),
            Figure::new(LESS, "allocation, p50", SENDS, "p50", micros),
            Figure::new(LESS, "put to callback, p50", RECEIVES, "p50", micros),
        ],
        // Our receivers take the segment's pages that zenoh's provider has taken when it was made.
        Load::First => vec![
            Figure::new(LESS, "allocation, p50", SENDS, "p50", micros),
            Figure::new(LESS, "…, p99.9", SENDS, "p999", micros),
            Figure::new(LESS, "…, all of them", SENDS, "sum", micros),
            Figure::new(
                LESS,
                "making the provider, and what it reserves",
                SENDS,
                "setup",
                micros,
            ),
            Figure::new(
                NONE,
                "the messages, until the last one was read",
                SENDS,
                "elapsed",
                micros,
            ),
            Figure::new(LESS, "both", SENDS, "in all", micros),
        ],
        Load::Mixed | Load::Random | Load::Fixed | Load::Killed => Vec::new(),
    }
}

const STEADY_CPU: &str = "publisher's CPU per message, after a tenth";

/// How much of a pool's memory is more than was in flight at the peak.
fn spare(ours: &[&Column]) -> Table {
    let mut all = table(&[
        "memory at the peak",
        "held",
        "in flight",
        "held / in flight",
        "goal",
        "",
    ]);
    for column in ours {
        let held = column.rounds(SENDS, "held");
        let in_flight = column.rounds(SENDS, "in flight");
        let ratio = Ratio::of(&held, &in_flight);
        let goal = Goal::AtMost(1.125);
        all.add_row([
            column.title().to_owned(),
            bytes(Spread::of(&held).median),
            bytes(Spread::of(&in_flight).median),
            ratio.show(),
            goal.to_string(),
            ratio.verdict(goal).to_owned(),
        ]);
    }
    all
}

/// What became of messages and memory when subscribers were killed. Any loss or damage has already
/// ended the program.
fn killed(columns: &[Column]) -> Table {
    let goal = "every byte right, none lost, memory back";
    let mut all = table(&[
        "",
        "killed, replaced",
        "then in use",
        "of it in flight at most",
        "at the end",
        goal,
    ]);
    for column in columns {
        all.add_row([
            column.title().to_owned(),
            column.show(SENDS, "killed", count),
            column.show(SENDS, "in use", bytes),
            column.show(SENDS, "kept", bytes),
            bytes(0.0),
            "pass".to_owned(),
        ]);
    }
    all
}
