//! A bell: how the one side of a channel wakes the other, and how the kernel does it in its place when it dies.
//!
//! Each bell is a 32-bit word in shared memory that one side, the *ringer*, rings, and on which the other, the *sleeper*, sleeps by
//! a shared futex. The kernel knows the layout (see `man 2 get_robust_list`):
//!
//! | bits | meaning |
//! |---|---|
//! | 0 to 29 | the thread that holds the bell for the ringer's process (see `keeper`); 0 before there is a ringer |
//! | 30 | the ringer is gone: set by the kernel when that thread dies, or by the ringer when it leaves |
//! | 31 | the sleeper sleeps, or is about to |
//!
//! When a process dies, in whatever way, the kernel sets bit 30 of all bells that it holds, and wakes the sleeper where bit 31 is set. No
//! heartbeat, no probing, no timeout.
//!
//! # No wake-up is lost
//!
//! | step | sleeper: [`Bell::wait`] | step | ringer: [`Bell::ring`] |
//! |---|---|---|---|
//! | S1 | set bit 31 | W1 | make ready (send, or make room) |
//! | S2 | full fence | W2 | full fence |
//! | S3 | is it ready? then go on | W3 | is bit 31 set? then clear it and wake |
//! | S4 | sleep, if the word is unchanged | | |
//!
//! One of the fences comes first, so either S3 sees W1, or W3 sees S1; and if W3 clears the bit before S4, the kernel finds the word
//! changed and S4 returns at once.
//!
//! # Killed at any instruction
//!
//! As long as the sleeper may sleep, bit 31 is set: clearing it and waking is one system call (`FUTEX_WAKE_OP`), so that no ringer can
//! die in between and leave a sleeper whom nobody wakes. A ringer that dies anywhere else is rung for by the kernel.

use crate::sync::{fence, Futex, Ordering};
use std::time::Duration;

/// See the module's text; the numbers are the kernel's.
const HOLDER: u32 = libc::FUTEX_TID_MASK;
const GONE: u32 = libc::FUTEX_OWNER_DIED;
const SLEEPS: u32 = libc::FUTEX_WAITERS;

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    Ready,
    /// The ringer is gone.
    Gone,
    TimedOut,
}

/// See the module's text.
#[repr(transparent)]
pub(super) struct Bell(Futex);

impl Bell {
    /// A bell in private memory, held by `holder`, for the models.
    #[cfg(all(test, loom))]
    pub(super) fn new(holder: u32) -> Self {
        Self(Futex::new(holder))
    }

    /// Makes `holder` the thread whose death rings this bell. `false` if somebody holds, or held, it already.
    pub(super) fn hold(&self, holder: u32) -> bool {
        let mut old = self.0.load(Ordering::Relaxed);
        loop {
            if old & (HOLDER | GONE) != 0 {
                return false;
            }
            // Release: what the ringer has prepared; partner of the Acquire in `wait` and `is_held`.
            match self.0.compare_exchange(old, old | holder & HOLDER, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => old = now,
            }
        }
    }

    /// Is there a ringer, and has it not gone?
    #[inline]
    pub(super) fn is_held(&self) -> bool {
        let word = self.0.load(Ordering::Acquire);
        word & GONE == 0 && word & HOLDER != 0
    }

    /// Was there a ringer that has gone?
    #[inline]
    pub(super) fn is_gone(&self) -> bool {
        self.0.load(Ordering::Acquire) & GONE != 0
    }

    /// Wakes the sleeper if it sleeps.
    #[inline]
    pub(super) fn ring(&self) {
        fence(Ordering::SeqCst); // W2, partner of S2
        if self.0.load(Ordering::Relaxed) & SLEEPS != 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        self.0.clear_and_wake(SLEEPS.trailing_zeros());
    }

    /// The ringer leaves: rings for the last time.
    pub(super) fn leave(&self) {
        // Release: what was done before is seen by who finds the ringer gone.
        self.0.fetch_or(GONE, Ordering::Release);
        self.wake();
    }

    /// Sleeps until `is_ready`, or the ringer is gone, or the deadline has passed. What is ready goes first.
    pub(super) fn wait(&self, deadline: Option<Deadline>, mut is_ready: impl FnMut() -> bool) -> Woken {
        loop {
            // S1. Acquire: partner of `leave`.
            let word = self.0.fetch_or(SLEEPS, Ordering::Acquire) | SLEEPS;
            fence(Ordering::SeqCst); // S2, partner of W2
            if is_ready() {
                return Woken::Ready; // S3
            }
            if word & GONE != 0 {
                return Woken::Gone;
            }
            let in_time = self.0.sleep_while(word, deadline.as_ref().map(|deadline| &deadline.0));
            // Before bit 31 is set again, which would cost the next ringer a call for nobody.
            if is_ready() {
                return Woken::Ready;
            }
            if !in_time {
                return Woken::TimedOut;
            }
        }
    }
}

/// A point of the monotonic clock.
#[derive(Clone, Copy)]
pub(super) struct Deadline(libc::timespec);

fn now() -> libc::timespec {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place to write to. It cannot fail: every Linux has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now
}

impl Deadline {
    pub(super) fn has_passed(self) -> bool {
        let now = now();
        (now.tv_sec, now.tv_nsec) >= (self.0.tv_sec, self.0.tv_nsec)
    }

    /// So far from now; `None` if that is further than the clock goes.
    pub(super) fn after(timeout: Duration) -> Option<Self> {
        let now = now();
        let nanos = now.tv_nsec + libc::c_long::from(timeout.subsec_nanos() as i32);
        let (carry, tv_nsec) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
        let seconds = libc::time_t::try_from(timeout.as_secs()).ok()?;
        let tv_sec = now.tv_sec.checked_add(seconds)?.checked_add(carry)?;
        Some(Self(libc::timespec { tv_sec, tv_nsec }))
    }
}
