//! A real /dev/shm of 4 MiB that is filled, freed and used again: no memory is lost from round to
//! round, peers keep what they read, and what killed owners leave makes room (D9). `full_shm` tests
//! what a full /dev/shm does to a single call.

use crate::child::{self, Child};
use crate::peer::{Peer, View};
use crate::shm::{self, Names};
use crate::spaces;
use crate::wire::{Link, Message};
use shm_pool::{AllocErrorKind, BuildError, Provider, ProviderBuilder, ShmBuf, ShmBufMut};
use std::fs::{self, File};
use std::thread;

/// The longest heap.
const HEAP: usize = 256 << 10;

/// Lengths of messages that fill /dev/shm in turn.
const LENGTHS: [usize; 4] = [256 << 10, 4 << 10, 1 << 20, 100_000];
const ROUNDS: usize = 40;

#[test]
fn fill_and_free() {
    run("rounds");
}

/// A full /dev/shm takes no messages from their readers, and has room again once they are released.
#[test]
fn readers_in_full_shm() {
    run("leased");
}

#[test]
fn killed_owners_make_room() {
    run("swept");
}

/// One message that can never fit does not cost all others their warm memory.
#[test]
fn hopeless_request_spares_idle() {
    run("judged");
}

#[test]
fn threads_in_full_shm() {
    run("threads");
}

/// A reader that was late for a large message does not make a publisher fail despite idle memory.
#[test]
fn full_shm_passes_leased_class() {
    run("late");
}

fn run(what: &str) {
    let names = Names::new(&format!("small-{what}"));
    child::run_in_small_shm("small-shm", &[names.prefix(), what]);
}

role!("small-shm", role);

/// The role, in a process whose /dev/shm has 4 MiB. The peers and owners that it starts share it.
fn role(link: &Link, arguments: &[&str]) {
    let prefix = arguments[0];
    let empty = spaces::free_shm();
    match arguments[1] {
        "rounds" => rounds(prefix),
        "leased" => leased(prefix),
        "swept" => swept(prefix),
        "threads" => threads(prefix),
        "judged" => judged(prefix),
        "late" => late(prefix),
        // The owner that `swept` kills.
        _ => return fill_and_wait(link, prefix),
    }
    assert_eq!((shm::objects(prefix), shm::mappings(prefix)), (vec![], 0));
    assert_eq!(spaces::free_shm(), empty, "memory of /dev/shm was lost");
    link.send(&Message::Done);
}

fn builder(prefix: &str) -> ProviderBuilder {
    Provider::builder().name_prefix(prefix).max_bytes(1 << 30).arena_size(64 << 10).max_shared(64)
}

/// Allocates until the system has no memory left, and checks that the error says so. Fills each
/// buffer with its number.
fn fill(provider: &Provider, len: usize) -> Vec<ShmBufMut> {
    let mut all = Vec::new();
    loop {
        match provider.alloc(len) {
            Ok(mut buffer) => {
                buffer.fill(all.len() as u8);
                all.push(buffer);
            }
            Err(error) => {
                let AllocErrorKind::Os(error) = error.kind() else { panic!("{error}") };
                assert_eq!((error.call(), error.errno()), ("posix_fallocate", Some(libc::ENOSPC)), "{error}");
                return all;
            }
        }
    }
}

/// Checks that each buffer still has the contents that [`fill`] wrote.
fn assert_whole(all: &[ShmBufMut]) {
    let is_whole =
        |(number, bytes): (usize, &ShmBufMut)| bytes[0] == number as u8 && bytes[1..] == bytes[..bytes.len() - 1];
    assert!(all.iter().enumerate().all(is_whole), "a buffer was changed by somebody else");
}

fn judged(prefix: &str) {
    let provider = builder(prefix).idle_window(0).build().unwrap();
    let idle = || provider.stats().classes.iter().map(|class| class.idle).sum::<usize>();
    drop([provider.alloc(1 << 20).unwrap(), provider.alloc(1 << 20).unwrap()]);
    // Another file fills the file system, up to half a chunk.
    let name = format!("/dev/shm/{prefix}.others");
    let others = File::create(&name).unwrap();
    nix::fcntl::posix_fallocate(&others, 0, (spaces::free_shm() - (512 << 10)) as libc::off_t).unwrap();
    // The idle chunks and the rest are 2.5 MiB.
    for _ in 0..3 {
        assert!(provider.alloc(3 << 20).unwrap_err().is_exhausted());
        assert_eq!(idle(), 2, "destroyed in vain");
    }
    assert_eq!(provider.alloc(2 << 20).unwrap().len(), 2 << 20, "what would do is destroyed");
    assert_eq!(idle(), 1);
    fs::remove_file(name).unwrap();
}

fn late(prefix: &str) {
    let provider = builder(prefix).max_idle_per_class(64).idle_window(0).build().unwrap();
    let client = shm::client(prefix);
    let large = provider.alloc(1 << 20).unwrap().freeze();
    let (descriptor, small) = (large.descriptor().unwrap(), fill(&provider, 64 << 10));
    drop((large, small));
    let view = client.attach(&descriptor).expect("nobody has used it since");
    provider.alloc(3 << 19).expect("smaller ones are idle").fill(1);
    drop((view, provider, client));
}

fn rounds(prefix: &str) {
    let provider = builder(prefix).build().unwrap();
    let (built, descriptors) = (spaces::free_shm(), shm::open_descriptors());
    let mut counts = [0; LENGTHS.len()];
    for round in 0..ROUNDS {
        let at = round % LENGTHS.len();
        // In every other cycle, the idle chunks of the last round's class stay and must be evicted.
        if round / LENGTHS.len() % 2 == 0 {
            provider.trim();
            assert_eq!((spaces::free_shm(), provider.stats().bytes_held), (built, 0), "round {round}");
        }
        let mut all = fill(&provider, LENGTHS[at]);
        let count = counts[at].max(all.len());
        assert_eq!(all.len(), count, "round {round}: fewer than at first");
        counts[at] = count;
        assert_whole(&all);
        // Once there is room, the very next allocation succeeds, in every class. Smaller messages
        // may share a heap, so all messages of a heap must be dropped.
        for len in LENGTHS {
            let shared = if len > LENGTHS[at] { HEAP } else { 0 };
            all.truncate(all.len().saturating_sub(1 + (len + shared) / LENGTHS[at]));
            provider.alloc(len).unwrap_or_else(|error| panic!("round {round}, {len} bytes: {error}")).fill(1);
        }
    }
    assert!(counts.iter().zip(LENGTHS).all(|(count, len)| count * len > 2 << 20), "most of 4 MiB: {counts:?}");
    provider.trim();
    assert_eq!((spaces::free_shm(), shm::objects(prefix).len()), (built, 1));
    assert_eq!((shm::open_descriptors(), shm::mappings(prefix)), (descriptors, 1));
}

/// Publishes a message, and has a peer attach to it.
fn read(peer: &Peer, provider: &Provider, len: usize, seed: u64) -> View {
    let mut buffer = provider.alloc(len).unwrap();
    shm::fill(&mut buffer, seed);
    peer.attach(buffer.freeze().descriptor().unwrap(), seed).unwrap()
}

fn leased(prefix: &str) {
    const LARGE: usize = 512 << 10;
    let provider = builder(prefix).build().unwrap();
    let built = spaces::free_shm();
    for round in 0..5 {
        let [goes, dies] = [(); 2].map(|()| Peer::start(prefix));
        // Each peer reads a large message and a small one.
        let views = [LARGE, 4 << 10].map(|len| read(&goes, &provider, len, round));
        let lost = [LARGE, 4 << 10].map(|len| read(&dies, &provider, len, round + 100));
        let mut held: Vec<_> =
            [256 << 10, 32 << 10, 4 << 10].into_iter().flat_map(|len| fill(&provider, len)).collect();
        assert!(fill(&provider, LARGE).is_empty(), "everything is taken, or read");
        goes.release(views[0]);
        held.extend(fill(&provider, LARGE));
        assert_eq!(provider.stats().bytes_leased, LARGE + 2 * (4 << 10), "round {round}: of one that lives");
        lost.iter().for_each(|&view| dies.check(view));
        dies.kill();
        let last = fill(&provider, LARGE);
        assert_eq!(last.len(), 1, "round {round}: what the killed peer read makes room");
        assert_eq!(provider.stats().bytes_leased, 4 << 10, "round {round}: of one that lives");
        goes.check(views[1]);
        goes.release(views[1]);
        drop((held, last));
        provider.trim();
        assert_eq!((spaces::free_shm(), provider.stats().bytes_held), (built, 0), "round {round}");
        // This peer still has everything mapped, which keeps no memory.
        drop(goes);
    }
}

/// The role of an owner that is killed while /dev/shm is full.
fn fill_and_wait(link: &Link, prefix: &str) {
    let provider = builder(prefix).build().unwrap();
    let mut all: Vec<ShmBufMut> = [256 << 10, 4 << 10].into_iter().flat_map(|len| fill(&provider, len)).collect();
    shm::fill(&mut all[0], 0);
    let all: Vec<ShmBuf> = all.into_iter().map(ShmBuf::from).collect();
    link.send(&Message::Sent(all[0].descriptor().unwrap()));
    assert_eq!(link.receive().unwrap(), None);
}

fn swept(prefix: &str) {
    for _ in 0..5 {
        let owner = Child::start("small-shm", &[prefix, "fill"]);
        let Message::Sent(descriptor) = owner.hear() else { panic!("not a descriptor") };
        let peer = Peer::start(prefix);
        let view = peer.attach(descriptor, 0).unwrap();
        let objects = shm::objects(prefix);
        // With a control object of more than a megabyte.
        let next = || builder(prefix).max_shared(8192).build();
        let BuildError::Os(error) = next().unwrap_err() else { panic!("another error") };
        assert_eq!(error.errno(), Some(libc::ENOSPC), "the owner lives: {error}");
        assert_eq!(shm::objects(prefix), objects, "a provider that could not be built leaves nothing");
        owner.kill();
        // A peer that reads one message keeps the memory of its whole segment.
        peer.check(view);
        peer.release(view);
        assert_eq!(peer.trim(), 2, "the control object and the segment");
        let provider = next().expect("what the killed owner left makes room");
        assert_eq!(shm::objects(prefix).len(), 1);
        assert!(fill(&provider, 1 << 20).len() >= 2, "and not only for that");
    }
}

fn threads(prefix: &str) {
    let provider = builder(prefix).build().unwrap();
    let built = spaces::free_shm();
    thread::scope(|scope| {
        for len in [256 << 10, 100_000, 32 << 10, 4 << 10] {
            let provider = &provider;
            scope.spawn(move || {
                for _ in 0..20 {
                    assert_whole(&fill(provider, len));
                }
            });
        }
    });
    provider.trim();
    assert_eq!((spaces::free_shm(), provider.stats().bytes_held, shm::objects(prefix).len()), (built, 0, 1));
    assert!(fill(&provider, 256 << 10).len() >= 14, "all of it can be used by one thread again");
}
