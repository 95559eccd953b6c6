//! How soon a wait for memory ends after another process's release, beside a bare futex wake
//! between the same two processes.
//!
//! Latency is from just before the other process releases (drops its last view, returns a borrowed
//! buffer, or wakes the futex) to when the waiter runs again, by the monotonic clock that both
//! read. The other process releases a while after the waiter has parked.

use crate::line::{self, Line};
use crate::PREFIX;
use serde::{Deserialize, Serialize};
use shm_pool::channel::{Receiver, Sender};
use shm_pool::{Client, Descriptor, Namespace, Provider};
use shm_pool_support::latency::{self, Latencies};
use shm_pool_support::machine::{pin, Cores};
use shm_pool_support::process::{inherited_input, inherited_output, this_program, Child};
use shm_pool_support::table::{show, table, Goal};
use shm_pool_support::{clock, Fallible};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const CAP: usize = 1 << 20;
const GOAL: Goal = Goal::AtMost(1.5);

/// Longer than any successful step takes.
const FOR_EVER: Duration = Duration::from_secs(60);

/// How long the other process gives the waiter to park, in nanoseconds.
const UNTIL_PARKED: u64 = 300_000;

/// How memory is released; or a futex, for comparison.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Way {
    Futex,
    View,
    Message,
}

const ROWS: [(Way, &str); 3] = [
    (Way::Futex, "a bare futex wake"),
    (Way::View, "a view is dropped, alloc_timeout returns"),
    (Way::Message, "a message is dropped, alloc_timeout returns"),
];

/// The other process's task.
#[derive(Serialize, Deserialize)]
pub(crate) struct Task {
    way: Way,
    count: u64,
    name: String,
    core: Option<usize>,
}

/// A few waits of each way.
pub(crate) fn check(cores: Cores) -> Fallible {
    for (way, name) in ROWS {
        run(way, 20, cores)?;
        println!("{name}: 20 waits, all ended");
    }
    Ok(())
}

pub(crate) fn measure(rounds: u32, waits: u64, cores: Cores) -> Fallible {
    let count = waits.div_ceil(rounds.into());
    println!("\nUntil a wait ends: in turn, {rounds} rounds of {count} waits\n");
    let mut results = ROWS.map(|_| Latencies::default());
    for _ in 0..rounds {
        for ((way, _), result) in ROWS.iter().zip(&mut results) {
            let start = Instant::now();
            let latencies = run(*way, count, cores)?;
            result.add(&latencies, start.elapsed())?;
        }
    }
    print(&results);
    Ok(())
}

fn print(results: &[Latencies; 3]) {
    let mut rows = table(&[
        "",
        "p50",
        "p90",
        "p99",
        "p50 of the rounds",
        "/ the futex",
        "goal",
        "",
    ]);
    let bare = results[0].p50().median;
    for ((way, name), result) in ROWS.iter().zip(results) {
        let ratio = result.p50().median / bare;
        let goal = if *way == Way::Futex { Goal::None } else { GOAL };
        rows.add_row([
            name.to_string(),
            result.at(0.5),
            result.at(0.9),
            result.at(0.99),
            result.p50().to_string(),
            format!("{ratio:.2}"),
            goal.to_string(),
            goal.verdict(ratio).to_owned(),
        ]);
    }
    show("backpressure wake", &rows);
}

/// Waits `count` times for the other process.
fn run(way: Way, count: u64, cores: Cores) -> Fallible<hdrhistogram::Histogram<u64>> {
    let (line, fd) = line::create()?;
    let (mut socket, theirs) = UnixStream::pair()?;
    let provider = Provider::builder()
        .namespace(&Namespace::new(PREFIX).unwrap())
        .max_bytes(CAP)
        .build()?;
    let name = std::process::id().to_string();
    let mut sender = Sender::builder().create(&provider, &name)?;
    let task = Task {
        way,
        count,
        name,
        core: cores.second(),
    };
    let mut command = this_program(&task)?;
    let other = Child::start(
        "other process",
        command.stdin(fd).stdout(Stdio::from(OwnedFd::from(theirs))),
    )?;
    let mut latencies = latency::histogram();
    for number in 0..count {
        match way {
            Way::Futex => {}
            Way::View => {
                let message = provider.alloc(CAP)?.freeze();
                socket.write_all(&message.descriptor()?.to_bytes())?;
                // From then on, the other process's view keeps the message.
                socket.read_exact(&mut [0])?;
            }
            Way::Message => {
                let message = provider.alloc(CAP)?.freeze();
                if let Err(error) = sender.send(message) {
                    return Err(error.kind().into());
                }
            }
        }
        socket.write_all(b".")?;
        match way {
            Way::Futex => line.wait_until(number as u32 + 1),
            Way::View | Way::Message => drop(provider.alloc_timeout(CAP, FOR_EVER)?),
        }
        let now = clock::now();
        latencies.saturating_record(now.saturating_sub(line.stamp().load(Ordering::Acquire)));
    }
    drop(socket);
    other.finish()?;
    Ok(latencies)
}

impl Task {
    /// Runs the other process.
    pub(crate) fn run(&self) -> Fallible {
        pin(self.core)?;
        let line = Line::map(&File::from(inherited_input()?))?;
        let mut socket = UnixStream::from(inherited_output()?);
        let client = Client::in_namespace(&Namespace::new(PREFIX).unwrap());
        let mut receiver = Receiver::builder()
            .namespace(client.namespace())
            .open(&self.name)?;
        for number in 0..self.count {
            let mut view = None;
            let mut message = None;
            match self.way {
                Way::Futex => {}
                Way::View => {
                    let mut bytes = [0; Descriptor::SIZE];
                    socket.read_exact(&mut bytes)?;
                    view = Some(client.attach(&Descriptor::from_bytes(bytes)?)?);
                    socket.write_all(b".")?;
                }
                Way::Message => message = Some(receiver.recv()?),
            }
            socket.read_exact(&mut [0])?;
            let start = clock::now();
            while clock::now() - start < UNTIL_PARKED {
                std::hint::spin_loop();
            }
            line.stamp().store(clock::now(), Ordering::Release);
            match self.way {
                Way::Futex => line.wake(number as u32 + 1),
                Way::View | Way::Message => drop((view, message)),
            }
        }
        Ok(())
    }
}
