//! The machine's floor: one cache line that two processes write in turn, in anonymous memory that
//! the other process inherits as its standard input.

use crate::ways::Ends;
use memmap2::{MmapOptions, MmapRaw};
use nix::sys::memfd::{memfd_create, MFdFlags};
use shm_pool_support::process::Child;
use shm_pool_support::Fallible;
use std::fs::File;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a page, of which the first line is used.
const LEN: u64 = 4096;

/// A new zeroed page.
pub(crate) fn page() -> Fallible<File> {
    let page = File::from(memfd_create(c"rtt-line", MFdFlags::MFD_CLOEXEC)?);
    page.set_len(LEN)?;
    Ok(page)
}

/// A word that says whose turn it is: odd when a number is in transit to the other process.
pub(crate) struct Turns<'a> {
    page: MmapRaw,
    /// The answering process, on the side that starts round trips.
    other: Option<&'a mut Child>,
}

impl<'a> Turns<'a> {
    pub(crate) fn new(page: &File, other: Option<&'a mut Child>) -> Fallible<Self> {
        Ok(Self {
            page: MmapOptions::new().len(LEN as usize).map_raw(page)?,
            other,
        })
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: a mapping is aligned and longer than a word, lives as long as `self`, and both
        // sides access it by atomics alone.
        unsafe { &*self.page.as_mut_ptr().cast::<AtomicU64>() }
    }
}

impl Ends for Turns<'_> {
    fn send(&mut self, number: u64) -> Fallible {
        let turn = 2 * number + 1 + u64::from(self.other.is_none());
        self.word().store(turn, Ordering::Release);
        Ok(())
    }

    fn receive(&mut self, number: u64) -> Fallible {
        const POLLS: u32 = 1 << 20;
        let expected = 2 * number + 1 + u64::from(self.other.is_some());
        loop {
            for _ in 0..POLLS {
                if self.word().load(Ordering::Acquire) == expected {
                    return Ok(());
                }
                spin_loop();
            }
            if let Some(other) = &mut self.other {
                other.check_alive()?;
            }
        }
    }
}
