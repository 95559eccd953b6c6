//! The clock that processes share: CLOCK_MONOTONIC.

use nix::time::{clock_gettime, ClockId};
use std::hint::{black_box, spin_loop};
use std::time::Duration;

/// Nanoseconds of the monotonic clock.
#[inline]
pub(crate) fn now() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every Linux has this clock");
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

/// Looks at the clock until a time of it has come.
pub(crate) fn spin_until(time: u64) {
    while now() < time {
        spin_loop();
    }
}

/// Sleeps until a time of the clock has come. Wakes later than that, as everybody who sleeps.
pub(crate) fn sleep_until(time: u64) {
    while let Some(left) = time.checked_sub(now()).filter(|&left| left > 0) {
        std::thread::sleep(Duration::from_nanos(left));
    }
}

/// What reading a clock takes, in nanoseconds.
pub(crate) fn cost<T>(read: impl Fn() -> T) -> f64 {
    const READS: u32 = 100_000;
    let start = now();
    for _ in 0..READS {
        black_box(read());
    }
    (now() - start) as f64 / f64::from(READS)
}
