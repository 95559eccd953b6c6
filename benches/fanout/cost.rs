//! The cost of a send for the publisher, by the number of receivers, beside a send to the one receiver
//! of a `Sender`, in turn.
//!
//! Messages are sent in bursts, and only the sends are timed, from the second burst of a batch on.
//! *Quiet* receivers are in this process and receive between two bursts, so the figure is the
//! publisher's own work for any number of receivers. *Live* ones are processes with one core
//! each, and receive meanwhile. Where there are too few cores for that, there is no such row.

use crate::{channel_name, subscribe, Part, FOR_EVER, PREFIX};
use serde::{Deserialize, Serialize};
use shm_pool::channel::{
    Message, OnFull, Publisher, Receiver, RecvError, Sender, Sent, Subscriber,
};
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

const KINDS: [Kind; 2] = [Kind::Inline, Kind::Buffer];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Inline => "32 B in the slot",
            Self::Buffer => "4 KiB",
        }
    }

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
            return Err(format!("message {number} has other bytes: {message:.16x?}").into());
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
        match Sender::send(self, message) {
            Ok(()) => Ok(()),
            Err(error) => Err(error.kind().into()),
        }
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
struct Fanout {
    publisher: Publisher,
    receivers: usize,
}

impl Fanout {
    #[inline]
    fn check_receivers(&self, sent: &Sent) -> Fallible {
        if sent.receivers != self.receivers {
            let text = format!("{sent:?} of a message to {} receivers", self.receivers);
            return Err(text.into());
        }
        Ok(())
    }
}

impl Sends for Fanout {
    #[inline]
    fn send(&mut self, message: ShmBytes) -> Fallible {
        match self.publisher.send(message) {
            Ok(sent) => self.check_receivers(&sent),
            Err(error) => Err(error.kind().into()),
        }
    }

    #[inline]
    fn send_copy(&mut self, bytes: &[u8]) -> Fallible {
        let sent = self.publisher.send_copy(bytes)?;
        self.check_receivers(&sent)
    }

    fn settle(&mut self) -> Fallible {
        Ok(self.publisher.wait_until_received(FOR_EVER)?)
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
        Box::new(move |count| match self.batch(count) {
            Ok(took) => Ok(Some(took)),
            Err(error) => Err(error.to_string()),
        })
    }

    /// Sends `count` messages in bursts, after one that is not timed.
    fn batch(&mut self, count: u64) -> Fallible<Duration> {
        // The other rows have used the caches meanwhile; of 64 receivers, little would be left.
        self.burst(BURST)?;
        let mut took = Duration::ZERO;
        for first in (0..count).step_by(BURST as usize) {
            took += self.burst(BURST.min(count - first))?;
        }
        Ok(took)
    }

    /// Sends `count` messages, and waits until all are received. Returns how long the sends took.
    fn burst(&mut self, count: u64) -> Fallible<Duration> {
        let numbers = self.sent..self.sent + count;
        let took = match self.kind {
            Kind::Buffer => {
                let mut messages = Vec::new();
                for number in numbers.clone() {
                    messages.push(self.message(number)?);
                }
                let start = Instant::now();
                for message in messages {
                    self.sends.send(message)?;
                }
                start.elapsed()
            }
            Kind::Inline => {
                let mut messages = Vec::new();
                for number in numbers.clone() {
                    let mut bytes = [0; INLINE];
                    numbered::fill(&mut bytes, 0, number);
                    messages.push(bytes);
                }
                let start = Instant::now();
                for bytes in &messages {
                    self.sends.send_copy(bytes)?;
                }
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
                return Err("more was received than was sent".into());
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
    let mut rows = Vec::new();
    for (is_live, most) in [(false, usize::MAX), (true, free)] {
        for kind in KINDS {
            if most >= 1 {
                rows.push(Row {
                    kind,
                    receivers: None,
                    is_live,
                });
            }
            for receivers in CURVE {
                if receivers <= most {
                    rows.push(Row {
                        kind,
                        receivers: Some(receivers),
                        is_live,
                    });
                }
            }
        }
    }
    rows
}

impl Row {
    /// Starts a sender and its receivers. Returns the batch of its sends, and the live receivers.
    fn start(
        self,
        number: usize,
        cores: &[usize],
        is_thorough: bool,
    ) -> Fallible<(Batch, Vec<Child>)> {
        let provider = crate::provider(16 << 20)?;
        let channel = channel_name(&format!("cost{number}"));
        let capacity = BURST as usize;
        if let Some(receivers) = self.receivers {
            let mut publisher = Publisher::builder()
                .max_subscribers(receivers)
                .capacity(capacity)
                .max_borrowed(MAX_BORROWED)
                .on_full(OnFull::Block)
                .create(&provider, &channel)?;
            let ends = self.start_receivers(&channel, cores, is_thorough)?;
            publisher.wait_for_receivers(receivers, FOR_EVER)?;
            let sends = Fanout {
                publisher,
                receivers,
            };
            return Ok(self.subject(sends, provider, ends, is_thorough));
        }
        let sender = Sender::builder()
            .capacity(capacity)
            .max_borrowed(MAX_BORROWED)
            .create(&provider, &channel)?;
        let ends = self.start_receivers(&channel, cores, is_thorough)?;
        Ok(self.subject(sender, provider, ends, is_thorough))
    }

    fn start_receivers(self, channel: &str, cores: &[usize], is_thorough: bool) -> Fallible<Ends> {
        let is_pair = self.receivers.is_none();
        let mut ends = Ends::default();
        for number in 0..self.receivers.unwrap_or(1) {
            if !self.is_live {
                ends.quiet.push(ReceivingEnd::open(is_pair, channel)?);
                continue;
            }
            let task = Task {
                channel: channel.to_owned(),
                is_pair,
                kind: self.kind,
                is_thorough,
                // The first core is this process's.
                core: cores.get(number + 1).copied(),
            };
            let mut command = this_program(&Part::Cost(task))?;
            let mut child = Child::start("receiver", command.stdout(Stdio::piped()))?;
            child.wait_until_ready()?;
            ends.live.push(child);
        }
        Ok(ends)
    }

    fn subject(
        self,
        sends: impl Sends,
        provider: Provider,
        ends: Ends,
        is_thorough: bool,
    ) -> (Batch, Vec<Child>) {
        let subject = Subject {
            sends,
            provider,
            receivers: ends.quiet,
            kind: self.kind,
            sent: 0,
            is_thorough,
        };
        (subject.into_batch(), ends.live)
    }
}

/// The receivers of a row.
#[derive(Default)]
struct Ends {
    quiet: Vec<ReceivingEnd>,
    live: Vec<Child>,
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
    let rows = rows(cores.len() - 1);
    let batches = rounds * BATCHES;
    println!(
        "\nA send, by the number of receivers: \
         in turn, {batches} batches of half a millisecond each\n"
    );
    let results = run(&rows, batches as usize, None, cores, false)?;
    let mut shown = table(&["to", "a send", "/ receivers", "/ Sender's", "goal", ""]);
    for (row, result) in rows.iter().zip(&results) {
        let sender_row = Row {
            receivers: None,
            ..*row
        };
        let of_sender = match rows.iter().position(|other| *other == sender_row) {
            Some(at) => results[at].median,
            None => f64::NAN,
        };
        let (to, goal) = match row.receivers {
            None => ("a Sender's".to_owned(), Goal::None),
            Some(count) => (count.to_string(), GOAL),
        };
        let each = result.median / row.receivers.unwrap_or(1) as f64;
        let ratio = each / of_sender;
        let live = if row.is_live { ", live" } else { "" };
        shown.add_row([
            format!("{}, {to}{live}", row.kind.name()),
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
    let mut subjects = Vec::new();
    let mut children = Vec::new();
    for (number, row) in rows.iter().enumerate() {
        let (batch, others) = row.start(number, cores, is_thorough)?;
        subjects.push(Ok(batch));
        children.extend(others);
    }
    let results = interleave(subjects, batches, count);
    // The senders are dropped now, so the receivers exit. One that has detected an error reports
    // it.
    for child in children {
        child.finish()?;
    }
    let mut spreads = Vec::new();
    for result in results {
        spreads.push(result?);
    }
    Ok(spreads)
}
