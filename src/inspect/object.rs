//! The objects in a directory. They are opened one at a time: there may be more of them than a process
//! may open.
//!
//! # What may happen meanwhile
//!
//! First the names are listed, then all processes are looked at, which takes a while, and then the
//! objects. So that the living are reported as they are, each object is opened by its name at the
//! end: whether it is finished, its length, its content, its locks, and last whether it has a name
//! still:
//!
//! | meanwhile | seen is |
//! |---|---|
//! | an object gets its maker's lock, and its content after that | what is not finished, or all of it with its lock |
//! | an object is removed: its maker ended as it should, or somebody swept | nothing of it |
//! | another object takes a name that is used again, as a channel's is | the new one |
//! | a process comes or goes | its locks as they are at the end; who came late has no process |

#![forbid(unsafe_code)]

use crate::error::OsError;
use crate::os::foreign::{check_metadata, is_linked, ObjectError};
use crate::os::locks::LockFile;
use crate::os::name::{list, Inode, Name};
use crate::os::posix::effective_uid;
use crate::protocol::control::{OWNER_BYTE, PROVIDER_OFFSET, RECEIVER_BYTE};
use crate::protocol::ids::ProviderId;
use crate::protocol::names::{parse, Object as Named};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Metadata};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The names in a directory, by what they belong to.
#[derive(Default)]
pub(super) struct Objects {
    directory: PathBuf,
    /// By prefix and id.
    pub(super) providers: BTreeMap<(String, ProviderId), OfProvider>,
    /// By prefix and name; the ids of their branches.
    pub(super) channels: BTreeMap<(String, String), BTreeSet<u64>>,
    pub(super) inodes: BTreeSet<Inode>,
    /// How many belong to other users.
    pub(super) others: usize,
}

/// What there was of a provider.
#[derive(Default)]
pub(super) struct OfProvider {
    pub(super) has_control: bool,
    /// Their serial numbers.
    pub(super) segments: BTreeSet<u64>,
}

/// Of the word whose upper half is a channel's state, behind magic number and version.
const STATE_OFFSET: u64 = 8;

/// What is seen of a file without opening it.
pub(super) struct Stat {
    pub(super) len: usize,
    /// Bytes of memory that it has.
    pub(super) bytes_held: u64,
    pub(super) inode: Inode,
}

/// A regular file of this user, opened to read it, and for questions about its locks. None is ever
/// taken.
pub(super) struct Object {
    pub(super) name: Name,
    pub(super) opened: LockFile,
    pub(super) stat: Stat,
}

/// What a channel's object says of itself and of those who use it.
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

impl Objects {
    /// Lists all that have a name of this crate's, with this prefix or with any.
    pub(super) fn find(directory: &Path, prefix: Option<&str>) -> Result<Self, OsError> {
        let mut this = Self { directory: directory.to_owned(), ..Self::default() };
        for file in list(directory)? {
            let Some((of, named)) = parse(&file).filter(|(of, _)| prefix.map_or(true, |prefix| prefix == *of)) else {
                continue;
            };
            // If it cannot be looked at, it was removed meanwhile.
            let Ok(metadata) = fs::symlink_metadata(directory.join(&file)) else { continue };
            if metadata.uid() != effective_uid() {
                this.others += 1;
                continue;
            }
            this.inodes.insert(inode(&metadata));
            this.note(of.to_owned(), named);
        }
        Ok(this)
    }

    fn note(&mut self, prefix: String, named: Named<'_>) {
        match named {
            Named::Control(id) => self.providers.entry((prefix, id)).or_default().has_control = true,
            Named::Segment(id, serial) => {
                self.providers.entry((prefix, id)).or_default().segments.insert(serial);
            }
            Named::Channel(name) => {
                self.channels.entry((prefix, name.to_owned())).or_default();
            }
            Named::Branch(name, id) => {
                self.channels.entry((prefix, name.to_owned())).or_default().insert(id);
            }
        }
    }

    fn name(&self, prefix: &str, named: Named<'_>) -> Name {
        Name::in_directory(&self.directory, &named.file(prefix))
    }

    /// The file that has a name now. `None` if there is none, or none of ours.
    pub(super) fn stat(&self, prefix: &str, named: Named<'_>) -> Option<Stat> {
        let name = self.name(prefix, named);
        Stat::of(&fs::symlink_metadata(name.as_path()).ok()?, &name).ok()
    }

    /// Opens the object that has a name now. `None` if there is none, or another user's.
    pub(super) fn open(&self, prefix: &str, named: Named<'_>) -> Result<Option<Object>, String> {
        match Object::open(self.name(prefix, named)) {
            Ok(object) => Ok(Some(object)),
            Err(ObjectError::WrongUid { .. }) => Ok(None),
            Err(error) if error.is_missing() => Ok(None),
            Err(ObjectError::Unusable { reason, .. }) => Err(reason.to_owned()),
            Err(ObjectError::Os(error)) => Err(error.to_string()),
        }
    }
}

impl Stat {
    fn of(metadata: &Metadata, name: &Name) -> Result<Self, ObjectError> {
        let len = check_metadata(metadata, name, effective_uid())?;
        // A block has 512 bytes here, whatever the file system's block size.
        Ok(Self { len, bytes_held: metadata.blocks() * 512, inode: inode(metadata) })
    }
}

impl Object {
    fn open(name: Name) -> Result<Self, ObjectError> {
        let opened = LockFile::open(|| name.open(libc::O_RDONLY, 0)).map_err(|error| name.error("open", 0, error))?;
        let metadata = opened.file().metadata().map_err(|error| name.error("fstat", 0, error))?;
        Ok(Self { stat: Stat::of(&metadata, &name)?, opened, name })
    }

    /// Does somebody else hold the lock on this byte?
    pub(super) fn is_locked(&self, byte: usize) -> bool {
        self.opened.is_locked(byte)
    }

    /// Its length now. To be asked after what says that it is finished.
    pub(super) fn len(&self) -> usize {
        self.opened.file().metadata().map_or(0, |metadata| usize::try_from(metadata.len()).unwrap_or(0))
    }

    /// The state that a channel's maker writes last; 0 before. To be asked before its content is read.
    pub(super) fn state(&self) -> u32 {
        (self.word(STATE_OFFSET) >> 32) as u32
    }

    /// What it says now. To be asked after its content was read.
    pub(super) fn facts(&self) -> Facts {
        Facts {
            magic: self.word(0),
            provider: self.word(PROVIDER_OFFSET),
            is_owned: self.is_locked(OWNER_BYTE),
            is_received: self.is_locked(RECEIVER_BYTE),
        }
    }

    /// Has it a name still? To be asked last.
    pub(super) fn is_there(&self) -> bool {
        is_linked(self.opened.file()).unwrap_or(true)
    }

    /// The word at this byte; zero beyond the end, as in what is not finished.
    fn word(&self, at: u64) -> u64 {
        let mut found = [0; 8];
        let _ = self.opened.file().read_at(&mut found, at);
        u64::from_ne_bytes(found)
    }
}

fn inode(metadata: &Metadata) -> Inode {
    (metadata.dev(), metadata.ino())
}
