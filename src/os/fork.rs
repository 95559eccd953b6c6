//! Tells on which side of a fork this code runs, and in which thread.
//!
//! A forked child shares its parent's mappings and has copies of its handles, but owns none of
//! them. Every provider and client remembers the epoch in which it was created. In a forked child
//! the epoch has moved on, so whatever was made before is inert. One relaxed load tells, instead of
//! a `getpid` per message.
//!
//! On the warm path, a thread's token answers both questions at once. No two threads of a process,
//! or of its ancestors before the fork, ever have the same token; and a fork takes the token from
//! the thread that forked, the only one that goes on in the child. So anything that remembers the
//! current thread's token was made by this thread, on this side of every fork.
//!
//! Not detected: a child made by a raw `clone` system call, `_Fork` or `vfork`, which run no
//! `pthread_atfork` handlers. Such a child must not use handles that it inherited. And a `fork` in
//! a signal handler may wait for ever, if the signal came while this thread was opening or closing
//! a lock file; POSIX no longer allows `fork` there.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of forks between the process that `exec` started and this one (a fork may count
/// twice, see `locks`). 64 bits, because 2^32 nested forks take only days.
static EPOCH: AtomicU64 = AtomicU64::new(0);

/// The last token given out.
static TOKENS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static TOKEN: Cell<u64> = const { Cell::new(NO_TOKEN) };
}

/// The token of a thread that has none yet. Nothing remembers it.
const NO_TOKEN: u64 = 0;

/// A token that no thread has.
pub(crate) const NOBODY: u64 = u64::MAX;

/// The fork epoch of this process. Relaxed: it changes only right after a fork, in the child's only
/// thread.
#[inline]
pub(crate) fn epoch() -> u64 {
    EPOCH.load(Ordering::Relaxed)
}

/// The token of this thread, or [`NO_TOKEN`] if it has none yet.
#[inline]
pub(crate) fn token() -> u64 {
    TOKEN.with(Cell::get)
}

/// The token of this thread, to be remembered. A thread without one gets one.
pub(crate) fn own_token() -> u64 {
    TOKEN.with(|token| {
        if token.get() == NO_TOKEN {
            // Relaxed: it only has to be unique.
            token.set(TOKENS.fetch_add(1, Ordering::Relaxed) + 1);
        }
        token.get()
    })
}

/// Runs in the child right after the fork: what was made before is not the child's, and its thread
/// is a new one.
pub(super) fn enter_child() {
    EPOCH.fetch_add(1, Ordering::Relaxed);
    TOKEN.with(|token| token.set(NO_TOKEN));
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Runs `body` in a forked child and returns whether it answered `true`. `body` takes no lock
    /// and touches no heap: another thread of the parent may have left them in any state.
    fn in_child_of_this(body: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child runs `body` alone, which takes no lock and touches no heap, and exits.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let code = i32::from(!body());
            // SAFETY: `_exit` has no preconditions.
            unsafe { libc::_exit(code) }
        }
        let mut status = 0;
        // SAFETY: `status` is a valid place to write to.
        let waited = unsafe { libc::waitpid(pid, &mut status, 0) };
        pid > 0 && waited == pid && status == 0
    }

    /// Otherwise a process at the end of 2^32 nested forks takes the handles that it inherited for
    /// its own, and writes what their owner writes.
    #[test]
    fn epochs_do_not_start_over_after_32_bits() {
        crate::os::locks::watch_forks().unwrap();
        let before = epoch();
        let is_another = || {
            // 1, or 2 if two tests registered the handlers at the same time.
            let step = epoch() - before;
            assert_ne!(step, 0, "the fork was noticed");
            // As if after so many forks that the next one is number 2^32.
            EPOCH.store(before + (1 << 32) - step, Ordering::Relaxed);
            in_child_of_this(|| epoch() != before && epoch() as u32 == before as u32)
        };
        assert!(in_child_of_this(is_another));
        assert_eq!(epoch(), before, "the parent does not notice");
    }
}
