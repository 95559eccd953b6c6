//! A channel: messages from one process to another, without a separate transport.
//!
//! The receiver borrows the buffer of a message, and reads it in place. The memory returns when the
//! receiver drops it, without any confirmation. Run it with `cargo run --example
//! channel`.

#![forbid(unsafe_code)]

use shm_pool::channel::{Receiver, Sender};
use shm_pool::Provider;
use std::error::Error;
use std::process::Command;
use std::time::Duration;

const MESSAGES: u8 = 100;
const LEN: usize = 64 << 10;
/// Long enough for a busy machine to start a process.
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    // The program starts itself again, with the channel's name as its argument.
    match std::env::args().nth(1) {
        Some(name) => receive(&name),
        None => send(&format!("example-{}", std::process::id())),
    }
}

fn send(name: &str) -> Result<(), Box<dyn Error>> {
    let provider = Provider::builder().max_bytes(32 << 20).build()?;
    let mut sender = Sender::create(&provider, name)?;
    let mut receiver = Command::new(std::env::current_exe()?).arg(name).spawn()?;
    // Sending works without a receiver, too, but only a connected one is known to have died.
    sender.wait_for_receiver(TIMEOUT)?;
    for number in 0..MESSAGES {
        let mut buffer = sender.alloc(LEN)?;
        buffer.fill(number);
        sender.send(buffer)?;
    }
    // Up to 48 bytes travel in the channel itself.
    sender.send_copy(b"that was all")?;
    // What was sent is received even after the sender and the provider are gone.
    drop(sender);
    drop(provider);
    assert!(receiver.wait()?.success());
    println!("{MESSAGES} messages of {LEN} bytes, and a short one");
    Ok(())
}

fn receive(name: &str) -> Result<(), Box<dyn Error>> {
    let mut receiver = Receiver::open(name)?;
    for number in 0..MESSAGES {
        let message = receiver.recv()?; // blocks while there is none
        assert!(
            message[..] == [number; LEN],
            "message {number} is not what was sent"
        );
    }
    assert_eq!(&receiver.recv()?[..], b"that was all");
    // The next call returns when the sender leaves. It would too if the sender were killed.
    assert!(receiver.recv().is_err());
    Ok(())
}
