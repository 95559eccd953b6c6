//! zenoh: a publisher whose messages are in the pool of `shm-pool`, and a stock subscriber.
//!
//! A `BufferPool` takes the place of zenoh's own provider, and uses each buffer again once it has
//! been read. The subscriber is zenoh and nothing else. Run it with `cargo run -p shm-pool-zenoh --example zenoh`.
//! (zenoh leaves small files of its own in /dev/shm, which the next zenoh program removes.)

#![forbid(unsafe_code)]

use shm_pool_zenoh::{BufferPool, PoolBackend};
use std::time::Duration;
use zenoh::qos::CongestionControl;
use zenoh::{Config, Result, Session, Wait};

const KEY: &str = "shm_pool/example";
const MESSAGES: u8 = 100;
const LEN: usize = 64 << 10;

fn main() -> Result<()> {
    // Two sessions, as two programs would have them, at a port that the system chooses.
    let publishing = open("listen", "tcp/127.0.0.1:0")?;
    let locators = publishing.info().locators().wait();
    let subscribing = open(
        "connect",
        locators.first().ok_or("zenoh listens nowhere")?.as_str(),
    )?;
    let subscriber = subscribing.declare_subscriber(KEY).wait()?;

    // What is not stock. With zenoh's own provider it would be
    // `ShmProviderBuilder::default_backend(4 << 20).wait()?`; a provider on the pool, for code
    // that needs one, is `backend.provider()`.
    let backend = PoolBackend::builder().max_bytes(4 << 20).build()?;
    let pool = BufferPool::new(&backend);
    let publisher = publishing
        .declare_publisher(KEY)
        .congestion_control(CongestionControl::Block)
        .wait()?;
    let matching = publisher.matching_listener().wait()?;
    while !publisher.matching_status().wait()?.matching() {
        matching.recv()?; // a message without a subscriber would go nowhere
    }
    for number in 0..MESSAGES {
        // zenoh counts the readers. When there is no memory, this waits for the ones that are slow.
        let mut buffer = pool.alloc_timeout(LEN, Duration::from_secs(1))?;
        buffer.fill(number);
        publisher.put(buffer).wait()?;

        let sample = subscriber.recv()?;
        let message = sample
            .payload()
            .as_shm()
            .ok_or("a message came as a copy")?;
        assert!(
            message[..] == [number; LEN],
            "message {number} is not what was sent"
        );
    }
    println!(
        "{MESSAGES} messages read in place by a stock subscriber, in {} buffers",
        pool.stats().created
    );
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
