//! Publishers that drop everything, or exit, while their messages are in use or on their way.

use crate::child::{Child, Link};
use crate::log::Log;
use crate::own_shm::{give_shm, skip};
use crate::session;
use crate::support::{
    alloc, assert_all_back, backend, builder, path, Collecting, CAP, LARGE, SMALL,
};
use shm_pool_zenoh::{BufferPool, PoolBackend};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tracing::Event;
use zenoh::bytes::ZBytes;
use zenoh::shm::{ShmBuf, ShmProviderBackend};
use zenoh::Wait;

const TIMEOUT: Duration = Duration::from_secs(60);

fn is_filled(message: &ZBytes, byte: u8) -> bool {
    message.to_bytes().iter().all(|&found| found == byte)
}

/// A provider of zenoh's own gives the metadata of its messages to those of the next one.
#[test]
fn message_outlives_provider() {
    let old = alloc::<Collecting>(&backend().provider(), SMALL, 1).unwrap();
    let next = backend().provider();
    let new = ZBytes::from(alloc::<Collecting>(&next, SMALL, 2).unwrap());
    assert!(old.is_valid());
    let old = ZBytes::from(old);
    assert!(is_filled(&old, 1));
    let reader = new.clone();
    drop((old, new));
    next.garbage_collect();
    drop(
        (0..CAP / SMALL)
            .map_while(|_| alloc::<Collecting>(&next, SMALL, 3).ok())
            .collect::<Vec<_>>(),
    );
    assert!(reader.as_shm().unwrap().is_valid() && is_filled(&reader, 2));
}

/// Guards against a backend whose lingering providers add up.
#[test]
fn backend_continues_with_lingering_provider() {
    let backend = backend();
    let held: Vec<_> = (0..20)
        .map(|byte| alloc::<Collecting>(&backend.provider(), LARGE / 2, byte).unwrap())
        .collect();
    let (first, second) = (backend.provider(), BufferPool::new(&backend));
    assert!(held.iter().all(|message| message.is_valid()));
    drop(held);
    drop(second);
    first.garbage_collect();
    assert_all_back(&backend);
}

/// Memory of a backend without any handle.
#[test]
fn memory_returns() {
    let backend = builder().build().unwrap();
    let provider = backend.provider();
    let message = alloc::<Collecting>(&provider, LARGE, 1).unwrap();
    let idle = backend.alloc(&crate::support::layout(SMALL, 1)).unwrap();
    let segment = idle.descriptor.segment;
    backend.free(&idle.descriptor);
    drop((idle, provider));
    assert_eq!(
        backend.stats().bytes_held,
        LARGE,
        "what is idle returns at once"
    );
    drop(backend);
    drop(self::backend());
    assert!(path(segment).exists() && message.is_valid());
    drop(message);
    let start = Instant::now();
    // Another test may be looking at the same list.
    while path(segment).exists() {
        assert!(
            start.elapsed() < TIMEOUT,
            "the memory of a pool that is not in use stays"
        );
        drop(self::backend());
        thread::yield_now();
    }
}

/// Guards against a provider that is dropped for one backend while another thread continues with
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
        backends
            .iter()
            .cycle()
            .take(4)
            .for_each(|backend| drop(scope.spawn(|| run(backend))))
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
    // SAFETY: the child only calls what is under test, and exits at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop((provider, backend));
        // SAFETY: `_exit` ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: `status` is valid for the write, and `child` was forked by this test.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    assert!(message.is_valid());
    drop(message);
    provider.garbage_collect();
    assert_all_back(&backend);
}

const SENT: u8 = 100;

/// Role: sends messages when told, drops everything, and exits.
pub(crate) fn leaver(link: &mut Link, memory: &str, endpoint: &str) {
    let session = session::open("connect", endpoint);
    let publisher = session::publisher(&session);
    link.say("connected");
    link.expect("send");
    let (provider, pool) = (backend().provider(), BufferPool::new(&backend()));
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

/// Role: a publisher exits while its receiver is stopped. In a /dev/shm of its own: zenoh processes
/// of other tests would unlink the segments of the publisher that has exited.
pub(crate) fn stopped_receiver(link: &mut Link) {
    for memory in ["pool", "buffers"] {
        let mut receiver = Child::start("receiver", &[]);
        let endpoint = receiver.link.hear();
        let mut leaver = Child::start("leaver", &[memory, &endpoint]);
        leaver.link.expect("connected");
        receiver.stop();
        leaver.link.say("send");
        leaver.finish();
        receiver.resume();
        for byte in 0..SENT {
            receiver.link.say("receive");
            receiver.link.expect(&format!("held {SMALL} {byte}"));
        }
        receiver.end();
    }
    link.say("received");
    link.expect("end");
}

#[test]
fn messages_of_an_exited_publisher() {
    match Child::start_with("stopped-receiver", &[], |command| {
        give_shm(command, b"size=64m,mode=1777\0")
    }) {
        Ok(mut child) => {
            child.link.expect("received");
            child.end();
        }
        Err(error) => skip(&format!("no mount namespace of our own: {error}")),
    }
}

/// zenoh's lock stays poisoned, so every later collection of this provider panics.
#[test]
fn log_panics_in_a_collection() {
    Child::start("log-panics", &[]).finish();
}

pub(crate) fn log_panics() {
    let provider = backend().provider();
    let [held, read] = [(); 2].map(|()| alloc::<Collecting>(&provider, SMALL, 1).unwrap());
    drop(read);
    // At the second event of a collection, zenoh holds its lock.
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
    // Of this pool, or another one.
    drop(backend().provider());
    assert!(held.is_valid());
}
