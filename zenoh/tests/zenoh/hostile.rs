//! Descriptors as a hostile peer could write them: none makes the backend touch memory that is not
//! allocated, or lose memory that is.

use crate::support::{assert_all_back, backend, layout, LARGE, SMALL};
use proptest::prelude::*;
use std::num::NonZeroUsize;
use zenoh::shm::{ChunkDescriptor, ShmProviderBackend};

fn descriptor(segment: u32, chunk: u32, len: usize) -> ChunkDescriptor {
    ChunkDescriptor::new(segment, chunk, NonZeroUsize::new(len).unwrap())
}

#[test]
fn free_once() {
    let backend = backend();
    for size in [SMALL, LARGE] {
        let chunk = backend.alloc(&layout(size, 1)).unwrap();
        backend.free(&chunk.descriptor);
        backend.free(&chunk.descriptor);
        let again = [(); 2].map(|()| backend.alloc(&layout(size, 1)).unwrap());
        assert_ne!(
            again[0].descriptor, again[1].descriptor,
            "one chunk in two hands"
        );
        again
            .iter()
            .for_each(|chunk| backend.free(&chunk.descriptor));
    }
    assert_all_back(&backend);
}

#[test]
fn forged_descriptor() {
    let backend = backend();
    let [small, large] = [SMALL, LARGE].map(|size| backend.alloc(&layout(size, 1)).unwrap());
    let in_use = backend.stats().bytes_in_use;
    for right in [&small.descriptor, &large.descriptor] {
        let (segment, chunk, len) = (right.segment, right.chunk, right.len.get());
        for wrong in [
            descriptor(segment ^ 1, chunk, len),
            descriptor(segment ^ 1 << 20, chunk, len),
            descriptor(segment, chunk ^ 1, len),
            descriptor(segment, chunk ^ 64, len),
            descriptor(segment, chunk.wrapping_add(4096), len),
            descriptor(segment, u32::MAX, len),
            descriptor(0, 0, len),
        ] {
            backend.free(&wrong);
        }
    }
    assert_eq!(backend.stats().bytes_in_use, in_use);
    [small, large]
        .iter()
        .for_each(|chunk| backend.free(&chunk.descriptor));
    assert_all_back(&backend);
}

/// The place names the chunk, so a message whose length was overwritten is not lost to the pool.
#[test]
fn forged_length() {
    let backend = backend();
    for len in [1, SMALL, 2 * LARGE] {
        let right = backend.alloc(&layout(LARGE, 1)).unwrap().descriptor;
        backend.free(&descriptor(right.segment, right.chunk, len));
        assert_all_back(&backend);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    #[test]
    fn random_descriptors(
        made_up in prop::collection::vec((any::<u32>(), any::<u32>(), 1usize..), 500),
        bits in prop::collection::vec(0u32..128, 500),
    ) {
        let backend = backend();
        let chunks = [64, SMALL, LARGE].map(|size| backend.alloc(&layout(size, 1)).unwrap());
        for (segment, chunk, len) in made_up {
            backend.free(&descriptor(segment, chunk, len));
        }
        for bit in bits {
            for right in chunks.iter().map(|chunk| &chunk.descriptor) {
                let whole = u128::from(right.segment) | u128::from(right.chunk) << 32 | (right.len.get() as u128) << 64;
                let flipped = whole ^ 1 << bit;
                if let Some(len) = NonZeroUsize::new((flipped >> 64) as usize) {
                    backend.free(&ChunkDescriptor::new(flipped as u32, (flipped >> 32) as u32, len));
                }
            }
        }
        chunks.iter().for_each(|chunk| backend.free(&chunk.descriptor));
        assert_all_back(&backend);
    }
}

/// A forked child neither allocates from its parent's pool nor returns the parent's memory.
#[test]
fn forked_child() {
    let backend = backend();
    let provider = backend.provider();
    let idle = backend.alloc(&layout(LARGE, 1)).unwrap();
    let out = backend.alloc(&layout(SMALL, 1)).unwrap();
    backend.free(&idle.descriptor);
    let before = backend.stats();
    // SAFETY: the child only calls what is under test, and exits at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        backend.free(&out.descriptor);
        let got_nothing = [SMALL, LARGE, 2 * LARGE]
            .into_iter()
            .all(|size| backend.alloc(&layout(size, 1)).is_err());
        // SAFETY: `_exit` ends the child without running the parent's exit handlers.
        unsafe {
            libc::_exit(if got_nothing && backend.trim() == 0 {
                0
            } else {
                1
            })
        };
    }
    let mut status = 0;
    // SAFETY: `status` is valid for the write, and `child` was forked by this test.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(backend.stats(), before);
    backend.free(&out.descriptor);
    drop(provider);
    assert_all_back(&backend);
}
