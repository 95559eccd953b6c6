//! Errors that every room knows: of the operating system, and of options that cannot be.
//!
//! One type per operation that a user calls, each naming the object, the sizes and what to do about it. The other errors are
//! beside what they are of: `owner/error`, `peer/error`, `channel/error`, `protocol/descriptor`.

#![forbid(unsafe_code)]

use std::io;
use thiserror::Error;

/// A system call failed. Everything that the operation had done before it was undone.
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

    /// The object that it failed on, such as `/dev/shm/shm_pool.0123456789abcdef.2`.
    pub fn object(&self) -> &str {
        &self.object
    }

    /// The size that was asked for, in bytes; 0 where the call has none.
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
    /// An option is out of its range.
    #[error("option {option} is {value}, but must be from {min} to {max}{unit}")]
    OutOfRange {
        /// The builder's method.
        option: &'static str,
        /// What it was given.
        value: usize,
        /// The least it may be.
        min: usize,
        /// The most it may be, other options being what they are.
        max: usize,
        /// The unit, as text that follows a number.
        unit: &'static str,
    },
    /// The name prefix cannot be part of a file name.
    #[error("name_prefix {prefix:?} must be 1 to {max} of the characters A-Z a-z 0-9 _ -")]
    Prefix {
        /// What was given.
        prefix: String,
        /// Longest prefix in bytes.
        max: usize,
    },
    /// The file mode would lock out the owner, or has bits that mean nothing for shared memory.
    #[error("mode {mode:#o} must grant the owner read and write (0o600), and nothing but read and write to anyone")]
    Mode {
        /// What was given.
        mode: u32,
    },
    /// The operating system gave no random numbers for the provider's id.
    #[error("no random bits for the provider's id: {0}")]
    Random(io::Error),
    /// Other processes swept the control object away while it was made, time after time.
    #[error("{object} was removed {tries} times while it was made; do not sweep in a loop")]
    Swept {
        /// The last one's path.
        object: String,
        /// How often.
        tries: usize,
    },
    /// zenoh's receivers would not be able to lock the pool's segments into memory, and would lose messages in silence; see
    /// `zenoh::PoolBackendBuilder::check_lock_limit`.
    #[error(
        "zenoh's receivers lock all segments into memory, for this pool up to {needed} bytes, and a process like this one may lock \
         {limit}: raise the limit (ulimit -l) for publisher and receivers, or lower max_bytes; if only the receivers may lock more, \
         see PoolBackendBuilder::check_lock_limit"
    )]
    LockLimit {
        /// The cap in bytes.
        needed: usize,
        /// What this process may lock in all, in bytes.
        limit: u64,
    },
    /// The control object could not be created.
    #[error(transparent)]
    Os(#[from] OsError),
}
