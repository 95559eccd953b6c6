//! Programs that clean up /dev/shm: they leave what is alive.

use crate::child::Child;
use crate::shm::{self, Names};
use crate::sys;
use crate::wire::{Link, Message, FOR_EVER};
use shm_pool::channel::{Publisher, RecvError, Subscriber};
use shm_pool::{Provider, Tuning};
use std::fs::{self, File};

const LEN: usize = 60_000;

role!("cleaned", role);

/// The role: a publisher with a subscriber and a segment.
fn role(link: &Link, arguments: &[&str]) {
    let namespace = shm::namespace(arguments[0]);
    let provider = Provider::builder().namespace(&namespace).build().unwrap();
    let mut publisher = Publisher::create(&provider, "c").unwrap();
    let mut subscriber = Subscriber::builder()
        .namespace(&namespace)
        .open("c")
        .unwrap();
    publisher.wait_for_receivers(1, FOR_EVER).unwrap();
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
    assert_eq!(child.ask(&Message::Go), Message::Done);
    shm::check(&subscriber.recv().unwrap(), 7).unwrap();

    for object in shm::objects(names.prefix()) {
        fs::remove_file(shm::path(&object)).unwrap();
    }
    assert_eq!(child.ask(&Message::Go), Message::Done);
    shm::check(&subscriber.recv().unwrap(), 7).unwrap();
    assert_eq!(names.namespace().channels().unwrap(), []);

    assert_eq!(child.ask(&Message::Go), Message::Done);
    drop(names.provider().build().unwrap());
    let lost = subscriber.recv();
    assert!(matches!(lost, Err(RecvError::MessageLost(_))), "{lost:?}");
    child.shut_down();
}
