//! Shared helpers: providers that are cheap to build, patterns to write and check, and queries of
//! the objects that this process and /dev/shm hold.

use shm_pool::{
    AllocError, AllocFuture, ClassStats, Client, Descriptor, Provider, ProviderBuilder, ShmBytes,
    ShmBytesMut, ShmView, Stats,
};
use shm_pool_support::tasks::{block_on, Woken};
use std::fs;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

/// The result of [`files`] when everything is cleaned up.
pub(crate) const NONE: [&str; 0] = [];

pub(crate) const NOW: Duration = Duration::ZERO;

/// Longer than any step may take.
pub(crate) const FOR_EVER: Duration = Duration::from_secs(240);

/// A builder of providers with a small control object.
pub(crate) fn builder() -> ProviderBuilder {
    Provider::builder().max_shared(64)
}

/// A provider with otherwise default options.
pub(crate) fn provider() -> Provider {
    builder().build().unwrap()
}

/// A provider and a client.
pub(crate) fn pair() -> (Provider, Client) {
    (provider(), Client::new())
}

/// A name prefix that no other test and no other run uses.
pub(crate) fn unique_prefix(test: &str) -> String {
    format!("it-{}-{test}", std::process::id())
}

/// A message of `len` bytes, with a pattern derived from `stamp`.
pub(crate) fn message(provider: &Provider, len: usize, stamp: u64) -> ShmBytes {
    let mut buffer = provider.alloc(len).unwrap();
    write(&mut buffer, stamp);
    buffer.freeze()
}

/// Fills `bytes` with repeated copies of `stamp`.
pub(crate) fn write(bytes: &mut [u8], stamp: u64) {
    let head = bytes.len().min(8);
    bytes[..head].copy_from_slice(&stamp.to_le_bytes()[..head]);
    let mut written = head;
    while written < bytes.len() {
        let step = written.min(bytes.len() - written);
        bytes.copy_within(..step, written);
        written += step;
    }
}

/// Returns `true` if `bytes` contain the pattern that [`write`] derives from `stamp`.
pub(crate) fn holds(bytes: &[u8], stamp: u64) -> bool {
    let head = bytes.len().min(8);
    bytes[..head] == stamp.to_le_bytes()[..head] && bytes[head..] == bytes[..bytes.len() - head]
}

/// Allocates until no further message fits.
pub(crate) fn fill(provider: &Provider, len: usize) -> Vec<ShmBytesMut> {
    let is_full = |error: AllocError| assert!(error.is_exhausted(), "{error}");
    std::iter::from_fn(|| provider.alloc(len).map_err(is_full).ok()).collect()
}

/// Allocates `count` messages of `len` bytes.
#[track_caller]
pub(crate) fn alloc_many(provider: &Provider, len: usize, count: usize) -> Vec<ShmBytesMut> {
    let mut buffers = Vec::with_capacity(count);
    for _ in 0..count {
        buffers.push(provider.alloc(len).unwrap());
    }
    buffers
}

/// Allocates `count` messages, and drops them together.
pub(crate) fn burst(provider: &Provider, len: usize, count: usize) {
    drop(alloc_many(provider, len, count));
}

/// Messages of `len` bytes, one with the pattern of each stamp.
#[track_caller]
pub(crate) fn messages(provider: &Provider, len: usize, stamps: Range<u64>) -> Vec<ShmBytes> {
    let mut messages = Vec::new();
    for stamp in stamps {
        messages.push(message(provider, len, stamp));
    }
    messages
}

/// Messages of these lengths, with the pattern of stamp 1.
#[track_caller]
pub(crate) fn messages_of(provider: &Provider, lens: &[usize]) -> Vec<ShmBytes> {
    let mut messages = Vec::new();
    for len in lens {
        messages.push(message(provider, *len, 1));
    }
    messages
}

/// Drops every other buffer, beginning with the first, and returns the rest.
pub(crate) fn keep_every_other(buffers: Vec<ShmBytesMut>) -> Vec<ShmBytesMut> {
    let mut kept = Vec::new();
    for (at, buffer) in buffers.into_iter().enumerate() {
        if at % 2 == 1 {
            kept.push(buffer);
        }
    }
    kept
}

/// Attaches `client` to each message.
#[track_caller]
pub(crate) fn attach_all(client: &Client, messages: &[ShmBytes]) -> Vec<ShmView> {
    let mut views = Vec::new();
    for message in messages {
        let descriptor = message.descriptor().unwrap();
        views.push(client.attach(&descriptor).unwrap());
    }
    views
}

/// A request that waits for memory as a task does.
pub(crate) struct Waiting<'a> {
    future: Pin<Box<AllocFuture<'a>>>,
    waker: Waker,
    pub(crate) woken: Arc<Woken>,
}

impl<'a> Waiting<'a> {
    /// One that was not polled yet.
    pub(crate) fn new(future: AllocFuture<'a>) -> Self {
        let woken = Arc::new(Woken::default());
        Self {
            future: Box::pin(future),
            waker: Waker::from(woken.clone()),
            woken,
        }
    }

    /// One that was polled with its waker, in vain.
    pub(crate) fn begin(future: AllocFuture<'a>) -> Self {
        Self::new(future).polled()
    }

    /// The same with another waker.
    pub(crate) fn begin_with(future: AllocFuture<'a>, waker: Waker) -> Self {
        Self {
            waker,
            ..Self::new(future)
        }
        .polled()
    }

    fn polled(mut self) -> Self {
        assert!(self.poll().is_pending(), "it has nothing to wait for");
        self
    }

    pub(crate) fn poll(&mut self) -> Poll<Result<ShmBytesMut, AllocError>> {
        self.future
            .as_mut()
            .poll(&mut Context::from_waker(&self.waker))
    }

    pub(crate) fn is_woken(&self) -> bool {
        self.woken.count() > 0
    }

    /// Polls until it is served.
    pub(crate) fn served(mut self) -> ShmBytesMut {
        let end = Instant::now() + FOR_EVER;
        loop {
            if let Poll::Ready(buffer) = self.poll() {
                return buffer.unwrap();
            }
            assert!(Instant::now() < end, "it is not served");
            thread::yield_now();
        }
    }

    /// Blocks until it is served, with this thread as its executor.
    pub(crate) fn wait(self) -> ShmBytesMut {
        block_on(self.future).unwrap()
    }
}

/// The address of the first byte.
pub(crate) fn address(bytes: &[u8]) -> usize {
    bytes.as_ptr() as usize
}

/// The number of idle chunks over all classes.
pub(crate) fn idle(stats: &Stats) -> usize {
    stats.classes.iter().map(|class| class.idle).sum()
}

/// The number of chunks over all classes.
pub(crate) fn chunks(stats: &Stats) -> usize {
    stats.classes.iter().map(|class| class.chunks).sum()
}

/// The class whose chunks have this size, if it has any.
pub(crate) fn class_of(stats: &Stats, size: usize) -> Option<ClassStats> {
    stats
        .classes
        .iter()
        .find(|class| class.size == size)
        .cloned()
}

/// Names under /dev/shm that contain `text`, sorted.
pub(crate) fn files(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/dev/shm").unwrap() {
        let Ok(entry) = entry else { continue };
        if let Ok(name) = entry.file_name().into_string() {
            if name.contains(text) {
                found.push(name);
            }
        }
    }
    found.sort();
    found
}

/// The number of mappings in this process of files whose name contains `text`, including deleted
/// ones.
pub(crate) fn mappings(text: &str) -> usize {
    fs::read_to_string("/proc/self/maps")
        .unwrap()
        .lines()
        .filter(|line| line.contains(text))
        .count()
}

/// The name of a provider's `serial`th segment, without the prefix.
pub(crate) fn segment(provider: &Provider, serial: u64) -> String {
    format!(".{}.{serial:x}", provider.id())
}

/// Corrects the checksum of a descriptor's bytes, as a forger would. Returns `None` if the magic
/// number or the version is wrong.
pub(crate) fn forge(mut bytes: [u8; Descriptor::SIZE]) -> Option<Descriptor> {
    if let Err(error) = Descriptor::from_bytes(bytes) {
        let text = error.to_string();
        let (_, expected) = text.split_once("instead of 0x")?;
        let expected = u16::from_str_radix(&expected[..4], 16).unwrap();
        bytes[30..].copy_from_slice(&expected.to_le_bytes());
    }
    Descriptor::from_bytes(bytes).ok()
}

/// Random numbers that are the same in every run: Vigna's SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// The number of open files of this process whose name contains `text`, including deleted ones.
pub(crate) fn open_files(text: &str) -> usize {
    let mut count = 0;
    for entry in fs::read_dir("/proc/self/fd").unwrap() {
        let Ok(entry) = entry else { continue };
        if let Ok(name) = fs::read_link(entry.path()) {
            count += usize::from(name.to_string_lossy().contains(text));
        }
    }
    count
}
