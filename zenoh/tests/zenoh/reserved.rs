//! What is reserved for zenoh's messages: it is there from the first one on, and stays.

use crate::heap::Cost;
use crate::support::{
    alloc, backend, builder, is_out_of_memory, layout, Collecting, CAP, LARGE, SMALL,
};
use shm_pool::AllocError;
use zenoh::shm::{AllocatedChunk, ShmProviderBackend};

const SIZES: [usize; 3] = [100, SMALL, LARGE];
const COUNT: usize = 3;
const FIRST_MESSAGES: usize = 1000;

/// All memory is there before the first message, and stays, also after more allocations than those
/// after which idle memory usually returns.
#[test]
fn preallocated() {
    const ALLOCATIONS: usize = 100_000;
    let backend = builder().preallocate(true).build().unwrap();
    assert_eq!(backend.stats().bytes_held, CAP);
    let large = layout(LARGE, 1);
    let held: Vec<_> = std::iter::from_fn(|| backend.alloc(&large).ok()).collect();
    assert!(!held.is_empty());
    for chunk in held {
        backend.free(&chunk.descriptor);
    }
    let small = layout(SMALL, 1);
    for _ in 0..ALLOCATIONS {
        let chunk = backend.alloc(&small).unwrap();
        backend.free(&chunk.descriptor);
    }
    let stats = backend.stats();
    assert_eq!(stats.bytes_held, CAP);
    assert_eq!((stats.segments, stats.segments_created), (1, 1));
    assert_eq!(backend.trim(), CAP);
}

/// The slowest allocations are those that create chunks and segments; with a reservation, a
/// publisher's first messages are not among them.
#[test]
fn first_messages() {
    let costs = [(); 4].map(|()| {
        let backend = backend();
        SIZES
            .iter()
            .for_each(|&size| backend.reserve(size, COUNT).unwrap().keep());
        let made = backend.stats().misses();
        assert_eq!(made as usize, SIZES.len() * COUNT);
        let layouts = SIZES.map(|size| layout(size, 1));
        let mut in_flight = layouts.iter().cycle().take(FIRST_MESSAGES / COUNT);
        let cost = Cost::of(|| {
            in_flight.by_ref().for_each(|layout| {
                let mut burst: [AllocatedChunk; COUNT] =
                    std::array::from_fn(|_| backend.alloc(layout).unwrap());
                burst
                    .iter_mut()
                    .for_each(|chunk| write_each_page(chunk, layout.size().get()));
                burst
                    .iter()
                    .for_each(|chunk| backend.free(&chunk.descriptor));
            });
        });
        assert_eq!(
            backend.stats().misses(),
            made,
            "a message that was not reserved"
        );
        cost
    });
    // The first try pages in the code. And the kernel may take a page at any time, but hardly in
    // each try.
    assert!(
        costs.contains(&Cost::NOTHING),
        "{FIRST_MESSAGES} messages, in four tries: {costs:?}"
    );
}

fn write_each_page(chunk: &mut AllocatedChunk, len: usize) {
    // SAFETY: the chunk is allocated, and only this test uses it.
    let start = unsafe { chunk.data.ptr_mut() };
    // SAFETY: only this test has the chunk, which has `len` bytes.
    let bytes = unsafe { std::slice::from_raw_parts_mut(start, len) };
    bytes.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
}

/// A camera's frames do not use chunks that are reserved for commands.
#[test]
fn reserved_stays() {
    let backend = backend();
    let provider = backend.provider();
    let reserved = backend.reserve(SMALL, COUNT).unwrap();
    let frames: Vec<_> =
        std::iter::from_fn(|| alloc::<Collecting>(&provider, LARGE, 1).ok()).collect();
    let others: Vec<_> =
        std::iter::from_fn(|| alloc::<Collecting>(&provider, 2 * SMALL, 2).ok()).collect();
    backend.trim();
    let small: Vec<_> = (0..COUNT)
        .map(|_| alloc::<Collecting>(&provider, SMALL, 3).unwrap())
        .collect();
    let error = alloc::<Collecting>(&provider, LARGE, 4).unwrap_err();
    assert!(is_out_of_memory(&error));
    drop((frames, others, small));
    provider.garbage_collect();
    backend.trim();
    let held = backend.stats().bytes_held;
    assert!(
        (COUNT * SMALL..CAP).contains(&held),
        "{held} bytes of a reservation"
    );
    drop(reserved);
    backend.trim();
    assert_eq!(backend.stats().bytes_held, 0);
}

#[test]
fn failed_reserve() {
    let backend = builder()
        .max_idle_per_class(64)
        .max_alloc(LARGE)
        .build()
        .unwrap();
    let kind = |len, count| match backend.reserve(len, count).unwrap_err() {
        AllocError::TooLarge { .. } => "too large",
        AllocError::ReserveTooMany { .. } => "too many",
        AllocError::Exhausted { .. } => "exhausted",
        other => panic!("{other}"),
    };
    assert_eq!(kind(LARGE + 4096, 1), "too large");
    assert_eq!(kind(SMALL, 65), "too many");
    assert_eq!(kind(LARGE, CAP / LARGE + 1), "exhausted");
    backend.trim();
    assert_eq!(backend.stats().bytes_held, 0);
    backend.reserve(LARGE, CAP / LARGE - 1).unwrap().keep();
}
