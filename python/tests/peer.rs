//! The Rust side of the tests between languages: publishes or receives until it is killed, or its
//! standard input ends.
//!
//! Usage: `peer publish|subscribe|receive PREFIX CHANNEL LEN`. It prints a line when it is ready, and a
//! receiver one for each message, which it keeps: the message's first byte.

#![forbid(unsafe_code)]

use shm_pool::channel::{Message, OnEnd, Publisher, Receiver, RecvError, Subscriber};
use shm_pool::{Namespace, Provider};
use std::error::Error;
use std::io::{stdin, Read};
use std::process::exit;
use std::thread;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    thread::spawn(|| {
        let _ended = stdin().read_to_end(&mut Vec::new());
        exit(0);
    });
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [role, prefix, channel, len] = arguments.as_slice() else {
        return Err("usage: peer publish|subscribe|receive PREFIX CHANNEL LEN".into());
    };
    match role.as_str() {
        "publish" => publish(prefix, channel, len.parse()?),
        "subscribe" => subscribe(prefix, channel, len.parse()?),
        "receive" => receive(prefix, channel, len.parse()?),
        role => Err(format!("no role {role}").into()),
    }
}

/// Publishes messages of `len` times the same byte: 0, 1, 2 and so on.
fn publish(prefix: &str, channel: &str, len: usize) -> Result<(), Box<dyn Error>> {
    let provider = Provider::builder()
        .namespace(&Namespace::new(prefix).unwrap())
        .build()?;
    let mut publisher = Publisher::builder().history(1).create(&provider, channel)?;
    println!("ready");
    publisher.wait_for_receivers(1, TIMEOUT)?;
    for number in 0_u64.. {
        let mut buffer = provider.alloc(len)?;
        buffer.fill(number as u8);
        publisher.send(buffer.freeze())?;
    }
    Ok(())
}

/// Receives a publisher's messages of `len` times the same byte.
fn subscribe(prefix: &str, channel: &str, len: usize) -> Result<(), Box<dyn Error>> {
    let mut subscriber = Subscriber::builder()
        .on_end(OnEnd::Return)
        .namespace(&Namespace::new(prefix)?)
        .open_timeout(channel, TIMEOUT)?;
    keep_all(len, || subscriber.recv())
}

/// Receives a sender's messages of `len` times the same byte.
fn receive(prefix: &str, channel: &str, len: usize) -> Result<(), Box<dyn Error>> {
    let mut receiver = Receiver::builder()
        .namespace(&Namespace::new(prefix)?)
        .open_timeout(channel, TIMEOUT)?;
    keep_all(len, || receiver.recv())
}

fn keep_all(
    len: usize,
    mut recv: impl FnMut() -> Result<Message, RecvError>,
) -> Result<(), Box<dyn Error>> {
    println!("ready");
    let mut kept = Vec::new();
    loop {
        let message = recv()?;
        let first = message.first().copied().unwrap_or_default();
        assert!(message.len() == len && message.iter().all(|&byte| byte == first));
        println!("{first}");
        kept.push(message);
    }
}
