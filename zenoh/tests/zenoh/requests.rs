//! Requests to a buffer pool: aligned, typed, zeroed, and waiting ones.

use crate::support::{assert_all_back, backend, exhaust, is_filled, CAP, LARGE, MINUTE, SMALL};
use shm_pool::{AllocError, Provider};
use shm_pool_support::tasks::{block_on, noop_waker, panicking_waker, poll_once, reporting_waker};
use shm_pool_zenoh::BufferPool;
use std::alloc::Layout;
use std::pin::pin;
use std::thread;
use zenoh::bytes::ZBytes;
use zenoh::shm::{ShmBuf, Typed};

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

#[test]
fn alignments() {
    let backend = backend();
    let pool = BufferPool::new(&backend);
    for len in [0, 1, 65, 4096, 5000, LARGE, CAP / 4 + 1] {
        for log2 in 0..=12 {
            let align = 1 << log2;
            let request = pool.request(7).layout(layout(len, align));
            let mut buffer = request.alloc().unwrap();
            assert_eq!(buffer.as_ptr() as usize % align, 0);
            assert_eq!(buffer.len(), len);
            buffer.fill(align as u8);
            let address = buffer.as_ptr();
            drop(ZBytes::from(buffer));
            let created = pool.stats().created;
            let mut again = request.zeroed().wait_timeout(MINUTE).unwrap();
            if len <= LARGE {
                assert_eq!(again.as_ptr(), address, "{len} bytes aligned to {align}");
                assert_eq!(
                    pool.stats().created,
                    created,
                    "{len} bytes aligned to {align}"
                );
            }
            assert!(is_filled(&again, 0));
            again.fill(1);
        }
    }
    let error = pool
        .request(0)
        .layout(layout(64, 2 * Provider::MAX_ALIGN))
        .wait()
        .unwrap_err();
    assert_eq!(error, AllocError::UnsupportedAlignment(8192));
    // Small page-aligned buffers are evicted for others, too.
    let aligned = pool.request(0).layout(layout(64, 4096));
    let mut messages = Vec::new();
    while let Ok(buffer) = aligned.alloc() {
        messages.push(ZBytes::from(buffer));
    }
    drop(messages);
    drop(pool.alloc(CAP / 2).unwrap());
    drop(pool);
    assert_all_back(&backend);
}

#[repr(C, align(256))]
struct Pose {
    position: [f64; 3],
    number: u64,
}

/// zenoh's `Typed` works with the buffers of this pool.
#[test]
fn typed() {
    let pool = BufferPool::new(&backend());
    let request = pool.request(0).layout(Layout::new::<Pose>());
    let mut places = Vec::new();
    for number in 0..10 {
        let buffer = request.alloc().unwrap();
        assert!(buffer.is_valid());
        let pose = Typed::new(buffer).unwrap().initialize(Pose {
            position: [1.0, 2.0, 3.0],
            number,
        });
        let message = ZBytes::from(pose);
        let bytes = message.as_shm().expect("it is in shared memory");
        assert_eq!(bytes.len(), size_of::<Pose>());
        assert_eq!(bytes[..8], 1f64.to_ne_bytes());
        assert_eq!(bytes[24..32], number.to_ne_bytes());
        places.push(bytes.as_ptr());
    }
    for &place in &places {
        assert_eq!(
            place, places[0],
            "the next value reuses the buffer of one that was read"
        );
    }
    let of_another_length = pool.alloc(100).unwrap();
    assert!(Typed::<std::mem::MaybeUninit<Pose>, _>::new(of_another_length).is_err());
}

/// Two tasks share a thread. The one that awaits a buffer must not keep the other one, which
/// releases a buffer, from running.
#[test]
fn wait_async() {
    let pool = BufferPool::new(&backend());
    let mut held = exhaust(&pool, LARGE);
    for is_sent in [false, true] {
        let buffer = held.pop().unwrap();
        let waiting = pool.request(LARGE).wait_async();
        let releasing = async move {
            if is_sent {
                drop(ZBytes::from(buffer));
            } else {
                drop(buffer);
            }
        };
        let both = async { tokio::join!(waiting, releasing).0 };
        held.push(block_on(both).unwrap());
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let waiting = pool.request(LARGE).wait_async();
    let releasing = async { drop(held.pop().map(ZBytes::from)) };
    let both = async { tokio::join!(waiting, releasing).0 };
    assert_eq!(runtime.block_on(both).unwrap().len(), LARGE);
    let error = block_on(pool.request(CAP + 1).wait_async()).unwrap_err();
    assert!(
        matches!(error, AllocError::TooLarge { .. }),
        "no wait helps: {error}"
    );
}

/// Awaits a buffer, and returns its length.
async fn await_buffer(pool: &BufferPool, len: usize) -> usize {
    pool.request(len).wait_async().await.unwrap().len()
}

/// No wait of a future or a thread lasts forever.
#[test]
fn many_waiters() {
    let pool = BufferPool::new(&backend());
    let held = exhaust(&pool, SMALL);
    let await_three = || {
        block_on(async {
            tokio::join!(
                await_buffer(&pool, SMALL),
                await_buffer(&pool, 3 * SMALL),
                await_buffer(&pool, SMALL - 9)
            )
        })
    };
    thread::scope(|scope| {
        let mut threads = Vec::new();
        let mut executors = Vec::new();
        for _ in 0..4 {
            threads.push(scope.spawn(|| pool.request(SMALL).wait().unwrap().len()));
        }
        for _ in 0..4 {
            executors.push(scope.spawn(await_three));
        }
        for (at, buffer) in held.into_iter().enumerate() {
            if at % 2 == 0 {
                drop(buffer);
            } else {
                drop(ZBytes::from(buffer));
            }
        }
        for thread in threads {
            assert_eq!(thread.join().unwrap(), SMALL);
        }
        for executor in executors {
            assert_eq!(executor.join().unwrap(), (SMALL, 3 * SMALL, SMALL - 9));
        }
    });
}

/// A future that is dropped, as by a `select!`, loses no buffer, and does not keep the pool.
#[test]
fn cancel_anywhere() {
    let backend = backend();
    let pool = BufferPool::new(&backend);
    let mut random = fastrand::Rng::with_seed(3);
    let mut held = exhaust(&pool, LARGE);
    let all = held.len();
    for _ in 0..200 {
        let mut futures = Vec::new();
        for _ in 0..6 {
            futures.push(Box::pin(pool.request(LARGE).wait_async()));
        }
        let polled = random.usize(..=futures.len());
        for future in &mut futures[..polled] {
            assert!(poll_once(future.as_mut(), &noop_waker()).is_none());
        }
        let released = random.usize(..4);
        for buffer in held.drain(..released) {
            if random.bool() {
                drop(ZBytes::from(buffer));
            } else {
                drop(buffer);
            }
        }
        random.shuffle(&mut futures);
        futures.truncate(random.usize(..=futures.len()));
        for future in &mut futures {
            if let Some(buffer) = poll_once(future.as_mut(), &noop_waker()) {
                held.push(buffer.unwrap());
            }
        }
        drop(futures);
        held.extend(exhaust(&pool, LARGE));
        assert_eq!(held.len(), all);
    }
    let clone = pool.clone();
    let mut last = Box::pin(async move { clone.request(LARGE).wait_async().await });
    assert!(poll_once(last.as_mut(), &noop_waker()).is_none());
    drop((held, pool));
    drop(last);
    assert_all_back(&backend);
}

#[test]
fn cancelled_delivery() {
    let pool = BufferPool::new(&backend());
    let mut held = exhaust(&pool, LARGE);
    let (waker, woken) = reporting_waker();
    let mut future = Box::pin(pool.request(LARGE).wait_async());
    assert!(poll_once(future.as_mut(), &waker).is_none());
    drop(held.pop());
    woken.recv().unwrap();
    assert_eq!(pool.stats().idle, 0, "the future has the buffer");
    drop(future);
    assert_eq!(pool.stats().idle, 1);
}

/// If the waker of one task panics, the other tasks are woken nevertheless.
#[test]
fn waker_panics() {
    let pool = BufferPool::new(&backend());
    let mut held = exhaust(&pool, LARGE);
    let mut first = pin!(pool.request(LARGE).wait_async());
    assert!(poll_once(first.as_mut(), &panicking_waker()).is_none());
    thread::scope(|scope| {
        let second = scope.spawn(|| block_on(pool.request(LARGE).wait_async()).unwrap().len());
        drop((held.pop(), held.pop()));
        assert_eq!(second.join().unwrap(), LARGE);
    });
    assert_eq!(block_on(first).unwrap().len(), LARGE);
}
