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
//!
//! zenoh's segments have no version, and a receiver that cannot read one loses the messages silently.
//! So [`check_format`] has zenoh's own client read one.

#![deny(unsafe_code)]

use crate::in_use::{ChunksInUse, SLOTS};
use crate::BuildError;
use shm_pool::backend::{SegmentFile, SegmentSource};
use shm_pool::OsError;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use system::{flock, free_space};
use zenoh::shm::{PosixShmClient, ShmClient};

pub(crate) use system::{lock_limit, may_lock};

/// Where zenoh's receivers search.
const DIRECTORY: &str = "/dev/shm";

/// How many names are tried: so many taken names are no coincidence.
const NAME_TRIES: usize = 100;

/// Bytes of /dev/shm that stay free for zenoh's own objects when a segment is reserved. A process
/// that publishes has 1.25 MiB of metadata for 32,768 messages, and creates them after the first
/// segment. Each session has 16 KiB.
const LEFT_FREE: u64 = 2 << 20;

/// The mode of zenoh's own segments.
const MODE: u32 = 0o600;

/// The length in bytes of the segment that zenoh's client reads: at least a page, on any machine.
const CHECKED_LEN: usize = 64 << 10;

/// The offset of the compared bytes. Chunks begin at any multiple of 64.
const CHECKED_OFFSET: u32 = 192;

/// Creates a pool's segments for zenoh.
pub(crate) struct ZenohSegments {
    in_use: Arc<ChunksInUse>,
    next: AtomicU32,
}

impl ZenohSegments {
    /// Creates a source whose ids count up from `first`.
    pub(crate) fn new(in_use: Arc<ChunksInUse>, first: u32) -> Self {
        Self {
            in_use,
            next: AtomicU32::new(first),
        }
    }

    /// Creates a segment. Returns `None` if the name was taken.
    fn create_with_id(&self, id: u32, len: usize) -> Result<Option<SegmentFile>, OsError> {
        if self.in_use.add_segment(id, len).is_none() {
            let out_of_memory = io::Error::from_raw_os_error(libc::ENOMEM);
            let advice = "the table of its chunks does not fit in private memory".to_owned();
            return Err(
                OsError::new("malloc", path(id), out_of_memory).with_details(Some(len), advice)
            );
        }
        let created = create(id, len);
        if !matches!(created, Ok(Some(_))) {
            self.in_use.remove_segment(id);
        }
        created
    }
}

/// Returns the path of a segment.
fn path(id: u32) -> PathBuf {
    format!("{DIRECTORY}/{id}.zenoh").into()
}

/// Creates the file of a segment, under a shared lock. Returns `None` if the name is taken, or if one
/// of zenoh's sweeps came before the lock; then the name may belong to another file by now. An error
/// leaves no file behind.
fn create(id: u32, len: usize) -> Result<Option<SegmentFile>, OsError> {
    let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let opened = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(MODE)
        .custom_flags(flags)
        .open(path(id));
    let file = match opened {
        Ok(file) => file,
        // Another process has the name, or a receiver still holds a dead process's segment.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
        Err(error) => return Err(failed("open", id, len, error)),
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
    match flock(file, libc::LOCK_SH) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
        Err(error) => return Err(("flock", error)),
    }
    match file.metadata() {
        Ok(metadata) if metadata.nlink() == 0 => return Ok(false),
        Ok(_) => {}
        Err(error) => return Err(("fstat", error)),
    }
    // Whatever the umask.
    match file.set_permissions(Permissions::from_mode(MODE)) {
        Ok(()) => Ok(true),
        Err(error) => Err(("fchmod", error)),
    }
}

fn failed(call: &'static str, id: u32, len: usize, error: io::Error) -> OsError {
    let advice = match error.raw_os_error() {
        Some(libc::ENOSPC) => {
            "make room in /dev/shm or enlarge it (docker run --shm-size), or lower max_bytes"
        }
        Some(libc::EMFILE | libc::ENFILE) => "the limit of open files is reached (ulimit -n)",
        _ => "",
    };
    OsError::new(call, path(id), error).with_details(Some(len), advice)
}

/// Releases the lock of a segment, and unlinks its name if that was the last lock and the name is still
/// its own. Otherwise the last receiver unlinks it.
fn remove(id: u32, file: File) -> io::Result<()> {
    let removed = inode(&file)?;
    drop(file);
    // Locked until the name is removed: a process that opens the file meanwhile finds it locked.
    let last = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path(id))?;
    flock(&last, libc::LOCK_EX)?;
    if inode(&last)? == removed {
        fs::remove_file(path(id))?;
    }
    Ok(())
}

/// Returns the device and the number of a file.
fn inode(file: &File) -> io::Result<(u64, u64)> {
    let metadata = file.metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}

impl SegmentSource for ZenohSegments {
    fn create(&self, len: usize) -> Result<SegmentFile, OsError> {
        for _ in 0..NAME_TRIES {
            let count = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(id) = self.in_use.next_id(count) else {
                break;
            };
            if let Some(segment) = self.create_with_id(id, len)? {
                return Ok(segment);
            }
        }
        let source = io::Error::other("no segment id is free");
        let advice = format!("the pool has created {SLOTS} segments, or their names are taken");
        Err(OsError::new("open", "/dev/shm/<id>.zenoh", source).with_details(Some(len), advice))
    }

    fn remove(&self, id: u64, file: File) {
        self.in_use.remove_segment(id as u32);
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
        let Some(space) = free_space(DIRECTORY) else {
            return Ok(());
        };
        if space.free >= (len as u64).saturating_add(LEFT_FREE) {
            return Ok(());
        }
        let advice = format!(
            "{} of {} bytes are free, and {LEFT_FREE} of them are left to zenoh's metadata: \
             make room, enlarge it (docker run --shm-size), or lower max_bytes",
            space.free, space.all
        );
        let full = io::Error::from_raw_os_error(libc::ENOSPC);
        Err(OsError::new("statvfs", DIRECTORY, full).with_details(Some(len), advice))
    }
}

/// Writes bytes to a segment and has zenoh's client read them. If the system has no memory for that,
/// nothing is checked.
pub(crate) fn check_format() -> Result<(), BuildError> {
    if matches!(may_lock(CHECKED_LEN), Ok(false)) {
        return Ok(());
    }
    for _ in 0..NAME_TRIES {
        let id = match getrandom::u32() {
            Ok(random) => random | 1 << 16,
            Err(error) => return Err(BuildError::Random(error.into())),
        };
        let file = match create(id, CHECKED_LEN) {
            Ok(Some(segment)) => segment.file,
            Ok(None) => continue,
            Err(_no_memory) => return Ok(()),
        };
        let bytes = (!id).to_ne_bytes();
        let checked = match write(&file, &bytes) {
            Ok(()) => read_and_compare(id, &bytes),
            Err(_no_memory) => Ok(()),
        };
        // It fails if one of zenoh's sweeps was faster.
        let _gone = remove(id, file);
        return match checked {
            Ok(()) => Ok(()),
            Err(reason) => Err(BuildError::Format { reason }),
        };
    }
    Ok(())
}

fn write(file: &File, bytes: &[u8; 4]) -> io::Result<()> {
    // All of the memory that the client will lock.
    file.write_all_at(&[0; CHECKED_LEN], 0)?;
    file.write_all_at(bytes, CHECKED_OFFSET.into())
}

/// Compares the bytes that zenoh's client finds in a segment with those that were written.
#[allow(unsafe_code)]
fn read_and_compare(id: u32, written: &[u8; 4]) -> Result<(), String> {
    let segment = match PosixShmClient.attach(id) {
        Ok(segment) => segment,
        Err(error) => return Err(format!("it cannot attach a segment: {error}")),
    };
    let chunk = match segment.map(CHECKED_OFFSET) {
        Ok(chunk) => chunk,
        Err(error) => return Err(format!("it cannot map a chunk: {error}")),
    };
    // SAFETY: zenoh has mapped the chunk there, and `segment` keeps the mapping. The file has memory for
    // all of its length, and no other process knows it.
    let read = unsafe { chunk.cast::<[u8; 4]>().read_unaligned() };
    if read != *written {
        return Err(format!("{written:?} was written, and it reads {read:?}"));
    }
    Ok(())
}

/// System calls that the standard library lacks.
#[allow(unsafe_code)]
mod system {
    use std::ffi::CString;
    use std::fs::File;
    use std::io;
    use std::mem::MaybeUninit;
    use std::os::fd::AsRawFd;
    use std::ptr;

    fn check(result: i32) -> io::Result<()> {
        match result {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Takes the `flock` of a file, shared or exclusive, without blocking. The kernel releases it with
    /// the last descriptor of this open file description.
    pub(super) fn flock(file: &File, kind: i32) -> io::Result<()> {
        // SAFETY: `file` keeps the descriptor open.
        check(unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) })
    }

    /// The size of a file system in bytes.
    pub(super) struct Space {
        /// What this process may still take.
        pub(super) free: u64,
        pub(super) all: u64,
    }

    /// Returns the size of a directory's file system, if it can be determined and is limited.
    pub(super) fn free_space(directory: &str) -> Option<Space> {
        let path = CString::new(directory).ok()?;
        let mut stat = MaybeUninit::<libc::statvfs>::uninit();
        // SAFETY: the path is NUL-terminated, and the buffer has the size of a `statvfs`.
        check(unsafe { libc::statvfs(path.as_ptr(), stat.as_mut_ptr()) }).ok()?;
        // SAFETY: `statvfs` succeeded, so it filled the buffer.
        let stat = unsafe { stat.assume_init() };
        if stat.f_blocks == 0 {
            return None;
        }
        Some(Space {
            free: stat.f_bavail * stat.f_frsize,
            all: stat.f_blocks * stat.f_frsize,
        })
    }

    /// Returns how many bytes this process may lock into memory, privileges aside.
    pub(crate) fn lock_limit() -> u64 {
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: `limit` is a valid place to write to.
        unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
        limit.rlim_cur
    }

    /// Returns `true` if this process may lock that many more bytes into memory. Asks the kernel, with
    /// address space that has no memory.
    pub(crate) fn may_lock(bytes: usize) -> io::Result<bool> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: the kernel chooses the address, so the new mapping touches no existing memory.
        let start = unsafe { libc::mmap(ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the range is the mapping just made. Locking changes no byte.
        let locked = check(unsafe { libc::mlock2(start, bytes, libc::MLOCK_ONFAULT as _) });
        // SAFETY: the mapping just made, which nothing else uses.
        unsafe { libc::munmap(start, bytes) };
        let Err(error) = locked else {
            return Ok(true);
        };
        // A kernel before 4.4 has no `mlock2` and cannot be asked this way.
        let is_refused = matches!(
            error.raw_os_error(),
            Some(libc::ENOMEM | libc::EPERM | libc::EAGAIN)
        );
        Ok(!is_refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_use::Key;

    const PAGE: usize = 4096;

    fn segments() -> (Arc<ChunksInUse>, ZenohSegments) {
        let in_use = Arc::new(ChunksInUse::new());
        (
            in_use.clone(),
            ZenohSegments::new(in_use, getrandom::u32().unwrap()),
        )
    }

    /// A receiver that has the other segment of that name in its cache would read that one for as long
    /// as it runs.
    #[test]
    fn name_in_use() {
        let (in_use, segments) = segments();
        let next = segments.next.load(Ordering::Relaxed);
        let taken = in_use.next_id(next).unwrap();
        std::fs::write(path(taken), "another's").unwrap();
        let segment = segments.create(PAGE).unwrap();
        assert_ne!(segment.id, u64::from(taken));
        assert_eq!(std::fs::read(path(taken)).unwrap(), b"another's");
        segments.remove(segment.id, segment.file);
        std::fs::remove_file(path(taken)).unwrap();
    }

    #[test]
    fn ids_skip_small_numbers() {
        let in_use = ChunksInUse::new();
        for count in [0, 1, u32::MAX, 1 << 20, (1 << 20) - 1, (1 << 20) - 17] {
            let id = in_use.next_id(count).unwrap();
            assert!(id >= 1 << 16, "{count} gives {id}");
        }
    }

    #[test]
    fn failed_segment_leaves_nothing() {
        let (in_use, segments) = segments();
        let next = segments.next.load(Ordering::Relaxed);
        let error = segments.create(1 << 50).err().unwrap();
        assert_eq!((error.call(), error.bytes()), ("malloc", Some(1 << 50)));
        let id = in_use.next_id(next).expect("its slot is free");
        assert!(!path(id).exists());
    }

    #[test]
    fn no_room() {
        let (_in_use, segments) = segments();
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
        let (in_use, segments) = segments();
        for _ in 0..2 * SLOTS {
            let segment = segments.create(PAGE).unwrap();
            segments.remove(segment.id, segment.file);
        }
        let used = segments.create(PAGE).unwrap();
        in_use.prefault(Key::new(used.id, 0));
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
        let in_use = ChunksInUse::new();
        let id = in_use.next_id(0).unwrap();
        assert!(in_use.add_segment(id, usize::MAX).is_none());
        assert_eq!(in_use.next_id(0), Some(id));
    }

    #[test]
    fn remove_unlinks() {
        let (_in_use, segments) = segments();
        let segment = segments.create(PAGE).unwrap();
        assert!(segment.path.exists());
        segments.remove(segment.id, segment.file);
        assert!(!segment.path.exists());
    }

    #[test]
    fn changed_format() {
        let id = getrandom::u32().unwrap() | 1 << 16;
        let SegmentFile { file, .. } = create(id, CHECKED_LEN).unwrap().unwrap();
        write(&file, &[1, 2, 3, 4]).unwrap();
        assert_eq!(read_and_compare(id, &[1, 2, 3, 4]), Ok(()));
        assert!(read_and_compare(id, &[1, 2, 3, 5])
            .is_err_and(|reason| reason.contains("reads [1, 2, 3, 4]")));
        remove(id, file).unwrap();
        assert!(read_and_compare(id, &[1, 2, 3, 4])
            .is_err_and(|reason| reason.contains("cannot attach")));
    }
}
