//! Idle memory that is not needed is returned automatically; `trim_to` returns as much as
//! requested.

use crate::support::builder;
use shm_pool::{ClassStats, Client, Provider};

const WINDOW: u64 = 64;

fn provider(max_idle: usize) -> Provider {
    builder().max_bytes(256 << 20).max_idle_per_class(max_idle).idle_window(WINDOW).build().unwrap()
}

/// Returns the statistics of the class of messages of `len` bytes.
fn class(provider: &Provider, len: usize) -> ClassStats {
    provider.stats().classes.into_iter().find(|class| class.size >= len).unwrap()
}

/// Uses one small chunk until so many windows have ended, or one fewer.
fn pass(provider: &Provider, windows: u64) {
    for _ in 0..windows {
        drop(provider.alloc(48).unwrap());
        let chunks: usize = provider.stats().classes.iter().map(|class| class.chunks).sum();
        (1..WINDOW.max(128 * chunks as u64)).for_each(|_| drop(provider.alloc(48).unwrap()));
    }
}

/// Allocates `count` messages, and drops them together.
fn burst(provider: &Provider, len: usize, count: usize) {
    let held: Vec<_> = (0..count).map(|_| provider.alloc(len).unwrap()).collect();
    drop(held);
}

#[test]
fn burst_is_returned() {
    let provider = provider(8);
    burst(&provider, 6 << 20, 32);
    let peak = provider.stats().bytes_held;
    assert!(peak >= 32 * (6 << 20));
    // It is released 1 MiB at a time, at every 64th allocation.
    (0..400 * WINDOW).for_each(|_| drop(provider.alloc(48).unwrap()));
    let left = provider.stats().bytes_held;
    assert!(left < 1 << 20, "{left} bytes of {peak} are still held");
    burst(&provider, 6 << 20, 32);
    assert!(provider.stats().bytes_held >= 32 * (6 << 20), "and it can be had again");
}

#[test]
fn no_window() {
    let provider = builder().max_bytes(64 << 20).idle_window(0).build().unwrap();
    burst(&provider, 6 << 20, 8);
    let held = provider.stats().bytes_held;
    pass(&provider, 64);
    assert!(provider.stats().bytes_held >= held);
}

#[test]
fn once_per_window_is_kept() {
    let provider = provider(8);
    for _ in 0..8 {
        burst(&provider, 6 << 20, 3);
        pass(&provider, 1);
    }
    assert_eq!(class(&provider, 6 << 20).misses, 3, "made once, however many windows passed");
    pass(&provider, 4);
    assert_eq!(class(&provider, 6 << 20).chunks, 0, "and gone once nobody needs it");
}

/// Each burst needs all of its chunks, and its period coincides with that of the eviction.
#[test]
fn recurring_bursts() {
    for count in [2, 4, 5, 16, 31] {
        let provider = provider(32);
        burst(&provider, 4096, count);
        (0..100 * WINDOW as usize / count).for_each(|_| burst(&provider, 4096, count));
        assert_eq!(class(&provider, 4096).misses, count as u64, "bursts of {count}");
    }
}

/// The idle queue hands out each chunk in turn, so each one is used, but fewer are needed.
#[test]
fn size_in_use() {
    let provider = provider(32);
    let client = Client::new();
    let publish = |messages: usize| {
        let shared: Vec<_> = (0..messages)
            .map(|_| {
                let message = provider.alloc(1 << 20).unwrap().freeze();
                let view = client.attach(&message.descriptor().unwrap()).unwrap();
                (view, message) // dropped in this order
            })
            .collect();
        drop(shared);
    };
    publish(32);
    let chunks = || class(&provider, 1 << 20).chunks;
    assert_eq!(chunks(), 32);
    (0..200 * WINDOW).for_each(|_| publish(2));
    assert!((2..=8).contains(&chunks()), "{} chunks are kept for two messages at a time", chunks());
    let misses = class(&provider, 1 << 20).misses;
    (0..200 * WINDOW).for_each(|_| publish(2));
    assert_eq!(class(&provider, 1 << 20).misses, misses, "no chunk comes and goes");
}

#[test]
fn what_is_reserved_stays() {
    let provider = provider(8);
    let reservation = provider.reserve(6 << 20, 4).unwrap();
    burst(&provider, 6 << 20, 8);
    pass(&provider, 8);
    assert_eq!(class(&provider, 6 << 20).chunks, 4);
    let held = provider.stats().bytes_held;
    assert!(held < 5 * (6 << 20), "{held}");
    drop(reservation);
    pass(&provider, 12);
    assert!(provider.stats().bytes_held < 1 << 20);
}

#[test]
fn trim_to() {
    let provider = builder().max_bytes(64 << 20).idle_window(0).build().unwrap();
    burst(&provider, 1 << 20, 8);
    burst(&provider, 64 << 10, 8);
    let held = provider.stats().bytes_held;
    assert_eq!(provider.trim_to(held), 0);
    let target = held - (2 << 20) - (100 << 10);
    let given = provider.trim_to(target);
    let now = provider.stats();
    assert!(now.bytes_held <= target && now.bytes_held + given == held, "{given} of {held}: {now:?}");
    assert!(now.bytes_held + (1 << 20) > target, "one chunk too many at most: {now:?}");
    let in_use = provider.alloc(1 << 20).unwrap();
    provider.trim_to(0);
    let left = provider.stats().bytes_held;
    assert!(((1 << 20)..(1 << 20) + (64 << 10)).contains(&left), "what is in use stays: {left}");
    drop(in_use);
}

#[test]
fn window_out_of_range() {
    let error = Provider::builder().idle_window(1 << 40).build().unwrap_err();
    assert!(error.to_string().contains("idle_window"), "{error}");
}
