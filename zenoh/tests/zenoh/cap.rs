//! At the cap: long messages under short ones, reservations, and memory that is released in time.

use crate::child::{Child, Link};
use crate::support::{alloc, backend, builder, Collecting, CAP, LARGE, SMALL};
use nix::sys::resource::{getrlimit, setrlimit, Resource};
use nix::sys::signal::{raise, Signal};
use shm_pool::AllocError;
use shm_pool_zenoh::{Buffer, BufferPool, PoolBackend};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use zenoh::bytes::ZBytes;
use zenoh::shm::{ShmBuf, ZShmMut};

const MINUTE: Duration = Duration::from_secs(60);

const MIB: usize = 1 << 20;

/// A length of which 24 are in use, of a cap of 4 MiB.
const SHORT: usize = 100_000;
const IN_USE: usize = 24;

/// Longer than any gap between those.
const LONG: usize = 1 << 20;

/// Replaces short messages, one after the other, and asks for a long one each time. Fails if it is
/// not served before each of the short ones has been replaced often.
fn expect_long<T>(mut short: impl FnMut() -> T, mut long: impl FnMut() -> Option<T>) {
    let mut in_use: VecDeque<T> = (0..IN_USE).map(|_| short()).collect();
    let mut random = fastrand::Rng::with_seed(4);
    for _ in 0..10 {
        let steps = (0..50 * IN_USE).take_while(|_| {
            in_use.swap(0, random.usize(..IN_USE));
            in_use.pop_front();
            in_use.push_back(short());
            long().is_none()
        });
        assert!(steps.count() < 50 * IN_USE, "a long message starves");
        // Others than the oldest are in the way of the next one.
        for _ in 0..IN_USE {
            in_use.pop_front();
            in_use.push_back(short());
        }
    }
}

#[test]
fn long_message_under_short_ones() {
    let provider = PoolBackend::builder()
        .max_bytes(4 * MIB)
        .build()
        .unwrap()
        .provider();
    expect_long(
        || alloc::<Collecting>(&provider, SHORT, 1).unwrap(),
        || alloc::<Collecting>(&provider, LONG, 2).ok(),
    );
}

#[test]
fn long_buffer_under_short_ones() {
    for is_sent in [false, true] {
        let pool = BufferPool::new(&PoolBackend::builder().max_bytes(4 * MIB).build().unwrap());
        let message = |buffer: Buffer| {
            if is_sent {
                Ok(ZBytes::from(buffer))
            } else {
                Err(buffer)
            }
        };
        expect_long(
            || message(pool.alloc(SHORT).unwrap()),
            || pool.alloc(LONG).ok().map(message),
        );
    }
}

/// Allocates `count` messages while a reader keeps the newest that fit in a share of the cap. Returns how
/// many were allocated before one was refused.
fn keep_newest(
    pool: &BufferPool,
    cap: usize,
    percent: usize,
    count: usize,
    mut len: impl FnMut() -> usize,
) -> usize {
    let mut kept = VecDeque::new();
    let mut kept_bytes = 0;
    for allocated in 0..count {
        let len = len();
        let Ok(buffer) = pool.alloc(len) else {
            return allocated;
        };
        kept.push_back((ZBytes::from(buffer), len));
        kept_bytes += len;
        while kept_bytes > cap / 100 * percent {
            let (oldest, len) = kept.pop_front().unwrap();
            drop(oldest);
            kept_bytes -= len;
        }
    }
    count
}

/// Guards against idle buffers of many lengths that leave no room for the next length.
#[test]
fn many_lengths_near_the_cap() {
    const CAP: usize = 64 * MIB;
    const COUNT: usize = 4_000;
    for seed in 0..3 {
        let pool = BufferPool::new(&builder().max_bytes(CAP).build().unwrap());
        let mut random = fastrand::Rng::with_seed(seed);
        let allocated = keep_newest(&pool, CAP, 85, COUNT, || random.usize(64..=400_000));
        assert_eq!(allocated, COUNT, "seed {seed}: {:?}", pool.stats());
    }
}

/// Few lengths are reused however full the cap is, and again after there were many.
#[test]
fn few_lengths_near_the_cap() {
    const CAP: usize = 64 * MIB;
    const COUNT: usize = 2_000;
    let pool = BufferPool::new(&builder().max_bytes(CAP).build().unwrap());
    let mut lens = [100_000, 150_000, 200_000].into_iter().cycle();
    let mut few = || lens.next().unwrap();
    let mut random = fastrand::Rng::with_seed(7);

    assert_eq!(keep_newest(&pool, CAP, 80, COUNT, &mut few), COUNT);
    let before = pool.stats();
    assert_eq!(keep_newest(&pool, CAP, 80, COUNT, &mut few), COUNT);
    let created = pool.stats().created - before.created;
    assert!(created < COUNT as u64 / 50, "{created} of {COUNT} created");

    let many = || random.usize(64..=400_000);
    assert_eq!(keep_newest(&pool, CAP, 80, COUNT, many), COUNT);
    assert_eq!(keep_newest(&pool, CAP, 80, COUNT, &mut few), COUNT);
    let before = pool.stats();
    assert_eq!(keep_newest(&pool, CAP, 80, COUNT, &mut few), COUNT);
    let created = pool.stats().created - before.created;
    assert!(
        created < COUNT as u64 / 50,
        "{created} of {COUNT} created after many lengths"
    );
}

/// Guards against two segments that each have room left by a slow subscriber's large messages, but
/// neither enough for the next one.
#[test]
fn small_cap_is_one_segment() {
    for cap in [MIB, 4 * MIB] {
        let backend = PoolBackend::builder().max_bytes(cap).build().unwrap();
        let _message = alloc::<Collecting>(&backend.provider(), 100, 1).unwrap();
        assert_eq!(backend.stats().bytes_mapped, cap);
    }
}

/// Guards against a receiver that locks all of the cap into memory before it reads the first message,
/// which is lost if the publisher exits early.
#[test]
fn first_segment_is_short() {
    for cap in [64 * MIB, 128 * MIB, 1024 * MIB] {
        let backend = PoolBackend::builder()
            .max_bytes(cap)
            .check_lock_limit(false)
            .build()
            .unwrap();
        let provider = backend.provider();
        let first = alloc::<Collecting>(&provider, 1000, 1).unwrap();
        assert!(
            backend.stats().bytes_mapped <= 4 * MIB,
            "{}",
            backend.stats().bytes_mapped
        );
        // It does not keep the cap from a message that needs most of it.
        let long = alloc::<Collecting>(&provider, cap / 16 * 15, 2).unwrap();
        assert_eq!(backend.stats().segments, 2);
        drop((first, long));
    }
}

/// Guards against a cap that is split into segments of which none holds a long message.
#[test]
fn half_of_the_cap_is_one_segment_however_it_grew() {
    let backend = PoolBackend::builder()
        .max_bytes(64 * MIB)
        .check_lock_limit(false)
        .build()
        .unwrap();
    let provider = backend.provider();
    let mut messages: Vec<ZShmMut> =
        std::iter::from_fn(|| alloc::<Collecting>(&provider, 4096, 1).ok()).collect();
    assert!(
        backend.stats().segments <= 16,
        "{}",
        backend.stats().segments
    );
    messages.truncate(1);
    assert!(alloc::<Collecting>(&provider, 30 * MIB, 2).is_ok());
}

/// A burst is forgotten even if one buffer is reserved.
#[test]
fn class_with_a_reservation_shrinks_to_it() {
    let backend = backend();
    let pool = BufferPool::new(&backend);
    pool.reserve(SMALL, 4).unwrap().keep();
    let burst: Vec<_> = (0..200)
        .map(|_| ZBytes::from(pool.alloc(SMALL).unwrap()))
        .collect();
    drop(burst);
    (0..20_000).for_each(|_| drop(ZBytes::from(pool.alloc(SMALL).unwrap())));
    let kept = pool.stats().idle + pool.stats().sent;
    assert!(
        (4..=6).contains(&kept),
        "{kept} buffers, and 4 are reserved"
    );
}

#[test]
fn reservation_collects_first() {
    let backend = backend();
    let provider = backend.provider();
    drop(std::iter::from_fn(|| alloc::<Collecting>(&provider, SMALL, 1).ok()).collect::<Vec<_>>());
    // All of the cap is in use until a provider collects.
    assert!(backend.stats().bytes_in_use > CAP / 16 * 15);
    backend.reserve(LARGE, CAP / LARGE / 2).unwrap().keep();
    let pool = BufferPool::new(&backend);
    drop(
        std::iter::from_fn(|| pool.alloc(SMALL).ok())
            .map(ZBytes::from)
            .collect::<Vec<_>>(),
    );
    pool.trim();
    pool.reserve(LARGE, CAP / LARGE / 4).unwrap().keep();
}

#[test]
fn trim_collects_first() {
    let backend = backend();
    let providers = [backend.provider(), backend.provider()];
    let messages: Vec<_> = providers
        .iter()
        .map(|provider| alloc::<Collecting>(provider, LARGE, 1).unwrap())
        .collect();
    drop(messages);
    let held = backend.stats().bytes_held;
    assert!(held >= 2 * LARGE);
    assert_eq!(backend.trim(), held);
    assert_eq!(backend.stats().bytes_held, 0);
}

/// Role: zenoh has no metadata for one of many messages.
pub(crate) fn without_metadata(link: &mut Link) {
    let backend = PoolBackend::builder()
        .max_bytes(CAP)
        .arena_size(CAP)
        .build()
        .unwrap();
    let pool = BufferPool::new(&backend);
    // zenoh makes its next segment for metadata after some 32,768 messages.
    let mut buffers = vec![pool.alloc(64).unwrap()];
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 0, hard).unwrap();
    let start = Instant::now();
    let error = loop {
        match pool.alloc_timeout(64, MINUTE) {
            Ok(buffer) => buffers.push(buffer),
            Err(error) => break error,
        }
    };
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    let is_os = matches!(error, AllocError::Os(_));
    link.say(&format!("{is_os} {}", start.elapsed() < MINUTE));
    link.expect("end");
}

/// Guards against a `wait` that never returns.
#[test]
fn wait_ends_if_zenoh_has_no_metadata() {
    let mut child = Child::start("without-metadata", &[]);
    child.link.expect("true true");
    child.end();
}

/// Role: stops itself until zenoh has invalidated a buffer, and then has the pool release it.
pub(crate) fn stopped(link: &mut Link) {
    let backend = builder().build().unwrap();
    let pool = BufferPool::new(&backend);
    let idle: Vec<_> = (0..8).map(|_| pool.alloc(SMALL).unwrap()).collect();
    let watched = pool.alloc(LARGE).unwrap();
    drop(idle);
    while watched.is_valid() {
        link.say("stopped");
        raise(Signal::SIGSTOP).unwrap();
    }
    let released = pool.release_in_use();
    link.say(&format!(
        "released {} of {}, {} idle",
        released,
        8,
        pool.stats().idle
    ));
    link.expect("end");
}

/// Guards against an idle buffer whose drop decrements the count of another message, to which zenoh's
/// `garbage_collect_unsafe` has given its metadata.
#[test]
fn invalidated_idle_buffers_are_released() {
    let mut child = Child::start("stopped", &[]);
    let mut said = child.link.hear();
    while said == "stopped" {
        // zenoh's threads need to miss their turns, which takes a tenth of a second.
        std::thread::sleep(Duration::from_millis(250));
        child.resume();
        said = child.link.hear();
    }
    // zenoh may have found one or the other valid a moment before.
    let words: Vec<_> = said.split([' ', ',']).collect();
    let (released, idle): (usize, usize) = (words[1].parse().unwrap(), words[5].parse().unwrap());
    assert!(released > 0 && released + idle == 8, "{said}");
    child.end();
}
