//! Mapped memory as a value. All code that maps, unmaps, or turns an offset into a pointer is here.

use crate::error::OsError;
use crate::os::name::Name;
use crate::os::posix::page_size;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};

/// A range of mapped memory, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// Bytes of this process's own memory, mapped directly before the base.
    before: usize,
}

// SAFETY: a mapping is an address range, valid in every thread. Its users settle who may access
// which bytes.
unsafe impl Send for Mapping {}
// SAFETY: a `&Mapping` gives out addresses; its users settle who may access the bytes behind them.
unsafe impl Sync for Mapping {}

/// How a process may access the bytes that it maps.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    ReadWrite,
}

impl Mapping {
    pub(super) fn new(fd: &File, name: &Name, len: usize, access: Access) -> Result<Self, OsError> {
        let protection = match access {
            Access::Read => libc::PROT_READ,
            Access::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        };
        // SAFETY: the kernel chooses the address, so the new mapping touches no existing memory.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, protection, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(name.error("mmap", len, io::Error::last_os_error()));
        }
        match NonNull::new(base.cast()) {
            Some(base) => Ok(Self { base, len, before: 0 }),
            None => Err(name.error("mmap", len, io::Error::from_raw_os_error(libc::EINVAL))),
        }
    }

    /// Maps an object for reading and writing.
    pub(crate) fn of_owner(fd: &File, name: &Name, len: usize) -> Result<Self, OsError> {
        Self::new(fd, name, len, Access::ReadWrite)
    }

    /// Maps an object for reading and writing, directly behind one zeroed page of this process's
    /// own.
    pub(crate) fn behind_own_page(fd: &File, name: &Name, len: usize) -> Result<Self, OsError> {
        let failed = |call, error| name.error(call, len, error);
        let (before, access) = (page_size(), libc::PROT_READ | libc::PROT_WRITE);
        let nothing = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let all = before.saturating_add(len);
        // Address space only, so that the two parts are neighbours.
        // SAFETY: the kernel chooses the address, so the new mapping touches no existing memory.
        let start = unsafe { libc::mmap(ptr::null_mut(), all, libc::PROT_NONE, nothing, -1, 0) };
        let Some(first) = NonNull::new(start.cast::<u8>()).filter(|_| start != libc::MAP_FAILED) else {
            return Err(failed("mmap", io::Error::last_os_error()));
        };
        // SAFETY: `before <= all`, the length of the mapping just made.
        let base = unsafe { first.as_ptr().add(before) };
        // SAFETY: `base` lies a page above the start of the mapping, so it is not null.
        let base = unsafe { NonNull::new_unchecked(base) };
        // From here on, a step that fails unmaps the whole range.
        let mapping = Self { base, len, before };
        // Shared, although no other process uses it: see `robust_list`.
        let own = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: it replaces the first page of the mapping just made, which nobody uses yet.
        if unsafe { libc::mmap(start, before, access, own, -1, 0) } == libc::MAP_FAILED {
            return Err(failed("mmap", io::Error::last_os_error()));
        }
        let (shared, at) = (libc::MAP_SHARED | libc::MAP_FIXED, base.as_ptr().cast());
        // SAFETY: it replaces the mapping just made from its second page on, which nobody uses yet.
        if unsafe { libc::mmap(at, len, access, shared, fd.as_raw_fd(), 0) } == libc::MAP_FAILED {
            return Err(failed("mmap", io::Error::last_os_error()));
        }
        Ok(mapping)
    }

    /// The first byte, page-aligned.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// A pointer to `len` bytes at `offset`, or `None` if they do not lie within the mapping
    /// (invariant I2).
    pub(crate) fn range(&self, offset: u64, len: u64) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len)?;
        if end > self.len as u64 {
            return None;
        }
        // SAFETY: `offset <= end <= self.len`, so the pointer is inside the mapping or one past its
        // end.
        NonNull::new(unsafe { self.base.as_ptr().add(offset as usize) })
    }

    /// Makes whole pages present for writing, even while others write them. Returns `false` if the
    /// kernel cannot (it can since Linux 5.14).
    pub(crate) fn prefault(&self, pages: Range<usize>) -> bool {
        self.fault_in(pages, libc::MADV_POPULATE_WRITE)
    }

    /// Makes whole pages present for reading, even while others write them. Returns `false` if the
    /// kernel cannot (it can since Linux 5.14), or has no memory there.
    pub(super) fn prefault_for_reading(&self, pages: Range<usize>) -> bool {
        self.fault_in(pages, libc::MADV_POPULATE_READ)
    }

    /// What faults pages in is the kernel, so that a page without memory is an error here and not a
    /// SIGBUS.
    fn fault_in(&self, pages: Range<usize>, how: libc::c_int) -> bool {
        let Some(first) = self.range(pages.start as u64, pages.len() as u64) else { return false };
        // SAFETY: `range` checked that the pages lie within this mapping. Both kinds of `how`
        // (MADV_POPULATE_READ and MADV_POPULATE_WRITE) fault them in and change no byte.
        unsafe { libc::madvise(first.as_ptr().cast(), pages.len(), how) == 0 }
    }

    /// Makes whole pages present for writing, on any kernel. Only for memory that is reserved and
    /// that nobody writes meanwhile.
    pub(super) fn populate(&self, pages: Range<usize>) {
        if self.prefault(pages.clone()) {
            return;
        }
        for at in pages.step_by(page_size()) {
            if let Some(byte) = self.range(at as u64, 1) {
                // SAFETY: `range` checked that the byte lies within the mapping, which the owner
                // may read. The caller has the range to itself.
                let value = unsafe { byte.as_ptr().read_volatile() };
                // SAFETY: the byte just read, in a mapping that the owner may write. The same value
                // goes back.
                unsafe { byte.as_ptr().write_volatile(value) };
            }
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range that was mapped starts `before` bytes below the base
        // (`behind_own_page`; `before` is 0 in `new`).
        let start = unsafe { self.base.as_ptr().sub(self.before) };
        // SAFETY: the whole range that was mapped, unmapped only here. Handles and views that point
        // into it keep this value alive.
        unsafe { libc::munmap(start.cast(), self.before + self.len) };
    }
}
