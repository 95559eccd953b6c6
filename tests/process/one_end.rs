//! What was sent or granted arrives however its owner ends, whatever sweeps, and whether or not a
//! successor has taken the channel's name. Afterwards nothing is left.

use crate::child::{in_small_shm_for, Child};
use crate::ends::AnyReceiver;
use crate::shm::{self, Names};
use crate::sys::{self, Ending};
use crate::wire::{Link, Message, FOR_EVER};
use shm_pool::channel::{ChannelError, Publisher, Receiver, RecvError, Sender};
use shm_pool::inspect::Inspector;
use shm_pool::{AttachError, Client, Descriptor, Namespace, Provider, ShmView, Tuning};
use std::thread;
use std::time::{Duration, Instant};

const CHANNEL: &str = "c";

const MESSAGES: u64 = 10;

/// As long as an arena, so that each message lies in a segment of its own, which no receiver maps
/// before it receives the message.
const LEN: usize = 1_000_000;

/// The ways to send.
const KINDS: [&str; 3] = ["sender", "publisher", "grants"];

/// How an owner ends.
#[derive(Clone, Copy, Debug)]
enum End {
    /// It drops what it owns, and the process runs on.
    Drop,
    /// It drops what it owns, and the process exits.
    Return,
    Without(Ending),
}

const ENDS: [End; 5] = [
    End::Drop,
    End::Return,
    End::Without(Ending::Exit),
    End::Without(Ending::Abort),
    End::Without(Ending::Kill),
];

fn provider(prefix: &str, len: usize) -> Provider {
    Provider::builder()
        .namespace(&Namespace::new(prefix).unwrap())
        .max_bytes(16 * len.next_power_of_two())
        .tuning(Tuning::new().arena_size(len.next_power_of_two()))
        .build()
        .unwrap()
}

role!("ending", ending);

/// The role of an owner that sends by a kind (an argument), and ends as it is asked to.
fn ending(link: &Link, arguments: &[&str]) {
    let [prefix, kind, channel, len] = arguments else {
        panic!("{arguments:?}")
    };
    let len = len.parse().unwrap();
    let provider = provider(prefix, len);
    let message = |number| shm::message(&provider, len, number);
    let mut sender = None;
    let mut publisher = None;
    match *kind {
        "sender" => sender = Some(Sender::create(&provider, channel).unwrap()),
        "publisher" => {
            let builder = Publisher::builder().max_bytes_per_receiver(usize::MAX);
            publisher = Some(builder.create(&provider, channel).unwrap());
        }
        _ => link.send(&Message::Provider(provider.id())),
    }
    if let Some(sender) = &mut sender {
        link.send(&Message::Done);
        sender.wait_for_receiver(FOR_EVER).unwrap();
        for number in 0..MESSAGES {
            sender.send(message(number)).unwrap();
        }
    } else if let Some(publisher) = &mut publisher {
        link.send(&Message::Done);
        publisher.wait_for_receivers(1, FOR_EVER).unwrap();
        for number in 0..MESSAGES {
            assert_eq!(publisher.send(message(number)).unwrap().receivers, 1);
        }
    } else {
        let Some(Message::Peer(peer)) = link.receive().unwrap() else {
            panic!("no peer")
        };
        for number in 0..MESSAGES {
            let descriptor = message(number).grant(peer).unwrap();
            link.send(&Message::Sent(descriptor));
        }
    }
    link.send(&Message::Done);
    match link.receive().unwrap() {
        Some(Message::End(how)) => how.end(),
        Some(Message::Go) => {
            // In either order: the pool ends with the last of them.
            drop(provider);
            drop((sender, publisher));
            link.send(&Message::Done);
            // Until the test ends, or tells it to.
            let _ = link.receive();
        }
        other => panic!("{other:?}"),
    }
}

/// The other side of an owner.
enum Reader {
    Channel(Box<AnyReceiver>),
    Grants(Client, Vec<Descriptor>),
}

impl Reader {
    /// Starts an owner, and receives none of its messages.
    fn of_new_owner(prefix: &str, kind: &str, channel: &str, len: usize) -> (Child, Self) {
        let owner = Child::start("ending", &[prefix, kind, channel, &len.to_string()]);
        let reader = if kind == "grants" {
            let client = shm::client(prefix);
            let Message::Provider(id) = owner.receive() else {
                panic!("no provider")
            };
            owner.send(&Message::Peer(client.connect(id).unwrap()));
            let mut descriptors = Vec::new();
            for _ in 0..MESSAGES {
                descriptors.push(owner.sent());
            }
            Self::Grants(client, descriptors)
        } else {
            owner.expect_done();
            Self::Channel(Box::new(
                AnyReceiver::open(&shm::namespace(prefix), channel).unwrap(),
            ))
        };
        owner.expect_done();
        (owner, reader)
    }

    /// Receives everything.
    fn check(&mut self) {
        match self {
            Self::Channel(receiver) => {
                for number in 0..MESSAGES {
                    let message = receiver.recv_timeout(FOR_EVER).unwrap();
                    shm::check(&message, number).unwrap();
                }
                let end = receiver.recv_timeout(FOR_EVER);
                assert!(matches!(end, Err(RecvError::Disconnected)), "{end:?}");
            }
            Self::Grants(client, descriptors) => {
                for (number, descriptor) in descriptors.iter().enumerate() {
                    let view: ShmView = client.attach(descriptor).unwrap();
                    shm::check(&view, number as u64).unwrap();
                }
                let end = client.attach(&descriptors[0]);
                assert!(matches!(end, Err(AttachError::NotGranted)), "{end:?}");
            }
        }
    }
}

/// Returns the process if it runs on.
#[must_use]
fn end(owner: Child, how: End) -> Option<Child> {
    match how {
        End::Without(Ending::Kill) => owner.kill(),
        End::Without(how) => {
            owner.send(&Message::End(how));
            let _ = owner.ended();
        }
        End::Drop | End::Return => {
            owner.send(&Message::Go);
            owner.expect_done();
            if matches!(how, End::Drop) {
                return Some(owner);
            }
            owner.shut_down();
        }
    }
    None
}

/// What happens between the end of an owner and the first receive.
#[derive(Clone, Copy, Debug)]
enum Meanwhile {
    Nothing,
    Sweep,
    Build,
    LastReaderOfAnotherOwner,
}

const MEANWHILE: [Meanwhile; 4] = [
    Meanwhile::Nothing,
    Meanwhile::Sweep,
    Meanwhile::Build,
    Meanwhile::LastReaderOfAnotherOwner,
];

fn happen(names: &Names, meanwhile: Meanwhile) {
    match meanwhile {
        Meanwhile::Nothing => {}
        Meanwhile::Sweep => {
            names.sweep();
        }
        Meanwhile::Build => drop(provider(names.prefix(), LEN)),
        Meanwhile::LastReaderOfAnotherOwner => {
            let (owner, mut reader) = Reader::of_new_owner(names.prefix(), "sender", "other", 5000);
            let _ = end(owner, End::Without(Ending::Kill));
            reader.check();
        }
    }
}

fn every_case(kind: &str) {
    for how in ENDS {
        for has_successor in [false, true] {
            for meanwhile in MEANWHILE {
                eprintln!("{kind}, {how:?}, successor: {has_successor}, {meanwhile:?}");
                let names = Names::new(&format!("one-end-{kind}"));
                let (owner, mut reader) = Reader::of_new_owner(names.prefix(), kind, CHANNEL, LEN);
                let _running = end(owner, how);
                let report = Inspector::new()
                    .namespace(&names.namespace())
                    .report()
                    .unwrap();
                assert!(!report.providers.is_empty());
                for provider in &report.providers {
                    assert_eq!(
                        provider.orphans.objects, 0,
                        "an inspection agrees with the sweeps"
                    );
                }
                let mut successor = None;
                if has_successor {
                    let provider = provider(names.prefix(), LEN);
                    let sender = if kind == "publisher" {
                        (None, Some(Publisher::create(&provider, CHANNEL).unwrap()))
                    } else {
                        (Some(Sender::create(&provider, CHANNEL).unwrap()), None)
                    };
                    successor = Some((sender, provider));
                }
                happen(&names, meanwhile);
                if let (Reader::Grants(client, _), Some((_, provider))) = (&reader, &successor) {
                    client.connect(provider.id()).unwrap();
                }
                reader.check();
                drop(reader);
                drop(successor);
                assert_eq!(shm::objects(names.prefix()), [""; 0], "by the last reader");
            }
        }
    }
}

#[test]
fn sender_ends() {
    every_case(KINDS[0]);
}

#[test]
fn publisher_ends() {
    every_case(KINDS[1]);
}

#[test]
fn grants_outlive_their_owner() {
    every_case(KINDS[2]);
}

role!("ending-reader", reading);

/// The role of a process that reads what an owner has sent it, once it is asked to.
fn reading(link: &Link, arguments: &[&str]) {
    let [prefix] = arguments else {
        panic!("{arguments:?}")
    };
    let receiver = AnyReceiver::open(&shm::namespace(prefix), CHANNEL).unwrap();
    link.send(&Message::Done);
    if link.receive().unwrap() == Some(Message::Go) {
        Reader::Channel(Box::new(receiver)).check();
    }
    link.send(&Message::Done);
}

/// A stopped receiver gets everything once it continues; a killed one leaves everything to a sweep.
#[test]
fn stopped_and_killed_receivers() {
    for kind in ["sender", "publisher"] {
        for how in ENDS {
            for is_killed in [false, true] {
                let names = Names::new(&format!("one-end-{kind}-elsewhere"));
                let len = LEN.to_string();
                let owner = Child::start("ending", &[names.prefix(), kind, CHANNEL, &len]);
                owner.expect_done();
                let reader = Child::start_ready("ending-reader", &[names.prefix()]);
                owner.expect_done();
                reader.stop();
                let _running = end(owner, how);
                // At most the object where receivers of a killed publisher have joined.
                assert!(names.sweep() <= 1, "{kind}, {how:?}: it has a reader");
                if is_killed {
                    reader.kill();
                    assert_ne!(names.sweep(), 0, "{kind}, {how:?}: it has none");
                } else {
                    reader.signal(libc::SIGCONT);
                    reader.send(&Message::Go);
                    reader.expect_done();
                    reader.shut_down();
                }
                assert_eq!(shm::objects(names.prefix()), [""; 0], "{kind}, {how:?}");
            }
        }
    }
}

/// A shortage of memory takes no message either.
#[test]
fn shortage_takes_no_message() {
    for kind in KINDS {
        in_small_shm_for(kind, |prefix| {
            let (owner, mut reader) = Reader::of_new_owner(prefix, kind, CHANNEL, 100_000);
            let _ = end(owner, End::Return);
            let successor = Provider::builder()
                .namespace(&Namespace::new(prefix).unwrap())
                .max_bytes(64 << 20)
                .build()
                .unwrap();
            let _sender = Sender::create(&successor, CHANNEL).unwrap();
            let mut kept = Vec::new();
            while let Ok(buffer) = successor.alloc(64 << 10) {
                kept.push(buffer);
            }
            reader.check();
        });
    }
}

/// A pair that no receiver has opened ends with its sender, in every way.
#[test]
fn unopened_pair_is_discarded() {
    let names = Names::new("one-end-unopened");
    let len = LEN.to_string();
    let owner = Child::start_ready("ending", &[names.prefix(), "sender", CHANNEL, &len]);
    owner.kill();
    let opened = Receiver::builder()
        .namespace(&names.namespace())
        .open(CHANNEL);
    assert!(
        matches!(opened, Err(ChannelError::Closed { .. })),
        "{opened:?}"
    );
    names.sweep();
    assert_eq!(shm::objects(names.prefix()), [""; 0]);

    let provider = provider(names.prefix(), LEN);
    let mut sender = Sender::create(&provider, CHANNEL).unwrap();
    sender.send(shm::message(&provider, LEN, 1)).unwrap();
    drop(sender);
    assert_eq!(provider.stats().bytes_leased, 0);
    drop(provider);
    assert_eq!(shm::objects(names.prefix()), [""; 0]);
}

role!("heavy-owner", heavy);

/// The role of an owner with 4 GiB of private memory, whose process takes long to tear down.
fn heavy(link: &Link, arguments: &[&str]) {
    let [prefix] = arguments else {
        panic!("{arguments:?}")
    };
    let mut memory = vec![0_u8; 4 << 30];
    for page in memory.chunks_mut(4096) {
        page[0] = 1;
    }
    let provider = provider(prefix, LEN);
    let mut sender = Sender::create(&provider, CHANNEL).unwrap();
    link.send(&Message::Done);
    sender.wait_for_receiver(FOR_EVER).unwrap();
    sender.send(shm::message(&provider, LEN, 1)).unwrap();
    link.send(&Message::Done);
    assert_eq!(link.receive().unwrap(), None);
    drop(memory);
}

/// The last reader removes what a killed owner has left, however long its process takes to end.
#[test]
fn last_reader_of_a_heavy_owner() {
    let names = Names::new("one-end-heavy");
    let owner = Child::start_ready("heavy-owner", &[names.prefix()]);
    let mut receiver = Receiver::builder()
        .namespace(&names.namespace())
        .open(CHANNEL)
        .unwrap();
    owner.expect_done();
    owner.signal(libc::SIGKILL);
    let message = receiver.recv_timeout(FOR_EVER).unwrap();
    shm::check(&message, 1).unwrap();
    let end = receiver.recv_timeout(FOR_EVER);
    assert!(matches!(end, Err(RecvError::Disconnected)), "{end:?}");
    drop((message, receiver));
    owner.kill();
    let start = Instant::now();
    while !shm::objects(names.prefix()).is_empty() {
        assert!(start.elapsed() < FOR_EVER, "it leaves them");
        thread::yield_now();
    }
}

/// The pool ends with the last provider, sender or publisher: a sender sends on without its
/// provider, and its messages arrive after both have ended.
#[test]
fn sender_outlives_its_provider() {
    let names = Names::new("one-end-order");
    let provider = provider(names.prefix(), LEN);
    let mut buffers = Vec::new();
    for number in 0..3 {
        buffers.push(shm::message(&provider, LEN, number));
    }
    let mut sender = Sender::create(&provider, CHANNEL).unwrap();
    let mut receiver = Receiver::builder()
        .namespace(&names.namespace())
        .open(CHANNEL)
        .unwrap();
    drop(provider);
    for buffer in buffers {
        sender.send(buffer).unwrap();
    }
    drop(sender);
    for number in 0..3 {
        let message = receiver.recv_timeout(Duration::ZERO).unwrap();
        shm::check(&message, number).unwrap();
    }
    let end = receiver.recv();
    assert!(matches!(end, Err(RecvError::Disconnected)), "{end:?}");
    drop(receiver);
    assert_eq!(shm::objects(names.prefix()), [""; 0]);
}

role!("static-reader", static_reader);

/// The role of a reader that exits without dropping anything, as one in a `static` does. It tells
/// whether it calls `finish_reading` before (an argument), keeps the first message, and checks it
/// afterwards.
fn static_reader(link: &Link, arguments: &[&str]) {
    let [prefix, kind, finishes] = arguments else {
        panic!("{arguments:?}")
    };
    let client = shm::client(prefix);
    let mut receiver = None;
    let mut descriptor = None;
    if *kind == "grants" {
        let Some(Message::Provider(id)) = link.receive().unwrap() else {
            panic!("no provider")
        };
        link.send(&Message::Peer(client.connect(id).unwrap()));
        let Some(Message::Sent(first)) = link.receive().unwrap() else {
            panic!("no descriptor")
        };
        descriptor = Some(first);
    } else {
        receiver = Some(AnyReceiver::open(client.namespace(), CHANNEL).unwrap());
        link.send(&Message::Done);
    }
    // The owner has sent everything, and has ended or not.
    assert_eq!(link.receive().unwrap(), Some(Message::Go));
    let mut message = None;
    let mut view = None;
    if let Some(receiver) = &mut receiver {
        message = Some(receiver.recv_timeout(FOR_EVER).unwrap());
    }
    if let Some(descriptor) = &descriptor {
        view = Some(client.attach(descriptor).unwrap());
    }
    let check = || {
        if let Some(message) = &message {
            shm::check(message, 0).unwrap();
        }
        if let Some(view) = &view {
            shm::check(view, 0).unwrap();
        }
    };
    link.send(&Message::Done);
    assert_eq!(link.receive().unwrap(), Some(Message::Go));
    // The readers of a parent are not a forked child's.
    match sys::fork() {
        Some(forked) => forked.finish(),
        None => sys::end_with(shm_pool::finish_reading),
    }
    check();
    if *finishes == "finishes" {
        shm_pool::finish_reading();
        check();
    }
    link.send(&Message::Done);
    assert_eq!(link.receive().unwrap(), Some(Message::Go));
    check();
    std::process::exit(0);
}

/// Starts an owner of this kind, and a reader of all that it sends.
fn with_static_reader(names: &Names, kind: &str, finishes: &str) -> (Child, Child) {
    let len = LEN.to_string();
    let owner = Child::start("ending", &[names.prefix(), kind, CHANNEL, &len]);
    let mut provider = None;
    if kind == "grants" {
        provider = Some(owner.receive());
    } else {
        owner.expect_done();
    }
    let reader = Child::start("static-reader", &[names.prefix(), kind, finishes]);
    if let Some(provider) = provider {
        reader.send(&provider);
        owner.send(&reader.receive());
        for number in 0..MESSAGES {
            let descriptor = owner.sent();
            if number == 0 {
                reader.send(&Message::Sent(descriptor));
            }
        }
    } else {
        reader.expect_done();
    }
    owner.expect_done();
    (owner, reader)
}

/// A last reader that exits without dropping its messages removes the objects of an ended owner, if
/// it says that it has finished. The messages that it holds stay as they are.
#[test]
fn reader_in_a_static_finishes() {
    for kind in KINDS {
        for how in ENDS {
            for finishes in ["finishes", "does not"] {
                eprintln!("{kind}, {how:?}, {finishes}");
                let names = Names::new(&format!("one-end-static-{kind}"));
                let (owner, reader) = with_static_reader(&names, kind, finishes);
                let _running = end(owner, how);
                for _ in 0..2 {
                    reader.send(&Message::Go);
                    reader.expect_done();
                }
                let is_removed = finishes == "finishes";
                assert_eq!(shm::objects(names.prefix()).is_empty(), is_removed);
                reader.send(&Message::Go);
                assert!(reader.ended().success());
                assert_eq!(shm::objects(names.prefix()).is_empty(), is_removed);
                names.sweep();
                assert_eq!(shm::objects(names.prefix()), [""; 0]);
            }
        }
    }
}

/// A reader that has finished takes nothing from another one, and gets no message overwritten by an
/// owner that is alive.
#[test]
fn finished_reader_beside_others() {
    for kind in KINDS {
        let names = Names::new(&format!("one-end-finished-{kind}"));
        let (owner, reader) = with_static_reader(&names, kind, "finishes");
        for _ in 0..2 {
            reader.send(&Message::Go);
            reader.expect_done();
        }
        // The owner uses nothing again that the reader holds: the reader checks it once more.
        let _ = end(owner, End::Return);
        assert_ne!(
            shm::objects(names.prefix()),
            [""; 0],
            "{kind}: a reader holds it"
        );
        reader.send(&Message::Go);
        assert!(reader.ended().success());
        names.sweep();
        assert_eq!(shm::objects(names.prefix()), [""; 0]);
    }
    let names = Names::new("one-end-finished-beside");
    let len = LEN.to_string();
    let owner = Child::start_ready("ending", &[names.prefix(), "publisher", CHANNEL, &len]);
    let first = Child::start("static-reader", &[names.prefix(), "publisher", "finishes"]);
    first.expect_done();
    owner.expect_done();
    // It joins when everything was sent, and keeps the objects all the same.
    let second = AnyReceiver::open(&names.namespace(), CHANNEL).unwrap();
    let _ = end(owner, End::Return);
    for _ in 0..2 {
        first.send(&Message::Go);
        first.expect_done();
    }
    assert_ne!(shm::objects(names.prefix()), [""; 0], "another one reads");
    first.send(&Message::Go);
    assert!(first.ended().success());
    drop(second);
    assert_eq!(shm::objects(names.prefix()), [""; 0], "by the last reader");
}
