//! One round: a publishing and a subscribing process, both new, and this one, which is the device.

#![forbid(unsafe_code)]

use crate::device::Simulator;
use crate::publisher::Published;
use crate::segment;
use crate::subscriber::Received;
use crate::support::cores::Cores;
use crate::support::role::Role;
use crate::support::{clock, latency, Fallible};
use crate::task::{Form, Task, PREFIX};
use crate::usage::Resident;
use crate::wire::hear;
use hdrhistogram::Histogram;
use shm_pool::Provider;
use std::io::{BufReader, Write};
use std::process::{ChildStdout, Stdio};

/// How often the publisher's memory is looked at.
const LOOKS: u64 = 60;

/// Nanoseconds from when all are ready until the device is started.
const LEAD: u64 = 10_000_000;

/// What came of a round.
pub(crate) struct Round {
    pub(crate) published: Published,
    pub(crate) received: Received,
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
        let mut publisher = start("publisher", task, cores.first(), theirs.into())?;
        let mut from_publisher = output(&mut publisher)?;
        hear(&mut from_publisher).map_err(|error| format!("the publisher: {error}"))?;
        let mut subscriber = start("subscriber", task, cores.second(), Stdio::piped())?;
        let mut from_subscriber = output(&mut subscriber)?;
        hear(&mut from_publisher).map_err(|error| format!("the publisher: {error}"))?;

        let start = clock::now() + LEAD;
        let input = subscriber.child().stdin.as_mut().ok_or("no pipe")?;
        writeln!(input, "{start}")?;
        let delivered = deliver(&mut device, task, start, publisher.child().id())?;
        let received = hear(&mut from_subscriber).map_err(|error| format!("the subscriber: {error}"))?;
        subscriber.finish()?;
        let published = hear(&mut from_publisher).map_err(|error| format!("the publisher: {error}"))?;
        let peak = Resident::of(publisher.child().id())?.peak;
        // Now the messages need not be kept any longer.
        drop(device);
        publisher.finish()?;

        let (published, received) = (Published::from_numbers(&published)?, Received::from_numbers(&received)?);
        let round = Self { published, received, delivered, peak };
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

fn start(name: &'static str, task: &Task, core: Option<usize>, input: Stdio) -> Fallible<Role> {
    let core = core.map(|core| core.to_string());
    Role::start_apart(name, task.arguments().into_iter().chain(core), input, Stdio::piped())
}

fn output(role: &mut Role) -> Fallible<BufReader<ChildStdout>> {
    Ok(BufReader::new(role.child().stdout.take().ok_or("no pipe")?))
}

/// Is the device: delivers each sample when it is due. Now and then it looks at the publisher's memory, half-way between two samples, when
/// nobody else has anything to do.
fn deliver(device: &mut Simulator, task: &Task, start: u64, publisher: u32) -> Fallible<Delivered> {
    let mut delivered = Delivered { resident: Vec::new(), late: latency::histogram() };
    for number in 0..task.total() {
        let due = start + task.time_of(number);
        clock::sleep_until(due);
        let delay = clock::now() - due;
        device.deliver(task, number)?;
        let Some(measured) = number.checked_sub(task.warm_up) else { continue };
        delivered.late.saturating_record(delay);
        // Not after the last one: then the publisher is about to tell its figures, and takes memory for that.
        if measured % task.count.div_ceil(LOOKS) == 0 && measured + 1 < task.count {
            clock::sleep_until(due + task.period / 2);
            delivered.resident.push((measured + 1, Resident::of(publisher)?.now));
        }
    }
    Ok(delivered)
}
