//! Buffers that are reused: when, by which threads, and never while a reader holds them.

use crate::child::Child;
use crate::heap::Cost;
use crate::session;
use crate::stream::{self, Reader, SHARED};
use crate::support::{
    assert_all_back, backend, exhaust, exit_child, expect_success, is_filled, kept, CAP, LARGE,
    MINUTE, SMALL,
};
use shm_pool::AllocError;
use shm_pool_support::tasks::{noop_waker, poll_once};
use shm_pool_zenoh::{Buffer, BufferPool, PoolBackend};
use std::collections::VecDeque;
use std::pin::pin;
use std::thread;
use std::time::{Duration, Instant};
use zenoh::bytes::ZBytes;
use zenoh::shm::ZShm;
use zenoh::Wait;

/// After this many allocations that found a buffer in use, the pool releases it, as its docs say.
const TIMEOUT: usize = 64;

/// At most this many of a thousand messages may need a new buffer. zenoh invalidates a buffer if
/// its process gets no CPU for a tenth of a second.
const INVALIDATED: u64 = 10;

fn pool() -> (PoolBackend, BufferPool) {
    let backend = backend();
    let pool = BufferPool::new(&backend);
    (backend, pool)
}

/// Returns a message of `len` bytes, and their address.
fn message(pool: &BufferPool, len: usize, byte: u8) -> (ZBytes, *const u8) {
    let mut buffer = pool.alloc(len).unwrap();
    buffer.fill(byte);
    let address = buffer.as_ptr();
    (buffer.into(), address)
}

/// Allocates `count` messages, one after the other. Each is dropped, as if it had been read.
fn publish(pool: &BufferPool, len: usize, byte: u8, count: usize) {
    for _ in 0..count {
        drop(message(pool, len, byte));
    }
}

/// Returns `count` messages, which are all in flight at the same time.
fn in_flight(pool: &BufferPool, len: usize, count: usize) -> Vec<ZBytes> {
    (0..count).map(|_| message(pool, len, 1).0).collect()
}

/// Returns `count` buffers that are not sent.
fn unsent(pool: &BufferPool, len: usize, count: usize) -> Vec<Buffer> {
    (0..count).map(|_| pool.alloc(len).unwrap()).collect()
}

fn bytes(message: &ZBytes) -> &[u8] {
    message.as_shm().expect("it is in shared memory")
}

/// Guards against a pool that grows, or whose messages cost as much as those of zenoh's provider.
#[test]
fn reuse_after_read() {
    let backend = PoolBackend::builder().max_bytes(64 << 20).build().unwrap();
    let pool = BufferPool::new(&backend);
    for len in [64, 1000, SMALL, 64 << 10, 1 << 20, 8 << 20] {
        let (first, address) = message(&pool, len, 0);
        drop(first);
        let before = pool.stats();
        let mut elsewhere = 0;
        for number in 1..1000 {
            let byte = number as u8;
            let (next, place) = message(&pool, len, byte);
            if place != address {
                elsewhere += 1;
            }
            let next = bytes(&next);
            assert_eq!(next.len(), len);
            assert!(next.iter().step_by(61).all(|&found| found == byte));
        }
        let after = pool.stats();
        let created = after.created - before.created;
        assert_eq!(created + after.reused - before.reused, 999);
        assert!(
            created <= INVALIDATED && elsewhere <= 999 * created,
            "{created} created, {elsewhere} elsewhere"
        );
    }
}

#[test]
fn reuse_of_unsent() {
    let (_, pool) = pool();
    let address = pool.alloc(LARGE).unwrap().as_ptr();
    for _ in 0..1000 {
        assert_eq!(pool.alloc(LARGE).unwrap().as_ptr(), address);
    }
    let stats = pool.stats();
    assert_eq!(stats.created, 1);
    assert_eq!(stats.reused, 1000);
    assert_eq!(stats.idle, 1);
    assert_eq!(stats.sent, 0);
}

#[test]
fn warm_without_heap() {
    let (_, pool) = pool();
    for len in [64, SMALL, LARGE] {
        let publish = || {
            for _ in 0..200 {
                let burst = [(); 3].map(|()| message(&pool, len, 1).0);
                drop(burst);
                drop(pool.alloc(len).unwrap());
            }
        };
        publish();
        let cost = Cost::of(publish);
        assert_eq!(cost.allocations, 0, "{len} bytes");
        assert_eq!(cost.frees, 0, "{len} bytes");
    }
}

/// A buffer that a reader holds is not free, even if the publisher and another local reader have
/// dropped their `ZBytes`.
#[test]
fn no_reuse_while_referenced() {
    let (_, pool) = pool();
    let (kept, first) = message(&pool, LARGE, 1);
    let clone = kept.clone();
    drop(kept);
    let (other, second) = message(&pool, LARGE, 2);
    let handle: ZShm = other.as_shm().unwrap().to_owned();
    drop(other);
    for number in 3..50 {
        let (_, place) = message(&pool, LARGE, number);
        assert_ne!(place, first);
        assert_ne!(place, second);
    }
    assert!(is_filled(bytes(&clone), 1));
    assert!(is_filled(&handle, 2));
    assert_eq!(pool.stats().created, 3);
    drop((clone, handle));
    let again = [(); 2].map(|()| message(&pool, LARGE, 60).1);
    assert!(again.contains(&first), "the oldest is reused first");
}

/// No two threads write one buffer.
#[test]
fn threads() {
    let (_, pool) = pool();
    thread::scope(|scope| {
        for thread in 0..4 {
            let pool = pool.clone();
            scope.spawn(move || {
                let mut in_flight = VecDeque::new();
                for number in 0..3000 {
                    let byte = (number * 4 + thread) as u8;
                    in_flight.push_back((message(&pool, SMALL, byte).0, byte));
                    if in_flight.len() > number % 5 {
                        let (old, byte) = in_flight.pop_front().unwrap();
                        assert!(is_filled(bytes(&old), byte));
                    }
                }
            });
        }
    });
    let stats = pool.stats();
    assert_eq!(stats.created + stats.reused, 4 * 3000);
    assert!(stats.created < 1000, "{stats:?}");
}

#[test]
fn lengths_of_one_class() {
    let (_, pool) = pool();
    let address = message(&pool, 4096, 0).1;
    for len in (4033..=4096).chain([4096, 4033]) {
        let (sent, place) = message(&pool, len, len as u8);
        assert_eq!(place, address);
        assert_eq!(bytes(&sent).len(), len);
        assert_eq!(sent.len(), len);
    }
    let mut buffer = pool.alloc(4040).unwrap();
    assert_eq!(buffer.capacity(), 4096);
    buffer.resize(4096).unwrap();
    assert_eq!(buffer.len(), 4096);
    let error = buffer.resize(4097).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("4097") && text.contains("4096"), "{text}");
    assert_eq!(buffer.len(), 4096);
    buffer.truncate(10);
    let sent = ZBytes::from(buffer);
    assert_eq!(bytes(&sent).len(), 10);
    drop(sent);
    assert_eq!(message(&pool, 4090, 9).1, address);
    assert!(ZBytes::from(pool.alloc(0).unwrap()).is_empty());
}

/// A reader that keeps its messages does not stop the reuse of others, and zenoh can reclaim its
/// buffers.
#[test]
fn long_read_is_forgotten() {
    let (backend, pool) = pool();
    let held = [(); 6].map(|()| message(&pool, LARGE, 7));
    publish(&pool, LARGE, 8, 3 * TIMEOUT);
    assert_eq!(pool.stats().released_in_use, 6);
    let created = pool.stats().created;
    assert!(
        created <= 6 + 2,
        "{created} were created, although there are free ones behind those that are read"
    );
    publish(&pool, LARGE, 8, 1000);
    assert_eq!(pool.stats().created, created);
    for (message, _) in &held {
        assert!(is_filled(bytes(message), 7));
    }
    drop(held);
    pool.provider().garbage_collect();
    let kept = kept(&pool);
    assert_eq!(
        backend.stats().bytes_in_use,
        kept * LARGE,
        "zenoh returns the released buffers"
    );
}

/// While a slow reader holds many messages, the pool does not grow, although no allocation visits
/// all of them. The pool has an eighth more buffers than messages are in flight. Of short messages,
/// which are costly to visit, it has as many again.
#[test]
fn memory_follows_use() {
    for (len, most) in [
        (1 << 10, 401 * 2),
        (SMALL, 401 * 4 / 3),
        (9 << 10, 401 * 9 / 8),
    ] {
        let (backend, pool) = pool();
        let mut in_flight = VecDeque::new();
        let mut random = fastrand::Rng::with_seed(2);
        for number in 0..20_000 {
            in_flight.push_back(message(&pool, len, number as u8).0);
            if in_flight.len() > 400 {
                // Half of them are read in order, the others in any order.
                if number % 2 == 0 {
                    in_flight.pop_front();
                } else {
                    in_flight.remove(random.usize(..in_flight.len()));
                }
            }
        }
        pool.provider().garbage_collect();
        let chunks = backend.stats().bytes_in_use / len;
        assert!(
            chunks <= most + 2,
            "{chunks} chunks of {len} for 401 messages"
        );
        let stats = pool.stats();
        assert!(stats.reused > stats.created, "{stats:?}");
    }
}

/// Guards against a pool that stays as large as it was at its peak.
#[test]
fn burst_is_returned() {
    let (backend, pool) = pool();
    let burst = in_flight(&pool, SMALL, 100);
    assert_eq!(pool.stats().created, 100);
    drop(burst);
    publish(&pool, SMALL, 2, 10_000);
    let kept = kept(&pool);
    assert!(kept <= 2, "{kept} buffers for one message");
    let created = pool.stats().created;
    assert!(
        created <= 110,
        "{created} were created, as if each epoch released too many"
    );
    assert_eq!(backend.stats().bytes_in_use, kept * SMALL);
}

/// An unused pool must not cost CPU time, and zenoh confirms each of its buffers again and again.
#[test]
fn burst_of_an_unused_pool_is_returned() {
    const SPARE: usize = 32;
    const BURST: usize = 5000;
    // Of another class. A class of up to 128 buffers keeps them.
    const BESIDE: usize = 100;
    let backend = PoolBackend::builder().max_bytes(64 << 20).build().unwrap();
    let pool = BufferPool::new(&backend);
    let start = Instant::now();
    drop(unsent(&pool, 3 * SMALL, BESIDE));
    let wait_for = |most| {
        while kept(&pool) - BESIDE > most {
            assert!(start.elapsed() < MINUTE, "{:?}", pool.stats());
            thread::yield_now();
        }
    };
    for reserved in [0, 8 * SPARE] {
        let reservation = pool.reserve(SMALL, reserved).unwrap();
        drop(in_flight(&pool, SMALL, BURST));
        // A few were released because too many allocations found them in use.
        assert!(
            kept(&pool) - BESIDE >= BURST * 3 / 4,
            "none is released while the pool is in use"
        );
        let before = pool.stats().released_in_use;
        let least = reserved.max(SPARE);
        wait_for(least);
        // zenoh may invalidate some meanwhile (see `created_except_invalidated`).
        let invalidated = (pool.stats().released_in_use - before) as usize;
        assert!(kept(&pool) - BESIDE + invalidated >= least);
        drop(reservation);
    }
    drop(in_flight(&pool, SMALL, BURST));
    drop(pool);
    assert_eq!(backend.stats().bytes_in_use, 0);
}

/// Buffers that were idle in an epoch, and evicted since, are not released a second time.
#[test]
fn evicted_is_not_counted_twice() {
    let (backend, pool) = pool();
    drop(unsent(&pool, SMALL, 100));
    // To the middle of an epoch in which nearly all are idle.
    for _ in 0..1500 {
        drop(pool.alloc(SMALL).unwrap());
    }
    drop(exhaust(&pool, LARGE));
    assert!(pool.stats().idle < 50, "the small ones are evicted");
    for _ in 0..5000 {
        drop(pool.alloc(SMALL).unwrap());
    }
    pool.trim();
    assert_all_back(&backend);
}

#[test]
fn cap() {
    let (backend, pool) = pool();
    for (len, other_len) in [(LARGE, SMALL), (SMALL, LARGE)] {
        let count = CAP / len;
        let buffers = exhaust(&pool, len);
        assert!(
            buffers.len() >= count * 15 / 16,
            "{} of {count}",
            buffers.len()
        );
        match pool.alloc(other_len).unwrap_err() {
            AllocError::Exhausted {
                max_bytes, in_use, ..
            } => {
                assert_eq!(max_bytes, CAP);
                assert_eq!(in_use, backend.stats().bytes_in_use);
            }
            other => panic!("{other}"),
        }
        // Half of them are sent and read. The others are not sent.
        let half = buffers.len() / 2;
        for (at, buffer) in buffers.into_iter().enumerate() {
            if at < half {
                drop(ZBytes::from(buffer));
            } else {
                drop(buffer);
            }
        }
        drop(exhaust(&pool, other_len));
        assert!(pool.alloc(CAP / 2).is_ok(), "idle buffers are evicted");
    }
    let error = pool.alloc(CAP + 1).unwrap_err();
    assert!(matches!(error, AllocError::TooLarge { .. }), "{error}");
}

/// At the cap, buffers may be shorter than their class. The pool does not keep them, so they take
/// no memory from other messages.
#[test]
fn short_buffers_at_the_cap() {
    let backend = PoolBackend::builder().max_bytes(1 << 20).build().unwrap();
    let pool = BufferPool::new(&backend);
    // From here on, one segment takes all of the cap.
    drop(pool.alloc(1).unwrap());
    for (len, is_sent) in [
        (30_016, false),
        (40_000, true),
        (50_048, false),
        (307_200, true),
    ] {
        let before = pool.stats();
        let in_use = backend.stats().bytes_in_use;
        let mut short = pool.alloc(len).unwrap();
        assert_eq!(short.capacity(), len, "no class is as long");
        short.fill(1);
        if is_sent {
            let message = ZBytes::from(short);
            assert!(is_filled(&message.to_bytes(), 1));
        } else {
            drop(short);
        }
        let after = pool.stats();
        assert_eq!(after.idle, before.idle);
        assert_eq!(after.sent, before.sent);
        assert_eq!(after.created, before.created + 1);
        pool.provider().garbage_collect();
        assert_eq!(backend.stats().bytes_in_use, in_use);
        let mut longer = pool.alloc(len + 1).unwrap();
        longer.fill(1);
        assert!(longer.capacity() > len);
        assert_eq!(longer.len(), len + 1);
    }
    drop(pool);
    assert_eq!(backend.stats().bytes_in_use, 0);
}

/// At the cap, a reservation may consist of buffers that are shorter than their class.
#[test]
fn short_buffers_of_a_reservation() {
    let pool = BufferPool::new(&PoolBackend::builder().max_bytes(1 << 20).build().unwrap());
    let len = 30_016;
    let longer = 30_200;
    for len in [1, len, len] {
        drop(pool.alloc(len).unwrap());
    }
    assert!(
        pool.stats().idle > 0,
        "the second one has room for all lengths of the class"
    );
    // Lengths of other classes, until this class no longer counts as one that recurs.
    for cache_lines in 2..=20 {
        drop(pool.alloc(64 * cache_lines).unwrap());
    }
    let reservation = pool.reserve(len, 1).unwrap();
    let buffers = [(); 3].map(|()| pool.alloc(longer).unwrap());
    for buffer in &buffers {
        assert_eq!(buffer.len(), longer);
        assert!(buffer.capacity() >= longer);
    }
    drop(reservation);
}

#[test]
fn wait() {
    let (_, pool) = pool();
    let mut buffers = exhaust(&pool, LARGE);
    let error = pool
        .alloc_timeout(LARGE, Duration::from_millis(2))
        .unwrap_err();
    assert!(error.is_exhausted(), "{error}");
    assert!(matches!(error, AllocError::TimedOut { .. }), "{error}");
    let unsent = buffers.pop().unwrap();
    let sent = ZBytes::from(buffers.pop().unwrap());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| pool.alloc_timeout(LARGE, MINUTE).unwrap());
        drop(unsent);
        buffers.push(waiting.join().unwrap());
        let waiting = scope.spawn(|| pool.alloc_timeout(LARGE, Duration::MAX).unwrap());
        drop(sent);
        buffers.push(waiting.join().unwrap());
    });
    let error = pool.alloc_timeout(CAP + 1, MINUTE).unwrap_err();
    assert!(
        matches!(error, AllocError::TooLarge { .. }),
        "no wait helps: {error}"
    );
}

#[test]
fn first_reserved_messages() {
    let (backend, pool) = pool();
    let reservation = pool.reserve(SMALL, 8).unwrap();
    assert_eq!(pool.stats().created, 8);
    assert_eq!(backend.stats().misses(), 8);
    let cost = Cost::of(|| drop([(); 8].map(|()| message(&pool, SMALL, 1).0)));
    assert_eq!(cost.allocations, 0);
    assert_eq!(cost.frees, 0);
    publish(&pool, SMALL, 1, 10_000);
    assert_eq!(pool.stats().created, 8);
    assert_eq!(backend.stats().misses(), 8);
    assert_eq!(kept(&pool), 8, "the reserved buffers stay");
    // The reserved memory serves these, although others take the rest of the cap.
    let _others = exhaust(&pool, LARGE);
    let small = unsent(&pool, SMALL, 8);
    drop((small, reservation));
    assert!(matches!(
        pool.reserve(LARGE, CAP).unwrap_err(),
        AllocError::ReserveTooMany { .. }
    ));
}

#[test]
fn pool_drop() {
    let (backend, pool) = pool();
    let (held, _) = message(&pool, LARGE, 5);
    let mut buffer = pool.alloc(SMALL).unwrap();
    drop(pool.alloc(2 * SMALL).unwrap());
    drop(pool);
    buffer.fill(6);
    let sent = ZBytes::from(buffer);
    assert_eq!(backend.stats().bytes_in_use, LARGE + SMALL);
    drop(backend);
    assert!(is_filled(bytes(&held), 5));
    assert!(is_filled(bytes(&sent), 6));

    let (backend, pool) = self::pool();
    let unsent = pool.alloc(LARGE).unwrap();
    drop(message(&pool, SMALL, 1));
    drop(pool);
    drop(unsent);
    assert_all_back(&backend);

    let (backend, pool) = self::pool();
    let sent = message(&pool, LARGE, 1);
    let unsent = pool.alloc(SMALL).unwrap();
    drop((sent, unsent));
    assert_eq!(pool.trim(), backend.stats().peak_bytes_held);
    assert_eq!(backend.stats().bytes_held, 0);
}

/// A forked child neither writes to its parent's messages nor decrements their reference counts.
#[test]
fn forked_child() {
    let (backend, pool) = pool();
    let (sent, _) = message(&pool, LARGE, 1);
    let unsent = pool.alloc(LARGE).unwrap();
    drop(pool.alloc(SMALL).unwrap());
    let backend_before = backend.stats();
    let pool_before = pool.stats();
    // SAFETY: the child only calls the functions under test, and exits at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_refused = matches!(pool.alloc(SMALL), Err(AllocError::Forked));
        let releases_nothing = pool.release_in_use() == 0 && pool.trim() == 0;
        let mut future = pin!(pool.request(SMALL).wait_async());
        let fails_at_once = matches!(poll_once(future.as_mut(), &noop_waker()), Some(Err(_)));
        drop((unsent, pool.clone()));
        exit_child(is_refused && releases_nothing && fails_at_once);
    }
    expect_success(child);
    pool.provider().garbage_collect();
    assert_eq!(backend.stats(), backend_before);
    assert_eq!(pool.stats(), pool_before);
    let (_next, place) = message(&pool, LARGE, 2);
    assert_ne!(place, unsent.as_ptr());
    assert!(is_filled(bytes(&sent), 1));
}

const MESSAGES: usize = 6000;

const CHILD: &str = "shm-pool/child";
const LOCAL: &str = "shm-pool/local";
const SAME: &str = "shm-pool/same";

/// No buffer is reused while a reader holds it: in another process, in another session of this
/// process, or in the publisher's own session.
#[test]
fn message_is_stable() {
    let (_, pool) = pool();
    let session = session::open("listen", session::ANY_PORT);
    let endpoint = session::endpoint(&session);
    let mut child = Reader::start("peer", &endpoint, [SHARED; 2], CHILD, "1", MESSAGES);
    let local = session::open("connect", &endpoint);
    let in_local = local.declare_subscriber(LOCAL).wait().unwrap();
    let in_same = session.declare_subscriber(SAME).wait().unwrap();
    let publishers = [CHILD, LOCAL, SAME].map(|key| session::publisher_of(&session, key));
    thread::scope(|scope| {
        let readers = [in_local, in_same]
            .map(|subscriber| scope.spawn(move || stream::check(&subscriber, MESSAGES, true)));
        for number in 0..MESSAGES {
            let mut buffer = pool.alloc_timeout(stream::len(number), MINUTE).unwrap();
            stream::write(number, &mut buffer);
            let message = ZBytes::from(buffer);
            for publisher in &publishers {
                publisher.put(message.clone()).wait().unwrap();
            }
        }
        for reader in readers {
            reader.join().unwrap().unwrap();
        }
    });
    child.finish();
    child.end();
    let stats = pool.stats();
    assert!(stats.reused > MESSAGES as u64 / 2, "{stats:?}");
}

/// zenoh reclaims only messages that no living process confirms, and the pool confirms the buffers
/// that it keeps.
#[test]
fn killed_subscriber() {
    for releases_at_once in [false, true] {
        let (backend, pool) = pool();
        let mut receiver = Child::start("receiver", &[]);
        let session = session::open("connect", &receiver.link.receive());
        let publisher = session::publisher(&session);
        for byte in 1..=3 {
            publisher.put(message(&pool, LARGE, byte).0).wait().unwrap();
            receiver.link.send("receive");
            receiver.link.expect(&format!("held {LARGE} {byte}"));
        }
        receiver.kill();
        if releases_at_once {
            assert_eq!(pool.release_in_use(), 3);
        } else {
            publish(&pool, LARGE, 9, 2 * TIMEOUT);
        }
        assert_eq!(pool.stats().released_in_use, 3);
        let kept = kept(&pool);
        let deadline = Instant::now() + MINUTE;
        while backend.stats().bytes_in_use > kept * LARGE {
            assert!(
                Instant::now() < deadline,
                "the messages of a dead receiver do not come back"
            );
            // SAFETY: the only receiver is dead, so no process reads the messages that this
            // collects. zenoh does not report when it has noticed that, so this tries until it has.
            unsafe { pool.provider().garbage_collect_unsafe() };
            thread::yield_now();
        }
        // The buffers that the pool kept still belong to it.
        let place = pool.alloc(LARGE).unwrap().as_ptr();
        assert_eq!(message(&pool, LARGE, 10).1, place);
        drop((publisher, session));
    }
    zenoh::shm::cleanup_orphaned_shm_segments();
}

/// The pool's buffers can be used in replies and attachments.
#[test]
fn reply_and_attachment() {
    let (_, pool) = pool();
    let session = session::open("listen", session::ANY_PORT);
    let other = session::open("connect", &session::endpoint(&session));
    let queryable = session.declare_queryable(session::KEY).wait().unwrap();
    let querier = session::querier(&other);
    let replies = querier.get().wait().unwrap();
    let query = queryable.recv().unwrap();
    let mut reply = pool.alloc(LARGE).unwrap();
    let mut attachment = pool.alloc(SMALL).unwrap();
    reply.fill(1);
    attachment.fill(2);
    query
        .reply(session::KEY, reply)
        .attachment(attachment)
        .wait()
        .unwrap();
    drop(query);
    let reply = replies.recv().unwrap();
    let sample = reply.result().unwrap();
    assert!(bytes(sample.payload())[..] == [1; LARGE]);
    assert!(sample.attachment().unwrap().to_bytes()[..] == [2; SMALL]);
    assert_eq!(pool.stats().created, 2);
    assert_eq!(pool.stats().sent, 2);
}
