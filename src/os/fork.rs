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
//! Not seen: a child made by a raw `clone` system call, `_Fork` or `vfork`, which run no `pthread_atfork` handler. Such a child
//! must not use handles that it inherited. And a `fork` in a signal handler may wait for ever, if the signal came while this thread opened or
//! closed a lock file; POSIX allows it there no longer.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many forks there were from the process that `exec` started down to this one. 64 bits: 2^32 forks of forks take only days.
static EPOCH: AtomicU64 = AtomicU64::new(0);

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
pub(crate) fn epoch() -> u64 {
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

/// In the child, right after the fork: what was made before is not its own, and its thread is another one.
pub(super) fn enter_child() {
    EPOCH.fetch_add(1, Ordering::Relaxed);
    TOKEN.with(|token| token.set(NO_TOKEN));
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Runs `body` in a forked child and tells whether its answer was yes. `body` takes no lock and touches no heap: in the
    /// child they may be as another thread of the parent left them.
    fn in_child_of_this(body: impl FnOnce() -> bool) -> bool {
        // SAFETY: see above.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let code = i32::from(!body());
            // SAFETY: no preconditions.
            unsafe { libc::_exit(code) }
        }
        let mut status = 0;
        // SAFETY: a valid place to write to.
        let waited = unsafe { libc::waitpid(pid, &mut status, 0) };
        pid > 0 && waited == pid && status == 0
    }

    /// Otherwise a process that comes after 2^32 forks, each of the one before, takes the handles that it inherited for its own,
    /// and writes what their owner writes.
    #[test]
    fn epochs_do_not_start_over_after_32_bits() {
        crate::os::locks::watch_forks().unwrap();
        let before = epoch();
        let is_another = || {
            assert_eq!(epoch(), before + 1, "the fork was noticed");
            // As after so many forks.
            EPOCH.store(before + u64::from(u32::MAX), Ordering::Relaxed);
            in_child_of_this(|| epoch() != before && epoch() as u32 == before as u32)
        };
        assert!(in_child_of_this(is_another));
        assert_eq!(epoch(), before, "the parent does not notice");
    }
}
