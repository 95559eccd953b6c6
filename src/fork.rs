//! Which side of a fork are we on?
//!
//! A forked child shares the parent's mappings and has copies of its handles, but owns none of it. Every provider
//! and client remembers the epoch of its creation; in a forked child the epoch has moved on, and what was made before
//! is inert. One relaxed load tells, instead of a `getpid` per message.
//!
//! Not seen: a child made by a raw `clone` system call, which runs no `pthread_atfork` handler. Such a child must not
//! use handles that it inherited.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Once;

static EPOCH: AtomicU32 = AtomicU32::new(0);

/// The epoch of this process. Relaxed: only a fork changes it, and then there is one thread.
#[inline]
pub(crate) fn epoch() -> u32 {
    EPOCH.load(Ordering::Relaxed)
}

/// Makes sure that a fork moves the epoch on. Called before anything that remembers an epoch is made.
pub(crate) fn watch() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: the handler does one relaxed atomic addition, which is async-signal-safe. If registration fails for
        // lack of memory, forks go unnoticed; nothing else depends on it.
        unsafe { libc::pthread_atfork(None, None, Some(moved_on)) };
    });
}

extern "C" fn moved_on() {
    EPOCH.fetch_add(1, Ordering::Relaxed);
}
