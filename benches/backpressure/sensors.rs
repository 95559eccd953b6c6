//! A camera (6 MB at 60 Hz) and an IMU (48 B at 1 kHz) in one provider under a cap of 64 MiB, to
//! three subscriber processes that hoard and let go: what each way of waiting loses, and costs.

#![forbid(unsafe_code)]

use crate::publisher::{camera, imu, Frames, Samples};
use crate::schedule::{Schedule, FRAME, SAMPLE, SUBSCRIBERS};
use crate::subscriber::{Received, Task};
use crate::ways::{Way, WAYS};
use crate::{Part, PREFIX};
use shm_pool::channel::Sender;
use shm_pool::{PeerId, Provider, ShmBufMut};
use shm_pool_support::latency::{self, Spread};
use shm_pool_support::machine::Cores;
use shm_pool_support::process::{this_program, Child};
use shm_pool_support::table::{table, Goal};
use shm_pool_support::units::Nanoseconds;
use shm_pool_support::{clock, wire, Fallible};
use std::io::Read;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::thread;

const CAP: usize = 64 << 20;

/// More samples than three hoards have.
const RESERVED: usize = 512;

/// Nanoseconds from when all are ready until the first frame.
const LEAD: u64 = 10_000_000;

/// Every hoard ends in time, so nothing need be dropped.
const DROPPED: Goal = Goal::AtMost(0.0);

/// Processor's time beside that of polling every 200 µs.
const CPU: Goal = Goal::AtMost(0.5);

/// What came of a way, in one round or in all.
struct Outcome {
    frames: Frames,
    samples: Samples,
    /// Nanoseconds of the processor's time that the publisher took in both threads.
    cpu: u64,
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
    println!(
        "\nA camera and an IMU to {SUBSCRIBERS} processes that hoard: in turn, {rounds} rounds of {count} frames\n"
    );
    let mut results = WAYS.map(|_| Vec::new());
    for _ in 0..rounds {
        for ((way, _), result) in WAYS.iter().zip(&mut results) {
            result.push(run(*way, count, cores)?);
        }
    }
    print(&results)
}

/// One round.
fn run(way: Way, frames: u64, cores: Cores) -> Fallible<Outcome> {
    let provider = Provider::builder().name_prefix(PREFIX).max_bytes(CAP).max_idle_per_class(RESERVED).build()?;
    let _reserved = provider.reserve(SAMPLE, RESERVED)?;
    let fits = fits(&provider)?;
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

    // So that the subscribers see that there is no more.
    drop(channels);
    peers.iter().try_for_each(|(_, socket)| socket.shutdown(Shutdown::Write))?;
    for mut child in children {
        let received: Received = wire::expect(child.output()?).map_err(|error| format!("{}: {error}", child.name()))?;
        if received != (Received { frames: frames.published, samples: samples.published }) {
            return Err(format!("{} got only {received:?}", child.name()).into());
        }
        child.finish()?;
    }
    Ok(Outcome { frames, samples, cpu })
}

/// How many frames there is memory for.
fn fits(provider: &Provider) -> Fallible<u64> {
    let mut all: Vec<ShmBufMut> = Vec::new();
    loop {
        match provider.alloc(FRAME) {
            Ok(buffer) => all.push(buffer),
            Err(error) if error.is_exhausted() => return Ok(all.len() as u64),
            Err(error) => return Err(error.into()),
        }
    }
}

fn print(results: &[Vec<Outcome>; WAYS.len()]) -> Fallible {
    let heads = ["waiting by", "frames", "dropped", "goal", "", "IMU dropped", "goal", "", "alloc p50", "p99"];
    let mut rows = table(&[&heads[..], &["after the hoard's end, p50", "p99"]].concat());
    for ((_, name), rounds) in WAYS.iter().zip(results) {
        let sum = |of: fn(&Outcome) -> u64| rounds.iter().map(of).sum::<u64>();
        let (dropped, missing) = (sum(|round| round.frames.dropped), sum(|round| round.samples.dropped));
        let (mut allocations, mut late) = (latency::histogram(), latency::histogram());
        for Outcome { frames, .. } in rounds {
            allocations.add(&frames.allocations)?;
            late.add(&frames.late)?;
        }
        let mut row = vec![(*name).to_owned(), sum(|round| round.frames.published).to_string()];
        for count in [dropped, missing] {
            row.extend([count.to_string(), DROPPED.to_string(), DROPPED.verdict(count as f64).to_owned()]);
        }
        row.extend([&allocations, &late].iter().flat_map(|all| [latency::at(all, 0.5), latency::at(all, 0.99)]));
        rows.add_row(row);
    }
    println!("{rows}\n");

    let heads = ["publisher's CPU", "", "/ polling's", "goal", ""];
    let mut costs = table(&heads);
    let rows: [(&str, fn(&Outcome) -> f64); 2] =
        [("to get memory, per frame", allocating), ("but for filling, per message", sending)];
    for (what, cost) in rows {
        for ((way, name), rounds) in WAYS.iter().zip(results) {
            let ratios = rounds.iter().zip(&results[1]).map(|(one, other)| cost(one) / cost(other));
            let ratio = Spread::of(&ratios.collect::<Vec<_>>());
            let goal = if *way == Way::Timeout { CPU } else { Goal::None };
            let cost = Nanoseconds(Spread::of(&rounds.iter().map(cost).collect::<Vec<_>>()).median);
            costs.add_row([
                format!("{what}: {name}"),
                cost.to_string(),
                ratio.range(2),
                goal.to_string(),
                goal.verdict(ratio.median).to_owned(),
            ]);
        }
    }
    println!("{costs}");
    Ok(())
}

/// What the camera's thread spends on memory.
fn allocating(Outcome { frames, .. }: &Outcome) -> f64 {
    frames.cpu_allocating as f64 / (frames.published + frames.dropped) as f64
}

/// What the process spends on everything but the bytes.
fn sending(Outcome { frames, samples, cpu }: &Outcome) -> f64 {
    (cpu - frames.cpu_filling) as f64 / (frames.published + samples.published) as f64
}
