//! An embedded publisher's start-up: all memory is allocated before the first message.
//!
//! It sets a cap, locks the pool into RAM if it may, reserves memory for the messages in transit,
//! and runs its loop once. From then on it publishes at a fixed rate without the heap, and without
//! asking the kernel for memory. The receiver is a thread here. Run it with `cargo run --release
//! --example embedded`.

#![forbid(unsafe_code)]

use nix::sys::resource::{getrusage, UsageWho};
use shm_pool::channel::{Receiver, Sender};
use shm_pool::Provider;
use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

const LEN: usize = 1800;
const PERIOD: Duration = Duration::from_millis(1);
/// Sent and not yet received messages. Beyond that, `send` waits.
const QUEUED: usize = 4;
const WARM_UP: u32 = 10;
const MESSAGES: u32 = 500;

fn main() -> Result<(), Box<dyn Error>> {
    // The cap is the most that this program ever takes. It reserves nothing: `reserve` does.
    let builder = Provider::builder().max_bytes(64 << 10).max_shared(16);
    let provider = match builder.clone().lock_memory(true).build() {
        Ok(provider) => provider,
        Err(error) => {
            println!("not locked: {error}");
            builder.build()?
        }
    };
    let options = Sender::builder().capacity(QUEUED);
    // The queued ones, one being read and one being written: created, and paged in.
    provider.reserve(LEN, options.buffers(1))?.keep();

    let name = format!("example-{}", std::process::id());
    let mut sender = options.create(&provider, &name)?;
    let mut receiver = Receiver::open(&name)?;
    receiver.warm()?; // maps the reserved memory, and pages it in
    let receiving = thread::spawn(move || {
        let mut received = 0;
        // Fails when the sender disconnects.
        while let Ok(message) = receiver.recv() {
            assert!(message[..] == [7; LEN], "not what was sent");
            received += 1;
        }
        received
    });

    let mut publish = |messages| -> Result<(), Box<dyn Error>> {
        let start = Instant::now();
        for number in 1..=messages {
            let mut buffer = sender.alloc(LEN)?;
            buffer.fill(7);
            sender.send(buffer)?;
            // The time of the next message, rather than a pause after this one, so the rate does
            // not drift.
            let next = start + PERIOD * number;
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        Ok(())
    };
    publish(WARM_UP)?; // pages in the code and the stack
    let before = provider.stats();
    let faults_before = getrusage(UsageWho::RUSAGE_THREAD)?.minor_page_faults();
    publish(MESSAGES)?;
    let faults = getrusage(UsageWho::RUSAGE_THREAD)?.minor_page_faults() - faults_before;
    let after = provider.stats();
    assert_eq!(
        after.misses(),
        before.misses(),
        "every buffer was there already"
    );
    assert_eq!(after.bytes_held, before.bytes_held);
    drop(sender);
    let received = receiving.join().map_err(|_| "the receiver panicked")?;
    assert_eq!(received, WARM_UP + MESSAGES);

    println!(
        "{} messages from the pool, {} made anew",
        after.hits(),
        after.misses()
    );
    println!(
        "{} of at most {} bytes held, {faults} page faults",
        after.bytes_held, after.max_bytes
    );
    Ok(())
}
