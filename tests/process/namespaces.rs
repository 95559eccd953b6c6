//! Owners and peers in other PID and mount namespaces, as in containers that share /dev/shm. Locks
//! tell which are alive; process ids do not, because they mean something else there (D5).

use crate::channel;
use crate::child::{self, Child};
use crate::killed_owner;
use crate::peer::{self, Peer, Views};
use crate::shm::{self, Names};
use crate::sys;
use crate::wire::{Link, Message};
use shm_pool::channel::{RecvError, SendErrorKind};
use shm_pool::{AttachError, Descriptor, Namespace, Provider, ProviderId, ShareError};

/// An owner's objects: a control object and a segment.
const OBJECTS: u64 = 2;

role!("other-namespaces", role);

/// The role: forks process 1 of another PID namespace, reports its id in this one, and later
/// reports its exit.
fn role(link: &Link, arguments: &[&str]) {
    if let Err(error) = sys::leave_pid_namespace() {
        return link.send(&Message::Refused(error.to_string()));
    }
    let Some(forked) = sys::fork() else {
        sys::end_with(|| process_1(link, arguments))
    };
    link.send(&Message::Number(forked.id()));
    forked.wait();
    link.send(&Message::Done);
}

fn process_1(link: &Link, arguments: &[&str]) {
    sys::end_with_parent();
    link.expect_go();
    assert_eq!(std::process::id(), 1, "not another PID namespace");
    match arguments[1] {
        "peer" => observe(link, arguments[0]),
        "owner" => killed_owner::role(link, arguments),
        "receiver" => channel::role(link, arguments),
        "sender" => channel::sending_role(link, &[arguments[0], "3"]),
        _ => reclaim(link, arguments[0]),
    }
}

/// A peer that also sweeps, at each `Go`.
fn observe(link: &Link, prefix: &str) {
    let client = shm::client(prefix);
    let mut views = Views::new();
    while let Some(question) = link.receive().unwrap() {
        link.send(&match question {
            Message::Go => {
                Message::Number(Namespace::new(prefix).unwrap().sweep().unwrap().objects as u64)
            }
            question => peer::answer(&question, &client, prefix, &mut views),
        });
    }
}

/// An owner that publishes a message and looks for dead peers at each `Go`.
fn reclaim(link: &Link, prefix: &str) {
    let provider = Provider::builder()
        .namespace(&Namespace::new(prefix).unwrap())
        .build()
        .unwrap();
    let message = shm::message(&provider, 100_000, 5);
    link.send(&Message::Sent(message.descriptor().unwrap()));
    while let Some(question) = link.receive().unwrap() {
        assert_eq!(question, Message::Go);
        link.send(&Message::Number(provider.reclaim() as u64));
    }
}

fn skip(reason: &str) {
    child::skip(&format!("no namespaces of our own: {reason}"));
}

/// A process 1, and the child that forked it.
struct Elsewhere {
    peer: Peer,
    id: u64,
}

impl Elsewhere {
    /// Returns `None` if that is not possible here.
    fn start(names: &Names, what: &str) -> Option<Self> {
        let child = Child::start_with(
            "other-namespaces",
            &[names.prefix(), what],
            sys::leave_mount_namespace,
        );
        let child = child.map_err(|error| skip(&error.to_string())).ok()?;
        match child.receive() {
            Message::Number(id) => {
                child.send(&Message::Go);
                Some(Self {
                    peer: Peer::of(child),
                    id,
                })
            }
            refused => {
                skip(&format!("{refused:?}"));
                None
            }
        }
    }

    /// Sends SIGKILL and waits until process 1 has exited.
    fn kill(self) {
        sys::kill(self.id);
        let child = self.peer.into_child();
        child.expect_done();
        child.finish();
    }

    fn go(&self) -> u64 {
        self.peer.go()
    }
}

/// A subscriber in a container keeps what it reads although no process with its id is visible, and
/// its leases are reclaimed when it is killed although another process has that id.
#[test]
fn peer_in_namespace() {
    let names = Names::new("spaces-peer");
    let provider = names.provider().build().unwrap();
    let Some(elsewhere) = Elsewhere::start(&names, "peer") else {
        return;
    };
    let id = elsewhere.peer.connect(provider.id()).unwrap();
    let read = shm::message(&provider, 100_000, 1);
    let granted = shm::message(&provider, 100_000, 2);
    let view = elsewhere
        .peer
        .attach(read.descriptor().unwrap(), 1)
        .unwrap();
    let grant = granted.grant(id).unwrap();

    let neighbour = names.client();
    assert_ne!(
        neighbour.connect(provider.id()).unwrap().slot(),
        id.slot(),
        "the slot of one that lives"
    );
    assert_eq!(provider.reclaim(), 0, "it lives");
    assert!(read.is_leased() && granted.is_leased());
    elsewhere.peer.check(view);
    elsewhere.peer.attach(grant, 2).expect("its grant is there");

    let kept = neighbour.attach(&read.descriptor().unwrap()).unwrap();
    elsewhere.kill();
    assert_eq!(
        (provider.reclaim(), provider.reclaim()),
        (2, 0),
        "both messages, and once"
    );
    assert!(
        !granted.is_leased() && read.is_leased(),
        "the neighbour has its view still"
    );
    shm::check(&kept, 1).unwrap();
    drop(kept);
    assert!(!read.is_leased());
    assert_eq!(granted.grant(id), Err(ShareError::PeerDisconnected(id)));
    assert_eq!(
        names.client().connect(provider.id()).unwrap().slot(),
        id.slot(),
        "its slot is free"
    );
}

fn provider_and_messages(owner: &Child) -> (ProviderId, [Descriptor; 2]) {
    let Message::Provider(id) = owner.receive() else {
        panic!("the owner tells its id first")
    };
    (id, [owner.sent(), owner.sent()])
}

#[test]
fn owner_in_namespace() {
    let names = Names::new("spaces-owner");
    let Some(elsewhere) = Elsewhere::start(&names, "owner") else {
        return;
    };
    let (id, descriptors) = provider_and_messages(elsewhere.peer.child());
    assert_eq!(names.sweep(), 0, "it lives");
    let peer = Peer::start(names.prefix());
    let views = peer.attach_both(descriptors);
    assert_eq!(peer.unmap_unused(), 0, "it lives");
    drop(names.provider().build().unwrap());
    assert_eq!(
        shm::objects(names.prefix()).len() as u64,
        OBJECTS,
        "the next build sweeps nothing that lives"
    );

    elsewhere.kill();
    for &view in &views {
        peer.check(view);
    }
    let refused = names.client().connect(id).unwrap_err();
    assert!(
        matches!(refused, AttachError::ProviderDied { .. }),
        "{refused}"
    );
    assert_eq!(
        peer.unmap_unused(),
        OBJECTS,
        "its peers see that it is dead"
    );
    assert_eq!(names.sweep() as u64, OBJECTS);
    for &view in &views {
        peer.check(view);
    }
}

#[test]
fn inspected_owner_from_namespace() {
    let names = Names::new("spaces-sees");
    let owner = Child::start("owner", &[names.prefix()]);
    let (id, descriptors) = provider_and_messages(&owner);
    let Some(elsewhere) = Elsewhere::start(&names, "peer") else {
        return owner.shut_down();
    };
    let views = elsewhere.peer.attach_both(descriptors);
    assert_eq!(
        (elsewhere.go(), elsewhere.peer.unmap_unused()),
        (0, 0),
        "it lives"
    );
    owner.kill();
    for &view in &views {
        elsewhere.peer.check(view);
    }
    assert_eq!(elsewhere.peer.unmap_unused(), OBJECTS);
    let refused = elsewhere.peer.connect(id).unwrap_err();
    assert!(refused.starts_with("ProviderDied"), "{refused}");
    assert_eq!(
        (elsewhere.go(), elsewhere.go()),
        (OBJECTS, 0),
        "all is swept, and once"
    );
    for &view in &views {
        elsewhere.peer.check(view);
    }
}

/// An owner in a container reclaims from dead subscribers outside, and from no living ones.
#[test]
fn inspected_peers_from_namespace() {
    let names = Names::new("spaces-reclaims");
    let Some(elsewhere) = Elsewhere::start(&names, "reclaims") else {
        return;
    };
    let descriptor = elsewhere.peer.child().sent();
    let victim = Peer::start(names.prefix());
    let survivor = Peer::start(names.prefix());
    let view = survivor.attach(descriptor, 5).unwrap();
    victim.attach(descriptor, 5).unwrap();
    assert_eq!(elsewhere.go(), 0, "both live");
    victim.kill();
    assert_eq!(
        (elsewhere.go(), elsewhere.go()),
        (1, 0),
        "the victim's message, once"
    );
    survivor.check(view);
    elsewhere.kill();
    assert_eq!(names.sweep(), 2, "the control object and a segment");
    survivor.check(view);
}

/// The death of an end in a container is detected, although thread ids differ there.
#[test]
fn channel_across_namespaces() {
    let names = Names::new("spaces-sender");
    let Some(elsewhere) = Elsewhere::start(&names, "sender") else {
        return;
    };
    elsewhere.peer.child().expect_done();
    let mut receiver = channel::receiver(names.prefix());
    elsewhere.peer.child().expect_done();
    for _ in 0..3 {
        assert!(receiver.recv().is_ok());
    }
    assert!(
        matches!(receiver.try_recv(), Err(RecvError::Empty)),
        "it lives"
    );
    elsewhere.kill();
    assert!(matches!(receiver.recv(), Err(RecvError::Disconnected)));
    drop(receiver);
    assert_eq!(shm::objects(names.prefix()), [""; 0]);

    let names = Names::new("spaces-receiver");
    let provider = channel::provider(names.prefix());
    let mut sender = channel::sender(&provider, 2);
    let elsewhere = Elsewhere::start(&names, "receiver").expect("it was possible a moment ago");
    elsewhere.peer.child().expect_done();
    for _ in 0..2 {
        sender.send(shm::message(&provider, 100_000, 7)).unwrap();
    }
    elsewhere.kill();
    assert_eq!(
        sender.send_copy(b"x"),
        Err(SendErrorKind::Disconnected.into())
    );
    provider.reclaim();
    assert_eq!(provider.stats().bytes_in_use, 0, "both messages came back");
}

/// As in containers that share none: the error hints at the cause.
#[test]
fn other_dev_shm() {
    let names = Names::new("spaces-shm");
    let provider = names.provider().build().unwrap();
    let message = shm::message(&provider, 100_000, 3);
    let peer = match Child::start_with("peer", &[names.prefix()], sys::give_small_shm) {
        Ok(child) => Peer::of(child),
        Err(error) => return child::skip(&format!("no mount namespace of our own: {error}")),
    };
    for refused in [
        peer.connect(provider.id()).unwrap_err(),
        peer.attach(message.descriptor().unwrap(), 3).unwrap_err(),
    ] {
        assert!(refused.starts_with("NoProvider"), "{refused}");
    }
    assert_eq!(peer.mappings(), 0);
}
