//! What a message costs with this library, and with others, measured side by side in one run.
//!
//! Run with `cargo run --release --manifest-path benches/peers/Cargo.toml`. It prints tables and
//! the ratios that the crate promises. These options follow a `--`:
//! `--quick` only checks that everything works, `--fanout` only sends to several subscribers,
//! `--restart` only restarts publishers, and `--one-at-a-time` and `--in-flight` only compare our
//! backend and whole zenoh buffers with zenoh's provider. A peer's missing feature is a row with the
//! reason, and a missed goal is a result: neither is an error.
//!
//! | file | its one job |
//! |---|---|
//! | `child.rs` | measures in a child process, and cleans up after it |
//! | `source.rs` | what every peer can do; the library by itself, and malloc |
//! | `zenoh_peers.rs`, `iceoryx.rs` | zenoh's providers and backends; iceoryx2's publisher |
//! | `workload.rs`, `contenders.rs` | single messages, and the mixture; the contenders of each |
//! | `fanout.rs` | one publisher to several subscribers, beside iceoryx2's |
//! | `restart.rs` | a publisher that is killed and started again, beside iceoryx2's |
//! | `sent.rs` | messages sent and read, one at a time or with many in flight; our pool of zenoh buffers |
//! | `footprint.rs` | the memory that a peer takes |
//! | `report.rs` | the notes, the tables, the ratios and their goals |

mod child;
mod contenders;
mod fanout;
mod footprint;
mod iceoryx;
mod report;
mod restart;
mod sent;
mod source;
mod workload;
mod zenoh_peers;

use clap::Parser;
use contenders::Effort;
use report::{print_footprints, print_rows, Sized};
use shm_pool_support::machine::Machine;
use shm_pool_support::process::{exit_code, task};
use shm_pool_support::Fallible;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Lengths of messages of which nothing is written: an allocator of any length costs about the same.
const SIZES: [(usize, &str); 2] = [(4 << 10, "4 KiB"), (1 << 20, "1 MiB")];

/// Measures shm-pool next to zenoh's shared-memory backends, iceoryx2 and malloc.
#[derive(Parser)]
struct Arguments {
    /// Few rounds: checks that everything works, compares every byte.
    #[arg(long)]
    quick: bool,
    /// Only the table of one publisher and several subscribers.
    #[arg(long)]
    fanout: bool,
    /// Only the table of publishers that restart.
    #[arg(long)]
    restart: bool,
    /// Runs one of those publishers.
    #[arg(long, hide = true, num_args = 2, value_names = ["LIBRARY", "CHANNEL"])]
    publish: Vec<String>,
    /// Only the table of zenoh messages of which many are in flight.
    #[arg(long)]
    in_flight: bool,
    /// Only the table of zenoh messages that are alone.
    #[arg(long)]
    one_at_a_time: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // The child process's task is to use this directory for the peers' files.
    let outcome = match task::<PathBuf>() {
        Some(scratch) => measure_all(&arguments, &scratch),
        None => child::run(),
    };
    exit_code("peers", outcome)
}

fn measure_all(arguments: &Arguments, scratch: &Path) -> Fallible {
    let effort = if arguments.quick {
        Effort::QUICK
    } else {
        Effort::FULL
    };
    let machine = Machine::now();
    if let [library, name] = &arguments.publish[..] {
        iceoryx::start(scratch)?;
        return restart::publish(library, name);
    }
    report::print_machine(&machine);
    report::print_notes(effort);
    if let Err(reason) = zenoh_peers::start() {
        println!("zenoh cannot start: {reason}\n");
    }
    if let Err(reason) = iceoryx::start(scratch) {
        println!("iceoryx2 cannot start: {reason}\n");
    }

    if arguments.restart {
        return restart::measure(scratch, effort);
    }
    if arguments.fanout {
        return fanout::measure(effort);
    }
    let is_one_table = arguments.in_flight || arguments.one_at_a_time;
    // First: what the other contenders leave in the heap would slow them.
    if arguments.in_flight || !is_one_table {
        report::print_in_flight(effort);
    }
    if arguments.one_at_a_time || !is_one_table {
        report::print_one_at_a_time(effort);
    }
    if is_one_table {
        return Ok(());
    }
    let footprints = contenders::weigh_mixture(effort);
    let mut sizes: Vec<Sized> = Vec::new();
    for (len, name) in SIZES {
        let rows = contenders::time_one_by_one(len, effort);
        print_rows(&format!("alloc + drop, {name}"), &rows);
        sizes.push((name, rows));
    }
    if !effort.is_quick {
        report::print_buffers(&sizes);
    }
    let mixed = contenders::time_mixture(effort);
    print_rows("mixture, per message", &mixed);
    print_footprints(&footprints);
    fanout::measure(effort)?;
    restart::measure(scratch, effort)?;
    if effort.is_quick {
        println!("--quick: everything ran. These figures are not to be used; no ratios.");
        return Ok(());
    }
    report::print_ratios(&sizes, &mixed);
    Ok(())
}
