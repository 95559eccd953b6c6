//! One process publishes, others read in place, and every byte is checked.
//!
//! ```text
//! cargo run --release --example pubsub
//! cargo run --release --example pubsub -- --subscribers 5 --sizes 64,1000,4MiB --file /some/big/file
//! ```
//!
//! The publisher streams a file, again and again, as messages of mixed sizes. It allocates and
//! fills each, grants it to every subscriber and sends the descriptor over a Unix socket. The
//! subscribers are processes of their own, which the example starts itself. They compare what they
//! see with their own copy of the file. The first of them is slow on purpose: it keeps messages
//! while the others go on, and compares them again before it lets go. So it would notice memory
//! that was used again too early.
//!
//! The exit code is 0 only if every subscriber saw every message unchanged, and nothing is left
//! behind.

#![forbid(unsafe_code)]

mod options;
mod publisher;
mod subscriber;
mod wire;

use clap::Parser;
use options::Options;
use std::process::ExitCode;

/// Errors are for people to read, and go from thread to thread.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> ExitCode {
    let options = Options::parse();
    let (role, outcome) = match options.provider {
        Some(provider) => ("subscriber", subscriber::run(&options, provider)),
        None => ("publisher", publisher::run(&options)),
    };
    // As it displays itself. `main` would print it as `Debug`.
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{role}: {error}");
            ExitCode::FAILURE
        }
    }
}
