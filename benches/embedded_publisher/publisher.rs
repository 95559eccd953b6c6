//! The publishing process: runs a driver, and measures its cost.
//!
//! | it sends | when |
//! |---|---|
//! | `()` | the channel can be opened |
//! | `()` | the subscriber is connected |
//! | [`Published`] | the last message was sent |

#![forbid(unsafe_code)]

use crate::baseline::Baseline;
use crate::device::Device;
use crate::heap;
use crate::pooled::Pooled;
use crate::round::{Form, Task, PREFIX, WARM_UP};
use derive_more::Sub;
use nix::sys::resource::{getrusage, UsageWho};
use serde::{Deserialize, Serialize};
use shm_pool::channel::Sender;
use shm_pool::Provider;
use shm_pool_support::{clock, wire, Fallible};
use std::io;
use std::time::Duration;

/// How long the subscriber may take to connect.
const PATIENCE: Duration = Duration::from_secs(30);

/// Messages that are sent and not read. Beyond that, `send` waits, and samples wait in the device.
/// This bounds the memory.
pub(crate) const UNDER_WAY: usize = 4;

/// The driver's connections to the device and the subscriber.
pub(crate) struct Ends {
    pub(crate) device: Device,
    pub(crate) provider: Provider,
    pub(crate) sender: Sender,
    /// The channel's name.
    pub(crate) channel: String,
}

/// Publishes the samples that a device delivers.
pub(crate) trait Driver {
    /// Waits for the device's next sample, and publishes it.
    fn publish_next(&mut self, ends: &mut Ends) -> Fallible;

    /// Returns the counts since it started.
    fn counts(&self, ends: &Ends) -> Counts;
}

/// A driver's counters.
#[derive(Clone, Copy, Default, Sub, Serialize, Deserialize)]
pub(crate) struct Counts {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// Segments of shared memory that were created.
    pub(crate) segments: u64,
}

/// The resources used by this process since it started, or between two points in time.
#[derive(Clone, Copy, Sub, Serialize, Deserialize)]
pub(crate) struct Usage {
    /// The time, in nanoseconds.
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
    fn now() -> Fallible<Self> {
        let usage = getrusage(UsageWho::RUSAGE_SELF)?;
        Ok(Self {
            time: clock::now(),
            cpu: clock::process_cpu(),
            switches: (usage.voluntary_context_switches() + usage.involuntary_context_switches()) as u64,
            faults: usage.minor_page_faults() as u64,
            heap: heap::operations(),
        })
    }
}

/// The cost of the measured messages.
#[derive(Serialize, Deserialize)]
pub(crate) struct Published {
    pub(crate) usage: Usage,
    pub(crate) counts: Counts,
}

/// Runs the process.
pub(crate) fn run(task: &Task) -> Fallible {
    let device = Device::open()?;
    let provider = Provider::builder().name_prefix(PREFIX).max_bytes(256 << 10).max_shared(64).build()?;
    let sender = Sender::builder().capacity(UNDER_WAY).create(&provider, &task.channel)?;
    let mut ends = Ends { device, provider, sender, channel: task.channel.clone() };
    let mut driver: Box<dyn Driver> = match task.form {
        Form::Baseline => Box::new(Baseline::that_polls(&ends)?),
        Form::Blocking => Box::new(Baseline::default()),
        Form::Pooled => Box::new(Pooled::new(&ends)?),
    };
    wire::send(io::stdout(), &())?;
    ends.sender.wait_for_receiver(PATIENCE)?;
    wire::send(io::stdout(), &())?;
    (0..WARM_UP).try_for_each(|_| driver.publish_next(&mut ends))?;
    // Asking for counts may use the heap, so it is done outside.
    let counts = driver.counts(&ends);
    let usage = Usage::now()?;
    (0..task.count).try_for_each(|_| driver.publish_next(&mut ends))?;
    let usage = Usage::now()? - usage;
    let counts = driver.counts(&ends) - counts;
    wire::send(io::stdout(), &Published { usage, counts })?;
    // The sent messages are kept until the device is closed.
    ends.device.wait_until_gone()
}
