//! A peer is killed at every instruction of its operations. Its owner reclaims everything, and no
//! other process loses anything.

#![forbid(unsafe_code)]

use crate::kill_points::{self, introduce, Scene, Victim};
use crate::shm::{self, Names};
use crate::trace::marked;
use crate::waits::Wait;
use crate::wire::{Link, Message};
use shm_pool::{Client, Descriptor, Provider, ShmBytes, ShmView, Tuning};
use std::sync::Arc;

/// The length of a message: one chunk of an arena.
const LEN: usize = 4 << 10;

/// The provider's cap: one arena.
const MAX_BYTES: usize = 64 << 10;

/// At least this many such chunks fit in the arena.
const CAPACITY: usize = 15;

const OPERATIONS: &[&str] = &[
    "peer: connect",
    "peer: warm",
    "peer: attach, first",
    "peer: attach, mapped",
    "peer: accept, first",
    "peer: accept, mapped",
    "peer: drop a view",
    "peer: drop the client",
    "peer: drop the last view",
    "peer: drop a view, waited for",
    "peer: drop the client, waited for",
];

/// It costs neither memory nor a slot nor another peer's message. A waiting thread wakes.
#[test]
fn peer_killed_anywhere() {
    kill_points::sweep(OPERATIONS, &mut Stage::new());
}

// ---- the child ---------------------------------------------------------------------------------

role!("killed-peer", role);

/// The role. The arguments are the operation and the prefix.
fn role(link: &Link, arguments: &[&str]) {
    introduce(link);
    let client = shm::client(arguments[1]);
    let Some(Message::Provider(id)) = link.receive().unwrap() else {
        panic!("a provider first")
    };
    if arguments[0] == "connect" {
        marked(|| client.connect(id)).unwrap();
        return;
    }
    link.send(&Message::Peer(client.connect(id).unwrap()));
    let viewed = link.sent();
    let granted = link.sent();
    operate(link, arguments[0], client, &viewed, &granted);
}

fn operate(
    link: &Link,
    operation: &str,
    client: Client,
    viewed: &Descriptor,
    granted: &Descriptor,
) {
    let view = |descriptor| client.attach(descriptor).unwrap();
    // From here on, a thread waits for the memory that this process holds.
    let be_waited_for = || {
        link.send(&Message::Done);
        link.expect_go();
    };
    match operation {
        "warm" => assert!(marked(|| client.warm(viewed.provider())).unwrap() > 0),
        "attach, first" => drop(marked(|| view(viewed))),
        "accept, first" => drop(marked(|| view(granted))),
        "attach, mapped" => {
            let _first = view(viewed);
            drop(marked(|| view(viewed)));
        }
        "accept, mapped" => {
            let _first = view(viewed);
            drop(marked(|| view(granted)));
        }
        "drop a view" => {
            let view = view(viewed);
            marked(|| drop(view));
        }
        "drop a view, waited for" => {
            let view = view(viewed);
            be_waited_for();
            marked(|| drop(view));
        }
        "drop the client" => {
            drop(view(viewed));
            marked(|| drop(client));
        }
        "drop the client, waited for" => {
            drop(view(viewed));
            be_waited_for();
            marked(|| drop(client));
        }
        "drop the last view" => {
            let view = view(viewed);
            drop(client);
            marked(|| drop(view));
        }
        other => panic!("no operation {other:?}"),
    }
}

// ---- the processes around it -------------------------------------------------------------------

/// A provider, and another of its peers.
struct Stage {
    names: Names,
    round: Option<Round>,
}

/// Each victim gets a new provider, so that every victim finds the same state and takes the same
/// path.
struct Round {
    provider: Arc<Provider>,
    _survivor: Client,
    /// The survivor's views and their patterns: one message that the victim never received, and
    /// those that the victim may also lease.
    views: Vec<(ShmView, u64)>,
    wait: Option<Wait>,
}

impl Stage {
    fn new() -> Self {
        Self {
            names: Names::new("traced-peer"),
            round: None,
        }
    }

    /// Checks that slot 1, the victim's, is free.
    fn assert_slot_is_free(&self, provider: &Provider) {
        let newcomer = self.names.client();
        assert_eq!(
            newcomer.connect(provider.id()).unwrap().slot(),
            1,
            "the victim's slot"
        );
        let message = message(provider, 9);
        shm::check(&newcomer.attach(&message.descriptor().unwrap()).unwrap(), 9).unwrap();
    }
}

fn message(provider: &Provider, seed: u64) -> ShmBytes {
    shm::message(provider, LEN, seed)
}

/// Allocates and fills as many messages as possible, then compares them. Returns their number.
fn use_all(provider: &Provider) -> usize {
    let mut all = Vec::new();
    while let Ok(mut buffer) = provider.alloc(LEN) {
        let seed = 100 + all.len() as u64;
        shm::fill(&mut buffer, seed);
        all.push((buffer.freeze(), seed));
    }
    for (message, seed) in &all {
        shm::check(message, *seed).unwrap();
    }
    all.len()
}

impl Scene for Stage {
    fn start(&mut self, operation: &str, _round: usize) -> Victim {
        let operation = operation
            .strip_prefix("peer: ")
            .expect("an operation of a peer");
        let victim = Victim::start("killed-peer", &[operation, self.names.prefix()]);
        let builder = self
            .names
            .provider()
            .max_bytes(MAX_BYTES)
            .max_bytes_per_peer(1 << 30)
            .tuning(Tuning::new().arena_size(MAX_BYTES));
        let provider = Arc::new(
            builder
                .max_idle_per_class(64)
                .max_shared(32)
                .build()
                .unwrap(),
        );
        let survivor = self.names.client();
        assert_eq!(survivor.connect(provider.id()).unwrap().slot(), 0);
        let messages = [
            message(&provider, 1),
            message(&provider, 2),
            message(&provider, 3),
        ];
        victim.child.send(&Message::Provider(provider.id()));
        if operation != "connect" {
            let Message::Peer(peer) = victim.child.receive() else {
                panic!("the victim tells who it is")
            };
            assert_eq!(peer.slot(), 1);
            // The second message is granted too, but the grant is never taken up. Dropping a view
            // would not release that message.
            if operation != "drop a view, waited for" {
                messages[1].grant(peer).unwrap();
            }
            for descriptor in [
                messages[1].descriptor().unwrap(),
                messages[2].grant(peer).unwrap(),
            ] {
                victim.child.send(&Message::Sent(descriptor));
            }
        }
        // The message that only the victim holds, and that a thread waits for.
        let waited_for = match operation {
            "drop a view, waited for" => Some(1),
            "drop the client, waited for" => Some(2),
            _ => None,
        };
        let mut views = Vec::new();
        for (at, message) in messages.iter().enumerate() {
            if Some(at) != waited_for {
                let view = survivor.attach(&message.descriptor().unwrap()).unwrap();
                views.push((view, at as u64 + 1));
            }
        }
        let mut wait = None;
        if waited_for.is_some() {
            victim.child.expect_done();
            drop(messages);
            wait = Some(Wait::begin(&provider, LEN));
            victim.child.send(&Message::Go);
        }
        self.round = Some(Round {
            provider,
            _survivor: survivor,
            views,
            wait,
        });
        victim
    }

    fn check(&mut self, _operation: &str, round: usize) {
        let Round {
            provider,
            mut views,
            wait,
            ..
        } = self.round.take().expect("a round that was started");
        if let Some(wait) = wait {
            wait.end();
        }
        // The first to notice depends on the round: the owner, a new peer, or an allocation that
        // needs the memory.
        match round % 3 {
            0 => drop(provider.reclaim()),
            1 => self.assert_slot_is_free(&provider),
            _ => {}
        }
        for (view, seed) in &views {
            shm::check(view, *seed).unwrap();
        }
        views.truncate(1);
        let capacity = use_all(&provider) + 1;
        assert_eq!(
            provider.stats().bytes_leased,
            LEN,
            "the survivor's, and no other"
        );
        shm::check(&views[0].0, 1).unwrap();
        self.assert_slot_is_free(&provider);
        drop(views);
        let stats = provider.stats();
        assert_eq!(
            (stats.bytes_leased, stats.bytes_in_use, stats.segments),
            (0, 0, 1)
        );
        assert_eq!(use_all(&provider), capacity, "all chunks can be used again");
        assert!(capacity >= CAPACITY, "{capacity} chunks in all");
        assert_eq!(
            shm::objects(self.names.prefix()).len(),
            2,
            "the control object and the arena"
        );
        drop(provider);
        assert_eq!(shm::objects(self.names.prefix()), [""; 0]);
    }
}
