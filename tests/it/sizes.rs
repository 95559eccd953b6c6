//! Lengths, capacities and alignments on both sides are as requested.

use crate::support::{address, builder, pair, provider, write};
use shm_pool::{
    AllocError, AllocErrorKind, Client, ClientBuilder, Descriptor, PeerId, Provider, ProviderBuilder, ProviderId,
    ShmBuf, ShmBufMut, ShmView, Stats,
};
use std::alloc::Layout;
use std::mem::size_of;

#[test]
fn empty_message() {
    let (provider, client) = pair();
    let mut buffer = provider.alloc(0).unwrap();
    assert!(buffer.is_empty() && buffer.as_mut().is_empty());
    let message = buffer.freeze();
    let descriptor = message.descriptor().unwrap();
    assert_eq!(descriptor.payload_len(), 0);
    let view = client.attach(&descriptor).unwrap();
    assert!(message.is_empty() && view.is_empty() && view.try_clone().unwrap().is_empty());
    assert!(message.is_leased(), "an empty view leases its chunk like any other");
}

/// A receiver can read a message as a struct, without crossing cache lines.
#[test]
fn view_alignment() {
    let (provider, client) = pair();
    for (len, align) in [(1, 1), (1, 64), (100, 128), (5_000, 1024), (70_000, 4096)] {
        let layout = Layout::from_size_align(len, align).unwrap();
        let messages: Vec<_> = (0..3).map(|_| provider.alloc_layout(layout).unwrap().freeze()).collect();
        for message in messages {
            let view = client.attach(&message.descriptor().unwrap()).unwrap();
            assert_eq!((view.len(), address(&view) % align.max(64)), (len, 0), "{layout:?}");
        }
    }
}

#[test]
fn every_length() {
    // Not the size of a class, so the last class is a short one.
    const MAX: usize = 9 * 4096;
    for arena in [1 << 16, 1 << 20] {
        let provider = builder().max_bytes(1 << 20).max_alloc(MAX).arena_size(arena).build().unwrap();
        for len in 0..=MAX {
            let mut buffer = provider.alloc(len).unwrap();
            assert_eq!(buffer.len(), len);
            let capacity = buffer.capacity();
            assert!(capacity >= len, "{len} bytes were promised, {capacity} are there");
            // Rounding costs at most a cache line or a 32nd. The last class is whole pages.
            let most = (len + len / 32).next_multiple_of(64).max(64);
            assert!(capacity <= most || capacity == MAX, "{len} bytes take {capacity}");
            buffer.fill(1);
        }
        for len in [MAX + 1, MAX + 4096, isize::MAX as usize, usize::MAX] {
            let error = provider.alloc(len).unwrap_err();
            let AllocErrorKind::TooLarge { len: asked, max } = *error.kind() else { panic!("{len} bytes: {error}") };
            assert_eq!((asked, max), (len, MAX));
            assert!(matches!(provider.reserve(len, 1).unwrap_err().kind(), AllocErrorKind::TooLarge { .. }));
            assert!(matches!(provider.alloc_zeroed(len).unwrap_err().kind(), AllocErrorKind::TooLarge { .. }));
        }
    }
}

#[test]
fn max_alloc_rounds_up() {
    let provider = builder().max_alloc(5000).build().unwrap();
    assert_eq!(provider.alloc(8192).unwrap().len(), 8192);
    assert!(provider.alloc(8193).is_err());
}

#[test]
fn layouts() {
    let (provider, client) = pair();
    let sizes = [0, 1, 63, 64, 65, 4095, 4096, 4097, 126 << 10, (126 << 10) + 1, 128 << 10, 1 << 20];
    for align in (0..=12).map(|shift| 1usize << shift) {
        for size in sizes {
            let layout = Layout::from_size_align(size, align).unwrap();
            // Several at a time: an arena's first chunk might be aligned by chance.
            for buffer in [(); 3].map(|()| provider.alloc_layout(layout).unwrap()) {
                assert_eq!((buffer.len(), address(&buffer) % align), (size, 0), "{layout:?} at the owner");
                let view = client.attach(&buffer.freeze().descriptor().unwrap());
                let view = view.unwrap_or_else(|error| panic!("{layout:?}: {error}"));
                assert_eq!((view.len(), address(&view) % align), (size, 0), "{layout:?} at the peer");
            }
        }
    }
}

#[test]
fn alignment_above_page() {
    let provider = provider();
    for size in [0, 100, 1 << 20] {
        for align in [8192, 1 << 20] {
            let error = provider.alloc_layout(Layout::from_size_align(size, align).unwrap()).unwrap_err();
            let AllocErrorKind::UnsupportedAlignment { align: asked, max } = *error.kind() else { panic!("{error}") };
            assert_eq!((asked, max), (align, Provider::MAX_ALIGN));
        }
    }
    let too_large = Layout::from_size_align(2 << 30, 4096).unwrap();
    assert!(matches!(provider.alloc_layout(too_large).unwrap_err().kind(), AllocErrorKind::TooLarge { .. }));
}

#[test]
fn page_aligned_reuse() {
    let provider = provider();
    let layout = Layout::from_size_align(100, 4096).unwrap();
    let first = address(&provider.alloc_layout(layout).unwrap());
    assert_eq!(address(&provider.alloc_layout(layout).unwrap()), first);
    assert_ne!(address(&provider.alloc(100).unwrap()), first, "an ordinary buffer takes a page-aligned chunk away");
}

#[test]
fn zeroed() {
    let provider = provider();
    for len in [1, 1000, 300_000] {
        let mut dirty = provider.alloc(len).unwrap();
        dirty.fill(0xff);
        let first = address(&dirty);
        drop(dirty);
        let zeroed = provider.alloc_zeroed(len).unwrap();
        assert_eq!(address(&zeroed), first, "the test needs the dirty chunk again");
        assert!(zeroed.iter().all(|&byte| byte == 0), "the last message shows through");
    }
}

#[test]
fn set_len() {
    let (provider, client) = pair();
    let mut buffer = provider.alloc(1000).unwrap();
    let capacity = buffer.capacity();
    write(&mut buffer, 1);
    buffer.truncate(2000);
    assert_eq!(buffer.len(), 1000, "truncate made the message longer");
    buffer.truncate(10);
    assert_eq!((buffer.len(), buffer.capacity()), (10, capacity));
    buffer.try_set_len(capacity).unwrap();
    buffer.fill(3);
    let error = buffer.try_set_len(capacity + 1).unwrap_err();
    assert!(error.to_string().contains(&capacity.to_string()), "{error}");
    assert!(buffer.try_set_len(usize::MAX).is_err());
    assert_eq!(buffer.len(), capacity, "a refused length changed the message");
    buffer.try_set_len(20).unwrap();
    let message = buffer.freeze();
    assert_eq!((message.len(), message.capacity()), (20, capacity));
    let view = client.attach(&message.descriptor().unwrap()).unwrap();
    assert_eq!(view[..], [3; 20], "the peer's length is not the owner's");
}

#[test]
fn handle_sizes() {
    let sizes = [
        size_of::<ShmBufMut>(),
        size_of::<Option<ShmBufMut>>(),
        size_of::<Result<ShmBufMut, AllocError>>(),
        size_of::<ShmBuf>(),
        size_of::<Option<ShmBuf>>(),
    ];
    assert_eq!(sizes, [16; 5], "a wider handle is spilled to memory on the warm path");
    let descriptor = provider().alloc(1).unwrap().freeze().descriptor().unwrap();
    assert_eq!((descriptor.to_bytes().len(), Descriptor::SIZE, PeerId::SIZE), (32, 32, 24));
}

#[test]
fn send_and_sync() {
    fn is_send_and_sync<T: Send + Sync + 'static>() {}
    is_send_and_sync::<(Provider, ProviderBuilder, ProviderId, Stats)>();
    is_send_and_sync::<(ShmBufMut, ShmBuf, ShmView)>();
    is_send_and_sync::<(Client, ClientBuilder, PeerId, Descriptor)>();
    is_send_and_sync::<(AllocError, shm_pool::BuildError, shm_pool::AttachError, shm_pool::ShareError)>();
    is_send_and_sync::<(shm_pool::OsError, shm_pool::DescriptorError, shm_pool::CapacityError)>();
}
