//! zenoh's provider on a pool, kept until its messages have been read: [`PoolProvider`].
//!
//! zenoh invalidates the messages of a provider that is dropped: it reclaims their metadata, whether or
//! not they have been read. A receiver then loses those that it has not received yet, and readers of an
//! old message count down the readers of a new one that got its metadata. So the drop of a provider's
//! last handle does not drop the provider while messages of its backend are in use. The provider
//! *lingers* until
//!
//! * its backend needs a provider again, and continues with this one;
//! * its messages have been read, and the last handle of a provider is dropped or a pool is built;
//! * the process exits. Its messages then stay valid: a receiver that is late still reads them.
//!
//! A provider contains its backend, so the backend lingers too. No more providers of a backend linger
//! than had handles at one time.

#![forbid(unsafe_code)]

use crate::PoolBackend;
use parking_lot::Mutex;
use std::fmt;
use std::mem;
use std::ops::Deref;
use std::sync::Arc;
use zenoh::shm::{ShmProvider, ShmProviderBuilder};
use zenoh::Wait;

/// zenoh's `ShmProvider` on a [`PoolBackend`]. Clones share it.
///
/// Messages remain valid when the last clone is dropped, unlike with zenoh's own provider: a publisher
/// may drop everything and exit while receivers have yet to read its last messages. Their memory
/// returns when they have been read and this process next builds a pool or drops a provider; all other
/// memory of the pool that is idle returns at once.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use shm_pool_zenoh::PoolBackend;
/// use zenoh::shm::ShmBuf;
/// use zenoh::Wait;
///
/// let provider = PoolBackend::builder().max_bytes(1 << 20).build()?.provider();
/// let message = provider.alloc(1000).wait()?;
/// drop(provider);
/// assert!(message.is_valid());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PoolProvider(Arc<Handle>);

/// Dropped with the last clone of a [`PoolProvider`].
struct Handle(Kept);

/// A provider, and its backend: zenoh's provider does not show it.
#[derive(Clone)]
struct Kept {
    provider: Arc<ShmProvider<PoolBackend>>,
    backend: PoolBackend,
}

/// Providers without a handle, as long as messages of their backend are in use.
static LINGERING: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

impl PoolProvider {
    /// Returns a provider on `backend`: one that lingers, or a new one.
    pub(crate) fn new(backend: &PoolBackend) -> Self {
        let kept = Kept::take(backend).unwrap_or_else(|| {
            let provider = Arc::new(ShmProviderBuilder::backend(backend.clone()).wait());
            backend.core.providers.add(Arc::downgrade(&provider));
            Kept { provider, backend: backend.clone() }
        });
        Self(Arc::new(Handle(kept)))
    }
}

impl Kept {
    /// Takes a provider on `backend` out of those that linger.
    fn take(backend: &PoolBackend) -> Option<Self> {
        if backend.chunks.is_inherited() {
            return None; // a thread that does not exist in this process may have the lock
        }
        let mut lingering = LINGERING.lock();
        let at = lingering.iter().position(|kept| Arc::ptr_eq(&kept.backend.core, &backend.core))?;
        Some(lingering.swap_remove(at))
    }

    /// Returns `true` if messages of the backend are in use, after a collection. Another provider's
    /// count, too: zenoh's providers do not tell how many they have.
    fn is_needed(&self) -> bool {
        self.provider.garbage_collect();
        self.backend.stats().bytes_in_use > 0
    }
}

/// Drops the lingering providers whose messages have been read.
pub(crate) fn drop_unneeded() {
    // Collecting and dropping run the user's code, in zenoh's log: not under the lock.
    let lingering = LINGERING.lock().clone();
    for kept in lingering.iter().filter(|kept| !kept.backend.chunks.is_inherited() && !kept.is_needed()) {
        // If its backend continues with it meanwhile, it is not here, and a handle has it.
        LINGERING.lock().retain(|other| !Arc::ptr_eq(&other.provider, &kept.provider));
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let Self(kept) = self;
        if kept.backend.chunks.is_inherited() {
            // The metadata that it would reclaim is the parent's.
            mem::forget(kept.clone());
            return;
        }
        if kept.is_needed() {
            LINGERING.lock().push(kept.clone());
            kept.backend.trim();
        }
        drop_unneeded();
    }
}

impl Deref for PoolProvider {
    type Target = ShmProvider<PoolBackend>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        let Handle(kept) = &*self.0;
        &kept.provider
    }
}

impl fmt::Debug for PoolProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Handle(kept) = &*self.0;
        f.debug_struct("PoolProvider").field("backend", &kept.backend).finish()
    }
}
