//! Each end of a channel is killed at every instruction of its operations. The other end is
//! notified, keeps its messages, and recovers those in flight. The name can be reused.

#![forbid(unsafe_code)]

use crate::channels::{self, check, receiver, send, sender, BUFFERS, CHANNEL, OTHER};
use crate::kill_points::{self, Scene, Victim};
use crate::owner_operations::{builder, SMALL};
use crate::shm::{self, Names};
use crate::waits::Wait;
use crate::wire::Message;
use shm_pool::channel::{ChannelError, Receiver, RecvError, SendErrorKind, Sender};
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
    "sender: drop the sender",
];

/// A publisher notices the death of a subscriber and recovers its messages in flight; the channel's
/// name and the memory on loan to the subscriber become available, and a thread that waits for it
/// wakes.
#[test]
fn receiver_killed_anywhere() {
    kill_points::sweep(OF_RECEIVERS, &mut Senders { names: Names::new("traced-receiver"), round: None });
}

/// A subscriber notices the death of a publisher, and receives all sent messages exactly once; the
/// publisher's successor can use the name.
#[test]
fn sender_killed_anywhere() {
    let names = Names::new("traced-sender");
    let neighbour = builder(names.prefix()).build().unwrap();
    drop(sender(&neighbour, CHANNEL).unwrap());
    let remains = {
        let _sender = sender(&neighbour, CHANNEL).unwrap();
        fs::read(path(&names)).unwrap()
    };
    kill_points::sweep(OF_SENDERS, &mut Receivers { neighbour, remains, round: None, names });
}

fn path(names: &Names) -> std::path::PathBuf {
    shm::path(&format!("{}.{CHANNEL}.channel", names.prefix()))
}

/// Checks that a channel of that name works.
fn assert_usable(names: &Names, provider: &Provider) {
    let mut sender = sender(provider, CHANNEL).expect("the name can be used again");
    let mut receiver = receiver(&Arc::new(names.client()), CHANNEL).unwrap();
    send(&mut sender, provider, 2);
    (0..2).for_each(|number| check(&receiver.recv().unwrap(), number));
}

/// The other side of a receiver: a provider with two senders.
struct Senders {
    names: Names,
    round: Option<(Arc<Provider>, [Sender; 2], Option<Wait>)>,
}

impl Scene for Senders {
    fn start(&mut self, operation: &str, _round: usize) -> Victim {
        let operation = operation.strip_prefix("receiver: ").expect("an operation of a receiver");
        let provider = Arc::new(builder(self.names.prefix()).build().unwrap());
        let mut senders = [CHANNEL, OTHER].map(|name| sender(&provider, name).unwrap());
        let victim = Victim::start("killed-receiver", &[operation, self.names.prefix()]);
        let mut wait = None;
        if operation != "open" {
            victim.child.expect_done();
            send(&mut senders[0], &provider, 1 + BUFFERS);
            wait = operation.ends_with("waited for").then(|| Wait::begin(&provider, SMALL));
            victim.child.tell(&Message::Done);
        }
        self.round = Some((provider, senders, wait));
        victim
    }

    fn check(&mut self, operation: &str, _round: usize) {
        let (provider, [mut sender, mut other], wait) = self.round.take().expect("a round that was started");
        if let Some(wait) = wait {
            wait.end();
        }
        assert_eq!(other.send_bytes(b"x"), Err(SendErrorKind::Disconnected), "the channel that was not touched");
        match sender.wait_for_receiver(Duration::ZERO) {
            // The victim had not joined, so another receiver can.
            Err(SendErrorKind::TimedOut) => {
                assert_eq!(operation, "receiver: open");
                let client = Arc::new(self.names.client());
                let mut receiver = receiver(&client, CHANNEL).unwrap();
                send(&mut sender, &provider, 2);
                (0..2).for_each(|number| check(&receiver.recv().unwrap(), number));
            }
            Err(SendErrorKind::Disconnected) => {
                assert_eq!(sender.send_bytes(b"x"), Err(SendErrorKind::Disconnected));
                let buffer = provider.alloc(1).unwrap().freeze();
                assert_eq!(sender.send(buffer).unwrap_err().kind(), SendErrorKind::Disconnected);
            }
            other => panic!("the receiver is dead: {other:?}"),
        }
        provider.reclaim();
        assert_eq!(provider.stats().bytes_leased, 0, "what was on the way, and what it read");
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
    names: Names,
}

impl Scene for Receivers {
    fn start(&mut self, operation: &str, _round: usize) -> Victim {
        let operation = operation.strip_prefix("sender: ").expect("an operation of a sender");
        if operation == "create over remains" {
            // The object of a dead sender: the same bytes, without locks.
            fs::write(path(&self.names), &self.remains).unwrap();
        }
        let victim = Victim::start("killed-sender", &[operation, self.names.prefix()]);
        let client = Arc::new(self.names.client());
        let is_made = !operation.starts_with("create");
        let joined = is_made.then(|| {
            victim.child.expect_done();
            let receiver = receiver(&client, CHANNEL).unwrap();
            victim.child.tell(&Message::Done);
            receiver
        });
        self.round = Some((client, joined));
        victim
    }

    fn check(&mut self, _operation: &str, _round: usize) {
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
            views.iter().zip(0..).for_each(|(message, number)| check(message, number));
        }
        let open = channels::receiver(&client, CHANNEL).unwrap_err();
        use ChannelError::{NoChannel, NotAChannel, SenderGone, Unfinished};
        let is_told = matches!(open, NoChannel { .. } | NotAChannel { .. } | SenderGone { .. } | Unfinished { .. });
        assert!(is_told, "{open}");
        assert_usable(&self.names, &self.neighbour);
        self.names.sweep();
        let objects = shm::objects(self.names.prefix());
        assert_eq!(objects.len(), 2, "the neighbour's control object and arena: {objects:?}");
    }
}
