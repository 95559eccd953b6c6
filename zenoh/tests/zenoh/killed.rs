//! Receivers and publishers that are killed: nothing is torn, and the publisher's memory comes
//! back. The receivers are stock zenoh.

use crate::child::{Child, Link};
use crate::session;
use crate::support::{assert_all_back, backend, Blocking, CAP, LARGE, SMALL};
use shm_pool_support::process::end_with_parent;
use shm_pool_zenoh::BufferPool;
use std::ops::DerefMut;
use std::time::{Duration, Instant};
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
        provider
            .alloc(len)
            .with_policy::<Blocking>()
            .wait()
            .unwrap()
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

/// What a receiver says about a message that it holds.
fn held(len: usize, byte: u8) -> String {
    format!("held {len} {byte}")
}

fn describe(payload: &ZBytes) -> String {
    let Some(bytes) = payload.as_shm() else {
        return "not in shared memory".to_owned();
    };
    match bytes.iter().all(|&byte| byte == bytes[0]) {
        true => held(bytes.len(), bytes[0]),
        false => "torn".to_owned(),
    }
}

/// Role: a stock zenoh receiver. Says where it listens. On "receive" it holds the next message and
/// describes it; on "again" it describes all messages once more.
pub(crate) fn receiver(link: &mut Link) {
    // While it waits for a message, it does not notice that its parent has failed.
    end_with_parent().unwrap();
    let session = session::open("listen", "tcp/127.0.0.1:0");
    let subscriber = session.declare_subscriber(session::KEY).wait().unwrap();
    link.say(&session::endpoint(&session));
    let mut samples: Vec<Sample> = Vec::new();
    loop {
        match link.hear().as_str() {
            "receive" => {
                samples.push(subscriber.recv().unwrap());
                link.say(&describe(samples.last().unwrap().payload()));
            }
            "again" => samples
                .iter()
                .for_each(|sample| link.say(&describe(sample.payload()))),
            "end" => return,
            other => panic!("no command {other:?}"),
        }
    }
}

/// Role: publishes from our pool, with or without whole buffers, or from zenoh's own backend. Then
/// waits for its end.
pub(crate) fn publisher(link: &mut Link, memory: &str, endpoint: &str, len: &str, byte: &str) {
    let session = session::open("connect", endpoint);
    let publisher = session::publisher(&session);
    let (len, byte) = (len.parse().unwrap(), byte.parse().unwrap());
    let (ours, stock);
    let buffers = BufferPool::new(&backend());
    match memory {
        POOL => {
            ours = backend().provider();
            publish(&publisher, &ours, len, byte);
        }
        BUFFERS => publish_each(&publisher, byte, || buffers.request(len).wait().unwrap()),
        _ => {
            stock = ShmProviderBuilder::default_backend(CAP).wait().unwrap();
            publish(&publisher, &stock, len, byte);
        }
    }
    link.say("sent");
    link.expect("end");
}

/// Starts a receiver, and returns it with its endpoint.
fn start_receiver() -> (Child, String) {
    let mut receiver = Child::start("receiver", &[]);
    let endpoint = receiver.link.hear();
    (receiver, endpoint)
}

fn expect_held(receiver: &mut Child, len: usize, byte: u8) {
    for number in 0..HELD as u8 {
        receiver.link.say("receive");
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

/// The documented remedy reclaims the messages of a dead receiver, whose references zenoh keeps
/// counting.
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
    let deadline = Instant::now() + Duration::from_secs(60);
    while backend.stats().bytes_in_use > 0 {
        assert!(
            Instant::now() < deadline,
            "the messages of a dead receiver do not come back"
        );
        // SAFETY: the only receiver is dead and this process keeps no message, so no process reads the
        // messages that this collects. zenoh does not report when it has noticed, so this asks until it has.
        unsafe { provider.garbage_collect_unsafe() };
        std::thread::yield_now();
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
/// one.
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
    receiver.link.say("again");
    for (byte, len) in [(1, LARGE), (50, SMALL), (100, 2 * LARGE)] {
        (0..HELD as u8).for_each(|number| receiver.link.expect(&held(len, byte + number)));
    }
    receiver.end();
    sweep();
}

/// How many of zenoh's objects a receiver has mapped after three publishers have died, and how many
/// bytes.
fn kept_of_dead_publishers(memory: &str) -> (usize, usize) {
    let (mut receiver, endpoint) = start_receiver();
    for (byte, len) in [(1, LARGE), (50, SMALL), (100, 2 * LARGE)] {
        start_and_kill_publisher(memory, &endpoint, &mut receiver, len, byte);
    }
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", receiver.id())).unwrap();
    let of_zenoh = maps.lines().filter(|line| line.contains(".zenoh"));
    let lengths = of_zenoh.map(|line| {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        usize::from_str_radix(end, 16).unwrap() - usize::from_str_radix(start, 16).unwrap()
    });
    let kept = lengths.fold((0, 0), |(count, bytes), len| (count + 1, bytes + len));
    receiver.end();
    sweep();
    kept
}

/// Our segments, which zenoh's receivers never unmap, cost them no more memory than zenoh's own
/// backend does, and few mappings.
#[test]
fn memory_of_dead_publishers() {
    let (segments, bytes) = kept_of_dead_publishers(POOL);
    let (stock_segments, stock_bytes) = kept_of_dead_publishers(STOCK);
    assert!(
        stock_bytes >= 3 * CAP,
        "a receiver of zenoh's backend has all of it mapped: {stock_bytes}"
    );
    assert!(
        bytes <= stock_bytes,
        "{bytes} bytes are kept mapped, {stock_bytes} of zenoh's backend"
    );
    assert!(
        segments <= stock_segments + 3 * 15,
        "{segments} objects are kept mapped, {stock_segments} of zenoh's backend"
    );
}
