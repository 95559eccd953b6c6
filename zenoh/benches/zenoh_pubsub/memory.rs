//! Whose memory messages are in. To zenoh, and to whoever receives them, all kinds are the same.

use crate::options::{Options, Whose};
use shm_pool::AllocError;
use shm_pool_support::units::Bytes;
use shm_pool_support::Fallible;
use shm_pool_zenoh::{Buffer, BufferPool, PoolBackend, PoolProvider};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use zenoh::bytes::ZBytes;
use zenoh::shm::{
    GarbageCollect, ShmProvider, ShmProviderBackend, ShmProviderBuilder, ZAllocError,
    ZLayoutAllocError, ZShmMut,
};
use zenoh::Wait;

/// How long zenoh may take to notice that no process confirms a message any more. It takes a tenth of a
/// second, and a little more where a processor is hard to get.
const NOTICED: Duration = Duration::from_secs(20);

/// How long to wait before checking again whether it has, or whether a subscriber has exited.
const PAUSE: Duration = Duration::from_millis(10);

/// How long zenoh's `BlockOn` sleeps between two attempts.
const BLOCK_ON: Duration = Duration::from_millis(1);

/// What messages are allocated from.
pub(crate) struct Memory {
    provider: Arc<dyn Provide>,
    /// Tells about itself. zenoh's backend does not.
    pub(crate) pool: Option<PoolBackend>,
}

/// A message that is being written.
pub(crate) enum Message {
    OfProvider(ZShmMut),
    OfPool(Buffer),
}

/// What all can do.
trait Provide {
    /// Memory for a message. Waits a while if there is none; `None` if there is none even then.
    fn alloc(&self, len: usize) -> Fallible<Option<Message>>;

    /// Collects all messages that have no reader any more.
    fn collect(&self);

    /// Collects, and also what no living process has confirmed for a tenth of a second.
    ///
    /// # Safety
    ///
    /// Whatever a living process has of these messages, it has confirmed.
    unsafe fn collect_of_the_dead(&self);
}

impl<B: ShmProviderBackend> Provide for ShmProvider<B> {
    /// Waits as zenoh's `BlockOn` does, which cannot be notified that a subscriber has exited.
    fn alloc(&self, len: usize) -> Fallible<Option<Message>> {
        match self.alloc(len).with_policy::<GarbageCollect>().wait() {
            Ok(message) => Ok(Some(Message::OfProvider(message))),
            Err(ZLayoutAllocError::Alloc(
                ZAllocError::OutOfMemory | ZAllocError::NeedDefragment,
            )) => {
                thread::sleep(BLOCK_ON);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn collect(&self) {
        self.garbage_collect();
    }

    unsafe fn collect_of_the_dead(&self) {
        // SAFETY: the caller's promise is what zenoh asks for.
        unsafe { self.garbage_collect_unsafe() };
    }
}

impl Provide for PoolProvider {
    fn alloc(&self, len: usize) -> Fallible<Option<Message>> {
        Provide::alloc(&**self, len)
    }

    fn collect(&self) {
        (**self).collect();
    }

    unsafe fn collect_of_the_dead(&self) {
        // SAFETY: the caller makes the same promise.
        unsafe { (**self).collect_of_the_dead() };
    }
}

impl Provide for BufferPool {
    fn alloc(&self, len: usize) -> Fallible<Option<Message>> {
        match self.alloc_timeout(len, PAUSE) {
            Ok(message) => Ok(Some(Message::OfPool(message))),
            Err(AllocError::TimedOut { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn collect(&self) {
        self.trim();
    }

    unsafe fn collect_of_the_dead(&self) {
        self.release_in_use();
        self.trim();
        // SAFETY: the caller's promise is what zenoh asks for.
        unsafe { self.provider().garbage_collect_unsafe() };
    }
}

impl Memory {
    /// At most so many bytes. The pools take here what the options reserve, and more when they need
    /// it; zenoh's backend takes all of it here.
    pub(crate) fn new(whose: Whose, options: &Options) -> Fallible<Self> {
        let backend = || PoolBackend::builder().max_bytes(options.max_bytes).build();
        let (provider, pool): (Arc<dyn Provide>, _) = match whose {
            Whose::Pool => {
                let backend = backend()?;
                for (len, count) in options.reserved() {
                    backend.reserve(len, count)?.keep();
                }
                (Arc::new(backend.provider()), Some(backend))
            }
            Whose::Buffers => {
                let backend = backend()?;
                let buffers = BufferPool::new(&backend);
                for (len, count) in options.reserved() {
                    buffers.reserve(len, count)?.keep();
                }
                (Arc::new(buffers), Some(backend))
            }
            Whose::Zenoh => (
                Arc::new(ShmProviderBuilder::default_backend(options.max_bytes).wait()?),
                None,
            ),
        };
        Ok(Self { provider, pool })
    }

    /// Memory for a message. Waits a while if there is none; `None` if there is none even then.
    pub(crate) fn alloc(&self, len: usize) -> Fallible<Option<Message>> {
        self.provider.alloc(len)
    }

    /// Takes back what subscribers held that were killed. Fails if more than `kept` bytes stay in use,
    /// those that the living keep. Returns how many stay.
    ///
    /// All that was sent must have arrived with the living.
    pub(crate) fn take_back(&self, kept: usize) -> Fallible<usize> {
        let deadline = Instant::now() + NOTICED;
        loop {
            // SAFETY: a living process confirms its messages twice in a tenth of a second. If one cannot,
            // it reads a byte that differs, and the run fails.
            unsafe { self.provider.collect_of_the_dead() };
            let Some(in_use) = self.in_use() else {
                return Err("zenoh's backend does not tell what is in use".into());
            };
            if in_use <= kept {
                return Ok(in_use);
            }
            if Instant::now() > deadline {
                let (in_use, kept) = (Bytes(in_use as u64), Bytes(kept as u64));
                return Err(format!(
                    "what killed subscribers held stays: {in_use} in use, {kept} in flight"
                )
                .into());
            }
            // zenoh does not report when it has noticed.
            thread::sleep(PAUSE);
        }
    }

    /// Checks that all memory returns, now that no process holds a message.
    pub(crate) fn check_for_leaks(&self) -> Fallible {
        match self.in_use() {
            None | Some(0) => Ok(()),
            Some(in_use) => {
                let bytes = Bytes(in_use as u64);
                Err(format!("leak: {bytes} are in use when every subscriber has left, or lost its connection").into())
            }
        }
    }

    /// Bytes in use, after collecting. zenoh's backend says 0 whenever it is asked what is available.
    fn in_use(&self) -> Option<usize> {
        self.provider.collect();
        self.pool.as_ref().map(|pool| pool.stats().bytes_in_use)
    }
}

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::OfProvider(message) => message,
            Self::OfPool(message) => message,
        }
    }
}

impl DerefMut for Message {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::OfProvider(message) => message,
            Self::OfPool(message) => message,
        }
    }
}

impl From<Message> for ZBytes {
    fn from(message: Message) -> Self {
        match message {
            Message::OfProvider(message) => message.into(),
            Message::OfPool(message) => message.into(),
        }
    }
}
