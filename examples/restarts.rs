//! Restarts: a subscriber outlives the publishers of a name, which are killed and started again.
//!
//! Run it with `cargo run --example restarts`.

#![forbid(unsafe_code)]

use shm_pool::channel::{ChannelEvent, Publisher, Subscriber};
use shm_pool::{Namespace, Provider};
use std::error::Error;
use std::process::{Child, Command};
use std::time::Duration;

const NAME: &str = "camera";
const RESTARTS: usize = 3;
/// Longer than a predecessor takes to exit.
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    // The program starts itself again as the publisher, with the prefix of its objects as its
    // argument.
    match std::env::args().nth(1) {
        Some(prefix) => publish(&prefix),
        None => subscribe(&format!("example-{}", std::process::id())),
    }
}

/// Publishes numbers until it is killed.
fn publish(prefix: &str) -> Result<(), Box<dyn Error>> {
    let namespace = Namespace::new(prefix)?;
    let provider = Provider::builder().namespace(&namespace).build()?;
    // The killed predecessor may not have exited yet.
    let mut publisher = Publisher::builder().create_timeout(&provider, NAME, TIMEOUT)?;
    publisher.wait_for_receivers(1, TIMEOUT)?;
    let mut number: u64 = 0;
    loop {
        publisher.send_copy(&number.to_le_bytes())?;
        number += 1;
    }
}

fn subscribe(prefix: &str) -> Result<(), Box<dyn Error>> {
    let namespace = Namespace::new(prefix)?;
    let mut subscriber = Subscriber::builder().namespace(&namespace).open(NAME)?;
    for _ in 0..RESTARTS {
        let publisher = Command::new(std::env::current_exe()?).arg(prefix).spawn()?;
        receive_and_kill(&namespace, &mut subscriber, publisher)?;
    }
    let swept = namespace.sweep()?;
    println!(
        "{RESTARTS} publishers, one subscriber; {} objects swept",
        swept.objects
    );
    Ok(())
}

/// Receives until the publisher has ended. Kills it after a thousand messages.
fn receive_and_kill(
    namespace: &Namespace,
    subscriber: &mut Subscriber,
    mut publisher: Child,
) -> Result<(), Box<dyn Error>> {
    let mut received = 0;
    loop {
        match subscriber.recv_event()? {
            ChannelEvent::Connected(provider) => {
                for channel in namespace.channels()? {
                    let process = channel.process();
                    println!("{}: provider {provider}, in {process:?}", channel.name);
                }
            }
            ChannelEvent::Message(_) => {
                received += 1;
                if received == 1000 {
                    publisher.kill()?; // by SIGKILL; more messages may follow
                }
            }
            ChannelEvent::Disconnected => break,
            other => println!("{other:?}"), // later versions may have more events
        }
    }
    publisher.wait()?;
    Ok(())
}
