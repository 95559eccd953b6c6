//! The owner's handle to a reservation.

#![forbid(unsafe_code)]

use crate::owner::pool::Pool;
use std::sync::{Arc, Weak};

/// Chunks kept for one size class for as long as this value lives. Created by
/// [`Provider::reserve`](crate::Provider::reserve) and
/// [`Backend::reserve`](crate::backend::Backend::reserve).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let provider = shm_pool::Provider::builder().max_bytes(1 << 20).max_idle_per_class(64).build()?;
/// let telemetry = provider.reserve(48, 64)?;
/// // The camera takes all the rest, and tries to take more.
/// let frames: Vec<_> = std::iter::from_fn(|| provider.alloc(100_000).ok()).collect();
/// assert!(provider.alloc(48).is_ok(), "reserved");
/// drop(telemetry); // now other lengths may use the memory
/// # drop(frames);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
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

    /// Returns the number of reserved chunks.
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
