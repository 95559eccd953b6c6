//! Large requests at the cap: they are served despite a stream of small ones, and do not obstruct
//! other requests while they cannot be served.

use crate::support::{builder, Random};
use nix::unistd::{gettid, Pid};
use shm_pool::{AllocFuture, Provider, ShmBufMut};
use shm_pool_support::tasks::{blocking_waker, noop_waker};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

const KB: usize = 1000;
const MIB: usize = 1 << 20;

/// Longer than any wait may take.
const FOR_EVER: Duration = Duration::from_secs(30);

/// A future that waits for `len` bytes, with this waker.
fn waiting<'a>(provider: &'a Provider, len: usize, waker: Waker) -> Waiting<'a> {
    let mut waiting = Waiting { future: Box::pin(provider.request(len).wait_async()), waker };
    assert!(waiting.poll().is_none(), "it has nothing to wait for");
    waiting
}

struct Waiting<'a> {
    future: Pin<Box<AllocFuture<'a>>>,
    waker: Waker,
}

impl Waiting<'_> {
    fn poll(&mut self) -> Option<ShmBufMut> {
        match self.future.as_mut().poll_with(&self.waker) {
            Poll::Ready(buffer) => Some(buffer.unwrap()),
            Poll::Pending => None,
        }
    }

    /// Polls until it is served.
    fn served(mut self) -> Option<ShmBufMut> {
        let end = Instant::now() + FOR_EVER;
        while Instant::now() < end {
            if let Some(buffer) = self.poll() {
                return Some(buffer);
            }
            thread::yield_now();
        }
        None
    }
}

trait PollWith {
    type Output;
    fn poll_with(self, waker: &Waker) -> Poll<Self::Output>;
}

impl<F: std::future::Future> PollWith for Pin<&mut F> {
    type Output = F::Output;

    fn poll_with(self, waker: &Waker) -> Poll<F::Output> {
        self.poll(&mut Context::from_waker(waker))
    }
}

/// Makes `count` allocations of new lengths, each of which needs memory to be carved, `kept` of
/// them at a time. Returns how many were refused.
fn refused_cold(provider: &Provider, count: usize, kept: usize) -> usize {
    let (mut random, mut held) = (Random(5), VecDeque::new());
    let cold = (0..count).map(|_| {
        let most = 64 << random.below(14);
        let len = 64 + random.below(most);
        match provider.alloc(len) {
            Ok(buffer) => held.push_back(buffer),
            Err(_) => return 1,
        }
        while held.len() > kept {
            held.pop_front();
        }
        0
    });
    cold.sum()
}

/// One request that cannot be served does not make a publisher of a thousand sizes fail.
#[test]
fn waiter_causes_no_refusals() {
    for kept in [0, 8] {
        let provider = builder().max_bytes(16 * MIB).build().unwrap();
        let in_use = provider.alloc(64).unwrap();
        let large = waiting(&provider, 16 * MIB, noop_waker());
        assert_eq!(refused_cold(&provider, 1000, kept), 0, "of 1000, {kept} kept: {:?}", provider.stats());
        drop(in_use);
        assert_eq!(large.served().expect("all is free").len(), 16 * MIB);
    }
}

#[test]
fn waiter_keeps_no_reserved_chunk() {
    let provider = builder().max_bytes(16 * MIB).build().unwrap();
    let _reservation = provider.reserve(1000, 1).unwrap();
    let _in_use = provider.alloc(64).unwrap();
    let _large = waiting(&provider, 16 * MIB, noop_waker());
    refused_cold(&provider, 40, 0);
    assert_eq!(provider.alloc_timeout(1000, Duration::ZERO).expect("it is idle").len(), 1000);
    let mut future = Box::pin(provider.request(1000).wait_async());
    assert!(future.as_mut().poll_with(&noop_waker()).is_ready(), "it is idle");
}

/// A waiter for reserved memory does not queue behind those without.
#[test]
fn reserved_waiter_passes_large_one() {
    let provider = builder().max_bytes(4 * MIB).build().unwrap();
    let _reservation = provider.reserve(MIB, 1).unwrap();
    let reserved = provider.alloc(MIB).unwrap();
    let mut others: Vec<_> = std::iter::from_fn(|| provider.alloc(64 << 10).ok()).collect();
    let _large = waiting(&provider, 4 * MIB, noop_waker());
    for pages in 1..=16 {
        // Passed over by a message carved where this one was.
        others.pop();
        let _ = provider.alloc(pages * 4096 - 64).map(|smaller| others.insert(0, smaller));
    }
    others.extend(std::iter::from_fn(|| provider.alloc(4096).ok()));
    let wanted = waiting(&provider, MIB, noop_waker());
    drop(reserved);
    assert_eq!(wanted.served().expect("what is reserved for it is idle").len(), MIB);
}

/// In a pool of 4 MiB, four threads hold six messages of 100 kB each, and this one requests 1 MiB,
/// 40 times, each in a new pool. Returns how often it was served, and how many small ones were
/// refused.
fn among_small_ones(large: impl Fn(&Provider) -> bool) -> (usize, usize) {
    let refused = AtomicUsize::new(0);
    let served = (0..40).take_while(|_| {
        let provider = builder().max_bytes(4 * MIB).build().unwrap();
        // Small ones have been everywhere.
        drop(std::iter::from_fn(|| provider.alloc(100 * KB).ok()).collect::<Vec<_>>());
        let (is_over, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut held = VecDeque::new();
                    while !is_over.load(Ordering::Relaxed) {
                        if held.len() == 6 {
                            held.pop_front();
                        }
                        match provider.alloc(100 * KB) {
                            Ok(buffer) => held.push_back(buffer),
                            Err(_) => drop(refused.fetch_add(1, Ordering::Relaxed)),
                        }
                        rounds.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            while rounds.load(Ordering::Relaxed) < 1000 {
                thread::yield_now();
            }
            let is_served = large(&provider);
            is_over.store(true, Ordering::Relaxed);
            is_served
        })
    });
    (served.count(), refused.load(Ordering::Relaxed))
}

/// A point cloud is sent while images are, if there is room for both.
#[test]
fn large_waiter_among_small_ones() {
    let served = among_small_ones(|provider| provider.alloc_timeout(MIB, Duration::from_secs(10)).is_ok());
    assert_eq!(served, (40, 0), "served of 40, and small ones refused");
}

/// The same for a publisher that does not wait, but retries.
#[test]
fn large_poller_among_small_ones() {
    let served = among_small_ones(|provider| {
        let end = Instant::now() + Duration::from_secs(10);
        while provider.alloc(MIB).is_err() {
            if Instant::now() > end {
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
        true
    });
    assert_eq!(served, (40, 0), "served of 40, and small ones refused");
}

#[test]
fn refused_request_leaves_others_warm() {
    const WARM: usize = 2000;
    let provider = builder().max_bytes(2 * MIB).max_idle_per_class(8192).idle_window(0).build().unwrap();
    let spare = [(); 4].map(|()| provider.alloc(64 << 10).unwrap());
    // Spread over the cap, so that no eviction makes room for the large request.
    let mut all: Vec<_> = std::iter::from_fn(|| provider.alloc(1000).ok()).collect();
    let in_use: Vec<_> = (0..all.len()).step_by(200).rev().map(|at| all.swap_remove(at)).collect();
    // A little memory is free, so that a missing chunk could be made.
    drop((all, spare));
    provider.trim_to(2 * MIB - (256 << 10));
    drop(provider.alloc(WARM).unwrap());
    let counts = || {
        let stats = provider.stats();
        (stats.misses(), stats.classes.iter().map(|class| class.chunks).sum::<usize>())
    };
    let (before, is_over) = (counts(), AtomicBool::new(false));
    thread::scope(|scope| {
        let warm = scope.spawn(|| {
            let mut refused = 0;
            while !is_over.load(Ordering::Relaxed) {
                refused += usize::from(provider.alloc(WARM).is_err());
            }
            refused
        });
        for _ in 0..200 {
            assert!(provider.alloc(3 * MIB / 2).is_err());
            // Some memory is released, so that the next request is evaluated anew.
            drop(provider.alloc(64).unwrap());
        }
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(warm.join().unwrap(), 0, "refused what is idle");
    });
    let (misses, chunks) = counts();
    // Where room is being made, a chunk is evicted, and made once more elsewhere.
    assert!(misses <= before.0 + 8, "{} chunks had to be made", misses - before.0);
    assert!(chunks + 1 >= before.1, "{chunks} chunks are left of {}", before.1);
    drop(in_use);
}

/// Returns `true` if this thread of this process has neither fallen asleep nor exited.
fn is_awake(thread: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") S "))
}

/// Blocks the thread that woke another waiter in that waiter's waker, and then releases memory.
/// Returns the result of a waiting thread, if it arrived within 30 seconds.
fn served_beside_a_blocked_waker(timeout: Duration) -> Option<bool> {
    let provider = Arc::new(builder().max_bytes(MIB).build().unwrap());
    let mut held: Vec<_> = (0..4).map(|_| provider.alloc(MIB / 4).unwrap()).collect();
    let (waker, is_called, go) = blocking_waker();
    let mut first = waiting(&provider, MIB / 4, waker);
    held.pop();
    is_called.recv_timeout(FOR_EVER).expect("it was woken");
    let (begins, begun) = mpsc::channel();
    let (ends, ended) = mpsc::channel();
    let others = provider.clone();
    let thread = thread::spawn(move || {
        begins.send(gettid()).unwrap();
        let _ = ends.send(others.alloc_timeout(MIB / 4, timeout).is_ok());
    });
    let thread_id = begun.recv().unwrap();
    while is_awake(thread_id) {
        thread::yield_now();
    }
    held.pop();
    let got = ended.recv_timeout(FOR_EVER).ok();
    drop(go);
    thread.join().unwrap();
    assert!(first.poll().is_some());
    got
}

/// A waiter that times out because a helper is late checks for memory once more.
#[test]
fn waiter_last_look() {
    assert_eq!(served_beside_a_blocked_waker(Duration::from_millis(500)), Some(true));
}

/// A waiter does not sleep beside free memory because another one's waker is slow.
#[test]
fn waiter_needs_no_other_waiter() {
    assert_eq!(served_beside_a_blocked_waker(Duration::MAX), Some(true));
}

/// Every other message of 60 kB is held; those between are idle, and too short for the refused
/// request.
fn scattered(provider: &shm_pool::Provider) -> Vec<shm_pool::ShmBufMut> {
    let mut held: Vec<_> = std::iter::from_fn(|| provider.alloc(60_000).ok()).map(Some).collect();
    held.iter_mut().step_by(2).for_each(|buffer| drop(buffer.take()));
    held.into_iter().flatten().collect()
}

/// A search for room holds idle chunks temporarily, but none that is reserved.
#[test]
fn refused_request_leaves_reserved_alone() {
    let provider = builder().max_bytes(4 * MIB).idle_window(0).build().unwrap();
    let _reservation = provider.reserve(1000, 1).unwrap();
    let _held = scattered(&provider);
    provider.trim();
    let made = || provider.stats().classes.iter().find(|class| class.size == 1024).map(|class| class.misses);
    let (before, is_over) = (made(), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                drop(provider.alloc(1000).expect("reserved"));
            }
        });
        (0..5000).for_each(|_| drop(provider.alloc(MIB)));
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(made(), before);
}

/// Idle chunks in the region of a refused request do not count as reserved.
#[test]
fn reserve_beside_region() {
    const LEN: usize = 16 << 10;
    let provider = builder().max_bytes(4 * MIB).max_idle_per_class(64).idle_window(0).build().unwrap();
    let (mut mine, mut others) = (Vec::new(), Vec::new());
    for _ in 0..64 {
        mine.push(provider.alloc(LEN).unwrap());
        others.extend(provider.alloc(40 << 10).ok());
    }
    others.extend(std::iter::from_fn(|| provider.alloc(4 << 10).ok()));
    others.extend(std::iter::from_fn(|| provider.alloc(64).ok()));
    drop(mine);
    for _ in 0..4 {
        assert!(provider.alloc(MIB + MIB / 2).is_err());
    }
    others.clear();
    let _reservation = provider.reserve(LEN, 64).unwrap();
    drop([(); 64].map(|()| provider.alloc(LEN).unwrap()));
    let chunks = provider.stats().classes.iter().find(|class| class.size == LEN).map(|class| class.chunks);
    assert!(chunks.is_some_and(|chunks| chunks >= 64), "{chunks:?}");
}

#[test]
fn two_refused_lengths_in_turn() {
    let provider = builder().max_bytes(4 * MIB).build().unwrap();
    let mut held: std::collections::VecDeque<_> = scattered(&provider).into();
    provider.trim();
    let mut wanted = vec![700_000, 800_000];
    let end = Instant::now() + Duration::from_secs(30);
    while !wanted.is_empty() {
        assert!(Instant::now() < end, "{wanted:?} never fit");
        held.pop_front();
        held.extend(provider.alloc(60_000).ok());
        wanted.retain(|&len| provider.alloc(len).is_err());
        thread::yield_now();
    }
}
