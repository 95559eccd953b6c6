//! Whether a thread of the owner that releases memory rings the doorbell.
//!
//! Peers always ring. A thread of the owner rings only if that may serve a waiter, because each
//! ring costs a system call and has the waiters search the pool:
//!
//! - not if fewer bytes are available than the shortest waiting request needs;
//! - not if another thread has rung since the last round of tries began (the ring is *pending*).
//!
//! To find out costs a visit of all size classes. So a thread checks only once enough was released
//! since the last check (see [`Shortfall`]).
//!
//! # No wake-up is lost
//!
//! | step | waiter | step | thread that releases memory: [`Notifier::notify`] |
//! |---|---|---|---|
//! | M1 | join: store the shortest length | Y1 | release the memory |
//! | M2 | a heavy barrier; [`Shortfall::reset`] | | (the barrier's light side: nothing) |
//! | M3 | [`Notifier::begin_round`]: read the count | Y2 | load the shortest length; without a waiter, stop |
//! | M4 | clear `is_pending` | Y3 | a fence |
//! | M5 | a fence | Y4 | if `is_pending`, or too few bytes are available, stop |
//! | M6 | try; if served, stop; [`Shortfall::reset`] | Y5 | set `is_pending` |
//! | M7 | sleep, if the count is unchanged | Y6 | ring: increment the count, wake |
//!
//! - **Join against release:** by the barrier, either M6 sees Y1, or Y2 sees M1. The stored length
//!   is never more than that of any waiter, so a stale one only causes a ring in vain.
//! - **Pending ring:** if Y4 finds one set before M4, then by the two fences M6 sees Y1. If it was
//!   set after M4, the count rises after M3, and M7 does not sleep.
//! - **Two releases that serve a waiter only together:** by Y3, at least one of the two threads
//!   finds both in Y4.
//! - **Crash:** threads of a process die together. A thread that is preempted between Y5 and Y6
//!   delays the ring; the waiter looks again without one.
//!
//! # No check is missed
//!
//! Between Y1 and Y2, a release adds its bytes to the shortfall's count, and skips the rest if that
//! is below the threshold.
//!
//! | step | thread that checks | step | thread that releases, or changes something else |
//! |---|---|---|---|
//! | K1 | [`Shortfall::check`]: read both counts | G1 | release the memory, or change something else |
//! | K2 | Y2 to Y6, which finds how much is missing | G2 | add to a count |
//! | K3 | store the threshold | G3 | a fence |
//! | K4 | a fence | G4 | a release loads the threshold; [`Shortfall::reset`] stores the count of bytes as the threshold |
//! | K5 | if the threshold is reached or the count of resets has changed, begin again | | |
//!
//! - What K1 counts, K2 sees, as K1 acquires what G2 has released.
//! - What K1 does not count is compared with the new threshold: by the two fences, either K5 sees
//!   G2, or G4 comes after K3.
//! - A *reset* is due after whatever makes more bytes available than are counted as released: a
//!   shorter request joins, or a search puts back chunks that K2 has missed.

#![cfg_attr(not(loom), forbid(unsafe_code))]

#[cfg(all(test, loom))]
#[path = "../../models/waiting.rs"]
mod models;

use crate::os::futex::barrier;
use crate::protocol::memory_doorbell::MemoryDoorbell;
use crate::sync::{fence, fence_after_rmw, AtomicU64, Ordering};

const NOBODY: u64 = u64::MAX;

pub(super) struct Notifier {
    /// The bytes that the shortest waiting request needs, or [`NOBODY`].
    shortest: AtomicU64,
    /// 1 from a ring by a thread of the owner to the next round, otherwise 0.
    is_pending: AtomicU64,
}

impl Notifier {
    pub(super) fn new() -> Self {
        Self {
            shortest: AtomicU64::new(NOBODY),
            is_pending: AtomicU64::new(0),
        }
    }

    /// `None` if no request waits. A caller that lowers the length runs the heavy barrier before
    /// the next round.
    pub(super) fn set_shortest(&self, bytes: Option<usize>) {
        let bytes = match bytes {
            Some(bytes) => bytes as u64,
            None => NOBODY,
        };
        // Relaxed: the heavy barrier orders it before the waiter's try.
        self.shortest.store(bytes, Ordering::Relaxed);
    }

    /// To be called before the first try of a round. Returns the doorbell's count to sleep on.
    pub(super) fn begin_round(&self, doorbell: &MemoryDoorbell) -> u32 {
        // First: a ring that sets `is_pending` after it was cleared changes this count.
        let count = doorbell.count();
        self.is_pending.store(0, Ordering::Relaxed);
        // Partner: the fence in `ring`.
        fence(Ordering::SeqCst);
        count
    }

    /// Rings the doorbell, unless no request waits or the ring could not serve one. `missing` returns
    /// how many bytes are missing, at least, for a request of that many bytes. Returns what it did,
    /// or 0 if it was not called.
    pub(super) fn notify(
        &self,
        doorbell: &MemoryDoorbell,
        missing: impl FnOnce(usize) -> usize,
    ) -> usize {
        // Partner: the heavy barrier after `set_shortest`.
        barrier::light();
        let shortest = self.shortest.load(Ordering::Relaxed);
        if shortest == NOBODY {
            return 0;
        }
        // Partners: the fence in `begin_round`, and this fence in other threads.
        fence(Ordering::SeqCst);
        if self.is_pending.load(Ordering::Relaxed) != 0 {
            return 0;
        }
        let missing = missing(shortest as usize);
        if missing > 0 {
            return missing;
        }
        // Relaxed: the Release in `notify_all` orders it before the new count.
        let set = self
            .is_pending
            .compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed);
        if set.is_ok() {
            doorbell.notify_all();
        }
        0
    }
}

/// How much has to be released before the next check of a pool can find enough. One for all pools
/// with the same notice, as a thread that has released a chunk may not touch its pool.
pub(super) struct Shortfall {
    /// Bytes that threads of the owner have released while a request waited. Wraps around.
    released: AtomicU64,
    /// The number of resets.
    resets: AtomicU64,
    /// The threshold: the value of `released` from which on a release checks.
    check_at: AtomicU64,
}

impl Shortfall {
    #[cfg(not(all(test, loom)))]
    pub(super) const fn new() -> Self {
        Self {
            released: AtomicU64::new(0),
            resets: AtomicU64::new(0),
            check_at: AtomicU64::new(0),
        }
    }

    /// Called after memory was released. Returns `true` if the caller has to check.
    pub(super) fn note_released(&self, bytes: usize) -> bool {
        let bytes = bytes as u64;
        // Release: a check that counts these bytes sees what was released.
        let before = self.released.fetch_add(bytes, Ordering::Release);
        // Partner: the fence in `check`.
        fence_after_rmw();
        let threshold = self.check_at.load(Ordering::Relaxed);
        has_reached(before.wrapping_add(bytes), threshold)
    }

    /// Has the next release check, whatever its length.
    pub(super) fn reset(&self) {
        // Release: a check that counts this one sees what it is for.
        self.resets.fetch_add(1, Ordering::Release);
        // Partner: the fence in `check`.
        fence_after_rmw();
        let released = self.released.load(Ordering::Relaxed);
        self.check_at.store(released, Ordering::Relaxed);
    }

    /// Calls `notify`, which returns how many bytes are missing, until its result holds, and stores
    /// the threshold.
    pub(super) fn check(&self, mut notify: impl FnMut() -> usize) {
        loop {
            // Acquire: the check sees what these stand for.
            let resets = self.resets.load(Ordering::Acquire);
            let released = self.released.load(Ordering::Acquire);

            let missing = notify();
            // An idle chunk counts with the size of its class, which is less than twice its own.
            let threshold = released.wrapping_add((missing as u64).div_ceil(2));
            self.check_at.store(threshold, Ordering::Relaxed);
            if missing == 0 {
                // Every release checks.
                return;
            }

            // Partners: the fences in `note_released` and `reset`.
            fence(Ordering::SeqCst);
            let is_due = has_reached(self.released.load(Ordering::Relaxed), threshold);
            if !is_due && self.resets.load(Ordering::Relaxed) == resets {
                return;
            }
        }
    }
}

/// Both may have wrapped around.
fn has_reached(released: u64, threshold: u64) -> bool {
    released.wrapping_sub(threshold) <= u64::MAX / 2
}
