//! Chunks return to the pool and are reused, and the pool keeps no more of them than its limit.

use crate::fixtures::{
    address, alloc_many, attach_all, builder, burst, idle, pair, provider, write,
};
use nix::sys::resource::{getrusage, UsageWho};
use shm_pool::{
    AllocError, Client, Descriptor, PeerId, Provider, ProviderBuilder, ProviderId, ShmBytes,
    ShmBytesMut, ShmView, Stats, Tuning,
};
use shm_pool_support::machine::page_size;
use std::alloc::Layout;
use std::mem::size_of;

/// The lengths of chunks carved in cache lines, and in whole pages.
const LENGTHS: [usize; 5] = [0, 64, 5000, 1 << 20, 5 << 20];

#[test]
fn reuse() {
    let provider = provider();
    for len in LENGTHS {
        let first = address(&provider.alloc(len).unwrap());
        let created = provider.stats().segments_created;
        for _ in 0..100 {
            assert_eq!(
                address(&provider.alloc(len).unwrap()),
                first,
                "{len} bytes: a fresh chunk instead of the idle one"
            );
        }
        assert_eq!(
            provider.stats().segments_created,
            created,
            "{len} bytes: steady state creates segments"
        );
    }
}

/// One slow reader does not make a publisher take more memory while enough chunks are free.
#[test]
fn reuse_behind_leased_chunks() {
    for (len, read) in [(1 << 20, 8), (1 << 20, 64), (100_000, 512)] {
        let provider = builder()
            .max_bytes(1 << 30)
            .max_shared(2048)
            .max_idle_per_class(1024)
            .tuning(Tuning::new().arena_size(4 << 20))
            .build()
            .unwrap();
        let client = Client::new();
        let mut all = Vec::new();
        for _ in 0..2 * read {
            all.push(provider.alloc(len).unwrap().freeze());
        }
        let mut views = attach_all(&client, &all);
        // The first half stays ahead of those that are released.
        drop(all);
        views.truncate(read);
        let before = provider.stats();
        let again = alloc_many(&provider, len, read);
        let after = provider.stats();
        assert_eq!(
            (after.misses(), after.segments_created),
            (before.misses(), before.segments_created),
            "{read} of {len}"
        );
        drop((again, views));
    }
}

#[test]
fn reuse_of_shared() {
    let (provider, client) = pair();
    for len in LENGTHS {
        let first = address(&provider.alloc(len).unwrap());
        let created = provider.stats().segments_created;
        for round in 0..100 {
            let message = provider.alloc(len).unwrap().freeze();
            assert_eq!(
                address(&message),
                first,
                "{len} bytes: a fresh chunk instead of the one whose leases ended"
            );
            let view = client.attach(&message.descriptor().unwrap()).unwrap();
            if round % 2 == 0 {
                drop(message);
                drop(view);
            } else {
                drop(view);
                drop(message);
            }
        }
        assert_eq!(
            provider.stats().segments_created,
            created,
            "{len} bytes: steady state creates segments"
        );
    }
}

#[test]
fn last_in_first_out() {
    let provider = provider();
    for len in LENGTHS {
        drop(provider.reserve(len, 4).unwrap());
        let warm = address(&provider.alloc(len).unwrap());
        assert_eq!(
            address(&provider.alloc(len).unwrap()),
            warm,
            "{len} bytes: a cold chunk of the queue came first"
        );
        let first = provider.alloc(len).unwrap();
        let last = provider.alloc(len).unwrap();
        let warm = address(&last);
        drop(first);
        drop(last);
        assert_eq!(
            address(&provider.alloc(len).unwrap()),
            warm,
            "{len} bytes: not the chunk that was dropped last"
        );
    }
}

/// Drops `count` buffers that `ready` prepared, and returns how many the pool kept.
fn kept(
    cap: usize,
    len: usize,
    count: usize,
    ready: fn(usize, ShmBytesMut) -> ShmBytes,
) -> (Provider, usize) {
    let provider = builder().max_idle_per_class(cap).build().unwrap();
    let mut live = Vec::new();
    for at in 0..count {
        live.push(ready(at, provider.alloc(len).unwrap()));
    }
    drop(live);
    let stats = provider.stats();
    (provider, idle(&stats))
}

fn unshared(_: usize, buffer: ShmBytesMut) -> ShmBytes {
    buffer.freeze()
}

fn shared(_: usize, buffer: ShmBytesMut) -> ShmBytes {
    let message = buffer.freeze();
    message.descriptor().unwrap();
    message
}

fn every_other_shared(at: usize, buffer: ShmBytesMut) -> ShmBytes {
    [unshared, shared][at % 2](at, buffer)
}

fn the_last_ones_shared(at: usize, buffer: ShmBytesMut) -> ShmBytes {
    [unshared, shared][usize::from(at >= 10)](at, buffer)
}

#[test]
fn max_idle_per_class() {
    for cap in [0, 1, 2, 8] {
        for len in [100, 1 << 20] {
            for ready in [unshared, shared, every_other_shared, the_last_ones_shared] {
                let (provider, idle) = kept(cap, len, 20, ready);
                assert!(
                    idle <= cap,
                    "{idle} idle chunks of {len} bytes, the cap is {cap}"
                );
                assert_eq!(
                    provider.stats().bytes_in_use,
                    0,
                    "a dropped buffer still counts as in use"
                );
            }
            let (_, idle) = kept(cap, len, 20, unshared);
            assert_eq!(idle, cap, "the cap is not made use of for {len} bytes");
        }
    }
}

#[test]
fn max_idle_of_zero() {
    for len in [100, 1 << 20] {
        for ready in [unshared, shared] {
            let (provider, _) = kept(0, len, 3, ready);
            assert_eq!(
                provider.stats().bytes_held,
                0,
                "memory for {len} bytes is held and nobody uses it"
            );
            let again = provider.alloc(len).unwrap();
            assert_eq!(
                again.len(),
                len,
                "the pool works on after everything was given back"
            );
        }
    }
}

#[test]
fn max_idle_of_unfrozen() {
    for cap in [0, 1, 8] {
        let provider = builder().max_idle_per_class(cap).build().unwrap();
        burst(&provider, 1000, 20);
        assert_eq!(idle(&provider.stats()), cap);
    }
}

#[test]
fn reserve_makes_hits() {
    for len in LENGTHS {
        let provider = provider();
        let before = provider.stats();
        drop(provider.reserve(len, 5).unwrap());
        let reserved = provider.stats();
        assert_eq!(
            idle(&reserved) - idle(&before),
            5,
            "{len} bytes: not as many idle chunks as were reserved"
        );
        assert_eq!(
            reserved.misses() - before.misses(),
            5,
            "{len} bytes: a reservation counts the chunks it makes"
        );
        let live = alloc_many(&provider, len, 5);
        let after = provider.stats();
        assert_eq!(
            after.misses(),
            reserved.misses(),
            "{len} bytes: an allocation made a chunk despite the reservation"
        );
        assert_eq!(
            after.hits() - before.hits(),
            5,
            "{len} bytes: allocations from the reservation are hits"
        );
        assert_eq!(
            after.segments_created, reserved.segments_created,
            "{len} bytes: a segment was made despite it"
        );
        drop(live);
    }
}

#[test]
fn reserve_counts_existing() {
    let provider = provider();
    drop(provider.reserve(1000, 8).unwrap());
    let before = provider.stats();
    for count in [8, 3, 0] {
        drop(provider.reserve(1000, count).unwrap());
        assert_eq!(
            provider.stats(),
            before,
            "reserving {count} of 8 idle chunks changed something"
        );
    }
}

#[test]
fn reserve_above_max_idle() {
    for cap in [0, 1, 8] {
        let provider = builder().max_idle_per_class(cap).build().unwrap();
        drop(provider.reserve(1000, cap).unwrap());
        let error = provider.reserve(1000, cap + 1).unwrap_err();
        let AllocError::ReserveTooMany { count, max } = error else {
            panic!("{error}")
        };
        assert_eq!((count, max), (cap + 1, cap));
    }
}

#[test]
fn trim() {
    let provider = provider();
    for len in LENGTHS {
        drop(provider.reserve(len, 8).unwrap());
    }
    let held = provider.stats().bytes_held;
    assert!(held > 8 << 20, "there is something to give back");
    assert_eq!(provider.trim(), held, "what trim says is not what was held");
    let stats = provider.stats();
    assert_eq!(
        (stats.bytes_held, stats.segments, stats.bytes_mapped),
        (0, 0, 0),
        "trim kept something"
    );
    assert_eq!(provider.trim(), 0, "there is nothing to give back twice");
}

#[test]
fn trim_spares_used_and_leased() {
    let (provider, client) = pair();
    let small = provider.alloc(100).unwrap();
    let arena = provider.stats().bytes_held;
    let large = provider.alloc(1 << 20).unwrap().freeze();
    let leased = provider.alloc(2 << 20).unwrap().freeze();
    let view = client.attach(&leased.descriptor().unwrap()).unwrap();
    drop(leased);
    drop(provider.alloc(3 << 20).unwrap());
    assert_eq!(
        provider.trim(),
        3 << 20,
        "only the idle chunk is given back"
    );
    assert_eq!(provider.stats().bytes_held, arena + (3 << 20));
    drop(view);
    assert_eq!(
        provider.trim(),
        2 << 20,
        "the chunk whose lease has ended is given back"
    );
    drop(small);
    assert_eq!(
        provider.trim(),
        arena,
        "the arena that nobody uses any more is given back"
    );
    drop(large);
    assert_eq!(provider.trim(), 1 << 20);
}

/// The percentage of a buffer's pages that fault when this thread writes them. A sanitizer's own
/// pages fault too: one for every eight.
fn percent_of_pages_that_fault(buffer: &mut [u8]) -> i64 {
    let faults = || {
        getrusage(UsageWho::RUSAGE_THREAD)
            .unwrap()
            .minor_page_faults()
    };
    let before = faults();
    let mut pages = 0;
    for byte in buffer.iter_mut().step_by(page_size()) {
        *byte = 1;
        pages += 1;
    }
    (faults() - before) * 100 / pages
}

#[test]
fn alloc_is_populated() {
    let provider = provider();
    let len = 4 << 20;
    let fresh = percent_of_pages_that_fault(&mut provider.alloc(len).unwrap());
    assert!(fresh < 20, "{fresh} % of fresh pages fault");
    provider.trim();
    drop(provider.reserve(len, 1).unwrap());
    let reserved = percent_of_pages_that_fault(&mut provider.alloc(len).unwrap());
    assert!(
        reserved < 20,
        "{reserved} % of pages fault that are reserved, after they were given back to the system"
    );
}

// ---- lengths, capacities and alignments ---------------------------------------------------------

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
    assert!(
        message.is_leased(),
        "an empty view leases its chunk like any other"
    );
}

/// A receiver can read a message as a struct, without crossing cache lines.
#[test]
fn view_alignment() {
    let (provider, client) = pair();
    for (len, align) in [(1, 1), (1, 64), (100, 128), (5_000, 1024), (70_000, 4096)] {
        let layout = Layout::from_size_align(len, align).unwrap();
        let mut messages = Vec::new();
        for _ in 0..3 {
            messages.push(provider.alloc_layout(layout).unwrap().freeze());
        }
        for message in messages {
            let view = client.attach(&message.descriptor().unwrap()).unwrap();
            assert_eq!(
                (view.len(), address(&view) % align.max(64)),
                (len, 0),
                "{layout:?}"
            );
        }
    }
}

#[test]
fn every_length() {
    // With pages of 4 KiB, not the size of a class, so the last class is a short one.
    let max_alloc = (9_usize * 4096).next_multiple_of(page_size());
    for arena in [1 << 16, 1 << 20] {
        let provider = builder()
            .max_bytes(1 << 20)
            .max_alloc(max_alloc)
            .tuning(Tuning::new().arena_size(arena))
            .build()
            .unwrap();
        for len in 0..=max_alloc {
            let mut buffer = provider.alloc(len).unwrap();
            assert_eq!(buffer.len(), len);
            let capacity = buffer.capacity();
            assert!(
                capacity >= len,
                "{len} bytes were promised, {capacity} are there"
            );
            // Rounding costs at most a cache line or a 32nd. The last class is whole pages.
            let most = (len + len / 32).next_multiple_of(64).max(64);
            assert!(
                capacity <= most || capacity == max_alloc,
                "{len} bytes take {capacity}"
            );
            buffer.fill(1);
        }
        for len in [
            max_alloc + 1,
            max_alloc + 4096,
            isize::MAX as usize,
            usize::MAX,
        ] {
            let error = provider.alloc(len).unwrap_err();
            let AllocError::TooLarge { len: asked, max } = error else {
                panic!("{len} bytes: {error}")
            };
            assert_eq!((asked, max), (len, max_alloc));
            assert!(matches!(
                provider.reserve(len, 1).unwrap_err(),
                AllocError::TooLarge { .. }
            ));
            assert!(matches!(
                provider.alloc_zeroed(len).unwrap_err(),
                AllocError::TooLarge { .. }
            ));
        }
    }
}

#[test]
fn max_alloc_rounds_up() {
    let provider = builder().max_alloc(5000).build().unwrap();
    let whole = 5000_usize.next_multiple_of(page_size());
    assert_eq!(provider.alloc(whole).unwrap().len(), whole);
    assert!(provider.alloc(whole + 1).is_err());
}

#[test]
fn layouts() {
    let (provider, client) = pair();
    let sizes = [
        0,
        1,
        63,
        64,
        65,
        4095,
        4096,
        4097,
        126 << 10,
        (126 << 10) + 1,
        128 << 10,
        1 << 20,
    ];
    for shift in 0..=12 {
        let align = 1 << shift;
        for size in sizes {
            let layout = Layout::from_size_align(size, align).unwrap();
            // Several at a time: an arena's first chunk might be aligned by chance.
            let buffers = [
                provider.alloc_layout(layout).unwrap(),
                provider.alloc_layout(layout).unwrap(),
                provider.alloc_layout(layout).unwrap(),
            ];
            for buffer in buffers {
                assert_eq!(
                    (buffer.len(), address(&buffer) % align),
                    (size, 0),
                    "{layout:?} at the owner"
                );
                let view = client.attach(&buffer.freeze().descriptor().unwrap());
                let view = view.unwrap_or_else(|error| panic!("{layout:?}: {error}"));
                assert_eq!(
                    (view.len(), address(&view) % align),
                    (size, 0),
                    "{layout:?} at the peer"
                );
            }
        }
    }
}

#[test]
fn alignment_above_page() {
    let provider = provider();
    for size in [0, 100, 1 << 20] {
        for align in [8192, 1 << 20] {
            let error = provider
                .alloc_layout(Layout::from_size_align(size, align).unwrap())
                .unwrap_err();
            let AllocError::UnsupportedAlignment(asked) = error else {
                panic!("{error}")
            };
            assert_eq!(asked, align);
            assert!(error.to_string().contains(&Provider::MAX_ALIGN.to_string()));
        }
    }
    let too_large = Layout::from_size_align(2 << 30, 4096).unwrap();
    assert!(matches!(
        provider.alloc_layout(too_large).unwrap_err(),
        AllocError::TooLarge { .. }
    ));
}

#[test]
fn page_aligned_reuse() {
    let provider = provider();
    let layout = Layout::from_size_align(100, 4096).unwrap();
    let first = address(&provider.alloc_layout(layout).unwrap());
    assert_eq!(address(&provider.alloc_layout(layout).unwrap()), first);
    assert_ne!(
        address(&provider.alloc(100).unwrap()),
        first,
        "an ordinary buffer takes a page-aligned chunk away"
    );
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
        assert_eq!(
            address(&zeroed),
            first,
            "the test needs the dirty chunk again"
        );
        assert!(
            zeroed.iter().all(|&byte| byte == 0),
            "the last message shows through"
        );
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
    buffer.resize(capacity).unwrap();
    buffer.fill(3);
    let error = buffer.resize(capacity + 1).unwrap_err();
    assert!(error.to_string().contains(&capacity.to_string()), "{error}");
    assert!(buffer.resize(usize::MAX).is_err());
    assert_eq!(
        buffer.len(),
        capacity,
        "a refused length changed the message"
    );
    buffer.resize(20).unwrap();
    let message = buffer.freeze();
    assert_eq!((message.len(), message.capacity()), (20, capacity));
    let view = client.attach(&message.descriptor().unwrap()).unwrap();
    assert_eq!(view[..], [3; 20], "the peer's length is not the owner's");
}

#[test]
fn handle_sizes() {
    let sizes = [
        size_of::<ShmBytesMut>(),
        size_of::<Option<ShmBytesMut>>(),
        size_of::<ShmBytes>(),
        size_of::<Option<ShmBytes>>(),
    ];
    assert!(size_of::<Result<ShmBytesMut, AllocError>>() <= 64);
    assert_eq!(
        sizes, [16; 4],
        "a wider handle is spilled to memory on the warm path"
    );
    let descriptor = provider().alloc(1).unwrap().freeze().descriptor().unwrap();
    assert_eq!(
        (descriptor.to_bytes().len(), Descriptor::SIZE, PeerId::SIZE),
        (32, 32, 24)
    );
}

#[test]
fn send_and_sync() {
    fn is_send_and_sync<T: Send + Sync + 'static>() {}
    is_send_and_sync::<(Provider, ProviderBuilder, ProviderId, Stats)>();
    is_send_and_sync::<(ShmBytesMut, ShmBytes, ShmView)>();
    is_send_and_sync::<(Client, PeerId, Descriptor)>();
    is_send_and_sync::<(
        AllocError,
        shm_pool::BuildError,
        shm_pool::AttachError,
        shm_pool::ShareError,
    )>();
    is_send_and_sync::<(
        shm_pool::OsError,
        shm_pool::DescriptorError,
        shm_pool::CapacityError,
    )>();
}
