//! Mapped memory as a value. All code that maps, unmaps, or turns an offset into a pointer is here.

use crate::error::OsError;
use crate::os::name::Name;
use crate::os::posix::{check, page_size};
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr::{self, NonNull};
use std::slice;

/// NUMA nodes that any Linux can have.
const MAX_NODES: usize = 1024;

/// Bits of a word that nodes are counted in.
const BITS: usize = libc::c_ulong::BITS as usize;

/// The advice of `man 2 madvise`, which libc does not name for every target.
const MADV_COLLAPSE: libc::c_int = 25;

/// A range of mapped memory, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// Bytes directly before the base that are unmapped along with it: this process's own memory,
    /// or address space only.
    before: usize,
    /// The same directly behind the end.
    after: usize,
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
            Some(base) => Ok(Self { base, len, before: 0, after: 0 }),
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
        let mapping = Self { base, len, before, after: 0 };
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

    /// Maps an object for reading and writing, at a multiple of `align`, which is a power of two.
    pub(super) fn aligned(fd: &File, name: &Name, len: usize, align: usize) -> Result<Self, OsError> {
        let failed = |error| name.error("mmap", len, error);
        let space = ManuallyDrop::new(Self::address_space(len.saturating_add(align)).map_err(failed)?);
        let before = (space.base.as_ptr() as usize).wrapping_neg() & (align - 1);
        // SAFETY: `before < align`, so `len` more bytes follow within the mapping just made.
        let base = unsafe { space.base.as_ptr().add(before) };
        // SAFETY: an address within a mapping is not null.
        let base = unsafe { NonNull::new_unchecked(base) };
        // From here on, a step that fails unmaps the whole range.
        let mapping = Self { base, len, before, after: align - before };
        let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        // SAFETY: it replaces a part of the mapping just made, which nobody uses yet.
        if unsafe { libc::mmap(base.as_ptr().cast(), len, access, shared, fd.as_raw_fd(), 0) } == libc::MAP_FAILED {
            return Err(failed(io::Error::last_os_error()));
        }
        Ok(mapping)
    }

    /// Private memory with the first `len` bytes that the object has now: zeroes where it ends
    /// earlier. Whatever others do to the object, reading the copy is no signal.
    pub(crate) fn copy_of(file: &File, name: &Name, len: usize) -> Result<Self, OsError> {
        let (access, own) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the kernel chooses the address, so the new mapping touches no existing memory.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, access, own, -1, 0) };
        let Some(base) = NonNull::new(start.cast::<u8>()).filter(|_| start != libc::MAP_FAILED) else {
            return Err(name.error("mmap", len, io::Error::last_os_error()));
        };
        let this = Self { base, len, before: 0, after: 0 };
        // SAFETY: the mapping just made has `len` zeroed bytes, and nobody else knows it yet.
        let bytes = unsafe { slice::from_raw_parts_mut(base.as_ptr(), len) };
        let mut at = 0;
        while at < len {
            match file.read_at(&mut bytes[at..], at as u64) {
                Ok(0) => break,
                Ok(count) => at += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(name.error("pread", len, error)),
            }
        }
        Ok(this)
    }

    /// Address space that nothing can access.
    fn address_space(len: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: the kernel chooses the address, so the new mapping touches no existing memory.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
        match NonNull::new(start.cast()).filter(|_| start != libc::MAP_FAILED) {
            Some(base) => Ok(Self { base, len, before: 0, after: 0 }),
            None => Err(io::Error::last_os_error()),
        }
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

    /// Locks every page into RAM from when it is present on, for as long as the mapping lives.
    /// Makes no page present: the whole length counts against the limit, memory is taken as before.
    pub(crate) fn lock(&self) -> io::Result<()> {
        // SAFETY: the range is this mapping. Locking changes no byte.
        check(unsafe { libc::mlock2(self.base.as_ptr().cast(), self.len, libc::MLOCK_ONFAULT as _) })
    }

    /// Has pages that are made from now on come from this NUMA node, if it has any free.
    pub(super) fn prefer_node(&self, node: u32) -> io::Result<()> {
        let mut nodes = [0 as libc::c_ulong; MAX_NODES / BITS];
        let word = nodes.get_mut(node as usize / BITS).ok_or(io::Error::from_raw_os_error(libc::EINVAL))?;
        *word = 1 << (node as usize % BITS);
        // The kernel takes one bit less than it is told.
        let (start, bits) = (self.base.as_ptr(), MAX_NODES + 1);
        // SAFETY: the range is this mapping, and `nodes` has as many bits as the kernel reads.
        // Where pages come from changes no byte.
        let done =
            unsafe { libc::syscall(libc::SYS_mbind, start, self.len, libc::MPOL_PREFERRED, nodes.as_ptr(), bits, 0) };
        check(done as i32)
    }

    /// Has the kernel make huge pages of those that lie wholly within a range, as it can since
    /// Linux 6.1; `huge` is their size. What it cannot move stays in small pages.
    ///
    /// Each of them must be present in part. Of one that is only reserved, Linux 6.18 shows the
    /// bytes of whoever had the memory before, on a tmpfs that is mounted with `huge=always`.
    pub(super) fn collapse(&self, range: Range<usize>, huge: usize) {
        let (start, end) = (range.start.next_multiple_of(huge), range.end / huge * huge);
        let len = end.saturating_sub(start);
        let Some(first) = self.range(start as u64, len as u64).filter(|_| len > 0) else { return };
        // SAFETY: `range` checked that the pages lie within this mapping. MADV_COLLAPSE moves them
        // and changes no byte. An error means that some stay small.
        unsafe { libc::madvise(first.as_ptr().cast(), len, MADV_COLLAPSE) };
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
        // (`behind_own_page`, `aligned`; `before` is 0 otherwise).
        let start = unsafe { self.base.as_ptr().sub(self.before) };
        // SAFETY: the whole range that was mapped, unmapped only here. Handles and views that point
        // into it keep this value alive.
        unsafe { libc::munmap(start.cast(), self.before + self.len + self.after) };
    }
}

/// May this process lock that many more bytes into RAM? Asks the kernel, with address space that
/// has no memory.
pub(crate) fn may_lock(bytes: usize) -> io::Result<bool> {
    match Mapping::address_space(bytes)?.lock() {
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOMEM | libc::EPERM | libc::EAGAIN) => Ok(false),
            // A kernel before 4.4 has no `mlock2` and cannot be asked this way.
            _ => Ok(true),
        },
        Ok(()) => Ok(true),
    }
}

/// Can memory come from this NUMA node?
pub(crate) fn can_prefer_node(node: u32) -> io::Result<()> {
    Mapping::address_space(page_size())?.prefer_node(node)
}
