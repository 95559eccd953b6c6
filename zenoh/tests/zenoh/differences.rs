//! Differences between a provider on this backend and one on zenoh's own. Each row of the table in
//! the crate's docs is checked with both.

use crate::support::{backend, is_out_of_memory, layout, CAP, LARGE, SMALL};
use shm_pool_zenoh::{BufferPool, PoolBackend};
use std::num::NonZeroUsize;
use zenoh::bytes::ZBytes;
use zenoh::shm::{
    zshmmut, JustAlloc, OwnedShmBuf, PosixShmProviderBackend, ShmBuf, ShmProvider,
    ShmProviderBackend, ShmProviderBuilder, ZShmMut,
};
use zenoh::Wait;

fn stock() -> ShmProvider<PosixShmProviderBackend> {
    ShmProviderBuilder::default_backend(CAP).wait().unwrap()
}

fn alloc<B: ShmProviderBackend>(provider: &ShmProvider<B>, len: usize) -> ZShmMut {
    provider.alloc(len).wait().unwrap()
}

/// Returns `true` if `JustAlloc` succeeds when all memory was used and has been read.
fn just_alloc_after_all_was_read<B: ShmProviderBackend>(provider: &ShmProvider<B>) -> bool {
    let mut messages = Vec::new();
    while let Ok(message) = provider.alloc(LARGE).wait() {
        messages.push(message);
    }
    assert!(messages.len() > CAP / LARGE / 2);
    drop(messages);
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

/// Returns by how much `available` decreases when a message is allocated.
fn decrease<B: ShmProviderBackend>(provider: &ShmProvider<B>, len: usize) -> usize {
    let before = provider.available();
    let message = alloc(provider, len);
    let decrease = before - provider.available();
    drop(message);
    provider.garbage_collect();
    assert_eq!(provider.available(), before);
    decrease
}

#[test]
fn available() {
    assert_eq!(decrease(&backend().provider(), LARGE), LARGE);
    assert_eq!(stock().available(), 0, "zenoh's default does not know");
    assert_eq!(decrease(&stock(), LARGE), 0);
}

#[test]
fn try_resize() {
    let full = NonZeroUsize::new(4096).unwrap();
    let more = NonZeroUsize::new(4097).unwrap();
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
    // This handle must be dropped. As long as it exists, this process confirms the message that
    // gets its metadata next, so zenoh would not reclaim that message, and another test would wait
    // for that forever.
    let stocks = alloc(&stock(), SMALL);
    assert!(!stocks.is_valid());
}

/// Returns the largest alignment that a provider supports, or 0 if it supports none.
fn largest_alignment<B: ShmProviderBackend>(provider: &ShmProvider<B>) -> usize {
    let mut largest = 0;
    for log2 in 0..20 {
        let align = 1 << log2;
        if provider.alloc(layout(CAP / 8, align)).wait().is_err() {
            break;
        }
        largest = align;
    }
    largest
}

#[test]
fn max_alignment() {
    assert_eq!(largest_alignment(&backend().provider()), 4096);
    assert_eq!(largest_alignment(&stock()), 1);
}

#[test]
fn cap_rounds_up() {
    let ours = PoolBackend::builder().max_bytes(5000).build().unwrap();
    assert_eq!(ours.available(), 8192);
}

/// A receiver cannot write a message in place that a buffer pool also holds.
#[test]
fn received_is_never_unique() {
    let pool = BufferPool::new(&backend());
    let is_unique = |mut message: ZBytes| match message.as_shm_mut() {
        Some(handle) => <&mut zshmmut>::try_from(handle).is_ok(),
        None => false,
    };
    assert!(is_unique(alloc(pool.provider(), SMALL).into()));
    assert!(!is_unique(pool.alloc(SMALL).unwrap().into()));
}
