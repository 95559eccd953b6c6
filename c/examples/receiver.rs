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
    let (name, how, delay) = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["display", name] => (
            name,
            Subscriber::builder().on_end(OnEnd::Return).capacity(2),
            Duration::from_millis(30),
        ),
        ["logger", name] => (
            name,
            Subscriber::builder()
                .on_end(OnEnd::Return)
                .on_full(OnFull::Block),
            Duration::ZERO,
        ),
        _ => return Err("usage: receiver display CAMERA | receiver logger IMU".into()),
    };
    let mut receiver = how.open_timeout(name, TIMEOUT)?;
    let (mut next, mut count, mut missed) = (None, 0_u64, 0);
    loop {
        let message = match receiver.recv() {
            Err(RecvError::Disconnected) => break,
            message => message?,
        };
        let mut words = message
            .chunks_exact(8)
            .map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")));
        let number = words.next().ok_or("an empty message")? >> 32;
        assert!(
            (1..).zip(words).all(|(at, word)| word == number << 32 | at),
            "{name}: {number} is not what was sent"
        );
        let gap = u64::from(message.missed());
        assert_eq!(
            number,
            next.map_or(number, |next: u64| next + gap),
            "{name}: a gap that was not reported"
        );
        missed += next.map_or(0, |_| gap);
        (next, count) = (Some(number + 1), count + 1);
        thread::sleep(delay);
    }
    assert!(
        count > 0 && (delay > Duration::ZERO || missed == 0),
        "{name}: {count} messages, {missed} missed"
    );
    println!(
        "{}: {name}: {count} messages, {missed} missed",
        arguments[0]
    );
    Ok(())
}
