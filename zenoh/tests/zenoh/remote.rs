//! Subscribers without shared memory, as on another machine. One publisher serves them and
//! subscribers on its own machine, directly and through a router. Each of them is a process.

use crate::child::{Child, Link};
use crate::session::{self, ANY_PORT};
use crate::stream::{self, Reader, CLASSES, COPIED, SHARED};
use crate::support::{self, CAP, MINUTE};
use shm_pool_zenoh::{BufferPool, PoolBackend};
use zenoh::Wait;

const MESSAGES: usize = 2000;

/// Role: a router, with or without shared memory.
pub(crate) fn router(link: &mut Link, memory: &str) {
    let session = session::open_with("router", "listen", ANY_PORT, memory == SHARED);
    link.send(&session::endpoint(&session));
    link.expect("end");
}

/// Sends to readers, directly or through a router with or without shared memory. Each reader has
/// shared memory or not, and its messages arrive there or not. Returns how many buffers were
/// created.
fn created_for(router: Option<&str>, memories: &[[&str; 2]]) -> u64 {
    let backend = PoolBackend::builder().max_bytes(CAP).build().unwrap();
    let pool = BufferPool::new(&backend);
    let mode;
    let endpoint;
    let session;
    let mut router_process = None;
    if let Some(memory) = router {
        let mut router = Child::start("router", &[memory]);
        mode = "client";
        endpoint = router.link.receive();
        session = session::open_with(mode, "connect", &endpoint, true);
        router_process = Some(router);
    } else {
        mode = "peer";
        session = session::open("listen", ANY_PORT);
        endpoint = session::endpoint(&session);
    }
    let mut readers = Vec::new();
    for (number, &memory) in memories.iter().enumerate() {
        let name = number.to_string();
        let key = session::KEY;
        readers.push(Reader::start(mode, &endpoint, memory, key, &name, MESSAGES));
    }
    for reader in &readers {
        reader.wait_until_known(&session);
    }
    let publisher = session::publisher(&session);
    for number in 0..MESSAGES {
        let mut buffer = pool.alloc_timeout(stream::len(number), MINUTE).unwrap();
        stream::write(number, &mut buffer);
        publisher.put(buffer).wait().unwrap();
    }
    for reader in &mut readers {
        reader.finish();
    }
    let created = support::created_except_invalidated(&pool.stats());
    // This succeeds only if no process holds any of the others.
    assert_eq!(pool.alloc_timeout(CAP, MINUTE).unwrap().len(), CAP);
    for reader in readers {
        reader.end();
    }
    drop((publisher, session));
    if let Some(router) = router_process {
        router.end();
    }
    created
}

/// When `put` returns, zenoh has copied the bytes to the network. So a subscriber on another
/// machine receives the right bytes, and holds no memory of the publisher.
#[test]
fn subscriber_without_shm() {
    assert_eq!(created_for(None, &[[COPIED; 2]]), CLASSES);
}

/// The same with a router between publisher and subscriber.
#[test]
fn router_without_shm() {
    assert_eq!(
        created_for(Some(COPIED), &[[COPIED; 2], [SHARED, COPIED]]),
        CLASSES
    );
}

/// Subscribers with shared memory have its benefits beside subscribers without it, and the latter
/// receive no reused bytes.
#[test]
fn with_and_without_shm() {
    created_for(None, &[[SHARED; 2], [COPIED; 2]]);
}

#[test]
fn router_with_shm() {
    created_for(Some(SHARED), &[[COPIED; 2], [SHARED; 2]]);
}
