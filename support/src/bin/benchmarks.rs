//! Runs all benches one after the other, and writes their figures: `benches/figures.json`, three
//! charts beside it, and `BENCHMARKS.md`, which is `benches/BENCHMARKS.in.md` with the tables filled in.
//!
//! A line `{{NAME}}` of the template is replaced by the table that a bench shows under this name, and
//! `{{NAME | 1 3}}` by these columns of it. `{{machine}}`, `{{revision}}` and `{{minutes}}` may stand
//! anywhere.

#![forbid(unsafe_code)]

use clap::Parser;
use serde::{Deserialize, Serialize};
use shm_pool_support::chart::{bars, Bar, Group};
use shm_pool_support::machine::Machine;
use shm_pool_support::process::exit_code;
use shm_pool_support::table::{Figures, FIGURES};
use shm_pool_support::units::Nanoseconds;
use shm_pool_support::Fallible;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;
use std::{env, fs};

/// Run all benches, and write BENCHMARKS.md
#[derive(Parser)]
struct Options {
    /// Send a few messages of each kind, to check that they arrive; write nothing
    #[arg(long)]
    quick: bool,
    /// Run only the benches whose command contains this, and keep the other figures
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        allow_hyphen_values = true
    )]
    only: String,
    /// Run nothing, and write BENCHMARKS.md and the charts from the figures
    #[arg(long, conflicts_with_all = ["quick", "only"])]
    render: bool,
}

const PEERS: &str = "run --release --manifest-path benches/peers/Cargo.toml --";
const PUBSUB: &str = "bench -p shm-pool-zenoh --bench zenoh_pubsub --";

/// A bench.
struct Bench {
    /// What cargo runs.
    cargo: &'static str,
    /// The options of a measurement.
    full: &'static str,
    /// The options of a check. A bench without them is not checked.
    quick: &'static str,
}

const BENCHES: [Bench; 17] = [
    Bench {
        cargo: "bench --bench shm_pool --",
        full: "",
        quick: "--test",
    },
    Bench {
        cargo: "bench --bench at_the_cap --",
        full: "--messages 5000",
        quick: "--quick",
    },
    Bench {
        cargo: "bench --bench at_the_cap --",
        full: "--fits --fitted 60000",
        quick: "",
    },
    Bench {
        cargo: "bench --bench at_the_cap --",
        full: "--scale",
        quick: "",
    },
    Bench {
        cargo: "bench --bench at_the_cap --",
        full: "--waiter",
        quick: "",
    },
    Bench {
        cargo: "bench --bench backpressure --",
        full: "--waits 2000 --refusals 5000",
        quick: "--quick",
    },
    Bench {
        cargo: "bench --bench fanout --",
        full: "",
        quick: "--quick",
    },
    Bench {
        cargo: "bench --bench rtt --",
        full: "",
        quick: "--quick",
    },
    Bench {
        cargo: "bench --bench receiver_latency --",
        full: "--rounds 3",
        quick: "--quick",
    },
    Bench {
        cargo: PEERS,
        full: "",
        quick: "--quick",
    },
    Bench {
        cargo: PUBSUB,
        full: "--rounds 5",
        quick: "--quick",
    },
    Bench {
        cargo: PUBSUB,
        full: "--load saturated --messages 3000 --rounds 40",
        quick: "--load saturated --messages 500 --rounds 1",
    },
    Bench {
        cargo: PUBSUB,
        full: "--load paced --messages 2000 --rounds 7",
        quick: "--load paced --messages 200 --rounds 1",
    },
    Bench {
        cargo: PUBSUB,
        full: "--load flat-out --messages 20000 --rounds 7",
        quick: "--load flat-out --messages 500 --rounds 1",
    },
    Bench {
        cargo: PUBSUB,
        full: "--load first --rounds 7",
        quick: "--load first --rounds 1",
    },
    Bench {
        cargo: PUBSUB,
        full: "--load killed --messages 10000",
        quick: "--load killed --messages 10000",
    },
    Bench {
        cargo: "bench -p shm-pool-zenoh --bench zenoh_cases --",
        full: "",
        quick: "--quick",
    },
];

/// The record of a run.
#[derive(Default, Serialize, Deserialize)]
struct Run {
    machine: String,
    #[serde(default)]
    revision: String,
    /// The commands, and how many seconds each took.
    commands: Vec<(String, u64)>,
    tables: Vec<Figures>,
}

fn main() -> ExitCode {
    exit_code("benchmarks", run(&Options::parse()))
}

fn run(options: &Options) -> Fallible {
    env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))?;
    let file = Path::new("benches/figures.json");
    let mut all = Run::default();
    if options.render || !options.only.is_empty() {
        // Without a record, or with one of another form, there is nothing to keep.
        let recorded = fs::read_to_string(file).unwrap_or_default();
        all = serde_json::from_str(&recorded).unwrap_or_default();
    }
    if !options.render {
        measure(options, &mut all)?;
    }
    if options.quick {
        return Ok(());
    }
    fs::write(file, serde_json::to_string_pretty(&all)? + "\n")?;
    draw(&all)?;
    let template = fs::read_to_string("benches/BENCHMARKS.in.md")?;
    fs::write("BENCHMARKS.md", render(&template, &all))?;
    Ok(())
}

/// Adds the figures of all benches. A table replaces the one of the same name.
fn measure(options: &Options, all: &mut Run) -> Fallible {
    let lines = env::temp_dir().join(format!("shm-pool-figures-{}", std::process::id()));
    let target = match env::var_os("CARGO_TARGET_DIR") {
        Some(target) => target,
        None => "target".into(),
    };
    let target = fs::canonicalize(".")?.join(target);
    all.machine = Machine::now().caption();
    let head = head()?;
    all.revision = match options.only.as_str() {
        "" => head,
        only => format!("{} (`{only}` at {head})", all.revision),
    };
    for bench in BENCHES {
        if options.quick && bench.quick.is_empty() {
            continue;
        }
        let arguments = if options.quick {
            bench.quick
        } else {
            bench.full
        };
        let command = format!("cargo {} {arguments}", bench.cargo);
        if !command.contains(&options.only) {
            continue;
        }
        println!("\n==> {command}");
        // `benches/peers` is a workspace with another target directory.
        let mut process = Command::new("cargo");
        process
            .args(command.split_whitespace().skip(1))
            .env("CARGO_TARGET_DIR", &target);
        if !options.quick {
            process.env(FIGURES, &lines);
        }
        let start = Instant::now();
        if !process.status()?.success() {
            return Err(format!("{command} failed").into());
        }
        all.commands.retain(|(other, _)| *other != command);
        all.commands.push((command, start.elapsed().as_secs()));
    }
    for line in fs::read_to_string(&lines).unwrap_or_default().lines() {
        let table: Figures = serde_json::from_str(line)?;
        all.tables.retain(|other| other.name != table.name);
        all.tables.push(table);
    }
    let _ = fs::remove_file(lines);
    Ok(())
}

/// Returns the short name of the revision that is checked out.
fn head() -> Fallible<String> {
    let mut git = Command::new("git");
    git.args(["rev-parse", "--short", "HEAD"]);
    let output = git.output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

impl Run {
    fn table(&self, name: &str) -> Option<&Figures> {
        self.tables.iter().find(|table| table.name == name)
    }

    /// Returns the nanoseconds in a cell, by the first cell of its row and the head of its column.
    fn time(&self, table: &str, row: &str, column: &str) -> Option<f64> {
        let table = self.table(table)?;
        let column = table.columns.iter().position(|head| head == column)?;
        let row = table.rows.iter().find(|cells| cells[0] == row)?;
        Nanoseconds::parse(row.get(column)?)
    }
}

/// Fills the tables into the template.
fn render(template: &str, all: &Run) -> String {
    let mut seconds = 0;
    for (_, took) in &all.commands {
        seconds += took;
    }
    let minutes = seconds.div_ceil(60);
    let template = template
        .replace("{{machine}}", &all.machine)
        .replace("{{revision}}", &all.revision)
        .replace("{{minutes}}", &minutes.to_string());

    let mut rendered = String::new();
    for line in template.lines() {
        match placeholder(line) {
            Some(text) => rendered += &fill(text, all),
            None => rendered += line,
        }
        rendered.push('\n');
    }
    rendered
}

/// Returns the text between the braces of a line that stands for a table.
fn placeholder(line: &str) -> Option<&str> {
    line.strip_prefix("{{")?.strip_suffix("}}")
}

/// Returns the table of a placeholder: a name, and perhaps the columns that are shown.
fn fill(placeholder: &str, all: &Run) -> String {
    let (name, columns) = match placeholder.split_once(" | ") {
        Some((name, columns)) => (name, columns),
        None => (placeholder, ""),
    };
    let mut shown = Vec::new();
    for column in columns.split_whitespace() {
        shown.extend(column.parse::<usize>());
    }
    match all.table(name) {
        Some(table) => markdown(table, &shown),
        None => format!("`{name}`: not measured."),
    }
}

/// Formats these columns of a table, or all if none are given; the first is always shown.
fn markdown(table: &Figures, shown: &[usize]) -> String {
    let mut columns = Vec::new();
    for column in 0..table.columns.len() {
        if column == 0 || shown.is_empty() || shown.contains(&column) {
            columns.push(column);
        }
    }
    let mut lines = vec![
        markdown_row(&table.columns, &columns),
        "|---".repeat(columns.len()) + "|",
    ];
    for row in &table.rows {
        lines.push(markdown_row(row, &columns));
    }
    lines.join("\n")
}

fn markdown_row(cells: &[String], columns: &[usize]) -> String {
    let mut shown = Vec::new();
    for column in columns {
        let cell = match cells.get(*column) {
            Some(cell) => cell.replace("MISSED", "**missed**"),
            // A row may be shorter than the head.
            None => String::new(),
        };
        shown.push(cell);
    }
    format!("| {} |", shown.join(" | "))
}

const COLOURS: [[u8; 3]; 8] = [
    [0x0b, 0x2c, 0x5e],
    [0x1f, 0x5f, 0xb4],
    [0x12, 0x8f, 0xa8],
    [0xd0, 0x6a, 0x1c],
    [0x2e, 0x8b, 0x57],
    [0x7d, 0x55, 0xa8],
    [0xc0, 0x2d, 0x43],
    [0x8a, 0x8a, 0x8a],
];

const SIZES: [&str; 2] = ["4 KiB", "1 MiB"];

/// The peers in the first chart.
const ALLOCATORS: [&str; 8] = [
    "shm-pool provider",
    "zenoh provider, our backend",
    "zenoh buffers, our buffer pool",
    "zenoh provider, talc",
    "zenoh provider, buddy",
    "zenoh provider, binary heap",
    "iceoryx2 publisher",
    "glibc malloc",
];

const WAYS: [&str; 5] = [
    "channel, spin",
    "channel, futex",
    "mutex and condvar",
    "shm_open for each",
    "Unix socket",
];

const HELD: [&str; 3] = ["4", "12", "20"];
const QUANTILES: [&str; 6] = ["p50", "p99", "p99.9", "talc p50", "talc p99", "talc p99.9"];

/// Draws the charts.
fn draw(all: &Run) -> Fallible {
    let mut groups = Vec::new();
    for size in SIZES {
        let table = format!("alloc + drop, {size}");
        let times = ALLOCATORS.map(|name| all.time(&table, name, "median"));
        groups.push((size, times.to_vec()));
    }
    chart(
        all,
        "alloc.svg",
        "Allocating and dropping one message, by its length",
        &ALLOCATORS,
        &groups,
    )?;

    let mut groups = Vec::new();
    for size in ["64 B", "4 KiB", "1 MiB"] {
        let times = WAYS.map(|way| all.time("rtt", &format!("{way}, {size}"), "p50"));
        groups.push((size, times.to_vec()));
    }
    chart(
        all,
        "rtt.svg",
        "Round trips between two processes, by the length of a message (p50)",
        &WAYS,
        &groups,
    )?;

    let mut groups = Vec::new();
    for held in HELD {
        let times = QUANTILES.map(|quantile| all.time("at_the_cap", held, quantile));
        groups.push((held, times.to_vec()));
    }
    chart(
        all,
        "at_the_cap.svg",
        "An allocation at the cap, by the number of messages that are held",
        &QUANTILES,
        &groups,
    )
}

fn chart(all: &Run, file: &str, title: &str, names: &[&str], groups: &[Group]) -> Fallible {
    for (group, times) in groups {
        if times.iter().all(Option::is_none) {
            return Err(format!("{file}: no figures of {group}").into());
        }
    }
    let path = Path::new("benches").join(file);
    let mut named: Vec<Bar> = Vec::new();
    for (name, colour) in names.iter().zip(COLOURS) {
        named.push((name, colour));
    }
    bars(&path, title, &all.machine, &named, groups)
}
