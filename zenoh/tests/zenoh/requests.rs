//! Requests to a buffer pool: aligned, typed, zeroed, and those that wait.

use crate::support::{assert_all_back, backend, CAP, LARGE, SMALL};
use shm_pool::{AllocError, Provider};
use shm_pool_support::tasks::block_on;
use shm_pool_support::tasks::noop_waker;
use shm_pool_zenoh::{Buffer, BufferPool};
use std::alloc::Layout;
use std::future::Future;
use std::iter;
use std::pin::{pin, Pin};
use std::sync::mpsc::{self, SyncSender};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;
use zenoh::bytes::ZBytes;
use zenoh::shm::{ShmBuf, Typed};

const MINUTE: Duration = Duration::from_secs(60);

/// Takes all that there is.
fn exhaust(pool: &BufferPool, len: usize) -> Vec<Buffer> {
    iter::from_fn(|| pool.alloc(len).ok()).collect()
}

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

#[test]
fn alignments() {
    let backend = backend();
    let pool = BufferPool::new(&backend);
    for len in [0, 1, 65, 4096, 5000, LARGE, CAP / 4 + 1] {
        for align in
            iter::successors(Some(1), |align| Some(align * 2)).take_while(|&align| align <= 4096)
        {
            let request = pool.request(7).layout(layout(len, align));
            let mut buffer = request.alloc().unwrap();
            assert_eq!((buffer.as_ptr() as usize % align, buffer.len()), (0, len));
            buffer.fill(align as u8);
            let address = buffer.as_ptr();
            drop(ZBytes::from(buffer));
            let made = pool.stats().created;
            let mut again = request.zeroed().wait_timeout(MINUTE).unwrap();
            if len <= LARGE {
                assert_eq!(
                    (again.as_ptr(), pool.stats().created),
                    (address, made),
                    "{len} bytes aligned to {align}"
                );
            }
            assert!(again.iter().all(|&byte| byte == 0));
            again.fill(1);
        }
    }
    let error = pool
        .request(0)
        .layout(layout(64, 2 * Provider::MAX_ALIGN))
        .wait()
        .unwrap_err();
    assert_eq!(error, AllocError::UnsupportedAlignment { align: 8192 });
    // Small page-aligned buffers make way for others, too.
    let aligned = iter::from_fn(|| pool.request(0).layout(layout(64, 4096)).alloc().ok());
    drop(aligned.map(ZBytes::from).collect::<Vec<_>>());
    drop(pool.alloc(CAP / 2).unwrap());
    drop(pool);
    assert_all_back(&backend);
}

#[repr(C, align(256))]
struct Pose {
    position: [f64; 3],
    number: u64,
}

/// A publisher of values need not choose between this pool and zenoh's `Typed`.
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
        assert!(bytes[..8] == 1f64.to_ne_bytes() && bytes[24..32] == number.to_ne_bytes());
        places.push(bytes.as_ptr());
    }
    assert!(
        places.iter().all(|&place| place == places[0]),
        "a value that was read is the next one"
    );
    let of_another_length = pool.alloc(100).unwrap();
    assert!(Typed::<std::mem::MaybeUninit<Pose>, _>::new(of_another_length).is_err());
}

pub(crate) fn poll_once<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(&noop_waker()))
}

/// One thread, one executor: otherwise who awaits keeps those from running whom it waits for.
#[test]
fn wait_async() {
    let pool = BufferPool::new(&backend());
    let mut held = exhaust(&pool, LARGE);
    for is_sent in [false, true] {
        let buffer = held.pop().unwrap();
        let message = move || {
            if is_sent {
                drop(ZBytes::from(buffer))
            } else {
                drop(buffer)
            }
        };
        let waits = async { pool.request(LARGE).wait_async().await.unwrap() };
        let both = async { tokio::join!(waits, async { message() }).0 };
        held.push(block_on(both));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let both = async {
        tokio::join!(pool.request(LARGE).wait_async(), async {
            drop(held.pop().map(ZBytes::from))
        })
        .0
    };
    assert_eq!(runtime.block_on(both).unwrap().len(), LARGE);
    let error = block_on(pool.request(CAP + 1).wait_async()).unwrap_err();
    assert!(
        matches!(error, AllocError::TooLarge { .. }),
        "no wait helps: {error}"
    );
}

/// No wait of a future or a thread lasts forever.
#[test]
fn many_waiters() {
    let pool = BufferPool::new(&backend());
    let (held, pool) = (exhaust(&pool, SMALL), &pool);
    thread::scope(|scope| {
        let threads = [(); 4].map(|()| scope.spawn(|| pool.request(SMALL).wait().unwrap().len()));
        let futures = [(); 4].map(|()| {
            scope.spawn(|| {
                let waits =
                    |len| async move { pool.request(len).wait_async().await.unwrap().len() };
                block_on(async { tokio::join!(waits(SMALL), waits(3 * SMALL), waits(SMALL - 9)) })
            })
        });
        held.into_iter()
            .enumerate()
            .for_each(|(at, buffer)| match at % 2 {
                0 => drop(buffer),
                _ => drop(ZBytes::from(buffer)),
            });
        assert_eq!(threads.map(|thread| thread.join().unwrap()), [SMALL; 4]);
        assert_eq!(
            futures.map(|thread| thread.join().unwrap()),
            [(SMALL, 3 * SMALL, SMALL - 9); 4]
        );
    });
}

/// A `select!` that takes another connection loses no buffer, and does not keep the pool.
#[test]
fn cancel_anywhere() {
    let backend = backend();
    let pool = BufferPool::new(&backend);
    let mut random = fastrand::Rng::with_seed(3);
    let mut held = exhaust(&pool, LARGE);
    let all = held.len();
    for _ in 0..200 {
        let mut futures: Vec<_> = (0..6)
            .map(|_| Box::pin(pool.request(LARGE).wait_async()))
            .collect();
        let polled = random.usize(..=futures.len());
        futures[..polled]
            .iter_mut()
            .for_each(|future| assert!(poll_once(future.as_mut()).is_pending()));
        let freed = random.usize(..4);
        held.drain(..freed).for_each(|buffer| {
            if random.bool() {
                drop(ZBytes::from(buffer))
            }
        });
        random.shuffle(&mut futures);
        futures.truncate(random.usize(..=futures.len()));
        held.extend(
            futures
                .iter_mut()
                .filter_map(|future| match poll_once(future.as_mut()) {
                    Poll::Ready(buffer) => Some(buffer.unwrap()),
                    Poll::Pending => None,
                }),
        );
        drop(futures);
        held.extend(exhaust(&pool, LARGE));
        assert_eq!(held.len(), all);
    }
    let waits = pool.clone();
    let mut last = Box::pin(async move { waits.request(LARGE).wait_async().await });
    assert!(poll_once(last.as_mut()).is_pending());
    drop((held, pool));
    drop(last);
    assert_all_back(&backend);
}

/// Tells that it was called.
struct Bell(SyncSender<()>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.send(()).unwrap();
    }
}

#[test]
fn cancelled_delivery() {
    let pool = BufferPool::new(&backend());
    let mut held = exhaust(&pool, LARGE);
    let (bell, rung) = mpsc::sync_channel(1);
    let waker = Waker::from(Arc::new(Bell(bell)));
    let mut future = Box::pin(pool.request(LARGE).wait_async());
    assert!(future
        .as_mut()
        .poll(&mut Context::from_waker(&waker))
        .is_pending());
    drop(held.pop());
    rung.recv().unwrap();
    assert_eq!(pool.stats().idle, 0, "it is the future's");
    drop(future);
    assert_eq!(pool.stats().idle, 1);
}

/// A waker that panics when it is called.
struct Bad;

impl Wake for Bad {
    fn wake(self: Arc<Self>) {
        panic!("this waker panics, as the test wants");
    }
}

/// One task's waker leaves no other task asleep.
#[test]
fn waker_panics() {
    let pool = BufferPool::new(&backend());
    let mut held = exhaust(&pool, LARGE);
    let mut first = pin!(pool.request(LARGE).wait_async());
    let bad = Waker::from(Arc::new(Bad));
    assert!(first
        .as_mut()
        .poll(&mut Context::from_waker(&bad))
        .is_pending());
    thread::scope(|scope| {
        let second = scope.spawn(|| block_on(pool.request(LARGE).wait_async()).unwrap().len());
        drop((held.pop(), held.pop()));
        assert_eq!(second.join().unwrap(), LARGE);
    });
    assert_eq!(block_on(first).unwrap().len(), LARGE);
}
