//! In steady state nothing touches the heap: no allocation and no free, as counted by the global
//! allocator.
//!
//! Counts are per thread, so that tests that run in parallel do not count each other's.

use shm_pool::channel::{Receiver, Sender};
use shm_pool::{Client, Provider, ShmBuf, ShmBufMut, ShmView};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATED: Cell<u64> = const { Cell::new(0) };
    static FREED: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, with counters.
struct Counting;

// SAFETY: every call goes to the system's allocator unchanged. The counters are const-initialised
// cells without a destructor, so counting neither allocates nor panics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.set(ALLOCATED.get() + 1);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`, which `System` shares.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        FREED.set(FREED.get() + 1);
        // SAFETY: the caller passes a block that `alloc` got from `System`, and its layout.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Sizes of each kind: the smallest chunk, others carved in cache lines, and whole pages.
const SIZES: [usize; 6] = [0, 64, 1000, 4096, 1 << 20, 3 << 20];

/// How many rounds run before counting: enough for all work that is done only now and then, and for
/// the first windows of uses, which give back what was needed to begin with.
const WARM_UP: usize = 4 * 4096;

fn provider() -> Provider {
    Provider::builder().max_shared(64).build().unwrap()
}

/// Runs `round` `rounds` times after a warm-up, and fails if that touched the heap.
fn assert_no_heap(what: &str, rounds: usize, mut round: impl FnMut()) {
    (0..WARM_UP).for_each(|_| round());
    let before = (ALLOCATED.get(), FREED.get());
    (0..rounds).for_each(|_| round());
    let counts = (ALLOCATED.get() - before.0, FREED.get() - before.1);
    assert_eq!(counts, (0, 0), "heap (allocations, frees) in {rounds} rounds of: {what}");
}

#[test]
fn the_counter_sees_an_allocation_and_a_free() {
    let before = (ALLOCATED.get(), FREED.get());
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(
        (ALLOCATED.get() - before.0, FREED.get() - before.1),
        (1, 1),
        "every zero of this suite would be hollow"
    );
}

#[test]
fn a_million_buffers_are_allocated_and_dropped_without_the_heap() {
    let provider = provider();
    for len in SIZES {
        assert_no_heap("alloc, drop", 1_000_000 / SIZES.len(), || drop(provider.alloc(len).unwrap()));
    }
}

#[test]
fn messages_are_frozen_cloned_and_dropped_without_the_heap() {
    let provider = provider();
    for len in SIZES {
        assert_no_heap("alloc, freeze, clone, drop", 20_000, || {
            let message = provider.alloc(len).unwrap().freeze();
            drop(message.clone());
        });
        assert_no_heap("alloc, freeze, back to writing, drop", 20_000, || {
            drop(provider.alloc(len).unwrap().freeze().try_into_mut().unwrap());
        });
    }
}

#[test]
fn bursts_of_live_buffers_go_through_the_queue_without_the_heap() {
    let provider = provider();
    for len in SIZES {
        assert_no_heap("four buffers at a time", 20_000, || {
            let _burst: [ShmBufMut; 4] = std::array::from_fn(|_| provider.alloc(len).unwrap());
        });
    }
}

#[test]
fn messages_are_shared_read_and_recycled_without_the_heap() {
    let (provider, client) = (provider(), Client::new());
    for len in SIZES {
        assert_no_heap("descriptor, attach, buffer dropped first", 20_000, || {
            let message = provider.alloc(len).unwrap().freeze();
            let view = client.attach(&message.descriptor().unwrap()).unwrap();
            drop(message);
            drop(view);
        });
        assert_no_heap("descriptor, attach, view dropped first", 20_000, || {
            let message = provider.alloc(len).unwrap().freeze();
            let view = client.attach(&message.descriptor().unwrap()).unwrap();
            drop(view.try_clone().unwrap());
            drop(view);
            drop(message);
        });
    }
}

#[test]
fn bursts_of_shared_messages_are_recycled_without_the_heap() {
    let (provider, client) = (provider(), Client::new());
    for len in SIZES {
        // An odd number, so that work done every so many allocations falls on every place in the
        // burst.
        assert_no_heap("five shared messages at a time", 20_000, || {
            let burst: [ShmBuf; 5] = std::array::from_fn(|_| provider.alloc(len).unwrap().freeze());
            let _views: [ShmView; 5] =
                std::array::from_fn(|at| client.attach(&burst[at].descriptor().unwrap()).unwrap());
            drop(burst);
        });
    }
}

#[test]
fn messages_are_granted_and_taken_up_without_the_heap() {
    let (provider, client) = (provider(), Client::new());
    let peer = client.connect(provider.id()).unwrap();
    for len in SIZES {
        assert_no_heap("grant, drop the buffer, attach, drop the view", 20_000, || {
            let message = provider.alloc(len).unwrap().freeze();
            let granted = message.grant(peer).unwrap();
            drop(message);
            drop(client.attach(&granted).unwrap());
        });
    }
}

#[test]
fn messages_go_through_a_channel_without_the_heap() {
    let (provider, name) = (provider(), format!("no-heap-{}", std::process::id()));
    let mut sender = Sender::create(&provider, &name).unwrap();
    let mut receiver = Receiver::open(&Client::new(), &name).unwrap();
    for len in SIZES {
        assert_no_heap("send a buffer, receive it", 20_000, || {
            sender.send(provider.alloc(len).unwrap().freeze()).unwrap();
            assert_eq!(receiver.recv().unwrap().len(), len);
        });
    }
    assert_no_heap("send bytes, receive them; and find nothing", 20_000, || {
        sender.send_bytes(b"bytes").unwrap();
        assert_eq!(&receiver.recv().unwrap()[..], b"bytes");
        assert!(receiver.try_recv().is_err());
    });
}
