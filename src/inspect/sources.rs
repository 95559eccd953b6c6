//! The sources of a look: the objects in a directory, and the processes that hold them.
//!
//! # Concurrent changes
//!
//! A look first lists the names, then scans all processes, which takes a while, and then opens the
//! objects by name, one at a time: there may be more than this process may have descriptors. It
//! reads whether an object is finished, its length, its content, its locks, and last whether it
//! still has a name:
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
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::ops::RangeInclusive;
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
        let mut this = Self { directory: directory.to_owned(), ..Self::default() };
        for file in list(directory)? {
            let Some((of, named)) = parse(&file).filter(|(of, _)| prefix.map_or(true, |prefix| prefix == *of)) else {
                continue;
            };
            // If this fails, the file was removed in the meantime.
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

    pub(super) fn stat(&self, prefix: &str, named: Named<'_>) -> Option<Stat> {
        let name = self.name(prefix, named);
        Stat::of(&fs::symlink_metadata(name.as_path()).ok()?, &name).ok()
    }

    pub(super) fn open(&self, prefix: &str, named: Named<'_>) -> Result<Option<Object>, String> {
        match Object::open(self.name(prefix, named)) {
            Ok(object) => Ok(Some(object)),
            Err(ObjectError::WrongUid { .. }) => Ok(None),
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
        Ok(Self { len, bytes_held: metadata.blocks() * 512, inode: inode(metadata), is_segment })
    }
}

impl Object {
    fn open(name: Name) -> Result<Self, ObjectError> {
        let opened = LockFile::open(|| name.open(libc::O_RDONLY, 0)).map_err(|error| name.error("open", 0, error))?;
        let metadata = opened.file().metadata().map_err(|error| name.error("fstat", 0, error))?;
        Ok(Self { stat: Stat::of(&metadata, &name)?, opened, name })
    }

    pub(super) fn is_locked(&self, byte: usize) -> bool {
        self.opened.is_locked(byte)
    }

    /// Call after [`state`](Self::state).
    pub(super) fn len(&self) -> usize {
        self.opened.file().metadata().map_or(0, |metadata| usize::try_from(metadata.len()).unwrap_or(0))
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

/// In characters.
const MAX_COMMAND: usize = 120;

/// A process, as the kernel shows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Process {
    /// Its id, in this process's PID namespace.
    pub id: u32,
    /// Its command line, or its name in brackets if it has none; shortened, and without control
    /// characters.
    pub command: String,
    /// Whether it is stopped, by a signal or a debugger.
    pub is_stopped: bool,
}

pub(crate) struct Wanted<'a> {
    pub(crate) inodes: BTreeSet<Inode>,
    pub(crate) is_name: &'a dyn Fn(&str) -> bool,
}

/// From /proc. An OFD lock has no process id: `/proc/locks` shows -1. But for each descriptor, the
/// kernel lists the locks taken through its open file description (`/proc/PID/fdinfo/FD`, see `man
/// 5 proc`).
#[derive(Default)]
pub(crate) struct Seen {
    locks: BTreeMap<Inode, Vec<(RangeInclusive<u64>, u32)>>,
    mappings: BTreeSet<(Inode, u32)>,
    processes: BTreeMap<u32, Process>,
    pub(crate) hidden: usize,
}

impl Seen {
    pub(crate) fn of(files: &Wanted<'_>) -> io::Result<Self> {
        let mut this = Self::default();
        if files.inodes.is_empty() {
            return Ok(this);
        }
        for entry in fs::read_dir("/proc")? {
            let entry = entry?;
            let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            match this.look_at(id, &entry.path(), files) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => this.hidden += 1,
                // The process has exited meanwhile, or is a kernel thread.
                _ => {}
            }
        }
        Ok(this)
    }

    fn look_at(&mut self, id: u32, directory: &Path, files: &Wanted<'_>) -> io::Result<()> {
        let mut has_any = false;
        // A path may not be valid UTF-8; the fields before it are.
        for line in String::from_utf8_lossy(&fs::read(directory.join("maps"))?).lines() {
            if let Some(inode) = mapped(line).filter(|inode| files.inodes.contains(inode)) {
                has_any = true;
                self.mappings.insert((inode, id));
            }
        }
        for entry in fs::read_dir(directory.join("fd"))? {
            let entry = entry?;
            // The last component of the path at which the file was opened is the same wherever the
            // file system is mounted. Other files are skipped: their file system may not respond.
            let has_name = |path: PathBuf| path.file_name().and_then(OsStr::to_str).is_some_and(files.is_name);
            if !fs::read_link(entry.path()).is_ok_and(has_name) {
                continue;
            }
            // Follows the link to the file, even if it was renamed.
            let Ok(metadata) = fs::metadata(entry.path()) else { continue };
            let inode = (metadata.dev(), metadata.ino());
            if files.inodes.contains(&inode) {
                has_any = true;
                let info = fs::read_to_string(directory.join("fdinfo").join(entry.file_name())).unwrap_or_default();
                let locks = info.lines().filter_map(locked).map(|bytes| (bytes, id));
                self.locks.entry(inode).or_default().extend(locks);
            }
        }
        if has_any {
            self.processes.insert(id, process(id, directory));
        }
        Ok(())
    }

    pub(crate) fn holder(&self, file: Inode, byte: usize) -> Option<&Process> {
        let (_, id) = self.locks.get(&file)?.iter().find(|(bytes, _)| bytes.contains(&(byte as u64)))?;
        self.processes.get(id)
    }

    pub(crate) fn mappers(&self, file: Inode) -> impl Iterator<Item = &Process> {
        let all = self.mappings.range((file, 0)..=(file, u32::MAX));
        all.filter_map(|(_, id)| self.processes.get(id))
    }
}

/// Parses the file in a line of `/proc/PID/maps`: `from-to access offset major:minor inode path`.
fn mapped(line: &str) -> Option<Inode> {
    let mut words = line.split_ascii_whitespace().skip(3);
    let (major, minor) = words.next()?.split_once(':')?;
    let number = |text| u32::from_str_radix(text, 16).ok();
    Some((libc::makedev(number(major)?, number(minor)?), words.next()?.parse().ok()?))
}

/// Parses the bytes of an exclusive OFD lock in a line of `/proc/PID/fdinfo/FD`:
/// `lock: number: OFDLCK ADVISORY WRITE process device:inode first last`.
fn locked(line: &str) -> Option<RangeInclusive<u64>> {
    let words: Vec<&str> = line.strip_prefix("lock:")?.split_ascii_whitespace().collect();
    if words.get(1) != Some(&"OFDLCK") || words.get(3) != Some(&"WRITE") {
        return None;
    }
    let (first, last) = (words.get(6)?.parse().ok()?, words.get(7)?);
    Some(first..=last.parse().unwrap_or(u64::MAX)) // to the end: EOF
}

fn process(id: u32, directory: &Path) -> Process {
    let text = |file| fs::read(directory.join(file)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let line = text("cmdline").unwrap_or_default().replace('\0', " ");
    let line = match line.trim() {
        "" => format!("[{}]", text("comm").unwrap_or_default().trim()),
        line => line.to_owned(),
    };
    let printable = |c: char| if c.is_control() { '?' } else { c };
    let command = line.chars().map(printable).take(MAX_COMMAND).collect();
    // Follows the name in parentheses, which may contain any character.
    let state = text("stat").ok().and_then(|stat| stat.rsplit_once(") ")?.1.chars().next());
    Process { id, command, is_stopped: matches!(state, Some('T' | 't')) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::os::locks::LockFile;
    use crate::os::mapping::Mapping;
    use crate::os::name::{inode, Name};
    use std::fs::File;

    #[test]
    fn finds_own_process() {
        let path = format!("/dev/shm/shm_pool-unit-{}-processes", std::process::id());
        let open = || File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let locks = LockFile::open(open).unwrap();
        locks.file().set_len(4096).unwrap();
        let file = inode(locks.file()).unwrap();
        let look =
            || Seen::of(&Wanted { inodes: BTreeSet::from([file]), is_name: &|name| path.ends_with(name) }).unwrap();
        assert!(look().holder(file, 3).is_none());
        assert!(locks.try_lock(3).unwrap() && locks.try_lock_shared(5).unwrap());
        let name = Name::new(path.rsplit('/').next().unwrap());
        let mapping = Mapping::of_owner(locks.file(), &name, 4096).unwrap();
        let seen = look();
        let holder = seen.holder(file, 3).unwrap();
        assert_eq!((holder.id, holder.is_stopped), (std::process::id(), false));
        assert!(holder.command.contains("shm_pool"), "{}", holder.command);
        assert!([2, 4, 5].iter().all(|&byte| seen.holder(file, byte).is_none()), "not locked, or shared");
        assert_eq!(seen.mappers(file).collect::<Vec<_>>(), [holder]);
        drop((mapping, locks));
        assert_eq!(look().mappers(file).count(), 0);
        fs::remove_file(path).unwrap();
    }
}
