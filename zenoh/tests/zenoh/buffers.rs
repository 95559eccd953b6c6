//! zenoh's buffers on this backend: typed, resized, shared, and ones that outlive the backend.

use crate::support::{alloc, assert_all_back, backend, is_filled, Collecting, LARGE, SMALL};
use std::mem::{align_of, MaybeUninit};
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
    let address = Typed::inner(&pose).as_ptr() as usize;
    assert_eq!(address % align_of::<Pose>(), 0);
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
        assert!(relaid.len() >= len / 2);
        assert!(is_filled(&resized, 1));
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
        assert!(is_filled(&exclusive, 7));
        assert!(is_filled(&shared, 8));
        exclusive.fill(10);
        let clone = shared.clone();
        drop(shared);
        assert!(is_filled(&exclusive, 10));
        assert!(is_filled(&clone, 8));
    }
}

/// The memory of a message that a reader still holds is not reused when the publisher drops its
/// handle.
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
        assert!(is_filled(&elsewhere, 1));
    }
    drop(elsewhere);
    provider.garbage_collect();
    assert_all_back(&backend);
}

#[test]
fn two_providers() {
    let backend = backend();
    let providers = [backend.provider(), backend.provider()];
    let first = alloc::<Collecting>(&providers[0], LARGE, 3).unwrap();
    let second = alloc::<Collecting>(&providers[1], LARGE, 3).unwrap();
    assert_ne!(first.as_ptr(), second.as_ptr());
    drop((first, second));
    for provider in &providers {
        provider.garbage_collect();
    }
    assert_all_back(&backend);
}
