//! Memory that is reserved for zenoh's messages. It is allocated before the first message, and
//! stays.

use crate::heap::Cost;
use crate::support::{
    alloc, backend, builder, exhaust_provider, is_out_of_memory, layout, Collecting, CAP, LARGE,
    SMALL,
};
use shm_pool::AllocError;
use zenoh::shm::{AllocatedChunk, ShmProviderBackend};

const SIZES: [usize; 3] = [100, SMALL, LARGE];
const COUNT: usize = 3;
const FIRST_MESSAGES: usize = 1000;

/// All memory is allocated before the first message. It stays even after more allocations than
/// those after which a pool usually returns idle memory.
#[test]
fn preallocated() {
    const ALLOCATIONS: usize = 100_000;
    let backend = builder().preallocate(true).build().unwrap();
    assert_eq!(backend.stats().bytes_held, CAP);
    let large = layout(LARGE, 1);
    let mut chunks = Vec::new();
    while let Ok(chunk) = backend.alloc(&large) {
        chunks.push(chunk);
    }
    assert!(!chunks.is_empty());
    for chunk in chunks {
        backend.free(&chunk.descriptor);
    }
    let small = layout(SMALL, 1);
    for _ in 0..ALLOCATIONS {
        let chunk = backend.alloc(&small).unwrap();
        backend.free(&chunk.descriptor);
    }
    let stats = backend.stats();
    assert_eq!(stats.bytes_held, CAP);
    assert_eq!(stats.segments, 1);
    assert_eq!(stats.segments_created, 1);
    assert_eq!(backend.trim(), CAP);
}

/// The slowest allocations are those that create chunks and segments. With a reservation, a
/// publisher's first messages are not among them.
#[test]
fn first_messages() {
    let costs = [(); 4].map(|()| cost_of_first_messages());
    // The first try pages in the code. The kernel may take a page away at any time, but hardly in
    // each try.
    assert!(
        costs.contains(&Cost::NOTHING),
        "{FIRST_MESSAGES} messages, in four tries: {costs:?}"
    );
}

fn cost_of_first_messages() -> Cost {
    let backend = backend();
    for size in SIZES {
        backend.reserve(size, COUNT).unwrap().keep();
    }
    let created = backend.stats().misses();
    assert_eq!(created as usize, SIZES.len() * COUNT);
    let layouts = SIZES.map(|size| layout(size, 1));
    let cost = Cost::of(|| {
        for round in 0..FIRST_MESSAGES / COUNT {
            let layout = &layouts[round % layouts.len()];
            let mut burst = [(); COUNT].map(|()| backend.alloc(layout).unwrap());
            for chunk in &mut burst {
                write_each_page(chunk, layout.size().get());
            }
            for chunk in &burst {
                backend.free(&chunk.descriptor);
            }
        }
    });
    assert_eq!(
        backend.stats().misses(),
        created,
        "a message that was not reserved"
    );
    cost
}

fn write_each_page(chunk: &mut AllocatedChunk, len: usize) {
    // SAFETY: the chunk is allocated, and only this test uses it.
    let start = unsafe { chunk.data.ptr_mut() };
    // SAFETY: only this test has the chunk, which has `len` bytes.
    let bytes = unsafe { std::slice::from_raw_parts_mut(start, len) };
    for byte in bytes.iter_mut().step_by(4096) {
        *byte = 1;
    }
}

/// A camera's frames do not use chunks that are reserved for commands.
#[test]
fn reserved_stays() {
    let backend = backend();
    let provider = backend.provider();
    let reserved = backend.reserve(SMALL, COUNT).unwrap();
    let frames = exhaust_provider::<Collecting>(&provider, LARGE);
    let others = exhaust_provider::<Collecting>(&provider, 2 * SMALL);
    backend.trim();
    let small = [(); COUNT].map(|()| alloc::<Collecting>(&provider, SMALL, 3).unwrap());
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
