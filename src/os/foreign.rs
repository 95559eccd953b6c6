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

/// Does the object still have a name? The caller holds its lock, without which nobody else unlinks
/// it.
pub(crate) fn is_linked(file: &File) -> io::Result<bool> {
    Ok(file.metadata()?.nlink() > 0)
}

/// Checks that the object is a regular file of user `uid`. Returns its length in bytes.
pub(crate) fn check_regular(file: &File, name: &Name, uid: u32) -> Result<usize, ObjectError> {
    check_metadata(&file.metadata().map_err(|error| name.error("fstat", 0, error))?, name, uid)
}

/// As [`check_regular`], for an object that need not be open.
pub(crate) fn check_metadata(metadata: &Metadata, name: &Name, uid: u32) -> Result<usize, ObjectError> {
    if metadata.uid() != uid {
        return Err(ObjectError::WrongUid { object: name.path(), found: metadata.uid(), expected: uid });
    }
    if !metadata.is_file() {
        return Err(ObjectError::Unusable { object: name.path(), reason: "it is not a regular file" });
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
        let file = name.open(flags, 0).map_err(|error| name.error("open", 0, error))?;
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

    /// Makes what memory the object has present in a mapping of it, for reading. Returns how many
    /// bytes that is; 0 where the kernel cannot (it can since Linux 5.14).
    ///
    /// Parts without memory are passed over: a look at them would take some, which the owner does
    /// not count. (What it gives back to the system just now may be taken that way. It stays taken
    /// until the owner needs it again.)
    pub(crate) fn fault_in(&self, mapping: &Mapping) -> usize {
        let (len, mut at, mut present) = (mapping.len(), 0, 0);
        // The mapping's length is private. Others may give the object another one meanwhile, and
        // memory may come and go, so each round goes on by a page at least.
        while let Some(filled) = next_filled(&self.file, at).filter(|filled| filled.start < len) {
            let filled = filled.start..filled.end.min(len);
            at = filled.end.max(filled.start + page_size());
            if mapping.prefault_for_reading(filled.clone()) {
                present += filled.len();
            }
        }
        present
    }

    /// Maps the whole object for reading and writing, behind a page of this process's own.
    pub(crate) fn map_behind_own_page(&self) -> Result<Mapping, OsError> {
        Mapping::behind_own_page(&self.file, &self.name, self.len)
    }

    /// Opens the same object again: another open file description, to hold locks.
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
