//! zenoh's allocation policies, each where it matters: at the cap.

use crate::support::{
    alloc, assert_all_back, backend, is_out_of_memory, Blocking, Collecting, Provider, CAP, LARGE,
};
use shm_pool_zenoh::PoolBackend;
use std::thread;
use zenoh::shm::{
    BlockOn, ConstPolicy, ConstUsize, Deallocate, Defragment, GarbageCollect, JustAlloc,
    SafePolicy, ZShmMut,
};
use zenoh::Wait;

/// Allocates until nothing fits.
fn exhaust<Policy>(provider: &Provider, len: usize) -> Vec<ZShmMut>
where
    Policy: SafePolicy + ConstPolicy + zenoh::shm::AllocPolicy<shm_pool_zenoh::PoolBackend>,
{
    let mut messages = Vec::new();
    loop {
        match alloc::<Policy>(provider, len, messages.len() as u8) {
            Ok(message) => messages.push(message),
            Err(error) => {
                assert!(is_out_of_memory(&error), "{error:?}");
                return messages;
            }
        }
    }
}

#[test]
fn exhaust_and_free() {
    let backend = backend();
    let provider = backend.provider();
    let mut counts = Vec::new();
    for round in 0..100 {
        let messages = exhaust::<JustAlloc>(&provider, [LARGE, 4096][round % 2]);
        for (message, byte) in messages.iter().zip((0u8..=255).cycle()) {
            assert!(
                message.iter().all(|&found| found == byte),
                "two messages share bytes"
            );
        }
        counts.push(messages.len());
    }
    assert_eq!(counts[0], CAP / LARGE);
    // Small messages may leave the free memory in two pieces. That costs one large message, and
    // never more.
    assert!(
        counts
            .iter()
            .step_by(2)
            .all(|&count| count + 1 >= counts[0]),
        "{counts:?}"
    );
    assert!(
        counts[1..]
            .iter()
            .step_by(2)
            .all(|&count| count == counts[1]),
        "{counts:?}"
    );
    provider.garbage_collect();
    assert_all_back(&backend);
}

#[test]
fn collection_makes_room() {
    let provider = backend().provider();
    let mut messages = exhaust::<Collecting>(&provider, LARGE);
    messages.pop();
    messages.push(alloc::<Collecting>(&provider, LARGE, 1).unwrap());
    assert!(is_out_of_memory(
        &alloc::<Collecting>(&provider, LARGE, 1).unwrap_err()
    ));
}

/// Free memory that small messages have split can hold a large one.
#[test]
fn small_make_room_for_large() {
    let provider = backend().provider();
    let small = exhaust::<JustAlloc>(&provider, 4096);
    assert!(is_out_of_memory(
        &alloc::<Collecting>(&provider, CAP / 2, 1).unwrap_err()
    ));
    drop(small);
    alloc::<Collecting>(&provider, CAP / 2, 1).unwrap();
}

#[test]
fn defragment() {
    let backend = backend();
    let provider = backend.provider();
    let held = alloc::<Defragment<GarbageCollect>>(&provider, LARGE, 1).unwrap();
    for _ in 0..3 {
        drop(
            [(); 3].map(|()| alloc::<Defragment<GarbageCollect>>(&provider, 2 * LARGE, 1).unwrap()),
        );
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
    let mut messages = exhaust::<JustAlloc>(&provider, 128 << 10);
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
    let messages = exhaust::<JustAlloc>(&provider, LARGE);
    // SAFETY: nothing touches the messages that this policy takes away.
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
    let messages = exhaust::<JustAlloc>(&provider, LARGE);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| alloc::<Blocking>(&provider, LARGE, 1).unwrap());
        drop(messages);
        assert!(waiting.join().unwrap().iter().all(|&byte| byte == 1));
    });
}

#[test]
fn await_reader() {
    let provider = backend().provider();
    let messages = exhaust::<JustAlloc>(&provider, LARGE);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let message = runtime.block_on(async {
        let waiting = async {
            provider
                .alloc(LARGE)
                .with_policy::<BlockOn<GarbageCollect>>()
                .await
                .unwrap()
        };
        let reading = async { drop(messages) };
        tokio::join!(waiting, reading).0
    });
    assert_eq!(message.len(), LARGE);
}
