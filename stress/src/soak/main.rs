//! The same thing a billion times over, and the memory of the processes stays what it was.
//!
//! ```text
//! cargo run --release -p shm-pool-stress --bin soak
//! cargo run --release -p shm-pool-stress --bin soak -- --allocs 100000000 --messages 1000000
//! ```
//!
//! First one process allocates and drops, in turn over small sizes and sizes of whole pages. Then
//! it publishes messages that another process attaches to, reads and lets go. Two processes, and
//! not a client in the same one: each then has its own table, mappings and heap, and which of them
//! grows can be seen.
//!
//! A hundred times in each part each process's resident memory is taken (`VmRSS` of
//! /proc/self/status, which includes `RssShmem`). A line is fitted to what comes after the warm-up,
//! the first tenth, by least squares. It is flat if, over all cycles, it rises by less than
//! [`FLAT`] bytes; a byte that is lost in every thousand cycles would make it steeper.

#![forbid(unsafe_code)]

mod messages;

use clap::Parser;
use shm_pool::Provider;
use shm_pool_support::line::slope;
use shm_pool_support::process::{exit_code, task};
use shm_pool_support::{procfs, Fallible};
use std::process::ExitCode;
use std::time::Instant;

/// The most that a flat line rises over all cycles, in bytes: 16 pages. Less cannot be told from
/// the kernel's own counting, which is in batches of pages.
const FLAT: f64 = 65_536.0;

/// How often memory is looked at in each part.
const SAMPLES: u64 = 100;

/// Samples that are the warm-up's.
const WARM_UP: usize = SAMPLES as usize / 10;

/// Lengths that are used in turn: the smaller half is carved by cache lines.
const LENGTHS: [usize; 8] = [24, 300, 4_096, 20_000, 300_000, 1 << 20, 100, 600_000];

/// Allocates, publishes and reads very often, and fails if memory grows.
#[derive(Parser, Debug)]
#[command(name = "soak")]
struct Options {
    /// How often to allocate and drop
    #[arg(long, value_name = "N", default_value_t = 1_000_000_000, value_parser = clap::value_parser!(u64).range(100_000..))]
    allocs: u64,

    /// How many messages to publish to another process, which attaches to each and lets it go
    #[arg(long, value_name = "N", default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(100_000..))]
    messages: u64,
}

fn main() -> ExitCode {
    let outcome = match task() {
        Some(provider) => messages::read(provider),
        None => soak(&Options::parse()),
    };
    exit_code("soak", outcome)
}

/// Both parts; an error if a line is not flat.
fn soak(options: &Options) -> Fallible {
    let provider = Provider::builder().max_bytes(64 << 20).build()?;
    let samples = alloc_and_drop(&provider, options.allocs)?;
    let is_flat = judge("alloc and drop", &samples);
    let (owner, reader) = messages::publish(&provider, options.messages)?;
    let are_flat = [judge("publish, attach, release: the owner", &owner), judge("... and the reader", &reader)];
    if is_flat && are_flat == [true; 2] {
        Ok(())
    } else {
        Err("memory grows".into())
    }
}

fn alloc_and_drop(provider: &Provider, cycles: u64) -> Fallible<Vec<(u64, Memory)>> {
    // Its memory is there from the start, and not a part of what is looked at.
    let mut samples = Vec::with_capacity(SAMPLES as usize);
    let start = Instant::now();
    for part in 1..=SAMPLES {
        for cycle in cycles * (part - 1) / SAMPLES..cycles * part / SAMPLES {
            let mut buffer = provider.alloc(LENGTHS[cycle as usize % LENGTHS.len()])?;
            buffer[0] = cycle as u8;
        }
        samples.push((cycles * part / SAMPLES, Memory::now()?));
    }
    report_rate("alloc and drop", cycles, start);
    Ok(samples)
}

fn report_rate(what: &str, cycles: u64, start: Instant) {
    let seconds = start.elapsed().as_secs_f64();
    println!("{what}: {cycles} cycles in {seconds:.1} s, {:.1} ns each", seconds * 1e9 / cycles as f64);
}

/// Prints the line that fits what comes after the warm-up; `true` if it is flat.
fn judge(what: &str, samples: &[(u64, Memory)]) -> bool {
    let warm = &samples[WARM_UP..];
    let (first, last) = (warm[0], warm[warm.len() - 1]);
    let points: Vec<(f64, f64)> = warm.iter().map(|(cycle, memory)| (*cycle as f64, memory.resident as f64)).collect();
    let slope = slope(&points);
    let rise = slope * (last.0 - first.0) as f64;
    let is_flat = rise < FLAT;
    println!("  {what}");
    println!("    resident   {} KiB first, {} KiB last", first.1.resident >> 10, last.1.resident >> 10);
    println!("    of it shm  {} KiB first, {} KiB last", first.1.shared >> 10, last.1.shared >> 10);
    let verdict = if is_flat { "flat" } else { "NOT FLAT" };
    println!("    slope      {:.3} bytes per million cycles, {rise:.0} bytes in all: {verdict}", slope * 1e6);
    is_flat
}

/// The resident memory of this process, in bytes.
#[derive(Clone, Copy, Debug)]
struct Memory {
    /// All of it.
    resident: u64,
    /// The part that is shared memory.
    shared: u64,
}

impl Memory {
    fn now() -> Fallible<Self> {
        let of = |name| procfs::memory(std::process::id(), name);
        Ok(Self { resident: of("VmRSS")?, shared: of("RssShmem")? })
    }
}
