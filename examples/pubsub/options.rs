//! The command line: options and their limits.

use crate::units::{parse_size, Bytes};
use crate::Result;
use clap::Parser;
use shm_pool::ProviderId;
use std::fmt;
use std::path::PathBuf;

/// The subscriber that is slow on purpose.
const SLOW: u8 = 0;

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

    // At most so many announcements, and as many credits, wait in a socket unread: they fit its buffer, so that the two
    // sides never wait for each other to read.
    /// How many messages the publisher may be ahead of the slowest subscriber
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=256))]
    window: u16,

    /// How many messages the slow subscriber keeps while others go on
    #[arg(long, value_name = "N", default_value_t = 16)]
    hold: u16,

    /// How often the slow subscriber compares each message when it comes
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    checks: u16,

    /// Makes this process a subscriber of the provider with this id
    #[arg(long, hide = true, requires = "index")]
    provider: Option<u64>,

    /// Which subscriber this process is
    #[arg(long, hide = true, requires = "provider")]
    index: Option<u8>,
}

/// What a subscriber process needs to know about itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Role {
    pub(crate) index: u8,
    pub(crate) provider: ProviderId,
    /// How many messages it keeps while there are newer ones to read.
    pub(crate) hold: usize,
    /// How often it compares a message when it comes.
    pub(crate) checks: u16,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&subscriber_name(self.index))
    }
}

/// What to call a subscriber in messages.
pub(crate) fn subscriber_name(index: u8) -> String {
    let note = if index == SLOW { " (the slow one)" } else { "" };
    format!("subscriber {index}{note}")
}

impl Options {
    /// The part that this process plays, if it was started as a subscriber.
    pub(crate) fn role(&self) -> Option<Role> {
        let (provider, index) = (ProviderId::from_u64(self.provider?), self.index?);
        let (hold, checks) = if index == SLOW { (self.hold.into(), self.checks) } else { (0, 1) };
        Some(Role { index, provider, hold, checks })
    }

    /// The arguments that make this program the given subscriber of a run with these options.
    pub(crate) fn subscriber_args(&self, provider: ProviderId, index: u8) -> Vec<String> {
        let sizes: Vec<String> = self.sizes.iter().map(usize::to_string).collect();
        vec![
            format!("--provider={}", provider.to_u64()),
            format!("--index={index}"),
            format!("--sizes={}", sizes.join(",")),
            format!("--hold={}", self.hold),
            format!("--checks={}", self.checks),
        ]
    }

    /// The file to send.
    pub(crate) fn file(&self) -> Result<PathBuf> {
        match &self.file {
            Some(file) => Ok(file.clone()),
            None => Ok(std::env::current_exe().map_err(|error| format!("cannot find this program's file: {error}"))?),
        }
    }

    /// The length of the longest message.
    pub(crate) fn largest(&self) -> usize {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// How many messages may be in flight.
    pub(crate) fn window(&self) -> u64 {
        self.window.into()
    }

    /// What the parser cannot see: do the options fit each other?
    pub(crate) fn check(&self) -> Result<()> {
        let (largest, half) = (self.largest(), self.max_bytes / 2);
        // Half, and not all: one message can be filled while another is read, and rounding to a size class fits too.
        if largest > half {
            let (largest, half) = (Bytes(largest as u64), Bytes(half as u64));
            return Err(format!(
                "a message of {largest} is more than half of --max-bytes ({half}); raise that or lower --sizes"
            )
            .into());
        }
        Ok(())
    }
}
