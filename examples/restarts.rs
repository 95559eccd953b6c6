//! Restarts: a subscriber outlives the publishers of a name, which are killed and started again.
//!
//! Run it with `cargo run --example restarts`.

#![forbid(unsafe_code)]

use shm_pool::channel::{ChannelEvent, Publisher, Subscriber};
use shm_pool::{Namespace, Provider};
use std::error::Error;
use std::process::Command;
use std::time::Duration;

const NAME: &str = "camera";
/// Longer than a predecessor takes to exit.
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    // The program starts itself again, with the prefix of its objects as its argument.
    match std::env::args().nth(1) {
        Some(prefix) => publish(&prefix),
        None => subscribe(&format!("example-{}", std::process::id())),
    }
}

fn publish(prefix: &str) -> Result<(), Box<dyn Error>> {
    let provider = Provider::builder()
        .namespace(&Namespace::new(prefix)?)
        .build()?;
    let mut publisher = Publisher::builder().create_timeout(&provider, NAME, TIMEOUT)?;
    publisher.wait_for_receivers(1, TIMEOUT)?;
    for number in 0_u64.. {
        publisher.send_copy(&number.to_le_bytes())?;
    }
    Ok(())
}

fn subscribe(prefix: &str) -> Result<(), Box<dyn Error>> {
    let namespace = Namespace::new(prefix)?;
    let mut subscriber = Subscriber::builder().namespace(&namespace).open(NAME)?;
    for _ in 0..3 {
        let mut publisher = Command::new(std::env::current_exe()?).arg(prefix).spawn()?;
        let mut received = 0;
        loop {
            match subscriber.recv_event()? {
                ChannelEvent::Connected { provider } => {
                    let channels = namespace.channels()?;
                    let process = channels.first().and_then(|channel| channel.process());
                    println!("provider {provider}, in {process:?}");
                }
                ChannelEvent::Message(_) if received < 1000 => received += 1,
                ChannelEvent::Message(_) => publisher.kill()?, // by SIGKILL; more messages may follow
                ChannelEvent::Disconnected => break,
                other => println!("{other:?}"), // later versions may have more events
            }
        }
        publisher.wait()?;
    }
    println!(
        "three publishers, one subscriber; {} objects swept",
        namespace.sweep()?.objects
    );
    Ok(())
}
