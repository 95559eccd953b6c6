//! The command line.

use crate::Result;
use clap::Parser;
use shm_pool_support::source::Source;
use std::path::PathBuf;

/// Streams a file through shared memory to other processes, which check every byte in place.
///
/// Sizes are bytes, or have a unit: 64, 10KiB, 4MiB.
#[derive(Parser, Debug)]
#[command(name = "pubsub")]
pub(crate) struct Options {
    /// How many subscribers to start; the first of them is slow on purpose
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=63))]
    pub(crate) subscribers: u8,

    /// The file whose bytes are sent, again and again [default: this program]
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,

    /// How many messages to publish
    #[arg(long, value_name = "N", default_value_t = 8_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) messages: u64,

    /// Sizes of the messages, in turn
    #[arg(
        long,
        value_name = "SIZE,...",
        value_delimiter = ',',
        value_parser = parse_size,
        default_value = "64,300,1000,4KiB,10000,64KiB,100000,300000,1MiB,4MiB"
    )]
    pub(crate) sizes: Vec<usize>,

    /// Cap on the shared memory
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256MiB")]
    pub(crate) max_bytes: usize,

    /// How many messages the publisher may be ahead of the slowest subscriber
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) window: u16,

    /// How many messages the slow subscriber keeps while others go on
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub(crate) hold: usize,

    /// Makes this process a subscriber of the provider with this id
    #[arg(long, hide = true)]
    pub(crate) provider: Option<u64>,

    /// Makes it the slow one
    #[arg(long, hide = true)]
    pub(crate) slow: bool,
}

/// Bytes, or with a unit.
fn parse_size(text: &str) -> std::result::Result<usize, String> {
    let digits = text.trim_end_matches(char::is_alphabetic);
    let shift = match &text[digits.len()..] {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        unit => return Err(format!("unit {unit:?} is none of B, KiB, MiB, GiB")),
    };
    let number: usize = digits.parse().map_err(|_| format!("{digits:?} is not a whole number of bytes"))?;
    number.checked_mul(1 << shift).ok_or_else(|| "more bytes than this machine can address".to_owned())
}

impl Options {
    /// The data.
    pub(crate) fn source(&self) -> Result<Source> {
        let file = self.file.clone().map_or_else(std::env::current_exe, Ok)?;
        Source::read(&file, self.sizes.iter().copied().max().unwrap_or(0))
    }
}
