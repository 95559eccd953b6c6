//! Memory mappings. All code that maps, unmaps, or turns an offset into a pointer is here.

use crate::error::OsError;
use crate::os::name::Name;
use crate::os::posix::{check, page_size, retry};
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::ptr::{self, NonNull};
use std::slice;

/// The most bytes that one call faults in. Until it ends, about a millisecond later, no other thread
/// of the process maps or unmaps memory, so none starts either.
const FAULT_IN_STEP: usize = 4 << 20;

const MAX_NODES: usize = 1024;

const BITS: usize = libc::c_ulong::BITS as usize;

/// Advice of `man 2 madvise` that libc does not define for every target.
const MADV_COLLAPSE: libc::c_int = 25;

const READ_WRITE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

const WITHOUT_MEMORY: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// A range of mapped memory, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// Bytes before the base that are unmapped with it.
    before: usize,
    after: usize,
}

// SAFETY: an address range is valid in every thread. Users coordinate access to the bytes.
unsafe impl Send for Mapping {}
// SAFETY: a `&Mapping` only returns addresses.
unsafe impl Sync for Mapping {}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    ReadWrite,
}

impl Mapping {
    /// Maps memory at an address that the kernel chooses.
    fn map(len: usize, access: libc::c_int, flags: libc::c_int, fd: RawFd) -> io::Result<Self> {
        debug_assert_eq!(flags & libc::MAP_FIXED, 0);
        // SAFETY: no caller passes MAP_FIXED, so the new mapping touches no existing memory.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let Some(base) = NonNull::new(base.cast()) else {
            return Err(io::Error::last_os_error());
        };
        Ok(Self {
            base,
            len,
            before: 0,
            after: 0,
        })
    }

    /// Replaces a part of the mapping by another one, at the same address.
    ///
    /// # Safety
    ///
    /// No reference or pointer to the part is used afterwards.
    unsafe fn replace(
        &self,
        part: Range<usize>,
        flags: libc::c_int,
        fd: RawFd,
    ) -> io::Result<NonNull<u8>> {
        let Some(at) = self.range(part.start as u64, part.len() as u64) else {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        };
        // SAFETY: the part lies within this mapping (`range`), and by this function's contract it
        // is not in use.
        let done = unsafe {
            libc::mmap(
                at.as_ptr().cast(),
                part.len(),
                READ_WRITE,
                flags | libc::MAP_FIXED,
                fd,
                0,
            )
        };
        if done == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(at)
    }

    /// Maps `len` bytes of a file, `before` bytes from this address space's start.
    fn with_file(self, before: usize, fd: &File, len: usize) -> io::Result<Self> {
        // SAFETY: every caller has just made the mapping, and moves it into this function.
        let base = unsafe { self.replace(before..before + len, libc::MAP_SHARED, fd.as_raw_fd()) }?;
        let space = ManuallyDrop::new(self);
        Ok(Self {
            base,
            len,
            before,
            after: space.len - before - len,
        })
    }

    pub(super) fn new(fd: &File, name: &Name, len: usize, access: Access) -> Result<Self, OsError> {
        let access = if access == Access::Read {
            libc::PROT_READ
        } else {
            READ_WRITE
        };
        Self::map(len, access, libc::MAP_SHARED, fd.as_raw_fd())
            .map_err(|error| name.error("mmap", len, error))
    }

    pub(crate) fn of_owner(fd: &File, name: &Name, len: usize) -> Result<Self, OsError> {
        Self::new(fd, name, len, Access::ReadWrite)
    }

    /// Maps a file directly behind one zeroed page of this process only, for a robust list's
    /// entries.
    pub(crate) fn behind_own_page(fd: &File, name: &Name, len: usize) -> Result<Self, OsError> {
        let page = page_size();
        let map = || {
            let nothing = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let space = Self::map(page.saturating_add(len), libc::PROT_NONE, nothing, -1)?;
            // Shared: see `Mapping::shared`.
            // SAFETY: the mapping is new, and no other code knows it.
            unsafe { space.replace(0..page, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1) }?;
            space.with_file(page, fd, len)
        };
        map().map_err(|error| name.error("mmap", len, error))
    }

    pub(super) fn aligned(
        fd: &File,
        name: &Name,
        len: usize,
        align: usize,
    ) -> Result<Self, OsError> {
        let map = || {
            let space = Self::address_space(len.saturating_add(align))?;
            let before = (space.base.as_ptr() as usize).wrapping_neg() & (align - 1);
            space.with_file(before, fd, len)
        };
        map().map_err(|error| name.error("mmap", len, error))
    }

    /// Copies the first bytes to private memory, with zeroes past the end. Reading the copy cannot
    /// raise a signal.
    pub(crate) fn copy_of(file: &File, name: &Name, len: usize) -> Result<Self, OsError> {
        let failed = |call| move |error| name.error(call, len, error);
        let this = Self::map(len, READ_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
            .map_err(failed("mmap"))?;
        // SAFETY: the mapping just made has `len` zeroed bytes, which no other code knows yet.
        let bytes = unsafe { slice::from_raw_parts_mut(this.base.as_ptr(), len) };
        let mut at = 0;
        while at < len {
            match retry(|| file.read_at(&mut bytes[at..], at as u64)) {
                Ok(0) => break,
                Ok(count) => at += count,
                Err(error) => return Err(failed("pread")(error)),
            }
        }
        Ok(this)
    }

    fn address_space(len: usize) -> io::Result<Self> {
        Self::map(len, libc::PROT_NONE, WITHOUT_MEMORY, -1)
    }

    /// Maps zeroed memory of this process only, which the kernel keeps until it has walked the
    /// robust lists.
    pub(super) fn shared(len: usize) -> io::Result<Self> {
        Self::map(len, READ_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1)
    }

    /// Maps zeroed memory of this process only, which takes no memory before it is written.
    pub(crate) fn private(len: usize) -> io::Result<Self> {
        Self::map(len, READ_WRITE, WITHOUT_MEMORY, -1)
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the address of a byte, or of the end for an offset beyond it.
    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        // SAFETY: inside the mapping, or one past its end.
        let byte = unsafe { self.base.as_ptr().add(offset.min(self.len)) };
        NonNull::new(byte).unwrap_or(self.base)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the address one page before `word`: that of its entry in the robust list. The
    /// mapping is [behind an own page](Self::behind_own_page). Returns `None` if the word is not in
    /// the first page, whose entries lie in the own page.
    pub(crate) fn own_entry<T>(&self, word: &T) -> Option<NonNull<u8>> {
        let page = page_size();
        let address = ptr::addr_of!(*word) as usize;
        let offset = address.checked_sub(self.base.as_ptr() as usize)?;
        if self.before != page || offset >= page.min(self.len) {
            return None;
        }
        // SAFETY: the mapped range begins `before`, which is one page, below the base.
        let own_page = unsafe { self.base.as_ptr().sub(page) };
        // SAFETY: the offset is less than a page.
        NonNull::new(unsafe { own_page.add(offset) })
    }

    /// Returns the address of the first of some bytes; `None` if they are not all within the
    /// mapping (I2).
    pub(crate) fn range(&self, offset: u64, len: u64) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len)?;
        if end > self.len as u64 {
            return None;
        }
        // SAFETY: `offset <= end <= self.len`: inside the mapping, or one past its end.
        NonNull::new(unsafe { self.base.as_ptr().add(offset as usize) })
    }

    /// Faults pages in for writing, even while other threads write. Returns `false` before Linux
    /// 5.14, or without memory.
    pub(crate) fn prefault(&self, pages: Range<usize>) -> bool {
        self.fault_in(pages, libc::MADV_POPULATE_WRITE)
    }

    /// Faults pages in for reading. Returns `false` before Linux 5.14, or without memory.
    pub(super) fn prefault_for_reading(&self, pages: Range<usize>) -> bool {
        self.fault_in(pages, libc::MADV_POPULATE_READ)
    }

    /// Returns `false` if a page has no memory, or if the kernel does not support `how`. Never
    /// raises a SIGBUS.
    fn fault_in(&self, pages: Range<usize>, how: libc::c_int) -> bool {
        let mut at = pages.start;
        while at < pages.end {
            let len = FAULT_IN_STEP.min(pages.end - at);
            let Some(first) = self.range(at as u64, len as u64) else {
                return false;
            };
            // SAFETY: the pages lie within this mapping (`range`). MADV_POPULATE_READ and
            // MADV_POPULATE_WRITE change no byte.
            if unsafe { libc::madvise(first.as_ptr().cast(), len, how) } != 0 {
                return false;
            }
            at += len;
        }
        true
    }

    /// Locks each page into RAM once it is present. The whole length counts against the limit.
    pub(crate) fn lock(&self) -> io::Result<()> {
        // SAFETY: the range is this mapping. Locking changes no byte.
        check(unsafe {
            libc::mlock2(
                self.base.as_ptr().cast(),
                self.len,
                libc::MLOCK_ONFAULT as _,
            )
        })
    }

    /// Takes pages from a NUMA node, as long as it has free memory.
    pub(super) fn prefer_node(&self, node: u32) -> io::Result<()> {
        let mut nodes = [0 as libc::c_ulong; MAX_NODES / BITS];
        let Some(word) = nodes.get_mut(node as usize / BITS) else {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        };
        *word = 1 << (node as usize % BITS);
        let start = self.base.as_ptr();
        // The kernel reads one bit less than this count.
        let bits = MAX_NODES + 1;
        // SAFETY: the range is this mapping, and `nodes` has as many bits as the kernel reads.
        // Changes no byte.
        let done = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                start,
                self.len,
                libc::MPOL_PREFERRED,
                nodes.as_ptr(),
                bits,
                0,
            )
        };
        check(done as i32)
    }

    /// Asks the kernel (since Linux 6.1) to collapse the aligned parts of a range into huge pages.
    /// A part of each must be present: Linux 6.18 exposes the previous content of memory that is
    /// only reserved, on a tmpfs mounted with `huge=always`.
    pub(super) fn collapse(&self, range: Range<usize>, huge: usize) {
        let start = range.start.next_multiple_of(huge);
        let end = range.end / huge * huge;
        if start >= end {
            return;
        }
        let len = end - start;
        let Some(first) = self.range(start as u64, len as u64) else {
            return;
        };
        // SAFETY: the pages lie within this mapping (`range`). Moving them changes no byte.
        unsafe { libc::madvise(first.as_ptr().cast(), len, MADV_COLLAPSE) };
    }

    /// Faults pages in for writing, on any kernel. The memory is reserved, and no other thread
    /// writes it.
    pub(super) fn populate(&self, pages: Range<usize>) {
        if self.prefault(pages.clone()) {
            return;
        }
        for at in pages.step_by(page_size()) {
            if let Some(byte) = self.range(at as u64, 1) {
                // SAFETY: within the mapping (`range`), which the owner maps for reading and
                // writing. The caller has exclusive access.
                let value = unsafe { byte.as_ptr().read_volatile() };
                // SAFETY: the same.
                unsafe { byte.as_ptr().write_volatile(value) };
            }
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapped range starts `before` bytes below the base.
        let start = unsafe { self.base.as_ptr().sub(self.before) };
        // SAFETY: the whole mapped range, unmapped only here. What points into it keeps this value
        // alive.
        unsafe { libc::munmap(start.cast(), self.before + self.len + self.after) };
    }
}

/// Returns `false` if this process may not lock so many more bytes into RAM.
pub(crate) fn may_lock(bytes: usize) -> io::Result<bool> {
    match Mapping::address_space(bytes)?.lock() {
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOMEM | libc::EPERM | libc::EAGAIN) => Ok(false),
            // A kernel before 4.4 has no `mlock2`.
            _ => Ok(true),
        },
        Ok(()) => Ok(true),
    }
}

pub(crate) fn can_prefer_node(node: u32) -> io::Result<()> {
    Mapping::address_space(page_size())?.prefer_node(node)
}

/// Prefetches a cache line for writing: the later store does not wait for another core.
#[inline]
pub(crate) fn prefetch_for_writing<T>(address: *const T) {
    // SAFETY: a hint, which never faults and changes no memory, even for an invalid address.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe {
        std::arch::asm!(
            "prefetchw [{}]",
            in(reg) address,
            options(nostack, preserves_flags, readonly),
        );
    }
    // SAFETY: the same.
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    unsafe {
        std::arch::asm!(
            "prfm pstl1keep, [{}]",
            in(reg) address,
            options(nostack, preserves_flags, readonly),
        );
    }
    #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
    let _ = address;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::os::posix::effective_uid;
    use crate::os::segment::{Foreign, Memory, Segment};

    #[test]
    fn own_entry_precedes_word() {
        let page = page_size();
        let name = Name::new(&format!("shm_pool-unit.{}.entry", std::process::id()));
        let _segment = Segment::create(name.clone(), 2 * page, 0o600, Memory::default()).unwrap();
        let foreign = Foreign::open(name, Access::ReadWrite, effective_uid()).unwrap();
        let mapping = foreign.map_behind_own_page().unwrap();
        let word = |offset: usize| {
            let byte = mapping.range(offset as u64, 1).unwrap();
            // SAFETY: within the mapping (`range`), which no code writes.
            unsafe { byte.as_ref() }
        };
        for offset in [0, 64, page - 8] {
            let entry = mapping.own_entry(word(offset)).unwrap();
            assert_eq!(
                entry.as_ptr() as usize + page,
                ptr::addr_of!(*word(offset)) as usize
            );
            // SAFETY: a byte of the own page, which no other code knows.
            assert_eq!(unsafe { entry.as_ptr().read() }, 0);
        }
        assert_eq!(mapping.own_entry(word(page)), None);
        assert_eq!(mapping.own_entry(&0), None, "not in the mapping");
        let without = foreign.map(Access::ReadWrite).unwrap();
        // SAFETY: within the mapping.
        let first = unsafe { without.base().as_ref() };
        assert_eq!(without.own_entry(first), None, "no own page");
    }
}
