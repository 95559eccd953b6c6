//! One round: a new publishing and a new subscribing process, and this one, which is the device.

#![forbid(unsafe_code)]

use crate::device::Simulator;
use crate::publisher::{self, Published};
use crate::segment;
use crate::subscriber::{self, Received};
use serde::{Deserialize, Serialize};
use shm_pool::Provider;
use shm_pool_support::machine::{pin, Cores};
use shm_pool_support::process::{this_program, Child};
use shm_pool_support::{clock, procfs, wire, Fallible};
use std::os::unix::process::CommandExt;
use std::process::Stdio;

/// The prefix of names under /dev/shm.
pub(crate) const PREFIX: &str = "embedded_publisher";

/// Samples before each measurement.
pub(crate) const WARM_UP: u64 = 200;

/// Nanoseconds from one sample of the warm-up to the next, unless the rate is higher.
const WARM_UP_PERIOD: u64 = 1_000_000;

/// How often the publisher's memory is sampled.
const LOOKS: u64 = 60;

/// Nanoseconds from when all are ready until the device is started.
const LEAD: u64 = 10_000_000;

/// Which driver; see the modules of these names.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) enum Form {
    Baseline,
    Blocking,
    Pooled,
}

impl Form {
    pub(crate) const ALL: [Self; 3] = [Self::Baseline, Self::Blocking, Self::Pooled];

    pub(crate) fn name(self) -> &'static str {
        ["baseline", "baseline that blocks", "pooled"][self as usize]
    }
}

/// The task of a process of a round.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) role: Role,
    pub(crate) form: Form,
    pub(crate) channel: String,
    pub(crate) seed: u64,
    /// Samples that are measured, after those of the warm-up.
    pub(crate) count: u64,
    /// Nanoseconds from one sample to the next.
    pub(crate) period: u64,
    pub(crate) cores: [Option<usize>; 2],
}

#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Role {
    Publisher,
    Subscriber,
}

impl Role {
    pub(crate) fn name(self) -> &'static str {
        ["publisher", "subscriber"][self as usize]
    }
}

impl Task {
    /// The publisher's task.
    pub(crate) fn new(form: Form, seed: u64, count: u64, rate: u64, cores: Cores) -> Self {
        let (role, channel) = (Role::Publisher, std::process::id().to_string());
        Self { role, form, channel, seed, count, period: 1_000_000_000 / rate, cores: [cores.first(), cores.second()] }
    }

    /// The total number of samples.
    pub(crate) fn total(&self) -> u64 {
        WARM_UP + self.count
    }

    /// When a sample is due, in nanoseconds since the device was started. A whole period passes
    /// before the first measured one, as before every other.
    pub(crate) fn time_of(&self, number: u64) -> u64 {
        let warm_up = WARM_UP.min(number) * WARM_UP_PERIOD.min(self.period);
        warm_up + (number + 1).saturating_sub(WARM_UP) * self.period
    }

    /// Runs the process.
    pub(crate) fn run(&self) -> Fallible {
        pin(self.cores[self.role as usize])?;
        match self.role {
            Role::Publisher => publisher::run(self),
            Role::Subscriber => subscriber::run(self),
        }
    }

    fn start(&self, role: Role, input: Stdio) -> Fallible<Child> {
        let mut command = this_program(&Self { role, ..self.clone() })?;
        // In a separate process group: Ctrl-C reaches only this process, so that the other one has
        // time to remove its objects.
        Ok(Child::start(role.name(), command.stdin(input).stdout(Stdio::piped()).process_group(0))?)
    }
}

/// Bytes, by the number of messages.
type Points = Vec<(f64, f64)>;

/// The results of a round.
pub(crate) struct Round {
    pub(crate) published: Published,
    pub(crate) received: Received,
    /// Resident bytes of the publisher, by the number of measured messages.
    pub(crate) resident: Points,
    /// The publisher's peak.
    pub(crate) peak: u64,
    /// How late the device was with each sample, in nanoseconds.
    pub(crate) late: Vec<u64>,
}

impl Round {
    pub(crate) fn run(task: &Task) -> Fallible<Self> {
        let round = Self::conduct(task);
        // Processes that were killed leave objects behind. By now all have exited.
        segment::remove_all(&task.channel);
        let _ = Provider::sweep(PREFIX);
        round?.checked(task)
    }

    fn conduct(task: &Task) -> Fallible<Self> {
        let (mut device, theirs) = Simulator::new()?;
        let mut publisher = task.start(Role::Publisher, theirs.into())?;
        let mut from_publisher = publisher.output()?;
        let not_told = |error| format!("the publisher: {error}");
        wire::expect::<()>(&mut from_publisher).map_err(not_told)?;
        let mut subscriber = task.start(Role::Subscriber, Stdio::piped())?;
        wire::expect::<()>(&mut from_publisher).map_err(not_told)?;

        let start = clock::now() + LEAD;
        wire::send(subscriber.input()?, &start)?;
        let (resident, late) = deliver(&mut device, task, start, publisher.id())?;
        let received = wire::expect::<Received>(subscriber.output()?);
        let received = received.map_err(|error| format!("the subscriber: {error}"))?;
        subscriber.finish()?;
        let published = wire::expect::<Published>(&mut from_publisher).map_err(not_told)?;
        let peak = procfs::memory(publisher.id(), "VmHWM")?;
        // From now on the messages need not be kept.
        drop(device);
        publisher.finish()?;
        Ok(Self { published, received, resident, peak, late })
    }

    /// Checks what must hold in every round.
    fn checked(self, task: &Task) -> Fallible<Self> {
        let Published { counts, usage } = &self.published;
        let (samples, sent, received) = (task.count, counts.messages, self.received.latencies.len() as u64);
        if [sent, received] != [samples; 2] {
            return Err(format!("{samples} samples, {sent} messages sent, {received} received").into());
        }
        let (heap, segments) = (usage.heap, counts.segments);
        if task.form == Form::Pooled && (heap, segments) != (0, 0) {
            let after = "after the warm-up, where there must be none";
            return Err(format!("{heap} heap operations and {segments} new segments in {sent} messages {after}").into());
        }
        Ok(self)
    }
}

/// Acts as the device: delivers each sample when it is due, and returns how late. Now and then it
/// samples the publisher's memory, half-way between two samples, when the other processes are idle.
fn deliver(device: &mut Simulator, task: &Task, start: u64, publisher: u32) -> Fallible<(Points, Vec<u64>)> {
    let (mut resident, mut late) = (Vec::new(), Vec::new());
    for number in 0..task.total() {
        let due = start + task.time_of(number);
        clock::sleep_until(due);
        let delay = clock::now() - due;
        device.deliver(task, number)?;
        let Some(measured) = number.checked_sub(WARM_UP) else { continue };
        late.push(delay);
        // Not after the last one: the publisher is then about to send its figures, and allocates
        // for that.
        if measured % task.count.div_ceil(LOOKS) == 0 && measured + 1 < task.count {
            clock::sleep_until(due + task.period / 2);
            resident.push(((measured + 1) as f64, procfs::memory(publisher, "VmRSS")? as f64));
        }
    }
    Ok((resident, late))
}
