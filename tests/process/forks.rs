//! Owners and peers that fork: every handle is inert in the child, and the parent loses nothing (D11).

use crate::child::{in_child, Child};
use crate::shm::{self, Names};
use crate::sys;
use crate::wire::{Link, Message};
use shm_pool::channel::{self, ChannelError, Receiver, Sender};
use shm_pool::{
    AllocError, AttachError, Client, Descriptor, Namespace, PeerId, Provider, ShareError, ShmBytes,
    ShmBytesMut, ShmView, WakeFd,
};
use std::alloc::Layout;
use std::os::fd::AsRawFd;
use std::sync::mpsc;
use std::task::Poll;
use std::thread;

const LARGE: usize = 300_000;
const SMALL: usize = 1_000;

/// A fork, for example by a library, does not release the parent's memory twice.
#[test]
fn forked_child_owns_nothing() {
    in_child(|prefix| {
        let mut handles = Handles::new(prefix);
        let before = (shm::objects(prefix), handles.provider.stats());
        let Some(forked) = sys::fork() else {
            sys::end_with(move || in_the_forked_child(handles, prefix))
        };
        forked.finish();

        assert_eq!(
            (shm::objects(prefix), handles.provider.stats()),
            before,
            "as if there had been no fork"
        );
        handles.check_bytes();
        assert!(handles.sent.is_leased());
        shm::fill(&mut handles.writable[0], 5);
        shm::check(&handles.writable[0], 5).unwrap();
        let misses = before.1.misses();
        drop(message(&handles.provider, LARGE, 6));
        assert_eq!(
            handles.provider.stats().misses(),
            misses,
            "the idle memory is there"
        );
        drop(
            handles
                .client
                .attach(&handles.frozen.descriptor().unwrap())
                .unwrap(),
        );
        drop(handles.view);
        assert!(
            !handles.sent.is_leased(),
            "the view's lease was taken back once"
        );
        drop((
            handles.writable,
            handles.frozen,
            handles.clone,
            handles.sent,
        ));
        assert_eq!(handles.provider.stats().bytes_in_use, 0);
        drop((handles.client, handles.provider));
        assert_eq!(shm::objects(prefix), [""; 0]);
    });
}

/// A child that polls an inherited descriptor of an event loop does not erase its parent's wake-up.
#[test]
fn forked_child_clears_no_wake_fd() {
    in_child(|_| {
        let mut ready = WakeFd::new().unwrap();
        let Some(forked) = sys::fork() else {
            sys::end_with(move || assert!(ready.poll(|_| Poll::<()>::Pending).is_pending()));
        };
        forked.finish();
        let mut polled = libc::pollfd {
            fd: ready.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one valid element, which lives during the call.
        let count = unsafe { libc::poll(&mut polled, 1, 0) };
        assert_eq!(count, 1, "it is readable at first");
        assert!(ready.poll(|_| Poll::<()>::Pending).is_pending());
        // SAFETY: as above.
        let count = unsafe { libc::poll(&mut polled, 1, 0) };
        assert_eq!(count, 0, "the parent's own poll clears it");
    });
}

struct Handles {
    writable: [ShmBytesMut; 2],
    frozen: ShmBytes,
    clone: ShmBytes,
    sent: ShmBytes,
    view: ShmView,
    client: Client,
    provider: Provider,
}

fn message(provider: &Provider, len: usize, seed: u64) -> ShmBytesMut {
    let mut buffer = provider.alloc(len).unwrap();
    shm::fill(&mut buffer, seed);
    buffer
}

impl Handles {
    fn new(prefix: &str) -> Self {
        let provider = Provider::builder()
            .namespace(&Namespace::new(prefix).unwrap())
            .build()
            .unwrap();
        let client = shm::client(prefix);
        drop(provider.reserve(LARGE, 6).unwrap()); // some stay idle
        let writable = [message(&provider, LARGE, 1), message(&provider, SMALL, 2)];
        let frozen = message(&provider, LARGE, 3).freeze();
        let sent = message(&provider, SMALL, 4).freeze();
        let view = client.attach(&sent.descriptor().unwrap()).unwrap();
        Self {
            writable,
            clone: frozen.clone(),
            frozen,
            sent,
            view,
            client,
            provider,
        }
    }

    fn check_bytes(&self) {
        let all: [(&[u8], u64); 6] = [
            (&self.writable[0], 1),
            (&self.writable[1], 2),
            (&self.frozen, 3),
            (&self.clone, 3),
            (&self.sent, 4),
            (&self.view, 4),
        ];
        for (bytes, seed) in &all {
            shm::check(bytes, *seed).unwrap();
        }
    }
}

fn in_the_forked_child(handles: Handles, prefix: &str) {
    handles.check_bytes();
    let Handles {
        writable,
        frozen,
        clone,
        sent,
        view,
        client,
        provider,
    } = handles;
    let layout = Layout::from_size_align(LARGE, 4096).unwrap();
    let is_forked =
        |result: Result<(), AllocError>| matches!(result.unwrap_err(), AllocError::Forked);
    assert!(
        is_forked(provider.alloc(SMALL).map(drop)),
        "from idle memory of an arena"
    );
    assert!(
        is_forked(provider.alloc(LARGE).map(drop)),
        "from an idle segment"
    );
    assert!(
        is_forked(provider.alloc(10 * LARGE).map(drop)),
        "from new memory"
    );
    assert!(is_forked(provider.alloc_layout(layout).map(drop)));
    assert!(is_forked(provider.alloc_zeroed(SMALL).map(drop)));
    assert!(is_forked(provider.reserve(SMALL, 1).map(drop)));
    assert_eq!(provider.trim(), 0);
    let lent = Sender::create(&provider, "c").map(drop);
    assert!(
        matches!(lent, Err(ChannelError::Forked)),
        "the parent would not know what is lent: {lent:?}"
    );
    assert_eq!(
        frozen.descriptor().unwrap_err(),
        ShareError::Forked,
        "a message that was not shared before"
    );
    assert_eq!(
        sent.descriptor().unwrap_err(),
        ShareError::Forked,
        "and one that was"
    );
    assert!(matches!(
        client.connect(provider.id()),
        Err(AttachError::Forked)
    ));
    assert!(matches!(view.try_clone(), Err(AttachError::Forked)));
    assert_eq!(client.unmap_unused(), 0);
    let clone = clone
        .try_into_mut()
        .expect_err("a forked child cannot write");
    drop((writable, frozen, clone, sent, view, client, provider));
    a_pool_of_its_own(prefix);
}

/// A pool that is created after the fork works.
fn a_pool_of_its_own(prefix: &str) {
    let handles = Handles::new(prefix);
    handles.check_bytes();
    let objects = shm::objects(prefix).len();
    let Some(forked) = sys::fork() else {
        sys::end_with(move || drop(handles))
    };
    forked.finish(); // the child's own child owns nothing either
    assert_eq!(shm::objects(prefix).len(), objects);
    handles.check_bytes();
    let id = handles.provider.id().to_string();
    drop(handles);
    assert!(
        shm::objects(prefix).iter().all(|name| !name.contains(&id)),
        "its own objects are removed by itself"
    );
}

// ---- peers --------------------------------------------------------------------------------------

const LEN: usize = 200_000;

/// The forked child's exit ends no leases of its parent, which would then read torn messages.
#[test]
fn forked_child_keeps_leases() {
    let names = Names::new("fork-peer");
    let provider = names.provider().max_bytes(1 << 20).build().unwrap();
    let message = shm::message(&provider, LEN, 1);
    let peer = Child::start("forked-peer", &[names.prefix()]);
    let id = connected(&peer, message.descriptor().unwrap());
    let granted = message.grant(id).unwrap();
    drop(message);
    peer.send(&Message::Sent(granted));
    peer.expect_done(); // it has forked, and the forked child has dropped everything and exited

    assert!(
        provider.stats().bytes_leased >= LEN,
        "the parent's lease and grant are there"
    );
    let mut others: Vec<_> = std::iter::from_fn(|| provider.alloc(LEN).ok()).collect();
    for buffer in &mut others {
        buffer.fill(0);
    }
    let still_granted = others.remove(0).freeze().grant(id);
    assert!(
        still_granted.is_ok(),
        "the parent's slot is its own still: {still_granted:?}"
    );
    peer.send(&Message::Go);
    peer.expect_done(); // it has checked and dropped its view, and used and dropped its grant
    assert!(
        provider.stats().bytes_leased < 2 * LEN,
        "only the last grant is left"
    );
    peer.shut_down();
    provider.trim();
    assert_eq!(provider.stats().bytes_leased, 0);
}

/// The locks that a forked child inherits do not make a killed peer look alive.
#[test]
fn killed_peer_with_forked_child() {
    let names = Names::new("fork-killed");
    let provider = names.provider().max_bytes(1 << 20).build().unwrap();
    let message = shm::message(&provider, LEN, 1);
    let peer = Child::start("forked-peer-killed", &[names.prefix()]);
    connected(&peer, message.descriptor().unwrap());
    drop(message);
    peer.expect_done(); // sent by the forked child
    let link = peer.kill_but_keep_link();
    assert_eq!(provider.reclaim(), 1);
    provider.trim();
    assert_eq!(
        (provider.stats().bytes_leased, provider.stats().bytes_held),
        (0, 0)
    );
    link.send(&Message::Go);
    assert_eq!(
        link.receive().unwrap(),
        Some(Message::Done),
        "the forked child has lived all the time"
    );
}

/// A process that forks, or now and then starts a program, does not exhaust its providers' slots.
#[test]
fn dropped_client_with_forked_child() {
    in_child(|prefix| {
        let provider = Provider::builder()
            .namespace(&Namespace::new(prefix).unwrap())
            .build()
            .unwrap();
        let connect = |client: &Client| client.connect(provider.id()).unwrap();
        let client = shm::client(prefix);
        let first = connect(&client);
        let Some(forked) = sys::fork() else {
            sys::end_with(nix::unistd::pause)
        };
        drop(client);
        let second = connect(&shm::client(prefix));
        assert_eq!(second.slot(), first.slot(), "the first free slot");
        assert_ne!(second, first);
        drop(forked);
    });
}

fn connected(peer: &Child, descriptor: Descriptor) -> PeerId {
    match peer.request(&Message::Sent(descriptor)) {
        Message::Peer(id) => id,
        other => panic!("not an id: {other:?}"),
    }
}

fn received(link: &Link) -> Descriptor {
    link.sent()
}

/// Attaches to the first message that arrives, and answers with its own peer id.
fn attached(link: &Link, prefix: &str) -> (Client, ShmView, Descriptor) {
    let client = shm::client(prefix);
    let descriptor = received(link);
    let view = client.attach(&descriptor).unwrap();
    link.send(&Message::Peer(
        client.connect(descriptor.provider()).unwrap(),
    ));
    (client, view, descriptor)
}

role!("forked-peer", role);

/// The role of the peer that forks and continues.
fn role(link: &Link, arguments: &[&str]) {
    let prefix = arguments[0];
    let (client, view, descriptor) = attached(link, prefix);
    let granted = received(link);
    let Some(forked) = sys::fork() else {
        sys::end_with(move || in_the_peers_child(client, view, descriptor, granted, prefix))
    };
    forked.finish();
    link.send(&Message::Done);

    link.expect_go();
    shm::check(&view, 1).unwrap();
    drop(view);
    shm::check(&client.attach(&granted).unwrap(), 1).unwrap();
    link.done_until_end();
}

fn in_the_peers_child(
    client: Client,
    view: ShmView,
    descriptor: Descriptor,
    granted: Descriptor,
    prefix: &str,
) {
    assert!(matches!(
        client.attach(&descriptor),
        Err(AttachError::Forked)
    ));
    assert!(matches!(client.attach(&granted), Err(AttachError::Forked)));
    assert!(matches!(
        client.connect(descriptor.provider()),
        Err(AttachError::Forked)
    ));
    assert!(matches!(view.try_clone(), Err(AttachError::Forked)));
    assert_eq!(
        (client.unmap_unused(), client.mapped_segments()),
        (0, 0),
        "{client:?}"
    );
    shm::check(&view, 1).unwrap();
    drop((view, client));
    // A client that the child creates is a different peer from its parent's.
    let own = shm::client(prefix);
    let refused = own.attach(&granted).unwrap_err();
    assert!(matches!(refused, AttachError::OtherPeer), "{refused}");
    shm::check(&own.attach(&descriptor).unwrap(), 1).unwrap();
}

role!("forked-peer-killed", killed_role);

/// The role of the peer that forks and is killed.
fn killed_role(link: &Link, arguments: &[&str]) {
    let _handles = attached(link, arguments[0]);
    let Some(forked) = sys::fork() else {
        sys::end_with(|| in_child_of_killed_peer(link))
    };
    forked.finish();
}

fn in_child_of_killed_peer(link: &Link) {
    link.send(&Message::Done);
    link.expect_go();
    link.send(&Message::Done);
}

// ---- messages that are being dropped --------------------------------------------------------------

/// A forked child may have a copy of the middle of a thread's drop of a message, which will never end
/// there. The child drops the receiving end and does not wait for that thread.
#[test]
fn fork_while_a_message_is_dropped() {
    const AT_ONCE: usize = 64;
    in_child(|prefix| {
        let namespace = Namespace::new(prefix).unwrap();
        let provider = Provider::builder().namespace(&namespace).build().unwrap();
        let mut sender = Sender::create(&provider, "c").unwrap();
        let receiver = Receiver::builder().namespace(&namespace).open("c");
        let mut receiver = receiver.unwrap();

        let (moving, moved) = mpsc::channel();
        let (passing, passed) = mpsc::channel::<channel::Message>();
        sender.send(message(&provider, SMALL, 0)).unwrap();
        // It receives the first buffer, and then drops messages all the time.
        let home = thread::spawn(move || {
            drop(receiver.recv().unwrap());
            moving.send(receiver).unwrap();
            for message in passed {
                drop(message);
            }
        });
        let mut receiver = moved.recv().unwrap();

        for round in 0..100 {
            let mut kept = Vec::new();
            for number in 0..AT_ONCE {
                sender.send(message(&provider, SMALL, round)).unwrap();
                let message = receiver.recv().unwrap();
                if number % 8 == 0 {
                    kept.push(message);
                } else {
                    passing.send(message).unwrap();
                }
            }
            let Some(forked) = sys::fork() else {
                sys::end_with(move || drop((receiver, kept)))
            };
            forked.finish();
        }
        drop(passing);
        home.join().unwrap();
        drop(receiver);
        provider.reclaim();
        assert_eq!(provider.stats().bytes_in_use, 0);
    });
}
