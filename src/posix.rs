//! The system calls on names under /dev/shm: open, reserve, unlink, with retries and errors that say what to do.

use crate::error::OsError;
use crate::fork;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;

/// How often an interrupted call is started over.
const EINTR_RETRIES: usize = 64;

/// How much memory is reserved by one call, in bytes.
const RESERVE_STEP: usize = 4 << 20;

/// Where shared-memory objects have their names.
pub(crate) const DIRECTORY: &str = "/dev/shm";

/// Size and alignment of a page that every Linux machine's page is a multiple of, in bytes.
pub(crate) const PAGE: usize = 4096;

/// The size of the machine's pages in bytes.
pub(crate) fn page_size() -> usize {
    // SAFETY: no preconditions.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(PAGE)
}

/// The effective user of this process.
pub(crate) fn effective_uid() -> u32 {
    // SAFETY: no preconditions.
    unsafe { libc::geteuid() }
}

/// Does a mode let its owner read and write, and nobody do anything else?
pub(crate) fn is_object_mode(mode: u32) -> bool {
    mode & !0o666 == 0 && mode & 0o600 == 0o600
}

/// Rounds a length up to whole pages; `None` on overflow.
pub(crate) fn round_to_pages(len: usize) -> Option<usize> {
    let page = page_size();
    Some(len.max(1).checked_add(page - 1)? / page * page)
}

/// Longest part of a name in bytes that users choose; a file name has 255, and has up to two of them and some 40 others.
pub(crate) const MAX_PART: usize = 64;

/// Is it fit to be part of a name?
pub(crate) fn is_part(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=MAX_PART).contains(&text.len()) && text.bytes().all(allowed)
}

/// A name under /dev/shm.
#[derive(Clone, Debug)]
pub(crate) struct Name(CString);

impl Name {
    /// `file` is a plain file name, without a slash or a NUL.
    pub(crate) fn new(file: &str) -> Self {
        debug_assert!(!file.contains('/') && !file.contains('\0'));
        let path = format!("/{}", file.replace('\0', "_"));
        Self(CString::new(path).unwrap_or_default())
    }

    /// The path that a user looks for.
    pub(crate) fn path(&self) -> String {
        format!("{DIRECTORY}{}", self.0.to_string_lossy())
    }

    /// Does it lead to an object?
    pub(crate) fn exists(&self) -> bool {
        std::path::Path::new(&self.path()).exists()
    }

    pub(crate) fn unlink(&self) -> io::Result<()> {
        // SAFETY: the name is a NUL-terminated string.
        check(unsafe { libc::shm_unlink(self.0.as_ptr()) })
    }

    /// An error that tells what the number means here and what the user can do.
    pub(crate) fn error(&self, call: &'static str, bytes: usize, source: io::Error) -> OsError {
        let advice = match source.raw_os_error() {
            Some(libc::ENOSPC) => format!(
                "; /dev/shm has {}; make room or enlarge it (in a container: docker run --shm-size, or a sized emptyDir \
                 with medium Memory), or lower max_bytes",
                free_space()
            ),
            Some(libc::ENOMEM) => "; the memory or mapping limit is reached (cgroup memory, ulimit -v, \
                                   vm.max_map_count)"
                .to_owned(),
            Some(libc::EMFILE | libc::ENFILE) => "; the limit of open files is reached (ulimit -n)".to_owned(),
            Some(libc::EACCES | libc::EPERM) => {
                "; the object's mode or owner does not allow it (ProviderBuilder::mode)".to_owned()
            }
            Some(libc::EINTR) => format!("; signals interrupted it {EINTR_RETRIES} times in a row"),
            Some(libc::ELOOP) => "; the name is a symbolic link, which is not followed".to_owned(),
            _ => String::new(),
        };
        OsError::new(call, &self.path(), bytes, source, advice)
    }
}

/// A name that this process created, unlinked on drop.
pub(crate) struct Link {
    name: Name,
    fork_epoch: u64,
    /// Is it still ours to unlink?
    is_ours: bool,
    /// The file, if the name is to stay for as long as anybody has a shared `flock` on it.
    counted: Option<Inode>,
}

impl Link {
    /// `name` was just created by this process.
    pub(crate) fn new(name: Name) -> Self {
        Self { name, fork_epoch: fork::epoch(), is_ours: true, counted: None }
    }

    /// From now on the name stays for as long as anybody has a shared `flock` on the file, which it was created for; whoever gives
    /// the last one back unlinks it, as zenoh does.
    #[cfg(feature = "zenoh")]
    pub(crate) fn count_by_flock(&mut self, file: Inode) {
        self.counted = Some(file);
    }

    /// The name is no longer ours to unlink.
    pub(crate) fn disown(mut self) {
        self.is_ours = false;
    }

    /// Is the name still this object's, and has nobody else a lock on it? If so, this one's is exclusive while the result lives.
    fn last(&self, counted: Inode) -> io::Result<Option<File>> {
        let file = shm_open(&self.name, libc::O_RDWR, 0)?;
        flock(&file, libc::LOCK_EX)?;
        Ok((inode(&file)? == counted).then_some(file))
    }

    pub(crate) fn name(&self) -> &Name {
        &self.name
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if !self.is_ours || self.fork_epoch != fork::epoch() {
            return;
        }
        // Held until the name is gone: who opens it meanwhile finds it locked.
        let lock = self.counted.map(|counted| self.last(counted));
        if lock.as_ref().map_or(true, |last| matches!(last, Ok(Some(_)))) {
            // Failure means that somebody else removed it already.
            let _ = self.name.unlink();
        }
    }
}

/// Device and number: what file it is, whatever its name.
pub(crate) type Inode = (u64, u64);

pub(crate) fn inode(file: &File) -> io::Result<Inode> {
    file.metadata().map(|data| (data.dev(), data.ino()))
}

/// Takes the `flock` of a file, shared or exclusive, if that is possible at once. The kernel drops it with the last descriptor of
/// this open file description.
pub(crate) fn flock(file: &File, kind: i32) -> io::Result<()> {
    retry(|| {
        // SAFETY: the descriptor is open.
        check(unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) })
    })
}

/// Not inherited by `exec`, not through a symbolic link, and not waiting for the other end of what turns out a pipe.
const SAFE: i32 = libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK;

/// Opens or creates an object.
pub(crate) fn shm_open(name: &Name, flags: i32, mode: u32) -> io::Result<File> {
    retry(|| {
        // SAFETY: the name is a NUL-terminated string.
        let fd = unsafe { libc::shm_open(name.0.as_ptr(), flags | SAFE, mode as libc::mode_t) };
        check(fd)?;
        // SAFETY: shm_open returned a new descriptor that nobody else owns.
        Ok(unsafe { File::from_raw_fd(fd) })
    })
}

/// Gives the object memory for `len` bytes from `start` on, and the length that this takes.
///
/// In one call, so that what can never fit is refused before anything is taken; and if a signal comes, in steps, because
/// tmpfs then gives up all that a call has reserved: a program with a timer would never get a large segment.
pub(crate) fn reserve(fd: &File, start: usize, len: usize) -> io::Result<()> {
    match fallocate(fd, start, len) {
        Err(error) if error.raw_os_error() == Some(libc::EINTR) => (0..len)
            .step_by(RESERVE_STEP)
            .try_for_each(|done| retry(|| fallocate(fd, start + done, RESERVE_STEP.min(len - done)))),
        result => result,
    }
}

/// Gives the object its length, and no memory.
pub(crate) fn set_len(fd: &File, len: usize) -> io::Result<()> {
    let len = offset(len)?;
    // SAFETY: the descriptor is open.
    retry(|| check(unsafe { libc::ftruncate(fd.as_raw_fd(), len) }))
}

/// Takes the memory for `len` bytes from `start` on out of the object, whose length stays.
pub(crate) fn punch(fd: &File, start: usize, len: usize) -> io::Result<()> {
    let (start, len) = (offset(start)?, offset(len)?);
    retry(|| {
        // SAFETY: the descriptor is open.
        check(unsafe {
            libc::fallocate(fd.as_raw_fd(), libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, start, len)
        })
    })
}

fn offset(bytes: usize) -> io::Result<libc::off_t> {
    libc::off_t::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))
}

fn fallocate(fd: &File, start: usize, len: usize) -> io::Result<()> {
    // SAFETY: the descriptor is open.
    match unsafe { libc::posix_fallocate(fd.as_raw_fd(), offset(start)?, offset(len)?) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

pub(crate) fn check(result: i32) -> io::Result<()> {
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Starts an interrupted call over, a bounded number of times.
pub(crate) fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 0..EINTR_RETRIES {
        match call() {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            result => return result,
        }
    }
    call()
}

/// What /dev/shm says of itself.
fn statvfs() -> Option<libc::statvfs> {
    let mut stat = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path is a NUL-terminated string and the buffer has the size of a statvfs.
    if unsafe { libc::statvfs(b"/dev/shm\0".as_ptr().cast(), stat.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: statvfs succeeded, so it filled the buffer.
    Some(unsafe { stat.assume_init() })
}

/// How many bytes of /dev/shm are free, if it can be known.
#[cfg(feature = "zenoh")]
pub(crate) fn free_bytes() -> Option<u64> {
    statvfs().map(|stat| stat.f_bavail * stat.f_frsize)
}

/// "N of M bytes free".
fn free_space() -> String {
    match statvfs() {
        Some(stat) => format!("{} of {} bytes free", stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize),
        None => "an unknown amount free".to_owned(),
    }
}

/// May a process like this one lock so many bytes into memory? Asked of the kernel, for address space that has no memory.
#[cfg(feature = "zenoh")]
pub(crate) fn may_lock(bytes: usize) -> io::Result<bool> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping just made; it is not accessible, so that nothing becomes present.
    let locked = unsafe { libc::mlock2(start, bytes, libc::MLOCK_ONFAULT as _) };
    let error = io::Error::last_os_error();
    // SAFETY: the mapping just made, which nobody else knows of.
    unsafe { libc::munmap(start, bytes) };
    match error.raw_os_error() {
        _ if locked == 0 => Ok(true),
        Some(libc::ENOMEM | libc::EPERM | libc::EAGAIN) => Ok(false),
        // A kernel before 4.4 cannot be asked so.
        _ => Ok(true),
    }
}

/// How many bytes this process may lock into memory, privileges aside.
#[cfg(feature = "zenoh")]
pub(crate) fn lock_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the buffer is an rlimit of this frame.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    limit.rlim_cur
}
