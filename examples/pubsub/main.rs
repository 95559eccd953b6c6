//! One process publishes, others read in place, and every byte is checked.
//!
//! ```text
//! cargo run --release --example pubsub
//! cargo run --release --example pubsub -- --subscribers 5 --sizes 64,1000,4MiB --file /some/big/file
//! ```
//!
//! The publisher streams a file, again and again, as messages of mixed sizes. It allocates each from the provider, fills
//! and freezes it, grants it to each subscriber and sends the 32 bytes of the descriptor over a Unix socket. The
//! subscribers, processes of their own that the example starts itself, attach and compare what they see with their own
//! copy of the file. One of them is slow on purpose: it keeps messages while the others go on, and compares them again
//! before it lets go, so that memory that was used again too early would be noticed.
//!
//! | file | what it shows |
//! |---|---|
//! | `publisher.rs` | allocate, fill, freeze, grant, send; what to do when the memory is exhausted; the check for leaks |
//! | `subscriber.rs` | connect, attach, read in place, hold, let go |
//! | `process.rs` | the publisher's end of one subscriber: start it, follow it, end it |
//! | `wire.rs` | what goes over the socket |
//! | `source.rs` | which bytes are in which message |
//! | `options.rs`, `report.rs`, `units.rs` | the command line, the table at the end, sizes as people write them |
//!
//! The exit code is 0 only if every subscriber saw every message, unchanged and in time, and nothing is left behind.

#![forbid(unsafe_code)]

mod options;
mod process;
mod publisher;
mod report;
mod source;
mod subscriber;
mod units;
mod wire;

use clap::Parser;
use options::Options;
use std::process::ExitCode;

/// Errors are for people to read: what was tried, on what, and why it failed.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let options = Options::parse();
    let (name, outcome) = match options.role() {
        Some(role) => (role.to_string(), subscriber::run(&options, role)),
        None => ("publisher".to_owned(), publisher::run(&options)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error.to_string().lines().for_each(|line| eprintln!("{name}: {line}"));
            ExitCode::FAILURE
        }
    }
}
