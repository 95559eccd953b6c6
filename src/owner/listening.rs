//! Notifying requests that wait for a pool's memory when another thread drops a buffer.
//!
//! A thread that releases a chunk may not touch the pool afterwards: the pool may have been
//! dropped. So each pool has a [`Notice`], one of a fixed number of flags that belong to the
//! process, and each chunk knows it. The thread reads the flag after it has released the chunk. If
//! it is set, the thread looks up the listening pools in a list, and rings their bells (see
//! `memory_bell`). Two pools that share a flag ring for each other.
//!
//! A forked child has none of its parent's threads, and those may hold the locks that it inherits.
//! So the list of pools is kept per process.

#![forbid(unsafe_code)]

use crate::os::fork::PerProcess;
use crate::os::futex::barrier;
use crate::owner::pool::Pool;
use crate::sync::light_barrier;
use parking_lot::Mutex;
use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// The number of pools with this notice that listen. Every drop of a buffer reads it, so it has its
/// cache lines to itself.
#[repr(align(128))]
struct Flag(AtomicUsize);

#[allow(clippy::declare_interior_mutable_const)] // the initial value of each flag
const UNSET: Flag = Flag(AtomicUsize::new(0));

static FLAGS: [Flag; 256] = [UNSET; 256];

static POOLS: PerProcess<Mutex<Vec<Weak<Pool>>>> = PerProcess::new();

/// The flag by which a pool announces that a request waits for its memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Notice(u8);

impl Notice {
    /// Returns the next notice, in turn.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU8 = AtomicU8::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Notifies the listening pools that a chunk was released. Its pool may have been dropped.
    #[inline]
    pub(crate) fn came_back(self) {
        light_barrier();
        // Relaxed: the heavy side of the barrier orders it (see `memory_bell`).
        if self.flag().load(Ordering::Relaxed) != 0 {
            self.ring();
        }
    }

    #[inline]
    fn flag(self) -> &'static AtomicUsize {
        &FLAGS[usize::from(self.0)].0
    }

    #[cold]
    fn ring(self) {
        // In a forked child, the flag may be set by the parent, which has no list here.
        let Some(pools) = POOLS.existing() else { return };
        // Under the lock, which a closing pool needs to leave the list: so this reference is never
        // a pool's last one.
        let pools = pools.lock();
        let listening = pools.iter().filter_map(Weak::upgrade).filter(|pool| pool.notice == self);
        listening.for_each(|pool| pool.memory_bell().ring());
    }
}

/// Makes each thread that releases memory of the pool ring its bell from now on. Memory released
/// earlier is visible to a look that begins after this call.
pub(crate) fn listen(pool: &Arc<Pool>) {
    POOLS.get().lock().push(Arc::downgrade(pool));
    pool.notice.flag().fetch_add(1, Ordering::Relaxed);
    pool.memory_bell().listen(true);
    barrier::heavy();
}

/// Undoes [`listen`], which the same process called.
pub(crate) fn stop(pool: &Pool) {
    let Some(pools) = POOLS.existing() else { return };
    pools.lock().retain(|listener| !ptr::eq(listener.as_ptr(), pool));
    pool.notice.flag().fetch_sub(1, Ordering::Relaxed);
    pool.memory_bell().listen(false);
}
