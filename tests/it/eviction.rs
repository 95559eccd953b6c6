//! Which chunks are evicted when room is made, explicitly or automatically, and which are kept.

use crate::fixtures::{alloc_many, builder, burst, chunks, files, idle, message, Random, NONE};
use crate::threads::beside;
use shm_pool::{ClassStats, Client, Provider, ShareError, ShmBytes, ShmView, Tuning};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const MIB: usize = 1 << 20;

/// A target that is no multiple of a page is reached, without evicting everything.
#[test]
fn trim_to_odd_target() {
    let provider = builder()
        .max_bytes(64 * MIB)
        .tuning(Tuning::new().idle_window(0))
        .build()
        .unwrap();
    burst(&provider, MIB, 8);
    for target in [3_000_000, 2 * MIB + 1, MIB + 4095] {
        provider.trim_to(target);
        let stats = provider.stats();
        assert!(stats.bytes_held <= target, "{target}: {stats:?}");
        assert_eq!(idle(&stats), target / MIB, "{target}: {stats:?}");
    }
}

/// An idle chunk that a peer has leased since it was dropped.
fn leased_while_idle(provider: &Provider, client: &Client, len: usize) -> ShmView {
    let sent = message(provider, len, 1);
    let descriptor = sent.descriptor().unwrap();
    drop(sent);
    client
        .attach(&descriptor)
        .expect("nobody has used it since")
}

/// The descriptor of an idle message of a reserved class still attaches.
#[test]
fn crowding_leaves_reserved_open() {
    const LEN: usize = 300_000;
    let provider = builder()
        .max_bytes(16 * MIB)
        .tuning(Tuning::new().arena_size(16 * MIB).idle_window(0))
        .build()
        .unwrap();
    let _reserved = provider.reserve(LEN, 4).unwrap();
    let held = alloc_many(&provider, MIB, 8);
    let descriptor = message(&provider, LEN, 1).descriptor().unwrap();
    drop(provider.alloc(500_000).unwrap());
    assert!(Client::new().attach(&descriptor).is_ok());
    drop(held);
}

/// A thread that uses only its reserved chunks finds all of them, while another one allocates large
/// messages in a crowded pool, ends windows and trims.
#[test]
fn evictions_take_no_reserved_chunk() {
    const LEN: usize = 300_000;
    let provider = builder()
        .max_bytes(16 * MIB)
        .tuning(Tuning::new().arena_size(16 * MIB).idle_window(64))
        .build()
        .unwrap();
    let _reserved = provider.reserve(LEN, 4).unwrap();
    let held = alloc_many(&provider, MIB, 8);
    let misses = || {
        provider
            .stats()
            .classes
            .iter()
            .find(|class| class.size >= LEN)
            .map(|class| class.misses)
    };
    let before = misses();
    let take_reserved = || burst(&provider, LEN, 4);
    beside(take_reserved, || {
        for at in 0..15_000 {
            drop(provider.alloc(500_000 + at % 37 * 40_000));
            drop(provider.alloc(64));
            if at % 64 == 0 {
                provider.trim();
            }
        }
    });
    assert_eq!(misses(), before);
    drop(held);
}

/// A leased idle chunk does not prevent the eviction of smaller ones.
#[test]
fn trim_passes_leased_class() {
    let provider = builder()
        .max_bytes(64 * MIB)
        .tuning(Tuning::new().idle_window(0))
        .build()
        .unwrap();
    let client = Client::new();
    burst(&provider, 64 << 10, 8);
    let view = leased_while_idle(&provider, &client, 6 * MIB);
    assert!(provider.trim_to(0) > 0, "eight chunks are idle");
    assert_eq!(idle(&provider.stats()), 0);
    assert_eq!(provider.trim_to(0), 0, "all went at once");
    assert_eq!(view.len(), 6 * MIB);
}

/// A control loop that has reserved its memory does not pay for earlier use of other sizes.
#[test]
fn reserved_allocs_give_nothing_back() {
    let provider = builder()
        .max_bytes(256 * MIB)
        .tuning(Tuning::new().idle_window(64))
        .build()
        .unwrap();
    let _reservation = provider.reserve(1000, 1).unwrap();
    burst(&provider, 6 * MIB, 1);
    let held = provider.stats().bytes_held;
    let mut most = held;
    for _ in 0..1024 {
        for _ in 0..64 {
            drop(provider.alloc(1000).unwrap());
        }
        most = most.min(provider.stats().bytes_held);
    }
    assert_eq!(most, held, "bytes went");
}

/// No single allocation is delayed by milliseconds.
#[test]
fn one_alloc_gives_back_one_mib() {
    let provider = builder()
        .max_bytes(256 * MIB)
        .tuning(Tuning::new().idle_window(64))
        .build()
        .unwrap();
    burst(&provider, 6 * MIB, 16);
    let peak = provider.stats().bytes_held;
    let mut held = peak;
    let mut most_at_once = 0;
    let mut note = || {
        let now = provider.stats().bytes_held;
        most_at_once = most_at_once.max(held.saturating_sub(now));
        held = now;
    };
    for _ in 0..200 {
        for _ in 0..200 {
            drop(provider.alloc(48).unwrap());
            note();
        }
        // More than are kept, so that some are made each time.
        let mut some = Vec::new();
        for _ in 0..20 {
            some.push(provider.alloc(48).unwrap());
            note();
        }
    }
    assert!(most_at_once <= MIB, "{most_at_once} bytes at once");
    assert!(held < peak, "{held} bytes of {peak} are still held");
}

/// Nor by evicting thousands of short chunks.
#[test]
fn one_alloc_evicts_few_chunks() {
    const BURST: usize = 2_000;
    const MOST: usize = 64;
    // As many uses are counted together.
    const USES: usize = 64;
    let provider = builder()
        .max_bytes(64 * MIB)
        .max_idle_per_class(2 * BURST)
        .tuning(Tuning::new().idle_window(64))
        .build()
        .unwrap();
    burst(&provider, 48, BURST);
    let chunks = || chunks(&provider.stats());
    let mut before = chunks();
    assert!(before >= BURST);
    let mut uses = 0;
    while before > BURST / 2 {
        for _ in 0..USES {
            drop(provider.alloc(48).unwrap());
        }
        uses += USES;
        let now = chunks();
        assert!(before - now <= MOST, "{} at once", before - now);
        before = now;
        assert!(uses < 1000 * BURST, "{before} chunks stay");
    }
}

/// A provider with a single record, which belongs to a message that was dropped while it was read.
fn last_record_is_leased(max_idle: usize) -> (Provider, ShmView) {
    let builder = builder()
        .max_shared(1)
        .max_bytes(MIB)
        .max_idle_per_class(max_idle);
    let provider = builder.build().unwrap();
    let client = Client::new();
    let half = provider.alloc(MIB / 2).unwrap();
    // Of a size that does not recur: no free list keeps it.
    let view = client
        .attach(&message(&provider, 100_000, 1).descriptor().unwrap())
        .unwrap();
    drop(half);
    (provider, view)
}

/// A message can be sent once all readers of the record's last message are done.
#[test]
fn first_descriptor_after_last_lease() {
    for max_idle in [0, 1, 8] {
        let (provider, view) = last_record_is_leased(max_idle);
        let next = message(&provider, 5000, 2);
        assert_eq!(
            next.descriptor().unwrap_err(),
            ShareError::TooManyShared { max: 1 }
        );
        drop(view);
        assert!(
            next.descriptor().is_ok(),
            "its record is free, of {max_idle} idle ones"
        );
    }
}

/// The same for a reservation.
#[test]
fn reserve_after_last_lease() {
    for max_idle in [1, 8] {
        let (provider, view) = last_record_is_leased(max_idle);
        assert!(provider.reserve(5000, 1).is_err(), "there is no record");
        drop(view);
        assert!(
            provider.reserve(5000, 1).is_ok(),
            "its record is free, of {max_idle} idle ones"
        );
    }
}

/// A message that can no longer be shared does not make the pool leak later ones.
#[test]
fn failed_descriptor_after_close() {
    let drops: [fn(ShmBytes, ShmBytes, ShmView); 3] = [
        |shared, other, view| drop((view, shared, other)),
        |shared, other, view| drop((shared, view, other)),
        |shared, other, view| drop((other, shared, view)),
    ];
    for (way, drop_all) in drops.into_iter().enumerate() {
        let provider = builder().max_shared(1).build().unwrap();
        let client = Client::new();
        let id = provider.id().to_string();
        let shared = message(&provider, 1000, 1);
        let other = message(&provider, 1000, 2);
        let descriptor = shared.descriptor().unwrap();
        let view = client.attach(&descriptor).unwrap();
        drop(provider);
        for _ in 0..100 {
            assert_eq!(
                other.descriptor().unwrap_err(),
                ShareError::TooManyShared { max: 1 }
            );
        }
        assert_eq!(shared.descriptor().unwrap(), descriptor, "it is as it was");
        drop_all(shared, other, view);
        assert_eq!(
            files(&id),
            NONE,
            "left after the last handle, in order {way}"
        );
    }
}

/// A reservation does not hold the memory that must be evicted for it.
#[test]
fn reserve_evicts_larger() {
    const LARGER: usize = 1_200_000;
    let arena = 8 * LARGER.next_multiple_of(32 << 10);
    let builder = builder()
        .max_bytes(16 * MIB)
        .tuning(Tuning::new().arena_size(arena).idle_window(0))
        .max_idle_per_class(16);
    let provider = builder.build().unwrap();
    burst(&provider, LARGER, 8);
    let stats = provider.stats();
    assert!(
        stats.bytes_mapped < 16 * MIB,
        "the pool can grow: {stats:?}"
    );
    let _reservation = provider
        .reserve(MIB, 12)
        .expect("eight idle chunks make room");
}

/// A program need not trim before it reserves.
#[test]
fn reserve_needs_no_trim() {
    const CAP: usize = 4 * MIB;
    let mut random = Random(11);
    let mut refused = 0;
    for _ in 0..300 {
        let builder = builder()
            .max_bytes(CAP)
            .tuning(Tuning::new().arena_size(64 << 10).idle_window(0))
            .max_idle_per_class(64);
        let provider = builder.build().unwrap();
        let mut held = Vec::new();
        for _ in 0..random.below(60) {
            let most = [3000, 100_000, 500_000][random.below(3)];
            let len = 1000 + random.below(most);
            held.extend(provider.alloc(len).ok());
            if random.below(3) == 0 {
                held.swap_remove(random.below(held.len()));
            }
        }
        held.retain(|_| random.below(8) == 0);
        let len = 1000 + random.below(400_000);
        let count = 1 + random.below(12);
        if provider.reserve(len, count).is_err() {
            refused += 1;
            provider.trim();
            let again = provider.reserve(len, count);
            assert!(
                again.is_err(),
                "{count} of {len} bytes fit after a trim: {:?}",
                provider.stats()
            );
        }
    }
    assert!(refused > 0, "nothing was refused");
}

// ---- idle windows and `trim_to` -----------------------------------------------------------------

const WINDOW: u64 = 64;

fn provider(max_idle: usize) -> Provider {
    builder()
        .max_bytes(256 << 20)
        .max_idle_per_class(max_idle)
        .tuning(Tuning::new().idle_window(WINDOW))
        .build()
        .unwrap()
}

/// Returns the statistics of the class of messages of `len` bytes.
fn class(provider: &Provider, len: usize) -> ClassStats {
    provider
        .stats()
        .classes
        .into_iter()
        .find(|class| class.size >= len)
        .unwrap()
}

/// Uses one small chunk until so many windows have ended, or one fewer.
fn pass(provider: &Provider, windows: u64) {
    for _ in 0..windows {
        drop(provider.alloc(48).unwrap());
        let chunks = chunks(&provider.stats());
        for _ in 1..WINDOW.max(128 * chunks as u64) {
            drop(provider.alloc(48).unwrap());
        }
    }
}

#[test]
fn burst_is_returned() {
    let provider = provider(8);
    burst(&provider, 6 << 20, 32);
    let peak = provider.stats().bytes_held;
    assert!(peak >= 32 * (6 << 20));
    // It is released 1 MiB at a time, at every 64th allocation.
    for _ in 0..400 * WINDOW {
        drop(provider.alloc(48).unwrap());
    }
    let left = provider.stats().bytes_held;
    assert!(left < 1 << 20, "{left} bytes of {peak} are still held");
    burst(&provider, 6 << 20, 32);
    assert!(
        provider.stats().bytes_held >= 32 * (6 << 20),
        "and it can be had again"
    );
}

#[test]
fn no_window() {
    let provider = builder()
        .max_bytes(64 << 20)
        .tuning(Tuning::new().idle_window(0))
        .build()
        .unwrap();
    burst(&provider, 6 << 20, 8);
    let held = provider.stats().bytes_held;
    pass(&provider, 64);
    assert!(provider.stats().bytes_held >= held);
}

#[test]
fn once_per_window_is_kept() {
    let provider = provider(8);
    for _ in 0..8 {
        burst(&provider, 6 << 20, 3);
        pass(&provider, 1);
    }
    assert_eq!(
        class(&provider, 6 << 20).misses,
        3,
        "made once, however many windows passed"
    );
    pass(&provider, 4);
    assert_eq!(
        class(&provider, 6 << 20).chunks,
        0,
        "and gone once nobody needs it"
    );
}

/// Each burst needs all of its chunks, and its period coincides with that of the eviction.
#[test]
fn recurring_bursts() {
    for count in [2, 4, 5, 16, 31] {
        let provider = provider(32);
        burst(&provider, 4096, count);
        for _ in 0..100 * WINDOW as usize / count {
            burst(&provider, 4096, count);
        }
        assert_eq!(
            class(&provider, 4096).misses,
            count as u64,
            "bursts of {count}"
        );
    }
}

/// The idle queue hands out each chunk in turn, so each one is used, but fewer are needed.
#[test]
fn size_in_use() {
    let provider = provider(32);
    let client = Client::new();
    let publish = |messages: usize| {
        let mut shared = Vec::new();
        for _ in 0..messages {
            let message = provider.alloc(1 << 20).unwrap().freeze();
            let view = client.attach(&message.descriptor().unwrap()).unwrap();
            shared.push((view, message)); // dropped in this order
        }
        drop(shared);
    };
    publish(32);
    let chunks = || class(&provider, 1 << 20).chunks;
    assert_eq!(chunks(), 32);
    for _ in 0..200 * WINDOW {
        publish(2);
    }
    assert!(
        (2..=8).contains(&chunks()),
        "{} chunks are kept for two messages at a time",
        chunks()
    );
    let misses = class(&provider, 1 << 20).misses;
    for _ in 0..200 * WINDOW {
        publish(2);
    }
    assert_eq!(
        class(&provider, 1 << 20).misses,
        misses,
        "no chunk comes and goes"
    );
}

#[test]
fn what_is_reserved_stays() {
    let provider = provider(8);
    let reservation = provider.reserve(6 << 20, 4).unwrap();
    burst(&provider, 6 << 20, 8);
    pass(&provider, 8);
    assert_eq!(class(&provider, 6 << 20).chunks, 4);
    let held = provider.stats().bytes_held;
    assert!(held < 5 * (6 << 20), "{held}");
    drop(reservation);
    pass(&provider, 12);
    assert!(provider.stats().bytes_held < 1 << 20);
}

#[test]
fn trim_to() {
    let provider = builder()
        .max_bytes(64 << 20)
        .tuning(Tuning::new().idle_window(0))
        .build()
        .unwrap();
    burst(&provider, 1 << 20, 8);
    burst(&provider, 64 << 10, 8);
    let held = provider.stats().bytes_held;
    assert_eq!(provider.trim_to(held), 0);
    let target = held - (2 << 20) - (100 << 10);
    let given = provider.trim_to(target);
    let now = provider.stats();
    assert!(
        now.bytes_held <= target && now.bytes_held + given == held,
        "{given} of {held}: {now:?}"
    );
    assert!(
        now.bytes_held + (1 << 20) > target,
        "one chunk too many at most: {now:?}"
    );
    let in_use = provider.alloc(1 << 20).unwrap();
    provider.trim_to(0);
    let left = provider.stats().bytes_held;
    assert!(
        ((1 << 20)..(1 << 20) + (64 << 10)).contains(&left),
        "what is in use stays: {left}"
    );
    drop(in_use);
}

#[test]
fn window_out_of_range() {
    let error = Provider::builder()
        .tuning(Tuning::new().idle_window(1 << 40))
        .build()
        .unwrap_err();
    assert!(error.to_string().contains("idle_window"), "{error}");
}

/// It evicts what was idle when it was called, not what others release meanwhile.
#[test]
fn trim_to_returns_beside_busy_threads() {
    let provider = builder().max_bytes(64 * MIB).build().unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    drop(provider.alloc(MIB).unwrap());
                }
            });
        }
        // Each of these was made because a trim had evicted the one before.
        while provider.counters().misses < 200 {
            provider.trim_to(0);
        }
        is_over.store(true, Ordering::Relaxed);
    });
}
