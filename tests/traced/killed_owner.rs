//! An owner is killed at every instruction of its operations. Its readers continue, new ones get an
//! error, and a sweep removes the owner's objects and no others.

#![forbid(unsafe_code)]

use crate::kill_points::{self, introduce, Scene, Victim};
use crate::owner_operations::{builder, published, LARGE, SMALL, WAIT_SERVED};
use crate::peer::Peer;
use crate::shm::{self, Names};
use crate::waits::Giver;
use crate::wire::Message;
use shm_pool::{AttachError, Client, Descriptor, Provider, ProviderId, ShmBytes, ShmView};
use std::fs;

const OPERATIONS: &[&str] = &[
    "owner: build",
    "owner: build over remains",
    "owner: alloc, an arena",
    "owner: alloc, a run",
    "owner: alloc, carved",
    "owner: alloc, a trade",
    "owner: one-offs",
    "owner: alloc, arenas give way",
    "owner: alloc, warm",
    "owner: reserve",
    "owner: freeze, descriptor",
    "owner: descriptor, again",
    "owner: grant",
    "owner: drop, never shared",
    "owner: drop, shared",
    "owner: drop, leased",
    "owner: trim",
    "owner: reclaim",
    "owner: wait, in vain",
    "owner: wait, served",
    "owner: drop, waited for",
    "owner: close",
    "owner: drop the last buffer",
    "owner: sweep",
];

/// Readers keep their messages, and a successor removes the dead owner's objects and no others.
#[test]
fn owner_killed_anywhere() {
    kill_points::sweep(OPERATIONS, &mut Stage::new());
}

role!("killed-owner", role);

/// The role. The arguments are the operation and the prefix.
fn role(link: &crate::wire::Link, arguments: &[&str]) {
    introduce(link);
    crate::owner_operations::operate(link, arguments[0], arguments[1]);
}

/// Another owner with the same prefix, which stays alive.
struct Stage {
    message: ShmBytes,
    descriptor: Descriptor,
    neighbour: Provider,
    /// All objects except those of a victim.
    objects: Vec<String>,
    remains: Vec<(String, Vec<u8>)>,
    /// The bytes that the neighbour holds.
    held: usize,
    round: Option<Round>,
    /// Dropped last: this checks that no object is left.
    names: Names,
}

/// The messages that a victim has published, and their reader.
struct Round {
    reader: Client,
    kept: Vec<(Descriptor, ShmView)>,
    /// Releases the memory that the victim waits for.
    giver: Option<Giver>,
}

impl Round {
    /// Attaches to all messages once more, and compares them while all these views exist.
    fn check_again(&self) {
        let mut views = Vec::new();
        for (descriptor, _) in &self.kept {
            views.push(self.reader.attach(descriptor).unwrap());
        }
        for (at, view) in views.iter().enumerate() {
            let (descriptor, _) = self.kept[at];
            shm::check(view, descriptor.payload_len()).unwrap();
        }
    }
}

impl Stage {
    fn new() -> Self {
        let names = Names::new("traced-owner");
        let neighbour = builder(names.prefix()).build().unwrap();
        let (message, descriptor) = published(&neighbour, LARGE);
        drop(neighbour.alloc(SMALL).unwrap());
        let objects = shm::objects(names.prefix());
        let remains = remains(&names, &objects);
        let held = neighbour.stats().bytes_held;
        Self {
            names,
            neighbour,
            message,
            descriptor,
            objects,
            remains,
            held,
            round: None,
        }
    }

    /// Creates the objects of a dead owner: the same bytes, without locks.
    fn put_remains(&self) {
        for (name, bytes) in &self.remains {
            fs::write(shm::path(name), bytes).unwrap();
        }
    }

    /// Receives the victim's messages, and attaches a reader to them.
    fn meet(&self, victim: &Victim, operation: &str) -> Round {
        let reader = self.names.client();
        // A large one and a small one.
        let mut kept = Vec::new();
        for _ in 0..2 {
            let descriptor = victim.child.sent();
            let view = reader.attach(&descriptor).unwrap();
            kept.push((descriptor, view));
        }
        let provider = kept[0].0.provider();
        if operation == "reclaim" {
            let dead = Peer::start(self.names.prefix());
            for (descriptor, _) in &kept {
                dead.attach(*descriptor, descriptor.payload_len()).unwrap();
            }
            dead.kill();
        }
        victim
            .child
            .send(&Message::Peer(reader.connect(provider).unwrap()));
        let mut giver = None;
        if operation == WAIT_SERVED {
            let descriptor = victim.child.sent();
            let view = reader.attach(&descriptor).unwrap();
            victim.child.send(&Message::Go);
            giver = Some(Giver::start(victim.thread(), || drop(view)));
        }
        Round {
            reader,
            kept,
            giver,
        }
    }

    /// Returns the owners that have a control object, except the neighbour.
    fn dead_owners(&self) -> Vec<ProviderId> {
        let mut names = shm::objects(self.names.prefix());
        names.retain(|name| !self.objects.contains(name));
        let (controls, segments): (Vec<_>, Vec<_>) =
            names.iter().partition(|name| name.ends_with(".ctl"));
        let owner = |name: &str| {
            name.rsplit('.')
                .nth(1)
                .expect("two dots")
                .parse::<ProviderId>()
                .unwrap()
        };
        let mut owners = Vec::new();
        for control in controls {
            owners.push(owner(control));
        }
        for segment in segments {
            assert!(
                owners.contains(&owner(segment)),
                "{segment}: the control object is the first to come and the last to go"
            );
        }
        owners
    }

    fn assert_neighbour_is_well(&self) {
        let stats = self.neighbour.stats();
        assert_eq!(shm::objects(self.names.prefix()), self.objects);
        shm::check(&self.message, LARGE as u64).unwrap();
        let client = self.names.client();
        shm::check(&client.attach(&self.descriptor).unwrap(), LARGE as u64).unwrap();
        drop(client);
        published(&self.neighbour, SMALL);
        assert_eq!(
            self.neighbour.stats().segments_created,
            stats.segments_created
        );
    }

    /// Returns the mappings and open descriptors that this process has of objects with the prefix.
    fn held(&self) -> (usize, usize) {
        (
            shm::mappings(self.names.prefix()),
            shm::open_objects(self.names.prefix(), ""),
        )
    }
}

/// Returns the objects that an owner with messages and idle memory leaves behind when it is killed.
fn remains(names: &Names, others: &[String]) -> Vec<(String, Vec<u8>)> {
    let owner = builder(names.prefix()).build().unwrap();
    let _messages = [published(&owner, LARGE), published(&owner, SMALL)];
    let mut objects = shm::objects(names.prefix());
    objects.retain(|name| !others.contains(name));
    assert_eq!(objects.len(), 2);
    let mut remains = Vec::new();
    for name in objects {
        let bytes = fs::read(shm::path(&name)).unwrap();
        remains.push((name, bytes));
    }
    remains
}

fn reports_dead_owner(error: &AttachError) -> bool {
    use AttachError::{Closed, NoProvider, NotAProvider, ProviderDied};
    matches!(
        error,
        ProviderDied { .. } | NoProvider { .. } | NotAProvider { .. } | Closed { .. }
    )
}

impl Scene for Stage {
    fn start(&mut self, operation: &str, _round: usize) -> Victim {
        let operation = operation
            .strip_prefix("owner: ")
            .expect("an operation of an owner");
        if matches!(operation, "sweep" | "build over remains") {
            self.put_remains();
        }
        let victim = Victim::start("killed-owner", &[operation, self.names.prefix()]);
        let has_messages = !matches!(operation, "sweep" | "build" | "build over remains");
        if has_messages {
            self.round = Some(self.meet(&victim, operation));
        }
        victim
    }

    fn check(&mut self, _operation: &str, _round: usize) {
        let mut round = self.round.take();
        if let Some(round) = &mut round {
            drop(round.giver.take());
        }
        let kept = match &round {
            Some(round) => &round.kept[..],
            None => &[],
        };
        let newcomer = self.names.client();
        let mut dead = self.dead_owners();
        for (descriptor, _) in kept {
            dead.push(descriptor.provider());
        }
        for &owner in &dead {
            let error = newcomer.connect(owner).unwrap_err();
            assert!(reports_dead_owner(&error), "{error}");
        }
        for (descriptor, view) in kept {
            shm::check(view, descriptor.payload_len()).unwrap();
            let error = newcomer.attach(descriptor).unwrap_err();
            assert!(reports_dead_owner(&error), "{error}");
        }
        // A client that has the segment mapped can still create another view.
        if let Some(round) = &round {
            round.check_again();
        }
        // It spares an owner that was killed before it reported a grant: this process has not taken
        // it up.
        self.names.sweep();
        for &owner in &dead {
            let error = newcomer.connect(owner).unwrap_err();
            assert!(reports_dead_owner(&error), "{error}");
        }
        for (descriptor, view) in kept {
            shm::check(view, descriptor.payload_len()).unwrap();
        }
        drop((round, newcomer));
        self.names.sweep();
        self.assert_neighbour_is_well();
        let newcomer = self.names.client();
        for &owner in &dead {
            let error = newcomer.connect(owner).unwrap_err();
            assert!(matches!(error, AttachError::NoProvider { .. }), "{error}");
        }
        drop(newcomer);
        // The neighbour has both its control object and its segment mapped and open.
        assert_eq!(self.held(), (2, 2), "mappings and descriptors of the dead");
        assert_eq!(self.neighbour.stats().bytes_held, self.held);
    }
}
