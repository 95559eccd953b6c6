//! The objects in a directory, opened for reading.

#![forbid(unsafe_code)]

use crate::error::OsError;
use crate::os::foreign::{check_regular, is_linked, ObjectError};
use crate::os::locks::LockFile;
use crate::os::name::{list, Inode, Name};
use crate::os::posix::effective_uid;
use crate::protocol::names::{parse, Object as Named};
use std::collections::BTreeSet;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// A regular file of this user.
pub(super) struct Object {
    pub(super) name: Name,
    /// For questions about its locks. None is ever taken.
    pub(super) locks: LockFile,
    pub(super) len: usize,
    /// Bytes of memory that it has.
    pub(super) bytes_held: u64,
    pub(super) inode: Inode,
}

/// An object, or why it cannot be looked at.
pub(super) type Opened = Result<Object, String>;

/// All objects in a directory, by the names of their files.
#[derive(Default)]
pub(super) struct Objects {
    all: Vec<(String, Opened)>,
    /// How many belong to other users.
    pub(super) others: usize,
}

impl Object {
    fn open(name: Name) -> Result<Self, ObjectError> {
        let locks = LockFile::open(|| name.open(libc::O_RDONLY, 0)).map_err(|error| name.error("open", 0, error))?;
        let len = check_regular(locks.file(), &name, effective_uid())?;
        let metadata = locks.file().metadata().map_err(|error| name.error("fstat", 0, error))?;
        // A block has 512 bytes here, whatever the file system's block size.
        let (bytes_held, inode) = (metadata.blocks() * 512, (metadata.dev(), metadata.ino()));
        Ok(Self { len, bytes_held, inode, locks, name })
    }

    /// The word at this byte; zero beyond the end, as in what is not finished.
    pub(super) fn word(&self, at: u64) -> u64 {
        let mut found = [0; 8];
        let _ = self.locks.file().read_at(&mut found, at);
        u64::from_ne_bytes(found)
    }
}

impl Objects {
    /// Opens all that have a name of this crate's, with this prefix or with any.
    pub(super) fn open(directory: &Path, prefix: Option<&str>) -> Result<Self, OsError> {
        let mut this = Self::default();
        let is_wanted = |file: &String| parse(file).is_some_and(|(of, _)| prefix.map_or(true, |prefix| prefix == of));
        for file in list(directory)?.into_iter().filter(is_wanted) {
            match Object::open(Name::in_directory(directory, &file)) {
                Ok(object) => this.all.push((file, Ok(object))),
                Err(ObjectError::WrongUid { .. }) => this.others += 1,
                // It was removed meanwhile.
                Err(error) if error.is_missing() => {}
                Err(ObjectError::Unusable { reason, .. }) => this.all.push((file, Err(reason.to_owned()))),
                Err(ObjectError::Os(error)) => this.all.push((file, Err(error.to_string()))),
            }
        }
        this.all.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(this)
    }

    /// Leaves out those that were removed since they were opened: their makers ended as they should.
    pub(super) fn leave_out_removed(&mut self) {
        let is_there = |object: &Object| is_linked(object.locks.file()).unwrap_or(true);
        self.all.retain(|(_, opened)| opened.as_ref().map_or(true, is_there));
    }

    pub(super) fn inodes(&self) -> BTreeSet<Inode> {
        self.all.iter().filter_map(|(_, opened)| Some(opened.as_ref().ok()?.inode)).collect()
    }

    /// All of them: prefix, what the name says, and the object.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, Named<'_>, &Opened)> {
        self.all.iter().filter_map(|(file, opened)| parse(file).map(|(prefix, named)| (prefix, named, opened)))
    }
}
