//! Publish and subscribe over a Unix socket, between two processes.
//!
//! Only the 32 bytes of a descriptor go over the socket. The message stays where the publisher
//! wrote it, and the subscriber reads it there. Run it: `cargo run --example unix_socket`.

#![forbid(unsafe_code)]

use shm_pool::{Client, Descriptor, Provider};
use std::error::Error;
use std::io::{stdin, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;

const MESSAGES: u8 = 100;
const LEN: usize = 64 << 10;
const ROUND: usize = 10; // messages in transit

fn main() -> Result<(), Box<dyn Error>> {
    if std::env::args().any(|arg| arg == "subscriber") {
        return subscribe(stdin().as_fd().try_clone_to_owned()?.into());
    }
    // The program starts itself again, with the other end of the socket as standard input.
    let (ours, theirs) = UnixStream::pair()?;
    let mut child = Command::new(std::env::current_exe()?).arg("subscriber").stdin(OwnedFd::from(theirs)).spawn()?;
    publish(ours)?;
    assert!(child.wait()?.success());
    Ok(())
}

fn publish(mut socket: UnixStream) -> Result<(), Box<dyn Error>> {
    let provider = Provider::builder().build()?;
    let mut kept = Vec::new();
    for number in 0..MESSAGES {
        let mut buffer = provider.alloc(LEN)?;
        buffer.fill(number);
        let message = buffer.freeze();
        socket.write_all(&message.descriptor()?.to_bytes())?;
        // A descriptor in transit holds nothing, so the publisher keeps the message until it is
        // confirmed.
        kept.push(message);
        if kept.len() == ROUND {
            socket.read_exact(&mut [0; ROUND])?;
            kept.clear();
        }
    }
    println!("{MESSAGES} messages of {LEN} bytes in {} segment(s)", provider.stats().segments_created);
    Ok(())
}

fn subscribe(mut socket: UnixStream) -> Result<(), Box<dyn Error>> {
    let client = Client::new();
    for number in 0..MESSAGES {
        let mut bytes = [0; Descriptor::SIZE];
        socket.read_exact(&mut bytes)?;
        let view = client.attach(&Descriptor::from_bytes(bytes)?)?;
        socket.write_all(&[1])?; // from here on, the view keeps the message
        assert!(view[..] == [number; LEN], "message {number} is not what was sent");
    }
    Ok(())
}
