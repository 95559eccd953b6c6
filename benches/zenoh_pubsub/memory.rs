//! Whose memory messages are in. To zenoh, and to whoever receives them, both kinds are the same.

use crate::options::{Options, Whose};
use shm_pool::zenoh::PoolBackend;
use shm_pool::Stats;
use shm_pool_support::units::Bytes;
use shm_pool_support::Fallible;
use std::sync::Arc;
use zenoh::shm::{
    BlockOn, GarbageCollect, PosixShmProviderBackend, ShmProvider, ShmProviderBackend, ShmProviderBuilder, ZShmMut,
};
use zenoh::Wait;

/// A provider on one or the other backend.
pub(crate) enum Memory {
    Pool { backend: PoolBackend, provider: Arc<ShmProvider<PoolBackend>> },
    Zenoh { provider: ShmProvider<PosixShmProviderBackend>, all: usize },
}

impl Memory {
    /// At most so many bytes. The pool takes here what the options reserve, and more when it needs
    /// it; zenoh's backend takes all of it here.
    pub(crate) fn new(whose: Whose, options: &Options) -> Fallible<Self> {
        let max_bytes = options.max_bytes;
        match whose {
            Whose::Pool => {
                let backend = PoolBackend::builder().max_bytes(max_bytes).build()?;
                for (len, count) in options.reserved() {
                    backend.reserve(len, count)?.keep();
                }
                let provider = backend.provider();
                Ok(Self::Pool { backend, provider })
            }
            Whose::Zenoh => {
                let provider = ShmProviderBuilder::default_backend(max_bytes).wait()?;
                let all = provider.available();
                Ok(Self::Zenoh { provider, all })
            }
        }
    }

    /// Memory for a message. Waits for it if there is none.
    pub(crate) fn alloc(&self, len: usize) -> Fallible<ZShmMut> {
        match self {
            Self::Pool { provider, .. } => alloc(provider, len),
            Self::Zenoh { provider, .. } => alloc(provider, len),
        }
    }

    /// What the pool says about itself. zenoh's backend does not say.
    pub(crate) fn stats(&self) -> Option<Stats> {
        match self {
            Self::Pool { backend, .. } => Some(backend.stats()),
            Self::Zenoh { .. } => None,
        }
    }

    /// Now that nobody has a message any more, all memory must come back.
    pub(crate) fn check_for_leaks(&self) -> Fallible {
        let in_use = match self {
            Self::Pool { backend, provider } => {
                provider.garbage_collect();
                backend.stats().bytes_in_use
            }
            Self::Zenoh { provider, all } => {
                provider.garbage_collect();
                all - provider.available()
            }
        };
        if in_use > 0 {
            return Err(format!(
                "leak: {} are in use when every subscriber has left, or lost its connection",
                Bytes(in_use as u64)
            )
            .into());
        }
        Ok(())
    }
}

/// The same for every backend. When there is no memory, what all subscribers have dropped is
/// collected; until that is enough, zenoh tries again each millisecond.
fn alloc<B: ShmProviderBackend>(provider: &ShmProvider<B>, len: usize) -> Fallible<ZShmMut> {
    Ok(provider.alloc(len).with_policy::<BlockOn<GarbageCollect>>().wait()?)
}
