//! The rows: how both processes start with each, and how each makes a round trip. A message with a
//! number is sent, and one with the same number returns.

#![forbid(unsafe_code)]

use crate::floor::{page, Turns};
use serde::{Deserialize, Serialize};
use shm_pool::channel::{Message, Receiver, Sender};
use shm_pool::{Client, Provider};
use shm_pool_support::machine::pin;
use shm_pool_support::process::{end_with_parent, inherited_input, inherited_output, say_ready, this_program, Child};
use shm_pool_support::Fallible;
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
    /// Through two channels that spin for that long before they park; in the slots, or in buffers
    /// of this length.
    Channel {
        spin: Duration,
        len: Option<usize>,
    },
    Socket,
    Pipe,
}

pub(crate) const FLOOR: &str = "one cache line (floor)";
pub(crate) const INLINE: &str = "channel, 32 B inline, spin";
pub(crate) const SMALLEST: &str = "channel, pooled 64 B, spin";
pub(crate) const POOLED: &str = "channel, pooled 1 MiB, spin";
pub(crate) const LARGEST: &str = "channel, pooled 16 MiB, spin";

const fn spinning(len: Option<usize>) -> Way {
    Way::Channel { spin: Duration::MAX, len }
}

const fn sleeping(len: Option<usize>) -> Way {
    Way::Channel { spin: Duration::ZERO, len }
}

pub(crate) const ROWS: [(&str, Way); 10] = [
    (FLOOR, Way::Floor),
    (INLINE, spinning(None)),
    (SMALLEST, spinning(Some(64))),
    ("channel, pooled 4 KiB, spin", spinning(Some(4 << 10))),
    (POOLED, spinning(Some(1 << 20))),
    (LARGEST, spinning(Some(16 << 20))),
    ("channel, 32 B inline, futex", sleeping(None)),
    ("channel, pooled 1 MiB, futex", sleeping(Some(1 << 20))),
    ("Unix socketpair, 32 B", Way::Socket),
    ("pipes, 32 B", Way::Pipe),
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
    pub(crate) fn ask(self, count: u64, core: Option<usize>, run: impl FnOnce(&mut dyn Ends) -> Fallible) -> Fallible {
        let names = std::process::id().to_string();
        let answer = Answer { way: self, count, names: names.clone(), core };
        let start = |input: Stdio, output: Stdio| {
            Child::start("answering process", this_program(&answer)?.stdin(input).stdout(output))
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
            Self::Socket => {
                let (ours, theirs) = UnixStream::pair()?;
                other = start(OwnedFd::from(theirs.try_clone()?).into(), OwnedFd::from(theirs).into())?;
                run(&mut Stream { input: &ours, output: &ours })?;
            }
            Self::Pipe => {
                other = start(Stdio::piped(), Stdio::piped())?;
                run(&mut Stream { input: other.output()?, output: other.input()? })?;
            }
        }
        other.finish()
    }
}

impl Answer {
    /// Runs the other process.
    pub(crate) fn run(&self) -> Fallible {
        pin(self.core)?;
        let answer = |ends: &mut dyn Ends| (0..self.count).try_for_each(|number| ends.answer(number));
        match self.way {
            Way::Floor => {
                // The other rows detect the other process's exit, and remove their objects.
                end_with_parent()?;
                answer(&mut Turns::new(&File::from(inherited_input()?), None)?)
            }
            Way::Channel { spin, len } => {
                let mut channel = Channel::create(&self.names, BACK, spin, len)?;
                channel.open(&self.names, THERE, spin)?;
                say_ready()?;
                channel.sender.wait_for_receiver(Duration::MAX)?;
                answer(&mut channel)
            }
            Way::Socket | Way::Pipe => {
                answer(&mut Stream { input: File::from(inherited_input()?), output: File::from(inherited_output()?) })
            }
        }
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

fn expect(number: u64, came: u64) -> Fallible {
    (came == number).then_some(()).ok_or_else(|| format!("message {number} came as {came}").into())
}

/// Of the messages that are copied.
const LEN: usize = 32;

fn to_bytes(number: u64) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    bytes[..8].copy_from_slice(&number.to_ne_bytes());
    bytes
}

fn from_bytes(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|at| bytes[at]))
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
    came: Option<Message>,
}

impl Channel {
    fn create(names: &str, way: &str, spin: Duration, len: Option<usize>) -> Fallible<Self> {
        let provider = Provider::builder().name_prefix(PREFIX).build()?;
        let sender = Sender::builder().spin(spin).create(&provider, &format!("{names}-{way}"))?;
        Ok(Self { provider, sender, receiver: None, len, came: None })
    }

    /// Opens the channel that the other process has created.
    fn open(&mut self, names: &str, way: &str, spin: Duration) -> Fallible {
        let client = Client::builder().name_prefix(PREFIX).build()?;
        self.receiver = Some(Receiver::builder().spin(spin).open(&client, &format!("{names}-{way}"))?);
        Ok(())
    }
}

impl Ends for Channel {
    fn send(&mut self, number: u64) -> Fallible {
        let Some(len) = self.len else { return Ok(self.sender.send_bytes(&to_bytes(number))?) };
        let mut buffer = self.provider.alloc(len)?;
        buffer[0] = number as u8;
        buffer[len - 1] = (number >> 8) as u8;
        Ok(self.sender.send(buffer.freeze())?)
    }

    fn receive(&mut self, number: u64) -> Fallible {
        let message = self.receiver.as_mut().ok_or("not open")?.recv()?;
        if message.len() != self.len.unwrap_or(LEN) {
            return Err(format!("message {number} came with {} bytes", message.len()).into());
        }
        let Some(len) = self.len else { return expect(number, from_bytes(&message)) };
        expect(number & 0xffff, u64::from(message[0]) | u64::from(message[len - 1]) << 8)?;
        self.came = Some(message);
        Ok(())
    }

    fn settle(&mut self) {
        self.came = None;
    }
}

/// Messages as bytes of a stream.
struct Stream<I, O> {
    input: I,
    output: O,
}

impl<I: Read, O: Write> Ends for Stream<I, O> {
    fn send(&mut self, number: u64) -> Fallible {
        Ok(self.output.write_all(&to_bytes(number))?)
    }

    fn receive(&mut self, number: u64) -> Fallible {
        let mut bytes = [0; LEN];
        self.input.read_exact(&mut bytes)?;
        expect(number, from_bytes(&bytes))
    }
}
