//! The rows: how both processes begin with each, and what a round trip is by each way. A message
//! with a number goes there, and one with the same number comes back.

#![forbid(unsafe_code)]

use crate::line::{self, Line};
use serde::{Deserialize, Serialize};
use shm_pool::channel::{Message, Receiver, Sender};
use shm_pool::{Client, Provider};
use shm_pool_support::machine::pin;
use shm_pool_support::process::{end_with_parent, inherited_input, inherited_output, this_program, Child};
use shm_pool_support::Fallible;
use std::fs::File;
use std::hint::spin_loop;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// A way there and back.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Floor,
    /// Through two channels that look for so long before they sleep; in the slots, or in buffers of
    /// this length.
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

const fn spinning(name: &'static str, len: Option<usize>) -> Row {
    Row { name, kind: Kind::Channel { spin: Duration::MAX, len } }
}

const fn sleeping(name: &'static str, len: Option<usize>) -> Row {
    Row { name, kind: Kind::Channel { spin: Duration::ZERO, len } }
}

pub(crate) const ROWS: &[Row] = &[
    Row { name: FLOOR, kind: Kind::Floor },
    spinning(INLINE, None),
    spinning(SMALLEST, Some(64)),
    spinning("channel, pooled 4 KiB, spin", Some(4 << 10)),
    spinning(POOLED, Some(1 << 20)),
    spinning(LARGEST, Some(16 << 20)),
    sleeping("channel, 32 B inline, futex", None),
    sleeping("channel, pooled 1 MiB, futex", Some(1 << 20)),
    Row { name: "Unix socketpair, 32 B", kind: Kind::Socket },
    Row { name: "pipes, 32 B", kind: Kind::Pipe },
];

/// What the other process is told.
#[derive(Serialize, Deserialize)]
pub(crate) struct Answer {
    row: usize,
    count: u64,
    names: String,
    core: Option<usize>,
}

impl Row {
    /// Starts the other process, and does `run` with the way to it. It answers `count` times.
    pub(crate) fn ask(&self, count: u64, core: Option<usize>, run: impl FnOnce(&mut dyn Way) -> Fallible) -> Fallible {
        let names = std::process::id().to_string();
        let row = ROWS.iter().position(|row| row.name == self.name).expect("one of them");
        let task = Answer { row, count, names: names.clone(), core };
        let start = |input: Stdio, output: Stdio| {
            Child::start("answering process", this_program(&task)?.stdin(input).stdout(output))
        };
        let mut other;
        match self.kind {
            Kind::Floor => {
                let (line, fd) = line::create()?;
                other = start(fd.into(), Stdio::null())?;
                let mut check = || other.check_alive();
                run(&mut Turns { word: line.word(), side: 0, check: &mut check })?;
            }
            Kind::Channel { spin, len } => {
                let (provider, sender) = sender(&names, THERE, spin)?;
                other = start(Stdio::null(), Stdio::piped())?;
                other.output()?.read_exact(&mut [0])?;
                run(Channel { provider, sender, receiver: receiver(&names, BACK, spin)? }.way(len).as_mut())?;
            }
            Kind::Socket => {
                let (ours, theirs) = UnixStream::pair()?;
                other = start(OwnedFd::from(theirs).into(), Stdio::null())?;
                run(&mut Bytes { input: &ours, output: &ours })?;
            }
            Kind::Pipe => {
                other = start(Stdio::piped(), Stdio::piped())?;
                run(&mut Bytes { input: other.output()?, output: other.input()? })?;
            }
        }
        other.finish()
    }
}

impl Answer {
    /// What the other process does.
    pub(crate) fn run(&self) -> Fallible {
        pin(self.core)?;
        let answer = |way: &mut dyn Way| (0..self.count).try_for_each(|number| way.answer(number));
        match ROWS[self.row].kind {
            Kind::Floor => {
                // The other rows notice when the other process ends, and remove what they have
                // made.
                end_with_parent()?;
                let line = Line::map(&File::from(inherited_input()?))?;
                answer(&mut Turns { word: line.word(), side: 1, check: &mut || Ok(()) })
            }
            Kind::Channel { spin, len } => {
                let (provider, sender) = sender(&self.names, BACK, spin)?;
                let mut channel = Channel { provider, sender, receiver: receiver(&self.names, THERE, spin)? };
                io::stdout().write_all(b".")?;
                io::stdout().flush()?;
                channel.sender.wait_for_receiver(Duration::MAX)?;
                answer(channel.way(len).as_mut())
            }
            Kind::Socket => {
                let socket = UnixStream::from(inherited_input()?);
                answer(&mut Bytes { input: &socket, output: &socket })
            }
            Kind::Pipe => {
                let (input, output) = (File::from(inherited_input()?), File::from(inherited_output()?));
                answer(&mut Bytes { input, output })
            }
        }
    }
}

/// The same in each run, so that the next one removes what a killed one leaves.
const PREFIX: &str = "shm-pool-rtt";
const THERE: &str = "there";
const BACK: &str = "back";

fn sender(names: &str, way: &str, spin: Duration) -> Fallible<(Provider, Sender)> {
    let provider = Provider::builder().name_prefix(PREFIX).build()?;
    let sender = Sender::builder().spin(spin).create(&provider, &format!("{names}-{way}"))?;
    Ok((provider, sender))
}

fn receiver(names: &str, way: &str, spin: Duration) -> Fallible<Receiver> {
    let client = Arc::new(Client::builder().name_prefix(PREFIX).build()?);
    Ok(Receiver::builder().spin(spin).open(&client, &format!("{names}-{way}"))?)
}

/// One side's ends of a way.
pub(crate) trait Way {
    fn send(&mut self, number: u64) -> Fallible;

    /// Waits for a message, which must have this number.
    fn receive(&mut self, number: u64) -> Fallible;

    /// Lets go of what was received last.
    fn settle(&mut self) {}

    /// Sends `number`, and waits for it to come back.
    fn round_trip(&mut self, number: u64) -> Fallible {
        self.send(number)?;
        self.receive(number)
    }

    /// Waits for `number`, and sends it back. What came is let go of after that.
    fn answer(&mut self, number: u64) -> Fallible {
        self.receive(number)?;
        self.send(number)?;
        self.settle();
        Ok(())
    }
}

fn expect(number: u64, came: u64) -> Fallible {
    if came == number {
        Ok(())
    } else {
        Err(format!("message {number} came as {came}").into())
    }
}

/// A word that says whose turn it is: odd when a number is on its way there.
struct Turns<'a> {
    word: &'a AtomicU64,
    /// 1 for who answers.
    side: u64,
    /// Is the other side alive? Asked when it takes long.
    check: &'a mut dyn FnMut() -> Fallible,
}

impl Way for Turns<'_> {
    fn send(&mut self, number: u64) -> Fallible {
        self.word.store(2 * number + 1 + self.side, Ordering::Release);
        Ok(())
    }

    fn receive(&mut self, number: u64) -> Fallible {
        const LOOKS: u32 = 1 << 20;
        loop {
            for _ in 0..LOOKS {
                if self.word.load(Ordering::Acquire) == 2 * number + 2 - self.side {
                    return Ok(());
                }
                spin_loop();
            }
            (self.check)()?;
        }
    }
}

/// Two channels, one each way.
struct Channel {
    provider: Provider,
    sender: Sender,
    receiver: Receiver,
}

impl Channel {
    fn way(self, len: Option<usize>) -> Box<dyn Way> {
        match len {
            None => Box::new(Inline(self)),
            Some(len) => Box::new(Pooled { channel: self, len, came: None }),
        }
    }
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

/// Messages in the slots themselves.
struct Inline(Channel);

impl Way for Inline {
    fn send(&mut self, number: u64) -> Fallible {
        Ok(self.0.sender.send_bytes(&to_bytes(number))?)
    }

    fn receive(&mut self, number: u64) -> Fallible {
        match self.0.receiver.recv()? {
            Message::Bytes(bytes) if bytes.len() == LEN => expect(number, from_bytes(&bytes)),
            other => Err(format!("message {number} came as {other:?}").into()),
        }
    }
}

/// Messages in buffers, of which the first and the last byte are written and read.
struct Pooled {
    channel: Channel,
    len: usize,
    came: Option<Message>,
}

impl Way for Pooled {
    fn send(&mut self, number: u64) -> Fallible {
        let mut buffer = self.channel.provider.alloc(self.len)?;
        buffer[0] = number as u8;
        buffer[self.len - 1] = (number >> 8) as u8;
        Ok(self.channel.sender.send(buffer.freeze())?)
    }

    fn receive(&mut self, number: u64) -> Fallible {
        let message = self.channel.receiver.recv()?;
        if message.len() != self.len {
            return Err(format!("message {number} came with {} bytes", message.len()).into());
        }
        let came = u64::from(message[0]) | u64::from(message[self.len - 1]) << 8;
        expect(number & 0xffff, came)?;
        self.came = Some(message);
        Ok(())
    }

    fn settle(&mut self) {
        self.came = None;
    }
}

/// Messages as bytes of a stream.
struct Bytes<I, O> {
    input: I,
    output: O,
}

impl<I: Read, O: Write> Way for Bytes<I, O> {
    fn send(&mut self, number: u64) -> Fallible {
        Ok(self.output.write_all(&to_bytes(number))?)
    }

    fn receive(&mut self, number: u64) -> Fallible {
        let mut bytes = [0; LEN];
        self.input.read_exact(&mut bytes)?;
        expect(number, from_bytes(&bytes))
    }
}
