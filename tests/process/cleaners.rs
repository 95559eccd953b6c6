//! Programs that clean up /dev/shm: they leave what is alive.

use crate::child::Child;
use crate::shm::{self, Names};
use crate::sys;
use crate::wire::{Link, Message, FOR_EVER};
use shm_pool::channel::{Publisher, RecvError, Subscriber};
use shm_pool::inspect::Inspector;
use shm_pool::{AttachError, Client, Namespace, Provider, Tuning};
use std::fs::{self, File};

const LEN: usize = 60_000;

fn connected(provider: &Provider, namespace: &Namespace) -> (Publisher, Subscriber) {
    let mut publisher = Publisher::create(provider, "c").unwrap();
    let subscriber = Subscriber::builder()
        .namespace(namespace)
        .open("c")
        .unwrap();
    publisher.wait_for_receivers(1, FOR_EVER).unwrap();
    (publisher, subscriber)
}

role!("cleaned", role);

/// The role: a publisher with a subscriber and a segment.
fn role(link: &Link, arguments: &[&str]) {
    let namespace = shm::namespace(arguments[0]);
    let provider = Provider::builder().namespace(&namespace).build().unwrap();
    let (mut publisher, mut subscriber) = connected(&provider, &namespace);
    publisher.send_copy(&[1; 5000]).unwrap();
    let _message = subscriber.recv().unwrap();
    link.send(&Message::Done);
    let _ = link.receive();
}

/// `systemd-tmpfiles` removes an old file only if it gets an exclusive `flock` on it (since systemd
/// 254).
#[test]
fn objects_of_the_living_are_locked() {
    let names = Names::new("cleaned");
    let child = Child::start("cleaned", &[names.prefix()]);
    child.expect_done();
    let objects = shm::objects(names.prefix());
    assert!(objects.len() >= 4, "{objects:?}");
    for object in &objects {
        let file = File::open(shm::path(object)).unwrap();
        assert!(!sys::lock_whole(&file), "{object} may be removed");
    }
    child.kill();
    for object in &objects {
        let file = File::open(shm::path(object)).unwrap();
        assert!(sys::lock_whole(&file), "{object} stays for ever");
    }
    names.sweep();
}

/// The name of a segment is removed before a peer has mapped it. Its provider is alive, so the
/// error does not say that it has closed.
#[test]
fn removed_segment() {
    let names = Names::new("removed-segment");
    let namespace = shm::namespace(names.prefix());
    let provider = names.provider().build().unwrap();
    let client = Client::in_namespace(&namespace);
    client.connect(provider.id()).unwrap();
    let (mut publisher, mut subscriber) = connected(&provider, &namespace);
    let message = shm::message(&provider, 5000, 1);
    let segment = format!("{}.{}.1", names.prefix(), provider.id());
    fs::remove_file(shm::path(&segment)).unwrap();

    let refused = client.attach(&message.descriptor().unwrap());
    assert_invisible(refused.err().unwrap(), &segment);
    publisher.send_copy(&[1; 5000]).unwrap();
    match subscriber.recv() {
        Err(RecvError::Attach(error)) => assert_invisible(error, &segment),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn assert_invisible(error: AttachError, segment: &str) {
    let AttachError::Os(error) = error else {
        panic!("{error:?}")
    };
    assert_eq!(error.errno(), Some(libc::ENOENT));
    let text = error.to_string();
    assert!(
        text.contains(segment) && text.contains("RemoveIPC") && text.contains("chroot"),
        "{text}"
    );
}

/// All names of a living publisher are removed, as systemd does at a user's last logout. A report
/// says so, and of which process.
#[test]
fn removed_names_are_reported() {
    let names = Names::new("removed-names");
    let child = Child::start("cleaned", &[names.prefix()]);
    child.expect_done();
    let namespace = shm::namespace(names.prefix());
    let mut inspector = Inspector::new().namespace(&namespace);
    assert_eq!(inspector.report().unwrap().removed, []);
    for object in shm::objects(names.prefix()) {
        fs::remove_file(shm::path(&object)).unwrap();
    }

    let report = inspector.report().unwrap();
    assert!(report.providers.is_empty() && report.channels.is_empty());
    // The control object, the channel, and its connection.
    assert_eq!(report.removed.len(), 3, "{report:?}");
    for removed in &report.removed {
        assert_eq!(removed.process.id, child.id());
    }
    child.kill();
    assert_eq!(inspector.report().unwrap().removed, []);
}

/// The same for a provider of this process.
#[test]
fn own_report_without_a_name() {
    let names = Names::new("removed-own");
    let provider = names.provider().build().unwrap();
    assert!(provider.report().is_ok());
    for object in shm::objects(names.prefix()) {
        fs::remove_file(shm::path(&object)).unwrap();
    }
    let error = provider.report().err().unwrap().to_string();
    assert!(error.contains("RemoveIPC"), "{error}");
}

role!("cleaned-publishes", publishing_role);

/// The role: a publisher that sends a message in a new segment at each `Go`.
fn publishing_role(link: &Link, arguments: &[&str]) {
    let namespace = shm::namespace(arguments[0]);
    let tuning = Tuning::new().arena_size(64 << 10);
    let builder = Provider::builder().namespace(&namespace).tuning(tuning);
    let provider = builder.build().unwrap();
    let mut publisher = Publisher::create(&provider, "c").unwrap();
    link.send(&Message::Done);
    publisher.wait_for_receivers(1, FOR_EVER).unwrap();
    let mut held = Vec::new();
    while let Some(Message::Go) = link.receive().unwrap() {
        let before = provider.stats().segments;
        while provider.stats().segments == before {
            held.push(shm::message(&provider, LEN, 7));
        }
        publisher.send(held[held.len() - 1].clone()).unwrap();
        link.send(&Message::Done);
    }
}

/// At a logout, all objects of a user are removed. Connected subscribers get what is sent, until a
/// sweep takes the segments that were made since for those of a dead publisher.
#[test]
fn removed_under_a_living_publisher() {
    let names = Names::new("cleaned-logout");
    let child = Child::start_ready("cleaned-publishes", &[names.prefix()]);
    let builder = Subscriber::builder().namespace(&names.namespace());
    let mut subscriber = builder.open("c").unwrap();
    assert_eq!(child.request(&Message::Go), Message::Done);
    shm::check(&subscriber.recv().unwrap(), 7).unwrap();

    for object in shm::objects(names.prefix()) {
        fs::remove_file(shm::path(&object)).unwrap();
    }
    assert_eq!(child.request(&Message::Go), Message::Done);
    shm::check(&subscriber.recv().unwrap(), 7).unwrap();
    assert_eq!(names.namespace().channels().unwrap(), []);

    assert_eq!(child.request(&Message::Go), Message::Done);
    drop(names.provider().build().unwrap());
    let lost = subscriber.recv();
    assert!(
        matches!(lost, Err(RecvError::Attach(AttachError::Os(_)))),
        "{lost:?}"
    );
    child.shut_down();
}
