//! Threads beside a test's own: one that sleeps until it is woken, and one that repeats something.

#![allow(dead_code)] // not all of it by every test program

use nix::unistd::gettid;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Waits until a thread of this process sleeps on a futex.
pub(crate) fn wait_until_asleep(thread: i32) {
    let path = format!("/proc/self/task/{thread}/syscall");
    let futexes = [
        libc::SYS_futex.to_string(),
        libc::SYS_futex_waitv.to_string(),
    ];
    loop {
        let call = fs::read_to_string(&path).expect("a thread that lives");
        let number = call.split(' ').next().unwrap_or_default();
        if futexes.iter().any(|futex| futex == number) {
            return;
        }
        thread::yield_now();
    }
}

/// Runs `sleep` in a thread, and `wake` once that thread sleeps. Returns the result, and how long
/// `sleep` went on after that.
pub(crate) fn wake_waiter<T: Send>(
    sleep: impl FnOnce() -> T + Send,
    wake: impl FnOnce(),
) -> (T, Duration) {
    wake_waiter_after(|_| (), sleep, wake)
}

/// The same, with another step before `wake`, which is given the thread.
pub(crate) fn wake_waiter_after<T: Send>(
    step: impl FnOnce(i32),
    sleep: impl FnOnce() -> T + Send,
    wake: impl FnOnce(),
) -> (T, Duration) {
    let (tell, threads) = mpsc::channel();
    thread::scope(|scope| {
        let sleeping = scope.spawn(move || {
            tell.send(gettid().as_raw()).unwrap();
            (sleep(), Instant::now())
        });
        let thread = threads.recv().unwrap();
        wait_until_asleep(thread);
        step(thread);
        let start = Instant::now();
        wake();
        let (result, end) = sleeping.join().unwrap();
        (result, end - start)
    })
}

/// Checks that the quickest of three tries takes less than half a second: the once-a-second check
/// would be slower.
pub(crate) fn assert_prompt(attempt: impl FnMut() -> Duration) {
    let quickest = std::iter::repeat_with(attempt).take(3).min().unwrap();
    assert!(
        quickest < Duration::from_millis(500),
        "{quickest:?}: only the once-a-second check found it"
    );
}

/// Calls `repeated` in another thread, over and over until `work` has ended. Returns the result of
/// `work`, and how often `repeated` was called.
pub(crate) fn beside<T, R>(
    mut repeated: impl FnMut() -> R + Send,
    work: impl FnOnce() -> T,
) -> (T, u64) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let at_the_end = SetOnDrop(&is_over);
        let repeating = scope.spawn(|| {
            let mut count = 0;
            while !is_over.load(Ordering::Relaxed) {
                repeated();
                count += 1;
            }
            count
        });
        let result = work();
        drop(at_the_end);
        (result, repeating.join().unwrap())
    })
}

/// Sets the flag on drop, which ends a test's other threads also when the test fails.
pub(crate) struct SetOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
