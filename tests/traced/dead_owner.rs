//! An owner was killed while its messages were unread. A process that has to do with them is killed
//! too, at every instruction: a successor that takes the channel's name, and a last reader that
//! removes the owner's objects. The messages still arrive, and nothing is left.

#![forbid(unsafe_code)]

use crate::channels::{self, check, send, BUFFERS, CHANNEL, FOR_EVER, OTHER};
use crate::child::Child;
use crate::ends::AnyReceiver;
use crate::kill_points::{self, introduce, Scene, Victim};
use crate::killed_channel::{publish, publisher, CAPACITY};
use crate::owner_operations::builder;
use crate::shm::{self, Names};
use crate::trace::marked;
use crate::wire::{Link, Message};
use shm_pool::channel::{Message as Received, OnEnd, Receiver, RecvError, Subscriber};
use shm_pool::{Namespace, Provider};
use std::thread;
use std::time::Duration;

/// Far longer than any message takes to arrive.
const TIMEOUT: Duration = Duration::from_secs(60);

const BY_A_SENDER: &str = "of a sender";
const BY_A_PUBLISHER: &str = "of a publisher";

/// Returns how many messages an owner of this kind sends.
fn unread(kind: &str) -> u64 {
    if kind == BY_A_SENDER {
        1 + BUFFERS
    } else {
        CAPACITY as u64
    }
}

/// Returns the kind of owner that an operation deals with.
fn kind_of(operation: &str) -> &'static str {
    if operation.contains(BY_A_SENDER) {
        BY_A_SENDER
    } else {
        BY_A_PUBLISHER
    }
}

role!("dying-owner", owner_role);

/// The role of an owner that sends its messages, and waits to be killed. The arguments are the kind
/// and the prefix.
fn owner_role(link: &Link, arguments: &[&str]) {
    let kind = arguments[0];
    let provider = builder(arguments[1]).build().unwrap();
    if kind == BY_A_SENDER {
        let mut sender = channels::sender(&provider, CHANNEL).unwrap();
        link.send(&Message::Done);
        link.expect_go();
        sender.wait_for_receiver(FOR_EVER).unwrap();
        send(&mut sender, &provider, unread(kind));
        link.done_until_end();
    } else {
        let mut publisher = publisher(&provider).unwrap();
        link.send(&Message::Done);
        link.expect_go();
        publisher.wait_for_receivers(1, FOR_EVER).unwrap();
        for number in 0..unread(kind) {
            publish(&mut publisher, &provider, number);
        }
        link.done_until_end();
    }
}

fn start_owner(kind: &str, names: &Names) -> Child {
    Child::start_ready("dying-owner", &[kind, names.prefix()])
}

/// Lets an owner send, and kills it.
fn send_and_die(owner: Child) {
    owner.send(&Message::Go);
    owner.expect_done();
    owner.kill();
}

// ---- successors ---------------------------------------------------------------------------------

const OF_SUCCESSORS: &[&str] = &[
    "successor of a sender: create",
    "successor of a publisher: create",
];

/// The messages of its predecessor arrive, and then those of its own successor.
#[test]
fn successor_killed_anywhere() {
    let names = Names::new("traced-successor");
    let neighbour = builder(names.prefix()).build().unwrap();
    drop(channels::sender(&neighbour, CHANNEL).unwrap());
    kill_points::sweep(
        OF_SUCCESSORS,
        &mut Followers {
            neighbour,
            round: None,
            names,
        },
    );
}

role!("killed-successor", successor_role);

/// The role of a successor. The arguments are the kind and the prefix.
fn successor_role(link: &Link, arguments: &[&str]) {
    introduce(link);
    let provider = builder(arguments[1]).build().unwrap();
    let _other = channels::sender(&provider, OTHER).unwrap();
    if arguments[0] == BY_A_SENDER {
        drop(marked(|| channels::sender(&provider, CHANNEL)).unwrap());
    } else {
        drop(marked(|| publisher(&provider)).unwrap());
    }
}

/// A receiver that goes on to each successor.
enum Follower {
    Receiver(Receiver),
    Subscriber(Subscriber),
}

impl Follower {
    fn open(kind: &str, namespace: &Namespace) -> Self {
        if kind == BY_A_SENDER {
            let builder = Receiver::builder().on_end(OnEnd::Wait);
            Self::Receiver(builder.namespace(namespace).open(CHANNEL).unwrap())
        } else {
            let builder = Subscriber::builder().on_end(OnEnd::Wait);
            Self::Subscriber(builder.namespace(namespace).open(CHANNEL).unwrap())
        }
    }

    /// Receives the first `count` messages of a sender or publisher.
    fn receive(&mut self, count: u64) {
        for number in 0..count {
            let message = match self {
                Self::Receiver(receiver) => receiver.recv_timeout(TIMEOUT),
                Self::Subscriber(subscriber) => subscriber.recv_timeout(TIMEOUT),
            };
            let message = message.unwrap();
            check(&message, number);
            assert_eq!(message.missed(), 0);
        }
    }
}

/// The other side of a successor: a receiver with the messages of a dead owner, and another owner,
/// which stays alive.
struct Followers {
    neighbour: Provider,
    round: Option<Follower>,
    names: Names,
}

impl Scene for Followers {
    fn start(&mut self, operation: &str, _round: usize) -> Victim {
        let kind = kind_of(operation);
        let owner = start_owner(kind, &self.names);
        self.round = Some(Follower::open(kind, &self.names.namespace()));
        send_and_die(owner);
        Victim::start("killed-successor", &[kind, self.names.prefix()])
    }

    fn check(&mut self, operation: &str, round: usize) {
        let kind = kind_of(operation);
        let mut follower = self.round.take().expect("a round that was started");
        // The next one comes before or after the receiver has read everything.
        let read_first = round % 2 == 0;
        if read_first {
            follower.receive(unread(kind));
        }
        thread::scope(|scope| {
            let following = scope.spawn(move || {
                if !read_first {
                    follower.receive(unread(kind));
                }
                follower.receive(CAPACITY as u64);
                follower
            });
            if kind == BY_A_SENDER {
                let mut next = channels::sender(&self.neighbour, CHANNEL).unwrap();
                send(&mut next, &self.neighbour, CAPACITY as u64);
                following.join().expect("a receiver that gets everything");
            } else {
                let mut next = publisher(&self.neighbour).unwrap();
                next.wait_for_receivers(1, TIMEOUT).unwrap();
                for number in 0..CAPACITY as u64 {
                    publish(&mut next, &self.neighbour, number);
                }
                following.join().expect("a receiver that gets everything");
            }
        });
        self.names.sweep();
        let objects = shm::objects(self.names.prefix());
        assert_eq!(
            objects.len(),
            2,
            "the neighbour's control object and arena: {objects:?}"
        );
    }
}

// ---- last readers -------------------------------------------------------------------------------

const OF_LAST_READERS: &[&str] = &[
    "last reader of a sender: receive the last message",
    "last reader of a sender: drop the last message",
    "last reader of a sender: drop the receiver",
    "last reader of a publisher: receive the last message",
    "last reader of a publisher: drop the last message",
    "last reader of a publisher: drop the receiver",
    "reader of a publisher, beside another: drop the receiver",
];

/// The next sweep or build removes what it has left of the dead owner's objects, and spares those of
/// others. Another reader gets everything.
#[test]
fn last_reader_killed_anywhere() {
    let names = Names::new("traced-last-reader");
    let neighbour = builder(names.prefix()).build().unwrap();
    drop(shm::message(&neighbour, 1, 0));
    let objects = shm::objects(names.prefix());
    kill_points::sweep(
        OF_LAST_READERS,
        &mut DeadOwners {
            _neighbour: neighbour,
            objects,
            other: None,
            names,
        },
    );
}

role!("killed-last-reader", reader_role);

/// The role of a reader. The arguments are the operation and the prefix.
fn reader_role(link: &Link, arguments: &[&str]) {
    introduce(link);
    let operation = arguments[0];
    let mut receiver = open(arguments[1]);
    link.send(&Message::Done);
    // The owner is dead.
    link.expect_go();
    let count = unread(kind_of(operation));
    let mut messages = Vec::new();
    for number in 0..count - 1 {
        messages.push(receive(&mut receiver, number));
    }
    if operation.ends_with("receive the last message") {
        marked(|| {
            messages.push(receive(&mut receiver, count - 1));
            assert_is_over(&mut receiver);
        });
        return;
    }
    messages.push(receive(&mut receiver, count - 1));
    assert_is_over(&mut receiver);
    if operation.ends_with("drop the last message") {
        drop(receiver);
        let last = messages.pop();
        drop(messages);
        marked(|| drop(last));
    } else {
        drop(messages);
        marked(|| drop(receiver));
    }
}

fn open(prefix: &str) -> AnyReceiver {
    AnyReceiver::open(&shm::namespace(prefix), CHANNEL).unwrap()
}

fn receive(receiver: &mut AnyReceiver, number: u64) -> Received {
    let message = receiver.recv_timeout(TIMEOUT).unwrap();
    check(&message, number);
    message
}

fn assert_is_over(receiver: &mut AnyReceiver) {
    let end = receiver.recv_timeout(TIMEOUT);
    assert!(matches!(end, Err(RecvError::Disconnected)), "{end:?}");
}

/// What is beside a last reader: an owner that stays alive, and for some operations another reader.
struct DeadOwners {
    _neighbour: Provider,
    /// The neighbour's.
    objects: Vec<String>,
    other: Option<AnyReceiver>,
    names: Names,
}

impl Scene for DeadOwners {
    fn start(&mut self, operation: &str, _round: usize) -> Victim {
        let owner = start_owner(kind_of(operation), &self.names);
        let victim = Victim::start("killed-last-reader", &[operation, self.names.prefix()]);
        victim.child.expect_done();
        if operation.contains("beside another") {
            self.other = Some(open(self.names.prefix()));
        }
        send_and_die(owner);
        victim.child.send(&Message::Go);
        victim
    }

    fn check(&mut self, operation: &str, round: usize) {
        if let Some(mut other) = self.other.take() {
            for number in 0..unread(kind_of(operation)) {
                receive(&mut other, number);
            }
            assert_is_over(&mut other);
        }
        if round % 2 == 0 {
            self.names.sweep();
        } else {
            drop(builder(self.names.prefix()).build().unwrap());
        }
        assert_eq!(shm::objects(self.names.prefix()), self.objects);
    }
}
