//! Segments as zenoh's receivers expect them: named `<id>.zenoh`, mode 0600, without a header,
//! under a shared `flock`.
//!
//! The lock shows zenoh's processes that a segment is in use: each of them, when it starts and when it
//! exits, unlinks the segments that it can lock exclusively. The process that releases the last shared
//! lock unlinks the name, as zenoh itself does. Otherwise the next zenoh process does, for example
//! after a publisher that has forked: its child has the mapping, and so the lock. A segment that the
//! pool removes while receivers still map it loses its memory at once. It keeps its name until
//! the last of these receivers exits, so that the name is not reused.
//!
//! Receivers never unmap a segment, so the pool keeps it too when it is empty. Receivers also lock
//! the whole segment into memory, which would allocate pages that have no memory yet. If /dev/shm
//! were full then, because another process took the rest for example, they would lose messages
//! silently. So a segment has all its memory while it has a chunk, and receivers allocate nothing
//! for it.

#![forbid(unsafe_code)]

use crate::outstanding::{Outstanding, SLOTS};
use crate::system::{flock, space};
use shm_pool::backend::{SegmentFile, SegmentSource};
use shm_pool::OsError;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

/// Where zenoh's receivers look.
const DIRECTORY: &str = "/dev/shm";

/// How many names are tried: so many taken names are no coincidence.
const NAME_TRIES: usize = 100;

/// Bytes of /dev/shm that stay free for zenoh's own objects when a segment is reserved. A process
/// that publishes has 1.25 MiB of metadata for 32,768 messages, and creates them after the first
/// segment. Each session has 16 KiB.
const SPARE: u64 = 2 << 20;

/// The mode of zenoh's own segments.
const MODE: u32 = 0o600;

/// Creates a pool's segments for zenoh.
pub(crate) struct ZenohSegments {
    outstanding: Arc<Outstanding>,
    next: AtomicU32,
}

impl ZenohSegments {
    /// Creates a source whose ids count up from `first`.
    pub(crate) fn new(outstanding: Arc<Outstanding>, first: u32) -> Self {
        Self {
            outstanding,
            next: AtomicU32::new(first),
        }
    }
}

/// Returns the path of a segment.
pub(crate) fn path(id: u32) -> PathBuf {
    format!("{DIRECTORY}/{id}.zenoh").into()
}

fn failed(call: &'static str, id: u32, len: usize, error: io::Error) -> OsError {
    let advice = match error.raw_os_error() {
        Some(libc::ENOSPC) => {
            "make room in /dev/shm or enlarge it (docker run --shm-size), or lower max_bytes"
        }
        Some(libc::EMFILE | libc::ENFILE) => "the limit of open files is reached (ulimit -n)",
        _ => "",
    };
    OsError::new(call, path(id), error)
        .with_bytes(len)
        .with_advice(advice)
}

fn out_of_memory() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOMEM)
}

/// Creates the file of a segment, under a shared lock. Returns `None` if the name is taken, or if one
/// of zenoh's sweeps came before the lock; then the name may belong to another file by now. An error
/// leaves no file behind.
pub(crate) fn create(id: u32, len: usize) -> Result<Option<SegmentFile>, OsError> {
    let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(MODE)
        .custom_flags(flags)
        .open(path(id));
    let file = match file {
        // Another process has the name, or a receiver still holds a dead process's segment.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
        result => result.map_err(|error| failed("open", id, len, error))?,
    };
    match lock(&file) {
        Ok(true) => Ok(Some(SegmentFile {
            id: id.into(),
            file,
            path: path(id),
        })),
        Ok(false) => Ok(None),
        Err((call, error)) => {
            let _unlinked = fs::remove_file(path(id));
            Err(failed(call, id, len, error))
        }
    }
}

/// Locks a new file and sets its mode. Returns `false` if a sweep came before the lock. An error has
/// the call that failed.
fn lock(file: &File) -> Result<bool, (&'static str, io::Error)> {
    let failed = |call| move |error| (call, error);
    match flock(file, libc::LOCK_SH) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
        result => result.map_err(failed("flock"))?,
    }
    if file.metadata().map_err(failed("fstat"))?.nlink() == 0 {
        return Ok(false);
    }
    // Whatever the umask.
    file.set_permissions(Permissions::from_mode(MODE))
        .map_err(failed("fchmod"))?;
    Ok(true)
}

/// Releases the lock of a segment, and unlinks its name if that was the last lock and the name is still
/// its own. Otherwise the last receiver unlinks it.
pub(crate) fn remove(id: u32, file: File) -> io::Result<()> {
    let inode = |file: &File| file.metadata().map(|data| (data.dev(), data.ino()));
    let ours = inode(&file)?;
    drop(file);
    // Locked until the name is removed: a process that opens the file meanwhile finds it locked.
    let last = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path(id))?;
    flock(&last, libc::LOCK_EX)?;
    if inode(&last)? == ours {
        fs::remove_file(path(id))?;
    }
    Ok(())
}

impl SegmentSource for ZenohSegments {
    fn create(&self, len: usize) -> Result<SegmentFile, OsError> {
        for _ in 0..NAME_TRIES {
            let Some(id) = self
                .outstanding
                .next_id(self.next.fetch_add(1, Ordering::Relaxed))
            else {
                break;
            };
            self.outstanding.enter(id, len).ok_or_else(|| {
                let advice = "the table of its chunks does not fit in private memory".to_owned();
                OsError::new("malloc", path(id), out_of_memory())
                    .with_bytes(len)
                    .with_advice(advice)
            })?;
            let made = create(id, len);
            if !matches!(made, Ok(Some(_))) {
                self.outstanding.leave(id);
            }
            if let Some(segment) = made? {
                return Ok(segment);
            }
        }
        let source = io::Error::other("no segment id is free");
        let advice = format!("the pool has created {SLOTS} segments, or their names are taken");
        Err(OsError::new("open", "/dev/shm/<id>.zenoh", source)
            .with_bytes(len)
            .with_advice(advice))
    }

    fn remove(&self, id: u64, file: File) {
        self.outstanding.leave(id as u32);
        // It fails if receivers still have the segment.
        let _kept = remove(id as u32, file);
    }

    fn keeps_segments(&self) -> bool {
        true
    }

    fn reserves_whole(&self) -> bool {
        true
    }

    fn check_room(&self, len: usize) -> Result<(), OsError> {
        let Some(space) = space(DIRECTORY) else {
            return Ok(());
        };
        if space.free >= (len as u64).saturating_add(SPARE) {
            return Ok(());
        }
        let advice = format!(
            "{} of {} bytes are free, and {SPARE} of them are left to zenoh's metadata: make room, enlarge it \
             (docker run --shm-size), or lower max_bytes",
            space.free, space.all
        );
        let full = io::Error::from_raw_os_error(libc::ENOSPC);
        Err(OsError::new("statvfs", DIRECTORY, full)
            .with_bytes(len)
            .with_advice(advice))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outstanding::Key;

    const PAGE: usize = 4096;

    fn segments() -> (Arc<Outstanding>, ZenohSegments) {
        let outstanding = Arc::new(Outstanding::new());
        (
            outstanding.clone(),
            ZenohSegments::new(outstanding, getrandom::u32().unwrap()),
        )
    }

    /// A receiver that has the other segment of that name in its cache would read that one for as long
    /// as it runs.
    #[test]
    fn name_in_use() {
        let (outstanding, segments) = segments();
        let next = segments.next.load(Ordering::Relaxed);
        let taken = outstanding.next_id(next).unwrap();
        std::fs::write(path(taken), "another's").unwrap();
        let segment = segments.create(PAGE).unwrap();
        assert_ne!(segment.id, u64::from(taken));
        assert_eq!(std::fs::read(path(taken)).unwrap(), b"another's");
        segments.remove(segment.id, segment.file);
        std::fs::remove_file(path(taken)).unwrap();
    }

    #[test]
    fn ids_skip_small_numbers() {
        let outstanding = Outstanding::new();
        for count in [0, 1, u32::MAX, 1 << 20, (1 << 20) - 1, (1 << 20) - 17] {
            let id = outstanding.next_id(count).unwrap();
            assert!(id >= 1 << 16, "{count} gives {id}");
        }
    }

    #[test]
    fn failed_segment_leaves_nothing() {
        let (outstanding, segments) = segments();
        let next = segments.next.load(Ordering::Relaxed);
        let error = segments.create(1 << 50).err().unwrap();
        assert_eq!((error.call(), error.bytes()), ("malloc", Some(1 << 50)));
        let id = outstanding.next_id(next).expect("its slot is free");
        assert!(!path(id).exists());
    }

    #[test]
    fn no_room() {
        let (_outstanding, segments) = segments();
        let error = segments.check_room(1 << 50).unwrap_err();
        assert_eq!(
            (error.call(), error.bytes(), error.errno()),
            ("statvfs", Some(1 << 50), Some(libc::ENOSPC))
        );
        assert!(error.to_string().contains("bytes are free"), "{error}");
    }

    /// The backend retries with shorter segments when it cannot map one, and publishers that wait
    /// retry at once.
    #[test]
    fn unused_segments_take_no_slot() {
        let (outstanding, segments) = segments();
        for _ in 0..2 * SLOTS {
            let segment = segments.create(PAGE).unwrap();
            segments.remove(segment.id, segment.file);
        }
        let used = segments.create(PAGE).unwrap();
        outstanding.prepare(Key::new(used.id, 0));
        segments.remove(used.id, used.file);
        let next = segments.create(PAGE).unwrap();
        assert_ne!(
            next.id as usize % SLOTS,
            used.id as usize % SLOTS,
            "the slot of a segment that had a chunk"
        );
        segments.remove(next.id, next.file);
    }

    #[test]
    fn table_without_memory() {
        let outstanding = Outstanding::new();
        let id = outstanding.next_id(0).unwrap();
        assert!(outstanding.enter(id, usize::MAX).is_none());
        assert_eq!(outstanding.next_id(0), Some(id));
    }

    #[test]
    fn remove_unlinks() {
        let (_outstanding, segments) = segments();
        let segment = segments.create(PAGE).unwrap();
        assert!(segment.path.exists());
        segments.remove(segment.id, segment.file);
        assert!(!segment.path.exists());
    }
}
