//! Programs that clean up /dev/shm: they leave what is alive.

use crate::child::Child;
use crate::shm::{self, Names};
use crate::sys;
use crate::wire::{Link, Message, FOR_EVER};
use shm_pool::channel::{Publisher, Subscriber};
use shm_pool::Provider;
use std::fs::File;

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
