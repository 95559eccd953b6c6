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
use shm_pool::channel::{OnFull, Publisher, RecvError, Subscriber};
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
struct Who {
    capacity: usize,
    is_slow: bool,
    /// Whether it skips all but the newest waiting message.
    is_hasty: bool,
}

const WHO: [(Who, &str, Goal); 4] = [
    (
        Who {
            capacity: 2,
            is_slow: false,
            is_hasty: false,
        },
        "keeps up",
        Goal::None,
    ),
    (
        Who {
            capacity: 2,
            is_slow: true,
            is_hasty: false,
        },
        "30 ms a frame, capacity 2",
        GOAL,
    ),
    (
        Who {
            capacity: 2,
            is_slow: true,
            is_hasty: true,
        },
        "the same, receives until there is no more",
        GOAL,
    ),
    (
        Who {
            capacity: 1,
            is_slow: true,
            is_hasty: false,
        },
        "30 ms a frame, capacity 1",
        GOAL,
    ),
];

/// A receiver's task.
#[derive(Serialize, Deserialize)]
pub(crate) struct Task {
    channel: String,
    who: Who,
    core: Option<usize>,
}

/// Its report after the publisher has left: the ages of the frames that it used, in nanoseconds.
#[derive(Serialize, Deserialize)]
struct Told {
    tally: Tally,
    ages: Vec<u64>,
}

impl Task {
    pub(crate) fn run(&self) -> Fallible {
        pin(self.core)?;
        let options = Subscriber::builder()
            .spin(Duration::ZERO)
            .on_full(OnFull::DropOldest);
        let mut receiver = subscribe(options.capacity(self.who.capacity), &self.channel)?;
        let mut told = Told {
            tally: Tally::default(),
            ages: Vec::new(),
        };
        loop {
            let mut frame = match receiver.recv() {
                Err(RecvError::Disconnected) => break,
                frame => frame?,
            };
            told.tally
                .count(numbered::number(&frame[STAMP..])?, frame.missed())?;
            while let Some(newer) = self
                .who
                .is_hasty
                .then(|| receiver.try_recv().ok())
                .flatten()
            {
                frame = newer;
                told.tally
                    .count(numbered::number(&frame[STAMP..])?, frame.missed())?;
            }
            let received = clock::now();
            told.ages.push(received - numbered::number(&frame)?);
            numbered::check(
                &frame[STAMP..],
                FRAME - STAMP,
                0,
                numbered::number(&frame[STAMP..])?,
            )?;
            if self.who.is_slow {
                clock::sleep_until(received + SLOW);
            }
        }
        Ok(wire::send(io::stdout(), &told)?)
    }
}

/// A few frames.
pub(crate) fn check(cores: Cores) -> Fallible {
    const FRAMES: u64 = 30;
    let told = run(FRAMES, cores)?;
    let received: Vec<_> = told.iter().map(|(tally, _)| tally.received).collect();
    println!(
        "a camera at 60 Hz: {received:?} of {FRAMES} frames received, all as sent, gaps as told"
    );
    Ok(())
}

pub(crate) fn measure(frames: u64, cores: Cores) -> Fallible {
    println!("\nFrames of 6 MB at 60 Hz, to receivers that keep the latest: {frames} frames\n");
    let told = run(frames, cores)?;
    let median = |ages: &Histogram<u64>| ages.value_at_quantile(0.5) as f64;
    let transport = median(&told[0].1);
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
    for ((_, name, goal), (tally, ages)) in WHO.iter().zip(&told) {
        let above = median(ages) - transport;
        let bound = match goal {
            Goal::AtMost(bound) => format!("at most {}", Nanoseconds(*bound)),
            goal => goal.to_string(),
        };
        shown.add_row([
            name.to_string(),
            ages.len().to_string(),
            tally.missed.to_string(),
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

/// Returns the reports of all [`WHO`].
fn run(frames: u64, cores: Cores) -> Fallible<Vec<(Tally, Histogram<u64>)>> {
    let provider = crate::provider(CAP)?;
    let channel = channel_name("latest");
    let mut publisher = Publisher::builder()
        .allow_blocking(false)
        .create(&provider, &channel)?;
    let start = |(who, name, _): (Who, &str, Goal)| {
        let task = Task {
            channel: channel.clone(),
            who,
            core: cores.second(),
        };
        Child::start(
            name,
            this_program(&Part::Latest(task))?.stdout(Stdio::piped()),
        )
    };
    let children = WHO.into_iter().map(start).collect::<io::Result<Vec<_>>>()?;
    publisher.wait_for_receivers(WHO.len(), FOR_EVER)?;
    let begin = clock::now();
    for number in 0..frames {
        clock::sleep_until(begin + number * PERIOD);
        let mut frame = provider.alloc(FRAME)?;
        let (stamp, message) = frame.split_at_mut(STAMP);
        numbered::fill(message, 0, number);
        stamp.copy_from_slice(&clock::now().to_le_bytes());
        publisher
            .send(frame.freeze())
            .map_err(|error| error.kind())?;
    }
    publisher.wait_until_received(FOR_EVER)?;
    drop(publisher);
    let hear = |mut child: Child| {
        let Told { tally, ages } =
            wire::expect(child.output()?).map_err(|error| format!("{}: {error}", child.name()))?;
        if tally.sent() != frames {
            return Err(format!("{}: {tally:?}, of {frames} frames", child.name()).into());
        }
        let mut all = latency::histogram();
        ages.into_iter().for_each(|age| all.saturating_record(age));
        child.finish()?;
        Ok((tally, all))
    };
    children.into_iter().map(hear).collect()
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

    /// Counts the next message. Its number shows whether the gap before it matches the reported
    /// one.
    fn count(&mut self, number: u64, missed: u32) -> Fallible {
        let expected = self.sent() + u64::from(missed);
        if number != expected {
            return Err(format!(
                "message {number} came as {expected}, {missed} of them missed just before"
            )
            .into());
        }
        self.received += 1;
        self.missed += u64::from(missed);
        Ok(())
    }
}
