//! One round: a publishing and a subscribing process, both new, and this one, which is the device.

#![forbid(unsafe_code)]

use crate::device::Simulator;
use crate::publisher::Published;
use crate::segment;
use crate::subscriber::Received;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use shm_pool::Provider;
use shm_pool_support::machine::Cores;
use shm_pool_support::process::{this_program, Child};
use shm_pool_support::{clock, latency, procfs, wire, Fallible};
use std::fmt;
use std::os::unix::process::CommandExt;
use std::process::Stdio;

/// What names under /dev/shm start with.
pub(crate) const PREFIX: &str = "embedded_publisher";

/// Nanoseconds from one sample of the warm-up to the next, unless the rate is higher.
const WARM_UP_PERIOD: u64 = 1_000_000;

/// Which driver; see the modules of these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Form {
    Baseline,
    Blocking,
    Pooled,
}

impl Form {
    pub(crate) const ALL: [Self; 3] = [Self::Baseline, Self::Blocking, Self::Pooled];
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Baseline => "baseline",
            Self::Blocking => "baseline that blocks",
            Self::Pooled => "pooled",
        })
    }
}

/// What a round is. All of its processes are told the same.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) form: Form,
    pub(crate) channel: String,
    pub(crate) seed: u64,
    /// Samples that come first and are not measured.
    pub(crate) warm_up: u64,
    /// Samples that are measured.
    pub(crate) count: u64,
    /// Nanoseconds from one sample to the next.
    pub(crate) period: u64,
}

impl Task {
    /// Samples in all.
    pub(crate) fn total(&self) -> u64 {
        self.warm_up + self.count
    }

    /// When a sample is due, in nanoseconds since the device was started. A whole period passes
    /// before the first that is measured, as before every other.
    pub(crate) fn time_of(&self, number: u64) -> u64 {
        let warm_up = self.warm_up.min(number) * WARM_UP_PERIOD.min(self.period);
        match number.checked_sub(self.warm_up) {
            None => warm_up,
            Some(measured) => warm_up + (measured + 1) * self.period,
        }
    }
}

/// What another process is told.
#[derive(Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) role: Role,
    pub(crate) task: Task,
    pub(crate) core: Option<usize>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Role {
    Publisher,
    Subscriber,
}

/// How often the publisher's memory is looked at.
const LOOKS: u64 = 60;

/// Nanoseconds from when all are ready until the device is started.
const LEAD: u64 = 10_000_000;

/// What came of a round.
pub(crate) struct Round {
    pub(crate) published: Published,
    pub(crate) received: Received,
    /// The received messages' latencies.
    pub(crate) latencies: Histogram<u64>,
    pub(crate) delivered: Delivered,
    /// The most resident bytes that the publisher ever had.
    pub(crate) peak: u64,
}

/// What the device has seen.
pub(crate) struct Delivered {
    /// Resident bytes of the publisher, after so many measured messages.
    pub(crate) resident: Vec<(u64, u64)>,
    /// How late the device was with its samples, in nanoseconds.
    pub(crate) late: Histogram<u64>,
}

/// Removes what processes that were killed have left behind.
struct Remains<'a>(&'a str);

impl Drop for Remains<'_> {
    fn drop(&mut self) {
        segment::remove_all(self.0);
        let _ = Provider::sweep(PREFIX);
    }
}

impl Round {
    pub(crate) fn run(task: &Task, cores: Cores) -> Fallible<Self> {
        // Before the processes, so that it is dropped after them.
        let _remains = Remains(&task.channel);
        let (mut device, theirs) = Simulator::new()?;
        let mut publisher = start("publisher", Role::Publisher, task, cores.first(), theirs.into())?;
        let mut from_publisher = publisher.output()?;
        let not_told = |error| format!("the publisher: {error}");
        wire::expect::<()>(&mut from_publisher).map_err(not_told)?;
        let mut subscriber = start("subscriber", Role::Subscriber, task, cores.second(), Stdio::piped())?;
        wire::expect::<()>(&mut from_publisher).map_err(not_told)?;

        let start = clock::now() + LEAD;
        wire::send(subscriber.input()?, &start)?;
        let delivered = deliver(&mut device, task, start, publisher.id())?;
        let received = wire::expect::<Received>(subscriber.output()?);
        let received = received.map_err(|error| format!("the subscriber: {error}"))?;
        subscriber.finish()?;
        let published = wire::expect::<Published>(&mut from_publisher).map_err(not_told)?;
        let peak = procfs::memory(publisher.id(), "VmHWM")?;
        // Now the messages need not be kept any longer.
        drop(device);
        publisher.finish()?;

        let mut latencies = latency::histogram();
        received.latencies.iter().for_each(|&(ns, count)| latencies.saturating_record_n(ns, count));
        let round = Self { published, received, latencies, delivered, peak };
        round.check(task)?;
        Ok(round)
    }

    /// What must be so in every round.
    fn check(&self, task: &Task) -> Fallible {
        let Published { counts, usage } = self.published;
        let (samples, sent, received) = (task.count, counts.messages, self.received.messages);
        if [sent, received] != [samples; 2] {
            return Err(format!("{samples} samples, {sent} messages sent, {received} received").into());
        }
        if task.form == Form::Pooled && (usage.heap, counts.segments) != (0, 0) {
            return Err(format!(
                "{} heap operations and {} new segments in {sent} messages after the warm-up, where there must be none",
                usage.heap, counts.segments
            )
            .into());
        }
        Ok(())
    }
}

fn start(name: &str, role: Role, task: &Task, core: Option<usize>, input: Stdio) -> Fallible<Child> {
    let mut command = this_program(&Part { role, task: task.clone(), core })?;
    // In a group of its own: Ctrl-C reaches only this process, so that the other has the time to
    // remove what it has made.
    Ok(Child::start(name, command.stdin(input).stdout(Stdio::piped()).process_group(0))?)
}

/// Is the device: delivers each sample when it is due. Now and then it looks at the publisher's
/// memory, half-way between two samples, when nobody else has anything to do.
fn deliver(device: &mut Simulator, task: &Task, start: u64, publisher: u32) -> Fallible<Delivered> {
    let mut delivered = Delivered { resident: Vec::new(), late: latency::histogram() };
    for number in 0..task.total() {
        let due = start + task.time_of(number);
        clock::sleep_until(due);
        let delay = clock::now() - due;
        device.deliver(task, number)?;
        let Some(measured) = number.checked_sub(task.warm_up) else { continue };
        delivered.late.saturating_record(delay);
        // Not after the last one: then the publisher is about to tell its figures, and takes memory
        // for that.
        if measured % task.count.div_ceil(LOOKS) == 0 && measured + 1 < task.count {
            clock::sleep_until(due + task.period / 2);
            delivered.resident.push((measured + 1, procfs::memory(publisher, "VmRSS")?));
        }
    }
    Ok(delivered)
}
