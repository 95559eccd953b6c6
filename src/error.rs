//! Errors shared by all modules. Each operation has its own error type, which names the object, the
//! sizes and a remedy. An error that another one caused returns it from
//! [`source`](std::error::Error::source) and does not display it, so that a chain says each thing
//! once.

#![forbid(unsafe_code)]

use std::fmt;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// A system call that failed. Earlier steps of the operation have been undone.
#[derive(Debug, Error)]
#[error("{call} on {object}{} failed{advice}", Size(*.bytes))]
pub struct OsError {
    call: &'static str,
    object: String,
    bytes: usize,
    advice: String,
    source: io::Error,
}

/// A number of bytes in parentheses; nothing for 0.
struct Size(usize);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            bytes => write!(f, " ({bytes} bytes)"),
        }
    }
}

/// An error and its causes in one line, for logs and reports.
pub(crate) struct Chain<'a>(pub(crate) &'a dyn std::error::Error);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut causes = std::iter::successors(self.0.source(), |&cause| cause.source());
        causes.try_for_each(|cause| write!(f, ": {cause}"))
    }
}

impl OsError {
    /// An error of a `call` on an `object`, for `bytes` bytes (0 if the call has no size). `advice` is
    /// empty, or text that follows the system's own: `"; make room in /dev/shm"`.
    pub fn new(
        call: &'static str,
        object: &str,
        bytes: usize,
        source: io::Error,
        advice: String,
    ) -> Self {
        Self {
            call,
            object: object.to_owned(),
            bytes,
            advice,
            source,
        }
    }

    /// Returns the name of the system call or library function that failed.
    pub fn call(&self) -> &'static str {
        self.call
    }

    /// Returns the object of the call, such as `/dev/shm/shm_pool.0123456789abcdef.2`.
    pub fn object(&self) -> &str {
        &self.object
    }

    /// Returns the requested size in bytes; 0 if the call has none.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the error number, such as `libc::ENOSPC`.
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }

    /// Returns `true` if memory was short, in the file system or for this process.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        matches!(self.errno(), Some(libc::ENOSPC | libc::ENOMEM))
    }

    /// Returns `true` if descriptors were short, for this process or the system.
    pub(crate) fn is_out_of_descriptors(&self) -> bool {
        matches!(self.errno(), Some(libc::EMFILE | libc::ENFILE))
    }
}

/// An error from [`ProviderBuilder::build`](crate::ProviderBuilder::build), or a
/// [`Namespace`](crate::Namespace) that no object can have.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// An option is out of range.
    #[error("option {option} is {value}, but must be from {min} to {max}{unit}")]
    OutOfRange {
        /// The builder's method that sets the option.
        option: &'static str,
        /// The value given.
        value: usize,
        /// The smallest value allowed.
        min: usize,
        /// The largest value allowed, given the other options.
        max: usize,
        /// The unit, as text that follows a number.
        unit: &'static str,
    },
    /// The name prefix cannot be part of a file name.
    #[error("prefix {prefix:?} must be 1 to {max} of the characters A-Z a-z 0-9 _ -")]
    Prefix {
        /// The prefix given.
        prefix: String,
        /// The longest prefix allowed, in bytes.
        max: usize,
    },
    /// The directory cannot hold the provider's objects.
    #[error("directory {directory:?} {reason}")]
    Directory {
        /// The directory given.
        directory: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The namespace is another user's: a provider creates the objects of this process's user.
    #[error("the namespace is that of uid {uid}, but this process creates objects of uid {user}")]
    OtherUser {
        /// The namespace's user.
        uid: u32,
        /// The effective user of this process.
        user: u32,
    },
    /// The file mode locks out the owner, or has bits without a meaning for shared memory.
    #[error("mode {mode:#o} must grant the owner read and write (0o600), and nothing but read and write to anyone")]
    Mode {
        /// The mode given.
        mode: u32,
    },
    /// The operating system provided no random numbers for the provider's id.
    #[error("no random bits for the provider's id")]
    Random(#[source] io::Error),
    /// Other processes repeatedly swept the control object while it was being created.
    #[error("{object} was removed {tries} times while it was created; do not sweep in a loop")]
    Swept {
        /// The path of the last one.
        object: String,
        /// The number of attempts.
        tries: usize,
    },
    /// The process may not lock as much memory as the provider may use; see
    /// [`ProviderBuilder::lock_memory`](crate::ProviderBuilder::lock_memory).
    #[error(
        "lock_memory needs {needed} bytes, max_bytes and the control object, and this process may lock {limit} in all, with what it \
         has locked already: raise the limit (ulimit -l; LimitMEMLOCK of systemd; docker run --ulimit memlock), or lower max_bytes"
    )]
    LockMemory {
        /// The pool's cap and the control object together, in bytes.
        needed: usize,
        /// How many bytes this process may lock in all (`RLIMIT_MEMLOCK`).
        limit: u64,
    },
    /// The kernel does not accept this NUMA node.
    #[error(
        "numa_node {node} cannot be preferred; it may not exist, have no memory, or not be among this process's nodes (see \
         Mems_allowed_list in /proc/self/status)"
    )]
    NumaNode {
        /// The node given.
        node: u32,
        /// The kernel's error.
        source: io::Error,
    },
    /// The process has no heap for the provider's lists, which grow with
    /// [`max_alloc`](crate::ProviderBuilder::max_alloc).
    #[error("no private memory for {bytes} bytes; raise the limit (ulimit -v, cgroup memory), or lower max_alloc")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// The control object could not be created.
    #[error(transparent)]
    Os(#[from] OsError),
}
