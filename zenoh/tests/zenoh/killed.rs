//! Receivers and publishers that are killed: no message is torn, and the publisher's memory
//! returns. The receivers are stock zenoh.

use crate::child::{Child, Link};
use crate::session;
use crate::support::{assert_all_back, backend, is_filled, Blocking, CAP, LARGE, MINUTE, SMALL};
use shm_pool_support::process::end_with_parent;
use shm_pool_zenoh::BufferPool;
use std::ops::DerefMut;
use std::thread;
use std::time::Instant;
use zenoh::bytes::ZBytes;
use zenoh::pubsub::Publisher;
use zenoh::sample::Sample;
use zenoh::shm::{AllocPolicy, ShmProvider, ShmProviderBackend, ShmProviderBuilder};
use zenoh::Wait;

const POOL: &str = "pool";
const BUFFERS: &str = "buffers";
const STOCK: &str = "stock";

/// How many messages a receiver holds.
const HELD: usize = 3;

fn publish<B>(publisher: &Publisher<'_>, provider: &ShmProvider<B>, len: usize, byte: u8)
where
    B: ShmProviderBackend,
    Blocking: AllocPolicy<B>,
{
    publish_each(publisher, byte, || {
        let message = provider.alloc(len).with_policy::<Blocking>().wait();
        message.unwrap()
    });
}

fn publish_each<T: DerefMut<Target = [u8]> + Into<ZBytes>>(
    publisher: &Publisher<'_>,
    byte: u8,
    alloc: impl Fn() -> T,
) {
    for number in 0..HELD {
        let mut message = alloc();
        message.fill(byte + number as u8);
        publisher.put(message).wait().unwrap();
    }
}

/// A receiver's description of a message that it holds.
fn held(len: usize, byte: u8) -> String {
    format!("held {len} {byte}")
}

fn describe(payload: &ZBytes) -> String {
    let Some(bytes) = payload.as_shm() else {
        return "not in shared memory".to_owned();
    };
    if !is_filled(bytes, bytes[0]) {
        return "torn".to_owned();
    }
    held(bytes.len(), bytes[0])
}

/// Role: a stock zenoh receiver. It sends its endpoint. On "receive" it keeps the next message and
/// describes it. On "again" it describes all its messages once more.
pub(crate) fn receiver(link: &mut Link) {
    // While this process waits for a message, it does not notice that its parent has failed.
    end_with_parent().unwrap();
    let session = session::open("listen", session::ANY_PORT);
    let subscriber = session.declare_subscriber(session::KEY).wait().unwrap();
    link.send(&session::endpoint(&session));
    let mut samples: Vec<Sample> = Vec::new();
    loop {
        match link.receive().as_str() {
            "receive" => {
                let sample = subscriber.recv().unwrap();
                link.send(&describe(sample.payload()));
                samples.push(sample);
            }
            "again" => {
                for sample in &samples {
                    link.send(&describe(sample.payload()));
                }
            }
            "end" => return,
            other => panic!("no command {other:?}"),
        }
    }
}

/// Role: publishes from a provider on our backend, from a buffer pool, or from zenoh's own backend.
pub(crate) fn publisher(link: &mut Link, memory: &str, endpoint: &str, len: &str, byte: &str) {
    let session = session::open("connect", endpoint);
    let publisher = session::publisher(&session);
    let len = len.parse().unwrap();
    let byte = byte.parse().unwrap();
    match memory {
        POOL => {
            let provider = backend().provider();
            publish(&publisher, &provider, len, byte);
            wait_for_end(link);
        }
        BUFFERS => {
            let pool = BufferPool::new(&backend());
            publish_each(&publisher, byte, || pool.request(len).wait().unwrap());
            wait_for_end(link);
        }
        _ => {
            let provider = ShmProviderBuilder::default_backend(CAP).wait().unwrap();
            publish(&publisher, &provider, len, byte);
            wait_for_end(link);
        }
    }
}

/// Reports that the messages were sent, and waits until the publisher may end.
fn wait_for_end(link: &mut Link) {
    link.send("sent");
    link.expect("end");
}

/// Starts a receiver, and returns it with its endpoint.
fn start_receiver() -> (Child, String) {
    let mut receiver = Child::start("receiver", &[]);
    let endpoint = receiver.link.receive();
    (receiver, endpoint)
}

fn expect_held(receiver: &mut Child, len: usize, byte: u8) {
    for number in 0..HELD as u8 {
        receiver.link.send("receive");
        receiver.link.expect(&held(len, byte + number));
    }
}

fn start_and_kill_publisher(
    memory: &str,
    endpoint: &str,
    receiver: &mut Child,
    len: usize,
    byte: u8,
) {
    let arguments = [memory, endpoint, &len.to_string(), &byte.to_string()];
    let mut publisher = Child::start("publisher", &arguments);
    publisher.link.expect("sent");
    expect_held(receiver, len, byte);
    publisher.kill();
}

/// zenoh keeps counting the references of a dead receiver. The documented remedy reclaims its
/// messages.
#[test]
fn killed_receiver() {
    let backend = backend();
    let provider = backend.provider();
    let (mut receiver, endpoint) = start_receiver();
    let session = session::open("connect", &endpoint);
    let publisher = session::publisher(&session);
    publish(&publisher, &provider, LARGE, 1);
    expect_held(&mut receiver, LARGE, 1);
    provider.garbage_collect();
    assert_eq!(
        backend.stats().bytes_in_use,
        HELD * LARGE,
        "the receiver holds them"
    );
    receiver.kill();
    provider.garbage_collect();
    assert_eq!(
        backend.stats().bytes_in_use,
        HELD * LARGE,
        "zenoh does not know"
    );
    let deadline = Instant::now() + MINUTE;
    while backend.stats().bytes_in_use > 0 {
        assert!(
            Instant::now() < deadline,
            "the messages of a dead receiver do not return"
        );
        // SAFETY: the only receiver is dead and this process keeps no message, so no process reads
        // the messages that this collects. zenoh does not report when it has noticed that the
        // receiver is dead, so this tries until it has.
        unsafe { provider.garbage_collect_unsafe() };
        thread::yield_now();
    }
    assert_all_back(&backend);
    drop((publisher, session));
    let (mut receiver, endpoint) = start_receiver();
    let session = session::open("connect", &endpoint);
    let publisher = session::publisher(&session);
    publish(&publisher, &provider, CAP / 4, 40);
    expect_held(&mut receiver, CAP / 4, 40);
    receiver.end();
    sweep();
}

/// Removes zenoh's own metadata, which a killed process leaves behind until the next zenoh process
/// starts.
fn sweep() {
    zenoh::shm::cleanup_orphaned_shm_segments();
}

/// A receiver keeps the messages of a dead publisher that it holds, and can read those of the next
/// publisher.
#[test]
fn killed_publisher() {
    let (mut receiver, endpoint) = start_receiver();
    for (memory, byte, len) in [
        (POOL, 1, LARGE),
        (BUFFERS, 50, SMALL),
        (BUFFERS, 100, 2 * LARGE),
    ] {
        start_and_kill_publisher(memory, &endpoint, &mut receiver, len, byte);
    }
    receiver.link.send("again");
    for (byte, len) in [(1, LARGE), (50, SMALL), (100, 2 * LARGE)] {
        for number in 0..HELD as u8 {
            receiver.link.expect(&held(len, byte + number));
        }
    }
    receiver.end();
    sweep();
}

/// Returns how many objects of zenoh a receiver has mapped after three publishers have died, and
/// how many bytes.
fn kept_of_dead_publishers(memory: &str) -> (usize, usize) {
    let (mut receiver, endpoint) = start_receiver();
    for (byte, len) in [(1, LARGE), (50, SMALL), (100, 2 * LARGE)] {
        start_and_kill_publisher(memory, &endpoint, &mut receiver, len, byte);
    }
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", receiver.id())).unwrap();
    let mut objects = 0;
    let mut bytes = 0;
    for line in maps.lines() {
        if !line.contains(".zenoh") {
            continue;
        }
        let (range, _) = line.split_once(' ').unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let start = usize::from_str_radix(start, 16).unwrap();
        let end = usize::from_str_radix(end, 16).unwrap();
        objects += 1;
        bytes += end - start;
    }
    receiver.end();
    sweep();
    (objects, bytes)
}

/// zenoh's receivers never unmap a segment. Our segments cost them no more memory than those of
/// zenoh's own backend, and few mappings.
#[test]
fn memory_of_dead_publishers() {
    let (objects, bytes) = kept_of_dead_publishers(POOL);
    let (stock_objects, stock_bytes) = kept_of_dead_publishers(STOCK);
    assert!(
        stock_bytes >= 3 * CAP,
        "a receiver of zenoh's backend has all of it mapped: {stock_bytes}"
    );
    assert!(
        bytes <= stock_bytes,
        "{bytes} bytes are kept mapped, {stock_bytes} of zenoh's backend"
    );
    assert!(
        objects <= stock_objects + 3 * 15,
        "{objects} objects are kept mapped, {stock_objects} of zenoh's backend"
    );
}
