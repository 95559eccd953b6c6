//! Where a provider on this backend is not as one on zenoh's own: each row of the table in the
//! module's docs, with both.

use crate::support::{backend, is_out_of_memory, layout, CAP, LARGE, SMALL};
use shm_pool_zenoh::BufferPool;
use std::num::NonZeroUsize;
use zenoh::shm::{
    JustAlloc, OwnedShmBuf, PosixShmProviderBackend, ShmBuf, ShmProvider, ShmProviderBackend,
    ShmProviderBuilder, ZShmMut,
};
use zenoh::Wait;

fn stock() -> ShmProvider<PosixShmProviderBackend> {
    ShmProviderBuilder::default_backend(CAP).wait().unwrap()
}

fn alloc<B: ShmProviderBackend>(provider: &ShmProvider<B>, len: usize) -> ZShmMut {
    provider.alloc(len).wait().unwrap()
}

/// Allocates with `JustAlloc` when all of the memory was used and has been read.
fn just_alloc_after_all_was_read<B: ShmProviderBackend>(provider: &ShmProvider<B>) -> bool {
    let all: Vec<_> = std::iter::from_fn(|| provider.alloc(LARGE).wait().ok()).collect();
    assert!(all.len() > CAP / LARGE / 2);
    drop(all);
    match provider.alloc(LARGE).with_policy::<JustAlloc>().wait() {
        Ok(_) => true,
        Err(error) => {
            assert!(is_out_of_memory(&error), "{error:?}");
            false
        }
    }
}

#[test]
fn just_alloc() {
    assert!(just_alloc_after_all_was_read(&backend().provider()));
    assert!(!just_alloc_after_all_was_read(&stock()));
}

/// What `available` says less when a message is allocated.
fn seen_of<B: ShmProviderBackend>(provider: &ShmProvider<B>, len: usize) -> usize {
    let before = provider.available();
    let message = alloc(provider, len);
    let seen = before - provider.available();
    drop(message);
    provider.garbage_collect();
    assert_eq!(provider.available(), before);
    seen
}

#[test]
fn available() {
    assert_eq!(seen_of(&backend().provider(), LARGE), LARGE);
    assert_eq!(
        (stock().available(), seen_of(&stock(), LARGE)),
        (0, 0),
        "zenoh's default does not know"
    );
}

#[test]
fn try_resize() {
    let [full, more] = [4096, 4097].map(|len| NonZeroUsize::new(len).unwrap());
    let mut ours = alloc(&backend().provider(), SMALL - 40);
    ours.try_resize(full).unwrap();
    assert_eq!(ours.len(), SMALL);
    assert!(ours.try_resize(more).is_none());
    assert!(alloc(&stock(), SMALL - 40).try_resize(full).is_none());
}

#[test]
fn garbage_collect() {
    fn collected<B: ShmProviderBackend>(provider: &ShmProvider<B>) -> usize {
        drop(alloc(provider, SMALL - 40));
        provider.garbage_collect()
    }
    assert_eq!(collected(&backend().provider()), SMALL);
    assert_eq!(collected(&stock()), SMALL - 40);
}

#[test]
fn provider_drop() {
    let ours = alloc(&backend().provider(), SMALL);
    assert!(ours.is_valid());
    // Not leaked: as long as the handle exists, this process confirms whichever message gets its metadata,
    // and another test would wait for ever until zenoh reclaims that one.
    let stocks = alloc(&stock(), SMALL);
    assert!(!stocks.is_valid());
}

/// The largest alignment that a provider gives.
fn largest_alignment<B: ShmProviderBackend>(provider: &ShmProvider<B>) -> usize {
    let alignments = (0..20).map(|log2| 1 << log2);
    let is_given = |&align: &usize| provider.alloc(layout(CAP / 8, align)).wait().is_ok();
    alignments.take_while(is_given).last().unwrap()
}

#[test]
fn max_alignment() {
    assert_eq!(
        (
            largest_alignment(&backend().provider()),
            largest_alignment(&stock())
        ),
        (4096, 1)
    );
}

#[test]
fn cap_rounds_up() {
    let ours = shm_pool_zenoh::PoolBackend::builder()
        .max_bytes(5000)
        .build()
        .unwrap();
    assert_eq!(ours.available(), 8192);
}

/// A receiver cannot write a message in place that a buffer pool also holds.
#[test]
fn received_is_never_unique() {
    use zenoh::bytes::ZBytes;
    use zenoh::shm::zshmmut;
    let pool = BufferPool::new(&backend());
    let is_alone = |mut message: ZBytes| match message.as_shm_mut() {
        Some(handle) => <&mut zshmmut>::try_from(handle).is_ok(),
        None => false,
    };
    assert!(is_alone(alloc(pool.provider(), SMALL).into()));
    assert!(!is_alone(pool.alloc(SMALL).unwrap().into()));
}
