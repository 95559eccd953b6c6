//! zenoh's buffers on the pool: typed, resized, shared, and outliving what made them.

use crate::support::{alloc, assert_all_back, backend, Collecting, LARGE, SMALL};
use std::mem::MaybeUninit;
use std::num::NonZeroUsize;
use zenoh::shm::{
    AllocAlignment, MemoryLayout, OwnedShmBuf, ResideInShm, Typed, TypedLayout, ZShm, ZShmMut,
};
use zenoh::Wait;

#[repr(C, align(256))]
struct Pose {
    position: [f64; 3],
}

// SAFETY: `Pose` is plain numbers, without pointers.
unsafe impl ResideInShm for Pose {}

#[test]
fn typed_alignment() {
    let backend = backend();
    let provider = backend.provider();
    let pose: Typed<MaybeUninit<Pose>, ZShmMut> =
        provider.alloc(TypedLayout::<Pose>::new()).wait().unwrap();
    assert_eq!(
        Typed::inner(&pose).as_ptr() as usize % std::mem::align_of::<Pose>(),
        0
    );
    drop(pose);
    provider.garbage_collect();
    assert_all_back(&backend);
}

#[test]
fn shrunk_buffer() {
    let backend = backend();
    let provider = backend.provider();
    for len in [SMALL, LARGE] {
        let mut resized = alloc::<Collecting>(&provider, len, 1).unwrap();
        resized
            .try_resize(NonZeroUsize::new(len / 2).unwrap())
            .unwrap();
        assert_eq!(resized.len(), len / 2);
        let mut relaid = alloc::<Collecting>(&provider, len, 2).unwrap();
        let half = MemoryLayout::new(len / 2, AllocAlignment::new(3).unwrap()).unwrap();
        relaid.try_relayout(half).unwrap();
        assert!(relaid.len() >= len / 2 && resized.iter().all(|&byte| byte == 1));
    }
    provider.garbage_collect();
    assert_all_back(&backend);
}

#[test]
fn buffer_outlives_backend() {
    for len in [SMALL, LARGE] {
        let backend = backend();
        let provider = backend.provider();
        let mut exclusive = alloc::<Collecting>(&provider, len, 7).unwrap();
        let shared: ZShm = alloc::<Collecting>(&provider, len, 8).unwrap().into();
        let idle = alloc::<Collecting>(&provider, len, 9).unwrap();
        drop(idle);
        drop((provider, backend));
        assert!(exclusive.iter().all(|&byte| byte == 7) && shared.iter().all(|&byte| byte == 8));
        exclusive.fill(10);
        let clone = shared.clone();
        drop(shared);
        assert!(exclusive.iter().all(|&byte| byte == 10) && clone.iter().all(|&byte| byte == 8));
    }
}

/// Dropping the local buffer recycles no message that another process still reads.
#[test]
fn no_reuse_while_read() {
    let backend = backend();
    let provider = backend.provider();
    let held: ZShm = alloc::<Collecting>(&provider, LARGE, 1).unwrap().into();
    let elsewhere = held.clone();
    drop(held);
    for byte in 2..100 {
        let message = alloc::<Collecting>(&provider, LARGE, byte).unwrap();
        assert_ne!(message.as_ptr(), elsewhere.as_ptr());
        assert!(elsewhere.iter().all(|&byte| byte == 1));
    }
    drop(elsewhere);
    provider.garbage_collect();
    assert_all_back(&backend);
}

#[test]
fn two_providers() {
    let backend = backend();
    let providers = [backend.provider(), backend.provider()];
    let messages = [&providers[0], &providers[1]]
        .map(|provider| alloc::<Collecting>(provider, LARGE, 3).unwrap());
    assert_ne!(messages[0].as_ptr(), messages[1].as_ptr());
    drop(messages);
    for provider in &providers {
        provider.garbage_collect();
    }
    assert_all_back(&backend);
}
