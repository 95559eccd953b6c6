//! A provider that is dropped before its messages. Run it with
//! `cargo run -p shm-pool-zenoh --example upstream_dropped_provider`.
//!
//! * A message that its receiver has yet to read is lost.
//! * If 32,767 messages follow, the next one gets the metadata of one that still has a holder. When
//!   that holder goes, the new message is freed and overwritten under its reader.

#![forbid(unsafe_code)]

use zenoh::bytes::ZBytes;
use zenoh::qos::CongestionControl;
use zenoh::shm::{GarbageCollect, ShmProviderBuilder};
use zenoh::{Config, Result, Session, Wait};

const LEN: usize = 1024;
/// The metadata slots of a process. They are used in turn.
const SLOTS: usize = 32_768;

fn main() -> Result<()> {
    for between in [0, SLOTS - 2, SLOTS - 1, SLOTS] {
        let is_overwritten = overwrite(between)?;
        println!("{between} messages in between: overwritten under its reader: {is_overwritten}");
    }
    lose()
}

/// Returns whether a message changes while it has a reader.
fn overwrite(between: usize) -> Result<bool> {
    let first = ShmProviderBuilder::default_backend(64 * LEN).wait()?;
    let old = first.alloc(LEN).wait()?;
    drop(first); // the metadata of `old` is the last in the queue of free ones

    let second = ShmProviderBuilder::default_backend(64 * LEN).wait()?;
    for _ in 0..between {
        drop(second.alloc(LEN).with_policy::<GarbageCollect>().wait()?);
    }
    let mut new = second.alloc(LEN).with_policy::<GarbageCollect>().wait()?;
    new.fill(b'a');
    let reader = ZBytes::from(new);
    drop(old); // counts down the readers of `new`

    let mut others = Vec::new();
    while let Ok(mut other) = second.alloc(LEN).with_policy::<GarbageCollect>().wait() {
        other.fill(b'b');
        others.push(other);
    }
    Ok(reader.to_bytes()[..] != [b'a'; LEN])
}

/// Sends messages whose provider is dropped right after.
fn lose() -> Result<()> {
    const KEY: &str = "upstream/dropped_provider";
    const MESSAGES: usize = 100;
    let publishing = open("listen", "tcp/127.0.0.1:0")?;
    let locators = publishing.info().locators().wait();
    let subscribing = open("connect", locators[0].as_str())?;
    let subscriber = subscribing.declare_subscriber(KEY).wait()?;
    let publisher = publishing
        .declare_publisher(KEY)
        .congestion_control(CongestionControl::Block)
        .wait()?;
    while !publisher.matching_status().wait()?.matching() {
        std::thread::yield_now();
    }
    for _ in 0..MESSAGES {
        let provider = ShmProviderBuilder::default_backend(64 * LEN).wait()?;
        publisher.put(provider.alloc(LEN).wait()?).wait()?;
        drop(provider);
    }
    publisher.put("end").wait()?;
    let mut received = 0;
    while subscriber.recv()?.payload().len() == LEN {
        received += 1;
    }
    println!("{received} of {MESSAGES} messages received whose provider was dropped after `put`");
    Ok(())
}

/// A session that talks to no other zenoh program of this network.
fn open(role: &str, endpoint: &str) -> Result<Session> {
    let mut config = Config::default();
    config.insert_json5("scouting/multicast/enabled", "false")?;
    config.insert_json5("listen/endpoints", "[]")?;
    config.insert_json5(&format!("{role}/endpoints"), &format!("[{endpoint:?}]"))?;
    zenoh::open(config).wait()
}
