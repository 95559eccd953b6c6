//! Repeats the same operation a billion times, and checks that the processes' memory does not grow.
//!
//! ```text
//! cargo run --release -p shm-pool-stress --bin soak
//! cargo run --release -p shm-pool-stress --bin soak -- --allocs 100000000 --messages 1000000
//! ```
//!
//! First one process allocates and drops, alternating between small sizes and sizes of whole pages.
//! Then it publishes messages that another process attaches to, reads and releases. With two
//! processes, rather than a client in the same one, each has its own table, mappings and heap, and
//! it is visible which of them grows.
//!
//! Each part samples each process's resident memory a hundred times (`VmRSS` of /proc/self/status,
//! which includes `RssShmem`). A line is fitted by least squares to the samples after the warm-up,
//! the first tenth. It is flat if, over all cycles, it rises by less than [`FLAT`] bytes; a byte
//! lost in every thousand cycles would make it steeper.

#![forbid(unsafe_code)]

use clap::Parser;
use shm_pool::{Client, Descriptor, PeerId, Provider, ProviderId};
use shm_pool_support::line::slope;
use shm_pool_support::process::{exit_code, inherited_input, task, this_program, Child};
use shm_pool_support::{procfs, Fallible};
use std::io::{BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Instant;

/// The most that a flat line rises over all cycles, in bytes: 16 pages. Less is indistinguishable
/// from the kernel's own counting, which is in batches of pages.
const FLAT: f64 = 65_536.0;

/// How often memory is sampled in each part.
const SAMPLES: u64 = 100;

/// Samples that are the warm-up's.
const WARM_UP: usize = SAMPLES as usize / 10;

/// Lengths that are used in turn: the smaller half is carved by cache lines.
const LENGTHS: [usize; 8] = [24, 300, 4_096, 20_000, 300_000, 1 << 20, 100, 600_000];

/// Messages in transit at a time. They are all published before the first of them is read, so that
/// both processes have something to do.
const BATCH: u64 = 32;

/// Allocates, publishes and reads very often, and fails if memory grows.
#[derive(Parser, Debug)]
#[command(name = "soak")]
struct Options {
    /// How often to allocate and drop
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1_000_000_000,
        value_parser = clap::value_parser!(u64).range(100_000..)
    )]
    allocs: u64,

    /// How many messages to publish to another process, which attaches to each and releases it
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10_000_000,
        value_parser = clap::value_parser!(u64).range(100_000..)
    )]
    messages: u64,
}

fn main() -> ExitCode {
    let outcome = match task::<(u64, u64)>() {
        Some((provider, messages)) => read(ProviderId::from(provider), messages),
        None => soak(&Options::parse()),
    };
    exit_code("soak", outcome)
}

/// Runs both parts. Returns an error if a line is not flat.
fn soak(options: &Options) -> Fallible {
    let provider = Provider::builder().max_bytes(64 << 20).build()?;
    let start = Instant::now();
    let allocs = repeat(options.allocs, |cycle| {
        provider.alloc(len(cycle))?[0] = cycle as u8;
        Ok(())
    })?;
    report_rate("alloc and drop", options.allocs, start);
    let outcome = judge("alloc and drop", &allocs);
    publish(&provider, options.messages)?;
    outcome
}

/// The length to use in this cycle.
fn len(cycle: u64) -> usize {
    LENGTHS[cycle as usize % LENGTHS.len()]
}

/// Publishes `cycles` messages to another process: each is granted, attached to, read and released.
fn publish(provider: &Provider, cycles: u64) -> Fallible {
    let (mut socket, theirs) = UnixStream::pair()?;
    let task = (u64::from(provider.id()), cycles);
    // The command, and with it this process's copy of the reader's end, is dropped at once, so that
    // the reader's death is detected.
    let reader = Child::start("reader", this_program(&task)?.stdin(OwnedFd::from(theirs)))?;
    let mut peer = [0; PeerId::SIZE];
    socket.read_exact(&mut peer)?;
    let peer = PeerId::from_bytes(peer);

    let mut descriptors = Vec::new();
    let start = Instant::now();
    let samples = repeat(cycles, |cycle| {
        let mut buffer = provider.alloc(len(cycle))?;
        mark(&mut buffer, cycle);
        descriptors.extend(buffer.freeze().grant(peer)?.to_bytes());
        if is_end_of_batch(cycle, cycles) {
            socket.write_all(&descriptors)?;
            socket.read_exact(&mut [0])?;
            descriptors.clear();
        }
        Ok(())
    })?;
    report_rate("publish, attach, release", cycles, start);
    let outcome = judge("publish, attach, release: the owner", &samples);
    drop(socket);
    reader.finish()?;
    let stats = provider.stats();
    let left = stats.bytes_leased + stats.bytes_in_use;
    if left > 0 {
        return Err(format!("{left} bytes are still leased or in use").into());
    }
    outcome
}

/// The reader's program. Its socket is the standard input: it sends its id to the provider,
/// receives descriptors, and answers each batch with a byte.
fn read(provider: ProviderId, cycles: u64) -> Fallible {
    let mut answers = UnixStream::from(inherited_input()?);
    let mut descriptors = BufReader::new(answers.try_clone()?);
    let client = Client::new();
    answers.write_all(&client.connect(provider)?.to_bytes())?;
    let samples = repeat(cycles, |cycle| {
        let mut bytes = [0; Descriptor::SIZE];
        descriptors.read_exact(&mut bytes)?;
        let view = client.attach(&Descriptor::from_bytes(bytes)?)?;
        if !is_marked(&view, cycle) {
            return Err(format!("message {cycle} has other bytes than were written").into());
        }
        drop(view);
        if is_end_of_batch(cycle, cycles) {
            answers.write_all(b".")?;
        }
        Ok(())
    })?;
    // The socket closes once the owner has printed its line.
    descriptors.read_to_end(&mut Vec::new())?;
    judge("... and the reader", &samples)
}

fn is_end_of_batch(cycle: u64, cycles: u64) -> bool {
    (cycle + 1).is_multiple_of(BATCH) || cycle + 1 == cycles
}

/// Repeats an operation, and samples this process's memory a hundred times.
fn repeat(cycles: u64, mut once: impl FnMut(u64) -> Fallible) -> Fallible<Vec<Sample>> {
    // Allocated in advance, and so not measured.
    let mut samples = Vec::with_capacity(SAMPLES as usize);
    for part in 1..=SAMPLES {
        let start = cycles * (part - 1) / SAMPLES;
        let end = cycles * part / SAMPLES;
        for cycle in start..end {
            once(cycle)?;
        }
        let process = std::process::id();
        samples.push(Sample {
            cycle: end,
            resident: procfs::memory(process, "VmRSS")?,
            shared: procfs::memory(process, "RssShmem")?,
        });
    }
    Ok(samples)
}

fn report_rate(what: &str, cycles: u64, start: Instant) {
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{what}: {cycles} cycles in {seconds:.1} s, {:.1} ns each",
        seconds * 1e9 / cycles as f64
    );
}

/// The resident memory of this process in bytes, and its shared part, after `cycle` cycles.
#[derive(Clone, Copy, Debug)]
struct Sample {
    cycle: u64,
    resident: u64,
    shared: u64,
}

/// Prints the line that fits the samples after the warm-up. Returns an error if it is not flat.
fn judge(what: &str, samples: &[Sample]) -> Fallible {
    let warm = &samples[WARM_UP..];
    let first = warm[0];
    let last = warm[warm.len() - 1];
    let mut points = Vec::new();
    for sample in warm {
        points.push((sample.cycle as f64, sample.resident as f64));
    }
    let slope = slope(&points);
    let rise = slope * (last.cycle - first.cycle) as f64;
    let is_flat = rise < FLAT;
    println!("  {what}");
    println!(
        "    resident   {} KiB first, {} KiB last",
        first.resident >> 10,
        last.resident >> 10
    );
    println!(
        "    of it shm  {} KiB first, {} KiB last",
        first.shared >> 10,
        last.shared >> 10
    );
    let verdict = if is_flat { "flat" } else { "NOT FLAT" };
    println!(
        "    slope      {:.3} bytes per million cycles, {rise:.0} bytes in all: {verdict}",
        slope * 1e6
    );
    if !is_flat {
        return Err(format!("{what}: memory grows").into());
    }
    Ok(())
}

/// Writes the cycle's number to both ends of a message. The pages in between do not matter here.
fn mark(bytes: &mut [u8], cycle: u64) {
    let number = cycle.to_le_bytes();
    let tail = bytes.len() - number.len();
    bytes[..number.len()].copy_from_slice(&number);
    bytes[tail..].copy_from_slice(&number);
}

fn is_marked(bytes: &[u8], cycle: u64) -> bool {
    let number = cycle.to_le_bytes();
    bytes.starts_with(&number) && bytes.ends_with(&number)
}
