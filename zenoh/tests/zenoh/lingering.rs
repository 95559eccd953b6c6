//! Publishers that drop everything, or exit, while their messages are in use or in transit.

use crate::child::{Child, Link};
use crate::log::Log;
use crate::session;
use crate::support::{
    alloc, assert_all_back, backend, exit_child, expect_success, is_filled, layout, path,
    Collecting, LARGE, MINUTE, SMALL,
};
use shm_pool_zenoh::{BufferPool, PoolBackend};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;
use tracing::Event;
use zenoh::bytes::ZBytes;
use zenoh::shm::{ShmBuf, ShmProviderBackend};
use zenoh::Wait;

/// A message of a provider that was dropped is valid. If the provider were zenoh's, the message
/// would lose its metadata to a message of the next one.
#[test]
fn message_outlives_provider() {
    let old = alloc::<Collecting>(&backend().provider(), SMALL, 1).unwrap();
    let next = backend().provider();
    let new = ZBytes::from(alloc::<Collecting>(&next, SMALL, 2).unwrap());
    assert!(old.is_valid());
    let old = ZBytes::from(old);
    assert!(is_filled(&old.to_bytes(), 1));
    let reader = new.clone();
    drop((old, new));
    next.garbage_collect();
    let mut others = Vec::new();
    while let Ok(message) = alloc::<Collecting>(&next, SMALL, 3) {
        others.push(message);
    }
    drop(others);
    assert!(reader.as_shm().unwrap().is_valid());
    assert!(is_filled(&reader.to_bytes(), 2));
}

/// Guards against a backend that keeps one more provider for each one that is dropped.
#[test]
fn backend_continues_with_lingering_provider() {
    let backend = backend();
    let mut messages = Vec::new();
    for byte in 0..20 {
        messages.push(alloc::<Collecting>(&backend.provider(), LARGE / 2, byte).unwrap());
    }
    let provider = backend.provider();
    let pool = BufferPool::new(&backend);
    for message in &messages {
        assert!(message.is_valid());
    }
    drop(messages);
    drop(pool);
    provider.garbage_collect();
    assert_all_back(&backend);
}

/// The memory of a backend returns although no handle is left.
#[test]
fn memory_returns() {
    let backend = backend();
    let provider = backend.provider();
    let message = alloc::<Collecting>(&provider, LARGE, 1).unwrap();
    let idle = backend.alloc(&layout(SMALL, 1)).unwrap();
    let segment = idle.descriptor.segment;
    backend.free(&idle.descriptor);
    drop((idle, provider));
    assert_eq!(
        backend.stats().bytes_held,
        LARGE,
        "idle memory returns at once"
    );
    drop(backend);
    drop(self::backend());
    assert!(path(segment).exists());
    assert!(message.is_valid());
    drop(message);
    let start = Instant::now();
    // A thread of another test may visit the lingering providers, and keep this one meanwhile.
    while path(segment).exists() {
        assert!(
            start.elapsed() < MINUTE,
            "the memory of a pool that is not in use stays"
        );
        drop(self::backend());
        thread::yield_now();
    }
}

/// Guards against a provider that is dropped for one backend while another thread continues to use
/// it.
#[test]
fn concurrent_drops() {
    const ROUNDS: usize = 5000;
    let backends = [backend(), backend()];
    let run = |backend: &PoolBackend| {
        for _ in 0..ROUNDS {
            let message = alloc::<Collecting>(&backend.provider(), SMALL, 1).unwrap();
            assert!(message.is_valid());
        }
    };
    thread::scope(|scope| {
        for backend in &backends {
            scope.spawn(|| run(backend));
            scope.spawn(|| run(backend));
        }
    });
    for backend in &backends {
        backend.provider().garbage_collect();
        assert_all_back(backend);
    }
}

#[test]
fn forked_child() {
    let backend = backend();
    let provider = backend.provider();
    let message = alloc::<Collecting>(&provider, SMALL, 1).unwrap();
    // SAFETY: the child only drops what is under test, and exits at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop((provider, backend));
        exit_child(true);
    }
    expect_success(child);
    assert!(message.is_valid());
    drop(message);
    provider.garbage_collect();
    assert_all_back(&backend);
}

const SENT: u8 = 100;

/// Role: sends messages when its parent sends "send", drops everything, and exits.
pub(crate) fn exiting_publisher(link: &mut Link, memory: &str, endpoint: &str) {
    let session = session::open("connect", endpoint);
    let publisher = session::publisher(&session);
    link.send("connected");
    link.expect("send");
    let provider = backend().provider();
    let pool = BufferPool::new(&backend());
    for byte in 0..SENT {
        let message = match memory {
            "pool" => ZBytes::from(alloc::<Collecting>(&provider, SMALL, byte).unwrap()),
            _ => {
                let mut buffer = pool.alloc(SMALL).unwrap();
                buffer.fill(byte);
                buffer.into()
            }
        };
        publisher.put(message).wait().unwrap();
    }
    drop(publisher);
    session.close().wait().unwrap();
}

/// Role: has a publisher exit while its receiver is stopped. This needs a /dev/shm of its own:
/// zenoh processes of other tests would unlink the segments of the publisher that has exited.
pub(crate) fn stopped_receiver(link: &mut Link) {
    for memory in ["pool", "buffers"] {
        let mut receiver = Child::start("receiver", &[]);
        let endpoint = receiver.link.receive();
        let mut publisher = Child::start("exiting-publisher", &[memory, &endpoint]);
        publisher.link.expect("connected");
        receiver.stop();
        publisher.link.send("send");
        publisher.finish();
        receiver.resume();
        for byte in 0..SENT {
            receiver.link.send("receive");
            receiver.link.expect(&format!("held {SMALL} {byte}"));
        }
        receiver.end();
    }
    link.send("received");
    link.expect("end");
}

#[test]
fn messages_of_an_exited_publisher() {
    let options = b"size=64m,mode=1777\0";
    if let Some(mut child) = Child::start_with_shm("stopped-receiver", &[], options) {
        child.link.expect("received");
        child.end();
    }
}

/// This needs its own process: zenoh's lock stays poisoned, so every later collection of the
/// provider panics.
#[test]
fn log_panics_in_a_collection() {
    Child::start("log-panics", &[]).finish();
}

/// Role: has the program's log panic while a provider that is dropped collects.
pub(crate) fn log_panics() {
    let provider = backend().provider();
    let held = alloc::<Collecting>(&provider, SMALL, 1).unwrap();
    let read = alloc::<Collecting>(&provider, SMALL, 1).unwrap();
    drop(read);
    // zenoh holds its lock when it logs the second event of a collection.
    let events = AtomicUsize::new(0);
    let log = Log {
        wants: |metadata| metadata.target().contains("shm_provider"),
        event: move |_: &Event<'_>| {
            assert!(
                events.fetch_add(1, Ordering::Relaxed) == 0,
                "the user's log"
            )
        },
    };
    tracing::subscriber::with_default(log, || drop(provider));
    assert!(held.is_valid());
    // When any provider is dropped, of this pool or another one, the lingering one collects again.
    drop(backend().provider());
    assert!(held.is_valid());
}
