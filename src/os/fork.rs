//! Detects forks, and identifies threads.
//!
//! A forked child owns nothing that it inherits (D11). Whatever a child must leave alone has a
//! [`ForkGuard`], which records the *epoch* in which it was created; a fork increments the epoch in
//! the child. Checking it costs one relaxed load.
//!
//! On the warm path, one comparison of *tokens* tells whether the same thread of the same process
//! acts again. Never compare tokens of two processes that are alive.
//!
//! Not detected: a child made by a raw `clone` system call, `_Fork` or `vfork`.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// The number of forks since `exec` (one may count twice, see `locks`). A chain of 2^32 takes days.
static EPOCH: AtomicU64 = AtomicU64::new(0);

/// The bits of tokens that tell this process from its ancestors: the epoch, above every address.
/// After 65,535 forks in a row all bits are set.
static ANCESTRY: AtomicU64 = AtomicU64::new(0);

const ADDRESS_BITS: u32 = 48;

/// A number that no thread has, and no token.
pub(crate) const NO_THREAD: u64 = 0;

/// Relaxed: it changes only right after a fork, in the child's only thread.
#[inline]
pub(crate) fn epoch() -> u64 {
    EPOCH.load(Ordering::Relaxed)
}

/// Tells the process that created a value from its forked children, which have copies of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForkGuard {
    epoch: u64,
}

impl ForkGuard {
    /// For a value of this process.
    #[inline]
    pub(crate) fn new() -> Self {
        Self { epoch: epoch() }
    }

    /// For a value that no process owns.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn of_no_process() -> Self {
        Self { epoch: u64::MAX }
    }

    /// Returns `true` in the process that created the value.
    #[inline]
    pub(crate) fn is_ours(self) -> bool {
        self.epoch == epoch()
    }
}

/// Identifies the calling thread among the living threads of its process: its thread pointer.
/// Reading that costs one instruction even in a shared library, where a thread-local variable costs
/// a call.
#[inline]
pub(crate) fn this_thread() -> u64 {
    let pointer;
    // SAFETY: the ABI has the thread pointer at this address, and the instruction only reads it.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            "mov {}, fs:0",
            out(reg) pointer,
            options(pure, readonly, nostack, preserves_flags),
        )
    };
    // SAFETY: the ABI has the thread pointer in this register, and the instruction only reads it.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!(
            "mrs {}, tpidr_el0",
            out(reg) pointer,
            options(pure, nomem, nostack, preserves_flags),
        )
    };
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        thread_local!(static PLACE: u8 = const { 0 });
        pointer = PLACE.with(|place| ptr::from_ref(place) as u64);
    }
    pointer
}

/// Identifies the calling thread and its process. To be compared with what [`recorded_token`] has
/// returned, which names no other thread of this process or of an ancestor.
#[inline]
pub(crate) fn token() -> u64 {
    // Relaxed: it changes only right after a fork, in the child's only thread.
    this_thread() | ANCESTRY.load(Ordering::Relaxed)
}

/// Returns the token to record; [`NO_THREAD`] if it would not be unique.
pub(crate) fn recorded_token() -> u64 {
    let is_unique =
        this_thread() >> ADDRESS_BITS == 0 && ANCESTRY.load(Ordering::Relaxed) != u64::MAX;
    if is_unique {
        token()
    } else {
        NO_THREAD
    }
}

/// Runs in the child right after a fork.
pub(super) fn enter_child() {
    let epoch = EPOCH.fetch_add(1, Ordering::Relaxed) + 1;
    let ancestry = if epoch < u64::MAX >> ADDRESS_BITS {
        epoch << ADDRESS_BITS
    } else {
        u64::MAX
    };
    ANCESTRY.store(ancestry, Ordering::Relaxed);
}

struct Made<T> {
    fork: ForkGuard,
    value: T,
}

/// A global value that a forked child does not share with its parent, whose locks may be held.
/// Never freed.
pub(crate) struct PerProcess<T: 'static>(AtomicPtr<Made<T>>);

impl<T: Default + Sync + 'static> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    pub(crate) fn existing(&self) -> Option<&'static T> {
        // Acquire: partner of the Release in `get`.
        Self::of_this_process(self.0.load(Ordering::Acquire))
    }

    fn of_this_process(made: *mut Made<T>) -> Option<&'static T> {
        // SAFETY: null, or leaked by `get`.
        let made = unsafe { made.as_ref() }?;
        if !made.fork.is_ours() {
            return None;
        }
        Some(&made.value)
    }

    pub(crate) fn get(&self) -> &'static T {
        loop {
            // Loaded once: only a value that was found to be the parent's is replaced below.
            let old = self.0.load(Ordering::Acquire); // partner: the Release below
            if let Some(value) = Self::of_this_process(old) {
                return value;
            }
            let made = Box::into_raw(Box::new(Made {
                fork: ForkGuard::new(),
                value: T::default(),
            }));
            if self
                .0
                .compare_exchange(old, made, Ordering::AcqRel, Ordering::Relaxed)
                .is_err()
            {
                // SAFETY: created just above and never shared.
                drop(unsafe { Box::from_raw(made) });
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Returns the result of `body` in a forked child, where it must take no lock and use no heap.
    fn in_child_of_this(body: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child only runs `body`, which needs no state of other threads, and exits.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let code = i32::from(!body());
            // SAFETY: `_exit` has no preconditions.
            unsafe { libc::_exit(code) }
        }
        let mut status = 0;
        // SAFETY: `status` is valid for writes.
        let waited = unsafe { libc::waitpid(pid, &mut status, 0) };
        pid > 0 && waited == pid && status == 0
    }

    #[test]
    fn tokens_differ() {
        crate::os::locks::watch_forks().unwrap();
        let (before, here) = (epoch(), recorded_token());
        assert!(here != NO_THREAD && here == token());
        assert_ne!(std::thread::spawn(token).join().unwrap(), here);
        // In the same thread of each child, however many forks have preceded.
        let is_another = || token() != here && recorded_token() == token();
        let is_last = || {
            // A fork counts 2 if two tests registered the handlers at the same time.
            let step = (epoch() - before) / 2;
            EPOCH.store((1 << 16) - 1 - 2 * step, Ordering::Relaxed);
            let last = || {
                is_another()
                    && in_child_of_this(|| token() != here && recorded_token() == NO_THREAD)
            };
            in_child_of_this(last)
        };
        assert!(in_child_of_this(|| is_another()
            && in_child_of_this(is_another)
            && in_child_of_this(is_last)));
    }

    #[test]
    fn epochs_have_64_bits() {
        crate::os::locks::watch_forks().unwrap();
        let before = epoch();
        let is_another = || {
            // 1 or 2, as in `tokens_differ`.
            let step = epoch() - before;
            assert_ne!(step, 0, "the fork was noticed");
            // Simulates enough forks that the next one is number 2^32.
            EPOCH.store(before + (1 << 32) - step, Ordering::Relaxed);
            in_child_of_this(|| epoch() != before && epoch() as u32 == before as u32)
        };
        assert!(in_child_of_this(is_another));
        assert_eq!(epoch(), before, "the parent does not notice");
    }
}
