//! The clock that processes share, CLOCK_MONOTONIC, and the CPU time clocks.

use nix::time::{clock_gettime, ClockId};
use std::hint::black_box;
use std::thread;
use std::time::Duration;

/// Returns the nanoseconds of the monotonic clock.
#[inline]
pub fn now() -> u64 {
    read(ClockId::CLOCK_MONOTONIC)
}

/// Returns the CPU time of this process, in all threads and in the kernel, in nanoseconds.
pub fn process_cpu() -> u64 {
    read(ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

/// Returns the CPU time of this thread, also in the kernel, in nanoseconds.
pub fn thread_cpu() -> u64 {
    read(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

#[inline]
fn read(clock: ClockId) -> u64 {
    let now = clock_gettime(clock).expect("every Linux has this clock");
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

/// Sleeps until the clock reaches a time. Wakes somewhat later, like any sleep.
pub fn sleep_until(time: u64) {
    loop {
        let left = time.saturating_sub(now());
        if left == 0 {
            return;
        }
        thread::sleep(Duration::from_nanos(left));
    }
}

/// Returns the cost of reading a clock, in nanoseconds.
pub fn cost<T>(read: impl Fn() -> T) -> f64 {
    const READS: u32 = 100_000;
    let start = now();
    for _ in 0..READS {
        black_box(read());
    }
    (now() - start) as f64 / f64::from(READS)
}
