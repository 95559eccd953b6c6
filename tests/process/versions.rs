//! A publisher and a subscriber, or a sender and a receiver, of different versions during an
//! upgrade: both sides learn both versions, and the next publisher of the same version is
//! received.
//!
//! The other version is this one with another number in its object, at the place that all versions share.

use crate::channel::provider;
use crate::child::Child;
use crate::shm::{self, Names};
use crate::wire::{Link, Message, FOR_EVER};
use shm_pool::channel::{
    ChannelError, Publisher, Receiver, SendError, SendErrorKind, Sender, Subscriber,
};
use std::os::unix::fs::FileExt;
use std::time::Duration;

const CHANNEL: &str = "c";

role!("upgrading", role);

/// A receiver or subscriber. Answers with the versions found and expected when it opens the channel;
/// then, at each request, opens it again and answers with the length of a message.
fn role(link: &Link, arguments: &[&str]) {
    let [prefix, kind] = arguments else {
        panic!("{arguments:?}")
    };
    let namespace = shm::namespace(prefix);
    let error = match *kind {
        "receiver" => {
            let opened = Receiver::builder().namespace(&namespace).open(CHANNEL);
            opened.expect_err("it has another version")
        }
        _ => {
            let opened = Subscriber::builder().namespace(&namespace).open(CHANNEL);
            opened.expect_err("it has another version")
        }
    };
    let ChannelError::OtherVersion { found, .. } = error else {
        panic!("{error}");
    };
    link.send(&Message::Number(found.into()));
    let text = error.to_string();
    let (_, expected) = text.split_once("uses version ").expect(&text);
    let (expected, _) = expected.split_once(';').expect(&text);
    link.send(&Message::Number(expected.parse().expect(&text)));

    link.expect_go();
    let received = match *kind {
        "receiver" => Receiver::builder()
            .namespace(&namespace)
            .open_timeout(CHANNEL, FOR_EVER)
            .unwrap()
            .recv(),
        _ => Subscriber::builder()
            .namespace(&namespace)
            .open_timeout(CHANNEL, FOR_EVER)
            .unwrap()
            .recv(),
    };
    link.send(&Message::Number(received.unwrap().len() as u64));
}

/// Gives the channel's object the next version, and returns the version of this crate and that one.
fn make_newer(prefix: &str) -> (u32, u32) {
    let object = shm::channel_object(prefix, CHANNEL);
    let mut bytes = [0; 4];
    object.read_exact_at(&mut bytes, 8).unwrap();
    let ours = u32::from_ne_bytes(bytes);
    let newer = ours + 1;
    object.write_all_at(&newer.to_ne_bytes(), 8).unwrap();
    (ours, newer)
}

/// The sending side learns the receiver's version, in a typed error and in its text.
fn assert_other_version(error: &SendError, ours: u32) {
    assert_eq!(error.kind(), SendErrorKind::OtherVersion { found: ours });
    assert!(error.is_timeout());
    let text = error.to_string();
    assert!(text.contains(&format!("version {ours}")), "{text}");
}

#[test]
fn publisher_of_another_version() {
    let names = Names::new("versions-publisher");
    let provider = provider(names.prefix());
    let mut publisher = Publisher::create(&provider, CHANNEL).unwrap();
    let (ours, newer) = make_newer(names.prefix());

    let subscriber = Child::start("upgrading", &[names.prefix(), "subscriber"]);
    assert_eq!(subscriber.number(), u64::from(newer));
    assert_eq!(subscriber.number(), u64::from(ours));
    let error = publisher.wait_for_receivers(1, Duration::ZERO).unwrap_err();
    assert_other_version(&error, ours);

    drop(publisher);
    let mut publisher = Publisher::create(&provider, CHANNEL).unwrap();
    subscriber.send(&Message::Go);
    publisher.wait_for_receivers(1, FOR_EVER).unwrap();
    publisher.send_copy(b"upgraded").unwrap();
    assert_eq!(subscriber.number(), 8);
    subscriber.finish();
    drop((publisher, provider));
    names.sweep();
}

#[test]
fn sender_of_another_version() {
    let names = Names::new("versions-sender");
    let provider = provider(names.prefix());
    let mut sender = Sender::create(&provider, CHANNEL).unwrap();
    let (ours, newer) = make_newer(names.prefix());

    let receiver = Child::start("upgrading", &[names.prefix(), "receiver"]);
    assert_eq!(receiver.number(), u64::from(newer));
    assert_eq!(receiver.number(), u64::from(ours));
    let error = sender.wait_for_receiver(Duration::ZERO).unwrap_err();
    assert_other_version(&error, ours);

    drop(sender);
    let mut sender = Sender::create(&provider, CHANNEL).unwrap();
    receiver.send(&Message::Go);
    sender.send_copy(b"upgraded").unwrap();
    assert_eq!(receiver.number(), 8);
    receiver.finish();
    drop((sender, provider));
    names.sweep();
}
