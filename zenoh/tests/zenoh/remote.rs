//! Subscribers without shared memory, as on another machine: the same publisher serves them, and
//! those beside it, directly and through a router. Each is a process of its own.

use crate::child::{Child, Link};
use crate::session::{self, ANY_PORT};
use crate::stream::{self, Reader, CLASSES, COPIED, SHARED};
use crate::support::{self, CAP};
use shm_pool_zenoh::{BufferPool, PoolBackend};
use std::time::Duration;
use zenoh::Wait;

const MESSAGES: usize = 2000;
const MINUTE: Duration = Duration::from_secs(60);

/// Role: a router, with or without shared memory.
pub(crate) fn router(link: &mut Link, memory: &str) {
    let session = session::open_with("router", "listen", ANY_PORT, memory == SHARED);
    link.say(&session::endpoint(&session));
    link.expect("end");
}

/// Sends to readers, directly or through a router that has shared memory or not. Each reader knows
/// whether it has shared memory, and how its messages arrive. Returns how many buffers were needed.
fn made_for(router: Option<&str>, readers: &[[&str; 2]]) -> u64 {
    let backend = PoolBackend::builder().max_bytes(CAP).build().unwrap();
    let pool = BufferPool::new(&backend);
    let mut router = router.map(|memory| Child::start("router", &[memory]));
    let at_router = router.as_mut().map(|router| router.link.hear());
    let session = match &at_router {
        Some(endpoint) => session::open_with("client", "connect", endpoint, true),
        None => session::open("listen", ANY_PORT),
    };
    let mode = if at_router.is_some() {
        "client"
    } else {
        "peer"
    };
    let endpoint = at_router.unwrap_or_else(|| session::endpoint(&session));
    let start = |(number, memory): (usize, &[&str; 2])| {
        Reader::start(
            mode,
            &endpoint,
            *memory,
            session::KEY,
            &number.to_string(),
            MESSAGES,
        )
    };
    let mut readers: Vec<Reader> = readers.iter().enumerate().map(start).collect();
    readers
        .iter()
        .for_each(|reader| reader.wait_until_known(&session));
    let publisher = session::publisher(&session);
    for number in 0..MESSAGES {
        let mut buffer = pool.alloc_timeout(stream::len(number), MINUTE).unwrap();
        stream::write(number, &mut buffer);
        publisher.put(buffer).wait().unwrap();
    }
    readers.iter_mut().for_each(Reader::finish);
    let needed = support::made_but_for_invalidated(&pool.stats());
    // Only if no process holds any of the others.
    assert_eq!(pool.alloc_timeout(CAP, MINUTE).unwrap().len(), CAP);
    readers.into_iter().for_each(Reader::end);
    drop((publisher, session));
    if let Some(router) = router {
        router.end();
    }
    needed
}

/// zenoh has copied the bytes to the network when `put` returns, so a subscriber on another machine
/// gets the right ones and holds no memory of the publisher's.
#[test]
fn subscriber_without_shm() {
    assert_eq!(made_for(None, &[[COPIED; 2]]), CLASSES);
}

/// The same, two steps away.
#[test]
fn router_without_shm() {
    assert_eq!(
        made_for(Some(COPIED), &[[COPIED; 2], [SHARED, COPIED]]),
        CLASSES
    );
}

/// Subscribers with shared memory keep its benefits beside others, and these get no reused bytes.
#[test]
fn with_and_without_shm() {
    made_for(None, &[[SHARED; 2], [COPIED; 2]]);
}

#[test]
fn router_with_shm() {
    made_for(Some(SHARED), &[[COPIED; 2], [SHARED; 2]]);
}
