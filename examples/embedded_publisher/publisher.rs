//! The publishing process: runs a driver, and measures what that takes.
//!
//! | it tells | when |
//! |---|---|
//! | an empty line | the channel can be opened |
//! | an empty line | the subscriber is there |
//! | [`Published`] | the last message was sent |

#![forbid(unsafe_code)]

use crate::baseline::{Baseline, Wait};
use crate::device::Device;
use crate::pooled::Pooled;
use crate::support::Fallible;
use crate::task::{Form, Task};
use crate::usage::Usage;
use crate::wire::tell;
use std::thread;
use std::time::Duration;

/// How long the subscriber may take to come.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a driver counts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// Segments of shared memory that were made.
    pub(crate) segments: u64,
}

/// Publishes what a device delivers.
pub(crate) trait Driver: Send {
    fn wait_for_subscriber(&mut self, timeout: Duration) -> Fallible;

    /// Waits for the device's next sample, and publishes it.
    fn publish_next(&mut self) -> Fallible;

    /// Since it began.
    fn counts(&self) -> Counts;

    /// Keeps what was sent until the device goes away.
    fn finish(self) -> Fallible;
}

/// What the measured messages took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Published {
    pub(crate) counts: Counts,
    pub(crate) usage: Usage,
}

impl Published {
    fn to_numbers(self) -> [u64; 8] {
        let Counts { messages, bytes, segments } = self.counts;
        let Usage { time, cpu, switches, faults, heap } = self.usage;
        [messages, bytes, segments, time, cpu, switches, faults, heap]
    }

    pub(crate) fn from_numbers(numbers: &[u64]) -> Fallible<Self> {
        let &[messages, bytes, segments, time, cpu, switches, faults, heap] = numbers else {
            return Err("the publisher told something else than its figures".into());
        };
        let counts = Counts { messages, bytes, segments };
        Ok(Self { counts, usage: Usage { time, cpu, switches, faults, heap } })
    }
}

/// The process.
pub(crate) fn run(task: &Task) -> Fallible {
    let device = Device::open()?;
    match task.form {
        Form::Baseline => drive(Baseline::new(device, Wait::Poll, &task.channel)?, task),
        Form::Blocking => drive(Baseline::new(device, Wait::Block, &task.channel)?, task),
        Form::Pooled => drive(Pooled::new(device, &task.channel)?, task),
    }
}

fn drive(mut driver: impl Driver, task: &Task) -> Fallible {
    tell(&[])?;
    driver.wait_for_subscriber(PATIENCE)?;
    tell(&[])?;
    let measured = thread::scope(|scope| scope.spawn(|| measure(&mut driver, task)).join());
    let published = measured.map_err(|_| "the driver's thread panicked")??;
    tell(&published.to_numbers())?;
    driver.finish()
}

fn measure(driver: &mut impl Driver, task: &Task) -> Fallible<Published> {
    (0..task.warm_up).try_for_each(|_| driver.publish_next())?;
    // Asking for counts may use the heap, so it is done outside.
    let counts = driver.counts();
    let usage = Usage::now()?;
    (0..task.count).try_for_each(|_| driver.publish_next())?;
    let usage = Usage::now()?.since(usage);
    let Counts { messages, bytes, segments } = driver.counts();
    let counts = Counts {
        messages: messages - counts.messages,
        bytes: bytes - counts.bytes,
        segments: segments - counts.segments,
    };
    Ok(Published { counts, usage })
}
