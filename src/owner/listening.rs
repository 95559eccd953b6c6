//! Which pools of this process listen for memory that comes back.
//!
//! A thread that gives a chunk back may not touch the pool afterwards, which may be gone. So what
//! it asks is a number that belongs to the process: how many pools listen. If any does, it rings
//! the bells of all of them (see `memory_bell`).
//!
//! | a pool listens because | until |
//! |---|---|
//! | somebody [waits](WAITS) for memory (see `waiting`) | nobody waits |
//! | allocations were [refused](REFUSED), and are tried again and again (see `refusals`) | memory has come back once in this process |
//!
//! A forked child has none of its parent's threads, and its copies of locks may be held by them. So
//! the list of pools is kept per process.

#![forbid(unsafe_code)]

use crate::os::barrier;
use crate::os::per_process::PerProcess;
use crate::owner::pool::Pool;
pub(crate) use crate::protocol::memory_bell::{REFUSED, WAITS};
use crate::sync::light_barrier;
use parking_lot::Mutex;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// A number that every drop of a buffer reads, and nothing else in its cache lines.
#[repr(align(128))]
struct Listening(AtomicUsize);

/// How many pools of this process listen.
static LISTENING: Listening = Listening(AtomicUsize::new(0));

static POOLS: PerProcess<Mutex<Vec<Listener>>> = PerProcess::new();

struct Listener {
    pool: Weak<Pool>,
    /// [`WAITS`], [`REFUSED`], or both.
    why: u64,
}

/// Memory of some pool of this process has come back. The caller need not know which, nor whether
/// that pool still exists.
#[inline]
pub(crate) fn came_back() {
    light_barrier();
    // Relaxed: the heavy side of the barrier orders it (see `memory_bell`).
    if LISTENING.0.load(Ordering::Relaxed) != 0 {
        ring_all();
    }
}

#[cold]
fn ring_all() {
    // In a forked child the number may be the parent's, which has no list here.
    let Some(pools) = POOLS.existing() else { return };
    // Under the lock, which a pool that closes needs to get off the list: so this is never a pool's
    // last reference.
    pools.lock().retain_mut(|listener| {
        let Some(pool) = listener.pool.upgrade() else { return true };
        pool.memory_bell().ring();
        listener.drop_reason(&pool, REFUSED)
    });
}

impl Listener {
    /// From now on the pool does not listen because of `why`. Returns whether it still listens.
    fn drop_reason(&mut self, pool: &Pool, why: u64) -> bool {
        if self.why & why & REFUSED != 0 {
            pool.refusals().listens(false, pool.memory_bell());
        }
        self.why &= !why;
        pool.memory_bell().listen(self.why);
        if self.why == 0 {
            LISTENING.0.fetch_sub(1, Ordering::Relaxed);
        }
        self.why != 0
    }
}

/// From now on the pool listens because of `why`. Whoever gives memory back after this returns
/// rings its bell; what came back earlier is seen by a look that begins after this.
pub(crate) fn listen(pool: &Arc<Pool>, why: u64) {
    let mut pools = POOLS.get().lock();
    let at = pools.iter().position(|listener| ptr::eq(listener.pool.as_ptr(), &**pool)).unwrap_or_else(|| {
        pools.push(Listener { pool: Arc::downgrade(pool), why: 0 });
        LISTENING.0.fetch_add(1, Ordering::Relaxed);
        pools.len() - 1
    });
    pools[at].why |= why;
    pool.memory_bell().listen(pools[at].why);
    barrier::heavy();
    if why & REFUSED != 0 {
        pool.refusals().listens(true, pool.memory_bell());
    }
}

/// From now on the pool does not listen because of `why`.
pub(crate) fn stop(pool: &Pool, why: u64) {
    let Some(pools) = POOLS.existing() else { return };
    pools.lock().retain_mut(|listener| !ptr::eq(listener.pool.as_ptr(), pool) || listener.drop_reason(pool, why));
}
