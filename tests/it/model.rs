//! Random histories of one provider and one client, checked against a simple model: the live
//! handles, each with its expected message.

use crate::fixtures::{address, builder, holds, idle, write};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use shm_pool::{AllocError, AttachError, Client, Descriptor, PeerId, Provider, Tuning};
use shm_pool::{ShareError, ShmBytes, ShmBytesMut, ShmView};
use shm_pool_support::machine::page_size;
use std::alloc::Layout;

const ARENA: usize = 256 << 10;

/// With pages of 4 KiB, chunks of this size or more are whole pages. Smaller ones are carved in cache lines.
const PAGES: usize = 128 << 10;

/// Not the size of a class.
const MAX_ALLOC: usize = (148 << 10) + (2 << 10);

fn edges() -> Vec<usize> {
    vec![
        0,
        64,
        PAGES - 2048,
        PAGES - 2047,
        MAX_ALLOC,
        max_alloc_in_pages() + 1,
    ]
}

fn max_alloc_in_pages() -> usize {
    MAX_ALLOC.next_multiple_of(page_size())
}

/// One step of a history. A number picks one of the existing handles, descriptors or grants.
#[derive(Clone, Debug)]
enum Step {
    Alloc { len: usize, align: usize },
    Freeze(usize),
    Clone(usize),
    Describe(usize),
    Grant(usize),
    Attach(usize),
    Accept(usize),
    IntoMut(usize),
    Drop(usize),
    Reserve { len: usize, count: usize },
    Trim,
    ClientTrim,
}

fn step() -> impl Strategy<Value = Step> {
    let len = || prop_oneof![3 => 0..300usize, 2 => 300..5000usize, 2 => 5000..40_000usize, 1 => 40_000..MAX_ALLOC, 1 => select(edges())];
    let pick = || 0..64usize;
    prop_oneof![
        8 => len().prop_map(|len| Step::Alloc { len, align: 1 }),
        2 => (len(), 0..13u32).prop_map(|(len, shift)| Step::Alloc { len, align: 1 << shift }),
        6 => pick().prop_map(Step::Freeze),
        3 => pick().prop_map(Step::Clone),
        5 => pick().prop_map(Step::Describe),
        3 => pick().prop_map(Step::Grant),
        6 => pick().prop_map(Step::Attach),
        3 => pick().prop_map(Step::Accept),
        3 => pick().prop_map(Step::IntoMut),
        9 => pick().prop_map(Step::Drop),
        1 => (len(), 0..4usize).prop_map(|(len, count)| Step::Reserve { len, count }),
        1 => Just(Step::Trim),
        1 => Just(Step::ClientTrim),
    ]
}

enum Handle {
    Mut(ShmBytesMut),
    Frozen(ShmBytes),
    View(ShmView),
}

impl Handle {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Mut(buffer) => buffer,
            Self::Frozen(buffer) => buffer,
            Self::View(view) => view,
        }
    }

    fn is_owners(&self) -> bool {
        !matches!(self, Self::View(_))
    }
}

/// A message that was written into a chunk.
struct Message {
    stamp: u64,
    len: usize,
    /// The address of its chunk in the owner, and the chunk's capacity.
    start: usize,
    capacity: usize,
    /// Its chunk was taken back for writing: from then on its descriptors must be stale.
    is_closed: bool,
    /// Its descriptors may be stale although it is alive.
    is_doubtful: bool,
}

/// The system and its model. Messages are named by their index, and stay in the list when they are
/// dead.
struct World {
    provider: Provider,
    client: Client,
    peer: PeerId,
    max_idle: usize,
    messages: Vec<Message>,
    handles: Vec<(usize, Handle)>,
    descriptors: Vec<(usize, Descriptor)>,
    /// Pending grants.
    grants: Vec<(usize, Descriptor)>,
}

impl World {
    fn new(max_bytes: usize, max_idle: usize) -> Self {
        let builder = builder()
            .max_shared(512)
            .max_bytes(max_bytes)
            .max_alloc(MAX_ALLOC)
            .tuning(Tuning::new().arena_size(ARENA));
        let provider = builder.max_idle_per_class(max_idle).build().unwrap();
        let client = Client::new();
        let peer = client.connect(provider.id()).unwrap();
        let messages = Vec::new();
        let handles = Vec::new();
        Self {
            provider,
            client,
            peer,
            max_idle,
            messages,
            handles,
            descriptors: Vec::new(),
            grants: Vec::new(),
        }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Alloc { len, align } => self.alloc(len, align),
            Step::Reserve { len, count } => self.reserve(len, count),
            Step::Trim => self.trim(),
            Step::ClientTrim => drop(self.client.unmap_unused()),
            Step::Attach(pick) if !self.descriptors.is_empty() => {
                self.attach(pick % self.descriptors.len())
            }
            Step::Accept(pick) if !self.grants.is_empty() => self.accept(pick % self.grants.len()),
            Step::Attach(_) | Step::Accept(_) => {}
            _ if self.handles.is_empty() => {}
            Step::Freeze(pick) => self.replace(pick, Self::freeze),
            Step::IntoMut(pick) => self.replace(pick, Self::back_to_mut),
            Step::Clone(pick) => self.clone_handle(pick % self.handles.len()),
            Step::Describe(pick) => self.describe(pick % self.handles.len()),
            Step::Grant(pick) => self.grant(pick % self.handles.len()),
            Step::Drop(pick) => drop(self.handles.swap_remove(pick % self.handles.len())),
        }
    }

    // ---- the owner's steps ----------------------------------------------------------------------

    fn alloc(&mut self, len: usize, align: usize) {
        let layout = Layout::from_size_align(len, align).unwrap();
        let allocated = if align == 1 {
            self.provider.alloc(len)
        } else {
            self.provider.alloc_layout(layout)
        };
        match allocated {
            Ok(buffer) => {
                assert!(
                    len <= max_alloc_in_pages() && buffer.len() == len && buffer.capacity() >= len
                );
                assert_eq!(address(&buffer) % align.max(64), 0);
                self.begin(buffer);
            }
            Err(error) if error.is_exhausted() => {
                let in_use = self.bytes(true);
                let leased = self.bytes(false);
                let stats = self.provider.stats();
                let AllocError::Exhausted {
                    max_bytes,
                    in_use: reported,
                    idle,
                    leased: reported_leased,
                    ..
                } = error
                else {
                    panic!("{error}")
                };
                assert_eq!(reported, in_use, "in use of the refusal");
                // A peer may have leased idle ones.
                assert!(
                    reported_leased <= leased,
                    "{reported_leased} of {leased} leased"
                );
                assert_eq!(
                    (max_bytes, reported + reported_leased + idle),
                    (stats.max_bytes, stats.max_bytes)
                );
                self.assert_full(layout);
            }
            Err(error) => Self::assert_too_large(&error, len),
        }
    }

    fn reserve(&mut self, len: usize, count: usize) {
        match self.provider.reserve(len, count) {
            Ok(_) => assert!(len <= max_alloc_in_pages() && count <= self.max_idle),
            Err(AllocError::ReserveTooMany { .. }) => {
                assert!(count > self.max_idle);
            }
            Err(error) if error.is_exhausted() => assert!(count > 0, "no chunks do not fit"),
            Err(error) => Self::assert_too_large(&error, len),
        }
    }

    fn assert_too_large(error: &AllocError, len: usize) {
        assert!(
            matches!(error, AllocError::TooLarge { .. }) && len > max_alloc_in_pages(),
            "{len} bytes: {error}"
        );
    }

    /// A refused allocation has already freed everything that trimming could free.
    fn assert_full(&self, layout: Layout) {
        self.trim();
        assert!(
            self.provider.alloc_layout(layout).is_err(),
            "{layout:?} was refused, and fits after a trim"
        );
    }

    /// Trimming releases all idle memory, and no other.
    fn trim(&self) {
        let before = self.provider.stats().bytes_held;
        let given_back = self.provider.trim();
        let stats = self.provider.stats();
        assert_eq!((stats.bytes_held, idle(&stats)), (before - given_back, 0));
        let alive = self.alive().count();
        assert!(
            stats.bytes_held >= self.bytes(true) + self.bytes(false)
                && stats.bytes_held <= stats.bytes_mapped
        );
        assert!(
            stats.segments <= alive,
            "{} segments are held for {alive} chunks",
            stats.segments
        );
    }

    /// Fills a buffer with a new message.
    fn begin(&mut self, mut buffer: ShmBytesMut) {
        let stamp = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(self.messages.len() as u64 + 1);
        write(&mut buffer, stamp);
        let start = address(&buffer);
        let len = buffer.len();
        let capacity = buffer.capacity();
        self.handles
            .push((self.messages.len(), Handle::Mut(buffer)));
        self.messages.push(Message {
            stamp,
            len,
            start,
            capacity,
            is_closed: false,
            is_doubtful: false,
        });
    }

    /// Takes a handle out of the list for a step that consumes it.
    fn replace(&mut self, pick: usize, step: fn(&mut Self, usize, Handle)) {
        let (message, handle) = self.handles.swap_remove(pick % self.handles.len());
        step(self, message, handle);
    }

    fn freeze(&mut self, message: usize, handle: Handle) {
        let handle = if let Handle::Mut(buffer) = handle {
            Handle::Frozen(buffer.freeze())
        } else {
            handle
        };
        self.handles.push((message, handle));
    }

    fn back_to_mut(&mut self, message: usize, handle: Handle) {
        let Handle::Frozen(buffer) = handle else {
            return self.handles.push((message, handle));
        };
        let is_free = !self.is_alive(message);
        match buffer.try_into_mut() {
            Ok(buffer) => {
                assert!(
                    is_free,
                    "writable, though a clone, a view or a grant is there"
                );
                assert!(
                    holds(&buffer, self.messages[message].stamp)
                        && buffer.len() == self.messages[message].len
                );
                self.messages[message].is_closed = true;
                self.begin(buffer);
            }
            Err(buffer) => {
                assert!(!is_free, "not writable, though this is the only handle");
                self.messages[message].is_doubtful = true;
                self.handles.push((message, Handle::Frozen(buffer)));
            }
        }
    }

    fn clone_handle(&mut self, at: usize) {
        let (message, handle) = &self.handles[at];
        let clone = match handle {
            Handle::Mut(_) => return,
            Handle::Frozen(buffer) => Handle::Frozen(buffer.clone()),
            Handle::View(view) => Handle::View(view.try_clone().unwrap()),
        };
        self.handles.push((*message, clone));
    }

    fn describe(&mut self, at: usize) {
        if let (message, Handle::Frozen(buffer)) = &self.handles[at] {
            self.descriptors
                .push((*message, buffer.descriptor().unwrap()));
        }
    }

    fn grant(&mut self, at: usize) {
        let (message, Handle::Frozen(buffer)) = &self.handles[at] else {
            return;
        };
        let pending = self
            .grants
            .iter()
            .filter(|grant| grant.0 == *message)
            .count();
        match buffer.grant(self.peer) {
            Ok(descriptor) => self.grants.push((*message, descriptor)),
            Err(error) => assert_eq!((error, pending), (ShareError::TooManyGrants(self.peer), 7)),
        }
    }

    // ---- the peer's steps -----------------------------------------------------------------------

    fn attach(&mut self, at: usize) {
        let (message, descriptor) = self.descriptors[at];
        let Message {
            is_closed,
            is_doubtful,
            ..
        } = self.messages[message];
        let is_sure = self.is_alive(message) && !is_doubtful;
        match self.client.attach(&descriptor) {
            Ok(view) => {
                assert!(
                    !is_closed,
                    "a message that was taken back for writing is attached"
                );
                self.handles.push((message, Handle::View(view)));
            }
            Err(AttachError::Stale) => {
                assert!(is_closed || !is_sure, "a message that is alive is stale")
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn accept(&mut self, at: usize) {
        let (message, descriptor) = self.grants.swap_remove(at);
        let view = self
            .client
            .attach(&descriptor)
            .expect("a grant holds its message");
        if self.grants.iter().all(|grant| grant.0 != message) {
            let second = self.client.attach(&descriptor);
            assert!(
                matches!(second, Err(AttachError::NotGranted)),
                "a grant is taken up twice: {second:?}"
            );
        }
        self.handles.push((message, Handle::View(view)));
    }

    // ---- the model ------------------------------------------------------------------------------

    fn is_alive(&self, message: usize) -> bool {
        self.handles.iter().any(|handle| handle.0 == message)
            || self.grants.iter().any(|grant| grant.0 == message)
    }

    fn is_owned(&self, message: usize) -> bool {
        self.handles
            .iter()
            .any(|(of, handle)| *of == message && handle.is_owners())
    }

    fn alive(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.messages.len()).filter(|&message| self.is_alive(message))
    }

    /// Bytes of the chunks that the owner has handles to, or of those that only leases hold.
    fn bytes(&self, owned: bool) -> usize {
        self.alive()
            .filter(|&message| self.is_owned(message) == owned)
            .map(|message| self.messages[message].capacity)
            .sum()
    }

    fn check(&self) {
        for (message, handle) in &self.handles {
            let Message { stamp, len, .. } = self.messages[*message];
            let bytes = handle.bytes();
            assert!(
                bytes.len() == len && holds(bytes, stamp),
                "a handle shows another message than its own"
            );
        }
        let range = |message: usize| {
            (
                self.messages[message].start,
                self.messages[message].capacity,
            )
        };
        let mut ranges: Vec<(usize, usize)> = self.alive().map(range).collect();
        ranges.sort_unstable();
        assert!(
            ranges
                .windows(2)
                .all(|pair| pair[0].0 + pair[0].1 <= pair[1].0),
            "two live messages share memory"
        );

        let stats = self.provider.stats();
        let bytes = (stats.bytes_in_use, stats.bytes_leased);
        assert_eq!(
            bytes,
            (self.bytes(true), self.bytes(false)),
            "bytes (in use, leased) of the statistics"
        );
        for class in &stats.classes {
            assert_eq!(
                class.chunks,
                class.in_use + class.idle + class.leased,
                "{class:?}"
            );
        }
        assert!(
            stats.bytes_held <= stats.peak_bytes_held && stats.peak_bytes_held <= stats.max_bytes
        );
    }

    /// Drops everything in order, and checks that no memory is left.
    fn end(mut self) {
        // From the first one on.
        for handle in self.handles.drain(..) {
            drop(handle);
        }
        drop(self.client);
        let stats = self.provider.stats();
        assert_eq!(
            (stats.bytes_in_use, stats.bytes_leased),
            (0, 0),
            "something outlives its last handle"
        );
        self.provider.trim();
        assert_eq!(self.provider.stats().bytes_held, 0, "memory is lost");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_model(
        max_bytes in select(&[256 << 10, 512 << 10, 1 << 20][..]),
        max_idle in select(&[0, 1, 2, 8][..]),
        steps in vec(step(), 1..120),
    ) {
        let mut world = World::new(max_bytes, max_idle);
        for step in &steps {
            world.run(step);
            world.check();
        }
        world.end();
    }
}
