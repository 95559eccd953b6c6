//! The rows, and the receiver's hold on the publisher of one: starts it, gives it orders, receives
//! and checks what it sends, and sees it end.

#![forbid(unsafe_code)]

use crate::publisher::{publish, Bytes, Message, Order, Pace};
use crate::ways::{Busy, Incoming, Outgoing};
use serde::{Deserialize, Serialize};
use shm_pool::channel::{Receiver, Sender};
use shm_pool::{Client, Provider};
use shm_pool_support::machine::pin;
use shm_pool_support::process::{inherited_output, this_program, Child};
use shm_pool_support::{clock, wire, Fallible};
use std::fmt::Display;
use std::io::{self, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::sync::{mpsc, Arc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// What names in /dev/shm start with. The same in each run, so that a run removes what a killed one
/// left.
pub(crate) const PREFIX: &str = "receiver-latency";

/// A way from the publisher to the receiver.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// Our channel, whose ends look for so long before they sleep.
    Channel { spin: Duration },
    /// A stream between two processes.
    Socket { is_busy: bool },
    /// A queue between two threads of one process.
    Threads { is_busy: bool },
}

/// The default of the library.
const SPIN: Duration = Duration::from_micros(20);

/// How many messages may be under way in our channel and in the queue of the threads: the library's
/// default.
pub(crate) const SLOTS: usize = 256;

/// Our channel as it is without options: the row of the self-test.
pub(crate) const DEFAULT: usize = 1;

pub(crate) const ROWS: &[Row] = &[
    Row { name: "channel, busy poll", kind: Kind::Channel { spin: Duration::MAX } },
    Row { name: "channel, 20 µs spin, then futex", kind: Kind::Channel { spin: SPIN } },
    Row { name: "Unix socketpair, busy poll", kind: Kind::Socket { is_busy: true } },
    Row { name: "Unix socketpair, blocking", kind: Kind::Socket { is_busy: false } },
    Row { name: "std mpsc, two threads, busy poll", kind: Kind::Threads { is_busy: true } },
    Row { name: "std mpsc, two threads, blocking", kind: Kind::Threads { is_busy: false } },
];

/// What the publisher's process is told. Its orders come by the standard input.
#[derive(Serialize, Deserialize)]
pub(crate) struct Task {
    row: usize,
    slots: usize,
    /// Of the channel.
    name: String,
    core: Option<usize>,
}

impl Task {
    /// Publishes until there are no more orders, or the receiver is gone.
    pub(crate) fn run(&self) -> Fallible {
        pin(self.core)?;
        match ROWS[self.row].kind {
            Kind::Channel { spin } => {
                let provider = Provider::builder().name_prefix(PREFIX).build()?;
                let mut sender = Sender::builder().spin(spin).capacity(self.slots).create(&provider, &self.name)?;
                // There is something to open now.
                io::stdout().write_all(b".")?;
                io::stdout().flush()?;
                publish(io::stdin(), &mut sender)
            }
            Kind::Socket { is_busy } => {
                let mut socket = UnixStream::from(inherited_output()?);
                socket.set_nonblocking(is_busy)?;
                match is_busy {
                    true => publish(io::stdin(), &mut Busy(socket)),
                    false => publish(io::stdin(), &mut socket),
                }
            }
            Kind::Threads { .. } => Err("its publisher is a thread".into()),
        }
    }
}

/// Bytes that are read from a socket at once.
const READ: usize = 64 << 10;

/// The receiver's end. Between orders it takes no processor time.
pub(crate) struct Link {
    way: Box<dyn Incoming>,
    publisher: Publisher,
    received: u64,
}

struct Publisher {
    orders: Box<dyn Write>,
    runs: Runs,
}

enum Runs {
    Process(Child),
    Thread(JoinHandle<Fallible>),
}

impl Link {
    /// Starts the publisher of a row on a core. In a channel, or in the threads' queue, so many
    /// messages have room.
    pub(crate) fn start(row: usize, slots: usize, core: Option<usize>) -> Fallible<Self> {
        let name = format!("{}-{row}-{slots}", std::process::id());
        let task = Task { row, slots, name, core };
        let (way, publisher): (Box<dyn Incoming>, _) = match ROWS[row].kind {
            Kind::Channel { spin } => {
                let mut publisher = Publisher::process(&task, Stdio::piped())?;
                publisher.wait_for_sign()?;
                let client = Arc::new(Client::builder().name_prefix(PREFIX).build()?);
                (Box::new(Receiver::builder().spin(spin).open(&client, &task.name)?), publisher)
            }
            Kind::Socket { is_busy } => {
                let (ours, theirs) = UnixStream::pair()?;
                ours.set_nonblocking(is_busy)?;
                let publisher = Publisher::process(&task, OwnedFd::from(theirs).into())?;
                match is_busy {
                    true => (Box::new(BufReader::with_capacity(READ, Busy(ours))), publisher),
                    false => (Box::new(BufReader::with_capacity(READ, ours)), publisher),
                }
            }
            Kind::Threads { is_busy } => {
                let (sender, receiver) = mpsc::sync_channel::<Bytes>(slots);
                match is_busy {
                    true => (Box::new(Busy(receiver)), Publisher::thread(Busy(sender), core)?),
                    false => (Box::new(receiver), Publisher::thread(sender, core)?),
                }
            }
        };
        Ok(Self { way, publisher, received: 0 })
    }

    /// Has an order carried out, and receives and checks all of its messages: `each` gets them with
    /// the time at which they were there. Returns how long it took from when the first was due
    /// until the last was there, and the interval before the first: each message has one, so that
    /// no more than the rate is achieved.
    pub(crate) fn repeat(&mut self, order: Order, mut each: impl FnMut(u64, &Message)) -> Fallible<Duration> {
        wire::send(&mut self.publisher.orders, &order).map_err(ended_early)?;
        let mut due: Option<Pace> = None;
        let (mut start, mut end) = (None, 0);
        for received in 0..order.count {
            let bytes = self.way.receive()?;
            let now = clock::now();
            let bytes = bytes.ok_or_else(|| {
                format!("the publisher is gone, and {} of {} messages are lost", order.count - received, order.count)
            })?;
            let message = Message::from_bytes(&bytes)?;
            let intended = due.get_or_insert_with(|| Pace::new(message.intended, order.rate)).next();
            check(&message, self.received, intended, now)?;
            each(now, &message);
            start.get_or_insert(message.intended);
            (self.received, end) = (self.received + 1, now);
        }
        let interval = Duration::from_secs(1).div_f64(order.rate as f64);
        Ok(Duration::from_nanos(end - start.unwrap_or(end)) + interval)
    }

    /// Ends the publisher, which must have sent nothing that was not asked for.
    pub(crate) fn finish(mut self) -> Fallible {
        let is_over = self.publisher.dismiss(|| Ok(self.way.receive()?.is_none()))?;
        if is_over {
            Ok(())
        } else {
            Err(format!("more came than the {} messages that were sent", self.received).into())
        }
    }
}

fn check(message: &Message, number: u64, intended: Option<u64>, now: u64) -> Fallible {
    if message.number != number {
        return Err(format!("message {number} came as {}", message.number).into());
    }
    if Some(message.intended) != intended {
        return Err(format!("message {number} has another intended time than the rate gives it").into());
    }
    if message.actual < message.intended || now < message.actual {
        return Err(format!(
            "message {number} was due at {} ns, sent at {} and received at {now}: the cores' clocks differ, and \
             nothing can be measured",
            message.intended, message.actual
        )
        .into());
    }
    Ok(())
}

fn ended_early(error: impl Display) -> String {
    format!("the publisher ended early: {error}")
}

impl Publisher {
    fn process(task: &Task, output: Stdio) -> Fallible<Self> {
        // In a group of its own: Ctrl-C at the terminal ends the receiver; this process notices,
        // and removes what it made.
        let mut command = this_program(task)?;
        let mut process = Child::start("publisher", command.stdin(Stdio::piped()).stdout(output).process_group(0))?;
        Ok(Self { orders: Box::new(process.input()?), runs: Runs::Process(process) })
    }

    fn thread(mut sender: impl Outgoing + Send + 'static, core: Option<usize>) -> Fallible<Self> {
        let (orders, given) = UnixStream::pair()?;
        let thread = thread::spawn(move || {
            pin(core)?;
            publish(given, &mut sender)
        });
        Ok(Self { orders: Box::new(orders), runs: Runs::Thread(thread) })
    }

    /// Waits until the process says that its channel can be opened.
    fn wait_for_sign(&mut self) -> Fallible {
        match &mut self.runs {
            Runs::Process(process) => Ok(process.output()?.read_exact(&mut [0]).map_err(ended_early)?),
            Runs::Thread(_) => Ok(()),
        }
    }

    /// Says that there are no more orders, does `last`, and waits until it has ended, as it must,
    /// with success.
    fn dismiss<T>(self, last: impl FnOnce() -> Fallible<T>) -> Fallible<T> {
        drop(self.orders);
        let last = last()?;
        match self.runs {
            Runs::Process(process) => process.finish()?,
            Runs::Thread(thread) => thread.join().map_err(|_| "the publisher panicked")??,
        }
        Ok(last)
    }
}
