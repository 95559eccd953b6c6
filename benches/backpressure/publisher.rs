//! The publisher: a camera and an IMU, each a thread of one provider.

#![forbid(unsafe_code)]

use crate::schedule::{Schedule, FRAME, FRAME_PERIOD, SAMPLE};
use crate::subscriber::{Announcement, CAMERA, IMU};
use crate::ways::Way;
use hdrhistogram::Histogram;
use shm_pool::channel::Sender;
use shm_pool::{PeerId, Provider};
use shm_pool_support::{clock, latency, numbered, Fallible};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How long a subscriber may take for messages that it has not received yet.
const PATIENCE: Duration = Duration::from_secs(30);

/// The results of the camera's frames.
pub(crate) struct Frames {
    pub(crate) published: u64,
    /// Those that found no memory, and until when they waited for it.
    pub(crate) dropped: Vec<(u64, u64)>,
    /// How long each allocation took, in nanoseconds, including failed ones.
    pub(crate) allocations: Histogram<u64>,
    /// Of those that waited for the end of a hoard: how long after it they got memory.
    pub(crate) late: Histogram<u64>,
    /// Nanoseconds of CPU time that the camera's thread took for all allocations, …
    pub(crate) cpu_allocating: u64,
    /// … and to fill the buffers.
    pub(crate) cpu_filling: u64,
}

/// The results of the IMU's samples.
pub(crate) struct Samples {
    pub(crate) published: u64,
    pub(crate) dropped: u64,
}

/// Publishes all frames of a schedule. A frame waits for memory until the next one is due.
pub(crate) fn camera(
    way: Way,
    provider: &Provider,
    subscribers: &[(PeerId, UnixStream)],
    schedule: &Schedule,
) -> Fallible<Frames> {
    let mut frames = Frames {
        published: 0,
        dropped: Vec::new(),
        allocations: latency::histogram(),
        late: latency::histogram(),
        cpu_allocating: 0,
        cpu_filling: 0,
    };
    for frame in 0..schedule.frames {
        schedule.wait_for_frame(frame);
        let (asked, used) = (clock::now(), clock::thread_cpu());
        let buffer = way.alloc(provider, FRAME, Duration::from_nanos(FRAME_PERIOD))?;
        let (got, allocated) = (clock::now(), clock::thread_cpu());
        frames.cpu_allocating += allocated - used;
        frames.allocations.saturating_record(got - asked);
        let Some(mut buffer) = buffer else {
            frames.dropped.push((frame, asked + FRAME_PERIOD));
            continue;
        };
        let end = schedule.end(frame);
        if schedule.is_awaited(frame) && (asked..got).contains(&end) {
            frames.late.saturating_record(got - end);
        }
        numbered::fill(&mut buffer, CAMERA, frame);
        frames.cpu_filling += clock::thread_cpu() - allocated;
        let message = buffer.freeze();
        for (peer, socket) in subscribers {
            Announcement { frame, descriptor: message.grant(*peer)? }.send(socket)?;
        }
        frames.published += 1;
    }
    Ok(frames)
}

/// Publishes all samples of a schedule. A sample does not wait for memory.
pub(crate) fn imu(provider: &Provider, subscribers: &mut [Sender], schedule: &Schedule) -> Fallible<Samples> {
    let mut samples = Samples { published: 0, dropped: 0 };
    for sample in 0..schedule.samples() {
        schedule.wait_for_sample(sample);
        let mut buffer = match provider.alloc(SAMPLE) {
            Err(error) if error.is_exhausted() => {
                samples.dropped += 1;
                continue;
            }
            outcome => outcome?,
        };
        numbered::fill(&mut buffer, IMU, sample);
        let message = buffer.freeze();
        for subscriber in &mut *subscribers {
            subscriber.send(message.clone()).map_err(|error| error.kind())?;
        }
        samples.published += 1;
    }
    for subscriber in subscribers {
        subscriber.wait_until_received(PATIENCE)?;
    }
    Ok(samples)
}
