//! A zenoh publisher on this crate's pool, subscribers that know nothing of it, and the same with zenoh's own memory.
//!
//! ```text
//! cargo run --release --features zenoh --example zenoh_pubsub
//! cargo run --release --features zenoh --example zenoh_pubsub -- --subscribers 4 --sizes 64KiB,1MiB --file /some/big/file
//! cargo run --release --features zenoh --example zenoh_pubsub -- --python python3   # with eclipse-zenoh installed
//! ```
//!
//! The publisher streams a file, again and again, as messages of mixed sizes in shared memory; one line says whose memory
//! that is. The subscribers are ordinary zenoh programs: they check that each message came as shared memory, in order, and
//! compare every byte with their own copy of the file. One of them is slow on purpose: it keeps messages while the others
//! go on, and compares them again before it lets go, so that memory that was used again too early would be noticed.
//!
//! # Loads
//!
//! A load is traffic that is hard on memory, with its own defaults of the other options. The publisher does not wait
//! for its subscribers but for memory. A load fails if the pool makes more than 16 segments, or if a subscriber ends with
//! more descriptors or mappings than it had after a tenth of the messages, except for segments that were made meanwhile.
//!
//! ```text
//! zenoh_pubsub --load mixed                  # 6.2 MB, 1 MB and 2 KB in random order, three subscribers, one is slow
//! zenoh_pubsub --load random --keep 16       # 1 B to 4 MiB, 300 a second, a subscriber that keeps 16 messages
//! zenoh_pubsub --load fixed --sizes 1MiB     # or 300 KB, a subscriber that takes 200 µs for each message
//! zenoh_pubsub --load saturated              # 1 B to 4 MiB as fast as they go, three rounds, four ratios
//! zenoh_pubsub --load mixed --memlock 8MiB   # receivers could not lock the memory: is the provider refused?
//! ```
//!
//! Only with `--memlock` is a provider that cannot be made a result, and no failure.
//!
//! # Files
//!
//! | file | what it shows |
//! |---|---|
//! | `memory.rs` | the two kinds of memory that messages are allocated from: the only place that names this crate |
//! | `publisher.rs` | allocate, fill, put; the check for leaks |
//! | `subscriber.rs` | stock zenoh: receive, read in place, hold, let go |
//! | `session.rs` | how the processes find each other: addresses, keys, what goes along with a message |
//! | `audience.rs` | what the publisher knows about its subscribers: who is there, how far they are |
//! | `footprint.rs`, `maps.rs` | how much of /dev/shm a process has mapped, seen from outside of the allocator |
//! | `holdings.rs` | how many descriptors and mappings a subscriber has, and how much of its memory is locked |
//! | `limits.rs`, `capability.rs` | what a process may have of these |
//! | `conductor.rs`, `child.rs` | starts the processes, hears of them, ends them all if one fails |
//! | `outcome.rs` | what the processes of a run have seen, and whether that may be |
//! | `median.rs`, `report.rs`, `ratios.rs` | the median of several rounds, the table at the end, four ratios |
//! | `options.rs`, `load.rs`, `clock.rs` | the command line, the loads, the clocks |
//!
//! The exit code is 0 only if every subscriber saw every message, unchanged, in order and in shared memory, and nothing is
//! left behind.

// Except for `capability`.
#![deny(unsafe_code)]

mod audience;
mod capability;
mod child;
mod clock;
mod conductor;
mod footprint;
mod holdings;
mod limits;
mod load;
mod maps;
mod median;
mod memory;
mod options;
mod outcome;
mod publisher;
mod ratios;
mod report;
mod session;
// The same file, cut into messages by the same rule, as in the example without zenoh.
#[path = "../pubsub/source.rs"]
mod source;
mod subscriber;
#[path = "../pubsub/units.rs"]
mod units;

use clap::Parser;
use options::{Options, Role};
use std::process::ExitCode;

/// Errors are for people to read: what was tried, on what, and why it failed.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> ExitCode {
    // What zenoh has to complain about; the conductor passes it on to standard error. RUST_LOG=debug tells more.
    zenoh::init_log_from_env_or("error");
    let options = Options::parse();
    let (name, outcome) = match options.role {
        None => ("zenoh_pubsub".to_owned(), conductor::run(&options)),
        Some(Role::Publisher) => {
            ("publisher".to_owned(), limits::apply(&options).and_then(|()| publisher::run(&options)))
        }
        Some(Role::Subscriber) => {
            let name = options::subscriber_name(options.index);
            (name, limits::apply(&options).and_then(|()| subscriber::run(&options)))
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error.to_string().lines().for_each(|line| eprintln!("{name}: {line}"));
            ExitCode::FAILURE
        }
    }
}
