//! The objects in a directory. None stays open: there may be more of them than a process may open.

#![forbid(unsafe_code)]

use crate::error::OsError;
use crate::os::foreign::{check_metadata, ObjectError};
use crate::os::locks::LockFile;
use crate::os::name::{inode, list, Inode, Name};
use crate::os::posix::effective_uid;
use crate::protocol::control::{OWNER_BYTE, PROVIDER_OFFSET, RECEIVER_BYTE};
use crate::protocol::names::{parse, Object as Named};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// A regular file of this user, as it was when it was found.
pub(super) struct Object {
    pub(super) name: Name,
    pub(super) len: usize,
    /// Bytes of memory that it has.
    pub(super) bytes_held: u64,
    pub(super) inode: Inode,
    /// What else was seen of it; nothing of a segment, which has neither locks nor a header.
    pub(super) facts: Facts,
}

/// What is seen of an object by opening it once.
#[derive(Default)]
pub(super) struct Facts {
    /// Its first word.
    pub(super) magic: u64,
    /// The word that tells of a channel's object which provider it belongs to.
    pub(super) provider: u64,
    /// Does its maker live?
    pub(super) is_owned: bool,
    /// Does its receiver live?
    pub(super) is_received: bool,
}

/// An object, or why it cannot be looked at.
pub(super) type Found = Result<Object, String>;

/// All objects in a directory, by the names of their files.
#[derive(Default)]
pub(super) struct Objects {
    all: Vec<(String, Found)>,
    /// How many belong to other users.
    pub(super) others: usize,
}

impl Object {
    fn find(name: Name, is_segment: bool) -> Result<Self, ObjectError> {
        let metadata = fs::symlink_metadata(name.as_path()).map_err(|error| name.error("lstat", 0, error))?;
        let len = check_metadata(&metadata, &name, effective_uid())?;
        // A block has 512 bytes here, whatever the file system's block size.
        let (bytes_held, inode) = (metadata.blocks() * 512, (metadata.dev(), metadata.ino()));
        let mut this = Self { name, len, bytes_held, inode, facts: Facts::default() };
        if !is_segment {
            this.facts = Facts::of(&this.try_open()?);
        }
        Ok(this)
    }

    /// Opens it to look at its content, and for questions about its locks. None is ever taken.
    /// `None` if it was removed meanwhile.
    pub(super) fn open(&self) -> Result<Option<LockFile>, String> {
        match self.try_open() {
            Ok(opened) => Ok(Some(opened)),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(reason(error)),
        }
    }

    fn try_open(&self) -> Result<LockFile, ObjectError> {
        let failed = |call| move |error| self.name.error(call, 0, error);
        let opened = LockFile::open(|| self.name.open(libc::O_RDONLY, 0)).map_err(failed("open"))?;
        if inode(opened.file()).map_err(failed("fstat"))? != self.inode {
            let reason = "another object has taken its name";
            return Err(ObjectError::Unusable { object: self.name.path(), reason });
        }
        Ok(opened)
    }

    /// Is the name still its own?
    fn is_there(&self) -> bool {
        fs::symlink_metadata(self.name.as_path()).is_ok_and(|now| (now.dev(), now.ino()) == self.inode)
    }
}

impl Facts {
    fn of(opened: &LockFile) -> Self {
        Self {
            magic: word(opened, 0),
            provider: word(opened, PROVIDER_OFFSET),
            is_owned: opened.is_locked(OWNER_BYTE),
            is_received: opened.is_locked(RECEIVER_BYTE),
        }
    }
}

/// The word at this byte; zero beyond the end, as in what is not finished.
fn word(opened: &LockFile, at: u64) -> u64 {
    let mut found = [0; 8];
    let _ = opened.file().read_at(&mut found, at);
    u64::from_ne_bytes(found)
}

fn reason(error: ObjectError) -> String {
    match error {
        ObjectError::Unusable { reason, .. } => reason.to_owned(),
        ObjectError::WrongUid { found, .. } => format!("it belongs to user {found}"),
        ObjectError::Os(error) => error.to_string(),
    }
}

impl Objects {
    /// Finds all that have a name of this crate's, with this prefix or with any.
    pub(super) fn find(directory: &Path, prefix: Option<&str>) -> Result<Self, OsError> {
        let mut this = Self::default();
        for file in list(directory)? {
            let Some((_, named)) = parse(&file).filter(|(of, _)| prefix.map_or(true, |prefix| prefix == *of)) else {
                continue;
            };
            let is_segment = matches!(named, Named::Segment(..));
            match Object::find(Name::in_directory(directory, &file), is_segment) {
                Ok(object) => this.all.push((file, Ok(object))),
                Err(ObjectError::WrongUid { .. }) => this.others += 1,
                // It was removed meanwhile.
                Err(error) if error.is_missing() => {}
                Err(error) => this.all.push((file, Err(reason(error)))),
            }
        }
        this.all.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(this)
    }

    /// Leaves out those that were removed since they were found: their makers ended as they should.
    pub(super) fn leave_out_removed(&mut self) {
        self.all.retain(|(_, found)| found.as_ref().map_or(true, Object::is_there));
    }

    pub(super) fn inodes(&self) -> BTreeSet<Inode> {
        self.all.iter().filter_map(|(_, found)| Some(found.as_ref().ok()?.inode)).collect()
    }

    /// All of them: prefix, what the name says, and the object.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, Named<'_>, &Found)> {
        self.all.iter().filter_map(|(file, found)| parse(file).map(|(prefix, named)| (prefix, named, found)))
    }
}
