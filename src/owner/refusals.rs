//! What was refused at the cap, so that asking again costs next to nothing while nothing comes
//! back.
//!
//! A publisher that does not [wait](crate::Provider::alloc_timeout) tries again and again. Each try
//! that fails has looked everywhere, which takes microseconds. So after every eighth failure the
//! pool listens (see `listening`), and remembers what it refused, with the bell's count. A later
//! try for as much or more is refused by that, unless
//!
//! * the count has changed: memory has come back somewhere;
//! * 10 ms have passed: peers die without a sound, and the next look takes back what they
//!   held;
//! * the class has reserved chunks, which a look for another class does not find.
//!
//! # Nothing that came back is missed
//!
//! A refusal is remembered only if the pool listened before its look began, and the bell has not
//! rung since. [`Refusals::listens`] forgets what was remembered, and changes the count. So a look
//! that began before the pool listened, or when it listened for an earlier time, remembers nothing.

#![forbid(unsafe_code)]

use crate::owner::error::{AllocError, AllocErrorKind};
use crate::owner::listening::{self, REFUSED};
use crate::owner::pool::Pool;
use crate::protocol::memory_bell::MemoryBell;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// After so many failures the pool listens: what that costs, a system call, is spread over them.
const FAILURES: u32 = 8;

/// How long a refusal is repeated without a look.
const FRESH: Duration = Duration::from_millis(10);

/// What a pool has refused.
pub(crate) struct Refusals {
    listens: AtomicBool,
    failures: AtomicU32,
    last: Mutex<Option<Refusal>>,
}

struct Refusal {
    /// The bell's count before the look.
    count: u32,
    at: Instant,
    /// The shortest that was refused, in bytes, by grain.
    least: [usize; 2],
    max_bytes: usize,
    in_use: usize,
    idle: usize,
    leased: usize,
}

/// A look for memory: the bell's count when it began, if the pool listened then.
#[derive(Clone, Copy)]
pub(crate) struct Look(Option<u32>);

impl Refusals {
    pub(crate) fn new() -> Self {
        Self { listens: AtomicBool::new(false), failures: AtomicU32::new(0), last: Mutex::new(None) }
    }

    /// Before a look for a message of `len` bytes of a class. An error: the same was refused just
    /// now.
    #[inline]
    pub(crate) fn begin(&self, pool: &Pool, class: usize, len: usize) -> Result<Look, AllocError> {
        // Acquire: partner of the Release in `listens`.
        if self.listens.load(Ordering::Acquire) {
            self.look_back(pool, class, len)
        } else {
            Ok(Look(None))
        }
    }

    #[cold]
    fn look_back(&self, pool: &Pool, class: usize, len: usize) -> Result<Look, AllocError> {
        let count = pool.memory_bell().count();
        let (grain, size) = pool.demand(class, len);
        match &*self.last.lock() {
            Some(last)
                if last.count == count
                    && last.least[grain] <= size
                    && !pool.has_reserved(class)
                    && last.at.elapsed() < FRESH =>
            {
                Err(last.error(pool.need(class)))
            }
            _ => Ok(Look(Some(count))),
        }
    }

    /// After a look that found nothing.
    #[cold]
    pub(crate) fn refused(&self, pool: &Arc<Pool>, look: Look, class: usize, len: usize, error: &AllocError) {
        let AllocErrorKind::Exhausted { max_bytes, in_use, idle, leased, .. } = *error.kind() else { return };
        let Some(count) = look.0 else {
            if self.failures.fetch_add(1, Ordering::Relaxed) % FAILURES == FAILURES - 1 {
                listening::listen(pool, REFUSED);
            }
            return;
        };
        let (grain, size) = pool.demand(class, len);
        let mut last = self.last.lock();
        // Under the lock: `listens` changes the count before it takes it.
        if pool.memory_bell().count() != count {
            return;
        }
        let mut new = Refusal { count, at: Instant::now(), least: [usize::MAX; 2], max_bytes, in_use, idle, leased };
        if let Some(known) = last.take().filter(|known| known.count == count && known.at.elapsed() < FRESH) {
            (new.least, new.at) = (known.least, known.at);
        }
        new.least[grain] = new.least[grain].min(size);
        *last = Some(new);
    }

    /// After a look that found something: what is asked for now can be had.
    #[inline]
    pub(crate) fn granted(&self, pool: &Pool) {
        if self.listens.load(Ordering::Relaxed) {
            listening::stop(pool, REFUSED);
        }
    }

    /// The pool listens from now on, or no longer. `listening` calls this, one thread at a time.
    pub(crate) fn listens(&self, listens: bool, bell: &MemoryBell) {
        if listens {
            bell.count_up();
            *self.last.lock() = None;
        }
        // Release: partner of the Acquire in `begin`.
        self.listens.store(listens, Ordering::Release);
    }
}

impl Refusal {
    fn error(&self, len: usize) -> AllocError {
        let Self { max_bytes, in_use, idle, leased, .. } = *self;
        AllocErrorKind::Exhausted { len, max_bytes, in_use, idle, leased }.into()
    }
}
