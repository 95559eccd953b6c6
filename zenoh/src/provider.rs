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
//! A provider contains its backend, so the backend lingers too. A backend has at most as many lingering
//! providers as it had providers with a handle at one time.

#![forbid(unsafe_code)]

use crate::collect::{collect_in_order, is_collecting};
use crate::PoolBackend;
use parking_lot::Mutex;
use std::fmt;
use std::mem;
use std::ops::Deref;
use std::panic::{catch_unwind, AssertUnwindSafe};
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

/// A provider with its backend, which zenoh's provider does not return.
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
        let kept = match Kept::take_lingering(backend) {
            Some(kept) => kept,
            None => Kept::create(backend),
        };
        Self(Arc::new(Handle(kept)))
    }
}

impl Kept {
    fn create(backend: &PoolBackend) -> Self {
        let provider = Arc::new(ShmProviderBuilder::backend(backend.clone()).wait());
        if !backend.is_forked() {
            backend.core.providers.add(Arc::downgrade(&provider));
        }
        Self {
            provider,
            backend: backend.clone(),
        }
    }

    /// Takes a provider on `backend` out of those that linger.
    fn take_lingering(backend: &PoolBackend) -> Option<Self> {
        if backend.is_forked() {
            // A thread that does not exist in this process may hold the lock.
            return None;
        }
        let mut lingering = LINGERING.lock();
        let index = lingering
            .iter()
            .position(|kept| Arc::ptr_eq(&kept.backend.core, &backend.core))?;
        Some(lingering.swap_remove(index))
    }

    /// Returns `true` if a message of the backend is in use, or had not been read when its provider
    /// collected last. Another provider's counts, too: zenoh's providers do not report how many they
    /// have.
    ///
    /// If this is `false` for a provider in [`LINGERING`], none of its messages is in use, and none
    /// will be as long as it is there: only a handle allocates.
    fn is_in_use(&self) -> bool {
        !self.backend.core.in_use.is_empty()
    }

    /// Releases what has been read. After a panic of the user's log in an earlier collection, zenoh's
    /// lock is poisoned and this one panics, too: the messages stay in use.
    fn collect(&self) {
        let collect = || collect_in_order(&self.backend.core.in_use, &self.provider);
        let _may_panic = catch_unwind(AssertUnwindSafe(collect));
    }
}

/// Drops the lingering providers whose messages have been read.
pub(crate) fn drop_unused() {
    if is_collecting() {
        return;
    }
    // Collecting and dropping run the user's code, in zenoh's log: not under the lock.
    let lingering = LINGERING.lock().clone();
    for kept in &lingering {
        if !kept.backend.is_forked() {
            kept.collect();
        }
    }
    let mut unused = Vec::new();
    LINGERING.lock().retain(|kept| {
        let stays = kept.backend.is_forked() || kept.is_in_use();
        if !stays {
            unused.push(kept.clone());
        }
        stays
    });
}

impl Drop for Handle {
    fn drop(&mut self) {
        let Self(kept) = self;
        if kept.backend.is_forked() {
            // The metadata that it would reclaim is the parent's.
            mem::forget(kept.clone());
            return;
        }
        if !is_collecting() {
            kept.collect();
        }
        if kept.is_in_use() {
            LINGERING.lock().push(kept.clone());
            // Without another collection.
            kept.backend.core.allocator.trim();
        }
        drop_unused();
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
        f.debug_struct("PoolProvider")
            .field("backend", &kept.backend)
            .finish()
    }
}
