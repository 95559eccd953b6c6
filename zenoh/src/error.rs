//! The error of a builder.

#![forbid(unsafe_code)]

use std::io;
use thiserror::Error;

/// An error from [`PoolBackendBuilder::build`](crate::PoolBackendBuilder::build).
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// An option is out of range, or the process has no heap.
    #[error(transparent)]
    Pool(#[from] shm_pool::BuildError),
    /// Receivers cannot lock the pool's segments into memory, and would silently lose messages; see
    /// [`check_lock_limit`](crate::PoolBackendBuilder::check_lock_limit).
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
    /// zenoh's client cannot read a segment that was written for it: the zenoh version of this program
    /// has another format. Every message would be lost.
    #[error("zenoh's client does not read what shm-pool-zenoh writes: {reason}; use zenoh 1.10 with this version")]
    Format {
        /// The difference.
        reason: String,
    },
    /// The operating system provided no random numbers for the ids of segments.
    #[error("no random bits for the ids of segments")]
    Random(#[source] io::Error),
}
