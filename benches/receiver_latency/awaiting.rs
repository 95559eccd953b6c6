//! Awaiting: the cost of a message to a receiver that parks, at 1 kHz: in a thread that blocks, as
//! a task, and as a task served by a separate thread, the bridge that a program builds when its
//! receiver only blocks.
//!
//! The CPU time is that of the receiver's whole process, including helper and bridge. The latency
//! is from when the publisher began to send a message until the receiver's code got it, including
//! the wake-up.

#![forbid(unsafe_code)]

use crate::link::{Columns, Link};
use crate::publisher::{Message, Order};
use crate::ways::{from_channel, Row, TakenBy, Way, SLOTS};
use shm_pool::channel::Receiver;
use shm_pool_support::latency::{Latencies, Spread};
use shm_pool_support::machine::Cores;
use shm_pool_support::table::{show, table, Goal};
use shm_pool_support::tasks::block_on;
use shm_pool_support::{clock, Fallible};
use std::future::poll_fn;
use std::sync::mpsc::{self, TryRecvError};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

const RATE: u64 = 1000;
const GOAL: Goal = Goal::AtMost(1.5);

const SPIN: Option<Duration> = Some(Duration::from_micros(20));

/// The other rows are compared with the first.
pub(crate) const ROWS: [Row; 7] = [
    (
        "recv, default",
        Way::Channel {
            spin: None,
            taken: TakenBy::Thread,
        },
    ),
    (
        "recv, 20 µs spin",
        Way::Channel {
            spin: SPIN,
            taken: TakenBy::Thread,
        },
    ),
    (
        "recv, no spin",
        Way::Channel {
            spin: Some(Duration::ZERO),
            taken: TakenBy::Thread,
        },
    ),
    (
        "recv_async",
        Way::Channel {
            spin: SPIN,
            taken: TakenBy::Task,
        },
    ),
    (
        "bridge thread, 20 µs spin",
        Way::Channel {
            spin: SPIN,
            taken: TakenBy::Bridge,
        },
    ),
    (
        "bridge thread, no spin",
        Way::Channel {
            spin: Some(Duration::ZERO),
            taken: TakenBy::Bridge,
        },
    ),
    (
        "recv, no spin, interruptible",
        Way::Channel {
            spin: Some(Duration::ZERO),
            taken: TakenBy::Interruptible,
        },
    ),
];

#[derive(Default)]
struct Measured {
    latencies: Latencies,
    /// Nanoseconds of CPU time per message, by round.
    cpu: Vec<f64>,
}

pub(crate) fn measure(cores: Cores, rounds: u32, seconds: f64) -> Fallible {
    let order = Order {
        rate: RATE,
        count: (RATE as f64 * seconds).ceil() as u64,
    };
    let mut results = ROWS.map(|_| Measured::default());
    let mut columns = Columns::new();
    for round in 0..=rounds {
        for (row, result) in ROWS.into_iter().zip(&mut results) {
            // One at a time, because each has its own threads.
            let mut link = Link::start(row, SLOTS, cores.second())?;
            link.repeat(
                Order {
                    count: 100,
                    ..order
                },
                |_, _| {},
            )?;
            columns.intended.reset();
            columns.naive.reset();
            let before = clock::process_cpu();
            let took = link.repeat(order, |now, message| columns.record(now, message))?;
            let cpu = (clock::process_cpu() - before) as f64 / order.count as f64;
            link.finish()?;
            if round > 0 {
                result.latencies.add(&columns.naive, took)?;
                result.cpu.push(cpu);
            }
        }
    }
    print(&results);
    Ok(())
}

fn print(results: &[Measured]) {
    println!(
        "Awaiting at {RATE} msg/s: \
         the receiver's processor time for each message, and its latency\n"
    );
    let cpu = |result: &Measured| Spread::of(&result.cpu).median;
    let base = cpu(&results[0]);
    let mut rows = table(&["", "CPU/msg", "/ recv", "goal", "", "p50", "p90", "p99"]);
    for ((name, way), result) in ROWS.iter().zip(results) {
        let ratio = cpu(result) / base;
        let goal = match way {
            Way::Channel {
                taken: TakenBy::Task,
                ..
            } => GOAL,
            _ => Goal::None,
        };
        rows.add_row([
            (*name).to_owned(),
            format!("{:.1} µs", cpu(result) / 1e3),
            format!("{ratio:.2}"),
            goal.to_string(),
            goal.verdict(ratio).to_owned(),
            result.latencies.at(0.5),
            result.latencies.at(0.9),
            result.latencies.at(0.99),
        ]);
    }
    show("receiver_latency awaiting", &rows);
}

const NO_PANIC: &str = "no thread panics with the lock";

/// A thread that blocks in `recv`, and passes each message to a task.
pub(crate) fn bridge(mut receiver: Receiver) -> impl FnMut() -> Fallible<Option<Message>> {
    let (sender, messages) = mpsc::channel();
    let waker_of_task = Arc::new(Mutex::new(None::<Waker>));
    let waker_of_thread = waker_of_task.clone();
    thread::spawn(move || loop {
        let message = from_channel(receiver.recv());
        let is_last = !matches!(message, Ok(Some(_)));
        if sender.send(message).is_err() {
            return;
        }
        let waker = waker_of_thread.lock().expect(NO_PANIC).take();
        if let Some(waker) = waker {
            waker.wake();
        }
        if is_last {
            return;
        }
    });
    move || {
        block_on(poll_fn(|context| {
            let poll = || match messages.try_recv() {
                Ok(message) => Poll::Ready(message),
                Err(TryRecvError::Empty) => Poll::Pending,
                Err(TryRecvError::Disconnected) => Poll::Ready(Err("the bridge has ended".into())),
            };
            let polled = poll();
            if polled.is_ready() {
                return polled;
            }
            *waker_of_task.lock().expect(NO_PANIC) = Some(context.waker().clone());
            // A message that was sent before the waker was stored has woken no task.
            poll()
        }))
    }
}
