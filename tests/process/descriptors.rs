//! File descriptors: an owner keeps one per segment and a peer none, and running out of them is an
//! error without side effects (D9).

use crate::child::Child;
use crate::shm::{self, Names};
use crate::sys;
use crate::wire::{Link, Message};
use shm_pool::{AllocErrorKind, AttachError, BuildError, OsError, Provider};
use std::fs::File;
use std::os::fd::AsRawFd;

/// The length of each of the `SEGMENTS` messages. Together they need several segments.
const LEN: usize = 96 << 10;
const SEGMENTS: usize = 60;

/// Building or connecting takes at most this many descriptors.
const ENOUGH: u64 = 8;

/// Neither a pool of many messages nor repeated failures exhaust the process's descriptors.
#[test]
fn owner_descriptors() {
    run("descriptors-of-an-owner", "fds-owner");
}

/// A peer that maps many segments, or often tries to connect, does not exhaust its descriptors.
#[test]
fn peer_descriptors() {
    run("descriptors-of-a-peer", "fds-peer");
}

#[test]
fn grant_survives_descriptor_limit() {
    run("descriptors-of-a-receiver", "fds-grant");
}

fn run(role: &str, test: &str) {
    let names = Names::new(test);
    let child = Child::start(role, &[names.prefix()]);
    child.expect_done();
    child.finish();
}

fn builder(prefix: &str) -> shm_pool::ProviderBuilder {
    Provider::builder().name_prefix(prefix).max_bytes(8 << 20).arena_size(64 << 10).max_idle_per_class(SEGMENTS)
}

/// Calls `body` while no more than `count` descriptors can be opened.
pub(crate) fn with_only<T>(count: u64, body: impl FnOnce() -> T) -> T {
    let lowest_free = File::open("/dev/null").unwrap().as_raw_fd();
    sys::limit_descriptors(lowest_free as u64 + count);
    let result = body();
    sys::limit_descriptors(1024);
    result
}

fn assert_no_descriptor_left(error: &OsError) {
    assert_eq!(error.errno(), Some(libc::EMFILE), "{error}");
    assert!(error.to_string().contains("ulimit -n"), "{error}");
}

role!("descriptors-of-an-owner", owner);

fn owner(link: &Link, arguments: &[&str]) {
    let prefix = arguments[0];
    let before = (shm::open_descriptors(), shm::mappings(prefix), shm::objects(prefix));
    let mut failures = 0;
    let provider = (0..=ENOUGH).find_map(|count| match with_only(count, || builder(prefix).build()) {
        Ok(provider) => Some(provider),
        Err(BuildError::Os(error)) => {
            assert_no_descriptor_left(&error);
            assert_eq!((shm::open_descriptors(), shm::mappings(prefix), shm::objects(prefix)), before);
            failures += 1;
            None
        }
        Err(error) => panic!("{error}"),
    });
    assert!(failures > 0, "the limit was felt");
    let provider = provider.expect("enough descriptors");

    let built = shm::open_descriptors();
    for len in [LEN, 64] {
        let error = with_only(0, || provider.alloc(len)).unwrap_err();
        let AllocErrorKind::Os(error) = error.kind() else { panic!("{error}") };
        assert_no_descriptor_left(error);
        assert_eq!((provider.stats().bytes_held, provider.stats().segments), (0, 0));
    }
    let all = [(); SEGMENTS].map(|()| provider.alloc(LEN).unwrap().freeze());
    for message in &all {
        message.descriptor().unwrap();
    }
    let segments = provider.stats().segments;
    assert!((1..SEGMENTS).contains(&segments), "{segments} segments for {SEGMENTS} messages");
    assert_eq!(shm::open_descriptors(), built + segments, "one for each segment");
    drop(all);
    let warm = with_only(0, || provider.alloc(LEN).map(drop));
    warm.expect("a warm allocation needs no descriptor");
    drop(provider);
    assert_eq!((shm::open_descriptors(), shm::mappings(prefix), shm::objects(prefix)), before);
    link.send(&Message::Done);
}

role!("descriptors-of-a-peer", peer);

fn peer(link: &Link, arguments: &[&str]) {
    let prefix = arguments[0];
    let provider = builder(prefix).build().unwrap();
    let messages: Vec<_> = (0..SEGMENTS).map(|_| provider.alloc(LEN).unwrap().freeze()).collect();
    let descriptors: Vec<_> = messages.iter().map(|message| message.descriptor().unwrap()).collect();
    let before = (shm::open_descriptors(), shm::mappings(prefix));
    let client = shm::client(prefix);
    let mut failures = 0;
    let connected = (0..=ENOUGH).find_map(|count| match with_only(count, || client.connect(provider.id())) {
        Ok(id) => Some(id),
        Err(AttachError::Os(error)) => {
            assert_no_descriptor_left(&error);
            assert_eq!((shm::open_descriptors(), shm::mappings(prefix)), before);
            failures += 1;
            None
        }
        Err(error) => panic!("{error}"),
    });
    assert!(failures > 0, "the limit was felt");
    assert_eq!(connected.expect("enough descriptors").slot(), 0, "the attempts before took no slot");

    let connected = (shm::open_descriptors(), shm::mappings(prefix));
    let Err(AttachError::Os(error)) = with_only(0, || client.attach(&descriptors[0])) else { panic!("another error") };
    assert_no_descriptor_left(&error);
    assert!(!messages[0].is_leased(), "a failed attach gives its lease back");
    assert_eq!((shm::open_descriptors(), shm::mappings(prefix)), connected);
    let views: Vec<_> = descriptors.iter().map(|descriptor| client.attach(descriptor).unwrap()).collect();
    assert_eq!(
        (shm::open_descriptors(), shm::mappings(prefix)),
        (connected.0, connected.1 + provider.stats().segments)
    );
    drop(views);
    let warm = with_only(0, || client.attach(&descriptors[0]).map(drop));
    warm.expect("attaching to what is mapped needs no descriptor");
    drop(client);
    assert_eq!((shm::open_descriptors(), shm::mappings(prefix)), before);
    link.send(&Message::Done);
}

role!("descriptors-of-a-receiver", receiver);

fn receiver(link: &Link, arguments: &[&str]) {
    let prefix = arguments[0];
    let provider = builder(prefix).build().unwrap();
    for len in [LEN, 64] {
        // This client has not mapped the segment yet.
        let client = shm::client(prefix);
        let id = client.connect(provider.id()).unwrap();
        let mut buffer = provider.alloc(len).unwrap();
        shm::fill(&mut buffer, 1);
        let message = buffer.freeze();
        let granted = message.grant(id).unwrap();
        drop(message); // from here on, only the grant holds it
        for _ in 0..3 {
            let Err(AttachError::Os(error)) = with_only(0, || client.attach(&granted)) else { panic!("another error") };
            assert_no_descriptor_left(&error);
        }
        let stats = provider.stats();
        assert_eq!((stats.bytes_in_use, stats.bytes_leased), (0, len), "the grant still holds the message");
        provider.alloc(len).unwrap().freeze().descriptor().unwrap();
        let view = client.attach(&granted).expect("the grant was not spent");
        shm::check(&view, 1).unwrap();
        let again = client.attach(&granted).unwrap_err();
        assert!(matches!(again, AttachError::NotGranted), "one grant is one view: {again}");
        drop(view);
        assert_eq!(provider.stats().bytes_leased, 0);
    }
    link.send(&Message::Done);
}
