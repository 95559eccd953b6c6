//! What zenoh's users do, with a buffer pool and other processes: queries, replies and attachments,
//! several sessions, late joiners, and subscribers that are killed.

use crate::child::{Child, Link};
use crate::session::{self, ANY_PORT};
use crate::stream::{self, Reader, SHARED};
use crate::support::{self, backend, LARGE};
use shm_pool_zenoh::BufferPool;
use std::thread;
use std::time::{Duration, Instant};
use zenoh::bytes::ZBytes;
use zenoh::pubsub::Publisher;
use zenoh::sample::Sample;
use zenoh::shm::ShmProvider;
use zenoh::{Session, Wait};

const MINUTE: Duration = Duration::from_secs(60);

fn message(pool: &BufferPool, number: usize) -> ZBytes {
    let mut buffer = pool.alloc_timeout(stream::len(number), MINUTE).unwrap();
    stream::write(number, &mut buffer);
    buffer.into()
}

fn publish(pool: &BufferPool, publisher: &Publisher<'_>, numbers: impl IntoIterator<Item = usize>) {
    numbers
        .into_iter()
        .for_each(|number| publisher.put(message(pool, number)).wait().unwrap());
}

/// A late joiner gets every message, and no buffer that was reused in transit.
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
    publish(&pool, &publisher, 0..1000);
    let needed = support::made_but_for_invalidated(&pool.stats());
    assert_eq!(
        needed,
        stream::CLASSES,
        "a message that nobody gets is free at once"
    );
    let read = |name| {
        let mut reader = Reader::start("peer", &endpoint, [SHARED; 2], session::KEY, name, 1000);
        reader.finish();
        reader
    };
    let readers = thread::scope(|scope| {
        let readers = scope.spawn(|| ["first", "second", "third"].map(read));
        publish(
            &pool,
            &publisher,
            (1000..).take_while(|_| !readers.is_finished()),
        );
        readers.join().unwrap()
    });
    // Not before: only zenoh's own remedy reclaims messages in transit to a process that exits.
    readers.into_iter().for_each(Reader::end);
}

/// Two sessions of a process do not mix up their messages.
#[test]
fn two_sessions() {
    const MESSAGES: usize = 2000;
    let pool = BufferPool::new(&backend());
    let serve = |name: &str| {
        let session = session::open("listen", ANY_PORT);
        let endpoint = session::endpoint(&session);
        let mut reader =
            Reader::start("peer", &endpoint, [SHARED; 2], session::KEY, name, MESSAGES);
        reader.wait_until_known(&session);
        publish(&pool, &session::publisher(&session), 0..MESSAGES);
        reader.finish();
        reader.end();
    };
    thread::scope(|scope| {
        ["first", "second", "third"]
            .map(|name| scope.spawn(|| serve(name)))
            .map(drop)
    });
}

/// Role: holds its messages until the test asks it to drop them.
pub(crate) fn holder(link: &mut Link, endpoint: &str, key: &str) {
    let session = session::open("connect", endpoint);
    let subscriber = session.declare_subscriber(key.to_owned()).wait().unwrap();
    let mut held: Vec<Sample> = Vec::new();
    loop {
        match link.hear().as_str() {
            "receive" => held.push(subscriber.recv().unwrap()),
            "check" => {}
            "drop" => held.clear(),
            "end" => return,
            other => panic!("no command {other:?}"),
        }
        let is_intact = held
            .iter()
            .all(|sample| stream::is_intact(sample.payload(), true));
        link.say(&format!(
            "{} {}",
            held.len(),
            if is_intact { "intact" } else { "changed" }
        ));
    }
}

/// The death of one subscriber costs neither the others a message nor the publisher its memory.
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
        publishers
            .iter()
            .for_each(|publisher| publisher.put(message.clone()).wait().unwrap());
        for child in [&mut living, &mut dying] {
            child.link.say("receive");
            child.link.expect(&format!("{} intact", number + 1));
        }
    }
    dying.kill();
    assert_eq!(pool.release_in_use(), MESSAGES, "they are all read");
    // As many again as fill the cap many times.
    (0..2000).for_each(|number| drop(message(&pool, number)));
    drop(pool.alloc(LARGE).unwrap());
    living.link.say("check");
    living.link.expect(&format!("{MESSAGES} intact"));
    living.link.say("drop");
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
        // SAFETY: no living process holds any of the messages. zenoh does not report when it has noticed,
        // so this asks until it has.
        unsafe { provider.garbage_collect_unsafe() };
        thread::yield_now();
    }
    living.end();
    drop((publishers, session));
    zenoh::shm::cleanup_orphaned_shm_segments();
}

const QUERIES: usize = 500;

/// Numbers of short messages, for attachments. With a large one (about 64 KiB), zenoh 1.10 counts
/// a reader of a query's payload who does not exist, whoever allocated it.
const SHORT: usize = stream::LENS.len();

/// Two of each class, as the other side may still have the last one, and some to spare.
const MOST_MADE: u64 = 4 * stream::CLASSES;

/// Role: asks, with a payload and an attachment, and checks the replies.
pub(crate) fn asker(link: &mut Link, endpoint: &str, memory: &str) {
    let is_shared = memory == SHARED;
    let pool = BufferPool::new(&backend());
    let session = session::open_with("peer", "connect", endpoint, is_shared);
    let querier = session.declare_querier(session::KEY).wait().unwrap();
    let listener = querier.matching_listener().wait().unwrap();
    while !querier.matching_status().wait().unwrap().matching() {
        listener.recv().unwrap();
    }
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
    assert!(pool.stats().created <= MOST_MADE, "{:?}", pool.stats());
    link.say("answered");
    link.expect("end");
}

fn check(payload: &ZBytes, number: usize, is_shared: bool) {
    assert_eq!(stream::number(payload), number);
    assert!(stream::is_intact(payload, is_shared), "message {number}");
}

fn answer(session: &Session, pool: &BufferPool, memory: &str) {
    let queryable = session.declare_queryable(session::KEY).wait().unwrap();
    let mut asker = Child::start("asker", &[&session::endpoint(session), memory]);
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
    asker.link.expect("answered");
    asker.end();
}

/// The pool's buffers serve queries and replies, too. zenoh always copies attachments.
#[test]
fn queries_and_replies() {
    let pool = BufferPool::new(&backend());
    for memory in [SHARED, stream::COPIED] {
        answer(&session::open("listen", ANY_PORT), &pool, memory);
    }
    assert!(pool.stats().created <= MOST_MADE, "{:?}", pool.stats());
}
