//! A program: steps of an owner, its peers and a hostile writer, in any order.

use super::forgery::{forge, sign, Change};
use super::layout::{OpenObject, Value, Word, Write, RECORDS};
use super::owner::Owner;
use super::peers::Peers;
use super::{outside, storm};
use arbitrary::{Arbitrary, Unstructured};
use shm_pool::{Descriptor, PeerId};
use std::fs::File;
use std::path::PathBuf;

/// Most steps in one program.
const MAX_STEPS: usize = 200;

/// Most files planted under segment names. A provider tries more names before it gives up.
const MAX_PLANTED: usize = 12;

/// How many of the last descriptors and peer ids are remembered. Older ones are stale.
const REMEMBERED: usize = 8;

/// Steps, and the writes that run concurrently.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    max_idle: u8,
    provider_goes_first: bool,
    /// The writes that another thread repeats from before the first step to the end.
    storm: Vec<Write>,
    steps: Vec<Step>,
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
    Come,
    Go(u8),
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

impl<'a> Arbitrary<'a> for Program {
    /// Written by hand: the derived version would stop after each step with even odds.
    fn arbitrary(bytes: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let (max_idle, provider_goes_first) = bytes.arbitrary()?;
        let storm = storm::writes(bytes)?;
        let mut steps = Vec::new();
        while !bytes.is_empty() && steps.len() < MAX_STEPS {
            steps.push(bytes.arbitrary()?);
        }
        Ok(Self { max_idle, provider_goes_first, storm, steps })
    }
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
        let storm = OpenObject::open(&path, RECORDS);
        storm::during(&storm, &self.storm, || {
            let mut world = World::new(prefix, owner, OpenObject::open(&path, RECORDS));
            self.steps.iter().for_each(|step| world.run(step));
            world.end(self.provider_goes_first);
        });
        drop(storm);
        outside::assert_nothing_left(prefix);
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
        let (prefix, peers) = (prefix.to_owned(), Peers::new(prefix));
        Self { prefix, owner, peers, control, descriptors: Vec::new(), ids: Vec::new(), planted: Vec::new() }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Alloc(size) => self.owner.alloc(size.bytes()),
            Step::Reserve(size, count) => self.owner.reserve(size.bytes(), count),
            Step::Freeze(pick) => self.owner.freeze(pick),
            Step::Clone(pick) => self.owner.clone(pick),
            Step::TakeBack(pick) => self.owner.take_back(pick),
            Step::Drop(pick) => self.owner.drop(pick),
            Step::Publish(size, is_kept) => self.descriptors.extend(self.owner.publish(size.bytes(), is_kept)),
            Step::Describe(pick) => self.descriptors.extend(self.owner.describe(pick)),
            Step::Grant { buffer, peer } => {
                let id = self.ids.get(usize::from(peer) % self.ids.len().max(1));
                self.descriptors.extend(id.and_then(|&id| self.owner.grant(buffer, id)));
            }
            Step::GrantTo { buffer, mut peer } => {
                // The id of any other provider would be refused for that reason alone.
                peer[..8].copy_from_slice(&self.owner.provider().id().to_u64().to_le_bytes());
                self.descriptors.extend(self.owner.grant(buffer, PeerId::from_bytes(peer)));
            }
            Step::Trim => drop(self.owner.provider().trim()),
            Step::Reclaim => drop(self.owner.provider().reclaim()),
            Step::Come => self.peers.come(),
            Step::Go(pick) => self.peers.go(pick),
            Step::Connect(pick) => self.ids.extend(self.peers.connect(pick, self.owner.provider().id())),
            Step::Warm(pick) => self.peers.warm(pick, self.owner.provider().id()),
            Step::Attach { client, descriptor } => self.attach(client, descriptor, &[]),
            Step::Forge { client, descriptor, changes } => self.attach(client, descriptor, &changes),
            Step::AttachAny { client, bytes } => {
                if let Some(descriptor) = sign(bytes) {
                    self.peers.attach(client, &descriptor);
                }
            }
            Step::CloneView(pick) => self.peers.clone_view(pick),
            Step::DropView(pick) => self.peers.drop_view(pick),
            Step::ClientTrim(pick) => self.peers.trim(pick),
            Step::Mislead { client, descriptor, word, value, is_undone } => {
                let Some(seen) = self.seen(descriptor) else { return };
                let record = seen.to_bytes()[4];
                let word =
                    if word % 5 == 4 { Word::Generation(record) } else { Word::Place { record, word: word % 5 } };
                let before = self.control.get(word);
                self.control.apply(&Write::Word(word, value));
                self.peers.attach(client, &seen);
                if is_undone {
                    self.control.set(word, before);
                }
            }
            Step::Welcome { word, value } => {
                let word = if word < 200 { Word::Head(word) } else { Word::Epoch(word % 8) };
                let before = self.control.get(word);
                self.control.apply(&Write::Word(word, value));
                self.peers.go(0);
                self.peers.come();
                self.ids.extend(self.peers.connect_last(self.owner.provider().id()));
                if matches!(word, Word::Head(_)) {
                    self.control.set(word, before);
                }
            }
            Step::Write(ref write) => self.control.apply(write),
            Step::Plant { serial, len } => self.plant(serial, len),
        }
        self.owner.check();
        self.descriptors.drain(..self.descriptors.len().saturating_sub(REMEMBERED));
        self.ids.drain(..self.ids.len().saturating_sub(REMEMBERED));
    }

    fn seen(&self, pick: u8) -> Option<Descriptor> {
        self.descriptors.get(usize::from(pick) % self.descriptors.len().max(1)).copied()
    }

    fn attach(&mut self, client: u8, pick: u8, changes: &[Change]) {
        if let Some(descriptor) = self.seen(pick).and_then(|seen| forge(&seen, changes)) {
            self.peers.attach(client, &descriptor);
        }
    }

    fn plant(&mut self, serial: u8, len: u32) {
        if self.planted.len() == MAX_PLANTED {
            return;
        }
        let path = PathBuf::from(format!("/dev/shm/{}.{}.{serial:x}", self.prefix, self.owner.provider().id()));
        // An existing file belongs to another object, and its length must not change.
        if let Ok(file) = File::options().write(true).create_new(true).open(&path) {
            file.set_len(u64::from(len) % (1 << 24)).expect("a sparse file");
            self.planted.push(path);
        }
    }

    fn end(self, provider_first: bool) {
        let Self { owner, peers, planted, .. } = self;
        owner.end(provider_first);
        peers.read_all();
        drop(peers);
        planted.iter().for_each(|path| outside::remove(path));
    }
}
