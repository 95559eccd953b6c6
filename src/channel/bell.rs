//! A bell: how one side of a channel wakes the other, and how the kernel rings for a side that
//! dies.
//!
//! A bell is a 32-bit word in shared memory. One side, the *ringer*, rings it; the other, the
//! *sleeper*, sleeps on it through a shared futex. The kernel knows the layout (see
//! `man 2 get_robust_list`):
//!
//! | bits | meaning |
//! |---|---|
//! | 0 to 29 | the thread that holds the bell for the ringer's process (see `robust_list`); 0 before there is a ringer, and after it is gone |
//! | 30 | with a ringer: it has rung; without: the ringer is gone |
//! | 31 | the sleeper sleeps, or is about to |
//!
//! When a process dies, in whatever way, the kernel clears the thread in every bell that it holds,
//! sets bit 30, and wakes the sleeper if bit 31 is set. This needs no heartbeat, no probing and no
//! timeout. A ringer that leaves does the same itself.
//!
//! # No wake-up is lost
//!
//! | step | sleeper: [`Bell::wait`] | step | ringer: [`Bell::ring`] |
//! |---|---|---|---|
//! | S1 | set bit 31, clear bit 30 | W1 | make ready (send, or make room) |
//! | S2 | full fence | W2 | full fence |
//! | S3 | ready? then go on | W3 | bit 31 set and bit 30 clear? then |
//! | S4 | sleep, if the word is unchanged | W4 | set bit 30 |
//! | | | W5 | wake |
//!
//! One of the fences comes first, so either S3 sees W1, or W3 sees S1. In the second case W4
//! changes the word: either the kernel finds it changed and S4 returns at once, or W5 comes after
//! S4 and wakes the sleeper. If S1 clears the bit that W4 set, S1 has read W4, and so S3 sees W1. A
//! ringer that has rung does not ring again before the sleeper has woken and is about to sleep
//! again.
//!
//! # A sleeper that sleeps elsewhere
//!
//! A task does S1 to S3 itself ([`Bell::lie_down`]), and a thread that sleeps on many words at once
//! does S4 for it (see `helper`). A wait for any of several channels does S1 for each of them, then
//! S3, then S4 for all (see `wait_any`).
//!
//! # Interrupted
//!
//! Another thread of the sleeper's process can make it look ([`Bell::rouse`]): it sets a flag of
//! its own, which S3 reads too, fences, and if bit 31 is set and bit 30 clear, it clears bit 31 and
//! wakes. Either S3 sees the flag, or the word changes under S4, as with a ring. It must not set
//! bit 30: before there is a ringer, that would say that the ringer is gone. Whoever is woken and
//! is not meant begins again with S1.
//!
//! # Garbage
//!
//! Another process of the same user can write to the word, even by accident. So a sleeper looks
//! again once a second: whether it is ready, and whether the ringer's process still has its lock.
//! Garbage delays a wake-up but prevents none.
//!
//! # Killed at any instruction
//!
//! Bit 31 is set as long as the sleeper may sleep. So if the ringer dies between W4 and W5, or
//! anywhere else, the kernel wakes the sleeper.

use crate::os::deadline::Deadline;
use crate::os::futex::Futex;
use crate::sync::{fence, Ordering};
use std::time::Duration;

/// The bits of the word, as the module's table names them. The numbers are the kernel's.
const HOLDER: u32 = libc::FUTEX_TID_MASK;
const RUNG_OR_GONE: u32 = libc::FUTEX_OWNER_DIED;
const SLEEPS: u32 = libc::FUTEX_WAITERS;

/// Is this the word of a bell that never had a ringer?
#[inline]
fn is_free(word: u32) -> bool {
    word & (HOLDER | RUNG_OR_GONE) == 0
}

/// Is this the word of a bell whose ringer is gone?
#[inline]
fn is_gone(word: u32) -> bool {
    word & (HOLDER | RUNG_OR_GONE) == RUNG_OR_GONE
}

/// With this word, has the ringer rung since the sleeper lay down, or is it gone?
pub(super) fn is_rung(word: u32) -> bool {
    word & RUNG_OR_GONE != 0
}

/// With this word, does somebody sleep whom nobody has woken?
pub(super) fn is_asleep(word: u32) -> bool {
    word & (SLEEPS | RUNG_OR_GONE) == SLEEPS
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    Ready,
    /// The ringer is gone.
    Gone,
    TimedOut,
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

    /// Replaces the word with what `next` makes of it. Returns the word it replaced, or, as `Err`,
    /// the word for which `next` returned `None`.
    fn change(&self, next: impl Fn(u32) -> Option<u32>) -> Result<u32, u32> {
        let mut old = self.0.load(Ordering::Acquire);
        loop {
            // AcqRel: Release what the ringer did before it rings, comes or leaves; Acquire the
            // same.
            match self.0.compare_exchange(old, next(old).ok_or(old)?, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(old),
                Err(now) => old = now,
            }
        }
    }

    /// Makes `holder` the thread whose death rings this bell. `false` if the bell is held, or was.
    pub(super) fn hold(&self, holder: u32) -> bool {
        self.change(|word| is_free(word).then_some(word | holder & HOLDER)).is_ok()
    }

    /// Is there a ringer, or was there one?
    #[inline]
    pub(super) fn was_held(&self) -> bool {
        // Acquire: partner of the Release in `hold`.
        !is_free(self.0.load(Ordering::Acquire))
    }

    /// Is there a ringer now?
    #[inline]
    pub(super) fn is_held(&self) -> bool {
        // Acquire: partner of the Release in `hold`.
        self.0.load(Ordering::Acquire) & HOLDER != 0
    }

    /// Was there a ringer, and has it gone?
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

    /// [`ring`](Self::ring) for a ringer that has made the full fence of W2 itself, for several
    /// bells.
    #[inline]
    pub(super) fn ring_after_fence(&self) {
        if self.0.load(Ordering::Relaxed) & (SLEEPS | RUNG_OR_GONE) == SLEEPS {
            self.wake(); // W3
        }
    }

    #[cold]
    fn wake(&self) {
        // Release: partner of the Acquire in S1.
        self.0.fetch_or(RUNG_OR_GONE, Ordering::Release); // W4
        self.0.wake(); // W5
    }

    /// Lets no ringer come any more, if none has come yet.
    pub(super) fn close(&self) {
        // Refused if there is a ringer, or was.
        let _ = self.change(|word| is_free(word).then_some(word | RUNG_OR_GONE));
    }

    /// The ringer leaves, and rings for the last time.
    pub(super) fn leave(&self) {
        // This `next` never refuses.
        let _ = self.change(|word| Some(word & SLEEPS | RUNG_OR_GONE));
        self.0.wake();
    }

    /// S1 and S2: from now on a ring wakes who sleeps on the word. Returns the word's value; `None`
    /// if the ringer is gone. Being ready goes first, so ask that next.
    pub(super) fn lie_down(&self) -> Option<u32> {
        let about_to_sleep = |word| word & !RUNG_OR_GONE | SLEEPS;
        let begun = self.change(|word| (!is_gone(word)).then(|| about_to_sleep(word))); // S1
        fence(Ordering::SeqCst); // S2, partner of W2 and of the fence in `rouse`
        begun.ok().map(about_to_sleep)
    }

    /// Clears bit 31, unless rung: otherwise the next ring would be a system call for nobody.
    pub(super) fn get_up(&self) {
        let _ = self.change(|word| is_asleep(word).then_some(word & !SLEEPS));
    }

    /// Makes the sleeper look again, if it sleeps. The caller is in the sleeper's process, and has
    /// set what the sleeper will find.
    pub(super) fn rouse(&self) {
        fence(Ordering::SeqCst); // partner of S2
        if self.change(|word| is_asleep(word).then_some(word & !SLEEPS)).is_ok() {
            self.0.wake();
        }
    }

    /// The word, to sleep on.
    pub(super) fn word(&self) -> &Futex {
        &self.0
    }

    /// Sleeps until `is_ready`, the ringer is gone, or the deadline has passed; being ready goes
    /// first. `is_there` asks whether the ringer still has its lock, if it ever had it: a system
    /// call, made once a second.
    pub(super) fn wait(
        &self,
        deadline: Option<Deadline>,
        is_ready: impl FnMut() -> bool,
        is_there: impl Fn() -> bool,
    ) -> Woken {
        let woken = self.sleep(deadline, is_ready, is_there);
        self.get_up();
        woken
    }

    fn sleep(
        &self,
        deadline: Option<Deadline>,
        mut is_ready: impl FnMut() -> bool,
        is_there: impl Fn() -> bool,
    ) -> Woken {
        loop {
            let begun = self.lie_down(); // S1, S2
            if is_ready() {
                return Woken::Ready; // S3
            }
            let Some(word) = begun else { return Woken::Gone };
            let look_again = Deadline::after(LOOK_AGAIN);
            let until = Deadline::first(deadline, look_again);
            self.0.sleep_while(word, until); // S4

            // Look before S1 runs again and clears the sign that it was rung.
            if is_ready() {
                return Woken::Ready;
            }
            if deadline.is_some_and(Deadline::has_passed) {
                return Woken::TimedOut;
            }
            if look_again.is_some_and(Deadline::has_passed) && !is_there() {
                // Leave in the ringer's place. What it made ready before it died is found below.
                self.leave();
                return if is_ready() { Woken::Ready } else { Woken::Gone };
            }
        }
    }
}

/// The longest sleep before the sleeper looks again.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(1);
