//! Steps of an owner, its peers and a hostile writer, in any order. Despite any garbage in its
//! control object, the owner's buffers keep their bytes and never overlap, and its statistics agree
//! with its handles. The peers follow the protocol. A view has the length that its descriptor
//! states, and lies within the mapping.

use super::descriptor::{forge, sign, Change};
use super::layout::{OpenObject, Storm, Value, Word, Write, RECORDS};
use super::{outside, Many};
use arbitrary::Arbitrary;
use shm_pool::{
    AllocError, AttachError, Client, Descriptor, Namespace, PeerId, Provider, ProviderId,
    ShareError, ShmBytes, ShmBytesMut, ShmView, Tuning,
};
use std::fs::File;
use std::hint::black_box;
use std::path::PathBuf;

/// Most files planted under segment names. A provider tries more names before it gives up.
const MAX_PLANTED: usize = 12;

/// How many of the last descriptors and peer ids are remembered. Older ones are stale.
const REMEMBERED: usize = 8;

/// Steps, and the writes that run concurrently.
#[derive(Arbitrary, Clone, Debug)]
pub(crate) struct Program {
    max_idle: u8,
    provider_goes_first: bool,
    /// From before the first step to the end.
    storm: Storm,
    steps: Many<Step, 200>,
}

/// One step. Each number picks one of the existing buffers, clients, views, descriptors or peers.
#[derive(Arbitrary, Clone, Debug)]
enum Step {
    Alloc(Size),
    Reserve(Size, u8),
    Freeze(u8),
    Clone(u8),
    TakeBack(u8),
    Drop(u8),
    /// Fills, freezes, describes and perhaps drops a message at once, as is usual.
    Publish(Size, bool),
    Describe(u8),
    Grant {
        buffer: u8,
        peer: u8,
    },
    GrantTo {
        buffer: u8,
        peer: [u8; PeerId::SIZE],
    },
    Trim,
    Reclaim,
    AddClient,
    DropClient(u8),
    Connect(u8),
    Warm(u8),
    Attach {
        client: u8,
        descriptor: u8,
    },
    Forge {
        client: u8,
        descriptor: u8,
        changes: [Change; 2],
    },
    AttachAny {
        client: u8,
        bytes: [u8; Descriptor::SIZE],
    },
    CloneView(u8),
    DropView(u8),
    ClientTrim(u8),
    /// Writes into a descriptor's record, then attaches to it. The old word may be restored.
    Mislead {
        client: u8,
        descriptor: u8,
        word: u8,
        value: Value,
        is_undone: bool,
    },
    /// Writes into the header, then lets a new client connect. Unless it is an epoch, the old word
    /// is restored.
    Welcome {
        word: u8,
        value: Value,
    },
    Write(Write),
    /// Creates a file under the name of one of the provider's segments.
    Plant {
        serial: u8,
        len: u32,
    },
}

#[derive(Arbitrary, Clone, Copy, Debug)]
struct Size(u16);

impl Size {
    /// Mostly small lengths, but up to more than the provider allows.
    fn bytes(self) -> usize {
        let Self(number) = self;
        let step = usize::from(number / 4);
        match number % 4 {
            0 | 1 => step % 300,
            2 => step % 6000,
            _ => step * 37,
        }
    }
}

impl Program {
    /// Runs the program with a provider and clients of this prefix, which is used only here.
    pub(crate) fn run(&self, prefix: &str) {
        let owner = Owner::new(prefix, self.max_idle);
        let path = PathBuf::from(format!("/dev/shm/{prefix}.{}.ctl", owner.provider().id()));
        let stormed = OpenObject::open(&path, RECORDS);
        self.storm.during(&stormed, || {
            let mut world = World::new(prefix, owner, OpenObject::open(&path, RECORDS));
            for step in &self.steps.0 {
                world.run(step);
            }
            world.end(self.provider_goes_first);
        });
        drop(stormed);
        outside::assert_swept(prefix);
    }
}

struct World {
    prefix: String,
    owner: Owner,
    peers: Peers,
    control: OpenObject,
    descriptors: Vec<Descriptor>,
    ids: Vec<PeerId>,
    planted: Vec<PathBuf>,
}

impl World {
    fn new(prefix: &str, owner: Owner, control: OpenObject) -> Self {
        Self {
            prefix: prefix.to_owned(),
            owner,
            peers: Peers::new(prefix),
            control,
            descriptors: Vec::new(),
            ids: Vec::new(),
            planted: Vec::new(),
        }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Alloc(size) => self.owner.alloc(size.bytes()),
            Step::Reserve(size, count) => self.owner.reserve(size.bytes(), count),
            Step::Freeze(pick) => self.owner.freeze(pick),
            Step::Clone(pick) => self.owner.clone(pick),
            Step::TakeBack(pick) => self.owner.take_back(pick),
            Step::Drop(pick) => self.owner.drop(pick),
            Step::Publish(size, is_kept) => self
                .descriptors
                .extend(self.owner.publish(size.bytes(), is_kept)),
            Step::Describe(pick) => self.descriptors.extend(self.owner.describe(pick)),
            Step::Grant { buffer, peer } => {
                let id = self.ids.get(usize::from(peer) % self.ids.len().max(1));
                if let Some(id) = id {
                    self.descriptors.extend(self.owner.grant(buffer, *id));
                }
            }
            Step::GrantTo { buffer, mut peer } => {
                // The id of any other provider would be refused for that reason alone.
                peer[..8].copy_from_slice(&u64::from(self.owner.provider().id()).to_le_bytes());
                self.descriptors
                    .extend(self.owner.grant(buffer, PeerId::from_bytes(peer)));
            }
            Step::Trim => drop(self.owner.provider().trim()),
            Step::Reclaim => drop(self.owner.provider().reclaim()),
            Step::AddClient => self.peers.add_client(),
            Step::DropClient(pick) => self.peers.drop_client(pick),
            Step::Connect(pick) => self
                .ids
                .extend(self.peers.connect(pick, self.owner.provider().id())),
            Step::Warm(pick) => self.peers.warm(pick, self.owner.provider().id()),
            Step::Attach { client, descriptor } => self.attach(client, descriptor, &[]),
            Step::Forge {
                client,
                descriptor,
                changes,
            } => self.attach(client, descriptor, &changes),
            Step::AttachAny { client, bytes } => {
                if let Some(descriptor) = sign(bytes) {
                    self.peers.attach(client, &descriptor);
                }
            }
            Step::CloneView(pick) => self.peers.clone_view(pick),
            Step::DropView(pick) => self.peers.drop_view(pick),
            Step::ClientTrim(pick) => self.peers.trim(pick),
            Step::Mislead {
                client,
                descriptor,
                word,
                value,
                is_undone,
            } => {
                let Some(seen) = self.seen(descriptor) else {
                    return;
                };
                let record = seen.to_bytes()[4];
                let word = if word % 5 == 4 {
                    Word::Generation(record)
                } else {
                    Word::Place {
                        record,
                        word: word % 5,
                    }
                };
                let before = self.control.get(word);
                self.control.apply(&Write::Word(word, value));
                self.peers.attach(client, &seen);
                if is_undone {
                    self.control.set(word, before);
                }
            }
            Step::Welcome { word, value } => {
                let word = if word < 200 {
                    Word::Head(word)
                } else {
                    Word::Epoch(word % 8)
                };
                let before = self.control.get(word);
                self.control.apply(&Write::Word(word, value));
                self.peers.drop_client(0);
                self.peers.add_client();
                self.ids
                    .extend(self.peers.connect_last(self.owner.provider().id()));
                if matches!(word, Word::Head(_)) {
                    self.control.set(word, before);
                }
            }
            Step::Write(ref write) => self.control.apply(write),
            Step::Plant { serial, len } => self.plant(serial, len),
        }
        self.owner.check();
        self.descriptors
            .drain(..self.descriptors.len().saturating_sub(REMEMBERED));
        self.ids.drain(..self.ids.len().saturating_sub(REMEMBERED));
    }

    fn seen(&self, pick: u8) -> Option<Descriptor> {
        self.descriptors
            .get(usize::from(pick) % self.descriptors.len().max(1))
            .copied()
    }

    fn attach(&mut self, client: u8, pick: u8, changes: &[Change]) {
        let Some(seen) = self.seen(pick) else {
            return;
        };
        if let Some(descriptor) = forge(&seen, changes) {
            self.peers.attach(client, &descriptor);
        }
    }

    fn plant(&mut self, serial: u8, len: u32) {
        if self.planted.len() == MAX_PLANTED {
            return;
        }
        let path = PathBuf::from(format!(
            "/dev/shm/{}.{}.{serial:x}",
            self.prefix,
            self.owner.provider().id()
        ));
        // An existing file belongs to another object, and its length must not change.
        if let Ok(file) = File::options().write(true).create_new(true).open(&path) {
            file.set_len(u64::from(len) % (1 << 24))
                .expect("a sparse file");
            self.planted.push(path);
        }
    }

    fn end(self, provider_first: bool) {
        let Self {
            owner,
            peers,
            planted,
            ..
        } = self;
        owner.end(provider_first);
        peers.read_all();
        drop(peers);
        for path in &planted {
            outside::remove(path);
        }
    }
}

const MAX_BYTES: usize = 512 << 10;
const ARENA: usize = 64 << 10;

/// The most handles held at a time. More would only take longer.
const MAX_HANDLES: usize = 48;

enum Handle {
    Mut(ShmBytesMut),
    Frozen(ShmBytes),
}

struct Held {
    handle: Handle,
    /// The number of the message. Clones have the same one.
    message: u64,
    capacity: usize,
}

struct Owner {
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
        assert!(
            self.bytes().iter().all(|&byte| byte == stamp(self.message)),
            "a buffer that is held was overwritten"
        );
    }
}

/// The value of each byte of a message.
fn stamp(message: u64) -> u8 {
    (message % 251) as u8 + 1
}

impl Owner {
    fn new(prefix: &str, max_idle: u8) -> Self {
        let builder = Provider::builder()
            .namespace(&Namespace::new(prefix).unwrap())
            .max_bytes(MAX_BYTES)
            .max_bytes_per_peer(MAX_BYTES)
            .tuning(Tuning::new().arena_size(ARENA));
        let builder = builder
            .max_shared(RECORDS as usize)
            .max_idle_per_class(usize::from(max_idle % 5));
        let provider = builder.build().expect("a provider");
        Self {
            prefix: prefix.to_owned(),
            provider,
            held: Vec::new(),
            messages: 0,
        }
    }

    fn provider(&self) -> &Provider {
        &self.provider
    }

    fn alloc(&mut self, len: usize) {
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

    fn reserve(&self, len: usize, count: u8) {
        if let Err(error) = self.provider.reserve(len, usize::from(count % 8)) {
            Self::check_error(&error);
        }
    }

    fn check_error(error: &AllocError) {
        let is_typed = matches!(
            error,
            AllocError::Exhausted { .. }
                | AllocError::TooLarge { .. }
                | AllocError::ReserveTooMany { .. }
                // Garbage in the lanes keeps the records leased.
                | AllocError::ReserveShare(ShareError::TooManyShared { .. })
        );
        assert!(
            is_typed,
            "an error that has nothing to do with the control object: {error}"
        );
    }

    /// Keeps a buffer that is new, or exclusive again: no other buffer may share its memory.
    fn hold(&mut self, mut buffer: ShmBytesMut) {
        self.messages += 1;
        assert!(
            outside::is_mapped(&buffer, &self.prefix, true),
            "a buffer outside of the provider's memory"
        );
        let len = buffer.len();
        buffer.resize(buffer.capacity()).expect("the capacity");
        buffer.fill(stamp(self.messages));
        buffer.truncate(len);
        let capacity = buffer.capacity();
        let new = Held {
            handle: Handle::Mut(buffer),
            message: self.messages,
            capacity,
        };
        let (start, end) = new.range();
        for held in &self.held {
            let other = held.range();
            assert!(
                end <= other.0 || other.1 <= start,
                "two buffers share memory"
            );
        }
        self.held.push(new);
    }

    fn freeze(&mut self, pick: u8) {
        let Some(mut held) = self.take(pick) else {
            return;
        };
        if let Handle::Mut(buffer) = held.handle {
            held.handle = Handle::Frozen(buffer.freeze());
        }
        self.held.push(held);
    }

    /// Drops one handle, whose bytes must be unchanged.
    fn drop(&mut self, pick: u8) {
        if let Some(held) = self.take(pick) {
            held.check();
        }
    }

    fn clone(&mut self, pick: u8) {
        if self.held.len() >= MAX_HANDLES {
            return;
        }
        let Some((buffer, held)) = self.frozen(pick) else {
            return;
        };
        let clone = Held {
            handle: Handle::Frozen(buffer.clone()),
            message: held.message,
            capacity: held.capacity,
        };
        self.held.push(clone);
    }

    fn take_back(&mut self, pick: u8) {
        let Some(held) = self.take(pick) else { return };
        held.check();
        match held.handle {
            Handle::Mut(_) => self.held.push(held),
            Handle::Frozen(buffer) => match buffer.try_into_mut() {
                Ok(buffer) => self.hold(buffer),
                Err(buffer) => self.held.push(Held {
                    handle: Handle::Frozen(buffer),
                    ..held
                }),
            },
        }
    }

    /// Fills, freezes and describes a message, and drops it unless it is to be kept.
    fn publish(&mut self, len: usize, is_kept: bool) -> Option<Descriptor> {
        let before = self.held.len();
        self.alloc(len);
        if self.held.len() == before {
            return None;
        }
        let last = before;
        // `freeze` and `drop` take a handle out with `swap_remove`; this one is last.
        self.freeze(last as u8);
        let descriptor = self.describe(last as u8);
        if !is_kept {
            self.drop(last as u8);
        }
        descriptor
    }

    fn describe(&self, pick: u8) -> Option<Descriptor> {
        self.frozen(pick)?.0.descriptor().ok()
    }

    fn grant(&self, pick: u8, peer: PeerId) -> Option<Descriptor> {
        self.frozen(pick)?.0.grant(peer).ok()
    }

    /// Compares the statistics with the handles.
    fn check(&self) {
        let stats = self.provider.stats();
        assert!(
            stats.bytes_held <= stats.peak_bytes_held && stats.peak_bytes_held <= stats.max_bytes,
            "{stats:?}"
        );
        for class in &stats.classes {
            assert_eq!(
                class.chunks,
                class.in_use + class.idle + class.leased,
                "{class:?}"
            );
        }
        let mut chunks: Vec<(usize, usize)> = self.held.iter().map(Held::range).collect();
        chunks.sort_unstable();
        chunks.dedup();
        let mut in_use = 0;
        for (start, end) in chunks {
            in_use += end - start;
        }
        assert_eq!(
            stats.bytes_in_use, in_use,
            "bytes that the owner has handles of: {stats:?}"
        );
        assert!(
            stats.bytes_in_use + stats.bytes_leased <= stats.bytes_held,
            "{stats:?}"
        );
    }

    /// Drops everything, with the provider first or last.
    fn end(self, provider_first: bool) {
        let Self { provider, held, .. } = self;
        let check_all = |held: Vec<Held>| {
            for held in &held {
                held.check();
            }
        };
        if provider_first {
            drop(provider);
            check_all(held);
        } else {
            check_all(held);
            provider.trim();
        }
    }

    fn take(&mut self, pick: u8) -> Option<Held> {
        if self.held.is_empty() {
            return None;
        }
        let at = usize::from(pick) % self.held.len();
        Some(self.held.swap_remove(at))
    }

    fn frozen(&self, pick: u8) -> Option<(&ShmBytes, &Held)> {
        let held = self.held.get(usize::from(pick) % self.held.len().max(1))?;
        match &held.handle {
            Handle::Frozen(buffer) => Some((buffer, held)),
            Handle::Mut(_) => None,
        }
    }
}

const MAX_CLIENTS: usize = 6;
const MAX_VIEWS: usize = 48;

/// Entries in the control object's table of segments.
const ENTRIES: usize = 32;

/// A view of up to this many bytes is read whole; of a longer one, only the first and last byte.
const READ: usize = 128 << 10;

struct Peers {
    prefix: String,
    clients: Vec<Client>,
    views: Vec<ShmView>,
}

impl Peers {
    fn new(prefix: &str) -> Self {
        let mut this = Self {
            prefix: prefix.to_owned(),
            clients: Vec::new(),
            views: Vec::new(),
        };
        this.add_client();
        this
    }

    /// Adds a client.
    fn add_client(&mut self) {
        if self.clients.len() < MAX_CLIENTS {
            self.clients
                .push(Client::in_namespace(&Namespace::new(&self.prefix).unwrap()));
        }
    }

    /// Drops a client but keeps its views.
    fn drop_client(&mut self, pick: u8) {
        if self.clients.len() > 1 {
            self.clients
                .swap_remove(usize::from(pick) % self.clients.len());
        }
    }

    /// Connects the client that was added last.
    fn connect_last(&self, provider: ProviderId) -> Option<PeerId> {
        self.connect(self.clients.len() as u8 - 1, provider)
    }

    fn connect(&self, pick: u8, provider: ProviderId) -> Option<PeerId> {
        self.client(pick)
            .connect(provider)
            .map_err(|error| check_error(&error))
            .ok()
    }

    fn attach(&mut self, pick: u8, descriptor: &Descriptor) {
        match self.client(pick).attach(descriptor) {
            Ok(view) => {
                assert_eq!(view.len() as u64, descriptor.payload_len());
                assert!(
                    view.is_empty() || outside::is_mapped(&view, &self.prefix, false),
                    "a view of other memory"
                );
                self.keep(view);
            }
            Err(error) => check_error(&error),
        }
    }

    fn clone_view(&mut self, pick: u8) {
        let Some(view) = self.views.get(usize::from(pick) % self.views.len().max(1)) else {
            return;
        };
        match view.try_clone() {
            Ok(clone) => {
                assert_eq!((clone.as_ptr(), clone.len()), (view.as_ptr(), view.len()));
                self.keep(clone);
            }
            Err(error) => check_error(&error),
        }
    }

    fn drop_view(&mut self, pick: u8) {
        if !self.views.is_empty() {
            read(&self.views.swap_remove(usize::from(pick) % self.views.len()));
        }
    }

    fn trim(&self, pick: u8) {
        self.client(pick).unmap_unused();
    }

    fn warm(&self, pick: u8, provider: ProviderId) {
        let client = self.client(pick);
        match client.warm(provider) {
            Ok(_) => assert!(
                client.mapped_segments() <= ENTRIES,
                "more than the table can name"
            ),
            Err(error) => check_error(&error),
        }
    }

    fn read_all(&self) {
        for view in &self.views {
            read(view);
        }
    }

    fn keep(&mut self, view: ShmView) {
        read(&view);
        if self.views.len() < MAX_VIEWS {
            self.views.push(view);
        }
    }

    fn client(&self, pick: u8) -> &Client {
        &self.clients[usize::from(pick) % self.clients.len()]
    }
}

/// Reads the view. Its bytes do not matter: the memory may have been reused.
fn read(view: &ShmView) {
    let end = view.len().saturating_sub(1);
    let part = if view.len() <= READ {
        &view[..]
    } else {
        &view[..1]
    };
    let mut sum = view.get(end).copied().unwrap_or(0);
    for byte in part {
        sum ^= byte;
    }
    black_box(sum);
}

/// An OS error would mean that something from shared memory reached a system call unchecked.
fn check_error(error: &AttachError) {
    assert!(!matches!(error, AttachError::Os(_)), "{error}");
    black_box(error.to_string());
}
