//! A bell: one side of a channel wakes the other with it, and the kernel rings it for a side that
//! dies.
//!
//! A bell is a 32-bit word in shared memory. One side, the *ringer*, rings it; the other, the
//! *sleeper*, sleeps on it through a shared futex. The kernel knows the layout (see
//! `man 2 get_robust_list`):
//!
//! | bits | meaning |
//! |---|---|
//! | 0 to 29 | the thread that holds the bell for the ringer's process (see `robust_list`); 0 before a ringer holds the bell, and after it left |
//! | 30 | with a ringer: it has rung; without: the ringer has left |
//! | 31 | the sleeper sleeps, or is about to |
//!
//! However a process dies, the kernel clears the thread in every bell that it holds, sets bit 30,
//! and wakes the sleeper if bit 31 is set. This needs no heartbeat, probing or timeout. A ringer
//! that leaves does the same itself.
//!
//! # No wake-up is lost
//!
//! | step | sleeper: [`Bell::wait`] | step | ringer: [`Bell::ring`] |
//! |---|---|---|---|
//! | S1 | set bit 31, clear bit 30 | W1 | make ready (send, or free a slot) |
//! | S2 | full fence | W2 | full fence |
//! | S3 | if ready, return | W3 | if bit 31 is set and bit 30 is clear: |
//! | S4 | sleep, if the word is unchanged | W4 | set bit 30 |
//! | | | W5 | wake |
//!
//! One of the fences comes first, so either S3 sees W1, or W3 sees S1. In the second case W4
//! changes the word: either the kernel finds it changed and S4 returns at once, or W5 follows S4
//! and wakes the sleeper. If S1 clears the bit that W4 set, S1 has read W4, and so S3 sees W1. A
//! ringer that has rung does not ring again until the sleeper has woken and is about to sleep
//! again.
//!
//! # A sleeper that sleeps elsewhere
//!
//! A task does S1 to S3 itself ([`Bell::lie_down`]), and a helper thread does S4 for it, sleeping
//! on many words at once (see `helper`). A wait for any of several channels does S1 for each of
//! them, then S3, then S4 for all (see `wait_any`).
//!
//! # A light ringer
//!
//! A receiver that returns a loan makes W2 a light barrier, which costs nothing while no thread
//! sleeps (see `barrier`). A sender that sleeps for a loan makes S2 the heavy one. Where the kernel
//! has no such barrier, the sender may wake only at its next check, up to a second later.
//!
//! # Interrupted
//!
//! Another thread of the sleeper's process can make it check again ([`Bell::rouse`]): it sets a
//! flag of its own, which S3 reads too, fences, and if bit 31 is set and bit 30 clear, clears bit
//! 31 and wakes. Either S3 sees the flag, or the word changes under S4, as with a ring. It must not
//! set bit 30: before there is a ringer, that would mean that the ringer has left. A sleeper woken
//! for no reason of its own starts again at S1.
//!
//! # Garbage
//!
//! Another process of the same user can write to the word, even by accident. So a waiting end
//! checks once a second, however short its waits are, whether it is ready and whether the ringer's
//! process still holds its lock. Garbage delays a wake-up but prevents none. A sender that has seen its
//! receiver remembers that, so garbage cannot make a dead receiver look like one that has not joined
//! yet. A receiver that a
//! publisher has not connected yet has a bell without a ringer; it learns of the publisher's death
//! by this check.
//!
//! # More than one sleeper
//!
//! When a ringer dies, the kernel wakes one sleeper. A bell has one by design; a second one, such
//! as a forked child or another process that sleeps on the word, learns of the death within a
//! second, from its own check.
//!
//! # Killed at any instruction
//!
//! Bit 31 stays set as long as the sleeper may sleep. So if the ringer dies between W4 and W5, or
//! anywhere else, the kernel wakes the sleeper.

use crate::os::futex::{Deadline, Futex};
use crate::sync::{fence, fence_after_rmw, Ordering};
use std::time::Duration;

/// The bits of the word, as in the table above. The values are the kernel's.
const HOLDER: u32 = libc::FUTEX_TID_MASK;
const RUNG_OR_GONE: u32 = libc::FUTEX_OWNER_DIED;
const SLEEPS: u32 = libc::FUTEX_WAITERS;

/// Returns `true` if the bell with this word never had a ringer.
#[inline]
fn is_free(word: u32) -> bool {
    word & (HOLDER | RUNG_OR_GONE) == 0
}

/// Returns `true` if the ringer of the bell with this word has left.
#[inline]
fn is_gone(word: u32) -> bool {
    word & (HOLDER | RUNG_OR_GONE) == RUNG_OR_GONE
}

/// Returns `true` if the ringer has rung since the sleeper last ran S1, or has left.
pub(super) fn is_rung(word: u32) -> bool {
    word & RUNG_OR_GONE != 0
}

/// Returns `true` if a sleeper is parked, or about to park, and has not been notified.
pub(super) fn is_asleep(word: u32) -> bool {
    word & (SLEEPS | RUNG_OR_GONE) == SLEEPS
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    Ready,
    /// The ringer has left or died.
    Gone,
    TimedOut,
    /// An [`Interrupter`](super::Interrupter) ended the wait.
    Interrupted,
}

/// A word that one side rings and the other sleeps on.
#[repr(transparent)]
pub(super) struct Bell(Futex);

impl Bell {
    /// A bell in private memory, held by `holder`, for the models.
    #[cfg(all(test, loom))]
    pub(super) fn new(holder: u32) -> Self {
        Self(Futex::new(holder))
    }

    /// Replaces the word with the result of `next`. Returns the old word, or, as `Err`, the word
    /// for which `next` returned `None`.
    fn change(&self, next: impl Fn(u32) -> Option<u32>) -> Result<u32, u32> {
        let mut old = self.0.load(Ordering::Acquire);
        loop {
            // AcqRel: Release what the ringer did before it rings, takes the bell or leaves;
            // Acquire the same.
            match self.0.compare_exchange(old, next(old).ok_or(old)?, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(old),
                Err(now) => old = now,
            }
        }
    }

    /// Makes `holder` the thread whose death rings this bell. Returns `false` if the bell has, or
    /// had, a holder.
    pub(super) fn hold(&self, holder: u32) -> bool {
        self.change(|word| is_free(word).then_some(word | holder & HOLDER)).is_ok()
    }

    /// Returns `true` if there is, or was, a ringer.
    #[inline]
    pub(super) fn was_held(&self) -> bool {
        // Acquire: partner of the Release in `hold`.
        !is_free(self.0.load(Ordering::Acquire))
    }

    /// Returns `true` if there is a ringer now.
    #[inline]
    pub(super) fn is_held(&self) -> bool {
        // Acquire: partner of the Release in `hold`.
        self.0.load(Ordering::Acquire) & HOLDER != 0
    }

    /// Returns `true` if the ringer has left or died.
    #[inline]
    pub(super) fn is_gone(&self) -> bool {
        // Acquire: partner of the Release in `leave`.
        is_gone(self.0.load(Ordering::Acquire))
    }

    /// Wakes the sleeper if it sleeps.
    #[inline]
    pub(super) fn ring(&self) {
        fence(Ordering::SeqCst); // W2, partner of S2
        self.ring_after_fence();
    }

    /// [`ring`](Self::ring) for a ringer whose W1 was a successful read-modify-write.
    #[inline]
    pub(super) fn ring_after_rmw(&self) {
        fence_after_rmw(); // W2, partner of S2
        self.ring_after_fence();
    }

    /// [`ring`](Self::ring) for a ringer that has made the full fence of W2 itself, for several
    /// bells.
    #[inline]
    pub(super) fn ring_after_fence(&self) {
        if self.is_slept_on() {
            self.wake(); // W3
        }
    }

    #[cold]
    fn wake(&self) {
        // Release: partner of the Acquire in S1.
        self.0.fetch_or(RUNG_OR_GONE, Ordering::Release); // W4
        self.0.wake(); // W5
    }

    /// Closes the bell to ringers, unless one has held it already.
    pub(super) fn close(&self) {
        // Has no effect if there is, or was, a ringer.
        let _ = self.change(|word| is_free(word).then_some(word | RUNG_OR_GONE));
    }

    /// Leaves as the ringer, ringing for the last time.
    pub(super) fn leave(&self) {
        // Cannot fail: `next` always returns `Some`.
        let _ = self.change(|word| Some(word & SLEEPS | RUNG_OR_GONE));
        self.0.wake();
    }

    /// S1 and S2: from now on, a ring wakes the sleeper. Returns the word's value, or `None` if the
    /// ringer has left. Readiness takes precedence, so check it next.
    pub(super) fn lie_down(&self) -> Option<u32> {
        let about_to_sleep = |word| word & !RUNG_OR_GONE | SLEEPS;
        let begun = self.change(|word| (!is_gone(word)).then(|| about_to_sleep(word))); // S1
        fence(Ordering::SeqCst); // S2, partner of W2 and of the fence in `rouse`
        begun.ok().map(about_to_sleep)
    }

    /// Returns `true` if the sleeper sleeps, or is about to, and was not rung.
    #[inline]
    pub(super) fn is_slept_on(&self) -> bool {
        is_asleep(self.0.load(Ordering::Relaxed))
    }

    /// Clears bit 31 unless the bell was rung, so that the next ring makes no needless system call.
    pub(super) fn get_up(&self) {
        let _ = self.change(|word| is_asleep(word).then_some(word & !SLEEPS));
    }

    /// Makes the sleeper check again if it sleeps. The caller is in the sleeper's process, and has
    /// already set what the sleeper checks.
    pub(super) fn rouse(&self) {
        fence(Ordering::SeqCst); // partner of S2
        if self.change(|word| is_asleep(word).then_some(word & !SLEEPS)).is_ok() {
            self.0.wake();
        }
    }

    /// Returns the word to sleep on.
    pub(super) fn word(&self) -> &Futex {
        &self.0
    }

    /// Sleeps until `is_ready` returns `true`, the ringer has left, or the deadline has passed;
    /// readiness takes precedence. `is_there` returns `true` while the ringer holds its lock, or if
    /// it never held it: a system call, made when a check is due.
    pub(super) fn wait(
        &self,
        deadline: Option<Deadline>,
        look: &mut Look,
        is_ready: impl FnMut() -> bool,
        is_there: impl Fn() -> bool,
    ) -> Woken {
        let woken = self.sleep(deadline, look, is_ready, is_there);
        self.get_up();
        woken
    }

    /// If a check is due and the ringer is dead, leaves on its behalf and returns `true`.
    pub(super) fn look_for_ringer(&self, look: &mut Look, is_there: impl Fn() -> bool) -> bool {
        let is_lost = look.is_due() && !is_there();
        if is_lost {
            self.leave();
        }
        is_lost
    }

    fn sleep(
        &self,
        deadline: Option<Deadline>,
        look: &mut Look,
        mut is_ready: impl FnMut() -> bool,
        is_there: impl Fn() -> bool,
    ) -> Woken {
        loop {
            let begun = self.lie_down(); // S1, S2
            if is_ready() {
                return Woken::Ready; // S3
            }
            let Some(word) = begun else { return Woken::Gone };
            if self.look_for_ringer(look, &is_there) {
                // What the ringer made ready before it died is visible now.
                return if is_ready() { Woken::Ready } else { Woken::Gone };
            }
            if deadline.is_some_and(Deadline::has_passed) {
                return Woken::TimedOut;
            }
            self.0.sleep_while(word, Deadline::first(deadline, look.time())); // S4

            // Check before S1 runs again and clears the bit that says it was rung.
            if is_ready() {
                return Woken::Ready;
            }
        }
    }
}

/// The interval between checks that the ringer is alive, while the sleeper waits.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The time of a sleeper's next check on its ringer. It belongs to the end, not to a single wait:
/// many short waits check as often as one long wait.
#[derive(Clone, Copy)]
pub(super) struct Look(Option<Deadline>);

impl Look {
    /// Makes the first check due in a second.
    pub(super) fn new() -> Self {
        Self(Deadline::after(LOOK_AGAIN))
    }

    /// Returns a check that is due, for the models.
    #[cfg(all(test, loom))]
    pub(super) fn due() -> Self {
        Self(Deadline::after(Duration::ZERO))
    }

    pub(super) fn time(self) -> Option<Deadline> {
        self.0
    }

    /// Returns `true` if a check is due, and if so makes the next one due in a second.
    pub(super) fn is_due(&mut self) -> bool {
        let is_due = self.0.is_some_and(Deadline::has_passed);
        if is_due {
            *self = Self::new();
        }
        is_due
    }
}
