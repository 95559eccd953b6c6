//! The command line: options, the loads that set many of them, and their limits. The processes of a
//! run have them, too.

use clap::{Parser, ValueEnum};
use serde::{Deserialize, Serialize};
use shm_pool_support::units::{parse_size, Bytes};
use shm_pool_support::Fallible;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// As many chunks of a size as the pool keeps idle by default.
const MAX_RESERVED: usize = 256;

/// The subscriber that is slow on purpose.
const SLOW: u8 = 0;

/// Streams a file through zenoh in shared memory, once from this crate's pool and once from zenoh's
/// own provider.
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
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=32), default_value_t = 2)]
    pub(crate) subscribers: u8,

    /// Starts benches/zenoh_pubsub/subscriber.py with this Python as one more subscriber
    #[arg(long, value_name = "PATH", conflicts_with = "load")]
    pub(crate) python: Option<PathBuf>,

    /// The file whose bytes are sent, again and again [default: this program]
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,

    /// 200 messages instead of 2000, to see that they come
    #[arg(long, conflicts_with_all = ["load", "messages"])]
    quick: bool,

    /// How many messages to publish
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), default_value_t = 2_000,
          default_value_if("quick", "true", "200"))]
    pub(crate) messages: u64,

    /// Sizes of the messages, in turn, or as the load has it
    #[arg(long, value_name = "SIZE,...", default_value = "1KiB,3000,10000,64KiB,100000,300000,1MiB,8MiB")]
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

    /// How many messages of each size the pool reserves at the start [default: as many as can be
    /// out; with a load none]
    #[arg(long, value_name = "N")]
    reserve: Option<usize>,

    /// How many messages the publisher may be ahead of the slowest subscriber
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), default_value_t = 16)]
    pub(crate) window: u16,

    /// How many messages the slow subscriber keeps while others go on
    #[arg(long, alias = "hold", value_name = "N", default_value_t = 8)]
    keep: u16,

    /// How many bytes it keeps at most; fewer messages if these have more [default: any]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    keep_bytes: Option<usize>,

    /// How often the slow subscriber compares each message when it comes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), default_value_t = 3)]
    checks: u16,

    /// How long the slow subscriber works on each message at least
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0)]
    work: u32,

    /// Whose memory to use, one run for each
    #[arg(long, value_name = "WHOSE,...", value_delimiter = ',', default_value = "pool,zenoh")]
    pub(crate) memory: Vec<Whose>,

    /// How many runs to make for each kind of memory, in turn; the table has the median of each
    /// figure
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), default_value_t = 1)]
    pub(crate) rounds: u16,

    /// How many files each process of a run may have open, other than Python's
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub(crate) nofile: u64,

    /// How much memory each process of a run may lock, other than Python's, even if it is root's
    /// [default: as it is]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) memlock: Option<usize>,

    /// Which subscriber this process is
    #[arg(skip = SLOW)]
    pub(crate) index: u8,

    /// Where this subscriber finds the publisher
    #[arg(skip)]
    pub(crate) connect: String,

    /// `cargo bench` says so
    #[arg(long, hide = true)]
    bench: bool,
}

/// Sizes of messages in bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Sizes(Vec<usize>);

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split(',').map(parse_size).collect::<Result<_, _>>().map(Self)
    }
}

/// Whose memory messages are in.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Whose {
    /// This crate's pool
    Pool,
    /// zenoh's default backend
    Zenoh,
}

impl Whose {
    /// As the report has it.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Pool => "shm-pool",
            Self::Zenoh => "zenoh's default",
        }
    }
}

/// What to call a subscriber in messages.
pub(crate) fn subscriber_name(index: u8) -> String {
    let note = if index == SLOW { " (the slow one)" } else { "" };
    format!("subscriber {index}{note}")
}

impl Options {
    /// The command line's. A load sets some, and what is given beside it overrides that.
    pub(crate) fn of_command_line() -> Self {
        let options = Self::parse();
        let Some(load) = options.load else { return options };
        let mut given = std::env::args_os();
        let program = given.next().into_iter();
        Self::parse_from(program.chain(load.preset().split_whitespace().map(Into::into)).chain(given))
    }

    /// The file to send.
    pub(crate) fn file(&self) -> Fallible<PathBuf> {
        match &self.file {
            Some(file) => Ok(file.clone()),
            None => Ok(std::env::current_exe().map_err(|error| format!("cannot find this program's file: {error}"))?),
        }
    }

    /// The length of the longest message.
    pub(crate) fn largest(&self) -> usize {
        self.sizes.0.iter().copied().max().unwrap_or(0)
    }

    /// How many subscribers there are in all.
    pub(crate) fn audience(&self) -> u8 {
        self.subscribers + u8::from(self.python.is_some())
    }

    /// The sizes of the messages; they start over if there are more messages.
    pub(crate) fn stream(&self) -> Vec<usize> {
        self.load.map_or_else(|| self.sizes.0.clone(), |load| load.draw(&self.sizes.0, self.messages, self.seed))
    }

    /// What a publisher that knows its traffic reserves in the pool: a size, and how many messages
    /// of it.
    pub(crate) fn reserved(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let count = self.reserve.unwrap_or_else(|| self.usually_out());
        self.sizes.0.iter().map(move |&size| (size, count)).filter(|&(_, count)| count > 0)
    }

    /// How many messages of each size can be out if sizes come in turn, as far as half of the cap
    /// holds them. Not known for a load, whose sizes come as they like.
    fn usually_out(&self) -> usize {
        if self.load.is_some() {
            return 0;
        }
        let out = usize::from(self.window) + usize::from(self.keep);
        let fits = self.max_bytes / 2 / self.sizes.0.iter().sum::<usize>().max(1);
        (out.div_ceil(self.sizes.0.len()) + 1).min(fits).min(MAX_RESERVED)
    }

    /// How many messages are a tenth: what is there after them should be all that there ever is.
    pub(crate) fn first_tenth(&self) -> u64 {
        self.messages.div_ceil(10)
    }

    /// How long after the first message this one is due, if there is a rate.
    pub(crate) fn due(&self, number: u64) -> Option<Duration> {
        // So many messages last for longer than anybody waits.
        self.rate.map(|rate| Duration::from_nanos(number.saturating_mul(1_000_000_000) / u64::from(rate)))
    }

    /// How many messages this subscriber keeps.
    pub(crate) fn keep(&self) -> usize {
        if self.index == SLOW {
            self.keep.into()
        } else {
            0
        }
    }

    /// How many bytes this subscriber keeps at most.
    pub(crate) fn keep_bytes(&self) -> usize {
        self.keep_bytes.unwrap_or(usize::MAX)
    }

    /// How often this subscriber compares a message when it comes.
    pub(crate) fn checks(&self) -> u16 {
        if self.index == SLOW {
            self.checks
        } else {
            1
        }
    }

    /// How long this subscriber works on a message at least.
    pub(crate) fn work(&self) -> Duration {
        if self.index == SLOW {
            Duration::from_micros(self.work.into())
        } else {
            Duration::ZERO
        }
    }

    /// What a process of a run must know: the publisher, or a subscriber.
    pub(crate) fn of_process(&self, file: &Path, whose: Whose, index: u8, connect: &str) -> Self {
        let (file, memory, connect) = (Some(file.to_owned()), vec![whose], connect.to_owned());
        Self { file, memory, index, connect, subscribers: self.audience(), python: None, ..self.clone() }
    }

    /// What the subscriber in Python must know.
    pub(crate) fn python_args(&self, file: &Path, connect: &str) -> Vec<String> {
        let sizes: Vec<String> = self.sizes.0.iter().map(usize::to_string).collect();
        vec![
            format!("--file={}", file.display()),
            format!("--messages={}", self.messages),
            format!("--sizes={}", sizes.join(",")),
            format!("--connect={connect}"),
            format!("--index={}", self.subscribers),
        ]
    }

    /// With so much memory there is always some for the next message. Wherever the slow
    /// subscriber's messages lie, one gap between them fits it. With less a publisher might wait
    /// for ever, because that subscriber lets go only when it gets something new.
    fn always_enough(&self) -> usize {
        self.largest().saturating_mul(2 * usize::from(self.keep) + 2)
    }

    /// With less than this even memory without gaps might not do, because the slow subscriber keeps
    /// so much of it.
    fn never_enough_below(&self) -> usize {
        let kept = most_in_a_row(&self.stream(), self.keep.into());
        kept.min(self.keep_bytes()).saturating_add(self.largest())
    }

    /// May the publisher wait for ever, whoever it gets its memory from, because of gaps that are
    /// too small?
    pub(crate) fn may_run_dry(&self) -> bool {
        self.always_enough() > self.max_bytes
    }

    /// What the parser cannot see: do the options fit each other?
    pub(crate) fn check(&self) -> Fallible {
        if self.sizes.0.contains(&0) {
            return Err("--sizes has a 0; zenoh has no shared memory of no bytes".into());
        }
        // A load may come near the cap. Whether there is a gap that fits is then part of what it
        // shows.
        let needed = if self.load.is_some() { self.never_enough_below() } else { self.always_enough() };
        if needed > self.max_bytes {
            let (needed, cap) = (Bytes(needed as u64), Bytes(self.max_bytes as u64));
            return Err(format!("--keep and --sizes need --max-bytes of at least {needed}, and it is {cap}").into());
        }
        Ok(())
    }
}

/// The most segments that the pool may make in a load. Receivers keep each segment that they have
/// ever seen open, mapped and locked for as long as they run.
pub(crate) const MAX_SEGMENTS: usize = 16;

/// Traffic that one kind of memory or the other may find hard.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Load {
    /// 6.2 MB, 1 MB and 2 KB in random order, cap 64 MiB; three subscribers, of which one is slow
    /// and keeps 4 messages
    Mixed,
    /// 1 B to 4 MiB, 300 messages a second, cap 64 MiB; one subscriber, which keeps 8 messages
    Random,
    /// 300 KB as fast as they go, cap 1 GiB; one subscriber, which works on each message for 200 µs
    Fixed,
    /// 1 B to 4 MiB as fast as they go, cap 64 MiB; a slow subscriber and a fast one; prints four
    /// ratios
    Saturated,
}

impl Load {
    /// Its options. With such a window no subscriber is waited for: it is memory that the publisher
    /// waits for.
    fn preset(self) -> &'static str {
        match self {
            Self::Mixed => {
                "--subscribers=3 --messages=10000 --sizes=6200000,1000000,2000 --max-bytes=64MiB --window=65535 --keep=4"
            }
            // Where 48 of 64 MiB are kept, zenoh's own provider may come to a halt: all gaps are
            // too small.
            Self::Random => {
                "--subscribers=1 --messages=6000 --sizes=4MiB --rate=300 --max-bytes=64MiB --window=65535 \
                 --keep-bytes=44MiB --checks=1"
            }
            Self::Fixed => {
                "--subscribers=1 --messages=15000 --sizes=300000 --max-bytes=1GiB --window=65535 --keep=0 --checks=1 \
                 --work=200"
            }
            Self::Saturated => {
                "--messages=10000 --sizes=4MiB --max-bytes=64MiB --window=65535 --keep=4 --rounds=3"
            }
        }
    }

    /// The sizes of `count` messages. All processes draw the same.
    fn draw(self, sizes: &[usize], count: u64, seed: u64) -> Vec<usize> {
        let mut random = fastrand::Rng::with_seed(seed);
        let largest = sizes.iter().copied().max().unwrap_or(1);
        let turns = (0..count).zip(sizes.iter().cycle());
        let one = |(_, &in_turn): (u64, &usize)| match self {
            Self::Mixed => sizes[random.usize(..sizes.len())],
            Self::Random | Self::Saturated => random.usize(1..=largest),
            Self::Fixed => in_turn,
        };
        turns.map(one).collect()
    }
}

/// The most bytes that so many messages in a row have.
fn most_in_a_row(sizes: &[usize], messages: usize) -> usize {
    let (mut sum, mut most) = (0, 0);
    for (at, size) in sizes.iter().enumerate() {
        sum += size;
        sum -= at.checked_sub(messages).map_or(0, |gone| sizes[gone]);
        most = sum.max(most);
    }
    most
}
