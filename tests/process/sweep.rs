//! Objects that killed owners leave in /dev/shm: the next provider or a sweep removes these, and no
//! others.

use crate::child::Child;
use crate::peer::Peer;
use crate::shm::{self, Names};
use crate::sys;
use crate::wire::{Link, Message};
use shm_pool::{Client, Descriptor, Provider, ProviderBuilder};
use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// The first of the provider ids that the tests make up.
const MADE_UP: u64 = 0x0123_4567_89ab_cd00;

role!("owner-swept", role);

/// The role: publishes some messages under the prefix, sends the first descriptor, and waits.
fn role(link: &Link, arguments: &[&str]) {
    let _messages = publish(link, arguments[0]);
    assert_eq!(link.receive().unwrap(), None);
}

role!("owner-forks", forking_role);

/// The role of an owner that forks. The forked child sends the descriptor.
fn forking_role(link: &Link, arguments: &[&str]) {
    let (quiet, _) = Link::pair();
    let messages = publish(&quiet, arguments[0]);
    let Some(forked) = sys::fork() else {
        sys::end_with(|| {
            link.send(&Message::Sent(messages.1[0].descriptor));
            assert_eq!(link.receive().unwrap(), Some(Message::Go));
            link.send(&Message::Done);
        })
    };
    forked.finish();
}

struct Published {
    descriptor: Descriptor,
    _message: shm_pool::ShmBuf,
}

/// Creates [`OBJECTS`] objects.
fn publish(link: &Link, prefix: &str) -> (Provider, Vec<Published>) {
    let provider = builder(prefix).build().unwrap();
    let lengths = [100_000, 100_000, 200_000, 1_000];
    let messages: Vec<_> = lengths.iter().map(|&len| published(&provider, len)).collect();
    link.send(&Message::Sent(messages[0].descriptor));
    (provider, messages)
}

fn published(provider: &Provider, len: usize) -> Published {
    let mut buffer = provider.alloc(len).unwrap();
    shm::fill(&mut buffer, len as u64);
    let message = buffer.freeze();
    Published { descriptor: message.descriptor().unwrap(), _message: message }
}

/// A control object, a short first segment, and a longer second one.
const OBJECTS: usize = 3;

fn builder(prefix: &str) -> ProviderBuilder {
    Provider::builder().name_prefix(prefix).max_bytes(1 << 20).arena_size(64 << 10).max_shared(64)
}

fn first_message(owner: &Child) -> Descriptor {
    match owner.hear() {
        Message::Sent(descriptor) => descriptor,
        other => panic!("not a descriptor: {other:?}"),
    }
}

fn killed_owner(names: &Names) -> Descriptor {
    let owner = Child::start("owner-swept", &[names.prefix()]);
    let descriptor = first_message(&owner);
    owner.kill();
    descriptor
}

#[test]
fn build_sweeps() {
    let names = Names::new("sweep-build");
    let descriptor = killed_owner(&names);
    assert_eq!(shm::objects(names.prefix()).len(), OBJECTS);
    let refused = names.client().attach(&descriptor).unwrap_err();
    assert!(matches!(refused, shm_pool::AttachError::OwnerDied { .. }), "{refused}");
    let provider = builder(names.prefix()).build().unwrap();
    assert_eq!(shm::objects(names.prefix()).len(), 1, "its own control object");
    let refused = names.client().attach(&descriptor).unwrap_err();
    assert!(matches!(refused, shm_pool::AttachError::NoProvider { .. }), "{refused}");
    drop(provider);
}

/// A sweep takes no memory from a living publisher, or from peers that still read.
#[test]
fn sweep_spares_readers() {
    let names = Names::new("sweep-alone");
    let living = builder(names.prefix()).build().unwrap();
    let kept = published(&living, 100_000);
    let elsewhere = Names::new("sweep-alone-2");
    let neighbour = builder(elsewhere.prefix()).build().unwrap();
    let kept_elsewhere = published(&neighbour, 1_000);

    let owner = Child::start("owner-swept", &[names.prefix()]);
    let descriptor = first_message(&owner);
    let peer = Peer::start(names.prefix());
    let view = peer.attach(descriptor, 100_000).unwrap();
    assert_eq!(Provider::sweep(names.prefix()).unwrap().objects, 0, "all owners live");
    owner.kill();
    let swept = Provider::sweep(names.prefix()).unwrap();
    assert_eq!(swept.objects, OBJECTS);
    assert!(swept.bytes >= 100_000 * 2 + 200_000 + 1_000, "{swept:?}");
    assert_eq!(Provider::sweep(names.prefix()).unwrap().objects, 0, "all is swept");

    peer.check(view);
    peer.release(view);
    assert_eq!((peer.segments(), peer.trim()), (0, 1), "a segment, with its last view; the control object");
    let client = names.client();
    shm::check(&client.attach(&kept.descriptor).unwrap(), 100_000).unwrap();
    shm::check(&elsewhere.client().attach(&kept_elsewhere.descriptor).unwrap(), 1_000).unwrap();
    shm::check(&published(&living, 200_000)._message, 200_000).unwrap();
}

#[test]
fn half_made_objects_are_swept() {
    let names = Names::new("sweep-half");
    let object = |what: &str| shm::path(&format!("{}.{:016x}.{what}", names.prefix(), MADE_UP));
    // Killed after `shm_open` or `posix_fallocate`; with the control object already removed; with a
    // truncated header.
    let states: [&[(&str, usize)]; 4] =
        [&[("ctl", 0)], &[("ctl", 8192), ("1", 0)], &[("2a", 4096), ("ffffffffffffffff", 0)], &[("ctl", 17), ("3", 0)]];
    for state in states {
        state.iter().for_each(|&(what, len)| fs::write(object(what), vec![0; len]).unwrap());
        assert_eq!(names.sweep(), state.len(), "{state:?}");
        assert_eq!(shm::objects(names.prefix()), [""; 0], "{state:?}");
    }
}

#[test]
fn foreign_objects() {
    let names = Names::new("sweep-not");
    let file = |what: &str| format!("{}.{what}", names.prefix());
    let id = |last: u64| format!("{:016x}", MADE_UP + last);
    let target = shm::path(&file("target"));
    fs::write(&target, b"keep").unwrap();
    let others = ["notes", "0123.ctl", "0123456789abcdef.ctl.bak", "0123456789abcdef.01", "0123456789ABCDEF.ctl"];
    others.iter().for_each(|other| fs::write(shm::path(&file(other)), b"keep").unwrap());
    symlink(&target, shm::path(&file(&format!("{}.ctl", id(1))))).unwrap();
    fs::create_dir(shm::path(&file(&format!("{}.ctl", id(2))))).unwrap();
    sys::make_pipe(&shm::path(&file(&format!("{}.ctl", id(3)))));
    symlink(&target, shm::path(&file(&format!("{}.5", id(4))))).unwrap();
    fs::create_dir(shm::path(&file(&format!("{}.6", id(5))))).unwrap();
    let before = shm::objects(names.prefix());
    assert_eq!(names.sweep(), 0);
    assert_eq!(shm::objects(names.prefix()), before);
    assert_eq!(fs::read(&target).unwrap(), b"keep");
    drop(names.provider().build().unwrap());
    assert_eq!(shm::objects(names.prefix()), before);
    for name in before {
        let path = shm::path(&name);
        fs::remove_file(&path).or_else(|_| fs::remove_dir(&path)).unwrap();
    }
}

#[test]
fn file_with_our_name() {
    let names = Names::new("sweep-foreign");
    let pages = [vec![b'x'; 8192], vec![b'x'; 4096], vec![b'x'; 9]];
    let object = |last: u64, what: &str| shm::path(&format!("{}.{:016x}.{what}", names.prefix(), MADE_UP + last));
    let mut files = Vec::new();
    // An invalid control object: its segments are recognized by its name.
    for (last, content) in (0..).zip(&pages) {
        files.extend([(object(last, "ctl"), content), (object(last, "1"), &pages[1])]);
    }
    // Segments without an owner: not in whole pages.
    files.push((object(8, "1"), &pages[2]));
    files.iter().for_each(|(path, content)| fs::write(path, content).unwrap());
    assert_eq!(names.sweep(), 0);
    drop(names.provider().build().unwrap());
    for (path, content) in files {
        assert_eq!(&fs::read(&path).unwrap(), content, "{path:?}");
        fs::remove_file(path).unwrap();
    }
}

/// A sweep does not write through one name into a file that also has another, nor removes its
/// names.
#[test]
fn hard_link() {
    let names = Names::new("sweep-links");
    let kept = |file: &str| shm::path(&format!("{}.kept-{file}", names.prefix()));
    let owner = Child::start("channel-sender", &[names.prefix(), "0"]);
    owner.expect_done();
    let other = Child::start("owner-swept", &[names.prefix()]);
    first_message(&other);
    owner.kill();
    other.kill();
    // Of the channel's provider, the control object; of the other one, only a segment.
    let all = shm::objects(names.prefix());
    let second = all.iter().rfind(|file| file.ends_with(".2")).unwrap();
    let own = second.trim_end_matches(".2");
    let is_linked = |file: &&String| {
        file.ends_with(".channel") || *file == second || file.ends_with(".ctl") && !file.starts_with(own)
    };
    let linked: Vec<&String> = all.iter().filter(is_linked).collect();
    assert_eq!(linked.len(), 3, "{all:?}");
    let contents: Vec<_> = linked
        .iter()
        .map(|file| {
            fs::hard_link(shm::path(file), kept(file)).unwrap();
            fs::read(kept(file)).unwrap()
        })
        .collect();
    assert_eq!(names.sweep(), OBJECTS - 1);
    drop(names.provider().build().unwrap());
    for (file, content) in linked.iter().zip(contents) {
        assert!(shm::path(file).exists() && fs::read(kept(file)).unwrap() == content, "{file}");
        fs::remove_file(kept(file)).unwrap();
    }
    assert_eq!(names.sweep(), linked.len(), "they have one name again");
}

/// Publishers that start together after a crash do not remove each other's new objects, nor fail on
/// objects that another one is removing.
#[test]
fn concurrent_sweeps() {
    let names = Names::new("sweep-many");
    for _ in 0..4 {
        killed_owner(&names);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        Provider::sweep(names.prefix()).unwrap();
                    }
                });
            }
            let builders: Vec<_> = (0..2).map(|_| scope.spawn(|| start_and_end(names.prefix()))).collect();
            // Joins all, even if one panicked.
            let results: Vec<_> = builders.into_iter().map(|builder| builder.join()).collect();
            over.store(true, Ordering::Relaxed);
            results.into_iter().for_each(|result| result.unwrap());
        });
        assert_eq!(shm::objects(names.prefix()), [""; 0]);
    }
}

fn start_and_end(prefix: &str) {
    for _ in 0..100 {
        let provider = builder(prefix).build().unwrap();
        let message = published(&provider, 70_000);
        let client: Client = shm::client(prefix);
        shm::check(&client.attach(&message.descriptor).unwrap(), 70_000).unwrap();
    }
}

/// An owner that has forked, for example to start a helper, does not look alive after it died.
#[test]
fn killed_owner_with_forked_child() {
    let names = Names::new("sweep-fork");
    let owner = Child::start("owner-forks", &[names.prefix()]);
    let descriptor = first_message(&owner);
    let link = owner.kill_but_keep_link();
    let refused = names.client().attach(&descriptor).unwrap_err();
    assert!(matches!(refused, shm_pool::AttachError::OwnerDied { .. }), "{refused}");
    assert_eq!(names.sweep(), OBJECTS);
    link.send(&Message::Go);
    assert_eq!(link.receive().unwrap(), Some(Message::Done), "the forked child has lived all the time");
}
