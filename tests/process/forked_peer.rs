//! A peer that forks: the child owns neither its parent's leases nor its slot (D11).

use crate::child::Child;
use crate::shm::{self, Names};
use crate::sys;
use crate::wire::{Link, Message};
use shm_pool::{AttachError, Client, Descriptor, PeerId, Provider, ShmView};

const LEN: usize = 200_000;

/// The forked child's exit ends no leases of its parent, which would then read torn messages.
#[test]
fn forked_child_keeps_leases() {
    let names = Names::new("fork-peer");
    let provider = names.provider().max_bytes(1 << 20).build().unwrap();
    let mut buffer = provider.alloc(LEN).unwrap();
    shm::fill(&mut buffer, 1);
    let message = buffer.freeze();
    let peer = Child::start("forked-peer", &[names.prefix()]);
    let id = connected(&peer, message.descriptor().unwrap());
    let granted = message.grant(id).unwrap();
    drop(message);
    peer.tell(&Message::Sent(granted));
    peer.expect_done(); // it has forked, and the forked child has dropped everything and exited

    assert!(provider.stats().bytes_leased >= LEN, "the parent's lease and grant are there");
    let mut others: Vec<_> = std::iter::from_fn(|| provider.alloc(LEN).ok()).collect();
    others.iter_mut().for_each(|buffer| buffer.fill(0));
    let still_granted = others.remove(0).freeze().grant(id);
    assert!(still_granted.is_ok(), "the parent's slot is its own still: {still_granted:?}");
    peer.tell(&Message::Go);
    peer.expect_done(); // it has checked and dropped its view, and used and dropped its grant
    assert!(provider.stats().bytes_leased < 2 * LEN, "only the last grant is left");
    peer.shut_down();
    provider.trim();
    assert_eq!(provider.stats().bytes_leased, 0);
}

/// The locks that a forked child inherits do not make a killed peer look alive, so its leases are
/// reclaimed while the child runs.
#[test]
fn killed_peer_with_forked_child() {
    let names = Names::new("fork-killed");
    let provider = names.provider().max_bytes(1 << 20).build().unwrap();
    let mut buffer = provider.alloc(LEN).unwrap();
    shm::fill(&mut buffer, 1);
    let message = buffer.freeze();
    let peer = Child::start("forked-peer-killed", &[names.prefix()]);
    connected(&peer, message.descriptor().unwrap());
    drop(message);
    peer.expect_done(); // sent by the forked child
    let link = peer.kill_but_keep_link();
    assert_eq!(provider.reclaim(), 1);
    provider.trim();
    assert_eq!((provider.stats().bytes_leased, provider.stats().bytes_held), (0, 0));
    link.send(&Message::Go);
    assert_eq!(link.receive().unwrap(), Some(Message::Done), "the forked child has lived all the time");
}

/// A process that forks, or now and then starts a program, does not exhaust its providers' slots.
#[test]
fn dropped_client_with_forked_child() {
    let names = Names::new("fork-drop");
    let child = Child::start("forked-peer-drops", &[names.prefix()]);
    child.expect_done();
    child.finish();
}

fn connected(peer: &Child, descriptor: Descriptor) -> PeerId {
    match peer.ask(&Message::Sent(descriptor)) {
        Message::Peer(id) => id,
        other => panic!("not an id: {other:?}"),
    }
}

fn received(link: &Link) -> Descriptor {
    match link.receive().unwrap() {
        Some(Message::Sent(descriptor)) => descriptor,
        other => panic!("not a descriptor: {other:?}"),
    }
}

/// Attaches to the first message that arrives, and answers with its own peer id.
fn attached(link: &Link, prefix: &str) -> (Client, ShmView, Descriptor) {
    let client = shm::client(prefix);
    let descriptor = received(link);
    let view = client.attach(&descriptor).unwrap();
    link.send(&Message::Peer(client.connect(descriptor.provider()).unwrap()));
    (client, view, descriptor)
}

role!("forked-peer", role);

/// The role of the peer that forks and continues.
fn role(link: &Link, arguments: &[&str]) {
    let prefix = arguments[0];
    let (client, view, descriptor) = attached(link, prefix);
    let granted = received(link);
    let Some(forked) = sys::fork() else {
        sys::end_with(move || in_the_forked_child(client, view, descriptor, granted, prefix))
    };
    forked.finish();
    link.send(&Message::Done);

    assert_eq!(link.receive().unwrap(), Some(Message::Go));
    shm::check(&view, 1).unwrap();
    drop(view);
    shm::check(&client.attach(&granted).unwrap(), 1).unwrap();
    link.send(&Message::Done);
    assert_eq!(link.receive().unwrap(), None);
}

fn in_the_forked_child(client: Client, view: ShmView, descriptor: Descriptor, granted: Descriptor, prefix: &str) {
    assert!(matches!(client.attach(&descriptor), Err(AttachError::Forked)));
    assert!(matches!(client.attach(&granted), Err(AttachError::Forked)));
    assert!(matches!(client.connect(descriptor.provider()), Err(AttachError::Forked)));
    assert!(matches!(view.try_clone(), Err(AttachError::Forked)));
    assert_eq!((client.trim(), client.mapped_segments()), (0, 0), "{client:?}");
    shm::check(&view, 1).unwrap();
    drop((view, client));
    // A client that the child creates is a different peer from its parent's.
    let own = shm::client(prefix);
    let refused = own.attach(&granted).unwrap_err();
    assert!(matches!(refused, AttachError::OtherPeer { .. }), "{refused}");
    shm::check(&own.attach(&descriptor).unwrap(), 1).unwrap();
}

role!("forked-peer-killed", killed_role);

/// The role of the peer that forks and is killed.
fn killed_role(link: &Link, arguments: &[&str]) {
    let _handles = attached(link, arguments[0]);
    let Some(forked) = sys::fork() else { sys::end_with(|| in_child_of_killed_peer(link)) };
    forked.finish();
}

fn in_child_of_killed_peer(link: &Link) {
    link.send(&Message::Done);
    assert_eq!(link.receive().unwrap(), Some(Message::Go));
    link.send(&Message::Done);
}

role!("forked-peer-drops", drop_role);

/// The role of the peer that forks and then drops its client.
fn drop_role(link: &Link, arguments: &[&str]) {
    let prefix = arguments[0];
    let provider = Provider::builder().name_prefix(prefix).build().unwrap();
    let connect = |client: &Client| client.connect(provider.id()).unwrap();
    let client = shm::client(prefix);
    let first = connect(&client);
    let Some(forked) = sys::fork() else { sys::end_with(|| assert_eq!(link.receive().unwrap(), None)) };
    drop(client);
    let second = connect(&shm::client(prefix));
    assert_eq!(second.slot(), first.slot(), "the first free slot");
    assert_ne!(second, first);
    drop(forked);
    link.send(&Message::Done);
}
