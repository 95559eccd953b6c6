//! Object names: which are valid, which process unlinks them, and errors with advice.

use crate::error::{BuildError, OsError, MAX_PREFIX};
use crate::os::advice::advice;
use crate::os::fork::ForkGuard;
use crate::os::posix::{check, effective_uid, retry};
use crate::sync::before_system_call;
use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::FromRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// The directory that `shm_open` uses in every libc.
pub(crate) const DIRECTORY: &str = "/dev/shm";

pub(crate) const DEFAULT_PREFIX: &str = "shm_pool";

/// Returns `true` if users may choose this as a prefix: parts of `A-Z a-z 0-9 _ -`, with a dot
/// between each two.
pub(crate) fn is_prefix(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    let is_part = |part: &str| !part.is_empty() && part.bytes().all(is_allowed);
    text.len() <= MAX_PREFIX && text.split('.').all(is_part)
}

/// Where objects are and whose they are: a directory, a prefix of file names, and a user.
///
/// A provider creates its objects and channels in its namespace, and clients, receivers and
/// subscribers find those of theirs. The default is /dev/shm, `shm_pool` and the effective user of
/// this process. Programs that use different prefixes or directories do not see each other.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shm_pool::channel::{Receiver, Sender};
/// use shm_pool::{Namespace, Provider};
///
/// # let prefix = format!("doc-namespace-{}", std::process::id());
/// # let robot7 = Namespace::new(&prefix)?;
/// # /*
/// let robot7 = Namespace::new("robot7")?;
/// # */
/// let provider = Provider::builder().namespace(&robot7).build()?;
/// let _sender = Sender::create(&provider, "camera")?;
///
/// let receiver = Receiver::builder().namespace(&robot7).open("camera")?; // in another process
/// assert_eq!(robot7.channels()?.len(), 1);
/// # drop(receiver);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Namespace {
    directory: Arc<Path>,
    prefix: Arc<str>,
    uid: u32,
}

impl Default for Namespace {
    fn default() -> Self {
        Self::in_shm(DEFAULT_PREFIX)
    }
}

impl Namespace {
    /// Returns the namespace with this prefix of names in /dev/shm, of the effective user of this
    /// process: 1 to 60 of `A-Z a-z 0-9 _ -` and, between others, single dots.
    ///
    /// A confined snap may only use prefixes that begin with `snap.` and its name:
    /// `snap.robot.topics`.
    ///
    /// # Errors
    ///
    /// [`BuildError::Prefix`].
    pub fn new(prefix: &str) -> Result<Self, BuildError> {
        if !is_prefix(prefix) {
            return Err(BuildError::Prefix(prefix.to_owned()));
        }
        Ok(Self::in_shm(prefix))
    }

    /// Returns this namespace in another directory, an absolute path. Does not access the file
    /// system.
    ///
    /// Choose a tmpfs. Another local file system writes messages to the disk now and then. A
    /// network file system does not work, because locks show which processes are alive. hugetlbfs
    /// is refused when a provider is built.
    ///
    /// # Errors
    ///
    /// [`BuildError::Directory`] if the path is not absolute, or contains a NUL byte.
    pub fn in_directory(self, directory: impl AsRef<Path>) -> Result<Self, BuildError> {
        let directory = directory.as_ref();
        let unfit = |reason| {
            Err(BuildError::Directory {
                directory: directory.to_owned(),
                reason,
            })
        };
        if !directory.is_absolute() {
            return unfit("is not an absolute path");
        }
        if directory.as_os_str().as_bytes().contains(&0) {
            return unfit("contains a NUL byte");
        }
        Ok(Self {
            directory: directory.into(),
            ..self
        })
    }

    /// Returns this namespace with the objects of another user, who is trusted. That user's
    /// provider must admit this one ([`ProviderBuilder::mode`](crate::ProviderBuilder::mode)).
    pub fn of_user(self, uid: u32) -> Self {
        Self { uid, ..self }
    }

    pub(crate) fn in_shm(prefix: &str) -> Self {
        debug_assert!(is_prefix(prefix));
        Self {
            directory: Path::new(DIRECTORY).into(),
            prefix: prefix.into(),
            uid: effective_uid(),
        }
    }

    /// Returns the directory of the objects.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the prefix of the objects' names.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the id of the user who owns the objects.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    pub(crate) fn files(&self) -> Result<Vec<String>, OsError> {
        list(&self.directory)
    }

    pub(crate) fn file(&self, file: &str) -> Name {
        Name::in_directory(&self.directory, file)
    }
}

/// Returns the names of the files in a directory. Skips those that are not valid UTF-8, as no name
/// of an object is.
pub(crate) fn list(directory: &Path) -> Result<Vec<String>, OsError> {
    let failed = |error| OsError::new("readdir", directory, error);
    let mut files = Vec::new();
    before_system_call();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let file = entry.map_err(failed)?.file_name();
        if let Ok(file) = file.into_string() {
            files.push(file);
        }
    }
    Ok(files)
}

/// Open flags: closed on `exec`, no symbolic links, and no blocking if the file is a pipe.
const SAFE: i32 = libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK;

/// The path of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name(CString);

impl Name {
    #[cfg(all(test, not(loom)))]
    pub(crate) fn new(file: &str) -> Self {
        Self::in_directory(Path::new(DIRECTORY), file)
    }

    pub(crate) fn in_directory(directory: &Path, file: &str) -> Self {
        debug_assert!(!file.contains('/') && !file.contains('\0'));
        let path = directory.join(file.replace('\0', "_"));
        Self(CString::new(path.into_os_string().into_vec()).unwrap_or_default())
    }

    /// Makes a name of the path of an object that another part of the program has created.
    pub(crate) fn of_path(path: &Path) -> Self {
        Self(CString::new(path.as_os_str().as_bytes()).unwrap_or_default())
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.as_path().to_owned()
    }

    pub(crate) fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.0.as_bytes()))
    }

    /// Returns `true` if the object exists, or if the system cannot tell.
    pub(crate) fn exists(&self) -> bool {
        self.as_path().try_exists().unwrap_or(true)
    }

    pub(crate) fn open(&self, flags: i32, mode: u32) -> io::Result<File> {
        before_system_call();
        retry(|| {
            // SAFETY: the path is a NUL-terminated string.
            let fd = unsafe { libc::open(self.0.as_ptr(), flags | SAFE, mode as libc::mode_t) };
            check(fd)?;
            // SAFETY: `open` returned a new descriptor, which has no other owner.
            Ok(unsafe { File::from_raw_fd(fd) })
        })
    }

    pub(crate) fn directory(&self) -> &Path {
        self.as_path().parent().unwrap_or(Path::new(DIRECTORY))
    }

    /// Returns `true` if the name refers to this file.
    pub(crate) fn is_of(&self, inode: Inode) -> bool {
        match self.inode() {
            Ok(found) => found == inode,
            Err(_) => false,
        }
    }

    /// Needs no heap.
    fn inode(&self) -> io::Result<Inode> {
        let mut found = MaybeUninit::<libc::stat>::uninit();
        before_system_call();
        // SAFETY: the name is a NUL-terminated string, and the buffer has the size of a `stat`.
        check(unsafe { libc::lstat(self.0.as_ptr(), found.as_mut_ptr()) })?;
        // SAFETY: `lstat` succeeded, so it filled the buffer.
        let found = unsafe { found.assume_init() };
        Ok((found.st_dev, found.st_ino))
    }

    pub(crate) fn rename(&self, to: &Self) -> io::Result<()> {
        before_system_call();
        // SAFETY: both names are NUL-terminated strings.
        check(unsafe { libc::rename(self.0.as_ptr(), to.0.as_ptr()) })
    }

    pub(crate) fn unlink(&self) -> io::Result<()> {
        before_system_call();
        // SAFETY: the name is a NUL-terminated string.
        check(unsafe { libc::unlink(self.0.as_ptr()) })
    }

    /// Makes an error of a failed call, with advice for this object.
    pub(crate) fn error(&self, call: &'static str, bytes: usize, source: io::Error) -> OsError {
        let advice = advice(self, call, &source);
        let error = OsError::new(call, self.path(), source).with_advice(advice);
        match bytes {
            0 => error,
            bytes => error.with_bytes(bytes),
        }
    }
}

/// A name that this process created, unlinked on drop.
///
/// The name may have been removed meanwhile, by a cleaner or at a logout, and another process may
/// have created an object of that name. So the name is unlinked or renamed only while it still
/// refers to the file that this process created. The check and the call are two system calls:
/// an object that takes the name in between is lost.
pub(crate) struct Link {
    name: Name,
    /// `None` if the system could not tell.
    inode: Option<Inode>,
    fork: ForkGuard,
    is_ours: AtomicBool,
}

impl Link {
    /// `file` is the one that this process has just created under this name.
    pub(crate) fn new(name: Name, file: &File) -> Self {
        Self {
            name,
            inode: inode(file).ok(),
            fork: ForkGuard::new(),
            is_ours: AtomicBool::new(true),
        }
    }

    /// Makes a link to an object that this process does not unlink.
    pub(crate) fn of_others(name: Name) -> Self {
        Self {
            name,
            inode: None,
            fork: ForkGuard::new(),
            is_ours: AtomicBool::new(false),
        }
    }

    /// Leaves the name to the process that removes the object.
    pub(crate) fn keep(&self) {
        // Relaxed: its user excludes a concurrent drop.
        self.is_ours.store(false, Ordering::Relaxed);
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.is_ours.load(Ordering::Relaxed)
    }

    pub(crate) fn name(&self) -> &Name {
        &self.name
    }

    pub(crate) fn remove(&mut self) {
        if !self.may_change() {
            return;
        }
        self.keep();
        // It fails only if another process has removed the name already.
        let _ = self.name.unlink();
    }

    /// Gives the object another name. Does nothing if the name is no longer this process's.
    pub(crate) fn rename(&mut self, to: Name) -> io::Result<()> {
        if self.may_change() {
            self.name.rename(&to)?;
            self.name = to;
        }
        Ok(())
    }

    /// Returns `true` if the name still refers to the file that this process created.
    fn may_change(&self) -> bool {
        if !self.is_ours() || !self.fork.is_ours() {
            return false;
        }
        match (self.inode, self.name.inode()) {
            (Some(created), Ok(found)) => created == found,
            // If the system cannot tell, it most likely is: names are rarely removed by others.
            _ => true,
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Device and inode number.
pub(crate) type Inode = (u64, u64);

pub(crate) fn inode(file: &File) -> io::Result<Inode> {
    let metadata = file.metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}
