//! Garbage in a message's record and under its segment's name, with a genuine header (D10, I2).

use crate::child::Child;
use crate::own_shm;
use crate::shm::{self, Names};
use crate::sys;
use crate::wire::{Link, Message};
use shm_pool::{AttachError, Descriptor, Provider, ShmBuf};
use std::fs::{self, File, OpenOptions};
use std::hint::black_box;
use std::os::unix::fs::{chown, symlink, FileExt};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

const LEN: usize = 100_000;

/// Garbage in a message's record does not make others read out of bounds.
#[test]
fn forged_records() {
    run("record");
}

#[test]
fn forged_segments() {
    run("file");
}

#[test]
fn pipe_or_socket() {
    run("pipe");
}

#[test]
fn garbage_over_control_object() {
    run("garbage");
}

#[test]
fn truncated_segment() {
    run("truncated");
}

/// Guards against a user who replaces a provider's file to feed its peers.
#[test]
fn foreign_owner() {
    if !own_shm::is_root() {
        return println!("SKIPPED: only root can give files away");
    }
    run("stranger");
}

/// Runs the case in a child, so that a crash or a hang there fails the test.
fn run(what: &str) {
    let names = Names::new(&format!("rejects-{what}"));
    let child = Child::start("rejects-segment", &[names.prefix(), what]);
    child.expect_done();
    child.finish();
}

struct Scene<'a> {
    prefix: &'a str,
    provider: Provider,
    message: ShmBuf,
    descriptor: Descriptor,
    control: File,
    segment: PathBuf,
}

impl Scene<'_> {
    fn new(prefix: &str) -> Scene<'_> {
        let builder = Provider::builder().name_prefix(prefix).max_bytes(4 << 20).max_shared(8).arena_size(64 << 10);
        let provider = builder.build().unwrap();
        let mut buffer = provider.alloc(LEN).unwrap();
        shm::fill(&mut buffer, 1);
        let message = buffer.freeze();
        let descriptor = message.descriptor().unwrap();
        let objects = shm::objects(prefix);
        let is_control = |name: &&String| name.ends_with(".ctl");
        let control = shm::path(objects.iter().find(is_control).expect("a control object"));
        let control = OpenOptions::new().read(true).write(true).open(control).unwrap();
        let segment = shm::path(objects.iter().find(|name| !is_control(name)).expect("the message's segment"));
        Scene { prefix, provider, message, descriptor, control, segment }
    }

    /// Attaches with a client that has nothing mapped yet. Returns an error or readable bytes.
    fn attach(&self) -> Result<usize, AttachError> {
        let result = shm::client(self.prefix).attach(&self.descriptor).map(|view| {
            black_box(view.iter().fold(0u8, |sum, byte| sum ^ byte));
            view.len()
        });
        assert!(!self.message.is_leased(), "a lease was kept: {result:?}");
        result
    }
}

role!("rejects-segment", role);

fn role(link: &Link, arguments: &[&str]) {
    let scene = Scene::new(arguments[0]);
    assert_eq!(scene.attach().unwrap(), LEN);
    match arguments[1] {
        "record" => damaged_records(&scene),
        "file" => replaced_segments(&scene),
        "pipe" => a_pipe(&scene),
        "truncated" => truncated(&scene),
        "stranger" => another_users(&scene),
        _ => return garbage_everywhere(&scene, link),
    }
    assert_eq!(scene.attach().unwrap(), LEN, "all is as it was");
    drop(scene);
    link.send(&Message::Done);
}

/// Damages the generation, and the four words after the eight words of lanes, which locate the
/// message.
fn damaged_records(scene: &Scene<'_>) {
    let mut content = vec![0; scene.control.metadata().unwrap().len() as usize];
    scene.control.read_exact_at(&mut content, 0).unwrap();
    let generation = &scene.descriptor.to_bytes()[16..24];
    let found = content.chunks(8).position(|word| word == generation).expect("the message's record") * 8;
    let values = (0..64).map(|bit| 1 << bit).chain([0, LEN as u64, LEN as u64 + 1, i64::MAX as u64, u64::MAX]);
    let mut refused = 0;
    for value in values {
        for word in [0, 9, 10, 11, 12] {
            let at = found + word * 8;
            scene.control.write_all_at(&value.to_le_bytes(), at as u64).unwrap();
            match scene.attach() {
                Ok(len) => assert_eq!(len, LEN),
                Err(AttachError::Os(error)) => panic!("word {word} is {value:#x} and goes into a call: {error}"),
                Err(_) => refused += 1,
            }
            scene.control.write_all_at(&content[at..at + 8], at as u64).unwrap();
        }
    }
    assert!(refused > 250, "the words were not those of the record: {refused}");
}

fn replaced_segments(scene: &Scene<'_>) {
    let (segment, aside) = (&scene.segment, scene.segment.with_extension("aside"));
    fs::rename(segment, &aside).unwrap();
    let error = || scene.attach().expect_err("not the owner's segment");
    let missing = error();
    assert!(
        matches!(missing, AttachError::Closed { .. }),
        "only a closed provider takes a leased segment away: {missing:?}"
    );
    for (len, words) in [(0, "empty"), (1, "outside"), (4096, "outside"), (LEN as u64 - 1, "outside")] {
        File::create(segment).unwrap().set_len(len).unwrap();
        let error = error();
        assert!(error.to_string().contains(words), "{len} bytes: {error}");
    }
    fs::remove_file(segment).unwrap();

    symlink(&aside, segment).unwrap();
    let link = error();
    assert!(matches!(&link, AttachError::Os(error) if error.errno() == Some(libc::ELOOP)), "{link:?}");
    fs::remove_file(segment).unwrap();
    fs::create_dir(segment).unwrap();
    let directory = error();
    assert!(matches!(directory, AttachError::NotAProvider { .. }), "{directory:?}");
    fs::remove_dir(segment).unwrap();
    fs::rename(&aside, segment).unwrap();
}

fn truncated(scene: &Scene<'_>) {
    // This client has the control object mapped when the message's segment is truncated.
    let client = shm::client(scene.prefix);
    client.connect(scene.provider.id()).unwrap();
    let segment = OpenOptions::new().write(true).open(&scene.segment).unwrap();
    let whole = segment.metadata().unwrap().len();
    let mappings = shm::mappings(scene.prefix);
    for len in [0, 1, 4096, 24 * 4096, LEN as u64 - 1] {
        segment.set_len(len).unwrap();
        for result in [client.attach(&scene.descriptor).map(|view| view.len()), scene.attach()] {
            match result.expect_err("a message that is not all there") {
                AttachError::Damaged { what, .. } => {
                    assert!(len > 0 && what.contains("outside"), "{len} bytes: {what}")
                }
                AttachError::NotAProvider { reason, .. } => assert!(len == 0 && reason.contains("empty"), "{reason}"),
                error => panic!("{len} bytes: {error:?}"),
            }
        }
        assert!(!scene.message.is_leased(), "{len} bytes: a lease was kept");
        client.trim();
    }
    assert!(shm::mappings(scene.prefix) <= mappings + 1, "a mapping for each refusal");
    segment.set_len(whole).unwrap();
}

fn another_users(scene: &Scene<'_>) {
    const STRANGER: u32 = 65_534;
    let objects = shm::objects(scene.prefix);
    let connected = shm::client(scene.prefix);
    connected.connect(scene.provider.id()).unwrap();
    for path in objects.iter().map(|name| shm::path(name)) {
        chown(&path, Some(STRANGER), None).unwrap();
        let mut results = vec![scene.attach()];
        // A connected client opens only segments.
        if path == scene.segment {
            results.push(connected.attach(&scene.descriptor).map(|view| view.len()));
        }
        chown(&path, Some(0), None).unwrap();
        for result in results {
            let Err(AttachError::WrongUid { found, expected, object }) = result else { panic!("{path:?}: {result:?}") };
            assert_eq!((found, expected, object), (STRANGER, 0, path.display().to_string()));
        }
        assert!(!scene.message.is_leased(), "a lease was kept");
    }
}

fn a_pipe(scene: &Scene<'_>) {
    let (segment, aside) = (&scene.segment, scene.segment.with_extension("aside"));
    fs::rename(segment, &aside).unwrap();
    sys::make_pipe(segment);
    let pipe = scene.attach().expect_err("not the owner's segment");
    assert!(matches!(pipe, AttachError::NotAProvider { .. }), "{pipe:?}");
    fs::remove_file(segment).unwrap();
    let socket = UnixListener::bind(segment).unwrap();
    let refused = scene.attach().expect_err("not the owner's segment");
    assert!(matches!(&refused, AttachError::Os(error) if error.errno() == Some(libc::ENXIO)), "{refused:?}");
    drop(socket);
    fs::rename(&aside, segment).unwrap();
}

/// Whatever another process writes into the control object, no process crashes, hangs or reads
/// outside a mapping. Which accesses are refused, and how, does not matter.
fn garbage_everywhere(scene: &Scene<'_>, link: &Link) {
    let Scene { prefix, provider, message, descriptor, control, .. } = scene;
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
                let _ = buffer.freeze().descriptor().map(|descriptor| client.attach(&descriptor));
            }
        }
        client.trim();
        provider.trim();
        provider.stats();
        shm::check(message, 1).expect("what the owner holds is its own");
    }
    link.send(&Message::Done);
}
