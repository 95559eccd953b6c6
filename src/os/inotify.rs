//! The kernel's reports of the files in a directory that are created, closed or removed (`man 7
//! inotify`), and a sleep that another thread can end.

// The models have their own kernel.
#![cfg_attr(all(test, loom), allow(dead_code))]

use crate::os::locks::LockFile;
use crate::os::posix::check;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// Reports that a name has a new file or none, that a mode was set, and that a file open for
/// writing was closed, which releases its locks shortly afterwards.
const REPORTS: u32 = libc::IN_CREATE
    | libc::IN_DELETE
    | libc::IN_MOVED_FROM
    | libc::IN_MOVED_TO
    | libc::IN_ATTRIB
    | libc::IN_CLOSE_WRITE
    | libc::IN_ONLYDIR
    | GONE;

/// The directory has another name or none.
const GONE: u32 = libc::IN_MOVE_SELF | libc::IN_DELETE_SELF;

/// After any of these, the reports are incomplete.
const LOST: u32 = libc::IN_Q_OVERFLOW | libc::IN_IGNORED | libc::IN_UNMOUNT | GONE;

/// Of 4 KiB, at a time: reports may come faster than they are read.
const BUFFERS: usize = 16;

/// The bytes of a report before the file's name.
const HEAD: usize = 16;

/// Number of a directory whose files are reported.
pub(crate) type Watched = i32;

/// A queue of reports. A forked child closes its copy, as that of a lock.
pub(crate) struct Inotify(LockFile);

impl Inotify {
    pub(crate) fn new() -> io::Result<Self> {
        let file = LockFile::open(|| {
            // SAFETY: the call has no pointers.
            owned(unsafe { libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK) })
        })?;
        Ok(Self(file))
    }

    /// Starts to report the files of a directory. Each directory has one number.
    pub(crate) fn watch(&self, directory: &Path) -> io::Result<Watched> {
        let path = CString::new(directory.as_os_str().as_bytes())?;
        // SAFETY: the path is NUL-terminated.
        let watched =
            unsafe { libc::inotify_add_watch(self.0.file().as_raw_fd(), path.as_ptr(), REPORTS) };
        check(watched)?;
        Ok(watched)
    }

    /// Passes each report to `each`: the directory and the file; or `None` if reports were lost or
    /// a directory is no longer watched.
    pub(crate) fn read(&self, mut each: impl FnMut(Option<(Watched, &[u8])>)) {
        let mut buffer = [0; 4096];
        for _ in 0..BUFFERS {
            let Ok(len) = self.0.file().read(&mut buffer) else {
                return;
            };
            let mut rest = &buffer[..len];
            while rest.len() >= HEAD {
                let word = |at: usize| {
                    u32::from_ne_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]])
                };
                let watched = word(0) as Watched;
                let events = word(4);
                let end = HEAD + word(12) as usize;
                let (report, next) = rest.split_at(end.min(rest.len()));
                if events & LOST != 0 {
                    each(None);
                } else {
                    // The name is padded with zeros.
                    let mut parts = report[HEAD..].split(|&byte| byte == 0);
                    let name = parts.next().unwrap_or_default();
                    each(Some((watched, name)));
                }
                rest = next;
            }
        }
    }
}

/// Ends a [`sleep`] of another thread.
pub(crate) struct Call(LockFile);

impl Call {
    pub(crate) fn new() -> io::Result<Self> {
        let file = LockFile::open(|| {
            // SAFETY: the call has no pointers.
            owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
        })?;
        Ok(Self(file))
    }

    pub(crate) fn call(&self) {
        // It fails if the counter would overflow: then the sleep ends too.
        let _full = self.0.file().write(&1_u64.to_ne_bytes());
    }

    pub(crate) fn clear(&self) {
        // It fails if there was no call.
        let _empty = self.0.file().read(&mut [0; 8]);
    }
}

/// The longest sleep that ends neither with a report nor with a call.
const UNPOLLED: Duration = Duration::from_millis(10);

/// Sleeps until there is a report or a call, for at most `timeout`, rounded up to milliseconds.
pub(crate) fn sleep(inotify: Option<&Inotify>, call: Option<&Call>, timeout: Duration) {
    // The kernel ignores an entry whose descriptor is negative.
    let unused = libc::pollfd {
        fd: -1,
        events: libc::POLLIN,
        revents: 0,
    };
    let mut entries = [unused, unused];
    if let Some(inotify) = inotify {
        entries[0].fd = inotify.0.file().as_raw_fd();
    }
    if let Some(call) = call {
        entries[1].fd = call.0.file().as_raw_fd();
    }
    let millis = timeout.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32;
    // SAFETY: the array has that many entries.
    let polled =
        check(unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, millis) });
    match polled {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
        // With a limit of less than two descriptors.
        Err(_) => thread::sleep(timeout.min(UNPOLLED)),
    }
}

fn owned(fd: RawFd) -> io::Result<File> {
    check(fd)?;
    // SAFETY: the descriptor is new, and has no other owner.
    Ok(unsafe { File::from_raw_fd(fd) })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn reports_names() {
        let directory =
            std::env::temp_dir().join(format!("shm_pool-inotify-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let inotify = Inotify::new().unwrap();
        let watched = inotify.watch(&directory).unwrap();
        assert_eq!(inotify.watch(&directory).unwrap(), watched);
        let mut seen = Vec::new();
        let mut read = || {
            inotify.read(|report| {
                seen.push(report.map(|(of, name)| (of, String::from_utf8(name.to_vec()).unwrap())))
            });
            std::mem::take(&mut seen)
        };
        assert_eq!(read(), []);
        fs::write(directory.join("a"), "").unwrap();
        fs::rename(directory.join("a"), directory.join("a-longer-name-than-16")).unwrap();
        let names: Vec<_> = read().into_iter().map(|report| report.unwrap()).collect();
        assert!(names.iter().all(|(of, _)| *of == watched));
        let names: Vec<_> = names.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(
            names,
            ["a", "a", "a", "a-longer-name-than-16"],
            "created, closed, moved"
        );
        let moved = directory.with_extension("moved");
        fs::rename(&directory, &moved).unwrap();
        assert_eq!(read(), [None], "the directory has another name");
        fs::rename(&moved, &directory).unwrap();
        assert_eq!(read(), [None]);
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(read().last(), Some(&None), "the directory is gone");
        assert!(inotify.watch(&directory).is_err());
    }

    #[test]
    fn call_ends_sleep() {
        let call = Call::new().unwrap();
        call.call();
        sleep(None, Some(&call), Duration::MAX);
        call.clear();
        sleep(None, Some(&call), Duration::from_nanos(1));
        sleep(None, None, Duration::ZERO);
    }
}
