//! The rows: how both processes start with each, and how each makes a round trip. A message with a
//! number is sent, and one with the same number returns.

#![forbid(unsafe_code)]

use crate::floor::{page, Turns};
use crate::segment::{self, Segments};
use crate::slot::Slot;
use serde::{Deserialize, Serialize};
use shm_pool::channel::{Message, Receiver, Sender};
use shm_pool::{Client, Namespace, Provider};
use shm_pool_support::machine::pin;
use shm_pool_support::process::{
    end_with_parent, inherited_input, inherited_output, say_ready, this_program, Child,
};
use shm_pool_support::{procfs, Fallible};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::Duration;

/// A way there and back.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Way {
    Floor,
    /// Through two channels that spin for that long before they park, or as they do by default; in
    /// the slots, or in buffers of this length.
    Channel {
        spin: Option<Duration>,
        len: Option<usize>,
    },
    /// Through two slots, each with a mutex and condition variables. The messages have this length.
    Slot(usize),
    /// In a new segment for each message, whose number is sent through a socket.
    Segment(usize),
    Socket(usize),
    /// Through two pipes.
    Pipe(usize),
}

const fn spin(len: usize) -> Way {
    Way::Channel {
        spin: Some(Duration::MAX),
        len: Some(len),
    }
}

const fn futex(len: usize) -> Way {
    Way::Channel {
        spin: Some(Duration::ZERO),
        len: Some(len),
    }
}

pub(crate) const FLOOR: &str = "one cache line (floor)";
pub(crate) const INLINE: &str = "channel, spin, 32 B in the slot";
pub(crate) const DEFAULT: &str = "channel, default, 32 B in the slot";
pub(crate) const PIPE: &str = "pipe, 32 B";
pub(crate) const SMALLEST: &str = "channel, spin, 64 B";
pub(crate) const POOLED: &str = "channel, spin, 1 MiB";
pub(crate) const LARGEST: &str = "channel, spin, 16 MiB";
pub(crate) const FUTEX: [&str; 2] = ["channel, futex, 4 KiB", "channel, futex, 1 MiB"];
pub(crate) const SLOT: [&str; 2] = ["mutex and condvar, 4 KiB", "mutex and condvar, 1 MiB"];

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

pub(crate) type Row = (&'static str, Way);

const INLINE_BY_DEFAULT: Row = (
    DEFAULT,
    Way::Channel {
        spin: None,
        len: None,
    },
);
const INLINE_FUTEX: Row = (
    "channel, futex, 32 B in the slot",
    Way::Channel {
        spin: Some(Duration::ZERO),
        len: None,
    },
);

/// Where both processes share a core.
pub(crate) const ROWS_ON_ONE_CORE: [Row; 5] = [
    (PIPE, Way::Pipe(INLINE_LEN)),
    INLINE_BY_DEFAULT,
    INLINE_FUTEX,
    (
        "channel, 20 µs spin, 32 B in the slot",
        Way::Channel {
            spin: Some(Duration::from_micros(20)),
            len: None,
        },
    ),
    ("Unix socket, 32 B", Way::Socket(INLINE_LEN)),
];

/// Where each process has a core.
pub(crate) const ROWS: [Row; 22] = [
    (FLOOR, Way::Floor),
    (
        INLINE,
        Way::Channel {
            spin: Some(Duration::MAX),
            len: None,
        },
    ),
    (SMALLEST, spin(64)),
    ("channel, spin, 4 KiB", spin(4 * KIB)),
    (POOLED, spin(MIB)),
    (LARGEST, spin(16 * MIB)),
    INLINE_BY_DEFAULT,
    (
        "channel, default, 4 KiB",
        Way::Channel {
            spin: None,
            len: Some(4 * KIB),
        },
    ),
    INLINE_FUTEX,
    ("channel, futex, 64 B", futex(64)),
    (FUTEX[0], futex(4 * KIB)),
    (FUTEX[1], futex(MIB)),
    ("mutex and condvar, 64 B", Way::Slot(64)),
    (SLOT[0], Way::Slot(4 * KIB)),
    (SLOT[1], Way::Slot(MIB)),
    ("shm_open for each, 64 B", Way::Segment(64)),
    ("shm_open for each, 4 KiB", Way::Segment(4 * KIB)),
    ("shm_open for each, 1 MiB", Way::Segment(MIB)),
    (PIPE, Way::Pipe(INLINE_LEN)),
    ("Unix socket, 64 B", Way::Socket(64)),
    ("Unix socket, 4 KiB", Way::Socket(4 * KIB)),
    ("Unix socket, 1 MiB", Way::Socket(MIB)),
];

/// The other process's task.
#[derive(Serialize, Deserialize)]
pub(crate) struct Answer {
    way: Way,
    count: u64,
    names: String,
    core: Option<usize>,
}

impl Way {
    /// Starts the other process, and calls `run` with the way to it. It answers `count` times.
    pub(crate) fn run(
        self,
        count: u64,
        core: Option<usize>,
        run: impl FnOnce(&mut dyn Ends) -> Fallible,
    ) -> Fallible {
        let names = std::process::id().to_string();
        let answer = Answer {
            way: self,
            count,
            names: names.clone(),
            core,
        };
        let start = |input: Stdio, output: Stdio| {
            let mut command = this_program(&answer)?;
            Child::start("answering process", command.stdin(input).stdout(output))
        };
        let mut other;
        match self {
            Self::Floor => {
                let page = page()?;
                other = start(page.try_clone()?.into(), Stdio::null())?;
                run(&mut Turns::new(&page, Some(&mut other))?)?;
            }
            Self::Channel { spin, len } => {
                let mut channel = Channel::create(&names, THERE, spin, len)?;
                other = start(Stdio::null(), Stdio::piped())?;
                other.wait_until_ready()?;
                channel.open(&names, BACK, spin)?;
                run(&mut channel)?;
            }
            Self::Slot(len) => {
                let (there, input) = Slot::create()?;
                let (back, output) = Slot::create()?;
                other = start(input.into(), output.into())?;
                run(&mut Slots {
                    there,
                    back,
                    bytes: vec![0; len],
                })?;
            }
            Self::Pipe(len) => {
                other = start(Stdio::piped(), Stdio::piped())?;
                let back = other.output()?;
                let there = other.input()?;
                run(&mut Stream::new(back, there, len))?;
            }
            Self::Segment(len) | Self::Socket(len) => {
                let (ours, theirs) = UnixStream::pair()?;
                let input = OwnedFd::from(theirs.try_clone()?);
                let output = OwnedFd::from(theirs);
                other = start(input.into(), output.into())?;
                if matches!(self, Self::Socket(_)) {
                    run(&mut Stream::new(&ours, &ours, len))?;
                } else {
                    let outcome = run(&mut Segments::new(ours, &names, [THERE, BACK], len));
                    // Those that were read are removed already.
                    procfs::remove_objects(&segment::prefix(&names));
                    outcome?;
                }
            }
        }
        other.finish()
    }
}

impl Answer {
    /// Runs the other process.
    pub(crate) fn run(&self) -> Fallible {
        pin(self.core)?;
        match self.way {
            Way::Floor => {
                // The other rows detect the other process's exit, and remove their objects.
                end_with_parent()?;
                self.answer_all(Turns::new(&File::from(inherited_input()?), None)?)
            }
            Way::Channel { spin, len } => {
                let mut channel = Channel::create(&self.names, BACK, spin, len)?;
                channel.open(&self.names, THERE, spin)?;
                say_ready()?;
                channel.sender.wait_for_receiver(Duration::MAX)?;
                self.answer_all(channel)
            }
            Way::Slot(len) => {
                end_with_parent()?;
                let back = Slot::map(&File::from(inherited_input()?))?;
                let there = Slot::map(&File::from(inherited_output()?))?;
                self.answer_all(Slots {
                    there,
                    back,
                    bytes: vec![0; len],
                })
            }
            Way::Segment(len) => {
                let socket = inherited_input()?.into();
                self.answer_all(Segments::new(socket, &self.names, [BACK, THERE], len))
            }
            Way::Socket(len) | Way::Pipe(len) => {
                let input = File::from(inherited_input()?);
                let output = File::from(inherited_output()?);
                self.answer_all(Stream::new(input, output, len))
            }
        }
    }

    fn answer_all(&self, mut ends: impl Ends) -> Fallible {
        for number in 0..self.count {
            ends.answer(number)?;
        }
        Ok(())
    }
}

/// One side's ends of a way.
pub(crate) trait Ends {
    fn send(&mut self, number: u64) -> Fallible;

    /// Waits for a message, which must have this number.
    fn receive(&mut self, number: u64) -> Fallible;

    /// Releases the last received message.
    fn settle(&mut self) {}

    /// Sends `number`, and waits for its return.
    fn round_trip(&mut self, number: u64) -> Fallible {
        self.send(number)?;
        self.receive(number)
    }

    /// Waits for `number`, and sends it back. The received message is released after that.
    fn answer(&mut self, number: u64) -> Fallible {
        self.receive(number)?;
        self.send(number)?;
        self.settle();
        Ok(())
    }
}

/// Of the messages in the slots of a channel.
const INLINE_LEN: usize = 32;

/// Writes a number into the first and the last byte.
pub(crate) fn mark(bytes: &mut [u8], number: u64) {
    let last = bytes.len() - 1;
    bytes[0] = number as u8;
    bytes[last] = (number >> 8) as u8;
}

/// Checks the length and the number.
pub(crate) fn check(bytes: &[u8], len: usize, number: u64) -> Fallible {
    match bytes {
        [first, .., last]
            if bytes.len() == len && *first == number as u8 && *last == (number >> 8) as u8 =>
        {
            Ok(())
        }
        _ => Err(format!("instead of message {number}, one of {} bytes", bytes.len()).into()),
    }
}

/// The same in each run, so that the next run removes what a killed one leaves.
const PREFIX: &str = "shm-pool-rtt";
const THERE: &str = "there";
const BACK: &str = "back";

/// Two channels, one each way.
struct Channel {
    provider: Provider,
    sender: Sender,
    receiver: Option<Receiver>,
    /// Of a buffer, of which the first and the last byte are written and read. `None` sends
    /// messages in the slots themselves.
    len: Option<usize>,
    received: Option<Message>,
}

impl Channel {
    fn create(
        names: &str,
        way: &str,
        spin: Option<Duration>,
        len: Option<usize>,
    ) -> Fallible<Self> {
        let provider = Provider::builder()
            .namespace(&Namespace::new(PREFIX).unwrap())
            .build()?;
        let mut builder = Sender::builder();
        if let Some(spin) = spin {
            builder = builder.spin(spin);
        }
        let sender = builder.create(&provider, &format!("{names}-{way}"))?;
        Ok(Self {
            provider,
            sender,
            receiver: None,
            len,
            received: None,
        })
    }

    /// Opens the channel that the other process has created.
    fn open(&mut self, names: &str, way: &str, spin: Option<Duration>) -> Fallible {
        let client = Client::in_namespace(&Namespace::new(PREFIX).unwrap());
        let mut builder = Receiver::builder();
        if let Some(spin) = spin {
            builder = builder.spin(spin);
        }
        self.receiver = Some(
            builder
                .namespace(client.namespace())
                .open(&format!("{names}-{way}"))?,
        );
        Ok(())
    }
}

impl Ends for Channel {
    fn send(&mut self, number: u64) -> Fallible {
        let Some(len) = self.len else {
            let mut bytes = [0; INLINE_LEN];
            mark(&mut bytes, number);
            return Ok(self.sender.send_copy(&bytes)?);
        };
        let mut buffer = self.provider.alloc(len)?;
        mark(&mut buffer, number);
        Ok(self.sender.send(buffer.freeze())?)
    }

    fn receive(&mut self, number: u64) -> Fallible {
        let receiver = self.receiver.as_mut().ok_or("not open")?;
        let message = receiver.recv()?;
        check(&message, self.len.unwrap_or(INLINE_LEN), number)?;
        self.received = Some(message);
        Ok(())
    }

    fn settle(&mut self) {
        self.received = None;
    }
}

/// Two slots, and the application's buffer.
struct Slots {
    there: Slot,
    back: Slot,
    bytes: Vec<u8>,
}

impl Ends for Slots {
    fn send(&mut self, number: u64) -> Fallible {
        mark(&mut self.bytes, number);
        self.there.put(&self.bytes)
    }

    fn receive(&mut self, number: u64) -> Fallible {
        let len = self.back.take(&mut self.bytes)?;
        check(&self.bytes, len, number)
    }
}

/// Messages as bytes of a stream.
pub(crate) struct Stream<I, O> {
    input: I,
    output: O,
    bytes: Vec<u8>,
}

impl<I, O> Stream<I, O> {
    pub(crate) fn new(input: I, output: O, len: usize) -> Self {
        Self {
            input,
            output,
            bytes: vec![0; len],
        }
    }
}

impl<I: Read, O: Write> Ends for Stream<I, O> {
    fn send(&mut self, number: u64) -> Fallible {
        mark(&mut self.bytes, number);
        Ok(self.output.write_all(&self.bytes)?)
    }

    fn receive(&mut self, number: u64) -> Fallible {
        self.input.read_exact(&mut self.bytes)?;
        check(&self.bytes, self.bytes.len(), number)
    }
}
