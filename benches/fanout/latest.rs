//! A camera at 60 Hz to receivers that keep the latest: how old a frame is when a receiver that
//! takes 30 ms for each gets it.
//!
//! The age is from when the frame was sent to when it was received, by the monotonic clock that
//! both processes read. Beside the slow receivers is one of the same publisher that keeps up: its
//! frames are as old as the transport makes them. All frames, every byte of them, and all gaps are
//! checked.

use crate::{channel_name, subscribe, Part, FOR_EVER};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use shm_pool::channel::{Message, OnFull, Publisher, RecvError, Subscriber};
use shm_pool_support::latency::{self, at};
use shm_pool_support::machine::{pin, Cores};
use shm_pool_support::process::{this_program, Child};
use shm_pool_support::table::{show, table, Goal};
use shm_pool_support::units::Nanoseconds;
use shm_pool_support::{clock, numbered, wire, Fallible};
use std::io;
use std::process::Stdio;
use std::time::Duration;

/// Bytes of a frame: the send time, and a numbered message.
const FRAME: usize = 6_000_000;
const STAMP: usize = 8;

/// Nanoseconds from one frame to the next, at 60 Hz.
const PERIOD: u64 = 16_666_667;

/// How long a slow receiver holds each frame, in nanoseconds.
const SLOW: u64 = 30_000_000;

/// The goal for the excess of a median age over that of a receiver that keeps up, in nanoseconds.
const GOAL: Goal = Goal::AtMost(PERIOD as f64);

/// More than all the frames that can exist: one that is written, the latest two, and one held by
/// each receiver.
const CAP: usize = 16 * FRAME;

/// A receiver.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Kind {
    capacity: usize,
    is_slow: bool,
    /// Whether it skips all but the newest waiting message.
    takes_newest: bool,
}

const RECEIVERS: [(Kind, &str, Goal); 4] = [
    (
        Kind {
            capacity: 2,
            is_slow: false,
            takes_newest: false,
        },
        "keeps up",
        Goal::None,
    ),
    (
        Kind {
            capacity: 2,
            is_slow: true,
            takes_newest: false,
        },
        "30 ms a frame, capacity 2",
        GOAL,
    ),
    (
        Kind {
            capacity: 2,
            is_slow: true,
            takes_newest: true,
        },
        "the same, receives until there is no more",
        GOAL,
    ),
    (
        Kind {
            capacity: 1,
            is_slow: true,
            takes_newest: false,
        },
        "30 ms a frame, capacity 1",
        GOAL,
    ),
];

/// A receiver's task.
#[derive(Serialize, Deserialize)]
pub(crate) struct Task {
    channel: String,
    kind: Kind,
    core: Option<usize>,
}

/// Its report after the publisher has left.
#[derive(Serialize, Deserialize)]
struct Report {
    tally: Tally,
    /// The ages of the frames that it used, in nanoseconds.
    ages: Vec<u64>,
}

/// The results of a receiver.
struct Received {
    tally: Tally,
    ages: Histogram<u64>,
}

impl Task {
    pub(crate) fn run(&self) -> Fallible {
        pin(self.core)?;
        let options = Subscriber::builder()
            .spin(Duration::ZERO)
            .on_full(OnFull::DropOldest);
        let mut receiver = subscribe(options.capacity(self.kind.capacity), &self.channel)?;
        let mut report = Report {
            tally: Tally::default(),
            ages: Vec::new(),
        };
        loop {
            let mut frame = match receiver.recv() {
                Err(RecvError::Disconnected) => break,
                frame => frame?,
            };
            report.tally.count(&frame)?;
            if self.kind.takes_newest {
                while let Ok(newer) = receiver.try_recv() {
                    frame = newer;
                    report.tally.count(&frame)?;
                }
            }
            let received = clock::now();
            report.ages.push(received - numbered::number(&frame)?);
            let message = &frame[STAMP..];
            numbered::check(message, FRAME - STAMP, 0, numbered::number(message)?)?;
            if self.kind.is_slow {
                clock::sleep_until(received + SLOW);
            }
        }
        Ok(wire::send(io::stdout(), &report)?)
    }
}

/// A few frames.
pub(crate) fn check(cores: Cores) -> Fallible {
    const FRAMES: u64 = 30;
    let mut received = Vec::new();
    for result in run(FRAMES, cores)? {
        received.push(result.tally.received);
    }
    println!(
        "a camera at 60 Hz: {received:?} of {FRAMES} frames received, all as sent, gaps as reported"
    );
    Ok(())
}

pub(crate) fn measure(frames: u64, cores: Cores) -> Fallible {
    println!("\nFrames of 6 MB at 60 Hz, to receivers that keep the latest: {frames} frames\n");
    let results = run(frames, cores)?;
    let transport = results[0].median();
    let heads = [
        "age at receipt",
        "used",
        "missed",
        "p50",
        "p99",
        "max",
        "p50 above that of who keeps up",
        "goal",
        "",
    ];
    let mut shown = table(&heads);
    for ((_, name, goal), received) in RECEIVERS.iter().zip(&results) {
        let above = received.median() - transport;
        let ages = &received.ages;
        let bound = match goal {
            Goal::AtMost(bound) => format!("at most {}", Nanoseconds(*bound)),
            goal => goal.to_string(),
        };
        shown.add_row([
            name.to_string(),
            ages.len().to_string(),
            received.tally.missed.to_string(),
            at(ages, 0.5),
            at(ages, 0.99),
            at(ages, 1.0),
            Nanoseconds(above).to_string(),
            bound,
            goal.verdict(above).to_owned(),
        ]);
    }
    show("fanout latest", &shown);
    Ok(())
}

impl Received {
    fn median(&self) -> f64 {
        self.ages.value_at_quantile(0.5) as f64
    }
}

/// Returns the results of all [`RECEIVERS`].
fn run(frames: u64, cores: Cores) -> Fallible<Vec<Received>> {
    let provider = crate::provider(CAP)?;
    let channel = channel_name("latest");
    let mut publisher = Publisher::builder()
        .allow_blocking(false)
        .create(&provider, &channel)?;
    let mut children = Vec::new();
    for (kind, name, _) in RECEIVERS {
        let task = Task {
            channel: channel.clone(),
            kind,
            core: cores.second(),
        };
        let mut command = this_program(&Part::Latest(task))?;
        children.push(Child::start(name, command.stdout(Stdio::piped()))?);
    }
    publisher.wait_for_receivers(RECEIVERS.len(), FOR_EVER)?;

    let begin = clock::now();
    for number in 0..frames {
        clock::sleep_until(begin + number * PERIOD);
        let mut frame = provider.alloc(FRAME)?;
        let (stamp, message) = frame.split_at_mut(STAMP);
        numbered::fill(message, 0, number);
        stamp.copy_from_slice(&clock::now().to_le_bytes());
        if let Err(error) = publisher.send(frame.freeze()) {
            return Err(error.kind().into());
        }
    }
    publisher.wait_until_received(FOR_EVER)?;
    drop(publisher);

    let mut results = Vec::new();
    for mut child in children {
        let report: Report = match wire::expect(child.output()?) {
            Ok(report) => report,
            Err(error) => return Err(format!("{}: {error}", child.name()).into()),
        };
        let tally = report.tally;
        if tally.sent() != frames {
            return Err(format!("{}: {tally:?}, of {frames} frames", child.name()).into());
        }
        child.finish()?;
        let mut ages = latency::histogram();
        for age in report.ages {
            ages.saturating_record(age);
        }
        results.push(Received { tally, ages });
    }
    Ok(results)
}

/// Counts messages that are numbered from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Tally {
    received: u64,
    /// How many are missing, according to the receiver.
    missed: u64,
}

impl Tally {
    /// How many were sent, up to the last one received.
    fn sent(self) -> u64 {
        self.received + self.missed
    }

    /// Counts the next frame. Its number shows whether the gap before it matches the reported one.
    fn count(&mut self, frame: &Message) -> Fallible {
        let number = numbered::number(&frame[STAMP..])?;
        let missed = u64::from(frame.missed());
        let expected = self.sent() + missed;
        if number != expected {
            let text = format!("frame {number} instead of {expected}, {missed} missed before it");
            return Err(text.into());
        }
        self.received += 1;
        self.missed += missed;
        Ok(())
    }
}
