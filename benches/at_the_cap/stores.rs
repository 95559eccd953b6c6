//! Where the messages come from: the pool, with a client that reads them, and talc behind a mutex.

use parking_lot::Mutex;
use shm_pool::{Client, Provider, ShmBufMut, ShmView};
use shm_pool_support::payload;
use shm_pool_support::Fallible;
use std::alloc::Layout;
use std::ptr::NonNull;
use talc::base::Talc as Carver;
use talc::source::Manual;
use talc::DefaultBinning;

/// Where messages come from.
pub(crate) trait Store {
    /// Memory for a message.
    type Memory;
    /// A message that the reader has.
    type Held;

    /// `None`: there is no room now.
    fn alloc(&mut self, len: usize) -> Option<Self::Memory>;

    /// Fills the message with `mark`, and gives it to the reader.
    fn send(&mut self, memory: Self::Memory, mark: u8) -> Fallible<Self::Held>;

    /// The reader sees that both ends of the message are `mark`, and lets go.
    fn let_go(&mut self, held: Self::Held, mark: u8) -> Fallible;

    /// Segments made so far.
    fn segments(&self) -> u64 {
        0
    }
}

fn check(bytes: &[u8], mark: u8) -> Fallible {
    payload::has_ends(bytes, mark).then_some(()).ok_or_else(|| "a message that somebody has overwritten".into())
}

/// The provider, and a client in the same process: what counts here is that its leases end when it
/// pleases.
pub(crate) struct Pool {
    provider: Provider,
    client: Client,
}

impl Pool {
    pub(crate) fn new(cap: usize) -> Fallible<Self> {
        Ok(Self { provider: Provider::builder().max_bytes(cap).build()?, client: Client::new() })
    }
}

impl Store for Pool {
    type Memory = ShmBufMut;
    type Held = ShmView;

    fn alloc(&mut self, len: usize) -> Option<ShmBufMut> {
        self.provider.alloc(len).ok()
    }

    fn send(&mut self, mut memory: ShmBufMut, mark: u8) -> Fallible<ShmView> {
        memory.fill(mark);
        let message = memory.freeze();
        Ok(self.client.attach(&message.descriptor()?)?)
    }

    fn let_go(&mut self, held: ShmView, mark: u8) -> Fallible {
        check(&held, mark)
    }

    fn segments(&self) -> u64 {
        self.provider.stats().segments_created
    }
}

/// talc on private memory, which is faulted in as segments are.
pub(crate) struct Talc {
    carver: Mutex<Carver<Manual, DefaultBinning>>,
    _memory: Vec<u8>,
}

impl Talc {
    pub(crate) fn new(cap: usize) -> Self {
        let mut memory = vec![1; cap];
        let mut carver = Carver::new(Manual);
        // SAFETY: the memory is talc's for as long as this lives, and does not move with the
        // vector.
        unsafe { carver.claim(memory.as_mut_ptr(), cap) };
        Self { carver: Mutex::new(carver), _memory: memory }
    }
}

impl Store for Talc {
    type Memory = NonNull<[u8]>;
    type Held = NonNull<[u8]>;

    fn alloc(&mut self, len: usize) -> Option<NonNull<[u8]>> {
        // SAFETY: the length is not 0.
        let start = unsafe { self.carver.lock().try_allocate(layout(len)) }?;
        Some(NonNull::slice_from_raw_parts(start, len))
    }

    fn send(&mut self, memory: NonNull<[u8]>, mark: u8) -> Fallible<NonNull<[u8]>> {
        // SAFETY: allocated with this length, and nobody else's.
        unsafe { memory.as_ptr().cast::<u8>().write_bytes(mark, memory.len()) };
        Ok(memory)
    }

    fn let_go(&mut self, held: NonNull<[u8]>, mark: u8) -> Fallible {
        // SAFETY: written by `send`.
        let is_good = check(unsafe { held.as_ref() }, mark);
        // SAFETY: allocated by this talc with this layout, and given up here.
        unsafe { self.carver.lock().deallocate(held.as_ptr().cast(), layout(held.len())) };
        is_good
    }
}

fn layout(len: usize) -> Layout {
    Layout::from_size_align(len, 1).expect("a length that fits")
}
