//! At the cap, idle memory makes room for new messages and memory in use does not. A refusal
//! reports the distribution of the memory.

use crate::fixtures::{
    address, alloc_many, attach_all, builder, class_of, files, fill, holds, idle, keep_every_other,
    message, write, Random, Waiting,
};
use crossbeam_queue::ArrayQueue;
use parking_lot::Mutex;
use shm_pool::{
    AllocError, BuildError, Client, PeerId, Provider, ProviderBuilder, ShareError, ShmBytes,
    ShmBytesMut, Tuning,
};
use shm_pool_support::machine::page_size;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::thread;

const CAP: usize = 1 << 20;
const QUARTER: usize = CAP / 4;
const MIB: usize = 1 << 20;

fn capped() -> Provider {
    builder().max_bytes(CAP).build().unwrap()
}

/// The numbers of a refusal: (requested, cap, in use, idle, leased).
fn refusal(provider: &Provider, len: usize) -> (usize, usize, usize, usize, usize) {
    let error = provider.alloc(len).unwrap_err();
    assert!(error.is_exhausted());
    let AllocError::Exhausted {
        len,
        max_bytes,
        in_use,
        idle,
        leased,
    } = error
    else {
        panic!("{error}")
    };
    (len, max_bytes, in_use, idle, leased)
}

#[test]
fn fills_cap() {
    let provider = capped();
    let live = fill(&provider, QUARTER);
    assert_eq!(live.len(), 4, "memory under the cap is refused");
    let stats = provider.stats();
    assert_eq!(
        (stats.bytes_held, stats.peak_bytes_held, stats.max_bytes),
        (CAP, CAP, CAP)
    );
    let files = files(&provider.id().to_string());
    assert_eq!(
        files.len(),
        stats.segments + 1,
        "a refused allocation leaves a file: {files:?}"
    );
    drop(live);
    assert_eq!(provider.alloc(CAP).unwrap().len(), CAP);
    assert_eq!(
        provider.stats().peak_bytes_held,
        CAP,
        "the cap was exceeded on the way"
    );
}

#[test]
fn evicts_other_classes() {
    let provider = capped();
    for (idle, asked) in [
        (QUARTER, CAP),
        (CAP, QUARTER),
        (64, CAP),
        (4096, CAP),
        (5120, 64),
        (CAP, 64),
        (64, 5120),
    ] {
        drop(fill(&provider, idle));
        let buffer = provider
            .alloc(asked)
            .unwrap_or_else(|error| panic!("{asked} after idle {idle}: {error}"));
        assert_eq!(buffer.len(), asked);
    }
}

#[test]
fn ended_leases_make_room() {
    for len in [64, 4096, QUARTER] {
        let provider = capped();
        let client = Client::new();
        let mut live: Vec<ShmBytes> = fill(&provider, len)
            .into_iter()
            .map(ShmBytesMut::freeze)
            .collect();
        // No more than there are records.
        live.truncate(60);
        let views = attach_all(&client, &live);
        let count = live.len();
        drop(live);
        let (asked, cap, in_use, idle, leased) = refusal(&provider, CAP);
        assert_eq!((asked, cap, in_use), (CAP, CAP, 0));
        assert_eq!(leased, count * len, "leased bytes are miscounted");
        assert_eq!(idle + leased, CAP, "the refusal's numbers do not add up");
        drop(views);
        assert!(
            provider.alloc(CAP).is_ok(),
            "{count} chunks of {len} bytes whose leases have ended are kept"
        );
    }
}

#[test]
fn ended_leases_are_reused_first() {
    let provider = capped();
    let client = Client::new();
    let all: Vec<ShmBytes> = fill(&provider, 4096)
        .into_iter()
        .map(ShmBytesMut::freeze)
        .collect();
    let (leased, rest) = all.split_at(60);
    let mut views = attach_all(&client, leased);
    let rest = rest.to_vec();
    drop(all);
    assert!(provider.alloc(4096).unwrap_err().is_exhausted());
    // The chunk shared last is behind all others in its queue.
    drop(views.pop());
    let again = provider.alloc(4096);
    assert!(
        again.is_ok(),
        "a free chunk of the very class is not found behind leased ones"
    );
    drop((rest, views));
}

#[test]
fn exhausted_reports_bytes() {
    let provider = capped();
    let client = Client::new();
    let large = provider.alloc(2 * QUARTER).unwrap();
    let small = provider.alloc(100).unwrap();
    let lent = message(&provider, QUARTER, 1);
    let view = client.attach(&lent.descriptor().unwrap()).unwrap();
    drop(lent);
    drop(provider.alloc(CAP / 8).unwrap());
    let in_use = 2 * QUARTER + small.capacity();
    let expected = (QUARTER, CAP, in_use, QUARTER - small.capacity(), QUARTER);
    assert_eq!(
        refusal(&provider, QUARTER),
        expected,
        "(asked, cap, in use, idle, leased)"
    );
    let stats = provider.stats();
    assert_eq!((stats.bytes_in_use, stats.bytes_leased), (in_use, QUARTER));
    assert!(
        holds(&view, 1) && large.len() == 2 * QUARTER,
        "a refused allocation touched something"
    );
    drop(view);
    assert!(
        provider.alloc(QUARTER).is_ok(),
        "the same call does not work after a view was dropped"
    );
}

#[test]
fn sizes_agree() {
    // Neither length is the size of a class.
    for len in [5000, 70_000] {
        let provider = capped();
        let live = fill(&provider, len);
        let capacity = live[0].capacity();
        let in_use = live.len() * capacity;
        assert_eq!(
            provider.stats().bytes_in_use,
            in_use,
            "statistics and handles disagree"
        );
        assert_eq!(
            refusal(&provider, len),
            (capacity, CAP, in_use, CAP - in_use, 0)
        );
    }
}

#[test]
fn alloc_after_drop() {
    for len in [64, 4096, 5000, QUARTER, CAP] {
        let provider = capped();
        let mut live = fill(&provider, len);
        for _ in 0..10 {
            assert!(provider.alloc(len).unwrap_err().is_exhausted());
            live.pop();
            match provider.alloc(len) {
                Ok(buffer) => live.push(buffer),
                Err(error) => panic!("{len} bytes were just dropped: {error}"),
            }
        }
    }
}

#[test]
fn small_chunks_make_room_for_large() {
    let provider = capped();
    let mut live = fill(&provider, 64);
    assert_eq!(
        live.len(),
        CAP / 64,
        "memory is lost between chunks of 64 bytes"
    );
    assert_eq!(
        (provider.stats().bytes_held, provider.stats().bytes_in_use),
        (CAP, CAP)
    );
    // One live chunk is enough to fragment the free memory.
    let last = live.pop();
    drop(live);
    assert!(
        provider.alloc(CAP).unwrap_err().is_exhausted(),
        "memory was taken from under a live chunk"
    );
    drop(last);
    assert_eq!(provider.alloc(CAP).unwrap().len(), CAP);
    assert_eq!(provider.stats().segments, 1);
}

/// A frame that cannot fit evicts no small chunks.
#[test]
fn hopeless_request_evicts_nothing() {
    const FRAME: usize = 6_200_000;
    let provider = builder()
        .max_bytes(64 << 20)
        .max_idle_per_class(64)
        .build()
        .unwrap();
    drop(provider.reserve(48, 64).unwrap());
    let reserved = provider.stats().misses();
    let frames = fill(&provider, FRAME);
    assert_eq!(frames.len(), 10, "as many as fit 64 MiB");
    let misses = provider.stats().misses();
    assert_eq!(misses - reserved, 10);
    for _ in 0..10 {
        assert!(provider.alloc(FRAME).unwrap_err().is_exhausted());
    }
    let small = alloc_many(&provider, 48, 64);
    assert_eq!(
        provider.stats().misses(),
        misses,
        "reserved chunks were destroyed for what did not fit"
    );
    drop((small, frames));
}

/// A publisher of small messages keeps its chunks despite other traffic.
#[test]
fn busy_class_stays_at_cap() {
    let provider = capped();
    let mut live = fill(&provider, QUARTER);
    live.pop();
    for lines in 1..40 {
        drop(provider.alloc(1024).unwrap());
        drop(provider.alloc(2048 + lines * 64).unwrap());
    }
    // The first is a one-off; only the second shows that the class recurs.
    let class = class_of(&provider.stats(), 1024).expect("it is in use");
    assert_eq!(
        class.misses, 2,
        "a chunk that is used again and again was destroyed for others"
    );
    assert!(provider.stats().segments_created <= 4);
}

/// A provider that cannot grow, with half of its memory free.
fn at_the_cap() -> (Provider, Vec<ShmBytesMut>) {
    let provider = capped();
    let mut live = fill(&provider, QUARTER);
    live.truncate(2);
    (provider, live)
}

fn chunks(provider: &Provider) -> usize {
    crate::fixtures::chunks(&provider.stats())
}

/// Chunks kept for messages of many sizes would block later ones.
#[test]
fn one_off_is_exact() {
    for len in [1_usize, 2100, 131_073, 200_000] {
        let exact = len.next_multiple_of(if len < 32 * page_size() {
            64
        } else {
            page_size()
        });
        let (provider, live) = at_the_cap();
        let before = provider.stats();
        let buffer = provider.alloc(len).unwrap();
        assert_eq!(
            buffer.capacity(),
            exact,
            "{len} bytes were rounded up to a class"
        );
        assert_eq!(provider.stats().bytes_in_use, before.bytes_in_use + exact);
        let idle = chunks(&provider);
        drop(buffer);
        assert_eq!(
            chunks(&provider),
            idle - 1,
            "a chunk of {len} bytes was kept"
        );
        assert_eq!(provider.stats().bytes_in_use, before.bytes_in_use);
        drop(live);
    }
}

/// A publisher of messages of a few sizes returns to the warm path.
#[test]
fn recurring_size_is_made_once() {
    let provider = builder()
        .max_bytes(16 * MIB)
        .tuning(Tuning::new().arena_size(16 * MIB))
        .build()
        .unwrap();
    let large = [
        200_000,
        300_000,
        400_000,
        500_000,
        600_000,
        700_000,
        MIB,
        2 * MIB,
    ];
    let sizes = [
        [100, 2100, 5000, 9000, 20_000, 30_000, 40_000, 70_000],
        large,
    ]
    .concat();
    let round = || {
        for &len in &sizes {
            drop(provider.alloc(len).unwrap());
        }
    };
    for _ in 0..2 {
        round();
    }
    let misses = provider.stats().misses();
    for _ in 0..100 {
        round();
    }
    assert_eq!(
        provider.stats().misses(),
        misses,
        "a chunk that recurs was not kept"
    );
}

/// Long messages of two or three lengths in turn are warm, also once there are chunks for more than half
/// of the cap.
#[test]
fn recurring_long_sizes_are_warm() {
    let lengths = [[18, 19].as_slice(), &[11, 12, 13], &[16, 17, 18], &[24, 30]];
    for lengths in lengths {
        let provider = builder().max_bytes(64 * MIB).build().unwrap();
        let round = || {
            for &len in lengths {
                drop(provider.alloc(len * MIB).unwrap());
            }
        };
        for _ in 0..8 {
            round();
        }
        let misses = provider.stats().misses();
        for _ in 0..100 {
            round();
        }
        assert_eq!(provider.stats().misses(), misses, "{lengths:?} MiB");
    }
}

/// A message is not refused because rounding up to its class would exceed the gap.
#[test]
fn exact_fit_at_cap() {
    let provider = builder()
        .max_bytes(16 * MIB)
        .tuning(Tuning::new().arena_size(16 * MIB))
        .build()
        .unwrap();
    let gap = 1_000_001_usize.next_multiple_of(page_size());
    // The second is a one-off.
    let _live = [
        provider.alloc(59 * MIB / 4).unwrap(),
        provider.alloc(5 * MIB / 4 - gap).unwrap(),
    ];
    for _ in 0..3 {
        let buffer = provider
            .alloc(1_000_001)
            .expect("there is room for it, if not for its class");
        assert_eq!(buffer.capacity(), gap);
    }
}

/// A shared one-off is not kept after its drop, given `max_idle_per_class` 0.
#[test]
fn no_idle_chunks_at_cap() {
    let provider = builder()
        .max_bytes(16 * MIB)
        .tuning(Tuning::new().arena_size(16 * MIB))
        .max_idle_per_class(0)
        .build()
        .unwrap();
    let first = provider.alloc(MIB).unwrap();
    let message = message(&provider, 3 * MIB, 1);
    message.descriptor().unwrap();
    drop((message, first));
    assert_eq!(
        (provider.stats().bytes_held, provider.stats().segments),
        (0, 0)
    );
}

/// A descriptor in flight does not become stale while its memory is not needed.
#[test]
fn dropped_one_off_stays_open() {
    let (provider, _live) = at_the_cap();
    let client = Client::new();
    for (len, next) in [(2100, 3000), (150_000, 170_000)] {
        let message = message(&provider, len, 7);
        let descriptor = message.descriptor().unwrap();
        drop(message);
        assert_eq!(provider.stats().bytes_leased, 0);
        let view = client
            .attach(&descriptor)
            .expect("dropped with its message");
        assert!(view.len() == len && holds(&view, 7));
        // While it is read, it is not overwritten; once released, it makes room.
        let mut others = Vec::new();
        for more in 0..10 {
            others.push(provider.alloc(next + more * 4096));
        }
        assert!(holds(&view, 7), "overwritten under a reader");
        drop((others, view));
        drop(fill(&provider, next));
        assert!(
            client.attach(&descriptor).is_err(),
            "its memory was given to others and it is still open"
        );
    }
}

/// Old segments make way for longer ones, only a few times.
#[test]
fn growing_messages_make_few_segments() {
    let provider = builder().max_bytes(64 * MIB).build().unwrap();
    drop(fill(&provider, 100_000));
    for mib in 1..=64 {
        let len = mib * MIB;
        match provider.alloc(len) {
            Ok(buffer) => assert_eq!(buffer.len(), len),
            Err(error) => panic!("{len}: {error}"),
        }
        drop(provider.alloc(100).unwrap());
    }
    let stats = provider.stats();
    assert!(
        stats.segments_created <= 16,
        "{} segments were made",
        stats.segments_created
    );
    assert_eq!((stats.segments, stats.bytes_mapped), (1, 64 * MIB));
}

#[test]
fn failed_reserve_is_undone() {
    let provider = capped();
    let _kept = provider.reserve(100, 3).unwrap();
    let before = provider.stats();
    assert!(provider.reserve(QUARTER, 5).unwrap_err().is_exhausted());
    let after = provider.stats();
    assert_eq!(
        idle(&after),
        idle(&before),
        "chunks that nobody has reserved are kept"
    );
    assert!(provider.reserve(100, 5).is_ok(), "the class is as it was");
}

/// A robot's telemetry continues when its camera sends more than planned.
#[test]
fn reserved_chunks_are_not_evicted() {
    const FRAME: usize = 6_000_000;
    let provider = builder()
        .max_bytes(60 << 20)
        .max_idle_per_class(64)
        .max_shared(256)
        .build()
        .unwrap();
    let small = provider.reserve(48, 64).unwrap();
    let frames = provider.reserve(FRAME, 9).unwrap();
    let misses = provider.stats().misses();
    let held = alloc_many(&provider, FRAME, 9);
    assert_eq!(provider.stats().misses(), misses, "nine were there");
    let tenth = provider.alloc(FRAME).unwrap();
    let misses = misses + 1;
    for in_use in [0, 1, 64] {
        let _some = alloc_many(&provider, 48, in_use);
        for _ in 0..10 {
            assert!(provider.alloc(FRAME).unwrap_err().is_exhausted());
        }
        assert!(provider.alloc(20 << 20).unwrap_err().is_exhausted());
    }
    provider.trim();
    let telemetry = alloc_many(&provider, 48, 64);
    assert_eq!(
        provider.stats().misses(),
        misses,
        "a reserved chunk was made anew"
    );
    drop(telemetry);
    // Once the reservation is dropped, its memory serves any request.
    drop((small, held, frames, tenth));
    provider.trim();
    assert_eq!(provider.stats().bytes_held, 0);
}

/// A slightly shorter message does not take memory reserved for another length.
#[test]
fn reserved_chunks_serve_their_class() {
    let provider = builder().max_idle_per_class(8).build().unwrap();
    let reserved = provider.reserve(100_000, 4).unwrap();
    let others = alloc_many(&provider, 95_000, 8);
    let misses = provider.stats().misses();
    let own = alloc_many(&provider, 100_000, 4);
    assert_eq!(provider.stats().misses(), misses);
    drop((others, own, reserved));
}

#[test]
fn reservations_add_up() {
    let provider = builder().max_idle_per_class(8).build().unwrap();
    let first = provider.reserve(1000, 3).unwrap();
    let second = provider.reserve(1000, 5).unwrap();
    let idle = || idle(&provider.stats());
    assert_eq!(idle(), 8);
    assert!(provider.reserve(1000, 1).is_err(), "no more are kept idle");
    provider.trim();
    assert_eq!(idle(), 8);
    drop(first);
    provider.trim();
    assert_eq!(idle(), 5);
    second.keep();
    provider.trim();
    assert_eq!(idle(), 5, "kept for the provider's life");
}

/// The first message of a real-time publisher succeeds after everything was reserved for it.
#[test]
fn reserved_chunks_can_be_shared() {
    let provider = builder()
        .max_shared(4)
        .max_idle_per_class(8)
        .build()
        .unwrap();
    let error = provider.reserve(100, 5).unwrap_err();
    assert!(
        matches!(
            error,
            AllocError::ReserveShare(ShareError::TooManyShared { max: 4 })
        ),
        "{error}"
    );
    let _reserved = provider.reserve(100, 4).unwrap();
    let messages: Vec<_> = (0..4)
        .map(|_| provider.alloc(100).unwrap().freeze())
        .collect();
    assert!(messages.iter().all(|message| message.descriptor().is_ok()));
    // The records stay reserved, too.
    drop(messages);
    assert!(provider.alloc(5000).unwrap().freeze().descriptor().is_err());
}

#[test]
fn smallest_cap() {
    for max_bytes in [1, 42, 4096, 10_240, 64 << 10] {
        let provider = builder().max_bytes(max_bytes).build().unwrap();
        for len in [0, 64, 4096, 5000, 64 << 10] {
            let live = fill(&provider, len.min(max_bytes));
            assert!(
                !live.is_empty(),
                "no buffer of {len} bytes under {max_bytes}"
            );
        }
    }
}

/// Receivers map or lock whole segments, so a user may want short ones.
#[test]
fn arena_size() {
    let first = |builder: ProviderBuilder, len: usize| {
        let provider = builder.build().unwrap();
        let _buffer = provider.alloc(len).unwrap();
        provider.stats().bytes_mapped
    };
    let of_a_gigabyte = || builder().max_bytes(1 << 30).max_shared(1);
    assert_eq!(first(of_a_gigabyte(), 1), 32 * MIB, "a 32nd by default");
    assert_eq!(first(of_a_gigabyte(), 8 * MIB), 64 * MIB, "eight messages");
    assert_eq!(
        first(of_a_gigabyte(), 33 * MIB),
        1 << 30,
        "32 messages of more than a 32nd, if the cap allowed it"
    );
    assert_eq!(
        first(
            of_a_gigabyte().tuning(Tuning::new().arena_size(64 << 10)),
            1
        ),
        64 << 10
    );
    assert_eq!(
        first(
            of_a_gigabyte().tuning(Tuning::new().arena_size(100 << 20)),
            1
        ),
        100 << 20
    );
    assert_eq!(
        first(
            of_a_gigabyte().tuning(Tuning::new().arena_size(64 << 10)),
            4 * MIB
        ),
        4 * MIB,
        "no shorter than the message"
    );
    assert_eq!(
        first(of_a_gigabyte().max_idle_per_class(0), MIB),
        MIB,
        "it goes with its message"
    );
    assert_eq!(
        first(
            of_a_gigabyte()
                .max_idle_per_class(0)
                .tuning(Tuning::new().arena_size(2 * MIB)),
            MIB
        ),
        2 * MIB
    );
}

/// Idle messages of one size, in every second place: their total would suffice, but is fragmented.
#[test]
fn unservable_request_evicts_nothing() {
    let provider = builder()
        .max_bytes(16 * MIB)
        .max_idle_per_class(8)
        .tuning(Tuning::new().idle_window(0))
        .build()
        .unwrap();
    let held = keep_every_other(fill(&provider, MIB));
    let before = provider.stats();
    assert_eq!(idle(&before), 8);
    assert!(provider.alloc(4 * MIB).unwrap_err().is_exhausted());
    assert_eq!(provider.stats(), before);
    for _ in 0..100 {
        assert!(provider.alloc(4 * MIB).unwrap_err().is_exhausted());
    }
    let after = provider.stats();
    let idle = idle(&after);
    assert!(
        idle >= 6,
        "{idle} of 8: more went than the place for one such message"
    );
    assert_eq!(after.bytes_held, before.bytes_held);
    drop(held);
    provider.alloc(4 * MIB).unwrap();
}

/// Fails often enough for the pool to remember the refusal.
fn poll(provider: &Provider, len: usize) {
    for _ in 0..32 {
        assert!(provider.alloc(len).unwrap_err().is_exhausted());
    }
}

/// If every chunk is as long as the refused message, whichever is dropped serves it: none is given up.
#[test]
fn refusals_of_one_size_retire_nothing() {
    let provider = builder()
        .max_bytes(CAP)
        .max_idle_per_class(CAP / 4096)
        .build()
        .unwrap();
    let live = fill(&provider, 4096);
    poll(&provider, 4096);
    let count = live.len();
    let misses = provider.stats().misses();
    drop(live);
    assert_eq!(fill(&provider, 4096).len(), count);
    assert_eq!(provider.stats().misses(), misses, "a chunk was destroyed");
}

/// A chunk between two gaps makes way, although it has the length that is refused: together they have
/// room for one more.
#[test]
fn refusals_of_one_size_merge_gaps() {
    let tuning = Tuning::new().arena_size(10 * MIB).idle_window(0);
    let provider = builder()
        .max_bytes(10 * MIB)
        .tuning(tuning)
        .build()
        .unwrap();
    let first = provider.alloc(3 * MIB).unwrap();
    // A length that recurs is kept.
    drop(provider.alloc(4 * MIB).unwrap());
    let second = provider.alloc(4 * MIB).unwrap();
    drop(first);
    provider.trim();
    poll(&provider, 4 * MIB);
    drop(second);
    assert_eq!(fill(&provider, 4 * MIB).len(), 2);
}

/// A publisher that retries is not refused once memory has been released.
#[test]
fn alloc_after_refusals() {
    let provider = builder()
        .max_bytes(4 * MIB)
        .tuning(Tuning::new().idle_window(0))
        .build()
        .unwrap();
    let reservation = provider.reserve(48, 1).unwrap();
    let client = Client::new();
    let mut held = fill(&provider, MIB);
    assert_eq!(held.len(), 3);
    for round in 0..50 {
        let freed = held.pop().unwrap();
        poll(&provider, MIB);
        // A buffer is dropped on this thread or another one.
        if round % 2 == 0 {
            drop(freed);
        } else {
            std::thread::scope(|scope| drop(scope.spawn(move || drop(freed)).join()));
        }
        let buffer = provider
            .alloc(MIB)
            .unwrap_or_else(|error| panic!("round {round}: {error}"));
        // A lease ends.
        let message = buffer.freeze();
        let view = client.attach(&message.descriptor().unwrap()).unwrap();
        drop(message);
        poll(&provider, MIB);
        drop(view);
        match provider.alloc(MIB) {
            Ok(buffer) => held.push(buffer),
            Err(error) => panic!("round {round}, leased: {error}"),
        }
        // Memory reserved for another size is available despite refusals, and again after its drop.
        poll(&provider, 48 + MIB);
        let small = provider.alloc(48).unwrap();
        poll(&provider, 48 + MIB);
        drop(small);
        drop(provider.alloc(48).unwrap());
    }
    drop(reservation);
}

/// A chunk that stays in the region of a refused request does not keep it from a gap beside it.
#[test]
fn alloc_beside_its_region() {
    const PIECE: usize = MIB / 16;
    const COUNT: usize = 24;
    const WANTED: usize = 16;
    let cap = COUNT * PIECE;
    let pieces_before_the_gap = 0..COUNT - WANTED;
    let pieces_behind_the_gap = WANTED..COUNT;
    for kept in pieces_before_the_gap.chain(pieces_behind_the_gap) {
        let provider = builder()
            .max_bytes(cap)
            .tuning(Tuning::new().arena_size(cap))
            .build()
            .unwrap();
        let mut held = fill(&provider, PIECE);
        assert_eq!(held.len(), COUNT);
        poll(&provider, WANTED * PIECE);
        held.sort_unstable_by_key(|buffer| buffer.as_ptr());
        let _kept = held.swap_remove(kept);
        drop(held);
        provider
            .alloc(WANTED * PIECE)
            .unwrap_or_else(|error| panic!("piece {kept} was kept: {error}"));
    }
}

/// The same with other threads that allocate and drop at the cap.
#[test]
fn refusals_of_several_threads() {
    let provider = builder()
        .max_bytes(4 * MIB)
        .tuning(Tuning::new().idle_window(0))
        .build()
        .unwrap();
    for round in 0..100 {
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut held = Vec::new();
                    for _ in 0..200 {
                        match provider.alloc(MIB) {
                            Ok(buffer) => held.push(buffer),
                            Err(_) => drop(held.pop()),
                        }
                    }
                });
            }
        });
        assert_eq!(fill(&provider, MIB).len(), 4, "round {round}");
    }
}

// ---- threads ------------------------------------------------------------------------------------
// Threads allocate, share, pass on and drop each other's buffers. No chunk has two owners, no message
// shows another's bytes, and no memory is leaked.

const THREADS: u64 = 4;

/// The addresses of all chunks that are held.
type Hands = Arc<Mutex<HashSet<usize>>>;

/// A chunk's entry in the list of those held. Removed on drop.
struct Claim {
    hands: Hands,
    address: usize,
}

impl Claim {
    fn new(hands: &Hands, address: usize) -> Arc<Self> {
        assert!(hands.lock().insert(address), "a chunk is in two hands");
        Arc::new(Self {
            hands: hands.clone(),
            address,
        })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.hands.lock().remove(&self.address);
    }
}

/// A handle that shows a message. The claim is the first field: it must be dropped before the chunk
/// can be reused.
struct Parcel {
    _claim: Arc<Claim>,
    stamp: u64,
    content: Box<dyn AsRef<[u8]> + Send>,
}

impl Parcel {
    /// Checks the bytes, and drops them.
    fn open(self) {
        assert!(
            holds((*self.content).as_ref(), self.stamp),
            "another message's bytes"
        );
    }
}

/// The state shared by all threads of a test.
struct Market {
    provider: Provider,
    client: Client,
    hands: Hands,
    queue: ArrayQueue<Parcel>,
    refused: AtomicU64,
}

impl Market {
    fn new(provider: Provider) -> Self {
        let client = Client::new();
        let hands = Hands::default();
        Self {
            provider,
            client,
            hands,
            queue: ArrayQueue::new(64),
            refused: AtomicU64::new(0),
        }
    }

    /// Puts a parcel on the queue, and opens the one that it displaces. The claim is moved along,
    /// because here it could outlive the chunk if another thread is faster.
    fn pass_on(&self, claim: Arc<Claim>, stamp: u64, content: impl AsRef<[u8]> + Send + 'static) {
        let parcel = Parcel {
            _claim: claim,
            stamp,
            content: Box::new(content),
        };
        if let Some(displaced) = self.queue.force_push(parcel) {
            displaced.open();
        }
    }

    /// Makes, shares and passes on `rounds` messages of up to `max` bytes.
    fn trade(&self, thread: u64, rounds: u64, max: usize) {
        let mut random = Random(thread);
        let own = Client::new();
        let peer = own.connect(self.provider.id()).unwrap();
        for round in 0..rounds {
            let stamp = thread << 32 | round;
            let buffer = match self.provider.alloc(random.below(max + 1)) {
                Ok(buffer) => buffer,
                Err(error) => {
                    assert!(error.is_exhausted(), "{error}");
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    if let Some(parcel) = self.queue.pop() {
                        parcel.open();
                    }
                    continue;
                }
            };
            self.fill_and_send(buffer, stamp, random.below(6), &own, peer);
        }
    }

    fn fill_and_send(
        &self,
        mut buffer: ShmBytesMut,
        stamp: u64,
        way: usize,
        own: &Client,
        peer: PeerId,
    ) {
        let claim = Claim::new(&self.hands, address(&buffer));
        write(&mut buffer, stamp);
        if way == 0 {
            return self.pass_on(claim, stamp, buffer);
        }
        let message = buffer.freeze();
        match way {
            1 => self.pass_on(claim.clone(), stamp, message.clone()),
            2 => {
                let view = self.client.attach(&message.descriptor().unwrap()).unwrap();
                self.pass_on(claim.clone(), stamp, view);
            }
            3 => {
                let view = own.attach(&message.grant(peer).unwrap()).unwrap();
                self.pass_on(claim.clone(), stamp, view.try_clone().unwrap());
                self.pass_on(claim.clone(), stamp, view);
            }
            4 => {
                let granted = message.grant(peer).unwrap();
                drop(message);
                let view = own.attach(&granted).expect("a granted message waits");
                return self.pass_on(claim, stamp, view);
            }
            _ => {
                message.descriptor().unwrap();
                let mut buffer = message.try_into_mut().expect("nobody else has it");
                write(&mut buffer, !stamp);
                return self.pass_on(claim, !stamp, buffer);
            }
        }
        self.pass_on(claim, stamp, message);
    }

    /// Empties the queue, and fails unless all memory is returned.
    fn clear(&self) {
        while let Some(parcel) = self.queue.pop() {
            parcel.open();
        }
        assert!(self.hands.lock().is_empty());
        let stats = self.provider.stats();
        assert_eq!(
            (stats.bytes_in_use, stats.bytes_leased),
            (0, 0),
            "chunks are lost"
        );
        self.provider.trim();
        assert_eq!(self.provider.stats().bytes_held, 0, "memory is lost");
    }
}

#[test]
fn exclusive_with_spare_memory() {
    let market = &Market::new(builder().max_shared(1024).build().unwrap());
    thread::scope(|scope| {
        for thread in 1..=THREADS {
            scope.spawn(move || market.trade(thread, 4000, 40_000));
        }
    });
    assert_eq!(
        market.refused.load(Ordering::Relaxed),
        0,
        "refused though the cap is far"
    );
    market.clear();
}

#[test]
fn exclusive_at_cap() {
    let builder = builder()
        .max_shared(1024)
        .max_bytes(512 << 10)
        .tuning(Tuning::new().arena_size(64 << 10))
        .max_idle_per_class(2);
    let market = &Market::new(builder.build().unwrap());
    thread::scope(|scope| {
        let trades: Vec<_> = (1..=THREADS)
            .map(|thread| scope.spawn(move || market.trade(thread, 4000, 40_000)))
            .collect();
        // This thread trims, reserves and reads statistics while the others trade.
        while trades.iter().any(|trade| !trade.is_finished()) {
            market.provider.trim();
            market.client.unmap_unused();
            assert!(
                market.provider.stats().bytes_held <= 512 << 10,
                "the cap is exceeded"
            );
            if let Err(error) = market.provider.reserve(30_000, 2) {
                assert!(error.is_exhausted(), "{error}");
            }
            thread::yield_now();
        }
    });
    assert!(
        market.refused.load(Ordering::Relaxed) > 0,
        "memory was not short"
    );
    market.clear();
}

/// Room for some messages is room for exactly as many, also after a small one has been dropped.
#[test]
fn room_for_frames() {
    for len in [300_000, 1_000_000, 6_000_000] {
        for count in [3, 4, 8] {
            let provider = builder().room_for(len, count).build().unwrap();
            assert_eq!(fill(&provider, len).len(), count, "{len}");

            let provider = builder().room_for(len, count).build().unwrap();
            drop(provider.alloc(100).unwrap());
            assert_eq!(fill(&provider, len).len(), count, "{len} after a small one");
            drop(provider.alloc(len).unwrap());
            assert_eq!(fill(&provider, len).len(), count, "{len} once more");

            // While the small one lives, too.
            let provider = builder().room_for(len, count).build().unwrap();
            let _small = provider.alloc(100).unwrap();
            assert_eq!(
                fill(&provider, len).len(),
                count,
                "{len} beside a small one"
            );

            // Another process's lease does not matter once it has ended.
            let provider = builder().room_for(len, count).build().unwrap();
            let client = Client::new();
            let message = provider.alloc(len / 3).unwrap().freeze();
            let view = client.attach(&message.descriptor().unwrap()).unwrap();
            drop(message);
            drop(view);
            assert_eq!(
                fill(&provider, len).len(),
                count,
                "{len} after a leased one"
            );

            // Nor does any number of other lengths.
            let provider = builder().room_for(len, count).build().unwrap();
            let mut random = Random((len + count) as u64);
            let mut others = Vec::new();
            for _ in 0..200 {
                let least = 64 << random.below(17);
                let other = least + random.below(least);
                if Provider::chunk_size(other) != Provider::chunk_size(len) {
                    others.extend(provider.alloc(other));
                }
                if others.len() > 4 {
                    others.swap_remove(random.below(4));
                }
            }
            drop(others);
            assert_eq!(fill(&provider, len).len(), count, "{len} after any others");
        }
    }
}

/// Room is counted for one segment. What lies between several would be missing.
#[test]
fn room_for_needs_one_segment() {
    let with = |arena_size| {
        let tuning = Tuning::new().arena_size(arena_size);
        builder().room_for(1_000_000, 4).tuning(tuning).build()
    };
    let refused = with(1 << 20).unwrap_err();
    let BuildError::OutOfRange(of) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(of.option(), "arena_size");
    let least = *of.allowed().start();
    assert_eq!(fill(&with(least).unwrap(), 1_000_000).len(), 4);
}

/// Room for messages of any length, small ones in heaps among them.
#[test]
fn room_for_any_length() {
    let lens = (0..24).flat_map(|shift| [1_usize << shift, (1 << shift) + 1, 5 << shift >> 2]);
    for len in lens {
        for count in [1, 2, 7, 100] {
            let provider = builder().room_for(len, count).build().unwrap();
            let mut all = Vec::new();
            for number in 0..count {
                let message = provider.alloc(len);
                match message {
                    Ok(message) => all.push(message),
                    Err(error) => panic!("{number} of {len}: {error}"),
                }
            }
        }
    }
}

/// The calls add up, to each other and to `max_bytes`.
#[test]
fn room_adds_up() {
    let lens = [6_000_000, 1_000_000, 300_000, 50_000, 1_000, 100];
    let mut options = builder().max_bytes(1);
    for len in lens {
        options = options.room_for(len, 4);
    }
    for is_reversed in [false, true] {
        let provider = options.clone().build().unwrap();
        let mut all = Vec::new();
        for number in 0..lens.len() {
            let at = if is_reversed {
                lens.len() - 1 - number
            } else {
                number
            };
            for _ in 0..4 {
                all.push(provider.alloc(lens[at]).unwrap());
            }
        }
    }
    let most = builder().room_for(1, 1).room_for(usize::MAX, usize::MAX);
    let error = most.build().unwrap_err();
    assert!(
        matches!(
            &error,
            BuildError::OutOfRange(of) if of.option() == "max_bytes"
        ),
        "{error}"
    );
}

/// What a message takes of the cap is what it is counted as.
#[test]
fn chunk_size() {
    let provider = builder().build().unwrap();
    let lens = (0..27).flat_map(|shift| [(1_usize << shift) - 1, 1 << shift, (1 << shift) + 1]);
    for len in lens {
        let message = provider.alloc(len).unwrap();
        assert_eq!(
            provider.stats().bytes_in_use,
            Provider::chunk_size(len),
            "{len}"
        );
        drop(message);
    }
    assert_eq!(Provider::chunk_size(0), 64);
    assert!(Provider::chunk_size(usize::MAX) > 1 << 63);
}

/// A request that cannot be served, because a short message stays, is in no other one's way.
#[test]
fn hopeless_request_is_in_no_way() {
    let provider = builder()
        .max_bytes(16 * MIB)
        .tuning(Tuning::new().arena_size(MIB))
        .build()
        .unwrap();
    // Several segments, of which only one short message is in use.
    let many = alloc_many(&provider, MIB, 14);
    let _stays = provider.alloc(60_000).unwrap();
    drop(many);
    let _hopeless = Waiting::begin(provider.request(16 * MIB).wait_async());
    for round in 0..200 {
        // Refused again and again, so that memory is kept for this length.
        assert!(provider.alloc(16 * MIB).is_err());
        if let Err(error) = provider.alloc(12 * MIB) {
            panic!("round {round}: {error}");
        }
        drop(provider.alloc(MIB).unwrap());
    }
}
