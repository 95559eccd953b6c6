//! What a message costs through the C interface and in Rust, in turns: an alloc and drop, and a send.
//! Each figure is that of the least disturbed batch, so that other processes hardly matter. Fails if C takes more than 1.2 times as long. Run it with `cargo bench -p shm-pool-c`.

#[path = "../tests/common/mod.rs"]
mod common;

use common::Compiler;
use shm_pool::channel::{Receiver, Sender};
use shm_pool::{Provider, ShmBytes};
use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const LEN: usize = 4096;
const BATCH: usize = 128;
const GOAL: f64 = 1.2;

fn main() {
    // `cargo test --benches` runs it too, for its own sake.
    let is_quick = !std::env::args().any(|argument| argument == "--bench");
    let rounds = if is_quick { 1 } else { 15 };
    let batches = if is_quick { 10 } else { 3000 };
    let program = Compiler::c().compile("overhead", &["benches/overhead.c"]);
    let provider = Provider::builder()
        .max_bytes(64 << 20)
        .max_idle_per_class(2 * BATCH)
        .build()
        .expect("a provider");

    let mut rust = Costs::UNKNOWN;
    let mut c = Costs::UNKNOWN;
    for round in 0..rounds {
        let name = format!("overhead-{}-{round}", std::process::id());
        rust.improve(&in_rust(&provider, &name, batches));
        c.improve(&in_c(&program, &name, batches));
    }

    let alloc_is_met = report("alloc + drop", rust.alloc, c.alloc);
    let send_is_met = report("send", rust.send, c.send);
    assert!(
        is_quick || alloc_is_met && send_is_met,
        "the goal is missed"
    );
}

/// Nanoseconds for each operation.
struct Costs {
    alloc: f64,
    send: f64,
}

impl Costs {
    const UNKNOWN: Self = Self {
        alloc: f64::INFINITY,
        send: f64::INFINITY,
    };

    /// Keeps the least disturbed round of each operation.
    fn improve(&mut self, round: &Self) {
        self.alloc = self.alloc.min(round.alloc);
        self.send = self.send.min(round.send);
    }
}

/// Prints both costs. Returns `true` if the goal is met.
fn report(operation: &str, rust: f64, c: f64) -> bool {
    let ratio = c / rust;
    println!(
        "{operation:>12}: Rust {rust:6.2} ns, C {c:6.2} ns, ratio {ratio:.2} (goal: at most {GOAL})"
    );
    ratio <= GOAL
}

fn in_rust(provider: &Provider, name: &str, batches: usize) -> Costs {
    Costs {
        alloc: alloc_and_drop(provider, batches),
        send: send(provider, name, batches),
    }
}

/// Runs the program in C, which prints one figure a line.
fn in_c(program: &Path, name: &str, batches: usize) -> Costs {
    let output = Command::new(program)
        .arg(name)
        .arg(batches.to_string())
        .output()
        .expect("it starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).expect("text");
    let mut figures = text.lines();
    let mut next = || -> f64 {
        let figure = figures.next().expect("a figure");
        figure.parse().expect("a number")
    };
    let alloc = next();
    let send = next();
    Costs { alloc, send }
}

fn per_operation(batch: Duration) -> f64 {
    batch.as_nanos() as f64 / BATCH as f64
}

fn alloc_and_drop(provider: &Provider, batches: usize) -> f64 {
    let mut best = Duration::MAX;
    for _ in 0..batches {
        let start = Instant::now();
        for _ in 0..BATCH {
            let buffer = provider.alloc(black_box(LEN)).expect("memory");
            drop(black_box(buffer));
        }
        best = best.min(start.elapsed());
    }
    per_operation(best)
}

fn send(provider: &Provider, name: &str, batches: usize) -> f64 {
    let mut sender = Sender::create(provider, name).expect("a channel");
    let mut receiver = Receiver::open(name).expect("its receiver");
    let mut best = Duration::MAX;
    let mut buffers: Vec<ShmBytes> = Vec::with_capacity(BATCH);
    for _ in 0..batches {
        for _ in 0..BATCH {
            let buffer = provider.alloc(LEN).expect("memory");
            buffers.push(buffer.freeze());
        }
        let start = Instant::now();
        for buffer in buffers.drain(..) {
            sender.send(buffer).expect("room");
        }
        best = best.min(start.elapsed());
        for _ in 0..BATCH {
            receiver.try_recv().expect("a message");
        }
    }
    per_operation(best)
}
