//! zenoh 1.10's tests of its own providers, applied to those of this crate.
//!
//! | in zenoh | here |
//! |---|---|
//! | `posix_shm_provider.rs`: create, alloc, open | `zenohs_client_opens_segment` |
//! | …: the binary heap, buddy and talc allocators | `exhausted`; fewer messages fit than the memory divided by their length, as sizes are rounded up to classes |
//! | `shm.rs`: unicast, to a subscriber without shared memory, resized and relaid | `tenth_of_memory` |
//! | …: multicast | not here: it needs zenoh's UDP transport |
//! | …: start-up, implicit optimisation | not here: they use zenoh's own provider whatever a publisher has |
//! | `unicast_shm.rs`: with and without low latency, a peer without shared memory | `two_messages_of_memory`; a cap is whole pages, so it is four |
//! | …: a receiver that is stalled while messages are queued | `stalled_receiver_keeps_its_queue` |
//!
//! Each test that uses sessions runs on a provider and on a buffer pool.

use crate::session::{self, ANY_PORT};
use crate::support::{is_filled, layout, Blocking, Provider, MINUTE};
use shm_pool_zenoh::{Buffer, BufferPool, PoolBackend};
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
    let layout = layout(LEN, 1);
    let before = backend.available();
    let mut chunks: Vec<AllocatedChunk> = Vec::new();
    while let Ok(chunk) = backend.alloc(&layout) {
        chunks.push(chunk);
    }
    assert_eq!(chunks.len(), before / 1024, "1000 bytes are 16 cache lines");
    for _ in 0..COUNT {
        let left = backend.available();
        backend.alloc(&layout).unwrap_err();
        backend.free(&chunks.pop().unwrap().descriptor);
        chunks.push(backend.alloc(&layout).unwrap());
        assert_eq!(backend.available(), left);
    }
    for chunk in &chunks {
        backend.free(&chunk.descriptor);
    }
    assert_eq!(backend.available(), before);
}

/// Two peers of this process, the second with or without shared memory.
fn peers(has_shm: bool, is_low_latency: bool) -> [Session; 2] {
    let open = |role, endpoint: &str, has_shm| {
        if is_low_latency {
            session::open_low_latency(role, endpoint, has_shm)
        } else {
            session::open_with("peer", role, endpoint, has_shm)
        }
    };
    let first = open("listen", ANY_PORT, true);
    let second = open("connect", &session::endpoint(&first), has_shm);
    [first, second]
}

/// Sends messages from the first to the second. Checks the length, the bytes and the order of those
/// that arrive, and whether they are in shared memory.
fn exchange(
    [first, second]: &[Session; 2],
    is_shared: bool,
    len: usize,
    count: usize,
    alloc: &dyn Fn() -> Message,
) {
    // Each exchange has its own key, as zenoh may not know yet that the last subscriber has ended.
    static EXCHANGES: AtomicUsize = AtomicUsize::new(0);
    let exchange = EXCHANGES.fetch_add(1, Ordering::Relaxed);
    let key = format!("{}/{exchange}", session::KEY);
    let subscriber = second.declare_subscriber(&key).wait().unwrap();
    let publisher = session::publisher_of(first, &key);
    thread::scope(|scope| {
        let reader = scope.spawn(move || {
            for number in 0..count {
                let sample = subscriber.recv().unwrap();
                let payload = sample.payload();
                assert_eq!(payload.len(), len);
                assert_eq!(payload.as_shm().is_some(), is_shared);
                assert!(
                    is_filled(&payload.to_bytes(), number as u8),
                    "message {number}"
                );
            }
        });
        for number in 0..count {
            let message = alloc().filled(number as u8);
            publisher.put(message).wait().unwrap();
        }
        reader.join().unwrap();
    });
}

/// A message of a provider or of a buffer pool.
enum Message {
    Zenohs(ZShmMut),
    Ours(Buffer),
}

impl Message {
    /// Waits for a message of a provider.
    fn of_provider(provider: &Provider, len: usize) -> Self {
        let message = provider.alloc(len).with_policy::<Blocking>().wait();
        Self::Zenohs(message.unwrap())
    }

    /// Waits for a message of a buffer pool.
    fn of_pool(pool: &BufferPool, len: usize) -> Self {
        Self::Ours(pool.request(len).wait().unwrap())
    }

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

/// Fails unless all memory returns. zenoh does not report when it drops its last reference.
fn expect_back(backend: &PoolBackend, available: usize, collect: impl Fn()) {
    let deadline = Instant::now() + MINUTE;
    while backend.available() != available {
        assert!(
            Instant::now() < deadline,
            "{} of {available} bytes have returned",
            backend.available()
        );
        collect();
        thread::yield_now();
    }
}

type Change = fn(&mut ZShmMut, usize);

/// The ways that zenoh has to make a message shorter. Each has the divisor of the length.
const CHANGES: [(usize, Change); 3] = [
    (1, |_, _| ()),
    (2, |message, len| {
        message.try_resize(len.try_into().unwrap()).unwrap();
    }),
    (2, |message, len| {
        let layout = MemoryLayout::new(len, AllocAlignment::default()).unwrap();
        message.try_relayout(layout).unwrap();
    }),
];

#[test]
fn tenth_of_memory() {
    const COUNT: usize = 100;
    for has_shm in [true, false] {
        let peers = peers(has_shm, false);
        for len in [1024, 100_000] {
            for (divisor, change) in CHANGES {
                let sent_len = len / divisor;
                let backend = backend(len * COUNT / 10);
                let available = backend.available();
                let provider = backend.provider();
                let layout = provider.alloc_layout(len).unwrap();
                exchange(&peers, has_shm, sent_len, COUNT, &|| {
                    let mut message = layout.alloc().with_policy::<Blocking>().wait().unwrap();
                    change(&mut message, sent_len);
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
            Message::of_provider(&provider, LEN)
        });
        exchange(&peers, has_shm, LEN, COUNT, &|| {
            Message::of_pool(&pool, LEN)
        });
    }
}

/// zenoh invalidates a buffer that no process has confirmed for 100 ms. It must not invalidate
/// buffers that wait in a queue. On a machine under load it may, as zenoh's own threads then get no
/// CPU for that long. So one complete round of ten is enough. If nothing confirmed the buffers, no
/// round would be complete.
#[test]
fn stalled_receiver_keeps_its_queue() {
    const COUNT: usize = 32;
    const LEN: usize = 4096;
    let provider = backend(2 * COUNT * LEN).provider();
    let pool = BufferPool::new(&backend(2 * COUNT * LEN));
    let complete: Vec<u8> = (0..COUNT as u8).collect();
    let of_provider = || Message::of_provider(&provider, LEN);
    let of_pool = || Message::of_pool(&pool, LEN);
    let allocs: [&dyn Fn() -> Message; 2] = [&of_provider, &of_pool];
    for alloc in allocs {
        assert!((0..10).any(|_| received_after_stall(COUNT, LEN, alloc) == complete));
    }
}

/// Sends `count` numbered messages to a receiver whose zenoh thread is blocked for a while. Returns
/// the numbers of those that arrived, and fails unless each of them is intact.
fn received_after_stall(count: usize, len: usize, alloc: &dyn Fn() -> Message) -> Vec<u8> {
    const STALLED: Duration = Duration::from_millis(500);
    let [first, second] = peers(true, false);
    let (end_of_stall, stall) = mpsc::sync_channel::<()>(0);
    let (sender, received) = mpsc::channel();
    let stall = Mutex::new(stall);
    let callback = move |sample: Sample| {
        let payload = sample.payload();
        if payload.as_shm().is_some() {
            sender.send(Some(payload.to_bytes().into_owned())).unwrap();
        } else if payload.len() == 1 {
            // Until the other end is dropped.
            let _is_over = stall.lock().unwrap().recv();
        } else {
            sender.send(None).unwrap();
        }
    };
    let _subscriber = second
        .declare_subscriber(session::KEY)
        .callback(callback)
        .wait()
        .unwrap();
    let publisher = session::publisher(&first);
    publisher.put([0u8]).wait().unwrap();
    for number in 0..count {
        let message = alloc().filled(number as u8);
        publisher.put(message).wait().unwrap();
    }
    publisher.put("the end").wait().unwrap();
    // Nothing arrives while the receiver is stalled.
    assert!(received.recv_timeout(STALLED).is_err());
    drop(end_of_stall);
    let mut numbers = Vec::new();
    while let Some(bytes) = received.recv_timeout(MINUTE).unwrap() {
        assert_eq!(bytes.len(), len);
        assert!(is_filled(&bytes, bytes[0]));
        numbers.push(bytes[0]);
    }
    numbers
}
