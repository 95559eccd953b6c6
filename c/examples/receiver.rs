//! Receives in Rust what `camera_imu` sends in C, and checks every byte and every gap: `receiver
//! display CAMERA`, which keeps the latest two frames, or `receiver logger IMU`, which gets every
//! sample.

#![forbid(unsafe_code)]

use shm_pool::channel::{OnEnd, OnFull, RecvError, Subscriber};
use std::error::Error;
use std::time::Duration;
use std::{env, thread};

const TIMEOUT: Duration = Duration::from_secs(60); // for a busy machine to start a process

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [role, name] = &arguments[..] else {
        return Err("usage: receiver display CAMERA | receiver logger IMU".into());
    };
    // The program ends with its publisher.
    let builder = Subscriber::builder().on_end(OnEnd::Return);
    let counts = match role.as_str() {
        "display" => {
            let display = builder.capacity(2).open_timeout(name, TIMEOUT)?;
            receive(display, Duration::from_millis(30))?
        }
        "logger" => {
            let logger = builder.on_full(OnFull::Block).open_timeout(name, TIMEOUT)?;
            let counts = receive(logger, Duration::ZERO)?;
            assert_eq!(counts.missed, 0, "{name}: a logger misses nothing");
            counts
        }
        _ => return Err(format!("{role} is neither display nor logger").into()),
    };
    assert!(counts.received > 0, "{name}: nothing arrived");
    println!(
        "{role}: {name}: {} messages, {} missed",
        counts.received, counts.missed
    );
    Ok(())
}

struct Counts {
    received: u64,
    missed: u64,
}

/// Receives until the publisher ends, and takes `delay` for each message.
fn receive(mut subscriber: Subscriber, delay: Duration) -> Result<Counts, Box<dyn Error>> {
    let mut counts = Counts {
        received: 0,
        missed: 0,
    };
    // The number of the last message.
    let mut last: Option<u64> = None;
    loop {
        let message = match subscriber.recv() {
            Err(RecvError::Disconnected) => return Ok(counts),
            message => message?,
        };
        let number = check(&message)?;
        if let Some(last) = last {
            let missed = u64::from(message.missed());
            assert_eq!(number, last + missed + 1, "a gap that was not reported");
            counts.missed += missed;
        }
        last = Some(number);
        counts.received += 1;
        thread::sleep(delay);
    }
}

/// Each eight bytes are the message's number and their position. Returns the number.
fn check(message: &[u8]) -> Result<u64, Box<dyn Error>> {
    let mut number = None;
    for (position, word) in (0_u64..).zip(message.chunks_exact(8)) {
        let word = u64::from_ne_bytes(word.try_into()?);
        let expected = *number.get_or_insert(word >> 32);
        assert_eq!(word, expected << 32 | position, "not what was sent");
    }
    Ok(number.ok_or("an empty message")?)
}
