//! Shared-memory objects as values: [`Segment`], created by this process; [`Foreign`], created by
//! another process; and [`Mapping`], the mapped memory of either.
//!
//! * Memory is reserved (`posix_fallocate`) before it is used, so a full /dev/shm is an error here
//!   and never a SIGBUS on first touch. An object that others write to is reserved whole when it is
//!   created, a payload segment range by range.
//! * A step that fails undoes the earlier ones: descriptors, mappings and names are values that
//!   clean up on drop.
//! * An object's length never changes once it is mapped (invariant I4).
//! * A name is unlinked by the process that created it, or by a sweep (I7). A forked child's copy
//!   of a [`Link`] does nothing.
//! * An open file description that holds a provider's or a peer's lock is never mapped (see
//!   `locks`).

use crate::error::OsError;
use crate::os::locks::{LockFile, LOCK};
use crate::os::name::{inode, shm_open, Link, Name};
#[cfg(feature = "zenoh")]
use crate::os::posix::flock;
use crate::os::posix::{page_size, punch, reserve, set_len};
use std::fs::{File, Permissions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
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
    fn new(fd: &File, name: &Name, len: usize, access: Access) -> Result<Self, OsError> {
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
        let Some(first) = self.range(pages.start as u64, pages.len() as u64) else { return false };
        // SAFETY: `range` checked that the pages lie within this mapping. MADV_POPULATE_WRITE
        // faults them in and changes no byte.
        unsafe { libc::madvise(first.as_ptr().cast(), pages.len(), libc::MADV_POPULATE_WRITE) == 0 }
    }

    /// Makes whole pages present for writing, on any kernel. Only for memory that is reserved and
    /// that nobody writes meanwhile.
    fn populate(&self, pages: Range<usize>) {
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

/// A shared-memory object that this process created: mapped for reading and writing, unlinked on
/// drop.
///
/// Fields drop in this order: by the time [`Link`] looks at the name, this process no longer has
/// the object open.
pub(crate) struct Segment {
    mapping: Mapping,
    /// Kept open if memory is reserved later.
    file: Option<File>,
    link: Link,
}

/// What [`Segment::create_locked`] made.
pub(crate) enum Locked {
    Made(Segment, LockFile),
    /// A sweep found the object before it was locked, and removes it. If others use the name too,
    /// it may belong to another object by now.
    Swept(Link),
}

impl Segment {
    /// Creates an object of `len` bytes (a multiple of the page size) and maps it. Its content is
    /// zero and it has no memory yet: [reserve](Self::reserve) a range before using it. `mode` is
    /// exact, whatever the umask.
    pub(crate) fn create(name: Name, len: usize, mode: u32) -> Result<Self, OsError> {
        let file = shm_create(&name).map_err(|error| name.error("shm_open", len, error))?;
        let link = Link::new(name);
        set_mode(&file, mode).map_err(|error| link.name().error("fchmod", len, error))?;
        Self::sparse(file, link, len)
    }

    /// Creates an object, locks one `byte` of it before anything else, reserves all of its memory,
    /// and maps it with `map`.
    pub(crate) fn create_locked(
        name: Name,
        len: usize,
        mode: u32,
        byte: usize,
        map: impl FnOnce(&File, &Name, usize) -> Result<Mapping, OsError>,
    ) -> Result<Locked, OsError> {
        let locks = LockFile::open(|| shm_create(&name)).map_err(|error| name.error("shm_open", len, error))?;
        let link = Link::new(name);
        let name = link.name();
        let failed = |call| move |error| name.error(call, len, error);
        let is_ours = locks.try_lock(byte).map_err(failed(LOCK))?;
        if !is_ours || !is_linked(locks.file()).map_err(failed("fstat"))? {
            return Ok(Locked::Swept(link));
        }
        set_mode(locks.file(), mode).map_err(failed("fchmod"))?;
        let to_map = shm_open(name, libc::O_RDWR, 0).map_err(failed("shm_open"))?;
        reserve(&to_map, 0, len).map_err(failed("posix_fallocate"))?;
        let mapping = map(&to_map, name, len)?;
        Ok(Locked::Made(Self { mapping, file: None, link }, locks))
    }

    /// Like [`create`](Self::create), but the name stays as long as any process has a shared
    /// `flock` on the object. Returns `None` if one of zenoh's sweeps came first, as in
    /// [`Locked::Swept`].
    #[cfg(feature = "zenoh")]
    pub(crate) fn create_counted(name: Name, len: usize, mode: u32) -> Result<Option<Self>, OsError> {
        let file = shm_create(&name).map_err(|error| name.error("shm_open", len, error))?;
        let link = Link::new(name.clone());
        let failed = |call| {
            let name = &name;
            move |error| name.error(call, len, error)
        };
        let is_ours = match flock(&file, libc::LOCK_SH) {
            Err(error) if error.raw_os_error() == Some(libc::EWOULDBLOCK) => false,
            result => result.map(|()| true).map_err(failed("flock"))?,
        };
        if !is_ours || !is_linked(&file).map_err(failed("fstat"))? {
            link.disown();
            return Ok(None);
        }
        set_mode(&file, mode).map_err(failed("fchmod"))?;
        let counted = inode(&file).map_err(failed("fstat"))?;
        let mut segment = Self::sparse(file, link, len)?;
        segment.link.count_by_flock(counted);
        Ok(Some(segment))
    }

    fn sparse(file: File, link: Link, len: usize) -> Result<Self, OsError> {
        let name = link.name();
        set_len(&file, len).map_err(|error| name.error("ftruncate", len, error))?;
        let mapping = Mapping::of_owner(&file, name, len)?;
        Ok(Self { mapping, file: Some(file), link })
    }

    /// Reserves memory for a range of an object that was made without, in whole pages, and makes it
    /// present in this process, so that writing it does not fault page by page. Memory reserved
    /// earlier stays as it is. Only for a range that nobody writes meanwhile.
    pub(crate) fn reserve(&self, range: Range<usize>) -> Result<(), OsError> {
        let Some(file) = &self.file else { return Ok(()) };
        reserve(file, range.start, range.len())
            .map_err(|error| self.link.name().error("posix_fallocate", range.len(), error))?;
        self.mapping.populate(range);
        Ok(())
    }

    /// Gives a range's memory back to the system, in whole pages, even while other processes have
    /// it mapped. The content is lost; the length stays (I4). Only for memory that nobody reads any
    /// more: a process that touches it afterwards, against the protocol, finds zeros, or gets a
    /// signal if /dev/shm is full. Returns `false` if the system refuses.
    pub(crate) fn discard(&self, range: Range<usize>) -> bool {
        self.file.as_ref().is_some_and(|file| punch(file, range.start, range.len()).is_ok())
    }

    /// The mapping and the name, to be dropped in this order.
    pub(crate) fn into_parts(self) -> (Mapping, Link) {
        (self.mapping, self.link)
    }

    /// The mapped memory.
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }
}

fn shm_create(name: &Name) -> io::Result<File> {
    shm_open(name, libc::O_CREAT | libc::O_EXCL | libc::O_RDWR, 0o600)
}

/// Sets the exact mode, whatever the umask.
fn set_mode(file: &File, mode: u32) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(mode))
}

/// Does the object still have a name? The caller holds its lock, without which nobody else unlinks
/// it.
pub(crate) fn is_linked(file: &File) -> io::Result<bool> {
    Ok(file.metadata()?.nlink() > 0)
}

/// Checks that the object is a regular file of user `uid`. Returns its length in bytes.
pub(crate) fn check_regular(file: &File, name: &Name, uid: u32) -> Result<usize, ObjectError> {
    let metadata = file.metadata().map_err(|error| name.error("fstat", 0, error))?;
    if !metadata.is_file() {
        return Err(ObjectError::Unusable { object: name.path(), reason: "it is not a regular file" });
    }
    if metadata.uid() != uid {
        return Err(ObjectError::WrongUid { object: name.path(), found: metadata.uid(), expected: uid });
    }
    Ok(usize::try_from(metadata.len()).unwrap_or(0))
}

/// What is wrong with another process's object. Each caller turns it into an error of its own: see
/// `peer::error` and `channel::error`.
#[derive(Debug)]
pub(crate) enum ObjectError {
    /// It cannot be the object that it should be.
    Unusable {
        /// Its path.
        object: String,
        reason: &'static str,
    },
    /// It belongs to another user.
    WrongUid {
        /// Its path.
        object: String,
        found: u32,
        expected: u32,
    },
    Os(OsError),
}

impl ObjectError {
    /// Was there no object of this name?
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::Os(error) if error.errno() == Some(libc::ENOENT))
    }
}

impl From<OsError> for ObjectError {
    fn from(error: OsError) -> Self {
        Self::Os(error)
    }
}

/// An object of another process, checked for type and owner.
pub(crate) struct Foreign {
    name: Name,
    file: File,
    /// Length in bytes when it was opened.
    pub(crate) len: usize,
}

impl Foreign {
    /// Opens `name`, which must be a regular file of user `uid`.
    pub(crate) fn open(name: Name, access: Access, uid: u32) -> Result<Self, ObjectError> {
        let flags = if access == Access::Read { libc::O_RDONLY } else { libc::O_RDWR };
        let file = shm_open(&name, flags, 0).map_err(|error| name.error("shm_open", 0, error))?;
        let len = check_regular(&file, &name, uid)?;
        Ok(Self { name, file, len })
    }

    /// Maps the whole object.
    pub(crate) fn map(&self, access: Access) -> Result<Mapping, ObjectError> {
        if self.len == 0 {
            return Err(ObjectError::Unusable { object: self.name.path(), reason: "it is empty" });
        }
        Ok(Mapping::new(&self.file, &self.name, self.len, access)?)
    }

    /// Maps the whole object for reading and writing, behind a page of this process's own.
    pub(crate) fn map_behind_own_page(&self) -> Result<Mapping, OsError> {
        Mapping::behind_own_page(&self.file, &self.name, self.len)
    }

    /// Opens the same object again: another open file description, to hold locks.
    pub(crate) fn open_for_locks(&self) -> Result<LockFile, ObjectError> {
        let failed = |call| move |error| self.name.error(call, self.len, error);
        let again = LockFile::open(|| shm_open(&self.name, libc::O_RDWR, 0)).map_err(failed("shm_open"))?;
        if inode(again.file()).map_err(failed("fstat"))? != inode(&self.file).map_err(failed("fstat"))? {
            let reason = "another object took its name while it was opened";
            return Err(ObjectError::Unusable { object: self.name.path(), reason });
        }
        Ok(again)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::os::posix::{effective_uid, PAGE};
    use std::path::Path;

    fn name(what: &str) -> Name {
        Name::new(&format!("shm_pool-unit.{}.{what}", std::process::id()))
    }

    #[test]
    fn a_segment_is_there_until_it_is_dropped() {
        let segment = Segment::create(name("life"), PAGE, 0o640).unwrap();
        let path = segment.link.name().path();
        let foreign = Foreign::open(name("life"), Access::Read, effective_uid()).unwrap();
        assert_eq!((foreign.len, foreign.map(Access::Read).unwrap().len()), (PAGE, PAGE));
        assert!(Path::new(&path).exists());
        drop(segment);
        assert!(!Path::new(&path).exists(), "I7: the owner unlinks");
    }

    #[test]
    fn a_name_is_created_once() {
        let _first = Segment::create(name("once"), PAGE, 0o600).unwrap();
        let second = Segment::create(name("once"), PAGE, 0o600).err().unwrap();
        assert_eq!(second.errno(), Some(libc::EEXIST));
    }

    #[test]
    fn a_segment_that_cannot_be_is_undone() {
        let error = Segment::create(name("huge"), 1 << 50, 0o600).err().unwrap();
        assert_eq!((error.call(), error.bytes()), ("mmap", 1 << 50));
        assert!(!Path::new(&name("huge").path()).exists(), "no half-made file is left");
    }

    #[test]
    fn a_reservation_that_cannot_be_takes_nothing_and_says_how_much_is_free() {
        let segment = Segment::create(name("sparse"), 1 << 45, 0o600).unwrap();
        let blocks = || std::fs::metadata(name("sparse").path()).unwrap().blocks();
        let error = segment.reserve(0..1 << 45).err().unwrap();
        assert_eq!((error.call(), error.bytes()), ("posix_fallocate", 1 << 45));
        assert!(error.to_string().contains("bytes free") || error.errno() != Some(libc::ENOSPC), "{error}");
        assert_eq!(blocks(), 0);
    }

    #[test]
    fn memory_comes_and_goes_by_ranges_and_the_length_stays() {
        let segment = Segment::create(name("ranges"), 8 * PAGE, 0o600).unwrap();
        let state = || {
            let data = std::fs::metadata(name("ranges").path()).unwrap();
            (data.len() as usize / PAGE, data.blocks() as usize * 512 / PAGE)
        };
        assert_eq!(state(), (8, 0), "a new segment takes no memory");
        segment.reserve(2 * PAGE..6 * PAGE).unwrap();
        segment.reserve(4 * PAGE..8 * PAGE).unwrap();
        assert_eq!(state(), (8, 6));
        assert!(segment.discard(3 * PAGE..5 * PAGE));
        assert_eq!(state(), (8, 4));
    }

    #[test]
    fn a_range_outside_the_mapping_is_refused() {
        let segment = Segment::create(name("range"), PAGE, 0o600).unwrap();
        let mapping = segment.mapping();
        assert!(mapping.range(0, PAGE as u64).is_some());
        assert!(mapping.range(PAGE as u64, 0).is_some());
        assert!(mapping.range(1, PAGE as u64).is_none());
        assert!(mapping.range(u64::MAX, 2).is_none(), "the sum overflows");
    }

    #[test]
    fn a_lock_is_held_against_another_opening_of_the_same_process() {
        let made = Segment::create_locked(name("lock"), PAGE, 0o600, 1, Mapping::of_owner).unwrap();
        let Locked::Made(_segment, ours) = made else { panic!("swept") };
        let other = Foreign::open(name("lock"), Access::ReadWrite, effective_uid()).unwrap();
        let _mapped = other.map(Access::ReadWrite).unwrap();
        let theirs = other.open_for_locks().unwrap();
        assert!(!theirs.try_lock(1).unwrap());
        assert!(theirs.is_locked(1) && !ours.is_locked(1), "a lock is not in its own holder's way");
        assert!(theirs.try_lock(2).unwrap(), "bytes are independent");
        drop(ours);
        assert!(!theirs.is_locked(1), "closing the descriptor gives the lock back, mapped or not");
        let third = other.open_for_locks().unwrap();
        assert!(theirs.try_lock_shared(3).unwrap() && third.try_lock_shared(3).unwrap());
        assert!(!third.is_locked(3), "a shared lock is no sign of life");
        assert!(!third.try_lock(3).unwrap(), "and yet the exclusive one is not to be had beside it");
    }
}
