//! A segment that cannot be locked: messages are lost without a word, and each attempt leaves a
//! mapping, or a whole file.
//!
//! It starts itself again as a subscriber that may lock less than a segment, and then as a process
//! whose /dev/shm is smaller than a segment. Run it with
//! `cargo run -p shm-pool-zenoh --example upstream_failed_lock`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::thread;
use std::time::Duration;
use zenoh::qos::CongestionControl;
use zenoh::shm::{GarbageCollect, ShmProviderBuilder};
use zenoh::{Config, Result, Session, Wait};

const KEY: &str = "upstream/failed_lock";
const SEGMENT: usize = 16 << 20;
const LEN: usize = 1 << 20;
const MAY_LOCK: u64 = 8 << 20;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        None => {
            publish()?;
            let small_shm = r#"mount -t tmpfs -o size=8m tmpfs /dev/shm && exec "$0" create"#;
            let small = Command::new("unshare")
                .args(["--mount", "sh", "-c", small_shm])
                .arg(std::env::current_exe()?)
                .status()?;
            assert!(small.success());
            Ok(())
        }
        Some("subscribe") => subscribe(&arguments.next().unwrap()),
        Some("create") => create(),
        Some(other) => panic!("unknown: {other}"),
    }
}

fn publish() -> Result<()> {
    let session = open("listen", "tcp/127.0.0.1:0")?;
    let locators = session.info().locators().wait();
    let mut subscriber = Command::new(std::env::current_exe()?)
        .args(["subscribe", locators[0].as_str()])
        .spawn()?;

    let provider = ShmProviderBuilder::default_backend(SEGMENT).wait()?;
    let publisher = session
        .declare_publisher(KEY)
        .congestion_control(CongestionControl::Block)
        .wait()?;
    while !publisher.matching_status().wait()?.matching() {
        thread::sleep(Duration::from_millis(10));
    }
    for sent in 0.. {
        let request = provider.alloc(LEN).with_policy::<GarbageCollect>();
        match request.wait() {
            Ok(message) => publisher.put(message).wait()?,
            Err(error) => {
                println!("publisher: {sent} messages sent, each with success; then: {error:?}");
                break;
            }
        }
        thread::sleep(Duration::from_millis(20));
    }
    thread::sleep(Duration::from_secs(1));
    provider.garbage_collect();
    let is_full = provider.alloc(LEN).wait().is_err();
    println!("publisher: a second later its memory is still full: {is_full}");
    // SAFETY: the messages have no reader.
    unsafe { provider.garbage_collect_unsafe() };
    let is_full = provider.alloc(LEN).wait().is_err();
    println!("publisher: after an unsafe collection: {is_full}");
    publisher.put("end").wait()?; // not in shared memory: zenoh copies what is short
    assert!(subscriber.wait()?.success());
    Ok(())
}

fn subscribe(locator: &str) -> Result<()> {
    // A superuser may lock anything.
    let _ = caps::drop(
        None,
        caps::CapSet::Effective,
        caps::Capability::CAP_IPC_LOCK,
    );
    let limit = libc::rlimit {
        rlim_cur: MAY_LOCK,
        rlim_max: MAY_LOCK,
    };
    // SAFETY: the pointer is valid for the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) }, 0);

    let session = open("connect", locator)?;
    let subscriber = session.declare_subscriber(KEY).wait()?;
    let mut received = 0;
    while subscriber.recv()?.payload().len() == LEN {
        received += 1;
    }
    println!(
        "subscriber: {received} messages received, and {}",
        mappings()
    );
    Ok(())
}

/// Creates providers that do not fit, and one that would.
fn create() -> Result<()> {
    for _ in 0..3 {
        let failed = ShmProviderBuilder::default_backend(SEGMENT).wait();
        assert!(failed.is_err());
        println!("provider: refused, and {}", mappings());
    }
    let mut left = 0;
    for file in fs::read_dir("/dev/shm")? {
        left += file?.metadata()?.blocks() * 512;
    }
    let small = ShmProviderBuilder::default_backend(1 << 20).wait();
    println!(
        "provider: {left} bytes left in /dev/shm; 1 MiB is refused, too: {}",
        small.is_err()
    );
    Ok(())
}

/// This process's mappings of segments as long as the provider's, and its locked memory.
fn mappings() -> String {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mut count = 0;
    for line in maps.lines().filter(|line| line.ends_with(".zenoh")) {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let start = usize::from_str_radix(start, 16).unwrap();
        let end = usize::from_str_radix(end, 16).unwrap();
        if end - start == SEGMENT {
            count += 1;
        }
    }
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let locked = status
        .lines()
        .find(|line| line.starts_with("VmLck"))
        .unwrap();
    format!(
        "{count} mappings of {SEGMENT} bytes, {}",
        locked.split_whitespace().collect::<Vec<_>>().join(" ")
    )
}

/// A session that talks to no other zenoh program of this network.
fn open(role: &str, endpoint: &str) -> Result<Session> {
    let mut config = Config::default();
    config.insert_json5("scouting/multicast/enabled", "false")?;
    config.insert_json5("listen/endpoints", "[]")?;
    config.insert_json5(&format!("{role}/endpoints"), &format!("[{endpoint:?}]"))?;
    zenoh::open(config).wait()
}
