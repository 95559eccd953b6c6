//! System calls: on open objects, with retries, and on the process itself.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

/// How often an interrupted call is started over.
pub(crate) const EINTR_RETRIES: usize = 64;

/// How much memory is reserved by one call, in bytes.
const RESERVE_STEP: usize = 4 << 20;

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

/// Takes the `flock` of a file, shared or exclusive, if that is possible at once. The kernel drops it with the last descriptor of
/// this open file description.
pub(crate) fn flock(file: &File, kind: i32) -> io::Result<()> {
    retry(|| {
        // SAFETY: the descriptor is open.
        check(unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) })
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
pub(crate) fn free_space() -> String {
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
