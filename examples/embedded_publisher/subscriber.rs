//! The subscribing process: receives every message, reads all of it, and compares it with what the device must have measured.

#![forbid(unsafe_code)]

use crate::message::Navigation;
use crate::sample::{self, Sample};
use crate::segment::Segment;
use crate::support::{clock, latency, Fallible};
use crate::task::{Task, PREFIX};
use crate::usage::Usage;
use crate::wire::{hear, tell};
use hdrhistogram::Histogram;
use nix::time::{clock_gettime, ClockId};
use shm_pool::channel::{Message, Receiver};
use shm_pool::Client;
use std::io;
use std::time::Duration;

/// What came of the measured messages.
pub(crate) struct Received {
    pub(crate) messages: u64,
    /// Nanoseconds of the processor's time, without those for comparing.
    pub(crate) cpu: u64,
    /// From the time of the sample until the message was decoded, in nanoseconds.
    pub(crate) latency: Histogram<u64>,
}

impl Received {
    fn to_numbers(&self) -> Vec<u64> {
        let latencies = self.latency.iter_recorded().flat_map(|at| [at.value_iterated_to(), at.count_at_value()]);
        [self.messages, self.cpu].into_iter().chain(latencies).collect()
    }

    pub(crate) fn from_numbers(numbers: &[u64]) -> Fallible<Self> {
        let [messages, cpu, latencies @ ..] = numbers else {
            return Err("the subscriber told something else than its figures".into());
        };
        let mut latency = latency::histogram();
        for pair in latencies.chunks(2) {
            latency.saturating_record_n(pair[0], pair.get(1).copied().unwrap_or(0));
        }
        Ok(Self { messages: *messages, cpu: *cpu, latency })
    }
}

/// The process. It is told when the device is started, and tells [`Received`].
pub(crate) fn run(task: &Task) -> Fallible {
    let client = Client::builder().name_prefix(PREFIX).build()?;
    // A millisecond and more passes between two messages: not worth spinning for.
    let builder = Receiver::builder().spin(Duration::ZERO);
    let mut receiver = builder.open(&client, &task.channel)?;
    let &[start] = &hear(&mut io::stdin().lock())?[..] else {
        return Err("not told when the device is started".into());
    };

    let mut reference = Reference { task, record: Vec::new() };
    let mut received = Received { messages: 0, cpu: 0, latency: latency::histogram() };
    let (mut before, mut comparing) = (Usage::default(), 0);
    for number in 0..task.total() {
        if number == task.warm_up {
            (before, comparing) = (Usage::now()?, 0);
        }
        let named = |error| format!("message {number}: {error}");
        let message = receiver.recv().map_err(|error| named(error.into()))?;
        let segment;
        let bytes = match &message {
            Message::Buffer(view) => &view[..],
            Message::Bytes(name) => {
                segment = Segment::open(name).map_err(named)?;
                &segment[..]
            }
        };
        let navigation = Navigation::decode(bytes).map_err(named)?;
        let latency = clock::now() - (start + task.time_of(number));
        let decoded = cpu()?;
        reference.compare(number, &navigation, bytes).map_err(named)?;
        comparing += cpu()? - decoded;
        if number >= task.warm_up {
            received.latency.saturating_record(latency);
            received.messages += 1;
        }
    }
    received.cpu = Usage::now()?.since(before).cpu.saturating_sub(comparing);
    tell(&received.to_numbers())
}

/// What must come, worked out from the seed.
struct Reference<'a> {
    task: &'a Task,
    record: Vec<u8>,
}

impl Reference<'_> {
    fn compare(&mut self, number: u64, came: &Navigation, bytes: &[u8]) -> Fallible {
        sample::measure(self.task.seed, number, self.task.time_of(number), &mut self.record);
        let meant = Navigation::of(&Sample::read(&self.record)?);
        if came.sequence != number {
            return Err(format!("number {} came instead", came.sequence).into());
        }
        // Both drivers are held to the same bytes.
        let reference = meant.encode();
        if bytes != reference {
            let same = bytes.iter().zip(&reference).take_while(|(one, other)| one == other).count();
            let lens = (bytes.len(), reference.len());
            return Err(
                format!("{} bytes, where {} were meant, and different from byte {same} on", lens.0, lens.1).into()
            );
        }
        if *came != meant {
            return Err("it was decoded to something else than the device measured".into());
        }
        Ok(())
    }
}

/// The processor's time that this thread has used, in nanoseconds.
fn cpu() -> Fallible<u64> {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
    Ok(time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}
