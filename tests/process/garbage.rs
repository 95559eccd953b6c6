//! Garbage written by other processes: files under an object's name, damaged objects, and writers
//! that do not stop. Each is refused with a specific error, and none hangs or crashes a process.

use crate::child::{in_child, Child};
use crate::hostile::{self, OpenObject, Word};
use crate::shm::{self, Names};
use crate::wire::{Link, Message};
use crate::{own_shm, sys};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use shm_pool::channel::{Receiver, RecvError, Sender};
use shm_pool::{AttachError, Descriptor, Namespace, Provider, ProviderId, ShmBytes, Tuning};
use std::cell::RefCell;
use std::fs::{self, File, OpenOptions};

use std::os::unix::fs::{chown, symlink, FileExt};
use std::os::unix::net::UnixListener;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// The cases run in a child, so that a hang fails the test.
#[test]
fn garbage_control_objects() {
    in_child(|prefix| {
        let provider = Provider::builder()
            .namespace(&Namespace::new(prefix).unwrap())
            .max_shared(8)
            .build()
            .unwrap();
        let genuine_path = shm::path(&format!("{prefix}.{}.ctl", provider.id()));
        let genuine = fs::read(&genuine_path).expect("the control object has its documented name");
        contents(prefix, &genuine);
        damaged_headers(prefix, &genuine);
        not_regular_files(prefix, &genuine_path);
        shm::client(prefix)
            .connect(provider.id())
            .expect("the genuine one is as good as before");
        drop(provider);
    });
}

/// Returns an id that no provider of the test has, and the path of its control object.
fn vacant(prefix: &str) -> (ProviderId, PathBuf) {
    let id = 0x00c0_ffee;
    (
        ProviderId::from(id),
        shm::path(&format!("{prefix}.{id:016x}.ctl")),
    )
}

/// Returns the error of connecting to a file with this content.
fn error_of(prefix: &str, content: &[u8]) -> AttachError {
    let (id, path) = vacant(prefix);
    fs::write(&path, content).unwrap();
    let error = shm::client(prefix).connect(id).expect_err("not a provider");
    assert_eq!(
        shm::mappings(prefix),
        1,
        "only the genuine one's owner has it mapped: {error}"
    );
    fs::remove_file(path).unwrap();
    error
}

fn assert_reason(error: &AttachError, words: &str) {
    let reason = match error {
        AttachError::NotAProvider { reason, .. } => reason,
        AttachError::Closed { .. } => "closed",
        AttachError::ProviderDied { .. } => "dead", // everything else is valid
        _ => panic!("{error:?}"),
    };
    assert!(reason.contains(words), "{words:?} was expected: {error}");
}

fn contents(prefix: &str, genuine: &[u8]) {
    for len in [0, 1, 100] {
        assert_reason(&error_of(prefix, &vec![1; len]), "too small");
    }
    for len in [4096, 8192] {
        assert_reason(&error_of(prefix, &genuine[..len]), "");
    }
    assert_reason(
        &error_of(prefix, &vec![0; genuine.len()]),
        "still creating it",
    );
    assert_reason(
        &error_of(prefix, &vec![0; genuine.len() * 100]),
        "still creating it",
    );
    for seed in 1..100 {
        let mut random = vec![0; genuine.len()];
        shm::fill(&mut random, seed);
        assert_reason(&error_of(prefix, &random), "");
    }
    assert_reason(&error_of(prefix, genuine), "another provider's id");
}

/// Damages the fields of the header one by one, and checks the error for each.
fn damaged_headers(prefix: &str, genuine: &[u8]) {
    let (id, _) = vacant(prefix);
    let with = |changes: &[(usize, &[u8])]| {
        let mut copy = genuine.to_vec();
        copy[16..24].copy_from_slice(&u64::from(id).to_le_bytes());
        for (at, bytes) in changes {
            copy[*at..][..bytes.len()].copy_from_slice(bytes);
        }
        error_of(prefix, &copy)
    };
    assert_reason(&with(&[]), "dead"); // nothing else is wrong with it
    assert_reason(&with(&[(0, b"SHMPOOF\0")]), "magic");
    assert_reason(&with(&[(8, &4u32.to_le_bytes())]), "version");
    assert_reason(&with(&[(8, &6u32.to_le_bytes())]), "version");
    assert_reason(&with(&[(8, &u32::MAX.to_le_bytes())]), "version");
    assert_reason(&with(&[(12, &0u32.to_le_bytes())]), "still creating it");
    assert_reason(&with(&[(12, &2u32.to_le_bytes())]), "closed");
    assert_reason(&with(&[(12, &3u32.to_le_bytes())]), "");
    for records in [0, 9, 1000, 1 << 20, (1 << 20) + 1, u32::MAX] {
        // Nine records are too many, but they still fit in the last page.
        let words = if records == 9 {
            ""
        } else {
            "size does not match"
        };
        assert_reason(&with(&[(24, &records.to_le_bytes())]), words);
    }
    for (at, byte) in genuine.iter().enumerate().take(1024) {
        assert_reason(&with(&[(at, &[byte ^ 0x55])]), "");
    }
}

fn not_regular_files(prefix: &str, genuine: &std::path::Path) {
    let (id, path) = vacant(prefix);
    let connect = || shm::client(prefix).connect(id).expect_err("not a provider");
    let assert_errno = |error: AttachError, number: i32| match error {
        AttachError::Os(error) => assert_eq!(error.errno(), Some(number), "{error}"),
        error => panic!("{error:?}"),
    };
    assert!(
        matches!(connect(), AttachError::NoProvider { .. }),
        "nothing is there"
    );

    symlink(genuine, &path).unwrap();
    assert_errno(connect(), libc::ELOOP);
    fs::remove_file(&path).unwrap();
    symlink("/nowhere", &path).unwrap();
    assert_errno(connect(), libc::ELOOP);
    fs::remove_file(&path).unwrap();

    fs::create_dir(&path).unwrap();
    assert_errno(connect(), libc::EISDIR);
    fs::remove_dir(&path).unwrap();

    sys::make_pipe(&path);
    assert_reason(&connect(), "regular file");
    fs::remove_file(&path).unwrap();

    let socket = UnixListener::bind(&path).unwrap();
    assert_errno(connect(), libc::ENXIO);
    drop(socket);
    fs::remove_file(&path).unwrap();
}

// ---- records and segments, with a genuine header (D10, I2) --------------------------------------

const LEN: usize = 100_000;

/// Garbage in a message's record does not make others read out of bounds.
#[test]
fn forged_records() {
    in_child(|prefix| {
        let scene = &Scene::new(prefix);
        let mut content = vec![0; scene.control.metadata().unwrap().len() as usize];
        scene.control.read_exact_at(&mut content, 0).unwrap();
        let generation = &scene.descriptor.to_bytes()[16..24];
        let found = content
            .chunks(8)
            .position(|word| word == generation)
            .expect("the message's record")
            * 8;
        let mut values: Vec<u64> = (0..64).map(|bit| 1 << bit).collect();
        values.extend([0, LEN as u64, LEN as u64 + 1, i64::MAX as u64, u64::MAX]);
        let mut refused = 0;
        for value in values {
            for word in [0, 9, 10, 11, 12] {
                let at = found + word * 8;
                scene
                    .control
                    .write_all_at(&value.to_le_bytes(), at as u64)
                    .unwrap();
                match scene.attach() {
                    Ok(len) => assert_eq!(len, LEN),
                    Err(AttachError::Os(error)) => {
                        panic!("word {word} is {value:#x} and goes into a call: {error}")
                    }
                    Err(_) => refused += 1,
                }
                scene
                    .control
                    .write_all_at(&content[at..at + 8], at as u64)
                    .unwrap();
            }
        }
        assert!(
            refused > 250,
            "the words were not those of the record: {refused}"
        );

        // The segment of an entry that has none: its number is 0, as in the list of segments.
        let unused: u64 = 5;
        let forged = [0_u64.to_le_bytes(), unused.to_le_bytes()].concat();
        let at = found + 9 * 8;
        scene.control.write_all_at(&forged, at as u64).unwrap();
        let error = scene.attach().expect_err("no such segment");
        assert!(matches!(error, AttachError::Closed { .. }), "{error:?}");
        let genuine = &content[at..at + forged.len()];
        scene.control.write_all_at(genuine, at as u64).unwrap();
        scene.assert_as_before();
    });
}

#[test]
fn forged_segments() {
    in_child(|prefix| {
        let scene = &Scene::new(prefix);
        let segment = &scene.segment;
        let aside = scene.segment.with_extension("aside");
        fs::rename(segment, &aside).unwrap();
        let error = || scene.attach().expect_err("not the owner's segment");
        let missing = error();
        assert!(
            matches!(&missing, AttachError::Os(error) if error.errno() == Some(libc::ENOENT)),
            "the provider has not closed: {missing:?}"
        );
        for (len, words) in [
            (0, "empty"),
            (1, "outside"),
            (4096, "outside"),
            (LEN as u64 - 1, "outside"),
        ] {
            File::create(segment).unwrap().set_len(len).unwrap();
            let error = error();
            assert!(error.to_string().contains(words), "{len} bytes: {error}");
        }
        fs::remove_file(segment).unwrap();

        symlink(&aside, segment).unwrap();
        let link = error();
        assert!(
            matches!(&link, AttachError::Os(error) if error.errno() == Some(libc::ELOOP)),
            "{link:?}"
        );
        fs::remove_file(segment).unwrap();
        fs::create_dir(segment).unwrap();
        let directory = error();
        assert!(
            matches!(directory, AttachError::NotAProvider { .. }),
            "{directory:?}"
        );
        fs::remove_dir(segment).unwrap();
        fs::rename(&aside, segment).unwrap();
        scene.assert_as_before();
    });
}

#[test]
fn pipe_or_socket() {
    in_child(|prefix| {
        let scene = &Scene::new(prefix);
        let segment = &scene.segment;
        let aside = scene.segment.with_extension("aside");
        fs::rename(segment, &aside).unwrap();
        sys::make_pipe(segment);
        let pipe = scene.attach().expect_err("not the owner's segment");
        assert!(matches!(pipe, AttachError::NotAProvider { .. }), "{pipe:?}");
        fs::remove_file(segment).unwrap();
        let socket = UnixListener::bind(segment).unwrap();
        let refused = scene.attach().expect_err("not the owner's segment");
        assert!(
            matches!(&refused, AttachError::Os(error) if error.errno() == Some(libc::ENXIO)),
            "{refused:?}"
        );
        drop(socket);
        fs::rename(&aside, segment).unwrap();
        scene.assert_as_before();
    });
}

#[test]
fn garbage_over_control_object() {
    in_child(|prefix| {
        let Scene {
            prefix,
            provider,
            message,
            descriptor,
            control,
            ..
        } = &Scene::new(prefix);
        let client = shm::client(prefix);
        let id = client.connect(provider.id()).unwrap();
        let view = client.attach(descriptor).unwrap();
        let mut garbage = vec![0; control.metadata().unwrap().len() as usize - 32];
        for seed in 0..200 {
            shm::fill(&mut garbage, seed);
            control.write_all_at(&garbage, 32).unwrap();
            let _ = client.attach(descriptor);
            let _ = view.try_clone();
            let _ = shm::client(prefix).attach(descriptor);
            let _ = message.grant(id);
            for len in [64, LEN] {
                if let Ok(mut buffer) = provider.alloc(len) {
                    buffer.fill(seed as u8);
                    if let Ok(descriptor) = buffer.freeze().descriptor() {
                        drop(client.attach(&descriptor));
                    }
                }
            }
            client.unmap_unused();
            provider.trim();
            provider.stats();
            shm::check(message, 1).expect("what the owner holds is its own");
        }
    });
}

#[test]
fn truncated_segment() {
    in_child(|prefix| {
        let scene = &Scene::new(prefix);
        // This client has the control object mapped when the message's segment is truncated.
        let client = shm::client(scene.prefix);
        client.connect(scene.provider.id()).unwrap();
        let segment = OpenOptions::new().write(true).open(&scene.segment).unwrap();
        let whole = segment.metadata().unwrap().len();
        let mappings = shm::mappings(scene.prefix);
        for len in [0, 1, 4096, 24 * 4096, LEN as u64 - 1] {
            segment.set_len(len).unwrap();
            for result in [
                client.attach(&scene.descriptor).map(|view| view.len()),
                scene.attach(),
            ] {
                match result.expect_err("a message that is not all there") {
                    AttachError::Damaged { reason, .. } => {
                        assert!(
                            len > 0 && reason.contains("outside"),
                            "{len} bytes: {reason}"
                        )
                    }
                    AttachError::NotAProvider { reason, .. } => {
                        assert!(len == 0 && reason.contains("empty"), "{reason}")
                    }
                    error => panic!("{len} bytes: {error:?}"),
                }
            }
            assert!(!scene.message.is_leased(), "{len} bytes: a lease was kept");
            client.unmap_unused();
        }
        assert!(
            shm::mappings(scene.prefix) <= mappings + 1,
            "a mapping for each refusal"
        );
        segment.set_len(whole).unwrap();
        scene.assert_as_before();
    });
}

/// Guards against a user who replaces a provider's file to feed its peers.
#[test]
fn foreign_owner() {
    if !own_shm::is_root() {
        return println!("SKIPPED: only root can give files away");
    }
    in_child(|prefix| {
        let scene = &Scene::new(prefix);
        const STRANGER: u32 = 65_534;
        let objects = shm::objects(scene.prefix);
        let connected = shm::client(scene.prefix);
        connected.connect(scene.provider.id()).unwrap();
        for name in &objects {
            let path = shm::path(name);
            chown(&path, Some(STRANGER), None).unwrap();
            let mut results = vec![scene.attach()];
            // A connected client opens only segments.
            if path == scene.segment {
                results.push(connected.attach(&scene.descriptor).map(|view| view.len()));
            }
            chown(&path, Some(0), None).unwrap();
            for result in results {
                let Err(AttachError::WrongUid(error)) = result else {
                    panic!("{path:?}: {result:?}")
                };
                assert_eq!((error.found(), error.object()), (STRANGER, &*path));
            }
            assert!(!scene.message.is_leased(), "a lease was kept");
        }
        scene.assert_as_before();
    });
}

struct Scene<'a> {
    prefix: &'a str,
    provider: Provider,
    message: ShmBytes,
    descriptor: Descriptor,
    control: File,
    segment: PathBuf,
}

impl Scene<'_> {
    fn new(prefix: &str) -> Scene<'_> {
        let builder = Provider::builder()
            .namespace(&Namespace::new(prefix).unwrap())
            .max_bytes(4 << 20)
            .max_shared(8)
            .tuning(Tuning::new().arena_size(64 << 10));
        let provider = builder.build().unwrap();
        let message = shm::message(&provider, LEN, 1);
        let descriptor = message.descriptor().unwrap();
        let objects = shm::objects(prefix);
        let is_control = |name: &&String| name.ends_with(".ctl");
        let control = shm::path(objects.iter().find(is_control).expect("a control object"));
        let control = OpenOptions::new()
            .read(true)
            .write(true)
            .open(control)
            .unwrap();
        let segment = shm::path(
            objects
                .iter()
                .find(|name| !is_control(name))
                .expect("the message's segment"),
        );
        let scene = Scene {
            prefix,
            provider,
            message,
            descriptor,
            control,
            segment,
        };
        scene.assert_as_before();
        scene
    }

    fn assert_as_before(&self) {
        assert_eq!(self.attach().unwrap(), LEN, "all is as it was");
    }

    /// Attaches with a client that has nothing mapped yet. Returns an error or readable bytes.
    fn attach(&self) -> Result<usize, AttachError> {
        let result = match shm::client(self.prefix).attach(&self.descriptor) {
            Ok(view) => {
                hostile::read_all(&view);
                Ok(view.len())
            }
            Err(error) => Err(error),
        };
        assert!(!self.message.is_leased(), "a lease was kept: {result:?}");
        result
    }
}

// ---- random hostile programs --------------------------------------------------------------------
// A program that panics, crashes or hangs in the child fails the test and is then shrunk. The fuzzers
// in `fuzz/` run the same programs, guided by coverage and with AddressSanitizer.

/// The longest program, in bytes.
const MAX_LEN: usize = 2000;

/// One rogue process takes down neither the owner of a control object nor its peers.
#[test]
fn control_object() {
    run_at_random("control", 80);
}

/// The sender of 32 bytes neither reads unsent memory, crashes the receiver, nor holds memory.
#[test]
fn forged_descriptor() {
    run_at_random("descriptor", 60);
}

/// Neither end is taken down, and no message is lost, duplicated or reordered.
#[test]
fn channel_object() {
    run_at_random("channel", 250);
}

/// A rogue receiver neither takes down a publisher nor changes other receivers' messages.
#[test]
fn publisher_objects() {
    run_at_random("publisher", 250);
}

/// A planted file neither crashes or hangs a process nor has a living owner swept.
#[test]
fn foreign_files() {
    run_at_random("foreign", 60);
}

/// A damaged object neither takes down the operator's tool nor affects its report on the living.
#[test]
fn inspected_objects() {
    run_at_random("inspect", 60);
}

/// Draws programs and runs them in a child. A new child takes over after each failure.
fn run_at_random(target: &str, cases: u32) {
    let names = Names::new(&format!("hostile-{target}"));
    let child = RefCell::new(None);
    let start = || Child::start("hostile-bytes", &[names.prefix(), target]);
    let run = |bytes: Vec<u8>| {
        let running = match child.take() {
            Some(running) => running,
            None => start(),
        };
        let answer = panic::catch_unwind(AssertUnwindSafe(|| {
            running.request(&Message::Program(bytes))
        }));
        if answer.is_err() {
            drop(running);
            names.sweep();
            return Err(TestCaseError::fail("the child panicked, crashed or hung"));
        }
        child.replace(Some(running));
        Ok(())
    };
    // Shrinking a program that hangs takes the whole deadline at each step.
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        max_shrink_time: 30_000,
        ..ProptestConfig::default()
    };
    let result = TestRunner::new(config).run(&vec(any::<u8>(), 0..MAX_LEN), run);
    if let Err(error) = result {
        panic!("{error}");
    }
    child.take().expect("the last child").shut_down();
}

role!("hostile-bytes", role);

fn role(link: &Link, arguments: &[&str]) {
    let run = match arguments[1] {
        "channel" => hostile::channel,
        "control" => hostile::control,
        "descriptor" => hostile::descriptor,
        "inspect" => hostile::inspect,
        "publisher" => hostile::publisher,
        _ => hostile::foreign,
    };
    while let Ok(Some(Message::Program(bytes))) = link.receive() {
        run(arguments[0], &bytes);
        link.send(&Message::Done);
    }
}

// ---- a sender that names another file in each message -------------------------------------------

const FILES: u64 = 200;

/// The most segments that a receiver has mapped, besides those of messages that are read.
const KEPT: usize = 32;

const CHANNEL: &str = "c";

/// At the limit of mappings (`vm.max_map_count`), the receiver could not allocate.
#[test]
fn mapped_segments_are_bounded() {
    let names = Names::new("hostile-files");
    let sender = Child::start_ready("hostile-segments", &[names.prefix()]);
    let mut receiver = Receiver::builder()
        .namespace(&names.namespace())
        .open(CHANNEL)
        .unwrap();
    let mapped = || shm::mappings(names.prefix());
    let first = receiver.recv().unwrap();
    let before = mapped();
    for number in 1..FILES {
        assert_eq!(receiver.recv().unwrap()[..], number.to_ne_bytes());
        assert!(
            receiver.mapped_segments() <= KEPT,
            "{} are mapped",
            receiver.mapped_segments()
        );
        assert!(mapped() <= before + KEPT, "{} are mapped", mapped());
    }
    assert_eq!(first[..], 0_u64.to_ne_bytes(), "what is read stays mapped");
    let with_first = mapped();
    drop(first);
    assert_eq!(
        mapped(),
        with_first - 1,
        "that of a message is unmapped with it"
    );
    sender.shut_down();
    assert!(receiver.recv().is_err());
    drop(receiver);
}

role!("hostile-segments", files_role);

/// The role: sends buffers, and writes other places into the slots, each in a file of its own.
fn files_role(link: &Link, arguments: &[&str]) {
    let prefix = arguments[0];
    let provider = Provider::builder()
        .namespace(&Namespace::new(prefix).unwrap())
        .build()
        .unwrap();
    let mut sender = Sender::create(&provider, CHANNEL).unwrap();
    let channel = shm::channel_object(prefix, CHANNEL);
    let mut files = Vec::new();
    for number in 0..FILES {
        files.push(file(prefix, &provider, number));
    }
    for number in 0..FILES {
        sender.send(provider.alloc(8).unwrap().freeze()).unwrap();
        redirect(&channel, number, SERIAL + number);
    }
    link.done_until_end();
    for path in files {
        fs::remove_file(path).unwrap();
    }
}

/// The serial number of the first file.
const SERIAL: u64 = 1000;

fn file(prefix: &str, provider: &Provider, number: u64) -> std::path::PathBuf {
    let path = shm::path(&format!("{prefix}.{}.{:x}", provider.id(), SERIAL + number));
    let file = File::options()
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    file.set_len(4096).unwrap();
    file.write_all_at(&number.to_ne_bytes(), 0).unwrap();
    path
}

/// Changes the segment of the message with this ticket, and its offset to 0. As `src/channel/ring.rs`
/// and `message.rs` lay it out.
fn redirect(channel: &File, ticket: u64, segment: u64) {
    let slot = 4096 + ticket * 64;
    let mut head = [0; 8];
    channel.read_exact_at(&mut head, slot + 8).unwrap();
    let head = u64::from_ne_bytes(head);
    let mix = |hash: u64, word: u64| {
        (hash ^ word)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
    };
    let mut check = 0;
    for word in [segment, 0, 8, head, !ticket] {
        check = mix(check, word);
    }
    let mut at = slot + 16;
    for word in [segment, 0, 8, check] {
        channel.write_all_at(&word.to_ne_bytes(), at).unwrap();
        at += 8;
    }
}

/// The check of a buffer covers its tag; see [`redirect`] for where it lies.
#[test]
fn flipped_tag() {
    let names = Names::new("flipped-tag");
    let provider = names.provider().build().unwrap();
    let mut sender = Sender::create(&provider, CHANNEL).unwrap();
    let mut receiver = Receiver::builder()
        .namespace(&names.namespace())
        .open(CHANNEL)
        .unwrap();
    let channel = shm::channel_object(names.prefix(), CHANNEL);
    let tag = [5; 16];
    for ticket in 0..16 {
        sender.send_with(provider.alloc(8).unwrap(), tag).unwrap();
        let at = 4096 + 2 * ticket * 64 + 48 + ticket;
        let mut byte = [0];
        channel.read_exact_at(&mut byte, at).unwrap();
        assert_eq!(byte, [5], "it lies there");
        channel.write_all_at(&[byte[0] ^ 1], at).unwrap();
        assert!(matches!(receiver.recv(), Err(RecvError::Damaged { .. })));
        sender.send_copy_with(b"good", tag).unwrap();
        let message = receiver.recv().unwrap();
        assert_eq!((&message[..], message.tag()), (&b"good"[..], Some(tag)));
    }
}

// ---- a writer that never stops ------------------------------------------------------------------
// It repeats its writes whenever another process has repaired the damage. No process may wait for it
// to give up.

const LEASED_LEN: usize = 300_000;
/// At least this many, and until the writer has met a search.
const ALLOCATIONS: usize = 100;
const MOST_ALLOCATIONS: usize = 1000 * ALLOCATIONS;

/// The number of shared messages: enough to make a search for leases of the dead slow, so that the
/// writer runs meanwhile even when other programs compete for the processors.
const SHARED: usize = 4000;

/// Slots that no peer ever had. Slot 0 belongs to a living peer.
const DEAD: std::ops::Range<u8> = 1..64;

/// Memory just reclaimed from the dead looks like new room: the search would never end.
#[test]
fn forged_leases_of_dead_peers() {
    in_child(|prefix| {
        let builder = Provider::builder()
            .namespace(&Namespace::new(prefix).unwrap())
            .max_shared(SHARED + 1)
            .max_bytes(704 << 10);
        let provider = builder.build().unwrap();
        let message = provider.alloc(LEASED_LEN).unwrap().freeze();
        message.descriptor().unwrap();
        let mut shared = Vec::new();
        for _ in 0..SHARED {
            let message = provider.alloc(64).unwrap().freeze();
            assert!(message.descriptor().is_ok());
            shared.push(message);
        }
        let client = shm::client(prefix);
        let view = client.attach(&message.descriptor().unwrap()).unwrap();
        drop(message); // so there is no room for another message while the view exists
        let control = OpenObject::open(
            &shm::path(&format!("{prefix}.{}.ctl", provider.id())),
            SHARED as u64 + 1,
        );
        let is_over = AtomicBool::new(false);
        let searches = AtomicUsize::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    resurrect(&control, &searches);
                }
            });
            for allocations in 1..=MOST_ALLOCATIONS {
                let refused = provider
                    .alloc(LEASED_LEN)
                    .is_err_and(|error| error.is_exhausted());
                // The first one counted was no search: slots that were never used look the same.
                let searches = searches.load(Ordering::Relaxed).saturating_sub(1);
                let is_last =
                    allocations == MOST_ALLOCATIONS || allocations >= ALLOCATIONS && searches > 0;
                // Set before the assertions, or the writer would outlive a failure.
                is_over.store(
                    !refused || searches > allocations || is_last,
                    Ordering::Relaxed,
                );
                assert!(refused, "the view is overwritten");
                assert!(
                    searches <= allocations,
                    "{searches} searches among the dead by {allocations} allocations"
                );
                if is_last {
                    break;
                }
            }
        });
        assert!(searches.into_inner() > 1, "the writer never met a search");
        drop((view, client, shared, provider));
    });
}

/// Once the first of these slots is found dead, a search is running. Then makes each slot lease the
/// message again.
fn resurrect(control: &OpenObject, searches: &AtomicUsize) {
    let is_searched = control.get(Word::Epoch(DEAD.start)) % 4 == 3;
    if is_searched {
        searches.fetch_add(1, Ordering::Relaxed);
        control.fill(Word::Lanes { record: 0, word: 0 }, 64, 1);
        control.fill(Word::Epoch(DEAD.start), DEAD.len() * 8, 0);
    }
}
