//! What to do about a failed call on an object. It follows from the call, from the directory and from
//! the object as they are just after the failure.

#![forbid(unsafe_code)]

use crate::error::OsError;
use crate::os::locks::LOCK;
use crate::os::name::Name;
use crate::os::posix::{
    effective_uid, file_size_limit, free_inodes, free_space, lock_limit, may_create_in,
    EINTR_RETRIES, LOCK_MEMORY,
};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Returns no text if there is nothing to be done.
pub(super) fn advice(name: &Name, call: &str, error: &io::Error) -> String {
    let directory = name.directory();
    let Some(errno) = error.raw_os_error() else {
        return String::new();
    };
    match errno {
        libc::ENOMEM | libc::EPERM | libc::EAGAIN if call == LOCK_MEMORY => format!(
            "this process may lock {} bytes in all (ulimit -l), and has locked some already; \
             unlock memory, or raise the limit",
            lock_limit()
        ),
        libc::EINVAL | libc::ENOLCK | libc::EOPNOTSUPP if call == LOCK => format!(
            "there are no locks of open file descriptions on {}: choose a tmpfs, on Linux 3.15 or \
             later (network file systems have none, and some sandboxes)",
            directory.display()
        ),
        libc::ENOENT if !directory.exists() => no_directory(directory),
        libc::EROFS => format!(
            "{} is mounted read-only: mount a tmpfs there (in a container: docker run --tmpfs \
             /dev/shm), or choose another directory",
            directory.display()
        ),
        libc::ENOSPC if call == "open" && free_inodes(directory) == Some(0) => format!(
            "{} has no inodes left: remove files there, or enlarge their number (mount option \
             nr_inodes)",
            directory.display()
        ),
        libc::ENOSPC => no_space(directory, "max_bytes"),
        libc::EDQUOT => format!(
            "this user's disk quota on {} is used up: remove files there, raise the quota, or \
             lower max_bytes",
            directory.display()
        ),
        libc::ENOMEM => "the memory or mapping limit is reached (cgroup memory, ulimit -v, \
                         vm.max_map_count)"
            .to_owned(),
        libc::EMFILE | libc::ENFILE => "the limit of open files is reached (ulimit -n)".to_owned(),
        libc::EACCES | libc::EPERM => denied(name, call),
        libc::ENOSYS => format!("the kernel has no {call}, or a sandbox hides it: allow it there"),
        libc::EFBIG if file_size_limit() != libc::RLIM_INFINITY => format!(
            "this process may make files of up to {} bytes (ulimit -f; LimitFSIZE of systemd); \
             raise the limit",
            file_size_limit()
        ),
        libc::EINTR => format!("signals interrupted it {EINTR_RETRIES} times in a row"),
        libc::ELOOP => "the name is a symbolic link, which is not followed".to_owned(),
        _ => String::new(),
    }
}

pub(crate) fn no_directory(directory: &Path) -> String {
    format!(
        "{} does not exist: mount a tmpfs there, or choose another directory",
        directory.display()
    )
}

/// The error of an object that exists, as other processes say, but that this one does not find.
pub(crate) fn invisible(name: &Name) -> OsError {
    let missing = io::Error::from_raw_os_error(libc::ENOENT);
    name.error("open", 0, missing).with_advice(format!(
        "its provider is alive: another process has removed the name (rm; systemd's RemoveIPC at a \
         logout), or this process sees another {} (chroot, mount namespace)",
        name.directory().display()
    ))
}

/// Returns `true` if the file system has no room for the object's memory.
pub(crate) fn is_full(error: &OsError) -> bool {
    error.errno() == Some(libc::ENOSPC) && error.call() != "open"
}

/// For a file system that is full. A lower `option` needs less of it.
pub(crate) fn no_space(directory: &Path, option: &str) -> String {
    format!(
        "{} has {}; make room or enlarge it (in a container: docker run --shm-size, or a sized \
         emptyDir with medium Memory), or lower {option}",
        directory.display(),
        free_space(directory)
    )
}

fn denied(name: &Name, call: &str) -> String {
    let directory = name.directory();
    if call != "open" {
        return format!(
            "a sandbox or security policy forbids {call} (seccomp, AppArmor, SELinux): allow it \
             for this program"
        );
    }
    match fs::symlink_metadata(name.as_path()) {
        Ok(object) if object.uid() == effective_uid() => {
            "the object is this user's, so a sandbox or security policy denies it (AppArmor, \
             SELinux, Landlock, snap): allow it for this program"
                .to_owned()
        }
        Ok(_) => "the object's mode or owner does not allow it: see its option `mode`".to_owned(),
        Err(_) if !may_create_in(directory) => {
            let mode = match fs::metadata(directory) {
                Ok(found) => format!("mode {:o} of uid {}", found.mode() & 0o7777, found.uid()),
                Err(error) => error.to_string(),
            };
            format!(
                "this user may not create files in {} ({mode}): change that, or choose another \
                 directory",
                directory.display()
            )
        }
        Err(_) => format!(
            "a sandbox or security policy denies files of this name in {} (AppArmor, SELinux, \
             Landlock, snap): allow them, or choose another prefix",
            directory.display()
        ),
    }
}
