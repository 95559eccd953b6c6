//! The memory of segments that their owner destroys returns to the system at once, even while peers
//! have them mapped, unless a peer reads them.

use crate::child;
use crate::peer::{Peer, View};
use crate::shm::{self, Names};
use crate::wire::{Link, Message};
use shm_pool::{Provider, ProviderBuilder, ShmBuf};
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;

/// The lengths of a message of whole pages, and of one that shares its pages.
const LENGTHS: [usize; 2] = [512 << 10, 4 << 10];
const ARENA: usize = 256 << 10;

fn message(provider: &Provider, len: usize, seed: u64) -> ShmBuf {
    let mut buffer = provider.alloc(len).unwrap();
    shm::fill(&mut buffer, seed);
    buffer.freeze()
}

fn builder(names: &Names) -> ProviderBuilder {
    names.provider().max_bytes(8 << 20).arena_size(ARENA)
}

/// Opens the only segment. Like a mapping, an open file keeps the memory of a removed object.
fn segment(names: &Names) -> File {
    let objects = shm::objects(names.prefix());
    let mut segments = objects.iter().filter(|name| !name.ends_with(".ctl"));
    let segment = File::open(shm::path(segments.next().expect("a segment"))).unwrap();
    assert_eq!(segments.next(), None, "one segment is enough");
    segment
}

fn metadata(segment: &File) -> Metadata {
    segment.metadata().unwrap()
}

/// Returns an object's memory in bytes.
fn memory(segment: &File) -> u64 {
    metadata(segment).blocks() * 512
}

/// A peer that has read and released the message, and still has its segment mapped.
fn reader_of(names: &Names, message: &ShmBuf, seed: u64) -> Peer {
    let peer = Peer::start(names.prefix());
    let view = peer.attach(message.descriptor().unwrap(), seed).unwrap();
    peer.release(view);
    assert_eq!(peer.segments(), 1);
    peer
}

/// Guards against idle peers that keep memory which its owner has destroyed and no cap counts.
#[test]
fn mapping_keeps_no_memory() {
    type Destroy = fn(Provider) -> Option<Provider>;
    let ways: [(&str, usize, Destroy); 3] = [
        ("trimmed", 4, |provider| {
            provider.trim();
            Some(provider)
        }),
        ("kept-nothing", 0, Some),
        ("closed", 4, |_| None),
    ];
    for (len, (how, max_idle, destroy)) in LENGTHS.into_iter().flat_map(|len| ways.map(|way| (len, way))) {
        let names = Names::new(&format!("back-{len}-{how}"));
        let provider = builder(&names).max_idle_per_class(max_idle).build().unwrap();
        let message = message(&provider, len, 1);
        let peer = reader_of(&names, &message, 1);
        let segment = segment(&names);
        let size = metadata(&segment).len();
        assert!((len as u64..=size).contains(&memory(&segment)), "memory of a message is reserved");
        drop(message);
        let open = destroy(provider);
        assert_eq!(open.as_ref().map_or(0, |provider| provider.stats().bytes_held), 0);
        assert_eq!(metadata(&segment).nlink(), 0, "the segment is destroyed");
        assert_eq!(peer.mappings(), 2, "the peer has it mapped, and the control object");
        assert_eq!(memory(&segment), 0, "{len} bytes, {how}: kept by a peer that does not read");
        assert_eq!(metadata(&segment).len(), size, "a peer that touched it would get a signal");
        let closed = if open.is_none() { 1 } else { 0 };
        assert_eq!(peer.trim(), 1 + closed, "the segment, and the control object of a provider that has closed");
    }
}

/// Neither a provider that closes nor a reader that drops its view affects what another reader
/// sees.
#[test]
fn view_keeps_memory() {
    for len in LENGTHS {
        let names = Names::new(&format!("back-view-{len}"));
        let provider = builder(&names).build().unwrap();
        let read = message(&provider, len, 2);
        let done = reader_of(&names, &read, 2);
        let reader = Peer::start(names.prefix());
        let view: View = reader.attach(read.descriptor().unwrap(), 2).unwrap();
        let segment = segment(&names);
        let before = memory(&segment);
        drop(read);
        provider.trim();
        assert_eq!((metadata(&segment).nlink(), memory(&segment)), (1, before), "a trim leaves it alone");
        drop(provider);
        assert_eq!((metadata(&segment).nlink(), memory(&segment)), (0, before), "{len} bytes: closed under a reader");
        reader.check(view);
        reader.release(view);
        drop((reader, done));
    }
}

/// Where /dev/shm is small, a peer that has mapped a large message does not prevent its owner from
/// making another.
#[test]
fn mapped_segment_makes_room() {
    let names = Names::new("back-small");
    child::run_in_small_shm("given-back", &[names.prefix()]);
}

role!("given-back", role);

/// The role, in a process with a /dev/shm of 4 MiB, shared with the peer that it starts.
fn role(link: &Link, arguments: &[&str]) {
    let prefix = arguments[0];
    let provider = Provider::builder().name_prefix(prefix).max_bytes(1 << 30).max_shared(64).build().unwrap();
    let peer = Peer::start(prefix);
    for (seed, len) in [3 << 20, 2 << 20, 3 << 20].into_iter().enumerate() {
        let message = message(&provider, len, seed as u64);
        let view = peer.attach(message.descriptor().unwrap(), seed as u64).unwrap();
        peer.release(view);
    }
    drop((peer, provider));
    assert_eq!(shm::objects(prefix), [""; 0]);
    link.send(&Message::Done);
}
