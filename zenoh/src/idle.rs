//! Releasing what a burst has left in a [`BufferPool`](crate::BufferPool).
//!
//! zenoh confirms every buffer that exists twenty times a second: 50,000 idle ones cost 2 % of a CPU.
//! Allocations shrink a pool that is in use (see `class`). For one that is not, a thread runs as long
//! as any class has more than [`MANY`] buffers, and releases idle ones once nothing was allocated for
//! a second.
//!
//! The thread refers to the classes alone, and the pool empties them when it is dropped. So the thread
//! keeps no pool alive, and a buffer is released once, by either.

#![forbid(unsafe_code)]

use crate::class::Class;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// A class of up to this many buffers keeps them: zenoh confirms them in little time.
pub(crate) const MANY: usize = 128;

/// A larger one keeps this many idle buffers.
const SPARE: usize = 32;

/// How long nothing must be allocated. While readers keep the buffers of an unused pool, the thread
/// looks less and less often.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(64);

/// The thread's stack in bytes: several times what dropping a buffer needs.
const STACK: usize = 256 << 10;

pub(crate) type Classes = Arc<[Mutex<Class>]>;

/// The thread of a pool, if it runs.
#[derive(Default)]
pub(crate) struct Idle(Arc<Mutex<Option<Thread>>>);

impl Idle {
    /// Starts the thread, unless it runs. If the system refuses one, the next call tries again.
    pub(crate) fn watch(&self, classes: &Classes) {
        let mut running = self.0.lock();
        if running.is_none() {
            let (idle, classes) = (Self(self.0.clone()), Arc::downgrade(classes));
            let thread = thread::Builder::new()
                .name("shm-pool-idle".to_owned())
                .stack_size(STACK);
            *running = thread
                .spawn(move || idle.run(&classes))
                .ok()
                .map(|handle| handle.thread().clone());
        }
    }

    fn run(&self, classes: &Weak<[Mutex<Class>]>) {
        let (mut period, mut last) = (SHORTEST, None);
        loop {
            let end = Instant::now() + period;
            while let Some(left) = end
                .checked_duration_since(Instant::now())
                .filter(|left| !left.is_zero())
            {
                if classes.strong_count() == 0 {
                    return;
                }
                thread::park_timeout(left);
            }
            let Some(classes) = classes.upgrade() else {
                return;
            };
            let uses: u64 = classes.iter().map(|class| class.lock().uses()).sum();
            let is_idle = last.replace(uses) == Some(uses);
            period = if is_idle {
                LONGEST.min(period * 2)
            } else {
                SHORTEST
            };
            if is_idle {
                // Each for a short time: an allocation may wait for the lock.
                let large = classes.iter().filter(|class| class.lock().kept() > MANY);
                large.for_each(|class| while class.lock().release_idle(SPARE) {});
            }
            // A class that grows after this finds no thread, and starts one.
            let mut running = self.0.lock();
            if !classes.iter().any(|class| class.lock().kept() > MANY) {
                *running = None;
                return;
            }
        }
    }
}

impl Drop for Idle {
    /// The thread's copy is dropped when it ends, the pool's with the classes.
    fn drop(&mut self) {
        if let Some(thread) = self.0.lock().as_ref() {
            thread.unpark();
        }
    }
}
