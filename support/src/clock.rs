//! The clock that processes share, CLOCK_MONOTONIC, and those of the processor's time.

use nix::time::{clock_gettime, ClockId};
use std::hint::black_box;
use std::time::Duration;

/// Nanoseconds of the monotonic clock.
#[inline]
pub fn now() -> u64 {
    read(ClockId::CLOCK_MONOTONIC)
}

/// The processor's time that this process has used in all threads, and in the kernel, in
/// nanoseconds.
pub fn process_cpu() -> u64 {
    read(ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

/// The processor's time that this thread has used, in nanoseconds.
pub fn thread_cpu() -> u64 {
    read(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

#[inline]
fn read(clock: ClockId) -> u64 {
    let now = clock_gettime(clock).expect("every Linux has this clock");
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

/// Sleeps until a time of the clock has come. Wakes later than that, as everybody who sleeps.
pub fn sleep_until(time: u64) {
    while let Some(left) = time.checked_sub(now()).filter(|&left| left > 0) {
        std::thread::sleep(Duration::from_nanos(left));
    }
}

/// What reading a clock takes, in nanoseconds.
pub fn cost<T>(read: impl Fn() -> T) -> f64 {
    const READS: u32 = 100_000;
    let start = now();
    for _ in 0..READS {
        black_box(read());
    }
    (now() - start) as f64 / f64::from(READS)
}
