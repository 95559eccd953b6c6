//! One cache line that two processes share, in memory without a name: the other one inherits it as
//! a file descriptor.

use memmap2::{MmapOptions, MmapRaw};
use nix::sys::memfd::{memfd_create, MFdFlags};
use shm_pool_support::Fallible;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;

/// Bytes of a page, of which the first line is used.
const LEN: u64 = 4096;

/// A mapping of it.
pub(crate) struct Line(MmapRaw);

/// A new line, zero, and what another process opens it by.
pub(crate) fn create() -> Fallible<(Line, OwnedFd)> {
    let fd = memfd_create(c"rtt-line", MFdFlags::MFD_CLOEXEC)?;
    let file = File::from(fd);
    file.set_len(LEN)?;
    Ok((Line::map(&file)?, file.into()))
}

impl Line {
    pub(crate) fn map(file: &File) -> Fallible<Self> {
        Ok(Self(MmapOptions::new().len(LEN as usize).map_raw(file)?))
    }

    pub(crate) fn word(&self) -> &AtomicU64 {
        // SAFETY: a mapping is aligned and longer than a word, lives as long as `self`, and both
        // sides access it by atomics alone.
        unsafe { &*self.0.as_mut_ptr().cast::<AtomicU64>() }
    }
}
