//! Whole buffers that are used again: when, by whom, and never under a reader.

use crate::child::Child;
use crate::heap::Cost;
use crate::requests::poll_once;
use crate::session;
use crate::stream::{self, Reader, SHARED};
use crate::support::{assert_all_back, backend, builder, CAP, LARGE, SMALL};
use shm_pool::AllocError;
use shm_pool_zenoh::{BufferPool, BufferStats, PoolBackend};
use std::collections::VecDeque;
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};
use zenoh::bytes::ZBytes;
use zenoh::shm::ZShm;
use zenoh::Wait;

/// How many allocations find a buffer being read before the pool releases it, as its docs say.
const TIMEOUT: usize = 64;

const MINUTE: Duration = Duration::from_secs(60);

fn pool() -> (PoolBackend, BufferPool) {
    let backend = backend();
    let pool = BufferPool::new(&backend);
    (backend, pool)
}

/// A message of `len` bytes, and where they are.
fn message(pool: &BufferPool, len: usize, byte: u8) -> (ZBytes, *const u8) {
    let mut buffer = pool.alloc(len).unwrap();
    buffer.fill(byte);
    let address = buffer.as_ptr();
    (buffer.into(), address)
}

fn bytes(message: &ZBytes) -> &[u8] {
    message.as_shm().expect("it is in shared memory")
}

/// Of a thousand messages, so many may be made anew: zenoh invalidates a buffer whose process got
/// no CPU for a tenth of a second.
const INVALIDATED: u64 = 10;

/// Guards against a pool that grows, or whose messages cost what zenoh's provider costs.
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
            let (next, place) = message(&pool, len, number as u8);
            elsewhere += u64::from(place != address);
            assert_eq!(bytes(&next).len(), len);
            assert!(bytes(&next)
                .iter()
                .step_by(61)
                .all(|&byte| byte == number as u8));
        }
        let after = pool.stats();
        let made = after.created - before.created;
        assert_eq!(made + after.reused - before.reused, 999);
        assert!(
            made <= INVALIDATED && elsewhere <= 999 * made,
            "{made} made, {elsewhere} elsewhere"
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
    assert_eq!(
        (stats.created, stats.reused, stats.idle, stats.sent),
        (1, 1000, 1, 0)
    );
}

#[test]
fn warm_without_heap() {
    let (_, pool) = pool();
    for len in [64, SMALL, LARGE] {
        let publish = || {
            for _ in 0..200 {
                let mut burst = [(); 3].map(|()| Some(message(&pool, len, 1).0));
                burst.iter_mut().for_each(|message| drop(message.take()));
                drop(pool.alloc(len).unwrap());
            }
        };
        publish();
        let cost = Cost::of(publish);
        assert_eq!((cost.allocations, cost.frees), (0, 0), "{len} bytes");
    }
}

/// Neither the dropped `ZBytes` of a publisher nor one of two local readers frees a buffer that
/// another reader still holds.
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
        assert!(place != first && place != second);
    }
    assert!(bytes(&clone).iter().all(|&byte| byte == 1) && handle.iter().all(|&byte| byte == 2));
    assert_eq!(pool.stats().created, 3);
    drop((clone, handle));
    let again = [(); 2].map(|()| message(&pool, LARGE, 60).1);
    assert!(again.contains(&first), "the oldest first");
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
                        assert!(bytes(&old).iter().all(|&found| found == byte));
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
        assert_eq!((place, bytes(&sent).len(), sent.len()), (address, len, len));
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

/// A reader that keeps its messages does not stop all reuse, and zenoh can reclaim its buffer.
#[test]
fn long_read_is_forgotten() {
    let (backend, pool) = pool();
    let held = [(); 6].map(|()| message(&pool, LARGE, 7));
    let publish = |count| (0..count).for_each(|_| drop(message(&pool, LARGE, 8)));
    publish(3 * TIMEOUT);
    assert_eq!(pool.stats().released_in_use, 6);
    let made = pool.stats().created;
    assert!(
        made <= 6 + 2,
        "{made} were made, with free ones behind those that are read"
    );
    publish(1000);
    assert_eq!(pool.stats().created, made);
    assert!(held
        .iter()
        .all(|(message, _)| bytes(message).iter().all(|&byte| byte == 7)));
    drop(held);
    pool.provider().garbage_collect();
    let kept = pool.stats().idle + pool.stats().sent;
    assert_eq!(
        backend.stats().bytes_in_use,
        kept * LARGE,
        "zenoh gives back what was released"
    );
}

/// With a slow reader that holds many messages, the pool does not grow, nor does each allocation
/// search all of them. An eighth more than in flight; of short messages, which are costly to visit,
/// as many again.
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
                // Half of it read in order, half in any order.
                let at = if number % 2 == 0 {
                    0
                } else {
                    random.usize(..in_flight.len())
                };
                in_flight.remove(at);
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

/// Guards against a pool that stays as large as at its peak.
#[test]
fn burst_is_returned() {
    let (backend, pool) = pool();
    let burst: Vec<_> = (0..100).map(|_| message(&pool, SMALL, 1)).collect();
    assert_eq!(pool.stats().created, 100);
    drop(burst);
    (0..10_000).for_each(|_| drop(message(&pool, SMALL, 2)));
    let kept = pool.stats().idle + pool.stats().sent;
    assert!(kept <= 2, "{kept} buffers for one message");
    assert!(
        pool.stats().created <= 110,
        "{} were made, as if each window took too much away",
        pool.stats().created
    );
    assert_eq!(backend.stats().bytes_in_use, kept * SMALL);
}

/// An unused pool costs no CPU: zenoh confirms each of its buffers.
#[test]
fn burst_of_an_unused_pool_is_returned() {
    const SPARE: usize = 32;
    const BURST: usize = 5000;
    let backend = PoolBackend::builder().max_bytes(64 << 20).build().unwrap();
    let pool = BufferPool::new(&backend);
    let start = Instant::now();
    // A class of up to 128 keeps them.
    const BESIDE: usize = 100;
    drop(
        (0..BESIDE)
            .map(|_| pool.alloc(3 * SMALL).unwrap())
            .collect::<Vec<_>>(),
    );
    let kept = || pool.stats().idle + pool.stats().sent - BESIDE;
    let wait_for = |most| {
        while kept() > most {
            assert!(start.elapsed() < MINUTE, "{:?}", pool.stats());
            thread::yield_now();
        }
    };
    for reserved in [0, 8 * SPARE] {
        let reservation = pool.reserve(SMALL, reserved).unwrap();
        drop(
            (0..BURST)
                .map(|_| message(&pool, SMALL, 1))
                .collect::<Vec<_>>(),
        );
        // Some were looked at too often.
        assert!(
            kept() >= BURST * 3 / 4,
            "none is released while the pool is in use"
        );
        wait_for(reserved.max(SPARE));
        assert!(kept() >= reserved.max(SPARE));
        drop(reservation);
    }
    drop(
        (0..BURST)
            .map(|_| message(&pool, SMALL, 1))
            .collect::<Vec<_>>(),
    );
    drop(pool);
    assert_eq!(backend.stats().bytes_in_use, 0);
}

/// Buffers that were idle in a window, and evicted since, are not released a second time.
#[test]
fn evicted_is_not_counted_twice() {
    let (backend, pool) = pool();
    drop(
        (0..100)
            .map(|_| pool.alloc(SMALL).unwrap())
            .collect::<Vec<_>>(),
    );
    let unsent = |count| (0..count).for_each(|_| drop(pool.alloc(SMALL).unwrap()));
    unsent(1500); // to the middle of a window in which nearly all are idle
    drop(std::iter::from_fn(|| pool.alloc(LARGE).ok()).collect::<Vec<_>>());
    assert!(pool.stats().idle < 50, "the small ones made way");
    unsent(5000);
    pool.trim();
    assert_all_back(&backend);
}

#[test]
fn cap() {
    let (backend, pool) = pool();
    for (lens, count) in [([LARGE, SMALL], CAP / LARGE), ([SMALL, LARGE], CAP / SMALL)] {
        let fill = |len| -> Vec<_> { std::iter::from_fn(|| pool.alloc(len).ok()).collect() };
        let first = fill(lens[0]);
        assert!(first.len() >= count * 15 / 16, "{} of {count}", first.len());
        match pool.alloc(lens[1]).unwrap_err() {
            AllocError::Exhausted {
                max_bytes, in_use, ..
            } => {
                assert_eq!((max_bytes, in_use), (CAP, backend.stats().bytes_in_use));
            }
            other => panic!("{other}"),
        }
        // Half of them unsent, half sent and read.
        let half = first.len() / 2;
        first.into_iter().enumerate().for_each(|(at, buffer)| {
            if at < half {
                drop(ZBytes::from(buffer))
            }
        });
        drop(fill(lens[1]));
        assert!(pool.alloc(CAP / 2).is_ok(), "what nobody has makes way");
    }
    let error = pool.alloc(CAP + 1).unwrap_err();
    assert!(matches!(error, AllocError::TooLarge { .. }), "{error}");
}

/// At the cap, buffers may be shorter than their class. They are not kept, so they do not get in
/// the way of other messages.
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
        let (before, in_use) = (pool.stats(), backend.stats().bytes_in_use);
        let mut short = pool.alloc(len).unwrap();
        assert_eq!(short.capacity(), len, "no class is as long");
        short.fill(1);
        if is_sent {
            let message = ZBytes::from(short);
            assert!(message.to_bytes().iter().all(|&byte| byte == 1));
        } else {
            drop(short);
        }
        let BufferStats {
            idle,
            sent,
            created,
            ..
        } = pool.stats();
        assert_eq!(
            (idle, sent, created),
            (before.idle, before.sent, before.created + 1)
        );
        pool.provider().garbage_collect();
        assert_eq!(backend.stats().bytes_in_use, in_use);
        let mut longer = pool.alloc(len + 1).unwrap();
        longer.fill(1);
        assert!(longer.capacity() > len && longer.len() == len + 1);
    }
    drop(pool);
    assert_eq!(backend.stats().bytes_in_use, 0);
}

/// A reservation at the cap may be made in buffers that are shorter than their class.
#[test]
fn short_buffers_of_a_reservation() {
    let pool = BufferPool::new(&PoolBackend::builder().max_bytes(1 << 20).build().unwrap());
    let (len, longer) = (30_016, 30_200);
    for len in [1, len, len] {
        drop(pool.alloc(len).unwrap());
    }
    assert!(
        pool.stats().idle > 0,
        "the second one has room for all lengths of the class"
    );
    // Other classes, until this one no longer counts as one that recurs.
    (2..=20).for_each(|lines| drop(pool.alloc(64 * lines).unwrap()));
    let reservation = pool.reserve(len, 1).unwrap();
    let buffers = [(); 3].map(|()| pool.alloc(longer).unwrap());
    assert!(buffers
        .iter()
        .all(|buffer| buffer.len() == longer && buffer.capacity() >= longer));
    drop(reservation);
}

#[test]
fn wait() {
    let (_, pool) = pool();
    let mut buffers: Vec<_> = std::iter::from_fn(|| pool.alloc(LARGE).ok()).collect();
    let error = pool
        .alloc_timeout(LARGE, Duration::from_millis(2))
        .unwrap_err();
    assert!(
        error.is_exhausted() && matches!(error, AllocError::TimedOut { .. }),
        "{error}"
    );
    let (unsent, sent) = (buffers.pop().unwrap(), ZBytes::from(buffers.pop().unwrap()));
    let wait = || pool.alloc_timeout(LARGE, MINUTE).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(wait);
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
    let (made, carved) = (pool.stats().created, backend.stats().misses());
    assert_eq!((made, carved, reservation.count()), (8, 8, 8));
    let cost = Cost::of(|| {
        let mut first = [(); 8].map(|()| Some(message(&pool, SMALL, 1).0));
        first.iter_mut().for_each(|message| drop(message.take()));
    });
    assert_eq!((cost.allocations, cost.frees), (0, 0));
    (0..10_000).for_each(|_| drop(message(&pool, SMALL, 1)));
    assert_eq!(
        (pool.stats().created, backend.stats().misses()),
        (made, carved)
    );
    assert_eq!(
        pool.stats().idle + pool.stats().sent,
        8,
        "what was reserved stays"
    );
    // Whatever takes the rest of the cap, the reserved memory is for these.
    let _others: Vec<_> = std::iter::from_fn(|| pool.alloc(LARGE).ok()).collect();
    let small: Vec<_> = (0..8).map(|_| pool.alloc(SMALL).unwrap()).collect();
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
    assert!(
        bytes(&held).iter().all(|&byte| byte == 5) && bytes(&sent).iter().all(|&byte| byte == 6)
    );
    let (backend, pool) = self::pool();
    let unsent = pool.alloc(LARGE).unwrap();
    drop((message(&pool, SMALL, 1), pool));
    drop(unsent);
    assert_all_back(&backend);
    let (backend, pool) = self::pool();
    drop((message(&pool, LARGE, 1), pool.alloc(SMALL).unwrap()));
    assert_eq!(pool.trim(), backend.stats().peak_bytes_held);
    assert_eq!(backend.stats().bytes_held, 0);
}

/// A forked child neither writes to its parent's messages nor decrements the counts of their
/// readers.
#[test]
fn forked_child() {
    let (backend, pool) = pool();
    let (sent, _) = message(&pool, LARGE, 1);
    let unsent = pool.alloc(LARGE).unwrap();
    drop(pool.alloc(SMALL).unwrap());
    let before = (backend.stats(), pool.stats());
    // SAFETY: the child only calls what is under test, and exits at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_refused = pool
            .alloc(SMALL)
            .is_err_and(|error| matches!(error, AllocError::Forked));
        let is_inert = pool.release_in_use() == 0 && pool.trim() == 0;
        let mut future = std::pin::pin!(pool.request(SMALL).wait_async());
        let is_told = matches!(poll_once(future.as_mut()), Poll::Ready(Err(_)));
        drop((unsent, pool.clone()));
        // SAFETY: `_exit` ends the child without running the parent's exit handlers.
        unsafe {
            libc::_exit(if is_refused && is_inert && is_told {
                0
            } else {
                1
            })
        };
    }
    let mut status = 0;
    // SAFETY: `status` is valid for the write, and `child` was forked by this test.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    pool.provider().garbage_collect();
    assert_eq!((backend.stats(), pool.stats()), before);
    let (_next, place) = message(&pool, LARGE, 2);
    assert!(place != unsent.as_ptr() && bytes(&sent).iter().all(|&byte| byte == 1));
}

const MESSAGES: usize = 6000;

const CHILD: &str = "shm-pool/child";
const LOCAL: &str = "shm-pool/local";
const SAME: &str = "shm-pool/same";

/// No buffer is reused under a reader: in another process, in another session of this process, or
/// in the publisher's own session.
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
            publishers
                .iter()
                .for_each(|publisher| publisher.put(message.clone()).wait().unwrap());
        }
        readers
            .into_iter()
            .for_each(|reader| reader.join().unwrap().unwrap());
    });
    child.finish();
    child.end();
    let stats = pool.stats();
    assert!(stats.reused > MESSAGES as u64 / 2, "{stats:?}");
}

/// zenoh reclaims only messages that no living process confirms, and the pool confirms those that
/// it keeps.
#[test]
fn killed_subscriber() {
    for asks in [false, true] {
        let (backend, pool) = pool();
        let mut receiver = Child::start("receiver", &[]);
        let session = session::open("connect", &receiver.link.hear());
        let publisher = session::publisher(&session);
        for byte in 1..=3 {
            publisher.put(message(&pool, LARGE, byte).0).wait().unwrap();
            receiver.link.say("receive");
            receiver.link.expect(&format!("held {LARGE} {byte}"));
        }
        receiver.kill();
        match asks {
            true => assert_eq!(pool.release_in_use(), 3),
            false => (0..2 * TIMEOUT).for_each(|_| drop(message(&pool, LARGE, 9))),
        }
        assert_eq!(pool.stats().released_in_use, 3);
        let kept = pool.stats().idle + pool.stats().sent;
        let deadline = Instant::now() + MINUTE;
        while backend.stats().bytes_in_use > kept * LARGE {
            assert!(
                Instant::now() < deadline,
                "the messages of a dead receiver do not come back"
            );
            // SAFETY: the only receiver is dead, so no process reads the messages that this
            // collects. zenoh does not report when it has noticed, so this asks until it has.
            unsafe { pool.provider().garbage_collect_unsafe() };
            thread::yield_now();
        }
        // What the pool kept is still its own.
        let place = pool.alloc(LARGE).unwrap().as_ptr();
        assert_eq!(message(&pool, LARGE, 10).1, place);
        drop((publisher, session));
    }
    zenoh::shm::cleanup_orphaned_shm_segments();
}

/// The pool's buffers can be used in replies and attachments.
#[test]
fn reply_and_attachment() {
    let backend = builder().build().unwrap();
    let pool = BufferPool::new(&backend);
    let session = session::open("listen", "tcp/127.0.0.1:0");
    let asking = session::open("connect", &session::endpoint(&session));
    let queryable = session.declare_queryable(session::KEY).wait().unwrap();
    let querier = asking.declare_querier(session::KEY).wait().unwrap();
    let listener = querier.matching_listener().wait().unwrap();
    while !querier.matching_status().wait().unwrap().matching() {
        listener.recv().unwrap();
    }
    let replies = querier.get().wait().unwrap();
    let query = queryable.recv().unwrap();
    let (mut reply, mut attachment) = (pool.alloc(LARGE).unwrap(), pool.alloc(SMALL).unwrap());
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
    assert_eq!((pool.stats().created, pool.stats().sent), (2, 2));
}
