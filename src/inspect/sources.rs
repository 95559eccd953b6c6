//! The sources of a look: the objects in a directory, and the processes that hold them.
//!
//! # Concurrent changes
//!
//! A look first lists the names, then scans all processes, and then opens the objects by name, one
//! at a time, to need few descriptors. It reads whether an object is finished, its length, its
//! content, its locks, and last whether it still has a name:
//!
//! | during the look | reported as |
//! |---|---|
//! | an object gets its maker's lock, and its content after that | unfinished, or complete and locked |
//! | an object is removed | absent |
//! | another object takes a reused name | the new object |
//! | a process takes or releases a lock | the locks at the end; a late holder has no process |

#![forbid(unsafe_code)]

use crate::error::{Chain, OsError};
use crate::os::locks::LockFile;
use crate::os::name::{list, Inode, Name};
use crate::os::posix::effective_uid;
use crate::os::segment::{check_metadata, is_linked, ObjectError};
use crate::protocol::control::{CHANNEL_MAGIC, OWNER_BYTE, PROVIDER_OFFSET, RECEIVER_BYTE};
use crate::protocol::ids::{parse, Object as Named, ProviderId};
use crate::protocol::sweep::{is_object, is_segment};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Metadata};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

#[derive(Default)]
pub(super) struct Objects {
    directory: PathBuf,
    pub(super) providers: BTreeMap<(String, ProviderId), OfProvider>,
    pub(super) channels: BTreeMap<(String, String), BTreeSet<u64>>,
    pub(super) inodes: BTreeSet<Inode>,
    pub(super) others: usize,
}

#[derive(Default)]
pub(super) struct OfProvider {
    pub(super) has_control: bool,
    pub(super) segments: BTreeSet<u64>,
}

const STATE_OFFSET: u64 = 8;

pub(super) struct Stat {
    pub(super) len: usize,
    /// Of memory.
    pub(super) bytes_held: u64,
    pub(super) inode: Inode,
    pub(super) is_segment: bool,
}

pub(super) struct Object {
    pub(super) name: Name,
    pub(super) opened: LockFile,
    pub(super) stat: Stat,
}

pub(super) struct Facts {
    pub(super) magic: u64,
    pub(super) is_ours: bool,
    /// The word that, in a channel's object, names its provider.
    pub(super) provider: u64,
    pub(super) is_owned: bool,
    pub(super) is_received: bool,
}

impl Objects {
    pub(super) fn find(directory: &Path, prefix: Option<&str>) -> Result<Self, OsError> {
        let mut this = Self {
            directory: directory.to_owned(),
            ..Self::default()
        };
        for file in list(directory)? {
            let Some((of, named)) = parse(&file) else {
                continue;
            };
            if matches!(prefix, Some(prefix) if prefix != of) {
                continue;
            }
            // If this fails, the file was removed in the meantime.
            let Ok(metadata) = fs::symlink_metadata(directory.join(&file)) else {
                continue;
            };
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
            Named::Control(id) => {
                self.providers.entry((prefix, id)).or_default().has_control = true
            }
            Named::Segment(id, serial) => {
                self.providers
                    .entry((prefix, id))
                    .or_default()
                    .segments
                    .insert(serial);
            }
            Named::Channel(name) => {
                self.channels
                    .entry((prefix, name.into_owned()))
                    .or_default();
            }
            Named::Connection(name, id) => {
                self.channels
                    .entry((prefix, name.into_owned()))
                    .or_default()
                    .insert(id);
            }
        }
    }

    fn name(&self, prefix: &str, named: Named<'_>) -> Name {
        Name::in_directory(&self.directory, &named.file(prefix))
    }

    pub(super) fn stat(&self, prefix: &str, named: Named<'_>) -> Option<Stat> {
        let name = self.name(prefix, named);
        Stat::of(&fs::symlink_metadata(name.as_path()).ok()?, &name).ok()
    }

    pub(super) fn open(&self, prefix: &str, named: Named<'_>) -> Result<Option<Object>, String> {
        match Object::open(self.name(prefix, named)) {
            Ok(object) => Ok(Some(object)),
            Err(ObjectError::WrongUid(_)) => Ok(None),
            Err(error) if error.is_missing() => Ok(None),
            Err(ObjectError::Unusable { reason, .. }) => Err(reason.to_owned()),
            Err(ObjectError::Os(error)) => Err(Chain(&error).to_string()),
        }
    }
}

impl Stat {
    fn of(metadata: &Metadata, name: &Name) -> Result<Self, ObjectError> {
        let len = check_metadata(metadata, name, effective_uid())?;
        // In blocks of 512 bytes on any file system.
        let is_segment = is_segment(metadata, effective_uid());
        Ok(Self {
            len,
            bytes_held: metadata.blocks() * 512,
            inode: inode(metadata),
            is_segment,
        })
    }
}

impl Object {
    fn open(name: Name) -> Result<Self, ObjectError> {
        let opened = LockFile::open(|| name.open(libc::O_RDONLY, 0))
            .map_err(|error| name.error("open", 0, error))?;
        let metadata = opened
            .file()
            .metadata()
            .map_err(|error| name.error("fstat", 0, error))?;
        Ok(Self {
            stat: Stat::of(&metadata, &name)?,
            opened,
            name,
        })
    }

    pub(super) fn is_locked(&self, byte: usize) -> bool {
        self.opened.is_locked(byte)
    }

    /// Call after [`state`](Self::state).
    pub(super) fn len(&self) -> usize {
        match self.opened.file().metadata() {
            Ok(metadata) => usize::try_from(metadata.len()).unwrap_or(0),
            Err(_) => 0,
        }
    }

    /// A channel's maker writes it last; 0 before. Call first.
    pub(super) fn state(&self) -> u32 {
        (self.word(STATE_OFFSET) >> 32) as u32
    }

    /// Call after reading the content.
    pub(super) fn facts(&self) -> Facts {
        Facts {
            magic: self.word(0),
            is_ours: self.is_ours(CHANNEL_MAGIC),
            provider: self.word(PROVIDER_OFFSET),
            is_owned: self.is_locked(OWNER_BYTE),
            is_received: self.is_locked(RECEIVER_BYTE),
        }
    }

    pub(super) fn is_ours(&self, magic: u64) -> bool {
        is_object(self.opened.file(), magic).unwrap_or(false)
    }

    /// Returns `true` if it still has a name. Call last.
    pub(super) fn is_there(&self) -> bool {
        is_linked(self.opened.file()).unwrap_or(true)
    }

    /// Zero past the end, as in an unfinished object.
    fn word(&self, at: u64) -> u64 {
        let mut found = [0; 8];
        let _ = self.opened.file().read_at(&mut found, at);
        u64::from_ne_bytes(found)
    }
}

fn inode(metadata: &Metadata) -> Inode {
    (metadata.dev(), metadata.ino())
}
