//! System calls: on open objects, retried when interrupted, and on the process itself.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// How often an interrupted call is retried.
pub(crate) const EINTR_RETRIES: usize = 64;

/// Bytes that one call reserves, once a signal has interrupted a reservation.
const RESERVE_STEP: usize = 4 << 20;

/// A page size, in bytes, that divides the page size of every Linux machine.
pub(crate) const PAGE: usize = 4096;

/// The call that locks memory into RAM, as errors name it.
pub(crate) const LOCK_MEMORY: &str = "mlock2";

/// The machine's page size in bytes.
pub(crate) fn page_size() -> usize {
    // SAFETY: `sysconf` has no preconditions.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(PAGE)
}

/// The effective user id of this process.
pub(crate) fn effective_uid() -> u32 {
    // SAFETY: `geteuid` has no preconditions.
    unsafe { libc::geteuid() }
}

/// Is `mode` fit for an object? Its owner can read and write; nobody can do more than that.
pub(crate) fn is_object_mode(mode: u32) -> bool {
    mode & !0o666 == 0 && mode & 0o600 == 0o600
}

/// Rounds a length up to whole pages, at least one. `None` on overflow.
pub(crate) fn round_to_pages(len: usize) -> Option<usize> {
    let page = page_size();
    Some(len.max(1).checked_add(page - 1)? / page * page)
}

/// Takes the `flock` of a file, shared or exclusive, without waiting. The kernel releases it with
/// the last descriptor of this open file description.
pub(crate) fn flock(file: &File, kind: i32) -> io::Result<()> {
    retry(|| {
        // SAFETY: `file` keeps the descriptor open.
        check(unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) })
    })
}

/// Reserves memory for `len` bytes from `start` on, and extends the object to hold them.
///
/// It makes one call, so that a request that can never fit is refused before anything is taken. If
/// a signal interrupts the call, it goes on in steps, because tmpfs gives up all that an
/// interrupted call has reserved: a program with a timer would never get a large segment.
pub(crate) fn reserve(fd: &File, start: usize, len: usize) -> io::Result<()> {
    match fallocate(fd, start, len) {
        Err(error) if error.raw_os_error() == Some(libc::EINTR) => (0..len)
            .step_by(RESERVE_STEP)
            .try_for_each(|done| retry(|| fallocate(fd, start + done, RESERVE_STEP.min(len - done)))),
        result => result,
    }
}

/// Sets the object's length, and reserves no memory.
pub(crate) fn set_len(fd: &File, len: usize) -> io::Result<()> {
    let len = offset(len)?;
    // SAFETY: `fd` keeps the descriptor open.
    retry(|| check(unsafe { libc::ftruncate(fd.as_raw_fd(), len) }))
}

/// Releases the object's memory for `len` bytes from `start` on. Its length stays.
pub(crate) fn punch(fd: &File, start: usize, len: usize) -> io::Result<()> {
    let (start, len) = (offset(start)?, offset(len)?);
    retry(|| {
        // SAFETY: `fd` keeps the descriptor open.
        check(unsafe {
            libc::fallocate(fd.as_raw_fd(), libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, start, len)
        })
    })
}

/// The first range of the object, from `start` on, that has memory. `None` if there is none.
pub(crate) fn next_filled(fd: &File, start: usize) -> Option<Range<usize>> {
    let first = seek(fd, start, libc::SEEK_DATA)?;
    Some(first..seek(fd, first, libc::SEEK_HOLE)?)
}

fn seek(fd: &File, start: usize, whence: libc::c_int) -> Option<usize> {
    let start = offset(start).ok()?;
    // SAFETY: `fd` keeps the descriptor open.
    usize::try_from(unsafe { libc::lseek(fd.as_raw_fd(), start, whence) }).ok()
}

fn offset(bytes: usize) -> io::Result<libc::off_t> {
    libc::off_t::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))
}

fn fallocate(fd: &File, start: usize, len: usize) -> io::Result<()> {
    // SAFETY: `fd` keeps the descriptor open.
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

/// Retries an interrupted call, a bounded number of times.
pub(crate) fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 1..EINTR_RETRIES {
        match call() {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            result => return result,
        }
    }
    call()
}

/// What a directory's file system says of itself.
fn statvfs(directory: &Path) -> Option<libc::statvfs> {
    let path = CString::new(directory.as_os_str().as_bytes()).ok()?;
    let mut stat = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path is NUL-terminated, and the buffer has the size of a `statvfs`.
    if unsafe { libc::statvfs(path.as_ptr(), stat.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: `statvfs` succeeded, so it filled the buffer.
    Some(unsafe { stat.assume_init() })
}

/// Free bytes in a directory, if they can be known.
pub(crate) fn free_bytes(directory: &Path) -> Option<u64> {
    statvfs(directory).map(|stat| stat.f_bavail * stat.f_frsize)
}

/// The free space in a directory, as "N of M bytes free".
pub(crate) fn free_space(directory: &Path) -> String {
    match statvfs(directory) {
        Some(stat) => format!("{} of {} bytes free", stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize),
        None => "an unknown amount free".to_owned(),
    }
}

/// How many bytes this process may lock into memory, privileges aside.
pub(crate) fn lock_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place to write to.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    limit.rlim_cur
}

/// The size in bytes of the huge pages that shared memory can have; `None` if this kernel has none.
pub(crate) fn huge_page_size() -> Option<usize> {
    let text = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").ok()?;
    text.trim().parse().ok().filter(|size: &usize| size.is_power_of_two())
}

/// Is the directory on a file system of huge pages only (hugetlbfs)?
pub(crate) fn is_on_hugetlbfs(directory: &Path) -> bool {
    let Ok(path) = CString::new(directory.as_os_str().as_bytes()) else { return false };
    let mut stat = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the path is NUL-terminated, and the buffer has the size of a `statfs`.
    if unsafe { libc::statfs(path.as_ptr(), stat.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: `statfs` succeeded, so it filled the buffer.
    let stat = unsafe { stat.assume_init() };
    // The two types differ between libcs. The number has 32 bits.
    stat.f_type as u32 == libc::HUGETLBFS_MAGIC as u32
}
