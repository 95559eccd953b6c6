//! Two cache lines that two processes share: a futex, and when it was notified.

use memmap2::{MmapOptions, MmapRaw};
use nix::sys::memfd::{memfd_create, MFdFlags};
use shm_pool_support::Fallible;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes of a page, of which the first two lines are used.
const LEN: u64 = 4096;

/// A mapping of them.
pub(crate) struct Line(MmapRaw);

/// Creates zeroed lines, with the descriptor by which another process opens them.
pub(crate) fn create() -> Fallible<(Line, OwnedFd)> {
    let file = File::from(memfd_create(c"backpressure", MFdFlags::MFD_CLOEXEC)?);
    file.set_len(LEN)?;
    Ok((Line::map(&file)?, file.into()))
}

impl Line {
    pub(crate) fn map(file: &File) -> Fallible<Self> {
        Ok(Self(MmapOptions::new().len(LEN as usize).map_raw(file)?))
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: a mapping is aligned and longer than a word, lives as long as `self`, and both
        // sides access it by atomics alone.
        unsafe { &*self.0.as_mut_ptr().cast::<AtomicU32>() }
    }

    /// When the other side began to wake this one.
    pub(crate) fn stamp(&self) -> &AtomicU64 {
        // SAFETY: within the page.
        let second = unsafe { self.0.as_mut_ptr().add(64) };
        // SAFETY: aligned to a line, lives as long as `self`, and both sides access it by atomics
        // alone.
        unsafe { &*second.cast::<AtomicU64>() }
    }

    /// Waits until the word is `value`.
    pub(crate) fn wait_until(&self, value: u32) {
        loop {
            let seen = self.word().load(Ordering::Acquire);
            if seen == value {
                return;
            }
            let word = self.word().as_ptr();
            let no_timeout = ptr::null::<libc::timespec>();
            // SAFETY: the word lives as long as `self`.
            unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, seen, no_timeout) };
        }
    }

    /// Sets the word, and wakes the other side.
    pub(crate) fn wake(&self, value: u32) {
        self.word().store(value, Ordering::Release);
        // SAFETY: the word lives as long as `self`.
        unsafe { libc::syscall(libc::SYS_futex, self.word().as_ptr(), libc::FUTEX_WAKE, 1) };
    }
}
