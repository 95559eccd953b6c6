//! Many producers and one consumer: each producer has a channel of its own, and the consumer waits
//! for all of them at a time.
//!
//! Producers share nothing, so one that is slow, stopped or killed disturbs no other. Run it with
//! `cargo run --example many_producers`.

#![forbid(unsafe_code)]

use shm_pool::channel::{wait_any, Receiver, RecvError, Sender, Source};
use shm_pool::Provider;
use std::error::Error;
use std::process::Command;
use std::time::Duration;

const PRODUCERS: usize = 3;
const MESSAGES: usize = 100;
const LEN: usize = 100_000;
/// Long enough for a busy machine to start a process.
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    // The program starts itself again for each producer, with the channel's name as its argument.
    match std::env::args().nth(1) {
        Some(name) => produce(&name),
        None => consume(),
    }
}

fn produce(name: &str) -> Result<(), Box<dyn Error>> {
    let provider = Provider::builder().build()?;
    let mut sender = Sender::create(&provider, name)?;
    for number in 0..MESSAGES {
        let mut buffer = sender.alloc(LEN)?;
        buffer.fill(number as u8);
        sender.send(buffer)?;
    }
    // A channel that no receiver has opened would be discarded with its sender.
    sender.wait_for_receiver(TIMEOUT)?;
    Ok(())
}

fn consume() -> Result<(), Box<dyn Error>> {
    let mut producers = Vec::new();
    let mut receivers = Vec::new();
    for number in 0..PRODUCERS {
        let name = format!("work-{}/{number}", std::process::id());
        let producer = Command::new(std::env::current_exe()?).arg(&name).spawn()?;
        producers.push(producer);
        receivers.push(Receiver::builder().open_timeout(&name, TIMEOUT)?);
    }

    let mut received = 0;
    while !receivers.is_empty() {
        let mut sources: Vec<&mut dyn Source> = Vec::new();
        for receiver in &mut receivers {
            sources.push(receiver);
        }
        // Those that have messages take turns.
        let ready = wait_any(&mut sources, TIMEOUT)?;
        match receivers[ready].try_recv() {
            Ok(message) => {
                assert_eq!(message.len(), LEN);
                received += 1;
            }
            Err(RecvError::Disconnected) => {
                // This producer has ended, and everything that it sent has been received.
                receivers.swap_remove(ready);
            }
            Err(error) => return Err(error.into()),
        }
    }

    assert_eq!(received, PRODUCERS * MESSAGES);
    for mut producer in producers {
        assert!(producer.wait()?.success());
    }
    println!("{received} messages of {PRODUCERS} producers");
    Ok(())
}
