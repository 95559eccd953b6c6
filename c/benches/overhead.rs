//! What a message costs through the C interface and in Rust, in turns: an alloc and drop, and a send.
//! Fails if C takes more than 1.2 times as long. Run it with `cargo bench -p shm-pool-c`.

#[path = "../tests/common/mod.rs"]
mod common;

use common::Compiler;
use shm_pool::channel::{Receiver, Sender};
use shm_pool::{Provider, ShmBytes};
use std::hint::black_box;
use std::process::Command;
use std::time::{Duration, Instant};

const LEN: usize = 4096;
const BATCH: usize = 128;
const ROUNDS: usize = 15;
const GOAL: f64 = 1.2;

fn main() {
    // `cargo test --benches` runs it too, for its own sake.
    let is_quick = !std::env::args().any(|argument| argument == "--bench");
    let (allocs, batches, rounds) = if is_quick {
        (1000, 10, 1)
    } else {
        (3_000_000, 3_000, ROUNDS)
    };
    let c = Compiler::c().compile("overhead", &["benches/overhead.c"]);
    let provider = Provider::builder()
        .max_bytes(64 << 20)
        .max_idle_per_class(2 * BATCH)
        .build()
        .expect("a provider");
    let mut results = [const { Vec::new() }; 4];
    for round in 0..rounds {
        let name = format!("overhead-{}-{round}", std::process::id());
        let rust = [
            alloc_and_drop(&provider, allocs),
            send(&provider, &name, batches),
        ];
        let output = Command::new(&c)
            .args([name, allocs.to_string(), batches.to_string()])
            .output()
            .expect("it starts");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let text = String::from_utf8_lossy(&output.stdout);
        let c = text
            .lines()
            .map(|line| line.parse::<f64>().expect("a number"));
        rust.into_iter()
            .chain(c)
            .zip(&mut results)
            .for_each(|(figure, results)| results.push(figure));
    }
    let [rust_alloc, rust_send, c_alloc, c_send] = results.map(least);
    let mut is_met = true;
    for (what, rust, c) in [
        ("alloc + drop", rust_alloc, c_alloc),
        ("send", rust_send, c_send),
    ] {
        println!(
            "{what:>12}: Rust {rust:6.2} ns, C {c:6.2} ns, ratio {:.2} (goal: at most {GOAL})",
            c / rust
        );
        is_met &= c <= GOAL * rust;
    }
    assert!(is_quick || is_met, "the goal is missed");
}

/// The least disturbed round.
fn least(figures: Vec<f64>) -> f64 {
    figures.into_iter().fold(f64::INFINITY, f64::min)
}

fn per(elapsed: Duration, count: usize) -> f64 {
    elapsed.as_nanos() as f64 / count as f64
}

fn alloc_and_drop(provider: &Provider, count: usize) -> f64 {
    let start = Instant::now();
    for _ in 0..count {
        drop(black_box(provider.alloc(black_box(LEN))).expect("memory"));
    }
    per(start.elapsed(), count)
}

fn send(provider: &Provider, name: &str, batches: usize) -> f64 {
    let mut sender = Sender::create(provider, name).expect("a channel");
    let mut receiver = Receiver::open(name).expect("its receiver");
    let mut elapsed = Duration::ZERO;
    let mut buffers: Vec<ShmBytes> = Vec::with_capacity(BATCH);
    for _ in 0..batches {
        buffers.extend((0..BATCH).map(|_| provider.alloc(LEN).expect("memory").freeze()));
        let start = Instant::now();
        buffers
            .drain(..)
            .for_each(|buffer| sender.send(buffer).expect("room"));
        elapsed += start.elapsed();
        (0..BATCH).for_each(|_| drop(receiver.try_recv().expect("a message")));
    }
    per(elapsed, batches * BATCH)
}
