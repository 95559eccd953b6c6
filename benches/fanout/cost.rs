//! What a send costs the publisher, by the number of receivers, beside a send to the one receiver
//! of a `Sender`, in turn.
//!
//! Messages are sent in bursts, and only the sends are timed, from the second burst of a batch on.
//! *Quiet* receivers are in this process and receive between two bursts, so the figure is the
//! publisher's own work for any number of receivers. *Live* ones are processes with one core
//! each, and receive meanwhile. Where there are too few cores for that, there is no such row.

use crate::{channel_name, subscribe, Part, FOR_EVER, PREFIX};
use serde::{Deserialize, Serialize};
use shm_pool::channel::{Message, OnFull, Publisher, Receiver, RecvError, Sender, Subscriber};
use shm_pool::{Namespace, Provider, ShmBytes};
use shm_pool_support::latency::Spread;
use shm_pool_support::machine::pin;
use shm_pool_support::process::{say_ready, this_program, Child};
use shm_pool_support::table::{show, table, Goal};
use shm_pool_support::turns::{interleave, Batch};
use shm_pool_support::units::Nanoseconds;
use shm_pool_support::{numbered, Fallible};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Numbers of receivers.
const CURVE: [usize; 5] = [1, 2, 4, 16, 64];

/// Per receiver, beside the one of a `Sender`.
const GOAL: Goal = Goal::AtMost(1.5);

/// Messages of a burst, and how many a channel holds.
const BURST: u64 = 32;

/// Buffers that a receiver may hold: those of a burst, and of the last one while the sender has not
/// seen their return.
const MAX_BORROWED: usize = 4 * BURST as usize;

/// In each of the bench's rounds.
const BATCHES: u32 = 40;

/// Bytes of a message in a buffer, and of one in the slots.
const BUFFER: usize = 4 << 10;
const INLINE: usize = 32;

/// The kind of message.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Kind {
    Inline,
    Buffer,
}

const KINDS: [(Kind, &str); 2] = [(Kind::Inline, "32 B in the slot"), (Kind::Buffer, "4 KiB")];

impl Kind {
    fn len(self) -> usize {
        match self {
            Self::Inline => INLINE,
            Self::Buffer => BUFFER,
        }
    }

    /// Checks its number; with `is_thorough`, every byte.
    fn check(self, message: &Message, number: u64, is_thorough: bool) -> Fallible {
        if is_thorough {
            return numbered::check(message, self.len(), 0, number);
        }
        if message.len() != self.len() || numbered::number(message)? != number {
            return Err(format!("message {number} came as another: {message:.16x?}").into());
        }
        Ok(())
    }
}

/// A sender.
trait Sends: 'static {
    /// Sends to all receivers.
    fn send(&mut self, message: ShmBytes) -> Fallible;
    fn send_copy(&mut self, bytes: &[u8]) -> Fallible;
    /// Waits until receivers in other processes have received everything.
    fn settle(&mut self) -> Fallible;
}

impl Sends for Sender {
    #[inline]
    fn send(&mut self, message: ShmBytes) -> Fallible {
        Ok(Sender::send(self, message).map_err(|error| error.kind())?)
    }

    #[inline]
    fn send_copy(&mut self, bytes: &[u8]) -> Fallible {
        Ok(Sender::send_copy(self, bytes)?)
    }

    fn settle(&mut self) -> Fallible {
        Ok(self.wait_until_received(FOR_EVER)?)
    }
}

/// A publisher with this many receivers, each of which must get everything.
struct Fanout(Publisher, usize);

impl Fanout {
    #[inline]
    fn reached(&self, receivers: usize) -> Fallible {
        if receivers == self.1 {
            return Ok(());
        }
        Err(format!("only {receivers} of {} receivers are left", self.1).into())
    }
}

impl Sends for Fanout {
    #[inline]
    fn send(&mut self, message: ShmBytes) -> Fallible {
        let sent = self.0.send(message).map_err(|error| error.kind())?;
        self.reached(sent.receivers)
    }

    #[inline]
    fn send_copy(&mut self, bytes: &[u8]) -> Fallible {
        let sent = self.0.send_copy(bytes)?;
        self.reached(sent.receivers)
    }

    fn settle(&mut self) -> Fallible {
        Ok(self.0.wait_until_received(FOR_EVER)?)
    }
}

/// The receiving end of either.
enum ReceivingEnd {
    Receiver(Receiver),
    Subscriber(Subscriber),
}

impl ReceivingEnd {
    fn open(is_pair: bool, channel: &str) -> Fallible<Self> {
        if !is_pair {
            return Ok(Self::Subscriber(subscribe(Subscriber::builder(), channel)?));
        }
        let options = Receiver::builder().namespace(&Namespace::new(PREFIX)?);
        Ok(Self::Receiver(options.open_timeout(channel, FOR_EVER)?))
    }

    #[inline]
    fn recv(&mut self) -> Result<Message, RecvError> {
        match self {
            Self::Receiver(receiver) => receiver.recv(),
            Self::Subscriber(subscriber) => subscriber.recv(),
        }
    }

    #[inline]
    fn try_recv(&mut self) -> Result<Message, RecvError> {
        match self {
            Self::Receiver(receiver) => receiver.try_recv(),
            Self::Subscriber(subscriber) => subscriber.try_recv(),
        }
    }
}

/// A sender and its receivers.
struct Subject<S> {
    sends: S,
    provider: Provider,
    /// The quiet ones.
    receivers: Vec<ReceivingEnd>,
    kind: Kind,
    sent: u64,
    is_thorough: bool,
}

impl<S: Sends> Subject<S> {
    fn into_batch(mut self) -> Batch {
        Box::new(move |count| {
            // The other rows have used the caches meanwhile; of 64 receivers, little would be left.
            self.burst(BURST).map_err(|error| error.to_string())?;
            let mut took = Duration::ZERO;
            for first in (0..count).step_by(BURST as usize) {
                took += self
                    .burst(BURST.min(count - first))
                    .map_err(|error| error.to_string())?;
            }
            Ok(Some(took))
        })
    }

    /// Sends `count` messages, and has all of them received. Returns how long the sends took.
    fn burst(&mut self, count: u64) -> Fallible<Duration> {
        let numbers = self.sent..self.sent + count;
        let took = match self.kind {
            Kind::Buffer => {
                let messages = numbers
                    .clone()
                    .map(|number| self.message(number))
                    .collect::<Fallible<Vec<_>>>()?;
                let start = Instant::now();
                messages
                    .into_iter()
                    .try_for_each(|message| self.sends.send(message))?;
                start.elapsed()
            }
            Kind::Inline => {
                let message = |number| -> [u8; INLINE] {
                    let mut bytes = [0; INLINE];
                    numbered::fill(&mut bytes, 0, number);
                    bytes
                };
                let messages: Vec<_> = numbers.clone().map(message).collect();
                let start = Instant::now();
                messages
                    .iter()
                    .try_for_each(|bytes| self.sends.send_copy(bytes))?;
                start.elapsed()
            }
        };
        self.sent = numbers.end;
        for receiver in &mut self.receivers {
            for number in numbers.clone() {
                self.kind
                    .check(&receiver.try_recv()?, number, self.is_thorough)?;
            }
            // Asking for the next message frees the last slot.
            if !matches!(receiver.try_recv(), Err(RecvError::Empty)) {
                return Err("more came than was sent".into());
            }
        }
        self.sends.settle()?;
        Ok(took)
    }

    fn message(&self, number: u64) -> Fallible<ShmBytes> {
        let mut buffer = self.provider.alloc(BUFFER)?;
        if self.is_thorough {
            numbered::fill(&mut buffer, 0, number);
        } else {
            buffer[..8].copy_from_slice(&number.to_le_bytes());
        }
        Ok(buffer.freeze())
    }
}

/// One row: the receivers and the kind of message.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Row {
    kind: Kind,
    /// Of a publisher; `None` is a `Sender`.
    receivers: Option<usize>,
    is_live: bool,
}

/// Returns all rows, with up to `free` live receivers. Those of a `Sender` are first of their kind.
fn rows(free: usize) -> Vec<Row> {
    let curve = |kind, is_live, most: usize| {
        let receivers = [None].into_iter().chain(CURVE.map(Some));
        let rows = receivers.map(move |receivers| Row {
            kind,
            receivers,
            is_live,
        });
        rows.filter(move |row| row.receivers.unwrap_or(1) <= most)
    };
    [(false, usize::MAX), (true, free)]
        .into_iter()
        .flat_map(|(is_live, most)| {
            KINDS
                .into_iter()
                .flat_map(move |(kind, _)| curve(kind, is_live, most))
        })
        .collect()
}

impl Row {
    fn start(
        self,
        number: usize,
        cores: &[usize],
        is_thorough: bool,
    ) -> Fallible<(Batch, Vec<Child>)> {
        let provider = crate::provider(16 << 20)?;
        let channel = channel_name(&format!("cost{number}"));
        let count = self.receivers.unwrap_or(1);
        let Row { kind, is_live, .. } = self;
        let (mut receivers, mut children) = (Vec::new(), Vec::new());
        let mut come = || -> Fallible {
            for core in (0..count).map(|at| cores.get(at + 1).copied()) {
                if is_live {
                    let task = Task {
                        channel: channel.clone(),
                        is_pair: self.receivers.is_none(),
                        kind,
                        is_thorough,
                        core,
                    };
                    let mut command = this_program(&Part::Cost(task))?;
                    let mut child = Child::start("receiver", command.stdout(Stdio::piped()))?;
                    child.wait_until_ready()?;
                    children.push(child);
                } else {
                    receivers.push(ReceivingEnd::open(self.receivers.is_none(), &channel)?);
                }
            }
            Ok(())
        };
        let capacity = BURST as usize;
        let batch = if self.receivers.is_none() {
            let sends = Sender::builder()
                .capacity(capacity)
                .max_borrowed(MAX_BORROWED)
                .create(&provider, &channel)?;
            come()?;
            Subject {
                sends,
                provider,
                receivers,
                kind,
                sent: 0,
                is_thorough,
            }
            .into_batch()
        } else {
            let options = Publisher::builder()
                .max_subscribers(count)
                .capacity(capacity)
                .max_borrowed(MAX_BORROWED)
                .on_full(OnFull::Block);
            let mut publisher = options.create(&provider, &channel)?;
            come()?;
            publisher.wait_for_receivers(count, FOR_EVER)?;
            let sends = Fanout(publisher, count);
            Subject {
                sends,
                provider,
                receivers,
                kind,
                sent: 0,
                is_thorough,
            }
            .into_batch()
        };
        Ok((batch, children))
    }
}

/// A live receiver.
#[derive(Serialize, Deserialize)]
pub(crate) struct Task {
    channel: String,
    /// It has a sender and not a publisher.
    is_pair: bool,
    kind: Kind,
    is_thorough: bool,
    core: Option<usize>,
}

impl Task {
    /// Runs the process: receives and checks, until the sender leaves.
    pub(crate) fn run(&self) -> Fallible {
        pin(self.core)?;
        let mut receiver = ReceivingEnd::open(self.is_pair, &self.channel)?;
        say_ready()?;
        for number in 0.. {
            match receiver.recv() {
                Err(RecvError::Disconnected) => break,
                message => self.kind.check(&message?, number, self.is_thorough)?,
            }
        }
        Ok(())
    }
}

/// A few messages of each row, with every byte checked.
pub(crate) fn check(cores: &[usize]) -> Fallible {
    // They also work without separate cores.
    let rows = rows(2);
    run(&rows, 2, Some(10 * BURST), cores, true)?;
    println!(
        "{} rows of up to 64 receivers: {} messages each, all as sent",
        rows.len(),
        10 * BURST
    );
    Ok(())
}

pub(crate) fn measure(rounds: u32, cores: &[usize]) -> Fallible {
    let (rows, batches) = (rows(cores.len() - 1), rounds * BATCHES);
    println!("\nA send, by the number of receivers: in turn, {batches} batches of half a millisecond each\n");
    let results = run(&rows, batches as usize, None, cores, false)?;
    let mut shown = table(&["to", "a send", "/ receivers", "/ Sender's", "goal", ""]);
    for (row, result) in rows.iter().zip(&results) {
        let of_sender = rows.iter().position(|other| {
            *other
                == Row {
                    receivers: None,
                    ..*row
                }
        });
        let of_sender = of_sender.map_or(f64::NAN, |at| results[at].median);
        let (to, goal) = match row.receivers {
            None => ("a Sender's".to_owned(), Goal::None),
            Some(count) => (count.to_string(), GOAL),
        };
        let name = KINDS
            .iter()
            .find(|(kind, _)| *kind == row.kind)
            .map_or("", |(_, name)| name);
        let each = result.median / row.receivers.unwrap_or(1) as f64;
        let ratio = each / of_sender;
        shown.add_row([
            format!("{name}, {to}{}", if row.is_live { ", live" } else { "" }),
            result.to_string(),
            Nanoseconds(each).to_string(),
            format!("{ratio:.2}"),
            goal.to_string(),
            goal.verdict(ratio).to_owned(),
        ]);
    }
    show("fanout", &shown);
    Ok(())
}

/// Nanoseconds of a send, by row.
fn run(
    rows: &[Row],
    batches: usize,
    count: Option<u64>,
    cores: &[usize],
    is_thorough: bool,
) -> Fallible<Vec<Spread>> {
    let (mut subjects, mut children) = (Vec::new(), Vec::new());
    for (number, row) in rows.iter().enumerate() {
        let (batch, others) = row.start(number, cores, is_thorough)?;
        subjects.push(Ok(batch));
        children.extend(others);
    }
    let results = interleave(subjects, batches, count)
        .into_iter()
        .collect::<Result<Vec<_>, _>>();
    // The senders are dropped now, so the receivers exit. One that has detected an error reports
    // it.
    children.into_iter().try_for_each(Child::finish)?;
    Ok(results?)
}
