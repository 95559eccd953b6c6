//! For futures: an executor for one, which is the calling thread, and wakers for tests.

use std::future::Future;
use std::pin::{pin, Pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{mpsc, Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks on a future, with this thread as the executor.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// A waker that does nothing.
pub fn noop_waker() -> Waker {
    struct Noop;

    impl Wake for Noop {
        fn wake(self: Arc<Self>) {}
    }

    Waker::from(Arc::new(Noop))
}

/// Polls a future once. Returns its output, or `None` if it is pending.
pub fn poll_once<F: Future>(future: Pin<&mut F>, waker: &Waker) -> Option<F::Output> {
    match future.poll(&mut Context::from_waker(waker)) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// A number of wake-ups.
#[derive(Debug, Default)]
pub struct Woken(AtomicUsize);

impl Woken {
    /// Returns the number so far.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A waker that reports through the channel that it was called. Of several reports, one is kept.
pub fn reporting_waker() -> (Waker, mpsc::Receiver<()>) {
    struct Reports(mpsc::SyncSender<()>);

    impl Wake for Reports {
        fn wake(self: Arc<Self>) {
            let _ = self.0.try_send(());
        }
    }

    let (sender, reports) = mpsc::sync_channel(1);
    let waker = Waker::from(Arc::new(Reports(sender)));
    (waker, reports)
}

/// A waker that panics.
pub fn panicking_waker() -> Waker {
    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("this panic is part of the test");
        }
    }

    Waker::from(Arc::new(Panics))
}

/// A waker whose `wake` blocks: it sends a message through the first channel, and returns once the
/// other end of the second one is dropped.
pub fn blocking_waker() -> (Waker, mpsc::Receiver<()>, mpsc::Sender<()>) {
    struct Blocks {
        called: Mutex<mpsc::Sender<()>>,
        may_return: Mutex<mpsc::Receiver<()>>,
    }

    impl Wake for Blocks {
        fn wake(self: Arc<Self>) {
            self.called.lock().unwrap().send(()).unwrap();
            let _ = self.may_return.lock().unwrap().recv();
        }
    }

    let (called, is_called) = mpsc::channel();
    let (go, may_return) = mpsc::channel();
    let blocks = Blocks {
        called: Mutex::new(called),
        may_return: Mutex::new(may_return),
    };
    (Waker::from(Arc::new(blocks)), is_called, go)
}
