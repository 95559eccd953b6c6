//! The owner under attack. Whatever is written into its control object, its buffers keep their
//! bytes and never overlap, and its statistics agree with its handles.

use super::layout::RECORDS;
use super::outside;
use shm_pool::{AllocError, AllocErrorKind, Descriptor, PeerId, Provider, ShareError, ShmBuf, ShmBufMut};

pub(crate) const MAX_BYTES: usize = 512 << 10;
pub(crate) const ARENA: usize = 64 << 10;

/// The most handles held at a time. More would only take longer.
const MAX_HANDLES: usize = 48;

enum Handle {
    Mut(ShmBufMut),
    Frozen(ShmBuf),
}

struct Held {
    handle: Handle,
    /// The number of the message. Clones have the same one.
    message: u64,
    capacity: usize,
}

pub(crate) struct Owner {
    prefix: String,
    provider: Provider,
    held: Vec<Held>,
    messages: u64,
}

impl Held {
    fn bytes(&self) -> &[u8] {
        match &self.handle {
            Handle::Mut(buffer) => buffer,
            Handle::Frozen(buffer) => buffer,
        }
    }

    /// Returns the address range of its chunk in this process.
    fn range(&self) -> (usize, usize) {
        let start = self.bytes().as_ptr() as usize;
        (start, start + self.capacity)
    }

    fn check(&self) {
        assert!(self.bytes().iter().all(|&byte| byte == stamp(self.message)), "a buffer that is held was overwritten");
    }
}

/// The value of each byte of a message.
fn stamp(message: u64) -> u8 {
    (message % 251) as u8 + 1
}

impl Owner {
    pub(crate) fn new(prefix: &str, max_idle: u8) -> Self {
        let builder = Provider::builder().name_prefix(prefix).max_bytes(MAX_BYTES).arena_size(ARENA);
        let builder = builder.max_shared(RECORDS as usize).max_idle_per_class(usize::from(max_idle % 5));
        let provider = builder.build().expect("a provider");
        Self { prefix: prefix.to_owned(), provider, held: Vec::new(), messages: 0 }
    }

    pub(crate) fn provider(&self) -> &Provider {
        &self.provider
    }

    pub(crate) fn alloc(&mut self, len: usize) {
        if self.held.len() >= MAX_HANDLES {
            return;
        }
        match self.provider.alloc(len) {
            Ok(buffer) => {
                assert!(buffer.len() == len && buffer.capacity() >= len);
                self.hold(buffer);
            }
            Err(error) => Self::check_error(&error),
        }
    }

    pub(crate) fn reserve(&self, len: usize, count: u8) {
        if let Err(error) = self.provider.reserve(len, usize::from(count % 8)) {
            Self::check_error(&error);
        }
    }

    fn check_error(error: &AllocError) {
        let is_typed = matches!(
            error.kind(),
            AllocErrorKind::Exhausted { .. }
                | AllocErrorKind::TooLarge { .. }
                | AllocErrorKind::ReserveTooMany { .. }
                // Garbage in the lanes keeps the records leased.
                | AllocErrorKind::ReserveShare(ShareError::TooManyShared { .. })
        );
        assert!(is_typed, "an error that has nothing to do with the control object: {error}");
    }

    /// Keeps a buffer that is new, or exclusive again: no other buffer may share its memory.
    fn hold(&mut self, mut buffer: ShmBufMut) {
        self.messages += 1;
        assert!(outside::is_mapped(&buffer, &self.prefix, true), "a buffer outside of the provider's memory");
        let len = buffer.len();
        buffer.try_set_len(buffer.capacity()).expect("the capacity");
        buffer.fill(stamp(self.messages));
        buffer.truncate(len);
        let capacity = buffer.capacity();
        let new = Held { handle: Handle::Mut(buffer), message: self.messages, capacity };
        let (start, end) = new.range();
        for held in &self.held {
            let other = held.range();
            assert!(end <= other.0 || other.1 <= start, "two buffers share memory");
        }
        self.held.push(new);
    }

    pub(crate) fn freeze(&mut self, pick: u8) {
        let Some(mut held) = self.take(pick) else { return };
        if let Handle::Mut(buffer) = held.handle {
            held.handle = Handle::Frozen(buffer.freeze());
        }
        self.held.push(held);
    }

    /// Drops one handle, whose bytes must be unchanged.
    pub(crate) fn drop(&mut self, pick: u8) {
        if let Some(held) = self.take(pick) {
            held.check();
        }
    }

    pub(crate) fn clone(&mut self, pick: u8) {
        if self.held.len() >= MAX_HANDLES {
            return;
        }
        let Some((buffer, held)) = self.frozen(pick) else { return };
        let clone = Held { handle: Handle::Frozen(buffer.clone()), message: held.message, capacity: held.capacity };
        self.held.push(clone);
    }

    pub(crate) fn take_back(&mut self, pick: u8) {
        let Some(held) = self.take(pick) else { return };
        held.check();
        match held.handle {
            Handle::Mut(_) => self.held.push(held),
            Handle::Frozen(buffer) => match buffer.try_into_mut() {
                Ok(buffer) => self.hold(buffer),
                Err(buffer) => self.held.push(Held { handle: Handle::Frozen(buffer), ..held }),
            },
        }
    }

    /// Fills, freezes and describes a message, and drops it unless it is to be kept.
    pub(crate) fn publish(&mut self, len: usize, is_kept: bool) -> Option<Descriptor> {
        let before = self.held.len();
        self.alloc(len);
        let last = (self.held.len() > before).then_some(before)?;
        // `freeze` and `drop` take a handle out with `swap_remove`; this one is last.
        self.freeze(last as u8);
        let descriptor = self.describe(last as u8);
        if !is_kept {
            self.drop(last as u8);
        }
        descriptor
    }

    pub(crate) fn describe(&self, pick: u8) -> Option<Descriptor> {
        self.frozen(pick)?.0.descriptor().ok()
    }

    pub(crate) fn grant(&self, pick: u8, peer: PeerId) -> Option<Descriptor> {
        self.frozen(pick)?.0.grant(peer).ok()
    }

    /// Compares the statistics with the handles.
    pub(crate) fn check(&self) {
        let stats = self.provider.stats();
        assert!(stats.bytes_held <= stats.peak_bytes_held && stats.peak_bytes_held <= stats.max_bytes, "{stats:?}");
        for class in &stats.classes {
            assert_eq!(class.chunks, class.in_use + class.idle + class.leased, "{class:?}");
        }
        let mut chunks: Vec<(usize, usize)> = self.held.iter().map(Held::range).collect();
        chunks.sort_unstable();
        chunks.dedup();
        let in_use: usize = chunks.iter().map(|(start, end)| end - start).sum();
        assert_eq!(stats.bytes_in_use, in_use, "bytes that the owner has handles of: {stats:?}");
        assert!(stats.bytes_in_use + stats.bytes_leased <= stats.bytes_held, "{stats:?}");
    }

    /// Drops everything, with the provider first or last.
    pub(crate) fn end(self, provider_first: bool) {
        let Self { provider, held, .. } = self;
        let check_all = |held: Vec<Held>| held.iter().for_each(Held::check);
        if provider_first {
            drop(provider);
            check_all(held);
        } else {
            check_all(held);
            provider.trim();
        }
    }

    fn take(&mut self, pick: u8) -> Option<Held> {
        let count = self.held.len();
        (count > 0).then(|| self.held.swap_remove(usize::from(pick) % count))
    }

    fn frozen(&self, pick: u8) -> Option<(&ShmBuf, &Held)> {
        let held = self.held.get(usize::from(pick) % self.held.len().max(1))?;
        match &held.handle {
            Handle::Frozen(buffer) => Some((buffer, held)),
            Handle::Mut(_) => None,
        }
    }
}
