//! One process publishes, others read in place, and every byte is checked.
//!
//! ```text
//! cargo run --release --example pubsub
//! cargo run --release --example pubsub -- --subscribers 5 --sizes 64,1000,4MiB --file path/to/file
//! ```
//!
//! The publisher streams a file repeatedly, as messages of mixed sizes. It allocates and fills
//! each, grants it to every subscriber and sends the descriptor over a Unix socket. The subscribers
//! are processes that the example starts. They compare the messages with their own copy of the
//! file. The first of them is slow on purpose: it keeps messages while the others continue, and
//! compares them again before it releases them, which would reveal memory that was reused too
//! early.
//!
//! The exit code is 0 only if every subscriber saw every message unchanged, and nothing is left
//! behind.

#![forbid(unsafe_code)]

mod publisher;
mod subscriber;

use clap::Parser;
use serde::{Deserialize, Serialize};
use shm_pool::{Descriptor, PeerId};
use shm_pool_support::process::{exit_code, task};
use shm_pool_support::source::Source;
use shm_pool_support::units::parse_size;
use shm_pool_support::Fallible;
use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

/// Streams a file through shared memory to other processes, which check every byte in place.
///
/// Sizes are bytes, or have a unit: 64, 10KiB, 4MiB.
#[derive(Parser, Clone, Serialize, Deserialize)]
#[command(name = "pubsub")]
struct Options {
    /// How many subscribers to start; the first of them is slow on purpose
    #[arg(
        long,
        value_name = "N",
        default_value_t = 2,
        value_parser = clap::value_parser!(u8).range(1..=63)
    )]
    subscribers: u8,

    /// The file to send, repeatedly [default: this program]
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,

    /// How many messages to publish
    #[arg(
        long,
        value_name = "N",
        default_value_t = 8_000,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    messages: u64,

    /// Sizes of the messages, in turn
    #[arg(
        long,
        value_name = "SIZE,...",
        value_delimiter = ',',
        value_parser = parse_size,
        default_value = "64,300,1000,4KiB,10000,64KiB,100000,300000,1MiB,4MiB"
    )]
    sizes: Vec<usize>,

    /// Cap on the shared memory
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256MiB")]
    max_bytes: usize,

    /// How many messages the publisher may be ahead of the slowest subscriber
    #[arg(
        long,
        value_name = "N",
        default_value_t = 64,
        value_parser = clap::value_parser!(u16).range(1..=256)
    )]
    window: u16,

    /// How many messages the slow subscriber keeps while others continue
    #[arg(long, value_name = "N", default_value_t = 16)]
    hold: usize,
}

impl Options {
    /// The data.
    fn source(&self) -> Fallible<Source> {
        let largest = self.sizes.iter().copied().max().unwrap_or(0);
        match &self.file {
            Some(file) => Source::read(file, largest),
            None => Source::read(&env::current_exe()?, largest),
        }
    }
}

/// A subscriber's parameters.
#[derive(Serialize, Deserialize)]
struct Task {
    options: Options,
    /// The id of the provider.
    provider: u64,
    is_slow: bool,
}

/// A subscriber's first value: its [`PeerId`]. After that it sends `()` for each message that it
/// has read, found unchanged and released.
type Hello = [u8; PeerId::SIZE];

/// The publisher's values: the descriptors of the messages, and at last `None`. (A socket that
/// closes without it means that the publisher has died.)
type Announced = Option<[u8; Descriptor::SIZE]>;

fn main() -> ExitCode {
    match task::<Task>() {
        Some(task) => exit_code("subscriber", subscriber::run(&task)),
        None => exit_code("publisher", publisher::run(&Options::parse())),
    }
}
