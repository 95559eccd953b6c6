//! A receiver that parks between messages at 1 kHz: how late it wakes, and its cost per message.
//!
//! Each way to receive is a row, all of them in turn. Latency is from just before the send to when
//! the receiver has the message, by the monotonic clock that both processes read; cost is all CPU
//! time of the receiving process, per message. The other rows are compared with the first.

use crate::tally::Tally;
use crate::{channel_name, open, Part, FOR_EVER};
use serde::{Deserialize, Serialize};
use shm_pool::channel::{OnFull, Publisher, Receiver, RecvError};
use shm_pool_support::latency::{self, Latencies, Spread};
use shm_pool_support::machine::{pin, Cores};
use shm_pool_support::process::{this_program, Child};
use shm_pool_support::table::{table, Goal};
use shm_pool_support::units::Nanoseconds;
use shm_pool_support::{clock, numbered, wire, Fallible};
use std::io;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// A way to receive. Another one is a variant here, a row of [`WAYS`] and an arm of
/// [`Way::receive_all`].
#[derive(Clone, Copy, Serialize, Deserialize)]
enum Way {
    /// `recv`, which parks at once.
    Blocking,
}

const WAYS: [(Way, &str); 1] = [(Way::Blocking, "blocking recv")];

impl Way {
    /// Receives until the publisher leaves; `each` gets every message as soon as it arrives.
    fn receive_all(self, receiver: &mut Receiver, mut each: impl FnMut(&[u8], u32) -> Fallible) -> Fallible {
        match self {
            Self::Blocking => loop {
                match receiver.recv() {
                    Err(RecvError::Disconnected) => return Ok(()),
                    message => message.map_err(Into::into).and_then(|message| each(&message, message.missed()))?,
                }
            },
        }
    }
}

/// For the latency's median, and for the CPU time, beside those of the first way.
const GOAL: Goal = Goal::AtMost(1.5);

/// Nanoseconds from one message to the next.
const PERIOD: u64 = 1_000_000;

/// Bytes of a message: the send time, and a numbered message.
const LEN: usize = 48;
const STAMP: usize = 8;

/// A receiver's task.
#[derive(Serialize, Deserialize)]
pub(crate) struct Task {
    channel: String,
    way: Way,
    core: Option<usize>,
}

/// Its report after the publisher has left, in nanoseconds.
#[derive(Serialize, Deserialize)]
struct Told {
    latencies: Vec<u64>,
    /// Between the first and the last message.
    cpu: u64,
}

impl Task {
    pub(crate) fn run(&self) -> Fallible {
        pin(self.core)?;
        let options = Receiver::builder().spin(Duration::ZERO).on_full(OnFull::Wait);
        let mut receiver = open(options, &self.channel)?;
        let mut tally = Tally::default();
        let mut told = Told { latencies: Vec::new(), cpu: 0 };
        let mut begin = None;
        self.way.receive_all(&mut receiver, |message, missed| {
            told.latencies.push(clock::now() - numbered::number(message)?);
            let number = numbered::number(&message[STAMP..])?;
            tally.count(number, missed)?;
            numbered::check(&message[STAMP..], LEN - STAMP, 0, number)?;
            let cpu = clock::process_cpu();
            told.cpu = cpu - *begin.get_or_insert(cpu);
            Ok(())
        })?;
        Ok(wire::send(io::stdout(), &told)?)
    }
}

/// A few messages by each way.
pub(crate) fn check(cores: Cores) -> Fallible {
    for (way, name) in WAYS {
        run(way, 100, cores)?;
        println!("{name}: 100 messages at 1 kHz, all as sent");
    }
    Ok(())
}

/// The results of a way's rounds.
#[derive(Default)]
struct Outcome {
    latencies: Latencies,
    cpu: Vec<f64>,
}

pub(crate) fn measure(rounds: u32, wakes: u64, cores: Cores) -> Fallible {
    let count = wakes.div_ceil(rounds.into()).max(2);
    println!("\nMessages at 1 kHz to a receiver that sleeps: in turn, {rounds} rounds of {count}\n");
    let mut results = WAYS.map(|_| Outcome::default());
    for _ in 0..rounds {
        for ((way, _), result) in WAYS.iter().zip(&mut results) {
            let begin = Instant::now();
            let told = run(*way, count, cores)?;
            let mut round = latency::histogram();
            told.latencies.iter().for_each(|&latency| round.saturating_record(latency));
            result.latencies.add(&round, begin.elapsed())?;
            result.cpu.push(told.cpu as f64 / (count - 1) as f64);
        }
    }
    print(&results);
    Ok(())
}

/// A row for each way.
fn print(results: &[Outcome]) {
    let heads =
        ["1 kHz", "latency p50", "p99", "/ blocking's", "CPU a message", "/ blocking's", "goal of both", "", ""];
    let mut shown = table(&heads);
    let costs = |result: &Outcome| [result.latencies.p50().median, Spread::of(&result.cpu).median];
    for (at, ((_, name), result)) in WAYS.iter().zip(results).enumerate() {
        let goal = if at == 0 { Goal::None } else { GOAL };
        let [[_, cpu], [late, busy]] = [costs(result), ratios(costs(result), costs(&results[0]))];
        shown.add_row([
            name.to_string(),
            result.latencies.at(0.5),
            result.latencies.at(0.99),
            format!("{late:.2}"),
            Nanoseconds(cpu).to_string(),
            format!("{busy:.2}"),
            goal.to_string(),
            goal.verdict(late).to_owned(),
            goal.verdict(busy).to_owned(),
        ]);
    }
    println!("{shown}");
}

fn ratios(these: [f64; 2], those: [f64; 2]) -> [f64; 2] {
    [these[0] / those[0], these[1] / those[1]]
}

/// Sends `count` messages by one way.
fn run(way: Way, count: u64, cores: Cores) -> Fallible<Told> {
    let provider = crate::provider(1 << 20)?;
    let channel = channel_name("wake");
    let mut publisher = Publisher::create(&provider, &channel)?;
    let task = Task { channel, way, core: cores.second() };
    let mut child = Child::start("receiver", this_program(&Part::Wake(task))?.stdout(Stdio::piped()))?;
    publisher.wait_for_receivers(1, FOR_EVER)?;
    let begin = clock::now();
    for number in 0..count {
        clock::sleep_until(begin + number * PERIOD);
        let mut message = [0; LEN];
        numbered::fill(&mut message[STAMP..], 0, number);
        message[..STAMP].copy_from_slice(&clock::now().to_le_bytes());
        publisher.send_bytes(&message)?;
    }
    publisher.wait_until_received(FOR_EVER)?;
    drop(publisher);
    let told: Told = wire::expect(child.output()?)?;
    child.finish()?;
    if told.latencies.len() as u64 != count {
        return Err(format!("{} of {count} messages came", told.latencies.len()).into());
    }
    Ok(told)
}
