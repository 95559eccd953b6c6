//! A gateway that serves clients over Unix sockets, with flow control.
//!
//! | on the socket | bytes | meaning |
//! |---|---|---|
//! | client: hello | 24 | its `PeerId` |
//! | gateway: a message | 32 | the descriptor of a granted message, which the gateway drops at once |
//! | client: confirmation | 1 | it has read one, so another may follow |
//! | either side closes, or dies | | the gateway revokes the grants that were not taken up |
//!
//! A client that is stopped or leaks messages cannot use up the gateway's memory: at most
//! `max_bytes_per_peer` are granted to it or read by it. Run it: `cargo run --example unix_socket`.

#![forbid(unsafe_code)]

use shm_pool::{Client, Descriptor, PeerId, Provider, ProviderId};
use std::error::Error;
use std::io::{stdin, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{exit, Command};

const MESSAGES: u8 = 100;
const LEN: usize = 64 << 10;
const WINDOW: u8 = 8; // messages that are granted and not confirmed

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [provider, count] = &arguments[..] {
        let socket = stdin().as_fd().try_clone_to_owned()?;
        return receive(
            ProviderId::from(provider.parse::<u64>()?),
            socket.into(),
            count.parse()?,
        );
    }
    let provider = Provider::builder()
        .max_bytes_per_peer(WINDOW as usize * LEN)
        .build()?;
    for count in [MESSAGES, 20] {
        // The program starts itself again, with the other end of the socket as standard input.
        let (ours, theirs) = UnixStream::pair()?;
        let arguments = [u64::from(provider.id()).to_string(), count.to_string()];
        let mut client = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(OwnedFd::from(theirs))
            .spawn()?;
        let served = serve(&provider, ours);
        assert!(client.wait()?.success());
        assert_eq!(served.is_ok(), count == MESSAGES, "{served:?}");
        provider.reclaim(); // the messages that a dead client had attached to
        assert_eq!(provider.stats().bytes_leased, 0, "everything was returned");
        println!("a client left after {count} messages: {served:?}");
    }
    Ok(())
}

/// Serves one client until it has all messages, or the socket closes.
fn serve(provider: &Provider, mut socket: UnixStream) -> Result<(), Box<dyn Error>> {
    let mut hello = [0; PeerId::SIZE];
    socket.read_exact(&mut hello)?;
    let peer = PeerId::from_bytes(hello);
    let served = send_all(provider, peer, &mut socket);
    provider.disconnect(peer); // revokes the grants that it has not taken up
    served
}

fn send_all(
    provider: &Provider,
    peer: PeerId,
    socket: &mut UnixStream,
) -> Result<(), Box<dyn Error>> {
    for number in 0..MESSAGES {
        if number >= WINDOW {
            socket.read_exact(&mut [0])?;
        }
        let mut buffer = provider.alloc(LEN)?;
        buffer.fill(number);
        let descriptor = buffer.freeze().grant(peer)?;
        socket.write_all(&descriptor.to_bytes())?;
    }
    for _ in 0..WINDOW {
        socket.read_exact(&mut [0])?;
    }
    Ok(())
}

/// Reads `count` messages, then exits without closing anything.
fn receive(provider: ProviderId, mut socket: UnixStream, count: u8) -> Result<(), Box<dyn Error>> {
    let client = Client::new();
    socket.write_all(&client.connect(provider)?.to_bytes())?;
    for number in 0..count {
        let mut bytes = [0; Descriptor::SIZE];
        socket.read_exact(&mut bytes)?;
        let view = client.attach(&Descriptor::from_bytes(bytes)?)?;
        assert!(
            view[..] == [number; LEN],
            "message {number} is not what was sent"
        );
        drop(view);
        socket.write_all(&[1])?;
    }
    exit(0)
}
