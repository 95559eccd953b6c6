//! The memory bell: how an owner that waits for memory hears that some has come back, from any
//! process.
//!
//! It lies in the control object. *Givers* give memory back: a peer that ends a lease or leaves its
//! slot, a receiver that returns a loan, a thread of the owner that drops a buffer. The owner
//! *listens* while somebody waits there.
//!
//! # No wake-up is lost
//!
//! | step | owner | step | giver: [`MemoryBell::ring`] |
//! |---|---|---|---|
//! | L1 | [`MemoryBell::listen`]: set `listens` | G1 | give the memory back |
//! | L2 | a heavy barrier (see `barrier`) | | (the barrier's light side: nothing) |
//! | L3 | read the count | G2 | is `listens` set? then |
//! | L4 | look; found something? then go on | G3 | add 1 to the count |
//! | L5 | sleep, if the count is unchanged | G4 | wake |
//!
//! By the barrier, either L4 sees G1, or G2 sees L1. In the second case G3 changes the count. If
//! that comes before L3, then G1 does too (Release and Acquire), and L4 sees it. If it comes after
//! L3, L5 returns at once, or G4 comes after L5 and wakes it.
//!
//! So a giver pays one relaxed load while nobody waits.
//!
//! An owner that does not sleep but [compares](REFUSED) the count now and then (see `refusals`)
//! listens in the same way, and givers leave out G4.
//!
//! # Orderings
//!
//! | writer | reader | what becomes visible |
//! |---|---|---|
//! | giver: count, Release | owner: count, Acquire | what the giver gave back before |
//!
//! # What no bell rings for
//!
//! A peer that dies, a giver that is killed between G1 and G4, and a file system that others make
//! room on. And another process of the same user may write garbage here. So the owner looks again
//! after [`LOOK_AGAIN`] at the latest.

#![cfg_attr(not(loom), forbid(unsafe_code))]

#[cfg(all(test, loom))]
#[path = "../models/memory_bell.rs"]
mod models;

use crate::os::deadline::Deadline;
use crate::os::futex::Futex;
use crate::sync::{light_barrier, AtomicU64, Ordering};
use std::time::Duration;

/// How long an owner sleeps at most before it looks again for what no bell rings for.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Somebody sleeps on the count, or is about to.
pub(crate) const WAITS: u64 = 1;

/// Somebody compares the count now and then.
pub(crate) const REFUSED: u64 = 2;

/// The bell. Zero bytes are a bell that nobody listens to.
#[repr(C, align(64))]
pub(crate) struct MemoryBell {
    /// 0, or why the owner listens: [`WAITS`], [`REFUSED`], or both.
    listens: AtomicU64,
    count: Futex,
}

impl MemoryBell {
    /// A bell in private memory.
    pub(crate) fn new() -> Self {
        Self { listens: AtomicU64::new(0), count: Futex::new(0) }
    }

    /// From now on givers ring because of `why`; 0: they do not. The caller makes the barrier.
    pub(crate) fn listen(&self, why: u64) {
        self.listens.store(why, Ordering::Relaxed);
    }

    /// The count, to be read before a look.
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire) // partner: `toll`
    }

    /// Sleeps unless the bell has rung since `count`; until `deadline` at the latest.
    pub(crate) fn sleep(&self, count: u32, deadline: Option<Deadline>) {
        self.count.sleep_while(count, deadline);
    }

    /// Memory has come back.
    #[inline]
    pub(crate) fn ring(&self) {
        light_barrier();
        let why = self.listens.load(Ordering::Relaxed);
        if why != 0 {
            self.rung(why);
        }
    }

    #[cold]
    fn rung(&self, why: u64) {
        self.count_up();
        // Not seen yet, although somebody waits by now? Then it looks after the heavy barrier, and
        // so sees what was given back.
        if why & WAITS != 0 {
            self.count.wake();
        }
    }

    /// Rings for those who wait, whether or not there are any.
    #[cold]
    pub(crate) fn toll(&self) {
        self.count_up();
        self.count.wake();
    }

    /// Changes the count, and wakes nobody.
    pub(crate) fn count_up(&self) {
        self.count.fetch_add(1, Ordering::Release); // partner: `count`
    }
}
