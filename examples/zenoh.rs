//! zenoh: a publisher whose messages are in this crate's pool, and a stock subscriber.
//!
//! `PoolBackend` takes the place of zenoh's own backend in one line of the publisher. The
//! subscriber is zenoh and nothing else. Run it with `cargo run --features zenoh --example zenoh`.
//! (zenoh leaves small files of its own in /dev/shm, which the next zenoh program removes.)

#![forbid(unsafe_code)]

use shm_pool::zenoh::PoolBackend;
use zenoh::qos::CongestionControl;
use zenoh::shm::{BlockOn, GarbageCollect};
use zenoh::{Config, Result, Session, Wait};

const KEY: &str = "shm_pool/example";
const MESSAGES: u8 = 100;
const LEN: usize = 64 << 10;

fn main() -> Result<()> {
    // Two sessions, as two programs would have them, at a port that the system chooses.
    let publishing = open("listen", "tcp/127.0.0.1:0")?;
    let locators = publishing.info().locators().wait();
    let subscribing = open("connect", locators.first().ok_or("zenoh listens nowhere")?.as_str())?;
    let subscriber = subscribing.declare_subscriber(KEY).wait()?;

    // The line that is not stock. With zenoh's own backend it would be
    // `ShmProviderBuilder::default_backend(4 << 20).wait()?`.
    let provider = PoolBackend::builder().max_bytes(4 << 20).build()?.provider();
    let publisher = publishing.declare_publisher(KEY).congestion_control(CongestionControl::Block).wait()?;
    let matching = publisher.matching_listener().wait()?;
    while !publisher.matching_status().wait()?.matching() {
        matching.recv()?; // a message without a subscriber would go nowhere
    }
    for number in 0..MESSAGES {
        // zenoh counts the readers. When there is no memory this waits for the ones that are slow.
        let mut buffer = provider.alloc(LEN).with_policy::<BlockOn<GarbageCollect>>().wait()?;
        buffer.fill(number);
        publisher.put(buffer).wait()?;

        let sample = subscriber.recv()?;
        let message = sample.payload().as_shm().ok_or("a message came as a copy")?;
        assert!(message[..] == [number; LEN], "message {number} is not what was sent");
    }
    println!("{MESSAGES} messages of {LEN} bytes, each read in place by a stock subscriber");
    Ok(())
}

/// A session that talks to no other zenoh program of this network.
fn open(role: &str, endpoint: &str) -> Result<Session> {
    let mut config = Config::default();
    config.insert_json5("mode", r#""peer""#)?;
    config.insert_json5("scouting/multicast/enabled", "false")?;
    config.insert_json5("listen/endpoints", "[]")?;
    config.insert_json5(&format!("{role}/endpoints"), &format!("[{endpoint:?}]"))?;
    config.insert_json5("transport/shared_memory/enabled", "true")?;
    zenoh::open(config).wait()
}
