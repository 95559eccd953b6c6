//! An owner that is killed: mappings stay valid and can be released, and its objects, and no others,
//! are removed by the next owner, a sweep, or the last reader.

use crate::child::{in_small_shm_for, Child};
use crate::ends::AnyReceiver;
use crate::peer::Peer;
use crate::shm::{self, Names};
use crate::sys;
use crate::threads::beside;
use crate::wire::{Link, Message};
use shm_pool::channel::{OnFull, Publisher, Sender};
use shm_pool::{
    AttachError, Client, Descriptor, Namespace, Provider, ProviderBuilder, ProviderId, Tuning,
};
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};
use std::{fs, thread};

/// The lengths of a large message and a small one.
const LENGTHS: [usize; 2] = [1 << 20, 4 << 10];

role!("owner", role);

/// The role: builds a provider with the prefix, publishes one message of each length, and keeps
/// them.
pub(crate) fn role(link: &Link, arguments: &[&str]) {
    let provider = Provider::builder()
        .namespace(&Namespace::new(arguments[0]).unwrap())
        .build()
        .unwrap();
    link.send(&Message::Provider(provider.id()));
    let mut messages = Vec::new();
    for len in LENGTHS {
        let message = shm::message(&provider, len, len as u64);
        link.send(&Message::Sent(message.descriptor().unwrap()));
        messages.push(message);
    }
    while link.receive().unwrap().is_some() {}
}

pub(crate) fn start(names: &Names) -> (Child, ProviderId, [Descriptor; 2]) {
    let owner = Child::start("owner", &[names.prefix()]);
    let Message::Provider(id) = owner.receive() else {
        panic!("the owner tells its id first")
    };
    let descriptors = [owner.sent(), owner.sent()];
    (owner, id, descriptors)
}

/// A publisher's crash neither crashes its readers nor leaves them waiting.
#[test]
fn views_outlive_killed_owner() {
    let names = Names::new("owner-dead");
    let (owner, id, descriptors) = start(&names);
    let peer = Peer::start(names.prefix());
    let views = peer.attach_both(descriptors);
    assert_eq!(
        peer.unmap_unused(),
        0,
        "the owner lives, and all its segments exist"
    );
    owner.kill();

    for &view in &views {
        peer.check(view);
    }
    let another = peer.attach_both(descriptors);
    let newcomer = Peer::start(names.prefix());
    let refused = newcomer.connect(id).unwrap_err();
    assert!(refused.starts_with("ProviderDied"), "{refused}");
    assert_eq!(newcomer.mappings(), 0, "a refused peer keeps no mapping");

    for view in [views, another].concat() {
        peer.release(view);
    }
    assert_eq!(peer.unmap_unused(), 2, "the control object and a segment");
    assert_eq!((peer.segments(), peer.mappings()), (0, 0));
    assert_eq!(
        shm::objects(names.prefix()),
        [""; 0],
        "the last reader has removed them"
    );
    let refused = peer.connect(id).unwrap_err();
    assert!(refused.starts_with("NoProvider"), "{refused}");
}

/// `Client::unmap_unused` keeps segments that a view still reads, and they are unmapped with the view.
#[test]
fn trim_spares_views_of_killed_owner() {
    let names = Names::new("owner-trim");
    let (owner, _, descriptors) = start(&names);
    let peer = Peer::start(names.prefix());
    let views = peer.attach_both(descriptors);
    owner.kill();
    assert_eq!(peer.unmap_unused(), 2);
    assert_eq!(peer.segments(), 0);
    for &view in &views {
        peer.check(view);
    }
    let swept = Namespace::new(names.prefix()).unwrap().sweep().unwrap();
    assert_eq!(
        swept.objects, 2,
        "a swept object stays mapped where it is read"
    );
    for &view in &views {
        peer.check(view);
    }
    for &view in &views {
        peer.release(view);
    }
    assert_eq!(
        peer.mappings(),
        0,
        "what the views needed is let go with them"
    );
}

#[test]
fn views_outlive_exited_owner() {
    let names = Names::new("owner-ends");
    let (owner, id, descriptors) = start(&names);
    let peer = Peer::start(names.prefix());
    let views = peer.attach_both(descriptors);
    owner.shut_down();
    assert_eq!(
        shm::objects(names.prefix()),
        [""; 0],
        "it has removed its objects"
    );
    for &view in &views {
        peer.check(view);
    }
    let newcomer = Peer::start(names.prefix()).connect(id).unwrap_err();
    assert!(newcomer.starts_with("NoProvider"), "{newcomer}");
    for &view in &views {
        peer.release(view);
    }
    peer.unmap_unused();
    assert_eq!((peer.segments(), peer.mappings()), (0, 0));
}

// ---- sweeps -------------------------------------------------------------------------------------

/// The first of the provider ids that the tests make up.
const MADE_UP: u64 = 0x0123_4567_89ab_cd00;

role!("owner-swept", swept_role);

/// The role: publishes some messages under the prefix, sends the first descriptor, and waits.
fn swept_role(link: &Link, arguments: &[&str]) {
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
            link.expect_go();
            link.send(&Message::Done);
        })
    };
    forked.finish();
}

struct Published {
    descriptor: Descriptor,
    _message: shm_pool::ShmBytes,
}

fn publish(link: &Link, prefix: &str) -> (Provider, Vec<Published>) {
    let provider = small_builder(prefix).build().unwrap();
    let lengths = [100_000, 100_000, 200_000, 1_000];
    let mut messages = Vec::new();
    for len in lengths {
        messages.push(published(&provider, len));
    }
    link.send(&Message::Sent(messages[0].descriptor));
    (provider, messages)
}

fn published(provider: &Provider, len: usize) -> Published {
    let message = shm::message(provider, len, len as u64);
    Published {
        descriptor: message.descriptor().unwrap(),
        _message: message,
    }
}

/// A control object, a short first segment, and a longer second one.
const OBJECTS: usize = 3;

fn small_builder(prefix: &str) -> ProviderBuilder {
    Provider::builder()
        .namespace(&Namespace::new(prefix).unwrap())
        .max_bytes(1 << 20)
        .tuning(Tuning::new().arena_size(64 << 10))
        .max_shared(64)
}

fn first_message(owner: &Child) -> Descriptor {
    owner.sent()
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
    assert!(
        matches!(refused, shm_pool::AttachError::ProviderDied { .. }),
        "{refused}"
    );
    let provider = small_builder(names.prefix()).build().unwrap();
    assert_eq!(
        shm::objects(names.prefix()).len(),
        1,
        "its own control object"
    );
    let refused = names.client().attach(&descriptor).unwrap_err();
    assert!(
        matches!(refused, shm_pool::AttachError::NoProvider { .. }),
        "{refused}"
    );
    drop(provider);
}

/// A sweep takes no memory from a living publisher, or from peers that still read.
#[test]
fn sweep_spares_readers() {
    let names = Names::new("sweep-alone");
    let living = small_builder(names.prefix()).build().unwrap();
    let kept = published(&living, 100_000);
    let elsewhere = Names::new("sweep-alone-2");
    let neighbour = small_builder(elsewhere.prefix()).build().unwrap();
    let kept_elsewhere = published(&neighbour, 1_000);

    let owner = Child::start("owner-swept", &[names.prefix()]);
    let descriptor = first_message(&owner);
    let peer = Peer::start(names.prefix());
    let view = peer.attach(descriptor, 100_000).unwrap();
    assert_eq!(
        Namespace::new(names.prefix())
            .unwrap()
            .sweep()
            .unwrap()
            .objects,
        0,
        "all owners live"
    );
    owner.kill();
    let swept = Namespace::new(names.prefix()).unwrap().sweep().unwrap();
    assert_eq!(swept.objects, OBJECTS);
    assert!(swept.bytes >= 100_000 * 2 + 200_000 + 1_000, "{swept:?}");
    assert_eq!(
        Namespace::new(names.prefix())
            .unwrap()
            .sweep()
            .unwrap()
            .objects,
        0,
        "all is swept"
    );

    peer.check(view);
    peer.release(view);
    assert_eq!(
        (peer.segments(), peer.unmap_unused()),
        (0, 1),
        "a segment, with its last view; the control object"
    );
    let client = names.client();
    shm::check(&client.attach(&kept.descriptor).unwrap(), 100_000).unwrap();
    shm::check(
        &elsewhere
            .client()
            .attach(&kept_elsewhere.descriptor)
            .unwrap(),
        1_000,
    )
    .unwrap();
    shm::check(&published(&living, 200_000)._message, 200_000).unwrap();
}

#[test]
fn half_made_objects_are_swept() {
    let names = Names::new("sweep-half");
    let object = |what: &str| shm::path(&format!("{}.{:016x}.{what}", names.prefix(), MADE_UP));
    // Killed after `shm_open` or `posix_fallocate`; with the control object already removed; with a
    // truncated header.
    let states: [&[(&str, usize)]; 4] = [
        &[("ctl", 0)],
        &[("ctl", 8192), ("1", 0)],
        &[("2a", 4096), ("ffffffffffffffff", 0)],
        &[("ctl", 17), ("3", 0)],
    ];
    for state in states {
        for &(what, len) in state {
            fs::write(object(what), vec![0; len]).unwrap();
        }
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
    let others = [
        "notes",
        "0123.ctl",
        "0123456789abcdef.ctl.bak",
        "0123456789abcdef.01",
        "0123456789ABCDEF.ctl",
    ];
    for other in &others {
        fs::write(shm::path(&file(other)), b"keep").unwrap();
    }
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
        if fs::remove_file(&path).is_err() {
            fs::remove_dir(&path).unwrap();
        }
    }
}

#[test]
fn file_with_our_name() {
    let names = Names::new("sweep-foreign");
    let pages = [vec![b'x'; 8192], vec![b'x'; 4096], vec![b'x'; 9]];
    let object = |last: u64, what: &str| {
        shm::path(&format!(
            "{}.{:016x}.{what}",
            names.prefix(),
            MADE_UP + last
        ))
    };
    let mut files = Vec::new();
    // An invalid control object: its segments are recognized by its name.
    for (last, content) in pages.iter().enumerate() {
        files.push((object(last as u64, "ctl"), content));
        files.push((object(last as u64, "1"), &pages[1]));
    }
    // Segments without an owner: not in whole pages.
    files.push((object(8, "1"), &pages[2]));
    for (path, content) in &files {
        fs::write(path, content).unwrap();
    }
    assert_eq!(names.sweep(), 0);
    drop(names.provider().build().unwrap());
    for (path, content) in files {
        assert_eq!(&fs::read(&path).unwrap(), content, "{path:?}");
        fs::remove_file(path).unwrap();
    }
}

/// A sweep neither writes into a file that has a second name, nor removes its names.
#[test]
fn hard_link() {
    let names = Names::new("sweep-links");
    let kept = |file: &str| shm::path(&format!("{}.kept-{file}", names.prefix()));
    let owner = Child::start_ready("channel-sender", &[names.prefix(), "0"]);
    let other = Child::start("owner-swept", &[names.prefix()]);
    first_message(&other);
    owner.kill();
    other.kill();
    // Of the channel's provider, the control object; of the other one, only a segment.
    let all = shm::objects(names.prefix());
    let second = all.iter().rfind(|file| file.ends_with(".2")).unwrap();
    let own = second.trim_end_matches(".2");
    let is_linked = |file: &&String| {
        file.ends_with(".channel")
            || *file == second
            || file.ends_with(".ctl") && !file.starts_with(own)
    };
    let linked: Vec<&String> = all.iter().filter(is_linked).collect();
    assert_eq!(linked.len(), 3, "{all:?}");
    let mut contents = Vec::new();
    for file in &linked {
        fs::hard_link(shm::path(file), kept(file)).unwrap();
        contents.push(fs::read(kept(file)).unwrap());
    }
    assert_eq!(names.sweep(), OBJECTS - 1);
    drop(names.provider().build().unwrap());
    for (at, file) in linked.iter().enumerate() {
        assert!(
            shm::path(file).exists() && fs::read(kept(file)).unwrap() == contents[at],
            "{file}"
        );
        fs::remove_file(kept(file)).unwrap();
    }
    assert_eq!(names.sweep(), linked.len(), "they have one name again");
}

/// Owners that start together after a crash neither remove each other's objects nor fail.
#[test]
fn concurrent_sweeps() {
    let names = Names::new("sweep-many");
    for _ in 0..4 {
        killed_owner(&names);
        let sweep = || Namespace::new(names.prefix()).unwrap().sweep().unwrap();
        let start_two = || {
            thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| start_and_end(names.prefix()));
                }
            })
        };
        beside(sweep, || beside(sweep, start_two));
        assert_eq!(shm::objects(names.prefix()), [""; 0]);
    }
}

fn start_and_end(prefix: &str) {
    for _ in 0..100 {
        let provider = small_builder(prefix).build().unwrap();
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
    assert!(
        matches!(refused, shm_pool::AttachError::ProviderDied { .. }),
        "{refused}"
    );
    assert_eq!(names.sweep(), OBJECTS);
    link.send(&Message::Go);
    assert_eq!(
        link.receive().unwrap(),
        Some(Message::Done),
        "the forked child has lived all the time"
    );
}

// ---- a client that connects while a dead owner is swept -----------------------------------------

/// The position of the provider's id in a control object.
const ID: std::ops::Range<usize> = 16..24;

/// How many owners die.
const OWNERS: u64 = 300;

/// A sweep briefly holds the dead owner's lock. A peer must not take it for the owner.
#[test]
fn connect_during_sweep() {
    let names = Names::new("connect-swept");
    let provider = names.provider().max_shared(1).build().unwrap();
    let mut object = fs::read(shm::path(&format!(
        "{}.{}.ctl",
        names.prefix(),
        provider.id()
    )))
    .unwrap();
    for owner in 1..=OWNERS {
        // As left by a killed owner: an open control object whose lock is free.
        let id = ProviderId::from(owner);
        object[ID].copy_from_slice(&owner.to_le_bytes());
        let dead = shm::path(&format!("{}.{id}.ctl", names.prefix()));
        fs::write(&dead, &object).unwrap();
        fs::set_permissions(&dead, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let client = names.client();
        let connected = thread::scope(|scope| {
            scope.spawn(|| names.sweep());
            loop {
                match client.connect(id) {
                    // Not swept yet.
                    Err(AttachError::ProviderDied { .. }) => {}
                    other => break other,
                }
            }
        });
        let error = connected.expect_err("a connection to a dead owner");
        let is_typed = matches!(
            error,
            AttachError::NoProvider { .. } | AttachError::Closed { .. }
        );
        assert!(is_typed, "owner {owner}: {error:?}");
    }
    assert!(
        names.client().connect(provider.id()).is_ok(),
        "the living one is not swept"
    );
}

// ---- the last reader (D24) ----------------------------------------------------------------------

const CHANNEL: &str = "c";

/// More than half of a /dev/shm of 4 MiB.
const MOST: usize = 5 << 19;

/// Two such messages take more than half of it, too.
const MUCH: usize = 3 << 19;

const SECOND: Duration = Duration::from_secs(1);

fn builder(prefix: &str) -> ProviderBuilder {
    Provider::builder()
        .namespace(&Namespace::new(prefix).unwrap())
        .max_bytes(16 << 20)
        .max_shared(64)
}

fn open(prefix: &str) -> AnyReceiver {
    AnyReceiver::open(&shm::namespace(prefix), CHANNEL).unwrap()
}

role!("last-reader-owner", owner_role);

/// The role of an owner that sends two messages: through a pair, a publisher, or as descriptors.
fn owner_role(link: &Link, arguments: &[&str]) {
    let [prefix, way, len] = arguments else {
        panic!("a prefix, a way, and a length")
    };
    let provider = builder(prefix).build().unwrap();
    let len = len.parse().unwrap();
    match *way {
        "pair" => {
            let mut sender = Sender::create(&provider, CHANNEL).unwrap();
            link.send(&Message::Done);
            sender.wait_for_receiver(Duration::MAX).unwrap();
            for _ in 0..2 {
                sender
                    .send(shm::message(&provider, len, len as u64))
                    .unwrap()
            }
            link.done_until_end();
        }
        "publisher" => {
            let mut publisher = Publisher::builder()
                .on_full(OnFull::Block)
                .create(&provider, CHANNEL)
                .unwrap();
            link.send(&Message::Done);
            publisher.wait_for_receivers(1, Duration::MAX).unwrap();
            for _ in 0..2 {
                assert!(
                    publisher
                        .send(shm::message(&provider, len, len as u64))
                        .unwrap()
                        .receivers
                        > 0
                )
            }
            link.done_until_end();
        }
        _ => {
            let kept = shm::message(&provider, len, len as u64);
            link.send(&Message::Sent(kept.descriptor().unwrap()));
            assert_eq!(link.receive().unwrap(), None);
        }
    }
}

role!("last-reader", reader_role);

/// The role of a reader: holds a message of the channel until told to drop it, and keeps running.
fn reader_role(link: &Link, arguments: &[&str]) {
    let mut receiver = open(arguments[0]);
    link.send(&Message::Done);
    let held = receiver.recv().unwrap();
    link.send(&Message::Done);
    link.expect_go();
    shm::check(&held, held.len() as u64).unwrap();
    drop((receiver, held));
    link.done_until_end();
}

role!("last-reader-successor", successor_role);

/// The role of a restarted owner: waits for memory, and reports how long that took.
fn successor_role(link: &Link, arguments: &[&str]) {
    let provider = builder(arguments[0]).build().unwrap();
    assert!(
        provider.alloc(MOST).unwrap_err().is_exhausted(),
        "the dead owner's memory is still read"
    );
    link.send(&Message::Done);
    let start = Instant::now();
    provider.alloc_timeout(MOST, 5 * SECOND).unwrap().fill(1);
    link.send(&Message::Number(start.elapsed().as_millis() as u64));
    assert_eq!(link.receive().unwrap(), None);
}

fn start_owner(prefix: &str, way: &str, len: usize) -> Child {
    Child::start("last-reader-owner", &[prefix, way, &len.to_string()])
}

/// An owner whose first message a reader holds, and whose second one is in transit.
fn start_both(prefix: &str, way: &str, len: usize) -> (Child, Child) {
    let owner = start_owner(prefix, way, len);
    owner.expect_done();
    let reader = Child::start("last-reader", &[prefix]);
    reader.expect_done();
    owner.expect_done();
    reader.expect_done();
    (owner, reader)
}

/// Even if the publisher restarted before the last reader was done.
#[test]
fn last_message_sweeps() {
    for way in ["pair", "publisher"] {
        let names = Names::new(&format!("last-{way}"));
        let owner = start_owner(names.prefix(), way, 100_000);
        owner.expect_done();
        let mut receiver = open(names.prefix());
        owner.expect_done();
        owner.kill();
        // The next owner starts at once.
        let next = names.provider().build().unwrap();
        let first = receiver.recv().unwrap();
        let second = receiver.recv().unwrap();
        assert!(receiver.recv().is_err(), "{way}: the owner is dead");
        for message in [&first, &second].into_iter() {
            shm::check(message, 100_000).unwrap();
        }
        assert!(
            shm::objects(names.prefix()).len() > 1,
            "{way}: somebody reads"
        );
        // In any order, and in any thread.
        drop(receiver);
        drop(first);
        thread::spawn(|| drop(second)).join().unwrap();
        assert_eq!(
            shm::objects(names.prefix()).len(),
            1,
            "{way}: the next one's control object"
        );
        drop(next);
    }
}

#[test]
fn unread_messages_are_swept() {
    for way in ["pair", "publisher"] {
        let names = Names::new(&format!("last-unread-{way}"));
        let (owner, reader) = start_both(names.prefix(), way, 100_000);
        owner.kill();
        assert_eq!(reader.request(&Message::Go), Message::Done);
        assert_eq!(shm::objects(names.prefix()), [""; 0], "{way}");
        reader.shut_down();
    }
}

/// The first of several receivers leaves the unread messages of the others.
#[test]
fn last_receiver_sweeps() {
    let names = Names::new("last-several");
    let owner = start_owner(names.prefix(), "publisher", 100_000);
    owner.expect_done();
    // Both open before the first message, so that both get it.
    owner.stop();
    let mut first = open(names.prefix());
    let mut second = open(names.prefix());
    owner.signal(libc::SIGCONT);
    owner.expect_done();
    owner.kill();
    shm::check(&first.recv().unwrap(), 100_000).unwrap();
    assert_eq!(second.mapped_segments(), 0);
    drop(first);
    for _ in 0..2 {
        shm::check(&second.recv().unwrap(), 100_000).unwrap();
    }
    drop(second);
    assert_eq!(shm::objects(names.prefix()), [""; 0]);
}

/// Its parent still reads the dead publisher's messages.
#[test]
fn forked_child_sweeps_nothing() {
    let names = Names::new("last-fork");
    let owner = start_owner(names.prefix(), "pair", 100_000);
    owner.expect_done();
    let receiver = open(names.prefix());
    owner.expect_done();
    owner.kill();
    let before = shm::objects(names.prefix());
    let Some(forked) = sys::fork() else {
        sys::end_with(|| drop(receiver))
    };
    forked.finish();
    assert_eq!(shm::objects(names.prefix()), before);
    drop(receiver);
    assert_eq!(shm::objects(names.prefix()), [""; 0]);
}

/// But not what another client may still attach to.
#[test]
fn last_client_sweeps() {
    let names = Names::new("last-client");
    let owner = start_owner(names.prefix(), "descriptor", 100_000);
    let descriptor = owner.sent();
    let first = names.client();
    let second = names.client();
    let view = first.attach(&descriptor).unwrap();
    second.connect(descriptor.provider()).unwrap();
    owner.kill();
    drop(first);
    drop(view);
    let view = second
        .attach(&descriptor)
        .expect("it was connected before the owner died");
    drop(second);
    shm::check(&view, 100_000).unwrap();
    drop(view);
    assert_eq!(shm::objects(names.prefix()), [""; 0]);
}

/// A reader does not keep the memory of objects that were swept while it read.
#[test]
fn last_view_frees_swept_segment() {
    let names = Names::new("last-view");
    let owner = start_owner(names.prefix(), "descriptor", 100_000);
    let descriptor = owner.sent();
    let client = names.client();
    let views = [
        client.attach(&descriptor).unwrap(),
        client.attach(&descriptor).unwrap(),
    ];
    owner.kill();
    drop(names.provider().build().unwrap());
    assert_eq!(
        shm::mappings(names.prefix()),
        2,
        "the control object and a segment"
    );
    for view in &views {
        shm::check(view, 100_000).unwrap();
    }
    drop(views);
    assert_eq!(shm::mappings(names.prefix()), 1, "the control object");
    drop(client);
}

/// It starts as soon as all readers have released their memory.
#[test]
fn waiting_successor_is_served() {
    for (way, is_killed) in [
        ("pair", false),
        ("pair", true),
        ("publisher", false),
        ("publisher", true),
    ] {
        in_small_shm_for(&format!("{way}-{is_killed}"), |prefix| {
            let (owner, reader) = start_both(prefix, way, MUCH);
            owner.kill();
            let successor = Child::start_ready("last-reader-successor", &[prefix]);
            if is_killed {
                reader.kill();
            } else {
                assert_eq!(reader.request(&Message::Go), Message::Done);
            }
            let waited = successor.number();
            assert!(waited < 2_000, "{waited} ms");
            successor.shut_down();
            assert_eq!(shm::objects(prefix), [""; 0]);
        });
    }
}

/// Memory left by killed processes is available without waiting or restarting.
#[test]
fn shortage_sweeps() {
    for what in ["alloc", "sender", "publisher"] {
        in_small_shm_for(what, |prefix| {
            let (owner, reader) = start_both(prefix, "pair", MUCH);
            let provider = builder(prefix).build().unwrap();
            owner.kill();
            reader.kill();
            match what {
                "alloc" => provider.alloc(MOST).unwrap().fill(1),
                // Rings of 2 MiB.
                "sender" => drop(
                    Sender::builder()
                        .capacity(32 << 10)
                        .create(&provider, "large")
                        .unwrap(),
                ),
                _ => {
                    let publisher = Publisher::builder()
                        .capacity(32 << 10)
                        .create(&provider, "large")
                        .unwrap();
                    drop(AnyReceiver::open(&shm::namespace(prefix), "large").unwrap());
                    drop(publisher);
                }
            }
            drop(provider);
            assert_eq!(shm::objects(prefix), [""; 0]);
        });
    }
}
