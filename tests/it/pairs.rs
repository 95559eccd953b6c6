//! Interactions of two mechanisms that no other file covers (see the table in `../PAIRS.md`).

use crate::support::{builder, holds, idle, message, unique_prefix};
use shm_pool::channel::{Receiver, Sender};
use shm_pool::{AllocFuture, AttachError, Client, Provider, ShmBuf};
use shm_pool_support::tasks::noop_waker;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

/// Longer than any wait may take.
const FOR_EVER: Duration = Duration::from_secs(60);

fn poll(future: &mut Pin<Box<AllocFuture<'_>>>) -> Option<ShmBuf> {
    match future.as_mut().poll(&mut Context::from_waker(&noop_waker())) {
        Poll::Ready(buffer) => Some(buffer.unwrap().freeze()),
        Poll::Pending => None,
    }
}

/// A future that waits for `len` bytes.
fn waiting(provider: &Provider, len: usize) -> Pin<Box<AllocFuture<'_>>> {
    let mut future = Box::pin(provider.request(len).wait_async());
    assert!(poll(&mut future).is_none(), "it has nothing to wait for");
    future
}

/// Polls until it is served.
fn served(mut future: Pin<Box<AllocFuture<'_>>>) -> ShmBuf {
    let end = Instant::now() + FOR_EVER;
    loop {
        if let Some(message) = poll(&mut future) {
            return message;
        }
        assert!(Instant::now() < end, "nobody was served");
        thread::yield_now();
    }
}

/// Allocations that end windows of 64: warm ones, and some for which a chunk is made.
fn pass_windows(provider: &Provider) {
    for _ in 0..200 {
        (0..200).for_each(|_| drop(provider.alloc(48).unwrap()));
        drop([(); 20].map(|()| provider.alloc(48).unwrap()));
    }
}

/// Allocates `count` messages, and drops them together.
fn burst(provider: &Provider, len: usize, count: usize) {
    let held: Vec<_> = (0..count).map(|_| provider.alloc(len).unwrap()).collect();
    drop(held);
}

/// A waiter gets memory that a window holds temporarily or releases.
#[test]
fn windows_end_beside_waiter() {
    let provider = builder().max_bytes(8 * MIB).idle_window(64).build().unwrap();
    burst(&provider, MIB / 2, 4);
    let held: Vec<_> = (0..3).map(|_| provider.alloc(2 * MIB).unwrap()).collect();
    let future = waiting(&provider, 3 * MIB);
    pass_windows(&provider);
    drop(held);
    pass_windows(&provider);
    assert_eq!(served(future).len(), 3 * MIB);
}

/// A waiter gets the memory of grants that a greedy peer may not take up.
#[test]
fn disconnect_wakes_waiter() {
    let provider = builder().max_bytes(MIB).max_bytes_per_peer(1000).build().unwrap();
    let client = Client::new();
    let peer = client.connect(provider.id()).unwrap();
    let all = message(&provider, MIB, 1);
    let granted = all.grant(peer).unwrap();
    drop(all);
    let mut future = waiting(&provider, MIB);
    assert!(matches!(client.attach(&granted), Err(AttachError::OverQuota { .. })));
    assert!(poll(&mut future).is_none(), "the grant can still be taken up");
    provider.disconnect(peer).unwrap();
    assert_eq!(served(future).len(), MIB);
}

/// A reservation does not lose a chunk for each peer that is refused.
#[test]
fn disconnect_returns_reserved() {
    let (provider, client) = (builder().build().unwrap(), Client::new());
    let peer = client.connect(provider.id()).unwrap();
    let _reservation = provider.reserve(1000, 1).unwrap();
    assert!(message(&provider, 1000, 1).grant(peer).is_ok());
    let misses = provider.stats().misses();
    provider.disconnect(peer).unwrap();
    drop(provider.alloc(1000).unwrap());
    assert_eq!(provider.stats().misses(), misses, "it is there again");
}

#[test]
fn trim_after_disconnect() {
    let (provider, client) = (builder().build().unwrap(), Client::new());
    let peer = client.connect(provider.id()).unwrap();
    let descriptor = message(&provider, MIB, 1).grant(peer).unwrap();
    assert_eq!(provider.trim(), 0, "the grant holds it");
    provider.disconnect(peer).unwrap();
    assert!(provider.trim() > 0);
    assert_eq!(provider.stats().bytes_held, 0);
    assert!(matches!(client.attach(&descriptor), Err(AttachError::Disconnected { .. })));
}

/// The end of a window takes no memory from a reader, and a reader does not block the rest.
#[test]
fn windows_pass_leases_and_loans() {
    let provider = builder().max_bytes(64 * MIB).idle_window(64).build().unwrap();
    let (client, name) = (Client::new(), unique_prefix("windows"));
    let mut sender = Sender::create(&provider, &name).unwrap();
    let mut receiver = Receiver::open(&client, &name).unwrap();
    let all: Vec<_> = (0..8).map(|stamp| message(&provider, MIB, stamp)).collect();
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
fn eviction_passes_loans() {
    let provider = builder().max_bytes(4 * MIB).idle_window(0).build().unwrap();
    let (client, name) = (Client::new(), unique_prefix("evicted"));
    let mut sender = Sender::create(&provider, &name).unwrap();
    let mut receiver = Receiver::open(&client, &name).unwrap();
    let all: Vec<_> = (0..8).map(|stamp| message(&provider, MIB / 2, stamp)).collect();
    sender.send(all[0].clone()).unwrap();
    sender.send(all[7].clone()).unwrap();
    let received = [receiver.recv().unwrap(), receiver.recv().unwrap()];
    drop(all);
    drop(provider.alloc(2 * MIB).expect("six are idle, side by side"));
    assert!(provider.alloc(7 * MIB / 2).unwrap_err().is_exhausted());
    provider.trim();
    assert_eq!((provider.stats().bytes_held, idle(&provider.stats())), (MIB, 0));
    assert!(holds(&received[0], 0) && holds(&received[1], 7));
    drop(received);
    assert_eq!(provider.alloc(7 * MIB / 2).expect("both have come back").len(), 7 * MIB / 2);
    drop((sender, receiver));
}

/// No chunk is destroyed twice or lost when a window ends during a trim.
#[test]
fn trims_beside_windows() {
    let provider = builder().max_bytes(64 * MIB).idle_window(64).build().unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for len in [100_000, MIB] {
            let (provider, is_over) = (&provider, &is_over);
            scope.spawn(move || {
                for round in 0..200 {
                    burst(provider, len, 1 + round % 12);
                    (0..100).for_each(|_| drop(provider.alloc(48).unwrap()));
                }
                is_over.store(true, Ordering::Relaxed);
            });
        }
        while !is_over.load(Ordering::Relaxed) {
            provider.trim_to(MIB);
            assert!(provider.stats().bytes_held <= 64 * MIB);
        }
    });
    assert_eq!(provider.stats().bytes_in_use, 0);
    provider.trim();
    assert_eq!(provider.stats().bytes_held, 0);
}
