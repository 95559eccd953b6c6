//! Use cases of zenoh programs, with a buffer pool and other processes: queries, replies and
//! attachments, several sessions, late joiners, and subscribers that are killed.

use crate::child::{Child, Link};
use crate::session::{self, ANY_PORT};
use crate::stream::{self, Reader, SHARED};
use crate::support::{self, backend, LARGE, MINUTE};
use shm_pool_zenoh::BufferPool;
use std::thread;
use std::time::Instant;
use zenoh::bytes::ZBytes;
use zenoh::pubsub::Publisher;
use zenoh::sample::Sample;
use zenoh::shm::ShmProvider;
use zenoh::{Session, Wait};

fn message(pool: &BufferPool, number: usize) -> ZBytes {
    let mut buffer = pool.alloc_timeout(stream::len(number), MINUTE).unwrap();
    stream::write(number, &mut buffer);
    buffer.into()
}

fn publish(pool: &BufferPool, publisher: &Publisher<'_>, number: usize) {
    publisher.put(message(pool, number)).wait().unwrap();
}

/// A late joiner receives every message, and no buffer that was reused in transit.
#[test]
fn late_joiner() {
    let pool = BufferPool::new(&backend());
    let session = session::open("listen", ANY_PORT);
    let endpoint = session::endpoint(&session);
    let publisher = session
        .declare_publisher(session::KEY)
        .congestion_control(session::BLOCK)
        .wait()
        .unwrap();
    for number in 0..1000 {
        publish(&pool, &publisher, number);
    }
    let created = support::created_except_invalidated(&pool.stats());
    assert_eq!(
        created,
        stream::CLASSES,
        "a message without a receiver is free at once"
    );
    let read = |name| {
        let mut reader = Reader::start("peer", &endpoint, [SHARED; 2], session::KEY, name, 1000);
        reader.finish();
        reader
    };
    let readers = thread::scope(|scope| {
        let readers = scope.spawn(|| ["first", "second", "third"].map(read));
        let mut number = 1000;
        while !readers.is_finished() {
            publish(&pool, &publisher, number);
            number += 1;
        }
        readers.join().unwrap()
    });
    // Readers exit only now, because only zenoh's own remedy reclaims messages in transit to a
    // process that exits.
    for reader in readers {
        reader.end();
    }
}

/// Serves one reader with a session of its own.
fn serve(pool: &BufferPool, name: &str) {
    const MESSAGES: usize = 2000;
    let session = session::open("listen", ANY_PORT);
    let endpoint = session::endpoint(&session);
    let mut reader = Reader::start("peer", &endpoint, [SHARED; 2], session::KEY, name, MESSAGES);
    reader.wait_until_known(&session);
    let publisher = session::publisher(&session);
    for number in 0..MESSAGES {
        publish(pool, &publisher, number);
    }
    reader.finish();
    reader.end();
}

/// Several sessions of a process do not mix up their messages.
#[test]
fn two_sessions() {
    let pool = BufferPool::new(&backend());
    thread::scope(|scope| {
        for name in ["first", "second", "third"] {
            let pool = &pool;
            scope.spawn(move || serve(pool, name));
        }
    });
}

/// Role: holds its messages until the test sends "drop".
pub(crate) fn holder(link: &mut Link, endpoint: &str, key: &str) {
    let session = session::open("connect", endpoint);
    let subscriber = session.declare_subscriber(key.to_owned()).wait().unwrap();
    let mut held: Vec<Sample> = Vec::new();
    loop {
        match link.receive().as_str() {
            "receive" => held.push(subscriber.recv().unwrap()),
            "check" => {}
            "drop" => held.clear(),
            "end" => return,
            other => panic!("no command {other:?}"),
        }
        let mut state = "intact";
        for sample in &held {
            if !stream::is_intact(sample.payload(), true) {
                state = "changed";
            }
        }
        link.send(&format!("{} {state}", held.len()));
    }
}

/// When a subscriber dies, the others lose no message, and the publisher gets its memory back.
#[test]
fn killed_subscriber() {
    const MESSAGES: usize = 40;
    let backend = backend();
    let pool = BufferPool::new(&backend);
    let session = session::open("listen", ANY_PORT);
    let endpoint = session::endpoint(&session);
    let keys = ["shm-pool/living", "shm-pool/dying"];
    let [mut living, mut dying] = keys.map(|key| Child::start("holder", &[&endpoint, key]));
    let publishers = keys.map(|key| session::publisher_of(&session, key));
    for number in 0..MESSAGES {
        let message = message(&pool, number);
        for publisher in &publishers {
            publisher.put(message.clone()).wait().unwrap();
        }
        for child in [&mut living, &mut dying] {
            child.link.send("receive");
            child.link.expect(&format!("{} intact", number + 1));
        }
    }
    dying.kill();
    assert_eq!(pool.release_in_use(), MESSAGES, "all are in use");
    // So many that they would fill the cap many times.
    for number in 0..2000 {
        drop(message(&pool, number));
    }
    drop(pool.alloc(LARGE).unwrap());
    living.link.send("check");
    living.link.expect(&format!("{MESSAGES} intact"));
    living.link.send("drop");
    living.link.expect("0 intact");
    pool.trim();
    let deadline = Instant::now() + MINUTE;
    while backend.stats().bytes_in_use > 0 {
        let provider: &ShmProvider<_> = pool.provider();
        assert!(
            Instant::now() < deadline,
            "a dead subscriber's messages do not return: {pool:?}, {provider:?}"
        );
        pool.release_in_use();
        // SAFETY: no living process holds any of the messages. zenoh does not report when it has
        // noticed that, so this tries until it has.
        unsafe { provider.garbage_collect_unsafe() };
        thread::yield_now();
    }
    living.end();
    drop((publishers, session));
    zenoh::shm::cleanup_orphaned_shm_segments();
}

const QUERIES: usize = 500;

/// Multiples of this are numbers of short messages, for attachments. With a large attachment (about
/// 64 KiB), zenoh 1.10 counts a reader of a query's payload that does not exist, whichever provider
/// allocated it.
const SHORT: usize = stream::LENS.len();

/// Two buffers of each class, as the other side may still have the last one, and some to spare.
const MOST_CREATED: u64 = 4 * stream::CLASSES;

/// Role: sends queries with a payload and an attachment, and checks the replies.
pub(crate) fn querier(link: &mut Link, endpoint: &str, memory: &str) {
    let is_shared = memory == SHARED;
    let pool = BufferPool::new(&backend());
    let session = session::open_with("peer", "connect", endpoint, is_shared);
    let querier = session::querier(&session);
    for number in 0..QUERIES {
        let query = querier
            .get()
            .payload(message(&pool, number))
            .attachment(message(&pool, SHORT * number));
        let reply = query.wait().unwrap().recv().unwrap();
        let sample = reply.result().unwrap();
        check(sample.payload(), number + 1, is_shared);
        check(sample.attachment().unwrap(), SHORT * number, false);
    }
    assert!(pool.stats().created <= MOST_CREATED, "{:?}", pool.stats());
    link.send("answered");
    link.expect("end");
}

fn check(payload: &ZBytes, number: usize, is_shared: bool) {
    assert_eq!(stream::number(payload), number);
    assert!(stream::is_intact(payload, is_shared), "message {number}");
}

fn answer(session: &Session, pool: &BufferPool, memory: &str) {
    let queryable = session.declare_queryable(session::KEY).wait().unwrap();
    let mut querier = Child::start("querier", &[&session::endpoint(session), memory]);
    for number in 0..QUERIES {
        let query = queryable.recv().unwrap();
        check(query.payload().unwrap(), number, memory == SHARED);
        check(query.attachment().unwrap(), SHORT * number, false);
        let reply = query.reply(session::KEY, message(pool, number + 1));
        reply
            .attachment(message(pool, SHORT * number))
            .wait()
            .unwrap();
    }
    querier.link.expect("answered");
    querier.end();
}

/// Queries and replies can use the pool's buffers, too. zenoh always copies attachments.
#[test]
fn queries_and_replies() {
    let pool = BufferPool::new(&backend());
    for memory in [SHARED, stream::COPIED] {
        answer(&session::open("listen", ANY_PORT), &pool, memory);
    }
    assert!(pool.stats().created <= MOST_CREATED, "{:?}", pool.stats());
}
