//! Waiting for memory within one process: wake-ups, their order, and the end of a wait.

use crate::fixtures::{
    alloc_many, builder, burst, chunks, class_of, fill, keep_every_other, pair, Random, Waiting,
    FOR_EVER,
};
use crate::threads::beside;
use nix::unistd::{gettid, Pid};
use shm_pool::{AllocError, Client, Provider, ShmBytesMut, Tuning};
use shm_pool_support::tasks::{block_on, blocking_waker, panicking_waker, Woken};
use std::alloc::Layout;
use std::collections::VecDeque;
use std::future::Future;
use std::hint;
use std::pin::{pin, Pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{mpsc, Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

const CAP: usize = 1 << 20;

/// A provider at its cap, and the buffers that fill it.
fn at_the_cap() -> (Provider, Vec<ShmBytesMut>) {
    let provider = builder().max_bytes(CAP).build().unwrap();
    let held = alloc_many(&provider, CAP / 4, 4);
    assert!(provider.alloc(1).is_err(), "there is no room");
    (provider, held)
}

/// A publisher whose own thread releases memory must not sleep beside it.
#[test]
fn drop_wakes() {
    let (provider, mut held) = at_the_cap();
    for _ in 0..300 {
        thread::scope(|scope| {
            let waits = scope.spawn(|| provider.alloc_timeout(CAP / 4, FOR_EVER).unwrap());
            held.pop();
            held.push(waits.join().unwrap());
        });
    }
}

#[test]
fn view_drop_wakes() {
    let provider = builder().max_bytes(CAP).build().unwrap();
    let client = Client::new();
    for _ in 0..300 {
        let message = provider.alloc(CAP).unwrap().freeze();
        let view = client.attach(&message.descriptor().unwrap()).unwrap();
        drop(message);
        thread::scope(|scope| {
            let waits = scope.spawn(|| provider.alloc_timeout(CAP, FOR_EVER).unwrap());
            drop(view);
            waits.join().unwrap();
        });
    }
}

/// A wait that cannot succeed does not block its caller.
#[test]
fn hopeless_wait_fails() {
    let (provider, _held) = at_the_cap();
    let error = provider.alloc_timeout(CAP + 1, FOR_EVER).unwrap_err();
    assert!(matches!(error, AllocError::TooLarge { .. }), "{error}");
    let error = provider.request(usize::MAX).wait().unwrap_err();
    assert!(
        matches!(
            error,
            AllocError::TooLarge {
                len: usize::MAX,
                ..
            }
        ),
        "{error}"
    );
    let layout = Layout::from_size_align(1, 8192).unwrap();
    let error = block_on(provider.request(0).layout(layout).wait_async()).unwrap_err();
    assert!(
        matches!(error, AllocError::UnsupportedAlignment { .. }),
        "{error}"
    );
}

#[test]
fn timeout() {
    let (provider, held) = at_the_cap();
    for timeout in [
        Duration::ZERO,
        Duration::from_millis(1),
        Duration::from_millis(120),
    ] {
        let error = provider.alloc_timeout(64, timeout).unwrap_err();
        assert!(error.is_exhausted(), "{error}");
        assert!(
            matches!(&error, AllocError::TimedOut { timeout: t, source } if *t == timeout && source.is_exhausted()),
            "{error}"
        );
    }
    drop(held);
    assert!(
        provider.alloc_timeout(64, Duration::ZERO).is_ok(),
        "nobody who has left is in the way"
    );
}

#[test]
fn options_survive_wait() {
    let (provider, mut held) = at_the_cap();
    for buffer in &mut held {
        buffer.fill(0xff);
    }
    let layout = Layout::from_size_align(5000, 4096).unwrap();
    let request = provider.request(1).layout(layout).zeroed();
    let buffers = thread::scope(|scope| {
        let thread = scope.spawn(|| request.wait().unwrap());
        let future = scope.spawn(|| block_on(request.wait_async()).unwrap());
        drop(held);
        [
            thread.join().unwrap(),
            future.join().unwrap(),
            request.alloc().unwrap(),
        ]
    });
    for buffer in &buffers {
        assert_eq!((buffer.len(), buffer.as_ptr() as usize % 4096), (5000, 0));
        assert!(buffer.iter().all(|&byte| byte == 0));
    }
}

#[test]
fn many_waiters() {
    let (provider, held) = at_the_cap();
    let served = AtomicUsize::new(0);
    thread::scope(|scope| {
        for number in 0..40 {
            let provider = &provider;
            let served = &served;
            scope.spawn(move || {
                let len = 1 + number * 1000;
                let buffer = if number % 2 == 0 {
                    provider.alloc_timeout(len, FOR_EVER)
                } else {
                    block_on(provider.request(len).wait_async())
                };
                assert_eq!(buffer.unwrap().len(), len);
                served.fetch_add(1, Ordering::Relaxed);
            });
        }
        for buffer in held {
            drop(buffer);
            thread::yield_now();
        }
    });
    assert_eq!(served.into_inner(), 40);
}

/// A dropped future loses neither the memory that was on its way to it nor the next waiter's turn.
#[test]
fn cancel_anywhere() {
    let (provider, mut held) = at_the_cap();
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let mut context = Context::from_waker(&waker);
    for round in 0..50 {
        let mut futures = Vec::new();
        for _ in 0..100 {
            let mut future = Box::pin(provider.request(CAP / 4).wait_async());
            assert!(future.as_mut().poll(&mut context).is_pending());
            futures.push(future);
        }
        thread::scope(|scope| {
            let waits = scope.spawn(|| provider.alloc_timeout(CAP / 4, FOR_EVER).unwrap());
            // Delivered to the first of them, or about to be.
            held.pop();
            if round % 2 == 0 {
                futures.reverse();
            }
            for future in futures.drain(..) {
                drop(future);
            }
            held.push(waits.join().unwrap());
        });
    }
    assert_eq!(provider.stats().bytes_in_use, CAP);
}

/// Memory that is released while the helper tries thousands of requests goes to the first of them.
#[test]
fn first_of_thousands() {
    const CHUNKS: usize = 64;
    const LEN: usize = CAP / CHUNKS;
    let provider = builder().max_bytes(CAP).build().unwrap();
    let mut held = alloc_many(&provider, LEN, CHUNKS);
    let mut futures: VecDeque<_> = (0..2000)
        .map(|_| Waiting::begin(provider.request(LEN).wait_async()))
        .collect();
    let mut random = Random(1);
    drop(held.pop());
    for _ in 0..200 {
        let woken = loop {
            if let Some(woken) = futures.iter().position(Waiting::is_woken) {
                break woken;
            }
        };
        assert_eq!(woken, 0, "it has overtaken others");
        let served = futures.pop_front().unwrap().served();
        // A request that leaves makes the helper try all others.
        drop(futures.pop_back());
        for _ in 0..random.below(30_000) {
            std::hint::spin_loop();
        }
        drop(served);
    }
}

/// No memory is lost on its way to a cancelled waiter, and no other waiter keeps sleeping.
#[test]
fn thousands_cancelled() {
    const WAITERS: usize = 2000;
    const CHUNKS: usize = 64;
    const LEN: usize = CAP / CHUNKS;
    let provider = builder().max_bytes(CAP).build().unwrap();
    let mut held = alloc_many(&provider, LEN, CHUNKS);
    let mut futures: Vec<_> = (0..WAITERS)
        .map(|_| Waiting::new(provider.request(LEN).wait_async()))
        .collect();
    // The others are cancelled before they are polled.
    for future in &mut futures[..WAITERS * 9 / 10] {
        assert!(future.poll().is_pending());
    }
    // Each of the first gets one chunk in turn, and is cancelled when it has been delivered.
    drop(held.pop());
    let end = Instant::now() + FOR_EVER;
    for future in futures.drain(..100) {
        while !future.is_woken() {
            assert!(Instant::now() < end, "it sleeps for ever");
            thread::yield_now();
        }
    }
    let mut random = Random(1);
    let mut served = 0;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..20 {
                        drop(provider.alloc_timeout(LEN, FOR_EVER).unwrap());
                    }
                });
            })
            .collect();
        while !futures.is_empty() {
            let at = random.below(futures.len());
            match random.below(4) {
                0 => drop(futures.swap_remove(at)),
                1 | 2 => {
                    // One to which memory was delivered, or one that still waits.
                    let at = match futures.iter().position(Waiting::is_woken) {
                        Some(woken) => woken,
                        None => at,
                    };
                    let was_woken = futures[at].is_woken();
                    match futures[at].poll() {
                        Poll::Ready(buffer) => {
                            held.push(buffer.unwrap());
                            served += 1;
                            futures.swap_remove(at);
                        }
                        Poll::Pending => assert!(!was_woken, "woken, and nothing is there"),
                    }
                }
                _ if held.is_empty() => {}
                _ => drop(held.swap_remove(random.below(held.len()))),
            }
        }
        held.clear();
        drop(threads);
    });
    assert!(served > 0);
    // Also what the helper thread has in its hand for a future that was dropped.
    let mut all = Vec::new();
    for _ in 0..CHUNKS {
        all.push(provider.alloc(LEN).expect("nothing is lost"));
    }
    drop(all);
    assert_eq!(provider.stats().bytes_in_use, 0);
}

/// The helper thread may have the memory in its hand for a future that was dropped.
#[test]
fn memory_for_a_dropped_future_is_not_lost() {
    let (provider, held) = at_the_cap();
    drop(held);
    drop_futures_for_all(&provider);
}

/// The arena could not grow for it, and leaves a rest of the cap.
#[test]
fn memory_of_an_arena_below_the_cap_is_not_lost() {
    let provider = Provider::builder()
        .max_bytes(CAP + CAP / 2)
        .tuning(Tuning::new().arena_size(CAP))
        .build()
        .unwrap();
    drop_futures_for_all(&provider);
}

fn drop_futures_for_all(provider: &Provider) {
    for round in 0..2000 {
        let all = provider.alloc(CAP).unwrap();
        let mut future = Waiting::new(provider.request(CAP).wait_async());
        assert!(future.poll().is_pending());
        drop(all);
        // From before the helper thread is awake until after it has served the future.
        for _ in 0..round % 100 * 50 {
            hint::spin_loop();
        }
        drop(future);
        let again = provider.alloc(CAP);
        drop(again.expect("it was released before the future was dropped"));
    }
}

#[test]
fn thousands_end_with_provider() {
    let (provider, held) = at_the_cap();
    let mut futures: Vec<_> = (0..2000)
        .map(|_| Waiting::new(provider.request(100).wait_async()))
        .collect();
    assert!(futures.iter_mut().all(|future| future.poll().is_pending()));
    thread::scope(|scope| {
        let threads: Vec<_> = (0..16)
            .map(|_| scope.spawn(|| provider.request(100).wait()))
            .collect();
        provider.close_waits();
        for thread in threads {
            assert!(is_ended(&thread.join().unwrap().unwrap_err()));
        }
    });
    for future in &mut futures {
        assert!(future.is_woken(), "it would never be polled again");
        assert!(matches!(future.poll(), Poll::Ready(Err(error)) if is_ended(&error)));
    }
    drop(futures);
    drop(provider);
    drop(held);
}

/// The wake-up is not lost when the task moves to another thread in between.
#[test]
fn last_waker() {
    let (provider, held) = at_the_cap();
    let mut future = pin!(provider.request(100).wait_async());
    let wakers: [Arc<Woken>; 3] = Default::default();
    for waker in &wakers {
        assert!(future
            .as_mut()
            .poll(&mut Context::from_waker(&Waker::from(waker.clone())))
            .is_pending());
    }
    drop(held);
    while wakers[2].count() == 0 {
        thread::yield_now();
    }
    let polled = future
        .as_mut()
        .poll(&mut Context::from_waker(&Waker::from(wakers[2].clone())));
    assert!(
        matches!(polled, Poll::Ready(Ok(_))),
        "woken, and nothing is there"
    );
}

#[test]
fn small_pass_large() {
    let (provider, mut held) = at_the_cap();
    let large = Waiting::begin(provider.request(CAP).wait_async());
    for _ in 0..100 {
        let small = Waiting::begin(provider.request(CAP / 4).wait_async());
        held.pop();
        held.push(small.wait());
        held.pop();
        held.push(provider.alloc(CAP / 4).expect("without waiting"));
    }
    drop(held);
    assert_eq!(large.wait().len(), CAP);
}

/// A program can exit while a thread of it waits.
#[test]
fn close_waits() {
    let (provider, held) = at_the_cap();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..5)
            .map(|_| scope.spawn(|| provider.request(1).wait()))
            .collect();
        let future = scope.spawn(|| block_on(provider.request(1).wait_async()));
        let ended =
            |result: Result<ShmBytesMut, _>| matches!(result, Err(error) if is_ended(&error));
        provider.close_waits();
        assert!(threads
            .into_iter()
            .all(|thread| ended(thread.join().unwrap())));
        assert!(ended(future.join().unwrap()));
    });
    assert!(
        is_ended(&provider.alloc_timeout(1, FOR_EVER).unwrap_err()),
        "nobody waits any more"
    );
    drop(held);
    assert!(
        provider.alloc_timeout(1, FOR_EVER).is_ok(),
        "nothing to wait for"
    );
}

/// A single-threaded program that ends its waits does not deadlock.
#[test]
fn interrupt_from_polling_thread() {
    let (provider, _held) = at_the_cap();
    let mut future = Waiting::begin(provider.request(1).wait_async());
    provider.close_waits();
    assert!(matches!(future.poll(), Poll::Ready(Err(error)) if is_ended(&error)));
}

/// A task that is dropped, or panics, when it is woken, as in executors that shut down or poll at
/// once.
struct Task {
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    panics: bool,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        drop(self.future.lock().unwrap().take());
        assert!(!self.panics, "a waker that panics");
    }
}

/// An executor's locks or panics do not stop the other waiters.
#[test]
fn waker_drops_task_or_panics() {
    for panics in [false, true] {
        let (provider, mut held) = at_the_cap();
        let provider = Arc::new(provider);
        let future = {
            let provider = provider.clone();
            Box::pin(async move { drop(provider.request(CAP / 4).wait_async().await) })
        };
        let task = Arc::new(Task {
            future: Mutex::new(Some(future)),
            panics,
        });
        let waker = Waker::from(task.clone());
        let polled = task
            .future
            .lock()
            .unwrap()
            .as_mut()
            .unwrap()
            .as_mut()
            .poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        // After it in the queue.
        let next = Waiting::begin(provider.request(CAP / 4).wait_async());
        held.pop();
        next.wait();
        assert!(task.future.lock().unwrap().is_none(), "it was woken");
    }
}

/// A task that owns the last reference to its provider, and is dropped when it is woken.
struct LastOwner {
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    has_dropped: Mutex<mpsc::Sender<()>>,
}

impl Wake for LastOwner {
    fn wake(self: Arc<Self>) {
        drop(self.future.lock().unwrap().take());
        self.has_dropped.lock().unwrap().send(()).unwrap();
    }
}

/// The thread that wakes the task does not deadlock, and the provider's objects are removed.
#[test]
fn waker_drops_last_provider() {
    let (provider, held) = at_the_cap();
    let name = format!(".{}.", provider.id());
    let provider = Arc::new(provider);
    let (has_dropped, dropped) = mpsc::channel();
    let future = Box::pin(async move { drop(provider.request(CAP / 4).wait_async().await) });
    let task = LastOwner {
        future: Mutex::new(Some(future)),
        has_dropped: Mutex::new(has_dropped),
    };
    let task = Arc::new(task);
    let waker = Waker::from(task.clone());
    let polled = task
        .future
        .lock()
        .unwrap()
        .as_mut()
        .unwrap()
        .as_mut()
        .poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    drop(held);
    dropped
        .recv_timeout(Duration::from_secs(30))
        .expect("the waker returns");
    let end = Instant::now() + FOR_EVER;
    while crate::fixtures::files(&name) != crate::fixtures::NONE {
        assert!(Instant::now() < end, "objects stay");
        thread::yield_now();
    }
}

/// A message of another grain that fits does not queue behind one that does not.
#[test]
fn larger_passes_smaller() {
    let provider = builder().max_bytes(CAP).build().unwrap();
    let mut held = fill(&provider, 8000);
    let page = Layout::from_size_align(64, 4096).unwrap();
    let pages: Vec<_> =
        std::iter::from_fn(|| provider.request(0).layout(page).alloc().ok()).collect();
    let aligned = Waiting::begin(provider.request(0).layout(page).wait_async());
    let ordinary = Waiting::begin(provider.request(8000).wait_async());
    drop(held.remove(held.len() / 2));
    ordinary.wait();
    drop((aligned, held, pages));
}

/// A request for reserved memory does not queue behind a smaller one that cannot be served.
#[test]
fn reserved_passes_smaller() {
    let provider = builder().max_bytes(4 << 20).build().unwrap();
    let _reservation = provider.reserve(2 << 20, 1).unwrap();
    let reserved = provider.alloc(2 << 20).unwrap();
    let _held = fill(&provider, 64 << 10);
    let mut smaller = Waiting::begin(provider.request(1 << 20).wait_async());
    let wanted = Waiting::begin(provider.request(2 << 20).wait_async());
    drop(reserved);
    assert_eq!(wanted.served().len(), 2 << 20);
    assert!(smaller.poll().is_pending());
}

#[test]
fn waker_panics() {
    let (provider, _held) = at_the_cap();
    let _panics = Waiting::begin_with(provider.request(1).wait_async(), panicking_waker());
    let next = Waiting::begin(provider.request(1).wait_async());
    provider.close_waits();
    assert_eq!(next.woken.count(), 1);
}

#[test]
fn reservation_drop_wakes() {
    let provider = builder().max_bytes(4 << 20).build().unwrap();
    let reservation = provider.reserve(1 << 20, 2).unwrap();
    let held = fill(&provider, 64 << 10);
    let wanted = Waiting::begin(provider.request(2 << 20).wait_async());
    drop(reservation);
    assert_eq!(wanted.served().len(), 2 << 20);
    drop(held);
}

fn is_ended(error: &shm_pool::AllocError) -> bool {
    matches!(error, AllocError::Interrupted)
}

/// No thread of one provider keeps another's objects alive.
#[test]
fn nothing_is_left() {
    let (provider, _client) = pair();
    drop(provider);
    let (provider, held) = at_the_cap();
    let name = format!(".{}.", provider.id());
    let future = Waiting::begin(provider.request(1).wait_async());
    assert!(!crate::fixtures::files(&name).is_empty());
    drop((future, held));
    drop(provider);
    assert_eq!(crate::fixtures::files(&name), crate::fixtures::NONE);
}

// ---- large requests at the cap ------------------------------------------------------------------

const KB: usize = 1000;
const MIB: usize = 1 << 20;

/// Makes `count` allocations of new lengths, each of which needs memory to be carved, `kept` of
/// them at a time. Returns how many were refused.
fn refused_cold(provider: &Provider, count: usize, kept: usize) -> usize {
    let mut random = Random(5);
    let mut held = VecDeque::new();
    let mut refused = 0;
    for _ in 0..count {
        let most = 64 << random.below(14);
        let len = 64 + random.below(most);
        let Ok(buffer) = provider.alloc(len) else {
            refused += 1;
            continue;
        };
        held.push_back(buffer);
        while held.len() > kept {
            held.pop_front();
        }
    }
    refused
}

/// One request that cannot be served does not make a publisher of a thousand sizes fail.
#[test]
fn waiter_causes_no_refusals() {
    for kept in [0, 8] {
        let provider = builder().max_bytes(16 * MIB).build().unwrap();
        let in_use = provider.alloc(64).unwrap();
        let large = Waiting::begin(provider.request(16 * MIB).wait_async());
        assert_eq!(
            refused_cold(&provider, 1000, kept),
            0,
            "of 1000, {kept} kept: {:?}",
            provider.stats()
        );
        drop(in_use);
        assert_eq!(large.served().len(), 16 * MIB);
    }
}

#[test]
fn waiter_keeps_no_reserved_chunk() {
    let provider = builder().max_bytes(16 * MIB).build().unwrap();
    let _reservation = provider.reserve(1000, 1).unwrap();
    let _in_use = provider.alloc(64).unwrap();
    let _large = Waiting::begin(provider.request(16 * MIB).wait_async());
    refused_cold(&provider, 40, 0);
    assert_eq!(
        provider
            .alloc_timeout(1000, Duration::ZERO)
            .expect("it is idle")
            .len(),
        1000
    );
    assert!(
        Waiting::new(provider.request(1000).wait_async())
            .poll()
            .is_ready(),
        "it is idle"
    );
}

/// A waiter for reserved memory does not queue behind those without.
#[test]
fn reserved_waiter_passes_large_one() {
    let provider = builder().max_bytes(4 * MIB).build().unwrap();
    let _reservation = provider.reserve(MIB, 1).unwrap();
    let reserved = provider.alloc(MIB).unwrap();
    let mut others = fill(&provider, 64 << 10);
    let _large = Waiting::begin(provider.request(4 * MIB).wait_async());
    for pages in 1..=16 {
        // Passed over by a message carved where this one was.
        others.pop();
        if let Ok(smaller) = provider.alloc(pages * 4096 - 64) {
            others.insert(0, smaller);
        }
    }
    others.extend(std::iter::from_fn(|| provider.alloc(4096).ok()));
    let wanted = Waiting::begin(provider.request(MIB).wait_async());
    drop(reserved);
    assert_eq!(wanted.served().len(), MIB);
}

/// In a pool of 4 MiB, four threads hold six messages of 100 kB each, and this one requests 1 MiB,
/// 40 times, each in a new pool, or until it is not served. Returns how often it was served, and
/// how many small ones were refused.
fn among_small_ones(large: impl Fn(&Provider) -> bool) -> (usize, usize) {
    let refused = AtomicUsize::new(0);
    let mut served = 0;
    while served < 40 {
        let provider = builder().max_bytes(4 * MIB).build().unwrap();
        // Small ones have been everywhere.
        drop(fill(&provider, 100 * KB));
        let is_over = AtomicBool::new(false);
        let rounds = AtomicUsize::new(0);
        let is_served = thread::scope(|scope| {
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
        });
        if !is_served {
            break;
        }
        served += 1;
    }
    (served, refused.load(Ordering::Relaxed))
}

/// A point cloud is sent while images are, if there is room for both.
#[test]
fn large_waiter_among_small_ones() {
    let served =
        among_small_ones(|provider| provider.alloc_timeout(MIB, Duration::from_secs(10)).is_ok());
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
    let provider = builder()
        .max_bytes(2 * MIB)
        .max_idle_per_class(8192)
        .tuning(Tuning::new().idle_window(0))
        .build()
        .unwrap();
    let spare = alloc_many(&provider, 64 << 10, 4);
    // Spread over the cap, so that no eviction makes room for the large request.
    let mut all = fill(&provider, 1000);
    let mut in_use = Vec::new();
    for at in (0..all.len()).step_by(200).rev() {
        in_use.push(all.swap_remove(at));
    }
    // A little memory is free, so that a missing chunk could be made.
    drop((all, spare));
    provider.trim_to(2 * MIB - (256 << 10));
    drop(provider.alloc(WARM).unwrap());
    let counts = || {
        let stats = provider.stats();
        (stats.misses(), chunks(&stats))
    };
    let before = counts();
    let warm = || drop(provider.alloc(WARM).expect("it is idle"));
    beside(warm, || {
        for _ in 0..200 {
            assert!(provider.alloc(3 * MIB / 2).is_err());
            // Some memory is released, so that the next request is evaluated anew.
            drop(provider.alloc(64).unwrap());
        }
    });
    let (misses, chunks) = counts();
    // Where room is being made, a chunk is evicted, and made once more elsewhere.
    assert!(
        misses <= before.0 + 8,
        "{} chunks had to be made",
        misses - before.0
    );
    assert!(
        chunks + 1 >= before.1,
        "{chunks} chunks are left of {}",
        before.1
    );
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
    let mut held = alloc_many(&provider, MIB / 4, 4);
    let (waker, is_called, go) = blocking_waker();
    let mut first = Waiting::begin_with(provider.request(MIB / 4).wait_async(), waker);
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
    assert!(matches!(first.poll(), Poll::Ready(Ok(_))));
    got
}

/// A waiter that times out because a helper is late checks for memory once more.
#[test]
fn waiter_last_look() {
    assert_eq!(
        served_beside_a_blocked_waker(Duration::from_millis(500)),
        Some(true)
    );
}

/// A waiter does not sleep beside free memory because another one's waker is slow.
#[test]
fn waiter_needs_no_other_waiter() {
    assert_eq!(served_beside_a_blocked_waker(Duration::MAX), Some(true));
}

/// Every other message of 60 kB is held; those between are idle, and too short for the refused
/// request.
fn scattered(provider: &shm_pool::Provider) -> Vec<shm_pool::ShmBytesMut> {
    keep_every_other(std::iter::from_fn(|| provider.alloc(60_000).ok()).collect())
}

/// A search for room holds idle chunks temporarily, but none that is reserved.
#[test]
fn refused_request_leaves_reserved_alone() {
    let provider = builder()
        .max_bytes(4 * MIB)
        .tuning(Tuning::new().idle_window(0))
        .build()
        .unwrap();
    let _reservation = provider.reserve(1000, 1).unwrap();
    let _held = scattered(&provider);
    provider.trim();
    let made = || class_of(&provider.stats(), 1024).expect("reserved").misses;
    let before = made();
    let take_reserved = || drop(provider.alloc(1000).expect("reserved"));
    beside(take_reserved, || {
        for _ in 0..5000 {
            drop(provider.alloc(MIB));
        }
    });
    assert_eq!(made(), before);
}

/// Idle chunks in the region of a refused request do not count as reserved.
#[test]
fn reserve_beside_region() {
    const LEN: usize = 16 << 10;
    let provider = builder()
        .max_bytes(4 * MIB)
        .max_idle_per_class(64)
        .tuning(Tuning::new().idle_window(0))
        .build()
        .unwrap();
    let mut mine = Vec::new();
    let mut others = Vec::new();
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
    burst(&provider, LEN, 64);
    let class = class_of(&provider.stats(), LEN).expect("reserved");
    assert!(class.chunks >= 64, "{class:?}");
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

/// Runs `brief` again and again while another thread waits for memory, and then makes 192 MiB of it
/// present. Returns the longest call, and how long the other thread took once there was room.
fn beside_page_faults(brief: impl Fn(&Provider)) -> (Duration, Duration) {
    let provider = builder()
        .max_bytes(256 * MIB)
        .tuning(Tuning::new().arena_size(256 * MIB))
        .build()
        .unwrap();
    // What `brief` asks for never fits beside it.
    let _held = provider.alloc(10 * MIB).unwrap();
    let in_the_way = provider.alloc(60 * MIB).unwrap();
    let mut longest = Duration::ZERO;
    let took = thread::scope(|scope| {
        let (begins, begun) = mpsc::channel();
        let provider = &provider;
        let waits = scope.spawn(move || {
            begins.send(gettid()).unwrap();
            provider.alloc_timeout(192 * MIB, FOR_EVER).unwrap()
        });
        let thread_id = begun.recv().unwrap();
        while is_awake(thread_id) {
            thread::yield_now();
        }
        let start = Instant::now();
        drop(in_the_way);
        while !waits.is_finished() {
            let start = Instant::now();
            brief(provider);
            longest = longest.max(start.elapsed());
        }
        start.elapsed()
    });
    (longest, took)
}

/// A short wait ends in time, and a future is dropped at once, while another request's memory is
/// made present.
#[test]
fn waits_beside_page_faults() {
    let short_wait = |provider: &Provider| {
        let timeout = Duration::from_millis(1);
        assert!(provider.alloc_timeout(250 * MIB, timeout).is_err());
    };
    let dropped_future = |provider: &Provider| {
        drop(Waiting::begin(provider.request(250 * MIB).wait_async()));
    };
    // A thread that is not scheduled for so long delays a few tries, and not most of them.
    let is_brief = |brief: &dyn Fn(&Provider)| {
        let mut brief_tries = 0;
        for _ in 0..10 {
            let (longest, took) = beside_page_faults(brief);
            if longest < took / 2 {
                brief_tries += 1;
            }
        }
        brief_tries >= 3
    };
    assert!(is_brief(&short_wait), "waits of 1 ms block");
    assert!(is_brief(&dropped_future), "drops block");
}

/// Leaving takes as long for the last of 20,000 futures as for the first.
#[test]
fn thousands_leave_from_the_end() {
    let (provider, _held) = at_the_cap();
    let mut first: Vec<_> = (0..20_000)
        .map(|_| Waiting::begin(provider.request(CAP / 4).wait_async()))
        .collect();
    let last = first.split_off(10_000);
    let start = Instant::now();
    drop(last);
    let last = start.elapsed();
    let start = Instant::now();
    drop(first);
    let first = start.elapsed();
    assert!(last < first * 8, "{last:?}, and the first {first:?}");
}

/// Of two threads that wait for one length, the first gets what is released.
#[test]
fn threads_are_served_in_order() {
    let (provider, mut held) = at_the_cap();
    for _ in 0..100 {
        thread::scope(|scope| {
            let (begins, begun) = mpsc::channel();
            let (ends, ended) = mpsc::channel();
            for number in 0..2 {
                let provider = &provider;
                let begins = begins.clone();
                let ends = ends.clone();
                scope.spawn(move || {
                    begins.send(gettid()).unwrap();
                    let buffer = provider.alloc_timeout(CAP / 4, FOR_EVER).unwrap();
                    ends.send((number, buffer)).unwrap();
                });
                let thread_id = begun.recv().unwrap();
                while is_awake(thread_id) {
                    thread::yield_now();
                }
            }
            for expected in 0..2 {
                held.pop();
                let (number, buffer) = ended.recv_timeout(FOR_EVER).unwrap();
                assert_eq!(number, expected);
                held.push(buffer);
            }
        });
    }
}

/// A clone that is dropped ends no wait of another.
#[test]
fn clones_wait_apart() {
    let (provider, held) = at_the_cap();
    let clone = provider.clone();
    let mut waits = pin!(clone.request(CAP / 4).wait_async());
    let waker = Waker::from(Arc::new(Woken::default()));
    let mut context = Context::from_waker(&waker);
    assert!(waits.as_mut().poll(&mut context).is_pending());
    drop(provider);
    drop(held);
    assert_eq!(block_on(waits).unwrap().len(), CAP / 4);
}
