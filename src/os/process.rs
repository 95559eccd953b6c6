//! Which processes hold locks on files, from /proc.

#![forbid(unsafe_code)]

use crate::os::name::{Inode, Name};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// In characters.
const MAX_COMMAND: usize = 120;

/// A process, as the kernel shows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Process {
    /// Its id, in this process's PID namespace.
    pub id: u32,
    /// Its command line, shortened, or its name in brackets.
    pub command: String,
    /// Whether it is stopped: by a signal, by a debugger, or because its cgroup is frozen, as by
    /// `docker pause`.
    pub is_stopped: bool,
}

/// The files to look for.
pub(crate) struct Wanted<'a> {
    pub(crate) inodes: BTreeSet<Inode>,
    /// Returns `true` if a file of this name may be one of them.
    pub(crate) is_name: &'a dyn Fn(&str) -> bool,
    /// To be looked for, too: files of these names that have no name any more, on which a process
    /// holds the lock of this byte.
    pub(crate) removed: Option<u64>,
}

impl Wanted<'_> {
    /// Returns the wanted file in a line of `/proc/PID/maps`.
    fn mapped(&self, line: &str) -> Option<Inode> {
        let found = mapped(line)?;
        if self.inodes.contains(&found) {
            return Some(found);
        }
        // On btrfs, the device differs from that of `stat`: the number and the name have to do.
        let (_, path) = line.rsplit_once('/')?;
        if !(self.is_name)(path.strip_suffix(REMOVED).unwrap_or(path)) {
            return None;
        }
        let (_, number) = found;
        let mut inodes = self.inodes.iter();
        inodes.find(|(_, wanted)| *wanted == number).copied()
    }
}

/// What the kernel adds to the path of a file that has no name any more.
const REMOVED: &str = " (deleted)";

/// The locks and mappings that visible processes hold on some files, from /proc.
///
/// An OFD lock has no process id: `/proc/locks` shows -1. But for each descriptor, the kernel lists
/// the locks taken through its open file description (`/proc/PID/fdinfo/FD`, see `man 5 proc`).
///
/// Processes in another PID namespace are not seen; those that this process may not inspect are
/// only counted.
#[derive(Default)]
pub(crate) struct Seen {
    /// For each file, locked bytes and the process that holds the lock.
    locks: BTreeMap<Inode, Vec<(RangeInclusive<u64>, u32)>>,
    mappings: BTreeSet<(Inode, u32)>,
    processes: BTreeMap<u32, Process>,
    /// The former paths of files without a name that are in use, and the processes that have locked
    /// them.
    removed: BTreeMap<PathBuf, u32>,
    pub(crate) hidden: usize,
}

impl Seen {
    /// Scans all processes.
    pub(crate) fn of(files: &Wanted<'_>) -> io::Result<Self> {
        let mut this = Self::default();
        if files.inodes.is_empty() && files.removed.is_none() {
            return Ok(this);
        }
        for entry in fs::read_dir("/proc")? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else {
                continue;
            };
            let Ok(id) = name.parse() else {
                continue;
            };
            match this.scan(id, &entry.path(), files) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => this.hidden += 1,
                // The process has exited meanwhile, or is a kernel thread.
                Err(_) => {}
            }
        }
        Ok(this)
    }

    /// Scans one process, whose directory in /proc this is.
    fn scan(&mut self, id: u32, directory: &Path, files: &Wanted<'_>) -> io::Result<()> {
        let mut has_any = false;
        // A path may not be valid UTF-8; the fields before it are.
        let maps = fs::read(directory.join("maps"))?;
        for line in String::from_utf8_lossy(&maps).lines() {
            if let Some(inode) = files.mapped(line) {
                has_any = true;
                self.mappings.insert((inode, id));
            }
        }
        for entry in fs::read_dir(directory.join("fd"))? {
            let entry = entry?;
            let Ok(path) = fs::read_link(entry.path()) else {
                continue;
            };
            // The last component of the path is the same wherever the file system is mounted.
            let Some(name) = path.file_name().and_then(OsStr::to_str) else {
                continue;
            };
            let before = name.strip_suffix(REMOVED);
            // Other files are skipped: their file system may not respond.
            if !(files.is_name)(before.unwrap_or(name)) {
                continue;
            }
            // Follows the link to the file, even if it was renamed.
            let Ok(metadata) = fs::metadata(entry.path()) else {
                continue;
            };
            let inode = (metadata.dev(), metadata.ino());
            let is_wanted = files.inodes.contains(&inode);
            let removed = match (before, files.removed) {
                (Some(before), Some(byte)) if metadata.nlink() == 0 => {
                    Some((path.with_file_name(before), byte))
                }
                _ => None,
            };
            if !is_wanted && removed.is_none() {
                continue;
            }
            has_any |= is_wanted;
            let info = directory.join("fdinfo").join(entry.file_name());
            let Ok(info) = fs::read_to_string(info) else {
                continue;
            };
            for line in info.lines() {
                let Some(bytes) = locked(line) else {
                    continue;
                };
                match &removed {
                    Some((before, byte)) if bytes.contains(byte) => {
                        self.removed.insert(before.clone(), id);
                        has_any = true;
                    }
                    _ => self.locks.entry(inode).or_default().push((bytes, id)),
                }
            }
        }
        if has_any {
            self.processes.insert(id, process(id, directory));
        }
        Ok(())
    }

    /// Scans all processes for the one that holds the exclusive lock on a byte of a file.
    pub(crate) fn holder_of(name: &Name, file: Inode, byte: usize) -> Option<Process> {
        let is_name = &|found: &str| name.as_path().file_name() == Some(OsStr::new(found));
        let seen = Self::of(&Wanted {
            inodes: BTreeSet::from([file]),
            is_name,
            removed: None,
        })
        .ok()?;
        seen.holder(file, byte).cloned()
    }

    /// Returns the process that holds the exclusive lock on a byte, if it is visible.
    pub(crate) fn holder(&self, file: Inode, byte: usize) -> Option<&Process> {
        let locks = self.locks.get(&file)?;
        let (_, id) = locks
            .iter()
            .find(|(bytes, _)| bytes.contains(&(byte as u64)))?;
        self.processes.get(id)
    }

    /// Returns the former paths of files that are in use without a name, each with its process.
    pub(crate) fn removed(&self) -> impl Iterator<Item = (&Path, &Process)> {
        self.removed
            .iter()
            .filter_map(|(path, id)| Some((path.as_path(), self.processes.get(id)?)))
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
    let major = u32::from_str_radix(major, 16).ok()?;
    let minor = u32::from_str_radix(minor, 16).ok()?;
    let inode = words.next()?.parse().ok()?;
    Some((libc::makedev(major, minor), inode))
}

/// Parses the bytes of an exclusive OFD lock in a line of `/proc/PID/fdinfo/FD`:
/// `lock: number: OFDLCK ADVISORY WRITE process device:inode first last`.
fn locked(line: &str) -> Option<RangeInclusive<u64>> {
    let line = line.strip_prefix("lock:")?;
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    if words.get(1) != Some(&"OFDLCK") || words.get(3) != Some(&"WRITE") {
        return None;
    }
    let first = words.get(6)?.parse().ok()?;
    // A lock to the end of the file shows as EOF.
    let last = words.get(7)?.parse().unwrap_or(u64::MAX);
    Some(first..=last)
}

fn process(id: u32, directory: &Path) -> Process {
    // Empty if the process has exited meanwhile.
    let text = |file| {
        let bytes = fs::read(directory.join(file)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let line = text("cmdline").replace('\0', " ");
    let line = match line.trim() {
        "" => format!("[{}]", text("comm").trim()),
        line => line.to_owned(),
    };
    let printable = |c: char| if c.is_control() { '?' } else { c };
    let command = line.chars().map(printable).take(MAX_COMMAND).collect();
    // The state follows the name in parentheses, which may contain any character.
    let stat = text("stat");
    let is_stopped = match stat.rsplit_once(") ") {
        Some((_, state)) => state.starts_with(['T', 't']),
        None => false,
    };
    Process {
        id,
        command,
        is_stopped: is_stopped || is_frozen(&text("cgroup")),
    }
}

/// Returns `true` if one of these cgroups, the lines of /proc/PID/cgroup, is frozen. One that this
/// process does not see counts as not frozen.
fn is_frozen(cgroups: &str) -> bool {
    for line in cgroups.lines() {
        // The number of the hierarchy, its controllers, and the path in it.
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let path = path.trim_start_matches('/');
        let is_unified = controllers.is_empty();
        if is_unified {
            // Beside hierarchies of version 1, systemd mounts it below.
            for root in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
                let events = Path::new(root).join(path).join("cgroup.events");
                let events = fs::read_to_string(events).unwrap_or_default();
                if events.lines().any(|event| event == "frozen 1") {
                    return true;
                }
            }
        } else if controllers.split(',').any(|name| name == "freezer") {
            let state = Path::new("/sys/fs/cgroup/freezer")
                .join(path)
                .join("freezer.state");
            let state = fs::read_to_string(state).unwrap_or_default();
            if state.starts_with("FR") {
                // FREEZING or FROZEN.
                return true;
            }
        }
    }
    false
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::os::locks::LockFile;
    use crate::os::mapping::Mapping;
    use crate::os::name::inode;
    use std::fs::File;

    #[test]
    fn finds_own_process() {
        let path = format!("/dev/shm/shm_pool-unit-{}-processes", std::process::id());
        let open = || {
            File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
        };
        let locks = LockFile::open(open).unwrap();
        locks.file().set_len(4096).unwrap();
        let file = inode(locks.file()).unwrap();
        let look = || {
            Seen::of(&Wanted {
                inodes: BTreeSet::from([file]),
                is_name: &|name| path.ends_with(name),
                removed: None,
            })
            .unwrap()
        };
        assert!(look().holder(file, 3).is_none());
        assert!(locks.try_lock(3).unwrap() && locks.try_lock_shared(5).unwrap());
        let name = Name::new(path.rsplit('/').next().unwrap());
        let mapping = Mapping::of_owner(locks.file(), &name, 4096).unwrap();
        let seen = look();
        let holder = seen.holder(file, 3).unwrap();
        assert_eq!((holder.id, holder.is_stopped), (std::process::id(), false));
        assert!(holder.command.contains("shm_pool"), "{}", holder.command);
        assert!(
            [2, 4, 5]
                .iter()
                .all(|&byte| seen.holder(file, byte).is_none()),
            "not locked, or shared"
        );
        assert_eq!(seen.mappers(file).collect::<Vec<_>>(), [holder]);
        drop((mapping, locks));
        assert_eq!(look().mappers(file).count(), 0);
        fs::remove_file(path).unwrap();
    }

    /// A file system may show another device in `maps` than in `stat`.
    #[test]
    fn mapped_from_another_device() {
        let wanted = Wanted {
            inodes: BTreeSet::from([(libc::makedev(0, 40), 257)]),
            is_name: &|name| name == "shm_pool.camera.chan",
            removed: None,
        };
        let line = |device, inode, path| {
            format!("7f8772e7d000-7f8772e7e000 rw-s 00000000 {device} {inode}    {path}")
        };
        let file = Some((libc::makedev(0, 40), 257));
        let path = "/data/pools/shm_pool.camera.chan";
        assert_eq!(wanted.mapped(&line("00:28", 257, path)), file);
        assert_eq!(wanted.mapped(&line("00:1f", 257, path)), file);
        let removed = format!("{path} (deleted)");
        assert_eq!(wanted.mapped(&line("00:1f", 257, &removed)), file);
        assert_eq!(wanted.mapped(&line("00:1f", 258, path)), None);
        assert_eq!(wanted.mapped(&line("00:1f", 257, "/data/other")), None);
    }
}
