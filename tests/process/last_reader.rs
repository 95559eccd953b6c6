//! A killed owner's objects are removed by its last reader, or when memory is short: they need no
//! restart, and delay none (D24).

use crate::child::{self, Child};
use crate::shm::{self, Names};
use crate::sys;
use crate::wire::{Link, Message};
use shm_pool::channel::{OnFull, Publisher, Receiver, Sender};
use shm_pool::{Provider, ProviderBuilder, ShmBuf};
use std::thread;
use std::time::{Duration, Instant};

const CHANNEL: &str = "c";

/// More than half of a /dev/shm of 4 MiB.
const MOST: usize = 5 << 19;

const SECOND: Duration = Duration::from_secs(1);

fn builder(prefix: &str) -> ProviderBuilder {
    Provider::builder().name_prefix(prefix).max_bytes(16 << 20).max_shared(64)
}

fn message(provider: &Provider, len: usize) -> ShmBuf {
    let mut buffer = provider.alloc(len).unwrap();
    shm::fill(&mut buffer, len as u64);
    buffer.freeze()
}

fn open(prefix: &str) -> Receiver {
    Receiver::open(&shm::client(prefix), CHANNEL).unwrap()
}

role!("last-reader-owner", owner_role);

/// The role of an owner that sends two messages: through a pair, a publisher, or as descriptors.
fn owner_role(link: &Link, arguments: &[&str]) {
    let [prefix, way, len] = arguments else { panic!("a prefix, a way, and a length") };
    let provider = builder(prefix).build().unwrap();
    let len = len.parse().unwrap();
    match *way {
        "pair" => {
            let mut sender = Sender::create(&provider, CHANNEL).unwrap();
            link.send(&Message::Done);
            sender.wait_for_receiver(Duration::MAX).unwrap();
            (0..2).for_each(|_| sender.send(message(&provider, len)).unwrap());
            link.send(&Message::Done);
            assert_eq!(link.receive().unwrap(), None);
        }
        "publisher" => {
            let mut publisher = Publisher::builder().on_full(OnFull::Wait).create(&provider, CHANNEL).unwrap();
            link.send(&Message::Done);
            publisher.wait_for_receivers(1, Duration::MAX).unwrap();
            (0..2).for_each(|_| assert!(publisher.send(message(&provider, len)).unwrap() > 0));
            link.send(&Message::Done);
            assert_eq!(link.receive().unwrap(), None);
        }
        _ => {
            let kept = message(&provider, len);
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
    assert_eq!(link.receive().unwrap(), Some(Message::Go));
    shm::check(&held, held.len() as u64).unwrap();
    drop((receiver, held));
    link.send(&Message::Done);
    assert_eq!(link.receive().unwrap(), None);
}

role!("last-reader-successor", successor_role);

/// The role of a restarted owner: waits for memory, and reports how long that took.
fn successor_role(link: &Link, arguments: &[&str]) {
    let provider = builder(arguments[0]).build().unwrap();
    assert!(provider.alloc(MOST).unwrap_err().is_exhausted(), "the dead owner's memory is still read");
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
    [&reader, &owner, &reader].into_iter().for_each(Child::expect_done);
    (owner, reader)
}

/// A crash costs no memory after the last reader is done, even if the publisher restarted before
/// that.
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
        [&first, &second].into_iter().for_each(|message| shm::check(message, 100_000).unwrap());
        assert!(shm::objects(names.prefix()).len() > 1, "{way}: somebody reads");
        // In any order, and in any thread.
        drop(receiver);
        drop(first);
        thread::spawn(|| drop(second)).join().unwrap();
        assert_eq!(shm::objects(names.prefix()).len(), 1, "{way}: the next one's control object");
        drop(next);
    }
}

#[test]
fn unread_messages_are_swept() {
    for way in ["pair", "publisher"] {
        let names = Names::new(&format!("last-unread-{way}"));
        let (owner, reader) = start_both(names.prefix(), way, 100_000);
        owner.kill();
        assert_eq!(reader.ask(&Message::Go), Message::Done);
        assert_eq!(shm::objects(names.prefix()), [""; 0], "{way}");
        reader.shut_down();
    }
}

/// The first of several receivers leaves the unread messages of the others, and the last one
/// removes them.
#[test]
fn last_receiver_sweeps() {
    let names = Names::new("last-several");
    let owner = start_owner(names.prefix(), "publisher", 100_000);
    owner.expect_done();
    // Both open before the first message, so that both get it.
    owner.stop();
    let mut receivers = [(); 2].map(|()| open(names.prefix()));
    owner.signal(libc::SIGCONT);
    owner.expect_done();
    owner.kill();
    let [first, second] = &mut receivers;
    shm::check(&first.recv().unwrap(), 100_000).unwrap();
    assert_eq!(second.mapped_segments(), 0);
    let [first, mut second] = receivers;
    drop(first);
    (0..2).for_each(|_| shm::check(&second.recv().unwrap(), 100_000).unwrap());
    drop(second);
    assert_eq!(shm::objects(names.prefix()), [""; 0]);
}

/// A reader's helper process does not remove a dead publisher's messages, which its parent still
/// reads.
#[test]
fn forked_child_sweeps_nothing() {
    let names = Names::new("last-fork");
    let owner = start_owner(names.prefix(), "pair", 100_000);
    owner.expect_done();
    let receiver = open(names.prefix());
    owner.expect_done();
    owner.kill();
    let before = shm::objects(names.prefix());
    let Some(forked) = sys::fork() else { sys::end_with(|| drop(receiver)) };
    forked.finish();
    assert_eq!(shm::objects(names.prefix()), before);
    drop(receiver);
    assert_eq!(shm::objects(names.prefix()), [""; 0]);
}

/// A subscriber that attaches by descriptor frees a dead publisher's memory, but not what another
/// client may still attach to.
#[test]
fn last_client_sweeps() {
    let names = Names::new("last-client");
    let owner = start_owner(names.prefix(), "descriptor", 100_000);
    let Message::Sent(descriptor) = owner.hear() else { panic!("not a descriptor") };
    let [first, second] = [(); 2].map(|()| names.client());
    let view = first.attach(&descriptor).unwrap();
    second.connect(descriptor.provider()).unwrap();
    owner.kill();
    drop(first);
    drop(view);
    let view = second.attach(&descriptor).expect("it was connected before the owner died");
    drop(second);
    shm::check(&view, 100_000).unwrap();
    drop(view);
    assert_eq!(shm::objects(names.prefix()), [""; 0]);
}

/// A subscriber that keeps running does not keep the memory of objects that were swept while it
/// read.
#[test]
fn last_view_frees_swept_segment() {
    let names = Names::new("last-view");
    let owner = start_owner(names.prefix(), "descriptor", 100_000);
    let Message::Sent(descriptor) = owner.hear() else { panic!("not a descriptor") };
    let client = names.client();
    let views = [(); 2].map(|()| client.attach(&descriptor).unwrap());
    owner.kill();
    drop(names.provider().build().unwrap());
    assert_eq!(shm::mappings(names.prefix()), 2, "the control object and a segment");
    views.iter().for_each(|view| shm::check(view, 100_000).unwrap());
    drop(views);
    assert_eq!(shm::mappings(names.prefix()), 1, "the control object");
    drop(client);
}

/// A publisher that restarts at once on a small /dev/shm starts as soon as all readers have
/// released their memory.
#[test]
fn waiting_successor_is_served() {
    for way in ["pair", "publisher"] {
        for end in ["lets-go", "is-killed"] {
            let names = Names::new(&format!("last-{way}-{end}"));
            child::run_in_small_shm("last-reader-small-shm", &[names.prefix(), way, end]);
        }
    }
}

/// Memory left by killed processes is available without waiting or restarting.
#[test]
fn shortage_sweeps() {
    for what in ["alloc", "sender", "publisher-and-receiver"] {
        let names = Names::new(&format!("last-short-{what}"));
        child::run_in_small_shm("last-reader-small-shm", &[names.prefix(), "pair", what]);
    }
}

role!("last-reader-small-shm", small_shm_role);

/// The role, in a process whose /dev/shm has 4 MiB.
fn small_shm_role(link: &Link, arguments: &[&str]) {
    let [prefix, way, end] = arguments else { panic!("a prefix, a way, and an end") };
    // Two messages take more than half of it.
    let (owner, reader) = start_both(prefix, way, 3 << 19);
    match *end {
        "lets-go" | "is-killed" => {
            owner.kill();
            let successor = Child::start("last-reader-successor", &[prefix]);
            successor.expect_done();
            if *end == "lets-go" {
                assert_eq!(reader.ask(&Message::Go), Message::Done);
            } else {
                reader.kill();
            }
            let Message::Number(waited) = successor.hear() else { panic!("not a number") };
            assert!(waited < 2_000, "{waited} ms");
            successor.shut_down();
        }
        what => {
            let provider = builder(prefix).build().unwrap();
            owner.kill();
            reader.kill();
            match what {
                "alloc" => provider.alloc(MOST).unwrap().fill(1),
                // Rings of 2 MiB.
                "sender" => drop(Sender::builder().capacity(32 << 10).create(&provider, "large").unwrap()),
                _ => {
                    let publisher = Publisher::builder().capacity(32 << 10).create(&provider, "large").unwrap();
                    drop(Receiver::open(&shm::client(prefix), "large").unwrap());
                    drop(publisher);
                }
            }
            drop(provider);
        }
    }
    assert_eq!(shm::objects(prefix), [""; 0]);
    link.send(&Message::Done);
}
