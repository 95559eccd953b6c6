//! zenoh's allocation policies, at the cap.

use crate::support::{
    alloc, assert_all_back, backend, exhaust_provider, is_filled, is_out_of_memory, Blocking,
    Collecting, CAP, LARGE,
};
use shm_pool_zenoh::PoolBackend;
use std::thread;
use zenoh::shm::{ConstUsize, Deallocate, Defragment, GarbageCollect, JustAlloc};
use zenoh::Wait;

#[test]
fn exhaust_and_free() {
    let backend = backend();
    let provider = backend.provider();
    let mut counts = Vec::new();
    for round in 0..100 {
        let len = if round % 2 == 0 { LARGE } else { 4096 };
        let messages = exhaust_provider::<JustAlloc>(&provider, len);
        for (number, message) in messages.iter().enumerate() {
            assert!(is_filled(message, number as u8), "two messages share bytes");
        }
        counts.push(messages.len());
    }
    assert_eq!(counts[0], CAP / LARGE);
    // Small messages may leave the free memory in two pieces. That costs one large message, and
    // never more.
    for (round, &count) in counts.iter().enumerate() {
        if round % 2 == 0 {
            assert!(count + 1 >= counts[0], "{counts:?}");
        } else {
            assert_eq!(count, counts[1], "{counts:?}");
        }
    }
    provider.garbage_collect();
    assert_all_back(&backend);
}

#[test]
fn collection_makes_room() {
    let provider = backend().provider();
    let mut messages = exhaust_provider::<Collecting>(&provider, LARGE);
    messages.pop();
    messages.push(alloc::<Collecting>(&provider, LARGE, 1).unwrap());
    let error = alloc::<Collecting>(&provider, LARGE, 1).unwrap_err();
    assert!(is_out_of_memory(&error));
}

/// Free memory that small messages have split can hold a large one.
#[test]
fn small_make_room_for_large() {
    let provider = backend().provider();
    let small = exhaust_provider::<JustAlloc>(&provider, 4096);
    let error = alloc::<Collecting>(&provider, CAP / 2, 1).unwrap_err();
    assert!(is_out_of_memory(&error));
    drop(small);
    alloc::<Collecting>(&provider, CAP / 2, 1).unwrap();
}

#[test]
fn defragment() {
    let backend = backend();
    let provider = backend.provider();
    let held = alloc::<Defragment<GarbageCollect>>(&provider, LARGE, 1).unwrap();
    for _ in 0..3 {
        let messages =
            [(); 3].map(|()| alloc::<Defragment<GarbageCollect>>(&provider, 2 * LARGE, 1).unwrap());
        drop(messages);
    }
    provider.garbage_collect();
    let largest = provider.defragment();
    assert!(
        ((CAP - LARGE) * 4 / 5..=CAP - LARGE).contains(&largest),
        "{largest}"
    );
    assert_eq!(provider.available(), CAP - LARGE);
    let most = alloc::<JustAlloc>(&provider, largest, 2).expect("as it said");
    assert!(alloc::<JustAlloc>(&provider, LARGE * 4, 2).is_err());
    drop((held, most));
}

/// Guards against a zenoh policy that retries an allocation that cannot succeed.
#[test]
fn defragment_promises_what_fits() {
    let backend = PoolBackend::builder()
        .max_bytes(64 << 20)
        .arena_size(1 << 20)
        .build()
        .unwrap();
    let provider = backend.provider();
    let mut messages = exhaust_provider::<JustAlloc>(&provider, 128 << 10);
    assert!(backend.stats().segments > 2, "short arenas and long ones");
    messages.truncate(1);
    provider.garbage_collect();
    let promised = provider.defragment();
    assert!(promised > 16 << 20);
    let fits = |len: usize| alloc::<JustAlloc>(&provider, len, 1).is_ok();
    assert!(fits(promised), "{promised} bytes were promised");
}

#[test]
fn deallocate() {
    let backend = backend();
    let provider = backend.provider();
    let messages = exhaust_provider::<JustAlloc>(&provider, LARGE);
    // SAFETY: this test does not use the messages that the policy deallocates.
    let policy = unsafe {
        provider
            .alloc(LARGE)
            .with_unsafe_policy::<Deallocate<ConstUsize<4>>>()
    };
    let youngest = messages.last().unwrap().as_ptr();
    let message = policy.wait().unwrap();
    assert_eq!(message.as_ptr(), youngest);
    drop((messages, message));
}

#[test]
fn block_on() {
    let provider = backend().provider();
    let messages = exhaust_provider::<JustAlloc>(&provider, LARGE);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| alloc::<Blocking>(&provider, LARGE, 1).unwrap());
        drop(messages);
        assert!(is_filled(&waiting.join().unwrap(), 1));
    });
}

#[test]
fn await_reader() {
    let provider = backend().provider();
    let messages = exhaust_provider::<JustAlloc>(&provider, LARGE);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let waiting = async { provider.alloc(LARGE).with_policy::<Blocking>().await };
    let reading = async { drop(messages) };
    let both = async { tokio::join!(waiting, reading).0 };
    assert_eq!(runtime.block_on(both).unwrap().len(), LARGE);
}
