//! The command line: options, their limits, and what the program hands to the processes that it starts.

use crate::units::{parse_size, Bytes};
use crate::Result;
use clap::{Parser, ValueEnum};
use std::path::{Path, PathBuf};

/// The subscriber that is slow on purpose.
const SLOW: u8 = 0;

/// Streams a file through zenoh in shared memory, once from this crate's pool and once from zenoh's own provider.
///
/// Sizes are bytes, or have a unit: 1000, 10KiB, 8MiB.
#[derive(Parser, Debug)]
#[command(name = "zenoh_pubsub")]
pub(crate) struct Options {
    /// How many subscribers to start; the first of them is slow on purpose
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=32))]
    pub(crate) subscribers: u8,

    /// Starts examples/zenoh_subscriber.py with this Python as one more subscriber
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,

    /// The file whose bytes are sent, again and again [default: this program]
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,

    /// How many messages to publish
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) messages: u64,

    /// Sizes of the messages, in turn
    #[arg(
        long,
        value_name = "SIZE,...",
        value_delimiter = ',',
        value_parser = parse_size,
        default_value = "1KiB,3000,10000,64KiB,100000,300000,1MiB,8MiB"
    )]
    pub(crate) sizes: Vec<usize>,

    /// Cap on the shared memory
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256MiB")]
    pub(crate) max_bytes: usize,

    /// How many messages the publisher may be ahead of the slowest subscriber
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) window: u16,

    /// How many messages the slow subscriber keeps while others go on
    #[arg(long, value_name = "N", default_value_t = 8)]
    hold: u16,

    /// How often the slow subscriber compares each message when it comes
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    checks: u16,

    /// Whose memory to use, one run for each
    #[arg(long, value_name = "WHOSE,...", value_delimiter = ',', default_value = "pool,zenoh")]
    pub(crate) memory: Vec<Whose>,

    /// Makes this process one of those that a run consists of
    #[arg(long, hide = true)]
    pub(crate) role: Option<Role>,

    /// Which subscriber this process is
    #[arg(long, hide = true, default_value_t = SLOW)]
    pub(crate) index: u8,

    /// Where this subscriber finds the publisher
    #[arg(long, hide = true, required_if_eq("role", "subscriber"), default_value = "")]
    pub(crate) connect: String,
}

/// What a process of a run does.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Publisher,
    Subscriber,
}

/// Whose memory messages are in.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// This crate's pool
    Pool,
    /// zenoh's default backend
    Zenoh,
}

impl Whose {
    /// As the command line has it.
    pub(crate) fn argument(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::Zenoh => "zenoh",
        }
    }
}

/// What to call a subscriber in messages.
pub(crate) fn subscriber_name(index: u8) -> String {
    let note = if index == SLOW { " (the slow one)" } else { "" };
    format!("subscriber {index}{note}")
}

impl Options {
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

    /// How many subscribers there are in all.
    pub(crate) fn audience(&self) -> u8 {
        self.subscribers + u8::from(self.python.is_some())
    }

    /// How many messages this subscriber keeps.
    pub(crate) fn hold(&self) -> usize {
        if self.index == SLOW {
            self.hold.into()
        } else {
            0
        }
    }

    /// How often this subscriber compares a message when it comes.
    pub(crate) fn checks(&self) -> u16 {
        if self.index == SLOW {
            self.checks
        } else {
            1
        }
    }

    /// What every process of a run must know alike.
    pub(crate) fn common_args(&self, file: &Path) -> Vec<String> {
        let sizes: Vec<String> = self.sizes.iter().map(usize::to_string).collect();
        vec![
            format!("--file={}", file.display()),
            format!("--messages={}", self.messages),
            format!("--sizes={}", sizes.join(",")),
        ]
    }

    /// What only this program's own processes must know.
    pub(crate) fn own_args(&self, whose: Whose) -> Vec<String> {
        vec![
            format!("--memory={}", whose.argument()),
            format!("--subscribers={}", self.audience()),
            format!("--max-bytes={}", self.max_bytes),
            format!("--window={}", self.window),
            format!("--hold={}", self.hold),
            format!("--checks={}", self.checks),
        ]
    }

    /// What the parser cannot see: do the options fit each other?
    pub(crate) fn check(&self) -> Result<()> {
        if self.sizes.contains(&0) {
            return Err("--sizes has a 0; zenoh has no shared memory of no bytes".into());
        }
        // Wherever in the memory the slow subscriber's messages lie, one gap between them fits the next message. With
        // less a publisher might wait for ever, because that subscriber lets go only when it gets something new.
        let needed = self.largest().saturating_mul(2 * usize::from(self.hold) + 2);
        if needed > self.max_bytes {
            let (needed, cap) = (Bytes(needed as u64), Bytes(self.max_bytes as u64));
            return Err(format!("--hold and --sizes need --max-bytes of at least {needed}, and it is {cap}").into());
        }
        Ok(())
    }
}
