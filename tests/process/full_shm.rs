//! A small or full /dev/shm: a clear error on allocation, never a signal on access, and no memory
//! lost (D9).

use crate::child::{self, in_small_shm, skip_without_mounts, try_in_child, Child};
use crate::own_shm::give_shm;
use crate::peer::{Peer, View};
use crate::shm::{self, Names};
use crate::sys::{self, mount};
use crate::wire::{Link, Message};
use shm_pool::backend::{Backend, Chunk, Collect, SegmentFile, SegmentSource};
use shm_pool::{
    AllocError, BuildError, Client, Namespace, OsError, Provider, ProviderBuilder, ShmBytes,
    ShmBytesMut, Tuning,
};
use std::alloc::Layout;
use std::fs::{self, File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex};
use std::thread;

const LEN: usize = 256 << 10;
const MIB: usize = 1 << 20;

/// The first access to a page does not kill the process, and a refusal takes no memory.
#[test]
fn enospc() {
    in_small_shm(|prefix| {
        let builder = || {
            Provider::builder()
                .namespace(&Namespace::new(prefix).unwrap())
                .max_bytes(1 << 30)
                .tuning(Tuning::new().arena_size(64 << 10))
        };
        let provider = builder().max_shared(64).build().unwrap();
        let mut large = Vec::new();
        let error = loop {
            match provider.alloc(LEN) {
                Ok(buffer) => large.push(buffer),
                Err(error) => break error,
            }
        };
        assert_is_full(os(&error), LEN);
        assert!(
            (10..16).contains(&large.len()),
            "{} of them fit 4 MiB",
            large.len()
        );
        assert_eq!(
            shm::objects(prefix).len(),
            1 + provider.stats().segments,
            "nothing is left half-made"
        );
        assert_eq!(
            provider.stats().bytes_held,
            large.len() * LEN,
            "nor accounted for"
        );

        // Small buffers take the rest.
        let mut small: Vec<_> = std::iter::from_fn(|| provider.alloc(4 << 10).ok()).collect();
        assert_is_full(os(&provider.alloc(4 << 10).unwrap_err()), 4 << 10);
        assert_is_full(os(&provider.reserve(2 * LEN, 1).unwrap_err()), 2 * LEN);
        let objects = shm::objects(prefix);
        let BuildError::Os(error) = builder().max_shared(4096).build().unwrap_err() else {
            panic!("another error")
        };
        assert_is_full(&error, error.bytes().unwrap());
        assert_eq!(
            shm::objects(prefix),
            objects,
            "a provider that could not be built leaves nothing"
        );

        for (seed, buffer) in large.iter_mut().chain(&mut small).enumerate() {
            shm::fill(buffer, seed as u64);
        }
        for (seed, buffer) in large.iter().chain(&small).enumerate() {
            shm::check(buffer, seed as u64).unwrap();
        }

        drop(large.pop());
        large.push(
            provider
                .alloc(LEN)
                .expect("the same class: the chunk that was dropped"),
        );
        drop(large.pop());
        small.push(
            provider
                .alloc(4 << 10)
                .expect("another class: its memory goes to that one"),
        );
        drop((large, small));
        provider
            .alloc(3 << 20)
            .expect("all that is idle makes room for one large buffer")
            .fill(1);
        drop(provider);
        assert_eq!(shm::objects(prefix), [""; 0]);
    });
}

/// Guards against an operator who makes room where there is plenty.
#[test]
fn no_free_inodes() {
    let few = |command: &mut _| give_shm(command, b"size=4m,nr_inodes=8,mode=1777\0");
    let started = try_in_child("", few, |prefix| {
        let file = |number| shm::path(&format!("{prefix}.file{number}"));
        let provider = Provider::builder()
            .namespace(&Namespace::new(prefix).unwrap())
            .build()
            .unwrap();
        let mut made = 0;
        while made < 8 && File::create(file(made)).is_ok() {
            made += 1;
        }
        assert!(made < 8);
        let BuildError::Os(built) = Provider::builder()
            .namespace(&Namespace::new(prefix).unwrap())
            .build()
            .unwrap_err()
        else {
            panic!()
        };
        for error in [os(&provider.alloc(100).unwrap_err()), &built] {
            let text = error.to_string();
            assert!(
                error.errno() == Some(libc::ENOSPC) && text.contains("inodes"),
                "{text}"
            );
            assert!(
                !text.contains("make room") && !text.contains("bytes free"),
                "{text}"
            );
        }
        for number in 0..made {
            fs::remove_file(file(number)).unwrap();
        }
        provider.alloc(100).expect("an inode is free again");
        drop(provider);
    });
    skip_without_mounts(started);
}

fn assert_is_full(error: &OsError, bytes: usize) {
    assert_eq!(
        (error.errno(), error.bytes()),
        (Some(libc::ENOSPC), Some(bytes)),
        "{error}"
    );
    assert!(error.object().starts_with("/dev/shm/"), "{error}");
    let text = error.to_string();
    assert!(
        ["/dev/shm has ", " bytes free", "enlarge it"]
            .iter()
            .all(|words| text.contains(words)),
        "{text}"
    );
}

fn os(error: &AllocError) -> &OsError {
    match error {
        AllocError::Os(error) => error,
        _ => panic!("{error}"),
    }
}

// ---- filled, freed and used again ---------------------------------------------------------------

/// The longest heap.
const HEAP: usize = 256 << 10;

/// Lengths of messages that fill /dev/shm in turn.
const LENGTHS: [usize; 4] = [256 << 10, 4 << 10, 1 << 20, 100_000];
const ROUNDS: usize = 40;

#[test]
fn fill_and_free() {
    in_small_shm(|prefix| {
        let _nothing_is_lost = Leftovers::before(prefix);
        let provider = builder(prefix).build().unwrap();
        let built = sys::free_shm();
        let descriptors = shm::open_descriptors();
        let mut counts = [0; LENGTHS.len()];
        for round in 0..ROUNDS {
            let at = round % LENGTHS.len();
            // In every other cycle, the idle chunks of the last round's class stay and must be evicted.
            if round / LENGTHS.len() % 2 == 0 {
                provider.trim();
                assert_eq!(
                    (sys::free_shm(), provider.stats().bytes_held),
                    (built, 0),
                    "round {round}"
                );
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
                match provider.alloc(len) {
                    Ok(mut buffer) => buffer.fill(1),
                    Err(error) => panic!("round {round}, {len} bytes: {error}"),
                }
            }
        }
        assert!(
            counts
                .iter()
                .zip(LENGTHS)
                .all(|(count, len)| count * len > 2 << 20),
            "most of 4 MiB: {counts:?}"
        );
        provider.trim();
        assert_eq!((sys::free_shm(), shm::objects(prefix).len()), (built, 1));
        assert_eq!(
            (shm::open_descriptors(), shm::mappings(prefix)),
            (descriptors, 1)
        );
    });
}

/// A full /dev/shm takes no messages from their readers, and has room again once they are released.
#[test]
fn readers_in_full_shm() {
    in_small_shm(|prefix| {
        let _nothing_is_lost = Leftovers::before(prefix);
        const LARGE: usize = 512 << 10;
        let provider = builder(prefix).build().unwrap();
        let built = sys::free_shm();
        for round in 0..5 {
            let goes = Peer::start(prefix);
            let dies = Peer::start(prefix);
            // Each peer reads a large message and a small one.
            let views = [LARGE, 4 << 10].map(|len| read(&goes, &provider, len, round));
            let lost = [LARGE, 4 << 10].map(|len| read(&dies, &provider, len, round + 100));
            let mut held = Vec::new();
            for len in [256 << 10, 32 << 10, 4 << 10] {
                held.extend(fill(&provider, len));
            }
            assert!(
                fill(&provider, LARGE).is_empty(),
                "everything is taken, or read"
            );
            goes.release(views[0]);
            held.extend(fill(&provider, LARGE));
            assert_eq!(
                provider.stats().bytes_leased,
                LARGE + 2 * (4 << 10),
                "round {round}: of one that lives"
            );
            for &view in &lost {
                dies.check(view);
            }
            dies.kill();
            let last = fill(&provider, LARGE);
            assert_eq!(
                last.len(),
                1,
                "round {round}: what the killed peer read makes room"
            );
            assert_eq!(
                provider.stats().bytes_leased,
                4 << 10,
                "round {round}: of one that lives"
            );
            goes.check(views[1]);
            goes.release(views[1]);
            drop((held, last));
            provider.trim();
            assert_eq!(
                (sys::free_shm(), provider.stats().bytes_held),
                (built, 0),
                "round {round}"
            );
            // This peer still has everything mapped, which keeps no memory.
            drop(goes);
        }
    });
}

#[test]
fn killed_owners_make_room() {
    in_small_shm(|prefix| {
        let _nothing_is_lost = Leftovers::before(prefix);
        for _ in 0..5 {
            let owner = Child::start("small-shm-owner", &[prefix]);
            let descriptor = owner.sent();
            let peer = Peer::start(prefix);
            let view = peer.attach(descriptor, 0).unwrap();
            let objects = shm::objects(prefix);
            // With a control object of more than a megabyte.
            let next = || builder(prefix).max_shared(8192).build();
            let BuildError::Os(error) = next().unwrap_err() else {
                panic!("another error")
            };
            assert_eq!(
                error.errno(),
                Some(libc::ENOSPC),
                "the owner lives: {error}"
            );
            assert_eq!(
                shm::objects(prefix),
                objects,
                "a provider that could not be built leaves nothing"
            );
            owner.kill();
            // A peer that reads one message keeps the memory of its whole segment.
            peer.check(view);
            peer.release(view);
            assert_eq!(peer.unmap_unused(), 2, "the control object and the segment");
            let provider = next().expect("what the killed owner left makes room");
            assert_eq!(shm::objects(prefix).len(), 1);
            assert!(fill(&provider, 1 << 20).len() >= 2, "and not only for that");
        }
    });
}

/// One message that can never fit does not cost all others their warm memory.
#[test]
fn hopeless_request_spares_idle() {
    in_small_shm(|prefix| {
        let _nothing_is_lost = Leftovers::before(prefix);
        let provider = builder(prefix)
            .tuning(Tuning::new().arena_size(64 << 10).idle_window(0))
            .build()
            .unwrap();
        let idle = || {
            provider
                .stats()
                .classes
                .iter()
                .map(|class| class.idle)
                .sum::<usize>()
        };
        drop([
            provider.alloc(1 << 20).unwrap(),
            provider.alloc(1 << 20).unwrap(),
        ]);
        // Another file fills the file system, up to half a chunk.
        let name = format!("/dev/shm/{prefix}.others");
        let others = File::create(&name).unwrap();
        nix::fcntl::posix_fallocate(&others, 0, (sys::free_shm() - (512 << 10)) as libc::off_t)
            .unwrap();
        // The idle chunks and the rest are 2.5 MiB.
        for _ in 0..3 {
            assert!(provider.alloc(3 << 20).unwrap_err().is_exhausted());
            assert_eq!(idle(), 2, "destroyed in vain");
        }
        assert_eq!(
            provider.alloc(2 << 20).unwrap().len(),
            2 << 20,
            "what would do is destroyed"
        );
        assert_eq!(idle(), 1);
        fs::remove_file(name).unwrap();
    });
}

#[test]
fn threads_in_full_shm() {
    in_small_shm(|prefix| {
        let _nothing_is_lost = Leftovers::before(prefix);
        let provider = builder(prefix).build().unwrap();
        let built = sys::free_shm();
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
        assert_eq!(
            (
                sys::free_shm(),
                provider.stats().bytes_held,
                shm::objects(prefix).len()
            ),
            (built, 0, 1)
        );
        assert!(
            fill(&provider, 256 << 10).len() >= 14,
            "all of it can be used by one thread again"
        );
    });
}

/// A reader that was late for a large message does not make a publisher fail despite idle memory.
#[test]
fn full_shm_passes_leased_class() {
    in_small_shm(|prefix| {
        let _nothing_is_lost = Leftovers::before(prefix);
        let provider = builder(prefix)
            .max_idle_per_class(64)
            .tuning(Tuning::new().arena_size(64 << 10).idle_window(0))
            .build()
            .unwrap();
        let client = shm::client(prefix);
        let large = provider.alloc(1 << 20).unwrap().freeze();
        let descriptor = large.descriptor().unwrap();
        let small = fill(&provider, 64 << 10);
        drop((large, small));
        let view = client
            .attach(&descriptor)
            .expect("nobody has used it since");
        provider
            .alloc(3 << 19)
            .expect("smaller ones are idle")
            .fill(1);
        drop((view, provider, client));
    });
}

/// Checks on drop that nothing is left in /dev/shm or mapped.
struct Leftovers<'a> {
    prefix: &'a str,
    free: u64,
}

impl<'a> Leftovers<'a> {
    fn before(prefix: &'a str) -> Self {
        Self {
            prefix,
            free: sys::free_shm(),
        }
    }
}

impl Drop for Leftovers<'_> {
    fn drop(&mut self) {
        if !thread::panicking() {
            assert_eq!(
                (shm::objects(self.prefix), shm::mappings(self.prefix)),
                (vec![], 0)
            );
            assert_eq!(sys::free_shm(), self.free, "memory of /dev/shm was lost");
        }
    }
}

fn builder(prefix: &str) -> ProviderBuilder {
    Provider::builder()
        .namespace(&Namespace::new(prefix).unwrap())
        .max_bytes(1 << 30)
        .tuning(Tuning::new().arena_size(64 << 10))
        .max_shared(64)
}

/// Allocates until the system has no memory left, and checks that the error says so. Fills each
/// buffer with its number.
fn fill(provider: &Provider, len: usize) -> Vec<ShmBytesMut> {
    let mut all = Vec::new();
    loop {
        match provider.alloc(len) {
            Ok(mut buffer) => {
                buffer.fill(all.len() as u8);
                all.push(buffer);
            }
            Err(error) => {
                let AllocError::Os(error) = error else {
                    panic!("{error}")
                };
                assert_eq!(
                    (error.call(), error.errno()),
                    ("posix_fallocate", Some(libc::ENOSPC)),
                    "{error}"
                );
                return all;
            }
        }
    }
}

/// Checks that each buffer still has the contents that [`fill`] wrote.
fn assert_whole(all: &[ShmBytesMut]) {
    let is_whole = |(number, bytes): (usize, &ShmBytesMut)| {
        bytes[0] == number as u8 && bytes[1..] == bytes[..bytes.len() - 1]
    };
    assert!(
        all.iter().enumerate().all(is_whole),
        "a buffer was changed by somebody else"
    );
}

/// Publishes a message, and has a peer attach to it.
fn read(peer: &Peer, provider: &Provider, len: usize, seed: u64) -> View {
    peer.attach(
        shm::message(provider, len, seed).descriptor().unwrap(),
        seed,
    )
    .unwrap()
}

role!("small-shm-owner", fill_and_wait);

/// The role of an owner that is killed while /dev/shm is full.
fn fill_and_wait(link: &Link, arguments: &[&str]) {
    let provider = builder(arguments[0]).build().unwrap();
    let mut all: Vec<ShmBytesMut> = Vec::new();
    for len in [256 << 10, 4 << 10] {
        all.extend(fill(&provider, len));
    }
    shm::fill(&mut all[0], 0);
    let all: Vec<ShmBytes> = all.into_iter().map(ShmBytes::from).collect();
    link.send(&Message::Sent(all[0].descriptor().unwrap()));
    assert_eq!(link.receive().unwrap(), None);
}

/// Files in /dev/shm, for a backend.
struct Files(String);

impl SegmentSource for Files {
    fn create(&self, _len: usize) -> Result<SegmentFile, OsError> {
        let id = fs::read_dir("/dev/shm").unwrap().count() as u64;
        let path = format!("/dev/shm/{}.{id}", self.0);
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path);
        let file = file.map_err(|error| OsError::new("open", &path, error))?;
        Ok(SegmentFile {
            id,
            file,
            path: path.into(),
        })
    }

    fn remove(&self, id: u64, _file: File) {
        fs::remove_file(format!("/dev/shm/{}.{id}", self.0)).unwrap();
    }
}

/// Releases what it holds.
#[derive(Default)]
struct Held(Mutex<Vec<Chunk>>);

impl Collect for Held {
    fn collect(&self) -> bool {
        self.0.lock().unwrap().drain(..).count() > 0
    }
}

/// A segment for which there is no memory is removed, even if a collection then serves the request.
#[test]
fn backend_leaves_no_empty_segment() {
    in_small_shm(|prefix| {
        let held = Arc::new(Held::default());
        let builder = Backend::builder().max_bytes(64 * MIB).collect_early(false);
        let builder = builder.tuning(Tuning::new().arena_size(MIB));
        let backend = builder
            .build(Files(prefix.to_owned()))
            .unwrap()
            .with_collector(held.clone());
        for _ in 0..2 {
            let chunk = backend.alloc(layout(MIB / 2, 1)).unwrap();
            held.0.lock().unwrap().push(chunk);
        }
        assert_eq!(
            (backend.stats().segments, backend.stats().bytes_held),
            (1, MIB)
        );
        assert!(fs::write("/dev/shm/filler", vec![1; 8 * MIB]).is_err());
        let _chunk = backend.alloc(layout(MIB / 2, 1)).unwrap();
        assert!(held.0.lock().unwrap().is_empty());
        assert_eq!(
            (backend.stats().segments, backend.stats().bytes_mapped),
            (1, MIB)
        );
    });
}

// ---- a file system of its own -------------------------------------------------------------------

/// A full tmpfs of the pool itself is not blamed on /dev/shm, and does not kill the process.
#[test]
fn full_directory() {
    in_small_shm(|prefix| {
        let directory = "/dev/shm/full";
        if !has_mounted("tmpfs", directory, "size=1m") {
            return child::skip("a tmpfs cannot be mounted");
        }
        let provider = builder_in(prefix, directory).build().unwrap();
        let buffers: Vec<_> = std::iter::from_fn(|| provider.alloc(64 << 10).ok()).collect();
        assert!(
            (8..16).contains(&buffers.len()),
            "{} of them fit 1 MiB",
            buffers.len()
        );
        let error = provider.alloc(64 << 10).unwrap_err();
        let AllocError::Os(os) = &error else {
            panic!("{error}")
        };
        assert!(os.object().starts_with(directory), "{error}");
        assert!(
            os.to_string().contains("; /dev/shm/full has ")
                && os.to_string().contains(" of 1048576 bytes free"),
            "{os}"
        );
        drop((buffers, provider));
        assert_eq!(fs::read_dir(directory).unwrap().count(), 0);
    });
}

/// Objects would take whole huge pages, beyond the cap; a missing one would kill the process.
#[test]
fn hugetlbfs_is_refused() {
    in_small_shm(|prefix| {
        let directory = "/dev/shm/hugetlbfs";
        if !has_mounted("hugetlbfs", directory, "") {
            return child::skip("hugetlbfs cannot be mounted");
        }
        let error = builder_in(prefix, directory).build().unwrap_err();
        assert!(
            matches!(error, BuildError::Directory { .. })
                && error.to_string().contains("hugetlbfs"),
            "{error}"
        );
        assert_eq!(fs::read_dir(directory).unwrap().count(), 0);
    });
}

/// On every kind of tmpfs, messages are complete and the pool stays within its file system.
#[test]
fn huge_pages_by_mount() {
    in_small_shm(|prefix| {
        const HUGE: usize = 2 << 20;
        const CAP: usize = 8 * HUGE;
        for option in ["never", "advise", "within_size", "always"] {
            let directory = format!("/dev/shm/{option}");
            // With room for less than the cap.
            if !has_mounted("tmpfs", &directory, &format!("size=15m,huge={option}")) {
                return child::skip("a tmpfs with huge pages cannot be mounted");
            }
            let provider = builder_in(prefix, &directory)
                .max_bytes(CAP)
                .tuning(Tuning::new().arena_size(CAP).huge_pages(true))
                .build()
                .unwrap();
            let client = Client::in_namespace(&namespace_in(prefix, &directory));
            let mut messages = Vec::new();
            for round in 0..3 {
                let lens = [3 * HUGE, HUGE / 2, 100, HUGE, 80_000, HUGE + 4096];
                for (seed, len) in lens.into_iter().enumerate() {
                    let Ok(mut buffer) = provider.alloc(len) else {
                        break;
                    };
                    // Guards against a kernel that, asked for huge pages too early, shows peers what
                    // other processes had in that memory.
                    assert!(
                        round > 0 || buffer.iter().all(|&byte| byte == 0),
                        "huge={option}: memory of others"
                    );
                    shm::fill(&mut buffer, seed as u64);
                    messages.push((seed as u64, buffer.freeze()));
                }
                assert!(
                    messages.len() >= 4,
                    "huge={option}, round {round}: {}",
                    messages.len()
                );
                for (seed, message) in &messages {
                    let view = client.attach(&message.descriptor().unwrap()).unwrap();
                    shm::check(&view, *seed).unwrap();
                }
                // Every other one is kept, in part of a huge page or of several.
                let mut number = 0;
                messages.retain(|_| {
                    number += 1;
                    number % 2 == 0 && round < 2
                });
                provider.trim();
            }
            // Until the directory is full.
            let all: Vec<_> = std::iter::from_fn(|| provider.alloc(HUGE).ok()).collect();
            assert!(all.len() >= 5, "huge={option}: {}", all.len());
            drop((all, provider, client));
            assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
        }
    });
}

/// Mounts a file system at a directory below /dev/shm. Returns `false` where that is not permitted,
/// or the kernel does not support it.
fn has_mounted(kind: &str, directory: &str, options: &str) -> bool {
    fs::create_dir_all(directory).unwrap();
    let terminated = |text: &str| format!("{text}\0").into_bytes();
    mount(
        &terminated(kind),
        &terminated(directory),
        0,
        &terminated(options),
    )
    .is_ok()
}

fn namespace_in(prefix: &str, directory: &str) -> Namespace {
    shm::namespace(prefix).in_directory(directory).unwrap()
}

fn builder_in(prefix: &str, directory: &str) -> ProviderBuilder {
    Provider::builder()
        .namespace(&namespace_in(prefix, directory))
        .max_shared(64)
}

// ---- memory of segments that their owner destroys -----------------------------------------------

/// The lengths of a message of whole pages, and of one that shares its pages.
const GIVEN_BACK: [usize; 2] = [512 << 10, 4 << 10];
const ARENA: usize = 256 << 10;

fn peers_builder(names: &Names) -> ProviderBuilder {
    names
        .provider()
        .max_bytes(8 << 20)
        .tuning(Tuning::new().arena_size(ARENA))
}

/// Opens the only segment. Like a mapping, an open file keeps the memory of a removed object.
fn segment(names: &Names) -> File {
    let mut segments = shm::objects(names.prefix());
    segments.retain(|name| !name.ends_with(".ctl"));
    assert_eq!(segments.len(), 1, "one segment is enough");
    File::open(shm::path(&segments[0])).unwrap()
}

fn metadata(segment: &File) -> Metadata {
    segment.metadata().unwrap()
}

fn memory(segment: &File) -> u64 {
    metadata(segment).blocks() * 512
}

/// A peer that has read and released the message, and still has its segment mapped.
fn reader_of(names: &Names, message: &ShmBytes, seed: u64) -> Peer {
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
    let mut cases = Vec::new();
    for len in GIVEN_BACK {
        cases.extend(ways.map(|way| (len, way)));
    }
    for (len, (how, max_idle, destroy)) in cases {
        let names = Names::new(&format!("back-{len}-{how}"));
        let provider = peers_builder(&names)
            .max_idle_per_class(max_idle)
            .build()
            .unwrap();
        let message = shm::message(&provider, len, 1);
        let peer = reader_of(&names, &message, 1);
        let segment = segment(&names);
        let size = metadata(&segment).len();
        assert!(
            (len as u64..=size).contains(&memory(&segment)),
            "memory of a message is reserved"
        );
        drop(message);
        let open = destroy(provider);
        if let Some(provider) = &open {
            assert_eq!(provider.stats().bytes_held, 0);
        }
        assert_eq!(metadata(&segment).nlink(), 0, "the segment is destroyed");
        assert_eq!(
            peer.mappings(),
            2,
            "the peer has it mapped, and the control object"
        );
        assert_eq!(
            memory(&segment),
            0,
            "{len} bytes, {how}: kept by a peer that does not read"
        );
        assert_eq!(
            metadata(&segment).len(),
            size,
            "a peer that touched it would get a signal"
        );
        let closed = if open.is_none() { 1 } else { 0 };
        assert_eq!(
            peer.unmap_unused(),
            1 + closed,
            "the segment, and the control object of a provider that has closed"
        );
    }
}

/// Even if the provider closes, or another reader drops its view.
#[test]
fn view_keeps_memory() {
    for len in GIVEN_BACK {
        let names = Names::new(&format!("back-view-{len}"));
        let provider = peers_builder(&names).build().unwrap();
        let read = shm::message(&provider, len, 2);
        let done = reader_of(&names, &read, 2);
        let reader = Peer::start(names.prefix());
        let view: View = reader.attach(read.descriptor().unwrap(), 2).unwrap();
        let segment = segment(&names);
        let before = memory(&segment);
        drop(read);
        provider.trim();
        assert_eq!(
            (metadata(&segment).nlink(), memory(&segment)),
            (1, before),
            "a trim leaves it alone"
        );
        drop(provider);
        assert_eq!(
            (metadata(&segment).nlink(), memory(&segment)),
            (0, before),
            "{len} bytes: closed under a reader"
        );
        reader.check(view);
        reader.release(view);
        drop((reader, done));
    }
}

/// A peer that has mapped a large message does not prevent its owner from making another.
#[test]
fn mapped_segment_makes_room() {
    in_small_shm(|prefix| {
        let provider = Provider::builder()
            .namespace(&Namespace::new(prefix).unwrap())
            .max_bytes(1 << 30)
            .max_shared(64)
            .build()
            .unwrap();
        let peer = Peer::start(prefix);
        for (seed, len) in [3 << 20, 2 << 20, 3 << 20].into_iter().enumerate() {
            let message = shm::message(&provider, len, seed as u64);
            let view = peer
                .attach(message.descriptor().unwrap(), seed as u64)
                .unwrap();
            peer.release(view);
        }
        drop((peer, provider));
        assert_eq!(shm::objects(prefix), [""; 0]);
    });
}

fn layout(len: usize, align: usize) -> Layout {
    Layout::from_size_align(len, align).unwrap()
}
