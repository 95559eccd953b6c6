//! The sources of messages: the pool, with a client that reads them, and talc behind a mutex.

use parking_lot::Mutex;
use shm_pool::{AllocError, Client, Provider, ShmBytesMut, ShmView};
use shm_pool_support::payload;
use shm_pool_support::Fallible;
use std::alloc::Layout;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::time::Duration;
use talc::base::Talc as Carver;
use talc::source::Manual;
use talc::DefaultBinning;

/// A source of messages.
pub(crate) trait Store: Sync + Sized {
    /// Memory for a message, released on drop.
    type Memory<'a>: DerefMut<Target = [u8]>
    where
        Self: 'a;
    /// A message that a reader holds, released on drop.
    type Held<'a>: Deref<Target = [u8]>
    where
        Self: 'a;

    fn new(cap: usize) -> Fallible<Self>;

    /// Returns `None` if the cap refuses it now; an error has another reason.
    fn alloc(&self, len: usize) -> Fallible<Option<Self::Memory<'_>>>;

    /// Gives the message to a reader.
    fn share<'a>(&'a self, memory: Self::Memory<'a>) -> Fallible<Self::Held<'a>>;

    /// Segments created so far.
    fn segments(&self) -> u64 {
        0
    }
}

/// Writes the first and the last byte.
pub(crate) fn mark_ends(bytes: &mut [u8], mark: u8) {
    if let Some(first) = bytes.first_mut() {
        *first = mark;
    }
    if let Some(last) = bytes.last_mut() {
        *last = mark;
    }
}

/// Checks that both ends of a message are `mark`.
pub(crate) fn check_ends(bytes: &[u8], mark: u8) -> Fallible {
    if !payload::has_ends(bytes, mark) {
        return Err("a message was overwritten".into());
    }
    Ok(())
}

/// The provider, and a client in the same process, whose leases end in any order.
pub(crate) struct Pool {
    provider: Provider,
    client: Client,
}

impl Pool {
    /// Waits for memory until the timeout elapses.
    pub(crate) fn alloc_timeout(
        &self,
        len: usize,
        timeout: Duration,
    ) -> Fallible<Option<ShmBytesMut>> {
        found(self.provider.alloc_timeout(len, timeout))
    }
}

impl Store for Pool {
    type Memory<'a> = ShmBytesMut;
    type Held<'a> = ShmView;

    fn new(cap: usize) -> Fallible<Self> {
        Ok(Self {
            provider: Provider::builder().max_bytes(cap).build()?,
            client: Client::new(),
        })
    }

    fn alloc(&self, len: usize) -> Fallible<Option<ShmBytesMut>> {
        found(self.provider.alloc(len))
    }

    fn share(&self, memory: ShmBytesMut) -> Fallible<ShmView> {
        let message = memory.freeze();
        Ok(self.client.attach(&message.descriptor()?)?)
    }

    fn segments(&self) -> u64 {
        self.provider.stats().segments_created
    }
}

/// A shortage in /dev/shm is an error here, or it would count as the cap's.
fn found(result: Result<ShmBytesMut, AllocError>) -> Fallible<Option<ShmBytesMut>> {
    match result {
        Ok(memory) => Ok(Some(memory)),
        Err(AllocError::Exhausted { .. } | AllocError::TimedOut { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// talc on private memory, which is faulted in as segments are.
pub(crate) struct Talc {
    carver: Mutex<Carver<Manual, DefaultBinning>>,
    _memory: Vec<u8>,
}

/// Memory of a [`Talc`].
pub(crate) struct Block<'a> {
    talc: &'a Talc,
    start: NonNull<u8>,
    len: usize,
}

impl Store for Talc {
    type Memory<'a> = Block<'a>;
    type Held<'a> = Block<'a>;

    fn new(cap: usize) -> Fallible<Self> {
        let mut memory = vec![1; cap];
        let mut carver = Carver::new(Manual);
        // SAFETY: the memory is talc's for as long as this lives, and does not move with the
        // vector.
        unsafe { carver.claim(memory.as_mut_ptr(), cap) };
        Ok(Self {
            carver: Mutex::new(carver),
            _memory: memory,
        })
    }

    fn alloc(&self, len: usize) -> Fallible<Option<Block<'_>>> {
        // SAFETY: the length is not 0.
        let start = unsafe { self.carver.lock().try_allocate(layout(len)) };
        let Some(start) = start else {
            return Ok(None);
        };
        Ok(Some(Block {
            talc: self,
            start,
            len,
        }))
    }

    fn share<'a>(&'a self, memory: Block<'a>) -> Fallible<Block<'a>> {
        Ok(memory)
    }
}

impl Deref for Block<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: allocated with this length from initialised memory, and owned by this block alone
        // until it is dropped.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Block<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Block<'_> {
    fn drop(&mut self) {
        // SAFETY: allocated by this talc with this layout, and released here.
        unsafe {
            self.talc
                .carver
                .lock()
                .deallocate(self.start.as_ptr(), layout(self.len))
        };
    }
}

fn layout(len: usize) -> Layout {
    Layout::from_size_align(len, 1).expect("a length that fits")
}
