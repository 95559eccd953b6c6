//! Interactions of two mechanisms that no other file covers (see the table in `../PAIRS.md`).

use crate::fixtures::{
    alloc_many, builder, burst, holds, idle, message, messages, unique_prefix, Waiting,
};
use crate::threads::beside;
use shm_pool::channel::{Receiver, Sender};
use shm_pool::{AttachError, Client, Provider, Tuning};
use std::thread;

const MIB: usize = 1 << 20;

/// Allocations that end windows of 64: warm ones, and some for which a chunk is made.
fn pass_windows(provider: &Provider) {
    for _ in 0..200 {
        for _ in 0..200 {
            drop(provider.alloc(48).unwrap());
        }
        burst(provider, 48, 20);
    }
}

/// A waiter gets memory that a window holds temporarily or releases.
#[test]
fn windows_end_beside_waiter() {
    let provider = builder()
        .max_bytes(8 * MIB)
        .tuning(Tuning::new().idle_window(64))
        .build()
        .unwrap();
    burst(&provider, MIB / 2, 4);
    let held = alloc_many(&provider, 2 * MIB, 3);
    let future = Waiting::begin(provider.request(3 * MIB).wait_async());
    pass_windows(&provider);
    drop(held);
    pass_windows(&provider);
    assert_eq!(future.served().len(), 3 * MIB);
}

/// A waiter gets the memory of grants that a greedy peer may not take up.
#[test]
fn disconnect_wakes_waiter() {
    let provider = builder()
        .max_bytes(MIB)
        .max_bytes_per_peer(MIB)
        .build()
        .unwrap();
    let client = Client::new();
    let peer = client.connect(provider.id()).unwrap();
    let all = message(&provider, MIB, 1);
    let granted = all.grant(peer).unwrap();
    drop(all);
    let mut future = Waiting::begin(provider.request(MIB).wait_async());
    assert!(
        future.poll().is_pending(),
        "the grant can still be taken up"
    );
    assert!(provider.disconnect(peer));
    assert_eq!(future.served().len(), MIB);
    assert!(matches!(
        client.attach(&granted),
        Err(AttachError::Disconnected { .. })
    ));
}

/// A reservation does not lose a chunk for each peer that is refused.
#[test]
fn disconnect_returns_reserved() {
    let provider = builder().build().unwrap();
    let client = Client::new();
    let peer = client.connect(provider.id()).unwrap();
    let _reservation = provider.reserve(1000, 1).unwrap();
    assert!(message(&provider, 1000, 1).grant(peer).is_ok());
    let misses = provider.stats().misses();
    assert!(provider.disconnect(peer));
    drop(provider.alloc(1000).unwrap());
    assert_eq!(provider.stats().misses(), misses, "it is there again");
}

#[test]
fn trim_after_disconnect() {
    let provider = builder().build().unwrap();
    let client = Client::new();
    let peer = client.connect(provider.id()).unwrap();
    let descriptor = message(&provider, MIB, 1).grant(peer).unwrap();
    assert_eq!(provider.trim(), 0, "the grant holds it");
    assert!(provider.disconnect(peer));
    assert!(provider.trim() > 0);
    assert_eq!(provider.stats().bytes_held, 0);
    assert!(matches!(
        client.attach(&descriptor),
        Err(AttachError::Disconnected { .. })
    ));
}

/// The end of a window takes no memory from a reader, and a reader does not block the rest.
#[test]
fn windows_pass_leases_and_borrowed() {
    let provider = builder()
        .max_bytes(64 * MIB)
        .tuning(Tuning::new().idle_window(64))
        .build()
        .unwrap();
    let client = Client::new();
    let name = unique_prefix("windows");
    let mut sender = Sender::create(&provider, &name).unwrap();
    let mut receiver = Receiver::open(&name).unwrap();
    let all = messages(&provider, MIB, 0..8);
    let view = client.attach(&all[1].descriptor().unwrap()).unwrap();
    sender.send(all[2].clone()).unwrap();
    let received = receiver.recv().unwrap();
    let in_flight = all[3].descriptor().unwrap();
    drop(all);
    // It is idle and leased.
    let late = client.attach(&in_flight).expect("nobody has used it since");
    let held = provider.stats().bytes_held;
    pass_windows(&provider);
    let left = provider.stats().bytes_held;
    assert!(left < held && left >= 3 * MIB, "{left} bytes of {held}");
    assert!(holds(&view, 1) && holds(&received, 2) && holds(&late, 3));
    drop((view, received, late, sender, receiver));
    provider.trim();
    assert_eq!(provider.stats().bytes_held, 0);
}

/// Eviction takes no buffer that a channel's receiver reads, but uses those it has returned.
#[test]
fn eviction_passes_borrowed() {
    let provider = builder()
        .max_bytes(4 * MIB)
        .tuning(Tuning::new().idle_window(0))
        .build()
        .unwrap();
    let name = unique_prefix("evicted");
    let mut sender = Sender::create(&provider, &name).unwrap();
    let mut receiver = Receiver::open(&name).unwrap();
    let all = messages(&provider, MIB / 2, 0..8);
    sender.send(all[0].clone()).unwrap();
    sender.send(all[7].clone()).unwrap();
    let received = [receiver.recv().unwrap(), receiver.recv().unwrap()];
    drop(all);
    drop(provider.alloc(2 * MIB).expect("six are idle, side by side"));
    assert!(provider.alloc(7 * MIB / 2).unwrap_err().is_exhausted());
    provider.trim();
    assert_eq!(
        (provider.stats().bytes_held, idle(&provider.stats())),
        (MIB, 0)
    );
    assert!(holds(&received[0], 0) && holds(&received[1], 7));
    drop(received);
    assert_eq!(
        provider
            .alloc(7 * MIB / 2)
            .expect("both have come back")
            .len(),
        7 * MIB / 2
    );
    drop((sender, receiver));
}

/// No chunk is destroyed twice or lost when a window ends during a trim.
#[test]
fn trims_beside_windows() {
    let provider = builder()
        .max_bytes(64 * MIB)
        .tuning(Tuning::new().idle_window(64))
        .build()
        .unwrap();
    let trim = || {
        provider.trim_to(MIB);
        assert!(provider.stats().bytes_held <= 64 * MIB);
    };
    let use_windows = |len| {
        for round in 0..200 {
            burst(&provider, len, 1 + round % 12);
            for _ in 0..100 {
                drop(provider.alloc(48).unwrap());
            }
        }
    };
    beside(trim, || {
        thread::scope(|scope| {
            let short = scope.spawn(|| use_windows(100_000));
            let long = scope.spawn(|| use_windows(MIB));
            short.join().unwrap();
            long.join().unwrap();
        })
    });
    assert_eq!(provider.stats().bytes_in_use, 0);
    provider.trim();
    assert_eq!(provider.stats().bytes_held, 0);
}
