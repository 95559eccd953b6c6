//! Threads that wait for memory beside a process that is killed while it releases some, and threads
//! that release memory beside an owner that is killed while it waits.

#![forbid(unsafe_code)]

use crate::calls::FUTEX_WAITV;
use shm_pool::{Provider, ShmBytesMut};
use std::fs;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Arc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

/// Far longer than any wait may take. Only a lost wake-up takes as long.
const FOR_EVER: Duration = Duration::from_secs(60);

/// A wait that has begun, and the memory that it waits for.
pub(crate) struct Wait {
    thread: JoinHandle<()>,
    outcome: mpsc::Receiver<usize>,
    held: Vec<ShmBytesMut>,
}

impl Wait {
    /// Takes all available memory, and begins to wait for `len` bytes. When this returns, the owner
    /// listens to its doorbell.
    pub(crate) fn begin(provider: &Arc<Provider>, len: usize) -> Self {
        let held = std::iter::from_fn(|| provider.alloc(len).ok()).collect();
        let (tell, outcome) = mpsc::channel();
        let (tell_begun, begun) = mpsc::channel();
        let provider = provider.clone();
        let thread = thread::spawn(move || {
            let future = provider.request(len).wait_async();
            let buffer = block_on(future, || {
                tell_begun.send(()).expect("the test waits for this")
            });
            let buffer = buffer.expect("memory has come back");
            // After a failure, the test no longer waits.
            let _ = tell.send(buffer.len());
        });
        begun.recv().expect("a wait");
        Self {
            thread,
            outcome,
            held,
        }
    }

    /// Waits until the memory arrives, then releases all of it.
    pub(crate) fn end(self) {
        self.outcome
            .recv_timeout(FOR_EVER)
            .expect("whoever waits for what the dead had gets it");
        self.thread
            .join()
            .expect("a thread that has got its memory");
        drop(self.held);
    }
}

/// Blocks on a future. Calls `meanwhile` once the wait has begun, if the future is not ready at
/// once.
pub(crate) fn block_on<T>(future: impl Future<Output = T>, meanwhile: impl FnOnce()) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    let mut meanwhile = Some(meanwhile);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => match meanwhile.take() {
                Some(meanwhile) => meanwhile(),
                None => thread::park(),
            },
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Releases the memory that a thread waits for as soon as the thread sleeps, or when this is
/// dropped.
pub(crate) struct Giver {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// How often a giver checks whether the thread sleeps. The kernel sends no notification.
const LOOK: Duration = Duration::from_micros(200);

impl Giver {
    pub(crate) fn start(thread: u64, give: impl FnOnce() + Send + 'static) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let end = is_over.clone();
        let give = move || {
            while !end.load(Ordering::Relaxed) && !is_asleep(thread) {
                thread::sleep(LOOK);
            }
            give();
        };
        Self {
            is_over,
            thread: Some(thread::spawn(give)),
        }
    }
}

impl Drop for Giver {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Returns `true` if this thread is in a system call by which one process waits for another.
/// Threads of one process that wait for each other use another operation of the futex call.
fn is_asleep(thread: u64) -> bool {
    // A dead thread, or one that the kernel does not show, cannot be waited for.
    let Ok(call) = fs::read_to_string(format!("/proc/{thread}/syscall")) else {
        return true;
    };
    // A tracer may have stopped it at the beginning of the call.
    let state = fs::read_to_string(format!("/proc/{thread}/stat")).unwrap_or_default();
    if !state.contains(") S ") {
        return false;
    }
    let mut words = call.split(' ');
    let number = words.next().unwrap_or_default();
    let operation = words.nth(1).unwrap_or_default();
    let waits = number == libc::SYS_futex.to_string()
        && operation == format!("{:#x}", libc::FUTEX_WAIT_BITSET);
    waits || number == FUTEX_WAITV.to_string()
}
