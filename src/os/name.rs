//! Names of objects, under /dev/shm or another directory: which are valid, who unlinks them, and
//! errors that say what to do.

use crate::error::{BuildError, OsError};
use crate::os::fork;
use crate::os::posix::{check, flock, free_space, lock_limit, retry, EINTR_RETRIES, LOCK_MEMORY};
use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io;
use std::os::fd::FromRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// Where objects have their names by default: where `shm_open` of every libc has them.
pub(crate) const DIRECTORY: &str = "/dev/shm";

/// Default name prefix of providers and clients.
pub(crate) const DEFAULT_PREFIX: &str = "shm_pool";

/// Longest part of a name that users choose, in bytes. A file name has up to 255: up to two such
/// parts, and some 40 others.
pub(crate) const MAX_PART: usize = 64;

/// May `text` be part of a name?
pub(crate) fn is_part(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=MAX_PART).contains(&text.len()) && text.bytes().all(allowed)
}

/// The directory that objects have their names in, and what the names start with. Two processes
/// find each other's objects if they have the same.
#[derive(Clone, Debug)]
pub(crate) struct Namespace {
    directory: Arc<Path>,
    prefix: Arc<str>,
}

impl Namespace {
    /// Checks that `directory` is an absolute path, and that a file name may start with `prefix`.
    /// Looks at no file.
    pub(crate) fn new(directory: &Path, prefix: &str) -> Result<Self, BuildError> {
        let unfit = |reason| Err(BuildError::Directory { directory: directory.to_owned(), reason });
        if !directory.is_absolute() {
            return unfit("is not an absolute path");
        }
        if directory.as_os_str().as_bytes().contains(&0) {
            return unfit("contains a NUL byte");
        }
        if !is_part(prefix) {
            return Err(BuildError::Prefix { prefix: prefix.to_owned(), max: MAX_PART });
        }
        Ok(Self { directory: directory.into(), prefix: prefix.into() })
    }

    /// The names under /dev/shm that start with `prefix`, which must be a [part](is_part).
    pub(crate) fn in_shm(prefix: &str) -> Self {
        debug_assert!(is_part(prefix));
        Self { directory: Path::new(DIRECTORY).into(), prefix: prefix.into() }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The name of an object: the prefix, a dot, and `rest`.
    pub(crate) fn name(&self, rest: &str) -> Name {
        self.file(&format!("{}.{rest}", self.prefix))
    }

    /// The files of the directory, whatever they start with.
    pub(crate) fn files(&self) -> Result<Vec<String>, OsError> {
        list(&self.directory)
    }

    /// The name of a file of the directory, whatever it starts with.
    pub(crate) fn file(&self, file: &str) -> Name {
        Name::in_directory(&self.directory, file)
    }
}

/// The files of a directory whose names are text: those of all objects are.
pub(crate) fn list(directory: &Path) -> Result<Vec<String>, OsError> {
    let failed = |error| OsError::new("readdir", &directory.to_string_lossy(), 0, error, String::new());
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        files.extend(entry.map_err(failed)?.file_name().into_string().ok());
    }
    Ok(files)
}

/// Not inherited through `exec`, not through a symbolic link, and without waiting for the other end
/// if it turns out to be a pipe.
const SAFE: i32 = libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK;

/// The full path of an object.
#[derive(Clone, Debug)]
pub(crate) struct Name(CString);

impl Name {
    /// A name under /dev/shm. `file` is a plain file name, without a slash or a NUL.
    #[cfg(any(all(test, not(loom)), feature = "zenoh"))]
    pub(crate) fn new(file: &str) -> Self {
        Self::in_directory(Path::new(DIRECTORY), file)
    }

    pub(crate) fn in_directory(directory: &Path, file: &str) -> Self {
        debug_assert!(!file.contains('/') && !file.contains('\0'));
        let path = directory.join(file.replace('\0', "_"));
        Self(CString::new(path.into_os_string().into_vec()).unwrap_or_default())
    }

    /// The full path, as a user sees it.
    pub(crate) fn path(&self) -> String {
        self.0.to_string_lossy().into_owned()
    }

    /// The full path, for the standard library.
    pub(crate) fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.0.as_bytes()))
    }

    /// Is there an object of this name? Also `true` if the system does not say.
    pub(crate) fn exists(&self) -> bool {
        self.as_path().try_exists().unwrap_or(true)
    }

    /// Opens or creates the object. This is what `shm_open` does, which knows /dev/shm only.
    pub(crate) fn open(&self, flags: i32, mode: u32) -> io::Result<File> {
        retry(|| {
            // SAFETY: the path is a NUL-terminated string.
            let fd = unsafe { libc::open(self.0.as_ptr(), flags | SAFE, mode as libc::mode_t) };
            check(fd)?;
            // SAFETY: `open` returned a new descriptor that nobody else owns.
            Ok(unsafe { File::from_raw_fd(fd) })
        })
    }

    /// The directory that it is in.
    pub(crate) fn directory(&self) -> &Path {
        self.as_path().parent().unwrap_or(Path::new(DIRECTORY))
    }

    pub(crate) fn unlink(&self) -> io::Result<()> {
        // SAFETY: the name is a NUL-terminated string.
        check(unsafe { libc::unlink(self.0.as_ptr()) })
    }

    /// An error that says what the error number means here, and what the user can do.
    pub(crate) fn error(&self, call: &'static str, bytes: usize, source: io::Error) -> OsError {
        let advice = match source.raw_os_error() {
            Some(libc::ENOMEM | libc::EPERM | libc::EAGAIN) if call == LOCK_MEMORY => format!(
                "; this process may lock {} bytes in all (ulimit -l), and has locked some already; unlock memory, or raise \
                 the limit",
                lock_limit()
            ),
            Some(libc::ENOSPC) => format!(
                "; {} has {}; make room or enlarge it (in a container: docker run --shm-size, or a sized emptyDir \
                 with medium Memory), or lower max_bytes",
                self.directory().display(),
                free_space(self.directory())
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
    /// The file, if its name stays as long as any process has a shared `flock` on it.
    counted: Option<Inode>,
}

impl Link {
    /// For a name that this process has just created.
    pub(crate) fn new(name: Name) -> Self {
        Self { name, fork_epoch: fork::epoch(), is_ours: true, counted: None }
    }

    /// From now on the name stays as long as any process has a shared `flock` on `file`, which it
    /// was created for. The process that gives back the last one unlinks it, as zenoh does.
    #[cfg(feature = "zenoh")]
    pub(crate) fn count_by_flock(&mut self, file: Inode) {
        self.counted = Some(file);
    }

    /// Gives up the right to unlink the name.
    pub(crate) fn disown(mut self) {
        self.is_ours = false;
    }

    /// The file, if the name is still its own and nobody else has a lock on it. It is locked
    /// exclusively as long as the result lives.
    fn last(&self, counted: Inode) -> io::Result<Option<File>> {
        let file = self.name.open(libc::O_RDWR, 0)?;
        flock(&file, libc::LOCK_EX)?;
        Ok((inode(&file)? == counted).then_some(file))
    }

    pub(crate) fn name(&self) -> &Name {
        &self.name
    }
}

impl Link {
    /// Unlinks the name, if it is still ours.
    pub(crate) fn remove(&mut self) {
        if !std::mem::take(&mut self.is_ours) || self.fork_epoch != fork::epoch() {
            return;
        }
        // Held until the name is gone: a process that opens the file meanwhile finds it locked.
        let lock = self.counted.map(|counted| self.last(counted));
        if lock.as_ref().map_or(true, |last| matches!(last, Ok(Some(_)))) {
            // It fails only if somebody else has removed the name already.
            let _ = self.name.unlink();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Device and inode number: which file it is, whatever its name.
pub(crate) type Inode = (u64, u64);

pub(crate) fn inode(file: &File) -> io::Result<Inode> {
    file.metadata().map(|data| (data.dev(), data.ino()))
}
