//! A publisher is killed at every instruction of its operations, and so is one of its receivers.
//! All others are notified and keep their messages; those in flight are reclaimed; the name and the
//! seat can be reused.

#![forbid(unsafe_code)]

use crate::channels::{check, receiver, sender, BYTES, OTHER};
use crate::kill_points::{self, introduce, Scene, Victim};
use crate::owner_operations::{builder, SMALL};
use crate::shm::{self, Names};
use crate::trace::marked;
use crate::wire::{Link, Message};
use shm_pool::channel::{ChannelError, OnFull, Publisher, PublisherBuilder, Receiver, RecvError, Sender};
use shm_pool::{Client, Provider};
use std::sync::Arc;

/// The channel under test. `OTHER` is created before it, so that everything a process creates only
/// once exists.
const CHANNEL: &str = "p";

/// How many messages a receiver may be behind, and how many a late one gets.
const CAPACITY: usize = 2;

const OF_RECEIVERS: &[&str] = &[
    "receiver: come",
    "receiver: receive",
    "receiver: receive the latest",
    "receiver: receive the oldest",
    "receiver: leave",
];

const OF_PUBLISHERS: &[&str] = &[
    "publisher: create",
    "publisher: meet a receiver",
    "publisher: send to two",
    "publisher: send, and leave one out",
    "publisher: send, and withdraw from one",
    "publisher: let go",
    "publisher: drop",
];

/// Neither the publisher nor another receiver waits for a dead receiver; its messages and its seat
/// are reclaimed.
#[test]
fn publishers_receiver_killed_anywhere() {
    kill_points::sweep(OF_RECEIVERS, &mut Publishers { names: Names::new("traced-comer"), round: None });
}

/// No receiver waits for a dead publisher, loses a sent message, or sees an incomplete one; a
/// successor can use the name.
#[test]
fn publisher_killed_anywhere() {
    let names = Names::new("traced-publisher");
    let neighbour = builder(names.prefix()).build().unwrap();
    drop(publisher(&neighbour).unwrap());
    kill_points::sweep(OF_PUBLISHERS, &mut Receivers { neighbour, round: None, names });
}

fn options() -> PublisherBuilder {
    Publisher::builder().receivers(2).capacity(CAPACITY).loans(8).history(1)
}

fn publisher(provider: &Provider) -> Result<Publisher, ChannelError> {
    options().create(provider, CHANNEL)
}

fn come(client: &Client, on_full: OnFull) -> Result<Receiver, ChannelError> {
    Receiver::builder().on_full(on_full).open(client, CHANNEL)
}

/// Sends one message. Returns how many receivers got it.
fn send(publisher: &mut Publisher, provider: &Provider, number: u64) -> usize {
    if number == 0 {
        return publisher.try_send_bytes(BYTES).unwrap();
    }
    let mut buffer = provider.alloc(SMALL).unwrap();
    shm::fill(&mut buffer, number);
    publisher.try_send(buffer.freeze()).unwrap()
}

/// Checks that a channel of that name works.
fn assert_usable(names: &Names, provider: &Provider) {
    let mut publisher = publisher(provider).expect("the name can be used again");
    let mut receiver = come(&names.client(), OnFull::Wait).unwrap();
    for number in 0..2 {
        assert_eq!(send(&mut publisher, provider, number), 1);
        check(&receiver.recv().unwrap(), number);
    }
}

role!("killed-subscriber", receiver_role);

/// The role of a receiver. The arguments are the operation and the prefix.
fn receiver_role(link: &Link, arguments: &[&str]) {
    introduce(link);
    let (operation, prefix) = (arguments[0], arguments[1]);
    let client = Arc::new(shm::client(prefix));
    let _other = receiver(&client, OTHER).unwrap();
    if operation == "come" {
        drop(marked(|| come(&client, OnFull::KeepLatest)).unwrap());
        return;
    }
    let on_full = match operation {
        "receive the latest" => OnFull::KeepLatest,
        "receive the oldest" => OnFull::DropNew,
        _ => OnFull::Wait,
    };
    let mut receiver = come(&client, on_full).unwrap();
    link.send(&Message::Done);
    assert_eq!(link.receive().unwrap(), Some(Message::Done));
    check(&receiver.recv().unwrap(), 0);
    if operation == "leave" {
        marked(|| drop(receiver));
    } else {
        check(&marked(|| receiver.recv()).unwrap(), 1);
    }
}

/// The other side of a receiver: a publisher, and another of its receivers.
struct Publishers {
    names: Names,
    round: Option<(Provider, Sender, Publisher, Receiver)>,
}

impl Scene for Publishers {
    fn start(&mut self, operation: &str, _round: usize) -> Victim {
        let operation = operation.strip_prefix("receiver: ").expect("an operation of a receiver");
        let provider = builder(self.names.prefix()).build().unwrap();
        let other = sender(&provider, OTHER).unwrap();
        let mut publisher = publisher(&provider).unwrap();
        let stays = come(&self.names.client(), OnFull::Wait).unwrap();
        let victim = Victim::start("killed-subscriber", &[operation, self.names.prefix()]);
        if operation != "come" {
            victim.child.expect_done();
            (0..2).for_each(|number| assert_eq!(send(&mut publisher, &provider, number), 2));
            victim.child.tell(&Message::Done);
        }
        self.round = Some((provider, other, publisher, stays));
        victim
    }

    fn check(&mut self, operation: &str, _round: usize) {
        let (provider, other, mut publisher, mut stays) = self.round.take().expect("a round that was started");
        // It may be connected only now, and found dead by the next check.
        assert!(publisher.receivers().count() <= 2);
        assert_eq!(publisher.receivers().count(), 1);
        let sent = if operation == "receiver: come" { 0 } else { 2 };
        assert_eq!(send(&mut publisher, &provider, sent), 1);
        for number in 0..=sent {
            let message = if sent == 0 && number > 0 { continue } else { stays.recv().unwrap() };
            check(&message, number);
            assert_eq!(message.missed(), 0);
        }
        // On the dead one's seat.
        let mut next = come(&self.names.client(), OnFull::DropNew).unwrap();
        assert_eq!(send(&mut publisher, &provider, 1), 2);
        check(&stays.recv().unwrap(), 1);
        check(&next.recv().unwrap(), sent); // what is kept for late ones
        check(&next.recv().unwrap(), 1);
        drop((other, publisher, stays, next));
        provider.reclaim();
        let stats = provider.stats();
        assert_eq!((stats.bytes_leased, stats.bytes_in_use), (0, 0), "what was on the way, and what it read");
        assert_usable(&self.names, &provider);
        provider.trim();
        assert_eq!(provider.stats().bytes_held, 0);
        drop(provider);
        // Its branch.
        assert!(self.names.sweep() <= 1);
        assert_eq!(shm::objects(self.names.prefix()), [""; 0]);
    }
}

role!("killed-publisher", publisher_role);

/// The role of a publisher. The arguments are the operation and the prefix.
fn publisher_role(link: &Link, arguments: &[&str]) {
    introduce(link);
    let (operation, prefix) = (arguments[0], arguments[1]);
    let provider = builder(prefix).build().unwrap();
    let _other = sender(&provider, OTHER).unwrap();
    if operation == "create" {
        drop(marked(|| publisher(&provider)).unwrap());
        return;
    }
    let mut publisher = publisher(&provider).unwrap();
    // For late receivers.
    send(&mut publisher, &provider, 0);
    link.send(&Message::Done);
    assert_eq!(link.receive().unwrap(), Some(Message::Done));
    if operation == "meet a receiver" {
        assert_eq!(marked(|| publisher.receivers().count()), 2);
        return;
    }
    assert_eq!(publisher.receivers().count(), 2);
    let mut next = 1;
    if operation.starts_with("send, and") {
        // Until one is behind.
        for number in 1..=CAPACITY as u64 {
            send(&mut publisher, &provider, number);
        }
        next += CAPACITY as u64;
    }
    link.send(&Message::Done);
    assert_eq!(link.receive().unwrap(), Some(Message::Done));
    match operation {
        "let go" => assert_eq!(marked(|| publisher.receivers().count()), 1),
        "drop" => marked(|| drop(publisher)),
        _ => {
            let buffer = shm::message(&provider, SMALL, next);
            marked(|| publisher.try_send(buffer)).unwrap();
        }
    }
}

/// The other side of a publisher: two receivers, and another owner, which stays alive.
struct Receivers {
    neighbour: Provider,
    round: Option<(Client, Vec<Receiver>)>,
    names: Names,
}

impl Scene for Receivers {
    fn start(&mut self, operation: &str, _round: usize) -> Victim {
        let operation = operation.strip_prefix("publisher: ").expect("an operation of a publisher");
        let victim = Victim::start("killed-publisher", &[operation, self.names.prefix()]);
        let (client, mut receivers) = (self.names.client(), Vec::new());
        if operation != "create" {
            victim.child.expect_done();
            let slow = if operation.ends_with("withdraw from one") { OnFull::KeepLatest } else { OnFull::DropNew };
            receivers.extend([OnFull::Wait, slow].map(|on_full| come(&client, on_full).unwrap()));
            victim.child.tell(&Message::Done);
            if operation != "meet a receiver" {
                victim.child.expect_done();
                if operation.starts_with("send, and") {
                    // This one has room.
                    (0..2).for_each(|number| check(&receivers[0].recv().unwrap(), number));
                }
                if operation == "let go" {
                    receivers.pop();
                }
                victim.child.tell(&Message::Done);
            }
        }
        self.round = Some((client, receivers));
        victim
    }

    fn check(&mut self, operation: &str, _round: usize) {
        let (client, receivers) = self.round.take().expect("a round that was started");
        // The first one has already received two where another is behind.
        let firsts = if operation.starts_with("publisher: send, and") { [2, 0] } else { [0, 0] };
        for (mut receiver, first) in receivers.into_iter().zip(firsts) {
            let (mut next, mut received) = (first, 0);
            let end = loop {
                match receiver.recv() {
                    Ok(message) => {
                        next += u64::from(message.missed());
                        check(&message, next);
                        (next, received) = (next + 1, received + 1);
                    }
                    Err(error) => break error,
                }
            };
            assert!(matches!(end, RecvError::Disconnected), "{end}");
            assert!(next > 0 || operation == "publisher: meet a receiver", "what was sent before is there");
            if operation.ends_with("withdraw from one") && first == 0 {
                assert!(received >= CAPACITY, "{received}: a message was withdrawn before the next one was there");
            }
        }
        let open = come(&client, OnFull::Wait).unwrap_err();
        use ChannelError::{NoChannel, NotAChannel, SenderGone, Unfinished};
        let is_told = matches!(open, NoChannel { .. } | NotAChannel { .. } | SenderGone { .. } | Unfinished { .. });
        assert!(is_told, "{open}");
        assert_usable(&self.names, &self.neighbour);
        self.names.sweep();
        let objects = shm::objects(self.names.prefix());
        assert_eq!(objects.len(), 2, "the neighbour's control object and arena: {objects:?}");
    }
}
