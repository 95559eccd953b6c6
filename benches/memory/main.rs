//! What the memory options change for one large message: locked into RAM, in huge pages.
//!
//! ```text
//! cargo bench --bench memory
//! cargo bench --bench memory -- --len 64MiB --directory /mnt/huge
//! ```
//!
//! Each round creates a provider for each row, in turn. Its first allocation gets memory from the
//! system; the cost of that is the first column. Then the message is written twice from front to
//! back, and read at random positions, each read waiting for the one before. Times are CPU time:
//! nothing here waits, and other programs do not count. A goal belongs to what the options promise:
//! the first write does not fault, and huge pages make random reads faster.

#![forbid(unsafe_code)]

use clap::Parser;
use nix::sys::resource::{getrusage, UsageWho};
use shm_pool::{Provider, ProviderBuilder};
use shm_pool_support::latency::Spread;
use shm_pool_support::machine::{pin, Cores, Machine};
use shm_pool_support::options::Quick;
use shm_pool_support::procfs::mapped_memory;
use shm_pool_support::table::{table, Goal};
use shm_pool_support::units::{mib, parse_size, Bytes};
use shm_pool_support::{clock, Fallible};
use std::hint::black_box;
use std::path::PathBuf;

/// Writes and reads a large message, with each memory option.
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    quick: Quick,
    /// How often each row is measured; medians and ranges are over these
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The message's length
    #[arg(long, default_value = "16MiB", value_parser = parse_size)]
    len: usize,
    /// Directory of the objects: a tmpfs
    #[arg(long, default_value = "/dev/shm")]
    directory: PathBuf,
}

/// The same in each run, so that the next run removes what a killed one leaves.
const PREFIX: &str = "shm-pool-memory";

/// Reads at random positions.
const READS: usize = 200_000;

type With = fn(ProviderBuilder) -> ProviderBuilder;

const ROWS: [(&str, With); 4] = [
    ("neither", |builder| builder),
    ("locked", |builder| builder.lock_memory(true)),
    ("huge pages", |builder| builder.huge_pages(true)),
    ("both", |builder| builder.lock_memory(true).huge_pages(true)),
];

/// Of one row, by round.
#[derive(Default)]
struct Figures {
    allocation: Vec<f64>,
    first_write: Vec<f64>,
    second_write: Vec<f64>,
    read: Vec<f64>,
    faults: i64,
    huge: u64,
}

fn main() -> Fallible {
    let options = Options::parse();
    let rounds = if options.quick.quick { 1 } else { options.rounds };
    let machine = Machine::now();
    pin(Cores::choose()?.first())?;
    let mut rows = ROWS.map(|_| Figures::default());
    for _ in 0..rounds {
        for ((_, with), figures) in ROWS.iter().zip(&mut rows) {
            measure(&options, *with, figures)?;
        }
    }
    if options.quick.quick {
        println!("{} rows, all written and read", ROWS.len());
        return Ok(());
    }
    machine.print("CLOCK_THREAD_CPUTIME_ID", "one pinned");
    println!("message  {}, in {}, {rounds} rounds\n", Bytes(options.len as u64), options.directory.display());
    print(&rows);
    Ok(())
}

fn measure(options: &Options, with: With, figures: &mut Figures) -> Fallible {
    let cap = 2 * options.len;
    let builder = Provider::builder().name_prefix(PREFIX).directory(&options.directory).max_bytes(cap).arena_size(cap);
    let provider = with(builder).build()?;
    let begin = clock::thread_cpu();
    let mut buffer = provider.alloc(options.len)?;
    figures.allocation.push(nanoseconds(begin));
    let faults = || getrusage(UsageWho::RUSAGE_THREAD).map(|usage| usage.minor_page_faults());
    let before = faults()?;
    for figure in [&mut figures.first_write, &mut figures.second_write] {
        let begin = clock::thread_cpu();
        buffer.fill(black_box(0));
        figure.push(nanoseconds(begin));
        black_box(&mut buffer);
    }
    figures.faults = figures.faults.max(faults()? - before);
    let begin = clock::thread_cpu();
    let mut at = 1_usize;
    for _ in 0..READS {
        // Knuth's generator. The byte is 0; it is added so that each read waits for the one before.
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        at = at.wrapping_add(usize::from(buffer[(at >> 20) % options.len]));
    }
    black_box(at);
    figures.read.push(nanoseconds(begin) / READS as f64);
    figures.huge = mapped_memory(PREFIX, "ShmemPmdMapped")?;
    Ok(())
}

/// The CPU time since `begin`.
fn nanoseconds(begin: u64) -> f64 {
    (clock::thread_cpu() - begin) as f64
}

fn print(rows: &[Figures; 4]) {
    let heads = ["", "the allocation", "first write", "second write", "a random read", "faults", "MiB in huge pages"];
    let mut times = table(&heads);
    for ((name, _), figures) in ROWS.iter().zip(rows) {
        let spread = |values: &[f64]| Spread::of(values).to_string();
        times.add_row([
            (*name).to_owned(),
            spread(&figures.allocation),
            spread(&figures.first_write),
            spread(&figures.second_write),
            spread(&figures.read),
            figures.faults.to_string(),
            format!("{:.0}", mib(figures.huge)),
        ]);
    }
    println!("{times}\n");
    let median = |values: &[f64]| Spread::of(values).median;
    let most = rows.iter().map(|figures| figures.faults).max().unwrap_or(0) as f64;
    let ratios = [
        ("page faults while the message is written, any row", most, Goal::AtMost(0.0)),
        (
            "first write, locked / neither",
            median(&rows[1].first_write) / median(&rows[0].first_write),
            Goal::AtMost(1.1),
        ),
        ("a random read, huge pages / neither", median(&rows[2].read) / median(&rows[0].read), Goal::Below(1.0)),
    ];
    let mut goals = table(&["", "this run", "goal", ""]);
    for (name, ratio, goal) in ratios {
        goals.add_row([name.to_owned(), format!("{ratio:.2}"), goal.to_string(), goal.verdict(ratio).to_owned()]);
    }
    println!("{goals}");
}
