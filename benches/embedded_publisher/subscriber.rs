//! The subscribing process: receives every message, reads all of it, and compares it with what the
//! device must have measured.

#![forbid(unsafe_code)]

use crate::message::Navigation;
use crate::round::{Task, PREFIX, WARM_UP};
use crate::sample::{self, Sample};
use crate::segment;
use serde::{Deserialize, Serialize};
use shm_pool::channel::{Message, Receiver};
use shm_pool::Client;
use shm_pool_support::{clock, wire, Fallible};
use std::io;
use std::time::Duration;

/// The results of the measured messages.
#[derive(Serialize, Deserialize)]
pub(crate) struct Received {
    /// Nanoseconds of CPU time, without the comparisons.
    pub(crate) cpu: u64,
    /// Of each message, from the time of the sample until it was decoded, in nanoseconds.
    pub(crate) latencies: Vec<u64>,
}

/// Runs the process. It receives the time at which the device is started, and sends [`Received`].
pub(crate) fn run(task: &Task) -> Fallible {
    let client = Client::builder().name_prefix(PREFIX).build()?;
    // A millisecond or more passes between two messages: not worth spinning for.
    let mut receiver = Receiver::builder().spin(Duration::ZERO).open(&client, &task.channel)?;
    let start: u64 = wire::expect(io::stdin())?;
    let mut latencies = Vec::with_capacity(task.count as usize);
    let mut begun = 0;
    for number in 0..task.total() {
        if number == WARM_UP {
            begun = clock::process_cpu();
        }
        let named = |error| format!("message {number}: {error}");
        let message = receiver.recv().map_err(|error| named(error.into()))?;
        let segment;
        let bytes = match &message {
            Message::Buffer(view) => &view[..],
            Message::Bytes(path) => {
                segment = segment::take(path).map_err(named)?;
                &segment[..]
            }
        };
        let navigation = Navigation::decode(bytes).map_err(named)?;
        let latency = clock::now() - (start + task.time_of(number));
        let decoded = clock::process_cpu();
        compare(task, number, &navigation, bytes).map_err(named)?;
        if number >= WARM_UP {
            latencies.push(latency);
            begun += clock::process_cpu() - decoded;
        }
    }
    let cpu = clock::process_cpu().saturating_sub(begun);
    Ok(wire::send(io::stdout(), &Received { cpu, latencies })?)
}

/// Compares with the expected message, computed from the seed. Both drivers must send the same
/// bytes.
fn compare(task: &Task, number: u64, came: &Navigation, bytes: &[u8]) -> Fallible {
    let mut sample = Vec::new();
    sample::measure(task.seed, number, task.time_of(number), &mut sample);
    let meant = Navigation::of(Sample::read(&sample)?);
    if came.sequence != number {
        return Err(format!("number {} came instead", came.sequence).into());
    }
    let reference = meant.encode()?;
    if bytes != reference {
        let same = bytes.iter().zip(&reference).take_while(|(one, other)| one == other).count();
        let (came, meant) = (bytes.len(), reference.len());
        return Err(format!("{came} bytes, where {meant} were meant, and different from byte {same} on").into());
    }
    if *came != meant {
        return Err("it was decoded to something else than the device measured".into());
    }
    Ok(())
}
