//! Errors that all modules share: a failed system call, and a provider that cannot be built.
//!
//! There is one type per operation that a user calls. Each names the object, the sizes and what to
//! do about it. The other errors are next to what they are about: `owner/error`, `peer/error`,
//! `channel/error`, `protocol/descriptor`.

#![forbid(unsafe_code)]

use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// A system call that failed. Whatever the operation had done before is undone.
#[derive(Debug, Error)]
#[error("{call} on {object} ({bytes} bytes) failed: {source}{advice}")]
pub struct OsError {
    call: &'static str,
    object: String,
    bytes: usize,
    advice: String,
    source: io::Error,
}

impl OsError {
    pub(crate) fn new(call: &'static str, object: &str, bytes: usize, source: io::Error, advice: String) -> Self {
        Self { call, object: object.to_owned(), bytes, advice, source }
    }

    /// The system call or library function that failed.
    pub fn call(&self) -> &'static str {
        self.call
    }

    /// The object of the call, such as `/dev/shm/shm_pool.0123456789abcdef.2`.
    pub fn object(&self) -> &str {
        &self.object
    }

    /// The requested size in bytes; 0 if the call has none.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The error number, such as `libc::ENOSPC`.
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }
}

/// Why [`ProviderBuilder::build`](crate::ProviderBuilder::build) failed.
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
    #[error("name_prefix {prefix:?} must be 1 to {max} of the characters A-Z a-z 0-9 _ -")]
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
    /// The file mode locks out the owner, or has bits that mean nothing for shared memory.
    #[error("mode {mode:#o} must grant the owner read and write (0o600), and nothing but read and write to anyone")]
    Mode {
        /// The mode given.
        mode: u32,
    },
    /// The operating system provided no random numbers for the provider's id.
    #[error("no random bits for the provider's id: {0}")]
    Random(io::Error),
    /// Other processes swept the control object away while it was being made, time after time.
    #[error("{object} was removed {tries} times while it was made; do not sweep in a loop")]
    Swept {
        /// The path of the last one.
        object: String,
        /// How many times.
        tries: usize,
    },
    /// The process may not lock as much memory as the provider may hold; see
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
    /// Memory cannot be had from this NUMA node.
    #[error(
        "numa_node {node} cannot be preferred: {source}; it may not exist, have no memory, or not be among this process's nodes (see \
         Mems_allowed_list in /proc/self/status)"
    )]
    NumaNode {
        /// The node given.
        node: u32,
        /// What the kernel says.
        source: io::Error,
    },
    /// zenoh's receivers cannot lock the pool's segments into memory, and would silently lose
    /// messages; see `zenoh::PoolBackendBuilder::check_lock_limit`.
    #[error(
        "zenoh's receivers lock all segments into memory, for this pool up to {needed} bytes, and a process like this one may lock \
         {limit}: raise the limit (ulimit -l) for publisher and receivers, or lower max_bytes; if only the receivers may lock more, \
         see PoolBackendBuilder::check_lock_limit"
    )]
    LockLimit {
        /// The pool's cap in bytes.
        needed: usize,
        /// How many bytes this process may lock in all.
        limit: u64,
    },
    /// The control object could not be created.
    #[error(transparent)]
    Os(#[from] OsError),
}
