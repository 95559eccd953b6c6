//! Receivers and publishers that are killed: nothing is torn, and the publisher's memory comes back. The receivers are stock zenoh.

use crate::child::{Child, Link};
use crate::session;
use crate::support::{alloc, assert_all_back, backend, Blocking, Provider, CAP, LARGE, SMALL};
use std::time::{Duration, Instant};
use zenoh::bytes::ZBytes;
use zenoh::sample::Sample;
use zenoh::Wait;

/// Messages that are held.
const HELD: usize = 3;

fn publish(publisher: &zenoh::pubsub::Publisher<'_>, provider: &Provider, len: usize, byte: u8) {
    for number in 0..HELD {
        let message = alloc::<Blocking>(provider, len, byte + number as u8).unwrap();
        publisher.put(message).wait().unwrap();
    }
}

/// What a receiver says of a message.
fn held(len: usize, byte: u8) -> String {
    format!("held {len} {byte}")
}

fn describe(payload: &ZBytes) -> String {
    let Some(bytes) = payload.as_shm() else { return "not in shared memory".to_owned() };
    match bytes.iter().all(|&byte| byte == bytes[0]) {
        true => held(bytes.len(), bytes[0]),
        false => "torn".to_owned(),
    }
}

/// Role: stock zenoh. Says where it listens, holds what comes and describes it, and on "again" describes all once more.
pub(crate) fn receiver(link: &mut Link) {
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
            "again" => samples.iter().for_each(|sample| link.say(&describe(sample.payload()))),
            "end" => return,
            other => panic!("no command {other:?}"),
        }
    }
}

/// Role: publishes from our pool, and waits for its end.
pub(crate) fn publisher(link: &mut Link, endpoint: &str, len: &str, byte: &str) {
    let session = session::open("connect", endpoint);
    let publisher = session::publisher(&session);
    let provider = backend().provider();
    publish(&publisher, &provider, len.parse().unwrap(), byte.parse().unwrap());
    link.say("sent");
    link.expect("end");
}

/// Starts a receiver, and tells where it listens.
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

/// zenoh leaves the count of a dead receiver as it was. The remedy that the documentation names brings the memory back.
#[test]
fn a_receiver_is_killed_while_it_holds_messages() {
    let backend = backend();
    let provider = backend.provider();
    let (mut receiver, endpoint) = start_receiver();
    let session = session::open("connect", &endpoint);
    let publisher = session::publisher(&session);
    publish(&publisher, &provider, LARGE, 1);
    expect_held(&mut receiver, LARGE, 1);
    provider.garbage_collect();
    assert_eq!(backend.stats().bytes_in_use, HELD * LARGE, "the receiver holds them");
    receiver.kill();
    provider.garbage_collect();
    assert_eq!(backend.stats().bytes_in_use, HELD * LARGE, "zenoh does not know");
    let deadline = Instant::now() + Duration::from_secs(60);
    while backend.stats().bytes_in_use > 0 {
        assert!(Instant::now() < deadline, "the messages of a dead receiver do not come back");
        // SAFETY: the only receiver is dead. zenoh tells nobody when it has noticed, so this asks until it has.
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

/// A process that is killed leaves zenoh's own metadata behind, until the next one starts, or this is called.
fn sweep() {
    zenoh::shm::cleanup_orphaned_shm_segments();
}

/// The receiver goes on reading what it holds, and reads the next publisher's messages beside it.
#[test]
fn a_publisher_is_killed_and_started_again() {
    let (mut receiver, endpoint) = start_receiver();
    for (byte, len) in [(1, LARGE), (50, SMALL), (100, 2 * LARGE)] {
        let arguments = [endpoint.as_str(), &len.to_string(), &byte.to_string()];
        let mut publisher = Child::start("publisher", &arguments);
        publisher.link.expect("sent");
        expect_held(&mut receiver, len, byte);
        publisher.kill();
    }
    receiver.link.say("again");
    for (byte, len) in [(1, LARGE), (50, SMALL), (100, 2 * LARGE)] {
        (0..HELD as u8).for_each(|number| receiver.link.expect(&held(len, byte + number)));
    }
    receiver.end();
    sweep();
}
