//! Readers that race with recycling, grants that race with disconnecting peers, and threads that
//! share one client.

use crate::fixtures::{builder, burst, class_of, holds, message};
use crossbeam_queue::ArrayQueue;
use parking_lot::Mutex;
use shm_pool::{AttachError, Client, Descriptor, PeerId, Provider, ShareError, Tuning};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Barrier;
use std::thread;

/// Set when a thread exits, even by a panic, so that no other thread waits for it forever.
#[derive(Default)]
struct Over(AtomicBool);

struct SetOnDrop<'a>(&'a Over);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0 .0.store(true, Ordering::Relaxed);
    }
}

impl Over {
    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn on_drop(&self) -> SetOnDrop<'_> {
        SetOnDrop(self)
    }
}

/// Fails if a lease is left, or if memory is lost.
fn assert_all_back(provider: &Provider, what: &str) {
    let stats = provider.stats();
    assert_eq!(
        (stats.bytes_in_use, stats.bytes_leased),
        (0, 0),
        "{what}: a lease is left"
    );
    provider.trim();
    assert_eq!(provider.stats().bytes_held, 0, "{what}: memory is lost");
}

/// The newest message. It is not kept: a reader may be in time or too late.
type Newest = Mutex<Option<(Descriptor, u64)>>;

fn publish(provider: &Provider, len: usize, newest: &Newest, over: &Over) {
    let _through = over.on_drop();
    for stamp in 0.. {
        if over.is_set() {
            return;
        }
        let message = message(provider, len, stamp);
        *newest.lock() = Some((message.descriptor().unwrap(), stamp));
        thread::yield_now();
    }
}

fn read(client: &Client, newest: &Newest, over: &Over) {
    let mut read = 0;
    while read < 300 && !over.is_set() {
        let Some((descriptor, stamp)) = *newest.lock() else {
            continue;
        };
        match client.attach(&descriptor) {
            Ok(view) => {
                assert!(holds(&view, stamp), "another message's bytes");
                thread::yield_now();
                assert!(
                    holds(&view, stamp),
                    "the message was recycled under its reader"
                );
                read += 1;
            }
            Err(AttachError::Stale) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn attach_during_recycle() {
    for len in [64, 3000, 300_000] {
        let provider = builder().max_idle_per_class(2).build().unwrap();
        let newest = Newest::default();
        let shared = Client::new();
        let over = Over::default();
        thread::scope(|scope| {
            scope.spawn(|| publish(&provider, len, &newest, &over));
            let _through = over.on_drop();
            let mut readers = Vec::new();
            for _ in 0..3 {
                readers.push(scope.spawn(|| {
                    read(&shared, &newest, &over);
                    read(&Client::new(), &newest, &over);
                }));
            }
            for reader in readers {
                reader.join().unwrap();
            }
        });
        assert_all_back(&provider, &format!("{len} bytes"));
    }
}

fn send_grants(
    provider: &Provider,
    peer: &Mutex<Option<PeerId>>,
    sent: &ArrayQueue<Descriptor>,
    over: &Over,
) {
    let _through = over.on_drop();
    for stamp in 0.. {
        if over.is_set() {
            return;
        }
        let message = message(provider, 1000, stamp);
        let Some(peer) = *peer.lock() else { continue };
        match message.grant(peer) {
            Ok(granted) => {
                sent.force_push(granted);
            }
            // A slow peer may hold all the records.
            Err(ShareError::TooManyShared { .. }) => thread::yield_now(),
            Err(error) => assert_eq!(error, ShareError::PeerDisconnected(peer)),
        }
    }
}

fn join_and_leave(
    provider: &Provider,
    peer: &Mutex<Option<PeerId>>,
    sent: &ArrayQueue<Descriptor>,
) {
    for _ in 0..1000 {
        let client = Client::new();
        *peer.lock() = Some(client.connect(provider.id()).unwrap());
        for _ in 0..4 {
            let Some(granted) = sent.pop() else { continue };
            match client.attach(&granted) {
                Ok(view) => assert_eq!(view[8..], view[..992], "a torn message"),
                Err(AttachError::OtherPeer | AttachError::NotGranted | AttachError::Stale) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn grant_during_disconnect() {
    let provider = builder().build().unwrap();
    let peer = Mutex::default();
    let sent = ArrayQueue::new(4);
    let over = Over::default();
    thread::scope(|scope| {
        scope.spawn(|| send_grants(&provider, &peer, &sent, &over));
        let _through = over.on_drop();
        let join_and_leave = || join_and_leave(&provider, &peer, &sent);
        let peers = [scope.spawn(join_and_leave), scope.spawn(join_and_leave)];
        for peer in peers {
            peer.join().unwrap();
        }
    });
    assert_all_back(&provider, "grants");
}

#[test]
fn concurrent_first_attach() {
    let provider = builder().max_idle_per_class(0).build().unwrap();
    let client = Client::new();
    for stamp in 0..200 {
        let message = message(&provider, 1 << 16, stamp);
        let descriptor = message.descriptor().unwrap();
        let mut views = Vec::new();
        thread::scope(|scope| {
            let attach = || client.attach(&descriptor).unwrap();
            let threads = [
                scope.spawn(attach),
                scope.spawn(attach),
                scope.spawn(attach),
            ];
            for thread in threads {
                views.push(thread.join().unwrap());
            }
        });
        assert!(views.iter().all(|view| holds(view, stamp)));
        assert_eq!(
            client.mapped_segments(),
            1,
            "the segment is mapped twice, or an old one is kept"
        );
    }
}

/// A thread that arrives while another one makes the only arena is not refused.
#[test]
fn concurrent_arena_growth() {
    const ARENA: usize = 64 << 10;
    for _ in 0..300 {
        let provider = builder()
            .max_bytes(ARENA)
            .tuning(Tuning::new().arena_size(ARENA))
            .build()
            .unwrap();
        let start = Barrier::new(2);
        let mut buffers = Vec::new();
        thread::scope(|scope| {
            let alloc = || {
                start.wait();
                provider.alloc(100)
            };
            for thread in [scope.spawn(alloc), scope.spawn(alloc)] {
                let buffer = thread.join().unwrap();
                buffers.push(buffer.expect("there is room"));
            }
        });
        assert_eq!(
            (provider.stats().segments, provider.stats().bytes_mapped),
            (1, ARENA)
        );
        drop(buffers);
    }
}

/// Two threads that evict concurrently do not take a reserved chunk.
#[test]
fn reservation_during_evictions() {
    const LEN: usize = 64 << 10;
    let provider = builder()
        .max_bytes(4 << 20)
        .max_idle_per_class(8)
        .tuning(Tuning::new().idle_window(64))
        .build()
        .unwrap();
    let reservation = provider.reserve(LEN, 4).unwrap();
    for round in 0..300 {
        // One more than is reserved, shared by all evicting threads.
        burst(&provider, LEN, 5);
        thread::scope(|scope| {
            scope.spawn(|| provider.trim());
            scope.spawn(|| provider.trim_to(0));
            scope.spawn(|| drop(provider.alloc(3 << 20)));
        });
        let stats = provider.stats();
        let class = class_of(&stats, LEN).expect("reserved");
        assert!(
            class.chunks >= 4,
            "round {round}: {} chunks of 4 are left",
            class.chunks
        );
    }
    drop(reservation);
}
