//! Which side of a fork are we on, and in which thread?
//!
//! A forked child shares the parent's mappings and has copies of its handles, but owns none of it. Every provider
//! and client remembers the epoch of its creation; in a forked child the epoch has moved on, and what was made before
//! is inert. One relaxed load tells, instead of a `getpid` per message.
//!
//! A thread's token answers both questions at once, for the warm path: no two threads ever have the same one, and a fork takes
//! it away from the thread that forked, the only one that goes on in the child. So what remembers the token of the current
//! thread was made by this thread, on this side of every fork.
//!
//! Not seen: a child made by a raw `clone` system call, `_Fork` or `vfork`, which run no `pthread_atfork` handler. Such a child must not
//! use handles that it inherited.

use crate::locks;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Once;

static EPOCH: AtomicU32 = AtomicU32::new(0);

/// The last token that was given out.
static TOKENS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static TOKEN: Cell<u64> = const { Cell::new(NO_TOKEN) };
}

/// The token of a thread that has none yet.
const NO_TOKEN: u64 = 0;

/// A token that no thread has.
pub(crate) const NOBODY: u64 = u64::MAX;

/// The epoch of this process. Relaxed: only a fork changes it, and then there is one thread.
#[inline]
pub(crate) fn epoch() -> u32 {
    EPOCH.load(Ordering::Relaxed)
}

/// The token of this thread, or one that equals nothing that is remembered.
#[inline]
pub(crate) fn token() -> u64 {
    TOKEN.with(Cell::get)
}

/// The token of this thread, to be remembered.
pub(crate) fn own_token() -> u64 {
    TOKEN.with(|token| {
        if token.get() == NO_TOKEN {
            // Relaxed: only has to be unique.
            token.set(TOKENS.fetch_add(1, Ordering::Relaxed) + 1);
        }
        token.get()
    })
}

/// Makes sure that a fork moves the epoch on and closes the child's copies of locks. Called before anything that remembers an
/// epoch is made.
pub(crate) fn watch() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: the handlers lock, unlock, close descriptors, do one relaxed atomic addition, and use thread-locals, for which a
        // library that was loaded at run time may need glibc's malloc; all of that works in a forked child. If registration
        // fails for lack of memory, forks go unnoticed; nothing else depends on it.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

extern "C" fn before() {
    locks::before_fork();
}

extern "C" fn in_parent() {
    locks::after_fork_in_parent();
}

extern "C" fn in_child() {
    EPOCH.fetch_add(1, Ordering::Relaxed);
    TOKEN.with(|token| token.set(NO_TOKEN));
    locks::after_fork_in_child();
}
