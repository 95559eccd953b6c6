//! At the cap: long messages under short ones, reservations, and memory that is released in time.

use crate::child::{Child, Link};
use crate::support::{
    alloc, backend, builder, exhaust_provider, kept, Collecting, CAP, LARGE, MINUTE, SMALL,
};
use nix::sys::resource::{getrlimit, setrlimit, Resource};
use nix::sys::signal::{raise, Signal};
use shm_pool::AllocError;
use shm_pool_zenoh::{BufferPool, PoolBackend};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use zenoh::bytes::ZBytes;
use zenoh::shm::ShmBuf;

const MIB: usize = 1 << 20;

/// How many short messages are in use, and their length. They fill more than half of a cap of 4
/// MiB.
const IN_USE: usize = 24;
const SHORT: usize = 100_000;

/// Longer than any gap between the short messages.
const LONG: usize = 1 << 20;

/// Replaces short messages, one after the other, and requests a long one each time. Fails if all of
/// these requests are refused until each of the short messages has been replaced often.
fn expect_long<T>(mut short: impl FnMut() -> T, mut long: impl FnMut() -> Option<T>) {
    let mut in_use: VecDeque<T> = (0..IN_USE).map(|_| short()).collect();
    let mut random = fastrand::Rng::with_seed(4);
    for _ in 0..10 {
        let mut refused = 0;
        loop {
            in_use.swap(0, random.usize(..IN_USE));
            in_use.pop_front();
            in_use.push_back(short());
            if long().is_some() {
                break;
            }
            refused += 1;
            assert!(refused < 50 * IN_USE, "a long message starves");
        }
        // The next long message competes with new short messages.
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
    let new_pool = || BufferPool::new(&PoolBackend::builder().max_bytes(4 * MIB).build().unwrap());
    let pool = new_pool();
    expect_long(|| pool.alloc(SHORT).unwrap(), || pool.alloc(LONG).ok());
    let pool = new_pool();
    expect_long(
        || ZBytes::from(pool.alloc(SHORT).unwrap()),
        || pool.alloc(LONG).ok().map(ZBytes::from),
    );
}

/// Allocates `count` messages while a reader keeps the newest that fit in a share of the cap.
/// Returns how many were allocated before one was refused.
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

/// Guards against two segments of which neither has room for the next message, although both have
/// some room beside a slow subscriber's large messages.
#[test]
fn small_cap_is_one_segment() {
    for cap in [MIB, 4 * MIB] {
        let backend = PoolBackend::builder().max_bytes(cap).build().unwrap();
        let _message = alloc::<Collecting>(&backend.provider(), 100, 1).unwrap();
        assert_eq!(backend.stats().bytes_mapped, cap);
    }
}

/// Guards against a receiver that locks all of the cap into memory before it reads the first
/// message. That message would be lost if the publisher exited meanwhile.
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
        let mapped = backend.stats().bytes_mapped;
        assert!(mapped <= 4 * MIB, "{mapped}");
        // A message that needs most of the cap still fits.
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
    let mut messages = exhaust_provider::<Collecting>(&provider, 4096);
    let segments = backend.stats().segments;
    assert!(segments <= 16, "{segments}");
    messages.truncate(1);
    assert!(alloc::<Collecting>(&provider, 30 * MIB, 2).is_ok());
}

/// A class releases the buffers of a burst although some are reserved.
#[test]
fn class_with_a_reservation_shrinks_to_it() {
    let backend = backend();
    let pool = BufferPool::new(&backend);
    pool.reserve(SMALL, 4).unwrap().keep();
    let mut burst = Vec::new();
    for _ in 0..200 {
        burst.push(ZBytes::from(pool.alloc(SMALL).unwrap()));
    }
    drop(burst);
    for _ in 0..20_000 {
        drop(ZBytes::from(pool.alloc(SMALL).unwrap()));
    }
    let kept = kept(&pool);
    assert!(
        (4..=6).contains(&kept),
        "{kept} buffers, and 4 are reserved"
    );
}

#[test]
fn reservation_collects_first() {
    let backend = backend();
    let provider = backend.provider();
    drop(exhaust_provider::<Collecting>(&provider, SMALL));
    // All of the cap is in use until a provider collects.
    assert!(backend.stats().bytes_in_use > CAP / 16 * 15);
    backend.reserve(LARGE, CAP / LARGE / 2).unwrap().keep();
    let pool = BufferPool::new(&backend);
    let mut messages = Vec::new();
    while let Ok(buffer) = pool.alloc(SMALL) {
        messages.push(ZBytes::from(buffer));
    }
    drop(messages);
    pool.trim();
    pool.reserve(LARGE, CAP / LARGE / 4).unwrap().keep();
}

#[test]
fn trim_collects_first() {
    let backend = backend();
    let providers = [backend.provider(), backend.provider()];
    let first = alloc::<Collecting>(&providers[0], LARGE, 1).unwrap();
    let second = alloc::<Collecting>(&providers[1], LARGE, 1).unwrap();
    drop((first, second));
    let held = backend.stats().bytes_held;
    assert!(held >= 2 * LARGE);
    assert_eq!(backend.trim(), held);
    assert_eq!(backend.stats().bytes_held, 0);
}

/// Role: allocates until zenoh has no metadata for a message, with a pool that has memory left.
pub(crate) fn without_metadata(link: &mut Link) {
    let backend = PoolBackend::builder()
        .max_bytes(CAP)
        .arena_size(CAP)
        .build()
        .unwrap();
    let pool = BufferPool::new(&backend);
    // zenoh creates its next segment for metadata after some 32,768 messages.
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
    let is_early = start.elapsed() < MINUTE;
    link.send(&format!("{is_os} {is_early}"));
    link.expect("end");
}

/// Guards against a `wait` that never returns.
#[test]
fn wait_ends_if_zenoh_has_no_metadata() {
    let mut child = Child::start("without-metadata", &[]);
    child.link.expect("true true");
    child.end();
}

/// How many idle buffers zenoh invalidates.
const IDLE: usize = 8;

/// Role: stops itself until zenoh has invalidated its buffers, and then has the pool release them.
/// Sends how many it has released, and how many are still idle.
pub(crate) fn stopped(link: &mut Link) {
    let backend = builder().build().unwrap();
    let pool = BufferPool::new(&backend);
    let idle = [(); IDLE].map(|()| pool.alloc(SMALL).unwrap());
    let watched = pool.alloc(LARGE).unwrap();
    drop(idle);
    while watched.is_valid() {
        link.send("stopped");
        raise(Signal::SIGSTOP).unwrap();
    }
    let released = pool.release_in_use();
    let idle = pool.stats().idle;
    link.send(&format!("{released} {idle}"));
    link.expect("end");
}

/// Guards against an idle buffer whose drop decrements the count of another message. zenoh's
/// `garbage_collect_unsafe` gives the metadata of an invalidated buffer to another message.
#[test]
fn invalidated_idle_buffers_are_released() {
    let mut child = Child::start("stopped", &[]);
    let mut line = child.link.receive();
    while line == "stopped" {
        // zenoh invalidates a buffer that its threads have not confirmed for a tenth of a second.
        std::thread::sleep(Duration::from_millis(250));
        child.resume();
        line = child.link.receive();
    }
    let (released, idle) = line.split_once(' ').unwrap();
    let released: usize = released.parse().unwrap();
    let idle: usize = idle.parse().unwrap();
    // zenoh may have found some of the buffers valid a moment before.
    assert!(released > 0, "{line}");
    assert_eq!(released + idle, IDLE, "{line}");
    child.end();
}
