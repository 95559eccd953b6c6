//! A [`Segment`] that this process creates, and a [`Foreign`] object, checked before it is mapped.
//! Memory is reserved before it is used (a full /dev/shm is an error, never a SIGBUS). A step that
//! fails undoes the earlier ones.

#![forbid(unsafe_code)]

use crate::error::{OsError, WrongUid};
use crate::os::locks::{LockFile, LOCK};
use crate::os::mapping::{Access, Mapping};
use crate::os::name::{inode, Link, Name};
use crate::os::posix::{
    free_bytes, is_identity, keep_from_cleaners, next_filled, page_size, punch, reserve,
    reserve_all, set_len, LOCK_MEMORY,
};
use std::fs::{File, Metadata, Permissions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;

/// A mapped object that this process has created. It is unlinked on drop (I7), unless it is
/// [kept](Self::keep) for its readers. The order of the fields matters: the mapping and the file
/// are closed before that.
pub(crate) struct Segment {
    mapping: Mapping,
    file: Option<Arc<File>>,
    huge_page: Option<usize>,
    link: Link,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Memory {
    pub(crate) is_locked: bool,
    /// Uses huge pages of that many bytes, where they fit and the kernel has them.
    pub(crate) huge_page: Option<usize>,
    /// Takes memory from this NUMA node, as long as it has some free.
    pub(crate) numa_node: Option<u32>,
}

pub(crate) enum Locked {
    Made(Segment, LockFile),
    /// A sweep found the object before it was locked, and removes it.
    Swept(Link),
}

impl Segment {
    /// Creates a segment without memory: [reserve](Self::reserve) a range before using it.
    pub(crate) fn create(
        name: Name,
        len: usize,
        mode: u32,
        memory: Memory,
    ) -> Result<Self, OsError> {
        let file = create_new(&name).map_err(|error| name.error("open", len, error))?;
        let link = Link::new(name, &file);
        keep_from_cleaners(&file);
        set_mode(&file, mode).map_err(|error| link.name().error("fchmod", len, error))?;
        Self::sparse(Arc::new(file), link, len, memory)
    }

    /// Creates an object. Locks a `byte` of it first, then reserves memory, and maps it with `map`.
    pub(crate) fn create_locked(
        name: Name,
        len: usize,
        mode: u32,
        byte: usize,
        map: impl FnOnce(&File, &Name, usize) -> Result<Mapping, OsError>,
    ) -> Result<Locked, OsError> {
        let locks = LockFile::open(|| create_new(&name));
        let locks = locks.map_err(|error| name.error("open", len, error))?;
        let link = Link::new(name, locks.file());
        let name = link.name();
        let failed = |call| move |error| name.error(call, len, error);
        let is_ours = locks.try_lock(byte).map_err(failed(LOCK))?;
        if !is_ours || !is_linked(locks.file()).map_err(failed("fstat"))? {
            return Ok(Locked::Swept(link));
        }
        keep_from_cleaners(locks.file());
        set_mode(locks.file(), mode).map_err(failed("fchmod"))?;
        let to_map = name.open(libc::O_RDWR, 0).map_err(failed("open"))?;
        reserve_all(&to_map, len).map_err(failed("posix_fallocate"))?;
        let mapping = map(&to_map, name, len)?;
        let segment = Self {
            mapping,
            file: None,
            huge_page: None,
            link,
        };
        Ok(Locked::Made(segment, locks))
    }

    /// Makes a segment of a file that another part of the program has created. `name` is for
    /// errors.
    pub(crate) fn of_file(
        file: Arc<File>,
        name: Name,
        len: usize,
        memory: Memory,
    ) -> Result<Self, OsError> {
        Self::sparse(file, Link::of_others(name), len, memory)
    }

    fn sparse(file: Arc<File>, link: Link, len: usize, memory: Memory) -> Result<Self, OsError> {
        let name = link.name();
        let failed = |call| move |error| name.error(call, len, error);
        set_len(&file, len).map_err(failed("ftruncate"))?;
        let mut huge_page = None;
        let mapping = match memory.huge_page {
            // A huge page requires the same alignment of address and offset.
            Some(huge) if len >= huge => {
                huge_page = Some(huge);
                Mapping::aligned(&file, name, len, huge)?
            }
            _ => Mapping::of_owner(&file, name, len)?,
        };
        // Before the first page: neither call moves existing pages.
        if let Some(node) = memory.numa_node {
            mapping.prefer_node(node).map_err(failed("mbind"))?;
        }
        if memory.is_locked {
            mapping.lock().map_err(failed(LOCK_MEMORY))?;
        }
        Ok(Self {
            mapping,
            file: Some(file),
            huge_page,
            link,
        })
    }

    /// Reserves memory for whole pages, and faults them in. No other thread or process may write
    /// the range concurrently.
    pub(crate) fn reserve(&self, range: Range<usize>) -> Result<(), OsError> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        if let Err(error) = reserve(file, range.start, range.len()) {
            let name = self.link.name();
            return Err(name.error("posix_fallocate", range.len(), error));
        }
        self.mapping.populate(range.clone());
        self.collapse(range);
        Ok(())
    }

    pub(crate) fn huge_page(&self) -> Option<usize> {
        self.huge_page
    }

    /// Collapses a range into huge pages, if the segment has any. The range is reserved, and a part
    /// of each huge page is present.
    pub(crate) fn collapse(&self, range: Range<usize>) {
        if let Some(huge) = self.huge_page {
            self.mapping.collapse(range, huge);
        }
    }

    /// Releases whole pages to the system, even while other processes have them mapped; the length
    /// stays (I4). The range must no longer be read: readers see zeros, or get a signal if /dev/shm
    /// is full. Returns `false` if the system refuses.
    pub(crate) fn discard(&self, range: Range<usize>) -> bool {
        let Some(file) = &self.file else {
            return false;
        };
        punch(file, range.start, range.len()).is_ok()
    }

    pub(crate) fn free_bytes(&self) -> Option<u64> {
        free_bytes(self.link.name().directory())
    }

    /// Leaves the name to the last reader, or to a sweep.
    pub(crate) fn keep(&self) {
        self.link.keep();
    }

    /// Returns the parts, which must be dropped in this order.
    pub(crate) fn into_parts(self) -> (Mapping, Link) {
        (self.mapping, self.link)
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }
}

fn create_new(name: &Name) -> io::Result<File> {
    name.open(libc::O_CREAT | libc::O_EXCL | libc::O_RDWR, 0o600)
}

/// Sets exactly `mode`, regardless of the umask. Reported to processes that watch the directory.
pub(crate) fn set_mode(file: &File, mode: u32) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(mode))
}

/// Returns `true` if the file still has a name. No other process unlinks it while the caller holds
/// its lock.
pub(crate) fn is_linked(file: &File) -> io::Result<bool> {
    Ok(file.metadata()?.nlink() > 0)
}

/// Returns the object's length, if it is a regular file of this user.
pub(crate) fn check_regular(file: &File, name: &Name, uid: u32) -> Result<usize, ObjectError> {
    let metadata = file
        .metadata()
        .map_err(|error| name.error("fstat", 0, error))?;
    let len = check_metadata(&metadata, name, uid)?;
    if !is_identity(uid, file) {
        return Err(ObjectError::WrongUid(WrongUid {
            object: name.path(),
            found: uid,
            expected: uid,
        }));
    }
    Ok(len)
}

/// Checks what any process may see. Use [`check_regular`] for an object that is trusted.
pub(crate) fn check_metadata(
    metadata: &Metadata,
    name: &Name,
    uid: u32,
) -> Result<usize, ObjectError> {
    if metadata.uid() != uid {
        return Err(ObjectError::WrongUid(WrongUid {
            object: name.path(),
            found: metadata.uid(),
            expected: uid,
        }));
    }
    if !metadata.is_file() {
        return Err(ObjectError::Unusable {
            object: name.path(),
            reason: "it is not a regular file",
        });
    }
    Ok(usize::try_from(metadata.len()).unwrap_or(0))
}

#[derive(Debug)]
pub(crate) enum ObjectError {
    Unusable {
        object: PathBuf,
        reason: &'static str,
    },
    WrongUid(WrongUid),
    Os(OsError),
}

impl ObjectError {
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::Os(error) if error.errno() == Some(libc::ENOENT))
    }
}

impl From<OsError> for ObjectError {
    fn from(error: OsError) -> Self {
        Self::Os(error)
    }
}

/// An object that another process has created.
pub(crate) struct Foreign {
    name: Name,
    file: File,
    pub(crate) len: usize,
}

impl Foreign {
    pub(crate) fn open(name: Name, access: Access, uid: u32) -> Result<Self, ObjectError> {
        let this = Self::open_of_any_user(name, access)?;
        check_regular(&this.file, &this.name, uid)?;
        Ok(this)
    }

    /// For an object whose creator is not trusted, whoever that is.
    pub(crate) fn open_of_any_user(name: Name, access: Access) -> Result<Self, ObjectError> {
        let flags = if access == Access::Read {
            libc::O_RDONLY
        } else {
            libc::O_RDWR
        };
        let file = name
            .open(flags, 0)
            .map_err(|error| name.error("open", 0, error))?;
        let metadata = file
            .metadata()
            .map_err(|error| name.error("fstat", 0, error))?;
        let len = check_metadata(&metadata, &name, metadata.uid())?;
        Ok(Self { name, file, len })
    }

    pub(crate) fn map(&self, access: Access) -> Result<Mapping, ObjectError> {
        self.map_first(self.len, access)
    }

    /// Maps the first `len` bytes, or all if there are fewer.
    pub(crate) fn map_first(&self, len: usize, access: Access) -> Result<Mapping, ObjectError> {
        if self.len == 0 {
            return Err(ObjectError::Unusable {
                object: self.name.path(),
                reason: "it is empty",
            });
        }
        let len = len.min(self.len);
        Ok(Mapping::new(&self.file, &self.name, len, access)?)
    }

    /// Populates the parts that have memory, for reading; populating a hole would allocate memory.
    /// Returns their size, or 0 before Linux 5.14.
    pub(crate) fn fault_in(&self, mapping: &Mapping) -> usize {
        let len = mapping.len();
        let mut at = 0;
        let mut present = 0;
        while let Some(filled) = next_filled(&self.file, at) {
            if filled.start >= len {
                break;
            }
            let filled = filled.start..filled.end.min(len);
            // Memory may appear and disappear meanwhile, so each iteration advances.
            at = filled.end.max(filled.start + page_size());
            if mapping.prefault_for_reading(filled.clone()) {
                present += filled.len();
            }
        }
        present
    }

    pub(crate) fn map_behind_own_page(&self) -> Result<Mapping, OsError> {
        Mapping::behind_own_page(&self.file, &self.name, self.len)
    }

    /// Opens the object once more, as a file that is never mapped.
    pub(crate) fn open_for_locks(&self) -> Result<LockFile, ObjectError> {
        let failed = |call| move |error| self.name.error(call, self.len, error);
        let again = LockFile::open(|| self.name.open(libc::O_RDWR, 0)).map_err(failed("open"))?;
        let found = inode(again.file()).map_err(failed("fstat"))?;
        let expected = inode(&self.file).map_err(failed("fstat"))?;
        if found != expected {
            let reason = "another object took its name while it was opened";
            return Err(ObjectError::Unusable {
                object: self.name.path(),
                reason,
            });
        }
        Ok(again)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::os::mapping::Access;
    use crate::os::posix::{effective_uid, PAGE};
    use crate::os::segment::Foreign;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    fn name(what: &str) -> Name {
        Name::new(&format!("shm_pool-unit.{}.{what}", std::process::id()))
    }

    #[test]
    fn drop_unlinks_segment() {
        let segment = Segment::create(name("life"), PAGE, 0o640, Memory::default()).unwrap();
        let path = segment.link.name().path();
        let foreign = Foreign::open(name("life"), Access::Read, effective_uid()).unwrap();
        assert_eq!(
            (foreign.len, foreign.map(Access::Read).unwrap().len()),
            (PAGE, PAGE)
        );
        assert!(Path::new(&path).exists());
        drop(segment);
        assert!(!Path::new(&path).exists(), "I7: the owner unlinks");
    }

    #[test]
    fn created_once() {
        let _first = Segment::create(name("once"), PAGE, 0o600, Memory::default()).unwrap();
        let second = Segment::create(name("once"), PAGE, 0o600, Memory::default())
            .err()
            .unwrap();
        assert_eq!(second.errno(), Some(libc::EEXIST));
    }

    #[test]
    fn failed_create_leaves_nothing() {
        let error = Segment::create(name("huge"), 1 << 50, 0o600, Memory::default())
            .err()
            .unwrap();
        assert_eq!((error.call(), error.bytes()), ("mmap", Some(1 << 50)));
        assert!(
            !Path::new(&name("huge").path()).exists(),
            "no half-made file is left"
        );
    }

    #[test]
    fn failed_reserve_reports_free_space() {
        let segment = Segment::create(name("sparse"), 1 << 45, 0o600, Memory::default()).unwrap();
        let blocks = || std::fs::metadata(name("sparse").path()).unwrap().blocks();
        let error = segment.reserve(0..1 << 45).err().unwrap();
        assert_eq!(
            (error.call(), error.bytes()),
            ("posix_fallocate", Some(1 << 45))
        );
        assert!(
            error.to_string().contains("bytes free") || error.errno() != Some(libc::ENOSPC),
            "{error}"
        );
        assert_eq!(blocks(), 0);
    }

    #[test]
    fn reserve_and_discard_ranges() {
        let page = page_size();
        let segment = Segment::create(name("ranges"), 8 * page, 0o600, Memory::default()).unwrap();
        let state = || {
            let data = std::fs::metadata(name("ranges").path()).unwrap();
            (
                data.len() as usize / page,
                data.blocks() as usize * 512 / page,
            )
        };
        assert_eq!(state(), (8, 0), "a new segment takes no memory");
        segment.reserve(2 * page..6 * page).unwrap();
        segment.reserve(4 * page..8 * page).unwrap();
        assert_eq!(state(), (8, 6));
        assert!(segment.discard(3 * page..5 * page));
        assert_eq!(state(), (8, 4));
    }

    #[test]
    fn range_outside_mapping() {
        let segment = Segment::create(name("range"), PAGE, 0o600, Memory::default()).unwrap();
        let mapping = segment.mapping();
        assert!(mapping.range(0, PAGE as u64).is_some());
        assert!(mapping.range(PAGE as u64, 0).is_some());
        assert!(mapping.range(1, PAGE as u64).is_none());
        assert!(mapping.range(u64::MAX, 2).is_none(), "the sum overflows");
    }

    #[test]
    fn lock_excludes_own_process() {
        let made = Segment::create_locked(name("lock"), PAGE, 0o600, 1, Mapping::of_owner).unwrap();
        let Locked::Made(_segment, ours) = made else {
            panic!("swept")
        };
        let other = Foreign::open(name("lock"), Access::ReadWrite, effective_uid()).unwrap();
        let _mapped = other.map(Access::ReadWrite).unwrap();
        let theirs = other.open_for_locks().unwrap();
        assert!(!theirs.try_lock(1).unwrap());
        assert!(
            theirs.is_locked(1) && !ours.is_locked(1),
            "a lock is not in its own holder's way"
        );
        assert!(theirs.try_lock(2).unwrap(), "bytes are independent");
        drop(ours);
        assert!(
            !theirs.is_locked(1),
            "closing the descriptor gives the lock back, mapped or not"
        );
        let third = other.open_for_locks().unwrap();
        assert!(theirs.try_lock_shared(3).unwrap() && third.try_lock_shared(3).unwrap());
        assert!(!third.is_locked(3), "a shared lock is no sign of life");
        assert!(
            !third.try_lock(3).unwrap(),
            "and yet the exclusive one is not to be had beside it"
        );
    }
}
