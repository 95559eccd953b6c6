//! A camera (6 MB at 60 Hz) and an IMU (48 B at 1 kHz) in one provider under a cap of 64 MiB, to
//! three subscriber processes that hoard and release: what each way of waiting loses, and costs.

#![forbid(unsafe_code)]

use crate::publisher::{camera, imu, Frames, Samples};
use crate::schedule::{Schedule, FRAME, SAMPLE, SUBSCRIBERS};
use crate::subscriber::{Received, Task};
use crate::ways::{Way, WAYS};
use crate::{report, Part, PREFIX};
use shm_pool::channel::Sender;
use shm_pool::{AllocErrorKind, PeerId, Provider};
use shm_pool_support::machine::Cores;
use shm_pool_support::process::{this_program, Child};
use shm_pool_support::{clock, wire, Fallible};
use std::io::Read;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::thread;

const CAP: usize = 64 << 20;

/// Samples with memory reserved for the IMU: more than hoards hold at a time.
const RESERVED: usize = 256;

/// Nanoseconds from when all are ready until the first frame.
const LEAD: u64 = 10_000_000;

/// The results of a round.
pub(crate) struct Outcome {
    pub(crate) frames: Frames,
    pub(crate) samples: Samples,
    /// Frames that were dropped although there was memory before they gave up. Others were due to a
    /// subscriber that the machine delayed beyond its schedule.
    pub(crate) missed: u64,
    /// Nanoseconds that an attempt took when frames filled the pool.
    pub(crate) in_vain: f64,
    /// Nanoseconds of CPU time that the publisher took in both threads.
    pub(crate) cpu: u64,
}

/// A few frames by each way.
pub(crate) fn check(cores: Cores) -> Fallible {
    for (way, name) in WAYS {
        let Outcome { frames, samples, .. } = run(way, 30, cores)?;
        println!("{name}: {} frames and {} samples, all as sent", frames.published, samples.published);
    }
    Ok(())
}

pub(crate) fn measure(rounds: u32, frames: u64, cores: Cores) -> Fallible {
    let count = frames.div_ceil(rounds.into());
    println!("\nA camera and an IMU, to processes that hoard: in turn, {rounds} rounds of {count} frames\n");
    let mut results = WAYS.map(|_| Vec::new());
    for _ in 0..rounds {
        for ((way, _), result) in WAYS.iter().zip(&mut results) {
            result.push(run(*way, count, cores)?);
        }
    }
    report::print(&results)
}

/// One round.
fn run(way: Way, frames: u64, cores: Cores) -> Fallible<Outcome> {
    let provider = Provider::builder().name_prefix(PREFIX).max_bytes(CAP).max_idle_per_class(RESERVED).build()?;
    let _reserved = provider.reserve(SAMPLE, RESERVED)?;
    let (fits, in_vain) = fill_up(&provider)?;
    let (mut children, mut sockets, mut channels) = (Vec::new(), Vec::new(), Vec::new());
    for subscriber in 0..SUBSCRIBERS {
        let channel = format!("{}-{subscriber}", std::process::id());
        channels.push(Sender::create(&provider, &channel)?);
        let task = Task { subscriber, provider: provider.id().to_u64(), channel, core: cores.second() };
        let (socket, theirs) = UnixStream::pair()?;
        let mut command = this_program(&Part::Subscriber(task))?;
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::piped());
        children.push(Child::start(format!("subscriber {subscriber}"), &mut command)?);
        sockets.push(socket);
    }
    let peers = sockets.into_iter().map(|mut socket| -> Fallible<_> {
        let mut peer = [0; PeerId::SIZE];
        socket.read_exact(&mut peer)?;
        Ok((PeerId::from_bytes(peer), socket))
    });
    let peers = peers.collect::<Fallible<Vec<_>>>()?;
    let schedule = Schedule { start: clock::now() + LEAD, frames, fits };
    peers.iter().try_for_each(|(_, socket)| wire::send(socket, &schedule))?;

    let before = clock::process_cpu();
    let (frames, samples) = thread::scope(|scope| -> Fallible<_> {
        let samples = scope.spawn(|| imu(&provider, &mut channels, &schedule));
        let frames = camera(way, &provider, &peers, &schedule)?;
        Ok((frames, samples.join().map_err(|_| "the IMU's thread panicked")??))
    })?;
    let cpu = clock::process_cpu() - before;

    // So that the subscribers see the end.
    drop(channels);
    peers.iter().try_for_each(|(_, socket)| socket.shutdown(Shutdown::Write))?;
    let mut ended = Vec::new();
    for mut child in children {
        let received: Received = wire::expect(child.output()?).map_err(|error| format!("{}: {error}", child.name()))?;
        let sent = (frames.published, samples.published);
        if (received.frames, received.samples) != sent {
            return Err(format!("of {sent:?} frames and samples, {} got only {received:?}", child.name()).into());
        }
        ended.extend(received.ended);
        child.finish()?;
    }
    let was_back = |&&(frame, until): &&(u64, u64)| {
        let needed = ended.iter().filter(|(end, _)| *end <= frame);
        needed.map(|(_, time)| time).max().is_some_and(|time| *time < until)
    };
    let missed = frames.dropped.iter().filter(was_back).count() as u64;
    Ok(Outcome { frames, samples, missed, in_vain, cpu })
}

/// How many frames there is memory for, and what an attempt then takes, in nanoseconds.
fn fill_up(provider: &Provider) -> Fallible<(u64, f64)> {
    const ATTEMPTS: u32 = 1000;
    let mut all = Vec::new();
    let refused = loop {
        match provider.alloc(FRAME) {
            Ok(buffer) => all.push(buffer),
            Err(error) => break error,
        }
    };
    if !matches!(refused.kind(), AllocErrorKind::Exhausted { .. }) {
        return Err(refused.into());
    }
    let begin = clock::now();
    for _ in 0..ATTEMPTS {
        if provider.alloc(FRAME).is_ok() {
            return Err("one more frame fits than fitted before".into());
        }
    }
    Ok((all.len() as u64, (clock::now() - begin) as f64 / f64::from(ATTEMPTS)))
}
