//! Descriptors that a hostile peer could write. None of them makes the backend touch memory that is
//! not allocated, or lose memory that is.

use crate::support::{assert_all_back, backend, exit_child, expect_success, layout, LARGE, SMALL};
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
            "one chunk is allocated twice"
        );
        for chunk in &again {
            backend.free(&chunk.descriptor);
        }
    }
    assert_all_back(&backend);
}

#[test]
fn forged_descriptor() {
    let backend = backend();
    let chunks = [SMALL, LARGE].map(|size| backend.alloc(&layout(size, 1)).unwrap());
    let in_use = backend.stats().bytes_in_use;
    for right in &chunks {
        let segment = right.descriptor.segment;
        let chunk = right.descriptor.chunk;
        let len = right.descriptor.len.get();
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
    for chunk in &chunks {
        backend.free(&chunk.descriptor);
    }
    assert_all_back(&backend);
}

/// The backend finds a chunk by its place. So the pool does not lose a message whose length was
/// overwritten.
#[test]
fn forged_length() {
    let backend = backend();
    for len in [1, SMALL, 2 * LARGE] {
        let right = backend.alloc(&layout(LARGE, 1)).unwrap().descriptor;
        backend.free(&descriptor(right.segment, right.chunk, len));
        assert_all_back(&backend);
    }
}

/// Returns the descriptor with a wrong bit, or `None` if its length would be zero.
fn with_flipped_bit(right: &ChunkDescriptor, bit: u32) -> Option<ChunkDescriptor> {
    let segment = u128::from(right.segment);
    let chunk = u128::from(right.chunk);
    let len = right.len.get() as u128;
    let flipped = (segment | chunk << 32 | len << 64) ^ 1 << bit;
    let segment = flipped as u32;
    let chunk = (flipped >> 32) as u32;
    let len = NonZeroUsize::new((flipped >> 64) as usize)?;
    Some(ChunkDescriptor::new(segment, chunk, len))
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
            for chunk in &chunks {
                if let Some(wrong) = with_flipped_bit(&chunk.descriptor, bit) {
                    backend.free(&wrong);
                }
            }
        }
        for chunk in &chunks {
            backend.free(&chunk.descriptor);
        }
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
    // SAFETY: the child only calls the functions under test, and exits at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        backend.free(&out.descriptor);
        let sizes = [SMALL, LARGE, 2 * LARGE];
        let allocates_nothing = sizes
            .iter()
            .all(|&size| backend.alloc(&layout(size, 1)).is_err());
        exit_child(allocates_nothing && backend.trim() == 0);
    }
    expect_success(child);
    assert_eq!(backend.stats(), before);
    backend.free(&out.descriptor);
    drop(provider);
    assert_all_back(&backend);
}
