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
//! | file | what it shows |
//! |---|---|
//! | `memory.rs` | the two kinds of memory that messages are allocated from: the only place that names this crate |
//! | `publisher.rs` | allocate, fill, put; the check for leaks |
//! | `subscriber.rs` | stock zenoh: receive, read in place, hold, let go |
//! | `session.rs` | how the processes find each other: addresses, keys, what goes along with a message |
//! | `audience.rs` | what the publisher knows about its subscribers: who is there, how far they are |
//! | `footprint.rs` | how much of /dev/shm a process has mapped, seen from outside of the allocator |
//! | `conductor.rs`, `child.rs` | starts the processes, hears of them, ends them all if one fails |
//! | `options.rs`, `report.rs`, `clock.rs` | the command line, the table at the end, a clock that processes share |
//!
//! The exit code is 0 only if every subscriber saw every message, unchanged, in order and in shared memory, and nothing is
//! left behind.

// Except for the clock.
#![deny(unsafe_code)]

mod audience;
mod child;
mod clock;
mod conductor;
mod footprint;
mod memory;
mod options;
mod publisher;
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
    // What zenoh has to complain about goes to standard error. RUST_LOG=debug tells more.
    zenoh::init_log_from_env_or("error");
    let options = Options::parse();
    let (name, outcome) = match options.role {
        None => ("zenoh_pubsub".to_owned(), conductor::run(&options)),
        Some(Role::Publisher) => ("publisher".to_owned(), publisher::run(&options)),
        Some(Role::Subscriber) => (options::subscriber_name(options.index), subscriber::run(&options)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error.to_string().lines().for_each(|line| eprintln!("{name}: {line}"));
            ExitCode::FAILURE
        }
    }
}
