//! The rows, and how both processes begin with each.

#![forbid(unsafe_code)]

use crate::line::{self, Line};
use crate::support::role::{end_with_parent, Role};
use crate::support::Fallible;
use crate::ways::{Bytes, Channel, Inline, Pooled, Turns, Way};
use shm_pool::channel::{Receiver, Sender};
use shm_pool::{Client, Provider};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

/// A way there and back.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    kind: Kind,
}

enum Kind {
    Floor,
    /// Through two channels that look for so long before they sleep.
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

const THERE: &str = "there";
const BACK: &str = "back";

impl Row {
    /// Starts the other process, and does `run` with the way to it. It answers `count` times.
    pub(crate) fn ask(&self, count: u64, core: Option<usize>, run: impl FnOnce(&mut dyn Way) -> Fallible) -> Fallible {
        let names = std::process::id().to_string();
        let start = |input: Stdio, output: Stdio| {
            let row = ROWS.iter().position(|row| row.name == self.name).expect("one of them");
            let mut arguments = vec![row.to_string(), count.to_string(), names.clone()];
            arguments.extend(core.map(|core| core.to_string()));
            Role::start("answer", arguments, input, output)
        };
        match self.kind {
            Kind::Floor => {
                let (line, fd) = line::create()?;
                let mut other = start(fd.into(), Stdio::null())?;
                let mut check = || other.check_alive();
                run(&mut Turns { word: line.word(), check: &mut check })?;
                other.finish()
            }
            Kind::Channel { spin, len } => {
                let (provider, sender) = sender(&names, THERE, spin)?;
                let mut other = start(Stdio::null(), Stdio::piped())?;
                let output = other.child().stdout.as_mut().ok_or("no pipe")?;
                output.read_exact(&mut [0])?;
                let mut channel = Channel { provider, sender, receiver: receiver(&names, BACK, spin)? };
                match len {
                    None => run(&mut Inline(&mut channel))?,
                    Some(len) => run(&mut Pooled { channel: &mut channel, len, reply: None })?,
                }
                other.finish()
            }
            Kind::Socket => {
                let (ours, theirs) = UnixStream::pair()?;
                let other = start(OwnedFd::from(theirs).into(), Stdio::null())?;
                run(&mut Bytes { input: &ours, output: &ours })?;
                other.finish()
            }
            Kind::Pipe => {
                let mut other = start(Stdio::piped(), Stdio::piped())?;
                let child = other.child();
                let (output, input) = child.stdin.take().zip(child.stdout.take()).ok_or("no pipes")?;
                run(&mut Bytes { input, output })?;
                other.finish()
            }
        }
    }

    /// What the other process does.
    pub(crate) fn answer(&self, count: u64, names: &str) -> Fallible {
        let answer = |way: &mut dyn Way| (0..count).try_for_each(|number| way.answer(number));
        match self.kind {
            Kind::Floor => {
                // The other rows notice when the other process ends, and remove what they have made.
                end_with_parent()?;
                let line = Line::map(&File::from(io::stdin().as_fd().try_clone_to_owned()?))?;
                answer(&mut Turns { word: line.word(), check: &mut || Ok(()) })
            }
            Kind::Channel { spin, len } => {
                let (provider, sender) = sender(names, BACK, spin)?;
                let mut channel = Channel { provider, sender, receiver: receiver(names, THERE, spin)? };
                io::stdout().write_all(b".")?;
                io::stdout().flush()?;
                channel.sender.wait_for_receiver(Duration::MAX)?;
                match len {
                    None => answer(&mut Inline(&mut channel)),
                    Some(len) => answer(&mut Pooled { channel: &mut channel, len, reply: None }),
                }
            }
            Kind::Socket => {
                let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
                answer(&mut Bytes { input: &socket, output: &socket })
            }
            Kind::Pipe => {
                let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
                let output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
                answer(&mut Bytes { input, output })
            }
        }
    }
}

/// The same in each run, so that the next one removes what a killed one leaves.
const PREFIX: &str = "shm-pool-rtt";

fn sender(names: &str, way: &str, spin: Duration) -> Fallible<(Provider, Sender)> {
    let provider = Provider::builder().name_prefix(PREFIX).build()?;
    let sender = Sender::builder().spin(spin).create(&provider, &format!("{names}-{way}"))?;
    Ok((provider, sender))
}

fn receiver(names: &str, way: &str, spin: Duration) -> Fallible<Receiver> {
    let client = Arc::new(Client::builder().name_prefix(PREFIX).build()?);
    Ok(Receiver::builder().spin(spin).open(&client, &format!("{names}-{way}"))?)
}
