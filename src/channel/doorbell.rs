//! A doorbell: one side of a channel wakes the other with it, and the kernel notifies it for a side
//! that dies.
//!
//! A 32-bit word in shared memory, which the *notifier* notifies, and on which the *waiter* sleeps
//! by a shared futex. The kernel knows the layout (`man 2 get_robust_list`):
//!
//! | bits | meaning |
//! |---|---|
//! | 0 to 29 | the thread that holds the doorbell for the notifier's process (see `robust_list`); 0 before a notifier holds it, and after it left |
//! | 30 | with a notifier: it has notified; without: the notifier has left |
//! | 31 | the waiter sleeps, or is about to |
//!
//! However a process dies, the kernel clears the thread in every doorbell that it holds, sets bit
//! 30, and wakes the waiter if bit 31 is set. A notifier that leaves does the same. Bit 31 stays
//! set as long as the waiter may sleep, so a death between W4 and W5 wakes it too.
//!
//! # No wake-up is lost
//!
//! | step | waiter: [`Doorbell::wait`] | step | notifier: [`Doorbell::notify`] |
//! |---|---|---|---|
//! | S1 | set bit 31, clear bit 30 | W1 | make ready (send, or free a slot) |
//! | S2 | full fence | W2 | full fence |
//! | S3 | if ready, return | W3 | if bit 31 is set and bit 30 is clear: |
//! | S4 | sleep, if the word is unchanged | W4 | set bit 30 |
//! | | | W5 | wake |
//!
//! One of the fences comes first, so either S3 sees W1, or W3 sees S1, and W4 changes the word: S4
//! finds it changed, or W5 follows S4. If S1 clears the bit that W4 set, it has read W4, and so S3
//! sees W1. A notifier does not notify again until the next S1.
//!
//! * A task does S1 to S3 itself ([`Doorbell::announce_wait`]), and a helper thread S4 (see `parker`). A
//!   wait for several channels does S1 for each, then S3, then S4 for all (see `wait_any`).
//! * A receiver that returns a borrowed buffer makes W2 a light barrier (see `barrier`); a sender
//!   that sleeps for a return makes S2 the heavy one. Where the kernel has none, the sender may
//!   wake only at its next check.
//! * An [`Interrupter`](super::Interrupter) ends the wait without touching the doorbell: S4 sleeps
//!   on its word too (see `interrupt`).
//!
//! Before W4 the notifier notes its CPU, the time, and how long it has been awake beside the word, for
//! the waiter's next wait (see `spin`).
//!
//! Another process of the same user can write to the word. So a waiting end checks once a second,
//! over however many waits, whether it is ready and the notifier's process still holds its lock:
//! garbage only delays a wake-up. A sender remembers that it has seen its receiver, so garbage
//! cannot make a dead one look as if it had yet to join.
//!
//! When a notifier dies, the kernel wakes one waiter. A second one, such as a forked child, notices
//! at its next check. So does a receiver that is not connected yet, whose doorbell has no notifier.
//! It may have joined a publisher that is just being torn down, so it checks after 1, 2, 4 …
//! milliseconds first.

#![forbid(unsafe_code)]

use super::interrupt::{self, Interrupts};
use super::spin::LastNotify;
use crate::os::futex::{Deadline, Futex};
use crate::sync::{fence, fence_after_rmw, Ordering};
use std::time::Duration;

/// The bits of the word; the values are the kernel's.
const HOLDER: u32 = libc::FUTEX_TID_MASK;
const NOTIFIED_OR_LEFT: u32 = libc::FUTEX_OWNER_DIED;
const SLEEPS: u32 = libc::FUTEX_WAITERS;

#[inline]
fn is_free(word: u32) -> bool {
    word & (HOLDER | NOTIFIED_OR_LEFT) == 0
}

#[inline]
fn is_disconnected(word: u32) -> bool {
    word & (HOLDER | NOTIFIED_OR_LEFT) == NOTIFIED_OR_LEFT
}

/// Returns `true` if the notifier has notified since the last S1, or has left.
pub(super) fn is_notified(word: u32) -> bool {
    word & NOTIFIED_OR_LEFT != 0
}

/// Returns `true` if the waiter sleeps, or is about to, and was not notified.
pub(super) fn is_asleep(word: u32) -> bool {
    word & (SLEEPS | NOTIFIED_OR_LEFT) == SLEEPS
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WakeReason {
    Ready,
    Disconnected,
    TimedOut,
    /// An [`Interrupter`](super::Interrupter) ended the wait.
    Interrupted,
}

#[repr(C)]
pub(super) struct Doorbell(Futex, LastNotify);

impl Doorbell {
    #[cfg(test)]
    pub(super) fn new(holder: u32) -> Self {
        Self(Futex::new(holder), LastNotify::none())
    }

    /// If `is_wanted` is true of the word, replaces it with the result of `next`, and returns that.
    fn change(&self, is_wanted: impl Fn(u32) -> bool, next: impl Fn(u32) -> u32) -> Option<u32> {
        let mut old = self.0.load(Ordering::Acquire);
        while is_wanted(old) {
            let new = next(old);
            // AcqRel: what either side did before it changed the word.
            let changed = self
                .0
                .compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire);
            match changed {
                Ok(_) => return Some(new),
                Err(now) => old = now,
            }
        }
        None
    }

    /// Makes `holder` the thread whose death notifies this doorbell, unless it has, or had, one.
    pub(super) fn hold(&self, holder: u32) -> bool {
        let held = self.change(is_free, |word| word | holder & HOLDER);
        held.is_some()
    }

    #[inline]
    pub(super) fn was_held(&self) -> bool {
        // Acquire: partner of the Release in `hold`.
        !is_free(self.0.load(Ordering::Acquire))
    }

    #[inline]
    pub(super) fn is_held(&self) -> bool {
        // Acquire: partner of the Release in `hold`.
        self.0.load(Ordering::Acquire) & HOLDER != 0
    }

    #[inline]
    pub(super) fn is_disconnected(&self) -> bool {
        // Acquire: partner of the Release in `leave`.
        is_disconnected(self.0.load(Ordering::Acquire))
    }

    #[inline]
    pub(super) fn notify(&self) {
        if self.fence() {
            self.wake(); // W3
        }
    }

    /// W2. Returns `true` if [`notify_after_fence`](Self::notify_after_fence) must follow.
    #[inline]
    pub(super) fn fence(&self) -> bool {
        fence(Ordering::SeqCst); // W2, partner of S2
        self.is_slept_on()
    }

    /// [`notify`](Self::notify) for a notifier whose W1 was a successful read-modify-write.
    #[inline]
    pub(super) fn ring_after_rmw(&self) {
        fence_after_rmw(); // W2, partner of S2
        self.notify_after_fence();
    }

    /// [`notify`](Self::notify) for a notifier that has made W2 itself, for several doorbells.
    #[inline]
    pub(super) fn notify_after_fence(&self) {
        if self.is_slept_on() {
            self.wake(); // W3
        }
    }

    #[cold]
    fn wake(&self) {
        self.1.note();
        // Release: partner of the Acquire in S1.
        self.0.fetch_or(NOTIFIED_OR_LEFT, Ordering::Release); // W4
        self.0.wake(); // W5
    }

    /// Closes the doorbell to notifiers, unless it has, or had, one.
    pub(super) fn close(&self) {
        self.change(is_free, |word| word | NOTIFIED_OR_LEFT);
    }

    pub(super) fn leave(&self) {
        self.change(|_| true, |word| word & SLEEPS | NOTIFIED_OR_LEFT);
        self.0.wake();
    }

    /// S1 and S2. Returns the word, or `None` if the notifier has left. Check readiness next, which
    /// comes first.
    pub(super) fn announce_wait(&self) -> Option<u32> {
        let begun = self.change(
            |word| !is_disconnected(word),
            |word| word & !NOTIFIED_OR_LEFT | SLEEPS,
        ); // S1
        fence(Ordering::SeqCst); // S2, partner of W2
        begun
    }

    #[inline]
    pub(super) fn is_slept_on(&self) -> bool {
        is_asleep(self.0.load(Ordering::Relaxed))
    }

    /// Clears bit 31 unless the doorbell was notified: the next ring needs no system call.
    pub(super) fn end_wait(&self) {
        self.change(is_asleep, |word| word & !SLEEPS);
    }

    pub(super) fn word(&self) -> &Futex {
        &self.0
    }

    pub(super) fn last_notify(&self) -> &LastNotify {
        &self.1
    }

    /// Sleeps until `is_ready` returns `true`, an interrupt arrives, the notifier has left, or the
    /// deadline has passed; the first of these takes precedence. `is_there`, a system call, returns
    /// `true` while the notifier holds its lock, or if it never did.
    pub(super) fn wait(
        &self,
        deadline: Option<Deadline>,
        check: &mut LivenessCheck,
        interrupts: &Interrupts,
        is_ready: impl FnMut() -> bool,
        is_there: impl Fn() -> bool,
    ) -> WakeReason {
        interrupts.begin_wait(); // J1
        let woken = self.sleep(deadline, check, interrupts, is_ready, is_there);
        self.end_wait();
        interrupts.end_wait(); // J5
        woken
    }

    /// If a check is due and the notifier is dead, leaves on its behalf and returns `true`.
    pub(super) fn check_notifier(
        &self,
        check: &mut LivenessCheck,
        is_there: impl Fn() -> bool,
    ) -> bool {
        let is_lost = check.is_due() && !is_there();
        if is_lost {
            self.leave();
        }
        is_lost
    }

    fn sleep(
        &self,
        deadline: Option<Deadline>,
        check: &mut LivenessCheck,
        interrupts: &Interrupts,
        mut is_ready: impl FnMut() -> bool,
        is_there: impl Fn() -> bool,
    ) -> WakeReason {
        loop {
            let begun = self.announce_wait(); // S1, S2
            if is_ready() {
                return WakeReason::Ready; // S3, J2
            }
            if let Some(woken) = take_interrupt(interrupts, &mut is_ready) {
                return woken; // J3
            }
            let Some(word) = begun else {
                return WakeReason::Disconnected;
            };
            if self.check_notifier(check, &is_there) {
                // Its last message is visible now.
                return if is_ready() {
                    WakeReason::Ready
                } else {
                    WakeReason::Disconnected
                };
            }
            if Deadline::is_past(deadline) {
                return WakeReason::TimedOut;
            }
            let until = Deadline::first(deadline, check.time());
            interrupt::sleep_while(&self.0, word, std::iter::once(interrupts), until); // S4, J4

            // Before S1 clears the bit that says it was notified.
            if is_ready() {
                return WakeReason::Ready;
            }
        }
    }
}

pub(super) const LOOKS: usize = 64;

pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The same for a receiver that is not connected yet, before its first check.
const FIRST_INTERVAL: Duration = Duration::from_millis(1);

/// When to check next that the notifier is alive, over many short waits.
#[derive(Clone, Copy)]
pub(super) struct LivenessCheck {
    next: Option<Deadline>,
    /// The one that ends then.
    interval: Duration,
}

impl LivenessCheck {
    /// Checks once a second.
    pub(super) fn new() -> Self {
        Self::after(CHECK_INTERVAL)
    }

    /// Checks after 1, 2, 4 … milliseconds, and then once a second: for a receiver that is not
    /// connected yet.
    pub(super) fn soon() -> Self {
        Self::after(FIRST_INTERVAL)
    }

    fn after(interval: Duration) -> Self {
        Self {
            next: Deadline::after(interval),
            interval,
        }
    }

    /// One check is due now, and the next one in a second.
    #[cfg(all(test, loom))]
    pub(super) fn due() -> Self {
        Self {
            next: Deadline::after(Duration::ZERO),
            interval: CHECK_INTERVAL,
        }
    }

    pub(super) fn time(self) -> Option<Deadline> {
        self.next
    }

    /// Returns `true` if the next check is one of those that are made once a second.
    pub(super) fn is_regular(self) -> bool {
        self.interval == CHECK_INTERVAL
    }

    /// Returns `true` if a check is due, and then sets the time of the next one.
    pub(super) fn is_due(&mut self) -> bool {
        let is_due = Deadline::is_past(self.next);
        if is_due {
            self.begin_next();
        }
        is_due
    }

    /// A check is made now. Sets the time of the next one.
    pub(super) fn begin_next(&mut self) {
        *self = Self::after(CHECK_INTERVAL.min(2 * self.interval));
    }
}

/// Takes the interrupt if there is one, unless the wait is ready: what was made ready before the
/// interrupt takes precedence.
#[inline]
pub(super) fn take_interrupt(
    interrupts: &Interrupts,
    is_ready: impl FnOnce() -> bool,
) -> Option<WakeReason> {
    if !interrupts.is_set() {
        return None;
    }
    if is_ready() {
        return Some(WakeReason::Ready);
    }
    interrupts.take();
    Some(WakeReason::Interrupted)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn intervals_of_checks() {
        assert!(LivenessCheck::new().is_regular());

        let mut check = LivenessCheck::soon();
        let mut intervals = Vec::new();
        while !check.is_regular() {
            intervals.push(check.interval.as_millis());
            check.begin_next();
        }
        assert_eq!(intervals, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]);
        check.begin_next();
        assert_eq!(check.interval, CHECK_INTERVAL);
    }
}
