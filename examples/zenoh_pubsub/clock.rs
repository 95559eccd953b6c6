//! Clocks that the standard library does not have.

use nix::time::{clock_gettime, ClockId};
use std::time::Duration;

/// Nanoseconds since some start that all processes of a machine share. `Instant` has no number that another process
/// could use, and `SystemTime` jumps when somebody sets the clock.
pub(crate) fn now() -> u64 {
    read(ClockId::CLOCK_MONOTONIC).as_nanos() as u64
}

/// How long this process has been running on any processor, in all of its threads, and in the kernel on its behalf.
pub(crate) fn cpu() -> Duration {
    read(ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

fn read(clock: ClockId) -> Duration {
    // Fails only for a clock that is unknown.
    clock_gettime(clock).expect("Linux has this clock").into()
}
