//! Restart storms: processes are killed and restarted over and over, and a process that keeps
//! running does not grow: it accumulates no files, descriptors, mappings or memory.

use crate::child::Child;
use crate::shm::{self, Names};
use crate::wire::{Link, Message};
use shm_pool::{
    Client, Descriptor, Namespace, PeerId, Provider, ProviderId, ShmBytes, ShmView, Tuning,
};
use std::fs;

/// A message of whole pages, and a small one.
const LENGTHS: [usize; 2] = [70_000, 4 << 10];

/// A publisher's objects: a control object and a segment.
const OBJECTS: usize = 2;

/// Restarts before the first measurement, and from there to the last one. Both measurements fall on
/// the same one of three alternating steps.
const WARM_UP: usize = 12;
const RESTARTS: usize = 42;

/// How much resident memory may grow, in KiB: less than if each restart left an arena, or one of
/// the larger messages.
const SLACK: u64 = 1 << 10;

/// The resources of a process.
#[derive(Debug)]
struct Footprint {
    descriptors: u64,
    mappings: u64,
    resident: u64,
}

impl Footprint {
    /// Sends that of this process.
    fn send(link: &Link, prefix: &str) {
        let status = fs::read_to_string("/proc/self/status").expect("/proc");
        let resident = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .expect("a line VmRSS");
        let resident = resident
            .trim()
            .trim_end_matches(" kB")
            .parse()
            .expect("a number of KiB");
        for number in [
            shm::open_descriptors() as u64,
            shm::mappings(prefix) as u64,
            resident,
        ] {
            link.send(&Message::Number(number));
        }
    }

    /// Requests a child's footprint.
    fn of(child: &Child) -> Self {
        child.send(&Message::Mappings);
        Self {
            descriptors: child.number(),
            mappings: child.number(),
            resident: child.number(),
        }
    }

    fn assert_no_growth_to(&self, end: &Self) {
        assert_eq!(
            (end.descriptors, end.mappings),
            (self.descriptors, self.mappings),
            "{self:?} became {end:?}"
        );
        assert!(
            end.resident <= self.resident + SLACK,
            "{self:?} became {end:?} over {RESTARTS} restarts"
        );
    }
}

role!("storm-subscriber", subscriber);

/// The role of a subscriber: a single client that connects, attaches, and holds the last two
/// messages.
fn subscriber(link: &Link, arguments: &[&str]) {
    let client: Client = shm::client(arguments[0]);
    let mut views: Vec<ShmView> = Vec::new();
    while let Some(question) = link.receive().unwrap() {
        match question {
            Message::Connect(provider) => {
                link.send(&Message::Peer(client.connect(provider).unwrap()))
            }
            Message::Attach(descriptor, seed) => {
                let view = client.attach(&descriptor).unwrap();
                shm::check(&view, seed).unwrap();
                views.push(view);
                views.drain(..views.len().saturating_sub(LENGTHS.len()));
                link.send(&Message::Done);
            }
            Message::Mappings => Footprint::send(link, arguments[0]),
            other => panic!("not a question: {other:?}"),
        }
    }
}

role!("storm-publisher", publisher);

/// The role of a publisher. At each `Go` it publishes one message of each length, and keeps them
/// until the next. Between a `Peer` and the following `Done`, it grants its messages to that peer.
fn publisher(link: &Link, arguments: &[&str]) {
    let builder = Provider::builder()
        .namespace(&Namespace::new(arguments[0]).unwrap())
        .tuning(Tuning::new().arena_size(256 << 10))
        .max_shared(16);
    let provider = builder.max_bytes(1 << 20).build().unwrap();
    link.send(&Message::Provider(provider.id()));
    let (mut kept, mut seed): (Vec<ShmBytes>, u64) = (Vec::new(), 0);
    let mut peer: Option<PeerId> = None;
    while let Some(question) = link.receive().unwrap() {
        match question {
            Message::Peer(id) => peer = Some(id),
            Message::Done => peer = None,
            Message::Go => {
                kept.clear();
                for len in LENGTHS {
                    let message = shm::message(&provider, len, seed);
                    let descriptor = match peer {
                        Some(peer) => message.grant(peer),
                        None => message.descriptor(),
                    };
                    // A dead peer gets no grant.
                    let descriptor = match descriptor {
                        Ok(descriptor) => descriptor,
                        Err(_) => message.descriptor().unwrap(),
                    };
                    link.send(&Message::Sent(descriptor));
                    link.send(&Message::Number(seed));
                    seed += 1;
                    kept.push(message);
                }
            }
            Message::Mappings => Footprint::send(link, arguments[0]),
            other => panic!("not a question: {other:?}"),
        }
    }
}

fn start_publisher(names: &Names) -> (Child, ProviderId) {
    let publisher = Child::start("storm-publisher", &[names.prefix()]);
    let Message::Provider(id) = publisher.receive() else {
        panic!("a publisher tells its id first")
    };
    (publisher, id)
}

fn start_subscriber(names: &Names) -> Child {
    Child::start("storm-subscriber", &[names.prefix()])
}

/// Tells the publisher the subscriber's id, so that it grants its messages.
fn introduce(subscriber: &Child, publisher: &Child, provider: ProviderId) {
    let peer = subscriber.request(&Message::Connect(provider));
    assert!(matches!(peer, Message::Peer(_)), "{peer:?}");
    publisher.send(&peer);
}

/// Has the publisher send one message of each length.
fn publish(publisher: &Child) -> [(Descriptor, u64); LENGTHS.len()] {
    publisher.send(&Message::Go);
    LENGTHS.map(|_| match (publisher.receive(), publisher.receive()) {
        (Message::Sent(descriptor), Message::Number(seed)) => (descriptor, seed),
        other => panic!("not a message: {other:?}"),
    })
}

fn exchange(publisher: &Child, subscriber: &Child) {
    for _ in 0..3 {
        for (descriptor, seed) in publish(publisher) {
            assert_eq!(
                subscriber.request(&Message::Attach(descriptor, seed)),
                Message::Done
            );
        }
    }
}

/// Such as a recorder: no descriptors, mappings, memory or files accumulate.
#[test]
fn subscriber_under_publisher_kills() {
    let names = Names::new("storm-sub");
    let subscriber = start_subscriber(&names);
    let mut start = None;
    for restart in 0..=WARM_UP + RESTARTS {
        let (publisher, id) = start_publisher(&names);
        if restart % 2 == 0 {
            introduce(&subscriber, &publisher, id);
        }
        exchange(&publisher, &subscriber);
        assert_eq!(
            shm::objects(names.prefix()).len(),
            OBJECTS,
            "those of the publisher that lives"
        );
        if restart == WARM_UP {
            start = Some(Footprint::of(&subscriber));
        }
        if restart == WARM_UP + RESTARTS {
            start
                .take()
                .expect("measured before")
                .assert_no_growth_to(&Footprint::of(&subscriber));
        }
        publisher.kill();
    }
    subscriber.shut_down();
    assert_eq!(
        shm::objects(names.prefix()),
        [""; 0],
        "its last reader has removed those of the last publisher"
    );
}

/// A publisher loses neither memory nor slots to killed subscribers.
#[test]
fn publisher_under_subscriber_kills() {
    let names = Names::new("storm-pub");
    let (publisher, id) = start_publisher(&names);
    let mut start = None;
    // More restarts than there are slots: some of the killed subscribers hold grants.
    for restart in 0..=WARM_UP + 2 * RESTARTS {
        let subscriber = start_subscriber(&names);
        introduce(&subscriber, &publisher, id);
        exchange(&publisher, &subscriber);
        // These are in transit to the subscriber when it is killed.
        publish(&publisher);
        subscriber.kill();
        if restart == WARM_UP {
            start = Some((Footprint::of(&publisher), shm::objects(names.prefix())));
        }
    }
    let (start, objects) = start.expect("measured before");
    start.assert_no_growth_to(&Footprint::of(&publisher));
    assert_eq!(shm::objects(names.prefix()).len(), objects.len());
    publisher.shut_down();
}

#[test]
fn alternating_restarts() {
    let names = Names::new("storm-both");
    let (mut publisher, mut id) = start_publisher(&names);
    let mut subscriber = start_subscriber(&names);
    let witness = start_subscriber(&names);
    let mut start = None;
    for restart in 0..=WARM_UP + RESTARTS {
        introduce(&subscriber, &publisher, id);
        exchange(&publisher, &subscriber);
        publisher.send(&Message::Done);
        exchange(&publisher, &witness);
        assert_eq!(
            shm::objects(names.prefix()).len(),
            OBJECTS,
            "those of the publisher that lives"
        );
        if restart == WARM_UP {
            start = Some(Footprint::of(&witness));
        }
        if restart == WARM_UP + RESTARTS {
            start
                .take()
                .expect("measured before")
                .assert_no_growth_to(&Footprint::of(&witness));
        }
        match restart % 3 {
            0 => {
                publisher.kill();
                (publisher, id) = start_publisher(&names);
            }
            1 => {
                subscriber.kill();
                subscriber = start_subscriber(&names);
            }
            _ => {
                subscriber.kill();
                publisher.kill();
                subscriber = start_subscriber(&names);
                (publisher, id) = start_publisher(&names);
            }
        }
    }
    publisher.shut_down();
    assert_eq!(
        shm::objects(names.prefix()),
        [""; 0],
        "the last publisher has ended as it should"
    );
}
