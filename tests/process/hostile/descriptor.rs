//! Forged descriptors and peer ids, against a provider that is not attacked otherwise. Each one
//! that opens shows a complete published message; each one that is refused has no effect.

use super::layout::RECORDS;
use super::{outside, Many};
use arbitrary::Arbitrary;
use shm_pool::{
    AttachError, Client, Descriptor, Namespace, PeerId, Provider, ShareError, ShmBytes, Tuning,
};
use std::hint::black_box;

/// Lengths of the published messages: an empty, a small and a large one.
const LENGTHS: [usize; 3] = [0, 1000, 70_000];

/// Forged descriptors and ids, tried one after another.
#[derive(Arbitrary, Clone, Debug)]
pub(crate) struct Forgeries(Many<Forgery, { usize::MAX }>);

#[derive(Arbitrary, Clone, Debug)]
enum Forgery {
    /// A descriptor's bytes, unchanged.
    Raw([u8; Descriptor::SIZE]),
    /// A descriptor's bytes, with the right checksum.
    Signed([u8; Descriptor::SIZE]),
    /// A descriptor that was sent, with changes.
    Changed(u8, Vec<Change>),
    /// A peer id that a message is granted to.
    Peer([u8; PeerId::SIZE]),
    /// The client's own id, with some bytes changed.
    ChangedPeer(Vec<(u8, u8)>),
}

struct Scene {
    provider: Provider,
    messages: Vec<ShmBytes>,
    sent: Vec<Descriptor>,
    client: Client,
    peer: PeerId,
}

impl Forgeries {
    /// Tries the forgeries with a provider and a client of this prefix, which is used only here.
    pub(crate) fn run(&self, prefix: &str) {
        let scene = Scene::new(prefix);
        for forgery in &self.0 .0 {
            scene.try_out(forgery);
        }
        scene.end();
        outside::assert_nothing_left(prefix);
    }
}

impl Scene {
    fn new(prefix: &str) -> Self {
        let builder = Provider::builder()
            .namespace(&Namespace::new(prefix).unwrap())
            .max_bytes(1 << 20)
            .tuning(Tuning::new().arena_size(64 << 10));
        let provider = builder
            .max_shared(RECORDS as usize)
            .build()
            .expect("a provider");
        let mut messages = Vec::new();
        let mut sent = Vec::new();
        for (nth, len) in LENGTHS.into_iter().enumerate() {
            let mut buffer = provider.alloc(len).expect("room");
            buffer.fill(nth as u8);
            let message = buffer.freeze();
            sent.push(message.descriptor().expect("a record"));
            messages.push(message);
        }
        let client = Client::in_namespace(&Namespace::new(prefix).unwrap());
        let peer = client.connect(provider.id()).expect("a slot");
        Self {
            provider,
            messages,
            sent,
            client,
            peer,
        }
    }

    fn try_out(&self, forgery: &Forgery) {
        match forgery {
            Forgery::Raw(bytes) => match Descriptor::from_bytes(*bytes) {
                Ok(descriptor) => self.attach(&descriptor),
                Err(error) => drop(black_box(error.to_string())),
            },
            Forgery::Signed(bytes) => {
                for descriptor in sign(*bytes).iter() {
                    self.attach(descriptor);
                }
            }
            Forgery::Changed(pick, changes) => {
                let seen = &self.sent[usize::from(*pick) % self.sent.len()];
                for descriptor in forge(seen, changes).iter() {
                    self.attach(descriptor);
                }
            }
            Forgery::Peer(bytes) => self.grant(PeerId::from_bytes(*bytes)),
            Forgery::ChangedPeer(changes) => {
                let mut bytes = self.peer.to_bytes();
                for (at, byte) in changes {
                    bytes[usize::from(*at) % PeerId::SIZE] = *byte;
                }
                self.grant(PeerId::from_bytes(bytes));
            }
        }
    }

    fn attach(&self, descriptor: &Descriptor) {
        match self.client.attach(descriptor) {
            Ok(view) => {
                let is_message = |message: &ShmBytes| view[..] == message[..];
                assert!(
                    self.messages.iter().any(is_message),
                    "{descriptor:?} opens what was never sent"
                );
                assert_eq!(view.len() as u64, descriptor.payload_len());
            }
            Err(error) => {
                assert!(
                    !matches!(error, AttachError::Os(_)),
                    "{descriptor:?} goes into a system call: {error}"
                );
                black_box(error.to_string());
            }
        }
        assert!(
            self.messages.iter().all(|message| !message.is_leased()),
            "{descriptor:?} leaves a lease behind"
        );
    }

    fn grant(&self, peer: PeerId) {
        let message = &self.messages[1];
        match message.grant(peer) {
            Ok(granted) => {
                assert_eq!(peer, self.peer, "a grant to a peer that is not there");
                assert_eq!(
                    self.client.attach(&granted).expect("a grant")[..],
                    message[..]
                );
            }
            Err(error) => {
                let is_right = matches!(
                    error,
                    ShareError::PeerDisconnected(_) | ShareError::OtherProvider(_)
                );
                assert!(is_right && peer != self.peer, "{error}");
            }
        }
        assert!(!message.is_leased(), "{peer:?} leaves a lease behind");
    }

    fn end(self) {
        let Self {
            provider,
            messages,
            client,
            ..
        } = self;
        for message in messages {
            assert!(message.try_into_mut().is_ok(), "nobody has a lease");
        }
        provider.trim();
        assert_eq!(provider.stats().bytes_held, 0);
        drop(client);
    }
}

/// A change that a forger makes to a descriptor it has seen.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(crate) enum Change {
    Grant(u8),
    Record(u32),
    SmallRecord(u8),
    Provider(u64),
    Generation(u64),
    GenerationBy(i8),
    Len(u64),
    LenBy(i8),
    Byte(u8, u8),
}

/// Returns the descriptor with these changes, or `None` if it no longer parses.
pub(crate) fn forge(seen: &Descriptor, changes: &[Change]) -> Option<Descriptor> {
    let mut bytes = seen.to_bytes();
    for change in changes {
        change.apply(&mut bytes);
    }
    sign(bytes)
}

/// Corrects the checksum. Returns `None` if the magic number or the version is wrong.
pub(crate) fn sign(mut bytes: [u8; Descriptor::SIZE]) -> Option<Descriptor> {
    if let Err(error) = Descriptor::from_bytes(bytes) {
        let text = error.to_string();
        let (_, expected) = text.split_once("instead of 0x")?;
        let expected = u16::from_str_radix(&expected[..4], 16).unwrap();
        bytes[30..].copy_from_slice(&expected.to_le_bytes());
    }
    Descriptor::from_bytes(bytes).ok()
}

impl Change {
    fn apply(self, bytes: &mut [u8; Descriptor::SIZE]) {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let len = |len: u64| len.to_le_bytes()[..6].to_vec();
        let (at, new) = match self {
            Self::Grant(slot) => (3, vec![slot]),
            Self::Record(record) => (4, record.to_le_bytes().to_vec()),
            Self::SmallRecord(record) => (4, u32::from(record).to_le_bytes().to_vec()),
            Self::Provider(id) => (8, id.to_le_bytes().to_vec()),
            Self::Generation(generation) => (16, generation.to_le_bytes().to_vec()),
            Self::GenerationBy(step) => (
                16,
                word(16)
                    .wrapping_add_signed(step.into())
                    .to_le_bytes()
                    .to_vec(),
            ),
            Self::Len(bytes) => (24, len(bytes)),
            Self::LenBy(step) => (24, len(word(24).wrapping_add_signed(step.into()))),
            Self::Byte(at, byte) => (usize::from(at) % Descriptor::SIZE, vec![byte]),
        };
        bytes[at..at + new.len()].copy_from_slice(&new);
    }
}
