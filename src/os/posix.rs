//! System calls on open objects and on the process itself.

use std::ffi::CString;
use std::fs::{self, File};
use std::hint::black_box;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

pub(crate) const EINTR_RETRIES: usize = 64;

/// The most bytes that one call reserves, once a signal has interrupted a reservation.
const RESERVE_STEP: usize = 4 << 20;

/// Divides the page size of every Linux machine, in bytes.
pub(crate) const PAGE: usize = 4096;

/// The name, in errors, of the call that locks memory into RAM.
pub(crate) const LOCK_MEMORY: &str = "mlock2";

pub(crate) fn page_size() -> usize {
    // SAFETY: `sysconf` has no preconditions.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(PAGE)
}

pub(crate) fn effective_uid() -> u32 {
    // SAFETY: `geteuid` has no preconditions.
    unsafe { libc::geteuid() }
}

/// Tells `systemd-tmpfiles` (since systemd 254) not to remove the file by its age while it is open:
/// messages change no time stamp. Without that lock, all else works.
pub(crate) fn keep_from_cleaners(file: &File) {
    // SAFETY: takes only numbers, and `file` keeps the descriptor open.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_SH | libc::LOCK_NB) };
}

/// The user that stands for all those without an id in a user namespace (`user_namespaces(7)`), if
/// /proc does not tell.
const OVERFLOW_UID: u32 = 65_534;

/// Returns `true` if no other user's `file` can be shown as one of `uid`, which it is shown as.
///
/// In a user namespace, the owners that have no id there are all shown as one user. If this process
/// is shown as that user too, its own files are those of which it may set `O_NOATIME`: the kernel
/// compares the real owners.
pub(crate) fn is_identity(uid: u32, file: &File) -> bool {
    if uid != overflow_uid() {
        return true;
    }
    if uid == effective_uid() {
        return may_set_noatime(file);
    }
    has_all_users()
}

fn overflow_uid() -> u32 {
    // 0 until it is known. Not a `OnceLock`: a forked child would wait forever for a thread of its
    // parent that was reading the file.
    static KNOWN: AtomicU32 = AtomicU32::new(0);
    // Relaxed: the number is all that there is to see.
    let known = KNOWN.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let text = fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
    let uid = text.trim().parse().unwrap_or(OVERFLOW_UID);
    KNOWN.store(uid, Ordering::Relaxed);
    uid
}

/// Returns `true` if each user has an id in this process's user namespace.
fn has_all_users() -> bool {
    let Ok(map) = fs::read_to_string("/proc/self/uid_map") else {
        return false;
    };
    let all = u32::MAX.to_string();
    map.split_whitespace().eq(["0", "0", all.as_str()])
}

/// Sets that flag of the descriptor, which changes nothing for this crate.
fn may_set_noatime(file: &File) -> bool {
    // SAFETY: takes only numbers, and `file` keeps the descriptor open.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 {
        return false;
    }
    // SAFETY: as above.
    let set = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags | libc::O_NOATIME) };
    set == 0
}

/// Returns `true` if the permissions of the directory let this user create files there.
pub(crate) fn may_create_in(directory: &Path) -> bool {
    let Ok(path) = CString::new(directory.as_os_str().as_bytes()) else {
        return false;
    };
    let wanted = libc::W_OK | libc::X_OK;
    // SAFETY: the path is a NUL-terminated string.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), wanted, libc::AT_EACCESS) == 0 }
}

pub(crate) fn is_object_mode(mode: u32) -> bool {
    mode & !0o666 == 0 && mode & 0o600 == 0o600
}

/// Returns `true` if `mode` lets other users write than the owner.
pub(crate) fn admits_others(mode: u32) -> bool {
    mode & 0o022 != 0
}

/// Rounds a length up to whole pages, at least one. Returns `None` on overflow.
pub(crate) fn round_to_pages(len: usize) -> Option<usize> {
    let page = page_size();
    Some(len.max(1).checked_add(page - 1)? / page * page)
}

pub(crate) fn reserve_all(fd: &File, len: usize) -> io::Result<()> {
    check_file_size(len)?;
    reserve(fd, 0, len)
}

/// Reserves memory by a single call, so that a request that cannot fit takes none. If a signal
/// interrupts the call, continues in steps, and halves the step with each further signal: tmpfs
/// rolls back what an interrupted call has reserved, so a call has to end before the next signal.
pub(crate) fn reserve(fd: &File, start: usize, len: usize) -> io::Result<()> {
    match fallocate(fd, start, len) {
        Err(error) if is_interrupted(&error) => {
            reserve_in_steps(len, |done, step| fallocate(fd, start + done, step))
        }
        result => result,
    }
}

fn reserve_in_steps(
    len: usize,
    mut reserve: impl FnMut(usize, usize) -> io::Result<()>,
) -> io::Result<()> {
    let mut step = RESERVE_STEP;
    let mut done = 0;
    while done < len {
        let part = step.min(len - done);
        match reserve(done, part) {
            Ok(()) => done += part,
            Err(error) if is_interrupted(&error) && part > PAGE => step = part / 2,
            Err(error) if is_interrupted(&error) => {
                retry(|| reserve(done, part))?;
                done += part;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_interrupted(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EINTR)
}

pub(crate) fn set_len(fd: &File, len: usize) -> io::Result<()> {
    check_file_size(len)?;
    let len = offset(len)?;
    // SAFETY: `fd` keeps the descriptor open.
    retry(|| check(unsafe { libc::ftruncate(fd.as_raw_fd(), len) }))
}

/// Releases the memory of a range. The length of the file stays.
pub(crate) fn punch(fd: &File, start: usize, len: usize) -> io::Result<()> {
    let start = offset(start)?;
    let len = offset(len)?;
    retry(|| {
        // SAFETY: `fd` keeps the descriptor open.
        check(unsafe {
            libc::fallocate(
                fd.as_raw_fd(),
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                start,
                len,
            )
        })
    })
}

/// Returns the next range with memory at or after `start`.
pub(crate) fn next_filled(fd: &File, start: usize) -> Option<Range<usize>> {
    let first = seek(fd, start, libc::SEEK_DATA)?;
    let end = seek(fd, first, libc::SEEK_HOLE)?;
    Some(first..end)
}

fn seek(fd: &File, start: usize, whence: libc::c_int) -> Option<usize> {
    let start = offset(start).ok()?;
    // SAFETY: `fd` keeps the descriptor open.
    let found = unsafe { libc::lseek(fd.as_raw_fd(), start, whence) };
    usize::try_from(found).ok()
}

fn offset(bytes: usize) -> io::Result<libc::off_t> {
    libc::off_t::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))
}

fn fallocate(fd: &File, start: usize, len: usize) -> io::Result<()> {
    let start = offset(start)?;
    let len = offset(len)?;
    // SAFETY: `fd` keeps the descriptor open.
    match unsafe { libc::posix_fallocate(fd.as_raw_fd(), start, len) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Returns the error of a call that has returned -1.
pub(crate) fn check(result: i32) -> io::Result<()> {
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Repeats a call that a signal has interrupted, a bounded number of times.
pub(crate) fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 1..EINTR_RETRIES {
        match call() {
            Err(error) if is_interrupted(&error) => {}
            result => return result,
        }
    }
    call()
}

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

pub(crate) fn free_bytes(directory: &Path) -> Option<u64> {
    let stat = statvfs(directory)?;
    Some(stat.f_bavail * stat.f_frsize)
}

/// Returns `None` if the number is unknown, or not limited.
pub(crate) fn free_inodes(directory: &Path) -> Option<u64> {
    let stat = statvfs(directory)?;
    if stat.f_files == 0 {
        return None;
    }
    Some(stat.f_favail)
}

pub(crate) fn free_space(directory: &Path) -> String {
    match statvfs(directory) {
        Some(stat) => format!(
            "{} of {} bytes free",
            stat.f_bavail * stat.f_frsize,
            stat.f_blocks * stat.f_frsize
        ),
        None => "an unknown amount free".to_owned(),
    }
}

/// Returns `true` if so much heap is free. To be checked before operations in which the standard
/// library would abort.
pub(crate) fn has_heap(bytes: usize) -> bool {
    let mut heap = Vec::<u8>::new();
    let has_heap = heap.try_reserve_exact(bytes).is_ok();
    // Keeps the compiler from removing the allocation.
    black_box(heap);
    has_heap
}

pub(crate) fn lock_limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is valid for writes.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    limit.rlim_cur
}

pub(crate) fn file_size_limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: 0,
    };
    // SAFETY: `limit` is valid for writes.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) };
    limit.rlim_cur
}

/// Refuses a length before a call that would raise SIGXFSZ.
pub(crate) fn check_file_size(len: usize) -> io::Result<()> {
    if len as u64 > file_size_limit() {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    Ok(())
}

pub(crate) fn huge_page_size() -> Option<usize> {
    let text =
        std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").ok()?;
    let size: usize = text.trim().parse().ok()?;
    if !size.is_power_of_two() {
        return None;
    }
    Some(size)
}

pub(crate) fn is_on_hugetlbfs(directory: &Path) -> bool {
    let Ok(path) = CString::new(directory.as_os_str().as_bytes()) else {
        return false;
    };
    let mut stat = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the path is NUL-terminated, and the buffer has the size of a `statfs`.
    if unsafe { libc::statfs(path.as_ptr(), stat.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: `statfs` succeeded, so it filled the buffer.
    let stat = unsafe { stat.assume_init() };
    // The types differ between libcs. The number has 32 bits.
    stat.f_type as u32 == libc::HUGETLBFS_MAGIC as u32
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn interrupted() -> io::Error {
        io::Error::from_raw_os_error(libc::EINTR)
    }

    #[test]
    fn steps_become_shorter_than_the_time_between_signals() {
        const LONGEST: usize = 100 << 10;
        const LEN: usize = (9 << 20) + 4096;
        let mut reserved = 0;
        let mut calls = 0;
        let done = reserve_in_steps(LEN, |offset, len| {
            calls += 1;
            if len > LONGEST {
                return Err(interrupted());
            }
            assert_eq!(offset, reserved);
            reserved += len;
            Ok(())
        });
        done.unwrap();
        assert_eq!(reserved, LEN);
        assert!(calls < 2 * LEN / (LONGEST / 2), "{calls} calls");
    }

    #[test]
    fn a_page_that_is_always_interrupted_is_an_error() {
        let mut calls = 0;
        let error = reserve_in_steps(RESERVE_STEP, |_, _| {
            calls += 1;
            Err(interrupted())
        });
        assert_eq!(error.unwrap_err().raw_os_error(), Some(libc::EINTR));
        assert!(calls < 2 * EINTR_RETRIES, "{calls} calls");
    }
}
