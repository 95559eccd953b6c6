//! Shared-memory objects that another process created, checked before they are mapped.

#![forbid(unsafe_code)]

use crate::error::OsError;
use crate::os::locks::LockFile;
use crate::os::mapping::{Access, Mapping};
use crate::os::name::{inode, Name};
use crate::os::posix::{next_filled, page_size};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;

/// Returns `true` if the object still has a name. The caller holds the object's lock, without which
/// no other process unlinks it.
pub(crate) fn is_linked(file: &File) -> io::Result<bool> {
    Ok(file.metadata()?.nlink() > 0)
}

/// Checks that the object is a regular file of user `uid`. Returns its length in bytes.
pub(crate) fn check_regular(file: &File, name: &Name, uid: u32) -> Result<usize, ObjectError> {
    check_metadata(&file.metadata().map_err(|error| name.error("fstat", 0, error))?, name, uid)
}

/// Like [`check_regular`], for an object that need not be open.
pub(crate) fn check_metadata(metadata: &Metadata, name: &Name, uid: u32) -> Result<usize, ObjectError> {
    if metadata.uid() != uid {
        return Err(ObjectError::WrongUid { object: name.path(), found: metadata.uid(), expected: uid });
    }
    if !metadata.is_file() {
        return Err(ObjectError::Unusable { object: name.path(), reason: "it is not a regular file" });
    }
    Ok(usize::try_from(metadata.len()).unwrap_or(0))
}

/// An error in another process's object. Callers convert it to their own error type: see
/// `peer::error` and `channel::error`.
#[derive(Debug)]
pub(crate) enum ObjectError {
    /// The object does not have the expected type or content.
    Unusable {
        object: String,
        reason: &'static str,
    },
    WrongUid {
        object: String,
        found: u32,
        expected: u32,
    },
    Os(OsError),
}

impl ObjectError {
    /// Returns `true` if no object has this name.
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
        let file = name.open(flags, 0).map_err(|error| name.error("open", 0, error))?;
        let len = check_regular(&file, &name, uid)?;
        Ok(Self { name, file, len })
    }

    pub(crate) fn map(&self, access: Access) -> Result<Mapping, ObjectError> {
        self.map_first(self.len, access)
    }

    /// Maps the first `len` bytes, or all if there are fewer.
    pub(crate) fn map_first(&self, len: usize, access: Access) -> Result<Mapping, ObjectError> {
        if self.len == 0 {
            return Err(ObjectError::Unusable { object: self.name.path(), reason: "it is empty" });
        }
        Ok(Mapping::new(&self.file, &self.name, len.min(self.len), access)?)
    }

    /// Populates the parts of a mapping of this object that have memory, for reading. Returns their
    /// size in bytes, or 0 on kernels before Linux 5.14.
    ///
    /// Skips holes: reading one would allocate memory that the owner does not account for. (A race
    /// with the owner, which may be releasing a part at the same time, can allocate such memory; it
    /// stays allocated until the owner needs the range again.)
    pub(crate) fn fault_in(&self, mapping: &Mapping) -> usize {
        let (len, mut at, mut present) = (mapping.len(), 0, 0);
        // The mapping's length cannot change, but other processes may resize the object, and memory
        // may appear and disappear, so each iteration advances by at least one page.
        while let Some(filled) = next_filled(&self.file, at).filter(|filled| filled.start < len) {
            let filled = filled.start..filled.end.min(len);
            at = filled.end.max(filled.start + page_size());
            if mapping.prefault_for_reading(filled.clone()) {
                present += filled.len();
            }
        }
        present
    }

    /// Maps the whole object for reading and writing, preceded by a page private to this process.
    pub(crate) fn map_behind_own_page(&self) -> Result<Mapping, OsError> {
        Mapping::behind_own_page(&self.file, &self.name, self.len)
    }

    /// Opens the same object again, as a new open file description that holds locks.
    pub(crate) fn open_for_locks(&self) -> Result<LockFile, ObjectError> {
        let failed = |call| move |error| self.name.error(call, self.len, error);
        let again = LockFile::open(|| self.name.open(libc::O_RDWR, 0)).map_err(failed("open"))?;
        if inode(again.file()).map_err(failed("fstat"))? != inode(&self.file).map_err(failed("fstat"))? {
            let reason = "another object took its name while it was opened";
            return Err(ObjectError::Unusable { object: self.name.path(), reason });
        }
        Ok(again)
    }
}
