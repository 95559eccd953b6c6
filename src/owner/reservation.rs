//! The owner's handle of what it has reserved.

#![forbid(unsafe_code)]

use crate::owner::pool::Pool;
use std::fmt;
use std::sync::{Arc, Weak};

/// Chunks that stay for one size class, as long as this value lives. Made by
/// [`Provider::reserve`](crate::Provider::reserve), and by the `reserve` of zenoh's backend.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let provider = shm_pool::Provider::builder().max_bytes(1 << 20).max_idle_per_class(64).build()?;
/// let telemetry = provider.reserve(48, 64)?;
/// // The camera takes all the rest, and tries to take more.
/// let frames: Vec<_> = std::iter::from_fn(|| provider.alloc(100_000).ok()).collect();
/// assert!(provider.alloc(48).is_ok(), "reserved");
/// drop(telemetry); // from now on its room is anybody's
/// # drop(frames);
/// # Ok(())
/// # }
/// ```
#[must_use = "a reservation ends when it is dropped; `keep` it for the provider's life"]
pub struct Reservation {
    pool: Weak<Pool>,
    class: usize,
    count: usize,
}

impl Reservation {
    pub(crate) fn new(pool: &Arc<Pool>, class: usize, count: usize) -> Self {
        Self { pool: Arc::downgrade(pool), class, count }
    }

    /// How many chunks are reserved by it.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Keeps the reservation for as long as the provider lives.
    pub fn keep(mut self) {
        self.pool = Weak::new();
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // In a forked child the pool is the parent's, and its locks may be held.
        if let Some(pool) = self.pool.upgrade().filter(|pool| pool.is_ours()) {
            pool.end_reservation(self.class, self.count);
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("count", &self.count).finish()
    }
}
