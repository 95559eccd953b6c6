//! Whose memory messages are in. To zenoh, and to whoever receives them, both kinds are the same.

use crate::options::{Options, Whose};
use shm_pool::zenoh::PoolBackend;
use shm_pool_support::units::Bytes;
use shm_pool_support::Fallible;
use std::sync::Arc;
use zenoh::shm::{BlockOn, GarbageCollect, ShmProvider, ShmProviderBackend, ShmProviderBuilder, ZShmMut};
use zenoh::Wait;

/// A provider on one or the other backend.
pub(crate) struct Memory {
    provider: Arc<dyn Provide>,
    /// Bytes that it has when nothing is in use.
    all: usize,
    /// Tells about itself. zenoh's backend does not.
    pub(crate) pool: Option<PoolBackend>,
}

/// What both can do.
trait Provide {
    /// Memory for a message. When there is none, what all subscribers have dropped is collected;
    /// until that is enough, zenoh tries again each millisecond.
    fn alloc(&self, len: usize) -> Fallible<ZShmMut>;

    /// Bytes that are not in use, after collecting.
    fn available(&self) -> usize;
}

impl<B: ShmProviderBackend> Provide for ShmProvider<B> {
    fn alloc(&self, len: usize) -> Fallible<ZShmMut> {
        Ok(self.alloc(len).with_policy::<BlockOn<GarbageCollect>>().wait()?)
    }

    fn available(&self) -> usize {
        self.garbage_collect();
        self.available()
    }
}

impl Memory {
    /// At most so many bytes. The pool takes here what the options reserve, and more when it needs
    /// it; zenoh's backend takes all of it here.
    pub(crate) fn new(whose: Whose, options: &Options) -> Fallible<Self> {
        let pool = match whose {
            Whose::Pool => Some(PoolBackend::builder().max_bytes(options.max_bytes).build()?),
            Whose::Zenoh => None,
        };
        if let Some(pool) = &pool {
            options.reserved().try_for_each(|(len, count)| pool.reserve(len, count).map(|reserved| reserved.keep()))?;
        }
        let provider: Arc<dyn Provide> = match &pool {
            Some(backend) => backend.provider(),
            None => Arc::new(ShmProviderBuilder::default_backend(options.max_bytes).wait()?),
        };
        Ok(Self { all: provider.available(), provider, pool })
    }

    /// Memory for a message. Waits for it if there is none.
    pub(crate) fn alloc(&self, len: usize) -> Fallible<ZShmMut> {
        self.provider.alloc(len)
    }

    /// Now that nobody has a message any more, all memory must come back.
    pub(crate) fn check_for_leaks(&self) -> Fallible {
        match self.all - self.provider.available() {
            0 => Ok(()),
            in_use => {
                let bytes = Bytes(in_use as u64);
                Err(format!("leak: {bytes} are in use when every subscriber has left, or lost its connection").into())
            }
        }
    }
}
