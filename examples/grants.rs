//! Grants: a publisher that knows its receiver drops each message at once, and waits for no reply.
//!
//! The receiver connects and sends its `PeerId`. A grant is a lease for that peer: the message
//! stays until the peer has read it, or has died. Run it with `cargo run --example grants`.

#![forbid(unsafe_code)]

use shm_pool::{Client, Descriptor, PeerId, Provider, ProviderId};
use std::error::Error;
use std::io::{stdin, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;

const MESSAGES: u8 = 10;
const LEN: usize = 64 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    // The program starts itself again, with the provider's id as its argument.
    match std::env::args().nth(1) {
        Some(id) => receive(ProviderId::from_u64(id.parse()?), stdin().as_fd().try_clone_to_owned()?.into()),
        None => publish(),
    }
}

fn publish() -> Result<(), Box<dyn Error>> {
    let provider = Provider::builder().build()?;
    let (mut socket, theirs) = UnixStream::pair()?;
    let id = provider.id().to_u64().to_string();
    let mut receiver = Command::new(std::env::current_exe()?).arg(id).stdin(OwnedFd::from(theirs)).spawn()?;
    let mut peer = [0; PeerId::SIZE];
    socket.read_exact(&mut peer)?;
    let peer = PeerId::from_bytes(peer);
    let mut granted = Vec::new();
    for number in 0..MESSAGES {
        let mut buffer = provider.alloc(LEN)?;
        buffer.fill(number);
        granted.extend(buffer.freeze().grant(peer)?.to_bytes()); // and the message is dropped
    }
    // Nothing is sent yet, and the publisher holds no message: the grants keep them.
    let stats = provider.stats();
    assert!(stats.bytes_in_use == 0 && stats.bytes_leased >= usize::from(MESSAGES) * LEN);
    socket.write_all(&granted)?;
    assert!(receiver.wait()?.success());
    assert_eq!(provider.stats().bytes_leased, 0, "what was read has come back");
    println!("{MESSAGES} messages granted, dropped, then read");
    Ok(())
}

fn receive(provider: ProviderId, mut socket: UnixStream) -> Result<(), Box<dyn Error>> {
    let client = Client::new();
    socket.write_all(&client.connect(provider)?.to_bytes())?;
    for number in 0..MESSAGES {
        let mut bytes = [0; Descriptor::SIZE];
        socket.read_exact(&mut bytes)?;
        let view = client.attach(&Descriptor::from_bytes(bytes)?)?;
        assert!(view[..] == [number; LEN], "message {number} is not what was sent");
    }
    Ok(())
}
