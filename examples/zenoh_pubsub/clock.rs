//! A clock that all processes of a machine read the same: nanoseconds since some start that they share.
//!
//! `Instant` has no number that another process could use, and `SystemTime` jumps when somebody sets the clock.

#![allow(unsafe_code)] // the one system call of this example that the standard library does not offer

/// Nanoseconds of CLOCK_MONOTONIC.
pub(crate) fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of this frame.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    // Fails only for an unknown clock or a bad pointer.
    assert_eq!(failed, 0, "Linux has a monotonic clock");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
