//! The command line: options, the loads that set many of them, and their limits. The processes of a
//! run get the same options.

use clap::{Parser, ValueEnum};
use serde::{Deserialize, Serialize};
use shm_pool_support::units::{grouped, parse_size, Bytes};
use shm_pool_support::Fallible;
use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// As many chunks of a size as the pool keeps idle by default.
const MAX_RESERVED: usize = 256;

/// Sizes of messages in bytes, given as one argument.
type Sizes = Vec<usize>;

fn parse_sizes(text: &str) -> Result<Sizes, String> {
    text.split(',').map(parse_size).collect()
}

fn this_program() -> PathBuf {
    env::current_exe().unwrap_or_default()
}

/// The subscriber that is slow on purpose.
const SLOW: u8 = 0;

/// Streams a file through zenoh in shared memory, from this crate's backend of zenoh's provider,
/// from its pool of whole buffers, and from zenoh's default provider.
///
/// Sizes are bytes, or have a unit: 1000, 10KiB, 8MiB. A load changes the defaults of other
/// options.
#[derive(Parser, Clone, Debug, Serialize, Deserialize)]
#[command(name = "zenoh_pubsub", args_override_self = true)]
pub(crate) struct Options {
    /// Traffic that is hard on memory; fails if the pool makes too many segments for its receivers
    #[arg(long)]
    pub(crate) load: Option<Load>,
    /// How many subscribers to start; the first of them is slow on purpose
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u8).range(1..=32),
        default_value_t = 2
    )]
    pub(crate) subscribers: u8,
    /// Starts zenoh/benches/zenoh_pubsub/subscriber.py with this Python as one more subscriber
    #[arg(long, value_name = "PATH", conflicts_with = "load")]
    pub(crate) python: Option<PathBuf>,
    /// The file whose bytes are sent, again and again [default: this program]
    #[arg(
        long,
        value_name = "PATH",
        default_value_os_t = this_program(),
        hide_default_value = true
    )]
    pub(crate) file: PathBuf,
    /// 200 messages instead of 2000, to see that they come
    #[arg(long, conflicts_with_all = ["load", "messages"])]
    quick: bool,
    /// How many messages to publish
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..),
        default_value_t = 2_000,
        default_value_if("quick", "true", "200")
    )]
    pub(crate) messages: u64,
    /// Sizes of the messages, in turn, or as the load sets them
    #[arg(
        long,
        value_name = "SIZE,...",
        value_parser = parse_sizes,
        default_value = "1KiB,3000,10000,64KiB,100000,300000,1MiB,8MiB"
    )]
    pub(crate) sizes: Sizes,
    /// What random sizes are drawn from: the same number, the same sizes
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// How many messages to publish in a second [default: as many as go]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// Cap on the shared memory
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256MiB")]
    pub(crate) max_bytes: usize,
    /// How many messages of each size the pools reserve at the start [default: as many as can be
    /// out; with a load none]
    #[arg(long, value_name = "N")]
    reserve: Option<usize>,
    /// How many messages the publisher may be ahead of the slowest subscriber
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..),
        default_value_t = 16
    )]
    pub(crate) window: u16,
    /// How many messages the slow subscriber keeps while others go on
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) keep: usize,
    /// How many bytes it keeps at most; fewer messages if these have more [default: any]
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = parse_size,
        default_value_t = usize::MAX,
        hide_default_value = true
    )]
    pub(crate) keep_bytes: usize,
    /// How often the slow subscriber compares each message when it arrives
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..),
        default_value_t = 3
    )]
    pub(crate) checks: u16,
    /// How long the slow subscriber works on each message at least
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0)]
    pub(crate) work: u64,
    /// Whose memory to use, one run for each
    #[arg(
        long,
        value_name = "WHOSE,...",
        value_delimiter = ',',
        default_value = "pool,buffers,zenoh"
    )]
    pub(crate) memory: Vec<Whose>,
    /// How many subscribers to kill, one after the other; a new one takes the place of each. Not
    /// the slow one
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u8).range(..=32),
        default_value_t = 0,
        conflicts_with = "python"
    )]
    pub(crate) kills: u8,
    /// How many runs to make for each kind of memory, in turn; the table has the median of each
    /// figure
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..),
        default_value_t = 1
    )]
    pub(crate) rounds: u16,
    /// How much memory each process of a run may lock, other than Python's, even if it is root's
    /// [default: as it is]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) memlock: Option<usize>,
    /// `cargo bench` says so
    #[arg(long, hide = true)]
    bench: bool,
}

/// Whose memory messages are in.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Whose {
    /// This crate's backend of zenoh's provider
    Pool,
    /// Its pool of whole zenoh buffers
    Buffers,
    /// zenoh's default backend
    Zenoh,
}

impl Whose {
    /// As shown in the report.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Pool => "PoolBackend",
            Self::Buffers => "BufferPool",
            Self::Zenoh => "zenoh's default",
        }
    }
}

/// Returns the name of a subscriber in errors and in the report.
pub(crate) fn subscriber_name(index: u8) -> String {
    let note = if index == SLOW { " (the slow one)" } else { "" };
    format!("subscriber {index}{note}")
}

impl Options {
    /// Parses the command line. A load sets defaults, and explicit options override them.
    pub(crate) fn of_command_line() -> Self {
        let options = Self::parse();
        let Some(load) = options.load else {
            return options;
        };
        // The last of several values of an option is the one that counts.
        let mut given = env::args_os();
        let mut arguments = Vec::new();
        arguments.extend(given.next());
        for option in load.preset().split_whitespace() {
            arguments.push(OsString::from(option));
        }
        arguments.extend(given);
        Self::parse_from(arguments)
    }

    /// Returns the options of a subscriber: those of the slow one apply to no other, but a
    /// subscriber that is killed keeps as many messages.
    pub(crate) fn of_subscriber(&self, index: u8) -> Self {
        let mut options = self.clone();
        if index == SLOW {
            return options;
        }
        options.checks = 1;
        options.work = 0;
        if !self.is_killed(index) {
            options.keep = 0;
        }
        options
    }

    /// Returns `true` if this subscriber is to be killed: the last of those that start together,
    /// and then each replacement except the last.
    fn is_killed(&self, index: u8) -> bool {
        let first = self.subscribers - 1;
        (first..first + self.kills).contains(&index)
    }

    /// Returns after how many messages the next subscriber is to be killed, when `killed` have
    /// been.
    pub(crate) fn killed_after(&self, killed: u8) -> Option<u64> {
        if killed >= self.kills {
            return None;
        }
        let share = self.messages / (u64::from(self.kills) + 1);
        Some(share * (u64::from(killed) + 1))
    }

    /// Returns the options of each run that is compared by itself: for some loads, one for each
    /// size.
    pub(crate) fn apart(&self) -> Vec<Self> {
        let Some(Load::Paced | Load::FlatOut | Load::First) = self.load else {
            return vec![self.clone()];
        };
        let mut apart = Vec::new();
        for &size in &self.sizes {
            let mut options = self.clone();
            options.sizes = vec![size];
            apart.push(options);
        }
        apart
    }

    /// Names the run among the figures of all benches.
    pub(crate) fn name(&self) -> String {
        let Some(load) = self.load else {
            return "zenoh_pubsub".to_owned();
        };
        let load = load.to_possible_value().expect("a load without `skip`");
        let largest = Bytes(self.largest() as u64);
        format!("zenoh_pubsub {} {largest}", load.get_name())
    }

    /// The length of the longest message.
    pub(crate) fn largest(&self) -> usize {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// How many subscribers there are in all.
    pub(crate) fn audience(&self) -> u8 {
        self.subscribers + u8::from(self.python.is_some())
    }

    /// Returns the sizes of the messages, which repeat if there are more messages. All processes
    /// draw the same.
    pub(crate) fn stream(&self) -> Vec<usize> {
        let mut random = fastrand::Rng::with_seed(self.seed);
        let mut sizes = Vec::new();
        match self.load {
            None | Some(Load::Fixed | Load::Paced | Load::FlatOut | Load::First) => {
                sizes.extend(&self.sizes);
            }
            Some(Load::Mixed) => {
                for _ in 0..self.messages {
                    sizes.push(self.sizes[random.usize(..self.sizes.len())]);
                }
            }
            Some(Load::Random | Load::Saturated | Load::Killed) => {
                for _ in 0..self.messages {
                    sizes.push(random.usize(1..=self.largest()));
                }
            }
        }
        sizes
    }

    /// Describes the messages and their sizes for a reader.
    pub(crate) fn describe_sizes(&self) -> String {
        let mut sizes = Vec::new();
        for &size in &self.sizes {
            sizes.push(Bytes(size as u64).to_string());
        }
        let rule = match self.load {
            Some(Load::Random | Load::Saturated | Load::Killed) => "up to ",
            _ => "",
        };
        let messages = grouped(self.messages);
        format!("{messages} messages of {rule}{}", sizes.join(", "))
    }

    /// Returns what a publisher that knows its traffic reserves in the pool: sizes, and how many
    /// messages of each.
    pub(crate) fn reserved(&self) -> Vec<(usize, usize)> {
        let count = match self.reserve {
            Some(count) => count,
            None => self.usually_out(),
        };
        let mut reserved = Vec::new();
        if count > 0 {
            for &size in &self.sizes {
                reserved.push((size, count));
            }
        }
        reserved
    }

    /// Returns how many messages of each size can be out if sizes take turns, as far as half of the
    /// cap holds them. 0 for a load, whose sizes are random.
    fn usually_out(&self) -> usize {
        if self.load.is_some() {
            return 0;
        }
        let out = usize::from(self.window) + self.keep;
        let of_each_size = out.div_ceil(self.sizes.len()) + 1;
        let turn = self.sizes.iter().sum::<usize>().max(1);
        let fits = self.max_bytes / 2 / turn;
        of_each_size.min(fits).min(MAX_RESERVED)
    }

    /// Returns how many messages are a tenth. Nothing should grow any more after them.
    pub(crate) fn first_tenth(&self) -> u64 {
        self.messages.div_ceil(10)
    }

    /// Returns how long after the first message this one is due, if there is a rate.
    pub(crate) fn due(&self, number: u64) -> Option<Duration> {
        let rate = u64::from(self.rate?);
        // A number that saturates here is due long after any run has ended.
        let nanoseconds = number.saturating_mul(1_000_000_000) / rate;
        Some(Duration::from_nanos(nanoseconds))
    }

    /// Returns how much memory always has room for the next message: wherever the slow subscriber's
    /// messages lie, one gap between them fits it. With less, a publisher might wait forever,
    /// because that subscriber drops messages only when it receives new ones.
    fn always_enough(&self) -> usize {
        self.largest()
            .saturating_mul(self.keep.saturating_add(1))
            .saturating_mul(2)
    }

    /// Returns `true` if gaps that are too small could make the publisher wait forever, with any
    /// memory.
    pub(crate) fn may_run_dry(&self) -> bool {
        self.always_enough() > self.max_bytes
    }

    /// Checks what the parser cannot: that the options are consistent.
    pub(crate) fn check(&self) -> Fallible {
        if self.sizes.contains(&0) {
            return Err("--sizes has a 0; zenoh has no shared memory of no bytes".into());
        }
        // A load may get near the cap, where finding a gap that fits is part of the test.
        if self.load.is_none() && self.may_run_dry() {
            return Err(format!(
                "--keep and --sizes need --max-bytes of at least {}, and it is {}",
                Bytes(self.always_enough() as u64),
                Bytes(self.max_bytes as u64)
            )
            .into());
        }
        if self.kills > 0 && (self.subscribers < 2 || self.memory.contains(&Whose::Zenoh)) {
            return Err(
                "--kills needs two subscribers, and memory that tells what is in use: \
                 pool or buffers"
                    .into(),
            );
        }
        Ok(())
    }
}

/// Traffic that shows what one kind of memory or the other is good at.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Load {
    /// 6.2 MB, 1 MB and 2 KB in random order, cap 64 MiB; three subscribers, of which one is slow
    /// and keeps 4 messages
    Mixed,
    /// 1 B to 4 MiB, 300 messages a second, cap 64 MiB; one subscriber, which keeps 8 messages
    Random,
    /// 300 KB as fast as they go, cap 1 GiB; one subscriber, which works on each message for 200 µs
    Fixed,
    /// 1 B to 4 MiB as fast as they go, cap 64 MiB; a slow subscriber and a fast one; compares
    Saturated,
    /// 1 KiB, 64 KiB and 1 MiB, each by itself, 500 a second to one subscriber; compares
    Paced,
    /// 1 KiB, 64 KiB and 1 MiB, each by itself, as fast as they go to one subscriber; compares
    FlatOut,
    /// The first 100 messages of 1 KiB, 64 KiB and 1 MiB, each by itself, as fast as they go, with
    /// as many reserved as can be out; compares
    First,
    /// 50,000 messages of 1 B to 1 MiB as fast as they go, cap 64 MiB; three subscribers, of which
    /// one is slow and keeps 8 messages, and one is killed with as many, three times
    Killed,
}

impl Load {
    /// Returns its options. With a window of 65535 messages, the publisher never waits for a
    /// subscriber, only for memory.
    fn preset(self) -> &'static str {
        match self {
            Self::Mixed => {
                "--subscribers=3 --messages=10000 --sizes=6200000,1000000,2000 --max-bytes=64MiB \
                 --window=65535 --keep=4"
            }
            // If 48 of 64 MiB are kept, zenoh's own provider may come to a halt: all gaps are too
            // small.
            Self::Random => {
                "--subscribers=1 --messages=6000 --sizes=4MiB --rate=300 --max-bytes=64MiB \
                 --window=65535 --keep-bytes=44MiB --checks=1"
            }
            Self::Fixed => {
                "--subscribers=1 --messages=15000 --sizes=300000 --max-bytes=1GiB \
                 --window=65535 --keep=0 --checks=1 --work=200"
            }
            Self::Saturated => {
                "--messages=10000 --sizes=4MiB --max-bytes=64MiB --window=65535 --keep=4 --rounds=3"
            }
            Self::Paced => {
                "--subscribers=1 --messages=2000 --sizes=1KiB,64KiB,1MiB --rate=500 \
                 --window=65535 --keep=0 --checks=1 --rounds=9"
            }
            Self::FlatOut => {
                "--subscribers=1 --messages=10000 --sizes=1KiB,64KiB,1MiB --keep=0 --checks=1 \
                 --rounds=9"
            }
            Self::First => {
                "--subscribers=1 --messages=100 --sizes=1KiB,64KiB,1MiB --max-bytes=64MiB --keep=0 \
                 --checks=1 --reserve=17 --rounds=25"
            }
            Self::Killed => {
                "--subscribers=3 --messages=50000 --sizes=1MiB --max-bytes=64MiB --window=65535 \
                 --keep=8 --kills=3 --memory=buffers,pool"
            }
        }
    }
}
