//! Points in time on the monotonic clock, as futexes take them.

use std::time::Duration;

/// A point in time on the monotonic clock.
#[derive(Clone, Copy)]
pub(crate) struct Deadline(libc::timespec);

fn now() -> libc::timespec {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid place to write to. The call cannot fail: every Linux has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now
}

impl Deadline {
    /// Returns a pointer for system calls, valid for as long as `self` lives.
    pub(crate) fn as_ptr(&self) -> *const libc::timespec {
        &self.0
    }

    pub(crate) fn has_passed(self) -> bool {
        let now = now();
        (now.tv_sec, now.tv_nsec) >= (self.0.tv_sec, self.0.tv_nsec)
    }

    /// Returns the time left; zero if the deadline has passed.
    pub(crate) fn left(self) -> Duration {
        let since_start = |time: libc::timespec| Duration::new(time.tv_sec as u64, time.tv_nsec as u32);
        since_start(self.0).saturating_sub(since_start(now()))
    }

    /// Returns the earlier deadline; `None` never passes.
    pub(crate) fn first(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        let (Some(a), Some(b)) = (one, other) else { return one.or(other) };
        Some(if (a.0.tv_sec, a.0.tv_nsec) <= (b.0.tv_sec, b.0.tv_nsec) { a } else { b })
    }

    /// Returns a deadline `timeout` from now, or `None` if the clock cannot represent it.
    pub(crate) fn after(timeout: Duration) -> Option<Self> {
        let now = now();
        let nanos = now.tv_nsec + libc::c_long::from(timeout.subsec_nanos() as i32);
        let (carry, tv_nsec) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
        let seconds = libc::time_t::try_from(timeout.as_secs()).ok()?;
        let tv_sec = now.tv_sec.checked_add(seconds)?.checked_add(carry)?;
        Some(Self(libc::timespec { tv_sec, tv_nsec }))
    }
}
