//! Whether a thread of the owner that releases memory rings the doorbell.
//!
//! Peers always ring. A thread of the owner rings only if that may serve a waiter, because each
//! ring costs a system call and has the waiters search the pool:
//!
//! - not if fewer bytes are available than the shortest waiting request needs;
//! - not if another thread has rung since the last round of tries began (the ring is *pending*).
//!
//! # No wake-up is lost
//!
//! | step | waiter | step | thread that releases memory: [`Notifier::notify`] |
//! |---|---|---|---|
//! | M1 | join: store the shortest length | F1 | release the memory |
//! | M2 | a heavy barrier | | (the barrier's light side: nothing) |
//! | M3 | [`Notifier::begin_round`]: read the count | F2 | load the shortest length; without a waiter, stop |
//! | M4 | clear `is_pending` | F3 | a fence |
//! | M5 | a fence | F4 | if `is_pending`, or too few bytes are available, stop |
//! | M6 | try; if served, stop | F5 | set `is_pending` |
//! | M7 | sleep, if the count is unchanged | F6 | ring: increment the count, wake |
//!
//! - **Join against release:** by the barrier, either M6 sees F1, or F2 sees M1. The stored length
//!   is never more than that of any waiter, so a stale one only causes a ring in vain.
//! - **Pending ring:** if F4 finds one set before M4, then by the two fences M6 sees F1. If it was
//!   set after M4, the count rises after M3, and M7 does not sleep.
//! - **Two releases that serve a waiter only together:** by F3, at least one of the two threads
//!   finds both in F4.
//! - **Crash:** threads of a process die together. A thread that is preempted between F5 and F6
//!   delays the ring; the waiter looks again without one.

#![cfg_attr(not(loom), forbid(unsafe_code))]

#[cfg(all(test, loom))]
#[path = "../../models/waiting.rs"]
mod models;

use crate::os::futex::barrier;
use crate::protocol::memory_doorbell::MemoryDoorbell;
use crate::sync::{fence, AtomicU64, Ordering};

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

    /// Rings the doorbell, unless no request waits or the ring could not serve one. `are_available`
    /// returns `false` if no request can get that many bytes now.
    #[inline]
    pub(super) fn notify(
        &self,
        doorbell: &MemoryDoorbell,
        are_available: impl FnOnce(usize) -> bool,
    ) {
        // Partner: the heavy barrier after `set_shortest`.
        barrier::light();
        let shortest = self.shortest.load(Ordering::Relaxed);
        if shortest != NOBODY {
            self.ring(doorbell, shortest as usize, are_available);
        }
    }

    #[cold]
    fn ring(
        &self,
        doorbell: &MemoryDoorbell,
        shortest: usize,
        are_available: impl FnOnce(usize) -> bool,
    ) {
        // Partners: the fence in `begin_round`, and this fence in other threads.
        fence(Ordering::SeqCst);
        if self.is_pending.load(Ordering::Relaxed) != 0 {
            return;
        }
        if !are_available(shortest) {
            return;
        }
        // Relaxed: the Release in `notify_all` orders it before the new count.
        let set = self
            .is_pending
            .compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed);
        if set.is_ok() {
            doorbell.notify_all();
        }
    }
}
