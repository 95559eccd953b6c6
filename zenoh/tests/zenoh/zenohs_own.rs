//! What zenoh 1.10 checks of its own providers, checked of this crate's.
//!
//! | in zenoh | here |
//! |---|---|
//! | `posix_shm_provider.rs`: create, alloc, open | `zenohs_client_opens_segment` |
//! | …: the binary heap, buddy and talc allocators | `exhausted`; sizes are rounded up to classes, so that fewer fit than bytes divided by length |
//! | `shm.rs`: unicast, to one without shared memory, resized and relaid | `tenth_of_memory` |
//! | …: multicast | not here: it needs zenoh's UDP transport |
//! | …: start-up, implicit optimisation | not here: they use zenoh's own provider whatever a publisher has |
//! | `unicast_shm.rs`: with and without low latency, a peer without shared memory | `two_messages_of_memory`; a cap is whole pages, so it is four |
//! | …: a receiver that is stalled while messages are queued | `messages_that_wait_in_a_stalled_receivers_queue_stay` |
//!
//! All that goes through sessions runs on a provider and on a buffer pool.

use crate::session::{self, ANY_PORT};
use crate::support::{layout, Blocking};
use shm_pool_zenoh::{BufferPool, PoolBackend};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{mpsc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use zenoh::bytes::ZBytes;
use zenoh::sample::Sample;
use zenoh::shm::{
    AllocAlignment, AllocatedChunk, MemoryLayout, OwnedShmBuf, PosixShmClient, ShmClient,
    ShmProviderBackend, ZShmMut,
};
use zenoh::{Session, Wait};

const MINUTE: Duration = Duration::from_secs(60);

fn backend(max_bytes: usize) -> PoolBackend {
    PoolBackend::builder().max_bytes(max_bytes).build().unwrap()
}

#[test]
fn zenohs_client_opens_segment() {
    let backend = backend(1024);
    assert!(backend.available() >= 1024);
    let chunk = backend.alloc(&layout(100, 1)).unwrap();
    PosixShmClient.attach(chunk.descriptor.segment).unwrap();
    backend.free(&chunk.descriptor);
}

#[test]
fn exhausted() {
    const LEN: usize = 1000;
    const COUNT: usize = 100;
    let backend = backend(LEN * COUNT);
    let asked = layout(LEN, 1);
    let before = backend.available();
    let mut chunks: Vec<AllocatedChunk> =
        std::iter::from_fn(|| backend.alloc(&asked).ok()).collect();
    assert_eq!(chunks.len(), before / 1024, "1000 bytes are 16 cache lines");
    for _ in 0..COUNT {
        let left = backend.available();
        backend.alloc(&asked).unwrap_err();
        backend.free(&chunks.pop().unwrap().descriptor);
        chunks.push(backend.alloc(&asked).unwrap());
        assert_eq!(backend.available(), left);
    }
    chunks
        .iter()
        .for_each(|chunk| backend.free(&chunk.descriptor));
    assert_eq!(backend.available(), before);
}

/// Two peers of this process, the second with or without shared memory.
fn peers(has_shm: bool, is_low_latency: bool) -> [Session; 2] {
    let open = |role, endpoint: &str, has_shm| match is_low_latency {
        true => session::open_low_latency(role, endpoint, has_shm),
        false => session::open_with("peer", role, endpoint, has_shm),
    };
    let first = open("listen", ANY_PORT, true);
    let second = open("connect", &session::endpoint(&first), has_shm);
    [first, second]
}

/// Sends messages from the first to the second, and compares what arrives: length, bytes, order, and
/// whether it is in shared memory.
fn exchange(
    [first, second]: &[Session; 2],
    is_shared: bool,
    len: usize,
    count: usize,
    alloc: &dyn Fn() -> Message,
) {
    // A key of its own: the last exchange's subscriber may still seem to be there.
    static EXCHANGES: AtomicUsize = AtomicUsize::new(0);
    let key = format!(
        "{}/{}",
        session::KEY,
        EXCHANGES.fetch_add(1, Ordering::Relaxed)
    );
    let subscriber = second.declare_subscriber(&key).wait().unwrap();
    let publisher = session::publisher_of(first, &key);
    thread::scope(|scope| {
        let reader = scope.spawn(move || {
            for number in 0..count {
                let sample = subscriber.recv().unwrap();
                let payload = sample.payload();
                assert_eq!(
                    (payload.len(), payload.as_shm().is_some()),
                    (len, is_shared)
                );
                assert!(
                    payload.to_bytes().iter().all(|&byte| byte == number as u8),
                    "message {number}"
                );
            }
        });
        (0..count).for_each(|number| publisher.put(alloc().filled(number as u8)).wait().unwrap());
        reader.join().unwrap();
    });
}

/// A message of either kind.
enum Message {
    Zenohs(ZShmMut),
    Ours(shm_pool_zenoh::Buffer),
}

impl Message {
    fn filled(self, byte: u8) -> ZBytes {
        match self {
            Self::Zenohs(mut message) => {
                message.fill(byte);
                message.into()
            }
            Self::Ours(mut message) => {
                message.fill(byte);
                message.into()
            }
        }
    }
}

/// Fails unless all memory comes back. zenoh does not report when its last reference is dropped.
fn expect_back(backend: &PoolBackend, available: usize, collect: impl Fn()) {
    let deadline = Instant::now() + MINUTE;
    while backend.available() != available {
        assert!(
            Instant::now() < deadline,
            "{} of {available} bytes are back",
            backend.available()
        );
        collect();
        thread::yield_now();
    }
}

/// Half as long, by each way that zenoh has.
const CHANGES: [fn(&mut ZShmMut, usize); 3] = [
    |_, _| (),
    |message, len| message.try_resize((len / 2).try_into().unwrap()).unwrap(),
    |message, len| {
        message
            .try_relayout(MemoryLayout::new(len / 2, AllocAlignment::default()).unwrap())
            .unwrap();
    },
];

#[test]
fn tenth_of_memory() {
    const COUNT: usize = 100;
    for has_shm in [true, false] {
        let peers = peers(has_shm, false);
        for (len, (at, change)) in [1024, 100_000]
            .iter()
            .flat_map(|&len| CHANGES.iter().enumerate().map(move |to| (len, to)))
        {
            let sent_len = if at == 0 { len } else { len / 2 };
            let backend = backend(len * COUNT / 10);
            let available = backend.available();
            let provider = backend.provider();
            let precomputed = provider.alloc_layout(len).unwrap();
            exchange(&peers, has_shm, sent_len, COUNT, &|| {
                let mut message = precomputed
                    .alloc()
                    .with_policy::<Blocking>()
                    .wait()
                    .unwrap();
                change(&mut message, len);
                Message::Zenohs(message)
            });
            expect_back(&backend, available, || _ = provider.garbage_collect());
            let pool = BufferPool::new(&backend);
            exchange(&peers, has_shm, sent_len, COUNT, &|| {
                let mut message = pool.request(len).wait().unwrap();
                message.truncate(sent_len);
                Message::Ours(message)
            });
            expect_back(&backend, available, || _ = pool.trim());
        }
    }
}

#[test]
fn two_messages_of_memory() {
    const COUNT: usize = 1000;
    const LEN: usize = 1024;
    for (has_shm, is_low_latency) in [(true, false), (false, false), (true, true), (false, true)] {
        let peers = peers(has_shm, is_low_latency);
        let provider = backend(2 * LEN).provider();
        let pool = BufferPool::new(&backend(2 * LEN));
        exchange(&peers, has_shm, LEN, COUNT, &|| {
            Message::Zenohs(
                provider
                    .alloc(LEN)
                    .with_policy::<Blocking>()
                    .wait()
                    .unwrap(),
            )
        });
        exchange(&peers, has_shm, LEN, COUNT, &|| {
            Message::Ours(pool.request(LEN).wait().unwrap())
        });
    }
}

/// zenoh invalidates a buffer that no process has confirmed for 100 ms. It must not invalidate those that
/// wait unread. On a machine under load it may, as zenoh's own threads then get no CPU for that long:
/// one complete round of ten is enough, and without confirmation no round is.
#[test]
fn stalled_receiver_keeps_its_queue() {
    const COUNT: usize = 32;
    const LEN: usize = 4096;
    let provider = backend(2 * COUNT * LEN).provider();
    let pool = BufferPool::new(&backend(2 * COUNT * LEN));
    let alloc: [&dyn Fn() -> Message; 2] = [
        &|| {
            Message::Zenohs(
                provider
                    .alloc(LEN)
                    .with_policy::<Blocking>()
                    .wait()
                    .unwrap(),
            )
        },
        &|| Message::Ours(pool.request(LEN).wait().unwrap()),
    ];
    for alloc in alloc {
        let complete: Vec<u8> = (0..COUNT as u8).collect();
        let mut rounds = (0..10).map(|_| through_a_stall(COUNT, LEN, alloc));
        assert!(rounds.any(|received| received == complete));
    }
}

/// Sends `count` numbered messages to a receiver whose own zenoh thread stands still for a while.
/// Returns the numbers that it received, each intact.
fn through_a_stall(count: usize, len: usize, alloc: &dyn Fn() -> Message) -> Vec<u8> {
    const STALLED: Duration = Duration::from_millis(500);
    let [first, second] = peers(true, false);
    let (go, stalled) = mpsc::sync_channel::<()>(0);
    let (tell, received) = mpsc::channel();
    let stalled = Mutex::new(stalled);
    let callback = move |sample: Sample| {
        if sample.payload().as_shm().is_some() {
            tell.send(Some(sample.payload().to_bytes().into_owned()))
                .unwrap();
        } else if sample.payload().len() == 1 {
            let _is_over = stalled.lock().unwrap().recv();
        } else {
            tell.send(None).unwrap();
        }
    };
    let _subscriber = second
        .declare_subscriber(session::KEY)
        .callback(callback)
        .wait()
        .unwrap();
    let publisher = session::publisher(&first);
    publisher.put([0u8]).wait().unwrap();
    (0..count).for_each(|number| publisher.put(alloc().filled(number as u8)).wait().unwrap());
    publisher.put("the end").wait().unwrap();
    // For nothing: this is how long it is stalled.
    assert!(received.recv_timeout(STALLED).is_err());
    drop(go);
    std::iter::from_fn(|| received.recv_timeout(MINUTE).unwrap())
        .map(|bytes| {
            assert!(bytes.len() == len && bytes.iter().all(|&byte| byte == bytes[0]));
            bytes[0]
        })
        .collect()
}
