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

/// What cargo runs, and the options of a measurement and of a check.
const BENCHES: [(&str, &str, &str); 15] = [
    ("bench --bench shm_pool --", "", "--test"),
    ("bench --bench at_the_cap --", "--messages 5000", "--quick"),
    (
        "bench --bench at_the_cap --",
        "--fits --fitted 20000 --seeds 2",
        "",
    ),
    (
        "bench --bench backpressure --",
        "--waits 2000 --refusals 5000",
        "--quick",
    ),
    ("bench --bench fanout --", "", "--quick"),
    ("bench --bench rtt --", "", "--quick"),
    ("bench --bench receiver_latency --", "--rounds 3", "--quick"),
    (PEERS, "", "--quick"),
    (PUBSUB, "--rounds 5", "--quick"),
    (
        PUBSUB,
        "--load saturated --messages 3000 --rounds 40",
        "--load saturated --messages 500 --rounds 1",
    ),
    (
        PUBSUB,
        "--load paced --messages 2000 --rounds 7",
        "--load paced --messages 200 --rounds 1",
    ),
    (
        PUBSUB,
        "--load flat-out --messages 20000 --rounds 7",
        "--load flat-out --messages 500 --rounds 1",
    ),
    (PUBSUB, "--load first --rounds 7", "--load first --rounds 1"),
    (
        PUBSUB,
        "--load killed --messages 10000",
        "--load killed --messages 10000",
    ),
    (
        "bench -p shm-pool-zenoh --bench zenoh_cases --",
        "",
        "--quick",
    ),
];

/// Everything that is written down of a run.
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
    let mut all: Run = match options.render || !options.only.is_empty() {
        true => serde_json::from_str(&fs::read_to_string(file).unwrap_or("{}".to_owned()))
            .unwrap_or_default(),
        false => Run::default(),
    };
    if !options.render {
        measure(options, &mut all)?;
    }
    if options.quick {
        return Ok(());
    }
    fs::write(file, serde_json::to_string_pretty(&all)? + "\n")?;
    draw(&all)?;
    fs::write(
        "BENCHMARKS.md",
        render(&fs::read_to_string("benches/BENCHMARKS.in.md")?, &all),
    )?;
    Ok(())
}

/// Adds the figures of all benches. A table replaces the one of the same name.
fn measure(options: &Options, all: &mut Run) -> Fallible {
    let lines = env::temp_dir().join(format!("shm-pool-figures-{}", std::process::id()));
    let target =
        fs::canonicalize(".")?.join(env::var_os("CARGO_TARGET_DIR").unwrap_or("target".into()));
    all.machine = Machine::now().caption();
    let head = Command::new("git")
        .args(["rev-parse", "--short", "HEAD"])
        .output()?;
    let head = String::from_utf8_lossy(&head.stdout).trim().to_owned();
    all.revision = match options.only.as_str() {
        "" => head,
        only => format!("{} (`{only}` at {head})", all.revision),
    };
    for (cargo, full, quick) in BENCHES {
        let arguments = if options.quick { quick } else { full };
        let command = format!("cargo {cargo} {arguments}");
        if !command.contains(&options.only) || (options.quick && quick.is_empty()) {
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

impl Run {
    fn table(&self, name: &str) -> Option<&Figures> {
        self.tables.iter().find(|table| table.name == name)
    }

    /// The nanoseconds in a cell, by the start of its row and the head of its column.
    fn time(&self, table: &str, row: &str, column: &str) -> Option<f64> {
        let table = self.table(table)?;
        let column = table.columns.iter().position(|head| head == column)?;
        Nanoseconds::parse(
            table
                .rows
                .iter()
                .find(|cells| cells[0] == row)?
                .get(column)?,
        )
    }
}

/// Fills the tables into the template.
fn render(template: &str, all: &Run) -> String {
    let minutes = all
        .commands
        .iter()
        .map(|(_, seconds)| seconds)
        .sum::<u64>()
        .div_ceil(60);
    let template = template
        .replace("{{machine}}", &all.machine)
        .replace("{{revision}}", &all.revision);
    let template = template.replace("{{minutes}}", &minutes.to_string());
    let line = |line: &str| {
        let Some(name) = line
            .strip_prefix("{{")
            .and_then(|line| line.strip_suffix("}}"))
        else {
            return line.to_owned();
        };
        let (name, columns) = name.split_once(" | ").unwrap_or((name, ""));
        let columns: Vec<usize> = columns
            .split_whitespace()
            .filter_map(|column| column.parse().ok())
            .collect();
        all.table(name).map_or_else(
            || format!("`{name}`: not measured."),
            |table| markdown(table, &columns),
        )
    };
    template.lines().map(|text| line(text) + "\n").collect()
}

/// All columns if none are given; the first is always shown.
fn markdown(table: &Figures, columns: &[usize]) -> String {
    let row = |cells: &[String]| {
        let shown = (0..table.columns.len())
            .filter(|at| *at == 0 || columns.is_empty() || columns.contains(at));
        let cells = shown.map(|at| {
            cells
                .get(at)
                .map_or("", String::as_str)
                .replace("MISSED", "**missed**")
        });
        format!("| {} |", cells.collect::<Vec<_>>().join(" | "))
    };
    let heads = row(&table.columns);
    let rule = "|---".repeat(heads.matches(" | ").count() + 1) + "|";
    [heads, rule]
        .into_iter()
        .chain(table.rows.iter().map(|cells| row(cells)))
        .collect::<Vec<_>>()
        .join("\n")
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

const SIZES: [&str; 5] = ["64 B", "4 KiB", "64 KiB", "1 MiB", "8 MiB"];

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
    let chart = |file: &str, title: &str, names: &[&str], groups: Vec<Group>| {
        let names: Vec<Bar> = names.iter().copied().zip(COLOURS).collect();
        bars(
            &Path::new("benches").join(file),
            title,
            &all.machine,
            &names,
            &groups,
        )
    };
    let alloc = |size| {
        (
            size,
            ALLOCATORS
                .map(|name| all.time(&format!("alloc + drop, {size}"), name, "median"))
                .into(),
        )
    };
    let alloc: Vec<Group> = SIZES.map(alloc).into();
    chart(
        "alloc.svg",
        "Allocating and dropping one message, by its length",
        &ALLOCATORS,
        alloc,
    )?;
    let trip = |size| {
        (
            size,
            WAYS.map(|way| all.time("rtt", &format!("{way}, {size}"), "p50"))
                .into(),
        )
    };
    let trips: Vec<Group> = ["64 B", "4 KiB", "1 MiB"].map(trip).into();
    chart(
        "rtt.svg",
        "Round trips between two processes, by the length of a message (p50)",
        &WAYS,
        trips,
    )?;
    let held = |held| {
        (
            held,
            QUANTILES
                .map(|quantile| all.time("at_the_cap", held, quantile))
                .into(),
        )
    };
    let held: Vec<Group> = HELD.map(held).into();
    chart(
        "at_the_cap.svg",
        "An allocation at the cap, by the number of messages that are held",
        &QUANTILES,
        held,
    )
}
