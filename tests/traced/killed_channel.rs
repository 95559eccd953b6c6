//! Each end of a channel is killed at every instruction of its operations, and so are a publisher
//! and one of its receivers. The other ends are notified, keep their messages, and recover those in
//! flight. The name and the registration can be reused.

#![forbid(unsafe_code)]

use crate::channels::{
    self, check, count_sent, options, receiver, send, sender, BUFFERS, BYTES, CHANNEL, OTHER, SENT,
};
use crate::kill_points::{self, introduce, Scene, Victim};
use crate::owner_operations::{builder, SMALL};
use crate::served::Served;
use crate::shm::{self, Names};
use crate::trace::{marked, Tracee};
use crate::waits::Wait;
use crate::wire::{Link, Message};
use shm_pool::channel::{
    ChannelError, OnEnd, OnFull, Publisher, Receiver, RecvError, SendErrorKind, Sender, Subscriber,
};
use shm_pool::{Client, Provider};
use std::fs;
use std::sync::Arc;
use std::time::Duration;

const OF_RECEIVERS: &[&str] = &[
    "receiver: open",
    "receiver: receive bytes",
    "receiver: receive a buffer",
    "receiver: receive a buffer, mapped",
    "receiver: await",
    "receiver: drop a view",
    "receiver: drop the receiver",
    "receiver: drop a view, waited for",
    "receiver: drop the receiver, waited for",
];

const OF_SENDERS: &[&str] = &[
    "sender: create",
    "sender: create over remains",
    "sender: find the receiver",
    "sender: send bytes",
    "sender: send a buffer",
    "sender: send several",
    "sender: drop the sender",
    "sender: drop the provider, then the sender",
    "sender: drop the sender, then the provider",
];

/// Its messages in flight and its borrowed buffers are recovered, a waiting thread wakes, the name
/// is free.
#[test]
fn receiver_killed_anywhere() {
    kill_points::sweep(
        OF_RECEIVERS,
        &mut Senders {
            names: Names::new("traced-receiver"),
            round: None,
        },
    );
}

/// A receiver receives each message whose send has returned, exactly once and in order, and the one
/// whose send was interrupted whole or not at all; a successor can use the name.
#[test]
fn sender_killed_anywhere() {
    let names = Names::new("traced-sender");
    let neighbour = builder(names.prefix()).build().unwrap();
    drop(sender(&neighbour, CHANNEL).unwrap());
    let remains = {
        let _sender = sender(&neighbour, CHANNEL).unwrap();
        fs::read(path(&names)).unwrap()
    };
    kill_points::sweep(
        OF_SENDERS,
        &mut Receivers {
            neighbour,
            remains,
            round: None,
            sent: 0,
            names,
        },
    );
}

fn path(names: &Names) -> std::path::PathBuf {
    shm::path(&format!("{}.{CHANNEL}.channel", names.prefix()))
}

/// Checks that a channel of that name works.
fn assert_usable(names: &Names, provider: &Provider) {
    let mut sender = sender(provider, CHANNEL).expect("the name can be used again");
    assert_delivers(names, &mut sender, provider);
}

fn assert_delivers(names: &Names, sender: &mut Sender, provider: &Provider) {
    let mut receiver = receiver(&Arc::new(names.client()), CHANNEL).unwrap();
    send(sender, provider, 2);
    for number in 0..2 {
        check(&receiver.recv().unwrap(), number);
    }
}

/// Checks the error for a receiver that opens the channel after its sender's death.
fn assert_has_ended(error: &ChannelError) {
    use ChannelError::{Closed, NotAChannel, NotFound, NotReady};
    let has_ended = matches!(
        error,
        NotFound { .. } | NotAChannel { .. } | Closed { .. } | NotReady { .. }
    );
    assert!(has_ended, "{error}");
}

fn assert_only_neighbour_is_left(names: &Names) {
    names.sweep();
    let objects = shm::objects(names.prefix());
    assert_eq!(
        objects.len(),
        2,
        "the neighbour's control object and arena: {objects:?}"
    );
}

/// The other side of a receiver: a provider with two senders.
struct Senders {
    names: Names,
    round: Option<(Arc<Provider>, [Sender; 2], Option<Wait>)>,
}

impl Scene for Senders {
    fn start(&mut self, operation: &str, _round: usize) -> Victim {
        let operation = operation
            .strip_prefix("receiver: ")
            .expect("an operation of a receiver");
        let provider = Arc::new(builder(self.names.prefix()).build().unwrap());
        let mut senders = [
            sender(&provider, CHANNEL).unwrap(),
            sender(&provider, OTHER).unwrap(),
        ];
        let victim = Victim::start("killed-receiver", &[operation, self.names.prefix()]);
        let mut wait = None;
        if operation != "open" {
            victim.child.expect_done();
            send(&mut senders[0], &provider, 1 + BUFFERS);
            if operation.ends_with("waited for") {
                wait = Some(Wait::begin(&provider, SMALL));
            }
            victim.child.send(&Message::Done);
        }
        self.round = Some((provider, senders, wait));
        victim
    }

    fn check(&mut self, operation: &str, _round: usize) {
        let (provider, [mut sender, mut other], wait) =
            self.round.take().expect("a round that was started");
        if let Some(wait) = wait {
            wait.end();
        }
        assert_eq!(
            other.send_copy(b"x"),
            Err(SendErrorKind::Disconnected.into()),
            "the channel that was not touched"
        );
        let waited = sender.wait_for_receiver(Duration::ZERO);
        match waited.map_err(|error| error.kind()) {
            // The victim had not joined, so another receiver can.
            Err(SendErrorKind::NoReceiver { .. }) => {
                assert_eq!(operation, "receiver: open");
                assert_delivers(&self.names, &mut sender, &provider);
            }
            Err(SendErrorKind::Disconnected) => {
                assert_eq!(
                    sender.send_copy(b"x"),
                    Err(SendErrorKind::Disconnected.into())
                );
                let buffer = provider.alloc(1).unwrap().freeze();
                assert_eq!(
                    sender.send(buffer).unwrap_err().kind(),
                    SendErrorKind::Disconnected
                );
            }
            other => panic!("the receiver is dead: {other:?}"),
        }
        provider.reclaim();
        assert_eq!(
            provider.stats().bytes_leased,
            0,
            "what was on the way, and what it read"
        );
        drop((sender, other));
        assert_usable(&self.names, &provider);
        provider.trim();
        assert_eq!(provider.stats().bytes_held, 0);
        drop(provider);
        assert_eq!(shm::objects(self.names.prefix()), [""; 0]);
    }
}

/// The other side of a sender: its receiver, and another owner, which stays alive.
struct Receivers {
    neighbour: Provider,
    /// The bytes of a channel's object.
    remains: Vec<u8>,
    round: Option<(Arc<Client>, Option<Receiver>)>,
    /// How many messages the victim had sent.
    sent: u64,
    names: Names,
}

impl Scene for Receivers {
    fn start(&mut self, operation: &str, _round: usize) -> Victim {
        let operation = operation
            .strip_prefix("sender: ")
            .expect("an operation of a sender");
        if operation == "create over remains" {
            // The object of a dead sender: the same bytes, without locks.
            fs::write(path(&self.names), &self.remains).unwrap();
        }
        let victim = Victim::start("killed-sender", &[operation, self.names.prefix()]);
        let client = Arc::new(self.names.client());
        let is_made = !operation.starts_with("create");
        let mut joined = None;
        if is_made {
            victim.child.expect_done();
            joined = Some(receiver(&client, CHANNEL).unwrap());
            victim.child.send(&Message::Done);
        }
        self.round = Some((client, joined));
        victim
    }

    fn before_kill(&mut self, _victim: &Victim, tracee: &Tracee) {
        self.sent = tracee.value_of(&SENT);
    }

    fn check(&mut self, operation: &str, _round: usize) {
        let (client, receiver) = self.round.take().expect("a round that was started");
        if let Some(mut receiver) = receiver {
            let mut views = Vec::new();
            let end = loop {
                match receiver.recv() {
                    Ok(message) => views.push(message),
                    Err(error) => break error,
                }
            };
            assert!(matches!(end, RecvError::Disconnected), "{end}");
            for (number, message) in views.iter().enumerate() {
                check(message, number as u64);
            }
            let received = views.len() as u64;
            let may_arrive = self.sent + u64::from(operation.starts_with("sender: send"));
            assert!(
                (self.sent..=may_arrive).contains(&received),
                "{received} of {} messages",
                self.sent
            );
        }
        assert_has_ended(&channels::receiver(&client, CHANNEL).unwrap_err());
        assert_usable(&self.names, &self.neighbour);
        assert_only_neighbour_is_left(&self.names);
    }
}

// ---- publishers ---------------------------------------------------------------------------------

/// How many messages a receiver may be behind, and how many a late one gets.
pub(crate) const CAPACITY: usize = 2;

/// How many messages a publisher sends in one operation, to receivers that have room for them.
const SEVERAL: u64 = CAPACITY as u64;

const OF_SUBSCRIBERS: &[&str] = &[
    "subscriber: join",
    "subscriber: receive",
    "subscriber: receive the latest",
    "subscriber: receive the oldest",
    "subscriber: leave",
];

const OF_PUBLISHERS: &[&str] = &[
    "publisher: create",
    "publisher: connect a receiver",
    "publisher: send to two",
    "publisher: send several to two",
    "publisher: send, and leave one out",
    "publisher: send, and withdraw from one",
    "publisher: disconnect a receiver",
    "publisher: evict a receiver",
    "publisher: serve a join",
    "publisher: drop",
    "publisher: drop the provider, then the publisher",
    "publisher: drop the publisher, then the provider",
];

/// Neither the publisher nor another receiver waits for it; its messages and registration are
/// reclaimed.
#[test]
fn publishers_receiver_killed_anywhere() {
    kill_points::sweep(
        OF_SUBSCRIBERS,
        &mut Publishers {
            names: Names::new("traced-comer"),
            round: None,
        },
    );
}

/// A receiver gets each message whose send has returned, exactly once and in order, unless its
/// options let the publisher leave it out, and the one whose send was interrupted whole or not at
/// all. None waits; the name is free.
#[test]
fn publisher_killed_anywhere() {
    let names = Names::new("traced-publisher");
    let neighbour = builder(names.prefix()).build().unwrap();
    drop(publisher(&neighbour).unwrap());
    kill_points::sweep(
        OF_PUBLISHERS,
        &mut Subscribers {
            neighbour,
            round: None,
            sent: 0,
            names,
        },
    );
}

pub(crate) fn publisher(provider: &Provider) -> Result<Publisher, ChannelError> {
    let options = Publisher::builder()
        .max_subscribers(2)
        .capacity(CAPACITY)
        .max_borrowed(8)
        .history(1);
    options.create(provider, CHANNEL)
}

fn join(client: &Client, on_full: OnFull) -> Result<Subscriber, ChannelError> {
    Subscriber::builder()
        .on_end(OnEnd::Return)
        .on_full(on_full)
        .namespace(client.namespace())
        .open_timeout(CHANNEL, Duration::ZERO)
}

/// Sends one message. Returns how many receivers got it.
pub(crate) fn publish(publisher: &mut Publisher, provider: &Provider, number: u64) -> usize {
    let sent = if number == 0 {
        publisher.send_copy_with(BYTES, options(number)).unwrap()
    } else {
        let buffer = shm::message(provider, SMALL, number);
        publisher.send_with(buffer, options(number)).unwrap()
    };
    count_sent();
    sent.receivers
}

/// Checks that a channel of that name works.
fn assert_publishes(names: &Names, provider: &Provider) {
    let mut publisher = publisher(provider).expect("the name can be used again");
    let mut receiver = join(&names.client(), OnFull::Block).unwrap();
    for number in 0..2 {
        assert_eq!(publish(&mut publisher, provider, number), 1);
        check(&receiver.recv().unwrap(), number);
    }
}

role!("killed-subscriber", subscriber_role);

/// The role of a receiver. The arguments are the operation and the prefix.
fn subscriber_role(link: &Link, arguments: &[&str]) {
    introduce(link);
    let operation = arguments[0];
    let prefix = arguments[1];
    let client = Arc::new(shm::client(prefix));
    let _other = receiver(&client, OTHER).unwrap();
    if operation == "join" {
        drop(marked(|| join(&client, OnFull::DropOldest)).unwrap());
        return;
    }
    let on_full = match operation {
        "receive the latest" => OnFull::DropOldest,
        "receive the oldest" => OnFull::DropNewest,
        _ => OnFull::Block,
    };
    let mut receiver = join(&client, on_full).unwrap();
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
    round: Option<(Provider, Sender, Publisher, Subscriber)>,
}

impl Scene for Publishers {
    fn start(&mut self, operation: &str, _round: usize) -> Victim {
        let operation = operation
            .strip_prefix("subscriber: ")
            .expect("an operation of a subscriber");
        let provider = builder(self.names.prefix()).build().unwrap();
        let other = sender(&provider, OTHER).unwrap();
        let mut publisher = publisher(&provider).unwrap();
        let stays = join(&self.names.client(), OnFull::Block).unwrap();
        let victim = Victim::start("killed-subscriber", &[operation, self.names.prefix()]);
        if operation != "join" {
            victim.child.expect_done();
            for number in 0..2 {
                assert_eq!(publish(&mut publisher, &provider, number), 2);
            }
            victim.child.send(&Message::Done);
        }
        self.round = Some((provider, other, publisher, stays));
        victim
    }

    fn check(&mut self, operation: &str, _round: usize) {
        let (provider, other, mut publisher, mut stays) =
            self.round.take().expect("a round that was started");
        // It may be connected only now, and found dead by the next check.
        assert!(publisher.served().receivers().count() <= 2);
        assert_eq!(publisher.served().receivers().count(), 1);
        let sent = if operation == "subscriber: join" {
            0
        } else {
            2
        };
        assert_eq!(publish(&mut publisher, &provider, sent), 1);
        for number in 0..=sent {
            let message = if sent == 0 && number > 0 {
                continue;
            } else {
                stays.recv().unwrap()
            };
            check(&message, number);
            assert_eq!(message.missed(), 0);
        }
        // On the dead one's registration.
        let mut next = join(&self.names.client(), OnFull::DropNewest).unwrap();
        assert_eq!(publish(&mut publisher, &provider, 1), 2);
        check(&stays.recv().unwrap(), 1);
        check(&next.recv().unwrap(), sent); // what is kept for late ones
        check(&next.recv().unwrap(), 1);
        drop((other, publisher, stays, next));
        provider.reclaim();
        let stats = provider.stats();
        assert_eq!(
            (stats.bytes_leased, stats.bytes_in_use),
            (0, 0),
            "what was on the way, and what it read"
        );
        assert_publishes(&self.names, &provider);
        provider.trim();
        assert_eq!(provider.stats().bytes_held, 0);
        drop(provider);
        // Its connection.
        assert!(self.names.sweep() <= 1);
        assert_eq!(shm::objects(self.names.prefix()), [""; 0]);
    }
}

role!("killed-publisher", publisher_role);

/// The role of a publisher. The arguments are the operation and the prefix.
fn publisher_role(link: &Link, arguments: &[&str]) {
    introduce(link);
    let operation = arguments[0];
    let prefix = arguments[1];
    let provider = builder(prefix).build().unwrap();
    let other = sender(&provider, OTHER).unwrap();
    if operation == "create" {
        drop(marked(|| publisher(&provider)).unwrap());
        return;
    }
    let mut publisher = publisher(&provider).unwrap();
    // For late receivers.
    publish(&mut publisher, &provider, 0);
    link.send(&Message::Done);
    assert_eq!(link.receive().unwrap(), Some(Message::Done));
    if operation == "connect a receiver" {
        assert_eq!(marked(|| publisher.served().receivers().count()), 2);
        return;
    }
    if operation == "serve a join" {
        assert!(marked(|| publisher.serve_joins()));
        return;
    }
    assert_eq!(publisher.served().receivers().count(), 2);
    let mut next = 1;
    if operation.starts_with("send, and") {
        // Until one is behind.
        for number in 1..=CAPACITY as u64 {
            publish(&mut publisher, &provider, number);
        }
        next += CAPACITY as u64;
    }
    link.send(&Message::Done);
    assert_eq!(link.receive().unwrap(), Some(Message::Done));
    match operation {
        "disconnect a receiver" => assert_eq!(marked(|| publisher.served().receivers().count()), 1),
        "evict a receiver" => {
            publish(&mut publisher, &provider, next);
            let evicted = publisher.served().receivers().nth(1).unwrap().id;
            assert!(marked(|| publisher.disconnect(evicted)));
        }
        "drop" => marked(|| drop(publisher)),
        "drop the provider, then the publisher" => {
            publish(&mut publisher, &provider, next);
            drop(other);
            marked(|| {
                drop(provider);
                drop(publisher);
            });
        }
        "drop the publisher, then the provider" => {
            publish(&mut publisher, &provider, next);
            drop(other);
            marked(|| {
                drop(publisher);
                drop(provider);
            });
        }
        "send several to two" => marked(|| {
            for number in next..next + SEVERAL {
                publish(&mut publisher, &provider, number);
            }
        }),
        _ => {
            let buffer = shm::message(&provider, SMALL, next);
            marked(|| {
                publisher.try_send(buffer).unwrap();
                count_sent();
            });
        }
    }
}

/// The other side of a publisher: two receivers, and another owner, which stays alive.
struct Subscribers {
    neighbour: Provider,
    round: Option<(Client, Vec<Subscriber>)>,
    /// How many messages the victim had sent.
    sent: u64,
    names: Names,
}

/// The number of the first message that each receiver has not received when the operation begins.
fn firsts(operation: &str) -> [u64; 2] {
    if operation.starts_with("send, and") {
        // Another one is behind.
        [2, 0]
    } else if operation == "send several to two" {
        [1, 1]
    } else {
        [0, 0]
    }
}

impl Scene for Subscribers {
    fn start(&mut self, operation: &str, _round: usize) -> Victim {
        let operation = operation
            .strip_prefix("publisher: ")
            .expect("an operation of a publisher");
        let victim = Victim::start("killed-publisher", &[operation, self.names.prefix()]);
        let client = self.names.client();
        let mut receivers = Vec::new();
        if operation != "create" {
            victim.child.expect_done();
            let slow = if operation.ends_with("withdraw from one") {
                OnFull::DropOldest
            } else {
                OnFull::DropNewest
            };
            receivers.push(join(&client, OnFull::Block).unwrap());
            receivers.push(join(&client, slow).unwrap());
            victim.child.send(&Message::Done);
            if !["connect a receiver", "serve a join"].contains(&operation) {
                victim.child.expect_done();
                for (receiver, first) in receivers.iter_mut().zip(firsts(operation)) {
                    for number in 0..first {
                        check(&receiver.recv().unwrap(), number);
                    }
                }
                if operation == "disconnect a receiver" {
                    receivers.pop();
                }
                victim.child.send(&Message::Done);
            }
        }
        self.round = Some((client, receivers));
        victim
    }

    fn before_kill(&mut self, _victim: &Victim, tracee: &Tracee) {
        self.sent = tracee.value_of(&SENT);
    }

    fn check(&mut self, operation: &str, _round: usize) {
        let (client, receivers) = self.round.take().expect("a round that was started");
        let operation = operation
            .strip_prefix("publisher: ")
            .expect("an operation of a publisher");
        let may_be_sent = self.sent + u64::from(operation.starts_with("send"));
        for (at, (mut receiver, first)) in receivers.into_iter().zip(firsts(operation)).enumerate()
        {
            let is_left_out = at == 1 && operation == "send, and leave one out";
            // The publisher takes back what this one has not received.
            let is_evicted = at == 1 && operation == "evict a receiver";
            let is_withdrawn_from = at == 1 && operation == "send, and withdraw from one";
            let mut next = first;
            let mut received = 0;
            let end = loop {
                match receiver.recv() {
                    Ok(message) => {
                        assert!(message.missed() == 0 || is_withdrawn_from || is_evicted);
                        next += u64::from(message.missed());
                        check(&message, next);
                        next += 1;
                        received += 1;
                    }
                    Err(error) => break error,
                }
            };
            assert!(
                matches!(end, RecvError::Disconnected)
                    || is_evicted && matches!(end, RecvError::Evicted),
                "{end}"
            );
            // The publisher may not have connected this one.
            let is_new = ["connect a receiver", "serve a join"].contains(&operation);
            if is_left_out {
                assert_eq!(received, CAPACITY + 1, "one more than its capacity fits");
            } else if is_new || is_evicted {
                assert!(next <= may_be_sent);
            } else {
                assert!(
                    (self.sent..=may_be_sent).contains(&next),
                    "receiver {at} got {next} of {} messages",
                    self.sent
                );
            }
            if is_withdrawn_from {
                assert!(
                    received >= CAPACITY,
                    "{received}: a message was withdrawn before the next one was there"
                );
            }
        }
        assert_has_ended(&join(&client, OnFull::Block).unwrap_err());
        assert_publishes(&self.names, &self.neighbour);
        assert_only_neighbour_is_left(&self.names);
    }
}
