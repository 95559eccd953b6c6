//! The subscribing process: receives every message, reads all of it, and compares it with what the
//! device must have measured.

#![forbid(unsafe_code)]

use crate::message::Navigation;
use crate::publisher::Usage;
use crate::round::{Task, PREFIX};
use crate::sample::{self, Sample};
use crate::segment::Segment;
use serde::{Deserialize, Serialize};
use shm_pool::channel::{Message, Receiver};
use shm_pool::Client;
use shm_pool_support::{clock, latency, wire, Fallible};
use std::io;
use std::time::Duration;

/// What came of the measured messages.
#[derive(Serialize, Deserialize)]
pub(crate) struct Received {
    pub(crate) messages: u64,
    /// Nanoseconds of the processor's time, without those for comparing.
    pub(crate) cpu: u64,
    /// From the time of the sample until the message was decoded, in nanoseconds, and how often it
    /// was that.
    pub(crate) latencies: Vec<(u64, u64)>,
}

/// The process. It is told when the device is started, and tells [`Received`].
pub(crate) fn run(task: &Task) -> Fallible {
    let client = Client::builder().name_prefix(PREFIX).build()?;
    // A millisecond and more passes between two messages: not worth spinning for.
    let builder = Receiver::builder().spin(Duration::ZERO);
    let mut receiver = builder.open(&client, &task.channel)?;
    let start: u64 = wire::expect(io::stdin())?;

    let mut reference = Reference { task, record: Vec::new() };
    let mut latencies = latency::histogram();
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
        let decoded = clock::thread_cpu();
        reference.compare(number, &navigation, bytes).map_err(named)?;
        comparing += clock::thread_cpu() - decoded;
        if number >= task.warm_up {
            latencies.saturating_record(latency);
        }
    }
    let cpu = (Usage::now()? - before).cpu.saturating_sub(comparing);
    let messages = latencies.len();
    let latencies = latencies.iter_recorded().map(|at| (at.value_iterated_to(), at.count_at_value())).collect();
    Ok(wire::send(io::stdout(), &Received { messages, cpu, latencies })?)
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
