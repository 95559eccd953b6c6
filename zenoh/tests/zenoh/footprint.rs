//! How much of its segments the pool uses for a number of messages in flight.

use crate::support::{
    alloc, assert_all_back, backend, builder, is_filled, Collecting, Provider, CAP, LARGE, SMALL,
};
use shm_pool_zenoh::PoolBackend;
use std::collections::VecDeque;
use zenoh::shm::{JustAlloc, ShmProviderBuilder};
use zenoh::Wait;

/// Publishes `count` messages, of which the last `depth` are in flight.
fn publish(provider: &Provider, len: usize, depth: usize, count: usize) {
    let mut in_flight = VecDeque::new();
    for number in 0..count {
        in_flight.push_back(alloc::<JustAlloc>(provider, len, number as u8).unwrap());
        if in_flight.len() > depth {
            let oldest = in_flight.pop_front().unwrap();
            assert!(is_filled(&oldest, (number - depth) as u8));
        }
    }
}

/// Returns the bytes of all chunks, in use or idle. Their segments are longer.
fn chunk_bytes(backend: &PoolBackend) -> usize {
    let mut bytes = 0;
    for class in backend.stats().classes {
        bytes += class.chunks * class.size;
    }
    bytes
}

/// The pool does not use all of the cap under a policy that never collects.
#[test]
fn memory_follows_use() {
    for depth in [0, 1, 4] {
        let backend = backend();
        publish(&backend.provider(), LARGE, depth, 500);
        assert!(
            chunk_bytes(&backend) <= (depth + 2) * LARGE,
            "{depth} in flight: {} bytes",
            chunk_bytes(&backend)
        );
        assert_eq!(
            backend.stats().segments_created as usize,
            backend.stats().segments,
            "no segment is removed and created again"
        );
    }
}

/// How many idle bytes a collection may leave, even if few messages are in flight.
const LEAST_SPARE: usize = 32 << 10;

/// The pool has at most a seventh more than the messages in flight, 3 KiB more for each of them, or
/// 32 KiB more.
#[test]
fn overhead_is_bounded() {
    for (len, depth, most) in [
        (64, 1, 2 + LEAST_SPARE / 64),
        (1024, 4, 5 + LEAST_SPARE / 1024),
        (64, 100, 49 * 101),
        (1024, 800, 4 * 801),
        (3072, 400, 2 * 401),
        (24 << 10, 100, 101 + 101 / 7),
    ] {
        let backend = backend();
        publish(&backend.provider(), len, depth, 25 * depth);
        let mut chunks = 0;
        for class in backend.stats().classes {
            chunks += class.chunks;
        }
        assert!(
            (depth + 1..=most + 2).contains(&chunks),
            "{chunks} chunks for {depth} messages of {len} bytes"
        );
    }
}

/// A class that was large once does not grow to that size again before it is collected.
#[test]
fn burst_is_returned() {
    let backend = builder().max_idle_per_class(4).build().unwrap();
    let provider = backend.provider();
    publish(&provider, SMALL, 600, 2_000);
    provider.garbage_collect();
    backend.trim();
    publish(&provider, SMALL, 1, 2_000);
    let bytes = chunk_bytes(&backend);
    assert!(
        bytes <= 3 * SMALL + LEAST_SPARE,
        "{bytes} bytes of chunks for 2 messages"
    );
}

/// Without early collection, the pool grows to the cap before zenoh collects.
#[test]
fn collect_late() {
    let backend = builder().collect_early(false).build().unwrap();
    publish(&backend.provider(), LARGE, 1, 500);
    assert_eq!(chunk_bytes(&backend), CAP);
    let other = builder().build().unwrap();
    let provider = ShmProviderBuilder::backend(other.clone()).wait();
    for _ in 0..500 {
        let message = provider.alloc(LARGE).with_policy::<Collecting>().wait();
        drop(message.unwrap());
    }
    assert_eq!(
        chunk_bytes(&other),
        CAP,
        "the backend does not know a provider that it has not created"
    );
}

#[test]
fn two_collecting_providers() {
    let backend = backend();
    drop(backend.provider());
    let providers = [backend.provider(), backend.provider()];
    for provider in providers.iter().cycle().take(6) {
        publish(provider, LARGE, 1, 100);
    }
    let bytes = chunk_bytes(&backend);
    assert!(bytes <= 6 * LARGE, "{bytes}");
    for provider in providers {
        provider.garbage_collect();
    }
    assert_all_back(&backend);
}
