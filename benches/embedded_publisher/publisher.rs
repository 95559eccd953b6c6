//! The publishing process: runs a driver, and measures what that takes.
//!
//! | it tells | when |
//! |---|---|
//! | `()` | the channel can be opened |
//! | `()` | the subscriber is there |
//! | [`Published`] | the last message was sent |

#![forbid(unsafe_code)]

use crate::baseline::{Baseline, Wait};
use crate::device::Device;
use crate::heap;
use crate::pooled::Pooled;
use crate::round::{Form, Task};
use derive_more::Sub;
use nix::sys::resource::{getrusage, UsageWho};
use nix::sys::time::TimeVal;
use serde::{Deserialize, Serialize};
use shm_pool_support::{clock, wire, Fallible};
use std::io;
use std::thread;
use std::time::Duration;

/// How long the subscriber may take to come.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a driver counts.
#[derive(Clone, Copy, Debug, Default, Sub, Serialize, Deserialize)]
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
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Published {
    pub(crate) counts: Counts,
    pub(crate) usage: Usage,
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
    wire::send(io::stdout(), &())?;
    driver.wait_for_subscriber(PATIENCE)?;
    wire::send(io::stdout(), &())?;
    let measured = thread::scope(|scope| scope.spawn(|| measure(&mut driver, task)).join());
    let published = measured.map_err(|_| "the driver's thread panicked")??;
    wire::send(io::stdout(), &published)?;
    driver.finish()
}

fn measure(driver: &mut impl Driver, task: &Task) -> Fallible<Published> {
    (0..task.warm_up).try_for_each(|_| driver.publish_next())?;
    // Asking for counts may use the heap, so it is done outside.
    let counts = driver.counts();
    let usage = Usage::now()?;
    (0..task.count).try_for_each(|_| driver.publish_next())?;
    let usage = Usage::now()? - usage;
    let counts = driver.counts() - counts;
    Ok(Published { counts, usage })
}

/// Used by this process since it began, or between two such moments.
#[derive(Clone, Copy, Debug, Default, Sub, Serialize, Deserialize)]
pub(crate) struct Usage {
    /// The moment, in nanoseconds.
    pub(crate) time: u64,
    /// Nanoseconds, of all threads, for the program and for the kernel on its behalf.
    pub(crate) cpu: u64,
    /// Context switches of all threads, voluntary or not.
    pub(crate) switches: u64,
    /// Minor faults of all threads.
    pub(crate) faults: u64,
    /// Heap operations of the calling thread.
    pub(crate) heap: u64,
}

impl Usage {
    pub(crate) fn now() -> Fallible<Self> {
        let usage = getrusage(UsageWho::RUSAGE_SELF)?;
        let nanoseconds = |time: TimeVal| time.tv_sec() as u64 * 1_000_000_000 + time.tv_usec() as u64 * 1_000;
        Ok(Self {
            time: clock::now(),
            cpu: nanoseconds(usage.user_time()) + nanoseconds(usage.system_time()),
            switches: (usage.voluntary_context_switches() + usage.involuntary_context_switches()) as u64,
            faults: usage.minor_page_faults() as u64,
            heap: heap::operations(),
        })
    }
}
