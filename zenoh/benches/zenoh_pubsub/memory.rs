//! The kinds of memory that messages are allocated from. To zenoh, and to subscribers, all are the
//! same.

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

/// How long zenoh may take to notice that no process confirms a message any more. It takes a tenth
/// of a second, and a little more on a busy machine.
const NOTICED: Duration = Duration::from_secs(20);

/// How long to wait before checking again whether zenoh has noticed that, or whether a subscriber
/// has exited.
const PAUSE: Duration = Duration::from_millis(10);

/// How long zenoh's `BlockOn` sleeps between two attempts.
const BLOCK_ON: Duration = Duration::from_millis(1);

/// What messages are allocated from.
pub(crate) struct Memory {
    provider: Arc<dyn Provide>,
    /// For its statistics. zenoh's backend has none.
    pub(crate) pool: Option<PoolBackend>,
}

/// A message that is being written.
pub(crate) enum Message {
    OfProvider(ZShmMut),
    OfPool(Buffer),
}

/// What all kinds of memory can do.
trait Provide {
    /// Returns memory for a message. Waits a while if there is none, and returns `None` if there is
    /// none even then.
    fn alloc(&self, len: usize) -> Fallible<Option<Message>>;

    /// Frees all messages that have no reader any more.
    fn collect(&self);

    /// Does the same, and also frees messages that no process has confirmed for a tenth of a
    /// second.
    ///
    /// # Safety
    ///
    /// Living processes have confirmed all messages that they hold.
    unsafe fn collect_unconfirmed(&self);
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

    unsafe fn collect_unconfirmed(&self) {
        // SAFETY: the caller's promise is the one that zenoh requires.
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

    unsafe fn collect_unconfirmed(&self) {
        // SAFETY: the caller makes the same promise.
        unsafe { (**self).collect_unconfirmed() };
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

    unsafe fn collect_unconfirmed(&self) {
        self.release_in_use();
        self.trim();
        // SAFETY: the caller's promise is the one that zenoh requires.
        unsafe { self.provider().garbage_collect_unsafe() };
    }
}

impl Memory {
    /// Makes memory of at most `--max-bytes`. The pools allocate here what the options reserve, and
    /// more when they need it; zenoh's backend allocates all of it here.
    pub(crate) fn new(whose: Whose, options: &Options) -> Fallible<Self> {
        let builder = PoolBackend::builder().max_bytes(options.max_bytes);
        match whose {
            Whose::Pool => {
                let pool = builder.build()?;
                for (len, count) in options.reserved() {
                    pool.reserve(len, count)?.keep();
                }
                Ok(Self {
                    provider: Arc::new(pool.provider()),
                    pool: Some(pool),
                })
            }
            Whose::Buffers => {
                let pool = builder.build()?;
                let buffers = BufferPool::new(&pool);
                for (len, count) in options.reserved() {
                    buffers.reserve(len, count)?.keep();
                }
                Ok(Self {
                    provider: Arc::new(buffers),
                    pool: Some(pool),
                })
            }
            Whose::Zenoh => {
                let provider = ShmProviderBuilder::default_backend(options.max_bytes).wait()?;
                Ok(Self {
                    provider: Arc::new(provider),
                    pool: None,
                })
            }
        }
    }

    /// Returns memory for a message. Waits a while if there is none, and returns `None` if there is
    /// none even then.
    pub(crate) fn alloc(&self, len: usize) -> Fallible<Option<Message>> {
        self.provider.alloc(len)
    }

    /// Reclaims what killed subscribers held, and returns how many bytes stay in use. Fails if more
    /// than `kept` stay, the bytes that living subscribers keep.
    ///
    /// The living subscribers must have received all messages that were sent.
    pub(crate) fn reclaim(&self, kept: usize) -> Fallible<usize> {
        let deadline = Instant::now() + NOTICED;
        loop {
            // SAFETY: a living process confirms its messages twice in a tenth of a second. If it
            // cannot, it reads a byte that differs, and the run fails.
            unsafe { self.provider.collect_unconfirmed() };
            let Some(in_use) = self.in_use() else {
                return Err("zenoh's backend does not tell what is in use".into());
            };
            if in_use <= kept {
                return Ok(in_use);
            }
            if Instant::now() > deadline {
                let in_use = Bytes(in_use as u64);
                let kept = Bytes(kept as u64);
                return Err(format!(
                    "what killed subscribers held stays: {in_use} in use, {kept} in flight"
                )
                .into());
            }
            // zenoh does not report when it has noticed.
            thread::sleep(PAUSE);
        }
    }

    /// Checks that no memory is in use, now that no process holds a message.
    pub(crate) fn check_for_leaks(&self) -> Fallible {
        match self.in_use() {
            None | Some(0) => Ok(()),
            Some(in_use) => Err(format!(
                "leak: {} are in use when every subscriber has left, or lost its connection",
                Bytes(in_use as u64)
            )
            .into()),
        }
    }

    /// Returns the bytes in use, after collecting. `None` for zenoh's backend, which reports 0
    /// available bytes at any time.
    fn in_use(&self) -> Option<usize> {
        self.provider.collect();
        let pool = self.pool.as_ref()?;
        Some(pool.stats().bytes_in_use)
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
