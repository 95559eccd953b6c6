//! The memory doorbell: wakes an owner that waits for memory when any process releases some.
//!
//! It lies in the control object. Memory is released by a peer that drops a lease or its slot, by a
//! receiver that returns a borrowed buffer, and by a thread of the owner that drops a buffer. The
//! owner
//! *listens* while a request waits.
//!
//! # No wake-up is lost
//!
//! | step | owner | step | thread that frees memory: [`MemoryDoorbell::notify`] |
//! |---|---|---|---|
//! | M1 | [`MemoryDoorbell::listen`]: set `listens` | Y1 | release the memory |
//! | M2 | a heavy barrier (see `futex::barrier`) | | (the barrier's light side: nothing) |
//! | M3 | read the count | Y2 | if `listens` is set: |
//! | M4 | check for memory; if found, stop | Y3 | add 1 to the count |
//! | M5 | sleep, if the count is unchanged | Y4 | wake |
//!
//! By the barrier, either M4 sees Y1, or Y2 sees M1. In the second case, if Y3 precedes M3, then so
//! does Y1 (Release and Acquire of the count), and M4 sees it. If Y3 follows M3, M5 returns at once
//! or Y4 wakes it.
//!
//! # Events without a doorbell
//!
//! A peer dies; a process is killed between Y1 and Y4; another program frees space in the file
//! system; another process of the same user writes garbage here; a region lapses. So the owner
//! rechecks after [`RECHECK_AFTER`] at the latest. Everything else rings, and nothing else is polled.
//!
//! Threads of the owner ring through `owner::waiting`, which spares rings that serve nobody.

#![cfg_attr(not(loom), forbid(unsafe_code))]

#[cfg(all(test, loom))]
#[path = "../models/memory_doorbell.rs"]
mod models;

use crate::os::futex::barrier;
use crate::os::futex::{Deadline, Futex};
use crate::sync::{AtomicU64, Ordering};
use std::time::Duration;

/// The longest sleep of an owner before it rechecks for memory.
pub(crate) const RECHECK_AFTER: Duration = Duration::from_millis(50);

/// Zero bytes are a doorbell without a listener.
#[repr(C, align(64))]
pub(crate) struct MemoryDoorbell {
    /// Whether the owner listens: 0 or 1.
    listens: AtomicU64,
    count: Futex,
}

impl MemoryDoorbell {
    pub(crate) fn new() -> Self {
        Self {
            listens: AtomicU64::new(0),
            count: Futex::new(0),
        }
    }

    /// The caller runs the heavy barrier.
    pub(crate) fn listen(&self, listens: bool) {
        self.listens.store(listens.into(), Ordering::Relaxed);
    }

    /// To be read before the check for memory.
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire) // partner: `notify_all`
    }

    pub(crate) fn sleep(&self, count: u32, deadline: Option<Deadline>) {
        self.count.sleep_while(count, deadline);
    }

    #[inline]
    pub(crate) fn notify(&self) {
        // Partner: the heavy barrier after `listen`. If the load misses a waiting owner's flag,
        // that owner's check sees the released memory.
        barrier::light();
        if self.listens.load(Ordering::Relaxed) != 0 {
            self.notify_all();
        }
    }

    #[cold]
    pub(crate) fn notify_all(&self) {
        self.count.fetch_add(1, Ordering::Release); // partner: `count`
        self.count.wake();
    }
}
